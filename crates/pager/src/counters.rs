//! What is counted for the report.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

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
    /// Harvests of written pages, the pages found, and the time they took.
    pub harvests: AtomicU64,
    pub harvested: AtomicU64,
    pub harvest_us: AtomicU64,
    pub cooled: AtomicU64,
    pub evicted: AtomicU64,
    pub written: AtomicU64,
    pub clean: AtomicU64,
    pub unmovable: AtomicU64,
    pub poisoned: AtomicU64,
    pub forks: AtomicU64,
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
    waits: Mutex<Waits>,
}

/// Waiting times of program threads in log-linear buckets: 8 per factor of two of nanoseconds.
#[derive(Clone, Debug)]
pub struct Waits {
    buckets: [u64; 512],
    pub count: u64,
    pub total_ns: u64,
}

impl Default for Waits {
    fn default() -> Self {
        Self { buckets: [0; 512], count: 0, total_ns: 0 }
    }
}

const PER_OCTAVE_SHIFT: u32 = 3;

fn bucket(ns: u64) -> usize {
    let ns = ns.max(8);
    let octave = ns.ilog2();
    let within = (ns >> (octave - PER_OCTAVE_SHIFT)) & 7;
    ((octave << PER_OCTAVE_SHIFT) as usize + within as usize).min(511)
}

fn upper_bound(bucket: usize) -> u64 {
    let octave = (bucket >> PER_OCTAVE_SHIFT) as u32;
    let within = (bucket & 7) as u64;
    ((8 + within + 1) << octave) >> PER_OCTAVE_SHIFT
}

impl Waits {
    /// One thread waited for `ns`.
    pub fn record(&mut self, ns: u64) {
        self.buckets[bucket(ns)] += 1;
        self.count += 1;
        self.total_ns += ns;
    }

    /// The time that a share of `permille` of the waits did not exceed.
    #[must_use]
    pub fn quantile_ns(&self, permille: u64) -> u64 {
        let rank = (self.count * permille).div_ceil(1000);
        let mut seen = 0;
        for (index, &count) in self.buckets.iter().enumerate() {
            seen += count;
            if count > 0 && seen >= rank {
                return upper_bound(index);
            }
        }
        0
    }
}

impl Counters {
    /// A thread waited this long for a page.
    pub fn record_wait(&self, waited: Duration) {
        let ns = u64::try_from(waited.as_nanos()).unwrap_or(u64::MAX);
        self.waits.lock().unwrap_or_else(std::sync::PoisonError::into_inner).record(ns);
    }

    /// The waiting times so far.
    #[must_use]
    pub fn waits(&self) -> Waits {
        self.waits.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
    }
}

/// One more.
pub fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Relaxed);
}

/// `n` more.
pub fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_an_eighth() {
        let mut waits = Waits::default();
        for us in 1..=1000u64 {
            waits.record(us * 1000);
        }
        for (permille, want) in [(500, 500_000.0), (990, 990_000.0)] {
            let got = waits.quantile_ns(permille) as f64;
            assert!((got / want - 1.0).abs() <= 0.13, "{got} for {want}");
        }
        assert_eq!(waits.total_ns, 500_500_000);
    }

    #[test]
    fn extremes_have_a_bucket() {
        let mut waits = Waits::default();
        waits.record(0);
        waits.record(u64::MAX);
        assert_eq!(waits.count, 2);
        assert!(waits.quantile_ns(1) <= 16);
    }
}
