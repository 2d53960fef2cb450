//! The content of a page-table entry about a page.

use crate::lru::ShortShadow;
use crate::space::Pte;
use crate::types::{Pfn, SlotId};

/// The state of a page in its page-table entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Never seen, or forgotten: reads as zeros unless the kernel holds a page.
    None,
    /// In memory and mapped in the program.
    Resident(Pfn),
    /// In memory, on standby: unmapped from the program.
    Standby(Pfn),
    /// In the store only.
    Stored {
        /// Slot in the store.
        slot: SlotId,
        /// Time of eviction, by the LRU's clock.
        shadow: ShortShadow,
        /// Whether the page is being loaded.
        loading: bool,
    },
}

// An entry of a stored page holds the slot, the time of eviction, and whether a load is in
// progress.
const SHADOW_SHIFT: u32 = 32;
const LOADING: u64 = 1 << (SHADOW_SHIFT + ShortShadow::BITS);
/// Always set for a stored page, so that the entry of slot 0 is not zero either.
const STORED: u64 = LOADING << 1;

const _: () = assert!(STORED <= 1 << 62, "as much as an entry can remember");

impl Entry {
    /// Packs the entry for a page table. A resident page is present and mapped; a standby page is
    /// present and not mapped.
    pub(super) fn pack(self) -> Pte {
        match self {
            Self::None => Pte(0),
            Self::Resident(pfn) => Pte::of_frame(pfn, Pte::MAPPED),
            Self::Standby(pfn) => Pte::of_frame(pfn, 0),
            Self::Stored { slot, shadow, loading } => {
                let loading = if loading { LOADING } else { 0 };
                let shadow = u64::from(shadow.0) << SHADOW_SHIFT;
                Pte::of_shadow(STORED | loading | shadow | u64::from(slot.0))
            }
        }
    }

    pub(super) fn unpack(pte: Pte) -> Self {
        if pte.present() {
            return if pte.all(Pte::MAPPED) {
                Self::Resident(pte.pfn())
            } else {
                Self::Standby(pte.pfn())
            };
        }
        match pte.shadow() {
            None => Self::None,
            Some(word) => Self::Stored {
                slot: SlotId(word as u32),
                shadow: ShortShadow(((word & (LOADING - 1)) >> SHADOW_SHIFT) as u32),
                loading: word & LOADING != 0,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_loses_nothing() {
        let last = ShortShadow((1 << ShortShadow::BITS) - 1);
        for entry in [
            Entry::None,
            Entry::Resident(Pfn(u32::MAX)),
            Entry::Standby(Pfn(0)),
            Entry::Stored { slot: SlotId(7), shadow: ShortShadow(0), loading: false },
            Entry::Stored { slot: SlotId(u32::MAX), shadow: last, loading: true },
            Entry::Stored { slot: SlotId(0), shadow: last, loading: false },
        ] {
            assert_eq!(Entry::unpack(entry.pack()), entry);
        }
    }
}
