//! Compares hit rates: the pool, plain LRU, and the clock of vmcache.
//!
//! ```text
//! cargo run --release -p ebb-pool --example hit_rates
//! ```
//! 8,000 pages through 2,000 frames, 400,000 reads of each load, of which the second half counts.
//! The figures are equal in each run.

use ebb_mm::random::Random;
use ebb_pool::{Options, PageId, Pool, PoolError};
use std::collections::{BTreeMap, HashMap};

const PAGES: u64 = 8_000;
const FRAMES: usize = 2_000;
const READS: u64 = 400_000;

/// Returns a page of a load, and whether it is part of a scan.
fn page(load: &str, read: u64, random: &mut Random, ranks: &[f64]) -> (u64, bool) {
    let mut zipf = || {
        let unit = (random.word() >> 11) as f64 / (1u64 << 53) as f64;
        ranks.partition_point(|&sum| sum < unit).min(PAGES as usize - 1) as u64
    };
    let scattered = |rank: u64| rank * 2_654_435_761 % PAGES;
    match load {
        "uniform" => (random.word() % PAGES, false),
        "zipf" => (scattered(zipf()), false),
        // The working set changes every 50,000 reads.
        "shift" => (scattered((zipf() + read / 50_000 * 1_000) % PAGES), false),
        "loop" => (read % (FRAMES as u64 * 5 / 4), false),
        // Every other read belongs to a scan from end to end.
        _ if read.is_multiple_of(2) => (scattered(zipf()), false),
        _ => (read / 2 % PAGES, true),
    }
}

trait Cache {
    /// Reads a page. Returns whether it was in the cache.
    fn read(&mut self, page: u64, scan: bool) -> Result<bool, PoolError>;
}

/// The pool. The flag tells whether it uses `shared_once` for scans.
struct Ours<'pool>(&'pool Pool, bool);

impl Cache for Ours<'_> {
    fn read(&mut self, page: u64, scan: bool) -> Result<bool, PoolError> {
        let before = self.0.stats().reads;
        let page = PageId(page);
        let latched =
            if scan && self.1 { self.0.shared_once(page)? } else { self.0.shared(page)? };
        drop(latched);
        Ok(self.0.stats().reads == before)
    }
}

#[derive(Default)]
struct Lru {
    last: HashMap<u64, u64>,
    by_age: BTreeMap<u64, u64>,
    now: u64,
}

impl Cache for Lru {
    fn read(&mut self, page: u64, _: bool) -> Result<bool, PoolError> {
        self.now += 1;
        let before = self.last.insert(page, self.now);
        if let Some(before) = before {
            self.by_age.remove(&before);
        }
        self.by_age.insert(self.now, page);
        if self.last.len() > FRAMES
            && let Some((_, oldest)) = self.by_age.pop_first()
        {
            self.last.remove(&oldest);
        }
        Ok(before.is_some())
    }
}

/// A clock: the hand evicts pages that are marked and unused since, and marks the others.
#[derive(Default)]
struct Clock {
    marked: HashMap<u64, bool>,
    ring: Vec<u64>,
    hand: usize,
}

impl Cache for Clock {
    fn read(&mut self, page: u64, _: bool) -> Result<bool, PoolError> {
        if let Some(marked) = self.marked.get_mut(&page) {
            *marked = false;
            return Ok(true);
        }
        if self.ring.len() < FRAMES {
            self.ring.push(page);
        } else {
            while !std::mem::replace(
                self.marked.get_mut(&self.ring[self.hand]).expect("it is there"),
                true,
            ) {
                self.hand = (self.hand + 1) % FRAMES;
            }
            self.marked.remove(&self.ring[self.hand]);
            self.ring[self.hand] = page;
            self.hand = (self.hand + 1) % FRAMES;
        }
        self.marked.insert(page, false);
        Ok(false)
    }
}

fn hits(cache: &mut dyn Cache, load: &str, ranks: &[f64]) -> Result<f64, PoolError> {
    let mut random = Random(1);
    let mut hits = 0;
    for read in 0..READS {
        let (page, scan) = page(load, read, &mut random, ranks);
        let there = cache.read(page, scan)?;
        // Hits of a scan do not count, because they are no merit of the cache.
        hits += u64::from(there && read >= READS / 2);
    }
    Ok(200.0 * hits as f64 / READS as f64)
}

fn main() -> Result<(), PoolError> {
    let weights: Vec<f64> = (1..=PAGES).map(|rank| (rank as f64).powf(-0.9)).collect();
    let all: f64 = weights.iter().sum();
    let ranks: Vec<f64> = weights
        .iter()
        .scan(0.0, |sum, weight| {
            *sum += weight / all;
            Some(*sum)
        })
        .collect();
    let folder = std::env::temp_dir().join(format!("ebb-pool-hits-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for temporary files");
    println!("hits in %   pool   pool, told what is a scan   LRU   clock");
    for load in ["uniform", "zipf", "shift", "loop", "scan mix"] {
        let ours = |told: bool| {
            let path = folder.join(format!("{}-{told}", load.replace(' ', "-")));
            let pool =
                Pool::open(path, Options { direct: false, ..Options::frames(FRAMES as u32) })?;
            let change = pool.change();
            for _ in 0..PAGES {
                drop(change.allocate()?);
            }
            change.commit()?;
            hits(&mut Ours(&pool, told), load, &ranks)
        };
        let (pool, told) = (ours(false)?, ours(true)?);
        let lru = hits(&mut Lru::default(), load, &ranks)?;
        let clock = hits(&mut Clock::default(), load, &ranks)?;
        println!("{load:10} {pool:6.2} {told:27.2} {lru:5.2} {clock:7.2}");
    }
    std::fs::remove_dir_all(&folder).expect("what was made there");
    Ok(())
}
