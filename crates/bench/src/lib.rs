//! Benchmarks of Ebb's own parts. Comparisons with other projects live in `ebb-versus`.

pub mod alloc;
