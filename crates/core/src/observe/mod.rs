//! What can be seen from outside: counters under vmstat's names and the text interfaces.

pub mod lru_gen;
pub mod psi;
pub mod reuse;
pub mod vmstat;
