//! Free-page map of a swap file, or of a server.
//!
//! Pages written together should lie together, because they tend to be read together. A batch gets
//! a run inside one group of 64 pages (one word of the bitmap). Groups are taken next-fit, entirely
//! free ones first. If no group is entirely free, a batch fills holes in two cases: the file is
//! more than half free, or it may not grow.
//!
//! Invariants:
//! * FILESPACE-1: bit `p % 64` of `words[p / 64]` is set if and only if page `p` is taken or beyond
//!   `limit`.
//! * FILESPACE-2: `taken` is the number of taken pages, `empty` the number of words that are 0.

/// Number of pages in a group, which is the longest run.
pub(crate) const RUN_MAX: usize = 64;
/// Largest number of pages of a file, so that a page number fits in 32 bits.
const PAGES_MAX: u64 = u32::MAX as u64;

/// The bitmap of a swap file.
pub(crate) struct Space {
    words: Vec<u64>,
    limit: u64,
    taken: u64,
    /// Largest number of pages taken at a time.
    peak: u64,
    empty: usize,
    /// The word at which the next search begins.
    cursor: usize,
}

impl Space {
    /// Creates the map of a file of at most `limit` pages.
    pub(crate) fn new(limit: Option<u64>) -> Self {
        let limit = limit.unwrap_or(PAGES_MAX).min(PAGES_MAX);
        Self { words: Vec::new(), limit, taken: 0, peak: 0, empty: 0, cursor: 0 }
    }

    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    pub(crate) fn limit(&self) -> u64 {
        self.limit
    }

    pub(crate) fn is_full(&self) -> bool {
        self.taken >= self.limit
    }

    /// Lowers the limit to `pages`, or to the end of the pages in use if that is higher. The system
    /// has refused to let the file grow.
    pub(crate) fn stop_growing(&mut self, pages: u64) {
        let used = (0..self.words.len()).rev().find_map(|word| {
            let bits = self.words[word] & !beyond(word, self.limit);
            (bits != 0).then(|| word as u64 * 64 + u64::from(64 - bits.leading_zeros()))
        });
        self.limit = self.limit.min(pages.max(used.unwrap_or(0)));
        self.words.truncate(self.limit.div_ceil(64) as usize);
        if let Some(last) = self.words.len().checked_sub(1) {
            self.words[last] |= beyond(last, self.limit);
        }
        self.empty = self.words.iter().filter(|word| **word == 0).count();
    }

    /// Takes up to `wanted` adjacent pages. Returns the number of the first and the count.
    pub(crate) fn allocate(&mut self, wanted: usize) -> Option<(u32, usize)> {
        let wanted = wanted.clamp(1, RUN_MAX);
        if self.is_full() {
            return None;
        }
        // First tries the rest of the group used last, if the whole batch fits there.
        if let Some(found) = self.run_in(self.cursor, wanted).filter(|run| run.1 == wanted) {
            return Some(self.take(found));
        }
        if self.empty > 0
            && let Some(word) = self.search(|word| word == 0)
        {
            return self.run_in(word, wanted).map(|run| self.take(run));
        }
        let size = self.words.len() as u64 * 64;
        let grow = size < self.limit && self.taken * 2 >= size;
        if !grow && let Some(word) = self.search(|word| word != u64::MAX) {
            return self.run_in(word, wanted).map(|run| self.take(run));
        }
        if size >= self.limit {
            return None;
        }
        // FILESPACE-1: pages of the new group beyond the limit count as taken forever.
        let word = beyond(self.words.len(), self.limit);
        self.words.push(word);
        self.empty += usize::from(word == 0);
        self.run_in(self.words.len() - 1, wanted).map(|run| self.take(run))
    }

    /// Returns the first word that `will_do`, from the cursor on and around once.
    fn search(&self, will_do: impl Fn(u64) -> bool) -> Option<usize> {
        let (before, from) = self.words.split_at(self.cursor.min(self.words.len()));
        let from = from.iter().position(|word| will_do(*word)).map(|at| at + before.len());
        from.or_else(|| before.iter().position(|word| will_do(*word)))
    }

    /// Returns the first run of `wanted` free pages in a word, or else the longest run of the word.
    fn run_in(&self, word: usize, wanted: usize) -> Option<(u32, usize)> {
        let bits = *self.words.get(word)?;
        let (mut at, mut best) = (0u32, None::<(u32, usize)>);
        while at < 64 {
            let rest = bits >> at;
            let taken = rest.trailing_ones();
            at += taken;
            if at >= 64 {
                break;
            }
            let length = ((bits >> at).trailing_zeros()).min(64 - at);
            let first = word as u32 * 64 + at;
            if length as usize >= wanted {
                return Some((first, wanted));
            }
            if best.is_none_or(|best| best.1 < length as usize) {
                best = Some((first, length as usize));
            }
            at += length;
        }
        best
    }

    fn take(&mut self, (first, count): (u32, usize)) -> (u32, usize) {
        let word = first as usize / 64;
        let mask = mask(first, count);
        self.empty -= usize::from(self.words[word] == 0);
        self.words[word] |= mask;
        self.taken += count as u64;
        self.peak = self.peak.max(self.taken);
        self.cursor = word;
        (first, count)
    }

    /// Returns the taken pages, in order.
    pub(crate) fn taken_pages(&self) -> impl Iterator<Item = u32> {
        self.words.iter().enumerate().flat_map(|(at, word)| {
            let taken = word & !beyond(at, self.limit);
            (0..64).filter(move |bit| taken >> bit & 1 == 1).map(move |bit| at as u32 * 64 + bit)
        })
    }

    /// Frees adjacent pages of one group.
    pub(crate) fn free(&mut self, first: u32, count: usize) {
        let word = &mut self.words[first as usize / 64];
        let mask = mask(first, count);
        assert_eq!(*word & mask, mask, "freed twice");
        *word &= !mask;
        self.empty += usize::from(*word == 0);
        self.taken -= count as u64;
    }
}

/// Returns the bits of a word that stand for pages beyond the limit.
fn beyond(word: usize, limit: u64) -> u64 {
    match limit.saturating_sub(word as u64 * 64) {
        0 => u64::MAX,
        pages @ 1..64 => u64::MAX << pages,
        64.. => 0,
    }
}

fn mask(first: u32, count: usize) -> u64 {
    let ones = if count == 64 { u64::MAX } else { (1 << count) - 1 };
    ones << (first % 64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_mm::random::mix;
    use std::collections::{BTreeSet, HashSet};

    #[test]
    fn batches_lie_together_and_groups_fill_up() {
        let mut space = Space::new(None);
        assert_eq!(space.allocate(64), Some((0, 64)));
        assert_eq!(space.allocate(10), Some((64, 10)));
        assert_eq!(space.allocate(20), Some((74, 20)));
        assert_eq!(space.allocate(40), Some((128, 40)), "no room left in the group: a new one");
        space.free(0, 64);
        assert_eq!(space.allocate(64), Some((0, 64)), "a free group before growth");
    }

    #[test]
    fn a_mostly_free_file_is_filled_before_it_grows() {
        let mut space = Space::new(None);
        for _ in 0..4 {
            space.allocate(64);
        }
        for group in 0..4 {
            space.free(group * 64, 10);
            space.free(group * 64 + 20, 30);
        }
        let (first, count) = space.allocate(64).expect("room");
        assert_eq!((first % 64, count), (20, 30), "the longest run of a group");
        assert!(first < 256);
    }

    #[test]
    fn the_limit_is_exact_even_within_a_group() {
        let mut space = Space::new(Some(100));
        let mut count = 0;
        while let Some((first, got)) = space.allocate(64) {
            assert!(u64::from(first) + got as u64 <= 100);
            count += got;
        }
        assert_eq!(count, 100);
        assert!(space.is_full());
        space.free(99, 1);
        assert_eq!(space.allocate(1), Some((99, 1)));
    }

    #[test]
    fn no_page_is_given_twice() {
        let mut space = Space::new(Some(700));
        let mut taken = HashSet::new();
        for step in 0..20_000u64 {
            let random = mix(step);
            if !random.is_multiple_of(3) {
                if let Some((first, count)) = space.allocate(1 + (random >> 8) as usize % 64) {
                    assert!((first..first + count as u32).all(|page| taken.insert(page)));
                } else {
                    assert_eq!(taken.len(), 700);
                }
            } else {
                let pages: Vec<u32> = taken.iter().copied().take(random as usize % 80).collect();
                for page in pages {
                    taken.remove(&page);
                    space.free(page, 1);
                }
            }
            assert_eq!(space.taken(), taken.len() as u64);
            if step % 1000 == 0 {
                assert!(space.taken_pages().eq(taken.iter().copied().collect::<BTreeSet<_>>()));
            }
            let empty = space.words.iter().filter(|word| **word == 0).count();
            assert_eq!(space.empty, empty, "FILESPACE-2");
        }
    }
}
