//! Waiting: the clock, and how threads wait for each other.
//!
//! * [`clock`]: the time, real or simulated.
//! * [`patience`]: the limits of waits that have consequences.
//! * [`limits`]: the limits of the time for which a thread may hold what others wait for.
//! * [`signal`]: a thread waits until another raises a signal.
//! * [`spin`]: a thread waits for a lock that is held for moments.

pub mod clock;
pub mod limits;
pub mod patience;
pub mod signal;
pub mod spin;
