//! Provides the time, real or simulated.

use crate::wait::patience::{Granted, Moment};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// A clock. Clones show one time.
#[derive(Clone, Debug)]
pub struct Clock {
    began: Instant,
    /// Simulated time since `began`, in nanoseconds; absent for the machine's clock.
    simulated: Option<Arc<AtomicU64>>,
    /// Granted part of the time.
    granted: Arc<Granted>,
}

impl Clock {
    /// Creates the machine's clock.
    #[must_use]
    pub fn real() -> Self {
        Self { began: Instant::now(), simulated: None, granted: Arc::default() }
    }

    /// Creates a clock that stands still until [`Self::advance`].
    #[cfg(any(test, feature = "sim"))]
    #[must_use]
    pub fn simulated() -> Self {
        Self { began: Instant::now(), simulated: Some(Arc::default()), granted: Arc::default() }
    }

    /// Returns the time.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.simulated {
            None => Instant::now(),
            Some(ns) => self.began + Duration::from_nanos(ns.load(Relaxed)),
        }
    }

    /// Returns the time since `then`.
    #[must_use]
    pub fn since(&self, then: Instant) -> Duration {
        self.now().saturating_duration_since(then)
    }

    /// Returns the current moment in the time that the host grants ([`crate::wait::patience`]).
    #[must_use]
    pub fn moment(&self) -> Moment {
        self.granted.moment()
    }

    /// Returns the granted time.
    #[must_use]
    pub fn granted(&self) -> &Granted {
        &self.granted
    }

    /// Returns how long a thread may really wait for another: not at all in a simulation, where one
    /// thread plays all of them.
    #[must_use]
    pub fn patience(&self, limit: Duration) -> Duration {
        if self.simulated.is_some() { Duration::ZERO } else { limit }
    }

    /// Whether this is a simulated clock.
    #[must_use]
    pub fn is_simulated(&self) -> bool {
        self.simulated.is_some()
    }

    /// Advances a simulated clock.
    ///
    /// # Panics
    ///
    /// Panics if this is the machine's clock.
    #[cfg(any(test, feature = "sim"))]
    pub fn advance(&self, by: Duration) {
        let ns = self.simulated.as_ref().expect("a simulated clock");
        ns.fetch_add(by.as_nanos() as u64, Relaxed);
        self.granted.add(by);
    }

    /// Lets a simulated host stop for a time.
    ///
    /// # Panics
    ///
    /// Panics if this is the machine's clock.
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
    fn a_simulated_clock_advances_on_command_and_copies_show_the_same_time() {
        let clock = Clock::simulated();
        let (copy, began) = (clock.clone(), clock.now());
        clock.advance(Duration::from_millis(3));
        assert_eq!(copy.since(began), Duration::from_millis(3));
        assert_eq!(copy.patience(Duration::from_secs(1)), Duration::ZERO);
        assert_eq!(Clock::real().patience(Duration::from_secs(1)), Duration::from_secs(1));
    }
}
