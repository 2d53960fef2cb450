//! Swap readahead: chooses the pages to read together with a missing anonymous page.
//!
//! The window grows with the hits. A hit is the first use of a page that was read ahead. The next
//! window is the number of hits since the last window plus two, rounded up to a power of two. It is
//! at most the maximum and at least half of the last window. Without a hit it is one page, or two
//! if this fault is next to the last one. These are the rules of the kernel's `__swapin_nr_pages`.
//! The state of an area begins as if it had four hits.
//!
//! A switch decides where the window lies. By address: around the page, or forwards or backwards
//! from it if the last fault or hit was on the page next to it. By cluster: the aligned block of
//! slots that contains the page's own slot, even if its pages belong to other processes.
//!
//! Invariants
//! * SWAPAHEAD-1: a window has between 1 page and the maximum, is a power of two, and contains the
//!   requested page.

use std::ops::Range;

/// Number of hits with which a new state begins.
const HITS_FIRST: u32 = 4;
/// Largest number of hits that a state counts.
const HITS_MAX: u32 = 63;

/// The readahead state of one area, or of one device.
#[derive(Clone, Debug)]
pub struct SwapAhead {
    /// Page of the last fault or hit.
    last: u64,
    window: u64,
    hits: u32,
}

impl Default for SwapAhead {
    fn default() -> Self {
        Self { last: u64::MAX / 2, window: 0, hits: HITS_FIRST }
    }
}

impl SwapAhead {
    /// Records the first use of a page that was read ahead. By cluster (`at` is `None`) only the
    /// hit counts, not the position.
    pub fn hit(&mut self, at: Option<u64>) {
        self.hits = (self.hits + 1).min(HITS_MAX);
        if let Some(at) = at {
            self.last = at;
        }
    }

    /// Returns the pages to read for a fault at page `at`. `area` is the range of pages of the area
    /// and contains `at`. The result has at most `max` pages.
    pub fn by_address(&mut self, at: u64, area: Range<u64>, max: u64) -> Range<u64> {
        let last = self.last;
        let window = self.next(at, max);
        let (from, to) = if window == 1 {
            (at, at + 1)
        } else if at == last.wrapping_add(1) {
            (at, at + window)
        } else if at.wrapping_add(1) == last {
            ((at + 1).saturating_sub(window), at + 1)
        } else {
            let left = (window - 1) / 2;
            (at.saturating_sub(left), at + window - left)
        };
        from.max(area.start)..to.min(area.end)
    }

    /// Returns the slots to read for a page that lies in slot `at`, at most `max`.
    pub fn by_cluster(&mut self, at: u64, max: u64) -> Range<u64> {
        let window = self.next(at, max);
        let from = at & !(window - 1);
        from..from + window
    }

    /// Computes the size of the next window and stores `at` as the last fault.
    fn next(&mut self, at: u64, max: u64) -> u64 {
        // The largest power of two up to the maximum.
        let max = 1 << max.max(1).ilog2();
        let hits = u64::from(std::mem::take(&mut self.hits));
        let beside = at == self.last.wrapping_add(1) || at.wrapping_add(1) == self.last;
        let wanted = match hits {
            0 => 1 + u64::from(beside),
            _ => (hits + 2).next_power_of_two(),
        };
        // The window shrinks by at most half, because a few useless pages say little.
        let window = wanted.min(max).max(self.window / 2).max(1).min(max);
        (self.last, self.window) = (at, window);
        window
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ALL: Range<u64> = 0..1 << 30;

    fn fault(ahead: &mut SwapAhead, at: u64) -> Range<u64> {
        ahead.by_address(at, ALL, 8)
    }

    #[test]
    fn pages_in_order_get_the_whole_window_and_keep_it() {
        let mut ahead = SwapAhead::default();
        let (mut at, mut faults) = (1000, 0);
        let mut there = 0..0;
        while at < 2000 {
            if there.contains(&at) {
                ahead.hit(Some(at));
            } else {
                there = fault(&mut ahead, at);
                faults += 1;
            }
            at += 1;
        }
        // 1000 pages in windows of eight, all of them read before the program reaches them.
        assert!((120..=135).contains(&faults), "{faults}");
    }

    #[test]
    fn pages_in_falling_order_are_read_backwards() {
        let mut ahead = SwapAhead::default();
        fault(&mut ahead, 5000);
        assert_eq!(fault(&mut ahead, 4999), 4996..5000);
    }

    #[test]
    fn scattered_faults_come_down_to_one_page_in_steps() {
        let mut ahead = SwapAhead::default();
        let windows: Vec<u64> = (0..6)
            .map(|i| {
                let r = fault(&mut ahead, 10_000 + i * 777);
                r.end - r.start
            })
            .collect();
        assert_eq!(windows, [8, 4, 2, 1, 1, 1]);
        ahead.hit(None);
        ahead.hit(None);
        ahead.hit(None);
        let r = fault(&mut ahead, 90_000);
        assert_eq!(
            r,
            89_997..90_005,
            "three hits and two more, rounded up: eight, around the page"
        );
    }

    #[test]
    fn a_neighbour_of_the_last_fault_is_evidence_without_hits() {
        let mut ahead = SwapAhead::default();
        for i in 0..4 {
            fault(&mut ahead, i * 1000);
        }
        assert_eq!(fault(&mut ahead, 50_000), 50_000..50_001);
        assert_eq!(fault(&mut ahead, 50_001), 50_001..50_003);
    }

    #[test]
    fn a_block_of_slots_is_aligned() {
        let mut ahead = SwapAhead::default();
        assert_eq!(ahead.by_cluster(1013, 8), 1008..1016);
        assert_eq!(ahead.by_cluster(2021, 8), 2020..2024);
    }

    proptest! {
        #[test]
        fn a_window_holds_its_page_and_keeps_to_its_bounds(
            faults in prop::collection::vec((0u64..500, 0u32..6, any::<bool>()), 1..200),
            max in 1u64..40,
        ) {
            let (mut a, mut b) = (SwapAhead::default(), SwapAhead::default());
            for (at, hits, placed) in faults {
                let r = a.by_address(at, 0..500, max);
                prop_assert!(r.contains(&at) && r.end <= 500 && r.end - r.start <= max);
                let r = b.by_cluster(at, max);
                prop_assert!(r.contains(&at) && (r.end - r.start).is_power_of_two());
                prop_assert!(r.end - r.start <= max);
                for _ in 0..hits {
                    a.hit(placed.then_some(at));
                    b.hit(None);
                }
            }
        }
    }
}
