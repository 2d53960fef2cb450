//! S3-FIFO (Yang and others, SOSP 2023): a small FIFO that filters pages seen once, a main FIFO
//! with second chances, and a FIFO of ghosts. A page that returns from the ghosts goes straight to
//! main.

use std::collections::VecDeque;

use super::chain::Chains;
use super::{Policy, Tally};

/// Bits of the tag for the queue.
const QUEUE: u8 = 0b1100;
const ABSENT: u8 = 0b0000;
const GHOST: u8 = 0b0100;
const SMALL: u8 = 0b1000;
const MAIN: u8 = 0b1100;
/// Bits of the tag for the counter; the counter stops at its highest value.
const COUNT: u8 = 0b0011;

/// Limits as shares of the capacity, and the threshold for promotion to main.
#[derive(Clone, Copy, Debug)]
pub struct Shares {
    /// Size of the small FIFO.
    pub small: f64,
    /// Size of the ghost FIFO.
    pub ghost: f64,
    /// Number of hits in the small FIFO that promotes a page to main: 1 to 3.
    pub threshold: u8,
}

/// The three FIFOs and a tag per page.
#[derive(Debug)]
pub struct S3Fifo {
    tags: Vec<u8>,
    small: VecDeque<u32>,
    main: VecDeque<u32>,
    ghosts: Chains<1>,
    capacity: usize,
    small_max: usize,
    ghost_max: u32,
    threshold: u8,
    has_evicted: bool,
    tally: Tally,
}

impl S3Fifo {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`.
    #[must_use]
    pub fn new(pages: u32, capacity: u32, shares: Shares) -> Self {
        Self {
            tags: vec![ABSENT; pages as usize],
            small: VecDeque::new(),
            main: VecDeque::new(),
            ghosts: Chains::new(pages),
            capacity: capacity as usize,
            small_max: ((f64::from(capacity) * shares.small) as usize).max(1),
            ghost_max: (f64::from(capacity) * shares.ghost) as u32,
            threshold: shares.threshold,
            has_evicted: false,
            tally: Tally::default(),
        }
    }

    fn evict(&mut self) {
        self.has_evicted = true;
        let main_max = self.capacity - self.small_max.min(self.capacity);
        if self.main.len() > main_max || self.small.is_empty() {
            self.evict_main();
        } else {
            self.evict_small();
        }
    }

    /// Evicts a page with too few hits from small, and moves the pages before it to main. May free
    /// nothing if all pages go to main.
    fn evict_small(&mut self) {
        while let Some(page) = self.small.pop_front() {
            self.tally.scanned += 1;
            if self.tags[page as usize] & COUNT < self.threshold {
                self.remember(page);
                return;
            }
            self.tally.protected += 1;
            self.tags[page as usize] = MAIN;
            self.main.push_back(page);
        }
    }

    fn evict_main(&mut self) {
        while let Some(page) = self.main.pop_front() {
            self.tally.scanned += 1;
            let tag = &mut self.tags[page as usize];
            if *tag & COUNT == 0 {
                *tag = ABSENT;
                return;
            }
            *tag -= 1;
            self.tally.protected += 1;
            self.main.push_back(page);
        }
    }

    fn remember(&mut self, page: u32) {
        if self.ghost_max == 0 {
            self.tags[page as usize] = ABSENT;
            return;
        }
        if self.ghosts.len(0) == self.ghost_max {
            let oldest = self.ghosts.pop_tail(0);
            self.tags[oldest as usize] = ABSENT;
        }
        self.ghosts.push_head(0, page);
        self.tags[page as usize] = GHOST;
    }

    fn miss(&mut self, page: u32, tag: u8) {
        let was_ghost = tag == GHOST;
        if was_ghost {
            self.ghosts.remove(0, page);
        }
        while self.small.len() + self.main.len() >= self.capacity {
            self.evict();
        }
        let warming = !self.has_evicted && self.small.len() >= self.small_max;
        if was_ghost || warming {
            self.main.push_back(page);
            self.tags[page as usize] = MAIN;
        } else {
            self.small.push_back(page);
            self.tags[page as usize] = SMALL;
        }
    }
}

impl Policy for S3Fifo {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        let tag = self.tags[page as usize];
        if tag >= SMALL {
            self.tags[page as usize] = tag + u8::from(tag & COUNT != COUNT);
            return true;
        }
        self.miss(page, tag);
        false
    }

    fn is_resident(&self, page: u32) -> bool {
        self.tags[page as usize] & QUEUE >= SMALL
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn heap_bytes(&self) -> usize {
        let rings = (self.small.capacity() + self.main.capacity()) * 4;
        self.tags.capacity() + rings + self.ghosts.heap_bytes()
    }
}
