//! Locations of the blocks of a database in its file, if none is ever overwritten.
//!
//! A write of a block goes to the part of the file that has been free for longest. The block's old
//! location becomes free. So a block to which a checkpoint may still refer is left alone
//! (WiredTiger's block manager, LMDB, ZFS). Therefore a written block is in memory only because it
//! was written.
//!
//! Invariants
//! * EXTENTS-1: no two blocks are at one location, and none is at a free one.
//! * EXTENTS-2: the number of free locations is constant.

use std::collections::VecDeque;

/// A file of blocks.
#[derive(Clone, Debug)]
pub struct Extents {
    /// Location of each block.
    place: Vec<u32>,
    /// Free locations in the order in which they became free.
    free: VecDeque<u32>,
}

impl Extents {
    /// Creates a file of so many blocks in their order, and `spare` free locations behind them.
    /// Without free locations blocks stay where they are.
    #[must_use]
    pub fn new(blocks: u64, spare: u64) -> Self {
        let (blocks, all) = (blocks as u32, (blocks + spare) as u32);
        Self { place: (0..blocks).collect(), free: (blocks..all).collect() }
    }

    /// Returns the location of a block.
    #[must_use]
    pub fn find(&self, block: u32) -> u32 {
        self.place[block as usize]
    }

    /// Writes a block. Returns its new location.
    pub fn write(&mut self, block: u32) -> u32 {
        let place = &mut self.place[block as usize];
        if let Some(new) = self.free.pop_front() {
            self.free.push_back(std::mem::replace(place, new));
        }
        *place
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn without_spare_locations_blocks_are_overwritten() {
        let mut file = Extents::new(4, 0);
        assert_eq!((file.write(2), file.find(2)), (2, 2));
    }

    #[test]
    fn a_location_is_reused_after_all_other_free_ones() {
        let mut file = Extents::new(2, 3);
        let places: Vec<u32> = [0, 0, 1, 0].map(|block| file.write(block)).into();
        assert_eq!(places, [2, 3, 4, 0]);
        assert_eq!((file.find(0), file.find(1)), (0, 4));
    }

    proptest! {
        #[test]
        fn no_location_is_used_twice(writes in prop::collection::vec(0u32..8, 0..200), spare in 0u64..6) {
            let mut file = Extents::new(8, spare);
            for block in writes {
                let at = file.write(block);
                prop_assert_eq!(at, file.find(block));
                let mut all: Vec<u32> = file.place.iter().chain(&file.free).copied().collect();
                all.sort_unstable();
                prop_assert_eq!(all, (0..8 + spare as u32).collect::<Vec<_>>());
            }
        }
    }
}
