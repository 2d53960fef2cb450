//! Comparisons: every arm on the same seeds, means with their intervals, and a verdict.
//!
//! * [`stats`]: means and Student's intervals, of values and of paired changes.
//! * [`verdict`]: how a measured effect compares with a published one.
//! * [`runner`]: all runs of some scenarios over some threads; the order of results never depends
//!   on how many there are.
//! * [`text`], [`html`], [`json`]: the results for people and for programs.

pub mod html;
pub mod json;
pub mod runner;
pub mod stats;
pub mod text;
pub mod verdict;

pub use runner::{Arm, Case, Job, Results, run};
pub use stats::Estimate;
pub use verdict::{Verdict, judge};
