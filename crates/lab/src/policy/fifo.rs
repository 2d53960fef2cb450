//! FIFO: evicts in the order of arrival; hits change nothing.

use super::{Policy, Tally};

/// A ring of resident pages, and a byte per page that tells whether the page is in the ring.
#[derive(Debug)]
pub struct Fifo {
    resident: Vec<u8>,
    ring: Vec<u32>,
    next: usize,
    capacity: usize,
    scanned: u64,
}

impl Fifo {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`.
    #[must_use]
    pub fn new(pages: u32, capacity: u32) -> Self {
        Self {
            resident: vec![0; pages as usize],
            ring: Vec::with_capacity(capacity.min(pages) as usize),
            next: 0,
            capacity: capacity as usize,
            scanned: 0,
        }
    }
}

impl Policy for Fifo {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        if std::mem::replace(&mut self.resident[page as usize], 1) != 0 {
            return true;
        }
        if self.ring.len() < self.capacity {
            self.ring.push(page);
            return false;
        }
        let victim = std::mem::replace(&mut self.ring[self.next], page);
        self.resident[victim as usize] = 0;
        self.scanned += 1;
        self.next += 1;
        if self.next == self.capacity {
            self.next = 0;
        }
        false
    }

    fn is_resident(&self, page: u32) -> bool {
        self.resident[page as usize] != 0
    }

    fn tally(&self) -> Tally {
        Tally { scanned: self.scanned, protected: 0 }
    }

    fn heap_bytes(&self) -> usize {
        self.resident.capacity() + self.ring.capacity() * 4
    }
}
