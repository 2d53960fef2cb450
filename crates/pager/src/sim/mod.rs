//! Simulation of the pager's environment. The production code of its threads runs from a seed,
//! driven by a fake kernel, fake agents, a fake clock and an unreliable store.
//!
//! One thread plays all threads. During each call of the pager into its environment others may run
//! ([`driver`]). So every order of events that locks and the kernel allow can occur, and a seed
//! repeats it exactly. Programs know the content that each of their pages must have ([`world`],
//! [`program`]). After each step the pager's state is compared with that ([`check`]). A failure is
//! printed with its seed:
//!
//! ```text
//! EBB_SIM_SEED=42 EBB_SIM_STEPS=2000 cargo test --release -p ebb-pager --lib \
//!     sim::tests::replay -- --ignored --nocapture
//! ```
//!
//! The simulation must also detect rules of the pager that are broken on purpose
//! ([`crate::broken`]).

mod check;
mod driver;
mod fakes;
mod program;
mod rng;
mod tests;
mod world;
