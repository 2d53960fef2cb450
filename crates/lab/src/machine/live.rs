//! `ebb run` on the simulated machine: the engine's facade, driven as the pager drives it.
//!
//! Owns the memory of a machine whose `[machine.live]` says so: anonymous pages alone, in one budget, under
//! [`Engine`], which is told of use by cooling. What the pager does around it is here as far as it decides what is in
//! memory: areas come under management near the limit, faults bring back what lies ahead of a pass, what is cool is
//! memory until it was dropped, compressed memory counts, and what it has no room for goes to a file, the oldest first.
//! What it costs is [`LiveSpec`]; who waits is the scheduler's business, as for any fault.
//!
//! Invariants
//! * LIVE-1: what the zone holds is pages in memory (also before they are managed), places in the pool that were not dropped,
//!   and compressed memory: checked at the end of a run.
//! * LIVE-2: a slot is near, far, or free; every stored page has one that is not free.

use std::collections::{HashMap, VecDeque};

use ebb_mm::engine::{BATCH, Did, Do, Engine, Evidence, Loads, Seen};
use ebb_mm::observe::vmstat::{Event, VmStat};
use ebb_mm::readahead::Window;
use ebb_mm::reclaim::{Asked, Desk};
use ebb_mm::resident::{Arrival, Charge, Dropped, Entry, Place, Space, Split};
use ebb_mm::tunables::Tunables;
use ebb_mm::types::{Pfn, SlotId, Vpn};
use schemars::JsonSchema;
use serde::Deserialize;

use super::device::Device;
use super::mem::Fault;

/// How a program is run under Ebb: its tiers, and what the pager's work takes.
///
/// Times are of a two-core virtual machine, as `docs/results.md` has them.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LiveSpec {
    /// The machine is run under Ebb. Off: it has a kernel, as without this table.
    pub on: bool,
    /// Most of the budget that compressed memory has, as a share; 0: no such tier. Without a file it is not more than that,
    /// either, as in a run with `--swap ram:SIZE`.
    pub compressed: f64,
    /// Pages in a page of compressed memory.
    pub ratio: f64,
    /// There is a file behind it (`machine.swap` says how fast).
    pub file: bool,
    /// A page of zeros, from touch to touch.
    pub fresh_ns: u64,
    /// A cool page, brought back.
    pub rescue_ns: u64,
    /// A page from compressed memory.
    pub near_ns: u64,
    /// A page from a file, beside the device.
    pub far_ns: u64,
    /// Each page placed beside another.
    pub beside_ns: u64,
    /// A batch of pages for an agent, there and back.
    pub batch_ns: u64,
    /// Moving one page out of sight.
    pub cool_ns: u64,
    /// Reading and storing one cool page.
    pub store_ns: u64,
    /// Dropping one.
    pub drop_ns: u64,
}

impl LiveSpec {
    /// Whether it makes sense.
    ///
    /// # Errors
    /// What does not, and what is expected.
    pub fn check(&self) -> Result<(), String> {
        if !(0.0..=0.875).contains(&self.compressed) {
            return Err(format!(
                "compressed = {}: expected a share from 0 to 0.875",
                self.compressed
            ));
        }
        if !(1.0..=100.0).contains(&self.ratio) {
            return Err(format!("ratio = {}: expected 1 to 100 pages in a page", self.ratio));
        }
        if self.on && self.compressed == 0.0 && !self.file {
            return Err("on: there is nowhere to store pages; set compressed or file".into());
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
            rescue_ns: 15_000,
            near_ns: 22_000,
            far_ns: 50_000,
            beside_ns: 1_500,
            batch_ns: 20_000,
            cool_ns: 700,
            store_ns: 5_000,
            drop_ns: 300,
        }
    }
}

/// Nothing is managed while more than that is free: 64 MiB, and an eighth of the limit.
const ROOM_PAGES: u64 = 16_384;
const ROOM_SHARE: u64 = 8;
/// Pages of zeros placed beside a touched one, and pages brought back beside one.
const FRESH_AHEAD_MAX: usize = 15;
const BESIDE_MAX: usize = 16;
/// Pages in a stretch of the pool that is dropped by one call, on average: what leaves together lies together.
const STRETCH: u64 = 4;
/// How soon a touch that found no memory is looked at again.
const RETRY_NS: u64 = 50_000;
/// How long nothing may be stored, with threads waiting for memory, before the run is given up.
const HOPELESS_NS: u64 = 2_000_000_000;
/// How often it is looked where pages come from.
const WEIGH_NS: u64 = 100_000_000;
/// The newest of so many parts of compressed memory counts as its edge.
const EDGE_SHARE: u64 = 8;

/// What the machine knows of a page beside the engine.
#[derive(Clone, Copy, Default, Debug)]
struct Page {
    /// In memory, and not managed yet.
    plain: bool,
    /// Written since it was last loaded.
    written: bool,
}

/// Where a stored page is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kept {
    Free,
    /// In compressed memory, since this many were put there.
    Near(u64),
    /// In the file, since this many left compressed memory.
    Far(u64),
}

/// What kswapd does next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Next {
    /// Something, after so long.
    Work(u64),
    /// It sleeps, for a nap's time at most.
    Nap,
    /// It sleeps.
    Sleep,
}

/// Memory under Ebb.
#[derive(Debug)]
pub struct Live {
    spec: LiveSpec,
    engine: Engine,
    desk: Desk,
    spaces: Vec<Space>,
    pages: Vec<Vec<Page>>,
    /// When pages that are being read are here.
    ready_ns: HashMap<(usize, u64), u64>,
    managing: bool,
    starving: bool,
    /// Places in the pool whose pages are of no more use.
    retired: u64,
    tiers: Tiers,
    weighed_ns: u64,
    /// Since when nothing could be stored.
    vain_since_ns: Option<u64>,
}

/// Compressed memory, and the file behind it.
#[derive(Debug)]
struct Tiers {
    kept: Vec<Kept>,
    /// Slots in compressed memory in the order in which they came; those that are elsewhere by now are passed over.
    queue: VecDeque<(SlotId, u64)>,
    near: u64,
    /// Pages that may be in use for it.
    limit: f64,
    ratio: f64,
    file: bool,
    puts: u64,
    demotions: u64,
    loads: Loads,
    place: u64,
}

impl Tiers {
    /// Pages of memory that it takes.
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

    /// Stores a page. False if nothing takes it.
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

    /// Writes what compressed memory has no room for. How many pages that were.
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

    /// A page is read. Whether it is near.
    fn read(&mut self, slot: SlotId) -> bool {
        let edge = self.near.div_ceil(EDGE_SHARE);
        match *self.at(slot) {
            Kept::Near(seq) => {
                self.loads.near += 1;
                self.loads.near_edge += u64::from(seq + edge > self.puts);
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
    /// A budget of `limit` pages.
    #[must_use]
    pub fn new(spec: &LiveSpec, limit: u64, tunables: Tunables) -> Self {
        let most = (limit as f64 * spec.compressed) as u64;
        let split = (spec.file && most > 0).then(|| Split::new(limit << 12, most << 12));
        let engine = Engine::new(limit, limit, tunables, Evidence::Cooling).with_split(split);
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
            desk: Desk::new(),
            spaces: Vec::new(),
            pages: Vec::new(),
            ready_ns: HashMap::new(),
            managing: false,
            starving: false,
            retired: 0,
            tiers,
            weighed_ns: 0,
            vain_since_ns: None,
        }
    }

    /// Adds an address space of so many pages.
    pub fn add_space(&mut self, pages: u64) {
        let mut space = self.engine.create_space(Vpn(pages));
        let limit = self.engine.set.zone.limit();
        space.set_window((limit / 128).min(64) as u32);
        self.spaces.push(space);
        self.pages.push(vec![Page::default(); pages as usize]);
    }

    /// Pages loaded from compressed memory and from the file.
    #[must_use]
    pub fn loads(&self) -> Loads {
        self.tiers.loads
    }

    /// Touches a page that is there. False if it is not.
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

    /// Makes a page available that was not found. `end`: that of its region; `swap`: the file's device.
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
            self.engine.set.zone.found(1);
            self.pages[space][page as usize] = Page { plain: true, written: true };
            return (Fault::Done(plain_ns), false);
        }
        let charge = self.engine.set.zone.try_charge(1, 0);
        let wake = charge.is_none() || self.engine.set.zone.is_low();
        let wake = wake && self.engine.ask(&self.desk) != Asked::LetSleep;
        let Some(charge) = charge else {
            self.starving = true;
            return (Fault::Wait { until_ns: now + RETRY_NS, cost_ns: 0 }, wake);
        };
        self.starving = false;
        stat.add(Event::PgFault, 1);
        let window = self.spaces[space].miss(vpn);
        let (mut cost, mut ready) = (0, now);
        match entry {
            Entry::None => {
                self.place(space, vpn, Arrival::Fresh, None, charge);
                cost += self.spec.fresh_ns + self.fresh_beside((space, vpn, end), window);
            }
            Entry::Cool(pfn) => {
                self.engine.set.zone.place(charge);
                self.engine.set.rescue(&mut self.spaces[space], pfn);
                self.retired += 1;
                stat.add(Event::PgActivate, 1);
                cost += self.spec.rescue_ns;
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
        self.pages[space][page as usize].written = writes || matches!(entry, Entry::None);
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

    /// Whether the limit is so near that areas are managed.
    fn is_near(&self) -> bool {
        let zone = &self.engine.set.zone;
        zone.free() < ROOM_PAGES.max(zone.limit() / ROOM_SHARE)
    }

    /// What is there comes under management, in the order of addresses.
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

    /// Puts a stored page in place; one from the file is not here yet. Whether it was near.
    fn load(&mut self, space: usize, vpn: Vpn, slot: SlotId, how: Arrival, charge: Charge) -> bool {
        let near = self.tiers.read(slot);
        // A copy in compressed memory takes room from pages that have no other.
        self.place(space, vpn, how, (!near).then_some(slot), charge);
        self.pages[space][vpn.0 as usize].written = false;
        if near {
            let mut dropped = Dropped::default();
            self.engine.set.release_slot(slot, &mut dropped);
            self.discard(&dropped);
        }
        near
    }

    /// The next pages of a pass over fresh memory.
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

    /// Brings what is cool or stored in a window. Adds what it costs; returns how many are to be read from the file.
    fn bring(&mut self, space: usize, vpn: Vpn, window: Window, cost: &mut u64) -> usize {
        let pages = self.pages[space].len() as u64;
        let (mut cool, mut far) = (0, 0);
        for at in window.pages(vpn).filter(|at| at.0 < pages) {
            let entry = self.spaces[space].get(at);
            let wanted = matches!(entry, Entry::Stored { .. })
                || matches!(entry, Entry::Cool(_)) && cool < BESIDE_MAX;
            if !wanted {
                continue;
            }
            let charge = self.engine.set.zone.charge_spare(1);
            if charge.pages() == 0 {
                self.spaces[space].cut(vpn, window, at);
                break;
            }
            match entry {
                Entry::Cool(pfn) => {
                    self.engine.set.zone.place(charge);
                    self.engine.set.uncool(&mut self.spaces[space], pfn);
                    self.retired += 1;
                    cool += 1;
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

    /// One order of the engine, carried out. `Err`: nothing can be had.
    pub(super) fn step(
        &mut self,
        now: u64,
        swap: Option<&mut Device>,
        stat: &VmStat,
    ) -> Result<Next, ()> {
        self.engine.set.set_now_ms(now / 1_000_000);
        if now >= self.weighed_ns + WEIGH_NS {
            self.weighed_ns = now;
            let ratio_permille = (self.tiers.ratio * 1000.0) as u64;
            if let Some(limit) = self.engine.weigh(Loads { ratio_permille, ..self.tiers.loads }) {
                self.tiers.limit = limit as f64 / 4096.0;
            }
        }
        let seen = Seen { starving: self.starving, crowded: false };
        let mut pages: Vec<Pfn> = Vec::new();
        let order = self.engine.next(&self.desk, seen);
        let (done, cost) = match order {
            Do::Cool(max) => {
                self.engine.isolate(max, &mut pages);
                for &pfn in &pages {
                    let space = self.space_of(pfn);
                    self.engine.set.cool(&mut self.spaces[space], pfn, 0);
                }
                stat.add(Event::PgDeactivate, pages.len() as u64);
                (pages.len() as u64, self.spec.batch_ns + pages.len() as u64 * self.spec.cool_ns)
            }
            Do::Store(max) => {
                self.engine.coolest(max, &mut pages);
                let cost = pages.len() as u64 * self.spec.store_ns;
                (self.store(now, &pages, swap, stat), cost)
            }
            Do::Drop(least) => {
                let gone = if self.retired >= least as u64 { self.drop_retired() } else { 0 };
                let batch = if gone > 0 { self.spec.batch_ns } else { 0 };
                (gone, batch + gone * self.spec.drop_ns)
            }
            Do::Despair => {
                // Nobody else reclaims here.
                self.desk.progress();
                self.engine.set.retry_barren(u64::MAX);
                let since = *self.vain_since_ns.get_or_insert(now);
                let given_up = self.starving && now > since + HOPELESS_NS;
                return if given_up { Err(()) } else { Ok(Next::Work(1_000_000)) };
            }
            Do::Thrashing => return Err(()),
            Do::Again => {
                let gone = self.drop_retired();
                return Ok(Next::Work(1_000 + gone * self.spec.drop_ns));
            }
            Do::Nap => return Ok(Next::Nap),
            Do::Sleep => return Ok(Next::Sleep),
        };
        // What is cooled or dropped may be what threads have taken back.
        if matches!(order, Do::Store(_)) && done > 0 {
            self.vain_since_ns = None;
        }
        self.engine.did(Did { pages: done, scanned: pages.len() as u64, progress: done });
        Ok(Next::Work(cost.max(1_000)))
    }

    /// The agent drops what waits for it, so many stretches of the pool at a time.
    fn drop_retired(&mut self) -> u64 {
        let gone = self.retired.min(BATCH as u64 * STRETCH);
        self.retired -= gone;
        self.engine.set.zone.gone(gone);
        gone
    }

    fn space_of(&self, pfn: Pfn) -> usize {
        let mm = self.engine.set.frame(pfn).mm;
        self.spaces.iter().position(|space| space.mm() == mm).expect("every frame has an owner")
    }

    /// Stores cool pages. How many were.
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
                        self.engine.set.leave_barren(pfn);
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
            self.retired += 1;
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

    /// Slots that nobody holds any more.
    fn discard(&mut self, dropped: &Dropped) {
        let before = self.tiers.arena();
        for &slot in &dropped.slots {
            self.tiers.forget(slot);
            self.engine.set.slots.recycle(slot);
        }
        self.settle_arena(before);
    }

    /// Compressed memory takes more or less than before.
    fn settle_arena(&mut self, before: u64) {
        let after = self.tiers.arena();
        let zone = &mut self.engine.set.zone;
        zone.found(after.saturating_sub(before));
        zone.gone(before.saturating_sub(after));
    }

    /// The program gives pages back. How many there were.
    pub fn free(&mut self, space: usize, page: u64, pages: u64) -> u64 {
        let mut dropped = Dropped::default();
        let end = (page + pages).min(self.pages[space].len() as u64);
        self.engine.set.forget_range(&mut self.spaces[space], Vpn(page), Vpn(end), &mut dropped);
        let its = &mut self.pages[space][page as usize..end as usize];
        let plain = its.iter().filter(|page| page.plain).count() as u64;
        its.fill(Page::default());
        self.ready_ns.retain(|&(of, at), _| of != space || !(page..end).contains(&at));
        self.engine.set.zone.gone(dropped.frames + plain);
        let freed = dropped.frames + plain + dropped.slots.len() as u64;
        self.discard(&dropped);
        freed
    }

    /// Pages of a space in memory or stored.
    #[must_use]
    pub fn holds(&self, space: usize) -> u64 {
        let mut pages = self.pages[space].iter().filter(|page| page.plain).count() as u64;
        self.spaces[space].for_each(|_, _| pages += 1);
        pages
    }

    /// Checks the books.
    ///
    /// # Errors
    /// Says what does not agree.
    pub fn check(&self) -> Result<(), String> {
        let spaces: Vec<&Space> = self.spaces.iter().collect();
        self.engine.set.check_invariants(&spaces, &[]);
        let plain = self.pages.iter().flatten().filter(|page| page.plain).count() as u64;
        let frames = self.engine.set.frames_in_use() as u64;
        let known = plain + frames + self.retired + self.tiers.arena();
        let held = self.engine.set.zone.held();
        if held != known {
            return Err(format!("LIVE-1: the budget holds {held} pages, {known} are known"));
        }
        let near = self.tiers.kept.iter().filter(|kept| matches!(kept, Kept::Near(_))).count();
        if near as u64 != self.tiers.near {
            return Err(format!("LIVE-2: {} pages are near, {near} slots are", self.tiers.near));
        }
        Ok(())
    }

    /// Frames that the budget has left.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.engine.set.zone.free()
    }

    /// Pages out of sight.
    #[must_use]
    pub fn cool_pages(&self) -> u64 {
        self.engine.set.count(Place::Cool)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Told, machine};
    use super::super::{Access, Machine, Region};
    use super::*;
    use crate::workload::Step;
    use ebb_mm::space::Backing;

    /// A machine of so many pages of memory under Ebb, and one program that writes each of `pages` and reads them again.
    fn run(limit: u64, pages: u32, spec: &LiveSpec) -> (Machine, Vec<Step>) {
        let mut m = machine();
        m.mem.live = Some(Box::new(Live::new(spec, limit, Evidence::Cooling.tunables())));
        let anon = Backing::Anon;
        let region =
            Region { pages: pages.into(), backing: anon, recency: true, exec: false, processes: 1 };
        m.mem.add_space(0, &[]);
        let space = m.mem.add_space(0, &[region]) as u16;
        // The space that was there before counts for nothing.
        m.mem.live.as_mut().expect("it is live").spaces.clear();
        m.mem.live.as_mut().expect("it is live").pages.clear();
        for _ in 0..=space {
            m.mem.live.as_mut().expect("it is live").add_space(pages.into());
        }
        let touch = |access| (0..pages).map(move |page| Step::Touch { page, space, access });
        (m, touch(Access::Write).chain(touch(Access::Read)).collect())
    }

    #[test]
    fn twice_the_memory_is_stored_and_brought_back_and_the_books_agree() {
        let spec =
            LiveSpec { on: true, file: false, compressed: 0.5, ratio: 4.0, ..LiveSpec::default() };
        let (mut m, steps) = run(2000, 3600, &spec);
        m.add_thread(Box::new(Told(vec![steps])), 1, true);
        let (outcome, mut mem, now) = m.run().expect("it ends");
        mem.check(now).expect("the books agree");
        let count = |name| outcome.counters.iter().find(|(of, _)| *of == name).expect("counted").1;
        let loads = mem.live.as_ref().expect("it is live").loads();
        assert!(loads.near >= 1600 && loads.far == 0, "{loads:?}");
        assert!(count("pgsteal_kswapd") >= loads.near, "what was loaded had left");
        // A pass: most came beside another.
        assert!(count("pswpin") * 4 < loads.near, "{} of {} touched", count("pswpin"), loads.near);
    }

    /// It once stood still: what was cooled and taken back counted as progress.
    #[test]
    fn where_nothing_more_can_be_stored_it_ends_and_says_so() {
        let spec =
            LiveSpec { on: true, file: false, compressed: 0.1, ratio: 2.0, ..LiveSpec::default() };
        let (mut m, steps) = run(2000, 3600, &spec);
        m.add_thread(Box::new(Told(vec![steps])), 1, true);
        let error = m.run().expect_err("there is no room");
        assert!(error.starts_with("out of memory"), "{error}");
    }
}
