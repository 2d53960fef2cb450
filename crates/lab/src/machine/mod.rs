//! A virtual machine in virtual time: CPUs, memory, devices, and threads that run on them.
//!
//! Every participant of a run is an event with a time. The earliest event happens first. Of events
//! at one time the one that was asked for first happens first. There is no other source of order,
//! so one seed gives one run to the last digit. [`workload`](crate::workload) decides what threads
//! do. The engine of `ebb_mm` decides what memory does. The machine drives it part by part as a
//! kernel does, or through its facade as `ebb run` does ([`live`]). [`costs`] has the time that
//! each step takes.
//!
//! * [`sched`]: the clock, CPUs, threads. [`kswapd`]: background reclaim. `log`: group commits.
//! * `steps`: rare steps of threads. `measure`: records of a run. [`signs`]: signs of a bug in a
//!   run.
//! * [`mem`]: address spaces, touches. `fault`: page faults. [`outflow`]: frames, charges, swap.
//! * [`live`]: memory as `ebb run` has it, instead of a kernel's.
//! * `reclaim`: direct reclaim. `task`: state of a task in the middle of reclaim. `charge`: cost of
//!   reclaim and insertion. `check`: conservation laws.
//! * [`ahead`]: readahead. `swapin`: readahead from swap. [`allocation`]: the allocator alone.
//! * `mappings`: which processes map a folio, and the cost of finding that out.
//! * [`flusher`]: dirty file pages. [`slab`]: caches beside the page lists.
//! * [`proactive`]: reclaim on command. [`pressure`]: time lost for want of memory.
//! * [`tracepoints`]: events of reclaim as lines of a kernel's tracepoints.
//! * [`device`], [`costs`], [`histogram`]: figures. [`heat`]: places in which pages come and go.
//!
//! A thread runs ahead of the clock only through touches of pages that are in memory, for a slice
//! of [`SLICE_NS`](sched::SLICE_NS) at most. Faults, transfers and all other events happen in
//! order.

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

pub use costs::Costs;
pub use device::{Device, DeviceSpec, Preset};
pub use flusher::DirtySpec;
pub use histogram::Histogram;
pub use live::{Live, LiveSpec};
pub use mem::{Access, Mem, Region};
pub use outcome::{Outcome, Sample};
pub use sched::{Machine, Patience};
pub use signs::{Part, Signs};
pub use slab::SlabSpec;
pub use tracepoints::Tracepoints;
