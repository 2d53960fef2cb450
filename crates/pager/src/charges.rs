//! Who holds how many pages: the budget's count, and that of each address space, changed together and here alone.
//!
//! * CHARGES-1: `Mm::known` is the number of its pages that its table has in memory (in sight or cool) and of the places
//!   of its pool that are retired and not yet dropped.
//! * CHARGES-2: the budget counts a page that relatives share once. Which are shared nobody tells as it changes, so what
//!   an address space with relatives lets go of stays counted until the next measurement.
//!
//! Lock order: who counts holds `Pager::resident` (the zone is part of it); `let_go` takes it, under the
//! state of the address space.

use crate::mm::{Mm, State};
use crate::server::Pager;
use ebb_mm::resident::{Charge, Dropped, Zone};
use std::sync::atomic::Ordering::Relaxed;

impl Mm {
    /// The pages of a charge are in its memory now.
    pub fn place(&self, zone: &mut Zone, charge: Charge) {
        self.known.fetch_add(charge.pages().cast_signed(), Relaxed);
        zone.place(charge);
    }

    /// So many pages were found in its memory that nobody had counted.
    pub fn found(&self, zone: &mut Zone, pages: u64) {
        self.known.fetch_add(pages.cast_signed(), Relaxed);
        zone.found(pages);
    }

    /// So many pages were learnt of that the budget counts already.
    pub fn learnt(&self, pages: u64) {
        self.known.fetch_add(pages.cast_signed(), Relaxed);
    }

    /// So many pages of it are in memory no more, which the program did (CHARGES-2).
    pub fn gone(&self, zone: &mut Zone, pages: u64) {
        self.known.fetch_sub(pages.cast_signed(), Relaxed);
        if !self.related.load(Relaxed) {
            zone.gone(pages);
        }
    }

    /// So many pages of it are in memory no more, `shared` of which relatives still have.
    pub fn dropped(&self, zone: &mut Zone, pages: u64, shared: u64) {
        self.known.fetch_sub(pages.cast_signed(), Relaxed);
        zone.gone(pages - shared);
    }

    /// So many pages that it had in common with relatives are there twice now: one is its own.
    pub fn copied(&self, zone: &mut Zone, charge: Charge) {
        self.shares_less(charge.pages());
        zone.place(charge);
    }
}

impl Pager {
    /// Frames, pool places and slots that nobody holds any more.
    pub fn let_go(&self, mm: &Mm, state: &mut State, dropped: &Dropped) {
        for &place in &dropped.pool {
            state.pool.retire(place);
        }
        // A cool page stays counted until it is dropped from the pool.
        mm.gone(&mut self.resident().zone, dropped.frames - dropped.pool.len() as u64);
        self.discard(dropped);
    }
}
