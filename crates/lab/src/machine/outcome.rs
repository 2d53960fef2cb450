//! Results of a run.

use super::histogram::Histogram;
use super::kswapd::KswapdStats;
use super::pressure::Reading;
use super::signs::Signs;
use super::spent::Spent;
use crate::workload::KINDS;

/// A sample of the machine in the middle of a run.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Nanoseconds since measuring began.
    pub time_ns: u64,
    /// Number of operations until the sample.
    pub ops: u64,
    /// Number of refaults until the sample: anonymous, file.
    pub refaults: [u64; 2],
    /// Nanoseconds of direct reclaim and of kswapd until the sample.
    pub reclaim_ns: [u64; 2],
    /// Recent refaults of the first memcg's file pages, by tier.
    pub tiers: [u64; 4],
    /// Number of free frames.
    pub free: u64,
    /// Sequence number, age in ms, anonymous and file pages of each generation of the first memcg.
    pub generations: Vec<(u64, u64, u64, u64)>,
    /// Pages that came in and went out since the last sample, along the address spaces.
    pub heat: [Vec<u32>; 2],
}

/// Results of a run, from the start to the end of measuring.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Virtual time measured, in nanoseconds.
    pub elapsed_ns: u64,
    /// Number of operations done.
    pub ops: u64,
    /// Spread of the operations over the measured threads: Jain's index, 1 if all did as many.
    pub fairness: f64,
    /// Touches while all threads worked, and the nanoseconds of that: until the first of them had
    /// ended.
    pub full: (u64, u64),
    /// Latencies by kind of operation.
    pub latency: [Histogram; KINDS],
    /// The engine's counters, by vmstat name.
    pub counters: Vec<(&'static str, u64)>,
    /// Time spent, by purpose.
    pub spent: Spent,
    /// Pages read from and written to swap and files.
    pub moved: [[u64; 2]; 2],
    /// Requests to read and write of swap and files.
    pub requests: [[u64; 2]; 2],
    /// Mean number of file pages dirty and being written, over the time measured.
    pub standing: [f64; 2],
    /// Pages on the lists at the end: anonymous and of files, inactive and active.
    pub lists: [[u64; 2]; 2],
    /// Time lost for want of memory since the machine was started, of the machine and of each
    /// memcg.
    pub pressure: Vec<Reading>,
    /// Work of kswapd.
    pub kswapd: KswapdStats,
    /// Number of processes killed for lack of memory.
    pub kills: u64,
    /// Number of touches.
    pub touches: u64,
    /// Samples of the machine.
    pub samples: Vec<Sample>,
    /// Pages touched.
    pub trace: Trace,
    /// Signs of trouble since the machine was started.
    pub signs: Signs,
}

impl Outcome {
    /// Returns the operations a second while all threads worked, by touches: operations that were
    /// only begun count in part. The work of the slowest thread alone at the end says little about
    /// a server.
    #[must_use]
    pub fn rate(&self) -> f64 {
        let (touches, ns) = self.full;
        let part = touches as f64 / (self.touches as f64).max(1.0);
        self.ops as f64 * part * 1e9 / (ns as f64).max(1.0)
    }
}

/// Most touches kept: as many as a curve of miss ratios needs.
const TRACE_MAX: usize = 1 << 21;

/// The pages touched while measuring, if samples are taken.
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

    /// Returns the pages, each a number of its own.
    #[must_use]
    pub fn touches(&self) -> &[u64] {
        &self.touches
    }
}
