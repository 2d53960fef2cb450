//! The multi-gen LRU.
//!
//! Owns the window of generations of a lruvec, and the code that moves folios through the window.
//! That is insertion, access tiers, aging by page-table walk, eviction, and the feedback between
//! them.
//!
//! Terms: a *sequence number* counts generations since the start. The *slot* of a generation is its
//! sequence number modulo four. `max_seq` is the youngest generation, shared by both types;
//! `min_seq` is the oldest generation of one type.
//!
//! Invariants
//! * GEN-1: for each type, 2 <= max_seq - min_seq + 1 <= 4.
//! * GEN-2: a folio's slot is that of its list or of a younger generation, never of an older one.
//!   (Walks promote in the slot alone; eviction sorts later. `passed_by` marks the exception.)
//! * GEN-3: at quiescence, `nr_pages[slot]` is the sum of the pages of the folios with that slot.
//! * GEN-4: the window moves under the lru lock only. Its bounds may be read without the lock.

mod access;
pub(crate) mod aging;
mod batch;
mod bloom;
mod choice;
mod evict;
mod insert;
pub(crate) mod look_around;
pub mod memcg_lru;
mod pid;
mod probation;
#[cfg(test)]
mod probation_tests;
mod reclaim;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod vector_tests;
mod walk;
mod window;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

pub(crate) use access::seen_again;
pub use access::{inc_gen, set_refs, update_gen};
pub use aging::MmList;
pub(crate) use batch::Deltas;
pub use bloom::Bloom;
pub use pid::Tiers;
pub(crate) use probation::forget_arrival;
pub use reclaim::RunError;
pub(crate) use reclaim::{run_aging, run_eviction};
pub(crate) use walk::accessed;

use super::{Add, Came, Ctx, Lists, Lru, Lruvec, Pageout, Scan, Shadow, ZONES};
use crate::folio::{FRESH, LruType, MIN_NR_GENS, SLOTS, STAMP_BITS, TRIED, Word};
use crate::types::Pfn;

/// log2 of the evictions in a unit of a stamp (8 evictions). So 26 bits last for 2 TiB of pages,
/// and small memories do not need a finer unit.
const STAMP_UNIT_BITS: u32 = 3;

/// The state of the multi-gen LRU beside its lists.
#[derive(Debug)]
pub struct GenState {
    max_seq: AtomicU64,
    min_seq: [AtomicU64; 2],
    timestamps: [AtomicU64; 4],
    nr_pages: [[[AtomicI64; ZONES]; 2]; SLOTS],
    /// Refault rates, by type and tier.
    pub(crate) tiers: Tiers,
    /// The address spaces to walk, and the progress of the current aging.
    pub(crate) mm: MmList,
    /// Page tables that the next walk should enter, by the parity of the sequence number.
    pub(crate) bloom: [Bloom; 2],
    /// Pages reclaimed from each type; both counts are halved now and then.
    pub(crate) taken: [AtomicU64; 2],
    /// Pages evicted since the start: all, and those from probation. Both are clocks of the refault
    /// distance.
    pub(crate) evictions: [AtomicU64; 2],
    /// Pages that probation should have beyond its least share, in sixteenths of a page, plus one.
    /// 0 until refaults have set it.
    pub(crate) fresh_extra: AtomicU64,
    /// For each type: the stamp of the oldest folio in the generations, in pages evicted since the
    /// start. Scans update it.
    pub(crate) oldest: [AtomicU64; 2],
    /// By type: whether the window passed folios of a type that may not be reclaimed (`window`).
    /// From then on a folio's slot may be older than its list's (GEN-2).
    pub(crate) passed_by: [AtomicBool; 2],
}

impl GenState {
    pub(crate) fn new(now_ms: u64) -> Self {
        Self {
            max_seq: AtomicU64::new(MIN_NR_GENS + 1),
            min_seq: Default::default(),
            timestamps: std::array::from_fn(|_| AtomicU64::new(now_ms)),
            nr_pages: Default::default(),
            tiers: Tiers::default(),
            mm: MmList::default(),
            bloom: Default::default(),
            taken: Default::default(),
            evictions: Default::default(),
            fresh_extra: AtomicU64::new(0),
            oldest: Default::default(),
            passed_by: Default::default(),
        }
    }

    /// Returns the youngest generation. Acquire pairs with the release in `inc_max_seq`.
    #[must_use]
    pub fn max_seq(&self) -> u64 {
        self.max_seq.load(Ordering::Acquire)
    }

    /// Returns the oldest generation of a type. Acquire pairs with the release in `window`.
    #[must_use]
    pub fn min_seq(&self, ty: LruType) -> u64 {
        self.min_seq[ty.index()].load(Ordering::Acquire)
    }

    /// Returns the number of generations of a type.
    #[must_use]
    pub fn gens(&self, ty: LruType) -> u64 {
        self.max_seq() - self.min_seq(ty) + 1
    }

    /// Returns the time at which a generation began, in milliseconds.
    #[must_use]
    pub fn born_ms(&self, seq: u64) -> u64 {
        self.timestamps[(seq % 4) as usize].load(Ordering::Relaxed)
    }

    /// Returns the pages in a generation.
    #[must_use]
    pub fn pages(&self, seq: u64, ty: LruType) -> u64 {
        self.slot_pages((seq % 4) as usize, ty)
    }

    /// Returns the oldest generation among the types that may be reclaimed.
    #[must_use]
    pub fn evictable_min_seq(&self, swappiness: u32) -> u64 {
        let mut min = u64::MAX;
        for ty in evictable(swappiness) {
            min = min.min(self.min_seq(ty));
        }
        min
    }

    /// Returns the pages of the types that may be reclaimed, in all generations.
    #[must_use]
    pub fn evictable_pages(&self, swappiness: u32) -> u64 {
        let max = self.max_seq();
        evictable(swappiness)
            .map(|ty| {
                let gens = (self.min_seq(ty)..=max).map(|s| self.pages(s, ty)).sum::<u64>();
                gens + self.fresh_pages(ty)
            })
            .sum()
    }

    /// Returns the address spaces that aging walks.
    #[must_use]
    pub fn spaces(&self) -> &MmList {
        &self.mm
    }

    /// Returns the counts of evictions and refaults, by tier.
    #[must_use]
    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// Returns the pages of a type on probation in zones up to `zone`.
    #[must_use]
    pub fn fresh_pages_to(&self, ty: LruType, zone: usize) -> u64 {
        let halves = [FRESH, TRIED].map(|slot| self.nr_pages[slot][ty.index()].iter());
        let zones = halves.into_iter().flat_map(|half| half.take(zone + 1));
        zones.map(|z| z.load(Ordering::Relaxed).max(0) as u64).sum()
    }

    /// Returns the pages of both types in zones up to `zone`.
    pub(crate) fn eligible(&self, zone: usize) -> u64 {
        let zones = self.nr_pages.iter().flatten().flat_map(|zones| zones.iter().take(zone + 1));
        zones.map(|z| z.load(Ordering::Relaxed).max(0) as u64).sum()
    }

    /// Returns the pages of a type on probation.
    #[must_use]
    pub fn fresh_pages(&self, ty: LruType) -> u64 {
        [FRESH, TRIED].into_iter().map(|slot| self.slot_pages(slot, ty)).sum()
    }

    /// Returns the pages of a type in a slot.
    pub(crate) fn slot_pages(&self, slot: usize, ty: LruType) -> u64 {
        let zones = &self.nr_pages[slot][ty.index()];
        zones.iter().map(|z| z.load(Ordering::Relaxed).max(0) as u64).sum()
    }

    /// Returns the stamp for the present moment: the pages evicted since the start, in units of 8.
    pub(crate) fn clock(&self) -> u64 {
        self.evictions[0].load(Ordering::Relaxed) >> STAMP_UNIT_BITS
    }

    /// Returns the pages evicted since a folio with word `w` got its stamp.
    pub(crate) fn age_of(&self, w: Word) -> u64 {
        let ago = self.clock().wrapping_sub(w.stamp()) & ((1 << STAMP_BITS) - 1);
        ago << STAMP_UNIT_BITS
    }

    /// Returns the clock of evictions at the time a folio with word `w` got its stamp.
    pub(crate) fn stamped_at(&self, w: Word) -> u64 {
        self.evictions[0].load(Ordering::Relaxed).saturating_sub(self.age_of(w))
    }

    /// Whether a slot is one of the two youngest generations.
    pub(crate) fn is_active(&self, slot: usize) -> bool {
        let max = self.max_seq();
        slot as u64 == max % 4 || (slot as u64) == (max - 1) % 4
    }

    pub(crate) fn check(&self, v: &Lruvec, cx: &Ctx, lists: &Lists) {
        let max = self.max_seq();
        let mut sum = [[[0i64; ZONES]; 2]; SLOTS];
        let mut sizes = [0i64; 4];
        let age = |slot: usize| match slot {
            FRESH | TRIED => 4,
            _ => (max % 4 + 4 - slot as u64) % 4,
        };
        for ty in LruType::ALL {
            let gens = self.gens(ty);
            assert!((2..=4).contains(&gens), "{ty:?} has {gens} generations");
            let per_type = lists.r#gen.iter().map(|per_type| &per_type[ty.index()]).enumerate();
            for (list_slot, zones) in per_type {
                for (zone, list) in zones.iter().enumerate() {
                    list.check(cx.folios);
                    for pfn in list.order(cx.folios) {
                        let w = cx.folios.word(pfn);
                        let slot = w.slot().expect("a folio on a list has a generation");
                        assert!(w.has(Word::LRU) && !w.has(Word::ACTIVE), "{w:?}");
                        assert_eq!(
                            (w.ty(), w.zone(), w.list_slot()),
                            (ty, zone, list_slot),
                            "{w:?}"
                        );
                        let passed_by = self.passed_by[ty.index()].load(Ordering::Relaxed);
                        let older = age(slot) > age(list_slot) && !passed_by;
                        assert!(!older, "{w:?} is older than its list");
                        let n = w.pages() as i64;
                        sum[slot][ty.index()][zone] += n;
                        sizes[ty.index() * 2 + usize::from(self.is_active(slot))] += n;
                    }
                }
            }
        }
        for (slot, per_type) in sum.iter().enumerate() {
            for (ty, zones) in per_type.iter().enumerate() {
                for (zone, &pages) in zones.iter().enumerate() {
                    let counted = self.nr_pages[slot][ty][zone].load(Ordering::Relaxed);
                    assert_eq!(counted, pages, "nr_pages[{slot}][{ty}][{zone}]");
                }
            }
        }
        if lists.classic.iter().all(super::list::List::is_empty) {
            for ty in LruType::ALL {
                for active in [false, true] {
                    let i = ty.index() * 2 + usize::from(active);
                    assert_eq!(v.size(ty, active) as i64, sizes[i], "{ty:?} active={active}");
                }
            }
        }
    }
}

/// Returns the types that reclaim may take at a swappiness.
pub fn evictable(swappiness: u32) -> impl Iterator<Item = LruType> {
    LruType::ALL.into_iter().filter(move |&ty| may_evict(ty, swappiness))
}

/// Whether reclaim may take a type at a swappiness.
#[must_use]
pub fn may_evict(ty: LruType, swappiness: u32) -> bool {
    match ty {
        LruType::Anon => swappiness > 0,
        LruType::File => swappiness <= 200,
    }
}

/// The multi-gen LRU as an implementation of [`Lru`].
#[derive(Clone, Copy, Debug)]
pub struct Gen;

impl Lru for Gen {
    fn add(&self, v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, how: Add) {
        insert::add(v, cx, lists, pfn, how);
    }

    fn del(&self, v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, keep_age: bool) {
        insert::del(v, cx, lists, pfn, keep_age);
    }

    fn mark_accessed(&self, _: &Lruvec, cx: &Ctx, pfn: Pfn) -> bool {
        access::inc_refs(cx, pfn);
        false
    }

    fn eviction_shadow(&self, v: &Lruvec, cx: &Ctx, pfn: Pfn) -> Shadow {
        pid::shadow(v, cx, cx.folios.word(pfn))
    }

    fn clock(&self, v: &Lruvec, cx: &Ctx, token: u64) -> u64 {
        pid::clock(v, cx, token)
    }

    fn note_evicted(&self, v: &Lruvec, cx: &Ctx, w: Word) {
        pid::note_evicted(v, cx, w);
    }

    fn refault(&self, (v, _): Came, cx: &Ctx, pfn: Pfn, shadow: Shadow, in_fault: bool) -> bool {
        // A folio that left another node is treated as new, as in `lru_gen_refault`.
        pid::refault(v, cx, pfn, shadow, in_fault)
    }

    fn shrink(&self, v: &Lruvec, cx: &Ctx, sc: &mut Scan, out: &mut dyn Pageout) -> bool {
        reclaim::shrink(v, cx, sc, out)
    }

    fn note_fault(&self, _: &Lruvec, cx: &Ctx, pfn: Pfn) {
        insert::note_fault(cx, pfn);
    }
}
