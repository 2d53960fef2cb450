//! A program of 1 GiB in 512 MiB: under `ebb run`, under the kernel's own reclaim, and alone.
//!
//! The same load (`load`) runs in every configuration, and configurations take turns, round by
//! round, so that a noisy moment hits all alike. `command` reads what is wanted, `rounds` runs it, and
//! `table` says what came out.

mod command;
mod load;
mod looping;
mod rounds;
mod runs;
mod table;

pub use command::main;
pub use load::{Outcome, main as load};
