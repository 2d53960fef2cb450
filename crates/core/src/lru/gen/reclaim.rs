//! Reclaim at one priority: when to age, and how many folios to evict.
//!
//! There are two loops. K618 computes its budget again before each batch and stops to age. K72
//! computes its budget once, takes batches of 64 and goes on after aging. Both can be interrupted
//! after a batch, and in an aging after each address space walked ([`Pageout::pause`]).

use super::super::scan::{self, DEF_PRIORITY, MAX_LRU_BATCH, ResumePoint};
use super::super::{Ctx, Lruvec, Pageout, Reclaimer, Scan};
use super::aging::{Aged, Aging, age};
use super::evict::evict;
use super::probation;
use crate::folio::MIN_NR_GENS;
use crate::observe::vmstat::Event;
use crate::tunables::{Dirty, Loop};

/// Reclaims at one priority. Returns true if the memcg LRU should rotate this lruvec.
pub(super) fn shrink(v: &Lruvec, cx: &Ctx, sc: &mut Scan, out: &mut dyn Pageout) -> bool {
    if !sc.is_paused() {
        // Background and commanded reclaim have their own walk buffer. A task has one only after it
        // aged.
        sc.walk_ready = sc.reclaimer != Reclaimer::Direct;
        sc.unqueued_dirty = 0;
        sc.file_taken = 0;
        sc.put_back = [0; 2];
    }
    match cx.tun.mglru.eviction {
        Loop::K618 => loop_k618(v, cx, sc, out),
        Loop::K72 => loop_k72(v, cx, sc, out),
    }
}

fn abort(cx: &Ctx, sc: &Scan, out: &mut dyn Pageout) -> bool {
    let met = sc.reclaimed >= sc.target.max(2 << sc.order);
    if !sc.root && cx.tun.mglru.eviction == Loop::K618 {
        return cx.tun.mglru.exact_target && met;
    }
    met || (sc.reclaimer == Reclaimer::Kswapd && sc.order == 0 && out.enough())
}

/// Returns whether eviction needs a new generation, and the pages that it could scan (K618).
fn aging_needed(v: &Lruvec, swappiness: u32) -> (bool, u64) {
    let g = &v.r#gen;
    let (min, max) = (g.evictable_min_seq(swappiness), g.max_seq());
    if min + MIN_NR_GENS > max {
        return (true, 0);
    }
    (min + MIN_NR_GENS == max, g.evictable_pages(swappiness))
}

/// The next step of the K618 loop.
enum Next {
    /// Scan so many folios.
    Scan(u64),
    /// Age instead of scanning.
    Age(Aging),
    /// Leave the lruvec, which is to be rotated.
    Leave,
}

fn next_k618(v: &Lruvec, cx: &Ctx, sc: &Scan, swappiness: u32) -> Next {
    if sc.protection.below_min {
        return Next::Leave;
    }
    let seq = v.r#gen.max_seq();
    if probation::due(v, cx, sc, swappiness) {
        let size = v.r#gen.evictable_pages(swappiness);
        return Next::Scan(sc.share_of(sc.protection.apply(size, cx.tun)));
    }
    let (needed, size) = aging_needed(v, swappiness);
    if size > 0 && !v.online() {
        return Next::Scan(size);
    }
    let size = sc.protection.apply(size, cx.tun);
    if !needed || sc.priority == DEF_PRIORITY {
        return Next::Scan(sc.share_of(size));
    }
    Next::Age(Aging::new(seq, false))
}

fn loop_k618(v: &Lruvec, cx: &Ctx, sc: &mut Scan, out: &mut dyn Pageout) -> bool {
    let swappiness = sc.swappiness_now();
    let (mut aging, mut total) = match sc.place.take() {
        Some(ResumePoint::K618(aging, total)) => (aging, total),
        _ => (None, 0),
    };
    let mut rotate = false;
    loop {
        let next = aging.take().map_or_else(|| next_k618(v, cx, sc, swappiness), Next::Age);
        let n = match next {
            Next::Scan(0) => break,
            Next::Scan(n) => n,
            Next::Leave => {
                rotate = true;
                break;
            }
            Next::Age(from) => match age(v, cx, sc, from, swappiness, || out.pause()) {
                Aged::Paused(aging) => {
                    sc.place = Some(ResumePoint::K618(Some(aging), total));
                    return false;
                }
                Aged::Done(opened) => {
                    rotate = opened;
                    break;
                }
            },
        };
        let done = evict(v, cx, sc, out, n, swappiness);
        total += done;
        if done == 0 || total >= n || abort(cx, sc, out) {
            break;
        }
        if out.pause() {
            sc.place = Some(ResumePoint::K618(None, total));
            return false;
        }
    }
    if cx.tun.dirty == Dirty::K618 && sc.unqueued_dirty > 0 && sc.unqueued_dirty == sc.file_taken {
        cx.stat.add(Event::EbbFlusherWake, 1);
        out.wake_flusher();
    }
    rotate
}

fn should_age(v: &Lruvec, cx: &Ctx, sc: &Scan, swappiness: u32) -> bool {
    let g = &v.r#gen;
    let (min, max) = (g.evictable_min_seq(swappiness), g.max_seq());
    if probation::due(v, cx, sc, swappiness) {
        return false;
    }
    min + MIN_NR_GENS > max || (sc.priority < DEF_PRIORITY && min + MIN_NR_GENS == max)
}

fn loop_k72(v: &Lruvec, cx: &Ctx, sc: &mut Scan, out: &mut dyn Pageout) -> bool {
    let swappiness = sc.swappiness_now();
    if sc.protection.below_min {
        return true;
    }
    let all = v.r#gen.evictable_pages(swappiness);
    let (mut aging, mut left, mut rotate) = match sc.place.take() {
        Some(ResumePoint::K72(aging, left, rotate)) => (aging, left, rotate),
        _ if v.online() => (None, sc.share_of(sc.protection.apply(all, cx.tun)), false),
        _ => (None, all, false),
    };
    while left > 0 {
        if aging.is_none() && should_age(v, cx, sc, swappiness) {
            aging = Some(Aging::new(v.r#gen.max_seq(), false));
        }
        let aged = aging.is_some();
        if let Some(from) = aging.take() {
            match age(v, cx, sc, from, swappiness, || out.pause()) {
                Aged::Paused(aging) => {
                    sc.place = Some(ResumePoint::K72(Some(aging), left, rotate));
                    return false;
                }
                Aged::Done(opened) => rotate |= opened,
            }
        }
        let done = evict(v, cx, sc, out, left.min(scan::gen_batch(cx.tun)), swappiness);
        if done == 0 || abort(cx, sc, out) || (sc.root && aged) {
            break;
        }
        left = left.saturating_sub(done);
        if left > 0 && out.pause() {
            sc.place = Some(ResumePoint::K72(None, left, rotate));
            return false;
        }
    }
    rotate
}

/// The reason why a command failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RunError {
    /// EINVAL: the generation does not exist, or is too young to evict.
    Invalid,
    /// EEXIST: another caller aged first.
    Raced,
}

/// Carries out the `+` command: ages, if `seq` is not beyond the youngest generation.
///
/// # Errors
/// The errors of [`RunError`].
pub(crate) fn run_aging(
    v: &Lruvec,
    cx: &Ctx,
    sc: &mut Scan,
    seq: u64,
    swappiness: u32,
    force: bool,
) -> Result<(), RunError> {
    let max = v.r#gen.max_seq();
    if seq > max {
        return Err(RunError::Invalid);
    }
    match age(v, cx, sc, Aging::new(max, force), swappiness, || false) {
        Aged::Done(true) => Ok(()),
        _ => Err(RunError::Raced),
    }
}

/// Carries out the `-` command: evicts generations up to `seq`, at most `quota` pages.
///
/// # Errors
/// The errors of [`RunError`].
pub(crate) fn run_eviction(
    v: &Lruvec,
    cx: &Ctx,
    sc: &mut Scan,
    out: &mut dyn Pageout,
    seq: u64,
) -> Result<u64, RunError> {
    let (swappiness, quota) = (sc.swappiness, sc.target);
    if seq + MIN_NR_GENS > v.r#gen.max_seq() {
        return Err(RunError::Invalid);
    }
    sc.walk_ready = true;
    sc.reclaimed = 0;
    sc.put_back = [0; 2];
    let any = |sc: &Scan| {
        v.r#gen.evictable_min_seq(swappiness) <= seq || probation::takes(v, cx, sc, swappiness)
    };
    while any(sc) && sc.reclaimed < quota {
        let n = (quota - sc.reclaimed).min(MAX_LRU_BATCH);
        if evict(v, cx, sc, out, n, swappiness) == 0 {
            break;
        }
    }
    Ok(sc.reclaimed)
}
