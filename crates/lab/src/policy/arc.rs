//! ARC (Megiddo and Modha, FAST 2003): a recency and a frequency list, with ghosts that move the
//! boundary between them.
//!
//! Invariants: |T1| + |T2| <= c, |T1| + |B1| <= c, and all four lists contain at most 2c pages.

use super::chain::Chains;
use super::{Policy, Tally};

const T1: usize = 0;
const T2: usize = 1;
const B1: usize = 2;
const B2: usize = 3;
/// Tag of a page on no list; otherwise the tag is the list's number.
const ABSENT: u8 = 4;

/// The four lists, most recent first, and the target size of T1.
#[derive(Debug)]
pub struct Arc {
    lists: Chains<4>,
    tags: Vec<u8>,
    target: f64,
    capacity: u32,
    tally: Tally,
}

impl Arc {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`.
    #[must_use]
    pub fn new(pages: u32, capacity: u32) -> Self {
        Self {
            lists: Chains::new(pages),
            tags: vec![ABSENT; pages as usize],
            target: 0.0,
            capacity,
            tally: Tally::default(),
        }
    }

    fn is_full(&self) -> bool {
        self.lists.len(T1) + self.lists.len(T2) == self.capacity
    }

    /// Evicts the last page of `list` and moves it to the list `ghosts`.
    fn demote(&mut self, list: usize, ghosts: usize) {
        let page = self.lists.tail(list);
        self.lists.transfer(list, ghosts, page);
        self.tags[page as usize] = ghosts as u8;
    }

    /// Removes the last page of `list` from all lists.
    fn forget(&mut self, list: usize) {
        let page = self.lists.pop_tail(list);
        self.tags[page as usize] = ABSENT;
    }

    /// Frees one frame. `from_b2` tells that the incoming page is on B2.
    fn replace(&mut self, from_b2: bool) {
        self.tally.scanned += 1;
        let recent = f64::from(self.lists.len(T1));
        let over = recent > self.target || (recent == self.target && from_b2);
        if (self.lists.len(T1) > 0 && over) || self.lists.len(T2) == 0 {
            self.demote(T1, B1);
        } else {
            self.demote(T2, B2);
        }
    }

    /// Makes room for a page that is on no list.
    fn make_room(&mut self) {
        let (t1, b1) = (self.lists.len(T1), self.lists.len(B1));
        if t1 + b1 >= self.capacity {
            if b1 > 0 {
                self.forget(B1);
                self.replace(false);
            } else {
                self.tally.scanned += 1;
                self.forget(T1);
            }
            return;
        }
        let (t2, b2) = (self.lists.len(T2), self.lists.len(B2));
        if u64::from(t1 + b1) + u64::from(t2 + b2) >= 2 * u64::from(self.capacity) && b2 > 0 {
            self.forget(B2);
        }
        self.replace(false);
    }

    /// Handles a miss on a ghost: adapts the target, and moves the page to T2.
    fn revive(&mut self, page: u32, ghosts: usize) {
        let b1 = f64::from(self.lists.len(B1));
        let b2 = f64::from(self.lists.len(B2));
        self.target = if ghosts == B1 {
            (self.target + (b2 / b1).max(1.0)).min(f64::from(self.capacity))
        } else {
            (self.target - (b1 / b2).max(1.0)).max(0.0)
        };
        self.lists.remove(ghosts, page);
        if self.is_full() {
            self.replace(ghosts == B2);
        }
        self.lists.push_head(T2, page);
        self.tags[page as usize] = T2 as u8;
    }

    fn miss(&mut self, page: u32, tag: u8) {
        if tag == ABSENT {
            if self.is_full() {
                self.make_room();
            }
            self.lists.push_head(T1, page);
            self.tags[page as usize] = T1 as u8;
        } else {
            self.revive(page, usize::from(tag));
        }
    }
}

impl Policy for Arc {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        let tag = self.tags[page as usize];
        match usize::from(tag) {
            T2 => self.lists.move_to_head(T2, page),
            T1 => {
                self.lists.transfer(T1, T2, page);
                self.tags[page as usize] = T2 as u8;
                self.tally.protected += 1;
            }
            _ => {
                self.miss(page, tag);
                return false;
            }
        }
        true
    }

    fn is_resident(&self, page: u32) -> bool {
        self.tags[page as usize] <= T2 as u8
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn heap_bytes(&self) -> usize {
        self.lists.heap_bytes() + self.tags.capacity()
    }
}
