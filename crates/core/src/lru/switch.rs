//! Switches a lruvec from one LRU to the other while it is in use.
//!
//! Folios migrate in slices of 4096 per hold of the lru lock. From the first slice on, new folios
//! go to the new lists. Removal looks at the folio's word, which says which list it is on.

use std::sync::atomic::Ordering::Relaxed;

use super::scan::MAX_LRU_BATCH;
use super::{Add, Ctx, KIND_CLASSIC, KIND_GEN, Lists, Lruvec};
use crate::folio::{FRESH, TRIED, Word};
use crate::tunables::LruKind;

impl Lruvec {
    /// Whether a switch is in progress, between two slices.
    #[must_use]
    pub fn is_switching(&self) -> bool {
        self.switching.load(Relaxed)
    }

    /// Begins a switch to `kind`. Returns false if `kind` is in use already, or a switch is in
    /// progress.
    pub fn begin_switch(&self, kind: LruKind) -> bool {
        let _lists = self.lock();
        if self.kind() == kind || self.switching.swap(true, Relaxed) {
            return false;
        }
        let value = match kind {
            LruKind::Gen => KIND_GEN,
            LruKind::Classic => KIND_CLASSIC,
        };
        self.kind.store(value, Relaxed);
        true
    }

    /// Migrates one slice. Returns true when no folio is left to migrate.
    pub fn switch_slice(&self, cx: &Ctx) -> bool {
        let mut lists = self.lock();
        let done = match self.kind() {
            LruKind::Gen => self.fill(cx, &mut lists),
            LruKind::Classic => self.drain(cx, &mut lists),
        };
        if done {
            self.switching.store(false, Relaxed);
        }
        done
    }

    /// Switches to `kind` completely, slice by slice.
    pub fn switch(&self, cx: &Ctx, kind: LruKind) -> bool {
        if !self.begin_switch(kind) {
            return false;
        }
        while !self.switch_slice(cx) {}
        true
    }

    /// Moves folios from the classic lists to the generations: active folios to the young, inactive
    /// ones by type.
    fn fill(&self, cx: &Ctx, lists: &mut Lists) -> bool {
        let mut left = MAX_LRU_BATCH;
        for i in 0..4 {
            while let Some(pfn) = lists.classic[i].tail() {
                if left == 0 {
                    return false;
                }
                left -= 1;
                self.remove_locked(cx, lists, pfn, true);
                self.add_locked(cx, lists, pfn, Add::Normal);
            }
        }
        true
    }

    /// Moves folios from the generations to the classic lists. The two youngest generations become
    /// active.
    fn drain(&self, cx: &Ctx, lists: &mut Lists) -> bool {
        let mut left = MAX_LRU_BATCH;
        let max = self.r#gen.max_seq();
        // The oldest folios move first, so that the order among inactive folios survives.
        let slots = [TRIED, FRESH].into_iter().chain((max - 3..=max).map(|seq| (seq % 4) as usize));
        for slot in slots {
            for ty in 0..2 {
                for zone in 0..super::ZONES {
                    while let Some(pfn) = lists.r#gen[slot][ty][zone].tail() {
                        if left == 0 {
                            return false;
                        }
                        left -= 1;
                        let w = cx.folios.word(pfn);
                        let young = w.slot().is_some_and(|s| self.r#gen.is_active(s));
                        self.remove_locked(cx, lists, pfn, false);
                        cx.folios.update(pfn, |w| {
                            let w = w.without_refs();
                            if young { w.with(Word::ACTIVE) } else { w }
                        });
                        self.add_locked(cx, lists, pfn, Add::Normal);
                    }
                }
            }
        }
        true
    }
}
