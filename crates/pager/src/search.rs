//! When it is looked for which process an address space is.
//!
//! A search costs a page, and time for each process there is.
//!
//! * SEARCH-1: Each search is later than the one before: at twice the age. Where a thread has waited for [`LATE_MS`]
//!   the next comes, and one a second until one has looked at every process.
//! * SEARCH-2: No page is lost for want of its process unless a search has failed that began after the touch.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// A thread that has waited for so long has its process sought.
const LATE_MS: u64 = 1000;

/// The searches for one process. All times are its age, in milliseconds and never 0.
#[derive(Debug, Default)]
pub struct Search {
    /// When the last began; 0: none has.
    begun: AtomicU64,
    /// When the last that failed began.
    failed: AtomicU64,
}

impl Search {
    /// Begins one, if it is time, for a thread that waits since `touched`. SEARCH-1.
    pub fn begin(&self, now: u64, touched: u64) -> bool {
        let last = self.begun.load(Relaxed);
        let late = touched.max(last) + LATE_MS;
        let due = last == 0 || now >= last * 2 || now >= late && !self.has_failed_since(touched);
        if due {
            self.begun.store(now, Relaxed);
        }
        due
    }

    /// A search that began then has looked at every process, and it was none of them.
    pub fn fail(&self, began: u64) {
        self.failed.fetch_max(began, Relaxed);
    }

    /// Whether one has failed that began after a touch. SEARCH-2.
    pub fn has_failed_since(&self, touched: u64) -> bool {
        self.failed.load(Relaxed) > touched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_search_is_at_twice_the_age_of_the_one_before() {
        let search = Search::default();
        let begun: Vec<u64> = (1..20_000).filter(|&now| search.begin(now, now)).collect();
        assert_eq!(begun, (0..15).map(|n| 1 << n).collect::<Vec<u64>>());
    }

    /// A process was sought a minute after it was born, and then for a minute no more. A page that was touched in that minute
    /// was lost although nobody had looked.
    #[test]
    fn a_thread_that_waits_has_its_process_sought_within_a_second() {
        let search = Search::default();
        assert!(search.begin(60_000, 60_000));
        search.fail(60_000);
        let begun = (61_000..66_000).find(|&now| search.begin(now, 61_000));
        assert_eq!(begun, Some(62_000));
        assert!(!search.has_failed_since(61_000), "it has only begun");
        assert!(search.begin(63_000, 61_000), "it could not look at every process");
        search.fail(63_000);
        assert!(search.has_failed_since(61_000));
        assert!((63_001..70_000).all(|now| !search.begin(now, 61_000)), "once for each touch");
    }
}
