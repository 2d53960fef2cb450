//! Shrinkers: how much of a cache beside the page lists (inodes, names of files) a pass looks through.
//!
//! Until Linux 4.16 the share was that of the pages that the pass had scanned among those it might have, and a pass
//! that scanned none counted as one that scanned 32. So a pass for zones in which there is no page, as for the low
//! zones of a machine's second node, went through the whole cache, and through it once more. Since then the share
//! hangs on the priority alone.
//!
//! What is too little for a batch is kept for the next pass (`do_shrink_slab` in `mm/vmscan.c`, `mm/shrinker.c`
//! since 6.7).

use crate::lru::scan::SWAP_CLUSTER_MAX;
use crate::tunables::SlabShare;

/// Objects looked at in one go.
const BATCH: u64 = 128;

/// A pass, as a shrinker sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlabPass {
    /// Pages it scanned.
    pub scanned: u64,
    /// Pages it might have scanned.
    pub eligible: u64,
    /// Its priority.
    pub priority: u8,
}

/// One cache's account.
#[derive(Clone, Debug)]
pub struct Shrinker {
    /// What it takes to make an object again, in disk accesses.
    seeks: u64,
    /// Objects that passes should have looked at and have not.
    deferred: u64,
}

impl Default for Shrinker {
    fn default() -> Self {
        Self { seeks: 2, deferred: 0 }
    }
}

impl Shrinker {
    /// Objects to look at now, of a cache of so many.
    pub fn take(&mut self, share: SlabShare, objects: u64, pass: &SlabPass) -> u64 {
        if objects == 0 {
            return 0;
        }
        let (delta, mut total) = match share {
            SlabShare::Scanned => {
                let scanned = if pass.scanned == 0 { SWAP_CLUSTER_MAX } else { pass.scanned };
                let delta = 4 * scanned / self.seeks * objects / (pass.eligible + 1);
                let total = self.deferred + delta;
                // All of it only if one pass asks for that.
                (delta, if delta < objects / 4 { total.min(objects / 2) } else { total })
            }
            SlabShare::Priority => {
                let delta = (objects >> pass.priority) * 4 / self.seeks;
                (delta, (self.deferred >> pass.priority) + delta)
            }
        };
        total = total.min(2 * objects);
        let mut looked = 0;
        while total >= BATCH || (total > 0 && total >= objects) {
            let n = total.min(BATCH);
            (looked, total) = (looked + n, total - n);
        }
        self.deferred = (self.deferred + delta).saturating_sub(looked).min(2 * objects);
        looked
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn pass(scanned: u64, eligible: u64, priority: u8) -> SlabPass {
        SlabPass { scanned, eligible, priority }
    }

    #[test]
    fn the_share_is_that_of_the_pages_scanned() {
        let mut s = Shrinker::default();
        // 2 * 1000 / 10001 of 10,000 objects are 1,999: 15 batches, and 79 left over.
        assert_eq!(s.take(SlabShare::Scanned, 10_000, &pass(1000, 10_000, 12)), 1920);
        assert_eq!(s.deferred, 79);
        // 49 more make one batch.
        assert_eq!(s.take(SlabShare::Scanned, 10_000, &pass(25, 10_000, 12)), 128);
        assert_eq!(s.deferred, 0);
    }

    /// The first two of 2017's patches keep kswapd awake on a node without low zones.
    #[test]
    fn a_pass_without_any_page_goes_through_everything_twice() {
        let mut s = Shrinker::default();
        for _ in 0..3 {
            assert_eq!(s.take(SlabShare::Scanned, 10_000, &pass(0, 0, 12)), 19_968);
        }
        // Today it is what the priority says.
        let mut s = Shrinker::default();
        assert_eq!(s.take(SlabShare::Priority, 10_000, &pass(0, 0, 12)), 0);
        assert_eq!(s.take(SlabShare::Priority, 10_000, &pass(0, 0, 2)), 4_992);
    }

    #[test]
    fn what_is_left_over_adds_up_and_never_asks_for_all() {
        let mut s = Shrinker::default();
        let looked: u64 =
            (0..1000).map(|_| s.take(SlabShare::Scanned, 1000, &pass(32, 64_000, 12))).sum();
        // 0.999 objects a pass are none, as the kernel counts.
        assert_eq!(looked, 0);
        let looked: u64 =
            (0..1000).map(|_| s.take(SlabShare::Scanned, 1000, &pass(64, 60_000, 12))).sum();
        assert_eq!(looked, 2000 - 2000 % 128);
        s.deferred = 5000;
        assert!(s.take(SlabShare::Scanned, 1000, &pass(64, 60_000, 12)) <= 500);
    }

    #[test]
    fn a_small_cache_is_taken_whole_or_not_at_all() {
        let mut s = Shrinker::default();
        assert_eq!(s.take(SlabShare::Priority, 20, &pass(0, 100, 2)), 0);
        assert_eq!(s.deferred, 10);
        // With half of what was left over.
        assert_eq!(s.take(SlabShare::Priority, 20, &pass(0, 100, 1)), 25);
        assert_eq!(s.take(SlabShare::Priority, 0, &pass(0, 100, 1)), 0);
    }
}
