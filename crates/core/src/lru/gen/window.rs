//! The window of generations: opens new ones and ends old ones.
//!
//! `inc_max_seq` opens a new youngest generation. Where all four slots are in use, `inc_min`
//! empties the oldest generation first. `try_inc_min` moves the old end past lists that have become
//! empty.
//!
//! Folios of a type that may not be reclaimed (no swap) are not moved. The window passes them, and
//! their slot counts as the youngest generation's when it is used again.

use std::sync::atomic::Ordering::{Relaxed, Release};

use super::super::{Ctx, Lists, Lruvec, ZONES};
use super::batch;
use super::{evictable, inc_gen, may_evict};
use crate::folio::{LruType, MAX_NR_GENS, MIN_NR_GENS, Word};
use crate::observe::vmstat::Event;
use crate::tunables::TargetEnd;
use crate::types::Pfn;

/// Opens generation `seq + 1` if `seq` is still the youngest.
pub(super) fn inc_max_seq(v: &Lruvec, cx: &Ctx, seq: u64, swappiness: u32) -> bool {
    let g = &v.r#gen;
    loop {
        // Each turn holds the lock for a bounded number of folios.
        let mut lists = v.lock();
        if seq < g.max_seq() {
            return false;
        }
        let full = |ty: &LruType| g.gens(*ty) == MAX_NR_GENS;
        let done = LruType::ALL
            .iter()
            .filter(|ty| full(ty))
            .all(|&ty| inc_min(v, cx, &mut lists, ty, swappiness));
        if !done {
            continue;
        }
        move_inactive(v);
        let next = g.max_seq() + 1;
        g.tiers.begin(cx, next);
        g.timestamps[(next % 4) as usize].store(cx.now_ms, Relaxed);
        // Release pairs with the acquire in `max_seq`, so a reader of the new window also sees its
        // counters.
        g.max_seq.store(next, Release);
        cx.stat.add(Event::EbbAged, 1);
        return true;
    }
}

/// Stops counting the youngest generation but one as active.
fn move_inactive(v: &Lruvec) {
    let g = &v.r#gen;
    let max = g.max_seq();
    let (leaving, entering) = (((max - 1) % 4) as usize, ((max + 1) % 4) as usize);
    for ty in LruType::ALL {
        for zone in 0..ZONES {
            let pages = |slot: usize| g.nr_pages[slot][ty.index()][zone].load(Relaxed);
            // The slot to be reused has pages only if this type is not being evicted.
            let delta = pages(leaving) - pages(entering);
            v.resize(ty.index() * 2, delta);
            v.resize(ty.index() * 2 + 1, -delta);
        }
    }
}

/// Moves the oldest generation's folios to the next one and ends it. Returns false if the budget
/// ran out first.
fn inc_min(v: &Lruvec, cx: &Ctx, lists: &mut Lists, ty: LruType, swappiness: u32) -> bool {
    if may_evict(ty, swappiness) {
        let mut budget = cx.tun.mglru.lock_hold.max(1);
        for zone in 0..ZONES {
            let moved =
                if cx.tun.mglru.bulk_move || cx.tun.mglru.counter_batch || cx.tun.mglru.prefetch {
                    batch::age_list(v, cx, lists, ty, zone, &mut budget)
                } else {
                    age_one_by_one(v, cx, lists, ty, zone, &mut budget)
                };
            cx.stat.add(Event::EbbAgedFolios, moved);
            if budget == 0 {
                return false;
            }
        }
    } else {
        // The folios stay where they are, and their slot becomes the youngest generation's. A folio
        // that was promoted within the window before keeps its slot. That slot may then seem older
        // than its list's, until a scan next meets the folio and corrects it.
        let slot = (v.r#gen.min_seq(ty) % 4) as usize;
        if lists.r#gen[slot][ty.index()].iter().any(|list| !list.is_empty()) {
            v.r#gen.passed_by[ty.index()].store(true, Relaxed);
        }
    }
    end_oldest(v, cx, ty);
    true
}

fn end_oldest(v: &Lruvec, cx: &Ctx, ty: LruType) {
    let g = &v.r#gen;
    let seq = g.min_seq(ty);
    g.tiers.carry_over(cx, ty, seq);
    g.min_seq[ty.index()].store(seq + 1, Release);
}

/// Ages as the kernel does: unlinks, links and counts each folio by itself.
fn age_one_by_one(
    v: &Lruvec,
    cx: &Ctx,
    lists: &mut Lists,
    ty: LruType,
    zone: usize,
    budget: &mut u32,
) -> u64 {
    let seq = v.r#gen.min_seq(ty);
    let old = (seq % 4) as usize;
    let mut moved = 0;
    while let Some(pfn) = lists.r#gen[old][ty.index()][zone].tail() {
        let before = cx.folios.word(pfn);
        let (slot, ours) = inc_gen(cx, pfn, old, Word::default());
        relink(cx, lists, pfn, old, slot, cx.tun.mglru.target_end);
        if ours {
            moved_up(v, before, old, slot);
        }
        count_protected(v, cx, before, seq);
        moved += 1;
        *budget -= 1;
        if *budget == 0 {
            break;
        }
    }
    moved
}

/// Counts a folio that went from one slot to another.
pub(super) fn moved_up(v: &Lruvec, w: Word, old: usize, new: usize) {
    super::insert::resize(v, old, w, -(w.pages() as i64));
    super::insert::resize(v, new, w, w.pages() as i64);
}

/// Moves a folio from the list of `old` to that of `new`.
pub(super) fn relink(
    cx: &Ctx,
    lists: &mut Lists,
    pfn: Pfn,
    old: usize,
    new: usize,
    end: TargetEnd,
) {
    let (_, w) = cx.folios.update(pfn, |w| match w.slot() {
        // A walk may promote the folio again right now. Then the list follows `new`, and the slot
        // stays the walk's.
        Some(now) if now != new => w.at_list_slot(new).with_slot(Some(now)),
        _ => w.at_list_slot(new),
    });
    let (ty, zone) = (w.ty().index(), w.zone());
    lists.r#gen[old][ty][zone].remove(cx.folios, pfn);
    let target = &mut lists.r#gen[new][ty][zone];
    match end {
        TargetEnd::Head => target.push_head(cx.folios, pfn),
        TargetEnd::Tail => target.push_tail(cx.folios, pfn),
    }
}

/// Counts a folio that its tier protected. A folio that was promoted for a full count does not
/// count.
pub(super) fn count_protected(v: &Lruvec, cx: &Ctx, w: Word, seq: u64) {
    if !w.lazily_promoted() {
        let h = super::pid::hist(cx, seq);
        let cell = &v.r#gen.tiers.protected[h][w.ty().index()][w.tier()];
        cell.store(cell.load(Relaxed) + w.pages(), Relaxed);
    }
}

/// Ends oldest generations whose lists are empty. Returns true if the window moved.
pub(super) fn try_inc_min(v: &Lruvec, cx: &Ctx, lists: &Lists, swappiness: u32) -> bool {
    let g = &v.r#gen;
    let max = g.max_seq();
    let mut min = [g.min_seq(LruType::Anon), g.min_seq(LruType::File)];
    let mut advanced = false;
    for ty in evictable(swappiness) {
        let m = &mut min[ty.index()];
        while *m + MIN_NR_GENS <= max
            && lists.r#gen[(*m % 4) as usize][ty.index()].iter().all(|l| l.is_empty())
        {
            *m += 1;
            advanced = true;
        }
    }
    if !advanced {
        return false;
    }
    if (1..=200).contains(&swappiness) && !cx.tun.mglru.per_type_aging {
        // A type that is ahead waits for the other, so that their ages stay comparable.
        let s = max - MIN_NR_GENS;
        let [a, f] = min;
        if a > s && f < s {
            min[0] = s;
        } else if f > s && a < s {
            min[1] = s;
        }
    }
    let mut moved = false;
    for ty in LruType::ALL {
        let seq = g.min_seq(ty);
        if min[ty.index()] > seq {
            g.tiers.carry_over(cx, ty, seq);
            g.min_seq[ty.index()].store(min[ty.index()], Release);
            moved = true;
        }
    }
    moved
}
