//! Shrinkers: how many objects of a slab cache (inodes, names of files) a pass scans.
//!
//! Until Linux 4.16 the share was the pages that the pass had scanned, relative to those it might
//! have scanned. A pass that scanned none counted as one that scanned 32. So a pass for zones
//! without pages scanned the whole cache twice, as for the low zones of a machine's second node. In
//! later kernels the share depends on the priority alone.
//!
//! A share too small for a batch is kept for the next pass (`do_shrink_slab` in `mm/vmscan.c`,
//! `mm/shrinker.c` since 6.7).

use ebb_mm::lru::scan::SWAP_CLUSTER_MAX;
use ebb_mm::tunables::SlabShare;

/// Number of objects scanned in one go.
const BATCH: u64 = 128;

/// A pass, as a shrinker sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlabPass {
    /// Number of pages that the pass scanned.
    pub scanned: u64,
    /// Number of pages that the pass might have scanned.
    pub eligible: u64,
    /// Priority of the pass.
    pub priority: u8,
}

/// The shrinker of one cache.
#[derive(Clone, Debug)]
pub struct Shrinker {
    /// Cost to create an object again, in disk accesses.
    seeks: u64,
    /// Number of objects that passes should have scanned and have not.
    deferred: u64,
}

impl Default for Shrinker {
    fn default() -> Self {
        Self { seeks: 2, deferred: 0 }
    }
}

impl Shrinker {
    /// Returns the number of objects to scan now, of a cache of `objects` objects.
    pub fn take(&mut self, share: SlabShare, objects: u64, pass: &SlabPass) -> u64 {
        if objects == 0 {
            return 0;
        }
        let (delta, mut total) = match share {
            SlabShare::Scanned => {
                let scanned = if pass.scanned == 0 { SWAP_CLUSTER_MAX } else { pass.scanned };
                let delta = 4 * scanned / self.seeks * objects / (pass.eligible + 1);
                let total = self.deferred + delta;
                // Scans the whole cache only if a single pass asks for that.
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

    /// Shows the share of Linux 4.16 in a pass without pages. The first two of 2017's patches keep
    /// kswapd awake on a node without low zones.
    #[test]
    fn a_pass_without_pages_scans_every_object_twice() {
        let mut s = Shrinker::default();
        for _ in 0..3 {
            assert_eq!(s.take(SlabShare::Scanned, 10_000, &pass(0, 0, 12)), 19_968);
        }
        // In later kernels only the priority counts.
        let mut s = Shrinker::default();
        assert_eq!(s.take(SlabShare::Priority, 10_000, &pass(0, 0, 12)), 0);
        assert_eq!(s.take(SlabShare::Priority, 10_000, &pass(0, 0, 2)), 4_992);
    }

    #[test]
    fn deferred_objects_add_up_and_no_pass_takes_all_of_them() {
        let mut s = Shrinker::default();
        let looked: u64 =
            (0..1000).map(|_| s.take(SlabShare::Scanned, 1000, &pass(32, 64_000, 12))).sum();
        // 0.999 objects a pass count as none, as in the kernel.
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
        // With half of the deferred objects.
        assert_eq!(s.take(SlabShare::Priority, 20, &pass(0, 100, 1)), 25);
        assert_eq!(s.take(SlabShare::Priority, 0, &pass(0, 100, 1)), 0);
    }
}
