//! Userfaultfd of an address space: the calls by which the pager changes it.
//!
//! * UFFD-1: the page at `probe` is registered before the pager serves the address space, and stays
//!   registered. A call on it fails only if the address space is gone.
//! * UFFD-2: no area beyond [`ADDRESS_END`] comes under management, because a frame has no room for
//!   its page numbers.
//!
//! Lock order: no lock here. `lib.rs` says which calls need `Mm::state`.

use crate::seam::AddressSpace;
use ebb_mm::folio::VPN_END;
use ebb_mm::types::PAGE_SIZE;
use ebb_sys::uffd::Mode;
use std::ops::Deref;

/// End of the addresses that a frame can hold.
const ADDRESS_END: u64 = VPN_END * PAGE_SIZE as u64;

/// Userfaultfd of an address space.
#[derive(Debug)]
pub struct Userfaultfd {
    space: Box<dyn AddressSpace>,
    /// Address that is always registered.
    probe: u64,
}

impl Deref for Userfaultfd {
    type Target = dyn AddressSpace;

    fn deref(&self) -> &Self::Target {
        &*self.space
    }
}

impl Userfaultfd {
    /// Creates the userfaultfd of an address space that has a registered page at `probe`.
    pub fn new(space: Box<dyn AddressSpace>, probe: u64) -> Self {
        Self { space, probe }
    }

    /// Whether the address space still exists (UFFD-1).
    pub fn is_alive(&self) -> bool {
        self.space.is_alive(self.probe)
    }

    /// Brings an area under management. Returns false if that fails (UFFD-2).
    pub fn manage(&self, start: u64, end: u64) -> bool {
        // No kernel hands out an address beyond `ADDRESS_END` yet.
        end <= ADDRESS_END && self.space.register(start, end - start, Mode::Managed).is_ok()
    }
}
