//! The page-frame allocator under load: k threads, each takes and gives back a number of blocks.
//!
//! What is measured is CPU time of the threads per operation, median over rounds; contenders take
//! turns round by round, so that a noisy moment hits all alike. Every operation goes through an
//! opaque reference: its state is found in memory, as by a caller that does other work in between.

mod command;
mod ebb;
mod harness;
mod table;

pub use command::main;
pub use ebb::{Ebb, Hinted, HoldTimes, Mechanisms};
pub use harness::{Cell, Contender, Load, Pattern, Sampler, Worker, measure, median};
pub use table::Table;
