//! Faults of an address space that were served, for figures and messages.
//!
//! * SERVED-1: counts order nothing. A reader may see a count without its time.
//! * SERVED-2: one message tells of a lost page, for each address space.
//!
//! Lock order: no lock here.

use ebb_control::FaultKind as Kind;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// Served faults.
#[derive(Debug, Default)]
pub struct Served {
    /// Number of faults, by kind.
    counts: [AtomicU64; Kind::COUNT],
    /// Total time of the faults, in ticks.
    ticks: AtomicU64,
    /// Whether the user knows that a page of the address space is lost.
    reported_lost: AtomicBool,
}

impl Served {
    /// Counts a fault that took `ticks` ticks.
    pub fn note(&self, kind: Kind, ticks: u64) {
        self.counts[kind as usize].fetch_add(1, Relaxed);
        self.ticks.fetch_add(ticks, Relaxed);
    }

    /// Returns the number of faults, by kind, and their total time in ticks.
    #[must_use]
    pub fn read(&self) -> ([u64; Kind::COUNT], u64) {
        let counts = Kind::ALL.map(|kind| self.counts[kind as usize].load(Relaxed));
        (counts, self.ticks.load(Relaxed))
    }

    /// Notes a lost page. Returns whether the user is yet to be told (SERVED-2).
    pub fn note_lost(&self) -> bool {
        !self.reported_lost.swap(true, Relaxed)
    }
}
