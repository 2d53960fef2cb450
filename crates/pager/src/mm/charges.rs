//! Charges: the page counts of the budget and of each address space, changed together and only
//! here.
//!
//! * CHARGES-1: `Pages::known` counts the pages that the table has in memory, mapped or standby. It
//!   also counts the pool slots that are pending discard.
//! * CHARGES-2: The budget counts a page that a fork group shares once. No event reports when
//!   sharing changes. So pages that a sharing address space lets go of stay counted until the next
//!   measurement.
//!
//! Lock order: a thread that counts holds `Budget::resident` (the zone is part of it).
//! `release_dropped` takes that lock under the state of the address space.

use crate::budget::Budget;
use crate::mm::{Mm, State};
use ebb_mm::resident::{Charge, Dropped, Zone};
use std::sync::atomic::Ordering::Relaxed;

impl Mm {
    /// Records that the pages of a charge are in memory now.
    pub fn place(&self, zone: &mut Zone, charge: Charge) {
        self.pages.known.fetch_add(charge.pages().cast_signed(), Relaxed);
        zone.place(charge);
    }

    /// Records uncounted pages that were found in memory.
    pub fn note_found(&self, zone: &mut Zone, pages: u64) {
        self.pages.known.fetch_add(pages.cast_signed(), Relaxed);
        zone.add_resident(pages);
    }

    /// Records pages that the budget counts already.
    pub fn note_known(&self, pages: u64) {
        self.pages.known.fetch_add(pages.cast_signed(), Relaxed);
    }

    /// Records pages that the program has removed from memory (CHARGES-2).
    pub fn note_gone(&self, zone: &mut Zone, pages: u64) {
        self.pages.known.fetch_sub(pages.cast_signed(), Relaxed);
        if !self.fork_group.is_related() {
            zone.remove_resident(pages);
        }
    }

    /// Records pages that are no longer in memory. Other processes of the fork group still have
    /// `shared` of them.
    pub fn note_dropped(&self, zone: &mut Zone, pages: u64, shared: u64) {
        self.pages.known.fetch_sub(pages.cast_signed(), Relaxed);
        zone.remove_resident(pages - shared);
    }

    /// Records copies of pages that were shared in the fork group: each copy is a page of its own.
    pub fn note_copied(&self, zone: &mut Zone, charge: Charge) {
        self.fork_group.shares_less(charge.pages());
        zone.place(charge);
    }

    /// Releases frames, pool slots and store slots that no page uses any more.
    pub fn release_dropped(&self, budget: &Budget, state: &mut State, dropped: &Dropped) {
        for &place in &dropped.pool {
            state.pool.discard_later(place);
        }
        // A standby page stays counted until it is dropped from the pool.
        self.note_gone(&mut budget.resident().zone, dropped.frames - dropped.pool.len() as u64);
        budget.discard(dropped);
    }
}
