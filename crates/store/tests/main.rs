//! The tiers from outside, one file for each theme.

mod common;
mod faults;
mod model;
mod stress;
mod tiers;
