//! Slots of a process's pool: address space that holds its standby pages.
//!
//! A slot is in one of four states:
//! * Free: a hole.
//! * Used: a standby page, or one on its way in.
//! * PendingDiscard: a useless page that is still there.
//! * Dropping: a useless page that the agent is to drop.
//!
//! ORD-5: a slot becomes Free only when the agent has dropped the page. The last few free slots are
//! reserved for identity pages (`identify::show_identity`), because a child without an agent drops
//! nothing. Without them a child of a process with a full pool could not be told apart from its
//! fork group. Slots are handed out in rising order, so that pages moved to standby together lie
//! together and one call drops them.
//!
//! The kernel moves a page only between areas with the same rights. So the upper part of the pool
//! is writable and executable if the process has such areas, and takes their pages. The part grows
//! and shrinks as either kind needs slots. A page keeps its slot when the rights there change.
//!
//! * SLOT-1: slots are handed out by [`Pool::take`] only while the rights of all slots are known.
//!   They are not while the agent sets them, and in a child that was forked meanwhile or later.
//!
//! All of this happens under the address space's lock, and a pool may be as large as the limit. So
//! slots lie in blocks with counts of their own. No operation scans more slots than one block and
//! the counts of all blocks (64 GiB have 4096). A child shares its parent's blocks until one of the
//! two changes them.

use crate::broken::{Rule, is_broken};
use crate::wait::limits::SLICE_PAGES;
use std::sync::Arc;

/// Pool of one address space.
#[derive(Clone, Debug)]
pub struct Pool {
    start: u64,
    len: u64,
    blocks: Vec<Arc<Block>>,
    /// Number of slots; number of free slots; number of slots that are pending discard.
    count: u32,
    free: u32,
    pending_discards: u32,
    /// First slot of the executable part.
    edge: u32,
    /// Slots that are tried first: in the plain part and in the executable one.
    next: [u32; 2],
    /// The edge that one of the parts needs.
    wished: Option<u32>,
    /// Whether the rights of the slots are not known (SLOT-1).
    unsure: bool,
    /// Whether there is an executable part, or was one.
    divided: bool,
    /// Whether the kernel refuses memory that is writable and executable.
    refused: bool,
    /// Runs that the agent is to drop.
    dropping: Vec<(u32, u32)>,
}

/// Rights that the agent is to set: first address, length in bytes, whether executable.
pub type Rights = (u64, u64, bool);

/// Number of slots reserved for identity pages.
const IDENTITY_PAGES: u32 = 8;

/// Number of slots in a block.
const BLOCK: usize = 4096;

/// A block of slots, with the number of free ones and of those that are pending discard.
#[derive(Clone, Debug)]
struct Block {
    slots: [PoolSlot; BLOCK],
    free: u32,
    pending_discards: u32,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum PoolSlot {
    Free,
    Used,
    PendingDiscard,
    Dropping,
    /// No slot: beyond the end of the pool.
    Beyond,
}

impl Block {
    fn first(&self, from: usize, what: PoolSlot) -> Option<usize> {
        self.slots[from..].iter().position(|&slot| slot == what).map(|at| from + at)
    }
}

impl Pool {
    /// Creates the pool of `len` bytes at `start`. The last `doorbells` pages of it are not slots.
    #[must_use]
    pub fn new(start: u64, len: u64, doorbells: usize) -> Self {
        let count = (len / 4096) as usize - doorbells;
        let block = |first: usize| {
            let free = BLOCK.min(count - first);
            let mut slots = [PoolSlot::Free; BLOCK];
            slots[free..].fill(PoolSlot::Beyond);
            Arc::new(Block { slots, free: free as u32, pending_discards: 0 })
        };
        let blocks = (0..count).step_by(BLOCK).map(block).collect();
        let count = count as u32;
        Self {
            start,
            len,
            blocks,
            count,
            free: count,
            pending_discards: 0,
            edge: count,
            next: [0, count],
            wished: None,
            unsure: false,
            divided: false,
            refused: false,
            dropping: Vec::new(),
        }
    }

    /// Returns the rights that the agent is to set before slots are handed out, none as a rule. The
    /// same until the result is recorded; meanwhile the rights are not known (SLOT-1).
    pub fn rights_to_set(&mut self) -> Vec<Rights> {
        self.unsure |= self.wished.is_some();
        if !self.unsure {
            return Vec::new();
        }
        let edge = self.wished.unwrap_or(self.edge);
        let end = if self.refused { edge } else { self.count };
        let parts = [(0, edge, false), (edge, end, true)];
        let bytes = |slots: u32| u64::from(slots) * 4096;
        let parts = parts.into_iter().filter(|(first, end, _)| first < end);
        parts
            .map(|(first, end, executable)| (self.address(first), bytes(end - first), executable))
            .collect()
    }

    /// Records that the agent has set all rights.
    pub fn rights_set(&mut self) {
        self.edge = self.wished.take().unwrap_or(self.edge);
        self.unsure = false;
        self.divided |= self.edge < self.count;
    }

    /// Records that the kernel has refused executable rights; for good, if `refused`. The plain
    /// part has its rights.
    pub fn rights_not_set(&mut self, refused: bool) {
        self.edge = self.edge.max(self.wished.take().unwrap_or(0));
        self.unsure = false;
        self.refused |= refused;
    }

    /// Whether pages of executable areas may have slots.
    #[must_use]
    pub fn may_be_executable(&self) -> bool {
        !self.refused
    }

    /// Returns the pool of a forked child. A slot that the parent's agent is dropping may hold its
    /// page in the child.
    #[must_use]
    pub fn inherited(&self) -> Self {
        let mut child = self.clone();
        // The fork may have come before or after a change of rights.
        child.unsure |= self.divided;
        for run in std::mem::take(&mut child.dropping) {
            child.change(run, PoolSlot::Dropping, PoolSlot::PendingDiscard);
        }
        child
    }

    /// Returns the index of the doorbell at `address`.
    #[must_use]
    pub fn doorbell(&self, address: u64) -> Option<usize> {
        let first = self.start + u64::from(self.count) * 4096;
        (first..self.end()).contains(&address).then(|| ((address - first) / 4096) as usize)
    }

    /// Returns the first address.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Returns the first address behind the pool.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.start + self.len
    }

    /// Returns the address of a slot.
    #[must_use]
    pub fn address(&self, slot: u32) -> u64 {
        self.start + u64::from(slot) * 4096
    }

    #[cfg(test)]
    fn get(&self, slot: u32) -> PoolSlot {
        self.blocks[slot as usize / BLOCK].slots[slot as usize % BLOCK]
    }

    /// Changes all slots of a run from state `from` to state `to`.
    fn change(&mut self, (first, count): (u32, u32), from: PoolSlot, to: PoolSlot) {
        for slot in first..first + count {
            let block = Arc::make_mut(&mut self.blocks[slot as usize / BLOCK]);
            let slot = &mut block.slots[slot as usize % BLOCK];
            assert_eq!(*slot, from, "ORD-5");
            *slot = to;
            for (what, in_block, in_all) in [
                (PoolSlot::Free, &mut block.free, &mut self.free),
                (PoolSlot::PendingDiscard, &mut block.pending_discards, &mut self.pending_discards),
            ] {
                for count in [in_block, in_all] {
                    *count = *count + u32::from(to == what) - u32::from(from == what);
                }
            }
        }
    }

    /// Takes a slot for a page that is to move to standby. `executable` says whether its area is
    /// executable. Without a slot the other part is to give some away.
    pub fn take(&mut self, executable: bool) -> Option<u32> {
        if self.unsure || self.free <= IDENTITY_PAGES {
            return None;
        }
        let slot = self.take_of(executable);
        if slot.is_none() {
            self.wish(executable);
        }
        slot
    }

    /// Wishes more slots for a part: an eighth of the pool, which the other part does not lose
    /// altogether.
    fn wish(&mut self, executable: bool) {
        let step = (self.count / 8).max(1);
        let edge = match executable {
            true => self.edge.saturating_sub(step).max(step),
            false => (self.edge + step).min(self.count),
        };
        if edge != self.edge && !(executable && self.refused) {
            self.wished = Some(edge);
        }
    }

    /// Takes a slot for an identity page, which needs no rights.
    pub fn take_for_identity(&mut self) -> Option<u32> {
        self.take_of(false).or_else(|| self.take_of(true))
    }

    fn take_of(&mut self, executable: bool) -> Option<u32> {
        let (start, end) = if executable { (self.edge, self.count) } else { (0, self.edge) };
        let next = &mut self.next[usize::from(executable)];
        if !(start..end).contains(next) {
            *next = start;
        }
        let next = *next;
        let at = self.first_free(next, end).or_else(|| self.first_free(start, next))?;
        self.change((at, 1), PoolSlot::Free, PoolSlot::Used);
        self.next[usize::from(executable)] = at + 1;
        Some(at)
    }

    /// Returns the first free slot of `from..end`.
    fn first_free(&self, from: u32, end: u32) -> Option<u32> {
        let mut at = from as usize;
        while at < end as usize {
            let block = &self.blocks[at / BLOCK];
            let first = at / BLOCK * BLOCK;
            if block.free > 0
                && let Some(found) = block.first(at - first, PoolSlot::Free)
            {
                let slot = (first + found) as u32;
                return (slot < end).then_some(slot);
            }
            at = first + BLOCK;
        }
        None
    }

    /// Returns a slot in which no page was placed.
    pub fn give_back(&mut self, slot: u32) {
        self.change((slot, 1), PoolSlot::Used, PoolSlot::Free);
    }

    /// Marks the page in a slot as pending discard.
    pub fn discard_later(&mut self, slot: u32) {
        let to = if is_broken(Rule::Ord5) { PoolSlot::Free } else { PoolSlot::PendingDiscard };
        self.change((slot, 1), PoolSlot::Used, to);
    }

    /// Whether a slot holds a standby page, or one on its way in.
    #[cfg(test)]
    pub fn is_used(&self, slot: u32) -> bool {
        self.get(slot) == PoolSlot::Used
    }

    #[cfg(test)]
    fn count(&self, wanted: impl Fn(PoolSlot) -> bool) -> usize {
        (0..self.count).filter(|&slot| wanted(self.get(slot))).count()
    }

    /// Returns the number of used slots.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        self.count(|slot| slot == PoolSlot::Used)
    }

    /// Returns the number of useless pages that are not dropped yet.
    #[cfg(test)]
    pub fn undropped(&self) -> usize {
        self.count(|slot| matches!(slot, PoolSlot::PendingDiscard | PoolSlot::Dropping))
    }

    /// Returns the number of useless pages that no agent is dropping yet.
    #[must_use]
    pub fn pending_discards(&self) -> usize {
        self.pending_discards as usize
    }

    /// Takes slots that are pending discard for dropping, as runs `(first, count)`. Takes at most
    /// `max` runs and one slice of pages.
    pub fn pending_discard_runs(&mut self, max: usize) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        let mut pages = 0;
        'all: for (index, block) in self.blocks.iter().enumerate() {
            let (mut left, mut from) = (block.pending_discards, 0);
            while left > 0 {
                let at = block.first(from, PoolSlot::PendingDiscard).expect("some are left");
                let slot = (index * BLOCK + at) as u32;
                let full = runs.len() == max;
                match runs.last_mut() {
                    _ if pages == SLICE_PAGES => break 'all,
                    Some((first, count)) if *first + *count == slot => *count += 1,
                    _ if full => break 'all,
                    _ => runs.push((slot, 1)),
                }
                (left, from, pages) = (left - 1, at + 1, pages + 1);
            }
        }
        for &run in &runs {
            self.change(run, PoolSlot::PendingDiscard, PoolSlot::Dropping);
        }
        self.dropping.extend(&runs);
        runs
    }

    /// Frees the slots of a run after the agent has dropped the pages.
    pub fn finish_discard(&mut self, run: (u32, u32)) {
        self.dropping.retain(|&other| other != run);
        self.change(run, PoolSlot::Dropping, PoolSlot::Free);
    }

    /// Returns a run to pending discard because the agent could not drop the pages.
    pub fn abort_discard(&mut self, run: (u32, u32)) {
        self.dropping.retain(|&other| other != run);
        self.change(run, PoolSlot::Dropping, PoolSlot::PendingDiscard);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pool_slot_is_reused_only_after_its_page_was_dropped() {
        let mut pool = Pool::new(0x1000_0000, u64::from(6 + IDENTITY_PAGES) * 4096, 2);
        let slots: Vec<u32> = (0..4).map(|_| pool.take(false).unwrap()).collect();
        assert_eq!(slots, [0, 1, 2, 3]);
        let doorbells = [0, 11, 12, 13, 14].map(|page| pool.doorbell(0x1000_0000 + page * 4096));
        assert_eq!(doorbells, [None, None, Some(0), Some(1), None]);
        assert_eq!(pool.take(false), None);
        for slot in [2, 0, 1] {
            pool.discard_later(slot);
        }
        assert_eq!(pool.take(false), None, "retired is not free");
        let runs = pool.pending_discard_runs(8);
        assert_eq!(runs, [(0, 3)]);
        assert_eq!(pool.take(false), None, "taken for dropping is not free");
        pool.finish_discard(runs[0]);
        assert_eq!(pool.take(false), Some(4), "others first");
    }

    /// Shows that a child drops pages itself if its parent's agent was dropping them at the fork.
    #[test]
    fn a_child_drops_what_its_parent_was_dropping() {
        let mut pool = Pool::new(0, u64::from(4 + IDENTITY_PAGES) * 4096, 0);
        (0..3).for_each(|_| assert!(pool.take(false).is_some()));
        pool.discard_later(0);
        pool.discard_later(1);
        assert_eq!(pool.pending_discard_runs(1), [(0, 2)]);
        pool.discard_later(2);
        let mut child = pool.inherited();
        assert_eq!((pool.pending_discards(), child.pending_discards()), (1, 3));
        assert_eq!(child.pending_discard_runs(8), [(0, 3)]);
        pool.finish_discard((0, 2));
        assert_eq!((child.undropped(), pool.undropped()), (3, 1), "each has its own");
    }

    /// Shows that runs cross blocks, that slots beyond the first block are found, and that one call
    /// takes at most one slice.
    #[test]
    fn a_pool_of_several_blocks_is_one_pool() {
        let all = 2 * BLOCK as u32 + 10;
        let mut pool = Pool::new(0, u64::from(all) * 4096, 0);
        let taken: Vec<u32> = std::iter::from_fn(|| pool.take_for_identity()).collect();
        assert!(taken.into_iter().eq(0..all));
        let last = BLOCK as u32 - 1;
        for slot in [3, last, last + 1, all - 1] {
            pool.discard_later(slot);
        }
        assert_eq!(pool.pending_discard_runs(8), [(3, 1), (last, 2), (all - 1, 1)]);
        pool.finish_discard((all - 1, 1));
        pool.finish_discard((3, 1));
        let taken = [(); 3].map(|()| pool.take_for_identity());
        assert_eq!(taken, [Some(3), Some(all - 1), None]);
        (10..20 + SLICE_PAGES as u32).for_each(|slot| pool.discard_later(slot));
        let runs = [8, 8].map(|max| pool.pending_discard_runs(max));
        let slice = SLICE_PAGES as u32;
        assert_eq!(runs, [vec![(10, slice)], vec![(10 + slice, 10.min(slice))]]);
    }

    /// Shows that a full pool keeps slots for identity pages, so that children can be told apart
    /// and their standby pages read.
    #[test]
    fn a_full_pool_has_slots_for_identity_pages() {
        let mut pool = Pool::new(0, u64::from(2 + IDENTITY_PAGES) * 4096, 0);
        assert_eq!(
            [pool.take(false), pool.take(false), pool.take(false)],
            [Some(0), Some(1), None]
        );
        let mut child = pool.inherited();
        let tokens = (0..IDENTITY_PAGES).filter_map(|_| child.take_for_identity()).count();
        assert_eq!((tokens as u32, child.take_for_identity()), (IDENTITY_PAGES, None));
        pool.discard_later(0);
        let runs = pool.pending_discard_runs(1);
        pool.finish_discard(runs[0]);
        assert_eq!([pool.take(false), pool.take(false)], [Some(2), None]);
    }

    #[test]
    fn discard_runs_over_the_limit_stay_for_the_next_time() {
        let mut pool = Pool::new(0, u64::from(8 + IDENTITY_PAGES) * 4096, 0);
        for _ in 0..8 {
            pool.take(false).unwrap();
        }
        for slot in [0, 2, 4, 5] {
            pool.discard_later(slot);
        }
        assert_eq!(pool.pending_discard_runs(2), [(0, 1), (2, 1)]);
        assert_eq!(pool.pending_discard_runs(2), [(4, 2)]);
        pool.abort_discard((4, 2));
        assert_eq!(pool.pending_discards(), 2);
    }

    /// Shows that each part of a pool takes pages of its kind only, that either part grows when it
    /// has no slot, and that no slot is handed out while rights are not known.
    #[test]
    fn a_pool_has_a_part_for_executable_areas_as_large_as_needed() {
        let all = 8 * (4 + IDENTITY_PAGES);
        let mut pool = Pool::new(0x1000_0000, u64::from(all) * 4096, 0);
        let step = all / 8;
        let part = |first: u32, end: u32, executable| {
            (0x1000_0000 + u64::from(first) * 4096, u64::from(end - first) * 4096, executable)
        };
        let parts = |edge| vec![part(0, edge, false), part(edge, all, true)];
        let plain: Vec<u32> = (0..all - step).filter_map(|_| pool.take(false)).collect();
        assert_eq!(pool.rights_to_set(), [], "plain programs need none");
        assert_eq!(pool.take(true), None);
        assert_eq!(pool.rights_to_set(), parts(all - step));
        assert_eq!((pool.take(false), pool.take(true)), (None, None), "not known");
        let mut forked = pool.inherited();
        pool.rights_set();
        assert_eq!(pool.rights_to_set(), []);
        let taken: Vec<u32> = std::iter::from_fn(|| pool.take(true)).collect();
        assert!(taken.iter().copied().eq(all - step..all - IDENTITY_PAGES));
        assert_eq!(forked.rights_to_set(), parts(all - step), "forked meanwhile");
        assert_eq!(pool.inherited().rights_to_set(), parts(all - step), "forked later");
        // Plain pages get slots of the other part, and pages there stay.
        pool.give_back(taken[0]);
        assert_eq!(pool.take(false), None);
        assert_eq!(pool.rights_to_set(), [part(0, all, false)]);
        pool.rights_set();
        assert_eq!(pool.take(false), Some(taken[0]));
        assert_eq!(pool.inherited().rights_to_set(), [part(0, all, false)]);
        forked.rights_not_set(true);
        assert!(!forked.may_be_executable() && forked.take(true).is_none());
        assert_eq!(forked.rights_to_set(), []);
        assert_eq!((forked.take(false), plain.len()), (Some(all - step), (all - step) as usize));
    }
}
