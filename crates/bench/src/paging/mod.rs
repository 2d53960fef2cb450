//! A program of 1 GiB in 512 MiB: under `ebb run`, under the kernel's own reclaim, and alone.
//!
//! The same load (`load`) runs in every configuration, and configurations take turns, round by
//! round, so that a noisy moment hits all alike. `kernel` makes and undoes the cgroup and the swap
//! file; `command` runs the rounds and prints the tables.

mod command;
mod kernel;
mod load;
mod runs;

pub use command::main;
pub use load::main as load;
