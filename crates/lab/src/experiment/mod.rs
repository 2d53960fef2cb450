//! Comparisons: every arm on the same seeds, means with their intervals, and a verdict.
//!
//! * [`stats`]: means and Student's intervals, of values and of paired changes.
//! * [`rule`]: compares a measured effect with a published one, and decides which rows vote.
//! * [`exercise`]: tells whether the compared code ran at all; [`score`]: the votes by body of
//!   work.
//! * [`verdict`]: rule 1, the predecessor of [`rule`], for comparison.
//! * [`runner`]: does all runs of some scenarios on several threads. The order of results never
//!   depends on the number of threads.
//! * [`shard`]: writes some of the runs to a file, and merges such files.
//! * [`text`], [`html`], [`json`]: the results for readers and for programs.

pub mod exercise;
pub mod html;
pub mod json;
pub mod rule;
pub mod runner;
pub mod score;
pub mod shard;
pub mod stats;
pub mod text;
pub mod verdict;

pub use rule::{Class, RULE_VERSION};
pub use runner::{Arm, Case, Job, Outcome, Plan, Results, Traced, at_sizes, beside_sizes, run};
pub use score::Score;
pub use stats::Estimate;
pub use verdict::{Verdict, judge};
