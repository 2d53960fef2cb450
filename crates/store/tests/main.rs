//! Tests of the tiers from outside, one file for each subject.

mod common;
mod faults;
mod model;
mod stress;
mod tiers;
