//! Samples a trace by page, as SHARDS does (Waldspurger and others, FAST 2015): an access is kept
//! if and only if the hash of its page is below a threshold, so that each kept page keeps all of
//! its accesses. Several samples with different hashes tell how far one may be off.

use std::path::Path;

use super::{Access, Kind, Lack, Numbering, Op, Reader, Record, Spool, TraceError};

/// Accesses that a part collects before it hands them to its spool.
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

/// Samples of a trace, and how long it is itself.
#[derive(Debug)]
pub struct Samples {
    /// Each sample as a trace of its own.
    pub spools: Vec<Spool>,
    /// The share of the pages that each sample keeps, on average.
    pub rate: f64,
    /// Accesses of the whole trace.
    pub accesses: u64,
    /// What the trace does not have.
    pub lacks: Option<Lack>,
}

impl Samples {
    /// An estimate of the whole trace's distinct pages.
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
    /// A sampler that keeps a share `rate` of the pages, `parts` times.
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

    /// Takes one access of the trace.
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

    /// The samples drawn.
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

/// Samples a trace file, or its first `limit` accesses, without holding it whole.
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
