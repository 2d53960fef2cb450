//! Places in a process's pool: address space that holds its cool pages.
//!
//! A place is Free (a hole), Used (a cool page, or one on its way in) or Pending (its page is of no
//! more use but still there). P5: Pending becomes Free only when the agent has dropped the page.
//! Places are handed out in rising order, so that pages cooled together lie together and are dropped
//! by one call.

use crate::broken::{Rule, is_broken};
use std::collections::HashSet;

/// One pool.
#[derive(Clone, Debug)]
pub struct Pool {
    start: u64,
    len: u64,
    places: Vec<Place>,
    next: u32,
    pending: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Free,
    Used,
    Pending,
}

impl Pool {
    /// The pool at `start`, `len` bytes, the last `bells` pages of which are not places.
    #[must_use]
    pub fn new(start: u64, len: u64, bells: usize) -> Self {
        let places = vec![Place::Free; (len / 4096) as usize - bells];
        Self { start, len, places, next: 0, pending: Vec::new() }
    }

    /// What a child inherits: a place that is being dropped here may hold its page there.
    #[must_use]
    pub fn inherited(&self) -> Self {
        let is_pending = |&place: &u32| self.places[place as usize] == Place::Pending;
        let pending = (0..self.places.len() as u32).filter(is_pending).collect();
        Self { pending, ..self.clone() }
    }

    /// What lies in places other than `kept` is of no more use.
    pub fn retire_all_but(&mut self, kept: &HashSet<u32>) {
        for place in 0..self.places.len() as u32 {
            if self.places[place as usize] == Place::Used && !kept.contains(&place) {
                self.retire(place);
            }
        }
    }

    /// The bell at `address`.
    #[must_use]
    pub fn bell(&self, address: u64) -> Option<usize> {
        let first = self.start + self.places.len() as u64 * 4096;
        (first..self.end()).contains(&address).then(|| ((address - first) / 4096) as usize)
    }

    /// First address.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// First address behind it.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Address of a place.
    #[must_use]
    pub fn address(&self, place: u32) -> u64 {
        self.start + u64::from(place) * 4096
    }

    /// Takes a place.
    pub fn take(&mut self) -> Option<u32> {
        let len = self.places.len() as u32;
        for step in 0..len {
            let at = (self.next + step) % len;
            if self.places[at as usize] == Place::Free {
                self.places[at as usize] = Place::Used;
                self.next = (at + 1) % len;
                return Some(at);
            }
        }
        None
    }

    /// Nothing was put there after all.
    pub fn give_back(&mut self, place: u32) {
        debug_assert_eq!(self.places[place as usize], Place::Used);
        self.places[place as usize] = Place::Free;
    }

    /// The page there is of no more use.
    pub fn retire(&mut self, place: u32) {
        debug_assert_eq!(self.places[place as usize], Place::Used);
        self.places[place as usize] =
            if is_broken(Rule::P5) { Place::Free } else { Place::Pending };
        self.pending.push(place);
    }

    /// Whether a cool page lies there, or is on its way.
    #[cfg(test)]
    pub fn is_used(&self, place: u32) -> bool {
        self.places[place as usize] == Place::Used
    }

    /// How many places are used so.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.places.iter().filter(|&&place| place == Place::Used).count()
    }

    /// How many pages are of no more use, and not dropped yet.
    #[cfg(test)]
    pub fn undropped(&self) -> usize {
        self.places.iter().filter(|&&place| place == Place::Pending).count()
    }

    /// How many pages are of no more use.
    #[must_use]
    pub fn retired(&self) -> usize {
        self.pending.len()
    }

    /// Takes the retired places as runs `(first, count)`, at most `max` runs.
    pub fn retired_runs(&mut self, max: usize) -> Vec<(u32, u32)> {
        self.pending.sort_unstable();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let mut taken = 0;
        for &place in &self.pending {
            let full = runs.len() == max;
            match runs.last_mut() {
                Some((first, count)) if *first + *count == place => *count += 1,
                _ if full => break,
                _ => runs.push((place, 1)),
            }
            taken += 1;
        }
        self.pending.drain(..taken);
        runs
    }

    /// The pages of a run were dropped.
    pub fn dropped(&mut self, (first, count): (u32, u32)) {
        for place in &mut self.places[first as usize..(first + count) as usize] {
            assert_eq!(*place, Place::Pending, "P5");
            *place = Place::Free;
        }
    }

    /// The pages of a run could not be dropped: try again later.
    pub fn not_dropped(&mut self, (first, count): (u32, u32)) {
        self.pending.extend(first..first + count);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_reused_only_after_its_page_was_dropped() {
        let mut pool = Pool::new(0x1000_0000, 6 * 4096, 2);
        let places: Vec<u32> = (0..4).map(|_| pool.take().unwrap()).collect();
        assert_eq!(places, [0, 1, 2, 3]);
        let bells = [0, 3, 4, 5, 6].map(|page| pool.bell(0x1000_0000 + page * 4096));
        assert_eq!(bells, [None, None, Some(0), Some(1), None]);
        assert_eq!(pool.take(), None);
        for place in [2, 0, 1] {
            pool.retire(place);
        }
        assert_eq!(pool.take(), None, "retired is not free");
        let runs = pool.retired_runs(8);
        assert_eq!(runs, [(0, 3)]);
        assert_eq!(pool.take(), None, "taken for dropping is not free");
        pool.dropped(runs[0]);
        assert_eq!(pool.take(), Some(0));
    }

    /// A fork in the middle of a drop: what the parent's agent drops stays in the child.
    #[test]
    fn a_child_drops_what_its_parent_was_dropping() {
        let mut pool = Pool::new(0, 4 * 4096, 0);
        (0..3).for_each(|_| assert!(pool.take().is_some()));
        pool.retire(0);
        pool.retire(1);
        assert_eq!(pool.retired_runs(1), [(0, 2)]);
        pool.retire(2);
        let mut child = pool.inherited();
        assert_eq!((pool.retired(), child.retired()), (1, 3));
        assert_eq!(child.retired_runs(8), [(0, 3)]);
    }

    #[test]
    fn runs_over_the_limit_stay_for_the_next_time() {
        let mut pool = Pool::new(0, 8 * 4096, 0);
        for _ in 0..8 {
            pool.take().unwrap();
        }
        for place in [0, 2, 4, 5] {
            pool.retire(place);
        }
        assert_eq!(pool.retired_runs(2), [(0, 1), (2, 1)]);
        assert_eq!(pool.retired_runs(2), [(4, 2)]);
        pool.not_dropped((4, 2));
        assert_eq!(pool.retired(), 2);
    }
}
