//! Runs caches over a trace, several in one pass. A pass reads each chunk of the trace once and
//! feeds it to every cache while the chunk is in the processor's cache. The number of caches in one
//! pass depends on their memory. So a hundred caches need no more memory than a few.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::policy::{PolicyError, PolicyInfo, Replay, Settings};
use crate::trace::{ACCESSES_MAX, Future, Spool};

/// Error that makes a replay impossible.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// A policy cannot be built.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The temporary file with the trace cannot be read.
    #[error("temporary file: {0}; set TMPDIR to another folder")]
    Spool(#[from] io::Error),
    /// The trace is too long for Belady's optimum.
    #[error("the optimum takes at most {ACCESSES_MAX} accesses; replay a part with --accesses")]
    TooLong,
}

/// One cache to run.
#[derive(Clone, Debug)]
pub struct Job {
    /// Policy of the cache.
    pub policy: &'static PolicyInfo,
    /// Size of the cache in pages.
    pub memory_pages: u32,
    /// Settings of the policy.
    pub settings: Arc<Settings>,
}

/// Result of one cache over a trace.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Outcome {
    /// Name of the policy.
    pub policy: &'static str,
    /// Size of the cache in pages.
    pub memory_pages: u32,
    /// Number of replayed accesses.
    pub accesses: u64,
    /// Number of accesses to pages that were not resident.
    pub misses: u64,
    /// Number of misses on pages that had been resident before.
    pub refaults: u64,
    /// Number of pages scanned in search of a victim.
    pub scanned: u64,
    /// Number of pages scanned and kept.
    pub protected: u64,
    /// Time in the policy, in nanoseconds.
    pub nanoseconds: u64,
    /// Memory of the policy at the end, in bytes.
    pub heap_bytes: u64,
}

impl Outcome {
    /// Returns misses per access.
    #[must_use]
    pub fn miss_ratio(&self) -> f64 {
        self.misses as f64 / self.accesses.max(1) as f64
    }

    /// Returns the time per access in nanoseconds.
    #[must_use]
    pub fn nanoseconds_per_access(&self) -> f64 {
        self.nanoseconds as f64 / self.accesses.max(1) as f64
    }
}

/// One cache during a pass.
struct Running {
    replay: Box<dyn Replay>,
    job: Job,
    misses: u64,
    time: Duration,
}

/// Runs all jobs over `spool` on up to `threads` threads, and returns the outcomes in the order of
/// the jobs. Calls `progress` at intervals with the number of accesses done, summed over the jobs.
pub fn run(
    spool: &Spool,
    jobs: &[Job],
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Outcome>, ReplayError> {
    let future = if jobs.iter().any(|job| job.policy.needs_future) {
        if spool.len() > ACCESSES_MAX {
            return Err(ReplayError::TooLong);
        }
        Some(spool.future()?)
    } else {
        None
    };
    let threads = threads.clamp(1, jobs.len().max(1));
    let future = future.as_ref();
    let results = std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for thread in 0..threads {
            // Striped, to spread the costly policies and sizes over the threads.
            let share: Vec<Job> = jobs.iter().skip(thread).step_by(threads).cloned().collect();
            let work = move || run_share(spool, future, &share, threads, progress);
            handles.push(scope.spawn(work));
        }
        let joined = handles
            .into_iter()
            .map(|handle| handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        joined.collect::<Result<Vec<_>, _>>()
    })?;
    let mut queues: Vec<_> = results.into_iter().map(Vec::into_iter).collect();
    Ok((0..jobs.len()).filter_map(|i| queues[i % threads].next()).collect())
}

/// Memory that the caches of one pass may take together, in bytes, whatever the footprint.
const PASS_BYTES_MIN: usize = 32 << 20;
/// Memory that the caches of one pass may take together for each page of the footprint, in bytes.
const PASS_BYTES_PER_PAGE: usize = 48;

/// Runs one thread's jobs, as many in each pass over the trace as its share of the memory allows.
fn run_share(
    spool: &Spool,
    future: Option<&Future>,
    jobs: &[Job],
    threads: usize,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<Vec<Outcome>, ReplayError> {
    let bytes_max = PASS_BYTES_MIN.max(spool.pages() as usize * PASS_BYTES_PER_PAGE) / threads;
    let mut outcomes = Vec::with_capacity(jobs.len());
    let mut jobs = jobs.iter().peekable();
    while jobs.peek().is_some() {
        let mut running: Vec<Running> = Vec::new();
        let mut bytes = 0;
        while let Some(&job) = jobs.peek() {
            let replay = job.policy.build(spool.footprint(), job.memory_pages, &job.settings)?;
            bytes += replay.heap_bytes();
            if bytes > bytes_max && !running.is_empty() {
                break;
            }
            jobs.next();
            running.push(Running { replay, job: job.clone(), misses: 0, time: Duration::ZERO });
        }
        run_pass(spool, future, &mut running, progress)?;
        outcomes.extend(running.iter().map(|cache| outcome(cache, spool)));
    }
    Ok(outcomes)
}

/// Feeds the whole trace to some caches, chunk by chunk.
fn run_pass(
    spool: &Spool,
    future: Option<&Future>,
    running: &mut [Running],
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), ReplayError> {
    let future = future.filter(|_| running.iter().any(|cache| cache.job.policy.needs_future));
    let mut cursor = spool.cursor();
    let mut next = Vec::new();
    let mut start = 0;
    loop {
        let chunk = cursor.next_chunk()?;
        if chunk.is_empty() {
            return Ok(());
        }
        if let Some(future) = future {
            future.read(start, chunk.len(), &mut next)?;
        }
        start += chunk.len() as u64;
        for cache in &mut *running {
            let begin = Instant::now();
            cache.misses += cache.replay.feed(chunk, &next);
            cache.time += begin.elapsed();
        }
        progress(chunk.len() as u64 * running.len() as u64);
    }
}

fn outcome(cache: &Running, spool: &Spool) -> Outcome {
    let tally = cache.replay.tally();
    Outcome {
        policy: cache.job.policy.name,
        memory_pages: cache.job.memory_pages,
        accesses: spool.len(),
        misses: cache.misses,
        refaults: cache.misses - u64::from(spool.pages()),
        scanned: tally.scanned,
        protected: tally.protected,
        nanoseconds: cache.time.as_nanos() as u64,
        heap_bytes: cache.replay.heap_bytes() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::parse_list;
    use crate::trace::synth::Synth;

    /// Shows that a replay does not take the memory of all jobs at once.
    #[test]
    fn many_caches_run_in_several_passes_with_the_same_outcome() {
        let synth = Synth::parse("uniform,pages=200000,accesses=400000").unwrap();
        let spool = synth.spool().unwrap();
        let settings = Arc::new(Settings::default());
        let jobs: Vec<Job> = parse_list("fifo,lru,arc,lirs,lecar,w-tinylfu,belady,clock,sieve")
            .unwrap()
            .into_iter()
            .flat_map(|policy| [150_000, 100_000].map(|memory_pages| (policy, memory_pages)))
            .map(|(policy, memory_pages)| Job {
                policy,
                memory_pages,
                settings: Arc::clone(&settings),
            })
            .collect();
        let counts = |outcomes: Vec<Outcome>| -> Vec<(&str, u32, u64)> {
            outcomes.iter().map(|o| (o.policy, o.memory_pages, o.misses)).collect()
        };
        let together = counts(run(&spool, &jobs, 1, &|_| ()).unwrap());
        let bytes: u64 = run(&spool, &jobs, 2, &|_| ()).unwrap().iter().map(|o| o.heap_bytes).sum();
        assert!(bytes > PASS_BYTES_MIN as u64, "one pass would do: {bytes} bytes");
        for (i, job) in jobs.iter().enumerate() {
            let alone = counts(run(&spool, std::slice::from_ref(job), 1, &|_| ()).unwrap());
            assert_eq!(alone[0], together[i]);
        }
    }
}
