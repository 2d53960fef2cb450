//! What is counted for the report.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Counters of one run; every one only grows.
#[derive(Debug, Default)]
pub struct Counters {
    pub faults_fresh: AtomicU64,
    pub faults_rescued: AtomicU64,
    pub faults_loaded: AtomicU64,
    pub faults_copied: AtomicU64,
    pub faults_stale: AtomicU64,
    pub pages_ahead: AtomicU64,
    /// Pages of zeros placed beside one that was touched.
    pub zeros_ahead: AtomicU64,
    /// Cool pages brought back beside one that was touched.
    pub rescued_ahead: AtomicU64,
    pub cooled: AtomicU64,
    pub evicted: AtomicU64,
    pub written: AtomicU64,
    pub clean: AtomicU64,
    pub unmovable: AtomicU64,
    pub poisoned: AtomicU64,
    pub forks: AtomicU64,
    /// Messages of mapping changes, the calls of agents left out.
    pub changes: AtomicU64,
    /// What address spaces that have ended lost in hooks: times, and ticks.
    pub lost_calls: AtomicU64,
    pub lost_ticks: AtomicU64,
    /// How long the brake has held threads, in microseconds.
    pub brake_us: AtomicU64,
    /// The longest that one was held at a time.
    pub longest_brake_us: AtomicU64,
    pub processes: AtomicU64,
    pub throttled_us: AtomicU64,
    /// The longest that the lock of an address space that has ended was held, in nanoseconds.
    pub longest_hold: AtomicU64,
    /// The longest that a thread ran in a hold of such a lock, in nanoseconds.
    pub longest_run: AtomicU64,
    /// How long agents have run whose address spaces have ended, in nanoseconds.
    pub agents_ns: AtomicU64,
    pub peak_resident: AtomicU64,
    pub peak_managed: AtomicU64,
}

/// One more.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// `n` more.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}
