//! Limits on dirty memory.
//!
//! Percentages are relative to the dirtyable memory: free pages and file pages, less the reserves.
//! Up to the middle between the background and the dirty threshold (`freerun`) no writer waits.
//! Above it writers are slowed down, the more the closer they come to the limit.

/// An amount of dirty memory.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Amount {
    /// Percent of the dirtyable memory.
    Percent(f64),
    /// Pages.
    Pages(u64),
}

impl Amount {
    fn of(self, dirtyable: u64) -> u64 {
        match self {
            Self::Percent(p) => (dirtyable as f64 * p / 100.0) as u64,
            Self::Pages(n) => n,
        }
    }
}

/// When dirty pages are written, and how many there may be.
#[derive(Clone, Debug, PartialEq)]
pub struct Limits {
    /// Amount from which on the flusher works continuously.
    pub background: Amount,
    /// Amount beyond which no writer may make pages dirty.
    pub dirty: Amount,
    /// Age at which a file's dirty pages are written, in milliseconds.
    pub expire_ms: u64,
    /// Interval between two rounds of the flusher, in milliseconds.
    pub interval_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            background: Amount::Percent(10.0),
            dirty: Amount::Percent(20.0),
            expire_ms: 30_000,
            interval_ms: 5_000,
        }
    }
}

/// The limits in pages.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Thresholds {
    /// [`Limits::background`] in pages.
    pub background: u64,
    /// [`Limits::dirty`] in pages.
    pub dirty: u64,
}

/// Returns the number of dirtyable pages: free and file pages, less the reserves.
#[must_use]
pub const fn dirtyable(free: u64, file: u64, reserves: u64) -> u64 {
    (free + file).saturating_sub(reserves)
}

impl Limits {
    /// Returns the limits in pages, for memory with `dirtyable` dirtyable pages. With `urgent` they
    /// are higher, because the task should not wait.
    #[must_use]
    pub fn thresholds(&self, dirtyable: u64, urgent: bool) -> Thresholds {
        let dirty = self.dirty.of(dirtyable);
        let mut background = self.background.of(dirtyable);
        if background >= dirty {
            background = dirty / 2;
        }
        let extra = |n: u64| if urgent { n + n / 4 + dirtyable / 32 } else { n };
        Thresholds { background: extra(background), dirty: extra(dirty) }
    }
}

impl Thresholds {
    /// Returns the number of dirty pages up to which no writer is slowed down.
    #[must_use]
    pub const fn freerun(&self) -> u64 {
        u64::midpoint(self.background, self.dirty)
    }

    /// Returns the number of dirty pages that the throttling aims at.
    #[must_use]
    pub const fn setpoint(&self) -> u64 {
        u64::midpoint(self.freerun(), self.dirty)
    }

    /// Returns the factor for the pace of writers at `dirty` pages: 1 at the setpoint, at most 2, 0
    /// at the limit.
    #[must_use]
    pub fn ratio(&self, dirty: u64) -> f64 {
        if dirty >= self.dirty {
            return 0.0;
        }
        let (at, set) = (dirty as f64, self.setpoint() as f64);
        let room = (self.dirty as f64 - set).max(1.0);
        (1.0 + ((set - at) / room).powi(3)).clamp(0.0, 2.0)
    }

    /// Returns how many pages a task may make dirty between two checks of the limits.
    #[must_use]
    pub fn check_pages(&self, cpus: u64) -> u64 {
        (self.dirty / (cpus.max(1) * 32)).clamp(16, 1 << 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_a_fifth_and_a_tenth() {
        let t = Limits::default().thresholds(100_000, false);
        assert_eq!(t, Thresholds { background: 10_000, dirty: 20_000 });
        assert_eq!((t.freerun(), t.setpoint()), (15_000, 17_500));
        let urgent = Limits::default().thresholds(100_000, true);
        assert_eq!(urgent.dirty, 20_000 + 5_000 + 3_125);
        assert_eq!(dirtyable(100, 50, 200), 0);
    }

    #[test]
    fn a_background_above_the_limit_is_half_of_it() {
        let limits = Limits {
            background: Amount::Percent(30.0),
            dirty: Amount::Pages(1000),
            ..Limits::default()
        };
        assert_eq!(limits.thresholds(100_000, false).background, 500);
    }

    #[test]
    fn the_pace_falls_from_double_to_nothing_and_is_one_at_the_setpoint() {
        let t = Thresholds { background: 10_000, dirty: 20_000 };
        assert!((t.ratio(15_000) - 2.0).abs() < 1e-9);
        assert!((t.ratio(17_500) - 1.0).abs() < 1e-9);
        assert!(t.ratio(20_000) == 0.0 && t.ratio(30_000) == 0.0);
        let falls = (0..20_000).step_by(100).all(|d| t.ratio(d) >= t.ratio(d + 100));
        assert!(falls && t.ratio(0) == 2.0);
        assert_eq!([t.check_pages(4), t.check_pages(1000), t.check_pages(1)], [156, 16, 625]);
    }
}
