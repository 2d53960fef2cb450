//! DClock: Linux's classic active and inactive lists for file pages, in the simplified form of
//! cache simulators. It handles one page at a time, counts the refault distance in evictions and
//! activations, and gives the active list a fixed share.
//!
//! The policy is for comparison only. Ebb's own model of the classic LRU is in `ebb-mm`.

use super::chain::Chains;
use super::{Policy, Tally};

const INACTIVE: usize = 0;
const ACTIVE: usize = 1;
const SHADOW: usize = 2;
/// Tag of a page on no list; otherwise the tag's low bits are the list's number.
const ABSENT: u8 = 3;
/// Flag in the tag of an active page accessed since the hand passed.
const MARK: u8 = 4;

/// The three lists, newest first, and the age at which each page was evicted.
#[derive(Debug)]
pub struct DClock {
    lists: Chains<3>,
    tags: Vec<u8>,
    evicted_at: Vec<u32>,
    capacity: u32,
    active_max: u32,
    /// Number of evictions and activations; wraps, and only differences count.
    age: u32,
    tally: Tally,
}

impl DClock {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`. `active` is the
    /// largest share of active pages.
    #[must_use]
    pub fn new(pages: u32, capacity: u32, active: f64) -> Self {
        Self {
            lists: Chains::new(pages),
            tags: vec![ABSENT; pages as usize],
            evicted_at: vec![0; pages as usize],
            capacity,
            active_max: (f64::from(capacity) * active) as u32,
            age: 0,
            tally: Tally::default(),
        }
    }

    fn put(&mut self, page: u32, list: usize) {
        self.lists.push_head(list, page);
        self.tags[page as usize] = list as u8;
    }

    fn activate(&mut self, page: u32, from: usize) {
        self.lists.remove(from, page);
        if self.lists.len(ACTIVE) == self.active_max {
            self.deactivate_one();
        }
        self.put(page, ACTIVE);
        self.age = self.age.wrapping_add(1);
        self.tally.protected += 1;
    }

    /// Rotates the active list until an unmarked page is at the tail, and deactivates that page.
    fn deactivate_one(&mut self) {
        loop {
            let page = self.lists.tail(ACTIVE);
            self.tally.scanned += 1;
            if self.tags[page as usize] & MARK == 0 {
                self.lists.remove(ACTIVE, page);
                self.put(page, INACTIVE);
                return;
            }
            self.tags[page as usize] = ACTIVE as u8;
            self.lists.move_to_head(ACTIVE, page);
        }
    }

    fn miss(&mut self, page: u32, tag: u8) {
        if usize::from(tag) == SHADOW {
            let distance = self.age.wrapping_sub(self.evicted_at[page as usize]);
            if distance <= self.lists.len(ACTIVE) {
                self.activate(page, SHADOW);
            } else {
                self.lists.remove(SHADOW, page);
                self.put(page, INACTIVE);
            }
        } else {
            self.put(page, INACTIVE);
        }
        if self.lists.len(INACTIVE) + self.lists.len(ACTIVE) > self.capacity {
            self.evict();
        }
    }

    fn evict(&mut self) {
        let page = self.lists.pop_tail(INACTIVE);
        self.tally.scanned += 1;
        self.evicted_at[page as usize] = self.age;
        self.age = self.age.wrapping_add(1);
        self.put(page, SHADOW);
        if self.lists.len(SHADOW) > self.active_max {
            let oldest = self.lists.pop_tail(SHADOW);
            self.tags[oldest as usize] = ABSENT;
        }
    }
}

impl Policy for DClock {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        let tag = self.tags[page as usize];
        match usize::from(tag & !MARK) {
            ACTIVE => self.tags[page as usize] = tag | MARK,
            INACTIVE => self.activate(page, INACTIVE),
            _ => {
                self.miss(page, tag);
                return false;
            }
        }
        true
    }

    fn is_resident(&self, page: u32) -> bool {
        self.tags[page as usize] & !MARK <= ACTIVE as u8
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn heap_bytes(&self) -> usize {
        self.lists.heap_bytes() + self.tags.capacity() + self.evicted_at.capacity() * 4
    }
}
