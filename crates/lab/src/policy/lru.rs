//! LRU: evicts the page with the oldest last access.

use super::chain::Chains;
use super::{Policy, Tally};

/// One list, most recent first. A page is resident if and only if it is linked.
#[derive(Debug)]
pub struct Lru {
    recency: Chains<1>,
    capacity: u32,
    scanned: u64,
}

impl Lru {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`.
    #[must_use]
    pub fn new(pages: u32, capacity: u32) -> Self {
        Self { recency: Chains::new(pages), capacity, scanned: 0 }
    }
}

impl Policy for Lru {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        if self.recency.is_linked(page) {
            self.recency.move_to_head(0, page);
            return true;
        }
        if self.recency.len(0) == self.capacity {
            self.recency.pop_tail(0);
            self.scanned += 1;
        }
        self.recency.push_head(0, page);
        false
    }

    fn is_resident(&self, page: u32) -> bool {
        self.recency.is_linked(page)
    }

    fn tally(&self) -> Tally {
        Tally { scanned: self.scanned, protected: 0 }
    }

    fn heap_bytes(&self) -> usize {
        self.recency.heap_bytes()
    }
}
