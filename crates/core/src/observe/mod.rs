//! Observation of the engine: counters under vmstat's names, pressure, reuse distances and the
//! `lru_gen` text files.

pub mod lru_gen;
pub mod psi;
pub mod reuse;
pub mod vmstat;
