//! The page-frame allocator: zones, the per-CPU sets before them, and the entry points.
//!
//! A request that a set serves is a hit. A caller can hold a [`Cpu`], the claim on one CPU's sets.
//! A hit then costs no locked instruction. Other callers name a CPU as a hint and take that CPU's
//! lock if it is free. Without a hit the zone's store serves the request.
//!
//! Invariants:
//! * FRAMES-1: a managed frame is either free in a zone's store, in one set, allocated to a caller,
//!   or leaked.
//! * FRAMES-2: `FreePages` of a zone counts its store only. Frames in sets count as allocated.
//!
//! Lock order: a CPU's set lock, a CPU's scratch, a store's locks. No host callback runs under any
//! of them.

use std::ops::Range;
use std::sync::Arc;

use super::blocks::BlockMap;
use super::checks::{BadFree, BadUse, FrameTable};
use super::counter::ZoneItem;
use super::cpulock::RemoteFence;
use super::gate::Gate;
use super::kinds::{AllocFlags, Checks, Gfp, ORDERS, Order, ZoneKind};
use super::layout::Config;
use super::pcp::{Pcp, Pressure, list_index, list_of};
use super::state::{BELOW_HIGH, FreeStore, RECLAIM_ACTIVE, Want, ZoneState};
use super::switches::Switches;
use super::sync::{AtomicU64, Mutex, Relaxed, lock};
use super::watermark::Level;
use ebb_mm::types::Pfn;

/// Most blocks that one refill, or one portion of a drain, moves.
#[cfg(not(loom))]
pub(super) const SCRATCH: usize = 2048;
#[cfg(loom)]
pub(super) const SCRATCH: usize = 8;
pub(super) const NO_ROUTE: u16 = u16::MAX;

/// A zone and its free frames.
#[derive(Debug)]
pub struct Zone {
    pub(super) state: ZoneState,
    pub(super) store: Box<dyn FreeStore>,
}

impl Zone {
    /// Returns the zone's sizes, watermarks and counters.
    #[must_use]
    pub fn state(&self) -> &ZoneState {
        &self.state
    }

    /// Whether a request of `order` passes the watermark at `level`, boost included. The request
    /// may go as high as class `highest`. The test uses the plain count of free pages, which
    /// per-CPU deltas make inexact.
    #[must_use]
    pub fn watermark_ok(
        &self,
        order: Order,
        level: Level,
        highest: usize,
        flags: AllocFlags,
    ) -> bool {
        let free = self.state.counters.read(ZoneItem::FreePages);
        self.watermark_ok_with(order, self.state.effective_mark(level), highest, flags, free)
    }

    /// Whether a request of `order` passes the watermark `mark` with `free` free pages. The request
    /// may go as high as class `highest`.
    #[must_use]
    pub fn watermark_ok_with(
        &self,
        order: Order,
        mark: u64,
        highest: usize,
        flags: AllocFlags,
        free: u64,
    ) -> bool {
        let blocks = || self.store.blocks_free(order);
        self.state.watermark_ok(free, order.get(), mark, highest, flags, blocks)
    }

    /// Returns the free blocks in the store by order and migratetype.
    #[must_use]
    pub fn free_blocks(&self) -> [[u64; 6]; ORDERS] {
        self.store.counts()
    }

    pub(super) fn pressure(&self) -> Pressure {
        Pressure {
            below_high: self.state.flag(BELOW_HIGH),
            reclaim_active: self.state.flag(RECLAIM_ACTIVE),
        }
    }
}

/// The sets of one CPU, one per zone.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct CpuSets {
    pub(super) gate: Arc<Gate>,
    pub(super) sets: Box<[Pcp]>,
    pub(super) node: usize,
    /// By kind of zone: the first zone of a request. [`NO_ROUTE`] if hits are not possible.
    pub(super) routes: [u16; 6],
    /// Buffer for the blocks of one refill or drain, used under the CPU's lock.
    scratch: Mutex<Box<[u32]>>,
    /// By zone: blocks and pages that bypassed the sets.
    pub(super) direct: Box<[Direct]>,
}

#[derive(Debug, Default)]
pub(super) struct Direct {
    pub(super) blocks: AtomicU64,
    pub(super) pages: AtomicU64,
    pub(super) freed: AtomicU64,
}

impl CpuSets {
    pub(super) fn new(node: usize, sets: Box<[Pcp]>, gate: Arc<Gate>) -> Self {
        let direct = sets.iter().map(|_| Direct::default()).collect();
        let scratch = Mutex::new(vec![0; SCRATCH].into_boxed_slice());
        Self { gate, sets, node, routes: [NO_ROUTE; 6], scratch, direct }
    }
}

/// The CPU whose sets a caller uses, and whether the caller has claimed them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Who {
    pub(super) cpu: usize,
    pub(super) owner: bool,
}

/// The page-frame allocator.
#[derive(Debug)]
pub struct Frames {
    pub(super) zones: Box<[Zone]>,
    pub(super) cpus: Box<[CpuSets]>,
    pub(super) blocks: Arc<BlockMap>,
    pub(super) table: Option<Arc<FrameTable>>,
    pub(super) kinds: Vec<ZoneKind>,
    /// By kind of zone: the highest class whose kind is not above that kind.
    classes: [u8; 6],
    /// By node and highest class: the zones in the order in which they are tried.
    pub(super) zonelists: Vec<Vec<Vec<usize>>>,
    pub(super) fence: Option<Arc<dyn RemoteFence>>,
    pub(super) light: bool,
    sets_on: bool,
    /// Whether a hit needs nothing but the sets: sets exist and there is no frame table.
    pub(super) plain: bool,
    pub(super) switches: Arc<Switches>,
}

impl Frames {
    pub(super) fn assemble(
        config: &Config,
        zones: Vec<Zone>,
        mut cpus: Vec<CpuSets>,
        blocks: Arc<BlockMap>,
        table: Option<Arc<FrameTable>>,
        switches: Arc<Switches>,
    ) -> Self {
        let zonelists = zonelists(config, &zones);
        let plain = table.is_none() && config.pcp.is_some();
        let classes: [u8; 6] = std::array::from_fn(|kind| {
            config.kinds.iter().rposition(|&k| k as usize <= kind).unwrap_or(0) as u8
        });
        for sets in &mut cpus {
            for (route, &class) in sets.routes.iter_mut().zip(&classes) {
                let first = zonelists[sets.node][class as usize].first();
                *route = first.filter(|_| plain).map_or(NO_ROUTE, |&zone| zone as u16);
            }
            if let Some(main) = sets.main_route().filter(|_| config.fence.is_some()) {
                sets.gate.open(main);
                zones[main].state.repeat_flags();
            }
        }
        Self {
            classes,
            zones: zones.into_boxed_slice(),
            cpus: cpus.into_boxed_slice(),
            blocks,
            plain,
            table,
            kinds: config.kinds.clone(),
            zonelists,
            light: config.fence.is_some(),
            fence: config.fence.clone(),
            sets_on: config.pcp.is_some(),
            switches,
        }
    }

    /// Returns all zones, by node and then in the order of the configuration.
    #[must_use]
    pub fn zones(&self) -> &[Zone] {
        &self.zones
    }

    /// Returns the frame table of checked mode.
    #[must_use]
    pub fn table(&self) -> Option<&FrameTable> {
        self.table.as_deref()
    }

    /// Returns the pageblock map.
    #[must_use]
    pub fn blocks(&self) -> &BlockMap {
        &self.blocks
    }

    /// Returns the number of CPUs.
    #[must_use]
    pub fn cpu_count(&self) -> usize {
        self.cpus.len()
    }

    /// Returns the node of a CPU.
    #[must_use]
    pub fn cpu_node(&self, cpu: usize) -> usize {
        self.cpus[cpu].node
    }

    /// Returns the number of nodes, up to the last one that has memory.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.zones.iter().map(|z| z.state.node + 1).max().unwrap_or(1)
    }

    /// Returns the class of a request: the position of the highest kind of zone it may use.
    #[must_use]
    #[inline(always)]
    pub fn class_of(&self, gfp: Gfp) -> usize {
        self.classes[gfp.zone_kind() as usize] as usize
    }

    #[inline(always)]
    fn enter(&self, sets: &CpuSets, owner: bool) -> bool {
        if owner {
            sets.gate.lock.enter_owner(self.light)
        } else {
            sets.gate.lock.try_enter_shared()
        }
    }

    #[inline(always)]
    fn leave(sets: &CpuSets, owner: bool) {
        if owner {
            sets.gate.lock.leave_owner();
        } else {
            sets.gate.lock.leave_stopped();
        }
    }

    /// Returns a block if the preferred zone is far above its watermarks and the set has one.
    #[inline(always)]
    fn hit(&self, sets: &CpuSets, owner: bool, gfp: Gfp, order: Order) -> Option<Pfn> {
        let zone = sets.routes[gfp.zone_kind() as usize] as usize;
        let list = list_of(order, gfp.migratetype())?;
        let quiet = self.zones.get(zone)?.state.flags.load(Relaxed) == 0;
        if !quiet || gfp.has(Gfp::WRITE) || !self.enter(sets, owner) {
            return None;
        }
        let pfn = sets.sets.get(zone).and_then(|set| set.lists[list].pop());
        Self::leave(sets, owner);
        pfn.map(Pfn)
    }

    /// Takes a block from `zone`, through the sets if they have it or can be refilled.
    pub(super) fn rmqueue(&self, who: Who, zone: &Zone, want: &Want) -> Option<Pfn> {
        loop {
            let pfn = self.rmqueue_raw(who, zone, want)?;
            let Some(table) = &self.table else { return Some(Pfn(pfn)) };
            let looked = self.switches.checks() != Checks::OnPop || table.sane(pfn, want.order);
            if looked && table.mark_used(pfn, want.order) {
                return Some(Pfn(pfn));
            }
            zone.state.leak(want.order);
        }
    }

    fn rmqueue_raw(&self, who: Who, zone: &Zone, want: &Want) -> Option<u32> {
        let sets = &self.cpus[who.cpu];
        let reserve = want.flags.has(AllocFlags::HIGHATOMIC);
        if let Some(list) = list_of(want.order, want.migratetype)
            && self.sets_on
            && !reserve
            && self.enter(sets, who.owner)
        {
            let set = &sets.sets[zone.state.index];
            if zone.state.node != sets.node {
                set.touch();
            }
            let pfn = set.lists[list].pop_any().or_else(|| self.refill(sets, zone, list, want));
            Self::leave(sets, who.owner);
            if pfn.is_some() {
                return pfn;
            }
        }
        let mut one = [0];
        let n = self.take_checked(zone, want, &mut one);
        if n == 0 {
            return None;
        }
        let direct = &sets.direct[zone.state.index];
        direct.blocks.fetch_add(1, Relaxed);
        direct.pages.fetch_add(u64::from(want.order.pages()), Relaxed);
        Some(one[0])
    }

    /// Takes blocks from the store. With `Checks::AfterLock` it checks them, and leaks those that
    /// fail.
    fn take_checked(&self, zone: &Zone, want: &Want, out: &mut [u32]) -> usize {
        let n = zone.store.take(&zone.state, want, out);
        let Some(table) =
            self.table.as_ref().filter(|_| self.switches.checks() == Checks::AfterLock)
        else {
            return n;
        };
        let mut kept = 0;
        for i in 0..n {
            if table.sane(out[i], want.order) {
                out[kept] = out[i];
                kept += 1;
            } else {
                zone.state.leak(want.order);
            }
        }
        kept
    }

    /// Fills the list and pops a block from it. The caller has entered the sets.
    fn refill(&self, sets: &CpuSets, zone: &Zone, list: usize, want: &Want) -> Option<u32> {
        let set = &sets.sets[zone.state.index];
        let n = set.refill_count(list, zone.pressure()) as usize;
        if n == 0 {
            return None;
        }
        let mut scratch = lock(&sets.scratch);
        let room = n.min(scratch.len());
        let spare = AllocFlags::OOM.with(AllocFlags::NON_BLOCK);
        let want = Want { flags: want.flags.without(spare), ..*want };
        let n = self.take_checked(zone, &want, &mut scratch[..room]);
        set.lists[list].append(&scratch[..n]);
        if sets.main_route() == Some(zone.state.index)
            && set.pushes_freely()
            && let Some(&first) = scratch[..n].first()
            && let info = self.blocks.get(Pfn(first))
            && info.list() < 3
        {
            sets.gate.set_usual(info.word(), info.list());
        }
        drop(scratch);
        set.lists[list].pop()
    }

    #[inline(never)]
    pub(super) fn free_after_miss(&self, who: Who, pfn: Pfn, order: Order) -> Result<(), BadFree> {
        let info = self.blocks.get(pfn);
        let (zone, t) = (info.zone_or_beyond(), info.list());
        if self.plain && t < 3 && self.push_hit(&self.cpus[who.cpu], who.owner, zone, t, pfn, order)
        {
            return Ok(());
        }
        self.free_slow(who, pfn, order)
    }

    /// Pushes a block on a set, if the push needs nothing but room in the set.
    #[inline(always)]
    fn push_hit(
        &self,
        sets: &CpuSets,
        owner: bool,
        zone: usize,
        t: usize,
        pfn: Pfn,
        order: Order,
    ) -> bool {
        let quiet = |z: &Zone| z.state.flags.load(Relaxed) == 0;
        let list = list_index(order, t);
        if !self.zones.get(zone).is_some_and(quiet) || !self.enter(sets, owner) {
            return false;
        }
        let push = |set: &Pcp| set.pushes_freely() && set.lists[list].push(pfn.0);
        let done = sets.sets.get(zone).is_some_and(push);
        Self::leave(sets, owner);
        done
    }

    #[cold]
    #[inline(never)]
    fn free_slow(&self, who: Who, pfn: Pfn, order: Order) -> Result<(), BadFree> {
        let info = self.blocks.get(pfn);
        let fail = |why| Err(BadFree { pfn, order: order.get(), why });
        let Some(zone) = info.zone().map(|z| &self.zones[z]) else {
            return fail(BadUse::Foreign);
        };
        if pfn.0 & (order.pages() - 1) != 0 {
            return fail(BadUse::Misaligned);
        }
        let span = &zone.state.span;
        if pfn.0 < span.start || pfn.0 + order.pages() > span.end {
            return fail(BadUse::Foreign);
        }
        if let Some(table) = &self.table {
            table.mark_free(pfn, order, self.switches.checks() == Checks::OnPop)?;
        }
        let sets = &self.cpus[who.cpu];
        if let Some(list) = list_of(order, info.migratetype())
            && self.sets_on
            && sets.sets[zone.state.index].lists[list].capacity() > 0
            && self.enter(sets, who.owner)
        {
            self.push(sets, zone, list, pfn.0);
            Self::leave(sets, who.owner);
            let state = &zone.state;
            if state.flag(BELOW_HIGH)
                && zone.watermark_ok(Order::ZERO, Level::High, state.class, AllocFlags::NONE)
            {
                state.clear_flag(BELOW_HIGH);
            }
            return Ok(());
        }
        zone.store.give(&zone.state, who.cpu, order, &mut [pfn.0], false);
        sets.direct[zone.state.index].freed.fetch_add(u64::from(order.pages()), Relaxed);
        Ok(())
    }

    /// Pushes a block by the rule of the sets and drains as many pages as the rule says. The caller
    /// has entered the sets.
    fn push(&self, sets: &CpuSets, zone: &Zone, list: usize, pfn: u32) {
        let set = &sets.sets[zone.state.index];
        let index = zone.state.index;
        let pages = set.drain_before_push(list, zone.pressure());
        if pages > 0 {
            self.drain_pages(sets, index, list, pages);
        }
        let pages = set.push_by_rule(list, pfn, zone.pressure());
        if pages > 0 {
            self.drain_pages(sets, index, list, pages);
        }
        if zone.state.node != sets.node {
            set.touch();
        }
    }

    /// Drains a set. The caller has entered the sets.
    pub(super) fn drain_pages(&self, sets: &CpuSets, zone: usize, list: usize, pages: u32) {
        let cpu = self.number_of(sets);
        let z = &self.zones[zone];
        let mut scratch = lock(&sets.scratch);
        sets.sets[zone].drain(list, pages, &mut scratch, |order, frames| {
            z.store.give(&z.state, cpu, order, frames, false);
        });
    }

    fn number_of(&self, sets: &CpuSets) -> usize {
        self.cpus.iter().position(|c| std::ptr::eq(c, sets)).unwrap_or(0)
    }

    /// Returns the frames of one zone.
    #[must_use]
    pub fn span(&self, zone: usize) -> Range<u32> {
        self.zones[zone].state.span.clone()
    }
}

/// Builds the zone lists: node by node in order of distance, in a node from the highest class down.
fn zonelists(config: &Config, zones: &[Zone]) -> Vec<Vec<Vec<usize>>> {
    let distance = |a: usize, b: usize| {
        let given = config.distances.get(a).and_then(|row| row.get(b)).copied();
        (given.unwrap_or(a.abs_diff(b) as u32), b)
    };
    let list = |node: usize, highest: usize| {
        let fits = |z: &&Zone| z.state.class <= highest && z.state.managed > 0;
        let mut list: Vec<&Zone> = zones.iter().filter(fits).collect();
        list.sort_by_key(|z| (distance(node, z.state.node), std::cmp::Reverse(z.state.class)));
        list.iter().map(|z| z.state.index).collect()
    };
    let lists = |node| (0..config.kinds.len()).map(|highest| list(node, highest)).collect();
    (0..config.nodes.len()).map(lists).collect()
}

impl Frames {
    /// Returns a block if a hit suffices, for a caller without a claim.
    #[inline]
    pub(super) fn hit_on(&self, cpu: usize, gfp: Gfp, order: Order) -> Option<Pfn> {
        self.hit(&self.cpus[cpu], false, gfp, order)
    }

    /// Returns a block if a hit suffices, for an owner where no remote fence exists.
    pub(super) fn hit_heavy(&self, cpu: usize, gfp: Gfp, order: Order) -> Option<Pfn> {
        if self.light { None } else { self.hit(&self.cpus[cpu], true, gfp, order) }
    }

    /// Frees a block through the sets of `cpu`, which is a hint. A refused free changes nothing.
    pub fn free_on(&self, cpu: usize, pfn: Pfn, order: Order) -> Result<(), BadFree> {
        let cpu = cpu % self.cpus.len();
        self.free_after_miss(Who { cpu, owner: false }, pfn, order)
    }
}
