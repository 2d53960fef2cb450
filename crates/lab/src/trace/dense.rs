//! Numbers the pages of a trace densely, in order of appearance.
//!
//! An open-addressing table maps pages to numbers, with keys and numbers in two arrays (12 bytes a
//! slot). It is at most 7/8 full. So it takes 14 to 28 bytes a page, and 42 while it doubles.

/// Number in a slot without a page.
const EMPTY: u32 = u32::MAX;
const SLOTS_MIN: usize = 1024;

/// Numbers of the pages seen.
#[derive(Debug)]
pub struct Numbering {
    pages: Vec<u64>,
    numbers: Vec<u32>,
    shift: u32,
    count: u32,
}

impl Default for Numbering {
    fn default() -> Self {
        Self::with_slots(SLOTS_MIN)
    }
}

impl Numbering {
    fn with_slots(slots: usize) -> Self {
        Self {
            pages: vec![0; slots],
            numbers: vec![EMPTY; slots],
            shift: 64 - slots.trailing_zeros(),
            count: 0,
        }
    }

    /// Returns the number of `page`; a new page gets the next one.
    #[inline]
    pub fn number(&mut self, page: u64) -> u32 {
        let slot = self.find(page);
        let number = self.numbers[slot];
        if number != EMPTY {
            return number;
        }
        self.insert(slot, page)
    }

    /// Returns the count of numbered pages.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.count
    }

    /// Returns whether no page has a number.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the pages by number.
    #[must_use]
    pub fn into_pages(self) -> Vec<u64> {
        let mut pages = vec![0; self.count as usize];
        for (&page, &number) in self.pages.iter().zip(&self.numbers) {
            if number != EMPTY {
                pages[number as usize] = page;
            }
        }
        pages
    }

    /// Returns the slot of `page`, or the slot for it.
    #[inline]
    fn find(&self, page: u64) -> usize {
        let mask = self.pages.len() - 1;
        let mut slot = (page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> self.shift) as usize;
        while self.pages[slot] != page && self.numbers[slot] != EMPTY {
            slot = (slot + 1) & mask;
        }
        slot
    }

    #[cold]
    fn insert(&mut self, slot: usize, page: u64) -> u32 {
        let number = self.count;
        self.pages[slot] = page;
        self.numbers[slot] = number;
        self.count += 1;
        if self.count as usize > self.pages.len() / 8 * 7 {
            self.grow();
        }
        number
    }

    fn grow(&mut self) {
        let mut larger = Self::with_slots(self.pages.len() * 2);
        for (&page, &number) in self.pages.iter().zip(&self.numbers) {
            if number != EMPTY {
                let slot = larger.find(page);
                larger.pages[slot] = page;
                larger.numbers[slot] = number;
            }
        }
        larger.count = self.count;
        *self = larger;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_follow_appearance_and_survive_growth() {
        let mut numbering = Numbering::default();
        let page = |i: u64| i.wrapping_mul(0x1_0000_0001) << (i % 7);
        let mut known = std::collections::HashMap::new();
        for i in (0..100_000).chain(0..100_000) {
            let next = known.len() as u32;
            let expected = *known.entry(page(i)).or_insert(next);
            assert_eq!(numbering.number(page(i)), expected);
        }
        assert_eq!(numbering.len() as usize, known.len());
        let pages = numbering.into_pages();
        assert!(known.iter().all(|(&page, &number)| pages[number as usize] == page));
    }
}
