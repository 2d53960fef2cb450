//! The load `loop`: a fixed number of accesses to pages that are drawn by Zipf 0.99. Three of ten
//! accesses write, and each access verifies its page.
//!
//! The second half of every thread's accesses is measured, and the rates of the threads are added.
//! So the result is the rate of accesses when memory is in a steady state.

use ebb_sys::sched;
use ebb_sys::ticks::{self, Began};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use super::load::LoadError;
use crate::draw::{Alias, Random};

/// Words of a page.
pub(super) const WORDS: usize = 512;
/// Seed that makes every run of a load draw the same pages.
pub(super) const SEED: u64 = 0x00eb_b0eb_b0eb_b0eb;

/// Result of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Number of accesses before the measurement.
    pub warm_accesses: u64,
    /// Number of measured accesses of all threads.
    pub accesses: u64,
    /// Duration of the measured accesses at the rate of all threads together, in microseconds.
    pub wall_us: u64,
}

/// Times the slow accesses, as the program itself sees them.
#[derive(Debug)]
pub struct Stopwatch {
    began: Began,
    count: AtomicU64,
    ticks: AtomicU64,
}

/// Threshold in ticks. It is more than any access to a present page takes, and less than any fault
/// that another process serves.
const LONG_TICKS: u64 = 5000;

/// Slow accesses of one thread.
struct Laps<'a> {
    watch: Option<&'a Stopwatch>,
    count: u64,
    ticks: u64,
    /// Number of sleeps of this thread at the last slow access.
    sleeps: u64,
}

impl Stopwatch {
    /// Creates a stopwatch without measurements.
    pub fn new() -> Self {
        Self { began: Began::now(), count: AtomicU64::new(0), ticks: AtomicU64::new(0) }
    }

    /// Returns the number of slow accesses and their duration in microseconds.
    pub fn read(&self) -> (u64, u64) {
        let ns = self.ticks.load(Relaxed) as f64 * self.began.ns_per_tick();
        (self.count.load(Relaxed), (ns / 1000.0) as u64)
    }

    fn laps(this: Option<&Self>) -> Laps<'_> {
        Laps { watch: this, count: 0, ticks: 0, sleeps: sched::own_sleeps() }
    }
}

impl Laps<'_> {
    fn time<T>(&mut self, touch: impl FnOnce() -> T) -> T {
        if self.watch.is_none() {
            return touch();
        }
        let began = ticks::now();
        let result = touch();
        let took = ticks::since(began, ticks::now());
        if took > LONG_TICKS {
            // An access without a sleep does not count: another thread has taken the CPU.
            let slept = sched::own_sleeps();
            if std::mem::replace(&mut self.sleeps, slept) != slept {
                self.count += 1;
                self.ticks += took;
            }
        }
        result
    }
}

impl Drop for Laps<'_> {
    fn drop(&mut self) {
        if let Some(watch) = self.watch {
            watch.count.fetch_add(self.count, Relaxed);
            watch.ticks.fetch_add(self.ticks, Relaxed);
        }
    }
}

/// Fills the pages. The first half of a page is random except for the page number, and the second
/// half zero.
pub fn fill(words: &[AtomicU64], watch: Option<&Stopwatch>) {
    let mut random = Random(SEED ^ 0xf111);
    let mut laps = Stopwatch::laps(watch);
    for (page, words) in words.chunks_exact(WORDS).enumerate() {
        laps.time(|| words[0].store(1, Relaxed));
        words[..WORDS / 2].iter().for_each(|word| word.store(random.word(), Relaxed));
        words[1].store(page as u64, Relaxed);
    }
}

/// Runs all threads to their end. Calls `half_way` when the first thread begins to be measured.
pub fn run<T: Send + Sync>(
    words: &[AtomicU64],
    popularity: &Alias,
    threads: usize,
    accesses: u64,
    watch: Option<&Stopwatch>,
    half_way: impl Fn() -> Result<T, LoadError> + Sync,
) -> Result<(Seen, T), LoadError> {
    let half = accesses / threads as u64 / 2;
    if half == 0 {
        return Err(LoadError::Accesses);
    }
    let wrong = AtomicBool::new(false);
    let before = OnceLock::new();
    let mut rate = 0.0;
    std::thread::scope(|scope| {
        let start = |n| {
            let (wrong, before, half_way) = (&wrong, &before, &half_way);
            move || {
                let mut random = Random(SEED + n);
                let mut laps = Stopwatch::laps(watch);
                let mut pass = || {
                    (0..half).all(|_| laps.time(|| access(words, popularity, &mut random)))
                        || wrong.fetch_or(true, Relaxed)
                };
                pass();
                before.get_or_init(half_way);
                let start = Instant::now();
                pass();
                half as f64 / start.elapsed().as_secs_f64()
            }
        };
        let running: Vec<_> = (0..threads as u64).map(|n| scope.spawn(start(n))).collect();
        rate = running.into_iter().map(|thread| thread.join().unwrap_or(0.0)).sum::<f64>();
    });
    if wrong.load(Relaxed) {
        return Err(LoadError::Content);
    }
    let measured = half * threads as u64;
    let wall_us = (measured as f64 / rate * 1e6).max(1.0) as u64;
    let seen = Seen { warm_accesses: measured, accesses: measured, wall_us };
    Ok((seen, before.into_inner().ok_or(LoadError::HalfWay)??))
}

fn access(words: &[AtomicU64], popularity: &Alias, random: &mut Random) -> bool {
    let page = popularity.draw(random.word());
    let words = &words[page * WORDS..];
    if random.word() % 100 < 30 {
        words[2].store(words[2].load(Relaxed).wrapping_add(1), Relaxed);
    } else {
        std::hint::black_box(words[4].load(Relaxed));
    }
    words[1].load(Relaxed) == page as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_half_of_the_accesses_is_measured_and_pages_are_verified() {
        let words: Vec<AtomicU64> = (0..8 * WORDS).map(|_| AtomicU64::new(0)).collect();
        let popularity = Alias::zipf(8, 1);
        fill(&words, None);
        let (seen, before) = run(&words, &popularity, 2, 1000, None, || Ok(7)).unwrap();
        assert_eq!((seen.warm_accesses, seen.accesses, before), (500, 500, 7));
        words.iter().skip(1).step_by(WORDS).for_each(|word| word.store(9, Relaxed));
        assert!(run(&words, &popularity, 1, 1000, None, || Ok(7)).is_err());
        assert!(run(&words, &popularity, 2, 3, None, || Ok(7)).is_err());
    }
}
