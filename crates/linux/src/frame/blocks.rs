//! The pageblock map: for every pageblock, the zone it belongs to and its migratetype.
//!
//! One 16-bit word per pageblock answers both questions of every free, and stays in the nearest
//! cache (8 KiB for 8 GiB). A word changes under the lock of the zone (or shard) that owns the
//! block. Readers take no lock, so a reader may see a type that is about to change. Code that puts
//! frames back on free lists reads the type again under the lock.

use super::kinds::{Migratetype, PAGEBLOCK_ORDER};
use super::sync::{AtomicU16, Relaxed};
use ebb_mm::types::Pfn;

const TYPE_MASK: u16 = 0b0111;
const ISOLATED: u16 = 0b1000;
const ZONE_SHIFT: u16 = 4;
/// For each value of the low four bits of a word, two bits: the list of a per-CPU set, or 3 for
/// none.
const LISTS: u32 = 0b11_11_11_11_11_11_11_11_11_11_11_01_01_10_01_00;
/// Number of zones that fit in a word. A word holds the zone plus 1, and 0 means no zone.
pub const ZONES_MAX: usize = (1 << (16 - ZONE_SHIFT)) - 1;

/// The zone and type of one pageblock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockInfo(u16);

impl BlockInfo {
    /// Returns the zone's index, or `None` where there is no memory.
    #[must_use]
    #[inline(always)]
    pub const fn zone(self) -> Option<usize> {
        let zone = self.0 >> ZONE_SHIFT;
        if zone == 0 { None } else { Some(zone as usize - 1) }
    }

    /// Returns the type in force, which is `Isolate` while the block is isolated.
    #[must_use]
    #[inline(always)]
    pub const fn migratetype(self) -> Migratetype {
        if self.0 & ISOLATED != 0 { Migratetype::Isolate } else { self.kept_type() }
    }

    /// Returns the whole word, for comparison with another block's word.
    #[inline(always)]
    pub(super) const fn word(self) -> u16 {
        self.0
    }

    /// Returns the zone's index, or an index that no zone has.
    #[inline(always)]
    pub(super) const fn zone_or_beyond(self) -> usize {
        ((self.0 >> ZONE_SHIFT) as usize).wrapping_sub(1)
    }

    /// Returns the list of a per-CPU set for single frames of this block, or 3 for none. Gives the
    /// result of [`Migratetype::pcp_list`] for the type in force, without branches.
    #[inline(always)]
    pub(super) const fn list(self) -> usize {
        (LISTS >> ((self.0 & 0xf) * 2) & 3) as usize
    }

    /// Returns the type that the block has again when isolation ends.
    #[must_use]
    pub const fn kept_type(self) -> Migratetype {
        Migratetype::from_bits((self.0 & TYPE_MASK) as u8)
    }
}

/// The pageblock map, indexed by frame number.
#[derive(Debug)]
pub struct BlockMap {
    words: Box<[AtomicU16]>,
}

impl BlockMap {
    /// Creates a map for frames `0..end`, without zones.
    #[must_use]
    pub fn new(end: u32) -> Self {
        let words = end.div_ceil(1 << PAGEBLOCK_ORDER);
        Self { words: (0..words).map(|_| AtomicU16::new(0)).collect() }
    }

    /// Returns the index of the word of `pfn`.
    #[inline(always)]
    pub(super) const fn index(pfn: Pfn) -> usize {
        (pfn.0 >> PAGEBLOCK_ORDER) as usize
    }

    /// Returns all words of the map.
    pub(super) fn words(&self) -> &[AtomicU16] {
        &self.words
    }

    /// Returns the zone and type of the block of `pfn`.
    #[must_use]
    #[inline(always)]
    pub fn get(&self, pfn: Pfn) -> BlockInfo {
        match self.words.get(Self::index(pfn)) {
            Some(word) => BlockInfo(word.load(Relaxed)),
            None => BlockInfo(0),
        }
    }

    /// Returns the type in force at `pfn`.
    #[must_use]
    #[inline(always)]
    pub fn migratetype(&self, pfn: u32) -> Migratetype {
        self.get(Pfn(pfn)).migratetype()
    }

    /// Assigns the block of `pfn` to `zone`.
    pub(super) fn assign(&self, pfn: u32, zone: usize, migratetype: Migratetype) {
        let word = ((zone + 1) as u16) << ZONE_SHIFT | migratetype as u16;
        self.words[(pfn >> PAGEBLOCK_ORDER) as usize].store(word, Relaxed);
    }

    /// Changes the type of the block of `pfn`. `Isolate` hides the type until another one is set.
    pub(super) fn set_type(&self, pfn: u32, migratetype: Migratetype) {
        let word = &self.words[(pfn >> PAGEBLOCK_ORDER) as usize];
        let old = word.load(Relaxed);
        let new = if migratetype == Migratetype::Isolate {
            old | ISOLATED
        } else {
            (old & !(TYPE_MASK | ISOLATED)) | migratetype as u16
        };
        word.store(new, Relaxed);
    }

    /// Returns the bytes that the map takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        std::mem::size_of_val(&*self.words)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_packed_lists_are_those_of_the_types() {
        let map = BlockMap::new(512);
        for t in Migratetype::ALL {
            map.assign(0, 7, Migratetype::Movable);
            map.set_type(0, t);
            let info = map.get(Pfn(0));
            assert_eq!(info.list(), t.pcp_list().unwrap_or(3), "{t:?}");
            assert_eq!(info.zone_or_beyond(), 7);
        }
    }

    #[test]
    fn isolation_hides_the_type_and_keeps_the_zone() {
        let map = BlockMap::new(2048);
        assert_eq!(map.get(Pfn(0)).zone(), None);
        map.assign(512, 3, Migratetype::Cma);
        map.set_type(600, Migratetype::Isolate);
        let info = map.get(Pfn(1023));
        assert_eq!((info.zone(), info.migratetype()), (Some(3), Migratetype::Isolate));
        assert_eq!(info.kept_type(), Migratetype::Cma);
        map.set_type(512, Migratetype::Movable);
        assert_eq!(map.migratetype(512), Migratetype::Movable);
        assert_eq!(map.get(Pfn(9999)).zone(), None);
        assert_eq!(map.get(Pfn(9999)).zone_or_beyond(), usize::MAX);
    }
}
