//! Interfaces of the pager to its environment, each a trait or a type, so that a simulation can
//! replace all of it (`sim`). The code on the pager's side is equal in both. `wait/clock.rs` has
//! the time, and `processes/host.rs` the functions of no single process.
//!
//! * [`space`]: an address space by its userfaultfd: messages, placing of pages.
//! * [`connection`]: a connection of a client that has not said hello yet.
//! * [`answer`]: the answer to a client, through its connection.
//! * [`line`]: the line to an agent: shared memory, a byte to wake it, a word to wait on.
//! * [`map_lock`]: the lock of a process's memory map, for which a call may wait for ever.
//! * [`process`]: a process seen from outside: its pages, its areas, its threads.
//! * [`storage`]: the store.

pub mod answer;
pub mod connection;
pub mod line;
mod map_lock;
pub mod process;
pub mod space;
pub mod storage;

pub use connection::Connection;
pub use line::{Line, Wire};
pub use map_lock::{MapLock, make_own_calls, makes_own_calls};
pub use process::{AgentRuns, Known, Process, own_pages};
pub use space::{AddressSpace, Event, KnownSpace};
pub use storage::Storage;
