//! Swap slots: which are in use and by how many page-table entries each is shared.
//!
//! A slot names one stored page. It is shared when a fork copies entries that point at it; the page it
//! names may be dropped from the store only when the last share is gone. Life of a slot:
//!
//! ```text
//!   free --allocate--> used --release (last share)--> dying --recycle--> free
//! ```
//! Dying is the time in which the store drops the page. A slot handed out again before that would lose
//! its new page to the dropping of the old one.
//!
//! Invariants:
//! * I1: a slot is on the free list if and only if it is free.
//! * I2: `used` is the number of slots that are used or dying.

use crate::types::SlotId;

/// Marks the end of the free list.
const NONE: u32 = u32::MAX;

/// Every slot is taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoSlot;

/// The table of swap slots.
#[derive(Debug)]
pub struct SlotTable {
    /// Share count, or (while free) the next free slot.
    entries: Vec<Entry>,
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

impl SlotTable {
    /// A table of at most `capacity` slots; memory is taken as slots are first used.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Self { entries: Vec::new(), free_head: NONE, used: 0, capacity }
    }

    /// Takes a slot with one share.
    pub fn allocate(&mut self) -> Result<SlotId, NoSlot> {
        let index = if self.free_head == NONE {
            let next = self.entries.len() as u32;
            if next >= self.capacity {
                return Err(NoSlot);
            }
            self.entries.push(Entry::Used { shares: 1 });
            next
        } else {
            let index = self.free_head;
            let Entry::Free { next } = self.entries[index as usize] else {
                unreachable!("I1: slot {index} on the free list is in use")
            };
            self.free_head = next;
            self.entries[index as usize] = Entry::Used { shares: 1 };
            index
        };
        self.used += 1;
        Ok(SlotId(index))
    }

    /// One more page-table entry points at `slot`.
    pub fn share(&mut self, slot: SlotId) {
        match &mut self.entries[slot.0 as usize] {
            Entry::Used { shares } => *shares += 1,
            Entry::Free { .. } | Entry::Dying => panic!("slot {} shared while free", slot.0),
        }
    }

    /// One entry fewer points at `slot`. True if it was the last: the stored page is to be dropped,
    /// and then the slot recycled.
    #[must_use]
    pub fn release(&mut self, slot: SlotId) -> bool {
        let entry = &mut self.entries[slot.0 as usize];
        match entry {
            Entry::Used { shares: 1 } => {
                *entry = Entry::Dying;
                true
            }
            Entry::Used { shares } => {
                *shares -= 1;
                false
            }
            Entry::Free { .. } | Entry::Dying => panic!("slot {} released while free", slot.0),
        }
    }

    /// The store holds nothing under `slot` any more: it may be handed out again.
    pub fn recycle(&mut self, slot: SlotId) {
        let entry = &mut self.entries[slot.0 as usize];
        assert!(matches!(entry, Entry::Dying), "slot {} recycled while not dying", slot.0);
        *entry = Entry::Free { next: self.free_head };
        self.free_head = slot.0;
        self.used -= 1;
    }

    /// How many entries point at `slot`.
    #[must_use]
    pub fn shares(&self, slot: SlotId) -> u32 {
        match self.entries[slot.0 as usize] {
            Entry::Used { shares } => shares,
            Entry::Free { .. } | Entry::Dying => 0,
        }
    }

    /// Slots in use or dying.
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

    /// The store dropped the new page of a slot that was handed out between its release and the
    /// dropping of its old page: a forked program found its data gone.
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
