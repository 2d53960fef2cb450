//! CLOCK-Pro (Jiang, Chen and Zhang, USENIX ATC 2005): LIRS as one clock with three hands.
//!
//! One circle, in order of arrival, has all hot and cold pages, and the ghosts of cold pages in
//! their test period. Parameters and the order of the hands' work follow Caffeine's simulator, the
//! reference for miss ratios of this policy.
//!
//! Invariants:
//! * CLOCKPRO-1: each hand is on the page of its kind nearest to the tail, or `NONE` if there is
//!   none. The kinds are resident cold pages, hot pages, and pages in their test period. The hands
//!   may lag during a miss.
//! * CLOCKPRO-2: `count[s]` is the number of pages with status `s`; hot and resident cold pages are
//!   at most `capacity`, ghosts at most `ghosts_max`.

use super::{Policy, Tally};

const NONE: u32 = u32::MAX;

/// Statuses, in the low bits of a tag. `OUT` is a page outside the circle.
const OUT: usize = 0;
/// Status of a cold page that was evicted in its test period.
const GHOST: usize = 1;
/// Status of a resident cold page past its test period.
const COLD: usize = 2;
/// Status of a resident cold page in its test period.
const TEST: usize = 3;
const HOT: usize = 4;
const STATUS: u8 = 7;
/// Flag in the tag of a resident page accessed since a hand passed.
const MARK: u8 = 8;

#[derive(Clone, Copy, Debug)]
struct Node {
    prev: u32,
    next: u32,
}

/// The circle, the hands and the target number of resident cold pages.
#[derive(Debug)]
pub struct ClockPro {
    nodes: Vec<Node>,
    tags: Vec<u8>,
    count: [u32; 5],
    head: u32,
    hand_hot: u32,
    hand_cold: u32,
    hand_test: u32,
    cold_target: u32,
    cold_min: u32,
    cold_max: u32,
    capacity: u32,
    ghosts_max: u32,
    last: u32,
    tally: Tally,
}

/// Smallest number of pages that leaves room for both hot and cold pages.
pub const CAPACITY_MIN: u32 = 4;

impl ClockPro {
    /// Creates an empty cache of `capacity` pages, at least [`CAPACITY_MIN`], over the pages
    /// `0..pages`.
    #[must_use]
    pub fn new(pages: u32, capacity: u32) -> Self {
        assert!(capacity >= CAPACITY_MIN, "{capacity} pages are too few for CLOCK-Pro");
        let share = |percent: f64| (f64::from(capacity) * percent) as u32;
        let cold_min = share(0.01).max(2);
        Self {
            nodes: vec![Node { prev: NONE, next: NONE }; pages as usize],
            tags: vec![OUT as u8; pages as usize],
            count: [0; 5],
            head: NONE,
            hand_hot: NONE,
            hand_cold: NONE,
            hand_test: NONE,
            cold_target: cold_min,
            cold_min,
            cold_max: share(0.99).min(capacity - cold_min),
            capacity,
            ghosts_max: 2 * capacity,
            last: NONE,
            tally: Tally::default(),
        }
    }

    fn status(&self, page: u32) -> usize {
        usize::from(self.tags[page as usize] & STATUS)
    }

    fn is_marked(&self, page: u32) -> bool {
        self.tags[page as usize] & MARK != 0
    }

    fn in_test(&self, page: u32) -> bool {
        matches!(self.status(page), TEST | GHOST)
    }

    fn prev(&self, page: u32) -> u32 {
        self.nodes[page as usize].prev
    }

    fn free(&self) -> u32 {
        self.capacity - self.count[HOT] - self.count[COLD] - self.count[TEST]
    }

    /// Changes the status and keeps the mark.
    fn set_status(&mut self, page: u32, status: usize) {
        let old = self.status(page);
        self.count[old] -= u32::from(old != OUT);
        self.count[status] += u32::from(status != OUT);
        let tag = &mut self.tags[page as usize];
        *tag = (*tag & !STATUS) | status as u8;
    }

    /// Removes a page from the circle and clears its mark; hands on the page step towards the head.
    fn unlink(&mut self, page: u32) {
        let Node { prev, next } = self.nodes[page as usize];
        let alone = next == page;
        if self.head == page {
            self.head = if alone { NONE } else { next };
        }
        let step = if alone { NONE } else { prev };
        for hand in [&mut self.hand_hot, &mut self.hand_cold, &mut self.hand_test] {
            if *hand == page {
                *hand = step;
            }
        }
        self.nodes[prev as usize].next = next;
        self.nodes[next as usize].prev = prev;
        self.set_status(page, OUT);
        self.tags[page as usize] = OUT as u8;
    }

    /// Puts a page at the head of the circle, whether it is on the circle or not.
    fn put_at_head(&mut self, page: u32, status: usize) {
        if self.status(page) != OUT {
            self.unlink(page);
        }
        if self.head == NONE {
            self.nodes[page as usize] = Node { prev: page, next: page };
        } else {
            let first = self.head;
            let last = std::mem::replace(&mut self.nodes[first as usize].prev, page);
            self.nodes[last as usize].next = page;
            self.nodes[page as usize] = Node { prev: last, next: first };
        }
        self.head = page;
        self.set_status(page, status);
    }

    fn adjust_target(&mut self, grow: bool) {
        let target = if grow { self.cold_target + 1 } else { self.cold_target - 1 };
        self.cold_target = target.clamp(self.cold_min, self.cold_max);
    }

    fn end_test(&mut self, page: u32) {
        match self.status(page) {
            TEST => {
                self.set_status(page, COLD);
                self.adjust_target(self.is_marked(page));
            }
            GHOST => {
                self.unlink(page);
                self.adjust_target(false);
            }
            _ => {}
        }
    }

    fn evict(&mut self) {
        while self.free() == 0 {
            self.run_cold_hand();
        }
    }

    fn run_cold_hand(&mut self) {
        let page = self.hand_cold;
        self.tally.scanned += 1;
        if self.is_marked(page) {
            self.tally.protected += 1;
            let promoted = self.status(page) == TEST && self.try_promote(page);
            self.put_at_head(page, if promoted { HOT } else { TEST });
        } else {
            if self.status(page) == TEST {
                self.set_status(page, GHOST);
                self.hand_cold = self.prev(page);
            } else {
                self.unlink(page);
            }
            while self.count[GHOST] > self.ghosts_max {
                self.end_test(self.hand_test);
                self.settle_test_hand();
            }
        }
        self.settle_cold_hand();
    }

    /// Makes room among the hot pages for a page accessed in its test period. Returns false if the
    /// page does not become hot.
    fn try_promote(&mut self, page: u32) -> bool {
        if !self.in_test(page) {
            return false;
        }
        self.adjust_target(true);
        self.tags[page as usize] &= !MARK;
        while self.count[HOT] >= self.capacity - self.cold_target {
            if !self.in_test(page) || !self.run_hot_hand(page) {
                return false;
            }
        }
        true
    }

    /// Looks for a hot page to demote between the hot hand and `candidate`. Ends the test periods
    /// of the cold pages it passes.
    fn run_hot_hand(&mut self, candidate: u32) -> bool {
        let mut demoted = false;
        while self.hand_hot != candidate && !demoted {
            let page = self.hand_hot;
            self.tally.scanned += 1;
            if self.status(page) != HOT {
                self.hand_hot = self.prev(page);
                self.end_test(page);
            } else if self.is_marked(page) {
                self.put_at_head(page, HOT);
            } else {
                self.put_at_head(page, COLD);
                demoted = true;
            }
        }
        self.settle_hot_hand();
        demoted
    }

    fn tail_or_none(&self) -> u32 {
        if self.head == NONE { NONE } else { self.prev(self.head) }
    }

    fn settle_cold_hand(&mut self) {
        if self.count[COLD] + self.count[TEST] == 0 {
            self.hand_cold = NONE;
            return;
        }
        if self.hand_cold == NONE {
            self.hand_cold = self.tail_or_none();
        }
        while !matches!(self.status(self.hand_cold), COLD | TEST) {
            self.hand_cold = self.prev(self.hand_cold);
        }
    }

    fn settle_hot_hand(&mut self) {
        if self.count[HOT] == 0 {
            self.hand_hot = NONE;
            return;
        }
        if self.hand_hot == NONE {
            self.hand_hot = self.tail_or_none();
        }
        while self.status(self.hand_hot) != HOT {
            let page = self.hand_hot;
            self.hand_hot = self.prev(page);
            self.end_test(page);
        }
        self.settle_test_hand();
    }

    fn settle_test_hand(&mut self) {
        if self.count[TEST] + self.count[GHOST] == 0 {
            self.hand_test = NONE;
            return;
        }
        if self.hand_test == NONE {
            self.hand_test =
                if self.hand_hot == NONE { self.tail_or_none() } else { self.hand_hot };
        }
        while !self.in_test(self.hand_test) {
            self.hand_test = self.prev(self.hand_test);
        }
    }

    fn miss(&mut self, page: u32) {
        let free = self.free();
        let status = if free > self.cold_min {
            HOT
        } else if free > 0 {
            TEST
        } else {
            let was_ghost = self.status(page) == GHOST;
            self.evict();
            if was_ghost && self.try_promote(page) { HOT } else { TEST }
        };
        self.put_at_head(page, status);
        self.settle_cold_hand();
        self.settle_hot_hand();
        self.settle_test_hand();
    }
}

impl Policy for ClockPro {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        let tag = self.tags[page as usize];
        if usize::from(tag & STATUS) >= COLD {
            // Two accesses in a row count as one reference for the test periods.
            if page != self.last {
                self.last = page;
                self.tags[page as usize] = tag | MARK;
            }
            return true;
        }
        self.last = page;
        self.miss(page);
        false
    }

    fn is_resident(&self, page: u32) -> bool {
        self.status(page) >= COLD
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn heap_bytes(&self) -> usize {
        self.nodes.capacity() * size_of::<Node>() + self.tags.capacity()
    }
}
