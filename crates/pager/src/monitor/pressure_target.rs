//! Adjusts the limit during the run so that the pressure stays at a target (`--pressure-target`),
//! as senpai does for control groups.
//!
//! Once a second it evaluates the time that threads lost waiting for pages. Below the target the
//! limit falls: by a 16th if there is next to no pressure, by a 64th if there is some. Above the
//! target it rises in proportion to the excess, by a quarter at most. While the program grows
//! within the limit, the limit stays.
//!
//! * TARGET-1: the limit never exceeds `--memory-max`, and never falls below [`MEMORY_MIN_BYTES`].
//! * TARGET-2: if the tree is still over the limit after a second, the step is undone, as a step of
//!   `ebb set` is.

use crate::config::MEMORY_MIN_BYTES;
use ebb_mm::types::PAGE_SIZE;
use std::time::Duration;

/// Interval between two evaluations.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Controller of the limit; decides from measurements an [`INTERVAL`] apart.
#[derive(Debug)]
pub struct PressureTarget {
    target_permille: u64,
    /// Maximum limit, in pages (TARGET-1).
    max: u64,
    /// Time of the last evaluation, and the time lost by then, in microseconds.
    looked: Option<(Duration, u64)>,
    used: u64,
}

impl PressureTarget {
    /// Creates a controller for a pressure of `target_permille` with at most `max` pages.
    pub fn new(target_permille: u32, max: u64) -> Self {
        Self { target_permille: u64::from(target_permille).max(1), max, looked: None, used: 0 }
    }

    /// Evaluates the measurements at `at`: the total time lost, the limit and the used pages.
    /// Returns the new limit if it changes.
    pub fn look(&mut self, at: Duration, lost_us: u64, limit: u64, used: u64) -> Option<u64> {
        let Some((then, lost_then)) = self.looked else {
            (self.looked, self.used) = (Some((at, lost_us)), used);
            return None;
        };
        let span = at.saturating_sub(then);
        if span < INTERVAL {
            return None;
        }
        self.looked = Some((at, lost_us));
        let share = lost_us.saturating_sub(lost_then) * 1000 / (span.as_micros() as u64).max(1);
        let grows = used > self.used + self.used / 64;
        self.used = used;
        let next = if used > limit {
            // TARGET-2.
            used + limit / 64
        } else if share > self.target_permille {
            let over = ((share - self.target_permille) * 16 / self.target_permille).clamp(1, 16);
            limit + limit * over / 64
        } else if grows {
            limit
        } else if share * 50 < self.target_permille {
            // Removes the unused part of the limit at once.
            let wanted = limit.min(used + used / 8);
            wanted - wanted / 16
        } else if share * 2 < self.target_permille {
            limit - limit / 64
        } else {
            limit
        };
        let next = next.clamp(MEMORY_MIN_BYTES / PAGE_SIZE as u64, self.max);
        (next != limit).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a program that needs `hot` pages. Below that it loses time in proportion to the
    /// missing pages.
    fn lost_us(limit: u64, hot: u64) -> u64 {
        hot.saturating_sub(limit) * 1_000_000 / hot
    }

    #[test]
    fn a_working_set_is_found_and_followed() {
        let mut target = PressureTarget::new(50, 100_000);
        let (mut limit, mut lost) = (100_000, 0);
        let run = |seconds: std::ops::Range<u64>,
                   hot: u64,
                   limit: &mut u64,
                   lost: &mut u64,
                   target: &mut PressureTarget| {
            for second in seconds {
                *lost += lost_us(*limit, hot);
                let used = (*limit).min(90_000);
                if let Some(next) = target.look(Duration::from_secs(second), *lost, *limit, used) {
                    *limit = next;
                }
            }
        };
        run(0..60, 10_000, &mut limit, &mut lost, &mut target);
        assert!((9_300..10_700).contains(&limit), "{limit}");
        run(60..90, 40_000, &mut limit, &mut lost, &mut target);
        assert!((36_000..44_000).contains(&limit), "{limit}");
        run(90..150, 2_000, &mut limit, &mut lost, &mut target);
        assert!((1_850..2_150).contains(&limit), "{limit}");
    }

    #[test]
    fn the_limit_stays_between_the_least_and_the_allowed_one() {
        let mut target = PressureTarget::new(50, 20_000);
        let second = Duration::from_secs;
        assert_eq!(target.look(second(0), 0, 20_000, 10_000), None, "nothing is known yet");
        assert_eq!(target.look(second(1), 0, 20_000, 10_000), Some(11_250 - 703));
        assert_eq!(target.look(second(2), 0, 20_000, 10), Some(1_024), "TARGET-1");
        assert_eq!(target.look(second(3), 1_000_000, 20_000, 10_000), None, "there is no more");
        assert_eq!(target.look(second(4), 1_000_000, 1_024, 1_000), None, "there is no less");
        assert_eq!(target.look(second(5), 1_000_000, 4_096, 6_000), Some(6_064), "it cannot leave");
    }
}
