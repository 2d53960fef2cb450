//! CLOCK: FIFO with second chances, counted by a few bits per page.
//!
//! The policy has a ring of resident pages and a hand. A hit raises the page's counter. The hand
//! lowers the counters it passes and evicts the first page whose counter is zero. With one bit this
//! is the textbook's CLOCK.

use super::{Policy, Tally};

/// Tag of a page that is not resident; a resident page's tag is its counter plus one.
const ABSENT: u8 = 0;

/// The ring, the hand and the counters.
#[derive(Debug)]
pub struct Clock {
    tags: Vec<u8>,
    ring: Vec<u32>,
    hand: usize,
    capacity: usize,
    tag_max: u8,
    tally: Tally,
}

impl Clock {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`, with `bits` bits a
    /// counter.
    #[must_use]
    pub fn new(pages: u32, capacity: u32, bits: u32) -> Self {
        assert!((1..=7).contains(&bits), "a counter has 1 to 7 bits");
        Self {
            tags: vec![ABSENT; pages as usize],
            ring: Vec::with_capacity(capacity.min(pages) as usize),
            hand: 0,
            capacity: capacity as usize,
            tag_max: 1 << bits,
            tally: Tally::default(),
        }
    }

    fn replace(&mut self, page: u32) {
        loop {
            let slot = self.hand;
            self.hand += 1;
            if self.hand == self.capacity {
                self.hand = 0;
            }
            let candidate = self.ring[slot];
            let tag = &mut self.tags[candidate as usize];
            *tag -= 1;
            self.tally.scanned += 1;
            if *tag == ABSENT {
                self.ring[slot] = page;
                return;
            }
            self.tally.protected += 1;
        }
    }
}

impl Policy for Clock {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        let tag = &mut self.tags[page as usize];
        if *tag != ABSENT {
            *tag = (*tag + 1).min(self.tag_max);
            return true;
        }
        *tag = 1;
        if self.ring.len() < self.capacity {
            self.ring.push(page);
        } else {
            self.replace(page);
        }
        false
    }

    fn is_resident(&self, page: u32) -> bool {
        self.tags[page as usize] != ABSENT
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn heap_bytes(&self) -> usize {
        self.tags.capacity() + self.ring.capacity() * 4
    }
}
