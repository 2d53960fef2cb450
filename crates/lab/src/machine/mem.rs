//! The memory of the simulated machine: address spaces, touches, faults, reclaim.
//!
//! Owns the engine's tables and drives them the way the kernel drives its own. New folios reach the
//! lists through a batch. A task that finds no room reclaims. Pages that are read in order come
//! back from the device together with their neighbours. The functions here return the cost of a
//! step. The scheduler decides which thread waits, and for what.
//!
//! Invariants
//! * MEM-1: a frame is free, charged to a memcg, in the pool of compressed memory, or pinned
//!   ([`Outflow::pinned`]). A charged frame is present in exactly one page-table entry.
//! * MEM-2: a page is present and not mapped for one of five reasons. A transfer of it is under
//!   way. It was read and is not touched yet. Only descriptors have reached it. No process maps its
//!   region. Reclaim unmapped it.

use std::sync::Arc;

use ebb_linux::frame::{Gfp, Order, Request};
use ebb_linux::memcg::{Knobs, Memcgs};
use ebb_linux::swap::SwapAhead;
use ebb_linux::writeback::FileAhead;
use ebb_mm::folio::{Folios, LruType, MemcgId, Word};
use ebb_mm::lru::{Ctx, Lruvec, Protection};
use ebb_mm::observe::vmstat::{Event, VmStat};
use ebb_mm::space::{Area, Backing, Pte, Space, Spaces};
use ebb_mm::tunables::Tunables;
use ebb_mm::types::{PAGE_SIZE, Pfn, Vpn};

use super::ahead::WINDOW_FILE;
use super::costs::Costs;
use super::device::Device;
use super::flusher::Flusher;
use super::live::{GivenUp, Live, Next};
use super::node::{Lists, MemNode, Wake};
use super::outflow::Outflow;
use super::signs::Signs;
use super::spent::Spent;
use super::task::Task;
use super::tracepoints::Victim;

/// Kind of access to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Read through the page table.
    Read,
    /// Write through the page table.
    Write,
    /// Read through a file descriptor.
    FdRead,
    /// Write through a file descriptor.
    FdWrite,
}

impl Access {
    /// Whether the access goes through the page table.
    #[must_use]
    pub const fn mapped(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Whether the access changes the page.
    #[must_use]
    pub const fn writes(self) -> bool {
        matches!(self, Self::Write | Self::FdWrite)
    }
}

/// A run of pages of an address space.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// Length in pages.
    pub pages: u64,
    /// Kind of memory behind the region.
    pub backing: Backing,
    /// Whether touches count as use for reclaim.
    pub recency: bool,
    /// Whether the region is program text.
    pub exec: bool,
    /// Number of processes that map the region, each with page tables of its own. 0: the region
    /// belongs to the kernel, for example to page tables, and cannot be reclaimed.
    pub processes: u32,
}

/// Shortest timer of a scaled machine in nanoseconds: about the latency of a device. With shorter
/// timers tasks would only look again more often.
const TIMER_NS_MIN: u64 = 100_000;

/// Outcome of a fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// The page is in memory. Nanoseconds that the fault took.
    Done(u64),
    /// The thread works, waits, and then tries the fault again.
    Wait {
        /// Time at which to try again.
        until_ns: u64,
        /// Nanoseconds that the thread works before it waits.
        cost_ns: u64,
    },
    /// The task is in the middle of reclaim. It works for so many nanoseconds, then tries the fault
    /// again.
    Again(u64),
    /// There is no frame for the page because nothing can be reclaimed. Nanoseconds worked.
    NoMemory(u64),
}

impl Fault {
    /// Returns the nanoseconds worked.
    pub(super) const fn cost_ns(self) -> u64 {
        match self {
            Self::Done(cost)
            | Self::NoMemory(cost)
            | Self::Again(cost)
            | Self::Wait { cost_ns: cost, .. } => cost,
        }
    }
}

/// A memcg with its page lists.
#[derive(Debug)]
pub struct Memcg {
    /// Page lists by node.
    pub on: Vec<Lists>,
    /// Most pages that the memcg may have.
    pub limit: u64,
}

/// Memory and everything that moves pages in and out of it.
#[derive(Debug)]
pub struct Mem {
    /// Frame records, by frame number.
    pub folios: Folios,
    /// All address spaces, by id.
    pub spaces: Spaces,
    /// All address spaces in the order they were made.
    pub list: Vec<Arc<Space>>,
    /// Memcg of each address space.
    pub(super) owner: Vec<usize>,
    pub(super) ends: Vec<Vec<(u64, Region)>>,
    /// Switches of the engine.
    pub tun: Tunables,
    /// Event counters.
    pub stat: VmStat,
    /// All memcgs.
    pub memcgs: Vec<Memcg>,
    /// All memory nodes.
    pub nodes: Vec<MemNode>,
    /// Frames, charges and swap.
    pub out: Outflow,
    /// The device behind files.
    pub disk: Device,
    /// Dirty file pages and their writeback.
    pub flusher: Flusher,
    /// Cost of each step.
    pub costs: Costs,
    /// Time spent, by purpose.
    pub spent: Spent,
    /// Signs of trouble.
    pub signs: Signs,
    /// Time of the machine's clock at the last fault or pass of kswapd, in nanoseconds.
    pub(super) clock_ns: u64,
    /// Most pages of a file in one readahead window.
    pub read_ahead: u64,
    /// Base-2 logarithm of the factor by which lists count as longer ([`ebb_mm::lru::Scan`]). It
    /// brings a scaled machine to the size that the scaling rule asks for.
    pub lift: u8,
    /// [`lift`](Mem::lift) for reclaim from one memcg and the memcgs below it.
    pub memcg_lift: u8,
    /// Factor by which the kernel's timers are shorter than on the machine that this one stands
    /// for. That machine has as many times the memory, so a pass through it takes as many times
    /// longer.
    pub time_scale: u64,
    /// End of each zone, and the rank of its kind among the kinds of zone.
    pub(super) zone_ends: Vec<(u32, u8)>,
    pub(super) marks: [u64; COUNTED.len()],
    pub(super) last_fd: (usize, u64),
    pub(super) next_fold: u64,
    /// Frame that the running fault has found and not used yet.
    pub(super) held: Option<Pfn>,
    /// By frame: whether its page is anonymous, was read ahead and is not used yet. The first use
    /// counts as a hit of readahead.
    pub(super) marked: Vec<bool>,
    /// Pages that the running fault brought in.
    pub(super) brought: Vec<(usize, u64)>,
    /// Locations of the `brought` pages on the swap device.
    pub(super) brought_from: Vec<u64>,
    /// State of readahead from swap, by space and region.
    pub(super) swap_ahead: Vec<Vec<SwapAhead>>,
    pub(super) slots_ahead: SwapAhead,
    /// State of readahead through mappings, by space.
    pub(super) mapped: Vec<FileAhead>,
    pub(super) direct: u64,
    pub(super) slot_hand: u32,
    /// Whether the wait of the last fault is a memory stall ([`pressure`](super::pressure)).
    pub(super) stalls: bool,
    /// Whether the running task goes on with reclaim without a wait.
    pub(super) retries_at_once: bool,
    /// Whether the page that was just put into a frame had been in memory before.
    pub(super) refaulted: bool,
    /// Time until which a task adds up the counters of memcgs.
    pub(super) flushing_ns: u64,
    /// State of each task in the middle of reclaim.
    pub(super) tasks: Vec<Task>,
    /// By memcg and node: the memcg at which the next reclaim from that subtree begins.
    pub(super) turns: Vec<Vec<usize>>,
    /// By memcg: how much of it the running reclaim spares.
    pub(super) protection: Vec<Protection>,
    /// Memory under Ebb instead of a kernel. Anonymous memory only.
    pub live: Option<Box<Live>>,
}

/// Event counters that show the work of reclaim.
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

/// Builds the context that every engine call takes.
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
    /// Creates empty memory.
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
            time_scale: 1,
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
            retries_at_once: false,
            refaulted: false,
            flushing_ns: 0,
            tasks: Vec::new(),
            turns: Vec::new(),
            protection: Vec::new(),
            live: None,
        }
    }

    /// Returns a time that the kernel waits, scaled to this machine.
    pub(super) fn timer(&self, ns: u64) -> u64 {
        (ns / self.time_scale.max(1)).max(TIMER_NS_MIN.min(ns))
    }

    /// Adds a memcg below the root, with a limit and no other setting. Returns its index.
    pub fn add_memcg(&mut self, limit: u64) -> usize {
        self.add_group(None, Knobs { max: limit, ..Knobs::default() })
    }

    /// Adds a memcg below `parent`. Returns its index.
    pub fn add_group(&mut self, parent: Option<usize>, knobs: Knobs) -> usize {
        let id = self.memcgs.len();
        let above = parent.map_or(Memcgs::ROOT, |p| MemcgId(p as u16 + 1));
        let group = self.out.groups.add(above, knobs);
        debug_assert_eq!(usize::from(group.0), id + 1, "groups are numbered as memcgs are, from 1");
        let limit = knobs.max;
        // Memcg ids begin at 1 because a shadow of all zeros would be no shadow.
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

    /// Adds an address space whose regions follow each other from page 0. Returns its index.
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

    /// Touches a page, unless that takes a fault. Returns false if the page is absent, in transfer
    /// or not mapped, or if its read begins the next window.
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

    /// Returns whether a read of the page begins the next window: the page has the readahead mark.
    /// With `file.one_mark` a file page that is to be freed after its write counts as marked, too.
    pub(super) fn begins_ahead(&self, pfn: Pfn) -> bool {
        let w = self.folios.word(pfn);
        let passes = w.has(Word::RECLAIM) && !w.has(Word::WRITEBACK.or(Word::SWAPBACKED));
        w.has(Word::AHEAD) || (self.tun.file.one_mark && passes)
    }

    /// Accounts the first write to a mapped page since its entry was last clean.
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
            // As in the kernel, a write through a descriptor does not count as a use.
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
        if lists.lruvec.note_access_lazily(&cx, pfn) {
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

    /// Ends the write of a page.
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

    /// Handles a page fault under Ebb.
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

    /// Does one step of kswapd under Ebb. The error is the reason why the run ends.
    pub(super) fn live_step(&mut self, now: u64) -> Result<Next, GivenUp> {
        let live = self.live.as_mut().expect("a machine under Ebb");
        live.step(now, self.out.swap.as_mut(), &self.stat)
    }

    /// Frees pages: `munmap` or the end of a process. Returns the cost in nanoseconds.
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
                    // A page in transfer stays, and is left to reclaim.
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

    /// Returns a position on the disk that continues no other request.
    pub fn direct_at(&mut self) -> u64 {
        self.direct += 2;
        self.direct
    }

    /// Returns the length of a space in pages.
    #[must_use]
    pub fn pages_of(&self, space: usize) -> u64 {
        self.ends[space].last().map_or(0, |&(end, _)| end)
    }

    /// Returns the number of pages of a space that are in memory or stored.
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

    /// Returns the memory of the process of a space, in KiB.
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

    /// Returns the memcg to which a space belongs.
    #[must_use]
    pub fn memcg_of(&self, space: usize) -> usize {
        self.owner[space]
    }

    /// Returns the number of frames on the free lists. Under Ebb these are the free pages of the
    /// budget.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.live.as_ref().map_or_else(|| self.free_on(None), |live| live.free_pages())
    }
}
