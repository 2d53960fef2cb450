//! Decides when the pager searches for the process of an address space.
//!
//! A search costs a page, and time for each existing process.
//!
//! * SEARCH-1: each search comes at twice the age of the one before. If a thread has waited for
//!   [`LATE_MS`], the next search starts at once, and then one a second until one has examined
//!   every process.
//! * SEARCH-2: no page is lost for an unidentified process unless a search that began after the
//!   fault has failed.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Waiting time of a thread after which its process is searched for, in milliseconds.
const LATE_MS: u64 = 1000;

/// Searches for one process. All times are the age of its address space in milliseconds, at least
/// 1.
#[derive(Debug, Default)]
pub struct Search {
    /// Start of the last search; 0 if there was none.
    begun: AtomicU64,
    /// Start of the last failed search.
    failed: AtomicU64,
}

impl Search {
    /// Begins a search if one is due, for a thread that waits since `touched`. SEARCH-1.
    pub fn begin(&self, now: u64, touched: u64) -> bool {
        let last = self.begun.load(Relaxed);
        let late = touched.max(last) + LATE_MS;
        let due = last == 0 || now >= last * 2 || now >= late && !self.has_failed_since(touched);
        if due {
            self.begun.store(now, Relaxed);
        }
        due
    }

    /// Notes that a search that began at `began` has examined every process and found none.
    pub fn fail(&self, began: u64) {
        self.failed.fetch_max(began, Relaxed);
    }

    /// Whether a search that began after `touched` has failed. SEARCH-2.
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

    /// Shows that a waiting thread causes a search within a second, long before the age has
    /// doubled. Otherwise a page would be lost although no search had looked.
    #[test]
    fn a_waiting_thread_causes_a_search_for_its_process_within_a_second() {
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
