//! Stillness of an address space: the time in which the pager follows a long message (ORD-6).
//!
//! `State::following_message` decides what may change. The state here is for kswapd, which does not
//! end a run while the pager follows a large message (OOM-8).
//!
//! * STILLNESS-1: the thread that changes `since` or `followed` holds `Mm::state`. kswapd reads
//!   them without it.
//! * STILLNESS-2: `followed` never falls, so two readings that differ show progress.
//!
//! Lock order: no lock here.

use super::age::Age;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Stillness of an address space.
#[derive(Debug)]
pub struct Stillness {
    /// Age since which the address space is still; 0 if it is not still.
    since: AtomicU64,
    /// Number of slices of messages followed.
    followed: AtomicU64,
    age: Age,
}

impl Stillness {
    /// Creates the state of an address space that is not still.
    pub fn new(age: Age) -> Self {
        Self { since: AtomicU64::new(0), followed: AtomicU64::new(0), age }
    }

    /// Notes that the address space becomes still, or changes again.
    pub fn note(&self, still: bool) {
        self.since.store(if still { self.age.ms() } else { 0 }, Relaxed);
    }

    /// Counts a followed slice of the message for which the address space is still.
    pub fn note_followed(&self) {
        self.followed.fetch_add(1, Relaxed);
    }

    /// Returns the number of slices followed if the address space is still for longer than `time`.
    pub fn followed_beyond(&self, time: Duration) -> Option<u64> {
        let since = self.since.load(Relaxed);
        let long = since > 0 && self.age.since(since) > time;
        long.then(|| self.followed.load(Relaxed))
    }
}
