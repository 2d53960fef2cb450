//! Tests of the laboratory from outside, one file for each theme.

mod common;
mod events;
mod found;
mod machine;
mod memcgs;
mod nodes;
mod reference;
