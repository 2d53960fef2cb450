//! A virtual machine in virtual time: CPUs, memory, devices, and threads that run on them.
//!
//! Everything that happens in a run is an event with a time. The earliest event happens first. Of
//! events at one time, the one that was scheduled first happens first. There is no other source of
//! order, so one seed gives one run to the last digit. [`workload`](crate::workload) decides what
//! threads do. The engine of `ebb_mm` decides what memory does. The machine drives the engine part
//! by part, as a kernel does. With [`live`] it drives the engine's facade instead, as `ebb run`
//! does. [`costs`] has the time that each step takes.
//!
//! * [`sched`]: the clock, CPUs, threads. [`kswapd`]: background reclaim. `log`: group commits.
//! * `steps`: rare steps of threads. `barriers`: threads that wait for each other.
//! * `measure`: records of a run. [`outcome`], [`spent`]: results. [`signs`]: signs of a bug in a
//!   run.
//! * [`mem`]: address spaces, touches. [`node`]: memory nodes. `fault`: page faults. `around`:
//!   fault-around. [`outflow`]: frames, charges, swap.
//! * [`live`]: memory as `ebb run` has it, instead of a kernel's.
//! * `reclaim`: direct reclaim. `waits`: waits of reclaimers. `task`: state of a task in the middle
//!   of reclaim. `charge`: cost of reclaim and insertion. `check`: conservation laws.
//! * [`ahead`]: readahead. `swapin`: readahead from swap. [`allocation`]: the allocator alone.
//! * `mappings`: which processes map a folio, and the cost of finding that out.
//! * [`flusher`]: dirty file pages. [`slab`]: caches beside the page lists.
//! * [`proactive`]: reclaim on command. [`pressure`]: time lost for lack of memory.
//! * [`tracepoints`]: events of reclaim in the form of a kernel's tracepoints.
//! * [`device`]: storage devices. [`costs`], [`histogram`]: figures. [`heat`]: the addresses at
//!   which pages come in and go out.
//!
//! A thread runs ahead of the clock only while it computes or touches pages in memory. Its slice
//! ends after [`SLICE_NS`](sched::SLICE_NS), or with a computation that is longer. Faults,
//! transfers and all other events happen in order.

pub mod ahead;
pub mod allocation;
mod around;
mod barriers;
mod charge;
mod check;
pub mod costs;
pub mod device;
mod fault;
pub mod flusher;
pub mod heat;
pub mod histogram;
pub mod kswapd;
pub mod live;
mod log;
mod mappings;
mod measure;
pub mod mem;
pub mod node;
pub mod outcome;
pub mod outflow;
pub mod pressure;
pub mod proactive;
mod reclaim;
pub mod sched;
pub mod signs;
pub mod slab;
pub mod spent;
mod steps;
mod swapin;
mod task;
#[cfg(test)]
mod testing;
pub mod tracepoints;
mod waits;

pub use check::BooksError;
pub use costs::Costs;
pub use device::{Device, DeviceSpec, Preset};
pub use flusher::DirtySpec;
pub use histogram::Histogram;
pub use live::{GivenUp, Live, LiveSpec};
pub use mem::{Access, Mem, Region};
pub use outcome::{Outcome, Sample};
pub use sched::{Machine, Patience, Stuck};
pub use signs::{Part, Signs};
pub use slab::SlabSpec;
pub use tracepoints::Tracepoints;
