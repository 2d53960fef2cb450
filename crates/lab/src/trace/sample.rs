//! Samples a trace by page, as SHARDS does (Waldspurger and others, FAST 2015). An access stays if
//! and only if the hash of its page is below a threshold. So each sampled page keeps all of its
//! accesses. Several samples with different hashes show the error of one.

use std::path::Path;

use super::{Access, Kind, Lack, Numbering, Op, Reader, Record, Spool, TraceError};

/// Number of accesses that a sample collects before they go to its spool.
const PENDING_MAX: usize = 16 * 1024;

/// One sample of a trace.
struct Part {
    salt: u64,
    numbering: Numbering,
    pending: Vec<Access>,
    spool: Spool,
}

/// Draws several samples of one rate at once.
pub struct Sampler {
    threshold: u64,
    parts: Vec<Part>,
    seen: u64,
}

/// Samples of a trace, and the length of the whole trace.
#[derive(Debug)]
pub struct Samples {
    /// Each sample as a trace of its own.
    pub spools: Vec<Spool>,
    /// Average share of the pages in each sample.
    pub rate: f64,
    /// Number of accesses of the whole trace.
    pub accesses: u64,
    /// Information that the trace lacks.
    pub lacks: Option<Lack>,
}

impl Samples {
    /// Estimates the number of distinct pages of the whole trace.
    #[must_use]
    pub fn pages(&self) -> u64 {
        let kept: u64 = self.spools.iter().map(|spool| u64::from(spool.pages())).sum();
        (kept as f64 / self.rate / self.spools.len() as f64).round() as u64
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x = (x ^ x >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    x ^ x >> 32
}

impl Sampler {
    /// Creates a sampler of `parts` samples, each with a share `rate` of the pages.
    #[must_use]
    pub fn new(rate: f64, parts: u32) -> Self {
        let part = |number: u32| Part {
            salt: mix(u64::from(number) + 1),
            numbering: Numbering::default(),
            pending: Vec::with_capacity(PENDING_MAX),
            spool: Spool::new(),
        };
        let threshold = (rate * (1u64 << 32) as f64) as u64;
        Self { threshold, parts: (0..parts).map(part).collect(), seen: 0 }
    }

    /// Adds one access of the trace.
    pub fn push(&mut self, page: u64, op: Op, kind: Kind) -> std::io::Result<()> {
        self.seen += 1;
        for part in &mut self.parts {
            if mix(page ^ part.salt) >> 32 < self.threshold {
                let number = part.numbering.number(page);
                part.pending.push(Access::new(number, op, kind));
                if part.pending.len() == PENDING_MAX {
                    part.spool.push(&part.pending)?;
                    part.pending.clear();
                }
            }
        }
        Ok(())
    }

    /// Returns the samples.
    pub fn finish(self) -> std::io::Result<Samples> {
        let mut spools = Vec::with_capacity(self.parts.len());
        for mut part in self.parts {
            part.spool.push(&part.pending)?;
            spools.push(part.spool);
        }
        let rate = self.threshold as f64 / (1u64 << 32) as f64;
        Ok(Samples { spools, rate, accesses: self.seen, lacks: None })
    }
}

/// Samples a trace file, or its first `limit` accesses, without storing it whole.
pub fn load_samples(
    path: &Path,
    reader: &mut Reader,
    limit: u64,
    mut sampler: Sampler,
) -> Result<Samples, TraceError> {
    let spool_error = |error| TraceError::Spool { dir: std::env::temp_dir(), error };
    let mut records: Vec<Record> = Vec::new();
    while sampler.seen < limit && reader.read(&mut records)? {
        let room = (limit - sampler.seen).min(records.len() as u64) as usize;
        for record in &records[..room] {
            sampler.push(record.page, record.op, record.kind).map_err(spool_error)?;
        }
    }
    if sampler.seen == 0 {
        return Err(TraceError::Empty { path: path.to_owned() });
    }
    let samples = sampler.finish().map_err(spool_error)?;
    Ok(Samples { lacks: reader.lacks(), ..samples })
}
