//! 2Q, full version (Johnson and Shasha, VLDB 1994): a FIFO for pages seen once, its ghosts, and an
//! LRU list for pages that return after leaving the FIFO.

use super::chain::Chains;
use super::{Policy, Tally};

const IN: usize = 0;
const MAIN: usize = 1;
const OUT: usize = 2;
/// Tag of a page on no list; otherwise the tag is the list's number.
const ABSENT: u8 = 3;

/// The three lists, newest first, and their limits.
#[derive(Debug)]
pub struct TwoQ {
    lists: Chains<3>,
    tags: Vec<u8>,
    capacity: u32,
    in_max: u32,
    out_max: u32,
    tally: Tally,
}

impl TwoQ {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`. `in_share` and
    /// `out_share` are the shares of the FIFO and of its ghosts.
    #[must_use]
    pub fn new(pages: u32, capacity: u32, in_share: f64, out_share: f64) -> Self {
        Self {
            lists: Chains::new(pages),
            tags: vec![ABSENT; pages as usize],
            capacity,
            in_max: (f64::from(capacity) * in_share) as u32,
            out_max: (f64::from(capacity) * out_share) as u32,
            tally: Tally::default(),
        }
    }

    fn forget(&mut self, list: usize) {
        let page = self.lists.pop_tail(list);
        self.tags[page as usize] = ABSENT;
    }

    fn evict(&mut self) {
        self.tally.scanned += 1;
        if self.lists.len(MAIN) > 0 && self.lists.len(IN) <= self.in_max {
            self.forget(MAIN);
            return;
        }
        if self.out_max == 0 {
            self.forget(IN);
            return;
        }
        if self.lists.len(OUT) == self.out_max {
            self.forget(OUT);
        }
        let page = self.lists.tail(IN);
        self.lists.transfer(IN, OUT, page);
        self.tags[page as usize] = OUT as u8;
    }

    fn miss(&mut self, page: u32, tag: u8) {
        let was_ghost = usize::from(tag) == OUT;
        if was_ghost {
            self.lists.remove(OUT, page);
        }
        if self.lists.len(IN) + self.lists.len(MAIN) == self.capacity {
            self.evict();
        }
        let list = if was_ghost {
            if self.lists.len(MAIN) == self.capacity - self.in_max {
                self.tally.scanned += 1;
                self.forget(MAIN);
            }
            MAIN
        } else {
            IN
        };
        self.lists.push_head(list, page);
        self.tags[page as usize] = list as u8;
    }
}

impl Policy for TwoQ {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        let tag = self.tags[page as usize];
        match usize::from(tag) {
            IN => true,
            MAIN => {
                self.lists.move_to_head(MAIN, page);
                true
            }
            _ => {
                self.miss(page, tag);
                false
            }
        }
    }

    fn is_resident(&self, page: u32) -> bool {
        self.tags[page as usize] <= MAIN as u8
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn heap_bytes(&self) -> usize {
        self.lists.heap_bytes() + self.tags.capacity()
    }
}
