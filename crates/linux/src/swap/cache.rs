//! Records which anonymous pages have a stored copy, and the location of the copy.
//!
//! ```text
//!               begin_write            end_write(ok)             leave
//!   in memory ------------> being written --------> in memory ---------> outside
//!    no copy  <------------  end_write(failed)      and stored <-------- (a slot by address)
//!        ^                                            |  arrive(keep)       |
//!        +--------------------------------------------+                     |
//!        |        drop_copy: it was changed                                 |
//!        +------------------------------------------------------------------+
//!                             arrive(not kept)
//! ```
//! While a page is in memory, its frame's record holds its slot and the folio is `SWAPCACHE`. For a
//! page outside memory, `outside` has the slot by address. A page that a program changes loses its
//! copy at the first store through its entry. If the change came during a write, the page loses its
//! copy at the end of that write.
//!
//! Invariants
//! * SWAPCACHE-1: a slot is taken exactly while a `SWAPCACHE` folio or an address outside memory
//!   has it. `owners` names the page of each taken slot.
//! * SWAPCACHE-2: a page leaves memory only if its copy is good. That is, its write succeeded and
//!   the page has not changed since. A page whose write failed is dirty, in memory, and has no
//!   copy.
//! * SWAPCACHE-3: a write that has begun has room, because `reserved` counts the slots reserved and
//!   not yet taken.

use std::collections::HashMap;

use super::clusters::Clusters;
use ebb_mm::folio::Word;
use ebb_mm::lru::{Ctx, Lruvec};
use ebb_mm::observe::vmstat::Event;
use ebb_mm::space::Pte;
use ebb_mm::types::{MmId, Pfn, SlotId, Vpn};

/// Number of addresses in a leaf of `SwapCache::outside`.
const LEAF: usize = 512;
/// Marks an address without a slot.
const NONE: u32 = u32::MAX;

/// The stored copies of anonymous pages, on one device.
#[derive(Debug)]
pub struct SwapCache {
    clusters: Clusters,
    /// The owner of each slot's page, indexed by slot.
    owners: Vec<Option<(MmId, Vpn)>>,
    outside: HashMap<(MmId, u64), Box<[u32; LEAF]>>,
    reserved: u32,
}

impl SwapCache {
    /// Creates the cache of a device with `capacity` slots.
    #[must_use]
    pub fn new(capacity: u32) -> Self {
        Self {
            clusters: Clusters::new(capacity),
            owners: Vec::new(),
            outside: HashMap::new(),
            reserved: 0,
        }
    }

    /// Returns the number of slots taken or reserved.
    #[must_use]
    pub fn slots(&self) -> u64 {
        u64::from(self.clusters.used() + self.reserved)
    }

    /// Returns whether one more page can be stored.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.clusters.used() + self.reserved < self.clusters.capacity()
    }

    /// Returns whether more than half of the slots are in use. Pages in memory should then give up
    /// their slots.
    #[must_use]
    pub fn is_half_full(&self) -> bool {
        2 * self.slots() > u64::from(self.clusters.capacity())
    }

    /// Returns whether the stored copy of a page in memory is good.
    #[must_use]
    pub fn is_stored(&self, cx: &Ctx, pfn: Pfn) -> bool {
        let w = cx.folios.word(pfn);
        w.has(Word::SWAPCACHE) && !w.has(Word::DIRTY) && !entry_changed(cx, pfn)
    }

    /// Returns the slot of a page outside memory.
    #[must_use]
    pub fn slot_outside(&self, mm: MmId, vpn: Vpn) -> Option<SlotId> {
        let leaf = self.outside.get(&(mm, vpn.0 / LEAF as u64))?;
        let slot = leaf[vpn.0 as usize % LEAF];
        (slot != NONE).then_some(SlotId(slot))
    }

    /// Returns the owner of the page in `slot`.
    #[must_use]
    pub fn owner(&self, slot: SlotId) -> Option<(MmId, Vpn)> {
        self.owners.get(slot.0 as usize).copied().flatten()
    }

    /// Begins the write of a page: reserves a slot, if the page has none, and marks the folio.
    /// Clears the entry's bits, so the next store through it shows. Returns false if there is no
    /// room.
    pub fn begin_write(&mut self, cx: &Ctx, pfn: Pfn) -> bool {
        if cx.folios.store_slot(pfn).is_none() {
            if !self.has_room() {
                return false;
            }
            self.reserved += 1;
        }
        let (mm, vpn) = cx.folios.owner(pfn);
        if let Some(space) = cx.spaces.get(mm)
            && let Some(place) = space.tree().find(vpn)
        {
            place.table.clear(place.index, Pte::MAPPED | Pte::ACCESSED | Pte::DIRTY);
        }
        let mark = Word::SWAPCACHE.or(Word::WRITEBACK);
        cx.folios.update(pfn, |w| w.with(mark).without(Word::MAPPED.or(Word::DIRTY)));
        true
    }

    /// Stores a page at once, on a synchronous device. Returns false if there is no room.
    pub fn store(&mut self, cx: &Ctx, pfn: Pfn) -> bool {
        let begun = self.begin_write(cx, pfn);
        if begun {
            self.place(cx, pfn);
            cx.folios.clear(pfn, Word::WRITEBACK);
            cx.stat.add(Event::PswpOut, 1);
        }
        begun
    }

    /// Gives a marked page a slot, unless the page has the slot of an older copy. Callers ask in
    /// the order in which the pages are to lie on the device.
    ///
    /// # Panics
    /// If no slot was reserved.
    pub fn place(&mut self, cx: &Ctx, pfn: Pfn) -> SlotId {
        if let Some(slot) = cx.folios.store_slot(pfn) {
            return SlotId(slot);
        }
        let slot = self.clusters.take();
        let (Some(slot), Some(left)) = (slot, self.reserved.checked_sub(1)) else {
            panic!("SWAPCACHE-3: a slot is placed that was not promised")
        };
        self.reserved = left;
        let at = slot.0 as usize;
        if self.owners.len() <= at {
            self.owners.resize(at + 1, None);
        }
        self.owners[at] = Some(cx.folios.owner(pfn));
        cx.folios.set_store_slot(pfn, Some(slot.0));
        slot
    }

    /// Records the end of a page's write.
    pub fn end_write(&mut self, cx: &Ctx, v: &Lruvec, pfn: Pfn, ok: bool) {
        if ok {
            cx.stat.add(Event::PswpOut, 1);
            v.end_writeback(cx, pfn);
            if entry_changed(cx, pfn) {
                self.drop_copy(cx, pfn);
            }
            return;
        }
        self.drop_copy(cx, pfn);
        cx.folios.update(pfn, |w| w.with(Word::DIRTY).without(Word::RECLAIM));
        v.end_writeback(cx, pfn);
    }

    /// Drops the copy of a page in memory, because the page was changed or another page needs the
    /// slot.
    pub fn drop_copy(&mut self, cx: &Ctx, pfn: Pfn) {
        if !cx.folios.clear(pfn, Word::SWAPCACHE).has(Word::SWAPCACHE) {
            return;
        }
        if let Some(slot) = cx.folios.store_slot(pfn) {
            cx.folios.set_store_slot(pfn, None);
            self.put(SlotId(slot));
        } else {
            self.reserved -= 1;
        }
    }

    fn put(&mut self, slot: SlotId) {
        self.owners[slot.0 as usize] = None;
        self.clusters.put(slot);
    }

    /// Records that a stored page leaves memory: from now on `outside` has its slot. The caller
    /// clears the rest of the folio's record.
    ///
    /// # Panics
    /// If the page has no slot.
    pub fn leave(&mut self, cx: &Ctx, pfn: Pfn) {
        let Some(slot) = cx.folios.store_slot(pfn) else {
            panic!("SWAPCACHE-2: a page leaves without a copy")
        };
        cx.folios.set_store_slot(pfn, None);
        let (mm, vpn) = cx.folios.owner(pfn);
        let leaf = (mm, vpn.0 / LEAF as u64);
        let leaf = self.outside.entry(leaf).or_insert_with(|| Box::new([NONE; LEAF]));
        leaf[vpn.0 as usize % LEAF] = slot;
    }

    /// Records that a page from outside memory is now in a frame whose record names its owner. With
    /// `keep` the copy stays good until the page is changed. Returns true if the copy is kept.
    pub fn arrive(&mut self, cx: &Ctx, pfn: Pfn, keep: bool) -> bool {
        let (mm, vpn) = cx.folios.owner(pfn);
        let Some(slot) = self.take_outside(mm, vpn) else { return false };
        if keep {
            cx.folios.set(pfn, Word::SWAPCACHE);
            cx.folios.set_store_slot(pfn, Some(slot.0));
        } else {
            self.put(slot);
        }
        keep
    }

    fn take_outside(&mut self, mm: MmId, vpn: Vpn) -> Option<SlotId> {
        let leaf = self.outside.get_mut(&(mm, vpn.0 / LEAF as u64))?;
        let slot = std::mem::replace(&mut leaf[vpn.0 as usize % LEAF], NONE);
        (slot != NONE).then_some(SlotId(slot))
    }

    /// Frees the slot of a page outside memory that is no longer needed.
    pub fn forget(&mut self, mm: MmId, vpn: Vpn) {
        if let Some(slot) = self.take_outside(mm, vpn) {
            self.put(slot);
        }
    }

    /// Recounts everything. `inside` are the frames of all anonymous pages in memory.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self, cx: &Ctx, inside: impl Iterator<Item = Pfn>) {
        let mut seen = 0;
        let mut see = |slot: u32, owner: (MmId, Vpn)| {
            assert_eq!(self.owner(SlotId(slot)), Some(owner), "SWAPCACHE-1: slot {slot}");
            seen += 1;
        };
        let mut promised = 0;
        for pfn in inside {
            let w = cx.folios.word(pfn);
            match cx.folios.store_slot(pfn).filter(|_| w.has(Word::SWAPCACHE)) {
                Some(slot) => see(slot, cx.folios.owner(pfn)),
                None => promised += u32::from(w.has(Word::SWAPCACHE)),
            }
        }
        for (&(mm, at), leaf) in &self.outside {
            for (i, &slot) in leaf.iter().enumerate().filter(|&(_, &slot)| slot != NONE) {
                see(slot, (mm, Vpn(at * LEAF as u64 + i as u64)));
            }
        }
        assert_eq!(
            (seen, promised),
            (self.clusters.used(), self.reserved),
            "SWAPCACHE-1, SWAPCACHE-3"
        );
    }
}

/// Returns whether the program has stored to the page since its entry was last made clean.
fn entry_changed(cx: &Ctx, pfn: Pfn) -> bool {
    let (mm, vpn) = cx.folios.owner(pfn);
    cx.spaces.get(mm).is_some_and(|space| {
        space.tree().find(vpn).is_some_and(|place| {
            let pte = place.get();
            pte.present() && pte.pfn() == pfn && pte.all(Pte::DIRTY)
        })
    })
}
