//! Reverse map: finds the table entries that map a folio.
//!
//! The folio's record has the first mapping. The further mappings of a folio mapped more than once
//! (`SHARED`) are in a side table. Most folios have one mapping, and finding it takes no lock of
//! its own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::{Pte, Space, Spaces};
use crate::folio::{Folios, Word};
use crate::types::{MmId, Pfn, Vpn};

/// The further mappings of shared folios.
#[derive(Debug, Default)]
pub struct Mappings {
    extra: Mutex<HashMap<Pfn, Vec<(MmId, Vpn)>>>,
}

/// The state of a folio's entries.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct References {
    /// Number of entries found accessed (and cleared).
    pub young: u32,
    /// Whether a locked area maps the folio.
    pub locked: bool,
    /// Whether an executable area maps the folio.
    pub exec: bool,
    /// Whether the mappings could not be examined now.
    pub busy: bool,
}

impl Mappings {
    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Pfn, Vec<(MmId, Vpn)>>> {
        self.extra.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a mapping beside the first.
    pub fn add(&self, folios: &Folios, pfn: Pfn, mm: MmId, vpn: Vpn) {
        self.lock().entry(pfn).or_default().push((mm, vpn));
        folios.set(pfn, Word::SHARED);
    }

    /// Forgets every mapping beside the first.
    pub fn forget(&self, folios: &Folios, pfn: Pfn) {
        if folios.word(pfn).has(Word::SHARED) {
            self.lock().remove(&pfn);
            folios.clear(pfn, Word::SHARED);
        }
    }

    /// Returns the mappings beside the first.
    #[must_use]
    pub fn of(&self, pfn: Pfn) -> Vec<(MmId, Vpn)> {
        self.lock().get(&pfn).cloned().unwrap_or_default()
    }
}

impl Spaces {
    /// Adds a mapping of `pfn` beside its first.
    pub fn share(&self, folios: &Folios, pfn: Pfn, mm: MmId, vpn: Vpn) {
        self.mappings.add(folios, pfn, mm, vpn);
    }

    /// Calls `f` with each space and first page that map the folio.
    pub(crate) fn each_mapping(
        &self,
        folios: &Folios,
        pfn: Pfn,
        list: &[Arc<Space>],
        mut f: impl FnMut(&Arc<Space>, Vpn),
    ) {
        let (mm, vpn) = folios.owner(pfn);
        if let Some(space) = list.get(mm.0 as usize) {
            f(space, vpn);
        }
        if folios.word(pfn).has(Word::SHARED) {
            for (mm, vpn) in self.mappings.of(pfn) {
                if let Some(space) = list.get(mm.0 as usize) {
                    f(space, vpn);
                }
            }
        }
    }

    /// Removes every entry of the folio, leaving `shadow` in each. Returns true if any entry was
    /// dirty.
    ///
    /// Entries of a large folio beyond its first page get the shadow too.
    pub fn unmap(&self, folios: &Folios, pfn: Pfn, shadow: u64) -> bool {
        let list = self.read();
        let pages = folios.word(pfn).pages();
        let mut dirty = false;
        self.each_mapping(folios, pfn, &list, |space, vpn| {
            for i in 0..pages {
                let Some(place) = space.tree().find(Vpn(vpn.0 + i)) else { continue };
                let old = place.get();
                if old.present() && old.pfn().0 == pfn.0 + i as u32 {
                    let last = place.table.swap(place.index, Pte::of_shadow(shadow));
                    dirty |= last.all(Pte::DIRTY);
                }
            }
        });
        drop(list);
        self.mappings.forget(folios, pfn);
        folios.clear(pfn, Word::MAPPED);
        dirty
    }

    /// Clears the accessed bit of every entry of the folio.
    pub(crate) fn forget_touches(&self, folios: &Folios, pfn: Pfn, list: &[Arc<Space>]) {
        let pages = folios.word(pfn).pages();
        self.each_mapping(folios, pfn, list, |space, vpn| {
            for i in 0..pages {
                let place = space.tree().find(Vpn(vpn.0 + i));
                if let Some(place) = place.filter(|place| place.get().all(Pte::ACCESSED)) {
                    place.table.clear(place.index, Pte::ACCESSED);
                }
            }
        });
    }

    /// Maps `pages` entries from `vpn` to frames from `pfn`, with `bits`.
    pub fn map(&self, space: &Space, vpn: Vpn, pfn: Pfn, pages: u64, bits: u64) {
        for i in 0..pages {
            let place = space.tree().place(Vpn(vpn.0 + i));
            place.table.set(place.index, Pte::of_frame(Pfn(pfn.0 + i as u32), bits));
            if bits & Pte::ACCESSED != 0 {
                place.touch(place.get(), Pte::ACCESSED);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folio::{LruType, MemcgId};

    #[test]
    fn unmapping_a_shared_folio_reaches_every_entry() {
        let (folios, spaces) = (Folios::new(8), Spaces::new());
        let (a, b) = (spaces.create(MemcgId(1)), spaces.create(MemcgId(1)));
        let word = Word::new(LruType::Anon, 1, 0);
        folios.init(Pfn(2), word, MemcgId(1), a.id(), Vpn(10));
        spaces.map(&a, Vpn(10), Pfn(2), 2, Pte::MAPPED);
        spaces.map(&b, Vpn(700), Pfn(2), 2, Pte::MAPPED | Pte::DIRTY);
        spaces.share(&folios, Pfn(2), b.id(), Vpn(700));
        assert!(spaces.unmap(&folios, Pfn(2), 99), "one mapping was dirty");
        for (space, vpn) in [(&a, 10), (&a, 11), (&b, 700), (&b, 701)] {
            assert_eq!(space.tree().find(Vpn(vpn)).unwrap().get().shadow(), Some(99));
        }
        assert!(!folios.word(Pfn(2)).has(Word::SHARED));
    }
}
