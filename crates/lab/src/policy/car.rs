//! CAR (Bansal and Modha, FAST 2004): ARC's two lists as clocks, so that a hit sets one bit.

use super::chain::Chains;
use super::{Policy, Tally};

const T1: usize = 0;
const T2: usize = 1;
const B1: usize = 2;
const B2: usize = 3;
/// Tag of a page on no list; otherwise the tag's low bits are the list's number.
const ABSENT: u8 = 4;
/// Flag in the tag of a resident page accessed since the hand passed.
const MARK: u8 = 8;

/// Two clocks (the hand is at the tail), two ghost lists, and the target size of T1.
#[derive(Debug)]
pub struct Car {
    lists: Chains<4>,
    tags: Vec<u8>,
    target: u32,
    capacity: u32,
    tally: Tally,
}

impl Car {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`.
    #[must_use]
    pub fn new(pages: u32, capacity: u32) -> Self {
        Self {
            lists: Chains::new(pages),
            tags: vec![ABSENT; pages as usize],
            target: 0,
            capacity,
            tally: Tally::default(),
        }
    }

    /// Frees one frame: turns the clocks until an unmarked page is at a hand.
    fn replace(&mut self) {
        loop {
            let (clock, ghosts) =
                if self.lists.len(T1) >= self.target.max(1) { (T1, B1) } else { (T2, B2) };
            let page = self.lists.tail(clock);
            self.tally.scanned += 1;
            if self.tags[page as usize] & MARK == 0 {
                self.put(page, clock, ghosts);
                return;
            }
            self.tally.protected += 1;
            self.put(page, clock, T2);
        }
    }

    fn put(&mut self, page: u32, from: usize, to: usize) {
        self.lists.transfer(from, to, page);
        self.tags[page as usize] = to as u8;
    }

    fn forget(&mut self, ghosts: usize) {
        let page = self.lists.pop_tail(ghosts);
        self.tags[page as usize] = ABSENT;
    }

    fn miss(&mut self, page: u32, tag: u8) {
        let resident = self.lists.len(T1) + self.lists.len(T2);
        if resident == self.capacity {
            self.replace();
            if tag == ABSENT {
                let directory = (0..4).map(|list| u64::from(self.lists.len(list))).sum::<u64>();
                if self.lists.len(T1) + self.lists.len(B1) == self.capacity {
                    self.forget(B1);
                } else if directory == 2 * u64::from(self.capacity) {
                    self.forget(B2);
                }
            }
        }
        let (b1, b2) = (self.lists.len(B1), self.lists.len(B2));
        match usize::from(tag) {
            B1 => {
                self.target = (self.target + (b2 / b1).max(1)).min(self.capacity);
                self.put(page, B1, T2);
            }
            B2 => {
                self.target = self.target.saturating_sub((b1 / b2).max(1));
                self.put(page, B2, T2);
            }
            _ => {
                self.lists.push_head(T1, page);
                self.tags[page as usize] = T1 as u8;
            }
        }
    }
}

impl Policy for Car {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        let tag = self.tags[page as usize];
        if tag & !MARK <= T2 as u8 {
            self.tags[page as usize] = tag | MARK;
            return true;
        }
        self.miss(page, tag);
        false
    }

    fn is_resident(&self, page: u32) -> bool {
        self.tags[page as usize] & !MARK <= T2 as u8
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn heap_bytes(&self) -> usize {
        self.lists.heap_bytes() + self.tags.capacity()
    }
}
