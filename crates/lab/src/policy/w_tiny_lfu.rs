//! W-TinyLFU (Einziger, Friedman and Manes, ACM TOS 2017): a small LRU window before a segmented
//! LRU. A page that leaves the window enters the main part only if the sketch has seen it more
//! often than the victim there.
//!
//! The admission, the size of the sketch and the counted accesses follow libCacheSim, the reference
//! for miss ratios of this policy.

use super::chain::Chains;
use super::sketch::Sketch;
use super::{Policy, Tally};

const WINDOW: usize = 0;
const PROBATION: usize = 1;
const PROTECTED: usize = 2;
/// Tag of a page on no list; otherwise the tag is the list's number.
const ABSENT: u8 = 3;
/// Number of hits in the main part between two halvings of the sketch, per page of the main part.
const SAMPLE: u64 = 32;

/// The window, the two segments of the main part, and the sketch.
#[derive(Debug)]
pub struct WTinyLfu {
    lists: Chains<3>,
    tags: Vec<u8>,
    sketch: Sketch,
    capacity: u32,
    main_max: u32,
    segment_max: [u32; 2],
    sampled: u64,
    tally: Tally,
}

impl WTinyLfu {
    /// Creates an empty cache of `capacity` pages over the pages `0..pages`; `window` is the
    /// window's share of the capacity.
    #[must_use]
    pub fn new(pages: u32, capacity: u32, window: f64) -> Self {
        let window_max = ((f64::from(capacity) * window) as u32).clamp(1, capacity);
        let main_max = capacity - window_max;
        let segment = |share: f64| (share * f64::from(main_max)) as u32;
        Self {
            lists: Chains::new(pages),
            tags: vec![ABSENT; pages as usize],
            sketch: Sketch::new(pages, main_max),
            capacity,
            main_max,
            segment_max: [segment(0.2), segment(0.8)],
            sampled: 0,
            tally: Tally::default(),
        }
    }

    fn main_len(&self) -> u32 {
        self.lists.len(PROBATION) + self.lists.len(PROTECTED)
    }

    fn put(&mut self, page: u32, from: usize, to: usize) {
        self.lists.transfer(from, to, page);
        self.tags[page as usize] = to as u8;
    }

    fn forget(&mut self, list: usize) {
        let page = self.lists.pop_tail(list);
        self.tags[page as usize] = ABSENT;
    }

    /// Returns the segment whose last page is the next victim of the main part.
    fn victim_segment(&self) -> usize {
        if self.lists.len(PROBATION) > 0 { PROBATION } else { PROTECTED }
    }

    /// Moves the window's last page into the first segment with room.
    fn admit(&mut self, page: u32) {
        let fits = |segment: usize| self.lists.len(segment) < self.segment_max[segment - 1];
        let to = if !fits(PROBATION) && fits(PROTECTED) { PROTECTED } else { PROBATION };
        self.put(page, WINDOW, to);
        self.tally.protected += 1;
    }

    /// Frees one frame.
    fn evict(&mut self) {
        loop {
            if self.lists.len(WINDOW) == 0 {
                self.forget(self.victim_segment());
                self.tally.scanned += 1;
                return;
            }
            let page = self.lists.tail(WINDOW);
            self.tally.scanned += 1;
            let room = self.main_len() < self.main_max;
            if room {
                self.admit(page);
            } else if self.main_max == 0 {
                self.forget(WINDOW);
            } else {
                let segment = self.victim_segment();
                let rival = self.lists.tail(segment);
                if self.sketch.estimate(page) > self.sketch.estimate(rival) {
                    self.forget(segment);
                    self.admit(page);
                } else {
                    self.forget(WINDOW);
                }
            }
            self.sketch.add(page);
            if !room {
                return;
            }
        }
    }

    fn hit_main(&mut self, page: u32, segment: usize) {
        if segment == PROTECTED {
            self.lists.move_to_head(PROTECTED, page);
        } else {
            self.put(page, PROBATION, PROTECTED);
            while self.lists.len(PROTECTED) > self.segment_max[PROTECTED - 1] {
                let demoted = self.lists.tail(PROTECTED);
                self.put(demoted, PROTECTED, PROBATION);
                while self.lists.len(PROBATION) > self.segment_max[PROBATION - 1].max(1) {
                    self.forget(PROBATION);
                    self.tally.scanned += 1;
                }
            }
        }
        self.sketch.add(page);
        self.sampled += 1;
        if self.sampled >= SAMPLE * u64::from(self.main_max) {
            self.sampled = 0;
            self.sketch.halve();
        }
    }

    fn miss(&mut self, page: u32) {
        while self.lists.len(WINDOW) + self.main_len() >= self.capacity {
            self.evict();
        }
        self.lists.push_head(WINDOW, page);
        self.tags[page as usize] = WINDOW as u8;
        self.sketch.add(page);
    }
}

impl Policy for WTinyLfu {
    #[inline]
    fn touch(&mut self, page: u32) -> bool {
        match usize::from(self.tags[page as usize]) {
            WINDOW => self.lists.move_to_head(WINDOW, page),
            segment @ (PROBATION | PROTECTED) => self.hit_main(page, segment),
            _ => {
                self.miss(page);
                return false;
            }
        }
        true
    }

    fn is_resident(&self, page: u32) -> bool {
        self.tags[page as usize] != ABSENT
    }

    fn tally(&self) -> Tally {
        self.tally
    }

    fn heap_bytes(&self) -> usize {
        self.lists.heap_bytes() + self.tags.capacity() + self.sketch.heap_bytes()
    }
}
