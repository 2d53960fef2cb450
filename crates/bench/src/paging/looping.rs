//! The load `loop`: so many accesses to pages by zipf, three of ten writing, each page verified.
//!
//! The second half of every thread's accesses is measured, and the threads' rates are added up: how fast
//! faults are served when everything has been touched and memory has found its form.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Instant;

use super::load::{SEED, WORDS};
use crate::draw::{Alias, Random};

/// What was measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Seen {
    /// Accesses before.
    pub warm_accesses: u64,
    /// Accesses measured, of all threads.
    pub accesses: u64,
    /// How long they would take at the rate of all threads together.
    pub wall_us: u64,
}

/// The first half of a page is random but for its number, the second zero.
pub fn fill(words: &[AtomicU64]) {
    let mut random = Random(SEED ^ 0xf111);
    for (page, words) in words.chunks_exact(WORDS).enumerate() {
        words[..WORDS / 2].iter().for_each(|word| word.store(random.word(), Relaxed));
        words[1].store(page as u64, Relaxed);
    }
}

/// Runs all threads to their end; `half_way` is asked when the first of them begins to be measured.
pub fn run<T: Send + Sync>(
    words: &[AtomicU64],
    popularity: &Alias,
    threads: usize,
    accesses: u64,
    half_way: impl Fn() -> Result<T, String> + Sync,
) -> Result<(Seen, T), String> {
    let half = accesses / threads as u64 / 2;
    if half == 0 {
        return Err("too few accesses".into());
    }
    let wrong = AtomicBool::new(false);
    let before = OnceLock::new();
    let mut rate = 0.0;
    std::thread::scope(|scope| {
        let start = |n| {
            let (wrong, before, half_way) = (&wrong, &before, &half_way);
            move || {
                let mut random = Random(SEED + n);
                let mut pass = || {
                    (0..half).all(|_| access(words, popularity, &mut random))
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
        return Err("a page came back with other content".into());
    }
    let measured = half * threads as u64;
    let wall_us = (measured as f64 / rate * 1e6).max(1.0) as u64;
    let seen = Seen { warm_accesses: measured, accesses: measured, wall_us };
    Ok((seen, before.into_inner().ok_or("no thread got half way")??))
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
    fn half_is_measured_and_pages_are_verified() {
        let words: Vec<AtomicU64> = (0..8 * WORDS).map(|_| AtomicU64::new(0)).collect();
        let popularity = Alias::zipf(8, 1);
        fill(&words);
        let (seen, before) = run(&words, &popularity, 2, 1000, || Ok(7)).unwrap();
        assert_eq!((seen.warm_accesses, seen.accesses, before), (500, 500, 7));
        words.iter().skip(1).step_by(WORDS).for_each(|word| word.store(9, Relaxed));
        assert!(run(&words, &popularity, 1, 1000, || Ok(7)).is_err());
        assert!(run(&words, &popularity, 2, 3, || Ok(7)).is_err());
    }
}
