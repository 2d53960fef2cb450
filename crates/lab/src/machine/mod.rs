//! A virtual machine in virtual time: CPUs, memory, devices, and threads that run on them.
//!
//! Everything that takes part is an event with a time; the earliest happens first, and of equals
//! the one that was asked for first. There is no other source of order, so the same seed gives the
//! same run to the last digit. What threads do comes from [`workload`](crate::workload); what
//! memory does is the engine of `ebb_mm`, part by part as a kernel has it, or its facade as `ebb run` drives it ([`live`]);
//! what that costs is in [`costs`].
//!
//! * [`sched`]: the clock, CPUs, threads. [`kswapd`]: background reclaim. `log`: commits in groups.
//! * `steps`: what threads do that is rare. `measure`: what is noted of a run. [`signs`]: what in it looks like a bug.
//! * [`mem`]: address spaces, touches; `fault`: faults. [`outflow`]: frames, charges, swap.
//! * [`live`]: memory as `ebb run` has it, instead of a kernel's.
//! * `reclaim`: direct reclaim; `task`: what a task is in the middle of. `charge`: what it and insertion cost. `check`: conservation laws.
//! * [`ahead`]: what is read together; `swapin`: the same from swap. [`allocation`]: the allocator alone.
//! * `mappings`: who maps what, and what finding that out takes.
//! * [`flusher`]: dirty file pages. [`slab`]: caches beside the page lists.
//! * [`proactive`]: reclaim on command. [`pressure`]: time lost for want of memory.
//! * [`tracepoints`]: what reclaim does, as lines of a kernel's tracepoints.
//! * [`device`], [`costs`], [`histogram`]: figures. [`heat`]: where pages come and go.
//!
//! A thread runs ahead of the clock only through touches of pages that are there, for a slice of
//! [`SLICE_NS`](sched::SLICE_NS) at most; faults, transfers and everything else happen in order.

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
