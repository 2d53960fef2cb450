//! Allocates the slots of a swap device in clusters.
//!
//! One cluster is open. Its slots are given out in ascending order. So pages that leave memory one
//! after another lie next to each other. When the open cluster is used up, the allocator opens the
//! cluster that became entirely free first. If there is none, it opens a cluster that was never
//! open. If all were open, it opens the cluster that became partly free first, and fills the holes
//! in ascending order.
//!
//! Invariants
//! * CLUSTERS-1: a cluster is open, full, in `free` with all slots free, or in `partial` with some
//!   slots free.
//! * CLUSTERS-2: `used` is the number of slots that are taken.
//! * CLUSTERS-3: no slot is given out twice without having been put back in between.

use std::collections::VecDeque;

use ebb_mm::types::SlotId;

/// Number of slots in a cluster: the kernel's `SWAPFILE_CLUSTER`.
pub const CLUSTER_SLOTS: u32 = 256;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Free,
    Open,
    Partial,
    Full,
}

#[derive(Debug)]
struct Cluster {
    taken: [u64; (CLUSTER_SLOTS / 64) as usize],
    count: u32,
    state: State,
}

impl Cluster {
    /// Returns the first free slot at or after `at`.
    fn hole(&self, at: u32, len: u32) -> Option<u32> {
        (at..len).find(|&i| self.taken[(i / 64) as usize] & (1 << (i % 64)) == 0)
    }
}

/// The slots of a device.
#[derive(Debug)]
pub struct Clusters {
    clusters: Vec<Cluster>,
    /// Emptied clusters. Clusters that were never opened are used after them.
    free: VecDeque<u32>,
    partial: VecDeque<u32>,
    open: Option<u32>,
    cursor: u32,
    capacity: u32,
    used: u32,
}

impl Clusters {
    /// Creates the slots of a device of size `capacity`. Memory for a cluster is allocated at its
    /// first use.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Self {
            clusters: Vec::new(),
            free: VecDeque::new(),
            partial: VecDeque::new(),
            open: None,
            cursor: 0,
            capacity,
            used: 0,
        }
    }

    /// Returns the number of slots taken.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.used
    }

    /// Returns the number of slots of the device.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the number of slots of `cluster`; the last cluster may have fewer.
    fn len(&self, cluster: u32) -> u32 {
        (self.capacity - cluster * CLUSTER_SLOTS).min(CLUSTER_SLOTS)
    }

    /// Takes a slot. Returns `None` if all are taken.
    pub fn take(&mut self) -> Option<SlotId> {
        loop {
            let open = match self.open {
                Some(open) => open,
                None => self.open_next()?,
            };
            let len = self.len(open);
            let cluster = &mut self.clusters[open as usize];
            if let Some(i) = cluster.hole(self.cursor, len) {
                cluster.taken[(i / 64) as usize] |= 1 << (i % 64);
                cluster.count += 1;
                self.cursor = i + 1;
                self.used += 1;
                return Some(SlotId(open * CLUSTER_SLOTS + i));
            }
            // Holes behind the cursor stay free until no better slot is left.
            if cluster.count == len {
                cluster.state = State::Full;
            } else {
                cluster.state = State::Partial;
                self.partial.push_back(open);
            }
            self.open = None;
        }
    }

    fn open_next(&mut self) -> Option<u32> {
        let fresh = self.clusters.len() as u32;
        let next = if let Some(next) = self.free.pop_front() {
            next
        } else if u64::from(fresh) * u64::from(CLUSTER_SLOTS) < u64::from(self.capacity) {
            let taken = [0; (CLUSTER_SLOTS / 64) as usize];
            self.clusters.push(Cluster { taken, count: 0, state: State::Open });
            fresh
        } else {
            self.partial.pop_front()?
        };
        self.clusters[next as usize].state = State::Open;
        self.open = Some(next);
        self.cursor = 0;
        Some(next)
    }

    /// Puts a slot back.
    ///
    /// # Panics
    /// If the slot is not taken.
    pub fn put(&mut self, slot: SlotId) {
        let (at, i) = (slot.0 / CLUSTER_SLOTS, slot.0 % CLUSTER_SLOTS);
        let cluster = &mut self.clusters[at as usize];
        let bit = 1 << (i % 64);
        assert!(cluster.taken[(i / 64) as usize] & bit != 0, "slot {} put back twice", slot.0);
        cluster.taken[(i / 64) as usize] &= !bit;
        cluster.count -= 1;
        self.used -= 1;
        match cluster.state {
            State::Partial if cluster.count == 0 => {
                cluster.state = State::Free;
                self.partial.retain(|&other| other != at);
                self.free.push_back(at);
            }
            State::Full if cluster.count == 0 => {
                cluster.state = State::Free;
                self.free.push_back(at);
            }
            State::Full => {
                cluster.state = State::Partial;
                self.partial.push_back(at);
            }
            State::Open | State::Partial => {}
            State::Free => unreachable!("CLUSTERS-1: a free cluster has no taken slot"),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slots_taken_together_are_consecutive_and_holes_are_filled_last() {
        let mut c = Clusters::new(3 * CLUSTER_SLOTS);
        let first: Vec<u32> = (0..CLUSTER_SLOTS).map(|_| c.take().unwrap().0).collect();
        assert_eq!(first, (0..CLUSTER_SLOTS).collect::<Vec<_>>());
        for i in (0..CLUSTER_SLOTS).step_by(2) {
            c.put(SlotId(i));
        }
        // Two more clusters of consecutive slots come before the first hole is filled.
        for i in 0..2 * CLUSTER_SLOTS {
            assert_eq!(c.take(), Some(SlotId(CLUSTER_SLOTS + i)));
        }
        assert_eq!((c.take(), c.take()), (Some(SlotId(0)), Some(SlotId(2))));
    }

    #[test]
    fn an_emptied_cluster_is_opened_before_a_hole_is_filled() {
        let mut c = Clusters::new(2 * CLUSTER_SLOTS);
        while c.take().is_some() {}
        c.put(SlotId(7));
        for i in CLUSTER_SLOTS..2 * CLUSTER_SLOTS {
            c.put(SlotId(i));
        }
        assert_eq!(c.take(), Some(SlotId(CLUSTER_SLOTS)));
    }

    #[test]
    fn the_last_cluster_may_be_short() {
        let mut c = Clusters::new(CLUSTER_SLOTS + 3);
        let all: BTreeSet<u32> = std::iter::from_fn(|| c.take().map(|s| s.0)).collect();
        assert_eq!(all.len() as u32, CLUSTER_SLOTS + 3);
        assert_eq!(c.used(), c.capacity());
        assert_eq!(Clusters::new(0).take(), None);
    }

    #[test]
    #[should_panic(expected = "put back twice")]
    fn a_slot_put_back_twice_is_caught() {
        let mut c = Clusters::new(10);
        let slot = c.take().unwrap();
        c.put(slot);
        c.put(slot);
    }

    proptest! {
        #[test]
        fn every_slot_is_given_to_one_at_a_time_and_none_is_lost(
            capacity in 1u32..1000,
            ops in prop::collection::vec((any::<bool>(), any::<u16>()), 1..3000),
        ) {
            let mut c = Clusters::new(capacity);
            let mut held: Vec<u32> = Vec::new();
            for (take, which) in ops {
                if take {
                    match c.take() {
                        Some(slot) => {
                            prop_assert!(slot.0 < capacity && !held.contains(&slot.0));
                            held.push(slot.0);
                        }
                        None => prop_assert_eq!(held.len() as u32, capacity),
                    }
                } else if !held.is_empty() {
                    let slot = held.swap_remove(usize::from(which) % held.len());
                    c.put(SlotId(slot));
                }
                prop_assert_eq!(c.used() as usize, held.len());
            }
        }
    }
}
