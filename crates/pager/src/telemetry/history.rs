//! Resident bytes over the last seconds, for the report.

use std::collections::VecDeque;
use std::time::Duration;

/// Resident bytes over the last seconds.
#[derive(Debug, Default)]
pub struct History {
    samples: VecDeque<(Duration, u64)>,
}

const HISTORY: Duration = Duration::from_secs(10);
const HISTORY_STEP: Duration = Duration::from_millis(100);

impl History {
    /// Records the resident bytes. Only the largest value of each tenth of a second is kept.
    pub fn record(&mut self, at: Duration, bytes: u64) {
        match self.samples.back_mut() {
            Some((since, peak)) if at < *since + HISTORY_STEP => *peak = bytes.max(*peak),
            _ => self.samples.push_back((at, bytes)),
        }
        while self.samples.front().is_some_and(|(since, _)| *since + HISTORY < at) {
            self.samples.pop_front();
        }
    }

    /// Returns the largest value of the last seconds.
    #[must_use]
    pub fn peak(&self) -> u64 {
        self.samples.iter().map(|&(_, bytes)| bytes).max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_history_forgets_what_is_older_than_ten_seconds() {
        let mut history = History::default();
        history.record(Duration::from_secs(1), 500);
        history.record(Duration::from_secs(5), 100);
        assert_eq!(history.peak(), 500);
        history.record(Duration::from_secs(12), 80);
        assert_eq!(history.peak(), 100);
    }
}
