//! Eviction: stores the oldest standby pages, and has them dropped from the pool.
//!
//! Part of the kswapd thread. Reading and writing a page needs no lock, because no thread can
//! change a standby page. The commit checks that the page is still on standby.
//!
//! A thread that waits for memory does not wait for a write while a clean page can go. Pages with a
//! valid stored copy leave before the others are written. While threads wait, kswapd looks for such
//! pages first.

use super::{Reclaim, Stalled, Work, group_by_mm};
use crate::mm::link::{Operation, Outcome};
use crate::mm::{Mm, State};
use crate::seam::Process;
use crate::telemetry::counters;
use crate::wait::limits::BATCH_PATIENCE;
use ebb_agent::protocol::BATCH_MAX;
use ebb_mm::resident::{Dropped, Entry, FrameState, Resident};
use ebb_mm::types::{MmId, PAGE_SIZE, Pfn, SlotId, Vpn};
use ebb_swap::{Page, StoreError, page_hash};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const ESRCH: i32 = 3;

/// Step by which compressed memory grows, as a share of the budget.
const GROW_SHARE: u64 = 64;

/// Distance of the search for clean pages while threads wait for memory, in batches.
const CLEAN_REACH: usize = 4;
/// Distance of that search while the store takes no other pages, in pages.
const CLEAN_REACH_FULL: usize = 1 << 16;

/// A standby page that is to be stored.
#[derive(Clone, Copy)]
struct Victim {
    pfn: Pfn,
    vpn: Vpn,
    /// Address in the pool.
    address: u64,
    /// Stored copy from which the page was loaded.
    copy: Option<SlotId>,
    /// Stored copy that remains when the page leaves.
    stored: Option<SlotId>,
    written: bool,
    /// Whether the store cannot take the page.
    unstorable: bool,
}

/// Consecutive pool slots with useless pages.
pub struct Run {
    /// First slot, and number of slots.
    slots: (u32, u32),
    /// Number of these pages that other members of the fork group map, too.
    shared: u64,
}

impl Reclaim {
    /// Stores up to `max` of the oldest standby pages.
    pub fn evict(&mut self, max: usize) -> usize {
        let groups = {
            let waited_for = self.pager.budget.memory_stalled.load(Relaxed) > 0;
            let reach = match waited_for {
                // No other page can leave, so kswapd looks for clean pages much further.
                true if self.refused => CLEAN_REACH_FULL,
                true => CLEAN_REACH * max,
                false => max,
            };
            let able = if waited_for { self.able() } else { Vec::new() };
            let resident = self.pager.resident();
            let mut oldest_standby = Vec::with_capacity(reach);
            resident.oldest_standby(reach, &mut oldest_standby);
            let oldest_standby = chosen(&resident, &oldest_standby, max, &able);
            group_by_mm(&oldest_standby, &resident)
        };
        groups.into_iter().map(|(id, frames)| self.evict_of(id, &frames)).sum()
    }

    /// Returns the address spaces whose agents drop pages.
    fn able(&self) -> Vec<MmId> {
        let drops = |mm: &&Arc<Mm>| mm.agent.is_there() && !mm.update_silence();
        self.pager.mms().iter().filter(drops).map(|mm| mm.id).collect()
    }

    fn evict_of(&mut self, id: MmId, frames: &[Pfn]) -> usize {
        let Some(mm) = self.pager.mm(id) else {
            // The table of this child is still being copied (`faults/fork.rs`), so other pages go
            // first.
            let mut resident = self.pager.resident();
            for &pfn in frames {
                let its = resident.is_used(pfn) && resident.frame(pfn).mm == id;
                if its && resident.frame(pfn).state == FrameState::Standby {
                    resident.pass_over(pfn);
                }
            }
            return 0;
        };
        if !mm.agent.is_there() || self.is_unresponsive(&mm) {
            // Without an agent the page could not be dropped, so other pages go first.
            self.pass_over(&mm, frames);
            return 0;
        }
        let mut victims = Vec::with_capacity(frames.len());
        {
            let Some(state) = mm.lock_settled(BATCH_PATIENCE) else { return 0 };
            let resident = self.pager.resident();
            for &pfn in frames {
                if let Some(victim) = still_standby(&resident, &state, id, pfn) {
                    victims.push(victim);
                }
            }
        }
        let of_others = victims.iter().filter(|victim| shared_pages(&mm, victim.address, 1) > 0);
        self.offered.extend(of_others.map(|victim| victim.pfn.0));
        let pid = mm.owner.pid();
        victims.sort_unstable_by_key(|victim| victim.vpn);
        let addresses: Vec<u64> = victims.iter().map(|victim| victim.address).collect();
        // A standby page cannot change, and is not dropped while its slot is in use. So no lock is
        // needed.
        let got = match mm.read_pages(&addresses, &mut self.pages[..]) {
            Ok(got) => got,
            Err(error) => {
                // An ending process loses its number a moment before its memory.
                if error.raw_os_error() != Some(ESRCH) && mm.uffd.is_alive() {
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
        if evicted > 0 && !dirty.is_empty() && self.pager.budget.memory_stalled.load(Relaxed) > 0 {
            // These pages become free memory only when the agent has dropped them.
            self.discard_pending(1);
            self.pager.faults.wake_if_deferred();
        }
        self.write(&mut dirty);
        let dirty: Vec<Victim> = dirty.into_iter().map(|(victim, _)| victim).collect();
        let stored = self.commit_evict(&mm, &dirty);
        // Other pages may compress better, or go to another tier. They must not wait behind these.
        self.defer_fault(&mm, &dirty);
        evicted + stored
    }

    /// Passes over victims that were not stored. An unstorable page leaves the standby list until a
    /// fault reactivates it, or until `Reclaim::out_of_memory` retries all such pages.
    fn defer_fault(&self, mm: &Arc<Mm>, victims: &[Victim]) {
        let state = mm.lock();
        let mut resident = self.pager.resident();
        for victim in victims.iter().filter(|victim| victim.stored.is_none()) {
            if still_standby(&resident, &state, mm.id, victim.pfn).is_none() {
                continue;
            }
            if victim.unstorable {
                resident.leave_unstorable(victim.pfn);
            } else {
                resident.pass_over(victim.pfn);
            }
        }
    }

    /// Passes over standby frames that cannot be stored now.
    fn pass_over(&self, mm: &Arc<Mm>, frames: &[Pfn]) {
        let state = mm.lock();
        let mut resident = self.pager.resident();
        for &pfn in frames {
            if still_standby(&resident, &state, mm.id, pfn).is_some() {
                resident.pass_over(pfn);
            }
        }
    }

    /// Divides the victims into those with a valid stored copy, and the others with their indices
    /// in `pages`.
    fn part(&self, victims: &[Victim]) -> (Vec<Victim>, Vec<(Victim, usize)>) {
        let (mut clean, mut dirty) = (Vec::new(), Vec::new());
        for (index, &victim) in victims.iter().enumerate() {
            let is_same = |&slot: &SlotId| {
                self.pager.budget.store.reuse_copy(slot, page_hash(&self.pages[index]))
            };
            match victim.copy.filter(is_same) {
                Some(copy) => clean.push(Victim { stored: Some(copy), ..victim }),
                None => dirty.push((victim, index)),
            }
        }
        (clean, dirty)
    }

    /// Writes a copy of each victim to the store, as far as the store takes them.
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
        self.pager.budget.store.put_batch(&writes, &mut results);
        let mut failed = Dropped::default();
        // A page that no tier takes is set aside. Otherwise every search for a victim would start
        // with thousands of such pages. If compressed memory is the only tier it may grow
        // (`grow_store`), and take the page next time.
        let grows = self.pager.config.ram_grows();
        let (mut full, mut refused) = (false, 0);
        let count = writes.len();
        let tried = victims.iter_mut().map(|(victim, _)| victim).filter(|victim| victim.written);
        for (victim, result) in tried.zip(results) {
            if let Err(error) = result {
                full |= matches!(error, StoreError::Full);
                victim.unstorable = match error {
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
        self.pager.budget.discard(&failed);
        self.refused = refused == count;
        if full {
            self.grow_store();
        }
    }

    /// Grows full compressed memory if it is the only tier, at the expense of the program's pages.
    /// As long as pages compress, more of them fit into less memory.
    fn grow_store(&self) {
        let max = self.pager.budget.memory_max_bytes();
        let Some(most) = self.pager.config.ram_bytes_max(max) else { return };
        let step = max / GROW_SHARE;
        self.pager.budget.store.grow_ram(step, most);
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
                let there = still_standby(&resident, state, mm.id, victim.pfn);
                if there.is_none_or(|there| there.address != victim.address) {
                    // Reactivated, unmapped or moved meanwhile, so the copy is useless.
                    if victim.written {
                        resident.release_slot(slot, &mut dropped);
                    }
                    continue;
                }
                if victim.written {
                    dropped.slots.extend(resident.set_copy(victim.pfn, None));
                    counters::count(&self.pager.telemetry.counters.written);
                } else {
                    counters::count(&self.pager.telemetry.counters.clean);
                }
                let place = resident.evict(&mut state.space, victim.pfn, slot);
                state.pool.discard_later(place);
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
        self.pager.budget.discard(&dropped);
        counters::add(&self.pager.telemetry.counters.evicted, evicted as u64);
        evicted
    }

    /// Offers stored copies to the other members of the fork group. A shared page leaves memory
    /// when the last of them has released it. So their mappings of the page are the next to leave.
    /// One stored copy serves all members whose page is still equal when it leaves.
    fn offer(&self, from: &Arc<Mm>, offers: &[(Vpn, SlotId)], dropped: &mut Dropped) {
        if offers.is_empty() {
            return;
        }
        let others = self.pager.mms();
        let relative = |mm: &&Arc<Mm>| mm.id != from.id && mm.fork_group.id == from.fork_group.id;
        for mm in others.iter().filter(relative) {
            let state = mm.lock();
            let mut resident = self.pager.resident();
            for &(vpn, slot) in offers {
                if let Entry::Resident(pfn) | Entry::Standby(pfn) = state.space.get(vpn)
                    && resident.frame(pfn).slot().is_none()
                {
                    resident.slots.share(slot);
                    resident.set_copy(pfn, Some(slot));
                    resident.prefer(pfn);
                }
            }
        }
        // Releases the references that `commit_evict` took for the offers.
        let mut resident = self.pager.resident();
        offers.iter().for_each(|&(_, slot)| resident.release_slot(slot, dropped));
    }

    /// Has agents drop the useless pages of each pool that has at least `least` of them.
    pub fn discard_pending(&mut self, least: usize) -> usize {
        let mut total = 0;
        for mm in self.pager.mms() {
            if !mm.agent.is_there() || self.is_stalled(mm.id) || self.is_unresponsive(&mm) {
                continue;
            }
            let (runs, operations) = {
                let mut state = mm.lock();
                // While the address space is still, the pager reads no message that the drop might
                // cause.
                if state.ended || state.following_message || state.pool.pending_discards() < least {
                    continue;
                }
                let runs: Vec<Run> = (state.pool.pending_discard_runs(BATCH_MAX).into_iter())
                    .map(|slots| {
                        let shared = shared_pages(&mm, state.pool.address(slots.0), slots.1);
                        Run { slots, shared }
                    })
                    .collect();
                let operation = |run: &Run| Operation::Drop {
                    start: state.pool.address(run.slots.0),
                    len: u64::from(run.slots.1) * PAGE_SIZE as u64,
                };
                let operations: Vec<Operation> = runs.iter().map(operation).collect();
                (runs, operations)
            };
            match self.execute(&mm, &operations) {
                Outcome::Done => total += self.commit_drop(&mm, &runs),
                Outcome::Cancelled => {
                    let mut state = mm.lock();
                    runs.into_iter().for_each(|run| state.pool.abort_discard(run.slots));
                }
                Outcome::Stalled => self.stalled.push(Stalled { mm, work: Work::Drop(runs) }),
            }
        }
        total
    }

    pub fn commit_drop(&mut self, mm: &Arc<Mm>, runs: &[Run]) -> usize {
        let link = mm.agent.link().expect("it executed a batch");
        let mut state = mm.lock();
        if state.ended {
            return 0;
        }
        let (mut pages, mut shared) = (0, 0);
        for (index, &Run { slots, shared: of_others }) in runs.iter().enumerate() {
            if link.result(index) == 0 {
                state.pool.finish_discard(slots);
                pages += u64::from(slots.1);
                shared += of_others;
            } else {
                state.pool.abort_discard(slots);
            }
        }
        // Pages that other members of the fork group still map remain, and these members' own
        // shares grow accordingly.
        mm.fork_group.shares_less(shared);
        mm.note_dropped(&mut self.pager.resident().zone, pages, shared);
        pages as usize
    }
}

/// Returns how many of `count` pool pages from `address` on other members of the fork group map,
/// too. These were on standby at a fork.
fn shared_pages(mm: &Mm, address: u64, count: u32) -> u64 {
    if !mm.fork_group.is_related() {
        return 0;
    }
    let shared =
        |process: &dyn Process| process.shared(Vpn::of_address(address).0, u64::from(count)).ok();
    // The process is ending, and its memory goes as a whole.
    mm.process().and_then(shared).unwrap_or(0)
}

/// Chooses which of the oldest standby frames go, `max` at most. Frames with a stored copy come
/// first, if an agent drops them, because a valid copy needs no write. If there are none, the
/// oldest go. A frame without such an agent gets no preference for its copy. Otherwise kswapd would
/// choose it again and again, and no page would leave.
fn chosen(resident: &Resident, oldest_standby: &[Pfn], max: usize, able: &[MmId]) -> Vec<Pfn> {
    let goes = |&&pfn: &&Pfn| {
        let frame = resident.frame(pfn);
        frame.slot().is_some() && able.contains(&frame.mm)
    };
    let stored: Vec<Pfn> = oldest_standby.iter().filter(goes).take(max).copied().collect();
    if stored.is_empty() { oldest_standby.iter().take(max).copied().collect() } else { stored }
}

fn still_standby(resident: &Resident, state: &State, mm: MmId, pfn: Pfn) -> Option<Victim> {
    if state.ended || state.following_message || !resident.is_used(pfn) {
        return None;
    }
    let frame = resident.frame(pfn);
    let mine = frame.state == FrameState::Standby && frame.mm == mm;
    (mine && state.space.get(frame.vpn) == Entry::Standby(pfn)).then(|| Victim {
        pfn,
        vpn: frame.vpn,
        address: state.pool.address(frame.pool),
        copy: frame.slot(),
        stored: None,
        written: false,
        unstorable: false,
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

    /// Shows that stored pages of a stopped child are not chosen before pages of others. They would
    /// be chosen for ever, and the others would never go.
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
