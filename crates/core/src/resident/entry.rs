//! One page-table entry, packed into 8 bytes.

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
    /// In the store only; `loading` while it is being brought back.
    Stored { slot: SlotId, loading: bool },
}

const TAG_SHIFT: u32 = 32;
const RESIDENT: u64 = 1 << TAG_SHIFT;
const COOL: u64 = 2 << TAG_SHIFT;
const STORED: u64 = 3 << TAG_SHIFT;
const LOADING: u64 = 4 << TAG_SHIFT;

impl Entry {
    pub(super) fn pack(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Resident(pfn) => RESIDENT | u64::from(pfn.0),
            Self::Cool(pfn) => COOL | u64::from(pfn.0),
            Self::Stored { slot, loading: false } => STORED | u64::from(slot.0),
            Self::Stored { slot, loading: true } => LOADING | u64::from(slot.0),
        }
    }

    pub(super) fn unpack(word: u64) -> Self {
        let payload = word as u32;
        match word & !u64::from(u32::MAX) {
            RESIDENT => Self::Resident(Pfn(payload)),
            COOL => Self::Cool(Pfn(payload)),
            STORED => Self::Stored { slot: SlotId(payload), loading: false },
            LOADING => Self::Stored { slot: SlotId(payload), loading: true },
            _ => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packing_loses_nothing() {
        for entry in [
            Entry::None,
            Entry::Resident(Pfn(u32::MAX)),
            Entry::Cool(Pfn(0)),
            Entry::Stored { slot: SlotId(7), loading: false },
            Entry::Stored { slot: SlotId(u32::MAX), loading: true },
        ] {
            assert_eq!(Entry::unpack(entry.pack()), entry);
        }
    }
}
