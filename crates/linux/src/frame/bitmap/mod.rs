//! The fast store: free frames as bits, one cache line per pageblock, in shards with a lock each.
//!
//! A shard covers an aligned stretch of the zone, so no block and no merge crosses shards. Merging
//! is therefore as complete as in a buddy allocator. Each CPU starts at a home shard and goes on to
//! others when that has nothing left. So CPUs do not contend for a lock until memory runs short.
//! Frees come in batches, sorted by shard: one lock per shard and batch.
//!
//! Placement differs from [`Lists`](super::lists::Lists) in three ways:
//! * Of several blocks that fit, the store takes any pageblock whose largest run is smallest, not
//!   the block freed last. Inside it the store takes the lowest frames. It ignores `to_tail` and
//!   "merge likely".
//! * A CPU prefers its home shard to better fits elsewhere.
//! * A refill that finds some blocks of its own type does not claim or steal to become full.
//!
//! Both stores agree on which frames are free and how far these merge. They agree on every count,
//! and on whether a single frame can be allocated.
//!
//! Lock order: a CPU's set, then shards in ascending order. No other kind of lock is taken under a
//! shard's lock.

mod bits;
mod shard;

use std::ops::Range;

use super::contradiction::Contradiction;
use super::counter::ZoneItem;
use super::kinds::{
    AllocFlags, MAX_ORDER, Migratetype, ORDERS, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES,
};
use super::lists::{may_claim, worth_claiming};
use super::state::{FreeStore, Refill, Totals, Want, ZoneState};
use super::sync::{AtomicU32, Mutex, MutexGuard, Relaxed, lock};
use super::watermark::BlocksFree;
pub use shard::Meta;
use shard::Shard;

const SHARDS_MAX: usize = 64;
/// log2 of the frames in the smallest shard: 32 MiB.
const SHARD_SHIFT_MIN: u32 = 13;
/// Most frames sorted at a time.
const SORT_MAX: usize = 256;

/// A shard, its lock, and hints that readers use without the lock. On cache lines of its own.
#[derive(Debug)]
#[repr(align(128))]
struct Cell {
    shard: Mutex<Shard>,
    hints: [AtomicU32; 6],
}

/// The store of free frames of one zone, as bits in shards.
#[derive(Debug)]
pub struct Bitmaps {
    cells: Box<[Cell]>,
    start: u32,
    shift: u32,
    cpus: usize,
    bytes: usize,
}

impl Bitmaps {
    /// Creates a store for the frames of `zone`, of which `memory` is free, used by `cpus` CPUs.
    #[must_use]
    pub fn new(zone: &ZoneState, memory: &[Range<u32>], cpus: usize) -> Self {
        let start = zone.span.start;
        let len = (zone.span.end - start).next_multiple_of(1 << MAX_ORDER);
        let wanted = (4 * cpus.max(1)).next_power_of_two().clamp(4, SHARDS_MAX) as u32;
        let shift = len.div_ceil(wanted).next_power_of_two().ilog2().max(SHARD_SHIFT_MIN);
        let count = len.div_ceil(1 << shift);
        let cell = |i: u32| {
            let first = start + (i << shift);
            let end = (start + len).min(first + (1 << shift));
            let blocks = ((end - first) >> PAGEBLOCK_ORDER) as usize;
            let mut shard = Shard::new(first, blocks, &zone.blocks);
            for range in memory.iter().rev() {
                add_memory(&mut shard, zone, range.start.max(first)..range.end.min(end));
            }
            zone.count(0, &Totals::default(), &shard.totals, true);
            let hints = std::array::from_fn(|t| AtomicU32::new(u32::from(shard.nonempty[t])));
            Cell { shard: Mutex::new(shard), hints }
        };
        let cells: Box<[Cell]> = (0..count).map(cell).collect();
        let bytes = cells.iter().map(|c| lock(&c.shard).bytes()).sum();
        Self { cells, start, shift, cpus: cpus.max(1), bytes }
    }

    #[inline(always)]
    fn shard_of(&self, pfn: u32) -> usize {
        ((pfn - self.start) >> self.shift) as usize
    }

    /// Returns the shards in order, from the home shard of `cpu` on.
    #[inline]
    fn walk(&self, cpu: usize) -> impl Iterator<Item = &Cell> {
        let home = (cpu % self.cpus) * self.cells.len() / self.cpus;
        self.cells[home..].iter().chain(&self.cells[..home])
    }

    /// Takes blocks of one type from the nearest shards that have them.
    fn take_kind(
        &self,
        zone: &ZoneState,
        want: &Want,
        kind: Migratetype,
        out: &mut [u32],
    ) -> usize {
        let fit = u32::MAX << want.order.get();
        let mut n = 0;
        for cell in self.walk(want.cpu) {
            if n == out.len() {
                break;
            }
            if cell.hints[kind.index()].load(Relaxed) & fit != 0 {
                n += cell.take(zone, want, &mut out[n..], |shard, out| {
                    shard.smallest(want.order.get(), kind, out)
                });
            }
        }
        n
    }

    /// Takes the largest run of another type first, and retypes its whole pageblock if it can.
    fn claim(&self, zone: &ZoneState, want: &Want, out: &mut [u32]) -> usize {
        let (order, t) = (want.order.get(), want.migratetype);
        let whole_only = want.flags.has(AllocFlags::NOFRAGMENT);
        let least = if whole_only { order.max(PAGEBLOCK_ORDER) } else { order };
        for class in (least..=MAX_ORDER).rev() {
            if !may_claim(class, t, zone.grouping) {
                break;
            }
            for cell in self.walk(want.cpu) {
                if !cell.hinted(class, t) {
                    continue;
                }
                let n = cell.take(zone, want, out, |shard, out| {
                    if claim_in(shard, zone, want, class) {
                        shard.smallest(order, t, out)
                    } else {
                        0
                    }
                });
                if n > 0 {
                    return n;
                }
            }
        }
        0
    }

    /// Takes the smallest fitting run of another type. The pageblock keeps its type.
    fn steal(&self, zone: &ZoneState, want: &Want, out: &mut [u32]) -> usize {
        let (order, t) = (want.order.get(), want.migratetype);
        for class in order..=MAX_ORDER {
            for cell in self.walk(want.cpu) {
                if !cell.hinted(class, t) {
                    continue;
                }
                let n = cell.take(zone, want, &mut out[..1], |shard, out| {
                    let has = |o: &&Migratetype| shard.of_class(class, **o).is_some();
                    let other = t.fallbacks().iter().find(has).copied();
                    other.map_or(0, |other| shard.smallest(order, other, out))
                });
                if n > 0 {
                    return n;
                }
            }
        }
        0
    }

    fn put(&self, zone: &ZoneState, cpu: usize, order: Order, frames: &[u32]) {
        let Some(&first) = frames.first() else { return };
        let cell = &self.cells[self.shard_of(first)];
        let mut shard = lock(&cell.shard);
        let before = shard.totals;
        let refused = if order == Order::ZERO {
            shard.put_singles(&zone.blocks, frames)
        } else if order == Order::HUGE {
            shard.put_wholes(&zone.blocks, frames)
        } else {
            let put = |&&pfn: &&u32| !shard.put(&zone.blocks, pfn, order.get());
            frames.iter().filter(put).count() as u32
        };
        zone.count(cpu, &before, &shard.totals, true);
        cell.publish(&shard);
        drop(shard);
        for _ in 0..refused {
            zone.leak(Order::ZERO);
        }
    }

    /// Sorts frames by shard and frees each part under its shard's lock.
    fn give_chunk(&self, zone: &ZoneState, cpu: usize, order: Order, frames: &[u32]) {
        let first = self.shard_of(frames[0]);
        if frames.iter().all(|&pfn| self.shard_of(pfn) == first) {
            return self.put(zone, cpu, order, frames);
        }
        let mut ends = [0u16; SHARDS_MAX];
        for &pfn in frames {
            ends[self.shard_of(pfn)] += 1;
        }
        let mut sum = 0;
        for end in &mut ends {
            sum += *end;
            *end = sum - *end;
        }
        let mut sorted = [0u32; SORT_MAX];
        for &pfn in frames {
            let slot = &mut ends[self.shard_of(pfn)];
            sorted[*slot as usize] = pfn;
            *slot += 1;
        }
        let mut from = 0;
        for &end in ends.iter().take(self.cells.len()) {
            self.put(zone, cpu, order, &sorted[from..end as usize]);
            from = end as usize;
        }
    }
}

/// Frees a range from its end down, because the blocks linked last are taken first.
fn add_memory(shard: &mut Shard, zone: &ZoneState, range: Range<u32>) {
    let mut end = range.end;
    while end > range.start {
        let aligned = end.trailing_zeros().min(u32::from(MAX_ORDER));
        let order = aligned.min((end - range.start).ilog2());
        end -= 1 << order;
        let done = shard.put(&zone.blocks, end, order as u8);
        debug_assert!(done, "memory is added once");
    }
}

/// Retypes to `want`'s type the first pageblock of another type with exactly this class.
fn claim_in(shard: &mut Shard, zone: &ZoneState, want: &Want, class: u8) -> bool {
    let t = want.migratetype;
    let find = |o: &Migratetype| Some((shard.of_class(class, *o)?, *o));
    let Some((pfn, other)) = t.fallbacks().iter().find_map(find) else { return false };
    if class >= PAGEBLOCK_ORDER {
        shard.set_migratetype(&zone.blocks, pfn, t);
        if class == MAX_ORDER {
            shard.set_migratetype(&zone.blocks, pfn + PAGEBLOCK_PAGES, t);
        }
        return true;
    }
    zone.boost(want.flags);
    let mixes = t == Migratetype::Movable || other == Migratetype::Movable;
    let (free, movable) = shard.census(pfn, |p| mixes && zone.census.is_movable(p));
    let worth = worth_claiming(t, other, free, movable, zone.grouping);
    if worth {
        shard.set_migratetype(&zone.blocks, pfn, t);
    }
    worth
}

impl Cell {
    #[inline]
    fn publish(&self, shard: &Shard) {
        for (hint, &classes) in self.hints.iter().zip(&shard.nonempty) {
            if hint.load(Relaxed) != u32::from(classes) {
                hint.store(u32::from(classes), Relaxed);
            }
        }
    }

    /// Whether some type that `t` falls back on may have a block of `class`.
    fn hinted(&self, class: u8, t: Migratetype) -> bool {
        let has = |o: &Migratetype| self.hints[o.index()].load(Relaxed) >> class & 1 == 1;
        t.fallbacks().iter().any(has)
    }

    /// Calls `some` under the lock until it yields no more blocks or `out` is full.
    #[inline]
    fn take(
        &self,
        zone: &ZoneState,
        want: &Want,
        out: &mut [u32],
        mut some: impl FnMut(&mut Shard, &mut [u32]) -> usize,
    ) -> usize {
        let mut shard = lock(&self.shard);
        let refill = Refill::begin(zone, want, shard.totals);
        let mut n = 0;
        while n < out.len() {
            let got = some(&mut shard, &mut out[n..]);
            if got == 0 {
                break;
            }
            n = if refill.looks_at_blocks() { keep_fit(&refill, out, n, got) } else { n + got };
        }
        let late = refill.count(&shard.totals);
        self.publish(&shard);
        drop(shard);
        late.finish();
        n
    }
}

fn keep_fit(refill: &Refill<'_>, out: &mut [u32], from: usize, got: usize) -> usize {
    let mut n = from;
    for i in from..from + got {
        if refill.accept(out[i]) {
            out[n] = out[i];
            n += 1;
        }
    }
    n
}

impl FreeStore for Bitmaps {
    fn take(&self, zone: &ZoneState, want: &Want, out: &mut [u32]) -> usize {
        let cma = want.flags.has(AllocFlags::CMA);
        let free_cma = if cma { zone.counters.read(ZoneItem::FreeCma) } else { 0 };
        let cma_first = free_cma > zone.counters.read(ZoneItem::FreePages) / 2;
        let mut kinds = [None; 4];
        kinds[0] = cma_first.then_some(Migratetype::Cma);
        kinds[1] = want.flags.has(AllocFlags::HIGHATOMIC).then_some(Migratetype::HighAtomic);
        kinds[2] = Some(want.migratetype);
        kinds[3] = cma.then_some(Migratetype::Cma);
        for kind in kinds.into_iter().flatten() {
            let n = self.take_kind(zone, want, kind, out);
            if n > 0 {
                return n;
            }
        }
        let mut n = self.claim(zone, want, out);
        if n == 0 && !want.flags.has(AllocFlags::NOFRAGMENT) {
            n = self.steal(zone, want, out);
        }
        if n == 0 && want.flags.any(AllocFlags::OOM.with(AllocFlags::NON_BLOCK)) {
            n = self.take_kind(zone, want, Migratetype::HighAtomic, out);
        }
        n
    }

    fn give(&self, zone: &ZoneState, cpu: usize, order: Order, frames: &mut [u32], _tail: bool) {
        for chunk in frames.chunks(SORT_MAX) {
            self.give_chunk(zone, cpu, order, chunk);
        }
    }

    fn blocks_free(&self, order: Order) -> BlocksFree {
        let at_least = u32::MAX << order.get();
        let mut free = BlocksFree::default();
        for cell in &self.cells {
            let has = |t: Migratetype| cell.hints[t.index()].load(Relaxed) & at_least != 0;
            free.ordinary |= has(Migratetype::Unmovable)
                || has(Migratetype::Movable)
                || has(Migratetype::Reclaimable);
            free.cma |= has(Migratetype::Cma);
            free.highatomic |= has(Migratetype::HighAtomic);
        }
        free
    }

    fn counts(&self) -> [[u64; 6]; ORDERS] {
        let mut counts = [[0; 6]; ORDERS];
        for cell in &self.cells {
            lock(&cell.shard).add_counts(&mut counts);
        }
        counts
    }

    fn set_migratetype(&self, zone: &ZoneState, pfn: u32, to: Migratetype) -> u32 {
        let cell = &self.cells[self.shard_of(pfn)];
        let mut shard = lock(&cell.shard);
        let before = shard.totals;
        let moved = shard.set_migratetype(&zone.blocks, pfn, to);
        zone.count(0, &before, &shard.totals, true);
        cell.publish(&shard);
        moved
    }

    fn find_block(&self, migratetype: Migratetype) -> Option<u32> {
        self.cells.iter().find_map(|cell| lock(&cell.shard).any_of(migratetype))
    }

    fn take_range(&self, zone: &ZoneState, range: Range<u32>) -> bool {
        let first = self.shard_of(range.start);
        let last = self.shard_of(range.end - 1);
        let mut shards: Vec<MutexGuard<'_, Shard>> =
            self.cells[first..=last].iter().map(|cell| lock(&cell.shard)).collect();
        if !range.clone().all(|pfn| shards[self.shard_of(pfn) - first].is_free(pfn)) {
            return false;
        }
        for (i, shard) in shards.iter_mut().enumerate() {
            let begin = (self.start + (((first + i) as u32) << self.shift)).max(range.start);
            let end = (self.start + (((first + i + 1) as u32) << self.shift)).min(range.end);
            let before = shard.totals;
            let mut at = begin;
            while at < end {
                let next = (at + 1).next_multiple_of(PAGEBLOCK_PAGES).min(end);
                shard.take_exact(at, next);
                at = next;
            }
            zone.count(0, &before, &shard.totals, true);
            self.cells[first + i].publish(shard);
        }
        true
    }

    fn is_free(&self, pfn: u32) -> bool {
        lock(&self.cells[self.shard_of(pfn)].shard).is_free(pfn)
    }

    fn bytes(&self) -> usize {
        self.bytes + size_of_val(&*self.cells)
    }

    fn check(&self, zone: &ZoneState) -> Result<(), Contradiction> {
        self.cells.iter().try_for_each(|cell| lock(&cell.shard).check(&zone.blocks))
    }
}
