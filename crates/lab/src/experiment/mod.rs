//! Comparisons: every arm on the same seeds, means with their intervals, and a verdict.
//!
//! * [`stats`]: means and Student's intervals, of values and of paired changes.
//! * [`rule`]: how a measured effect compares with a published one, and what votes; [`exercise`]: whether what is
//!   compared ran at all; [`score`]: the votes by body of work.
//! * [`verdict`]: the rule before, version 1, for comparison.
//! * [`runner`]: all runs of some scenarios over some threads; the order of results never depends
//!   on how many there are.
//! * [`shard`]: some of those runs in a file, and all of them together again.
//! * [`text`], [`html`], [`json`]: the results for people and for programs.

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
