//! Shrinking: takes isolated folios out of memory, for both LRUs.
//!
//! Owns the order of a folio's tests. They ask whether the folio can leave, is dirty or under
//! writeback, was accessed, and can be stored. Both LRUs use these tests in this order. The LRUs
//! differ only in the effect of an access.

use std::sync::Arc;

use super::r#gen::Deltas;
use super::r#gen::look_around::look_around;
use super::scan::{Evicted, Isolation, MIN_LRU_BATCH, ReclaimStat, ShrinkReport};
use super::{Ctx, Lruvec, Pageout, Pagevec, Reclaimer, Scan};
use crate::folio::{LruType, Word};
use crate::observe::vmstat::Event;
use crate::space::{Area, Pte, References, Space};
use crate::tunables::{LookAround, LruKind};
use crate::types::{Pfn, Vpn};

/// A batch of isolated folios, oldest first.
#[derive(Debug)]
pub(crate) struct Isolated {
    pfns: [Pfn; MIN_LRU_BATCH as usize],
    len: usize,
    /// Scans of lists for this batch that are not yet reported: one of probation, and one of each
    /// type.
    looks: [Option<Isolation>; LOOKS_MAX],
}

/// Most list scans for one batch.
const LOOKS_MAX: usize = 3;

impl Isolated {
    pub fn new() -> Self {
        Self { pfns: [Pfn(0); MIN_LRU_BATCH as usize], len: 0, looks: [None; LOOKS_MAX] }
    }

    pub fn push(&mut self, pfn: Pfn) {
        self.pfns[self.len] = pfn;
        self.len += 1;
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn is_full(&self) -> bool {
        self.len == self.pfns.len()
    }

    pub fn as_slice(&self) -> &[Pfn] {
        &self.pfns[..self.len]
    }

    /// Returns the pages of the folios in the batch.
    pub fn pages(&self, cx: &Ctx) -> u64 {
        self.as_slice().iter().map(|&pfn| cx.folios.word(pfn).pages()).sum()
    }

    /// Records a scan of a list for this batch.
    pub fn looked(&mut self, look: Isolation) {
        let free = self.looks.iter_mut().find(|look| look.is_none());
        debug_assert!(free.is_some(), "{look:?}");
        free.into_iter().for_each(|free| *free = Some(look));
    }

    /// Returns the list scans since the last call.
    pub fn take_looks(&mut self) -> impl Iterator<Item = Isolation> + use<> {
        std::mem::take(&mut self.looks).into_iter().flatten()
    }

    fn keep(&mut self, kept: usize) {
        self.len = kept;
    }
}

/// The results of shrinking a batch.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Shrunk {
    pub reclaimed: u64,
    pub activated: u64,
    /// Dirty file pages that are not under writeback.
    pub unqueued_dirty: u64,
    /// Pages handed to the store.
    pub written: u64,
    /// Pages that stay because they were used.
    pub used: u64,
    /// Pages met, by their state.
    pub met: ReclaimStat,
}

impl Shrunk {
    /// Returns the results as a report. `looked` is the number of pages looked at for the batch.
    pub fn report(&self, v: &Lruvec, sc: &Scan, ty: LruType, looked: u64) -> ShrinkReport {
        ShrinkReport {
            reclaimer: sc.reclaimer,
            node: v.node(),
            ty,
            priority: sc.priority,
            looked,
            freed: self.reclaimed,
            met: self.met,
            activated: self.activated,
            used: self.used,
        }
    }
}

/// The state of a look-around: counter deltas (with a walk) or a batch of activations.
pub(crate) struct Around {
    pub deltas: Deltas,
    pub with_walk: bool,
    pub pagevec: Pagevec,
    /// Whether neighbours are looked at.
    looks: bool,
}

/// [`LookAround::Pressed`] looks around only after a pass has looked at this many pages.
const PRESSED_FROM: u64 = 4 * MIN_LRU_BATCH;
/// [`LookAround::Pressed`] looks around only if the pass freed less than one page in this many.
const PRESSED_YIELD: u64 = 8;

impl Around {
    /// Creates the state for one batch of `sc`.
    pub fn new(cx: &Ctx, sc: &Scan) -> Self {
        let looks = match cx.tun.mglru.look_around {
            LookAround::Off => false,
            LookAround::Pressed => {
                sc.scanned >= PRESSED_FROM && sc.reclaimed * PRESSED_YIELD < sc.scanned
            }
            LookAround::On => true,
        };
        Self { looks, with_walk: sc.walk_ready, ..Self::none() }
    }

    /// Creates the state for lists without look-around.
    pub fn none() -> Self {
        let (deltas, pagevec) = (Deltas::default(), Pagevec::default());
        Self { deltas, with_walk: false, pagevec, looks: false }
    }
}

enum Fate {
    Evict,
    /// Write the dirty file folio now.
    Write,
    Activate,
    /// Keep the folio where it is, because it was used.
    Used,
    Keep,
}

/// Tries to take out every folio of the batch. The batch keeps the folios that stay, in order.
pub(crate) fn shrink_batch(
    v: &Lruvec,
    cx: &Ctx,
    sc: &mut Scan,
    out: &mut dyn Pageout,
    batch: &mut Isolated,
    around: &mut Around,
) -> Shrunk {
    let mut found = Shrunk::default();
    let met = sc.met;
    let mut kept = 0;
    for i in 0..batch.len {
        let pfn = batch.pfns[i];
        let w = cx.folios.word(pfn);
        sc.scanned += w.pages();
        let stays = match fate(v, cx, sc, pfn, w, around) {
            Fate::Keep => true,
            Fate::Used => {
                found.used += w.pages();
                true
            }
            Fate::Activate => {
                cx.folios.set(pfn, Word::ACTIVE);
                found.activated += w.pages();
                true
            }
            Fate::Write => {
                if out.write_file(cx, pfn) {
                    cx.stat.add(Event::NrVmscanWrite, w.pages());
                    cx.folios.set(pfn, Word::RECLAIM);
                    found.written += w.pages();
                } else {
                    cx.folios.set(pfn, Word::ACTIVE);
                    found.activated += w.pages();
                }
                true
            }
            Fate::Evict => evict(v, cx, out, pfn, &mut found),
        };
        if stays {
            batch.pfns[kept] = pfn;
            kept += 1;
        }
    }
    batch.keep(kept);
    sc.reclaimed += found.reclaimed;
    found.met = sc.met.since(&met);
    found.unqueued_dirty = found.met.unqueued_dirty;
    sc.unqueued_dirty += found.unqueued_dirty;
    cx.stat.add(Event::PgActivate, found.activated);
    cx.stat.add(Event::EbbDirtyMet, found.met.dirty);
    found
}

fn fate(v: &Lruvec, cx: &Ctx, sc: &mut Scan, pfn: Pfn, w: Word, around: &mut Around) -> Fate {
    sc.met.taken += w.pages();
    let file = w.ty() == LruType::File;
    sc.met.file_taken += if file { w.pages() } else { 0 };
    if w.has(Word::LOCKED) {
        return Fate::Keep;
    }
    if w.has(Word::UNEVICTABLE.or(Word::MLOCKED)) {
        cx.folios.set(pfn, Word::UNEVICTABLE);
        return Fate::Keep;
    }
    if !sc.may_unmap && w.has(Word::MAPPED) {
        return Fate::Keep;
    }
    let file_dirty = file && w.has(Word::DIRTY);
    if w.has(Word::WRITEBACK) {
        return being_written(cx, sc, pfn, w);
    }
    if file_dirty {
        sc.met.dirty += w.pages();
        sc.met.unqueued_dirty += w.pages();
    }
    let refs = references(v, cx, pfn, around);
    if refs.locked {
        cx.folios.set(pfn, Word::UNEVICTABLE.or(Word::MLOCKED));
        return Fate::Keep;
    }
    if refs.busy {
        return Fate::Keep;
    }
    match check_references(v, cx, pfn, refs, file_dirty) {
        Fate::Evict => {}
        other => return other,
    }
    if w.ty() == LruType::Anon && !sc.may_swap {
        return Fate::Activate;
    }
    if file_dirty && sc.may_write && sc.node_dirty && again(sc, w) {
        return Fate::Write;
    }
    if file_dirty {
        cx.folios.set(pfn, Word::RECLAIM);
        cx.stat.add(Event::NrVmscanImmediate, w.pages());
        return Fate::Activate;
    }
    Fate::Evict
}

/// Whether kswapd meets a folio that was marked for reclaim before.
fn again(sc: &Scan, w: Word) -> bool {
    sc.reclaimer == Reclaimer::Kswapd && w.has(Word::RECLAIM)
}

/// Handles a folio under writeback. The folio is activated, and moves to the old end when its
/// writeback ends.
fn being_written(cx: &Ctx, sc: &mut Scan, pfn: Pfn, w: Word) -> Fate {
    sc.met.dirty += w.pages();
    if w.has(Word::RECLAIM) {
        sc.met.congested += w.pages();
    }
    if sc.node_writeback && again(sc, w) {
        sc.met.immediate += w.pages();
    } else {
        cx.folios.set(pfn, Word::RECLAIM);
        sc.met.writeback += w.pages();
    }
    Fate::Activate
}

/// Decides the effect of an access, by the multi-gen rule or the classic two-touch rule.
fn check_references(v: &Lruvec, cx: &Ctx, pfn: Pfn, refs: References, dirty: bool) -> Fate {
    if v.kind() == LruKind::Gen {
        cx.stat.add(Event::EbbRefsMet, u64::from(refs.young > 0));
        let w = cx.folios.word(pfn);
        if w.on_probation() && refs.young > 0 {
            // The folio was used again while on probation.
            cx.folios.update(pfn, Word::without_refs);
            return Fate::Activate;
        }
        if cx.tun.mglru.history && w.has(Word::MAPPED) {
            return by_history(cx, pfn, w, refs.young > 0);
        }
        if refs.young == 0 {
            return Fate::Evict;
        }
        let promote = super::r#gen::set_refs(cx, pfn, refs.exec);
        return if promote { Fate::Activate } else { Fate::Used };
    }
    let old = cx.folios.clear(pfn, Word::REFERENCED).has(Word::REFERENCED);
    let file = cx.folios.word(pfn).ty() == LruType::File;
    if refs.young > 0 {
        cx.folios.set(pfn, Word::REFERENCED);
        return if old || refs.young > 1 || (refs.exec && file) {
            Fate::Activate
        } else {
            Fate::Used
        };
    }
    if old && file && dirty { Fate::Used } else { Fate::Evict }
}

/// Whether the accesses of a folio keep it in memory. For tests.
#[cfg(test)]
pub(crate) fn stays_for_use(v: &Lruvec, cx: &Ctx, pfn: Pfn, around: &mut Around) -> bool {
    let refs = references(v, cx, pfn, around);
    !matches!(check_references(v, cx, pfn, refs, false), Fate::Evict)
}

/// Raises the access count by one after a round with an access. Lowers it by two after a round
/// without one. Evicts a folio whose count is too low.
fn by_history(cx: &Ctx, pfn: Pfn, w: Word, young: bool) -> Fate {
    if young {
        cx.folios.update(pfn, super::r#gen::seen_again);
        return Fate::Activate;
    }
    if w.refs() < 2 || w.on_probation() {
        return Fate::Evict;
    }
    cx.folios.update(pfn, |w| w.with_refs(w.refs().saturating_sub(2)));
    Fate::Activate
}

/// Hands a folio to `out`. Returns true if it stays.
fn evict(v: &Lruvec, cx: &Ctx, out: &mut dyn Pageout, pfn: Pfn, found: &mut Shrunk) -> bool {
    let w = cx.folios.word(pfn);
    let shadow = v.eviction_shadow(cx, pfn);
    match out.evict(cx, pfn, w.ty(), shadow) {
        Evicted::Freed => {
            v.note_evicted(cx, w);
            found.reclaimed += w.pages();
            let stored = w.has(Word::SWAPBACKED) && w.has(Word::SWAPCACHE);
            if w.has(Word::DIRTY) || (w.has(Word::SWAPBACKED) && !stored) {
                found.written += w.pages();
            }
            false
        }
        Evicted::Taken => {
            found.reclaimed += w.pages();
            false
        }
        Evicted::Writing => {
            found.written += w.pages();
            cx.folios.set(pfn, Word::WRITEBACK.or(Word::RECLAIM));
            true
        }
        Evicted::Young => {
            super::r#gen::set_refs(cx, pfn, false);
            cx.folios.set(pfn, Word::ACTIVE);
            found.activated += w.pages();
            true
        }
        Evicted::Busy => true,
    }
}

/// Reads and clears the accessed bits of every entry that maps the folio.
pub(crate) fn references(v: &Lruvec, cx: &Ctx, pfn: Pfn, around: &mut Around) -> References {
    let mut refs = References::default();
    let w = cx.folios.word(pfn);
    if !w.has(Word::MAPPED) {
        return refs;
    }
    let list = cx.spaces.read();
    cx.spaces.each_mapping(cx.folios, pfn, &list, |space, vpn| {
        let mut area: Option<Area> = None;
        for i in 0..w.pages() {
            let at = Vpn(vpn.0 + i);
            let Some(place) = space.tree().find(at) else { continue };
            let pte = place.get();
            if !pte.all(Pte::PRESENT | Pte::MAPPED | Pte::ACCESSED) {
                continue;
            }
            if area.as_ref().is_none_or(|a| !a.holds(at)) {
                area = space.area_of(at);
            }
            let Some(a) = &area else { continue };
            if a.locked {
                refs.locked = true;
                return;
            }
            if !a.recency {
                continue;
            }
            refs.exec |= a.exec;
            if place.table.clear(place.index, Pte::ACCESSED).all(Pte::ACCESSED) {
                refs.young += 1;
                if around.looks && !a.special {
                    look_around(v, cx, around, space, a, at);
                }
            }
        }
    });
    refs
}

/// The space type of the callbacks in this module.
pub(crate) type SharedSpace = Arc<Space>;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lru::r#gen::tests::Rig;
    use crate::tunables::Tunables;

    #[test]
    fn neighbours_are_looked_at_in_a_pass_that_frees_little() {
        let rig = Rig::new(1, Tunables::default());
        let mut sc = Scan::new(Reclaimer::Direct, false, 32, 60);
        let mut looks = |scanned, reclaimed| {
            (sc.scanned, sc.reclaimed) = (scanned, reclaimed);
            Around::new(&rig.cx(), &sc).looks
        };
        assert!(!looks(0, 0) && !looks(255, 0), "too few to say");
        assert!(looks(256, 0) && looks(257, 32));
        assert!(!looks(256, 32) && !looks(10_000, 1_250), "one of eight goes");
    }

    /// Spec 6.2: the fate of a mapped folio. It depends on the earlier reference, the number of
    /// young entries, program text, type and dirtiness.
    #[test]
    fn the_classic_lru_decides_about_a_mapped_folio_by_its_references() {
        let mut tun = Tunables::preset("classic").unwrap();
        tun.classic.fold = 0;
        for (was, young, exec, ty, dirty, expected) in [
            (false, 0, false, LruType::Anon, false, "evict"),
            (true, 0, false, LruType::Anon, false, "evict"),
            (true, 0, false, LruType::Anon, true, "evict"),
            (false, 1, false, LruType::Anon, false, "keep"),
            (true, 1, false, LruType::Anon, false, "activate"),
            (false, 2, false, LruType::Anon, false, "activate"),
            (false, 1, true, LruType::Anon, false, "keep"),
            (false, 1, true, LruType::File, false, "activate"),
            (false, 1, false, LruType::File, false, "keep"),
            (true, 0, false, LruType::File, false, "evict"),
            (true, 0, false, LruType::File, true, "keep"),
            (false, 0, false, LruType::File, true, "evict"),
        ] {
            let mut rig = Rig::of_kind(8, tun.clone(), LruKind::Classic);
            let pfn = rig.fill(ty).unwrap();
            if was {
                rig.folios.set(pfn, Word::REFERENCED);
            }
            let refs = References { young, exec, ..References::default() };
            let fate = match check_references(&rig.v, &rig.cx(), pfn, refs, dirty) {
                Fate::Evict => "evict",
                Fate::Activate => "activate",
                Fate::Used | Fate::Keep => "keep",
                Fate::Write => "write",
            };
            assert_eq!(fate, expected, "{was} {young} {exec} {ty:?} {dirty}");
            // The flag records whether the folio was young this time, whatever it was before.
            assert_eq!(rig.folios.word(pfn).has(Word::REFERENCED), young > 0);
        }
    }
}
