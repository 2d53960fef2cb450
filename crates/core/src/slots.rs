//! Swap slots: which are in use, and how many page-table entries share each.
//!
//! A slot names one stored page. A fork shares it when it copies entries that point at it. The
//! store may drop the page only when the last share is gone. Life of a slot:
//!
//! ```text
//!   free --allocate--> used --release (last share)--> dying --recycle--> free
//! ```
//! A slot is dying while the store drops its page. If the slot were allocated again before that,
//! the drop of the old page would delete the new page.
//!
//! Invariants:
//! * SLOTS-1: a slot is on the free list if and only if it is free.
//! * SLOTS-2: `used` is the number of slots that are used or dying.

use crate::types::SlotId;

/// Marks the end of the free list. No slot has this number.
const NONE: u32 = (1 << 31) - 1;

/// Error of [`SlotTable::allocate`]: every slot is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoSlot;

/// The table of swap slots.
#[derive(Debug)]
pub struct SlotTable {
    /// One entry of 4 bytes for each slot.
    entries: Vec<Packed>,
    free_head: u32,
    used: u32,
    capacity: u32,
}

#[derive(Clone, Copy, Debug)]
enum Entry {
    Free { next: u32 },
    Used { shares: u32 },
    Dying,
}

/// An entry as stored in the table: a share count, or, with the highest bit set, the number of the
/// next free slot. A share count of 0 marks a dying slot.
#[derive(Clone, Copy, Debug)]
struct Packed(u32);

impl Packed {
    const FREE: u32 = 1 << 31;

    const fn of(entry: Entry) -> Self {
        Self(match entry {
            Entry::Free { next } => next | Self::FREE,
            Entry::Used { shares } => shares,
            Entry::Dying => 0,
        })
    }

    const fn get(self) -> Entry {
        match self.0 {
            0 => Entry::Dying,
            word if word & Self::FREE != 0 => Entry::Free { next: word & !Self::FREE },
            shares => Entry::Used { shares },
        }
    }
}

impl SlotTable {
    /// Creates a table of at most `capacity` slots (2^31 - 1 in all). Memory for a slot is
    /// allocated at its first use.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Self { entries: Vec::new(), free_head: NONE, used: 0, capacity: capacity.min(NONE) }
    }

    /// Takes a slot with one share.
    pub fn allocate(&mut self) -> Result<SlotId, NoSlot> {
        let index = if self.free_head == NONE {
            let next = self.entries.len() as u32;
            if next >= self.capacity {
                return Err(NoSlot);
            }
            self.entries.push(Packed::of(Entry::Used { shares: 1 }));
            next
        } else {
            let index = self.free_head;
            let Entry::Free { next } = self.entry(index) else {
                unreachable!("SLOTS-1: slot {index} on the free list is in use")
            };
            self.free_head = next;
            self.put(index, Entry::Used { shares: 1 });
            index
        };
        self.used += 1;
        Ok(SlotId(index))
    }

    fn entry(&self, index: u32) -> Entry {
        self.entries[index as usize].get()
    }

    fn put(&mut self, index: u32, entry: Entry) {
        self.entries[index as usize] = Packed::of(entry);
    }

    /// Adds a share: one more page-table entry points at `slot`.
    pub fn share(&mut self, slot: SlotId) {
        match self.entry(slot.0) {
            Entry::Used { shares } => {
                // Each share is an entry of some page table, and no machine has memory for so many.
                assert!(shares + 1 < Packed::FREE, "slot {} shared too often", slot.0);
                self.put(slot.0, Entry::Used { shares: shares + 1 });
            }
            Entry::Free { .. } | Entry::Dying => panic!("slot {} shared while free", slot.0),
        }
    }

    /// Removes a share: one entry fewer points at `slot`. Returns true if it was the last one. Then
    /// the caller must drop the stored page and recycle the slot.
    #[must_use]
    pub fn release(&mut self, slot: SlotId) -> bool {
        match self.entry(slot.0) {
            Entry::Used { shares: 1 } => {
                self.put(slot.0, Entry::Dying);
                true
            }
            Entry::Used { shares } => {
                self.put(slot.0, Entry::Used { shares: shares - 1 });
                false
            }
            Entry::Free { .. } | Entry::Dying => panic!("slot {} released while free", slot.0),
        }
    }

    /// Makes a dying slot free, after the store has dropped its page.
    pub fn recycle(&mut self, slot: SlotId) {
        let is_dying = matches!(self.entry(slot.0), Entry::Dying);
        assert!(is_dying, "slot {} recycled while not dying", slot.0);
        self.put(slot.0, Entry::Free { next: self.free_head });
        self.free_head = slot.0;
        self.used -= 1;
    }

    /// Returns how many entries point at `slot`.
    #[must_use]
    pub fn shares(&self, slot: SlotId) -> u32 {
        match self.entry(slot.0) {
            Entry::Used { shares } => shares,
            Entry::Free { .. } | Entry::Dying => 0,
        }
    }

    /// Returns the number of slots in use or dying.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_slot_is_free_only_after_its_last_share() {
        let mut slots = SlotTable::new(2);
        let a = slots.allocate().unwrap();
        slots.share(a);
        assert!(!slots.release(a));
        assert_eq!(slots.used(), 1);
        assert!(slots.release(a));
        slots.recycle(a);
        assert_eq!((slots.used(), slots.shares(a)), (0, 0));
    }

    #[test]
    fn capacity_is_a_limit_and_freed_slots_come_back() {
        let mut slots = SlotTable::new(2);
        let a = slots.allocate().unwrap();
        let _b = slots.allocate().unwrap();
        assert_eq!(slots.allocate(), Err(NoSlot));
        assert!(slots.release(a));
        slots.recycle(a);
        assert_eq!(slots.allocate(), Ok(a));
    }

    /// Shows that a dying slot is not allocated. Otherwise the drop of the old page deletes the new
    /// page of the slot, and a forked program loses data.
    #[test]
    fn a_slot_is_not_handed_out_while_its_old_page_is_being_dropped() {
        let mut slots = SlotTable::new(1);
        let a = slots.allocate().unwrap();
        assert!(slots.release(a));
        assert_eq!(slots.allocate(), Err(NoSlot));
        slots.recycle(a);
        assert_eq!(slots.allocate(), Ok(a));
    }

    #[test]
    #[should_panic(expected = "released while free")]
    fn a_double_release_is_caught() {
        let mut slots = SlotTable::new(1);
        let a = slots.allocate().unwrap();
        let _ = slots.release(a);
        let _ = slots.release(a);
    }
}
