//! Safe wrappers of the kernel's interfaces.
//!
//! Each module wraps one kernel interface in a safe type and nothing more; policy lives elsewhere.

pub mod anon;
pub mod cgroup;
mod cut_short;
pub mod descriptor;
pub mod examine;
pub mod futex;
pub mod handle;
pub mod inherited;
pub mod lifeline;
pub mod limits;
pub mod memory;
pub mod pagemap;
pub mod percpu;
pub mod probe;
pub mod proc;
pub mod process;
pub mod rights;
pub mod sched;
pub mod secret;
pub mod shared;
pub mod signals;
pub mod socket;
pub mod ticks;
pub mod trace;
pub mod tracee;
pub mod uffd;
pub mod uring;
pub mod words;
