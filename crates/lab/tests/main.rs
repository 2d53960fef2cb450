//! Tests of the laboratory from outside, one file for each theme.

mod cli;
mod common;
mod events;
mod found;
mod machine;
mod memcgs;
mod memory;
mod nodes;
mod reference;
mod search;
