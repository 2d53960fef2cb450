//! The command: rounds over the configurations, medians, ratios to the kernel.
//!
//! Misses are pages swapped in while measuring: the kernel counts them in /proc/vmstat, a run of Ebb tells
//! them to the load over its socket.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use super::kernel::Kernel;
use super::load::Outcome;
use super::runs::{Load, Place, Runner};

/// 1 GiB of pages in 512 MiB: Ebb, the kernel's swap file, and all of it in memory.
#[derive(Debug, Parser)]
#[command(name = "ebb bench paging")]
struct Args {
    /// Loads: zipf, uniform or scanmix, and the number of threads
    #[arg(long, value_delimiter = ',', default_value = "zipf:1,zipf:2,uniform:1,scanmix:1")]
    loads: Vec<String>,
    /// Rounds; medians are shown
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds before measuring, in each run
    #[arg(long, default_value_t = 5.0)]
    warm: f64,
    /// Seconds measured, in each run
    #[arg(long, default_value_t = 8.0)]
    seconds: f64,
    /// Also measure these cool= settings on zipf, one thread
    #[arg(long, value_delimiter = ',')]
    cool: Vec<u32>,
    /// Leave out what programs cost that fit
    #[arg(long)]
    no_fit: bool,
    /// Where the kernel's swap file is made
    #[arg(long, default_value = "/var/tmp")]
    folder: PathBuf,
    /// The `ebb` to measure, when it is not this program or beside it
    #[arg(long)]
    ebb: Option<PathBuf>,
}

const MIB: u64 = 1 << 20;
const LIMIT: u64 = 512 * MIB;
const NAMES: [&str; 3] = ["zipf", "uniform", "scanmix"];

/// Runs `ebb bench paging` with these arguments, the command's name left out.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let name = std::iter::once("ebb bench paging".to_string());
    let args = match Args::try_parse_from(name.chain(args)) {
        Ok(args) => args,
        Err(error) => {
            // Nowhere to tell it if the output is closed.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { 2 } else { 0 });
        }
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("ebb bench paging: {why}");
            ExitCode::from(2)
        }
    }
}

fn parse(load: &str) -> Result<(&'static str, usize), String> {
    let (name, threads) = load.split_once(':').unwrap_or((load, "1"));
    let name = NAMES.into_iter().find(|known| *known == name);
    match (name, threads.parse()) {
        (Some(name), Ok(threads @ 1..=64)) => Ok((name, threads)),
        _ => Err(format!("--loads {load}: write zipf, uniform or scanmix, then :THREADS")),
    }
}

fn run(args: &Args) -> Result<(), String> {
    let loads: Vec<_> = args.loads.iter().map(|load| parse(load)).collect::<Result<_, _>>()?;
    if args.rounds == 0 || args.warm <= 0.0 || args.seconds <= 0.0 {
        return Err("--rounds, --warm and --seconds must be more than 0".into());
    }
    let runner = Runner::new(args.ebb.clone())?;
    if !args.no_fit {
        fit(&runner, args.rounds)?;
    }
    if !loads.is_empty() {
        let kernel = Kernel::new(LIMIT, 3 * LIMIT, &args.folder);
        if let Err(why) = &kernel {
            println!("The kernel's side is left out: {why}\n");
        }
        let cgroup = kernel.as_ref().ok().map(|kernel| kernel.cgroup.clone());
        paging(args, &runner, &loads, cgroup)?;
    }
    cool(args, &runner)
}

fn ebb(limit_bytes: u64, more: &[&str]) -> Place {
    Place::Ebb { limit_bytes, more: more.iter().map(ToString::to_string).collect() }
}

/// The tables of `--loads`.
fn paging(
    args: &Args,
    runner: &Runner,
    loads: &[(&'static str, usize)],
    cgroup: Option<PathBuf>,
) -> Result<(), String> {
    let mut places = vec![
        ("ebb, default tiers", ebb(LIMIT, &[])),
        ("ebb, --swap file", ebb(LIMIT, &["--swap", "file"])),
    ];
    places.extend(cgroup.map(|cgroup| ("kernel, swap file", Place::Kernel(cgroup))));
    places.push(("plain, no limit", Place::Plain));
    let head = "| load | threads | configuration | accesses/s | to kernel | CPU us/access";
    println!("{head} | misses/access | ebb MiB |");
    println!("|---|---|---|---|---|---|---|---|");
    for &(pattern, threads) in loads {
        let load = Load { pattern, threads, mib: 1024, warm: args.warm, seconds: args.seconds };
        let cells = measure(runner, &places, &load, args.rounds)?;
        let kernel = cells.iter().zip(&places).find(|(_, (_, p))| matches!(p, Place::Kernel(_)));
        let kernel = kernel.map(|(cell, _)| cell.rate);
        for ((name, place), cell) in places.iter().zip(&cells) {
            let ratio = kernel.map_or("-".into(), |kernel| format!("{:.2}", cell.rate / kernel));
            println!(
                "| {pattern} | {threads} | {name} | {:.0} | {ratio} | {:.2} | {} | {} |",
                cell.rate,
                cell.cpu_us,
                if matches!(place, Place::Plain) {
                    "-".into()
                } else {
                    format!("{:.4}", cell.misses)
                },
                if matches!(place, Place::Ebb { .. }) { cell.memory() } else { "-".into() },
            );
        }
    }
    println!();
    Ok(())
}

/// The table of `--cool`.
fn cool(args: &Args, runner: &Runner) -> Result<(), String> {
    if args.cool.is_empty() {
        return Ok(());
    }
    let places: Vec<_> = args
        .cool
        .iter()
        .map(|cool| ("", ebb(LIMIT, &["--set", &format!("cool={cool}")])))
        .collect();
    let load =
        Load { pattern: "zipf", threads: 1, mib: 1024, warm: args.warm, seconds: args.seconds };
    let cells = measure(runner, &places, &load, args.rounds)?;
    println!("| cool, permille | accesses/s | CPU us/access | misses/access |");
    println!("|---|---|---|---|");
    for (cool, cell) in args.cool.iter().zip(&cells) {
        println!("| {cool} | {:.0} | {:.2} | {:.4} |", cell.rate, cell.cpu_us, cell.misses);
    }
    Ok(())
}

/// Medians of one configuration.
struct Cell {
    rate: f64,
    cpu_us: f64,
    misses: f64,
    own_mib: f64,
    shared_mib: f64,
}

impl Cell {
    fn memory(&self) -> String {
        format!("{:.1} + {:.1} shared", self.own_mib, self.shared_mib)
    }
}

fn measure(
    runner: &Runner,
    places: &[(&str, Place)],
    load: &Load,
    rounds: usize,
) -> Result<Vec<Cell>, String> {
    let mut samples: Vec<Vec<[f64; 5]>> = places.iter().map(|_| Vec::new()).collect();
    for _ in 0..rounds {
        for (n, (_, place)) in places.iter().enumerate() {
            // Nothing warms up where all is resident.
            let load = match place {
                Place::Plain => Load { warm: 1.0, seconds: 1.0_f64.min(load.seconds), ..*load },
                _ => *load,
            };
            let outcome = runner.run(place, &load)?;
            let misses = outcome.swapped_in as f64 / outcome.accesses as f64;
            samples[n].push([
                outcome.accesses as f64 * 1e6 / outcome.wall_us as f64,
                outcome.cpu_us as f64 / outcome.accesses as f64,
                misses,
                outcome.ebb_bytes as f64 / MIB as f64,
                outcome.ebb_shared_bytes as f64 / MIB as f64,
            ]);
        }
    }
    Ok(samples.iter().map(|rounds| cell(rounds)).collect())
}

fn cell(rounds: &[[f64; 5]]) -> Cell {
    let column = |n: usize| median(rounds.iter().map(|row| row[n]).collect());
    Cell {
        rate: column(0),
        cpu_us: column(1),
        misses: column(2),
        own_mib: column(3),
        shared_mib: column(4),
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    if values.len() % 2 == 1 { values[half] } else { f64::midpoint(values[half - 1], values[half]) }
}

/// What programs cost that fit: ratios of paired runs, the median of them.
fn fit(runner: &Runner, rounds: usize) -> Result<(), String> {
    let zipf = Load { pattern: "zipf", threads: 1, mib: 1024, warm: 1.0, seconds: 2.0 };
    let touch = Load { pattern: "touch", threads: 1, mib: 256, warm: 0.0, seconds: 0.0 };
    let rate = |outcome: &Outcome| outcome.accesses as f64 * 1e6 / outcome.wall_us as f64;
    let mut speed = Vec::new();
    let mut first = Vec::new();
    for _ in 0..rounds {
        let with = runner.run(&ebb(2048 * MIB, &[]), &zipf)?;
        let without = runner.run(&Place::Plain, &zipf)?;
        speed.push(rate(&with) / rate(&without));
    }
    for _ in 0..3 * rounds {
        let with = runner.run(&ebb(4096 * MIB, &[]), &touch)?;
        let without = runner.run(&Place::Plain, &touch)?;
        first.push(with.fill_us as f64 / without.fill_us as f64);
    }
    println!("| what fits | under ebb / plain |");
    println!("|---|---|");
    println!("| zipf over 1 GiB, limit 2 GiB: accesses/s | {:.3} |", median(speed));
    println!("| first touch of 256 MiB, limit 4 GiB: time | {:.3} |\n", median(first));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_read() {
        assert_eq!(parse("zipf:2"), Ok(("zipf", 2)));
        assert_eq!(parse("uniform"), Ok(("uniform", 1)));
        assert!(parse("zipf:0").is_err());
        assert!(parse("pareto:1").is_err());
    }

    #[test]
    fn medians() {
        assert!((median(vec![3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(vec![4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
    }
}
