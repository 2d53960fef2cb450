//! New folios prove themselves before they join the generations.
//!
//! Owns the probation list of each type: a first-in first-out list of folios that were never used
//! again since they came in. One that is used again on its way through joins the generations; one
//! that is not is evicted, and if it comes back soon it joins them directly. So a scan passes
//! through
//! a small part of memory and leaves the rest alone.
//!
//! How large that part is adapts: each folio that comes back soon after it failed probation
//! enlarges
//! it by one page, each that comes back soon after it left a generation shrinks it by several.

use std::sync::atomic::Ordering::Relaxed;

use super::super::{Ctx, Lists, Lruvec, Scan, Who};
use super::evictable;
use super::window::{moved_up, relink};
use crate::folio::{FRESH, LruType, Word};
use crate::tunables::{Admission, TargetEnd, TypeSelect};
use crate::types::Pfn;

/// Pages beyond the least share. Before anything was learned the share is the configured one.
fn extra(v: &Lruvec, cx: &Ctx, all: u64) -> u64 {
    match v.r#gen.fresh_extra.load(Relaxed) {
        0 => all * cx.tun.probation.saturating_sub(cx.tun.probation_min) / 100,
        n => n - 1,
    }
}

/// Pages the probation lists should have.
fn target(v: &Lruvec, cx: &Ctx) -> u64 {
    share(v, cx, v.memory())
}

/// The part of `all` pages that may be on probation.
fn share(v: &Lruvec, cx: &Ctx, all: u64) -> u64 {
    let wanted = all * cx.tun.probation_min / 100 + extra(v, cx, all);
    wanted.min(all * cx.tun.probation_max / 100).max(1)
}

fn fresh(v: &Lruvec) -> u64 {
    LruType::ALL.iter().map(|&ty| v.r#gen.fresh_pages(ty)).sum()
}

/// Whether a folio being added goes on probation.
pub(super) fn admits(v: &Lruvec, cx: &Ctx, w: Word) -> bool {
    if cx.tun.admission != Admission::Probation || w.has(Word::ACTIVE.or(Word::RETURNED)) {
        return false;
    }
    if w.has(Word::SEEN) {
        return w.home() == FRESH;
    }
    // Nothing was evicted yet: memory is being filled, and whoever comes first may stay.
    let filling = v.r#gen.evictions[0].load(Relaxed) == 0;
    !filling || fresh(v) < target(v, cx)
}

/// The type whose probation list is to be scanned next, if it has more than its share, and pages in
/// zones up to `zone`.
pub(super) fn due(v: &Lruvec, cx: &Ctx, swappiness: u32, zone: usize) -> Option<LruType> {
    if cx.tun.admission != Admission::Probation {
        return None;
    }
    // A type that cannot be evicted would keep the lists of the other due for good.
    let pages = |ty: &LruType| v.r#gen.fresh_pages(*ty);
    let waiting: u64 = evictable(swappiness).map(|ty| pages(&ty)).sum();
    let all: u64 = evictable(swappiness).map(|ty| v.total(ty)).sum();
    if waiting < share(v, cx, all) {
        return None;
    }
    let helps = |ty: &LruType| v.r#gen.fresh_pages_to(*ty, zone);
    if cx.tun.type_select == TypeSelect::Ratio && (2..200).contains(&swappiness) {
        return Some(super::evict::ratio_type(v, swappiness)).filter(|ty| helps(ty) > 0);
    }
    evictable(swappiness).max_by_key(helps).filter(|ty| helps(ty) > 0)
}

/// The type whose probation list is to be scanned next. By command every folio on probation is due: it
/// is older than any generation.
pub(super) fn next(v: &Lruvec, cx: &Ctx, sc: &Scan, swappiness: u32) -> Option<LruType> {
    due(v, cx, swappiness, sc.zone).or_else(|| {
        let helps = |ty: &LruType| v.r#gen.fresh_pages_to(*ty, sc.zone);
        let commanded = cx.tun.admission == Admission::Probation && sc.who == Who::Proactive;
        let longest = evictable(swappiness).max_by_key(helps);
        longest.filter(|ty| commanded && helps(ty) > 0)
    })
}

/// A folio came back soon after it left probation (or a generation).
pub(super) fn learn(v: &Lruvec, cx: &Ctx, failed_probation: bool) {
    if cx.tun.admission != Admission::Probation {
        return;
    }
    let all = v.memory();
    let now = extra(v, cx, all);
    let next = if failed_probation {
        (now + 1).min(all * cx.tun.probation_max / 100)
    } else {
        now.saturating_sub(cx.tun.probation_down)
    };
    v.r#gen.fresh_extra.store(next + 1, Relaxed);
}

/// Handles a folio on probation that is not a candidate. True if it left the list.
pub(super) fn sort(v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, w: Word) -> bool {
    // The access that brings a page in through a file descriptor is counted too.
    let used = if w.has(Word::MAPPED) { w.refs() > 0 } else { w.refs() > 1 };
    if !used {
        return false;
    }
    let new = ((v.r#gen.max_seq() - 1) % 4) as usize;
    let (_, after) = cx.folios.update(pfn, |w| match w.slot() {
        Some(now) if now != FRESH => w,
        _ => w.without_refs().with_slot(Some(new)),
    });
    let slot = after.slot().unwrap_or(new);
    if slot == new {
        moved_up(v, w, FRESH, new);
    }
    relink(cx, lists, pfn, FRESH, slot, TargetEnd::Head);
    true
}
