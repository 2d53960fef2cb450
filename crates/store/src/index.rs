//! The table and the arena under one lock: every slot's location and the bytes of the pages in RAM.
//!
//! Each function is short: it compresses nothing, does no I/O, maps nothing and does not wait. The
//! caller does the rest outside the lock: it frees pages of files and drops spans.
//!
//! * INDEX-1: an object of the arena is allocated if and only if an entry of the table names it.
//!   That is the entry of the slot that owns the object.

use crate::arena::{Arena, NoObject, Object};
use crate::table::{FarLocation, Location, Table};
use ebb_mm::types::SlotId;

/// Number of objects that one step of compaction moves: about a microsecond of copying.
const MOVES_MAX: usize = 4;

/// The table, the arena, and counts of their pages.
pub(crate) struct Index {
    pub table: Table,
    pub arena: Arena,
    pub same_pages: u64,
    /// Largest value of `same_pages`.
    pub same_peak: u64,
    pub ram_pages: u64,
    /// Largest value of `ram_pages`, and the bytes that those pages occupied then.
    pub ram_peak: (u64, u64),
    /// Bytes of the objects in the arena, without the waste of allocation.
    pub ram_stored: u64,
    /// Number of pages demoted from RAM to a file.
    pub demoted: u64,
    pub ram_writes: u64,
    /// Numbers of reads: of the newest pages in RAM, and of pages that left RAM recently.
    pub edge_reads: (u64, u64),
}

impl Index {
    pub(crate) fn new(ram_limit: u64) -> Self {
        Self {
            table: Table::new(),
            arena: Arena::new(ram_limit),
            same_pages: 0,
            same_peak: 0,
            ram_pages: 0,
            ram_peak: (0, 0),
            ram_stored: 0,
            demoted: 0,
            ram_writes: 0,
            edge_reads: (0, 0),
        }
    }

    /// Counts the read of a page that is near a border of the RAM tier ([`Table::beyond_edge`]).
    pub(crate) fn note_read(&mut self, slot: SlotId) {
        match self.table.beyond_edge(slot) {
            Some(false) => self.edge_reads.0 += 1,
            Some(true) => self.edge_reads.1 += 1,
            None => {}
        }
    }

    /// Stores bytes in the arena under a slot. Returns the old location if it is in a file, for the
    /// caller to free.
    pub(crate) fn set_ram(
        &mut self,
        slot: SlotId,
        hash: u64,
        bytes: &[u8],
    ) -> Result<Option<FarLocation>, NoObject> {
        let object = self.arena.allocate(bytes.len(), slot.0)?;
        self.arena.bytes_mut(object, bytes.len()).copy_from_slice(bytes);
        self.ram_writes += 1;
        Ok(self.set(slot, hash, Location::Ram { object, length: bytes.len() as u16 }))
    }

    /// Records a location. Returns the old location if it is in a file, for the caller to free.
    pub(crate) fn set(&mut self, slot: SlotId, hash: u64, place: Location) -> Option<FarLocation> {
        match place {
            Location::Same(_) => {
                self.same_pages += 1;
                self.same_peak = self.same_peak.max(self.same_pages);
            }
            Location::Ram { length, .. } => {
                self.ram_pages += 1;
                if self.ram_pages > self.ram_peak.0 {
                    self.ram_peak = (self.ram_pages, self.arena.occupied());
                }
                self.ram_stored += u64::from(length);
            }
            Location::Far(_) => {}
        }
        let before = self.table.set(slot, hash, place);
        before.and_then(|place| self.vacate(place))
    }

    /// Forgets a slot. Returns the old location if it is in a file, for the caller to free.
    pub(crate) fn clear(&mut self, slot: SlotId) -> Option<FarLocation> {
        let before = self.table.clear(slot);
        before.and_then(|place| self.vacate(place))
    }

    fn vacate(&mut self, place: Location) -> Option<FarLocation> {
        match place {
            Location::Same(_) => self.same_pages -= 1,
            Location::Ram { object, length } => {
                self.arena.free(object);
                self.ram_pages -= 1;
                self.ram_stored -= u64::from(length);
            }
            Location::Far(place) => return Some(place),
        }
        None
    }

    /// Does one step of compaction. Returns false when there is nothing worth moving.
    pub(crate) fn compact(&mut self, slack: bool) -> bool {
        let table = &mut self.table;
        let moved = |owner: u32, to: Object| table.moved(SlotId(owner), to);
        self.arena.compact(slack, MOVES_MAX, moved)
    }
}
