//! A zone without its free lists: sizes, watermarks, flags, counters. Also the rules that every
//! store of free frames shares: what to count, what to check, and when.
//!
//! Invariants:
//! * FRAME-1: at quiescence `FreePages`, `FreeCma`, `FreePagesBlocks` and `free_highatomic` equal
//!   the contents of the zone's store. With the default way of counting they change only while the
//!   lock of the counted frames is held.
//! * FRAME-2: `tight_mark` is high watermark + boost + the largest reserve + the largest block. One
//!   comparison with it (flag `TIGHT`) decides every request while free memory is plentiful.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use super::blocks::BlockMap;
use super::checks::FrameTable;
use super::contradiction::Contradiction;
use super::counter::{Counters, ZoneItem};
use super::gate::Gate;
use super::kinds::{AllocFlags, Checks, CmaCount, Migratetype, Order, ZoneKind};
use super::switches::Switches;
use super::sync::{AcqRel, Acquire, AtomicI64, AtomicU32, AtomicU64, Relaxed};
use super::watermark::{self, BlocksFree, Level, Marks, ZoneView};

/// Zone flags.
pub(super) const BOOSTED: u32 = 1;
pub(super) const BELOW_HIGH: u32 = 2;
pub(super) const RECLAIM_ACTIVE: u32 = 4;
/// Free pages may be too few for some class of request at the high watermark. So each request needs
/// the full test.
pub(super) const TIGHT: u32 = 8;

/// An observer that is called when a refill takes and drops a zone lock.
pub trait Meter: Send + Sync {
    /// Notes that the lock is held from now on.
    fn locked(&self);
    /// Notes that the lock is free again. Late counter updates are still to come.
    fn unlocked(&self);
}

/// Knows which allocated frames could be moved.
pub trait Census: Send + Sync {
    /// Whether the contents of `pfn`, an allocated frame, can be moved.
    fn is_movable(&self, pfn: u32) -> bool;
}

/// A census that knows no movable frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCensus;

impl Census for NoCensus {
    fn is_movable(&self, _pfn: u32) -> bool {
        false
    }
}

/// Free frames of a store, counted by category.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Totals {
    /// All free frames but isolated ones.
    pub free: i64,
    /// Free frames in CMA blocks.
    pub cma: i64,
    /// Free frames in high-atomic blocks.
    pub highatomic: i64,
    /// Free frames in free blocks of at least a pageblock.
    pub whole: i64,
}

impl Totals {
    /// Counts `pages` more (or fewer) free frames of a type.
    #[inline]
    pub(super) fn add(&mut self, migratetype: Migratetype, pages: i64, whole: i64) {
        match migratetype {
            Migratetype::Isolate => return,
            Migratetype::Cma => self.cma += pages,
            Migratetype::HighAtomic => self.highatomic += pages,
            _ => {}
        }
        self.free += pages;
        self.whole += whole;
    }
}

/// The state of a zone without its free lists.
pub struct ZoneState {
    pub(super) index: usize,
    pub(super) node: usize,
    pub(super) kind: ZoneKind,
    /// Position among the kinds of zone of this machine.
    pub(super) class: usize,
    pub(super) span: Range<u32>,
    pub(super) present: u64,
    pub(super) managed: u64,
    pub(super) cma: u64,
    pub(super) marks: Marks,
    pub(super) reserve: Vec<u64>,
    pub(super) boost: AtomicU64,
    pub(super) boost_factor: u64,
    /// Sum of high watermark, boost, the largest reserve and the largest block.
    pub(super) tight_mark: AtomicI64,
    pub(super) flags: AtomicU32,
    pub(super) drift_mark: Option<u64>,
    pub(super) threshold_normal: u32,
    pub(super) threshold_pressure: u32,
    pub(super) counters: Counters,
    pub(super) free_highatomic: AtomicI64,
    pub(super) reserved_highatomic: AtomicU64,
    /// Frames leaked after a failed check, and frames that a store refused.
    pub(super) bad_frames: AtomicU64,
    pub(super) blocks: Arc<BlockMap>,
    pub(super) table: Option<Arc<FrameTable>>,
    pub(super) switches: Arc<Switches>,
    pub(super) grouping: bool,
    pub(super) census: Arc<dyn Census>,
    pub(super) meter: Option<Arc<dyn Meter>>,
    /// The gates of all CPUs.
    pub(super) gates: Arc<[Arc<Gate>]>,
}

impl fmt::Debug for ZoneState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ZoneState")
            .field("node", &self.node)
            .field("kind", &self.kind)
            .field("span", &self.span)
            .field("managed", &self.managed)
            .field("marks", &self.marks)
            .finish_non_exhaustive()
    }
}

impl ZoneState {
    /// Returns the watermark at `level`, raised by the boost in force.
    #[must_use]
    pub fn effective_mark(&self, level: Level) -> u64 {
        self.marks.at(level) + self.boost.load(Relaxed)
    }

    /// Whether a request of `order` passes `mark` with `free` pages. The request may go as high as
    /// class `highest`. `blocks_free` is called only for orders above 0.
    #[must_use]
    pub(super) fn watermark_ok(
        &self,
        free: u64,
        order: u8,
        mark: u64,
        highest: usize,
        flags: AllocFlags,
        blocks_free: impl Fn() -> BlocksFree,
    ) -> bool {
        let view = ZoneView {
            free: free as i64,
            free_cma: self.counters.read(ZoneItem::FreeCma) as i64,
            free_highatomic: self.free_highatomic.load(Relaxed),
            reserve: self.reserve[highest],
            blocks: if order > 0 { blocks_free() } else { BlocksFree::default() },
        };
        watermark::watermark_ok(&view, order, mark, flags)
    }

    /// Returns the number of free pages: exact near the drift mark, else the plain count.
    #[must_use]
    pub fn free_pages_safe(&self) -> u64 {
        let plain = self.counters.read(ZoneItem::FreePages);
        match self.drift_mark {
            Some(mark) if plain < mark => self.counters.snapshot(ZoneItem::FreePages),
            _ => plain,
        }
    }

    #[inline(always)]
    pub(super) fn flag(&self, flag: u32) -> bool {
        self.flags.load(Relaxed) & flag != 0
    }

    pub(super) fn set_flag(&self, flag: u32) {
        if self.flags.fetch_or(flag, AcqRel) == 0 {
            self.repeat_flags();
        }
    }

    /// Passes on to the gates that lead to this zone whether any flag is set.
    pub(super) fn repeat_flags(&self) {
        let mut any = self.flags.load(Acquire) != 0;
        loop {
            self.gates.iter().filter(|g| g.leads_to(self.index)).for_each(|g| g.set_flags(any));
            // A thread that changed the flags meanwhile may have updated the gates before this one.
            let now = self.flags.load(Acquire) != 0;
            if now == any {
                return;
            }
            any = now;
        }
    }

    /// Clears a flag. Returns true if it was set.
    pub(super) fn clear_flag(&self, flag: u32) -> bool {
        let old = self.flags.fetch_and(!flag, AcqRel);
        if old != 0 && old & !flag == 0 {
            self.repeat_flags();
        }
        old & flag != 0
    }

    /// Raises the watermarks for a while, because a fallback mixed a pageblock.
    pub(super) fn boost(&self, flags: AllocFlags) {
        let old = self.boost.load(Relaxed);
        let pages = u64::from(super::kinds::PAGEBLOCK_PAGES);
        let new = watermark::boosted(old, self.marks.high, self.boost_factor, self.managed, pages);
        if self.boost_factor == 0 || self.managed < 4 * pages {
            return;
        }
        self.set_boost(new);
        if flags.has(AllocFlags::KSWAPD) {
            self.set_flag(BOOSTED);
        }
    }

    /// Sets the boost. After a run kswapd lowers it by the boost at the run's beginning.
    pub(super) fn set_boost(&self, boost: u64) {
        self.boost.store(boost, Relaxed);
        let reserve = self.reserve.iter().max().copied().unwrap_or(0);
        let block = u64::from(super::kinds::MAX_BLOCK_PAGES);
        self.tight_mark.store((self.marks.high + boost + reserve + block) as i64, Relaxed);
        self.judge();
    }

    /// Sets or clears `TIGHT` according to the free pages.
    pub(super) fn judge(&self) {
        let held_back = self.counters.read(ZoneItem::FreeCma) as i64
            + self.free_highatomic.load(Relaxed).max(0);
        let usable = self.counters.read(ZoneItem::FreePages) as i64 - held_back;
        let tight = usable <= self.tight_mark.load(Relaxed);
        if tight != self.flag(TIGHT) {
            if tight {
                self.set_flag(TIGHT);
            } else {
                self.clear_flag(TIGHT);
            }
        }
    }

    /// Updates the counters from `before` to `after`. The caller holds the lock of these frames.
    #[inline]
    pub(super) fn count(&self, cpu: usize, before: &Totals, after: &Totals, cma: bool) {
        self.counters.add(cpu, ZoneItem::FreePages, after.free - before.free);
        self.counters.add(cpu, ZoneItem::FreePagesBlocks, after.whole - before.whole);
        if cma {
            self.counters.add(cpu, ZoneItem::FreeCma, after.cma - before.cma);
        }
        if after.highatomic != before.highatomic {
            self.free_highatomic.fetch_add(after.highatomic - before.highatomic, Relaxed);
        }
        self.judge();
    }

    /// Counts the frames of a block that failed a check and is lost to the zone.
    pub(super) fn leak(&self, order: Order) {
        self.bad_frames.fetch_add(u64::from(order.pages()), Relaxed);
    }

    /// Returns the number of frames leaked after a failed check, or refused by the store.
    #[must_use]
    pub fn bad_frames(&self) -> u64 {
        self.bad_frames.load(Relaxed)
    }

    /// Returns the zone's counters.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the zone's watermarks without boost.
    #[must_use]
    pub fn marks(&self) -> &Marks {
        &self.marks
    }

    /// Returns the boost: the pages by which the watermarks are raised.
    #[must_use]
    pub fn boost_pages(&self) -> u64 {
        self.boost.load(Relaxed)
    }

    /// Lowers the boost by `pages`.
    pub fn work_off_boost(&self, pages: u64) {
        self.set_boost(self.boost.load(Relaxed).saturating_sub(pages));
    }

    /// Returns the zone's position among the kinds of zone of this machine.
    #[must_use]
    pub fn class(&self) -> usize {
        self.class
    }

    /// Returns the zone's node.
    #[must_use]
    pub fn node(&self) -> usize {
        self.node
    }

    /// Returns the pages that this zone's allocator owns.
    #[must_use]
    pub fn managed(&self) -> u64 {
        self.managed
    }

    /// Returns the kind of memory in the zone.
    #[must_use]
    pub fn kind(&self) -> ZoneKind {
        self.kind
    }

    /// Returns the pages kept from requests that may go as high as class `highest`.
    #[must_use]
    pub fn reserve(&self, highest: usize) -> u64 {
        self.reserve[highest]
    }
}

/// One refill in progress under a lock. Applies the switches for checks and CMA counting per block.
pub(super) struct Refill<'a> {
    zone: &'a ZoneState,
    cpu: usize,
    order: Order,
    before: Totals,
    checked: bool,
    cma_count: CmaCount,
}

impl<'a> Refill<'a> {
    pub(super) fn begin(zone: &'a ZoneState, want: &Want, before: Totals) -> Self {
        if let Some(meter) = &zone.meter {
            meter.locked();
        }
        Self {
            zone,
            cpu: want.cpu,
            order: want.order,
            before,
            checked: zone.switches.checks() == Checks::UnderLock,
            cma_count: zone.switches.cma_count(),
        }
    }

    /// Whether there is work to do per block. If not, a store may skip [`accept`](Self::accept).
    #[inline]
    pub(super) fn looks_at_blocks(&self) -> bool {
        self.checked || self.cma_count == CmaCount::PerPage
    }

    /// Checks one block taken off the free lists. Returns false if it is unfit and must be dropped.
    #[inline]
    pub(super) fn accept(&self, pfn: u32) -> bool {
        let zone = self.zone;
        if self.cma_count == CmaCount::PerPage && zone.blocks.migratetype(pfn) == Migratetype::Cma {
            zone.counters.add(self.cpu, ZoneItem::FreeCma, -i64::from(self.order.pages()));
        }
        if self.checked
            && let Some(table) = &zone.table
            && !table.sane(pfn, self.order)
        {
            zone.leak(self.order);
            return false;
        }
        true
    }

    /// Counts the blocks taken, still under the lock. Returns the counts that
    /// [`finish`](LateCount::finish) adds later.
    #[inline]
    pub(super) fn count(self, after: &Totals) -> LateCount<'a> {
        let in_lock = self.cma_count == CmaCount::InLock;
        self.zone.count(self.cpu, &self.before, after, in_lock);
        let late = match self.cma_count {
            CmaCount::AfterUnlock => after.cma - self.before.cma,
            _ => 0,
        };
        LateCount { zone: self.zone, cpu: self.cpu, cma: late }
    }
}

/// Counts that are added after the lock is dropped.
#[must_use]
pub(super) struct LateCount<'a> {
    zone: &'a ZoneState,
    cpu: usize,
    cma: i64,
}

impl LateCount<'_> {
    /// Adds the late counts. The lock has been dropped.
    #[inline]
    pub(super) fn finish(self) {
        if let Some(meter) = &self.zone.meter {
            meter.unlocked();
        }
        if self.cma != 0 {
            self.zone.counters.add(self.cpu, ZoneItem::FreeCma, self.cma);
            self.zone.judge();
        }
    }
}

/// A refill's request to a store.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Order of the blocks.
    pub order: Order,
    /// Migratetype of the request.
    pub migratetype: Migratetype,
    /// Flags of the attempt; `CMA`, `NOFRAGMENT`, `KSWAPD` and `HIGHATOMIC` matter here.
    pub flags: AllocFlags,
    /// CPU whose deltas count the change. Its number also decides which part of a zone is tried
    /// first.
    pub cpu: usize,
}

/// A zone's free frames: the interface between the rules of the allocator and the way frames are
/// kept.
///
/// Every method takes the locks it needs; none is held across calls. Each store documents at its
/// head how it places blocks. All stores agree on which frames may be free and how they are
/// counted.
pub trait FreeStore: Send + Sync + fmt::Debug {
    /// Takes up to `out.len()` blocks by the fallback rules, in ascending order where possible.
    /// Returns how many.
    fn take(&self, zone: &ZoneState, want: &Want, out: &mut [u32]) -> usize;

    /// Frees blocks: puts each on the list of its pageblock's type, merged as far as possible. May
    /// reorder `frames`. `to_tail` puts them behind the other blocks of their order.
    fn give(&self, zone: &ZoneState, cpu: usize, order: Order, frames: &mut [u32], to_tail: bool);

    /// Whether a block of `order` or larger is free. A hint: no lock is taken.
    fn blocks_free(&self, order: Order) -> BlocksFree;

    /// Returns the free blocks by order and migratetype.
    fn counts(&self) -> [[u64; 6]; super::kinds::ORDERS];

    /// Retypes the pageblock of `pfn` with its free frames. Returns how many frames moved.
    fn set_migratetype(&self, zone: &ZoneState, pfn: u32, to: Migratetype) -> u32;

    /// Returns the first frame of some pageblock of this type that has free frames.
    fn find_block(&self, migratetype: Migratetype) -> Option<u32>;

    /// Takes exactly `range` out of the free lists if all of it is free. Otherwise changes nothing.
    fn take_range(&self, zone: &ZoneState, range: Range<u32>) -> bool;

    /// Whether `pfn` is free in the store (not in a per-CPU set).
    fn is_free(&self, pfn: u32) -> bool;

    /// Returns the bytes of metadata.
    fn bytes(&self) -> usize;

    /// Checks the store in full and compares it with the zone's counters. Returns the first
    /// contradiction found.
    fn check(&self, zone: &ZoneState) -> Result<(), Contradiction>;
}
