//! The engine for a driver that handles one event at a time: an access that finds its page missing,
//! and a page that leaves.
//!
//! * PAGING-1: each step keeps the budget's counts, the page table and the LRU together. A driver
//!   cannot take one of them without the others.
//! * PAGING-2: the pages of [`Engine::work`] count as looked at when it is called again, and those
//!   that left as progress.

use super::{Did, Do, Engine, Seen};
use crate::reclaim::WakeRequests;
use crate::resident::{Arrival, Charge, Entry, Space};
use crate::slots::NoSlot;
use crate::types::{Pfn, SlotId, Vpn};

/// State of a page at an access, and the driver's part in it.
#[derive(Debug)]
pub enum Fault {
    /// The page is in memory.
    Present(Pfn),
    /// The page was on standby, and is resident again. The driver maps it.
    Reactivated {
        /// Frame of the page.
        pfn: Pfn,
        /// Slot of the driver's pool in which the page lies.
        pool: u32,
    },
    /// The page is in the store. The driver loads it from the slot, and then calls
    /// [`Engine::complete`].
    Load(SlotId, Charge),
    /// The page has no content. The driver fills it, and then calls [`Engine::complete`].
    Fresh(Charge),
}

/// Work of kswapd on the pages of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Work {
    /// Unmap each page and call [`Engine::stand_by`].
    ToStandby,
    /// Store each page in the slot of [`Engine::slot_for`] and call [`Engine::leave`].
    Store,
    /// No page that was looked at can leave for now.
    OutOfMemory,
    /// Only the working set of the last `gen.min_ttl_ms` is left to reclaim.
    Thrashing,
}

impl Engine {
    /// Looks an accessed page up, and notes the access. A missing page is charged to the budget,
    /// whether or not there is room. [`Engine::work`] then makes room.
    pub fn fault(&mut self, space: &mut Space, vpn: Vpn) -> Fault {
        match space.get(vpn) {
            Entry::Resident(pfn) => {
                space.touch(vpn);
                Fault::Present(pfn)
            }
            Entry::Standby(pfn) => {
                Fault::Reactivated { pfn, pool: self.set.reactivate(space, pfn) }
            }
            Entry::Stored { slot, .. } => Fault::Load(slot, self.set.zone.charge(1)),
            Entry::None => Fault::Fresh(self.set.zone.charge(1)),
        }
    }

    /// Records that a missing page is in memory now, with its access. A loaded page keeps its
    /// stored copy, which is valid until the page is written ([`Resident::set_copy`]).
    ///
    /// [`Resident::set_copy`]: crate::Resident::set_copy
    pub fn complete(&mut self, space: &mut Space, vpn: Vpn, charge: Charge) -> Pfn {
        let (how, copy) = match space.get(vpn) {
            Entry::Stored { slot, .. } => (Arrival::Loaded, Some(slot)),
            _ => (Arrival::Fresh, None),
        };
        self.set.zone.place(charge);
        let pfn = self.set.map(space, vpn, how, copy);
        space.touch(vpn);
        pfn
    }

    /// Gives back the charge of a page that does not come.
    pub fn cancel(&mut self, charge: Charge) {
        self.set.zone.give_back(charge);
    }

    /// Returns kswapd's next work, with its pages in `pages`; None if there is none. Also ends the
    /// work before (PAGING-2), and requests reclaim if memory is low.
    pub fn work(&mut self, wake_requests: &WakeRequests, pages: &mut Vec<Pfn>) -> Option<Work> {
        pages.clear();
        if self.set.zone.is_low() {
            self.request_wake(wake_requests);
        }
        loop {
            if let Some(did) = self.under_way.take() {
                self.did(did);
            }
            let work = match self.next(wake_requests, Seen::default()) {
                Do::ToStandby(max) => {
                    self.isolate(max, pages);
                    Work::ToStandby
                }
                Do::Store(max) => {
                    self.oldest_standby(max, pages);
                    Work::Store
                }
                Do::Drop(_) => {
                    self.under_way = Some(Did::default());
                    continue;
                }
                Do::Again => continue,
                Do::Nap | Do::Sleep => return None,
                Do::OutOfMemory => return Some(Work::OutOfMemory),
                Do::Thrashing => return Some(Work::Thrashing),
            };
            let scanned = pages.len() as u64;
            self.under_way = Some(Did { scanned, ..Did::default() });
            return Some(work);
        }
    }

    /// Records that a page of [`Work::ToStandby`] is unmapped, and in the driver's pool slot
    /// `pool`.
    pub fn stand_by(&mut self, space: &mut Space, pfn: Pfn, pool: u32) {
        self.set.deactivate(space, pfn, pool);
        self.count_one(0);
    }

    /// Returns the slot for a page that is to be stored: that of its stored copy, or a new one.
    ///
    /// # Errors
    /// No slot is free.
    pub fn slot_for(&mut self, pfn: Pfn) -> Result<SlotId, NoSlot> {
        self.set.frame(pfn).slot().map_or_else(|| self.set.take_slot(), Ok)
    }

    /// Records that a page of [`Work::Store`] is in the store and no longer in memory. Returns its
    /// pool slot.
    pub fn leave(&mut self, space: &mut Space, pfn: Pfn, slot: SlotId) -> u32 {
        let pool = self.set.evict(space, pfn, slot);
        self.set.zone.remove_resident(1);
        self.count_one(1);
        pool
    }

    /// Keeps a page of the present work in memory. The engine offers it again later.
    pub fn keep(&mut self, pfn: Pfn) {
        self.set.put_back(pfn);
    }

    fn count_one(&mut self, progress: u64) {
        if let Some(did) = &mut self.under_way {
            did.pages += 1;
            did.progress += progress;
        }
    }
}
