//! Identity page: the page by which the pager tells to which process an address space belongs.
//!
//! The pager places the page in the address space (`processes/identify.rs`) and reads it in the
//! process. Rule IDENTITY-1 is in `lib.rs`.
//!
//! Lock order: no lock here. A fault thread that identifies a child by its fault holds `Mm::state`.

use crate::broken::{Rule, is_broken};
use crate::seam::Process;
use ebb_mm::types::{PAGE_SIZE, Vpn};

/// Page whose content no other address space has.
#[derive(Debug)]
pub struct IdentityPage {
    address: u64,
    page: Box<[u8; PAGE_SIZE]>,
}

impl IdentityPage {
    /// Describes the page with this content at `address`.
    pub fn new(address: u64, page: Box<[u8; PAGE_SIZE]>) -> Self {
        Self { address, page }
    }

    /// Whether `process` has this page at its address.
    pub fn is_seen_by(&self, process: &dyn Process) -> bool {
        if is_broken(Rule::Identity1) {
            return true;
        }
        // A read of an empty slot places the kernel's zero page there. Then the slot takes no
        // identity page of that process any more.
        let is_there = process.is_present(Vpn::of_address(self.address).0).unwrap_or(false);
        let mut seen = [[0; PAGE_SIZE]];
        is_there
            && matches!(process.read_pages(&[self.address], &mut seen), Ok(1))
            && seen[0] == *self.page
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::identify::show_identity;
    use crate::quiet::{Quiet, pager, with_pool};
    use crate::seam::Known;
    use ebb_sys::anon::AnonBuffer;
    use ebb_sys::uffd::PlaceError;
    use std::sync::atomic::Ordering;

    /// Shows that a look for another process's identity page leaves the slot of this process empty.
    #[test]
    fn a_look_for_an_identity_page_places_no_page() {
        let mut slot = AnonBuffer::new(PAGE_SIZE).expect("memory");
        let address = slot.words().as_ptr() as u64;
        let process = Known::open(std::process::id()).expect("this process");
        let identity = IdentityPage::new(address, Box::new([1; PAGE_SIZE]));
        let is_there = || process.is_present(Vpn::of_address(address).0).expect("its page map");
        assert!(!identity.is_seen_by(&process) && !is_there());
        slot.fill(1);
        assert!(identity.is_seen_by(&process) && is_there());
    }

    /// Shows that the identity page counts as one page, and takes one pool slot, until the agent
    /// has dropped it.
    #[test]
    fn an_identity_page_counts_until_its_pool_slot_is_dropped() {
        let (pager, mm) = (pager(), with_pool(Quiet::default()));
        let mut state = mm.lock();
        for turn in 1..=3 {
            let identity = show_identity(&*pager.host, &pager.budget, &mm, &mut state);
            assert!(identity.is_ok(), "turn {turn}");
            assert_eq!((state.pool.used(), state.pool.pending_discards()), (0, 1), "to be dropped");
            assert_eq!(mm.pages.known.load(Ordering::Relaxed), 1);
            assert_eq!(pager.resident().zone.resident(), 1);
            // As `commit_drop` does.
            let runs = state.pool.pending_discard_runs(64);
            assert_eq!(runs.len(), 1);
            runs.into_iter().for_each(|run| state.pool.finish_discard(run));
            mm.note_dropped(&mut pager.resident().zone, 1, 0);
            assert_eq!(
                (state.pool.pending_discards(), state.pool.undropped()),
                (0, 0),
                "free again"
            );
            assert_eq!(
                (mm.pages.known.load(Ordering::Relaxed), pager.resident().zone.resident()),
                (0, 0)
            );
        }
    }

    /// Shows that failed attempts to place an identity page do not use up the pool slots.
    #[test]
    fn an_identity_page_that_cannot_be_placed_gives_its_pool_slot_back() {
        let pager = pager();
        for error in [PlaceError::Changing, PlaceError::Gone, PlaceError::NoMemory] {
            let mm = with_pool(Quiet { fails: Some(error), ..Quiet::default() });
            let mut state = mm.lock();
            for _ in 0..200 {
                assert_eq!(
                    show_identity(&*pager.host, &pager.budget, &mm, &mut state).err(),
                    Some(error)
                );
            }
            assert_eq!((state.pool.used(), state.pool.pending_discards()), (0, 0), "{error:?}");
            assert_eq!(
                (mm.pages.known.load(Ordering::Relaxed), pager.resident().zone.resident()),
                (0, 0)
            );
        }
        // If the slot already has an unknown page, the agent drops that before the slot is reused.
        let mm = with_pool(Quiet { fails: Some(PlaceError::Exists), ..Quiet::default() });
        let mut state = mm.lock();
        assert!(show_identity(&*pager.host, &pager.budget, &mm, &mut state).is_err());
        assert_eq!((state.pool.used(), state.pool.pending_discards()), (0, 1));
    }
}
