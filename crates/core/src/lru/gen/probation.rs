//! New folios prove themselves before they join the generations.
//!
//! Owns the probation list of each type: a first-in first-out list of folios that were never used
//! again since they came in. One that is used again on its way through joins the generations; one
//! that is not is evicted, and if it comes back soon it joins them directly. So a scan passes
//! through a small part of memory and leaves the rest alone.
//!
//! The list has two halves. What is touched only right after it came in says nothing about later:
//! a folio that passes from the first half (`FRESH`) to the second (`TRIED`) is looked at, and only
//! touches after that count.
//!
//! *Soon* is measured against the generations themselves: a folio that is used again after a
//! shorter time than their oldest folio has been there deserves its place more than that one does.
//! Time is counted in evictions.
//!
//! How large probation is adapts: a folio that comes back soon after it failed probation enlarges
//! it, one that comes back soon after it left a generation makes it smaller, both by the more the
//! closer it was to staying.

use std::sync::atomic::Ordering::Relaxed;

use super::super::list::List;
use super::super::scan::SWAP_CLUSTER_MAX;
use super::super::{Ctx, Lists, Lruvec, Scan, Who};
use super::evictable;
use super::window::{moved_up, relink};
use crate::folio::{FRESH, LruType, TRIED, Word};
use crate::observe::vmstat::Event;
use crate::tunables::{Admission, RefaultDistance, TargetEnd, TypeSelect};
use crate::types::Pfn;

/// A refault teaches something while it is this close to having been a hit: a quarter of memory
/// for those who failed probation, all of it for those who left a generation.
const REACH_FRESH: (u64, u64) = (1, 4);
const REACH_GEN: (u64, u64) = (1, 1);

/// The steps by which probation grows and shrinks are those of memories of up to so many pages;
/// in larger ones they are larger in proportion, because what changes them takes as much longer.
const STEP_UNIT: u64 = 10_000;

/// Batches that pass from the first half of probation to the second before one batch is evicted:
/// more than leave, so that the halves soon have their shares, and no more than others can wait
/// for.
const PASS_BATCHES_MAX: usize = 4;

/// Sixteenths of pages beyond the least share. Before anything was learned the share is the
/// configured one.
fn extra(v: &Lruvec, cx: &Ctx, all: u64) -> u64 {
    match v.r#gen.fresh_extra.load(Relaxed) {
        0 => 16 * all * cx.tun.mglru.probation.saturating_sub(cx.tun.mglru.probation_min) / 100,
        n => n - 1,
    }
}

/// Pages the probation lists should have.
fn target(v: &Lruvec, cx: &Ctx) -> u64 {
    share(v, cx, v.memory())
}

/// The part of `all` pages that may be on probation.
fn share(v: &Lruvec, cx: &Ctx, all: u64) -> u64 {
    let wanted = all * cx.tun.mglru.probation_min / 100 + extra(v, cx, all) / 16;
    wanted.min(all * cx.tun.mglru.probation_max / 100).max(1)
}

fn fresh(v: &Lruvec) -> u64 {
    LruType::ALL.iter().map(|&ty| v.r#gen.fresh_pages(ty)).sum()
}

/// Whether touches count from the second half on only.
fn has_halves(cx: &Ctx) -> bool {
    cx.tun.mglru.probation_quiet > 0
}

/// The touch that brought a folio in says nothing; touches from here on do. Not under the lru lock.
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
    // Nothing was evicted yet: memory is being filled, and whoever comes first may stay.
    let filling = v.r#gen.evictions[0].load(Relaxed) == 0;
    !filling || fresh(v) < target(v, cx)
}

/// The priority from which on reclaim is too hard pressed to spare one type for the other's sake.
const DESPERATE: u8 = 2;

/// The type that goes before the other whatever its age, by swappiness.
const fn first_type(swappiness: u32) -> Option<LruType> {
    match swappiness {
        1 => Some(LruType::File),
        200 => Some(LruType::Anon),
        _ => None,
    }
}

/// The type from which alone probation takes until reclaim is hard pressed, if it has any there.
fn only_type(v: &Lruvec, sc: &Scan, swappiness: u32) -> Option<LruType> {
    let first = first_type(swappiness).filter(|_| sc.priority > DESPERATE);
    first.filter(|&ty| v.r#gen.fresh_pages_to(ty, sc.zone) > 0)
}

/// The types that may be taken: not the files while they are at their floor, nor one of which only
/// what this pass has put back is left (being read, say): it would be met again and again.
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

/// Whether probation lists are scanned now. By command every folio on probation is due: it is older
/// than any generation.
pub(super) fn takes(v: &Lruvec, cx: &Ctx, sc: &Scan, swappiness: u32) -> bool {
    let commanded = cx.tun.mglru.admission == Admission::Probation && sc.who == Who::Proactive;
    let helps = |ty: LruType| v.r#gen.fresh_pages_to(ty, sc.zone) > 0;
    due(v, cx, sc, swappiness) || (commanded && evictable(swappiness).any(helps))
}

/// Whether probation lists are to be scanned next: together they have more than their share, and
/// pages in zones that help.
pub(super) fn due(v: &Lruvec, cx: &Ctx, sc: &Scan, swappiness: u32) -> bool {
    if cx.tun.mglru.admission != Admission::Probation {
        return false;
    }
    // A type that cannot be evicted would keep the lists of the other due for good.
    let sum =
        |pages: &dyn Fn(LruType) -> u64| choices(v, cx, sc, swappiness).map(pages).sum::<u64>();
    sum(&|ty| v.r#gen.fresh_pages(ty)) >= share(v, cx, sum(&|ty| v.total(ty)))
        && sum(&|ty| v.r#gen.fresh_pages_to(ty, sc.zone)) > 0
        && owed_type(v, cx, sc, swappiness).is_none_or(|ty| v.r#gen.fresh_pages_to(ty, sc.zone) > 0)
}

/// The type that has to be taken next for the ratio that swappiness asks for.
fn owed_type(v: &Lruvec, cx: &Ctx, sc: &Scan, swappiness: u32) -> Option<LruType> {
    let held = sc.priority > DESPERATE
        && cx.tun.mglru.type_select == TypeSelect::Ratio
        && (2..200).contains(&swappiness);
    held.then(|| super::choice::ratio_type(v, swappiness))
}

/// The probation list to scan, by type and half: the one whose oldest folio waits longest, so that
/// both types are one queue. With a ratio to hold, the type that is behind.
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

/// How long the oldest folio of a list in zones up to `zone` waits.
fn waiting(v: &Lruvec, cx: &Ctx, lists: &Lists, ty: LruType, slot: usize, zone: usize) -> u64 {
    let zones = lists.r#gen[slot][ty.index()][..=zone].iter();
    zones.filter_map(List::tail).map(|pfn| v.r#gen.age_of(cx.folios.word(pfn))).max().unwrap_or(0)
}

/// Moves what is too much for the first half of probation to the second, a few batches of it: the
/// touches so far are forgotten. Takes the lru lock by itself.
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

/// The folios that are to pass next: the oldest of the type and zone whose oldest waits longest.
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
        // It may have left the list, and even memory, while the lock was not held.
        let here = w.has(Word::LRU) && w.home() == FRESH && !w.has(Word::CULLED);
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
            // A walk promoted it.
            relink(cx, &mut lists, pfn, FRESH, slot, TargetEnd::Head);
        }
        moved += 1;
    }
    cx.stat.add(Event::PgRefill, moved as u64);
    moved
}

/// A folio came back after `age` evictions since it was put where it was evicted from. True if it
/// joins the generations: if it was used again sooner than their oldest folio.
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

/// A folio came back soon after it left probation (or a generation); `weight` is how close it was
/// to staying, in sixteenths.
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

/// Handles a folio on probation that is not a candidate. True if it left the list.
pub(super) fn sort(v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, w: Word) -> bool {
    // Without halves the access that brings a page in through a file descriptor is counted too.
    let arrival = u64::from(!w.has(Word::MAPPED) && !has_halves(cx));
    if w.refs() <= arrival {
        return false;
    }
    let (old, now) = (w.home(), v.r#gen.clock());
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
