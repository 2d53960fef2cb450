//! What the pager needs of the world around it, each behind a trait or a type of its own, so that a
//! simulation can stand in for all of it (`sim`). The code on this side of the seams is the same in both.
//!
//! * [`space`]: an address space as its userfaultfd shows it: messages, pages put in place.
//! * [`connection`]: a connection over which an agent greets, and before that nobody knows who.
//! * [`line`]: the line to an agent: memory in common, a byte to wake it, a word to wait on.
//! * [`process`]: a process as it is seen from outside: its pages, its areas, its threads.
//! * [`storage`]: the store.
//! * [`clock`]: the time.
//! * [`host`]: what concerns no single process: waiting, telling the user, ending the run.

pub mod clock;
pub mod connection;
pub mod host;
pub mod line;
pub mod process;
pub mod space;
pub mod storage;

pub use clock::Clock;
pub use connection::Connection;
pub use host::{Host, Machine};
pub use line::{Line, Wire};
pub use process::{Known, Process, own_pages};
pub use space::{AddressSpace, Event};
pub use storage::Storage;
