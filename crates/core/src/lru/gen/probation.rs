//! Probation: a new folio must be used again before it joins the generations.
//!
//! Owns the probation list of each type: a FIFO of folios that were not used again since they came
//! in. A folio that is used again while on the list joins the generations. Any other folio is
//! evicted at the end of the list. If it refaults soon, it joins the generations directly. So a
//! scan passes through a small part of memory and leaves the rest alone.
//!
//! The list has two halves. An access right after a folio came in does not predict later use. When
//! a folio passes from the first half (`FRESH`) to the second (`TRIED`), its accesses are cleared.
//! Only later accesses count.
//!
//! *Soon* is measured against the generations. A folio is used again soon if the time is shorter
//! than the age of their oldest folio. It then stays longer than that folio. Time is counted in
//! evictions.
//!
//! The size of probation adapts. A folio that refaults soon after it failed probation enlarges it.
//! A folio that refaults soon after it left a generation makes it smaller. Each step is larger the
//! closer the folio was to staying.

use std::sync::atomic::Ordering::Relaxed;

use super::super::list::List;
use super::super::scan::SWAP_CLUSTER_MAX;
use super::super::{Ctx, Lists, Lruvec, Reclaimer, Scan};
use super::evictable;
use super::window::{moved_up, relink};
use crate::folio::{FRESH, LruType, TRIED, Word};
use crate::observe::vmstat::Event;
use crate::tunables::{Admission, RefaultDistance, TargetEnd, TypeSelect};
use crate::types::Pfn;

/// Largest distance by which a refault missed being a hit and still changes the share. It is a
/// quarter of memory for folios that failed probation, and all of memory for those that left a
/// generation.
const REACH_FRESH: (u64, u64) = (1, 4);
const REACH_GEN: (u64, u64) = (1, 1);

/// Memory size in pages up to which the steps of probation's share are as configured. In larger
/// memories the steps grow in proportion, because refaults that change the share take longer there.
const STEP_UNIT: u64 = 10_000;

/// Most batches that pass from the first half of probation to the second before a batch is evicted.
/// More pass than leave, so that the halves soon have their shares. The number is limited because
/// other threads wait for the lock.
const PASS_BATCHES_MAX: usize = 4;

/// Returns the pages of probation beyond its least share, in sixteenths. Until refaults have
/// changed it, the share is the configured one.
fn extra(v: &Lruvec, cx: &Ctx, all: u64) -> u64 {
    match v.r#gen.fresh_extra.load(Relaxed) {
        0 => 16 * all * cx.tun.mglru.probation.saturating_sub(cx.tun.mglru.probation_min) / 100,
        n => n - 1,
    }
}

/// Returns the pages that the probation lists should have.
fn target(v: &Lruvec, cx: &Ctx) -> u64 {
    share(v, cx, v.memory())
}

/// Returns the part of `all` pages that may be on probation.
fn share(v: &Lruvec, cx: &Ctx, all: u64) -> u64 {
    let wanted = all * cx.tun.mglru.probation_min / 100 + extra(v, cx, all) / 16;
    wanted.min(all * cx.tun.mglru.probation_max / 100).max(1)
}

fn fresh(v: &Lruvec) -> u64 {
    LruType::ALL.iter().map(|&ty| v.r#gen.fresh_pages(ty)).sum()
}

/// Whether accesses count only from the second half on.
fn has_halves(cx: &Ctx) -> bool {
    cx.tun.mglru.probation_quiet > 0
}

/// Clears the access that brought each folio in; only accesses after this count. Must not be called
/// under the lru lock.
pub(crate) fn forget_arrival(cx: &Ctx, pfns: &[Pfn]) {
    if cx.tun.mglru.admission != Admission::Probation {
        return;
    }
    let spaces = cx.spaces.read();
    for &pfn in pfns {
        cx.spaces.forget_touches(cx.folios, pfn, &spaces);
        if has_halves(cx) {
            cx.folios.update(pfn, Word::without_refs);
        }
    }
}

/// Whether a folio being added goes on probation.
pub(super) fn admits(v: &Lruvec, cx: &Ctx, w: Word) -> bool {
    if cx.tun.mglru.admission != Admission::Probation || w.has(Word::ACTIVE.or(Word::RETURNED)) {
        return false;
    }
    if w.has(Word::SEEN) {
        return w.on_probation();
    }
    // No page was evicted yet. Memory is being filled, and the first folios may stay.
    let filling = v.r#gen.evictions[0].load(Relaxed) == 0;
    !filling || fresh(v) < target(v, cx)
}

/// Priority up to which reclaim is too hard pressed to spare one type for the other.
const DESPERATE: u8 = 2;

/// Returns the type that is reclaimed before the other whatever their ages, by swappiness.
const fn first_type(swappiness: u32) -> Option<LruType> {
    match swappiness {
        1 => Some(LruType::File),
        200 => Some(LruType::Anon),
        _ => None,
    }
}

/// Returns the only type that probation gives until reclaim is hard pressed, if it has pages there.
fn only_type(v: &Lruvec, sc: &Scan, swappiness: u32) -> Option<LruType> {
    let first = first_type(swappiness).filter(|_| sc.priority > DESPERATE);
    first.filter(|&ty| v.r#gen.fresh_pages_to(ty, sc.zone) > 0)
}

/// Returns the types that may be reclaimed. Leaves out files while they are at their floor. Leaves
/// out a type whose remaining pages this pass has put back (because of I/O, say), because the scan
/// would meet them again and again.
fn choices<'a>(
    v: &'a Lruvec,
    cx: &Ctx,
    sc: &Scan,
    swappiness: u32,
) -> impl Iterator<Item = LruType> + use<'a> {
    let floor = super::choice::floor_type(v, cx, swappiness).filter(|_| sc.priority > DESPERATE);
    let put_back = sc.put_back;
    let floor = floor.or(only_type(v, sc, swappiness));
    evictable(swappiness).filter(move |&ty| {
        let back = put_back[ty.index()];
        floor.is_none_or(|only| only == ty) && (back == 0 || back < v.r#gen.fresh_pages(ty))
    })
}

/// Whether the probation lists are scanned now. Commanded (proactive) reclaim takes every folio on
/// probation, because probation is older than any generation.
pub(super) fn takes(v: &Lruvec, cx: &Ctx, sc: &Scan, swappiness: u32) -> bool {
    let commanded =
        cx.tun.mglru.admission == Admission::Probation && sc.reclaimer == Reclaimer::Proactive;
    let helps = |ty: LruType| v.r#gen.fresh_pages_to(ty, sc.zone) > 0;
    due(v, cx, sc, swappiness) || (commanded && evictable(swappiness).any(helps))
}

/// Whether the probation lists are to be scanned next: together they have more than their share,
/// and pages in zones that help.
pub(super) fn due(v: &Lruvec, cx: &Ctx, sc: &Scan, swappiness: u32) -> bool {
    if cx.tun.mglru.admission != Admission::Probation {
        return false;
    }
    // A type that cannot be evicted would keep the lists of the other due for ever.
    let sum =
        |pages: &dyn Fn(LruType) -> u64| choices(v, cx, sc, swappiness).map(pages).sum::<u64>();
    sum(&|ty| v.r#gen.fresh_pages(ty)) >= share(v, cx, sum(&|ty| v.total(ty)))
        && sum(&|ty| v.r#gen.fresh_pages_to(ty, sc.zone)) > 0
        && owed_type(v, cx, sc, swappiness).is_none_or(|ty| v.r#gen.fresh_pages_to(ty, sc.zone) > 0)
}

/// Returns the type that must be reclaimed next for the ratio that swappiness sets.
fn owed_type(v: &Lruvec, cx: &Ctx, sc: &Scan, swappiness: u32) -> Option<LruType> {
    let held = sc.priority > DESPERATE
        && cx.tun.mglru.type_select == TypeSelect::Ratio
        && (2..200).contains(&swappiness);
    held.then(|| super::choice::ratio_type(v, swappiness))
}

/// Returns the probation list to scan, by type and half. It is the list whose oldest folio has
/// waited longest, so that both types form one queue. If a ratio applies, it is a list of the type
/// that lags behind.
pub(super) fn next_list(
    v: &Lruvec,
    cx: &Ctx,
    sc: &Scan,
    lists: &Lists,
    swappiness: u32,
) -> Option<(LruType, usize)> {
    let zone = sc.zone;
    let half = |ty: LruType| {
        let helps = |slot: usize| {
            lists.r#gen[slot][ty.index()][..=zone].iter().any(|list| !list.is_empty())
        };
        [TRIED, FRESH].into_iter().find(|&slot| helps(slot)).map(|slot| (ty, slot))
    };
    if let Some(owed) = owed_type(v, cx, sc, swappiness) {
        return half(owed);
    }
    let first =
        first_type(swappiness).filter(|&ty| choices(v, cx, sc, swappiness).any(|of| of == ty));
    if let Some(list) = first.and_then(half) {
        return Some(list);
    }
    let waits = |&(ty, slot): &(LruType, usize)| waiting(v, cx, lists, ty, slot, zone);
    choices(v, cx, sc, swappiness).filter_map(half).max_by_key(waits)
}

/// Returns how long the oldest folio of a list in zones up to `zone` has waited, in evictions.
fn waiting(v: &Lruvec, cx: &Ctx, lists: &Lists, ty: LruType, slot: usize, zone: usize) -> u64 {
    let zones = lists.r#gen[slot][ty.index()][..=zone].iter();
    zones.filter_map(List::tail).map(|pfn| v.r#gen.age_of(cx.folios.word(pfn))).max().unwrap_or(0)
}

/// Moves the excess of the first half of probation to the second, a few batches at most. Clears the
/// accesses of the folios. Takes the lru lock itself.
pub(super) fn pass_on(v: &Lruvec, cx: &Ctx) {
    if !has_halves(cx) {
        return;
    }
    for _ in 0..PASS_BATCHES_MAX {
        let quiet = target(v, cx) * cx.tun.mglru.probation_quiet / 100;
        let first: u64 = LruType::ALL.iter().map(|&ty| v.r#gen.slot_pages(FRESH, ty)).sum();
        let n = first.saturating_sub(quiet).min(SWAP_CLUSTER_MAX);
        if n == 0 || pass_batch(v, cx, n as usize) == 0 {
            break;
        }
    }
}

/// Fills `batch` with the folios that pass next: the oldest of the type and zone whose oldest waits
/// longest.
fn candidates(v: &Lruvec, cx: &Ctx, batch: &mut [Pfn]) -> usize {
    let lists = v.lock();
    let tails = LruType::ALL.iter().flat_map(|ty| &lists.r#gen[FRESH][ty.index()]);
    let waits = |pfn: &Pfn| v.r#gen.age_of(cx.folios.word(*pfn));
    let mut next = tails.filter_map(List::tail).max_by_key(waits);
    let mut len = 0;
    while let Some(pfn) = next.filter(|_| len < batch.len()) {
        batch[len] = pfn;
        len += 1;
        next = List::newer(cx.folios, pfn);
    }
    len
}

fn pass_batch(v: &Lruvec, cx: &Ctx, n: usize) -> usize {
    let mut batch = [Pfn(0); SWAP_CLUSTER_MAX as usize];
    let len = candidates(v, cx, &mut batch[..n]);
    {
        let spaces = cx.spaces.read();
        for &pfn in &batch[..len] {
            cx.spaces.forget_touches(cx.folios, pfn, &spaces);
        }
    }
    let mut lists = v.lock();
    let mut moved = 0;
    for &pfn in &batch[..len] {
        let w = cx.folios.word(pfn);
        // The folio may have left the list, and even memory, while the lock was not held.
        let here = w.has(Word::LRU) && w.list_slot() == FRESH && !w.has(Word::CULLED);
        if !here || !v.is_of(cx, pfn) {
            continue;
        }
        let (old, _) = cx.folios.update(pfn, |w| match w.slot() {
            Some(FRESH) => w.without_refs().with_slot(Some(TRIED)),
            _ => w,
        });
        let Some(slot) = old.slot() else { continue };
        if slot == FRESH {
            moved_up(v, w, FRESH, TRIED);
            relink(cx, &mut lists, pfn, FRESH, TRIED, TargetEnd::Head);
        } else {
            // A walk promoted the folio.
            relink(cx, &mut lists, pfn, FRESH, slot, TargetEnd::Head);
        }
        moved += 1;
    }
    cx.stat.add(Event::PgRefill, moved as u64);
    moved
}

/// Handles a refault, `age` evictions after the folio was put on the list that it left. Returns
/// true if it joins the generations, because its reuse took less time than the age of their oldest
/// folio.
pub(super) fn reused(v: &Lruvec, cx: &Ctx, ty: LruType, age: u64, failed_probation: bool) -> bool {
    let now = v.r#gen.evictions[0].load(Relaxed);
    let oldest = |ty: LruType| {
        let empty = v.total(ty) <= v.r#gen.fresh_pages(ty);
        (!empty).then(|| now.saturating_sub(v.r#gen.oldest[ty.index()].load(Relaxed)))
    };
    let oldest = oldest(ty).or_else(|| oldest(ty.other())).unwrap_or(u64::MAX / 1000);
    let all = v.memory();
    let (missed_by, (n, d)) = if failed_probation {
        (age.saturating_sub(fresh(v)), REACH_FRESH)
    } else {
        (age.saturating_sub(oldest), REACH_GEN)
    };
    let reach = all * n / d;
    if missed_by < reach {
        learn(v, cx, failed_probation, (reach - missed_by) * 16 / reach);
    }
    age * 100 <= oldest * cx.tun.mglru.reuse_age
}

/// Adapts the share of probation to a refault soon after the folio left probation (or a
/// generation). `weight` says how close the folio was to staying, in sixteenths.
pub(super) fn learn(v: &Lruvec, cx: &Ctx, failed_probation: bool, weight: u64) {
    if cx.tun.mglru.admission != Admission::Probation {
        return;
    }
    let all = v.memory();
    let now = extra(v, cx, all);
    let scaled = cx.tun.mglru.refault_distance == RefaultDistance::Reuse;
    let unit = if scaled { all.max(STEP_UNIT) } else { STEP_UNIT };
    let step = |pages: u64| weight * pages * unit / STEP_UNIT;
    let next = if failed_probation {
        (now + step(cx.tun.mglru.probation_up)).min(16 * all * cx.tun.mglru.probation_max / 100)
    } else {
        now.saturating_sub(step(cx.tun.mglru.probation_down))
    };
    v.r#gen.fresh_extra.store(next + 1, Relaxed);
}

/// Handles a folio on probation that is no candidate for eviction. Returns true if it left the
/// list.
pub(super) fn sort(v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, w: Word) -> bool {
    // Without halves, the access through a file descriptor that brings a page in is counted too.
    let arrival = u64::from(!w.has(Word::MAPPED) && !has_halves(cx));
    if w.refs() <= arrival {
        return false;
    }
    let (old, now) = (w.list_slot(), v.r#gen.clock());
    let new = ((v.r#gen.max_seq() - 1) % 4) as usize;
    let (_, after) = cx.folios.update(pfn, |w| match w.slot() {
        Some(at) if at != old => w,
        _ => w.without_refs().with_slot(Some(new)).stamped(now),
    });
    let slot = after.slot().unwrap_or(new);
    if slot == new {
        moved_up(v, w, old, new);
    }
    relink(cx, lists, pfn, old, slot, TargetEnd::Head);
    true
}
