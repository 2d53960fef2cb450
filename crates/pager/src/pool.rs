//! Places in a process's pool: address space that holds its cool pages.
//!
//! A place is Free (a hole), Used (a cool page, or one on its way in) or Pending (its page is of no
//! more use but still there). P5: Pending becomes Free only when the agent has dropped the page.
//! The last few that are free are kept for tokens (`fork::show_token`): a child without an agent drops nothing, and
//! one whose pool was full when it was forked could be told from its relatives by nothing, and read by nobody.
//! Places are handed out in rising order, so that pages cooled together lie together and are dropped
//! by one call.

use crate::broken::{Rule, is_broken};

/// One pool.
#[derive(Clone, Debug)]
pub struct Pool {
    start: u64,
    len: u64,
    places: Vec<Place>,
    next: u32,
    /// How many are free.
    free: u32,
    pending: Vec<u32>,
}

/// Places kept for tokens.
const TOKENS: u32 = 8;

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
        let free = places.len() as u32;
        Self { start, len, places, next: 0, free, pending: Vec::new() }
    }

    /// What a child inherits: a place that is being dropped here may hold its page there.
    #[must_use]
    pub fn inherited(&self) -> Self {
        let is_pending = |&place: &u32| self.places[place as usize] == Place::Pending;
        let pending = (0..self.places.len() as u32).filter(is_pending).collect();
        Self { pending, ..self.clone() }
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

    /// Takes a place for a page that is to be cool.
    pub fn take(&mut self) -> Option<u32> {
        if self.free > TOKENS { self.take_any() } else { None }
    }

    /// Takes a place for a token.
    pub fn take_for_token(&mut self) -> Option<u32> {
        self.take_any()
    }

    fn take_any(&mut self) -> Option<u32> {
        let len = self.places.len() as u32;
        for step in 0..len {
            let at = (self.next + step) % len;
            if self.places[at as usize] == Place::Free {
                self.places[at as usize] = Place::Used;
                self.next = (at + 1) % len;
                self.free -= 1;
                return Some(at);
            }
        }
        None
    }

    /// Nothing was put there after all.
    pub fn give_back(&mut self, place: u32) {
        debug_assert_eq!(self.places[place as usize], Place::Used);
        self.places[place as usize] = Place::Free;
        self.free += 1;
    }

    /// The page there is of no more use.
    pub fn retire(&mut self, place: u32) {
        debug_assert_eq!(self.places[place as usize], Place::Used);
        let broken = is_broken(Rule::P5);
        self.free += u32::from(broken);
        self.places[place as usize] = if broken { Place::Free } else { Place::Pending };
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
        self.free += count;
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
        let mut pool = Pool::new(0x1000_0000, u64::from(6 + TOKENS) * 4096, 2);
        let places: Vec<u32> = (0..4).map(|_| pool.take().unwrap()).collect();
        assert_eq!(places, [0, 1, 2, 3]);
        let bells = [0, 11, 12, 13, 14].map(|page| pool.bell(0x1000_0000 + page * 4096));
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
        assert_eq!(pool.take(), Some(4), "others first");
    }

    /// A fork in the middle of a drop: what the parent's agent drops stays in the child.
    #[test]
    fn a_child_drops_what_its_parent_was_dropping() {
        let mut pool = Pool::new(0, u64::from(4 + TOKENS) * 4096, 0);
        (0..3).for_each(|_| assert!(pool.take().is_some()));
        pool.retire(0);
        pool.retire(1);
        assert_eq!(pool.retired_runs(1), [(0, 2)]);
        pool.retire(2);
        let mut child = pool.inherited();
        assert_eq!((pool.retired(), child.retired()), (1, 3));
        assert_eq!(child.retired_runs(8), [(0, 3)]);
    }

    /// The child of a process whose pool was full could not be told from others, and its cool pages not be read.
    #[test]
    fn a_full_pool_has_places_for_tokens() {
        let mut pool = Pool::new(0, u64::from(2 + TOKENS) * 4096, 0);
        assert_eq!([pool.take(), pool.take(), pool.take()], [Some(0), Some(1), None]);
        let mut child = pool.inherited();
        let tokens = (0..TOKENS).filter_map(|_| child.take_for_token()).count();
        assert_eq!((tokens as u32, child.take_for_token()), (TOKENS, None));
        pool.retire(0);
        let runs = pool.retired_runs(1);
        pool.dropped(runs[0]);
        assert_eq!([pool.take(), pool.take()], [Some(2), None]);
    }

    #[test]
    fn runs_over_the_limit_stay_for_the_next_time() {
        let mut pool = Pool::new(0, u64::from(8 + TOKENS) * 4096, 0);
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
