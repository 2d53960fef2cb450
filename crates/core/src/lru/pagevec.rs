//! Folios gathered per CPU before they go on the lists, so that the lru lock is taken once for
//! many.
//!
//! A gathered folio is on no list: its generation is unset and walks pass it over.

use super::{Add, Ctx, Lruvec};
use crate::folio::Word;
use crate::types::Pfn;

/// Folios a batch holds at most.
pub const PAGEVEC_MAX: usize = 31;

/// One CPU's batches.
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
    /// Gathers a new folio; all go on the lists when the batch is full or the folio is large.
    pub fn add(&mut self, v: &Lruvec, cx: &Ctx, pfn: Pfn) {
        self.add[self.adds] = pfn;
        self.adds += 1;
        let full = (cx.tun.add_batch as usize).clamp(1, PAGEVEC_MAX);
        if self.adds >= full || cx.folios.word(pfn).order() > 0 {
            self.drain_adds(v, cx);
        }
    }

    /// Gathers a folio that is to be moved among the young.
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

    /// Whether `pfn` is still waiting to be added.
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
            v.activate_locked(cx, &mut lists, pfn);
        }
        self.activates = 0;
    }

    /// Puts everything gathered on the lists.
    pub fn drain(&mut self, v: &Lruvec, cx: &Ctx) {
        self.drain_adds(v, cx);
        self.drain_activates(v, cx);
    }
}
