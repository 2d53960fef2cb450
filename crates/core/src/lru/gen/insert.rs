//! The choice of generation and list end for a folio that is put on the lists.
//!
//! | state when added | generation | end |
//! |---|---|---|
//! | active and working set | youngest | head |
//! | active | youngest but one | head |
//! | written out for reclaim | oldest of four; on probation, the old end of that | tail |
//! | anonymous and not in swap; to be reclaimed and not written yet | youngest but one | head |
//! | else, working set (K72: or referenced) | oldest but one of four | head |
//! | else | oldest of four | head |
//!
//! A folio never goes to a generation older than the oldest one that exists.

use std::sync::atomic::Ordering::Relaxed;

use super::super::{Add, Ctx, Lists, Lruvec};
use super::{access, probation};
use crate::folio::{FRESH, TRIED, Word};
use crate::observe::vmstat::Event;
use crate::tunables::{Admission, Placement};
use crate::types::Pfn;

/// Returns the sequence number of the generation that a folio joins.
pub(super) fn target_seq(v: &Lruvec, cx: &Ctx, w: Word, how: Add) -> u64 {
    let max = v.r#gen.max_seq();
    let min = v.r#gen.min_seq(w.ty());
    if cx.tun.mglru.admission == Admission::Probation && !w.has(Word::ACTIVE) && how == Add::Normal
    {
        return max - 1;
    }
    let fresh_anon = w.has(Word::SWAPBACKED) && !w.has(Word::SWAPCACHE);
    let unwritten = w.has(Word::RECLAIM) && w.has(Word::DIRTY.or(Word::WRITEBACK));
    let placement = cx.tun.mglru.placement;
    let back = if placement == Placement::K612 {
        return if w.has(Word::ACTIVE) {
            max
        } else if fresh_anon || unwritten {
            max - 1
        } else if how == Add::Rotate || min + 2 >= max {
            min
        } else {
            min + 1
        };
    } else if w.has(Word::ACTIVE) {
        if w.has(Word::WORKINGSET) { 0 } else { 1 }
    } else if how == Add::Rotate {
        3
    } else if fresh_anon || unwritten {
        1
    } else {
        let warm = match placement {
            Placement::K72 => w.has(Word::WORKINGSET.or(Word::REFERENCED)),
            _ => w.has(Word::WORKINGSET),
        };
        if warm { 2 } else { 3 }
    };
    max.saturating_sub(back).max(min)
}

pub(super) fn add(v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, how: Add) {
    let seq = target_seq(v, cx, cx.folios.word(pfn), how);
    let w = cx.folios.word(pfn);
    let fresh = match how {
        Add::Normal => probation::admits(v, cx, w),
        // A folio written out from probation leaves from there.
        Add::Rotate => cx.tun.mglru.admission == Admission::Probation && w.on_probation(),
    };
    let slot = match fresh {
        true if w.list_slot() == TRIED || how == Add::Rotate => TRIED,
        true => FRESH,
        false => (seq % 4) as usize,
    };
    let (off, now) = (Word::ACTIVE.or(Word::RETURNED), v.r#gen.clock());
    let (_, w) = cx.folios.update(pfn, |w| {
        // A folio that is put back on probation keeps the stamp of its arrival.
        let w = if fresh && w.has(Word::SEEN) { w } else { w.stamped(now) };
        w.at_list_slot(slot).with(Word::LRU.or(Word::SEEN)).without(off)
    });
    if fresh && how == Add::Normal {
        cx.stat.add(Event::EbbProbation, w.pages());
    }
    resize(v, slot, w, w.pages() as i64);
    let list = &mut lists.r#gen[slot][w.ty().index()][w.zone()];
    match how {
        Add::Normal => list.push_head(cx.folios, pfn),
        Add::Rotate => list.push_tail(cx.folios, pfn),
    }
}

/// Removes a folio from its list after its `LRU` flag was cleared.
pub(super) fn del(v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, keep_age: bool) {
    let (old, w) = cx.folios.update(pfn, |w| {
        let young = keep_age && w.slot().is_some_and(|s| v.r#gen.is_active(s));
        let w = w.with_slot(None);
        if young { w.with(Word::ACTIVE) } else { w }
    });
    let Some(slot) = old.slot() else { return };
    resize(v, slot, w, -(w.pages() as i64));
    // A walk may have promoted the folio in its word alone; the folio is still linked in its old
    // list.
    lists.r#gen[old.list_slot()][w.ty().index()][w.zone()].remove(cx.folios, pfn);
}

/// Counts `pages` that join (or leave) a slot.
pub(super) fn resize(v: &Lruvec, slot: usize, w: Word, pages: i64) {
    v.r#gen.nr_pages[slot][w.ty().index()][w.zone()].fetch_add(pages, Relaxed);
    let active = v.r#gen.is_active(slot);
    v.resize(w.ty().index() * 2 + usize::from(active), pages);
}

/// Marks a folio that a page fault brought in.
pub(super) fn note_fault(cx: &Ctx, pfn: Pfn) {
    if cx.tun.mglru.admission == Admission::Probation {
        return;
    }
    match cx.tun.mglru.placement {
        Placement::K612 | Placement::K618 => {
            cx.folios.set(pfn, Word::ACTIVE);
        }
        Placement::K72 => {
            if !cx.folios.word(pfn).has(Word::ACTIVE.or(Word::REFERENCED)) {
                access::inc_refs(cx, pfn);
            }
        }
    }
}
