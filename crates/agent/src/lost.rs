//! How long the program's threads are in the agent's hooks for other reasons than their own calls.
//!
//! Runs on the program's own threads. Each measures by the processor's counter and adds to what the pager reads.

use crate::protocol::Shared;
use core::sync::atomic::Ordering::Relaxed;

/// The processor's counter.
pub fn now() -> u64 {
    // SAFETY: every x86-64 processor has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// What began at `since` is over.
pub fn note(shared: &Shared, since: u64) {
    // Relaxed: figures for a report.
    shared.lost_ticks.fetch_add(now().saturating_sub(since), Relaxed);
    shared.lost_calls.fetch_add(1, Relaxed);
}
