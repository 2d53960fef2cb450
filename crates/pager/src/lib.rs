//! Live memory: serves the faults of a process tree and keeps it under its budget.
//!
//! Threads, and what each may wait for:
//! * *faults* (`faults`): reads every userfaultfd, answers touches, follows mapping changes. Never
//!   waits for anything but a batch of moves that is under way (a few tens of microseconds).
//! * *kswapd* (`reclaim`): cools, stores, frees; ages and evicts by command. Waits for agents and for
//!   writes.
//! * *monitor* (`monitor`): measures, brings new areas under management, notices ends.
//! * *door* (`door`): greets agents.
//! * *view* (`view`): goes through page tables for `ebb top`. Waits for nobody who asks.
//! * *events* (`events`), where they are wanted: writes what happens. Waits for the file.
//! * *beat* (`patience`): measures the time that the host grants.
//! * *errands* (`errand`): looks at processes for the fault threads, where that takes long.
//!
//! Lock order: `Mm::state` before `Pager::resident`; never two of either; no lock is held while
//! waiting for an agent, a device or another thread. `Mm::state` is held across userfaultfd calls on
//! that address space, because it is what orders them against its mapping changes:
//! * ORD-1: messages are read, and acted upon, under `Mm::state`, and never while `busy` is set.
//! * ORD-2: pages are moved out only while `busy` is set, so no mapping change can be acknowledged
//!   between looking a page up and moving it; one that happens in between makes MOVE fail (EAGAIN).
//! * ORD-3: pages are put in place under `Mm::state`, after looking the page up under the same hold.
//! * ORD-4: a page is adopted only in the hold of `Mm::state` that has its slice registered.
//! * ORD-5: a place in the pool is reused only after the agent has dropped its page.
//! * ORD-6: from the reading of a message that takes several holds to follow (a fork, a large unmapping) until all of
//!   it is followed, nothing else of the address space changes: `busy` is set, and `copying`.
//! * ORD-7: a batch that its agent has begun and does not end is over only when each place holds a page to which no move was told:
//!   the page that was moved there, or the kernel's zero page. A move that is still made finds its place taken.
//! * WAKE-1: nobody is woken under `Mm::state`, and a thread whose page is placed is woken on every path.
//! * IDENTITY-1: an address space is taken for a process's only if that process has its identity page.
#![forbid(unsafe_code)]

mod account;
mod adopt;
mod arrivals;
mod brake;
mod broken;
mod charges;
mod children;
mod config;
mod costs;
mod counters;
mod detach;
mod door;
mod errand;
pub mod events;
mod faults;
mod following;
mod fork;
mod guard;
mod hidden;
pub mod inject;
mod limits;
mod lineage;
mod linger;
mod link;
mod loads;
mod look_around;
mod lru_gen;
mod messages;
mod mm;
mod monitor;
mod own_cost;
pub mod patience;
mod pending;
mod pool;
mod pressure;
mod pressure_target;
#[cfg(test)]
mod quiet;
mod reclaim;
mod record;
mod report;
mod resize;
mod sampling;
mod seam;
mod search;
mod server;
mod shared_memory;
mod sharing;
mod signal;
#[cfg(test)]
mod sim;
mod solo;
mod spin;
mod stages;
mod stat;
mod strangers;
mod thrashing;
mod thread_words;
mod unmanaged;
mod unseen;
mod vacant;
pub mod view;
mod writer;

pub use config::{Config, Encrypt, MEMORY_MIN_BYTES, ReportFormat, ReportTo, shown};
pub use door::FEATURES;
pub use lru_gen::{DONE, REFUSED};
pub use resize::DETACH;
pub use server::{FrontMessage, serve};
pub use stat::{COMMAND, FAULTS, FAULTS_JSON, MEMBER, PRESSURE, PROGRAM};
