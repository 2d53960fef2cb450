//! The memory of the simulated machine: address spaces, touches, faults, reclaim.
//!
//! Owns the engine's tables and drives them the way the kernel drives its own: new folios reach the
//! lists through a batch, a task that finds no room reclaims, pages come back from the device with
//! their neighbours when they are read in order. It knows what each step costs and returns that;
//! who waits, and for what, is the scheduler's business.
//!
//! Invariants
//! * I1: a frame is free, or charged to a memcg and present in one page-table entry, or part of the
//!   pool of compressed memory.
//! * I2: an entry that is present but not mapped belongs to a page being read or written, or to a
//!   page of a file that was only reached through descriptors.

use std::sync::Arc;

use ebb_core::folio::{Folios, LruType, MemcgId, Word};
use ebb_core::frame::{Gfp, Host, Order, Request, Zone, ZoneItem};
use ebb_core::lru::r#gen::memcg_lru::MemcgLru;
use ebb_core::lru::scan::DEF_PRIORITY;
use ebb_core::lru::{Ctx, Lruvec, Pagevec, Scan, Shadow, Who};
use ebb_core::observe::vmstat::{Event, VmStat};
use ebb_core::space::{Area, Backing, Pte, Space, Spaces};
use ebb_core::tunables::{LruKind, Tunables};
use ebb_core::types::{Pfn, Vpn};

use super::costs::Costs;
use super::device::Device;
use super::outflow::Outflow;

/// How a page is touched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Through the page table.
    Read,
    /// Through the page table, changing it.
    Write,
    /// Through a file descriptor.
    FdRead,
    /// Through a file descriptor, changing it.
    FdWrite,
}

impl Access {
    /// Whether it goes through the page table.
    #[must_use]
    pub const fn mapped(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Whether it changes the page.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::FdWrite)
    }
}

/// A run of pages of an address space.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Its length.
    pub pages: u64,
    /// What backs it.
    pub backing: Backing,
    /// Whether touches count.
    pub recency: bool,
    /// Program text.
    pub exec: bool,
}

/// The reading position of a thread in one file or area.
#[derive(Clone, Copy, Default, Debug)]
pub struct Stream {
    space: usize,
    next: u64,
    window: u64,
}

/// Reading positions a thread has at once.
pub const STREAMS: usize = 4;
const WINDOW_FILE: u64 = 32;
const WINDOW_SWAP: u64 = 8;

/// What became of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The page is there. The time it took.
    Done(u64),
    /// To be tried again at a time, after working for a while.
    Wait {
        /// When.
        until_ns: u64,
        /// Time worked before.
        cost_ns: u64,
    },
    /// No page can be had: nothing can be reclaimed.
    NoMemory(u64),
}

/// A memcg.
#[derive(Debug)]
pub struct Memcg {
    /// Its lists.
    pub lruvec: Arc<Lruvec>,
    /// Pages it may have.
    pub limit: u64,
    pagevec: Pagevec,
    lock_free_ns: u64,
}

/// Time spent by kind, and things counted that vmstat has no name for.
#[derive(Clone, Copy, Default, Debug)]
pub struct Spent {
    /// Faults, without reclaim and device.
    pub fault_ns: u64,
    /// Reclaim by tasks, waiting for locks included.
    pub direct_ns: u64,
    /// Reclaim by kswapd.
    pub kswapd_ns: u64,
    /// Waiting for lru locks.
    pub lock_wait_ns: u64,
    /// Holding lru locks.
    pub lock_hold_ns: u64,
    /// Direct reclaim runs.
    pub direct_runs: u64,
}

impl Spent {
    /// What was spent after `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            fault_ns: self.fault_ns - before.fault_ns,
            direct_ns: self.direct_ns - before.direct_ns,
            kswapd_ns: self.kswapd_ns - before.kswapd_ns,
            lock_wait_ns: self.lock_wait_ns - before.lock_wait_ns,
            lock_hold_ns: self.lock_hold_ns - before.lock_hold_ns,
            direct_runs: self.direct_runs - before.direct_runs,
        }
    }
}

/// Memory and everything that moves pages in and out of it.
#[derive(Debug)]
pub struct Mem {
    /// Frame records.
    pub folios: Folios,
    /// All address spaces.
    pub spaces: Spaces,
    /// The same in the order they were made.
    pub list: Vec<Arc<Space>>,
    /// Whose memcg each is.
    owner: Vec<usize>,
    ends: Vec<Vec<(u64, Region)>>,
    /// Switches.
    pub tun: Tunables,
    /// Counters.
    pub stat: VmStat,
    /// Memcgs.
    pub memcgs: Vec<Memcg>,
    lru: MemcgLru,
    /// Frames, charges, swap.
    pub out: Outflow,
    /// The device behind files.
    pub disk: Device,
    /// What things cost.
    pub costs: Costs,
    /// Time spent.
    pub spent: Spent,
    /// kswapd was asked for.
    pub kswapd_wanted: std::cell::Cell<bool>,
    zone_ends: Vec<u32>,
    marks: [u64; COUNTED.len()],
    last_fd: (usize, u64),
    next_fold: u64,
}

/// The counters that say what reclaim did.
const COUNTED: [Event; 12] = [
    Event::PgScanKswapd,
    Event::PgScanDirect,
    Event::PgScanAnon,
    Event::PgStealAnon,
    Event::PgStealFile,
    Event::PgRefill,
    Event::EbbScanned,
    Event::EbbWalkEntries,
    Event::EbbWalkPromoted,
    Event::EbbAgedFolios,
    Event::EbbLookAround,
    Event::PgDeactivate,
];

struct Wake<'a>(&'a std::cell::Cell<bool>);

impl Host for Wake<'_> {
    fn wake_kswapd(&self, _: usize, _: Order, _: usize) {
        self.0.set(true);
    }
}

macro_rules! cx {
    ($m:expr, $now:expr) => {
        Ctx {
            folios: &$m.folios,
            spaces: &$m.spaces,
            tun: &$m.tun,
            stat: &$m.stat,
            now_ms: $now / 1_000_000,
        }
    };
}

impl Mem {
    /// Empty memory.
    #[must_use]
    pub fn new(out: Outflow, disk: Device, tun: Tunables, costs: Costs, seed: u64) -> Self {
        let zones = out.frames.zones().len();
        let zone_ends: Vec<u32> = (0..zones).map(|z| out.frames.span(z).end).collect();
        let end = zone_ends.iter().copied().max().unwrap_or(0);
        Self {
            folios: Folios::new(end),
            spaces: Spaces::new(),
            list: Vec::new(),
            owner: Vec::new(),
            ends: Vec::new(),
            next_fold: tun.classic_fold.max(1),
            tun,
            stat: VmStat::default(),
            memcgs: Vec::new(),
            lru: MemcgLru::new(seed),
            out,
            disk,
            costs,
            spent: Spent::default(),
            kswapd_wanted: std::cell::Cell::new(false),
            zone_ends,
            marks: [0; COUNTED.len()],
            last_fd: (usize::MAX, 0),
        }
    }

    /// Adds a memcg.
    pub fn add_memcg(&mut self, limit: u64) -> usize {
        let id = self.memcgs.len();
        // From 1: a shadow of all zeros would be no shadow.
        let lruvec = Arc::new(Lruvec::new(MemcgId(id as u16 + 1), self.tun.lru, 0));
        self.lru.online(Arc::clone(&lruvec));
        let pagevec = Pagevec::default();
        self.memcgs.push(Memcg { lruvec, limit, pagevec, lock_free_ns: 0 });
        self.out.charged.push(0);
        id
    }

    /// Adds an address space; its regions follow each other from page 0.
    pub fn add_space(&mut self, memcg: usize, regions: &[Region]) -> usize {
        let space = self.spaces.create(MemcgId(memcg as u16 + 1));
        let mut at = 0;
        let mut ends = Vec::new();
        for r in regions.iter().filter(|r| r.pages > 0) {
            let mut area = Area::new(Vpn(at), Vpn(at + r.pages), r.backing);
            (area.recency, area.exec) = (r.recency, r.exec);
            space.add_area(area);
            at += r.pages;
            ends.push((at, *r));
        }
        self.memcgs[memcg].lruvec.generations().spaces().join(space.id());
        self.list.push(space);
        self.owner.push(memcg);
        self.ends.push(ends);
        self.list.len() - 1
    }

    /// Ends an address space whose pages were freed.
    pub fn end_space(&mut self, space: usize) {
        let memcg = self.owner[space];
        self.list[space].kill();
        self.memcgs[memcg].lruvec.generations().spaces().leave(self.list[space].id());
    }

    /// Touches a page that is there. False if it is not, or is being moved.
    #[inline]
    pub fn touch(&mut self, space: usize, page: u64, access: Access, now: u64) -> bool {
        let Some(place) = self.list[space].tree().find(Vpn(page)) else { return false };
        let pte = place.get();
        if !access.mapped() {
            if !pte.present() || self.out.ready_ns[pte.pfn().0 as usize] > now {
                return false;
            }
            self.touch_fd(space, page, pte.pfn(), access, now);
            return true;
        }
        if !pte.all(Pte::PRESENT | Pte::MAPPED) {
            return false;
        }
        if !access.writes() {
            place.touch(pte, Pte::ACCESSED);
        } else {
            let first = !pte.all(Pte::DIRTY);
            place.touch(pte, Pte::ACCESSED | Pte::DIRTY);
            if first {
                self.made_dirty(pte.pfn());
            }
        }
        true
    }

    /// A mapped page was written for the first time since its entry was last clean.
    fn made_dirty(&mut self, pfn: Pfn) {
        let w = self.folios.word(pfn);
        if w.has(Word::SWAPBACKED) && w.has(Word::SWAPCACHE) && !w.has(Word::WRITEBACK) {
            self.folios.clear(pfn, Word::SWAPCACHE);
            self.out.drop_slot();
        }
    }

    fn touch_fd(&mut self, space: usize, page: u64, pfn: Pfn, access: Access, now: u64) {
        if access.writes() {
            self.folios.set(pfn, Word::DIRTY);
        }
        if self.last_fd == (space, page) {
            return;
        }
        self.last_fd = (space, page);
        let cx = cx!(self, now);
        let memcg = &mut self.memcgs[self.owner[space]];
        if memcg.lruvec.mark_accessed_lazily(&cx, pfn) {
            memcg.pagevec.activate(&memcg.lruvec, &cx, pfn);
        }
    }

    fn region(&self, space: usize, page: u64) -> (u64, Region) {
        let ends = &self.ends[space];
        let i = ends.partition_point(|&(end, _)| end <= page);
        ends[i.min(ends.len() - 1)]
    }

    /// Makes a page that [`touch`](Self::touch) did not find available.
    pub fn fault(
        &mut self,
        now: u64,
        space: usize,
        page: u64,
        access: Access,
        streams: &mut [Stream; STREAMS],
    ) -> Fault {
        let costs = self.costs.clone();
        let entry = if access.mapped() { costs.fault_ns } else { costs.fd_ns };
        let tree = Arc::clone(&self.list[space]);
        let place = tree.tree().place(Vpn(page));
        let pte = place.get();
        if pte.present() {
            let ready = self.out.ready_ns[pte.pfn().0 as usize];
            if ready > now {
                return Fault::Wait { until_ns: ready, cost_ns: 0 };
            }
            self.map_present(space, page, pte, access, now);
            self.spent.fault_ns += entry;
            return Fault::Done(entry);
        }
        self.stat.add(Event::PgFault, 1);
        let (end, region) = self.region(space, page);
        let anon = region.backing != Backing::File;
        let stored = pte.shadow().is_some();
        let reads = if anon { stored } else { access != Access::FdWrite };
        let ahead = if reads { self.window(streams, space, page, end, anon) } else { 1 };
        let (room, mut cost) = self.make_room(now, self.owner[space], ahead);
        cost += entry;
        if room == 0 {
            return match self.next_write() {
                Some(until_ns) => Fault::Wait { until_ns: until_ns.max(now + cost), cost_ns: cost },
                None => Fault::NoMemory(cost),
            };
        }
        self.fold();
        if !reads {
            let zero = costs.zero_ns + costs.alloc_ns;
            self.insert(now, space, page, access, region, true);
            self.spent.fault_ns += entry + zero;
            return Fault::Done(cost + zero);
        }
        self.bring_in(now, cost, space, page, ahead.min(room), access, region)
    }

    /// Reads a page and those after it that are to come with it.
    #[allow(clippy::too_many_arguments)]
    fn bring_in(
        &mut self,
        now: u64,
        mut cost: u64,
        space: usize,
        page: u64,
        pages: u64,
        access: Access,
        region: Region,
    ) -> Fault {
        let anon = region.backing != Backing::File;
        self.stat.add(Event::PgMajFault, 1);
        cost += self.costs.major_ns + self.costs.alloc_ns * pages;
        self.spent.fault_ns += self.costs.major_ns;
        let sync = if anon {
            self.out.swap.as_ref().is_some_and(Device::is_sync)
        } else {
            self.disk.is_sync()
        };
        let mut first = Pfn(0);
        let mut brought = 0;
        for i in 0..pages {
            let at = page + i;
            let pte = self.list[space].tree().place(Vpn(at)).get();
            if pte.present() || (anon && pte.shadow().is_none()) {
                break;
            }
            let Some(pfn) = self.insert(now, space, at, access, region, sync && i == 0) else {
                break;
            };
            if i == 0 {
                first = pfn;
            } else {
                self.folios.set(pfn, Word::PREFAULT);
            }
            brought += 1;
        }
        let device = match (anon, self.out.swap.as_mut()) {
            (true, Some(swap)) => swap,
            _ => &mut self.disk,
        };
        if anon {
            self.stat.add(Event::PswpIn, brought);
        }
        let start = now + cost;
        let done = device.submit(start, false, ((space as u64) << 36) + page, brought);
        if sync {
            return Fault::Done(cost + (done - start));
        }
        if done > start {
            for i in 0..brought {
                let pte = self.list[space].tree().place(Vpn(page + i)).get();
                self.out.ready_ns[pte.pfn().0 as usize] = done;
            }
            return Fault::Wait { until_ns: done, cost_ns: cost };
        }
        let pte = self.list[space].tree().place(Vpn(page)).get();
        debug_assert_eq!(pte.pfn(), first);
        self.map_present(space, page, pte, access, now);
        Fault::Done(cost)
    }

    /// How many pages are read at once: one, or a growing window where a thread reads in order.
    fn window(
        &self,
        streams: &mut [Stream; STREAMS],
        space: usize,
        page: u64,
        end: u64,
        anon: bool,
    ) -> u64 {
        let swap_sync = self.out.swap.as_ref().is_none_or(Device::is_sync);
        let max = if anon { WINDOW_SWAP } else { WINDOW_FILE };
        if anon && swap_sync {
            return 1;
        }
        let found = streams.iter().position(|s| s.space == space && s.next == page);
        let (i, window) = match found {
            Some(i) => (i, (streams[i].window * 2).clamp(2, max)),
            None => (STREAMS - 1, 1),
        };
        streams.copy_within(0..i, 1);
        let window = window.min(end - page);
        streams[0] = Stream { space, next: page + window, window };
        window
    }

    /// A page that is in memory and not mapped is mapped, or touched through a descriptor.
    fn map_present(&mut self, space: usize, page: u64, pte: Pte, access: Access, now: u64) {
        if !access.mapped() {
            self.touch_fd(space, page, pte.pfn(), access, now);
            return;
        }
        self.folios.update(pte.pfn(), |w| w.with(Word::MAPPED).without(Word::PREFAULT));
        let tree = Arc::clone(&self.list[space]);
        let place = tree.tree().place(Vpn(page));
        let mut bits = Pte::MAPPED | Pte::ACCESSED;
        if access.writes() {
            bits |= Pte::DIRTY;
            self.made_dirty(pte.pfn());
        }
        place.touch(pte, bits);
    }

    /// Puts a page into a frame that [`make_room`](Self::make_room) has shown to be there.
    fn insert(
        &mut self,
        now: u64,
        space: usize,
        page: u64,
        access: Access,
        region: Region,
        map: bool,
    ) -> Option<Pfn> {
        let id = self.owner[space];
        let pfn = self.alloc()?;
        self.out.charged[id] += 1;
        self.out.ready_ns[pfn.0 as usize] = 0;
        let anon = region.backing != Backing::File;
        let tree = Arc::clone(&self.list[space]);
        let place = tree.tree().place(Vpn(page));
        let shadow = place.get().shadow();
        let zone = self.zone_ends.partition_point(|&end| end <= pfn.0) as u8;
        let ty = if anon { LruType::Anon } else { LruType::File };
        let mut word = Word::new(ty, 0, zone);
        let mut bits = 0;
        if map && access.mapped() {
            word = word.with(Word::MAPPED);
            bits = Pte::MAPPED | Pte::ACCESSED;
            bits |= if access.writes() { Pte::DIRTY } else { 0 };
        }
        if access == Access::FdWrite {
            word = word.with(Word::DIRTY);
        }
        if anon && shadow.is_some() {
            // As in the kernel, slots are kept only while swap is less than half full.
            let scarce = self.out.swap.as_ref().is_none_or(|d| self.out.slots * 2 > d.pages_max);
            if self.tun.keep_slot && !scarce && !(map && access.writes()) {
                word = word.with(Word::SWAPCACHE);
            } else {
                self.out.drop_slot();
            }
        }
        let cx = cx!(self, now);
        let memcg = &mut self.memcgs[id];
        self.folios.init(pfn, word, memcg.lruvec.memcg(), tree.id(), Vpn(page));
        let in_fault = access.mapped() && region.recency;
        if let Some(s) = shadow {
            memcg.lruvec.refault(&cx, pfn, Shadow(s), in_fault);
        }
        if in_fault {
            memcg.lruvec.note_fault(&cx, pfn);
        }
        place.table.set(place.index, Pte::of_frame(pfn, bits));
        place.touch(place.get(), bits);
        memcg.pagevec.add(&memcg.lruvec, &cx, pfn);
        if !access.mapped() {
            self.touch_fd(space, page, pfn, access, now);
        }
        Some(pfn)
    }

    fn alloc(&mut self) -> Option<Pfn> {
        let gfp = Gfp::HIGHUSER_MOVABLE.without(Gfp::DIRECT);
        let host = Wake(&self.kswapd_wanted);
        self.out.frames.alloc_on(self.out.cpu, &Request::new(gfp, Order::ZERO), &host)
    }

    /// Whether a memcg has room for `pages` without reclaim.
    fn fits(&self, memcg: usize, pages: u64) -> bool {
        self.out.charged[memcg] + pages <= self.memcgs[memcg].limit
    }

    /// Reclaims until `pages` fit, at least one. Returns how many fit and what that cost.
    fn make_room(&mut self, now: u64, memcg: usize, pages: u64) -> (u64, u64) {
        let mut cost = 0;
        for _ in 0..RETRIES_MAX {
            if !self.fits(memcg, pages) {
                let (freed, took) = self.direct(now + cost, Some(memcg));
                cost += took;
                if self.fits(memcg, 1) || freed > 0 {
                    continue;
                }
            } else if let Some(pfn) = self.alloc() {
                self.out.release(pfn);
                return (pages, cost);
            } else {
                let (freed, took) = self.direct(now + cost, None);
                cost += took;
                if freed > 0 {
                    continue;
                }
            }
            if self.out.writing > 0 {
                break;
            }
        }
        let left = self.memcgs[memcg].limit.saturating_sub(self.out.charged[memcg]);
        (left.min(pages).min(1), cost)
    }

    /// Direct reclaim in a task, from one memcg or from all.
    fn direct(&mut self, now: u64, memcg: Option<usize>) -> (u64, u64) {
        let parts = self.tun.reclaim_parts;
        let size = match memcg {
            Some(id) => self.memcgs[id].limit,
            None => self.memcgs.iter().map(|m| m.limit).min().unwrap_or(0),
        };
        let part = size.checked_div(parts).unwrap_or(32);
        let target = part.clamp(1, 32);
        let mut sc = Scan::new(Who::Direct, memcg.is_none(), target, self.tun.swappiness.0);
        let cost = self.shrink(now, memcg, &mut sc, DEF_PRIORITY, 0);
        self.spent.direct_runs += 1;
        self.spent.direct_ns += cost;
        (self.out.freed, cost)
    }

    /// A reclaim run at priorities `from` to `to`. Returns what it cost; `out.freed` is its yield.
    pub fn shrink(
        &mut self,
        now: u64,
        memcg: Option<usize>,
        sc: &mut Scan,
        from: u8,
        to: u8,
    ) -> u64 {
        self.out.now_ns = now;
        self.out.spent_ns = 0;
        self.out.freed = 0;
        sc.may_swap = self.out.swap_has_room();
        let cx = cx!(self, now);
        let begun = self.out.started.len();
        for m in &mut self.memcgs {
            m.pagevec.drain(&m.lruvec, &cx);
        }
        for space in &self.list {
            space.note_scheduled();
        }
        for priority in (to..=from).rev() {
            sc.priority = priority;
            match memcg {
                Some(id) => {
                    let v = Arc::clone(&self.memcgs[id].lruvec);
                    v.shrink(&cx, sc, &mut self.out);
                }
                None => self.lru.shrink(&cx, sc, &mut self.out),
            }
            let begun = (self.out.started.len() - begun) as u64;
            if self.out.freed + begun >= sc.target {
                break;
            }
        }
        for m in &self.memcgs {
            m.lruvec.end_reclaim();
        }
        self.charge(now, memcg)
    }

    /// What the engine did since the last call, in time; waits for the lru lock included.
    fn charge(&mut self, now: u64, memcg: Option<usize>) -> u64 {
        let c = &self.costs;
        let mut n = [0; COUNTED.len()];
        for (i, &event) in COUNTED.iter().enumerate() {
            let value = self.stat.get(event);
            n[i] = value - self.marks[i];
            self.marks[i] = value;
        }
        let [kswapd, direct, anon, steal_a, steal_f, refill, scanned, ..] = n;
        let [.., walked, promoted, aged, around, deactivated] = n;
        let taken = kswapd + direct;
        let steal = steal_a + steal_f;
        let classic = self.tun.lru == LruKind::Classic;
        let looked = if classic { taken + refill } else { scanned };
        let moved = if classic { deactivated } else { refill } + taken.saturating_sub(steal);
        let age = match (self.tun.counter_batch, self.tun.bulk_move, self.tun.prefetch) {
            (_, true, true) => c.age_prefetch_ns,
            (_, true, false) => c.age_bulk_ns,
            (true, false, _) => c.age_counter_ns,
            (false, false, _) => c.age_ns,
        };
        let hold = looked * c.scan_ns + moved * c.sort_ns + aged * age;
        let rmaps = anon + if classic { refill } else { 0 };
        let free = rmaps * c.rmap_ns
            + steal * c.evict_ns
            + walked * c.walk_ns
            + promoted * c.promote_ns
            + around * c.look_ns
            + self.out.spent_ns;
        let lock = &mut self.memcgs[memcg.unwrap_or(0)].lock_free_ns;
        let wait = lock.saturating_sub(now);
        *lock = now + wait + hold;
        self.spent.lock_wait_ns += wait;
        self.spent.lock_hold_ns += hold;
        wait + hold + free
    }

    fn fold(&mut self) {
        // The classic LRU reads memcg counters that are settled only now and then.
        if self.tun.classic_fold > 0 {
            self.next_fold = self.next_fold.saturating_sub(1);
            if self.next_fold == 0 {
                self.next_fold = self.tun.classic_fold;
                self.memcgs.iter().for_each(|m| m.lruvec.fold());
            }
        }
    }

    fn next_write(&self) -> Option<u64> {
        let first = self.out.started.iter().map(|&(done, _)| done).min();
        first.or((self.out.writing > 0).then_some(self.out.now_ns + WRITE_WAIT_NS))
    }

    /// A write ended.
    pub fn end_write(&mut self, now: u64, pfn: Pfn) {
        self.out.writing -= 1;
        let memcg = usize::from(self.folios.memcg(pfn).0 - 1);
        let cx = cx!(self, now);
        self.memcgs[memcg].lruvec.end_writeback(&cx, pfn);
        // Written to while it was under way: the stored copy is stale already.
        let (mm, vpn) = self.folios.owner(pfn);
        let dirty = self.spaces.get(mm).is_some_and(|s| {
            s.tree().find(vpn).is_some_and(|p| p.get().pfn() == pfn && p.get().all(Pte::DIRTY))
        });
        if dirty {
            self.made_dirty(pfn);
        }
    }

    /// Frees pages: `munmap` or the end of a process. Returns what that cost.
    pub fn free(&mut self, now: u64, space: usize, page: u64, pages: u64) -> u64 {
        let id = self.owner[space];
        let tree = Arc::clone(&self.list[space]);
        let cx = cx!(self, now);
        let memcg = &mut self.memcgs[id];
        memcg.pagevec.drain(&memcg.lruvec, &cx);
        let mut freed = 0;
        for vpn in page..page + pages {
            let Some(place) = tree.tree().find(Vpn(vpn)) else { continue };
            let pte = place.get();
            let anon = self.region(space, vpn).1.backing != Backing::File;
            if pte.present() {
                let pfn = pte.pfn();
                let w = self.folios.word(pfn);
                if w.has(Word::WRITEBACK) || self.out.ready_ns[pfn.0 as usize] > now {
                    // Its transfer ends first; the page is left to reclaim.
                    continue;
                }
                let cx = cx!(self, now);
                self.memcgs[id].lruvec.remove(&cx, pfn);
                self.folios.unpin(pfn);
                if anon && w.has(Word::SWAPCACHE) {
                    self.out.drop_slot();
                }
                self.out.charged[id] -= 1;
                self.out.release(pfn);
                freed += 1;
            } else if pte.shadow().is_some() && anon {
                self.out.drop_slot();
            }
            place.table.set(place.index, Pte(0));
        }
        freed * self.costs.free_ns
    }

    /// Pages of a space.
    #[must_use]
    pub fn pages_of(&self, space: usize) -> u64 {
        self.ends[space].last().map_or(0, |&(end, _)| end)
    }

    /// The memcg a space belongs to.
    #[must_use]
    pub fn memcg_of(&self, space: usize) -> usize {
        self.owner[space]
    }

    /// Checks every conservation law.
    ///
    /// # Errors
    /// Says which does not hold.
    pub fn check(&mut self, now: u64) -> Result<(), String> {
        let cx = cx!(self, now);
        for m in &mut self.memcgs {
            m.pagevec.drain(&m.lruvec, &cx);
            m.lruvec.check_invariants(&cx);
        }
        let mut present = vec![0; self.memcgs.len()];
        let mut stored = 0;
        for (i, space) in self.list.iter().enumerate() {
            let mut at = 0;
            for &(end, region) in &self.ends[i] {
                for vpn in at..end {
                    let Some(place) = space.tree().find(Vpn(vpn)) else { continue };
                    let pte = place.get();
                    let anon = region.backing != Backing::File;
                    if pte.present() {
                        present[self.owner[i]] += 1;
                        let w = self.folios.word(pte.pfn());
                        stored += u64::from(anon && w.has(Word::SWAPCACHE));
                    } else if anon && pte.shadow().is_some() {
                        stored += 1;
                    }
                }
                at = end;
            }
        }
        if present != self.out.charged {
            return Err(format!("{present:?} pages are present, {:?} charged", self.out.charged));
        }
        if stored != self.out.slots {
            return Err(format!("{stored} pages are stored, {} slots are in use", self.out.slots));
        }
        self.out.frames.drain_all();
        self.out.frames.check()?;
        let managed: u64 = self.out.frames.zones().iter().map(|z| z.state().managed()).sum();
        let free = self.free_pages();
        let used = present.iter().sum::<u64>() + self.out.pool.len() as u64;
        if free + used != managed {
            return Err(format!("{free} frames free and {used} in use of {managed}"));
        }
        Ok(())
    }

    /// Frames on the free lists.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        let free = |z: &Zone| z.state().counters().snapshot(ZoneItem::FreePages);
        self.out.frames.zones().iter().map(free).sum()
    }
}

/// Rounds of reclaim before a fault gives up.
const RETRIES_MAX: u32 = 16;
/// How long a task waits for writes when it cannot know which ends first.
const WRITE_WAIT_NS: u64 = 1_000_000;
