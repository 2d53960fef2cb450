//! SIEVE: a FIFO list with one visited bit and a hand. The hand walks from the tail to the head and
//! evicts the first page that was not visited. Unlike CLOCK, SIEVE does not move the spared pages.

use super::chain::Chains;
use super::{Policy, Tally};

/// The list, newest first, the visited bits and the hand.
#[derive(Debug)]
pub struct Sieve {
    order: Chains<1>,
    visited: Vec<u8>,
    /// Page at which the next search starts; the list's sentinel stands for the tail.
    hand: u32,
    capacity: u32,
    tally: Tally,
}

impl Sieve {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`.
    #[must_use]
    pub fn new(pages: u32, capacity: u32) -> Self {
        let order = Chains::new(pages);
        let hand = order.end(0);
        Self { order, visited: vec![0; pages as usize], hand, capacity, tally: Tally::default() }
    }

    fn evict(&mut self) {
        let mut page = self.hand;
        loop {
            if page == self.order.end(0) {
                page = self.order.tail(0);
            }
            self.tally.scanned += 1;
            if std::mem::take(&mut self.visited[page as usize]) == 0 {
                break;
            }
            self.tally.protected += 1;
            page = self.order.toward_head(page);
        }
        self.hand = self.order.toward_head(page);
        self.order.remove(0, page);
    }
}

impl Policy for Sieve {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        if self.order.is_linked(page) {
            self.visited[page as usize] = 1;
            return true;
        }
        if self.order.len(0) == self.capacity {
            self.evict();
        }
        self.order.push_head(0, page);
        false
    }

    fn is_resident(&self, page: u32) -> bool {
        self.order.is_linked(page)
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn heap_bytes(&self) -> usize {
        self.order.heap_bytes() + self.visited.capacity()
    }
}
