//! Belady's optimum: evicts the page whose next access is farthest away.
//!
//! Pages without a further access are on a separate list and go first. So the heap contains only
//! pages with a future.
//!
//! Invariants:
//! * BELADY-1: `place[heap[i].page] == i`. A page outside the heap has the place `OUT`, or `DEAD`
//!   while it is resident without a future.
//! * BELADY-2: in the heap (four children a node) no entry's next access is later than its
//!   parent's.

use super::Tally;

/// Number of the next access of a page without a further access.
pub const NEVER: u32 = u32::MAX;
const OUT: u32 = u32::MAX;
const DEAD: u32 = u32::MAX - 1;
const CHILDREN: usize = 4;

#[derive(Clone, Copy, Debug)]
struct Entry {
    next: u32,
    page: u32,
}

/// Resident pages by next access.
#[derive(Debug)]
pub struct Belady {
    place: Vec<u32>,
    heap: Vec<Entry>,
    dead: Vec<u32>,
    capacity: usize,
    tally: Tally,
}

impl Belady {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`.
    #[must_use]
    pub fn new(pages: u32, capacity: u32) -> Self {
        Self {
            place: vec![OUT; pages as usize],
            heap: Vec::new(),
            dead: Vec::new(),
            capacity: capacity as usize,
            tally: Tally::default(),
        }
    }

    /// Accesses `page`, whose next access is number `next`. Returns true if the page was resident.
    #[inline]
    pub fn touch(&mut self, page: u32, next: u32) -> bool {
        let place = self.place[page as usize];
        debug_assert_ne!(place, DEAD, "a page without a future was touched");
        if place != OUT {
            // The page's key is the current access, the earliest of all, so the entry only moves to
            // the root.
            if next == NEVER {
                self.remove(place as usize);
                self.bury(page);
            } else {
                self.rise(place as usize, Entry { next, page });
            }
            return true;
        }
        if self.heap.len() + self.dead.len() == self.capacity {
            self.evict();
        }
        if next == NEVER {
            self.bury(page);
        } else {
            self.heap.push(Entry { next, page });
            self.rise(self.heap.len() - 1, Entry { next, page });
        }
        false
    }

    /// Returns whether `page` is in memory.
    #[must_use]
    pub fn is_resident(&self, page: u32) -> bool {
        self.place[page as usize] != OUT
    }

    /// Returns the work of eviction up to now.
    #[must_use]
    pub fn tally(&self) -> Tally {
        self.tally
    }

    /// Returns the number of bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        (self.place.capacity() + self.dead.capacity()) * 4
            + self.heap.capacity() * size_of::<Entry>()
    }

    fn bury(&mut self, page: u32) {
        self.place[page as usize] = DEAD;
        self.dead.push(page);
    }

    fn evict(&mut self) {
        self.tally.scanned += 1;
        let page = match self.dead.pop() {
            Some(page) => page,
            None => {
                let page = self.heap[0].page;
                self.remove(0);
                page
            }
        };
        self.place[page as usize] = OUT;
    }

    /// Removes the entry at `hole`.
    fn remove(&mut self, hole: usize) {
        let Some(last) = self.heap.pop() else { return };
        if hole == self.heap.len() {
            return;
        }
        let parent = hole.saturating_sub(1) / CHILDREN;
        if hole > 0 && self.heap[parent].next < last.next {
            self.rise(hole, last);
        } else {
            self.sink(hole, last);
        }
    }

    /// Puts `entry` at `hole` or nearer to the root.
    #[inline]
    fn rise(&mut self, mut hole: usize, entry: Entry) {
        while hole > 0 {
            let parent = (hole - 1) / CHILDREN;
            let above = self.heap[parent];
            if above.next >= entry.next {
                break;
            }
            self.set(hole, above);
            hole = parent;
        }
        self.set(hole, entry);
    }

    /// Puts `entry` at `hole` or farther from the root.
    fn sink(&mut self, mut hole: usize, entry: Entry) {
        loop {
            let first = hole * CHILDREN + 1;
            let last = (first + CHILDREN).min(self.heap.len());
            let Some(child) = (first..last).max_by_key(|&child| self.heap[child].next) else {
                break;
            };
            let below = self.heap[child];
            if below.next <= entry.next {
                break;
            }
            self.set(hole, below);
            hole = child;
        }
        self.set(hole, entry);
    }

    #[inline]
    fn set(&mut self, hole: usize, entry: Entry) {
        self.heap[hole] = entry;
        self.place[entry.page as usize] = hole as u32;
    }
}
