//! Draws keys by the distributions of the load generators, with their own names and constants.
//!
//! * `zipfian`: rank drawn by Gray's method with `theta` (0.99), scrambled by a hash. YCSB's own
//!   ([`Keys::of_ycsb`]) draws the rank among ten thousand million items, however many records
//!   there are. Its hash maps all of them to records. Of twenty million records some have many
//!   items, and 28 of 100 draws are as good as uniform.
//! * `latest`: YCSB's: zipfian over the distance from the newest key.
//! * `exponential`: YCSB's: 95 % of the draws from the first 85.7 % of the keys.
//! * `gaussian`: memtier's: mean in the middle, standard deviation a sixth of the range.
//! * `uniform`: all keys are equally likely.
//! * `sequential`: each thread has its own part of the range and goes round in it.

use schemars::JsonSchema;
use serde::Deserialize;

use ebb_mm::random::Random;

/// A distribution of keys.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Hot keys are scattered over the range.
    Zipfian,
    /// The newest keys are the hottest.
    Latest,
    /// All keys are equally likely.
    Uniform,
    /// The first keys are the hottest.
    Exponential,
    /// The middle keys are the hottest.
    Gaussian,
    /// One key after the other.
    Sequential,
}

/// YCSB's constant of the zipfian distribution.
pub const THETA: f64 = 0.99;
/// Number of items among which YCSB draws ranks for its scrambled zipfian. `YCSB_ZETAN` is the sum
/// that goes with them and [`THETA`] (`ScrambledZipfianGenerator`).
const YCSB_ITEMS: u64 = 10_000_000_000;
const YCSB_ZETAN: f64 = 26.469_028_201_783_02;

/// A generator of keys.
#[derive(Clone, Debug)]
pub struct Keys {
    pattern: Pattern,
    count: u64,
    zipf: Option<Zipf>,
    /// Number of YCSB's ranks that one rank here stands for.
    ranks: Option<f64>,
    /// For `sequential`: first key, end and next key of this thread's part.
    part: (u64, u64, u64),
    spare: Option<f64>,
}

/// Gray's method for zipfian draws, in constant time for each.
#[derive(Clone, Debug)]
struct Zipf {
    items: u64,
    theta: f64,
    alpha: f64,
    zetan: f64,
    eta: f64,
    half: f64,
}

impl Zipf {
    fn new(items: u64, theta: f64) -> Self {
        let zetan = (1..=items).map(|i| (i as f64).powf(-theta)).sum();
        Self::with_sum(items, theta, zetan)
    }

    fn with_sum(items: u64, theta: f64, zetan: f64) -> Self {
        let two = 1.0 + 0.5f64.powf(theta);
        let eta = (1.0 - (2.0 / items as f64).powf(1.0 - theta)) / (1.0 - two / zetan);
        let alpha = 1.0 / (1.0 - theta);
        Self { items, theta, alpha, zetan, eta, half: two }
    }

    fn rank(&self, u: f64) -> u64 {
        let uz = u * self.zetan;
        if uz < 1.0 {
            return 0;
        }
        if uz < self.half {
            return 1;
        }
        debug_assert!(self.theta < 1.0);
        let x = (self.eta * u - self.eta + 1.0).powf(self.alpha);
        ((self.items as f64 * x) as u64).min(self.items - 1)
    }
}

/// Draws a number in [0, 1).
pub fn unit(random: &mut Random) -> f64 {
    (random.word() >> 11) as f64 / (1u64 << 53) as f64
}

/// Draws a time around `ns`, from half to one and a half of it, so that operations do not take
/// equally long.
pub fn about(random: &mut Random, ns: u32) -> u32 {
    ns / 2 + random.below(ns.max(1))
}

/// Returns YCSB's hash of a number: Fowler, Noll and Vo's over its eight bytes, without the sign.
fn fnv(number: u64) -> u64 {
    let hash = number.to_le_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(1_099_511_628_211)
    });
    hash.cast_signed().unsigned_abs()
}

/// Spreads ranks over the keys.
fn scramble(rank: u64, count: u64) -> u64 {
    let hash = Random(rank).word();
    ((u128::from(hash) * u128::from(count)) >> 64) as u64
}

impl Keys {
    /// Creates a generator of keys 0 to `count`, for thread `thread` of `threads`.
    #[must_use]
    pub fn new(pattern: Pattern, count: u64, theta: f64, thread: u64, threads: u64) -> Self {
        let count = count.max(3);
        let zipf =
            matches!(pattern, Pattern::Zipfian | Pattern::Latest).then(|| Zipf::new(count, theta));
        let (from, to) = (count * thread / threads, count * (thread + 1) / threads);
        let part = (from, to.max(from + 1), from);
        Self { pattern, count, zipf, ranks: None, part, spare: None }
    }

    /// Creates a generator of keys 0 to `count` as YCSB draws them for `records` records, of which
    /// `count` stand for all. The hottest tenth here has the draws of the hottest tenth there.
    #[must_use]
    pub fn of_ycsb(pattern: Pattern, count: u64, records: f64) -> Self {
        if pattern != Pattern::Zipfian {
            return Self::new(pattern, count, THETA, 0, 1);
        }
        let count = count.max(3);
        let zipf = Some(Zipf::with_sum(YCSB_ITEMS, THETA, YCSB_ZETAN));
        let ranks = Some((records / count as f64).max(1.0));
        Self { pattern, count, zipf, ranks, part: (0, count, 0), spare: None }
    }

    /// Draws a rank of YCSB's, scaled. Each rank below `count` stands for one key.
    fn ycsb_rank(z: &Zipf, ranks: f64, random: &mut Random) -> u64 {
        (z.rank(unit(random)) as f64 / ranks) as u64
    }

    /// Draws the next key.
    #[inline]
    pub fn draw(&mut self, random: &mut Random) -> u64 {
        match (self.pattern, &self.zipf) {
            (Pattern::Zipfian, Some(z)) => match self.ranks {
                Some(ranks) => fnv(Self::ycsb_rank(z, ranks, random)) % self.count,
                None => scramble(z.rank(unit(random)), self.count),
            },
            (Pattern::Latest, Some(z)) => self.count - 1 - z.rank(unit(random)),
            (Pattern::Exponential, _) => loop {
                // 95 % of the draws lie below 85.7 % of the range.
                let gamma = -(0.05f64).ln() / (self.count as f64 * 0.857_142_857);
                let key = (-(1.0 - unit(random)).ln() / gamma) as u64;
                if key < self.count {
                    break key;
                }
            },
            (Pattern::Gaussian, _) => self.gaussian(random),
            (Pattern::Sequential, _) => {
                let (from, to, at) = self.part;
                self.part.2 = if at + 1 >= to { from } else { at + 1 };
                at
            }
            _ => ((u128::from(random.word()) * u128::from(self.count)) >> 64) as u64,
        }
    }

    fn gaussian(&mut self, random: &mut Random) -> u64 {
        loop {
            let z = self.spare.take().unwrap_or_else(|| {
                let radius = (-2.0 * (1.0 - unit(random)).ln()).sqrt();
                let angle = std::f64::consts::TAU * unit(random);
                self.spare = Some(radius * angle.sin());
                radius * angle.cos()
            });
            let key = self.count as f64 * (0.5 + z / 6.0);
            if key >= 0.0 && key < self.count as f64 {
                return key as u64;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(pattern: Pattern) -> Vec<u64> {
        let mut keys = Keys::new(pattern, 10_000, THETA, 0, 1);
        let mut random = Random(7);
        let mut counts = vec![0; 10_000];
        (0..200_000).for_each(|_| counts[keys.draw(&mut random) as usize] += 1);
        counts
    }

    #[test]
    fn a_zipfian_hundredth_of_the_keys_takes_half_the_draws() {
        let mut counts = draws(Pattern::Zipfian);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let hot: u64 = counts[..100].iter().sum();
        assert!((90_000..125_000).contains(&hot), "{hot}");
        assert!(draws(Pattern::Latest)[9_999] > 15_000);
    }

    #[test]
    fn ycsb_draws_the_hottest_records_as_often_whatever_stands_for_twenty_million() {
        for count in [20_000_000, 1_000_000, 100_000] {
            let keys = Keys::of_ycsb(Pattern::Zipfian, count, 20e6);
            let (z, ranks) = (keys.zipf.as_ref().unwrap(), keys.ranks.unwrap());
            let mut random = Random(3);
            let draws = (0..200_000).map(|_| Keys::ycsb_rank(z, ranks, &mut random));
            let mut below = [0u32; 4];
            for rank in draws {
                for (n, part) in below.iter_mut().zip([0.001, 0.01, 0.13, 1.0]) {
                    *n += u32::from((rank as f64) < part * count as f64);
                }
            }
            // By the sums of 1 / rank^0.99: 41.5, 51.2, 62.4 and 71.6 of 100.
            for (n, share) in below.iter().zip([0.415, 0.512, 0.624, 0.716]) {
                let here = f64::from(*n) / 200_000.0;
                assert!((here - share).abs() < 0.012, "{count}: {here} for {share}");
            }
        }
    }

    #[test]
    fn ycsb_scatters_what_is_hot_and_reaches_every_record() {
        let mut keys = Keys::of_ycsb(Pattern::Zipfian, 1000, 20e6);
        let mut random = Random(3);
        let mut counts = [0u32; 1000];
        (0..200_000).for_each(|_| counts[keys.draw(&mut random) as usize] += 1);
        assert!(counts.iter().all(|&n| n > 20), "28 of 100 draws are spread over all");
        let hot: Vec<usize> = (0..1000).filter(|&i| counts[i] > 1000).collect();
        assert!(hot.len() > 5 && hot.windows(2).filter(|w| w[1] - w[0] > 1).count() > 3);
        // As in YCSB's own code: the first of these is the record "user6284781860667377211" of a
        // database.
        assert_eq!(
            [fnv(0), fnv(1), fnv(2)],
            [6284781860667377211, 8517097267634966620, 1820151046732198393]
        );
    }

    #[test]
    fn exponential_puts_95_of_100_into_the_first_six_sevenths() {
        let first: u64 = draws(Pattern::Exponential)[..8571].iter().sum();
        // Draws beyond the range are drawn again.
        assert!((194_000..198_500).contains(&first), "{first}");
    }

    #[test]
    fn gaussian_keeps_68_of_100_within_a_sixth_of_the_middle() {
        let middle: u64 = draws(Pattern::Gaussian)[3333..6667].iter().sum();
        assert!((134_000..140_000).contains(&middle), "{middle}");
    }

    #[test]
    fn sequential_threads_go_round_in_their_own_parts() {
        let mut keys = Keys::new(Pattern::Sequential, 100, THETA, 1, 4);
        let mut random = Random(1);
        let got: Vec<u64> = (0..27).map(|_| keys.draw(&mut random)).collect();
        assert_eq!((got[0], got[24], got[25], got[26]), (25, 49, 25, 26));
    }
}
