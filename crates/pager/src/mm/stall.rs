//! Stall of an address space: its threads that wait for memory, and the pages that they get anyway.
//!
//! Fault threads note here what they refuse and grant. kswapd reads it to tell whether the run is
//! out of memory (`reclaim/oom.rs`).
//!
//! * STALL-1: a process counts as stalled for [`MEMORY_STALL_MS`] after each refused charge. No
//!   message tells that a thread waits no longer.
//! * STALL-2: `recalled` changes under `Mm::state`. Each recalled thread gets one page without
//!   room.
//! * STALL-3: `fed` never falls, so an address space gets [`STARTING_PAGES`] beyond the budget
//!   once.
//!
//! Lock order: no lock here.

use super::age::Age;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Number of pages that a child gets beyond the budget until its agent runs.
const STARTING_PAGES: u32 = 64;

/// Time for which a process counts as memory-stalled after a refused charge, in milliseconds. The
/// fault thread retries waiting faults every millisecond, but may have to wait for a CPU.
const MEMORY_STALL_MS: u64 = 100;

/// Stall of an address space.
#[derive(Debug)]
pub struct Stall {
    /// Age at the last refused charge; 0 if there was none.
    refused: AtomicU64,
    /// Number of pages given beyond the budget.
    fed: AtomicU32,
    /// Number of threads that are to repeat their access, and whose next page needs no room.
    recalled: AtomicU32,
    /// Pause that the threads owe for pages taken above `--memory-high`, in microseconds.
    pub owed_us: AtomicU64,
    age: Age,
}

impl Stall {
    /// Creates the state of an address space that has lacked no memory.
    pub fn new(age: Age) -> Self {
        Self {
            refused: AtomicU64::new(0),
            fed: AtomicU32::new(0),
            recalled: AtomicU32::new(0),
            owed_us: AtomicU64::new(0),
            age,
        }
    }

    /// Notes a fault that found no memory.
    pub fn note_refused(&self) {
        self.refused.store(self.age.ms(), Relaxed);
    }

    /// Whether faults of the address space wait for memory (STALL-1).
    pub fn is_memory_stalled(&self) -> bool {
        let refused = self.refused.load(Relaxed);
        refused > 0 && self.age.ms() <= refused + MEMORY_STALL_MS
    }

    /// Returns the number of pages given beyond the budget.
    pub fn fed(&self) -> u32 {
        self.fed.load(Relaxed).min(STARTING_PAGES)
    }

    /// Takes one more page beyond the budget, if there is one (STALL-3).
    pub fn feed(&self) -> bool {
        self.fed.fetch_add(1, Relaxed) < STARTING_PAGES
    }

    /// Counts a thread that is to repeat its access, and whose next page needs no room. The caller
    /// holds the lock of the state.
    pub fn add_recalled(&self) {
        self.recalled.fetch_add(1, Relaxed);
    }

    /// Whether a thread counted by [`Self::add_recalled`] has yet to fault again.
    pub fn has_recalled(&self) -> bool {
        self.recalled.load(Relaxed) > 0
    }

    /// Takes a thread counted by [`Self::add_recalled`] off the count. Returns whether there was
    /// one. The current fault is then taken for that thread's. The caller holds the lock of the
    /// state.
    pub fn take_recalled(&self) -> bool {
        let recalled = self.recalled.load(Relaxed);
        self.recalled.store(recalled.saturating_sub(1), Relaxed);
        recalled > 0
    }
}
