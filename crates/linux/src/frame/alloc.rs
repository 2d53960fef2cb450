//! One attempt at the free lists: the order of the zones, and the tests that each zone must pass.
//!
//! The allocator calls the rest of the memory manager through [`Host`], and never under a lock.

use super::counter::ZoneItem;
use super::frames::{Frames, Who, Zone};
use super::kinds::{
    AllocFlags, Gfp, Migratetype, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, ZoneKind,
};
use super::state::{BELOW_HIGH, BOOSTED, Want};
use super::sync::Relaxed;
use super::watermark::Level;
use ebb_mm::types::Pfn;

/// An allocation request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Request {
    /// Flags that say what the allocator may do for the request.
    pub gfp: Gfp,
    /// Order of the block.
    pub order: Order,
    /// The caller is itself reclaiming memory.
    pub reclaiming: bool,
    /// The caller has been chosen to die for its memory.
    pub oom_victim: bool,
}

impl Request {
    /// Creates an ordinary request.
    #[must_use]
    pub const fn new(gfp: Gfp, order: Order) -> Self {
        Self { gfp, order, reclaiming: false, oom_victim: false }
    }

    pub(super) fn can_reclaim(&self) -> bool {
        self.gfp.has(Gfp::DIRECT)
    }
}

/// The result of an attempt to compact.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Compaction {
    /// Compaction did not run, because it promises no gain or failed too often recently.
    Skipped,
    /// Compaction ran.
    Done,
}

/// The rest of the memory manager, as the allocator calls it. The default methods do nothing.
pub trait Host {
    /// Wakes the kswapd of `node`: a request wants `order` from class `highest` or below.
    fn wake_kswapd(&self, node: usize, order: Order, highest: usize) {
        let _ = (node, order, highest);
    }

    /// Whether the kswapd of `node` is awake.
    fn kswapd_awake(&self, node: usize) -> bool {
        let _ = node;
        false
    }

    /// Whether `node` holds more dirty pages than its share.
    fn over_dirty_limit(&self, node: usize) -> bool {
        let _ = node;
        false
    }

    /// Reclaims from one node during a scan, if that is enabled. Returns true if the zone is worth
    /// another test.
    fn node_reclaim(&self, node: usize, order: Order) -> bool {
        let _ = (node, order);
        false
    }

    /// Compacts for a request. `hard`: waits for the result.
    fn compact(&self, request: &Request, highest: usize, hard: bool) -> Compaction {
        let _ = (request, highest, hard);
        Compaction::Skipped
    }

    /// Whether another round of compaction may help.
    fn compact_again(&self, request: &Request) -> bool {
        let _ = request;
        false
    }

    /// Reclaims at least `target` pages for a request. Returns how many pages it freed.
    fn reclaim(&self, request: &Request, highest: usize, target: u64) -> u64 {
        let _ = (request, highest, target);
        0
    }

    /// Returns the pages of a zone that reclaim might still free.
    fn reclaimable(&self, zone: usize) -> u64 {
        let _ = zone;
        0
    }

    /// Tries to become the one caller that decides about an OOM kill.
    fn oom_begin(&self) -> bool {
        true
    }

    /// Ends a successful [`oom_begin`](Self::oom_begin).
    fn oom_end(&self) {}

    /// Kills a process for a request. Returns false if there is none to kill.
    fn oom_kill(&self, request: &Request, highest: usize) -> bool {
        let _ = (request, highest);
        false
    }

    /// Sleeps for a tick.
    fn sleep_tick(&self) {}
}

/// A host without reclaim: an allocation succeeds at once or fails.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoHost;

impl Host for NoHost {}

/// One attempt: the request, the watermark level, the flags and the zones that it may use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Attempt<'a> {
    pub(super) who: Who,
    pub(super) request: &'a Request,
    pub(super) node: usize,
    pub(super) highest: usize,
    pub(super) level: Level,
    pub(super) flags: AllocFlags,
}

impl Frames {
    /// Allocates one block for `request`, on behalf of `cpu`, which is a hint. Returns None only
    /// after reclaim, compaction and killing have been tried as far as the request allows.
    pub fn alloc_on(&self, cpu: usize, request: &Request, host: &dyn Host) -> Option<Pfn> {
        let cpu = cpu % self.cpus.len();
        self.hit_on(cpu, request.gfp, request.order)
            .or_else(|| self.miss(Who { cpu, owner: false }, *request, host))
    }

    /// Allocates after a miss in the CPU's sets: first from the free lists, then by the slow path.
    /// `request` comes by value, so that on a hit the request never needs an address.
    #[cold]
    #[inline(never)]
    pub(super) fn miss(&self, who: Who, request: Request, host: &dyn Host) -> Option<Pfn> {
        let request = &request;
        let node = self.cpus[who.cpu].node;
        let highest = self.class_of(request.gfp);
        let movable = request.gfp.migratetype() == Migratetype::Movable;
        let flags = AllocFlags::NONE
            .with_if(AllocFlags::CMA, movable)
            .with_if(AllocFlags::KSWAPD, request.gfp.has(Gfp::KSWAPD))
            .with_if(AllocFlags::NOFRAGMENT, self.avoids_mixing(node, highest));
        let attempt = Attempt { who, request, node, highest, level: Level::Low, flags };
        self.try_freelists(&attempt, host).or_else(|| self.alloc_slow(attempt, host))
    }

    /// Whether an allocation prefers DMA32 to mixing a pageblock of Normal.
    fn avoids_mixing(&self, node: usize, highest: usize) -> bool {
        let mut list = self.zonelists[node][highest].iter().map(|&z| &self.zones[z].state);
        let (first, second) = (list.next(), list.next());
        first.is_some_and(|z| z.kind == ZoneKind::Normal)
            && second.is_some_and(|z| z.kind == ZoneKind::Dma32 && z.node == node)
    }

    pub(super) fn try_freelists(&self, attempt: &Attempt<'_>, host: &dyn Host) -> Option<Pfn> {
        let mut attempt = *attempt;
        let mut skip_busy_nodes = self.zonelists.len() > 1;
        loop {
            let mut skipped = false;
            match self.scan(&attempt, host, skip_busy_nodes, &mut skipped) {
                Scan::Found(pfn) => return Some(pfn),
                Scan::LeavingNode => attempt.flags = attempt.flags.without(AllocFlags::NOFRAGMENT),
                Scan::Nothing if skip_busy_nodes && skipped => skip_busy_nodes = false,
                Scan::Nothing if attempt.flags.has(AllocFlags::NOFRAGMENT) => {
                    attempt.flags = attempt.flags.without(AllocFlags::NOFRAGMENT);
                }
                Scan::Nothing => return None,
            }
        }
    }

    fn scan(
        &self,
        attempt: &Attempt<'_>,
        host: &dyn Host,
        skip_busy_nodes: bool,
        skipped: &mut bool,
    ) -> Scan {
        let Attempt { request, node, highest, flags, .. } = *attempt;
        for &z in &self.zonelists[node][highest] {
            let zone = &self.zones[z];
            let there = zone.state.node;
            if request.gfp.has(Gfp::THISNODE) && there != node {
                continue;
            }
            if request.gfp.has(Gfp::WRITE) && host.over_dirty_limit(there) {
                continue;
            }
            if flags.has(AllocFlags::NOFRAGMENT) && there != node {
                return Scan::LeavingNode;
            }
            if skip_busy_nodes && host.kswapd_awake(there) {
                *skipped = true;
                continue;
            }
            if !self.passes(attempt, zone, host) {
                continue;
            }
            let want = Want {
                order: request.order,
                migratetype: request.gfp.migratetype(),
                flags,
                cpu: attempt.who.cpu,
            };
            if let Some(pfn) = self.rmqueue(attempt.who, zone, &want) {
                self.allocated(attempt, zone, pfn, host);
                return Scan::Found(pfn);
            }
        }
        Scan::Nothing
    }

    /// Tests the watermark and keeps the zone's "below high" flag up to date.
    fn passes(&self, attempt: &Attempt<'_>, zone: &Zone, host: &dyn Host) -> bool {
        let Attempt { request, highest, flags, level, .. } = *attempt;
        if flags.has(AllocFlags::NO_WATERMARKS) {
            return true;
        }
        let state = &zone.state;
        if !state.flag(BELOW_HIGH) {
            if zone.watermark_ok(request.order, Level::High, highest, flags) {
                return true;
            }
            state.set_flag(BELOW_HIGH);
        }
        let ok = |flags| {
            if zone.watermark_ok(request.order, level, highest, flags) {
                return true;
            }
            // Important single pages may go below a boosted min.
            let important = flags.has(AllocFlags::MIN_RESERVE)
                && request.order == Order::ZERO
                && level == Level::Min
                && state.boost.load(Relaxed) > 0;
            let free = state.counters.read(ZoneItem::FreePages);
            important
                && zone.watermark_ok_with(request.order, state.marks.min, highest, flags, free)
        };
        ok(flags) || (host.node_reclaim(state.node, request.order) && ok(flags))
    }

    fn allocated(&self, attempt: &Attempt<'_>, zone: &Zone, pfn: Pfn, host: &dyn Host) {
        let state = &zone.state;
        if attempt.flags.has(AllocFlags::HIGHATOMIC) {
            self.reserve_highatomic(zone, pfn, attempt.request.order);
        }
        if attempt.flags.has(AllocFlags::KSWAPD) && state.flag(BOOSTED) && state.clear_flag(BOOSTED)
        {
            host.wake_kswapd(state.node, Order::ZERO, state.class);
        }
    }

    /// Reserves the pageblocks of `pfn`, which has served a high-atomic request, for further such
    /// requests. The reserve is at most a hundredth of the zone.
    fn reserve_highatomic(&self, zone: &Zone, pfn: Pfn, order: Order) {
        let state = &zone.state;
        let block = u64::from(PAGEBLOCK_PAGES);
        let share = state.managed / 100;
        if share < block
            || state.reserved_highatomic.load(Relaxed) >= share.next_multiple_of(block)
            || !self.blocks.get(pfn).migratetype().mergeable()
        {
            return;
        }
        let blocks = 1u32 << order.get().saturating_sub(PAGEBLOCK_ORDER);
        for i in 0..blocks {
            zone.store.set_migratetype(state, pfn.0 + i * PAGEBLOCK_PAGES, Migratetype::HighAtomic);
            state.reserved_highatomic.fetch_add(block, Relaxed);
        }
    }

    /// Gives one high-atomic pageblock the type `to`, in the first zone that has one with free
    /// pages. Each zone keeps one such pageblock unless `force` is set. Returns whether frames
    /// changed their type.
    pub(super) fn unreserve_highatomic(
        &self,
        node: usize,
        highest: usize,
        to: Migratetype,
        force: bool,
    ) -> bool {
        let block = u64::from(PAGEBLOCK_PAGES);
        self.zonelists[node][highest].iter().any(|&z| {
            let zone = &self.zones[z];
            let reserved = &zone.state.reserved_highatomic;
            if !force && reserved.load(Relaxed) <= block {
                return false;
            }
            let Some(pfn) = zone.store.find_block(Migratetype::HighAtomic) else { return false };
            let moved = zone.store.set_migratetype(&zone.state, pfn, to);
            let _ =
                reserved.fetch_update(Relaxed, Relaxed, |pages| Some(pages.saturating_sub(block)));
            moved > 0
        })
    }
}

enum Scan {
    Found(Pfn),
    /// The next zone is on another node, and the attempt still avoids mixing pageblocks.
    LeavingNode,
    Nothing,
}
