//! What a page-table entry says of a page.

use crate::lru::ShortShadow;
use crate::space::Pte;
use crate::types::{Pfn, SlotId};

/// What is known of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Entry {
    /// Never seen, or forgotten: reads as zeros unless the kernel holds a page.
    None,
    /// In memory, visible to the program.
    Resident(Pfn),
    /// In memory, out of sight.
    Cool(Pfn),
    /// In the store only.
    Stored {
        /// Where.
        slot: SlotId,
        /// When it left, by the clock of the LRU.
        shadow: ShortShadow,
        /// It is being brought back.
        loading: bool,
    },
}

// What an entry remembers of a stored page: the slot, when it left, whether it is on its way back.
const SHADOW_SHIFT: u32 = 32;
const LOADING: u64 = 1 << (SHADOW_SHIFT + ShortShadow::BITS);
/// Always set: the entry of the first slot is not empty either.
const STORED: u64 = LOADING << 1;

const _: () = assert!(STORED <= 1 << 62, "as much as an entry can remember");

impl Entry {
    /// As it stands in a page table: a resident page is present and mapped, a cool one present and not mapped.
    pub(super) fn pack(self) -> Pte {
        match self {
            Self::None => Pte(0),
            Self::Resident(pfn) => Pte::of_frame(pfn, Pte::MAPPED),
            Self::Cool(pfn) => Pte::of_frame(pfn, 0),
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
                Self::Cool(pte.pfn())
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
            Entry::Cool(Pfn(0)),
            Entry::Stored { slot: SlotId(7), shadow: ShortShadow(0), loading: false },
            Entry::Stored { slot: SlotId(u32::MAX), shadow: last, loading: true },
            Entry::Stored { slot: SlotId(0), shadow: last, loading: false },
        ] {
            assert_eq!(Entry::unpack(entry.pack()), entry);
        }
    }
}
