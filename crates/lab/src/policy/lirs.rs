//! LIRS (Jiang and Zhang, SIGMETRICS 2002): pages with a low inter-reference recency (LIR) stay;
//! the others (HIR) pass through a small queue.
//!
//! Stack S orders pages by recency and may contain ghosts. Queue Q contains the resident HIR pages.
//! Three departures from the paper are libCacheSim's, the reference for miss ratios of this policy:
//! * A ghost moves to the top of S before the policy makes room.
//! * A hit on a page of Q that is no longer in S gives up one LIR page.
//! * S is limited to twice the capacity, by dropping the oldest ghosts.
//!
//! A further behaviour of libCacheSim is a switch, and off. It concerns a single frame for HIR
//! pages (memory below 200 pages). A hit on the page in Q then evicts this very page, which still
//! counts as resident while it is in S. With these phantoms LIRS-2 does not hold.
//!
//! Invariants:
//! * LIRS-1: the last page of S is LIR, unless S contains one page or none.
//! * LIRS-2: resident pages are the LIR pages and the pages of Q, at most `capacity` together.
//! * LIRS-3: a page on the ghost list is in S and not resident.

use super::chain::Chains;
use super::{Policy, Tally};

/// Lists of `aside`: resident HIR pages, and ghosts in order of eviction.
const QUEUE: usize = 0;
const GHOSTS: usize = 1;

const ABSENT: u8 = 0;
const LIR: u8 = 1;
const HIR: u8 = 2;
const GHOST: u8 = 3;

/// S, Q, the ghosts, and a status per page.
#[derive(Debug)]
pub struct Lirs {
    stack: Chains<1>,
    aside: Chains<2>,
    status: Vec<u8>,
    lir: u32,
    lir_max: u32,
    hir_max: u32,
    stack_max: u64,
    phantoms: bool,
    tally: Tally,
}

impl Lirs {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`. `hir_share` of the
    /// capacity is for HIR pages. `phantoms` makes the policy count the phantoms of libCacheSim as
    /// resident.
    #[must_use]
    pub fn new(pages: u32, capacity: u32, hir_share: f64, phantoms: bool) -> Self {
        let hir_max = ((f64::from(capacity) * hir_share) as u32).max(1);
        Self {
            stack: Chains::new(pages),
            aside: Chains::new(pages),
            status: vec![ABSENT; pages as usize],
            lir: 0,
            lir_max: capacity - hir_max,
            hir_max,
            stack_max: 2 * u64::from(capacity),
            phantoms,
            tally: Tally::default(),
        }
    }

    /// Removes pages that are not LIR from the bottom of S, up to the page on top.
    fn prune(&mut self) {
        loop {
            let page = self.stack.tail(0);
            let status = match self.status.get(page as usize) {
                Some(&status) if status != LIR && page != self.stack.head(0) => status,
                _ => return,
            };
            if status == GHOST {
                self.aside.remove(GHOSTS, page);
            }
            if status == GHOST || !self.aside.is_linked(page) {
                self.status[page as usize] = ABSENT;
            }
            self.stack.remove(0, page);
            self.tally.scanned += 1;
        }
    }

    /// Evicts the oldest page of Q. If the page is in S, it stays there as a ghost.
    fn evict_hir(&mut self) {
        let page = self.aside.pop_tail(QUEUE);
        self.tally.scanned += 1;
        self.status[page as usize] = if self.stack.is_linked(page) {
            self.aside.push_head(GHOSTS, page);
            GHOST
        } else {
            ABSENT
        };
    }

    /// Turns the LIR page at the bottom of S into a HIR page.
    fn demote_lir(&mut self) {
        let page = self.stack.pop_tail(0);
        self.lir -= 1;
        while self.aside.len(QUEUE) >= self.hir_max {
            self.evict_hir();
        }
        self.aside.push_head(QUEUE, page);
        self.status[page as usize] = HIR;
        self.prune();
    }

    fn promote(&mut self, page: u32) {
        while self.lir >= self.lir_max.max(1) {
            self.demote_lir();
        }
        self.status[page as usize] = LIR;
        self.lir += 1;
        self.tally.protected += 1;
    }

    fn hit_hir(&mut self, page: u32) {
        if self.stack.is_linked(page) {
            self.stack.move_to_head(0, page);
            if self.aside.is_linked(page) {
                self.aside.remove(QUEUE, page);
            }
            self.promote(page);
            return;
        }
        self.aside.move_to_head(QUEUE, page);
        if self.lir >= self.lir_max && (self.hir_max > 1 || self.phantoms) {
            self.demote_lir();
            self.status[page as usize] = HIR;
        }
        self.stack.push_head(0, page);
    }

    fn miss(&mut self, page: u32, status: u8) {
        if status == GHOST {
            self.stack.move_to_head(0, page);
            self.aside.remove(GHOSTS, page);
            self.promote(page);
            return;
        }
        if self.lir < self.lir_max {
            self.status[page as usize] = LIR;
            self.lir += 1;
        } else {
            while self.aside.len(QUEUE) >= self.hir_max {
                self.evict_hir();
            }
            self.status[page as usize] = HIR;
            self.aside.push_head(QUEUE, page);
        }
        self.stack.push_head(0, page);
    }

    fn limit_stack(&mut self) {
        while u64::from(self.stack.len(0)) > self.stack_max && self.aside.len(GHOSTS) > 0 {
            let page = self.aside.pop_tail(GHOSTS);
            self.stack.remove(0, page);
            self.status[page as usize] = ABSENT;
        }
    }
}

impl Policy for Lirs {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        let status = self.status[page as usize];
        match status {
            LIR => {
                self.stack.move_to_head(0, page);
                if self.status.get(self.stack.tail(0) as usize) != Some(&LIR) {
                    self.prune();
                }
                return true;
            }
            HIR => self.hit_hir(page),
            _ => self.miss(page, status),
        }
        self.limit_stack();
        status == HIR
    }

    fn is_resident(&self, page: u32) -> bool {
        matches!(self.status[page as usize], LIR | HIR)
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn heap_bytes(&self) -> usize {
        self.stack.heap_bytes() + self.aside.heap_bytes() + self.status.capacity()
    }
}
