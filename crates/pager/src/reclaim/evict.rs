//! Eviction: the coolest pages are stored, and dropped from the pool.
//!
//! Part of the kswapd thread. A page is read and written without a lock: while it is cool nobody can
//! change it. The commit looks again whether it still is.
//!
//! Nobody who waits for memory waits for a write while a clean page could go: those whose stored copy is
//! still true leave before the others are written, and are looked for first while anybody waits.

use super::{Reclaim, Stalled, Work, group_by_mm};
use crate::counters;
use crate::limits::BATCH_PATIENCE;
use crate::link::{Operation, Outcome};
use crate::mm::{Mm, State};
use crate::seam::Process;
use ebb_agent::protocol::BATCH_MAX;
use ebb_mm::resident::{Dropped, Entry, Place, Resident};
use ebb_mm::types::{MmId, PAGE_SIZE, Pfn, SlotId, Vpn};
use ebb_swap::{Page, StoreError, page_hash};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const ESRCH: i32 = 3;

/// The share of the budget by which compressed memory grows at a time.
const GROW_SHARE: u64 = 64;

/// How far beyond a batch clean pages are looked for while threads wait for memory, in batches.
const CLEAN_REACH: usize = 4;
/// The same, in pages, while the store takes no others.
const CLEAN_REACH_FULL: usize = 1 << 16;

/// A cool page on its way to the store.
#[derive(Clone, Copy)]
struct Victim {
    pfn: Pfn,
    vpn: Vpn,
    /// Where it lies in the pool.
    address: u64,
    /// The stored copy it was loaded from.
    copy: Option<SlotId>,
    /// The copy it leaves.
    stored: Option<SlotId>,
    written: bool,
    /// The store can do nothing with it.
    barren: bool,
}

/// Places of a pool in a row whose pages are of no more use.
pub struct Run {
    /// The first, and how many.
    places: (u32, u32),
    /// How many of the pages relatives map, too.
    shared: u64,
}

impl Reclaim {
    /// Stores up to `max` of the coolest pages.
    pub fn evict(&mut self, max: usize) -> usize {
        let groups = {
            let waited_for = self.pager.starving.load(Relaxed) > 0;
            let reach = match waited_for {
                // Nothing else can leave: they are looked for wherever they are.
                true if self.refused => CLEAN_REACH_FULL,
                true => CLEAN_REACH * max,
                false => max,
            };
            let able = if waited_for { self.able() } else { Vec::new() };
            let resident = self.pager.resident();
            let mut coolest = Vec::with_capacity(reach);
            resident.coolest(reach, &mut coolest);
            let coolest = chosen(&resident, &coolest, max, &able);
            group_by_mm(&coolest, &resident)
        };
        groups.into_iter().map(|(id, frames)| self.evict_of(id, &frames)).sum()
    }

    /// The address spaces whose agents drop pages.
    fn able(&self) -> Vec<MmId> {
        let drops = |mm: &&Arc<Mm>| {
            mm.link.get().is_some() && !mm.closing.load(Relaxed) && !mm.check_silent()
        };
        self.pager.mms().iter().filter(drops).map(|mm| mm.id).collect()
    }

    fn evict_of(&mut self, id: MmId, frames: &[Pfn]) -> usize {
        let Some(mm) = self.pager.mm(id) else {
            // A child whose table is still being copied (`fork.rs`): others first.
            let mut resident = self.pager.resident();
            for &pfn in frames {
                let its = resident.is_used(pfn) && resident.frame(pfn).mm == id;
                if its && resident.frame(pfn).place == Place::Cool {
                    resident.pass_over(pfn);
                }
            }
            return 0;
        };
        if mm.link.get().is_none() || mm.closing.load(Relaxed) || self.is_deaf(&mm) {
            // Without an agent the page could not be dropped: others first.
            self.pass_over(&mm, frames);
            return 0;
        }
        let mut victims = Vec::with_capacity(frames.len());
        {
            let Some(state) = mm.lock_settled(BATCH_PATIENCE) else { return 0 };
            let resident = self.pager.resident();
            for &pfn in frames {
                if let Some(victim) = still_cool(&resident, &state, id, pfn) {
                    victims.push(victim);
                }
            }
        }
        let of_others = victims.iter().filter(|victim| shared_pages(&mm, victim.address, 1) > 0);
        self.offered.extend(of_others.map(|victim| victim.pfn.0));
        let pid = mm.pid();
        victims.sort_unstable_by_key(|victim| victim.vpn);
        let addresses: Vec<u64> = victims.iter().map(|victim| victim.address).collect();
        // A cool page cannot change and is not dropped while its place is in use: no lock is needed.
        let got = match mm.read_pages(&addresses, &mut self.pages[..]) {
            Ok(got) => got,
            Err(error) => {
                // A process on its way out has no number any more, for a moment longer a memory.
                if error.raw_os_error() != Some(ESRCH) && mm.is_alive() {
                    self.pager.complain(&format!("cannot read process {pid}: {error}"));
                }
                0
            }
        };
        if got == 0 {
            self.pass_over(&mm, frames);
        }
        victims.truncate(got);
        let (clean, mut dirty) = self.part(&victims);
        let evicted = self.commit_evict(&mm, &clean);
        if evicted > 0 && !dirty.is_empty() && self.pager.starving.load(Relaxed) > 0 {
            // They are memory only when the agent has dropped them.
            self.drop_retired(1);
            self.pager.wake_if_waiting();
        }
        self.write(&mut dirty);
        let dirty: Vec<Victim> = dirty.into_iter().map(|(victim, _)| victim).collect();
        let stored = self.commit_evict(&mm, &dirty);
        // Others may get smaller, or be taken by another tier: they are not to wait behind these.
        self.set_aside(&mm, &dirty);
        evicted + stored
    }

    /// Victims that were not stored make way for others, for good as long as they are what they are.
    fn set_aside(&self, mm: &Arc<Mm>, victims: &[Victim]) {
        let state = mm.lock();
        let mut resident = self.pager.resident();
        for victim in victims.iter().filter(|victim| victim.stored.is_none()) {
            if still_cool(&resident, &state, mm.id, victim.pfn).is_none() {
                continue;
            }
            if victim.barren {
                resident.leave_barren(victim.pfn);
            } else {
                resident.pass_over(victim.pfn);
            }
        }
    }

    /// Cool frames that cannot be stored now make way for others.
    fn pass_over(&self, mm: &Arc<Mm>, frames: &[Pfn]) {
        let state = mm.lock();
        let mut resident = self.pager.resident();
        for &pfn in frames {
            if still_cool(&resident, &state, mm.id, pfn).is_some() {
                resident.pass_over(pfn);
            }
        }
    }

    /// The victims whose stored copy is still true, and the others with their places in `pages`.
    fn part(&self, victims: &[Victim]) -> (Vec<Victim>, Vec<(Victim, usize)>) {
        let (mut clean, mut dirty) = (Vec::new(), Vec::new());
        for (index, &victim) in victims.iter().enumerate() {
            let is_same =
                |&slot: &SlotId| self.pager.store.keep(slot, page_hash(&self.pages[index]));
            match victim.copy.filter(is_same) {
                Some(copy) => clean.push(Victim { stored: Some(copy), ..victim }),
                None => dirty.push((victim, index)),
            }
        }
        (clean, dirty)
    }

    /// Makes a stored copy of each victim, as far as the store takes them.
    fn write(&mut self, victims: &mut [(Victim, usize)]) {
        let mut writes: Vec<(SlotId, &Page)> = Vec::with_capacity(victims.len());
        for (victim, index) in victims.iter_mut() {
            if let Ok(slot) = self.pager.resident().take_slot() {
                victim.stored = Some(slot);
                victim.written = true;
                writes.push((slot, &self.pages[*index]));
            }
        }
        if writes.is_empty() {
            return;
        }
        let mut results = Vec::with_capacity(writes.len());
        self.pager.store.put_batch(&writes, &mut results);
        let mut failed = Dropped::default();
        // A page that no tier takes is laid aside, or every search for one that can leave would begin with thousands of
        // its like. Compressed memory that is all there is may grow (`grow_store`), and take it the next time.
        let grows = self.pager.config.ram_grows();
        let (mut full, mut refused) = (false, 0);
        let count = writes.len();
        let tried = victims.iter_mut().map(|(victim, _)| victim).filter(|victim| victim.written);
        for (victim, result) in tried.zip(results) {
            if let Err(error) = result {
                full |= matches!(error, StoreError::Full);
                victim.barren = match error {
                    StoreError::NotSmaller => true,
                    StoreError::Full => !grows,
                    _ => false,
                };
                self.store_error = Some(error);
                refused += 1;
                if let Some(slot) = victim.stored.take() {
                    self.pager.resident().release_slot(slot, &mut failed);
                }
                victim.written = false;
            }
        }
        self.pager.discard(&failed);
        self.refused = refused == count;
        if full {
            self.grow_store();
        }
    }

    /// Compressed memory that is full, and the only tier, gets some of the program's: as long as pages get smaller
    /// in it, more of them fit in less.
    fn grow_store(&self) {
        let max = self.pager.memory_max_bytes();
        let Some(most) = self.pager.config.ram_bytes_max(max) else { return };
        let step = max / GROW_SHARE;
        self.pager.store.grow_ram(step, most);
    }

    fn commit_evict(&mut self, mm: &Arc<Mm>, victims: &[Victim]) -> usize {
        let mut evicted = 0;
        let mut dropped = Dropped::default();
        let mut offers = Vec::new();
        {
            let mut guard = mm.lock();
            let state = &mut *guard;
            let mut resident = self.pager.resident();
            for victim in victims {
                let shared = self.offered.remove(&victim.pfn.0);
                let Some(slot) = victim.stored else { continue };
                let there = still_cool(&resident, state, mm.id, victim.pfn);
                if there.is_none_or(|there| there.address != victim.address) {
                    // Rescued, unmapped or moved meanwhile: the copy is of no use.
                    if victim.written {
                        resident.release_slot(slot, &mut dropped);
                    }
                    continue;
                }
                if victim.written {
                    dropped.slots.extend(resident.set_copy(victim.pfn, None));
                    counters::count(&self.pager.counters.written);
                } else {
                    counters::count(&self.pager.counters.clean);
                }
                let place = resident.evict(&mut state.space, victim.pfn, slot);
                state.pool.retire(place);
                evicted += 1;
                if victim.written || !self.refused || !shared && self.copies == 0 {
                    self.progress += 1;
                } else if !shared {
                    self.copies -= 1;
                }
                if shared {
                    resident.slots.share(slot);
                    offers.push((victim.vpn, slot));
                }
            }
        }
        self.offer(mm, &offers, &mut dropped);
        self.pager.discard(&dropped);
        counters::add(&self.pager.counters.evicted, evicted as u64);
        evicted
    }

    /// Pages that relatives share leave memory when the last of them has let go: they are next, and
    /// what is stored of one serves all, as far as it is still the same when they go.
    fn offer(&self, from: &Arc<Mm>, offers: &[(Vpn, SlotId)], dropped: &mut Dropped) {
        if offers.is_empty() {
            return;
        }
        let others = self.pager.mms();
        let relative = |mm: &&Arc<Mm>| mm.id != from.id && mm.family == from.family;
        for mm in others.iter().filter(relative) {
            let state = mm.lock();
            let mut resident = self.pager.resident();
            for &(vpn, slot) in offers {
                if let Entry::Resident(pfn) | Entry::Cool(pfn) = state.space.get(vpn)
                    && resident.frame(pfn).slot().is_none()
                {
                    resident.slots.share(slot);
                    resident.set_copy(pfn, Some(slot));
                    resident.prefer(pfn);
                }
            }
        }
        // What was held for this.
        let mut resident = self.pager.resident();
        offers.iter().for_each(|&(_, slot)| resident.release_slot(slot, dropped));
    }

    /// Has agents drop the pool pages that are of no more use, where there are at least `least`.
    pub fn drop_retired(&mut self, least: usize) -> usize {
        let mut total = 0;
        for mm in self.pager.mms() {
            let Some(link) = mm.link.get() else { continue };
            if self.is_stalled(mm.id) || mm.closing.load(Relaxed) || self.is_deaf(&mm) {
                continue;
            }
            let (runs, operations) = {
                let mut state = mm.lock();
                // While it stands still what the agent might have to tell of is not heard.
                if state.ended || state.copying || state.pool.retired() < least {
                    continue;
                }
                let runs: Vec<Run> = (state.pool.retired_runs(BATCH_MAX).into_iter())
                    .map(|places| {
                        let shared = shared_pages(&mm, state.pool.address(places.0), places.1);
                        Run { places, shared }
                    })
                    .collect();
                let operation = |run: &Run| Operation::Drop {
                    start: state.pool.address(run.places.0),
                    len: u64::from(run.places.1) * PAGE_SIZE as u64,
                };
                let operations: Vec<Operation> = runs.iter().map(operation).collect();
                (runs, operations)
            };
            match link.execute(&operations) {
                Outcome::Done => total += self.commit_drop(&mm, &runs),
                Outcome::Cancelled => {
                    mm.fell_silent();
                    let mut state = mm.lock();
                    runs.into_iter().for_each(|run| state.pool.not_dropped(run.places));
                }
                Outcome::Stalled => self.stalled.push(Stalled { mm, work: Work::Drop(runs) }),
            }
        }
        total
    }

    pub fn commit_drop(&mut self, mm: &Arc<Mm>, runs: &[Run]) -> usize {
        let link = mm.link.get().expect("it executed a batch");
        let mut state = mm.lock();
        if state.ended {
            return 0;
        }
        let (mut pages, mut shared) = (0, 0);
        for (index, &Run { places, shared: of_others }) in runs.iter().enumerate() {
            if link.result(index) == 0 {
                state.pool.dropped(places);
                pages += u64::from(places.1);
                shared += of_others;
            } else {
                state.pool.not_dropped(places);
            }
        }
        // What relatives still map is there as before, and they have it to themselves by so much more.
        mm.shares_less(shared);
        mm.dropped(&mut self.pager.resident().zone, pages, shared);
        pages as usize
    }
}

/// How many of so many pages of a pool from `address` on relatives map, too: those that were cool at a fork.
fn shared_pages(mm: &Mm, address: u64, count: u32) -> u64 {
    if !mm.related.load(Relaxed) {
        return 0;
    }
    let shared =
        |process: &dyn Process| process.shared(Vpn::of_address(address).0, u64::from(count)).ok();
    // A process on its way out: its memory goes as a whole.
    mm.process().and_then(shared).unwrap_or(0)
}

/// Which of the coolest frames go, `max` at most: those with a stored copy, which need not be written if it
/// is still true, as far as an agent drops them; if there are none, the coolest. Never those that
/// nobody drops for the sake of their copies: they are met again and again, and nothing would go.
fn chosen(resident: &Resident, coolest: &[Pfn], max: usize, able: &[MmId]) -> Vec<Pfn> {
    let goes = |&&pfn: &&Pfn| {
        let frame = resident.frame(pfn);
        frame.slot().is_some() && able.contains(&frame.mm)
    };
    let stored: Vec<Pfn> = coolest.iter().filter(goes).take(max).copied().collect();
    if stored.is_empty() { coolest.iter().take(max).copied().collect() } else { stored }
}

fn still_cool(resident: &Resident, state: &State, mm: MmId, pfn: Pfn) -> Option<Victim> {
    if state.ended || state.copying || !resident.is_used(pfn) {
        return None;
    }
    let frame = resident.frame(pfn);
    let mine = frame.place == Place::Cool && frame.mm == mm;
    (mine && state.space.get(frame.vpn) == Entry::Cool(pfn)).then(|| Victim {
        pfn,
        vpn: frame.vpn,
        address: state.pool.address(frame.pool),
        copy: frame.slot(),
        stored: None,
        written: false,
        barren: false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_mm::resident::{Arrival, Space};

    #[test]
    fn pages_that_need_no_write_are_taken_first_in_their_order() {
        let mut set = Resident::new(100, 100);
        let mut space = Space::new(MmId(2));
        let frames: Vec<Pfn> = (0..6)
            .map(|page| {
                let slot = (page % 3 == 1).then(|| set.take_slot().expect("there are slots"));
                set.map(&mut space, Vpn(page), Arrival::Fresh, slot)
            })
            .collect();
        assert_eq!(chosen(&set, &frames, 4, &[MmId(2)]), [1, 4].map(|index| frames[index]));
        assert_eq!(chosen(&set, &frames, 1, &[MmId(2)]), [frames[1]]);
    }

    /// A stopped child's pages, all stored once, were chosen for ever, and those of others never went.
    #[test]
    fn stored_pages_that_nobody_drops_are_not_taken_before_others() {
        let mut set = Resident::new(100, 100);
        let mut stopped = Space::new(MmId(2));
        let mut running = Space::new(MmId(3));
        let slot = set.take_slot().expect("there are slots");
        let frames = [
            set.map(&mut running, Vpn(0), Arrival::Fresh, None),
            set.map(&mut stopped, Vpn(0), Arrival::Fresh, Some(slot)),
        ];
        assert_eq!(chosen(&set, &frames, 1, &[MmId(3)]), [frames[0]]);
    }
}
