//! The memory of the simulated machine: address spaces, touches, faults, reclaim.
//!
//! Owns the engine's tables and drives them the way the kernel drives its own: new folios reach the
//! lists through a batch, a task that finds no room reclaims, pages come back from the device with
//! their neighbours when they are read in order. It knows what each step costs and returns that;
//! who waits, and for what, is the scheduler's business.
//!
//! Invariants
//! * MEM-1: a frame is free, or charged to a memcg and present in one page-table entry, or part of the
//!   pool of compressed memory.
//! * MEM-2: an entry that is present but not mapped belongs to a page being read or written, or to a
//!   page of a file that was only reached through descriptors.

use std::sync::Arc;

use ebb_mm::folio::{Folios, LruType, MemcgId, Word};
use ebb_mm::frame::{Gfp, Order, Request};
use ebb_mm::lru::{Ctx, Lruvec, Protection};
use ebb_mm::memcg::{Knobs, Memcgs};
use ebb_mm::observe::vmstat::{Event, VmStat};
use ebb_mm::space::{Area, Backing, Pte, Space, Spaces};
use ebb_mm::swap::SwapAhead;
use ebb_mm::tunables::Tunables;
use ebb_mm::types::{PAGE_SIZE, Pfn, Vpn};
use ebb_mm::writeback::FileAhead;

use super::ahead::WINDOW_FILE;
use super::costs::Costs;
use super::device::Device;
use super::flusher::Flusher;
use super::live::{Live, Next};
use super::node::{Lists, MemNode, Wake};
use super::outflow::Outflow;
use super::signs::Signs;
use super::spent::Spent;
use super::task::Task;
use super::tracepoints::Victim;

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
    /// Processes that map it, each with page tables of its own. None: it is the kernel's, page tables for
    /// example, and cannot be reclaimed.
    pub processes: u32,
}

/// No timer of a scaled machine is shorter, about what a device takes: it would be time spent on asking.
const TIMER_NS_MIN: u64 = 100_000;

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
    /// To be tried again after working for so long: the task is reclaiming.
    Again(u64),
    /// No page can be had: nothing can be reclaimed.
    NoMemory(u64),
}

impl Fault {
    /// Time worked.
    pub(super) const fn cost_ns(self) -> u64 {
        match self {
            Self::Done(cost)
            | Self::NoMemory(cost)
            | Self::Again(cost)
            | Self::Wait { cost_ns: cost, .. } => cost,
        }
    }
}

/// A memcg.
#[derive(Debug)]
pub struct Memcg {
    /// Its lists, by node.
    pub on: Vec<Lists>,
    /// Pages it may have.
    pub limit: u64,
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
    pub(super) owner: Vec<usize>,
    pub(super) ends: Vec<Vec<(u64, Region)>>,
    /// Switches.
    pub tun: Tunables,
    /// Counters.
    pub stat: VmStat,
    /// Memcgs.
    pub memcgs: Vec<Memcg>,
    /// Nodes.
    pub nodes: Vec<MemNode>,
    /// Frames, charges, swap.
    pub out: Outflow,
    /// The device behind files.
    pub disk: Device,
    /// Dirty file pages.
    pub flusher: Flusher,
    /// What things cost.
    pub costs: Costs,
    /// Time spent.
    pub spent: Spent,
    /// What looks like trouble.
    pub signs: Signs,
    /// The machine's clock, at the last fault or pass of kswapd.
    pub(super) clock_ns: u64,
    /// Pages of files read ahead at most.
    pub read_ahead: u64,
    /// How much longer the lists of the machine that this one stands for are: see [`ebb_mm::lru::Scan`].
    pub lift: u8,
    /// The same for who reclaims from a memcg alone, at its limit or on command.
    pub memcg_lift: u8,
    /// How many times shorter the kernel's timers are than on the machine that this one stands for: a
    /// memory so much smaller is gone through in so much less time.
    pub haste: u64,
    /// Where each zone ends, and its class: its place among the kinds of zone.
    pub(super) zone_ends: Vec<(u32, u8)>,
    pub(super) marks: [u64; COUNTED.len()],
    pub(super) last_fd: (usize, u64),
    pub(super) next_fold: u64,
    /// A frame that the running fault has found and not used yet.
    pub(super) held: Option<Pfn>,
    /// By frame: an anonymous page read ahead, whose first use counts.
    pub(super) marked: Vec<bool>,
    /// Pages brought in by the running fault.
    pub(super) brought: Vec<(usize, u64)>,
    /// Where they lie on the swap device.
    pub(super) brought_from: Vec<u64>,
    /// What is known of reading ahead from swap: by space and region, and for the device.
    pub(super) swap_ahead: Vec<Vec<SwapAhead>>,
    pub(super) slots_ahead: SwapAhead,
    /// By space: what its mappings know of reading ahead.
    pub(super) mapped: Vec<FileAhead>,
    pub(super) direct: u64,
    pub(super) slot_hand: u32,
    /// Whether what the last fault waits for is memory.
    pub(super) stalls: bool,
    /// Whether the running task is in the middle of reclaim.
    pub(super) goes_on: bool,
    /// The page that was just put into a frame had been here before.
    pub(super) refaulted: bool,
    /// Until when somebody adds up the counters of memcgs.
    pub(super) flushing_ns: u64,
    /// What each task is in the middle of.
    pub(super) tasks: Vec<Task>,
    /// By memcg and node: where the next reclaim of what is below it begins.
    pub(super) turns: Vec<Vec<usize>>,
    /// By memcg: how much of it the running reclaim spares.
    pub(super) protection: Vec<Protection>,
    /// Anonymous memory is Ebb's, not a kernel's.
    pub live: Option<Box<Live>>,
}

/// The counters that say what reclaim did.
pub(super) const COUNTED: [Event; 14] = [
    Event::PgScanKswapd,
    Event::PgScanDirect,
    Event::PgScanAnon,
    Event::PgScanFile,
    Event::PgStealAnon,
    Event::PgStealFile,
    Event::PgRefill,
    Event::EbbScanned,
    Event::EbbWalkEntries,
    Event::EbbWalkPromoted,
    Event::EbbAgedFolios,
    Event::EbbLookAround,
    Event::PgDeactivate,
    Event::PgSkip,
];

/// What every engine call is handed.
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

pub(super) use cx;

impl Mem {
    /// Empty memory.
    #[must_use]
    pub fn new(out: Outflow, disk: Device, tun: Tunables, costs: Costs, seed: u64) -> Self {
        let zones = out.frames.zones().len();
        let class = |z: usize| out.frames.zones()[z].state().class() as u8;
        let zone_ends = (0..zones).map(|z| (out.frames.span(z).end, class(z)));
        let zone_ends: Vec<(u32, u8)> = zone_ends.collect();
        let end = zone_ends.iter().map(|z| z.0).max().unwrap_or(0);
        let nodes = out.frames.node_count();
        let last = |n: usize| {
            let of = |z: &usize| out.frames.zones()[*z].state().node() == n;
            (0..zones).filter(of).map(|z| out.frames.span(z).end).max()
        };
        let node_ends = (0..nodes - 1).filter_map(last).collect();
        Self {
            folios: Folios::new(end).with_node_ends(node_ends),
            spaces: Spaces::new(),
            list: Vec::new(),
            owner: Vec::new(),
            ends: Vec::new(),
            next_fold: tun.classic.fold.max(1),
            tun,
            stat: VmStat::default(),
            memcgs: Vec::new(),
            nodes: (0..nodes as u64).map(|n| MemNode::new(seed + n)).collect(),
            out,
            disk,
            flusher: Flusher::default(),
            costs,
            spent: Spent::default(),
            signs: Signs::default(),
            clock_ns: 0,
            read_ahead: WINDOW_FILE,
            lift: 0,
            memcg_lift: 0,
            haste: 1,
            zone_ends,
            marks: [0; COUNTED.len()],
            last_fd: (usize::MAX, 0),
            held: None,
            marked: vec![false; end as usize],
            brought: Vec::new(),
            brought_from: Vec::new(),
            swap_ahead: Vec::new(),
            slots_ahead: SwapAhead::default(),
            mapped: Vec::new(),
            direct: 1 << 60,
            slot_hand: 0,
            stalls: false,
            goes_on: false,
            refaulted: false,
            flushing_ns: 0,
            tasks: Vec::new(),
            turns: Vec::new(),
            protection: Vec::new(),
            live: None,
        }
    }

    /// A time that the kernel waits, on a machine that is scaled down.
    pub(super) fn timer(&self, ns: u64) -> u64 {
        (ns / self.haste.max(1)).max(TIMER_NS_MIN.min(ns))
    }

    /// Adds a memcg at the top that has nothing but a limit.
    pub fn add_memcg(&mut self, limit: u64) -> usize {
        self.add_group(None, Knobs { max: limit, ..Knobs::default() })
    }

    /// Adds a memcg.
    pub fn add_group(&mut self, parent: Option<usize>, knobs: Knobs) -> usize {
        let id = self.memcgs.len();
        let above = parent.map_or(Memcgs::ROOT, |p| MemcgId(p as u16 + 1));
        let group = self.out.groups.add(above, knobs);
        debug_assert_eq!(usize::from(group.0), id + 1, "groups are numbered as memcgs are, from 1");
        let limit = knobs.max;
        // From 1: a shadow of all zeros would be no shadow.
        let on = self.nodes.iter().enumerate().map(|(n, node)| {
            let lruvec = Lruvec::on_node(MemcgId(id as u16 + 1), n as u8, self.tun.lru, 0);
            let lruvec = Arc::new(lruvec);
            node.lru.online(Arc::clone(&lruvec));
            Lists::new(lruvec)
        });
        let on = on.collect();
        self.turns.push(vec![0; self.nodes.len()]);
        self.memcgs.push(Memcg { on, limit });
        id
    }

    /// Adds an address space; its regions follow each other from page 0.
    pub fn add_space(&mut self, memcg: usize, regions: &[Region]) -> usize {
        let space = self.spaces.create(MemcgId(memcg as u16 + 1));
        let mut at = 0;
        let mut ends = Vec::new();
        self.out.mappings.add_space(regions);
        for r in regions.iter().filter(|r| r.pages > 0) {
            let mut area = Area::new(Vpn(at), Vpn(at + r.pages), r.backing);
            (area.recency, area.exec) = (r.recency, r.exec);
            space.add_area(area);
            at += r.pages;
            ends.push((at, *r));
        }
        for lists in &self.memcgs[memcg].on {
            lists.lruvec.generations().spaces().join(space.id());
        }
        if regions.iter().any(|r| r.backing == Backing::File) {
            self.out.cache.add_file(Arc::clone(&space), at);
        }
        if let Some(live) = &mut self.live {
            live.add_space(at);
        }
        self.list.push(space);
        self.owner.push(memcg);
        self.swap_ahead.push(vec![SwapAhead::default(); ends.len()]);
        self.ends.push(ends);
        self.list.len() - 1
    }

    /// Ends an address space whose pages were freed.
    pub fn end_space(&mut self, space: usize) {
        let memcg = self.owner[space];
        self.list[space].kill();
        for lists in &self.memcgs[memcg].on {
            lists.lruvec.generations().spaces().leave(self.list[space].id());
        }
    }

    /// Touches a page that is there. False if it is not, or is being moved.
    #[inline]
    pub fn touch(&mut self, space: usize, page: u64, access: Access, now: u64) -> bool {
        if let Some(live) = &mut self.live {
            return live.touch(space, page, access.writes(), now);
        }
        let Some(place) = self.list[space].tree().find(Vpn(page)) else { return false };
        let pte = place.get();
        if !access.mapped() {
            if !pte.present() || self.out.ready_ns[pte.pfn().0 as usize] > now {
                return false;
            }
            if access == Access::FdRead && self.begins_ahead(pte.pfn()) {
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
                self.made_dirty(pte.pfn(), now);
            }
        }
        true
    }

    /// Whether a read of a page begins the next window: it is marked, or passes for marked.
    pub(super) fn begins_ahead(&self, pfn: Pfn) -> bool {
        let w = self.folios.word(pfn);
        let passes = w.has(Word::RECLAIM) && !w.has(Word::WRITEBACK.or(Word::SWAPBACKED));
        w.has(Word::AHEAD) || (self.tun.file.one_mark && passes)
    }

    /// A mapped page was written for the first time since its entry was last clean.
    pub(super) fn made_dirty(&mut self, pfn: Pfn, now: u64) {
        let w = self.folios.word(pfn);
        if !w.has(Word::SWAPBACKED) {
            self.dirty_file(pfn, now);
            return;
        }
        if w.has(Word::SWAPCACHE) && !w.has(Word::WRITEBACK) {
            self.out.stored.drop_copy(&cx!(self, now), pfn);
            self.out.settle_pool();
        }
    }

    pub(super) fn touch_fd(&mut self, space: usize, page: u64, pfn: Pfn, access: Access, now: u64) {
        if access.writes() {
            // As in the kernel, to be written through a descriptor is no use that would count.
            if !self.folios.word(pfn).has(Word::DIRTY) {
                self.dirty_file(pfn, now);
            }
            return;
        }
        if self.last_fd == (space, page) {
            return;
        }
        self.last_fd = (space, page);
        let cx = cx!(self, now);
        let node = usize::from(self.folios.node(pfn));
        let lists = &mut self.memcgs[self.owner[space]].on[node];
        if lists.lruvec.mark_accessed_lazily(&cx, pfn) {
            lists.pagevec.activate(&lists.lruvec, &cx, pfn);
        }
    }

    pub(super) fn region(&self, space: usize, page: u64) -> (u64, Region) {
        let ends = &self.ends[space];
        let i = ends.partition_point(|&(end, _)| end <= page);
        ends[i.min(ends.len() - 1)]
    }

    pub(super) fn alloc(&mut self) -> Option<Pfn> {
        if let Some(pfn) = self.held.take() {
            return Some(pfn);
        }
        let writes = self.task().writes && self.nodes.len() > 1;
        let gfp = Gfp::HIGHUSER_MOVABLE.without(Gfp::DIRECT);
        let gfp = if writes { gfp.with(Gfp::WRITE) } else { gfp };
        let host = Wake { nodes: &self.nodes, dirty: self.dirty_nodes(writes) };
        self.out.frames.alloc_on(self.out.cpu, &Request::new(gfp, Order::ZERO), &host)
    }

    /// A write ended.
    pub fn end_write(&mut self, now: u64, pfn: Pfn) {
        let memcg = usize::from(self.folios.memcg(pfn).0 - 1);
        let cx = cx!(self, now);
        let node = usize::from(self.folios.node(pfn));
        let v = &self.memcgs[memcg].on[node].lruvec;
        let out = &mut self.out;
        out.writes.end(&cx, &mut out.cache, &mut out.stored, v, (pfn, true));
        if self.folios.word(pfn).ty() == LruType::File {
            self.flusher.pace.written(1);
        } else {
            out.settle_pool();
        }
    }

    /// A fault under Ebb.
    pub(super) fn live_fault(&mut self, now: u64, space: usize, page: u64, writes: bool) -> Fault {
        let (end, _) = self.region(space, page);
        let plain = self.costs.fault_ns + self.costs.zero_ns;
        let Some(live) = &mut self.live else { unreachable!("asked by who has seen it") };
        let at = (space, page, end);
        let swap = self.out.swap.as_mut();
        let (fault, wakes) = live.fault(now, at, writes, swap, &self.stat, plain);
        self.spent.fault_ns += fault.cost_ns();
        self.stalls = matches!(fault, Fault::Wait { .. });
        if wakes {
            self.nodes[0].wanted.set(Some(0));
        }
        fault
    }

    /// A step of its kswapd. None: nothing can be had any more, for those who wait for it.
    pub(super) fn live_step(&mut self, now: u64) -> Option<Next> {
        let live = self.live.as_mut()?;
        live.step(now, self.out.swap.as_mut(), &self.stat).ok()
    }

    /// Frees pages: `munmap` or the end of a process. Returns what that cost.
    pub fn free(&mut self, now: u64, space: usize, page: u64, pages: u64) -> u64 {
        if let Some(live) = &mut self.live {
            return live.free(space, page, pages) * self.costs.free_ns;
        }
        let id = self.owner[space];
        let tree = Arc::clone(&self.list[space]);
        let cx = cx!(self, now);
        for lists in &mut self.memcgs[id].on {
            lists.pagevec.drain(&lists.lruvec, &cx);
        }
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
                if self.region(space, vpn).1.processes > 0 {
                    let node = usize::from(self.folios.node(pfn));
                    self.memcgs[id].on[node].lruvec.remove(&cx, pfn);
                }
                self.folios.unpin(pfn);
                if anon {
                    self.out.stored.drop_copy(&cx, pfn);
                }
                if let Some(file) = self.out.cache.file_of(tree.id()).filter(|_| !anon) {
                    self.out.cache.forget(&cx, file, vpn, pfn);
                }
                self.out.groups.uncharge(MemcgId(id as u16 + 1), 1);
                self.out.release(pfn);
                freed += 1;
            } else if anon {
                self.out.stored.forget(tree.id(), Vpn(vpn));
            }
            self.out.settle_pool();
            place.table.set(place.index, Pte(0));
        }
        freed * self.costs.free_ns
    }

    /// A place of the disk that continues nothing.
    pub fn direct_at(&mut self) -> u64 {
        self.direct += 2;
        self.direct
    }

    /// Pages of a space.
    #[must_use]
    pub fn pages_of(&self, space: usize) -> u64 {
        self.ends[space].last().map_or(0, |&(end, _)| end)
    }

    /// Pages of a space that are in memory or stored.
    #[must_use]
    pub fn holds(&self, space: usize) -> u64 {
        if let Some(live) = &self.live {
            return live.holds(space);
        }
        let tree = self.list[space].tree();
        let here = |vpn| {
            tree.find(Vpn(vpn)).is_some_and(|p| p.get().present() || p.get().shadow().is_some())
        };
        (0..self.pages_of(space)).filter(|&vpn| here(vpn)).count() as u64
    }

    /// What the process of a space has, in KiB.
    pub(super) fn victim(&self, space: usize) -> Victim {
        let kib = PAGE_SIZE as u64 / 1024;
        let mut of = Victim { total: self.pages_of(space) * kib, ..Victim::default() };
        let tree = self.list[space].tree();
        let here = |&vpn: &u64| tree.find(Vpn(vpn)).is_some_and(|place| place.get().present());
        for vpn in (0..self.pages_of(space)).filter(here) {
            match self.region(space, vpn).1.backing {
                Backing::Anon => of.anon += kib,
                Backing::File => of.file += kib,
                Backing::Shmem => of.shmem += kib,
            }
        }
        of
    }

    /// The memcg a space belongs to.
    #[must_use]
    pub fn memcg_of(&self, space: usize) -> usize {
        self.owner[space]
    }

    /// Frames on the free lists.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.live.as_ref().map_or_else(|| self.free_on(None), |live| live.free_pages())
    }
}
