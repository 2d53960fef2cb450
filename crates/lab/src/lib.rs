//! Laboratory for memory pressure: replays page traces through replacement policies, and simulates
//! whole machines.
//!
//! * [`trace`]: formats, dense numbering, temporary storage, synthetic traces.
//! * [`policy`]: the textbook policies behind one trait.
//! * [`replay`]: runs any number of policies and sizes over a trace.
//! * [`baseline`]: compares replays with miss counts measured elsewhere; [`ranking`] ranks a policy
//!   among them.
//! * [`machine`]: a simulated machine in virtual time; [`workload`]: the programs that run on it.
//! * [`scenario`]: published results as files; [`experiment`]: comparisons with intervals.
//! * [`fuzz`]: machines drawn at random, and rules that no machine may break.
//! * [`value`]: errors of parameters; [`cli`]: the commands of `ebb lab` as a library.
#![forbid(unsafe_code)]

pub mod baseline;
pub mod cli;
pub mod experiment;
pub mod fuzz;
pub mod machine;
pub mod mrc;
pub mod policy;
pub mod ranking;
pub mod replay;
pub mod report;
pub mod scenario;
pub mod trace;
pub mod value;
pub mod workload;
