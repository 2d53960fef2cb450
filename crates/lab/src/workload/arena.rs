//! Locations of the blocks of an engine's cache in its memory.
//!
//! A program's allocator has more memory than the program uses: locations that were freed and not
//! allocated again. Mostly the next block gets the location freed last. Now and then it gets any
//! other one, as for another size, or from another thread's free list. So all of this memory is
//! used again some time, and some of it is cold.
//!
//! Invariants
//! * HEAP-1: no two blocks are at one location, and none is at a free one.

use std::ops::Range;

use crate::workload::keys::unit;
use ebb_mm::random::Random;

/// Memory of a cache.
#[derive(Clone, Debug)]
pub struct Arena {
    /// First page. `pages` is the number of pages, `places` the number of locations.
    first: u64,
    pages: u64,
    places: u64,
    /// Location of each slot of the cache.
    place: Vec<u32>,
    free: Vec<u32>,
    /// Share of blocks that get a location other than the one freed last.
    stray: f64,
    random: Random,
}

impl Arena {
    /// Creates locations of `size` pages in `pages` pages from `first` on. There are as many as
    /// fit, and at least one a slot. With a `size` of 0 there is one for each slot.
    #[must_use]
    pub fn new((first, pages): (u64, u64), slots: u64, size: f64, stray: f64, seed: u64) -> Self {
        let fit = if size > 0.0 { (pages as f64 / size) as u64 } else { slots };
        let places = fit.max(slots);
        let (used, all) = (slots as u32, places as u32);
        let random = Random(seed);
        Self {
            first,
            pages,
            places,
            place: (0..used).collect(),
            free: (used..all).collect(),
            stray,
            random,
        }
    }

    /// Returns the pages of a slot's block.
    #[must_use]
    pub fn find(&self, slot: u32) -> Range<u64> {
        let at = u64::from(self.place[slot as usize]);
        let start = |place: u64| self.first + place * self.pages / self.places;
        start(at)..start(at + 1)
    }

    /// Replaces the slot's block. Returns the pages of the new one.
    pub fn replace(&mut self, slot: u32) -> Range<u64> {
        if !self.free.is_empty() && unit(&mut self.random) < self.stray {
            let other = self.random.below(self.free.len() as u32) as usize;
            std::mem::swap(&mut self.place[slot as usize], &mut self.free[other]);
        }
        self.find(slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_share_all_memory_if_a_block_has_no_size() {
        let mut arena = Arena::new((10, 22), 3, 0.0, 0.5, 1);
        let places: Vec<_> = (0..3).map(|slot| arena.replace(slot)).collect();
        assert_eq!(places, [10..17, 17..24, 24..32]);
    }

    #[test]
    fn free_locations_are_used_at_the_configured_rate_and_never_twice() {
        // Ten slots, and ten locations more.
        let mut arena = Arena::new((0, 120), 10, 6.0, 0.05, 7);
        let mut moved = 0;
        for i in 0..10_000 {
            let was = arena.find(i % 10);
            moved += u32::from(arena.replace(i % 10) != was);
            let mut all: Vec<u32> = arena.place.iter().chain(&arena.free).copied().collect();
            all.sort_unstable();
            assert_eq!(all, (0..20).collect::<Vec<_>>());
        }
        assert!((400..600).contains(&moved), "{moved}");
    }
}
