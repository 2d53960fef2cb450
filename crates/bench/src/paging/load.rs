//! The load: fills one anonymous mapping, then reads and writes its pages at random for a while.
//!
//! Every page starts with a header that is checked at each access. The first half of a page is
//! random and the second zero, so that the page compresses to a half. The popularity of pages is a
//! table of a few MiB (Walker's alias method, over shuffled pages). So drawing a page costs two
//! reads and no floating-point arithmetic. The load prints one line of JSON, whose counts cover
//! only the measured seconds.

use std::io;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use ebb_agent::protocol::ENV_SOCKET;
use ebb_control::{Client, ControlError, Metrics, Patience, Request};
use ebb_sys::anon::AnonBuffer;
use ebb_sys::proc;
use ebb_sys::sched::CpuSet;
use serde::{Deserialize, Serialize};

use super::looping::{self, SEED, WORDS};
use crate::draw::{Alias, Random};

/// Length of a clock tick of `/proc/PID/stat`: a hundredth of a second on every present Linux.
const TICK_US: u64 = 10_000;

/// How pages are chosen.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum Pattern {
    /// Zipf 0.99 over shuffled pages.
    Zipf,
    /// All pages equally often.
    Uniform,
    /// Four fifths zipf, one fifth reads of all pages in order, round and round.
    Scanmix,
    /// Nothing after the first touch of every page, which writes one word.
    Touch,
    /// A fixed number of accesses, zipf 0.99, of which the second half is measured.
    Loop,
    /// No memory: spins on one CPU until it is killed.
    Busy,
}

#[derive(Debug, Parser)]
#[command(name = "ebb bench paging-load")]
struct Args {
    #[arg(long, value_enum)]
    pattern: Pattern,
    #[arg(long)]
    mib: usize,
    #[arg(long)]
    threads: usize,
    /// Seconds before measuring starts.
    #[arg(long)]
    warm: f64,
    #[arg(long)]
    seconds: f64,
    /// Accesses of all threads together, for `loop`.
    #[arg(long, default_value_t = 0)]
    accesses: u64,
    /// The CPU for `busy`.
    #[arg(long, default_value_t = 0)]
    cpu: u32,
    /// Enter this cgroup first.
    #[arg(long)]
    cgroup: Option<std::path::PathBuf>,
    /// Also count the cost of the parent and its other children: the supervisor and the pager.
    #[arg(long)]
    siblings: bool,
    /// Time each access of `loop`.
    #[arg(long)]
    timed: bool,
}

/// Result of a load.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Outcome {
    /// Time of the first access to all pages, in microseconds.
    pub fill_us: u64,
    /// Number of accesses before measuring.
    pub warm_accesses: u64,
    /// Number of measured accesses.
    pub accesses: u64,
    /// Duration of the measured accesses, in microseconds.
    pub wall_us: u64,
    /// Processor time of the load and of Ebb during the measurement, in microseconds.
    pub cpu_us: u64,
    /// Pages that the kernel or Ebb swapped in during the measurement.
    pub swapped_in: u64,
    /// Resident memory of Ebb's own processes in bytes, without the memory shared with the program.
    pub ebb_bytes: u64,
    /// Resident memory in bytes that Ebb shares with the program: the standby pages.
    pub ebb_shared_bytes: u64,
    /// Number of accesses in which the thread slept, from the start; only where accesses are timed.
    #[serde(default)]
    pub long_accesses: u64,
    /// Duration of all accesses in which the thread slept, in microseconds.
    #[serde(default)]
    pub long_us: u64,
}

/// Why the load has no result.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The load cannot enter its cgroup.
    #[error("cgroup: {0}")]
    Cgroup(io::Error),
    /// The load cannot map its memory.
    #[error("memory: {0}")]
    Memory(io::Error),
    /// The busy loop cannot stay on this CPU.
    #[error("cannot stay on CPU {0}: {1}")]
    Cpu(u32, io::Error),
    /// A thread of `loop` has fewer than two accesses.
    #[error("--accesses must be at least twice --threads")]
    Accesses,
    /// An access met a wrong page.
    #[error("a page came back with other content")]
    Content,
    /// Every thread of `loop` ended before its measured half.
    #[error("no thread got half way")]
    HalfWay,
    /// The load does not know the socket of its run.
    #[error("the run does not tell its figures: it has no socket")]
    NoSocket,
    /// The load cannot connect to its run.
    #[error("the run does not tell its figures: {0}")]
    Connect(io::Error),
    /// The run refuses the request or does not answer.
    #[error("the run does not tell its figures: {0}")]
    Ask(#[from] ControlError),
    /// The figures have no count of pages swapped in.
    #[error("pswpin is not counted")]
    NotCounted,
}

/// Runs the load with arguments from the benchmark.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let name = std::iter::once("paging-load".to_string());
    let args = match Args::try_parse_from(name.chain(args)) {
        Ok(args) => args,
        Err(error) => {
            // A failed print is not reported, because the output is closed.
            let _ = error.print();
            return ExitCode::from(2);
        }
    };
    match run(&args) {
        Ok(outcome) => {
            println!("{}", serde_json::json!(outcome));
            ExitCode::SUCCESS
        }
        Err(why) => {
            eprintln!("paging-load: {why}");
            ExitCode::FAILURE
        }
    }
}

fn run(args: &Args) -> Result<Outcome, LoadError> {
    if let Some(cgroup) = &args.cgroup {
        std::fs::write(cgroup.join("cgroup.procs"), "0").map_err(LoadError::Cgroup)?;
    }
    if args.pattern == Pattern::Busy {
        return busy(args.cpu);
    }
    let pages = args.mib * 256;
    let popularity = match args.pattern {
        Pattern::Zipf | Pattern::Scanmix | Pattern::Loop => {
            Some(Alias::zipf(pages, SEED ^ 0x5aff1e))
        }
        Pattern::Uniform | Pattern::Touch | Pattern::Busy => None,
    };
    let mut memory = AnonBuffer::new(pages * 4096).map_err(LoadError::Memory)?;
    let words = memory.words();
    let mut outcome = Outcome::default();
    if let (Pattern::Loop, Some(popularity)) = (args.pattern, &popularity) {
        let start = Instant::now();
        let watch = args.timed.then(looping::Stopwatch::new);
        looping::fill(words, watch.as_ref());
        outcome.fill_us = start.elapsed().as_micros() as u64;
        let before = || Ok((cpu_us(args.siblings), swapped_in(args.siblings)?));
        let (seen, (cpu, swapped)) =
            looping::run(words, popularity, args.threads, args.accesses, watch.as_ref(), before)?;
        (outcome.long_accesses, outcome.long_us) = watch.map_or((0, 0), |watch| watch.read());
        outcome.warm_accesses = seen.warm_accesses;
        outcome.accesses = seen.accesses;
        outcome.wall_us = seen.wall_us;
        return finish(args, outcome, cpu, swapped);
    }
    let start = Instant::now();
    fill(words, args.pattern != Pattern::Touch);
    outcome.fill_us = start.elapsed().as_micros() as u64;
    if args.pattern == Pattern::Touch {
        return Ok(outcome);
    }
    let mut workers: Vec<Worker> = (0..args.threads as u64)
        .map(|n| Worker {
            words,
            popularity: popularity.as_ref(),
            random: Random(SEED + n),
            scan: args.pattern == Pattern::Scanmix,
            cursor: pages * n as usize / args.threads,
        })
        .collect();
    (outcome.warm_accesses, _) = phase(&mut workers, args.warm)?;
    let cpu = cpu_us(args.siblings);
    let swapped = swapped_in(args.siblings)?;
    (outcome.accesses, outcome.wall_us) = phase(&mut workers, args.seconds)?;
    finish(args, outcome, cpu, swapped)
}

/// Spins on one CPU.
fn busy(cpu: u32) -> Result<Outcome, LoadError> {
    CpuSet::only(cpu).confine(0).map_err(|error| LoadError::Cpu(cpu, error))?;
    loop {
        std::hint::spin_loop();
    }
}

/// Completes the outcome from the counters now and at the start of the measurement.
fn finish(args: &Args, mut outcome: Outcome, cpu: u64, swapped: u64) -> Result<Outcome, LoadError> {
    outcome.cpu_us = cpu_us(args.siblings) - cpu;
    outcome.swapped_in = swapped_in(args.siblings)? - swapped;
    if args.siblings {
        for pid in keepers() {
            // Pss divides a page among the processes that map it, so the sum counts each page once.
            let of = |kind| in_file(&format!("/proc/{pid}/smaps_rollup"), kind);
            outcome.ebb_bytes += of("Pss_Anon:") + of("Pss_File:");
            outcome.ebb_shared_bytes += in_file(&format!("/proc/{pid}/status"), "RssShmem:");
        }
    }
    Ok(outcome)
}

fn header(page: usize) -> u64 {
    (page as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn fill(words: &[AtomicU64], content: bool) {
    let mut random = Random(SEED ^ 0xf111);
    for (page, words) in words.chunks_exact(WORDS).enumerate() {
        words[0].store(header(page), Relaxed);
        if content {
            words[2..WORDS / 2].iter().for_each(|word| word.store(random.word(), Relaxed));
        }
    }
}

struct Worker<'a> {
    words: &'a [AtomicU64],
    popularity: Option<&'a Alias>,
    random: Random,
    scan: bool,
    cursor: usize,
}

impl Worker<'_> {
    fn access(&mut self) -> bool {
        let pages = self.words.len() / WORDS;
        let draw = self.random.word();
        if self.scan && draw.is_multiple_of(5) {
            self.cursor = (self.cursor + 1) % pages;
            return self.words[self.cursor * WORDS].load(Relaxed) == header(self.cursor);
        }
        let page = match self.popularity {
            Some(popularity) => popularity.draw(self.random.word()),
            None => self.random.word() as usize % pages,
        };
        let words = &self.words[page * WORDS..];
        if (draw >> 32) % 10 < 3 {
            words[1].store(draw, Relaxed);
        }
        words[0].load(Relaxed) == header(page)
    }
}

/// Runs every worker for `seconds`. Returns the number of accesses and the duration in
/// microseconds.
fn phase(workers: &mut [Worker<'_>], seconds: f64) -> Result<(u64, u64), LoadError> {
    let start = Instant::now();
    let limit = Duration::from_secs_f64(seconds);
    let wrong = AtomicBool::new(false);
    let count = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for worker in workers {
            let (wrong, count) = (&wrong, &count);
            scope.spawn(move || {
                let mut mine = 0;
                while start.elapsed() < limit && !wrong.load(Relaxed) {
                    if !(0..64).all(|_| worker.access()) {
                        wrong.store(true, Relaxed);
                    }
                    mine += 64;
                }
                count.fetch_add(mine, Relaxed);
            });
        }
    });
    if wrong.load(Relaxed) {
        return Err(LoadError::Content);
    }
    Ok((count.load(Relaxed), start.elapsed().as_micros() as u64))
}

/// Returns the supervisor and its other children, when this load runs under `ebb run`.
fn keepers() -> Vec<u32> {
    let supervisor = std::os::unix::process::parent_id();
    let mut pids = proc::children(supervisor);
    pids.retain(|&pid| pid != std::process::id());
    pids.push(supervisor);
    pids
}

fn cpu_us(siblings: bool) -> u64 {
    let mut pids = vec![std::process::id()];
    if siblings {
        pids.extend(keepers());
    }
    let ticks = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name, in parentheses, may contain spaces. Wanted are the 14th and 15th fields.
        let after = stat.rsplit(')').next().unwrap_or_default();
        let fields = after.split_whitespace().skip(11).take(2);
        fields.filter_map(|field| field.parse::<u64>().ok()).sum::<u64>()
    };
    pids.iter().map(ticks).sum::<u64>() * TICK_US
}

/// Returns the number of pages that Ebb swapped in, if this program runs under Ebb, or else the
/// kernel.
fn swapped_in(under_ebb: bool) -> Result<u64, LoadError> {
    let value = if under_ebb {
        metrics()?.value("pswpin")
    } else {
        let text = std::fs::read_to_string("/proc/vmstat").unwrap_or_default();
        text.lines().find_map(|line| line.strip_prefix("pswpin ")?.parse().ok())
    };
    value.ok_or(LoadError::NotCounted)
}

/// Returns the figures of the run that this program belongs to.
fn metrics() -> Result<Metrics, LoadError> {
    let socket = std::env::var_os(ENV_SOCKET).ok_or(LoadError::NoSocket)?;
    let client = Client::connect(socket.as_ref(), Patience::Endless);
    Ok(client.map_err(LoadError::Connect)?.ask(&Request::Metrics, Patience::Endless)?)
}

/// Returns a size in bytes from a field in KiB of a file of /proc.
fn in_file(path: &str, field: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let value = text.lines().find_map(|line| line.strip_prefix(field));
    let kib = value.and_then(|value| value.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_changed_header_is_noticed() {
        let words: Vec<AtomicU64> = (0..4 * WORDS).map(|_| AtomicU64::new(0)).collect();
        fill(&words, true);
        let worker =
            || Worker { words: &words, popularity: None, random: Random(3), scan: true, cursor: 0 };
        assert!(phase(&mut [worker(), worker()], 0.01).is_ok());
        words[2 * WORDS].store(5, Relaxed);
        assert!(phase(&mut [worker()], 600.0).is_err());
    }
}
