//! Measures how long hooks delay the program's threads with work of the agent.
//!
//! The functions run on the program's own threads. Each thread measures with the processor's
//! time-stamp counter and adds the result to counters that the pager reads.

use crate::protocol::Shared;
use core::sync::atomic::Ordering::Relaxed;

/// Returns the processor's time-stamp counter.
pub fn now() -> u64 {
    // SAFETY: every x86-64 processor has it.
    unsafe { core::arch::x86_64::_rdtsc() }
}

/// Records a delay that began at `since` and ends now.
pub fn note(shared: &Shared, since: u64) {
    // Relaxed, because these figures are only for a report.
    shared.lost_ticks.fetch_add(now().saturating_sub(since), Relaxed);
    shared.lost_calls.fetch_add(1, Relaxed);
}
