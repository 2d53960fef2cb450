//! Benchmarks real programs in a share of the memory they take: under `ebb run`, with the kernel's
//! swap, and alone.
//!
//! `list` names the programs, and `inputs` makes their inputs. `runs` runs one program once, and
//! `redis` is the client of the server among them. `rounds` takes turns, and `table` prints the
//! results. The output of each run is compared with the output of the program alone. A difference
//! is an error.

mod command;
mod error;
mod inputs;
mod list;
mod redis;
mod rounds;
mod runs;
mod table;

pub use command::main;
