//! Benchmarks the page-frame allocator: k threads each allocate and free a number of blocks.
//!
//! The result is CPU time of the threads per operation, as the median over rounds. Contenders take
//! turns round by round, so that noise affects all alike. Every operation goes through an opaque
//! reference. So the state is read from memory, as for a caller that does other work in between.

mod command;
mod ebb;
mod harness;
mod table;

pub use command::main;
pub use ebb::{Ebb, Hinted, HoldTimes, Mechanisms};
pub use harness::{Cell, Contender, Load, Pattern, Sampler, Worker, measure, median};
pub use table::Table;
