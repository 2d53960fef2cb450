//! Runs rounds over the configurations and prints medians and ratios to the kernel.
//!
//! Misses are pages swapped in during the measurement. For the kernel they come from /proc/vmstat.
//! Under Ebb the load asks the pager, over the socket of the run.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::rc::Rc;

use clap::Parser;

use super::load::Outcome;
use super::rounds::measure;
use super::runs::{Environment, Load, PagingError, Runner};
use super::table;
use crate::error::RunError;
use crate::kernel::{Cgroup, KernelError, SwapFile};
use crate::stats::{Noise, Summary, pairs, verdict};

/// 1 GiB of pages in 512 MiB: Ebb, the kernel's swap file, and all of it in memory.
#[derive(Debug, Parser)]
#[command(name = "ebb bench paging")]
struct Args {
    /// Loads: zipf, uniform, scanmix or loop, and the number of threads; with `+busy` another
    /// process spins on one CPU
    #[arg(long, value_delimiter = ',', default_value = "zipf:1,zipf:2,uniform:1,scanmix:1")]
    loads: Vec<String>,
    /// Rounds; medians are shown, with quartiles
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Seconds before measuring, in each run
    #[arg(long, default_value_t = 5.0)]
    warm: f64,
    /// Seconds measured, in each run
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// Accesses of `loop`, of which the second half is measured
    #[arg(long, default_value_t = 2_000_000)]
    accesses: u64,
    /// Also measure these standby= settings on zipf, one thread
    #[arg(long, value_delimiter = ',')]
    standby: Vec<u32>,
    /// Leave out the cost for programs that fit into memory
    #[arg(long)]
    no_fit: bool,
    /// Folder of the kernel's swap file
    #[arg(long, default_value = "/var/tmp")]
    folder: PathBuf,
    /// The `ebb` to measure [default: the one beside this program]
    #[arg(long)]
    ebb: Option<PathBuf>,
}

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 512 * MIB;
/// Limit for `loop`, which has 256 MiB of pages. About 96 MiB stay resident, and the other pages,
/// compressed to a half, take the rest.
const LOOP_LIMIT: u64 = 186 * MIB;
pub(super) const NAMES: [&str; 4] = ["zipf", "uniform", "scanmix", "loop"];

impl Args {
    /// Returns the load of 1 GiB, zipf, one thread.
    fn zipf(&self) -> Load {
        Load {
            pattern: "zipf",
            threads: 1,
            mib: 1024,
            warm: self.warm,
            seconds: self.seconds,
            accesses: self.accesses,
            busy: false,
        }
    }
}

/// Runs `ebb bench paging` with these arguments, which leave out the command's name.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let args: Args = match crate::parse("ebb bench paging", args) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("ebb bench paging: {why}");
            ExitCode::from(2)
        }
    }
}

/// A load as named in the arguments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Wanted {
    pattern: &'static str,
    threads: usize,
    busy: bool,
}

fn parse(load: &str) -> Result<Wanted, PagingError> {
    let (rest, busy) = load.strip_suffix("+busy").map_or((load, false), |rest| (rest, true));
    let (name, threads) = rest.split_once(':').unwrap_or((rest, "1"));
    let name = NAMES.into_iter().find(|known| *known == name);
    match (name, threads.parse()) {
        (Some(pattern), Ok(threads @ 1..=64)) => Ok(Wanted { pattern, threads, busy }),
        _ => Err(PagingError::Name(load.into())),
    }
}

fn run(args: &Args) -> Result<(), PagingError> {
    let loads: Vec<_> = args.loads.iter().map(|load| parse(load)).collect::<Result<_, _>>()?;
    if args.rounds == 0 || args.warm <= 0.0 || args.seconds <= 0.0 {
        return Err(RunError::Zero("--rounds, --warm and --seconds").into());
    }
    let runner = Runner::new(args.ebb.clone())?;
    if !args.no_fit {
        fit(&runner, args.rounds)?;
    }
    if !loads.is_empty() {
        paging(args, &runner, &loads)?;
    }
    standby(args, &runner)
}

fn ebb(limit_bytes: u64, more: &[&str]) -> Environment {
    Environment::Ebb { limit_bytes, more: more.iter().map(ToString::to_string).collect() }
}

/// Creates the kernel's swap file, if the kernel's side is available.
fn kernel(folder: &Path) -> Result<Rc<SwapFile>, KernelError> {
    // A cgroup and the swap are set up once to check that this is possible.
    let _ = Cgroup::new(Some(LIMIT))?;
    let swap = SwapFile::new(folder, 3 * LIMIT)?;
    let _ = swap.on(0)?;
    Ok(Rc::new(swap))
}

/// Prints the tables of `--loads`.
fn paging(args: &Args, runner: &Runner, loads: &[Wanted]) -> Result<(), PagingError> {
    let swap = kernel(&args.folder);
    if let Err(why) = &swap {
        println!("The kernel's side is left out: {why}\n");
    }
    println!("{}", table::HEAD);
    for wanted in loads {
        let mut load = args.zipf();
        (load.pattern, load.threads, load.busy) = (wanted.pattern, wanted.threads, wanted.busy);
        let mut places = vec![
            ("ebb, default tiers", ebb(LIMIT, &[])),
            ("ebb, --swap file", ebb(LIMIT, &["--swap", "file"])),
        ];
        let mut limit_bytes = LIMIT;
        if wanted.pattern == "loop" {
            (load.mib, limit_bytes) = (256, LOOP_LIMIT);
            places = vec![("ebb, --swap ram", ebb(LOOP_LIMIT, &["--swap", "ram"]))];
        }
        if let Ok(swap) = &swap {
            places.push((
                "kernel, swap file",
                Environment::Kernel { limit_bytes, swap: swap.clone() },
            ));
        }
        places.push(("plain, no limit", Environment::Plain));
        let places: Vec<_> =
            places.into_iter().map(|(name, place)| (name.to_owned(), place)).collect();
        let rows = measure(runner, &places, &load, args.rounds)?;
        let busy = if wanted.busy { "+busy" } else { "" };
        let name = format!("{}{busy}", wanted.pattern);
        println!("{}", table::render(&name, wanted.threads, &rows));
    }
    println!();
    Ok(())
}

/// Prints the table of `--standby`.
fn standby(args: &Args, runner: &Runner) -> Result<(), PagingError> {
    if args.standby.is_empty() {
        return Ok(());
    }
    let place = |standby: &u32| ebb(LIMIT, &["--set", &format!("standby={standby}")]);
    let places: Vec<_> =
        args.standby.iter().map(|standby| (standby.to_string(), place(standby))).collect();
    let rows = measure(runner, &places, &args.zipf(), args.rounds)?;
    println!("| standby, permille | accesses/s [quartiles] | CPU us/access | misses/access |");
    println!("|---|---|---|---|");
    for row in &rows {
        let rate = Summary::of(&row.column(|sample| sample.rate));
        println!(
            "| {} | {} | {:.2} | {:.4} |",
            row.name,
            rate.map_or("-".into(), |rate| rate.show(0)),
            row.median(|sample| sample.cpu_us),
            row.median(|sample| sample.misses)
        );
    }
    Ok(())
}

/// Prints the cost of Ebb for programs that fit into memory: ratios of runs in turns.
fn fit(runner: &Runner, rounds: usize) -> Result<(), PagingError> {
    let zipf = Load {
        pattern: "zipf",
        threads: 1,
        mib: 1024,
        warm: 1.0,
        seconds: 2.0,
        accesses: 0,
        busy: false,
    };
    let touch = Load { pattern: "touch", mib: 256, warm: 0.0, seconds: 0.0, ..zipf };
    let rate = |outcome: &Outcome| outcome.accesses as f64 * 1e6 / outcome.wall_us as f64;
    let fill = |outcome: &Outcome| outcome.fill_us as f64;
    println!("| load that fits | under ebb / plain | round by round | noise |");
    println!("|---|---|---|---|");
    let speed = in_turns(runner, &ebb(2048 * MIB, &[]), &zipf, rounds, rate)?;
    println!("| zipf over 1 GiB, limit 2 GiB: accesses/s | {speed} |");
    let first = in_turns(runner, &ebb(4096 * MIB, &[]), &touch, 3 * rounds, fill)?;
    println!("| first touch of 256 MiB, limit 4 GiB: time | {first} |\n");
    Ok(())
}

/// Returns the ratio of a figure under Ebb to the figure without Ebb: of the medians, and of
/// neighbouring runs.
fn in_turns(
    runner: &Runner,
    ebb: &Environment,
    load: &Load,
    rounds: usize,
    figure: impl Fn(&Outcome) -> f64,
) -> Result<String, PagingError> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for first in [true, false] {
            if first == (round % 2 == 0) {
                with.push(figure(&runner.run(ebb, load)?));
            } else {
                without.push(figure(&runner.run(&Environment::Plain, load)?));
            }
        }
    }
    let noise = Noise::of(&without);
    let median = |values: &[f64]| Summary::of(values).map_or(f64::NAN, |all| all.median);
    let ratio = verdict(median(&with) / median(&without), noise);
    let pairs = pairs(&with, &without).map_or("-".into(), |pairs| pairs.show(3));
    Ok(format!("{ratio} | {pairs} | {}", table::told(noise)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_load_is_parsed_into_pattern_threads_and_busy_processes() {
        let wanted = |pattern, threads, busy| Wanted { pattern, threads, busy };
        assert_eq!(parse("zipf:2").unwrap(), wanted("zipf", 2, false));
        assert_eq!(parse("uniform").unwrap(), wanted("uniform", 1, false));
        assert_eq!(parse("loop:4+busy").unwrap(), wanted("loop", 4, true));
        assert!(parse("zipf:0").is_err());
        assert!(parse("pareto:1").is_err());
        assert!(parse("loop+busy:1").is_err());
    }
}
