//! The resident set: the pages in memory, the order in which they leave, and the state of all
//! others.
//!
//! One [`Resident`] manages the pages of many address spaces under one budget. It decides; the
//! driver moves the pages and reports back. This is the life of a page, with the function that
//! records each step:
//!
//! ```text
//!          map            isolate, deactivate           evict
//!   None ------> Resident --------------------> Standby ------> Stored
//!                  ^  ^                            |              |
//!                  |  +-----------reactivate-------+              |
//!                  +--------------load (begin_load, map)----------+
//! ```
//! Standby pages are still in memory but unmapped from the program. A fault on a standby page
//! reactivates it and so proves it young. A standby page without a fault is written out. So standby
//! replaces the accessed bit.
//!
//! The engine's LRU ([`crate::lru`]) orders the pages that leave, under switches of this set.
//!
//! Invariants (checked by [`Resident::check_invariants`]):
//! * RESIDENT-1: every Resident or Standby entry names a frame whose owner is that entry. Exactly
//!   one entry names each frame in use.
//! * RESIDENT-2: a frame is in exactly one state; the lists of the states add up.
//! * RESIDENT-3: the share count of a slot is the number of entries, frames and loads in flight
//!   that hold it.
//! * RESIDENT-4: an entry is Standby exactly while its frame is on standby or unstorable. The page
//!   of every other frame in use is mapped in the program.
//! * RESIDENT-5: the frame numbers given out are those of the frames in use.

mod entry;
mod frame_ids;
mod frames;
mod order;
mod space;
mod split;
mod standby_share;
mod zone;

pub use entry::Entry;
pub use frames::{Frame, FrameState, NO_POOL};
pub use order::Pressure;
pub use space::Space;
pub use split::{Edges, Split};
pub use standby_share::StandbyShare;
pub use zone::{Charge, Zone, high_penalty_us, lost_pages};

use crate::folio::Word;
use crate::lru::scan::DEF_PRIORITY;
use crate::observe::lru_gen::{Command, CommandError, Enabled};
use crate::observe::vmstat::VmStat;
use crate::slots::{NoSlot, SlotTable};
use crate::tunables::Tunables;
use crate::types::{MmId, Pfn, SlotId, Vpn};
use frames::Frames;
use order::Order;

/// The reason why a page is mapped, which decides where it joins the LRU.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// First access.
    Fresh,
    /// In memory already when its area was registered.
    Adopted,
    /// Loaded from the store on a fault.
    Loaded,
    /// Loaded by readahead, beside a page that had a fault.
    Ahead,
}

/// The resident set of one budget.
#[derive(Debug)]
pub struct Resident {
    frames: Frames,
    order: Order,
    /// Slots of the store that hold pages, with their share counts.
    pub slots: SlotTable,
    /// The budget: the pages used, charged and free.
    pub zone: Zone,
    /// Share of pages to keep on standby, adapted to the cost of loads.
    pub standby_share: StandbyShare,
    /// Number of address spaces created here whose page tables show no accesses.
    spaces: u32,
}

/// Most pages on standby unless a driver sets another limit, in thousandths of the evictable pages.
const STANDBY_PERMILLE: u32 = 500;

impl Resident {
    /// Creates a set under a budget of `limit_pages`, with the default switches.
    #[must_use]
    pub fn new(limit_pages: u64, slots_max: u32) -> Self {
        Self::with(limit_pages, limit_pages, slots_max, Tunables::standby())
    }

    /// Creates a set under a budget of `limit_pages`, with reclaim aiming at `high_pages`, under
    /// the given switches.
    #[must_use]
    pub fn with(limit_pages: u64, high_pages: u64, slots_max: u32, tunables: Tunables) -> Self {
        let frames = Frames::new(limit_pages);
        let zone = Zone::new(limit_pages, high_pages, zone::marks_of(limit_pages));
        let standby_share = StandbyShare::new(STANDBY_PERMILLE);
        Self {
            frames,
            order: Order::new(tunables),
            slots: SlotTable::new(slots_max),
            zone,
            standby_share,
            spaces: 0,
        }
    }

    /// Changes the budget to `limit_pages`, with reclaim aiming at `high_pages`.
    pub fn resize(&mut self, limit_pages: u64, high_pages: u64) {
        self.zone.resize(limit_pages, high_pages, zone::marks_of(limit_pages));
    }

    /// Sets the time, in milliseconds from any origin. The LRU measures the ages of generations by
    /// it.
    pub fn set_now_ms(&mut self, now_ms: u64) {
        self.order.set_now_ms(now_ms);
    }

    /// Returns the number of frames in use.
    #[must_use]
    pub fn frames_in_use(&self) -> usize {
        self.frames.in_use()
    }

    /// Returns the data about a frame.
    #[must_use]
    pub fn frame(&self, pfn: Pfn) -> Frame {
        self.frames.get(pfn)
    }

    /// Returns the number of frames in a state.
    #[must_use]
    pub fn count(&self, state: FrameState) -> u64 {
        match state {
            FrameState::Lru => self.order.pages(),
            FrameState::Free => 0,
            other => self.frames.len(other),
        }
    }

    /// Returns the number of frames that a pass of reclaim could take.
    #[must_use]
    pub fn evictable(&self) -> u64 {
        self.count(FrameState::Lru)
            + self.count(FrameState::First)
            + self.count(FrameState::Standby)
    }

    /// Returns the number of pages to keep on standby now.
    #[must_use]
    pub fn standby_target(&self) -> u64 {
        self.evictable() * u64::from(self.standby_share.permille()) / 1000
    }

    /// Records that a page is in memory now. `slot` is its stored copy, valid until the page is
    /// written. The frame takes over the entry's share of the slot.
    pub fn map(&mut self, space: &mut Space, vpn: Vpn, how: Arrival, slot: Option<SlotId>) -> Pfn {
        let pfn = self.frames.allocate(space.mm(), vpn, slot);
        if space.is_watched() {
            self.frames.folios().set(pfn, Word::MAPPED);
        }
        match (how, space.get(vpn)) {
            (Arrival::Loaded, Entry::Stored { shadow, .. }) => {
                self.order.add_touched(&self.frames, pfn, Some(shadow));
            }
            (Arrival::Fresh | Arrival::Loaded, _) => {
                self.order.add_touched(&self.frames, pfn, None);
            }
            (Arrival::Adopted | Arrival::Ahead, _) => self.order.add(&self.frames, pfn),
        }
        self.frames.put(pfn, FrameState::Isolated, FrameState::Lru);
        space.set(vpn, Entry::Resident(pfn));
        pfn
    }

    /// Isolates up to `max` frames that should leave first, as far as the pressure allows.
    pub fn isolate(&mut self, max: usize, pressure: Pressure, victims: &mut Vec<Pfn>) {
        let wanted = victims.len() + max;
        while victims.len() < wanted
            && let Some(pfn) = self.frames.last(FrameState::First)
        {
            self.frames.put(pfn, FrameState::First, FrameState::Isolated);
            victims.push(pfn);
        }
        let before = victims.len();
        if before < wanted {
            self.order.isolate(&self.frames, wanted - before, pressure, victims);
            for &pfn in &victims[before..] {
                self.frames.put(pfn, FrameState::Lru, FrameState::Isolated);
            }
            // A pass may isolate a few more than requested. These come first next time.
            while victims.len() > wanted
                && let Some(pfn) = victims.pop()
            {
                self.frames.put_first(pfn);
            }
        }
    }

    /// Isolates up to `max` frames outside a reclaim run, under growing pressure.
    pub fn isolate_hard(&mut self, max: usize, victims: &mut Vec<Pfn>) {
        let wanted = victims.len() + max;
        for priority in (0..=DEF_PRIORITY).rev() {
            let left = wanted - victims.len();
            self.isolate(left, Pressure { priority, lift: 0 }, victims);
        }
    }

    /// Ends a reclaim run, at whatever pressure.
    pub fn end_reclaim(&self) {
        self.order.end_reclaim();
    }

    /// Creates an address space, from page 0 to `end`. `watched`: the page table of the space shows
    /// accesses as accessed bits.
    #[must_use]
    pub fn create_space(&mut self, end: Vpn, watched: bool) -> Space {
        self.spaces += u32::from(!watched);
        if watched { self.order.create_space(end) } else { Space::new(MmId(self.spaces)) }
    }

    /// Returns the generations, as `lru_gen` (or `lru_gen_full`) shows them.
    #[must_use]
    pub fn lru_gen(&self, full: bool) -> String {
        self.order.text(&self.frames, full)
    }

    /// Returns which parts of the LRU are enabled.
    #[must_use]
    pub fn enabled(&self) -> Enabled {
        self.order.enabled()
    }

    /// Enables exactly these parts of the LRU. If the kind of lists changes, all folios move over
    /// at once.
    pub fn enable(&mut self, enabled: Enabled) {
        self.order.enable(&self.frames, enabled);
    }

    /// Carries out one command of `lru_gen`. Pages to be evicted are isolated and go to `victims`,
    /// a batch at a time. The caller repeats the command for the next batch.
    ///
    /// # Errors
    /// The memcg, node or generation does not exist, or the generation is too young to be evicted.
    pub fn command(
        &mut self,
        command: &Command,
        victims: &mut Vec<Pfn>,
    ) -> Result<(), CommandError> {
        let before = victims.len();
        let done = self.order.command(&self.frames, command, victims);
        for &pfn in &victims[before..] {
            self.frames.put(pfn, FrameState::Lru, FrameState::Isolated);
        }
        done
    }

    /// Whether only the working set of the last `gen.min_ttl_ms` is left to evict (mm/vmscan.c,
    /// `lru_gen_age_node`). False while that switch is 0.
    #[must_use]
    pub fn is_thrashing(&self) -> bool {
        self.order.is_working_set()
    }

    /// Returns the counters of the LRU, under the kernel's names.
    #[must_use]
    pub fn stat(&self) -> &VmStat {
        self.order.stat()
    }

    /// Returns an isolated frame to the LRU, because it was not reclaimed.
    pub fn put_back(&mut self, pfn: Pfn) {
        self.frames.put(pfn, FrameState::Isolated, FrameState::Lru);
        self.order.add(&self.frames, pfn);
    }

    /// Makes an isolated frame the first to be tried again.
    pub fn put_first(&mut self, pfn: Pfn) {
        self.frames.put_first(pfn);
    }

    /// Isolates a frame that is on the LRU's lists. Returns false if it is not on them.
    pub fn isolate_frame(&mut self, pfn: Pfn) -> bool {
        let there = self.frames.state(pfn) == FrameState::Lru;
        if there {
            self.order.remove(&self.frames, pfn);
            self.frames.put(pfn, FrameState::Lru, FrameState::Isolated);
        }
        there
    }

    /// Makes a frame the next to be reclaimed, if it is on the LRU's lists.
    pub fn prefer(&mut self, pfn: Pfn) {
        if self.isolate_frame(pfn) {
            self.frames.put_first(pfn);
        }
    }

    /// Whether the frame holds a page.
    #[must_use]
    pub fn is_used(&self, pfn: Pfn) -> bool {
        self.frames.state(pfn) != FrameState::Free
    }

    /// Makes an isolated frame unevictable until `retry_unevictable`, because it cannot leave
    /// memory for now (locked, pinned, shared).
    pub fn make_unevictable(&mut self, pfn: Pfn) {
        self.frames.put(pfn, FrameState::Isolated, FrameState::Unevictable);
    }

    /// Returns up to `max` unevictable frames to the LRU.
    pub fn retry_unevictable(&mut self, max: usize) {
        for _ in 0..max {
            let Some(pfn) = self.frames.last(FrameState::Unevictable) else { break };
            self.frames.put(pfn, FrameState::Unevictable, FrameState::Lru);
            self.order.add(&self.frames, pfn);
        }
    }

    /// Moves an isolated frame's page to standby, in the pool slot `pool`.
    pub fn deactivate(&mut self, space: &mut Space, pfn: Pfn, pool: u32) {
        self.standby_share.note_deactivated();
        self.frames.put(pfn, FrameState::Isolated, FrameState::Standby);
        self.frames.set_pool(pfn, pool);
        space.set(self.frames.get(pfn).vpn, Entry::Standby(pfn));
    }

    /// Returns up to `max` of the oldest standby frames, oldest first, without removing them.
    pub fn oldest_standby(&self, max: usize, into: &mut Vec<Pfn>) {
        self.frames.tail_of(FrameState::Standby, max, into);
    }

    /// Puts a standby frame that cannot be stored now behind the other standby frames.
    pub fn pass_over(&mut self, pfn: Pfn) {
        self.frames.put(pfn, FrameState::Standby, FrameState::Standby);
    }

    /// Makes a standby frame unstorable, because the store refuses its content. No thread can
    /// change the content of a standby page. So the driver tries the frame again only after a fault
    /// reactivated it, or after [`Resident::retry_unstorable`].
    pub fn leave_unstorable(&mut self, pfn: Pfn) {
        self.frames.put(pfn, FrameState::Standby, FrameState::Unstorable);
    }

    /// Returns up to `max` unstorable frames to standby, the oldest first, because the store may
    /// accept them now. Returns true if there were `max`, so that more may be left.
    pub fn retry_unstorable(&mut self, max: u64) -> bool {
        for _ in 0..max {
            let Some(pfn) = self.frames.last(FrameState::Unstorable) else { return false };
            self.frames.put(pfn, FrameState::Unstorable, FrameState::Standby);
        }
        true
    }

    /// Makes a standby page resident after a fault. Returns its pool slot.
    pub fn reactivate(&mut self, space: &mut Space, pfn: Pfn) -> u32 {
        self.standby_share.note_reactivated();
        self.frames.put(pfn, self.frames.state(pfn), FrameState::Lru);
        self.order.add_reactivated(&self.frames, pfn);
        space.set(self.frames.get(pfn).vpn, Entry::Resident(pfn));
        self.frames.set_pool(pfn, NO_POOL)
    }

    /// Records that resident pages were accessed since the last call. A driver that can read page
    /// tables found the accesses there. Skips frames that are off the LRU's lists.
    pub fn note_accessed(&self, pfns: &[Pfn]) {
        let on_list = |pfn: &Pfn| self.frames.state(*pfn) == FrameState::Lru;
        let listed: Vec<Pfn> = pfns.iter().copied().filter(on_list).collect();
        self.order.note_accessed(&self.frames, &listed);
    }

    /// Makes a standby page resident without a fault. Returns its pool slot.
    pub fn activate(&mut self, space: &mut Space, pfn: Pfn) -> u32 {
        self.frames.put(pfn, self.frames.state(pfn), FrameState::Lru);
        self.order.add(&self.frames, pfn);
        space.set(self.frames.get(pfn).vpn, Entry::Resident(pfn));
        self.frames.set_pool(pfn, NO_POOL)
    }

    /// Records that a standby or isolated page is in the store now, and nowhere else. Returns its
    /// pool slot.
    pub fn evict(&mut self, space: &mut Space, pfn: Pfn, slot: SlotId) -> u32 {
        let frame = self.frames.get(pfn);
        let shadow = self.order.note_evicted(&self.frames, pfn);
        space.set(frame.vpn, Entry::Stored { slot, shadow, loading: false });
        if frame.state == FrameState::Standby {
            self.frames.put(pfn, FrameState::Standby, FrameState::Isolated);
        }
        self.frames.free(pfn);
        frame.pool
    }

    /// Allocates a slot for a page to be stored, with one share.
    pub fn take_slot(&mut self) -> Result<SlotId, NoSlot> {
        self.slots.allocate()
    }

    /// Replaces the stored copy that a frame remembers. Returns the old slot if no share of it is
    /// left; the store must then drop its page.
    pub fn set_copy(&mut self, pfn: Pfn, slot: Option<SlotId>) -> Option<SlotId> {
        let old = self.frames.set_slot(pfn, slot);
        old.filter(|&slot| self.slots.release(slot))
    }

    /// Begins a load from the store: marks the page's entry as loading. The load holds a share of
    /// its own.
    pub fn begin_load(&mut self, space: &mut Space, vpn: Vpn, slot: SlotId) {
        self.slots.share(slot);
        set_loading(space, vpn, true);
    }

    /// Ends a load without a page: the next fault starts another. The caller still has to release
    /// the load's share.
    pub fn end_load(&mut self, space: &mut Space, vpn: Vpn) {
        set_loading(space, vpn, false);
    }

    /// Forgets the page at `vpn`. Stored copies and pool slots without any other holder go to
    /// `dropped`.
    pub fn forget(&mut self, space: &mut Space, vpn: Vpn, dropped: &mut Dropped) {
        let entry = space.get(vpn);
        space.set(vpn, Entry::None);
        self.drop_entry(entry, dropped);
    }

    /// Forgets every page of `[start, end)`.
    pub fn forget_range(&mut self, space: &mut Space, start: Vpn, end: Vpn, dropped: &mut Dropped) {
        space.take_range(start, end, |_, entry| self.drop_entry(entry, dropped));
    }

    fn drop_entry(&mut self, entry: Entry, dropped: &mut Dropped) {
        match entry {
            Entry::None => {}
            Entry::Resident(pfn) | Entry::Standby(pfn) => {
                let frame = self.frames.get(pfn);
                if frame.pool != NO_POOL {
                    dropped.pool.push(frame.pool);
                }
                if let Some(slot) = frame.slot() {
                    self.release_slot(slot, dropped);
                }
                match frame.state {
                    FrameState::Lru => {
                        self.order.remove(&self.frames, pfn);
                        self.frames.put(pfn, FrameState::Lru, FrameState::Isolated);
                    }
                    FrameState::Isolated => {}
                    other => self.frames.put(pfn, other, FrameState::Isolated),
                }
                self.frames.free(pfn);
                dropped.frames += 1;
            }
            Entry::Stored { slot, .. } => self.release_slot(slot, dropped),
        }
    }

    /// Releases one share of the slot.
    pub fn release_slot(&mut self, slot: SlotId, dropped: &mut Dropped) {
        if self.slots.release(slot) {
            dropped.slots.push(slot);
        }
    }

    /// Moves the pages of `[from, from + pages)` to `to` (mremap). Pages that were at `to` are
    /// forgotten.
    pub fn remap(
        &mut self,
        space: &mut Space,
        from: Vpn,
        to: Vpn,
        pages: u64,
        dropped: &mut Dropped,
    ) {
        let mut moved = Vec::new();
        space.take_range(from, Vpn(from.0 + pages), |vpn, entry| moved.push((vpn, entry)));
        self.forget_range(space, to, Vpn(to.0 + pages), dropped);
        for (vpn, entry) in moved {
            let vpn = Vpn(vpn.0 - from.0 + to.0);
            match entry {
                Entry::Resident(pfn) | Entry::Standby(pfn) => self.frames.set_vpn(pfn, vpn),
                Entry::None | Entry::Stored { .. } => {}
            }
            // A load in flight for the old address finds no entry there. A fault at the new address
            // starts another load.
            let entry = match entry {
                Entry::Stored { slot, shadow, .. } => {
                    Entry::Stored { slot, shadow, loading: false }
                }
                other => other,
            };
            space.set(vpn, entry);
        }
    }

    /// Gives a child the pages of its parent, in memory and stored. Copies the parent's entries
    /// from `start` on that `passes` accepts, up to `max` of them. Returns the page at which to go
    /// on, or None at the end. Also returns how many of the copied pages are in memory. The
    /// parent's entries must not change until the copy is complete.
    pub fn fork(
        &mut self,
        parent: &Space,
        child: &mut Space,
        (start, max): (Vpn, u64),
        passes: impl Fn(Vpn) -> bool,
    ) -> (Option<Vpn>, u64) {
        let mut held = 0;
        let next = parent.visit(start, max, |vpn, entry| {
            if passes(vpn) {
                self.inherit(child, vpn, entry);
                held += u64::from(matches!(entry, Entry::Resident(_) | Entry::Standby(_)));
            }
        });
        (next, held)
    }

    fn inherit(&mut self, child: &mut Space, vpn: Vpn, entry: Entry) {
        let entry = match entry {
            Entry::Resident(pfn) | Entry::Standby(pfn) => {
                let frame = self.frames.get(pfn);
                let slot = frame.slot();
                if let Some(slot) = slot {
                    self.slots.share(slot);
                }
                let copy = self.frames.allocate(child.mm(), vpn, slot);
                self.frames.set_pool(copy, frame.pool);
                if let Entry::Standby(_) = entry {
                    self.frames.put(copy, FrameState::Isolated, FrameState::Standby);
                    Entry::Standby(copy)
                } else {
                    self.put_back(copy);
                    Entry::Resident(copy)
                }
            }
            Entry::Stored { slot, shadow, .. } => {
                self.slots.share(slot);
                Entry::Stored { slot, shadow, loading: false }
            }
            Entry::None => return,
        };
        child.set(vpn, entry);
    }

    /// Checks all data and panics at the first broken invariant. For tests.
    pub fn check_invariants(&self, spaces: &[&Space], loads: &[SlotId]) {
        let mut shares = std::collections::HashMap::<u32, u32>::new();
        let mut owned = 0;
        for space in spaces {
            space.for_each(|vpn, entry| match entry {
                Entry::Resident(pfn) | Entry::Standby(pfn) => {
                    let frame = self.frames.get(pfn);
                    assert_eq!(
                        (frame.mm, frame.vpn),
                        (space.mm(), vpn),
                        "RESIDENT-1: owner of {pfn:?}"
                    );
                    let standby = matches!(entry, Entry::Standby(_));
                    let hidden =
                        matches!(frame.state, FrameState::Standby | FrameState::Unstorable);
                    assert_eq!(standby, hidden, "RESIDENT-4: state of {pfn:?}");
                    owned += 1;
                    if let Some(slot) = frame.slot() {
                        *shares.entry(slot.0).or_default() += 1;
                    }
                }
                Entry::Stored { slot, .. } => *shares.entry(slot.0).or_default() += 1,
                Entry::None => {}
            });
        }
        for slot in loads {
            *shares.entry(slot.0).or_default() += 1;
        }
        assert_eq!(owned, self.frames.in_use(), "RESIDENT-1: frames without an entry");
        self.frames.check(self.order.pages());
        self.order.check(&self.frames);
        assert_eq!(shares.len() as u32, self.slots.used(), "RESIDENT-3: slots in use");
        for (slot, count) in shares {
            assert_eq!(self.slots.shares(SlotId(slot)), count, "RESIDENT-3: shares of slot {slot}");
        }
    }
}

fn set_loading(space: &mut Space, vpn: Vpn, loading: bool) {
    if let Entry::Stored { slot, shadow, .. } = space.get(vpn) {
        space.set(vpn, Entry::Stored { slot, shadow, loading });
    }
}

/// Slots and pool slots without a holder. The driver must drop them in the store (and then recycle
/// the slots) and in the pool.
#[derive(Debug, Default)]
pub struct Dropped {
    /// Slots without any share left.
    pub slots: Vec<SlotId>,
    /// Slots in the owner's pool whose pages are no longer needed.
    pub pool: Vec<u32>,
    /// Number of pages in memory that are gone.
    pub frames: u64,
}

#[cfg(test)]
mod tests;
