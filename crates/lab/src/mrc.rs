//! Miss-ratio curves: the miss ratio of each policy at several memory sizes, by a replay of the
//! whole trace or of samples.
//!
//! A sample with a share R of the pages stands for the trace if R also scales the memory. The
//! misses of a sample are divided by the expected number of accesses, not by the sampled number.
//! This removes most of the error that one very hot page in or out of the sample makes
//! (SHARDS-adj). The stated error is the 95 % interval over independent samples. It covers chance
//! and not bias. If the scaled memory is only a few pages, a policy's shares of it round badly.
//! Such points are marked.

use std::sync::Arc;

use serde::Serialize;

use crate::policy::{PolicyInfo, Settings};
use crate::replay::{self, Job, ReplayError};
use crate::trace::{Kind, Op, Sampler, Samples, Spool};

/// Scaled memory below which a sampled point is marked as rough, in pages.
pub const ROUGH_PAGES: f64 = 64.0;

/// Miss ratio of one policy at one size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Memory in pages of the whole trace.
    pub memory_pages: u32,
    /// Misses per access.
    pub miss_ratio: f64,
    /// Half of the 95 % interval of a sampled ratio.
    pub error: Option<f64>,
    /// Whether the scaled memory was too small to trust.
    pub rough: bool,
}

/// Miss ratios of one policy at all sizes.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Curve {
    /// Name of the policy.
    pub policy: &'static str,
    /// Points of the curve, smallest size first.
    pub points: Vec<Point>,
}

/// Replays for the curves.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Policies to replay.
    pub policies: Vec<&'static PolicyInfo>,
    /// Sizes in pages, smallest first.
    pub sizes: Vec<u32>,
    /// Settings of the policies.
    pub settings: Arc<Settings>,
    /// Number of threads to use.
    pub threads: usize,
}

/// Returns `count` sizes from 1 % to 100 % of `pages`, evenly spaced on a logarithmic scale.
#[must_use]
pub fn spread(pages: u32, count: u32) -> Vec<u32> {
    let top = f64::from(pages.max(1));
    let bottom = (top / 100.0).max(1.0);
    let steps = f64::from(count.max(2) - 1);
    let size = |i| bottom * (top / bottom).powf(f64::from(i) / steps);
    let mut sizes: Vec<u32> = (0..count.max(2)).map(|i| size(i).round() as u32).collect();
    sizes.dedup();
    sizes
}

impl Plan {
    /// Returns the replays: each policy at each size that it works with, the size scaled by `rate`.
    fn jobs(&self, rate: f64) -> Vec<Job> {
        let mut jobs = Vec::new();
        for &policy in &self.policies {
            for &size in &self.sizes {
                let scaled = (f64::from(size) * rate).round() as u32;
                let memory_pages = scaled.max(policy.capacity_min);
                jobs.push(Job { policy, memory_pages, settings: Arc::clone(&self.settings) });
            }
        }
        jobs
    }

    /// Returns the number of replays of the accesses, for a progress display.
    #[must_use]
    pub fn replays(&self) -> u64 {
        (self.policies.len() * self.sizes.len()) as u64
    }

    /// Computes the curves of the whole trace.
    pub fn exact(
        &self,
        spool: &Spool,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Curve>, ReplayError> {
        let outcomes = replay::run(spool, &self.jobs(1.0), self.threads, progress)?;
        let ratios: Vec<f64> = outcomes.iter().map(replay::Outcome::miss_ratio).collect();
        Ok(self.curves(|i| Point {
            memory_pages: 0,
            miss_ratio: ratios[i],
            error: None,
            rough: false,
        }))
    }

    /// Estimates the curves from samples.
    pub fn sampled(
        &self,
        samples: &Samples,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<Vec<Curve>, ReplayError> {
        let jobs = self.jobs(samples.rate);
        let expected = samples.accesses as f64 * samples.rate;
        let mut ratios: Vec<Vec<f64>> = vec![Vec::new(); jobs.len()];
        for spool in &samples.spools {
            let outcomes = replay::run(spool, &jobs, self.threads, progress)?;
            for (ratios, outcome) in ratios.iter_mut().zip(&outcomes) {
                ratios.push((outcome.misses as f64 / expected).min(1.0));
            }
        }
        Ok(self.curves(|i| {
            let (miss_ratio, error) = mean_and_error(&ratios[i]);
            let size = f64::from(self.sizes[i % self.sizes.len()]);
            let rough = size * samples.rate < ROUGH_PAGES;
            Point { memory_pages: 0, miss_ratio, error: Some(error), rough }
        }))
    }

    /// Builds curves from points in the order of the jobs, and fills in the sizes.
    fn curves(&self, point: impl Fn(usize) -> Point) -> Vec<Curve> {
        let at = |policy: usize, size: usize| Point {
            memory_pages: self.sizes[size],
            ..point(policy * self.sizes.len() + size)
        };
        let curve = |(i, info): (usize, &&'static PolicyInfo)| Curve {
            policy: info.name,
            points: (0..self.sizes.len()).map(|size| at(i, size)).collect(),
        };
        self.policies.iter().enumerate().map(curve).collect()
    }
}

/// Policies whose curves accompany a scenario.
const BESIDE: [&str; 4] = ["lru", "arc", "s3-fifo", "belady"];
/// Intended number of pages of a sample.
const SAMPLE_PAGES: f64 = 4096.0;
/// Number of independent samples, from which the interval comes.
const SAMPLES: u32 = 3;
/// Number of sizes on a curve.
const SIZES: u32 = 20;

/// Computes the curves of a sequence of accessed pages. Samples them, so that a sample has a few
/// thousand pages.
///
/// # Errors
/// Fails if a temporary file cannot be written, or if there are too few pages.
pub fn of_touches(touches: &[u64]) -> Result<Vec<Curve>, ReplayError> {
    let pages = touches.iter().collect::<std::collections::HashSet<_>>().len();
    let rate = (SAMPLE_PAGES / pages.max(1) as f64).min(1.0);
    let mut sampler = Sampler::new(rate, if rate < 1.0 { SAMPLES } else { 1 });
    for &page in touches {
        sampler.push(page, Op::default(), Kind::default())?;
    }
    let samples = sampler.finish()?;
    let find = |name: &str| PolicyInfo::find(name).ok();
    let policies: Vec<&'static PolicyInfo> = BESIDE.iter().filter_map(|n| find(n)).collect();
    let least = policies.iter().map(|info| info.capacity_min).max().unwrap_or(1);
    let mut sizes = spread(samples.pages().min(u64::from(u32::MAX)) as u32, SIZES);
    sizes.iter_mut().for_each(|size| *size = (*size).max(least));
    sizes.dedup();
    let plan = Plan { policies, sizes, settings: Arc::default(), threads: 1 };
    plan.sampled(&samples, &|_| {})
}

/// Returns the mean and half of its 95 % interval (Student's t); an infinite interval for a single
/// value.
fn mean_and_error(values: &[f64]) -> (f64, f64) {
    /// Two-sided 97.5 % quantiles for 1 to 9 degrees of freedom; above, that for 10.
    const T: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count.max(1.0);
    if values.len() < 2 {
        return (mean, f64::INFINITY);
    }
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let t = T[(values.len() - 2).min(T.len() - 1)];
    (mean, t * (variance / count).sqrt())
}

/// Difference between sampled and exact curves.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Measured {
    /// Mean of the absolute differences of miss ratios.
    pub mean: f64,
    /// Greatest absolute difference of miss ratios.
    pub worst: f64,
    /// Share of the points whose stated interval contains the exact ratio.
    pub covered: f64,
}

/// Compares sampled curves with exact ones at the same sizes, leaving out rough points.
#[must_use]
pub fn measure(sampled: &[Curve], exact: &[Curve]) -> Measured {
    let pairs: Vec<(&Point, &Point)> = sampled
        .iter()
        .zip(exact)
        .flat_map(|(a, b)| a.points.iter().zip(&b.points))
        .filter(|(point, _)| !point.rough)
        .collect();
    let count = pairs.len().max(1) as f64;
    let difference = |(a, b): &(&Point, &Point)| (a.miss_ratio - b.miss_ratio).abs();
    let inside = |pair: &&(&Point, &Point)| difference(pair) <= pair.0.error.unwrap_or(0.0);
    Measured {
        mean: pairs.iter().map(difference).sum::<f64>() / count,
        worst: pairs.iter().map(difference).fold(0.0, f64::max),
        covered: pairs.iter().filter(inside).count() as f64 / count,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::parse_list;
    use crate::trace::synth::Synth;
    use crate::trace::{Kind, Op, Sampler};

    fn plan(policies: &str, sizes: Vec<u32>) -> Plan {
        Plan {
            policies: parse_list(policies).unwrap(),
            sizes,
            settings: Arc::new(Settings::default()),
            threads: 2,
        }
    }

    #[test]
    fn sizes_are_spread_evenly_and_end_at_the_footprint() {
        assert_eq!(spread(10_000, 5), [100, 316, 1000, 3162, 10_000]);
        assert_eq!(spread(3, 5), [1, 2, 3]);
        assert_eq!(spread(65_536, 20).len(), 20);
    }

    #[test]
    fn exact_curves_do_not_depend_on_threads_and_end_at_the_cold_misses() {
        let spool = Synth::parse("zipf,pages=2000,accesses=50000").unwrap().spool().unwrap();
        let mut plan = plan("lru,fifo,belady", spread(spool.pages(), 7));
        let curves = plan.exact(&spool, &|_| ()).unwrap();
        plan.threads = 1;
        assert_eq!(curves, plan.exact(&spool, &|_| ()).unwrap());
        let cold = f64::from(spool.pages()) / spool.len() as f64;
        for curve in &curves {
            assert!((curve.points.last().unwrap().miss_ratio - cold).abs() < 1e-12);
        }
        let falls = |curve: &Curve| curve.points.is_sorted_by(|a, b| a.miss_ratio >= b.miss_ratio);
        assert!(falls(&curves[0]) && falls(&curves[2]), "LRU and the optimum have no anomaly");
    }

    /// Shows that the error of a sampled curve is small and inside the stated interval.
    #[test]
    fn sampled_curves_state_their_error() {
        for name in ["zipf,pages=40000,accesses=600000", "scanzipf,pages=40000,accesses=600000"] {
            let synth = Synth::parse(name).unwrap();
            let spool = synth.spool().unwrap();
            let mut sampler = Sampler::new(0.05, 6);
            synth.generate(|page| {
                sampler.push(u64::from(page), Op::Read, Kind::Anon).unwrap();
            });
            let samples = sampler.finish().unwrap();
            let pages = f64::from(spool.pages());
            assert!((samples.pages() as f64 / pages - 1.0).abs() < 0.05, "{}", samples.pages());
            let plan = plan("lru,clock,arc,s3-fifo,belady", spread(spool.pages(), 10));
            let exact = plan.exact(&spool, &|_| ()).unwrap();
            let sampled = plan.sampled(&samples, &|_| ()).unwrap();
            let measured = measure(&sampled, &exact);
            assert!(measured.mean < 0.015, "{name}: {measured:?}");
            assert!(measured.worst < 0.05, "{name}: {measured:?}");
            assert!(measured.covered > 0.75, "{name}: {measured:?}");
        }
    }

    #[test]
    fn the_interval_of_known_values_is_right() {
        let (mean, error) = mean_and_error(&[1.0, 2.0, 3.0]);
        assert!((mean - 2.0).abs() < 1e-12 && (error - 4.303 / 3f64.sqrt()).abs() < 1e-9);
        assert_eq!(mean_and_error(&[0.5]), (0.5, f64::INFINITY));
    }
}
