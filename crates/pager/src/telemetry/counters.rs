//! Counters for the report.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one run; every one only grows.
#[derive(Debug, Default)]
pub struct Counters {
    pub faults_fresh: AtomicU64,
    pub faults_reactivated: AtomicU64,
    pub faults_loaded: AtomicU64,
    pub faults_copied: AtomicU64,
    pub faults_stale: AtomicU64,
    pub pages_ahead: AtomicU64,
    /// Zero pages placed beside a faulting page.
    pub zeros_ahead: AtomicU64,
    /// Standby pages reactivated beside a faulting page.
    pub reactivated_ahead: AtomicU64,
    pub to_standby: AtomicU64,
    pub evicted: AtomicU64,
    pub written: AtomicU64,
    pub clean: AtomicU64,
    pub unmovable: AtomicU64,
    pub poisoned: AtomicU64,
    pub forks: AtomicU64,
    /// Messages of mapping changes, without the calls of agents.
    pub changes: AtomicU64,
    /// Calls in hooks by address spaces that have ended. Next, the time lost to these calls, in
    /// ticks.
    pub lost_calls: AtomicU64,
    pub lost_ticks: AtomicU64,
    /// Time for which the freezer has frozen threads, in microseconds.
    pub freezer_us: AtomicU64,
    /// Longest time for which a thread was frozen at once, in microseconds.
    pub longest_freeze_us: AtomicU64,
    pub processes: AtomicU64,
    pub throttled_us: AtomicU64,
    /// Longest hold of the lock of an address space that has ended, in nanoseconds.
    pub longest_hold: AtomicU64,
    /// Longest CPU time of a thread in a hold of such a lock, in nanoseconds.
    pub longest_run: AtomicU64,
    /// CPU time of agents whose address spaces have ended, in nanoseconds.
    pub agents_ns: AtomicU64,
    pub peak_resident: AtomicU64,
    pub peak_managed: AtomicU64,
}

/// Adds 1 to a counter.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// Adds `n` to a counter.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
