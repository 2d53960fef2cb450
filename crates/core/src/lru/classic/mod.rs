//! The classic LRU: an active and an inactive list for each type, with refault distance.
//!
//! Owns the costs that balance the types, and the clock of evictions and activations (`age`). Also
//! owns the copies of the size counters on which it decides. In a memcg those copies lag, because
//! the kernel folds its per-CPU counters only now and then. `classic.fold` models that.

mod balance;
mod reclaim;
#[cfg(test)]
mod vector_tests;

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

pub(crate) use balance::Seen;
pub(crate) use reclaim::Under;

use super::{Add, Came, Ctx, Lists, Lru, Lruvec, Pageout, Scan, Shadow, ZONES};
use crate::folio::{LruType, Word};
use crate::observe::vmstat::Event;
use crate::types::Pfn;

/// The state of the classic LRU beside its lists.
#[derive(Debug, Default)]
pub struct ClassicState {
    /// Evictions and activations since the start, in pages.
    age: AtomicU64,
    cost: [AtomicU64; 2],
    /// Refaulted pages that were activated, by type; exact.
    activated: [AtomicU64; 2],
    /// Values of `seen_activated` at the end of the last reclaim run.
    snapshot: [AtomicU64; 2],
    /// Copies of the list sizes and of `activated`, as of the last fold.
    seen_sizes: [AtomicU64; 4],
    seen_activated: [AtomicU64; 2],
    /// Pages of each list by zone, changed under the lru lock.
    by_zone: [[AtomicI64; ZONES]; 4],
}

impl ClassicState {
    fn note_activation(&self, pages: u64) {
        self.age.fetch_add(pages, Relaxed);
    }

    /// Returns the pages of a list that are in zones up to `zone`.
    pub(super) fn eligible(&self, list: usize, zone: usize) -> u64 {
        let pages: i64 = self.by_zone[list].iter().take(zone + 1).map(|z| z.load(Relaxed)).sum();
        pages.max(0) as u64
    }

    pub(super) fn snapshot(&self) {
        for i in 0..2 {
            self.snapshot[i].store(self.seen_activated[i].load(Relaxed), Relaxed);
        }
    }

    /// Adds to the cost of a type. Older costs are halved when the sum exceeds a quarter of the
    /// lists.
    fn note_cost(&self, v: &Lruvec, cx: &Ctx, ty: LruType, ios: u64, rotated: u64) {
        let cost = if cx.tun.classic.rotations {
            ios * super::scan::SWAP_CLUSTER_MAX + rotated
        } else {
            ios
        };
        if cost == 0 {
            return;
        }
        self.cost[ty.index()].fetch_add(cost, Relaxed);
        let lists: u64 = (0..4).map(|i| self.seen_size(v, cx, i)).sum();
        let [a, f] = [0, 1].map(|i| self.cost[i].load(Relaxed));
        if a + f > lists / 4 {
            self.cost[0].store(a / 2, Relaxed);
            self.cost[1].store(f / 2, Relaxed);
        }
    }

    fn seen_size(&self, v: &Lruvec, cx: &Ctx, list: usize) -> u64 {
        if cx.tun.classic.fold == 0 {
            v.sizes[list].load(Relaxed).max(0) as u64
        } else {
            self.seen_sizes[list].load(Relaxed)
        }
    }
}

impl Lruvec {
    /// Folds the counters on which the classic LRU decides.
    pub fn fold(&self) {
        for i in 0..4 {
            let now = self.sizes[i].load(Relaxed).max(0) as u64;
            self.classic.seen_sizes[i].store(now, Relaxed);
        }
        for i in 0..2 {
            let now = self.classic.activated[i].load(Relaxed);
            self.classic.seen_activated[i].store(now, Relaxed);
        }
    }
}

/// Counts pages that join a list or leave it.
fn resize(v: &Lruvec, _under: &mut Lists, list: usize, zone: usize, pages: i64) {
    let n = &v.classic.by_zone[list][zone];
    n.store(n.load(Relaxed) + pages, Relaxed);
    v.resize(list, pages);
}

fn index(w: Word) -> usize {
    w.ty().index() * 2 + usize::from(w.has(Word::ACTIVE))
}

/// The classic LRU as an implementation of [`Lru`].
#[derive(Clone, Copy, Debug)]
pub struct Classic;

impl Lru for Classic {
    fn add(&self, v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, how: Add) {
        let w = Word(cx.folios.set(pfn, Word::LRU).0);
        let i = index(w);
        match how {
            Add::Normal => lists.classic[i].push_head(cx.folios, pfn),
            Add::Rotate => lists.classic[i].push_tail(cx.folios, pfn),
        }
        resize(v, lists, i, w.zone(), w.pages() as i64);
    }

    fn del(&self, v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, keep_age: bool) {
        let w = cx.folios.word(pfn);
        let i = index(w);
        lists.classic[i].remove(cx.folios, pfn);
        resize(v, lists, i, w.zone(), -(w.pages() as i64));
        if !keep_age {
            cx.folios.clear(pfn, Word::ACTIVE);
        }
    }

    fn mark_accessed(&self, v: &Lruvec, cx: &Ctx, pfn: Pfn) -> bool {
        let w = cx.folios.word(pfn);
        if !w.has(Word::REFERENCED) {
            cx.folios.set(pfn, Word::REFERENCED);
            return false;
        }
        if w.has(Word::ACTIVE) {
            return false;
        }
        v.classic.note_activation(w.pages());
        cx.folios.clear(pfn, Word::REFERENCED);
        if !w.has(Word::LRU) {
            // The folio is still in an add batch, which will put it on the active list.
            cx.folios.set(pfn, Word::ACTIVE);
            return false;
        }
        true
    }

    fn eviction_shadow(&self, v: &Lruvec, cx: &Ctx, pfn: Pfn) -> Shadow {
        let workingset = cx.folios.word(pfn).has(Word::WORKINGSET);
        Shadow::pack(v.classic.age.load(Relaxed), v.memcg().0, v.node(), workingset)
    }

    fn clock(&self, v: &Lruvec, _: &Ctx, _: u64) -> u64 {
        v.classic.age.load(Relaxed)
    }

    fn note_evicted(&self, v: &Lruvec, _: &Ctx, w: Word) {
        v.classic.age.fetch_add(w.pages(), Relaxed);
    }

    fn refault(&self, v: Came, cx: &Ctx, pfn: Pfn, shadow: Shadow, _: bool) -> bool {
        refault(v, cx, pfn, shadow)
    }

    fn shrink(&self, v: &Lruvec, cx: &Ctx, sc: &mut Scan, out: &mut dyn Pageout) -> bool {
        reclaim::shrink(v, cx, sc, out);
        false
    }

    fn note_fault(&self, _: &Lruvec, _: &Ctx, _: Pfn) {}
}

/// Handles a refault. The folio is activated if the evictions and activations since it left would
/// have fitted into the memory where it left.
fn refault((v, left): Came, cx: &Ctx, pfn: Pfn, shadow: Shadow) -> bool {
    let w = cx.folios.word(pfn);
    let (ty, n) = (w.ty(), w.pages());
    if !left.is_left_by(shadow) {
        return false;
    }
    let by = |anon, file| if ty == LruType::Anon { anon } else { file };
    cx.stat.add(by(Event::WorkingsetRefaultAnon, Event::WorkingsetRefaultFile), n);
    let c = &v.classic;
    let mask = (1 << Shadow::TOKEN_BITS) - 1;
    let distance = left.classic.age.load(Relaxed).wrapping_sub(shadow.token()) & mask;
    let size = |i: usize| left.classic.seen_size(left, cx, i);
    let mut room = size(3) + size(1);
    room += if ty == LruType::Anon { size(2) } else { size(0) };
    if distance > room {
        return false;
    }
    cx.folios.set(pfn, Word::ACTIVE);
    c.note_activation(n);
    c.activated[ty.index()].fetch_add(n, Relaxed);
    cx.stat.add(by(Event::WorkingsetActivateAnon, Event::WorkingsetActivateFile), n);
    if shadow.workingset() {
        cx.folios.set(pfn, Word::WORKINGSET);
        c.note_cost(v, cx, ty, n, 0);
        cx.stat.add(by(Event::WorkingsetRestoreAnon, Event::WorkingsetRestoreFile), n);
    }
    true
}

/// Checks the classic lists against their counters.
pub(super) fn check(v: &Lruvec, cx: &Ctx, lists: &Lists) {
    let mut any = false;
    for (i, list) in lists.classic.iter().enumerate() {
        list.check(cx.folios);
        let mut by_zone = [0; ZONES];
        for pfn in list.order(cx.folios) {
            let w = cx.folios.word(pfn);
            assert!(w.has(Word::LRU) && w.slot().is_none() && !w.has(Word::CULLED), "{w:?}");
            assert_eq!(index(w), i, "{w:?}");
            by_zone[w.zone()] += w.pages() as i64;
            any = true;
        }
        let counted = v.classic.by_zone[i].each_ref().map(|n| n.load(Relaxed));
        assert_eq!(counted, by_zone, "size of classic list {i} by zone");
        if lists.r#gen.iter().flatten().flatten().all(super::list::List::is_empty) {
            assert_eq!(
                v.sizes[i].load(Relaxed),
                by_zone.iter().sum::<i64>(),
                "size of classic list {i}"
            );
        }
    }
    assert!(!any || v.kind() == crate::tunables::LruKind::Classic || v.is_switching());
}
