//! Fault-around: a fault that only reads a mapped file also maps the pages around it that are in
//! memory already (`do_fault_around`, `fault_around_bytes`).
//!
//! The window is aligned. Pages that are still being read, or are marked to begin the next window,
//! are left out. On x86 the new entries have the accessed bit set. The kernel leaves them old only
//! where the processor sets the accessed bit at a price (`arch_wants_old_prefaulted_pte`). So
//! reclaim finds accessed pages that no thread has touched.

use std::sync::Arc;

use ebb_mm::folio::Word;
use ebb_mm::space::{Backing, Pte};
use ebb_mm::types::Vpn;

use super::mem::{Access, Mem};

impl Mem {
    /// Maps the pages around a page that a fault has just mapped. Returns the cost.
    pub(super) fn map_around(&mut self, now: u64, space: usize, page: u64, access: Access) -> u64 {
        let pages = self.tun.file.fault_around;
        let (end, region) = self.region(space, page);
        if access != Access::Read || pages <= 1 || region.backing != Backing::File {
            return 0;
        }
        let first = page / pages * pages;
        let window = first.max(end - region.pages)..(first + pages).min(end);
        let tree = Arc::clone(&self.list[space]);
        let mut cost = 0;
        for at in window.filter(|&at| at != page) {
            let Some(place) = tree.tree().find(Vpn(at)) else { continue };
            let pte = place.get();
            if !pte.present() || pte.all(Pte::MAPPED) {
                continue;
            }
            let pfn = pte.pfn();
            if self.out.ready_ns[pfn.0 as usize] > now || self.folios.word(pfn).has(Word::AHEAD) {
                continue;
            }
            self.folios.set(pfn, Word::MAPPED);
            place.touch(pte, Pte::MAPPED | Pte::ACCESSED);
            self.not_missed(space);
            self.spent.around += 1;
            cost += self.costs.around_ns;
        }
        self.spent.fault_ns += cost;
        cost
    }
}

#[cfg(test)]
mod tests {
    use super::super::mem::{Fault, Region};
    use super::super::testing::machine;
    use super::*;
    use crate::machine::ahead::Descriptors;

    /// Makes a mapped file of 100 pages of which some are in memory. Returns which of its pages are
    /// mapped after page 20 was touched.
    fn mapped_after_a_fault(pages: u64, access: Access) -> Vec<u64> {
        let mut mem = machine().mem;
        mem.tun.file.fault_around = pages;
        mem.read_ahead = 1;
        let region =
            |backing| Region { pages: 100, backing, recency: true, exec: false, processes: 1 };
        let space = mem.add_space(0, &[region(Backing::File)]);
        let mut descriptors = Descriptors::default();
        let mut touch = |mem: &mut Mem, page, access, now| {
            mem.fault(now, space, page, access, &mut descriptors)
        };
        for page in [0, 15, 16, 18, 24, 31, 32] {
            touch(&mut mem, page, Access::FdRead, 0);
        }
        // Page 24 begins a window, page 25 is still being read.
        let pfn = mem.list[space].tree().find(Vpn(24)).unwrap().get().pfn();
        mem.folios.set(pfn, Word::AHEAD);
        let now = 1_000_000;
        touch(&mut mem, 20, Access::FdRead, 0);
        touch(&mut mem, 25, Access::FdRead, now - 1);
        assert!(matches!(touch(&mut mem, 20, access, now), Fault::Done(_)));
        let mapped = |page: &u64| {
            let place = mem.list[space].tree().find(Vpn(*page));
            place.is_some_and(|p| p.get().all(Pte::MAPPED | Pte::ACCESSED))
        };
        (0..100).filter(mapped).collect()
    }

    #[test]
    fn a_read_fault_maps_the_cached_pages_around_it_as_accessed() {
        assert_eq!(mapped_after_a_fault(16, Access::Read), [16, 18, 20, 31]);
        assert_eq!(mapped_after_a_fault(8, Access::Read), [16, 18, 20]);
        assert_eq!(mapped_after_a_fault(1, Access::Read), [20]);
        assert_eq!(mapped_after_a_fault(16, Access::Write), [20], "only faults that read do it");
    }
}
