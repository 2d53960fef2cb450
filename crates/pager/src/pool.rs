//! Places in a process's pool: address space that holds its cool pages.
//!
//! A place is Free (a hole), Used (a cool page, or one on its way in), Retired (its page is of no more use but still
//! there) or Dropping (the same, and the agent was told to drop it). ORD-5: it becomes Free only when the agent has dropped
//! the page. The last few that are free are kept for tokens (`fork::show_token`): a child without an agent drops nothing, and
//! one whose pool was full when it was forked could be told from its relatives by nothing, and read by nobody.
//! Places are handed out in rising order, so that pages cooled together lie together and are dropped
//! by one call.
//!
//! All of this is done with the address space's lock held, and a pool may be as large as the limit. So places lie in
//! blocks that know what is in them: nothing goes through more of them than one block and the heads of all (64 GiB have
//! 4096), and a child shares its parent's blocks until one of the two changes them.

use crate::broken::{Rule, is_broken};
use crate::limits::SLICE_PAGES;
use std::sync::Arc;

/// One pool.
#[derive(Clone, Debug)]
pub struct Pool {
    start: u64,
    len: u64,
    blocks: Vec<Arc<Block>>,
    /// How many places there are, and how many of them are free, or retired.
    count: u32,
    free: u32,
    retired: u32,
    next: u32,
    /// Runs that the agent was told to drop.
    dropping: Vec<(u32, u32)>,
}

/// Places kept for tokens.
const TOKENS: u32 = 8;

/// Places of a block.
const BLOCK: usize = 4096;

/// Some places, and how many of them are free, or retired.
#[derive(Clone, Debug)]
struct Block {
    places: [Place; BLOCK],
    free: u32,
    retired: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    Free,
    Used,
    Retired,
    Dropping,
    /// There is none.
    Beyond,
}

impl Block {
    fn first(&self, from: usize, what: Place) -> Option<usize> {
        self.places[from..].iter().position(|&place| place == what).map(|at| from + at)
    }
}

impl Pool {
    /// The pool at `start`, `len` bytes, the last `bells` pages of which are not places.
    #[must_use]
    pub fn new(start: u64, len: u64, bells: usize) -> Self {
        let count = (len / 4096) as usize - bells;
        let block = |first: usize| {
            let free = BLOCK.min(count - first);
            let mut places = [Place::Free; BLOCK];
            places[free..].fill(Place::Beyond);
            Arc::new(Block { places, free: free as u32, retired: 0 })
        };
        let blocks = (0..count).step_by(BLOCK).map(block).collect();
        let count = count as u32;
        Self { start, len, blocks, count, free: count, retired: 0, next: 0, dropping: Vec::new() }
    }

    /// What a child inherits: a place that is being dropped here may hold its page there.
    #[must_use]
    pub fn inherited(&self) -> Self {
        let mut child = self.clone();
        for run in std::mem::take(&mut child.dropping) {
            child.change(run, Place::Dropping, Place::Retired);
        }
        child
    }

    /// The bell at `address`.
    #[must_use]
    pub fn bell(&self, address: u64) -> Option<usize> {
        let first = self.start + u64::from(self.count) * 4096;
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

    #[cfg(test)]
    fn get(&self, place: u32) -> Place {
        self.blocks[place as usize / BLOCK].places[place as usize % BLOCK]
    }

    /// The places of a run, all of which are `from`, are `to` from now on.
    fn change(&mut self, (first, count): (u32, u32), from: Place, to: Place) {
        for place in first..first + count {
            let block = Arc::make_mut(&mut self.blocks[place as usize / BLOCK]);
            let place = &mut block.places[place as usize % BLOCK];
            assert_eq!(*place, from, "ORD-5");
            *place = to;
            for (what, in_block, in_all) in [
                (Place::Free, &mut block.free, &mut self.free),
                (Place::Retired, &mut block.retired, &mut self.retired),
            ] {
                for count in [in_block, in_all] {
                    *count = *count + u32::from(to == what) - u32::from(from == what);
                }
            }
        }
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
        if self.free == 0 {
            return None;
        }
        let (first, from) = (self.next as usize / BLOCK, self.next as usize % BLOCK);
        // The block of the last is begun again at its front, after all others.
        let order = (first..self.blocks.len()).chain(0..=first);
        let froms = std::iter::once(from).chain(std::iter::repeat(0));
        let at = order.zip(froms).filter(|&(block, _)| self.blocks[block].free > 0).find_map(
            |(block, from)| Some(block * BLOCK + self.blocks[block].first(from, Place::Free)?),
        );
        let at = at.expect("one is free") as u32;
        self.change((at, 1), Place::Free, Place::Used);
        self.next = (at + 1) % self.count;
        Some(at)
    }

    /// Nothing was put there after all.
    pub fn give_back(&mut self, place: u32) {
        self.change((place, 1), Place::Used, Place::Free);
    }

    /// The page there is of no more use.
    pub fn retire(&mut self, place: u32) {
        let to = if is_broken(Rule::Ord5) { Place::Free } else { Place::Retired };
        self.change((place, 1), Place::Used, to);
    }

    /// Whether a cool page lies there, or is on its way.
    #[cfg(test)]
    pub fn is_used(&self, place: u32) -> bool {
        self.get(place) == Place::Used
    }

    #[cfg(test)]
    fn count(&self, wanted: impl Fn(Place) -> bool) -> usize {
        (0..self.count).filter(|&place| wanted(self.get(place))).count()
    }

    /// How many places are used so.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.count(|place| place == Place::Used)
    }

    /// How many pages are of no more use, and not dropped yet.
    #[cfg(test)]
    pub fn undropped(&self) -> usize {
        self.count(|place| matches!(place, Place::Retired | Place::Dropping))
    }

    /// How many pages are of no more use, which no agent was told yet.
    #[must_use]
    pub fn retired(&self) -> usize {
        self.retired as usize
    }

    /// Takes retired places to be dropped, as runs `(first, count)`, at most `max` of them and a slice of pages.
    pub fn retired_runs(&mut self, max: usize) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let mut pages = 0;
        'all: for (index, block) in self.blocks.iter().enumerate() {
            let (mut left, mut from) = (block.retired, 0);
            while left > 0 {
                let at = block.first(from, Place::Retired).expect("some are left");
                let place = (index * BLOCK + at) as u32;
                let full = runs.len() == max;
                match runs.last_mut() {
                    _ if pages == SLICE_PAGES => break 'all,
                    Some((first, count)) if *first + *count == place => *count += 1,
                    _ if full => break 'all,
                    _ => runs.push((place, 1)),
                }
                (left, from, pages) = (left - 1, at + 1, pages + 1);
            }
        }
        for &run in &runs {
            self.change(run, Place::Retired, Place::Dropping);
        }
        self.dropping.extend(&runs);
        runs
    }

    /// The pages of a run were dropped.
    pub fn dropped(&mut self, run: (u32, u32)) {
        self.dropping.retain(|&other| other != run);
        self.change(run, Place::Dropping, Place::Free);
    }

    /// The pages of a run could not be dropped: try again later.
    pub fn not_dropped(&mut self, run: (u32, u32)) {
        self.dropping.retain(|&other| other != run);
        self.change(run, Place::Dropping, Place::Retired);
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
        pool.dropped((0, 2));
        assert_eq!((child.undropped(), pool.undropped()), (3, 1), "each has its own");
    }

    /// A run that goes on in the next block, places beyond the first that are found, and no more than a slice at once.
    #[test]
    fn a_pool_of_several_blocks_is_one_pool() {
        let all = 2 * BLOCK as u32 + 10;
        let mut pool = Pool::new(0, u64::from(all) * 4096, 0);
        let taken: Vec<u32> = std::iter::from_fn(|| pool.take_for_token()).collect();
        assert!(taken.into_iter().eq(0..all));
        let last = BLOCK as u32 - 1;
        for place in [3, last, last + 1, all - 1] {
            pool.retire(place);
        }
        assert_eq!(pool.retired_runs(8), [(3, 1), (last, 2), (all - 1, 1)]);
        pool.dropped((all - 1, 1));
        pool.dropped((3, 1));
        let taken = [(); 3].map(|()| pool.take_for_token());
        assert_eq!(taken, [Some(3), Some(all - 1), None]);
        (10..20 + SLICE_PAGES as u32).for_each(|place| pool.retire(place));
        let runs = [8, 8].map(|max| pool.retired_runs(max));
        let slice = SLICE_PAGES as u32;
        assert_eq!(runs, [vec![(10, slice)], vec![(10 + slice, 10.min(slice))]]);
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
