//! Reclaim from the classic lists.

use super::super::list::List;
use super::super::scan::{Aged, DEF_PRIORITY, Isolation, ResumePoint, ScanEvent, batch};
use super::super::shrink::{Around, Isolated, shrink_batch};
use super::super::{Add, Ctx, Lists, Lruvec, Pageout, Reclaimer, Scan};
use super::balance::{Round, inactive_is_low, round, scan_counts};
use crate::folio::{LruType, Word};
use crate::observe::vmstat::Event;
use crate::types::Pfn;

/// Most pages of zones that do not help that one isolation may skip.
const SKIPPED_MAX: u64 = 32 << 10;

/// A reclaim pass in progress.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Under {
    round: Round,
    targets: [u64; 4],
    left: [u64; 4],
    reclaimed: u64,
    /// Index of the list to scan next.
    list: usize,
    /// Whether all that is left is scanned, however much was reclaimed.
    to_the_end: bool,
}

impl Under {
    fn begin(v: &Lruvec, cx: &Ctx, sc: &Scan) -> Self {
        let round = round(v, cx, sc);
        let targets = scan_counts(v, cx, sc, round);
        // At the lowest pressure, a task scans few pages.
        let to_the_end =
            sc.root && sc.reclaimer == Reclaimer::Direct && sc.priority == DEF_PRIORITY;
        Self { round, targets, left: targets, reclaimed: 0, list: 0, to_the_end }
    }
}

pub(super) fn shrink(v: &Lruvec, cx: &Ctx, sc: &mut Scan, out: &mut dyn Pageout) {
    let mut p = match sc.place.take() {
        Some(ResumePoint::Classic(under)) => under,
        _ => Under::begin(v, cx, sc),
    };
    while p.list > 0 || p.left[0] > 0 || p.left[2] > 0 || p.left[3] > 0 {
        while p.list < p.left.len() {
            let i = p.list;
            let n = p.left[i].min(batch(cx.tun));
            p.list += 1;
            if n > 0 {
                p.left[i] -= n;
                p.reclaimed += shrink_list(v, cx, sc, out, p.round, i, n);
                if out.pause() {
                    sc.place = Some(ResumePoint::Classic(p));
                    return;
                }
            }
        }
        p.list = 0;
        if p.reclaimed < sc.target || p.to_the_end {
            continue;
        }
        let (anon, file) = (p.left[0] + p.left[1], p.left[2] + p.left[3]);
        if anon == 0 || file == 0 {
            break;
        }
        p.to_the_end = cx.tun.classic.finish;
        // On a machine scaled down, the pass finishes the share of the full machine, not of the
        // lengthened lists.
        let lift = if p.to_the_end { sc.lift.min(sc.priority) } else { 0 };
        rescale(&mut p.left, &p.targets, anon, file, lift);
    }
    if inactive_is_low(v, cx, LruType::Anon) && sc.may_swap {
        shrink_active(v, cx, sc, out, LruType::Anon, batch(cx.tun));
    }
}

/// Drops the type with less left to scan. The other type continues to the same share of its target.
/// That target is `2^lift` times too large.
fn rescale(left: &mut [u64; 4], targets: &[u64; 4], anon: u64, file: u64, lift: u8) {
    let (drop, keep, done) = if file > anon {
        (0, 2, anon * 100 / (targets[0] + targets[1] + 1))
    } else {
        (2, 0, file * 100 / (targets[2] + targets[3] + 1))
    };
    left[drop] = 0;
    left[drop + 1] = 0;
    for i in [keep, keep + 1] {
        let scanned = targets[i] - left[i];
        let goal = (targets[i] >> lift) * (100 - done) / 100;
        left[i] = goal.saturating_sub(scanned);
    }
}

fn shrink_list(
    v: &Lruvec,
    cx: &Ctx,
    sc: &mut Scan,
    out: &mut dyn Pageout,
    round: Round,
    list: usize,
    n: u64,
) -> u64 {
    let ty = LruType::ALL[list / 2];
    if list.is_multiple_of(2) {
        return shrink_inactive(v, cx, sc, out, ty, n);
    }
    if round.may_deactivate[ty.index()] {
        shrink_active(v, cx, sc, out, ty, n);
    } else {
        sc.skipped_deactivate = true;
    }
    0
}

/// Isolates up to `n` pages from the tail. Returns the pages scanned and the pages skipped.
fn isolate(
    v: &Lruvec,
    cx: &Ctx,
    sc: &Scan,
    lists: &mut Lists,
    list: usize,
    n: u64,
    batch: &mut Isolated,
) -> (u64, u64) {
    let mut scanned = 0;
    let mut skipped_pages = 0;
    let mut skipped = List::default();
    while scanned < n && !batch.is_full() {
        let Some(pfn) = lists.classic[list].tail() else { break };
        let w = cx.folios.word(pfn);
        lists.classic[list].remove(cx.folios, pfn);
        if w.zone() > sc.zone {
            skipped.push_head(cx.folios, pfn);
            skipped_pages += w.pages();
            if skipped_pages > SKIPPED_MAX {
                scanned += w.pages();
            }
            continue;
        }
        scanned += w.pages();
        if (!sc.may_unmap && w.has(Word::MAPPED)) || !cx.folios.try_pin(pfn) {
            skipped.push_head(cx.folios, pfn);
            continue;
        }
        cx.folios.clear(pfn, Word::LRU);
        super::resize(v, lists, list, w.zone(), -(w.pages() as i64));
        batch.push(pfn);
    }
    lists.classic[list].prepend(cx.folios, skipped);
    cx.stat.add(Event::PgSkip, skipped_pages);
    (scanned, skipped_pages)
}

/// Reports an isolation from a list to `out`.
fn tell_isolated(
    (v, cx, sc): (&Lruvec, &Ctx, &Scan),
    out: &mut dyn Pageout,
    (ty, active): (LruType, bool),
    (asked, looked, skipped): (u64, u64, u64),
    batch: &Isolated,
) {
    out.note(&ScanEvent::Isolated(Isolation {
        reclaimer: sc.reclaimer,
        node: v.node(),
        ty,
        active,
        zone: sc.zone,
        order: sc.order,
        asked,
        looked,
        skipped,
        taken: batch.pages(cx),
    }));
}

fn shrink_inactive(
    v: &Lruvec,
    cx: &Ctx,
    sc: &mut Scan,
    out: &mut dyn Pageout,
    ty: LruType,
    n: u64,
) -> u64 {
    let mut batch = Isolated::new();
    let (scanned, skipped) = isolate(v, cx, sc, &mut v.lock(), ty.index() * 2, n, &mut batch);
    tell_isolated((v, cx, sc), out, (ty, false), (n, scanned, skipped), &batch);
    cx.stat.add(
        match sc.reclaimer {
            Reclaimer::Kswapd => Event::PgScanKswapd,
            Reclaimer::Direct => Event::PgScanDirect,
            Reclaimer::Proactive => Event::PgScanProactive,
        },
        scanned,
    );
    let file = ty == LruType::File;
    cx.stat.add(if file { Event::PgScanFile } else { Event::PgScanAnon }, scanned);
    cx.stat.add(Event::EbbClassicScanned, scanned);
    if batch.is_empty() {
        return 0;
    }
    let taken = batch.pages(cx);
    let found = shrink_batch(v, cx, sc, out, &mut batch, &mut Around::none());
    out.note(&ScanEvent::Shrunk(found.report(v, sc, ty, scanned)));
    put_back(v, cx, batch.as_slice());
    v.classic.note_cost(v, cx, ty, found.written, scanned - found.reclaimed.min(scanned));
    if found.unqueued_dirty > 0 && found.unqueued_dirty == taken {
        cx.stat.add(Event::EbbFlusherWake, 1);
        out.wake_flusher();
    }
    cx.stat.add(
        match sc.reclaimer {
            Reclaimer::Kswapd => Event::PgStealKswapd,
            Reclaimer::Direct => Event::PgStealDirect,
            Reclaimer::Proactive => Event::PgStealProactive,
        },
        found.reclaimed,
    );
    cx.stat.add(if file { Event::PgStealFile } else { Event::PgStealAnon }, found.reclaimed);
    found.reclaimed
}

fn put_back(v: &Lruvec, cx: &Ctx, batch: &[Pfn]) {
    let mut lists = v.lock();
    for &pfn in batch {
        let w = cx.folios.word(pfn);
        v.add_locked(cx, &mut lists, pfn, Add::Normal);
        if w.has(Word::ACTIVE) {
            v.classic.note_activation(w.pages());
        }
        cx.folios.unpin(pfn);
    }
}

/// Moves folios from the active to the inactive list. Program text that was accessed stays active.
fn shrink_active(v: &Lruvec, cx: &Ctx, sc: &Scan, out: &mut dyn Pageout, ty: LruType, n: u64) {
    let mut batch = Isolated::new();
    let (scanned, skipped) = isolate(v, cx, sc, &mut v.lock(), ty.index() * 2 + 1, n, &mut batch);
    tell_isolated((v, cx, sc), out, (ty, true), (n, scanned, skipped), &batch);
    let taken = batch.pages(cx);
    cx.stat.add(Event::PgRefill, scanned);
    let mut rotated = 0;
    for &pfn in batch.as_slice() {
        let refs = super::super::shrink::references(v, cx, pfn, &mut Around::none());
        let w = cx.folios.word(pfn);
        if refs.young > 0 && refs.exec && ty == LruType::File {
            rotated += w.pages();
            continue;
        }
        cx.folios.update(pfn, |w| w.without(Word::ACTIVE).with(Word::WORKINGSET));
        cx.stat.add(Event::PgDeactivate, w.pages());
    }
    let mut lists = v.lock();
    for &pfn in batch.as_slice() {
        v.add_locked(cx, &mut lists, pfn, Add::Normal);
        cx.folios.unpin(pfn);
    }
    drop(lists);
    v.classic.note_cost(v, cx, ty, 0, rotated);
    let (reclaimer, node, priority) = (sc.reclaimer, v.node(), sc.priority);
    out.note(&ScanEvent::Aged(Aged { reclaimer, node, ty, priority, taken, rotated }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_type_goes_on_to_the_share_the_smaller_reached() {
        // Anonymous: 40 of 100 left, so 59 % was scanned of its target plus one. File: 300 of 400
        // left.
        let mut left = [40, 0, 300, 0];
        rescale(&mut left, &[100, 0, 400, 0], 40, 300, 0);
        assert_eq!(left, [0, 0, 400 * 61 / 100 - 100, 0]);
        // Lists four times too long: the 100 pages already scanned exceed the goal, so nothing is
        // left.
        let mut left = [40, 0, 300, 0];
        rescale(&mut left, &[100, 0, 400, 0], 40, 300, 2);
        assert_eq!(left, [0; 4]);
    }
}
