//! Aging a list in batches: one counter update and one splice for a whole segment.
//!
//! Folios that go to the expected next generation stay linked where they are. The batch remembers
//! only the ends of such a segment, and a flush moves the segment in constant time. Any other folio
//! that leaves the list is unlinked at once. A folio that goes to the other end of the target
//! begins a new segment.
//!
//! Invariants
//! * BATCH-1: between the ends of a segment every folio was recorded, because every other folio met
//!   was unlinked. A folio that a walk promoted between the read and the exchange goes elsewhere.
//!   It must not become an end of the segment, because that would join two lists.
//! * BATCH-2: no segment or count is pending when the lru lock is dropped.

use std::sync::atomic::Ordering::Relaxed;

use super::super::list::{AHEAD, List};
use super::super::{Ctx, Lists, Lruvec, ZONES};
use super::window::{count_protected, moved_up, relink};
use super::{inc_gen, insert};
use crate::folio::{LruType, SLOTS, Word};
use crate::observe::vmstat::Event;
use crate::tunables::TargetEnd;
use crate::types::Pfn;

/// A segment that is being gathered, and the counts of its pages.
#[derive(Debug, Default)]
pub(super) struct Batch {
    head: Option<Pfn>,
    tail: Option<Pfn>,
    folios: u32,
    /// Folios whose pages are not yet counted in the new slot; `pages` is their sum.
    pending: u64,
    pages: i64,
    /// End of the target list that the segment goes to. None while the segment is empty.
    end: Option<TargetEnd>,
}

impl Batch {
    fn record(&mut self, pfn: Pfn) {
        if self.tail.is_none() {
            self.tail = Some(pfn);
        }
        self.head = Some(pfn);
        self.folios += 1;
    }

    /// Adds a folio whose word was `w` and which this walk of the list has just given the slot
    /// `at.new`. The folio joins the segment, or moves by itself where batching is off.
    pub(super) fn take(
        &mut self,
        v: &Lruvec,
        cx: &Ctx,
        lists: &mut Lists,
        pfn: Pfn,
        w: Word,
        at: At,
    ) {
        if self.end.is_some_and(|end| end != at.end) {
            self.flush(v, cx, lists, at);
        }
        self.end = Some(at.end);
        if cx.tun.mglru.bulk_move {
            self.record(pfn);
        } else {
            relink(cx, lists, pfn, at.old, at.new, at.end);
        }
        if cx.tun.mglru.counter_batch {
            self.pending += 1;
            self.pages += w.pages() as i64;
        } else {
            moved_up(v, w, at.old, at.new);
        }
    }

    /// Moves the segment from the list of `old` to that of `new` and updates the counters.
    pub(super) fn flush(&mut self, v: &Lruvec, cx: &Ctx, lists: &mut Lists, at: At) {
        let several = |n: u64| if n > 1 { n } else { 0 };
        cx.stat.add(Event::EbbBulkMoved, several(u64::from(self.folios)));
        cx.stat.add(Event::EbbCounterBatched, several(self.pending));
        if let (Some(head), Some(tail)) = (self.head, self.tail) {
            let from = &mut lists.r#gen[at.old][at.ty.index()][at.zone];
            let segment = from.cut(cx.folios, head, tail, self.folios);
            let target = &mut lists.r#gen[at.new][at.ty.index()][at.zone];
            match self.end.unwrap_or(at.end) {
                TargetEnd::Tail => target.append(cx.folios, segment),
                TargetEnd::Head => target.prepend(cx.folios, segment),
            }
        }
        if self.pages != 0 {
            let w = Word::new(at.ty, 0, at.zone as u8);
            insert::resize(v, at.old, w, -self.pages);
            insert::resize(v, at.new, w, self.pages);
        }
        *self = Self::default();
    }
}

/// The list of a segment, and the target that it moves to.
#[derive(Clone, Copy, Debug)]
pub(super) struct At {
    pub ty: LruType,
    pub zone: usize,
    pub old: usize,
    pub new: usize,
    pub end: TargetEnd,
}

/// Steps from the oldest folio of a list to newer ones. With `gen.prefetch` on, it reads the
/// records of later folios early.
#[derive(Debug, Default)]
pub(super) struct Steps {
    known: usize,
    looks: u64,
}

impl Steps {
    #[inline]
    pub fn newer(&mut self, cx: &Ctx, pfn: Pfn) -> Option<Pfn> {
        if cx.tun.mglru.prefetch {
            if self.known == 0 {
                List::look_ahead(cx.folios, pfn);
                self.known = AHEAD;
                self.looks += 1;
            }
            self.known -= 1;
        }
        List::newer(cx.folios, pfn)
    }

    /// Counts the early reads.
    pub fn end(self, cx: &Ctx) {
        cx.stat.add(Event::EbbLookedAhead, self.looks);
    }
}

/// Moves up to `budget` folios from the list of the oldest generation to the next. Returns how
/// many.
pub(super) fn age_list(
    v: &Lruvec,
    cx: &Ctx,
    lists: &mut Lists,
    ty: LruType,
    zone: usize,
    budget: &mut u32,
) -> u64 {
    let seq = v.r#gen.min_seq(ty);
    let old = (seq % 4) as usize;
    let at = At { ty, zone, old, new: (old + 1) % 4, end: cx.tun.mglru.target_end };
    let mut batch = Batch::default();
    let mut moved = 0;
    let mut steps = Steps::default();
    let mut next = lists.r#gen[old][ty.index()][zone].tail();
    while let Some(pfn) = next {
        if *budget == 0 {
            break;
        }
        // Read `next` before the folio is handled, because handling may unlink it.
        next = steps.newer(cx, pfn);
        let before = cx.folios.word(pfn);
        let (slot, ours) = inc_gen(cx, pfn, old, Word::default());
        if ours {
            batch.take(v, cx, lists, pfn, before, at);
        } else {
            relink(cx, lists, pfn, old, slot, TargetEnd::Head);
        }
        count_protected(v, cx, before, seq);
        moved += 1;
        *budget -= 1;
    }
    batch.flush(v, cx, lists, at);
    steps.end(cx);
    moved
}

/// Counter changes that a walk gathers and applies in one hold of the lock.
#[derive(Debug, Default)]
pub(crate) struct Deltas {
    pages: [[[i64; ZONES]; 2]; SLOTS],
    /// Number of promotions gathered.
    pub batched: u64,
}

impl Deltas {
    /// Records that a folio went from one slot to another.
    pub(crate) fn moved(&mut self, w: Word, old: usize, new: usize) {
        let n = w.pages() as i64;
        self.pages[old][w.ty().index()][w.zone()] -= n;
        self.pages[new][w.ty().index()][w.zone()] += n;
        self.batched += 1;
    }

    /// Applies all gathered changes. The caller holds the lru lock.
    pub(crate) fn flush(&mut self, v: &Lruvec, _held: &Lists) {
        if self.batched == 0 {
            return;
        }
        for slot in 0..self.pages.len() {
            for ty in LruType::ALL {
                for zone in 0..ZONES {
                    let d = std::mem::take(&mut self.pages[slot][ty.index()][zone]);
                    if d != 0 {
                        let g = &v.r#gen;
                        g.nr_pages[slot][ty.index()][zone].fetch_add(d, Relaxed);
                        v.resize(ty.index() * 2 + usize::from(g.is_active(slot)), d);
                    }
                }
            }
        }
        self.batched = 0;
    }
}
