//! Allocates frame numbers, the lowest free one first, so that the descriptors in use stay
//! together.
//!
//! A number is an index of the frame table and no address. Numbers have no limit of their own:
//! pages can outnumber the budget. A forked child's pages have frames of their own while the kernel
//! holds one copy for both. Also, a thread that must run so that others can continue gets pages
//! beyond the limit (overcommit). So the budget is measured ([`Zone`](super::Zone)), not counted
//! here, and a request for a number never fails.
//!
//! FRAME-IDS-1: a bit of a level is set if and only if its word of the level below has a set bit. A
//! bit of the lowest level is set if and only if its number is free.

use crate::types::Pfn;

/// Numbers, or words of the level below, that a word has a bit for.
const BITS: usize = u64::BITS as usize;
/// A word of the highest level covers 64^3 numbers: 1 GiB of pages. The words are searched in turn.
const LEVELS: usize = 3;

/// The frame numbers of a resident set, free and in use.
#[derive(Debug, Default)]
pub struct FrameIds {
    /// The lowest level first.
    levels: [Vec<u64>; LEVELS],
    /// No word of the highest level before this one has a free number.
    first: usize,
    in_use: usize,
}

/// A contradiction in the frame numbers of a resident set.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FrameIdsError {
    /// The bits or the counter differ from the expected count of numbers in use.
    InUse { bits: usize, counter: usize, expected: usize },
    /// The bit of a word of a lower level is wrong.
    Bit { word: usize },
    /// A word of the highest level was skipped and has a free number.
    SkippedWord,
}

impl FrameIds {
    /// Allocates the lowest free number.
    #[inline]
    pub fn take(&mut self) -> Pfn {
        self.in_use += 1;
        let mut at = self.first_word();
        for level in self.levels.iter().rev() {
            at = at * BITS + level[at].trailing_zeros() as usize;
        }
        self.clear(at);
        Pfn(at as u32)
    }

    /// Returns the first word of the highest level that has a free number.
    fn first_word(&mut self) -> usize {
        loop {
            match self.levels[LEVELS - 1].get(self.first) {
                Some(0) => self.first += 1,
                Some(_) => return self.first,
                None => self.grow(),
            }
        }
    }

    /// Adds the numbers of one word of the highest level.
    #[cold]
    fn grow(&mut self) {
        let mut words = 1;
        for level in self.levels.iter_mut().rev() {
            level.resize(level.len() + words, u64::MAX);
            words *= BITS;
        }
    }

    /// Marks a number as used, and each word above it that has no free number any more.
    fn clear(&mut self, mut at: usize) {
        for level in &mut self.levels {
            let word = &mut level[at / BITS];
            *word &= !(1 << (at % BITS));
            if *word != 0 {
                return;
            }
            at /= BITS;
        }
    }

    /// Frees a number.
    #[inline]
    pub fn give(&mut self, pfn: Pfn) {
        let mut at = pfn.0 as usize;
        debug_assert!(!self.is_free(pfn), "frame number {at} is free already");
        self.in_use -= 1;
        for level in &mut self.levels {
            level[at / BITS] |= 1 << (at % BITS);
            at /= BITS;
        }
        self.first = self.first.min(at);
    }

    fn is_free(&self, pfn: Pfn) -> bool {
        let at = pfn.0 as usize;
        self.levels[0].get(at / BITS).is_none_or(|word| word & (1 << (at % BITS)) != 0)
    }

    /// Checks FRAME-IDS-1, and that `in_use` numbers are in use. For tests.
    pub fn check(&self, in_use: usize) -> Result<(), FrameIdsError> {
        let free: usize = self.levels[0].iter().map(|word| word.count_ones() as usize).sum();
        let (bits, counter) = (self.levels[0].len() * BITS - free, self.in_use);
        if (bits, counter) != (in_use, in_use) {
            return Err(FrameIdsError::InUse { bits, counter, expected: in_use });
        }
        for (below, above) in self.levels.iter().zip(&self.levels[1..]) {
            for (at, &word) in below.iter().enumerate() {
                if (above[at / BITS] & (1 << (at % BITS)) != 0) != (word != 0) {
                    return Err(FrameIdsError::Bit { word: at });
                }
            }
        }
        let skipped = &self.levels[LEVELS - 1][..self.first];
        skipped.iter().all(|&word| word == 0).then_some(()).ok_or(FrameIdsError::SkippedWord)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Random;
    use std::collections::BTreeSet;

    #[test]
    fn the_lowest_free_number_is_taken() {
        const STEPS: usize = if cfg!(miri) { 2_000 } else { 600_000 };
        let (mut ids, mut random) = (FrameIds::default(), Random(7));
        let (mut free, mut used) = (BTreeSet::new(), Vec::new());
        for step in 0..STEPS {
            // More numbers come than go for the first two thirds: beyond one word of each level.
            if used.is_empty() || random.below(10) < if step * 3 < STEPS * 2 { 9 } else { 2 } {
                let lowest = free.pop_first().unwrap_or(used.len() as u32);
                assert_eq!(ids.take(), Pfn(lowest), "step {step}");
                used.push(lowest);
            } else {
                let at = random.below(used.len() as u32) as usize;
                let pfn = used.swap_remove(at);
                free.insert(pfn);
                ids.give(Pfn(pfn));
            }
            if step % (STEPS / 20) == 0 {
                assert_eq!(ids.check(used.len()), Ok(()), "step {step}");
            }
        }
        used.drain(..).for_each(|pfn| ids.give(Pfn(pfn)));
        assert_eq!(ids.check(0), Ok(()));
        assert_eq!(ids.take(), Pfn(0), "the first again");
    }

    #[test]
    #[cfg(debug_assertions)]
    #[should_panic(expected = "frame number 0 is free already")]
    fn a_frame_id_freed_twice_is_refused_by_name() {
        let mut ids = FrameIds::default();
        let pfn = ids.take();
        ids.give(pfn);
        ids.give(pfn);
    }
}
