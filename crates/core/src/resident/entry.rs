//! One page-table entry, packed into 8 bytes.

use crate::lru::ShortShadow;
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
    /// In the store only; `loading` while it is being brought back. The shadow says when it left.
    Stored { slot: SlotId, shadow: ShortShadow, loading: bool },
}

const TAG_SHIFT: u32 = 32;
const TAG_MASK: u64 = 7 << TAG_SHIFT;
const RESIDENT: u64 = 1 << TAG_SHIFT;
const COOL: u64 = 2 << TAG_SHIFT;
const STORED: u64 = 3 << TAG_SHIFT;
const LOADING: u64 = 4 << TAG_SHIFT;
const SHADOW_SHIFT: u32 = 35;

const _: () = assert!(SHADOW_SHIFT + ShortShadow::BITS == u64::BITS);

impl Entry {
    pub(super) fn pack(self) -> u64 {
        match self {
            Self::None => 0,
            Self::Resident(pfn) => RESIDENT | u64::from(pfn.0),
            Self::Cool(pfn) => COOL | u64::from(pfn.0),
            Self::Stored { slot, shadow, loading } => {
                let tag = if loading { LOADING } else { STORED };
                tag | u64::from(slot.0) | (u64::from(shadow.0) << SHADOW_SHIFT)
            }
        }
    }

    pub(super) fn unpack(word: u64) -> Self {
        let payload = word as u32;
        let stored = |loading| Self::Stored {
            slot: SlotId(payload),
            shadow: ShortShadow((word >> SHADOW_SHIFT) as u32),
            loading,
        };
        match word & TAG_MASK {
            RESIDENT => Self::Resident(Pfn(payload)),
            COOL => Self::Cool(Pfn(payload)),
            STORED => stored(false),
            LOADING => stored(true),
            _ => Self::None,
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
