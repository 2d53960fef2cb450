//! `ebb run` on the simulated machine: the engine's facade, driven as the pager drives it.
//!
//! Owns the memory of a machine with `[machine.live]`: anonymous pages alone, in one budget, under
//! [`Engine`]. The engine learns of use by moving pages to standby. This file repeats the part of
//! the pager's work that decides which pages are in memory:
//! * areas come under management near the limit;
//! * a fault in a sequential pass also brings in the pages ahead of it;
//! * a page that was stored counts as memory until the agent has dropped it;
//! * compressed memory counts in the budget;
//! * the oldest pages for which compressed memory has no room go to a file.
//!
//! [`LiveSpec`] has the costs. The scheduler decides which thread waits, as for any fault.
//!
//! Invariants
//! * LIVE-1: the zone counts pages in memory, pending discards, and compressed memory. Pages in
//!   memory count also before they are managed. `check` tests this at the end of a run.
//! * LIVE-2: a slot is in compressed memory (near), in the file (far), or free. The slot of a
//!   stored page is never free.

use std::collections::{HashMap, VecDeque};

use ebb_mm::driver::{
    BESIDE_MAX, EDGE_SHARE, FRESH_AHEAD_MAX, NO_PROGRESS_MS, READAHEAD_MAX, WEIGH_MS, managed_from,
    window_max,
};
use ebb_mm::engine::{BATCH, Did, Do, Engine, Evidence, Loads, Seen};
use ebb_mm::observe::vmstat::{Event, VmStat};
use ebb_mm::readahead::Window;
use ebb_mm::reclaim::{RequestResult, WakeRequests};
use ebb_mm::resident::{Arrival, Charge, Dropped, Entry, FrameState, Space, Split};
use ebb_mm::tunables::Tunables;
use ebb_mm::types::{Pfn, SlotId, Vpn};
use schemars::JsonSchema;
use serde::Deserialize;

use super::check::BooksError;
use super::device::Device;
use super::mem::Fault;
use crate::value::ValueError;

/// A run under Ebb: the tiers of the store, and the times that the pager's work takes.
///
/// The default times are assumptions of the model, not measurements.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LiveSpec {
    /// Whether Ebb manages the machine's memory. If not, a kernel does, as without this table.
    pub on: bool,
    /// Largest share of the budget for compressed memory; 0: there is no such tier. Without a file
    /// the share is fixed, as in a run with `--swap ram:SIZE`.
    pub compressed: f64,
    /// Pages of data in a page of compressed memory.
    pub ratio: f64,
    /// Whether a file takes the pages for which compressed memory has no room. `machine.swap` is
    /// its device.
    pub file: bool,
    /// Time of a fault on a new page of zeros, from the access to its end, in nanoseconds.
    pub fresh_ns: u64,
    /// Time of a fault that reactivates a standby page, in nanoseconds.
    pub reactivate_ns: u64,
    /// Time of a fault that loads a page from compressed memory, in nanoseconds.
    pub near_ns: u64,
    /// Time of a fault that loads a page from a file, without the device's time, in nanoseconds.
    pub far_ns: u64,
    /// Time for each page placed together with the page of the fault, in nanoseconds.
    pub beside_ns: u64,
    /// Time to send a batch of pages to an agent and get the answer, in nanoseconds.
    pub batch_ns: u64,
    /// Time to move one page to standby, in nanoseconds.
    pub standby_ns: u64,
    /// Time to read and store one standby page, in nanoseconds.
    pub store_ns: u64,
    /// Time to drop one page from the pool after it was stored or taken back, in nanoseconds.
    pub drop_ns: u64,
}

impl LiveSpec {
    /// Checks the values.
    ///
    /// # Errors
    /// Returns which value makes no sense, and the range expected.
    pub fn check(&self) -> Result<(), ValueError> {
        if !(0.0..=0.875).contains(&self.compressed) {
            let range = "a share from 0 to 0.875";
            return Err(ValueError::Number("compressed", self.compressed, range));
        }
        if !(1.0..=100.0).contains(&self.ratio) {
            return Err(ValueError::Number("ratio", self.ratio, "1 to 100 pages in a page"));
        }
        if self.on && self.compressed == 0.0 && !self.file {
            return Err(ValueError::Rule(
                "on",
                "expected a place for pages; set compressed or file",
            ));
        }
        Ok(())
    }
}

impl Default for LiveSpec {
    fn default() -> Self {
        Self {
            on: false,
            compressed: 0.5,
            ratio: 3.0,
            file: true,
            fresh_ns: 12_000,
            reactivate_ns: 15_000,
            near_ns: 22_000,
            far_ns: 50_000,
            beside_ns: 1_500,
            batch_ns: 20_000,
            standby_ns: 700,
            store_ns: 5_000,
            drop_ns: 300,
        }
    }
}

/// Assumed mean number of adjacent pool slots that the agent drops by one call. Pages that leave
/// together lie in adjacent slots.
const STRETCH: u64 = 4;
/// Nanoseconds until a fault that found no memory is tried again.
const RETRY_NS: u64 = 50_000;
/// Why Ebb ends a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GivenUp {
    /// Memory runs out.
    #[error("out of memory: nothing more can be stored")]
    OutOfMemory,
    /// The working set must stay in memory.
    #[error("thrashing: the pages used in the last gen.min_ttl_ms do not fit in the limit")]
    Thrashing,
}

/// Nanoseconds in a millisecond.
const MS: u64 = 1_000_000;

/// The part of a page's state that the engine does not keep.
#[derive(Clone, Copy, Default, Debug)]
struct Page {
    /// The page is in memory and not managed yet.
    plain: bool,
    /// The page was written since it was last loaded.
    written: bool,
}

/// Location of a stored page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kept {
    Free,
    /// In compressed memory. Number of pages put there until then, with this one.
    Near(u64),
    /// In the file. Number of pages that had left compressed memory by then.
    Far(u64),
}

/// Next action of kswapd.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// kswapd goes on with its work after so many nanoseconds.
    Work(u64),
    /// kswapd sleeps until a task wakes it, but no longer than a nap (`NAP_MS`).
    Nap,
    /// kswapd sleeps until a task wakes it.
    Sleep,
}

/// Memory under Ebb.
#[derive(Debug)]
pub struct Live {
    spec: LiveSpec,
    engine: Engine,
    wake_requests: WakeRequests,
    spaces: Vec<Space>,
    pages: Vec<Vec<Page>>,
    /// Time at which each page that is being read will be in memory. It is `u64::MAX` until the
    /// read is submitted.
    ready_ns: HashMap<(usize, u64), u64>,
    managing: bool,
    memory_stalled: bool,
    /// Pool slots whose pages are no longer needed and not dropped yet.
    pending_discards: u64,
    tiers: Tiers,
    weighed_ns: u64,
    /// Time of the first out-of-memory order since a page was last stored.
    no_progress_since_ns: Option<u64>,
}

/// Compressed memory, and the file behind it.
#[derive(Debug)]
struct Tiers {
    kept: Vec<Kept>,
    /// Slots in compressed memory, each with the number in its [`Kept::Near`], the oldest first.
    /// Entries of slots that have left compressed memory are skipped.
    queue: VecDeque<(SlotId, u64)>,
    near: u64,
    /// Most pages of memory that compressed memory may take.
    limit: f64,
    ratio: f64,
    file: bool,
    puts: u64,
    demotions: u64,
    loads: Loads,
    place: u64,
}

impl Tiers {
    /// Returns the pages of memory that compressed memory takes.
    fn arena(&self) -> u64 {
        (self.near as f64 / self.ratio).ceil() as u64
    }

    fn at(&mut self, slot: SlotId) -> &mut Kept {
        let at = slot.0 as usize;
        if self.kept.len() <= at {
            self.kept.resize(at + 1, Kept::Free);
        }
        &mut self.kept[at]
    }

    /// Stores a page. Returns false if no tier takes it.
    fn put(&mut self, slot: SlotId) -> bool {
        if self.limit >= 1.0 {
            self.puts += 1;
            let seq = self.puts;
            *self.at(slot) = Kept::Near(seq);
            self.queue.push_back((slot, seq));
            self.near += 1;
            return true;
        }
        if self.file {
            *self.at(slot) = Kept::Far(self.demotions);
        }
        self.file
    }

    fn is_full(&self) -> bool {
        self.near as f64 / self.ratio >= self.limit
    }

    /// Moves the oldest pages to the file while compressed memory exceeds its limit. Returns the
    /// number of pages moved.
    fn demote(&mut self) -> u64 {
        let mut written = 0;
        while self.file && self.near as f64 / self.ratio > self.limit {
            let Some((slot, seq)) = self.queue.pop_front() else { break };
            if *self.at(slot) == Kept::Near(seq) {
                self.demotions += 1;
                *self.at(slot) = Kept::Far(self.demotions);
                self.near -= 1;
                written += 1;
            }
        }
        written
    }

    /// Counts the read of a page. Returns whether the page is in compressed memory.
    fn read(&mut self, slot: SlotId) -> bool {
        let edge = self.near.div_ceil(u64::from(EDGE_SHARE));
        match *self.at(slot) {
            Kept::Near(seq) => {
                self.loads.compressed += 1;
                self.loads.compressed_edge += u64::from(seq + edge > self.puts);
                true
            }
            Kept::Far(seq) => {
                self.loads.far += 1;
                self.loads.far_edge += u64::from(seq > 0 && seq + edge > self.demotions);
                false
            }
            Kept::Free => unreachable!("LIVE-2"),
        }
    }

    fn forget(&mut self, slot: SlotId) {
        let old = std::mem::replace(self.at(slot), Kept::Free);
        self.near -= u64::from(matches!(old, Kept::Near(_)));
    }
}

impl Live {
    /// Creates memory with a budget of `limit` pages.
    #[must_use]
    pub fn new(spec: &LiveSpec, limit: u64, tunables: Tunables) -> Self {
        let most = (limit as f64 * spec.compressed) as u64;
        let split = (spec.file && most > 0).then(|| Split::new(limit << 12, most << 12));
        let engine = Engine::new(limit, limit, tunables, Evidence::Standby).with_split(split);
        let tiers = Tiers {
            kept: Vec::new(),
            queue: VecDeque::new(),
            near: 0,
            limit: most as f64,
            ratio: spec.ratio,
            file: spec.file,
            puts: 0,
            demotions: 0,
            loads: Loads::default(),
            place: 0,
        };
        Self {
            spec: spec.clone(),
            engine,
            wake_requests: WakeRequests::new(),
            spaces: Vec::new(),
            pages: Vec::new(),
            ready_ns: HashMap::new(),
            managing: false,
            memory_stalled: false,
            pending_discards: 0,
            tiers,
            weighed_ns: 0,
            no_progress_since_ns: None,
        }
    }

    /// Adds an address space of `pages` pages.
    pub fn add_space(&mut self, pages: u64) {
        let mut space = self.engine.create_space(Vpn(pages));
        let limit = self.engine.set.zone.limit();
        space.set_window(window_max(limit, READAHEAD_MAX));
        self.spaces.push(space);
        self.pages.push(vec![Page::default(); pages as usize]);
    }

    /// Returns the counts of pages loaded from compressed memory and from the file.
    #[must_use]
    pub fn loads(&self) -> Loads {
        self.tiers.loads
    }

    /// Touches a page that is in memory. Returns false if it is not.
    #[inline]
    pub fn touch(&mut self, space: usize, page: u64, writes: bool, now: u64) -> bool {
        let plain = self.pages[space][page as usize].plain;
        if !plain {
            if !matches!(self.spaces[space].get(Vpn(page)), Entry::Resident(_)) {
                return false;
            }
            if !self.ready_ns.is_empty()
                && let Some(&ready) = self.ready_ns.get(&(space, page))
            {
                if ready > now {
                    return false;
                }
                self.ready_ns.remove(&(space, page));
            }
        }
        self.pages[space][page as usize].written |= writes;
        true
    }

    /// Makes a page available that [`touch`](Self::touch) did not find. `end` is the end of the
    /// page's region, `swap` the file's device. `plain_ns` is the cost of a fault before Ebb
    /// manages memory. Returns the outcome, and whether kswapd is to be woken.
    pub(super) fn fault(
        &mut self,
        now: u64,
        (space, page, end): (usize, u64, u64),
        writes: bool,
        swap: Option<&mut Device>,
        stat: &VmStat,
        plain_ns: u64,
    ) -> (Fault, bool) {
        let vpn = Vpn(page);
        let entry = self.spaces[space].get(vpn);
        if let (Entry::Resident(_), Some(&ready)) = (entry, self.ready_ns.get(&(space, page))) {
            return (Fault::Wait { until_ns: ready.max(now), cost_ns: 0 }, false);
        }
        if !self.managing && self.is_near() {
            self.manage();
        }
        if !self.managing {
            stat.add(Event::PgFault, 1);
            self.engine.set.zone.add_resident(1);
            self.pages[space][page as usize] = Page { plain: true, written: true };
            return (Fault::Done(plain_ns), false);
        }
        let charge = self.engine.set.zone.try_charge(1, 0);
        let wake = charge.is_none() || self.engine.set.zone.is_low();
        let wake = wake && self.engine.request_wake(&self.wake_requests) != RequestResult::LetSleep;
        let Some(charge) = charge else {
            self.memory_stalled = true;
            return (Fault::Wait { until_ns: now + RETRY_NS, cost_ns: 0 }, wake);
        };
        self.memory_stalled = false;
        stat.add(Event::PgFault, 1);
        let window = self.spaces[space].miss(vpn);
        let (mut cost, mut ready) = (0, now);
        match entry {
            Entry::None => {
                self.place(space, vpn, Arrival::Fresh, None, charge);
                cost += self.spec.fresh_ns + self.fresh_beside((space, vpn, end), window);
            }
            Entry::Standby(pfn) => {
                self.engine.set.zone.place(charge);
                self.engine.set.reactivate(&mut self.spaces[space], pfn);
                self.pending_discards += 1;
                stat.add(Event::PgActivate, 1);
                cost += self.spec.reactivate_ns;
            }
            Entry::Stored { slot, .. } => {
                stat.add(Event::PgMajFault, 1);
                stat.add(Event::PswpIn, 1);
                let near = self.load(space, vpn, slot, Arrival::Loaded, charge);
                cost += if near { self.spec.near_ns } else { self.spec.far_ns };
                if !near {
                    ready = now + cost;
                }
            }
            Entry::Resident(_) => unreachable!("it would have been touched"),
        }
        let far = usize::from(ready > now) + self.bring(space, vpn, window, &mut cost);
        let state = &mut self.pages[space][page as usize];
        // A page on standby is still the one that was written.
        let was_written = state.written && matches!(entry, Entry::Standby(_));
        state.written = writes || was_written || matches!(entry, Entry::None);
        if far > 0
            && let Some(swap) = swap
        {
            let done = swap.submit(now + cost, false, self.tiers.place, far as u64);
            self.tiers.place += 2 + far as u64;
            let late = self.ready_ns.values_mut().filter(|ready| **ready == u64::MAX);
            late.for_each(|ready| *ready = done);
            if ready > now {
                self.ready_ns.insert((space, page), done);
                return (Fault::Wait { until_ns: done, cost_ns: cost }, wake);
            }
        }
        (Fault::Done(cost), wake)
    }

    /// Returns whether the limit is so near that areas are managed.
    fn is_near(&self) -> bool {
        let zone = &self.engine.set.zone;
        zone.used() > managed_from(zone.limit())
    }

    /// Takes all pages in memory under management, in the order of addresses.
    fn manage(&mut self) {
        self.managing = true;
        for (space, pages) in self.spaces.iter_mut().zip(&mut self.pages) {
            for (vpn, page) in (0..).map(Vpn).zip(pages).filter(|(_, page)| page.plain) {
                page.plain = false;
                self.engine.set.map(space, vpn, Arrival::Adopted, None);
            }
        }
    }

    fn place(
        &mut self,
        space: usize,
        vpn: Vpn,
        how: Arrival,
        slot: Option<SlotId>,
        charge: Charge,
    ) {
        self.engine.set.zone.place(charge);
        self.engine.set.map(&mut self.spaces[space], vpn, how, slot);
    }

    /// Maps a stored page. A page from the file is still to be read. Returns whether the page was
    /// in compressed memory.
    fn load(&mut self, space: usize, vpn: Vpn, slot: SlotId, how: Arrival, charge: Charge) -> bool {
        let near = self.tiers.read(slot);
        // A page from compressed memory keeps no copy there. The copy would take room from pages
        // that have no other copy.
        self.place(space, vpn, how, (!near).then_some(slot), charge);
        self.pages[space][vpn.0 as usize].written = false;
        if near {
            let mut dropped = Dropped::default();
            self.engine.set.release_slot(slot, &mut dropped);
            self.discard(&dropped);
        }
        near
    }

    /// Places the next pages of a pass over fresh memory. Returns the cost in nanoseconds.
    fn fresh_beside(&mut self, (space, vpn, end): (usize, Vpn, u64), window: Window) -> u64 {
        if window.down {
            return 0;
        }
        let fresh = |at: &Vpn| at.0 < end && self.spaces[space].get(*at) == Entry::None;
        let pages: Vec<Vpn> = window.pages(vpn).take(FRESH_AHEAD_MAX).take_while(fresh).collect();
        let mut charge = self.engine.set.zone.charge_spare(pages.len() as u64);
        let placed = charge.pages();
        for &at in &pages[..placed as usize] {
            let one = charge.split(1);
            self.place(space, at, Arrival::Ahead, None, one);
            self.pages[space][at.0 as usize].written = true;
        }
        placed * self.spec.beside_ns
    }

    /// Brings in the standby and stored pages of a window. Adds the cost to `cost`. Returns how
    /// many pages are to be read from the file.
    fn bring(&mut self, space: usize, vpn: Vpn, window: Window, cost: &mut u64) -> usize {
        let pages = self.pages[space].len() as u64;
        let (mut standby, mut far) = (0, 0);
        for at in window.pages(vpn).filter(|at| at.0 < pages) {
            let entry = self.spaces[space].get(at);
            let wanted = matches!(entry, Entry::Stored { .. })
                || matches!(entry, Entry::Standby(_)) && standby < BESIDE_MAX;
            if !wanted {
                continue;
            }
            let charge = self.engine.set.zone.charge_spare(1);
            if charge.pages() == 0 {
                self.spaces[space].cut(vpn, window, at);
                break;
            }
            match entry {
                Entry::Standby(pfn) => {
                    self.engine.set.zone.place(charge);
                    self.engine.set.activate(&mut self.spaces[space], pfn);
                    self.pending_discards += 1;
                    standby += 1;
                }
                Entry::Stored { slot, .. } => {
                    if !self.load(space, at, slot, Arrival::Ahead, charge) {
                        self.ready_ns.insert((space, at.0), u64::MAX);
                        far += 1;
                    }
                }
                Entry::None | Entry::Resident(_) => unreachable!("not wanted"),
            }
            *cost += self.spec.beside_ns;
        }
        far
    }

    /// Carries out one order of the engine.
    ///
    /// # Errors
    /// The reason why the run ends: nothing was stored for [`NO_PROGRESS_MS`], or only the working
    /// set is left.
    pub(super) fn step(
        &mut self,
        now: u64,
        swap: Option<&mut Device>,
        stat: &VmStat,
    ) -> Result<Next, GivenUp> {
        self.engine.set.set_now_ms(now / 1_000_000);
        if now >= self.weighed_ns + WEIGH_MS * MS {
            self.weighed_ns = now;
            let ratio_permille = (self.tiers.ratio * 1000.0) as u64;
            if let Some(limit) =
                self.engine.note_loads(Loads { ratio_permille, ..self.tiers.loads })
            {
                self.tiers.limit = limit as f64 / 4096.0;
            }
        }
        let seen = Seen { memory_stalled: self.memory_stalled, lacks_copy_room: false };
        let mut pages: Vec<Pfn> = Vec::new();
        let order = self.engine.next(&self.wake_requests, seen);
        let (done, cost) = match order {
            Do::ToStandby(max) => {
                self.engine.isolate(max, &mut pages);
                for &pfn in &pages {
                    let space = self.space_of(pfn);
                    self.engine.set.deactivate(&mut self.spaces[space], pfn, 0);
                }
                stat.add(Event::PgDeactivate, pages.len() as u64);
                (pages.len() as u64, self.spec.batch_ns + pages.len() as u64 * self.spec.standby_ns)
            }
            Do::Store(max) => {
                self.engine.oldest_standby(max, &mut pages);
                let cost = pages.len() as u64 * self.spec.store_ns;
                (self.store(now, &pages, swap, stat), cost)
            }
            Do::Drop(least) => {
                let gone =
                    if self.pending_discards >= least as u64 { self.discard_pending() } else { 0 };
                let batch = if gone > 0 { self.spec.batch_ns } else { 0 };
                (gone, batch + gone * self.spec.drop_ns)
            }
            Do::OutOfMemory => {
                // Keeps the node from counting as hopeless, because no task reclaims in kswapd's
                // place.
                self.wake_requests.progress();
                self.engine.set.retry_unstorable(u64::MAX);
                let since = *self.no_progress_since_ns.get_or_insert(now);
                let given_up = self.memory_stalled && now > since + NO_PROGRESS_MS * MS;
                return if given_up {
                    Err(GivenUp::OutOfMemory)
                } else {
                    Ok(Next::Work(1_000_000))
                };
            }
            Do::Thrashing => return Err(GivenUp::Thrashing),
            Do::Again => {
                let gone = self.discard_pending();
                return Ok(Next::Work(1_000 + gone * self.spec.drop_ns));
            }
            Do::Nap => return Ok(Next::Nap),
            Do::Sleep => return Ok(Next::Sleep),
        };
        // Only a store counts as progress. Moves to standby and drops may go on for ever with pages
        // that threads take back.
        if matches!(order, Do::Store(_)) && done > 0 {
            self.no_progress_since_ns = None;
        }
        self.engine.did(Did { pages: done, scanned: pages.len() as u64, progress: done });
        Ok(Next::Work(cost.max(1_000)))
    }

    /// Drops pages of pending discards, as many as one batch of the agent drops. Returns their
    /// number.
    fn discard_pending(&mut self) -> u64 {
        let gone = self.pending_discards.min(BATCH as u64 * STRETCH);
        self.pending_discards -= gone;
        self.engine.set.zone.remove_resident(gone);
        gone
    }

    fn space_of(&self, pfn: Pfn) -> usize {
        let mm = self.engine.set.frame(pfn).mm;
        self.spaces.iter().position(|space| space.mm() == mm).expect("every frame has an owner")
    }

    /// Stores standby pages. Returns how many were stored.
    fn store(&mut self, now: u64, pages: &[Pfn], swap: Option<&mut Device>, stat: &VmStat) -> u64 {
        let before = self.tiers.arena();
        let mut stored = 0;
        for &pfn in pages {
            let frame = self.engine.set.frame(pfn);
            let space = self.space_of(pfn);
            let written = self.pages[space][frame.vpn.0 as usize].written;
            let slot = match frame.slot().filter(|_| !written) {
                Some(slot) => slot,
                None => {
                    let slot = self.engine.set.take_slot().expect("slots have no end");
                    if self.tiers.is_full() && !self.tiers.file || !self.tiers.put(slot) {
                        let mut dropped = Dropped::default();
                        self.engine.set.release_slot(slot, &mut dropped);
                        self.discard(&dropped);
                        self.engine.set.leave_unstorable(pfn);
                        continue;
                    }
                    stat.add(Event::PswpOut, 1);
                    let old = self.engine.set.set_copy(pfn, None);
                    self.discard(&Dropped {
                        slots: old.into_iter().collect(),
                        ..Dropped::default()
                    });
                    slot
                }
            };
            self.engine.set.evict(&mut self.spaces[space], pfn, slot);
            self.pending_discards += 1;
            stored += 1;
        }
        let written = self.tiers.demote();
        if written > 0
            && let Some(swap) = swap
        {
            swap.submit(now, true, self.tiers.place, written);
            self.tiers.place += 2 + written;
        }
        self.settle_arena(before);
        stat.add(Event::PgStealKswapd, stored);
        stat.add(Event::PgStealAnon, stored);
        stored
    }

    /// Frees slots that no page refers to any more.
    fn discard(&mut self, dropped: &Dropped) {
        let before = self.tiers.arena();
        for &slot in &dropped.slots {
            self.tiers.forget(slot);
            self.engine.set.slots.recycle(slot);
        }
        self.settle_arena(before);
    }

    /// Corrects the zone's count after compressed memory has grown or shrunk from `before` pages.
    fn settle_arena(&mut self, before: u64) {
        let after = self.tiers.arena();
        let zone = &mut self.engine.set.zone;
        zone.add_resident(after.saturating_sub(before));
        zone.remove_resident(before.saturating_sub(after));
    }

    /// Frees pages that the program gives back. Returns their number.
    pub fn free(&mut self, space: usize, page: u64, pages: u64) -> u64 {
        let mut dropped = Dropped::default();
        let end = (page + pages).min(self.pages[space].len() as u64);
        self.engine.set.forget_range(&mut self.spaces[space], Vpn(page), Vpn(end), &mut dropped);
        let its = &mut self.pages[space][page as usize..end as usize];
        let plain = its.iter().filter(|page| page.plain).count() as u64;
        its.fill(Page::default());
        self.ready_ns.retain(|&(of, at), _| of != space || !(page..end).contains(&at));
        self.engine.set.zone.remove_resident(dropped.frames + plain);
        let freed = dropped.frames + plain + dropped.slots.len() as u64;
        self.discard(&dropped);
        freed
    }

    /// Returns the number of pages of a space in memory or stored.
    #[must_use]
    pub fn holds(&self, space: usize) -> u64 {
        let mut pages = self.pages[space].iter().filter(|page| page.plain).count() as u64;
        self.spaces[space].for_each(|_, _| pages += 1);
        pages
    }

    /// Checks that the counts agree (LIVE-1, LIVE-2).
    ///
    /// # Errors
    /// Returns which counts do not agree.
    pub fn check(&self) -> Result<(), BooksError> {
        let spaces: Vec<&Space> = self.spaces.iter().collect();
        self.engine.set.check_invariants(&spaces, &[]);
        let plain = self.pages.iter().flatten().filter(|page| page.plain).count() as u64;
        let frames = self.engine.set.frames_in_use() as u64;
        let known = plain + frames + self.pending_discards + self.tiers.arena();
        let held = self.engine.set.zone.resident();
        if held != known {
            return Err(BooksError::Budget(held, known));
        }
        let slots = self.tiers.kept.iter().filter(|kept| matches!(kept, Kept::Near(_))).count();
        if slots as u64 != self.tiers.near {
            return Err(BooksError::Near(self.tiers.near, slots));
        }
        Ok(())
    }

    /// Returns the number of frames that the budget has left.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.engine.set.zone.free()
    }

    /// Returns the number of standby pages.
    #[must_use]
    pub fn standby_pages(&self) -> u64 {
        self.engine.set.count(FrameState::Standby)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Scripted, machine};
    use super::super::{Access, Machine, Region, Stuck};
    use super::*;
    use crate::workload::Step;
    use ebb_mm::space::Backing;

    /// Builds a machine with `limit` pages of memory under Ebb, and the steps of one program. The
    /// program writes each of `pages` and then reads each.
    fn run(limit: u64, pages: u32, spec: &LiveSpec) -> (Machine, Vec<Step>) {
        run_with(Evidence::Standby.tunables(), limit, pages, spec)
    }

    fn run_with(
        tunables: Tunables,
        limit: u64,
        pages: u32,
        spec: &LiveSpec,
    ) -> (Machine, Vec<Step>) {
        let mut m = machine();
        m.mem.live = Some(Box::new(Live::new(spec, limit, tunables)));
        let anon = Backing::Anon;
        let region =
            Region { pages: pages.into(), backing: anon, recency: true, exec: false, processes: 1 };
        m.mem.add_space(0, &[]);
        let space = m.mem.add_space(0, &[region]) as u16;
        // The machine has a space from before `live` was set. So `live` gets its spaces anew, one
        // for each of the machine's.
        m.mem.live.as_mut().expect("it is live").spaces.clear();
        m.mem.live.as_mut().expect("it is live").pages.clear();
        for _ in 0..=space {
            m.mem.live.as_mut().expect("it is live").add_space(pages.into());
        }
        let touch = |access| (0..pages).map(move |page| Step::Touch { page, space, access });
        (m, touch(Access::Write).chain(touch(Access::Read)).collect())
    }

    #[test]
    fn twice_the_memory_is_stored_and_loaded_and_the_counts_agree() {
        let spec =
            LiveSpec { on: true, file: false, compressed: 0.5, ratio: 4.0, ..LiveSpec::default() };
        let (mut m, steps) = run(2000, 3600, &spec);
        m.add_thread(Box::new(Scripted(vec![steps])), 1, true);
        let (outcome, mut mem, now) = m.run().expect("it ends");
        mem.check(now).expect("the counts agree");
        let count = |name| outcome.counters.iter().find(|(of, _)| *of == name).expect("counted").1;
        let loads = mem.live.as_ref().expect("it is live").loads();
        assert!(loads.compressed >= 1600 && loads.far == 0, "{loads:?}");
        assert!(count("pgsteal_kswapd") >= loads.compressed, "what was loaded had left");
        // In a sequential pass a fault loads most pages together with its own page.
        assert!(
            count("pswpin") * 4 < loads.compressed,
            "{} of {} touched",
            count("pswpin"),
            loads.compressed
        );
    }

    /// Shows that a written page that a read brings back from standby is still written. Its next
    /// eviction took the copy in the file for the page, without a write.
    #[test]
    fn a_written_page_that_a_read_reactivates_is_still_written() {
        let spec = LiveSpec { on: true, ..LiveSpec::default() };
        let mut live = Live::new(&spec, 2000, Evidence::Standby.tunables());
        live.add_space(100);
        live.managing = true;
        let stat = VmStat::default();
        let fault = |live: &mut Live, writes| live.fault(0, (0, 7, 100), writes, None, &stat, 0);
        fault(&mut live, true);
        let mut leaving = Vec::new();
        live.engine.set.isolate_hard(1, &mut leaving);
        live.engine.set.deactivate(&mut live.spaces[0], leaving[0], 0);
        fault(&mut live, false);
        assert!(live.pages[0][7].written);
    }

    /// Pages moved to standby and taken back are no progress. If they counted, the run would not
    /// end.
    #[test]
    fn a_run_with_a_full_store_ends_as_out_of_memory() {
        let spec =
            LiveSpec { on: true, file: false, compressed: 0.1, ratio: 2.0, ..LiveSpec::default() };
        let (mut m, steps) = run(2000, 3600, &spec);
        m.add_thread(Box::new(Scripted(vec![steps])), 1, true);
        let error = m.run().expect_err("there is no room");
        assert!(matches!(error, Stuck::GivenUp(GivenUp::OutOfMemory, _)), "{error}");
    }

    /// Shows that a run whose working set must stay ends with that reason, and not as one with a
    /// full store.
    #[test]
    fn a_run_whose_working_set_must_stay_ends_as_thrashing() {
        let spec = LiveSpec { on: true, file: true, ..LiveSpec::default() };
        let mut tunables = Evidence::Standby.tunables();
        tunables.mglru.min_ttl_ms = 3_600_000;
        let (mut m, steps) = run_with(tunables, 2000, 3600, &spec);
        m.add_thread(Box::new(Scripted(vec![steps])), 1, true);
        let error = m.run().expect_err("no page may leave");
        assert!(matches!(error, Stuck::GivenUp(GivenUp::Thrashing, _)), "{error}");
    }
}
