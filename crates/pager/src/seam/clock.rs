//! The time, as the machine or a simulation has it.

use crate::patience::{Granted, Moment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A clock. Copies of one show the same time.
#[derive(Clone, Debug)]
pub struct Clock {
    began: Instant,
    /// Simulated time since `began`, in nanoseconds; absent: the machine's.
    simulated: Option<Arc<AtomicU64>>,
    /// What of it the host has granted.
    granted: Arc<Granted>,
}

impl Clock {
    /// The machine's.
    #[must_use]
    pub fn real() -> Self {
        Self { began: Instant::now(), simulated: None, granted: Arc::default() }
    }

    /// One that stands still until it is told to go on.
    #[cfg(any(test, feature = "sim"))]
    #[must_use]
    pub fn simulated() -> Self {
        Self { began: Instant::now(), simulated: Some(Arc::default()), granted: Arc::default() }
    }

    /// The time.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.simulated {
            None => Instant::now(),
            Some(ns) => self.began + Duration::from_nanos(ns.load(Relaxed)),
        }
    }

    /// The time since `then`.
    #[must_use]
    pub fn since(&self, then: Instant) -> Duration {
        self.now().saturating_duration_since(then)
    }

    /// Now, in the time that the host grants ([`crate::patience`]).
    #[must_use]
    pub fn moment(&self) -> Moment {
        self.granted.moment()
    }

    /// That time.
    #[must_use]
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// How long a thread may really wait for another: not at all where all of them are one.
    #[must_use]
    pub fn patience(&self, limit: Duration) -> Duration {
        if self.simulated.is_some() { Duration::ZERO } else { limit }
    }

    /// Whether it is not the machine's.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.simulated.is_some()
    }

    /// Has a simulated clock go on.
    ///
    /// # Panics
    ///
    /// If it is the machine's.
    #[cfg(any(test, feature = "sim"))]
    pub fn advance(&self, by: Duration) {
        let ns = self.simulated.as_ref().expect("a simulated clock");
        ns.fetch_add(by.as_nanos() as u64, Relaxed);
        self.granted.add(by);
    }

    /// Has a simulated host stop for so long.
    ///
    /// # Panics
    ///
    /// If it is the machine's.
    #[cfg(any(test, feature = "sim"))]
    pub fn stall(&self, by: Duration) {
        let ns = self.simulated.as_ref().expect("a simulated clock");
        ns.fetch_add(by.as_nanos() as u64, Relaxed);
        self.granted.beat(by);
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;
    use std::time::Duration;

    #[test]
    fn a_simulated_clock_goes_on_when_told_and_copies_show_the_same() {
        let clock = Clock::simulated();
        let (copy, began) = (clock.clone(), clock.now());
        clock.advance(Duration::from_millis(3));
        assert_eq!(copy.since(began), Duration::from_millis(3));
        assert_eq!(copy.patience(Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(Clock::real().patience(Duration::from_secs(1)), Duration::from_secs(1));
    }
}
