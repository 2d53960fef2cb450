//! Batches of folios that one CPU gathers before they go on the lists, so that the lru lock is
//! taken once for many.
//!
//! A folio gathered to be added is on no list. Its generation is unset, and walks skip it.
//!
//! Invariant
//! * PAGEVEC-1: a batch moves no folio of another lruvec. A folio gathered to be activated is still
//!   on a list. It may be reclaimed before it is moved, and its frame may then belong to another
//!   memcg.

use super::{Add, Ctx, Lruvec};
use crate::folio::Word;
use crate::types::Pfn;

/// Most folios in a batch.
pub const PAGEVEC_MAX: usize = 31;

/// The batches of one CPU.
#[derive(Debug)]
pub struct Pagevec {
    add: [Pfn; PAGEVEC_MAX],
    adds: usize,
    activate: [Pfn; PAGEVEC_MAX],
    activates: usize,
}

impl Default for Pagevec {
    fn default() -> Self {
        Self { add: [Pfn(0); PAGEVEC_MAX], adds: 0, activate: [Pfn(0); PAGEVEC_MAX], activates: 0 }
    }
}

impl Pagevec {
    /// Gathers a new folio. All go on the lists when the batch is full or the folio is large.
    pub fn add(&mut self, v: &Lruvec, cx: &Ctx, pfn: Pfn) {
        self.add[self.adds] = pfn;
        self.adds += 1;
        let full = (cx.tun.add_batch as usize).clamp(1, PAGEVEC_MAX);
        if self.adds >= full || cx.folios.word(pfn).order() > 0 {
            self.drain_adds(v, cx);
        }
    }

    /// Gathers a folio that is to be activated.
    pub fn activate(&mut self, v: &Lruvec, cx: &Ctx, pfn: Pfn) {
        let w = cx.folios.word(pfn);
        if w.has(Word::ACTIVE.or(Word::UNEVICTABLE)) || !w.has(Word::LRU) {
            return;
        }
        self.activate[self.activates] = pfn;
        self.activates += 1;
        let full = (cx.tun.add_batch as usize).clamp(1, PAGEVEC_MAX);
        if self.activates >= full || w.order() > 0 {
            self.drain_activates(v, cx);
        }
    }

    /// Whether `pfn` still waits to be added.
    #[must_use]
    pub fn is_adding(&self, pfn: Pfn) -> bool {
        self.add[..self.adds].contains(&pfn)
    }

    fn drain_adds(&mut self, v: &Lruvec, cx: &Ctx) {
        if self.adds == 0 {
            return;
        }
        super::r#gen::forget_arrival(cx, &self.add[..self.adds]);
        let mut lists = v.lock();
        for &pfn in &self.add[..self.adds] {
            v.add_locked(cx, &mut lists, pfn, Add::Normal);
        }
        self.adds = 0;
    }

    fn drain_activates(&mut self, v: &Lruvec, cx: &Ctx) {
        if self.activates == 0 {
            return;
        }
        let mut lists = v.lock();
        for &pfn in &self.activate[..self.activates] {
            // PAGEVEC-1
            if (cx.folios.memcg(pfn), cx.folios.node(pfn)) == (v.memcg(), v.node()) {
                v.activate_locked(cx, &mut lists, pfn);
            }
        }
        self.activates = 0;
    }

    /// Puts all gathered folios on the lists.
    pub fn drain(&mut self, v: &Lruvec, cx: &Ctx) {
        self.drain_adds(v, cx);
        self.drain_activates(v, cx);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::r#gen::tests::Rig;
    use super::*;
    use crate::folio::{LruType, MemcgId};
    use crate::tunables::{LruKind, Tunables};
    use crate::types::Vpn;

    /// Shows that a folio whose frame went to another memcg is left alone. Otherwise its links
    /// would leave one list and its length be taken from another's.
    #[test]
    fn a_reclaimed_folio_stays_with_the_memcg_that_has_its_frame() {
        let mut rig = Rig::of_kind(8, Tunables::preset("classic").unwrap(), LruKind::Classic);
        let pfns: Vec<Pfn> = (0..4).map(|_| rig.fill(LruType::File).unwrap()).collect();
        let mut gathered = Pagevec::default();
        gathered.activate(&rig.v, &rig.cx(), pfns[1]);
        gathered.activate(&rig.v, &rig.cx(), pfns[2]);
        // The frame of the first folio is reclaimed and given to another memcg.
        let other = Lruvec::new(MemcgId(2), LruKind::Classic, 0);
        assert!(rig.v.remove(&rig.cx(), pfns[1]));
        let word = Word::new(LruType::File, 0, 0);
        rig.folios.init(pfns[1], word, MemcgId(2), rig.mm(), Vpn(1));
        other.add(&rig.cx(), pfns[1]);
        gathered.drain(&rig.v, &rig.cx());
        rig.v.check_invariants(&rig.cx());
        other.check_invariants(&rig.cx());
        let active = |pfn| rig.folios.word(pfn).has(Word::ACTIVE);
        assert!(active(pfns[2]) && !active(pfns[1]));
    }
}
