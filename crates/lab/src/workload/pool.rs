//! A program's own cache of database pages: slots in its memory, with a second chance for used
//! pages.
//!
//! The cache belongs to the generator, not to the machine. If several threads share one, the speed
//! of memory decides only which thread has its turn next.

use std::collections::VecDeque;

use ebb_mm::random::Random;

/// Marks a page that is in no slot.
const NONE: u32 = u32::MAX;

/// The cache of a database, or of one thread's share of it.
#[derive(Clone, Debug)]
pub struct Pool {
    /// Slot of each database page.
    slot_of: Vec<u32>,
    /// Page of each slot, whether it was used, whether it was changed.
    slots: Vec<(u32, bool, bool)>,
    hand: usize,
    filled: usize,
    /// Sample size and random numbers, if pages are evicted by samples. `used` is the time of each
    /// slot's last use.
    sample: Option<(u32, Random)>,
    used: Vec<u64>,
    now: u64,
    /// Most changed slots; 0: as many as there are.
    changed_max: usize,
    /// Slots whose pages are changed, in the order of the changes.
    changed: VecDeque<u32>,
    /// Slot at which the search for the next changed page begins.
    broom: usize,
}

/// Result of a look-up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// Slot of the page.
    pub slot: u32,
    /// Whether the page was absent and has to be read.
    pub miss: bool,
    /// A changed page that has to be written to make room.
    pub wrote: Option<u32>,
    /// A changed page that is written, and stays, because too many were changed.
    pub cleaned: Option<u32>,
}

impl Pool {
    /// Creates an empty cache with `slots` slots for `pages` pages.
    #[must_use]
    pub fn new(pages: u64, slots: u64) -> Self {
        Self {
            slot_of: vec![NONE; pages as usize],
            slots: vec![(NONE, false, false); slots.max(1) as usize],
            hand: 0,
            filled: 0,
            sample: None,
            used: Vec::new(),
            now: 0,
            changed_max: 0,
            changed: VecDeque::new(),
            broom: 0,
        }
    }

    /// Makes the cache evict the least recently used page of `of` pages taken at random.
    #[must_use]
    pub fn with_samples(mut self, of: u32, seed: u64) -> Self {
        self.sample = Some((of.max(1), Random(seed)));
        self.used = vec![0; self.slots.len()];
        self
    }

    /// Returns the slot to be emptied.
    fn victim(&mut self) -> usize {
        if let Some((of, random)) = &mut self.sample {
            let n = self.slots.len() as u32;
            let drawn = (0..*of).map(|_| random.below(n) as usize);
            return drawn.min_by_key(|&slot| self.used[slot]).unwrap_or(0);
        }
        while self.slots[self.hand].1 {
            self.slots[self.hand].1 = false;
            self.hand = (self.hand + 1) % self.slots.len();
        }
        let slot = self.hand;
        self.hand = (self.hand + 1) % self.slots.len();
        slot
    }

    fn note_use(&mut self, slot: usize) {
        self.now += 1;
        if self.sample.is_some() {
            self.used[slot] = self.now;
        }
    }

    /// Limits the number of changed pages. Beyond the limit, the page changed first is written.
    #[must_use]
    pub fn with_changed_max(mut self, slots: u64) -> Self {
        self.changed_max = slots as usize;
        self
    }

    /// Records a change of the page in a slot. Returns a page that has to be written for it.
    fn note_change(&mut self, slot: usize) -> Option<u32> {
        if self.changed_max == 0 {
            return None;
        }
        self.changed.push_back(slot as u32);
        if self.changed.len() <= self.changed_max {
            return None;
        }
        let first = self.changed.pop_front()? as usize;
        self.slots[first].2 = false;
        Some(self.slots[first].0)
    }

    /// Returns a slot and its page, which counts as written from now on. The slot is the next
    /// changed one in order, or the next one if none is changed.
    pub fn clean(&mut self) -> Option<(u32, u32)> {
        debug_assert_eq!(
            self.changed_max, 0,
            "who bounds changed pages writes them in the order of changes"
        );
        let filled = self.filled;
        let at = |i| (self.broom + i) % filled;
        let next = (0..filled).map(at).find(|&slot| self.slots[slot].2);
        let slot = next.or((filled > 0).then(|| at(0)))?;
        self.broom = slot + 1;
        self.slots[slot].2 = false;
        Some((slot as u32, self.slots[slot].0))
    }

    /// Finds a page, or makes room for it.
    pub fn get(&mut self, page: u32, change: bool) -> Found {
        let slot = self.slot_of[page as usize];
        if slot != NONE {
            self.note_use(slot as usize);
            let s = &mut self.slots[slot as usize];
            s.1 = true;
            let first = change && !s.2;
            s.2 |= change;
            let cleaned = if first { self.note_change(slot as usize) } else { None };
            return Found { slot, miss: false, wrote: None, cleaned };
        }
        let mut wrote = None;
        let slot = if self.filled < self.slots.len() {
            self.filled += 1;
            self.filled - 1
        } else {
            let slot = self.victim();
            let (old, _, changed) = self.slots[slot];
            self.slot_of[old as usize] = NONE;
            wrote = changed.then_some(old);
            if changed && self.changed_max > 0 {
                self.changed.retain(|&s| s as usize != slot);
            }
            slot
        };
        self.note_use(slot);
        self.slots[slot] = (page, false, change);
        self.slot_of[page as usize] = slot as u32;
        let cleaned = if change { self.note_change(slot) } else { None };
        Found { slot: slot as u32, miss: true, wrote, cleaned }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_pages_are_cleaned_in_order_and_others_only_if_there_are_none() {
        let mut p = Pool::new(10, 3);
        for (page, change) in [(7, true), (8, false), (9, true)] {
            p.get(page, change);
        }
        assert_eq!(p.clean(), Some((0, 7)));
        assert_eq!(p.clean(), Some((2, 9)));
        assert_eq!(p.clean(), Some((0, 7)), "nothing was changed: in turn");
        p.get(8, true);
        assert_eq!(p.clean(), Some((1, 8)));
        assert_eq!(p.get(1, false).wrote, None, "nothing is left to be written");
    }

    #[test]
    fn used_pages_get_a_second_chance_and_changed_ones_are_written() {
        let mut p = Pool::new(10, 2);
        assert!(p.get(0, true).miss && p.get(1, false).miss);
        assert!(!p.get(0, false).miss, "used");
        assert_eq!(p.get(2, false), Found { slot: 1, miss: true, wrote: None, cleaned: None });
        // On the way, the hand cleared the use bit of page 0.
        assert_eq!(p.get(3, false), Found { slot: 0, miss: true, wrote: Some(0), cleaned: None });
        assert!(p.get(0, false).miss);
    }

    #[test]
    fn of_too_many_changed_pages_the_first_is_written_and_stays() {
        let mut p = Pool::new(10, 4).with_changed_max(2);
        let cleaned = |f: Found| f.cleaned;
        assert_eq!([0, 1, 0].map(|page| cleaned(p.get(page, true))), [None; 3]);
        assert_eq!(cleaned(p.get(2, true)), Some(0));
        let found = p.get(0, false);
        assert!(!found.miss && found.wrote.is_none());
        // A page that is changed again is written again.
        assert_eq!(cleaned(p.get(0, true)), Some(1));
        assert_eq!((p.get(3, false).wrote, p.changed.len()), (None, 2));
        // Written pages are evicted without another write.
        assert_eq!(p.get(4, false).wrote, None);
        assert_eq!(p.get(5, false).wrote, Some(2));
        assert_eq!(p.changed.len(), 1);
    }

    #[test]
    fn of_a_sample_the_page_that_was_not_used_for_longest_goes() {
        // A sample that is large enough has all slots in it.
        let mut p = Pool::new(10, 4).with_samples(64, 1);
        (0..4).for_each(|page| assert!(p.get(page, false).miss));
        assert!(!p.get(0, false).miss);
        p.get(4, false);
        assert!(p.get(1, false).miss && !p.get(0, false).miss && !p.get(4, false).miss);
        // A sample of one is any page.
        let mut p = Pool::new(1000, 100).with_samples(1, 1);
        (0..100).for_each(|page| assert!(p.get(page, false).miss));
        (100..200).for_each(|page| assert!(p.get(page, false).miss));
        let kept = (0..100).filter(|&page| p.slot_of[page] != NONE).count();
        assert!((20..55).contains(&kept), "{kept}");
    }
}
