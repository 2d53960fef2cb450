//! Eviction: sorts the oldest generation, isolates cold folios, shrinks them, puts back those that
//! stay.
//!
//! Works on one batch at a time; [`reclaim`](super::reclaim) calls it for each.

use std::sync::atomic::Ordering::Relaxed;

use super::super::list::List;
use super::super::scan::{self, Isolation, MAX_LRU_BATCH, ScanEvent};
use super::super::shrink::{Around, Isolated, Shrunk, shrink_batch};
use super::super::{Add, Ctx, Lists, Lruvec, Pageout, Reclaimer, Scan, ZONES};
use super::batch::{At, Batch, Steps};
use super::window::{count_protected, moved_up, relink, try_inc_min};
use super::{choice, evictable, inc_gen, insert, pid, probation};
use crate::folio::{FRESH, LruType, MIN_NR_GENS, Word};
use crate::observe::vmstat::Event;
use crate::tunables::{Admission, Dirty, Loop, Placement, TargetEnd, TypeSelect};
use crate::types::Pfn;

/// Evicts one batch: looks at up to `n` folios, isolates the cold ones and shrinks them. Returns
/// the pages that count as scanned. At 0 the caller stops.
pub(super) fn evict(
    v: &Lruvec,
    cx: &Ctx,
    sc: &mut Scan,
    out: &mut dyn Pageout,
    n: u64,
    swappiness: u32,
) -> u64 {
    let mut batch = Isolated::new();
    let k72 = cx.tun.mglru.eviction == Loop::K72;
    let mut scanned;
    if probation::due(v, cx, sc, swappiness) {
        probation::pass_on(v, cx);
    }
    {
        let mut lists = v.lock();
        if k72 {
            try_inc_min(v, cx, &lists, swappiness);
        }
        let n = if cx.tun.mglru.exact_target {
            n.min(sc.target.saturating_sub(sc.reclaimed).max(1))
        } else {
            n
        };
        scanned = isolate(v, cx, sc, &mut lists, n, swappiness, &mut batch);
        let moved = try_inc_min(v, cx, &lists, swappiness);
        if !k72 {
            // A window that moved is progress too, unless nothing is left to evict in generations
            // or on probation.
            scanned += u64::from(moved);
            let fresh = probation::due(v, cx, sc, swappiness);
            let stuck = v.r#gen.evictable_min_seq(swappiness) + MIN_NR_GENS > v.r#gen.max_seq();
            if stuck && !fresh {
                scanned = 0;
            }
        }
    }
    let mut looked = 0;
    for look in batch.take_looks() {
        looked = look.looked;
        out.note(&ScanEvent::Isolated(look));
    }
    if batch.is_empty() {
        return scanned;
    }
    let ty = cx.folios.word(batch.as_slice()[0]).ty();
    let isolated = batch.pages(cx);
    let before = sc.reclaimed;
    let found = shrink_and_put_back(v, cx, sc, out, &mut batch, looked);
    if cx.tun.dirty != Dirty::K618 && found.unqueued_dirty > 0 && found.unqueued_dirty == isolated {
        cx.stat.add(Event::EbbFlusherWake, 1);
        out.wake_flusher();
    }
    count_steal(cx, sc, ty, sc.reclaimed - before);
    scanned
}

fn count_steal(cx: &Ctx, sc: &Scan, ty: LruType, n: u64) {
    cx.stat.add(
        match sc.reclaimer {
            Reclaimer::Kswapd => Event::PgStealKswapd,
            Reclaimer::Direct => Event::PgStealDirect,
            Reclaimer::Proactive => Event::PgStealProactive,
        },
        n,
    );
    cx.stat.add(if ty == LruType::Anon { Event::PgStealAnon } else { Event::PgStealFile }, n);
}

fn shrink_and_put_back(
    v: &Lruvec,
    cx: &Ctx,
    sc: &mut Scan,
    out: &mut dyn Pageout,
    batch: &mut Isolated,
    looked: u64,
) -> Shrunk {
    let ty = cx.folios.word(batch.as_slice()[0]).ty();
    let mut around = Around::new(cx, sc);
    let mut total = Shrunk::default();
    let mut retried = false;
    while !batch.is_empty() {
        let found = shrink_batch(v, cx, sc, out, batch, &mut around);
        out.note(&ScanEvent::Shrunk(found.report(v, sc, ty, looked)));
        total.unqueued_dirty += found.unqueued_dirty;
        let mut again = Isolated::new();
        let mut lists = v.lock();
        for &pfn in batch.as_slice() {
            let w = cx.folios.word(pfn);
            let clean = Word::ACTIVE.or(Word::MAPPED).or(Word::DIRTY).or(Word::WRITEBACK);
            if !retried && !w.has(clean.or(Word::UNEVICTABLE).or(Word::LOCKED)) {
                // The writeback of this folio may have ended while it was off the lists.
                again.push(pfn);
                continue;
            }
            keep_off_oldest(v, cx, pfn);
            v.add_locked(cx, &mut lists, pfn, Add::Normal);
            let w = cx.folios.word(pfn);
            if w.on_probation() {
                sc.put_back[w.ty().index()] += w.pages();
            }
            cx.folios.unpin(pfn);
        }
        around.deltas.flush(v, &lists);
        drop(lists);
        *batch = again;
        retried = true;
    }
    around.pagevec.drain(v, cx);
    total
}

/// Marks a rejected folio so that it is not put back where the scan would meet it again at once.
fn keep_off_oldest(v: &Lruvec, cx: &Ctx, pfn: Pfn) {
    let w = cx.folios.word(pfn);
    let back_to_oldest = || insert::target_seq(v, cx, w, Add::Normal) == v.r#gen.min_seq(w.ty());
    let k612 = cx.tun.mglru.placement == Placement::K612;
    if cx.tun.mglru.history && w.has(Word::ACTIVE) {
        return;
    }
    if cx.tun.mglru.admission == Admission::Probation && w.on_probation() {
        // The folio goes behind all others on probation. The end of its writeback brings it to the
        // old end.
        return;
    }
    if !w.has(Word::UNEVICTABLE) && (k612 || back_to_oldest()) {
        cx.folios.update(pfn, |w| w.without_refs().with(Word::ACTIVE));
    }
}

/// Fills `batch` from one type. Returns the number that counts as scanned.
fn isolate(
    v: &Lruvec,
    cx: &Ctx,
    sc: &mut Scan,
    lists: &mut Lists,
    n: u64,
    swappiness: u32,
    batch: &mut Isolated,
) -> u64 {
    if probation::takes(v, cx, sc, swappiness)
        && let Some((ty, half)) = probation::next_list(v, cx, sc, lists, swappiness)
    {
        let scanned = scan(v, cx, sc, lists, ty, half, 0, n, batch);
        if scanned > 0 {
            return scanned;
        }
    }
    let mut ty = first_type(v, cx, swappiness);
    let mut total = 0;
    for _ in evictable(swappiness) {
        let limit = pid::tier_limit(v, cx, ty);
        let scanned = if v.r#gen.gens(ty) == MIN_NR_GENS {
            0
        } else {
            let slot = (v.r#gen.min_seq(ty) % 4) as usize;
            scan(v, cx, sc, lists, ty, slot, limit, n, batch)
        };
        total += scanned;
        if !batch.is_empty() || (scanned > 0 && !cx.tun.mglru.strict_fallback) {
            break;
        }
        if scanned == 0 {
            // With `gen.strict_fallback`, a type that was scanned without result is scanned once
            // more.
            ty = ty.other();
        }
    }
    total
}

fn first_type(v: &Lruvec, cx: &Ctx, swappiness: u32) -> LruType {
    if let Some(ty) = choice::floor_type(v, cx, swappiness) {
        return ty;
    }
    match cx.tun.mglru.type_select {
        TypeSelect::Ratio if (2..200).contains(&swappiness) => choice::ratio_type(v, swappiness),
        _ => pid::type_to_scan(v, cx, swappiness),
    }
}

#[derive(Default)]
struct Tally {
    scanned: u64,
    sorted: u64,
    isolated: u64,
    skipped: u64,
    protected: u64,
    /// Protected pages that got a second chance (`round`), and those of a protected tier
    /// (`by_tier`).
    round: u64,
    by_tier: u64,
    /// Pages moved because they are dirty or under writeback.
    dirty: u64,
}

/// Scans the oldest generation of a type, or its folios on probation, from the tail.
#[allow(clippy::too_many_arguments)]
fn scan(
    v: &Lruvec,
    cx: &Ctx,
    sc: &mut Scan,
    lists: &mut Lists,
    ty: LruType,
    slot: usize,
    limit: usize,
    n: u64,
    batch: &mut Isolated,
) -> u64 {
    let most = scan::gen_batch(cx.tun);
    let mut left = n.min(MAX_LRU_BATCH).min(u64::from(cx.tun.mglru.lock_hold.max(1)));
    let mut t = Tally::default();
    for i in (1..=ZONES).rev() {
        let zone = (sc.zone + i) % ZONES;
        if slot >= FRESH && zone > sc.zone {
            // Folios of this zone would not help. Probation has no next generation to move them to,
            // so they stay.
            continue;
        }
        let mut skipped = List::default();
        let mut skipped_zone = 0;
        // Protected folios stay linked in a row and move together. Every other folio met leaves the
        // list.
        let at = At { ty, zone, old: slot, new: (slot + 1) % 4, end: TargetEnd::Head };
        let (mut up, mut steps) = (Batch::default(), Steps::default());
        let mut next = lists.r#gen[slot][ty.index()][zone].tail();
        if let Some(oldest) = next.filter(|_| slot < FRESH) {
            let since = v.r#gen.stamped_at(cx.folios.word(oldest));
            v.r#gen.oldest[ty.index()].store(since, Relaxed);
        }
        while let Some(pfn) = next {
            // Read `next` before the folio is handled, because handling may unlink it.
            next = steps.newer(cx, pfn);
            let w = cx.folios.word(pfn);
            t.scanned += w.pages();
            if sort(v, cx, sc, lists, pfn, w, at, limit, &mut t, &mut up) {
                t.sorted += w.pages();
            } else if take(v, cx, sc, lists, pfn, slot) {
                t.isolated += w.pages();
                batch.push(pfn);
            } else {
                lists.r#gen[slot][ty.index()][zone].remove(cx.folios, pfn);
                skipped.push_head(cx.folios, pfn);
                skipped_zone += w.pages();
            }
            left -= 1;
            if left == 0 || t.isolated.max(skipped_zone) >= most || batch.is_full() {
                break;
            }
        }
        up.flush(v, cx, lists, at);
        steps.end(cx);
        if !skipped.is_empty() {
            lists.r#gen[slot][ty.index()][zone].prepend(cx.folios, skipped);
            t.skipped += skipped_zone;
        }
        if left == 0 || t.isolated >= most || batch.is_full() {
            break;
        }
    }
    count_scan(cx, sc, ty, &t);
    batch.looked(Isolation {
        reclaimer: sc.reclaimer,
        node: v.node(),
        ty,
        active: false,
        zone: sc.zone,
        order: sc.order,
        asked: n.min(MAX_LRU_BATCH),
        looked: t.scanned,
        skipped: t.skipped,
        taken: t.isolated,
    });
    if cx.tun.mglru.strict_fallback || t.isolated > 0 || left == 0 { t.scanned } else { 0 }
}

fn count_scan(cx: &Ctx, sc: &mut Scan, ty: LruType, t: &Tally) {
    let file = ty == LruType::File;
    cx.stat.add(
        match sc.reclaimer {
            Reclaimer::Kswapd => Event::PgScanKswapd,
            Reclaimer::Direct => Event::PgScanDirect,
            Reclaimer::Proactive => Event::PgScanProactive,
        },
        t.isolated,
    );
    cx.stat.add(if file { Event::PgScanFile } else { Event::PgScanAnon }, t.isolated);
    cx.stat.add(Event::PgRefill, t.sorted);
    cx.stat.add(Event::PgSkip, t.skipped);
    cx.stat.add(Event::EbbScanned, t.scanned);
    cx.stat.add(Event::EbbProtected, t.protected);
    cx.stat.add(Event::EbbSecondChance, t.round);
    cx.stat.add(Event::EbbTierKept, t.by_tier);
    cx.stat.add(Event::EbbDirtyMet, t.dirty);
    cx.stat.add(Event::EbbScannedNoProgress, u64::from(t.scanned > 0 && t.isolated == 0));
    if file {
        sc.file_taken += t.isolated;
    }
}

/// Handles a folio that is no candidate for eviction. Returns true if it left the oldest list.
#[allow(clippy::too_many_arguments)]
fn sort(
    v: &Lruvec,
    cx: &Ctx,
    sc: &mut Scan,
    lists: &mut Lists,
    pfn: Pfn,
    w: Word,
    at: At,
    limit: usize,
    t: &mut Tally,
    batch: &mut Batch,
) -> bool {
    let old = at.old;
    if w.has(Word::UNEVICTABLE) {
        v.remove_locked(cx, lists, pfn, false);
        v.add_locked(cx, lists, pfn, Add::Normal);
        cx.stat.add(Event::UnevictableCulled, w.pages());
        return true;
    }
    if let Some(now) = w.slot().filter(|&s| s != old) {
        relink(cx, lists, pfn, old, now, TargetEnd::Head);
        return true;
    }
    let up = |mark: Word, end: TargetEnd, lists: &mut Lists, batch: &mut Batch| match inc_gen(
        cx, pfn, old, mark,
    ) {
        (_, true) => batch.take(v, cx, lists, pfn, w, At { end, ..at }),
        (slot, false) => relink(cx, lists, pfn, old, slot, end),
    };
    if old >= FRESH {
        return probation::sort(v, cx, lists, pfn, w);
    }
    if cx.tun.mglru.second_chance && !w.has(Word::MAPPED) && w.refs() > 0 {
        give_second_chance(v, cx, lists, pfn, w, old);
        t.protected += w.pages();
        t.round += w.pages();
        return true;
    }
    let by_history = cx.tun.mglru.history && w.has(Word::MAPPED);
    if !by_history && (w.tier() > limit || w.lazily_promoted()) {
        up(Word::default(), at.end, lists, batch);
        t.protected += w.pages();
        t.by_tier += if w.tier() > limit { w.pages() } else { 0 };
        count_protected(v, cx, w, v.r#gen.min_seq(w.ty()));
        return true;
    }
    if w.zone() > sc.zone {
        up(Word::default(), TargetEnd::Tail, lists, batch);
        return true;
    }
    let file_dirty = w.ty() == LruType::File && w.has(Word::DIRTY);
    if cx.tun.dirty == Dirty::K618 && (w.has(Word::WRITEBACK) || file_dirty) {
        up(Word::RECLAIM, at.end, lists, batch);
        t.dirty += w.pages();
        sc.file_taken += w.pages();
        if !w.has(Word::WRITEBACK) {
            sc.unqueued_dirty += w.pages();
        }
        return true;
    }
    false
}

/// Moves an accessed folio to the second youngest generation, and lowers its access count by one.
fn give_second_chance(v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, w: Word, old: usize) {
    let new = ((v.r#gen.max_seq() - 1) % 4) as usize;
    if new == old {
        return;
    }
    let now = v.r#gen.clock();
    let (_, after) = cx.folios.update(pfn, |w| match w.slot() {
        Some(at) if at != old => w,
        _ => w.with_refs(w.refs().saturating_sub(1)).with_slot(Some(new)).stamped(now),
    });
    let slot = after.slot().unwrap_or(new);
    if slot == new {
        moved_up(v, w, old, new);
    }
    relink(cx, lists, pfn, old, slot, TargetEnd::Head);
}

/// Isolates a candidate. Returns false if another task holds it. Also false, with `dirty=k618`, if
/// it needs a write that the pass may not do.
fn take(v: &Lruvec, cx: &Ctx, sc: &Scan, lists: &mut Lists, pfn: Pfn, slot: usize) -> bool {
    let w = cx.folios.word(pfn);
    let k618 = cx.tun.dirty == Dirty::K618;
    let needs_io = w.has(Word::DIRTY) || (w.has(Word::SWAPBACKED) && !w.has(Word::SWAPCACHE));
    if k618 && !sc.may_write && needs_io {
        return false;
    }
    if !cx.folios.try_pin(pfn) {
        return false;
    }
    let (old, new) = cx.folios.update(pfn, |w| {
        let w = if w.has(Word::REFERENCED) { w } else { w.with_refs_field(0) };
        let w = if k618 { w.without(Word::RECLAIM) } else { w };
        w.without(Word::LRU).with_slot(None)
    });
    let from = old.slot().unwrap_or(slot);
    insert::resize(v, from, new, -(new.pages() as i64));
    lists.r#gen[old.list_slot()][new.ty().index()][new.zone()].remove(cx.folios, pfn);
    true
}
