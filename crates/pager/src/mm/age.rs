//! Age of an address space: the time since the pager learnt of it.
//!
//! The parts of an address space note moments as ages in milliseconds, each in one word.
//!
//! * AGE-1: ages count time that the host grants (PATIENCE-1). A stopped host makes nothing older.
//! * AGE-2: an age in milliseconds is at least 1. So a word can have 0 for "none".
//!
//! Lock order: no lock here.

use crate::wait::clock::Clock;
use crate::wait::patience::Moment;
use std::time::Duration;

/// Age of an address space. Clones show one age.
#[derive(Clone, Debug)]
pub struct Age {
    clock: Clock,
    born: Moment,
}

impl Age {
    /// Creates the age of an address space of which the pager learns now.
    pub fn new(clock: &Clock) -> Self {
        Self { clock: clock.clone(), born: clock.moment() }
    }

    /// Returns the current moment in the time that the host grants.
    pub fn moment(&self) -> Moment {
        self.clock.moment()
    }

    /// Returns the age.
    pub fn time(&self) -> Duration {
        self.moment().since(self.born)
    }

    /// Returns the age in milliseconds (AGE-2).
    pub fn ms(&self) -> u64 {
        self.ms_at(self.moment())
    }

    /// Returns the age at `moment` in milliseconds (AGE-2).
    pub fn ms_at(&self, moment: Moment) -> u64 {
        (moment.since(self.born).as_millis() as u64).max(1)
    }

    /// Returns the time since the age was `ms` milliseconds.
    pub fn since(&self, ms: u64) -> Duration {
        Duration::from_millis(self.ms().saturating_sub(ms))
    }
}

#[cfg(test)]
mod tests {
    use super::Age;
    use crate::wait::clock::Clock;
    use std::time::Duration;

    #[test]
    fn an_age_begins_at_one_and_stands_still_with_the_host() {
        let clock = Clock::simulated();
        clock.advance(Duration::from_secs(5));
        let age = Age::new(&clock);
        assert_eq!((age.ms(), age.time()), (1, Duration::ZERO));
        clock.advance(Duration::from_millis(300));
        assert_eq!((age.ms(), age.since(100)), (300, Duration::from_millis(200)));
        clock.stall(Duration::from_secs(3600));
        assert!(age.ms() < 1000, "the host ran no thread");
    }
}
