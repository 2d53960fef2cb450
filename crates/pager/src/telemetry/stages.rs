//! Measures how long the stages of a fault take, by kind of fault.
//!
//! Each fault thread has a ledger of its own. It alone writes to it, and readers only read. So CPUs
//! share no written data while faults are served. Times are ticks of the processor's counter.
//! Readers convert them to nanoseconds.

pub use ebb_control::FaultKind as Kind;
use ebb_sys::ticks;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Instant;

/// A part of a fault that the fault thread sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stage {
    /// Waiting for the lock of the address space, before the message is read.
    Lock,
    /// From the reading of the message to the start of the fetch.
    LookUp,
    /// Fetching the content of the page.
    Content,
    /// Placing the page, and recording it.
    Place,
    /// From then until the faulting thread is woken.
    Wake,
    /// From the reading of the message until the faulting thread is woken: all stages but `Lock`.
    Served,
}

impl Stage {
    const COUNT: usize = 6;
}

/// 8 buckets for each factor of two.
const PER_OCTAVE_SHIFT: u32 = 3;
/// Number of buckets: up to 2^37 units, which is more than half a minute.
const BUCKETS: usize = 36 << PER_OCTAVE_SHIFT;

fn bucket(value: u64) -> usize {
    let value = value.max(8);
    let octave = value.ilog2();
    let within = (value >> (octave - PER_OCTAVE_SHIFT)) & 7;
    (((octave - PER_OCTAVE_SHIFT) << PER_OCTAVE_SHIFT) as usize + within as usize).min(BUCKETS - 1)
}

fn upper_bound(bucket: usize) -> u64 {
    let octave = (bucket >> PER_OCTAVE_SHIFT) as u32;
    (8 + (bucket & 7) as u64 + 1) << octave
}

/// Times in log-linear buckets.
#[derive(Clone, Debug)]
pub struct Times {
    buckets: Box<[u64; BUCKETS]>,
    pub count: u64,
    pub total: u64,
}

impl Default for Times {
    fn default() -> Self {
        Self { buckets: Box::new([0; BUCKETS]), count: 0, total: 0 }
    }
}

impl Times {
    /// Records `times` events of duration `value`.
    pub fn record(&mut self, value: u64, times: u64) {
        self.buckets[bucket(value)] += times;
        self.count += times;
        self.total += value * times;
    }

    /// Returns the time that a share of `permille` did not exceed, within an eighth; 0 if there are
    /// no times.
    #[must_use]
    pub fn quantile(&self, permille: u64) -> u64 {
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

    /// Returns the mean; 0 if there are no times.
    #[must_use]
    pub fn mean(&self) -> f64 {
        if self.count == 0 { 0.0 } else { self.total as f64 / self.count as f64 }
    }

    /// Adds the times of `other`.
    pub fn add(&mut self, other: &Self) {
        let pairs = self.buckets.iter_mut().zip(&other.buckets[..]);
        pairs.for_each(|(mine, other)| *mine += other);
        self.count += other.count;
        self.total += other.total;
    }
}

/// Times that one thread writes while others read. Its buckets are on the heap. The stack of a
/// fault thread has no room for the buckets of all kinds and stages, which an unoptimised build
/// puts there first.
#[derive(Debug)]
struct Tally {
    buckets: Box<[AtomicU64]>,
    total: AtomicU64,
}

impl Default for Tally {
    fn default() -> Self {
        let buckets = (0..BUCKETS).map(|_| AtomicU64::default()).collect();
        Self { buckets, total: AtomicU64::default() }
    }
}

/// Increments a counter. A relaxed load and store is enough because only one thread writes.
fn grow(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed) + by, Relaxed);
}

impl Tally {
    fn record(&self, value: u64) {
        grow(&self.buckets[bucket(value)], 1);
        grow(&self.total, value);
    }

    fn add_to(&self, times: &mut Times) {
        for (sum, counter) in times.buckets.iter_mut().zip(&self.buckets[..]) {
            let count = counter.load(Relaxed);
            *sum += count;
            times.count += count;
        }
        times.total += self.total.load(Relaxed);
    }
}

/// Times of a served fault, in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    pub kind: Kind,
    pub thread: u32,
    /// When its message was read, by the clock.
    pub since: Instant,
    /// Time that the fault thread waited for the lock before.
    pub lock: u64,
    pub read: u64,
    /// Start of the fetch; `got` is its end, `placed` the time when the page was in place.
    pub begun: u64,
    pub got: u64,
    pub placed: u64,
}

/// Faults that one fault thread has served.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Ledger {
    kinds: [[Tally; Stage::COUNT]; Kind::COUNT],
}

impl Ledger {
    /// Records a fault whose thread is woken at `woken`. Called only by the ledger's own thread.
    pub fn note(&self, served: &Served, woken: u64) {
        let stages = &self.kinds[served.kind as usize];
        let record = |stage: Stage, ticks| stages[stage as usize].record(ticks);
        record(Stage::Lock, served.lock);
        record(Stage::LookUp, ticks::since(served.read, served.begun));
        record(Stage::Content, ticks::since(served.begun, served.got));
        record(Stage::Place, ticks::since(served.got, served.placed));
        record(Stage::Wake, ticks::since(served.placed, woken));
        record(Stage::Served, ticks::since(served.read, woken));
    }

    /// Returns the number of faults of a kind, and their total time in ticks.
    #[must_use]
    pub fn served(&self, kind: Kind) -> (u64, u64) {
        let served = &self.kinds[kind as usize][Stage::Served as usize];
        let count = served.buckets.iter().map(|bucket| bucket.load(Relaxed)).sum();
        (count, served.total.load(Relaxed))
    }

    /// Adds a stage of a kind to `times`.
    pub fn add_to(&self, kind: Kind, stage: Stage, times: &mut Times) {
        self.kinds[kind as usize][stage as usize].add_to(times);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_an_eighth() {
        let mut times = Times::default();
        (1..=1000u64).for_each(|us| times.record(us * 1000, 1));
        for (permille, want) in [(500, 500_000.0), (990, 990_000.0)] {
            let got = times.quantile(permille) as f64;
            assert!((got / want - 1.0).abs() <= 0.13, "{got} for {want}");
        }
        assert_eq!((times.total, times.mean()), (500_500_000, 500_500.0));
    }

    #[test]
    fn extremes_have_a_bucket() {
        let mut times = Times::default();
        times.record(0, 1);
        times.record(1 << 50, 3);
        assert_eq!((times.count, times.quantile(1)), (4, 9));
        assert!(times.quantile(1000) > 1 << 37);
        let mut both = times.clone();
        both.add(&times);
        assert_eq!((both.count, both.quantile(1), both.mean()), (8, 9, times.mean()));
        assert_eq!(Times::default().quantile(500), 0);
    }

    #[test]
    fn every_value_lies_below_its_bucket_s_bound_and_not_far() {
        for value in [8, 9, 15, 16, 17, 1000, 123_456_789, 1 << 36] {
            let bound = upper_bound(bucket(value));
            assert!(value < bound && bound as f64 <= value as f64 * 1.126, "{value} {bound}");
        }
    }

    #[test]
    fn the_stages_of_a_fault_are_all_of_it() {
        let ledger = Ledger::default();
        let served = Served {
            kind: Kind::Reactivate,
            thread: 1,
            since: crate::wait::clock::Clock::simulated().now(),
            lock: 7,
            read: 1000,
            begun: 1100,
            got: 1400,
            placed: 2000,
        };
        ledger.note(&served, 2500);
        ledger.note(&served, 2500);
        let total = |stage| {
            let mut times = Times::default();
            ledger.add_to(Kind::Reactivate, stage, &mut times);
            assert_eq!(times.count, 2);
            times.total
        };
        let [look_up, content] = [total(Stage::LookUp), total(Stage::Content)];
        let [place, wake] = [total(Stage::Place), total(Stage::Wake)];
        assert_eq!([look_up, content, place, wake], [200, 600, 1200, 1000]);
        assert_eq!(total(Stage::Served), look_up + content + place + wake);
        assert_eq!(ledger.served(Kind::Reactivate), (2, 3000));
        assert_eq!(ledger.served(Kind::Zero), (0, 0));
    }
}
