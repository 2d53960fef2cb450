//! The pageblock map: for every pageblock, which zone it belongs to and which migratetype it
//! carries.
//!
//! One 16-bit word per pageblock answers both questions that every free asks, and stays in the
//! nearest cache (8 KiB for 8 GiB). Words change under the lock of the zone (or shard) that owns
//! the block; they are read without it, so a reader may see a type that is about to change. Whoever
//! puts frames back on free lists reads the type again under the lock.

use super::kinds::{Migratetype, PAGEBLOCK_ORDER};
use super::sync::{AtomicU16, Relaxed};
use crate::types::Pfn;

const TYPE_MASK: u16 = 0b0111;
const ISOLATED: u16 = 0b1000;
const ZONE_SHIFT: u16 = 4;
/// By the low four bits of a word: the list of a per-CPU set, or 3 for none. Two bits each.
const LISTS: u32 = 0b11_11_11_11_11_11_11_11_11_11_11_01_01_10_01_00;
/// Zones that fit in a word: the zone is stored plus 1, and 0 means none.
pub const ZONES_MAX: usize = (1 << (16 - ZONE_SHIFT)) - 1;

/// One pageblock's zone and type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockInfo(u16);

impl BlockInfo {
    /// The zone's index, or `None` where there is no memory.
    #[must_use]
    #[inline(always)]
    pub const fn zone(self) -> Option<usize> {
        let zone = self.0 >> ZONE_SHIFT;
        if zone == 0 { None } else { Some(zone as usize - 1) }
    }

    /// The type in force: `Isolate` while isolated.
    #[must_use]
    #[inline(always)]
    pub const fn migratetype(self) -> Migratetype {
        if self.0 & ISOLATED != 0 { Migratetype::Isolate } else { self.kept_type() }
    }

    /// All of it, for comparison with another block's.
    #[inline(always)]
    pub(super) const fn word(self) -> u16 {
        self.0
    }

    /// The zone's index, or one that no zone has.
    #[inline(always)]
    pub(super) const fn zone_or_beyond(self) -> usize {
        ((self.0 >> ZONE_SHIFT) as usize).wrapping_sub(1)
    }

    /// The list of a per-CPU set for single frames of this block; 3: none. The same as
    /// [`Migratetype::pcp_list`] of the type in force, without branches.
    #[inline(always)]
    pub(super) const fn list(self) -> usize {
        (LISTS >> ((self.0 & 0xf) * 2) & 3) as usize
    }

    /// The type that comes back when isolation ends.
    #[must_use]
    pub const fn kept_type(self) -> Migratetype {
        Migratetype::from_bits((self.0 & TYPE_MASK) as u8)
    }
}

/// The map, indexed by frame number.
#[derive(Debug)]
pub struct BlockMap {
    words: Box<[AtomicU16]>,
}

impl BlockMap {
    /// A map for frames `0..end`, with no zones.
    #[must_use]
    pub fn new(end: u32) -> Self {
        let words = end.div_ceil(1 << PAGEBLOCK_ORDER);
        Self { words: (0..words).map(|_| AtomicU16::new(0)).collect() }
    }

    /// Where the word of `pfn` is.
    #[inline(always)]
    pub(super) const fn index(pfn: Pfn) -> usize {
        (pfn.0 >> PAGEBLOCK_ORDER) as usize
    }

    /// All words.
    pub(super) fn words(&self) -> &[AtomicU16] {
        &self.words
    }

    /// The block of `pfn`.
    #[must_use]
    #[inline(always)]
    pub fn get(&self, pfn: Pfn) -> BlockInfo {
        match self.words.get(Self::index(pfn)) {
            Some(word) => BlockInfo(word.load(Relaxed)),
            None => BlockInfo(0),
        }
    }

    /// The type in force at `pfn`.
    #[must_use]
    #[inline(always)]
    pub fn migratetype(&self, pfn: u32) -> Migratetype {
        self.get(Pfn(pfn)).migratetype()
    }

    /// Gives the block of `pfn` to `zone`.
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

    /// Bytes of the map.
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
