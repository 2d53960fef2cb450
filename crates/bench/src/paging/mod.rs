//! Benchmarks a program of 1 GiB in 512 MiB: under `ebb run`, under the kernel's own reclaim, and
//! alone. The load `loop` has 256 MiB in 186 MiB.
//!
//! One load (`load`) runs in every configuration. Configurations take turns, round by round, so
//! that noise affects all alike. `command` reads the arguments, `rounds` runs the rounds, and
//! `table` prints the results.

mod command;
mod load;
mod looping;
mod rounds;
mod runs;
mod table;

pub use command::main;
pub use load::{Outcome, main as load};
