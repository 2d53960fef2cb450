//! The effect of one access on a folio: the access count, the two flags, and promotion by slot.
//!
//! Accesses through file descriptors count up to five and set tiers. Without `gen.history` accesses
//! through page tables use the same flags, without the count. The first sets `REFERENCED`, the
//! second makes the folio part of the working set and of the youngest generation. With
//! `gen.history` the count of a mapped folio is that of rounds with an access.

use super::Ctx;
use crate::folio::{MAX_NR_GENS, Word};
use crate::tunables::{Promote, SetRefs};
use crate::types::Pfn;

/// Counts one access through a file descriptor.
#[inline]
pub(super) fn inc_refs(cx: &Ctx, pfn: Pfn) {
    let full = Word::REFERENCED.or(Word::WORKINGSET);
    let w = cx.folios.word(pfn);
    if w.refs_field() == 3 && w.without(full).with(full) == w {
        return;
    }
    cx.folios.update(pfn, |w| {
        if !w.has(Word::REFERENCED) {
            w.with_refs_field(0).with(Word::REFERENCED)
        } else if w.refs_field() < 3 {
            w.with_refs_field(w.refs_field() + 1)
        } else {
            w.with(Word::WORKINGSET)
        }
    });
}

/// Returns a word as part of the working set: promoted, with the count reset.
fn promoted(w: Word) -> Word {
    w.without_refs().with(Word::WORKINGSET)
}

/// Handles an accessed entry that eviction found. Returns true if the folio is to be activated.
pub fn set_refs(cx: &Ctx, pfn: Pfn, exec: bool) -> bool {
    if cx.tun.mglru.promote == Promote::First {
        return true;
    }
    let first = |w: Word| !w.has(Word::REFERENCED.or(Word::WORKINGSET));
    let (old, _) = cx.folios.update(pfn, |w| match cx.tun.mglru.set_refs {
        _ if first(w) && exec && cx.tun.mglru.set_refs == SetRefs::K72 => promoted(w),
        _ if first(w) => w.with_refs_field(0).with(Word::REFERENCED),
        SetRefs::K618 => promoted(w),
        SetRefs::K72 if w.refs() > 1 => promoted(w),
        SetRefs::K72 if !w.has(Word::REFERENCED) => w.with_refs_field(0).with(Word::REFERENCED),
        SetRefs::K72 => w.with_refs_field((w.refs_field() + 1).min(3)),
    });
    !first(old) || (exec && cx.tun.mglru.set_refs == SetRefs::K72)
}

/// Handles an accessed entry that a page-table walk found: promotes the folio to `slot`, in its
/// word alone. Returns the slot that the folio had, if it was promoted. `now` becomes its stamp.
pub fn update_gen(cx: &Ctx, pfn: Pfn, slot: usize, now: u64) -> Option<usize> {
    if cx.tun.mglru.history {
        return update_history(cx, pfn, slot, now);
    }
    let first = |w: Word| {
        cx.tun.mglru.promote == Promote::Second && !w.has(Word::REFERENCED.or(Word::WORKINGSET))
    };
    let (old, _) = cx.folios.update(pfn, |w| {
        if first(w) {
            w.with_refs_field(0).with(Word::REFERENCED)
        } else if w.slot().is_none() {
            w
        } else {
            match cx.tun.mglru.promote {
                Promote::Second => promoted(w).with_slot(Some(slot)),
                Promote::First => w.without_refs().with_slot(Some(slot)),
            }
        }
    });
    if first(old) { None } else { old.slot() }
}

/// Counts one more round with an access and makes the folio young, where accesses are remembered
/// over several rounds.
fn update_history(cx: &Ctx, pfn: Pfn, slot: usize, now: u64) -> Option<usize> {
    let (old, _) = cx.folios.update(pfn, |w| match w.slot() {
        None => w,
        Some(_) => seen_again(w).with_slot(Some(slot)).stamped(now),
    });
    old.slot()
}

/// Returns the word with one more round in which the folio was accessed, four at most.
pub(crate) fn seen_again(w: Word) -> Word {
    w.with_refs((w.refs() + 1).min(4))
}

/// Moves a folio of the oldest generation (`old`) one generation up, in its word alone. Returns its
/// slot now, and whether this call set that slot. If not, a walk promoted it first.
pub fn inc_gen(cx: &Ctx, pfn: Pfn, old: usize, mark: Word) -> (usize, bool) {
    let mut w = cx.folios.word(pfn);
    loop {
        match w.slot() {
            Some(now) if now != old => return (now, false),
            _ => {}
        }
        race::point(cx, pfn);
        let next = (old + 1) % MAX_NR_GENS as usize;
        let new = w.without_refs().at_list_slot(next).with(mark);
        match cx.folios.exchange(pfn, w, new) {
            Ok(()) => return (next, true),
            Err(now) => w = now,
        }
    }
}

/// A hook for tests to act between a read and the compare-exchange.
pub(crate) mod race {
    use crate::lru::Ctx;
    use crate::types::Pfn;

    #[cfg(test)]
    thread_local! {
        pub(crate) static VICTIMS: std::cell::RefCell<Vec<(Pfn, usize)>> =
            const { std::cell::RefCell::new(Vec::new()) };
    }

    /// Promotes the folios that a test chose, as a walk on another CPU would.
    #[cfg(test)]
    pub(crate) fn point(cx: &Ctx, pfn: Pfn) {
        VICTIMS.with_borrow_mut(|victims| {
            if let Some(at) = victims.iter().position(|v| v.0 == pfn) {
                let (_, slot) = victims.swap_remove(at);
                cx.folios.update(pfn, |w| {
                    w.without_refs().with(crate::folio::Word::WORKINGSET).with_slot(Some(slot))
                });
            }
        });
    }

    #[cfg(not(test))]
    #[inline(always)]
    pub(crate) fn point(_: &Ctx, _: Pfn) {}
}
