//! Real programs in a share of the memory they take: under `ebb run`, with the kernel's swap, and alone.
//!
//! `list` says which programs, `inputs` makes what they read, `runs` runs one once, `redis` is the client of
//! the one that is a server, `rounds` takes turns, and `table` says what came out. What a program prints is
//! compared with what it prints alone; anything else is an error.

mod command;
mod inputs;
mod list;
mod redis;
mod rounds;
mod runs;
mod table;

pub use command::main;
