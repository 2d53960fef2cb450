//! A simulation of all that the pager lives in: the production code of its threads, driven by a fake kernel,
//! fake agents, a fake clock and a shaky store, from a seed.
//!
//! One thread plays everybody. Each call of the pager into its world is a point at which others may run
//! ([`driver`]), so every order of events that locks and the kernel allow can come up, and a seed repeats it
//! exactly. Programs know what each of their pages must hold ([`world`], [`program`]); after each step the
//! pager's books are compared with that ([`check`]). What they find is printed with its seed:
//!
//! ```text
//! EBB_SIM_SEED=42 EBB_SIM_STEPS=2000 cargo test --release -p ebb-pager --lib sim::tests::replay -- \
//!     --ignored --nocapture
//! ```
//!
//! Rules of the pager broken on purpose ([`crate::broken`]) must be found, too.

mod check;
mod driver;
mod fakes;
mod program;
mod rng;
mod tests;
mod world;
