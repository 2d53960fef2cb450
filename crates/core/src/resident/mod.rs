//! The resident set: which pages are in memory, in what order they would leave it, where the others are.
//!
//! One [`Resident`] manages the pages of many address spaces under one budget. It decides; whoever
//! drives it does the moving and reports back. Life of a page, with the function that makes each step:
//!
//! ```text
//!            map              isolate, cool           evict
//!   None ----------> Resident ------------> Cool ---------------> Stored
//!                      ^  ^                  |                      |
//!                      |  +------rescue------+                      |
//!                      +----------------load (begin_load, map)------+
//! ```
//! Cool pages are still in memory but out of the program's sight: a touch rescues them and proves them
//! young; those that nobody touches are written out. Cooling stands in for the accessed bit.
//!
//! The order in which pages leave is that of the engine's LRU ([`crate::lru`]), under its own switches.
//!
//! Invariants (checked by [`Resident::check_invariants`]):
//! * RESIDENT-1: every Resident or Cool entry names a frame whose owner is that entry; every owned frame is
//!   named by exactly one entry.
//! * RESIDENT-2: a frame is in exactly one place; the lists of the places add up.
//! * RESIDENT-3: the share count of a slot is the number of entries, frames and loads in flight that hold it.
//! * RESIDENT-4: a frame is cool exactly while its entry is; all others in use are visible.
//! * RESIDENT-5: a frame is given out by the allocator exactly as long as its descriptor is in use.

mod cooling;
mod entry;
mod frames;
mod order;
mod space;
mod split;
mod stock;
mod zone;

pub use cooling::Cooling;
pub use entry::Entry;
pub use frames::{Frame, NO_POOL, Place};
pub use order::Pressure;
pub use space::Space;
pub use split::{Edges, Split};
pub use zone::{Charge, Zone, lost_pages};

use crate::folio::Word;
use crate::lru::scan::DEF_PRIORITY;
use crate::observe::lru_gen::{Command, CommandError, Enabled};
use crate::observe::vmstat::VmStat;
use crate::swap::{NoSlot, SlotTable};
use crate::tunables::Tunables;
use crate::types::{MmId, Pfn, SlotId, Vpn};
use frames::Frames;
use order::Order;

/// How a page came to be mapped: decides where it joins the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// Touched for the first time.
    Fresh,
    /// Found in memory when its area came under management.
    Adopted,
    /// Brought back from the store.
    Loaded,
    /// Brought in beside a page that was asked for.
    Ahead,
}

/// The resident set of one budget.
#[derive(Debug)]
pub struct Resident {
    frames: Frames,
    order: Order,
    /// Which slots of the store hold pages, and who has shares of them.
    pub slots: SlotTable,
    /// The budget: what of it is used, promised and left.
    pub zone: Zone,
    /// How many pages are kept cool, by what that is worth.
    pub cooling: Cooling,
    /// Address spaces made here.
    spaces: u32,
}

/// The most pages kept cool unless a driver says otherwise, in thousandths of what can leave.
const COOL_PERMILLE: u32 = 500;

impl Resident {
    /// A set under a budget of `limit_pages`, with the default switches.
    #[must_use]
    pub fn new(limit_pages: u64, slots_max: u32) -> Self {
        Self::with(limit_pages, limit_pages, slots_max, Tunables::cooling())
    }

    /// The same, with reclaim aiming at `high_pages`, under the given switches.
    #[must_use]
    pub fn with(limit_pages: u64, high_pages: u64, slots_max: u32, tunables: Tunables) -> Self {
        let frames = Frames::new(limit_pages);
        let zone = Zone::new(limit_pages, high_pages, frames.marks());
        let cooling = Cooling::new(COOL_PERMILLE);
        Self {
            frames,
            order: Order::new(tunables),
            slots: SlotTable::new(slots_max),
            zone,
            cooling,
            spaces: 0,
        }
    }

    /// Another budget from here on, of `limit_pages`, with reclaim aiming at `high_pages`.
    pub fn resize(&mut self, limit_pages: u64, high_pages: u64) {
        self.zone.resize(limit_pages, high_pages, stock::marks_of(limit_pages));
    }

    /// Tells the time, in milliseconds from any beginning: the ages of generations are counted in it.
    pub fn set_now_ms(&mut self, now_ms: u64) {
        self.order.set_now_ms(now_ms);
    }

    /// Frames in use.
    #[must_use]
    pub fn frames_in_use(&self) -> usize {
        self.frames.in_use()
    }

    /// What is known of a frame.
    #[must_use]
    pub fn frame(&self, pfn: Pfn) -> Frame {
        self.frames.get(pfn)
    }

    /// Frames in a place.
    #[must_use]
    pub fn count(&self, place: Place) -> u64 {
        match place {
            Place::Lru => self.order.pages(),
            Place::Free => 0,
            other => self.frames.len(other),
        }
    }

    /// Frames that a pass of reclaim could take.
    #[must_use]
    pub fn evictable(&self) -> u64 {
        self.count(Place::Lru) + self.count(Place::First) + self.count(Place::Cool)
    }

    /// How many pages are to be cool now.
    #[must_use]
    pub fn cool_target(&self) -> u64 {
        self.evictable() * u64::from(self.cooling.permille()) / 1000
    }

    /// A page is in memory now. `slot` is its stored copy, still true until it is written to; the
    /// frame takes over the entry's share of it.
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
        self.frames.put(pfn, Place::Isolated, Place::Lru);
        space.set(vpn, Entry::Resident(pfn));
        pfn
    }

    /// Takes up to `max` frames that should leave first, as far as the pressure finds them.
    pub fn isolate(&mut self, max: usize, pressure: Pressure, victims: &mut Vec<Pfn>) {
        let wanted = victims.len() + max;
        while victims.len() < wanted
            && let Some(pfn) = self.frames.last(Place::First)
        {
            self.frames.put(pfn, Place::First, Place::Isolated);
            victims.push(pfn);
        }
        let before = victims.len();
        if before < wanted {
            self.order.take(&self.frames, wanted - before, pressure, victims);
            for &pfn in &victims[before..] {
                self.frames.put(pfn, Place::Lru, Place::Isolated);
            }
            // A pass takes a few more than it was asked for: they are first next time.
            while victims.len() > wanted
                && let Some(pfn) = victims.pop()
            {
                self.frames.put_first(pfn);
            }
        }
    }

    /// The same outside of a run, under growing pressure.
    pub fn isolate_hard(&mut self, max: usize, victims: &mut Vec<Pfn>) {
        let wanted = victims.len() + max;
        for priority in (0..=DEF_PRIORITY).rev() {
            let left = wanted - victims.len();
            self.isolate(left, Pressure { priority, lift: 0 }, victims);
        }
    }

    /// A run of reclaim is over, at whatever pressure.
    pub fn end_reclaim(&self) {
        self.order.end_reclaim();
    }

    /// An address space, from page 0 to `end`. `watched`: accesses are seen in its page table.
    #[must_use]
    pub fn create_space(&mut self, end: Vpn, watched: bool) -> Space {
        self.spaces += u32::from(!watched);
        if watched { self.order.create_space(end) } else { Space::new(MmId(self.spaces)) }
    }

    /// The generations, as `lru_gen` (or `lru_gen_full`) shows them.
    #[must_use]
    pub fn lru_gen(&self, full: bool) -> String {
        self.order.text(&self.frames, full)
    }

    /// Which parts of the LRU are in use.
    #[must_use]
    pub fn enabled(&self) -> Enabled {
        self.order.enabled()
    }

    /// Has other parts of the LRU in use from now on; the lists move over at once.
    pub fn enable(&mut self, enabled: Enabled) {
        self.order.enable(&self.frames, enabled);
    }

    /// Carries out one command of `lru_gen`. Pages to be evicted are isolated and go to `victims`, a
    /// batch at a time: it is to be repeated for the next.
    ///
    /// # Errors
    /// There is no such memcg, node or generation, or it is too young to be evicted.
    pub fn command(
        &mut self,
        command: &Command,
        victims: &mut Vec<Pfn>,
    ) -> Result<(), CommandError> {
        let before = victims.len();
        let done = self.order.command(&self.frames, command, victims);
        for &pfn in &victims[before..] {
            self.frames.put(pfn, Place::Lru, Place::Isolated);
        }
        done
    }

    /// Whether nothing can be evicted but the working set of the last `gen.min_ttl_ms` (mm/vmscan.c,
    /// `lru_gen_age_node`). Never while that is 0.
    #[must_use]
    pub fn is_thrashing(&self) -> bool {
        self.order.is_working_set()
    }

    /// What the LRU has counted, under the kernel's names.
    #[must_use]
    pub fn stat(&self) -> &VmStat {
        self.order.stat()
    }

    /// An isolated frame was not taken after all: back among the others.
    pub fn put_back(&mut self, pfn: Pfn) {
        self.frames.put(pfn, Place::Isolated, Place::Lru);
        self.order.add(&self.frames, pfn);
    }

    /// An isolated frame is to be tried again at once.
    pub fn put_first(&mut self, pfn: Pfn) {
        self.frames.put_first(pfn);
    }

    /// Takes a frame off the LRU's lists, isolated. False if it is not on them.
    pub fn take(&mut self, pfn: Pfn) -> bool {
        let there = self.frames.place(pfn) == Place::Lru;
        if there {
            self.order.remove(&self.frames, pfn);
            self.frames.put(pfn, Place::Lru, Place::Isolated);
        }
        there
    }

    /// A frame that is as good as stored is to be taken next.
    pub fn prefer(&mut self, pfn: Pfn) {
        if self.take(pfn) {
            self.frames.put_first(pfn);
        }
    }

    /// Whether the frame holds a page.
    #[must_use]
    pub fn is_used(&self, pfn: Pfn) -> bool {
        self.frames.place(pfn) != Place::Free
    }

    /// An isolated frame cannot leave memory for now (locked, pinned, shared): kept aside until
    /// `unpark`.
    pub fn park(&mut self, pfn: Pfn) {
        self.frames.put(pfn, Place::Isolated, Place::Parked);
    }

    /// Gives up to `max` parked frames another chance.
    pub fn unpark(&mut self, max: usize) {
        for _ in 0..max {
            let Some(pfn) = self.frames.last(Place::Parked) else { break };
            self.frames.put(pfn, Place::Parked, Place::Lru);
            self.order.add(&self.frames, pfn);
        }
    }

    /// An isolated frame's page is out of the program's sight, in place `pool`.
    pub fn cool(&mut self, space: &mut Space, pfn: Pfn, pool: u32) {
        self.cooling.cooled();
        self.frames.put(pfn, Place::Isolated, Place::Cool);
        self.frames.set_pool(pfn, pool);
        space.set(self.frames.get(pfn).vpn, Entry::Cool(pfn));
    }

    /// The coolest frames, oldest first, without taking them.
    pub fn coolest(&self, max: usize, into: &mut Vec<Pfn>) {
        self.frames.tail_of(Place::Cool, max, into);
    }

    /// A cool frame cannot be stored now: behind the others.
    pub fn pass_over(&mut self, pfn: Pfn) {
        self.frames.put(pfn, Place::Cool, Place::Cool);
    }

    /// A cool frame cannot be stored as it is, and nobody can change it while it is cool: not looked at again
    /// before it was touched, or the store may take what it did not.
    pub fn leave_barren(&mut self, pfn: Pfn) {
        self.frames.put(pfn, Place::Cool, Place::Barren);
    }

    /// The store may take what it did not take: up to `max` barren frames are cool as any, the oldest first. Whether
    /// some are left.
    pub fn retry_barren(&mut self, max: u64) -> bool {
        for _ in 0..max {
            let Some(pfn) = self.frames.last(Place::Barren) else { return false };
            self.frames.put(pfn, Place::Barren, Place::Cool);
        }
        true
    }

    /// A cool page was touched and is visible again. Returns its place in the pool.
    pub fn rescue(&mut self, space: &mut Space, pfn: Pfn) -> u32 {
        self.cooling.rescued();
        self.frames.put(pfn, self.frames.place(pfn), Place::Lru);
        self.order.rescued(&self.frames, pfn);
        space.set(self.frames.get(pfn).vpn, Entry::Resident(pfn));
        self.frames.set_pool(pfn, NO_POOL)
    }

    /// Visible pages were found used since the last look (in page tables, by whoever can read them). What
    /// is on its way out is left alone.
    pub fn accessed(&self, pfns: &[Pfn]) {
        let on_list = |pfn: &Pfn| self.frames.place(*pfn) == Place::Lru;
        let listed: Vec<Pfn> = pfns.iter().copied().filter(on_list).collect();
        self.order.accessed(&self.frames, &listed);
    }

    /// A cool page is visible again although nobody has touched it. Returns its place in the pool.
    pub fn uncool(&mut self, space: &mut Space, pfn: Pfn) -> u32 {
        self.frames.put(pfn, self.frames.place(pfn), Place::Lru);
        self.order.add(&self.frames, pfn);
        space.set(self.frames.get(pfn).vpn, Entry::Resident(pfn));
        self.frames.set_pool(pfn, NO_POOL)
    }

    /// The page, which was cool or isolated, is in the store now, and nowhere else. Returns its place in the pool.
    pub fn evict(&mut self, space: &mut Space, pfn: Pfn, slot: SlotId) -> u32 {
        let frame = self.frames.get(pfn);
        let shadow = self.order.evicted(&self.frames, pfn);
        space.set(frame.vpn, Entry::Stored { slot, shadow, loading: false });
        if frame.place == Place::Cool {
            self.frames.put(pfn, Place::Cool, Place::Isolated);
        }
        self.frames.free(pfn);
        frame.pool
    }

    /// A slot for a page about to be stored, with one share.
    pub fn take_slot(&mut self) -> Result<SlotId, NoSlot> {
        self.slots.allocate()
    }

    /// Replaces the stored copy that a frame remembers. The old one is returned if nobody else holds
    /// it: the store must drop it.
    pub fn set_copy(&mut self, pfn: Pfn, slot: Option<SlotId>) -> Option<SlotId> {
        let old = self.frames.set_slot(pfn, slot);
        old.filter(|&slot| self.slots.release(slot))
    }

    /// A load from the store begins: the page's entry waits, and the load holds a share of its own.
    pub fn begin_load(&mut self, space: &mut Space, vpn: Vpn, slot: SlotId) {
        self.slots.share(slot);
        set_loading(space, vpn, true);
    }

    /// The load has come to nothing: whoever touches the page starts another. Its share stays to be
    /// released.
    pub fn end_load(&mut self, space: &mut Space, vpn: Vpn) {
        set_loading(space, vpn, false);
    }

    /// Forgets what is at `vpn`. The stored copies and pool places that nobody holds any more go to
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
            Entry::Resident(pfn) | Entry::Cool(pfn) => {
                let frame = self.frames.get(pfn);
                if frame.pool != NO_POOL {
                    dropped.pool.push(frame.pool);
                }
                if let Some(slot) = frame.slot() {
                    self.release_slot(slot, dropped);
                }
                match frame.place {
                    Place::Lru => {
                        self.order.remove(&self.frames, pfn);
                        self.frames.put(pfn, Place::Lru, Place::Isolated);
                    }
                    Place::Isolated => {}
                    other => self.frames.put(pfn, other, Place::Isolated),
                }
                self.frames.free(pfn);
                dropped.frames += 1;
            }
            Entry::Stored { slot, .. } => self.release_slot(slot, dropped),
        }
    }

    /// One holder of the slot is gone.
    pub fn release_slot(&mut self, slot: SlotId, dropped: &mut Dropped) {
        if self.slots.release(slot) {
            dropped.slots.push(slot);
        }
    }

    /// Moves the pages of `[from, from + pages)` to `to` (mremap). What was at `to` is forgotten.
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
                Entry::Resident(pfn) | Entry::Cool(pfn) => self.frames.set_vpn(pfn, vpn),
                Entry::None | Entry::Stored { .. } => {}
            }
            // A load in flight for the old address finds the entry gone; whoever waits at the new
            // address starts another.
            let entry = match entry {
                Entry::Stored { slot, shadow, .. } => {
                    Entry::Stored { slot, shadow, loading: false }
                }
                other => other,
            };
            space.set(vpn, entry);
        }
    }

    /// A child gets the same pages, in memory and stored: every entry of the parent from `start` on that `passes`,
    /// up to `max` of them. Returns where to go on, None if that was all, and how many of them are in memory. The
    /// parent must stay as it is until then.
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
                held += u64::from(matches!(entry, Entry::Resident(_) | Entry::Cool(_)));
            }
        });
        (next, held)
    }

    fn inherit(&mut self, child: &mut Space, vpn: Vpn, entry: Entry) {
        let entry = match entry {
            Entry::Resident(pfn) | Entry::Cool(pfn) => {
                let frame = self.frames.get(pfn);
                let slot = frame.slot();
                if let Some(slot) = slot {
                    self.slots.share(slot);
                }
                let copy = self.frames.allocate(child.mm(), vpn, slot);
                self.frames.set_pool(copy, frame.pool);
                if let Entry::Cool(_) = entry {
                    self.frames.put(copy, Place::Isolated, Place::Cool);
                    Entry::Cool(copy)
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

    /// Walks everything and panics at the first broken invariant. For tests.
    pub fn check_invariants(&self, spaces: &[&Space], loads: &[SlotId]) {
        let mut shares = std::collections::HashMap::<u32, u32>::new();
        let mut owned = 0;
        for space in spaces {
            space.for_each(|vpn, entry| match entry {
                Entry::Resident(pfn) | Entry::Cool(pfn) => {
                    let frame = self.frames.get(pfn);
                    assert_eq!(
                        (frame.mm, frame.vpn),
                        (space.mm(), vpn),
                        "RESIDENT-1: owner of {pfn:?}"
                    );
                    let cool = matches!(entry, Entry::Cool(_));
                    let hidden = matches!(frame.place, Place::Cool | Place::Barren);
                    assert_eq!(cool, hidden, "RESIDENT-4: place of {pfn:?}");
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

/// What nobody holds any more; the driver must let it go in the store (and then recycle the slots) and
/// in the pool.
#[derive(Debug, Default)]
pub struct Dropped {
    /// Slots without a share left.
    pub slots: Vec<SlotId>,
    /// Places in the owner's pool whose pages are of no more use.
    pub pool: Vec<u32>,
    /// How many pages in memory have gone.
    pub frames: u64,
}

#[cfg(test)]
mod tests;
