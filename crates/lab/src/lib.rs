//! The memory-pressure laboratory: replays page traces through replacement policies.
//!
//! * [`trace`]: formats, dense numbering, temporary storage, synthetic traces.
//! * [`policy`]: the textbook policies behind one trait.
//! * [`replay`]: runs any number of policies and sizes over a trace.
//! * [`baseline`]: compares replays with miss counts measured elsewhere; [`ranking`] ranks a policy
//!   among them.
//! * [`machine`], [`workload`], [`scenario`], [`experiment`]: a simulated machine in virtual time, what
//!   runs on it, published results as files, and comparisons with intervals.
//! * [`fuzz`]: machines drawn at random, and rules that none may break.
//! * [`cli`]: the commands of `ebb lab` as a library.
#![forbid(unsafe_code)]

pub mod baseline;
pub mod cli;
pub mod experiment;
pub mod fuzz;
pub mod machine;
pub mod mrc;
pub mod plot;
pub mod policy;
pub mod ranking;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod trace;
pub mod workload;
