//! What a run came to.

use super::histogram::Histogram;
use super::kswapd::KswapdStats;
use super::pressure::Reading;
use super::signs::Signs;
use super::spent::Spent;
use crate::workload::KINDS;

/// A look at the machine in the middle of a run.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Since the start.
    pub time_ns: u64,
    /// Operations so far.
    pub ops: u64,
    /// Pages that came back so far: anonymous, file.
    pub refaults: [u64; 2],
    /// Direct reclaim and kswapd so far.
    pub reclaim_ns: [u64; 2],
    /// Of the first memcg's file pages, those that came back lately, by tier.
    pub tiers: [u64; 4],
    /// Free frames.
    pub free: u64,
    /// Sequence number, age in ms, anonymous and file pages of each generation of the first memcg.
    pub generations: Vec<(u64, u64, u64, u64)>,
    /// Pages that came in and went out since the last look, along the address spaces.
    pub heat: [Vec<u32>; 2],
}

/// What a run came to, from the start to the end of measuring.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Virtual time measured.
    pub elapsed_ns: u64,
    /// Operations done.
    pub ops: u64,
    /// How evenly the operations were spread over the measured threads: Jain's index, 1 if all did as many.
    pub fairness: f64,
    /// Touches while all threads worked, and how long that was: until the first of them had ended.
    pub full: (u64, u64),
    /// Latencies by kind of operation.
    pub latency: [Histogram; KINDS],
    /// The engine's counters, by vmstat name.
    pub counters: Vec<(&'static str, u64)>,
    /// Time spent.
    pub spent: Spent,
    /// Pages read from and written to swap and files.
    pub moved: [[u64; 2]; 2],
    /// Requests to read and write of swap and files.
    pub requests: [[u64; 2]; 2],
    /// File pages dirty and being written, in the mean of the time measured.
    pub standing: [f64; 2],
    /// Pages on the lists at the end: anonymous and of files, inactive and active.
    pub lists: [[u64; 2]; 2],
    /// Time lost for want of memory since the machine was started, of the machine and of each memcg.
    pub pressure: Vec<Reading>,
    /// What kswapd did.
    pub kswapd: KswapdStats,
    /// Processes killed for lack of memory.
    pub kills: u64,
    /// Touches.
    pub touches: u64,
    /// Looks at the machine.
    pub samples: Vec<Sample>,
    /// What was touched.
    pub trace: Trace,
    /// What looks like trouble, since the machine was started.
    pub signs: Signs,
}

impl Outcome {
    /// Operations a second while all threads worked, by touches: operations that were only begun count in
    /// part. What the slowest does alone at the end says little about a server.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let (touches, ns) = self.full;
        let part = touches as f64 / (self.touches as f64).max(1.0);
        self.ops as f64 * part * 1e9 / (ns as f64).max(1.0)
    }
}

/// Touches kept at most: what a curve of miss ratios needs, and no more memory than that.
const TRACE_MAX: usize = 1 << 21;

/// The pages touched while measuring, if somebody wants to know.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    wanted: bool,
    touches: Vec<u64>,
}

impl Trace {
    pub(super) fn begin(&mut self) {
        self.wanted = true;
    }

    #[inline]
    pub(super) fn note(&mut self, space: usize, page: u64) {
        if self.wanted && self.touches.len() < TRACE_MAX {
            self.touches.push((space as u64) << 40 | page);
        }
    }

    /// The pages, each a number of its own.
    #[must_use]
    pub fn touches(&self) -> &[u64] {
        &self.touches
    }
}
