//! Serves the page faults of a process tree and keeps its memory within the budget.
//!
//! `ARCHITECTURE.md` has the threads, what each may wait for, and the path of one page fault.
//!
//! Lock order: `Mm::state`, then `Pending`, then `Budget::engine` (`Budget::resident` locks it,
//! too). No thread holds two locks of one kind. No thread holds a lock while it waits for an agent,
//! a device or another thread. Threads hold `Mm::state` across userfaultfd calls on its address
//! space, because the lock orders these calls against mapping changes:
//! * ORD-1: a thread reads a message, and acts on it, under `Mm::state`, and never while
//!   `reads_blocked` is set.
//! * ORD-2: pages move out only while `reads_blocked` is set. So no thread acknowledges a mapping
//!   change between the lookup of a page and its move. A mapping change in between makes MOVE fail
//!   (EAGAIN).
//! * ORD-3: a thread places a page under `Mm::state`, after a lookup of the page in the same
//!   critical section.
//! * ORD-4: a page is adopted only in the hold of `Mm::state` that registers its slice.
//! * ORD-5: a pool slot is reused only after the agent has dropped its page.
//! * ORD-6: some messages (a fork, a large unmapping) take several holds to follow. From the
//!   reading of such a message until all of it is followed, nothing else of the address space
//!   changes. `reads_blocked` and `following_message` are set.
//! * ORD-7: an agent may begin a batch and not end it. Such a batch is over only when every slot
//!   with an unreported move holds a page. This is the moved page or the kernel's zero page. A
//!   later move then finds its slot taken.
//! * WAKE-1: no function that places a page wakes a thread. The release of `Mm::state` does, on
//!   every path.
//! * IDENTITY-1: the pager assigns an address space to a process only if that process has its
//!   identity page.
#![forbid(unsafe_code)]

mod broken;
mod budget;
mod config;
mod control;
mod fault_threads;
mod faults;
mod mm;
mod monitor;
mod pager;
mod processes;
#[cfg(test)]
mod quiet;
mod reclaim;
mod report;
mod run;
mod seam;
mod server;
#[cfg(test)]
mod sim;
mod telemetry;
mod wait;

pub use config::{Config, Encrypt, MEMORY_MIN_BYTES, ReportFormat, ReportTo, shown};
pub use control::listener::FEATURES;
pub use processes::inject;
pub use run::far_file;
pub use server::{SupervisorMessage, serve};
pub use telemetry::events;
pub use wait::patience;
