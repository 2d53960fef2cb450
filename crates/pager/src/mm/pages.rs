//! Pages of an address space in memory: how many there are, and how many the pager knows.
//!
//! The kernel counts the pages of a process, and the pager counts those in its table. The
//! difference is the unknown pages. `monitor/mod.rs` looks for the areas that have them.
//!
//! * PAGES-1: `charges.rs` alone changes `known` (CHARGES-1). A reader takes a count below zero for
//!   0.
//! * PAGES-2: the monitor alone changes `unknown` and `strays_due`.
//! * PAGES-3: `backed` is of the last measurement, whichever thread made it.
//!
//! Lock order: no lock here.

use super::age::Age;
use crate::seam::Process;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Minimum time between two searches for stray pages, in milliseconds.
const STRAYS_PAUSE_MS: u64 = 5;

/// Pages of an address space in memory.
#[derive(Debug)]
pub struct Pages {
    /// Number of resident pages by the page table, the pool included.
    pub known: AtomicI64,
    /// Number of pages of files and of shared memory, by the last measurement.
    backed: AtomicU64,
    /// Number of resident pages that were unknown when the monitor last read the areas, and still
    /// are.
    unknown: AtomicU64,
    /// Earliest age for the next search for stray pages (`monitor/adopt.rs`, ADOPT-4).
    strays_due: AtomicU64,
    age: Age,
}

impl Pages {
    /// Creates the counts of an address space without pages.
    pub fn new(age: Age) -> Self {
        Self {
            known: AtomicI64::new(0),
            backed: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            strays_due: AtomicU64::new(0),
            age,
        }
    }

    /// Returns the number of resident pages by the page table, the pool included.
    pub fn known(&self) -> u64 {
        self.known.load(Relaxed).max(0).unsigned_abs()
    }

    /// Returns how many of `resident` pages the pager does not know.
    pub fn unknown_of(&self, resident: u64) -> u64 {
        resident.saturating_sub(self.known())
    }

    /// Measures the pages of `process`. Returns the number of anonymous pages by the kernel's
    /// count.
    pub fn measure(&self, process: &dyn Process) -> u64 {
        let (anonymous, backed) = process.sizes().unwrap_or((0, 0));
        self.backed.store(backed, Relaxed);
        anonymous
    }

    /// Returns the number of resident pages of files and of shared memory, by the last measurement.
    pub fn backed(&self) -> u64 {
        self.backed.load(Relaxed)
    }

    /// Returns the number of unknown pages that the last search for areas left, as far as they are
    /// still there.
    pub fn unknown(&self) -> u64 {
        self.unknown.load(Relaxed)
    }

    /// Notes that the monitor has searched for new areas, and that `unknown` pages remain unknown.
    /// It has read all areas if `all`, otherwise only those beside areas registered lately
    /// (`monitor/adopt.rs`, ADOPT-5). In the latter case the unknown pages elsewhere add up until
    /// the monitor searches there.
    pub fn note_area_search(&self, unknown: u64, all: bool) {
        if all {
            self.unknown.store(unknown, Relaxed);
        } else {
            self.note_unknown(unknown);
        }
    }

    /// Notes that `unknown` pages are unknown now. Those of the last search that have gone since no
    /// longer count.
    pub fn note_unknown(&self, unknown: u64) {
        self.unknown.fetch_min(unknown, Relaxed);
    }

    /// Whether a search for stray pages is due.
    pub fn are_strays_due(&self) -> bool {
        self.age.ms() >= self.strays_due.load(Relaxed)
    }

    /// Notes that a search for stray pages took `took`. Searches take at most a fiftieth of the
    /// time.
    pub fn note_stray_search(&self, took: Duration) {
        let pause = (took * 50).as_millis() as u64;
        self.strays_due.store(self.age.ms() + pause.max(STRAYS_PAUSE_MS), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use crate::quiet::{Quiet, with_pool};

    /// Shows that unknown pages outside the areas read add up until all areas are read. Otherwise
    /// an area with few new pages at a time is never found.
    #[test]
    fn unknown_pages_outside_the_areas_read_add_up() {
        let mm = with_pool(Quiet::default());
        let unknown = |left, all| {
            mm.pages.note_area_search(left, all);
            mm.pages.unknown()
        };
        assert_eq!(unknown(10, true), 10);
        assert_eq!(unknown(70, false), 10);
        assert_eq!(unknown(4, false), 4);
        assert_eq!(unknown(90, true), 90);
    }
}
