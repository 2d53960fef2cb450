//! Synthetic traces, generated from a name such as `synth:zipf,pages=65536,seed=7`.
//!
//! The patterns are those of the trace library: zipf 0.99 over shuffled pages, uniform, scans mixed
//! with zipf, and a loop. One name gives equal accesses on every computer. The random numbers are
//! integers, and only the zipf table uses floating-point arithmetic.

use super::{Access, Kind, Op, Spool};
use ebb_mm::random::Random;

/// Prefix of every synthetic trace's name.
pub const PREFIX: &str = "synth:";

/// Error of a synthetic trace that cannot be made.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SynthError {
    /// No pattern has this name.
    #[error("there is no synthetic trace {0:?}; expected zipf, uniform, scanzipf or loop")]
    Pattern(String),
    /// No parameter has this name.
    #[error(
        "synthetic traces have no parameter {0:?}; expected pages=, accesses=, seed= or theta="
    )]
    Parameter(String),
    /// A parameter has an invalid value.
    #[error("{0}: expected {1}")]
    Value(String, &'static str),
}

/// Order of the accesses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pattern {
    /// Each access is to a page drawn with probability 1 / rank^theta.
    Zipf,
    /// Each access is to any page, with equal probability.
    Uniform,
    /// Half of the accesses are zipf over the first half of the pages, half a scan of the other
    /// half.
    ScanZipf,
    /// All pages in order, again and again.
    Loop,
}

/// A synthetic trace.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Synth {
    /// Order of the accesses.
    pub pattern: Pattern,
    /// Largest number of distinct pages.
    pub pages: u32,
    /// Number of accesses.
    pub accesses: u64,
    /// Seed of the random numbers.
    pub seed: u64,
    /// Exponent of the zipf distribution.
    pub theta: f64,
}

impl Synth {
    /// Parses a name, without its prefix.
    pub fn parse(text: &str) -> Result<Self, SynthError> {
        let mut parts = text.split(',');
        let pattern = match parts.next().unwrap_or_default() {
            "zipf" => Pattern::Zipf,
            "uniform" => Pattern::Uniform,
            "scanzipf" => Pattern::ScanZipf,
            "loop" => Pattern::Loop,
            other => return Err(SynthError::Pattern(other.to_owned())),
        };
        let mut synth = Self { pattern, pages: 65_536, accesses: 2_000_000, seed: 1, theta: 0.99 };
        for part in parts {
            let (key, value) =
                part.split_once('=').ok_or_else(|| SynthError::Parameter(part.to_owned()))?;
            let bad = |expected| SynthError::Value(part.to_owned(), expected);
            let whole = || value.replace('_', "").parse::<u64>();
            match key {
                "pages" => {
                    let pages = whole().map_err(|_| bad("a number of pages"))?;
                    let fits = (2..u64::from(Access::PAGES_MAX)).contains(&pages);
                    synth.pages = if fits { pages as u32 } else { return Err(bad("2 to 2^28")) };
                }
                "accesses" => synth.accesses = whole().map_err(|_| bad("a number"))?.max(1),
                "seed" => synth.seed = whole().map_err(|_| bad("a whole number"))?,
                "theta" => {
                    let theta = value.parse().ok().filter(|theta| (0.0..=10.0).contains(theta));
                    synth.theta = theta.ok_or_else(|| bad("a number from 0 to 10"))?;
                }
                _ => return Err(SynthError::Parameter(key.to_owned())),
            }
        }
        Ok(synth)
    }

    /// Calls `emit` with each page.
    pub fn generate(&self, mut emit: impl FnMut(u32)) {
        let mut random = Random(self.seed);
        let drawn = if self.pattern == Pattern::ScanZipf { self.pages / 2 } else { self.pages };
        let zipf = matches!(self.pattern, Pattern::Zipf | Pattern::ScanZipf)
            .then(|| Zipf::new(drawn, self.theta, &mut random));
        let mut scan = 0;
        for _ in 0..self.accesses {
            let from_scan = match self.pattern {
                Pattern::Loop => true,
                Pattern::ScanZipf => random.below(2) == 0,
                _ => false,
            };
            emit(match &zipf {
                _ if from_scan => {
                    let (start, length) =
                        if zipf.is_some() { (drawn, self.pages - drawn) } else { (0, self.pages) };
                    let page = start + scan;
                    scan = (scan + 1) % length;
                    page
                }
                Some(zipf) => zipf.draw(&mut random),
                None => random.below(self.pages),
            });
        }
    }

    /// Returns the trace, numbered in order of appearance.
    pub fn spool(&self) -> std::io::Result<Spool> {
        const ABSENT: u32 = u32::MAX;
        let mut spool = Spool::new();
        let mut numbers = vec![ABSENT; self.pages as usize];
        let mut count = 0;
        let mut chunk = Vec::with_capacity(super::CHUNK);
        let mut result = Ok(());
        self.generate(|page| {
            let number = &mut numbers[page as usize];
            if *number == ABSENT {
                *number = count;
                count += 1;
            }
            chunk.push(Access::new(*number, Op::Read, Kind::Anon));
            if chunk.len() == super::CHUNK && result.is_ok() {
                result = spool.push(&chunk);
                chunk.clear();
            }
        });
        result?;
        spool.push(&chunk)?;
        Ok(spool)
    }
}

/// Draws ranks with probability proportional to 1 / rank^theta, as shuffled pages.
struct Zipf {
    /// Probability of each rank or a lower one, in 2^-32.
    cumulative: Vec<u32>,
    pages: Vec<u32>,
}

impl Zipf {
    fn new(pages: u32, theta: f64, random: &mut Random) -> Self {
        let weights = (1..=pages).map(|rank| f64::from(rank).powf(-theta));
        let total: f64 = weights.clone().sum();
        let mut sum = 0.0;
        let cumulative = weights
            .map(|weight| {
                sum += weight;
                (sum / total * f64::from(u32::MAX)) as u32
            })
            .collect();
        let mut order: Vec<u32> = (0..pages).collect();
        for i in (1..pages).rev() {
            order.swap(i as usize, random.below(i + 1) as usize);
        }
        Self { cumulative, pages: order }
    }

    fn draw(&self, random: &mut Random) -> u32 {
        let value = (random.word() >> 32) as u32;
        let rank = self.cumulative.partition_point(|&sum| sum < value);
        self.pages[rank.min(self.pages.len() - 1)]
    }
}
