//! Proactive reclaim: frees a given number of bytes from one memcg on command.
//!
//! A command works in portions of a quarter of the remainder, so that a large one does not
//! overshoot. It gives up after sixteen portions in a row that freed nothing.

use super::oom::ROUNDS_MAX;
use ebb_mm::lru::scan::SWAP_CLUSTER_MAX;
use ebb_mm::lru::{Reclaimer, Scan};
use ebb_mm::types::PAGE_SIZE;

/// A command under way.
#[derive(Clone, Debug)]
pub struct Proactive {
    wanted: u64,
    reclaimed: u64,
    failures: u32,
}

impl Proactive {
    /// Creates a command to free `bytes`, in whole pages.
    #[must_use]
    pub fn new(bytes: u64) -> Self {
        Self { wanted: bytes / PAGE_SIZE as u64, reclaimed: 0, failures: 0 }
    }

    /// Returns the number of pages to free next, or `None` when the command is over.
    #[must_use]
    pub fn next(&self) -> Option<u64> {
        let left = self.wanted.saturating_sub(self.reclaimed);
        if left == 0 || self.failures > ROUNDS_MAX {
            return None;
        }
        Some((left / 4).max(SWAP_CLUSTER_MAX).min(left))
    }

    /// Returns a portion as a request to the lists, at one priority.
    #[must_use]
    pub fn scan(target: u64, priority: u8, swappiness: u32) -> Scan {
        let mut sc = Scan::new(Reclaimer::Proactive, false, target, swappiness);
        sc.priority = priority;
        sc
    }

    /// Records the number of pages that a portion freed.
    pub fn passed(&mut self, reclaimed: u64) {
        self.reclaimed += reclaimed;
        self.failures = if reclaimed > 0 { 0 } else { self.failures + 1 };
    }

    /// Returns the number of pages freed, and whether the target is reached (else the answer is
    /// EAGAIN).
    #[must_use]
    pub fn result(&self) -> (u64, bool) {
        (self.reclaimed, self.reclaimed >= self.wanted)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn portions_shrink_towards_the_end_and_do_not_overshoot() {
        let mut p = Proactive::new(1000 * 4096 + 17);
        let mut portions = Vec::new();
        while let Some(n) = p.next() {
            portions.push(n);
            p.passed(n);
        }
        assert_eq!(portions[..3], [250, 187, 140]);
        assert_eq!((portions.iter().sum::<u64>(), p.result()), (1000, (1000, true)));
    }

    #[test]
    fn proactive_reclaim_gives_up_on_a_memcg_that_frees_nothing() {
        let mut p = Proactive::new(1 << 20);
        p.passed(100);
        let mut rounds = 0;
        while p.next().is_some() {
            p.passed(0);
            rounds += 1;
        }
        assert_eq!((rounds, p.result()), (17, (100, false)));
        assert_eq!(Proactive::new(4095).next(), None, "less than a page");
    }
}
