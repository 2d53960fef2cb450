//! `ebb lab list`, `show` and `run`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;

use super::{attribute, print};
use crate::experiment::{self, Job, html, json, text};
use crate::report::OutputFormat;
use crate::scenario::{ArmSpec, BUILTIN, Scenario, find};

/// Arguments of `ebb lab run`.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// A built-in scenario (`ebb lab list`), or a file ending in .toml
    #[arg(required_unless_present = "all")]
    pub scenario: Option<String>,
    /// Run every built-in scenario, and score them by the rule in docs/lab-rule.md
    #[arg(long, conflicts_with = "scenario")]
    pub all: bool,
    /// Set a key of the scenario, such as machine.cpus=4, or a switch, such as gen.walk=off
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Compare values of one key in place of what the scenario compares; the first is the baseline
    #[arg(long, value_name = "KEY=A,B[,C]")]
    pub ab: Option<String>,
    /// Turn every mechanism of the engine off, one at a time, and say what each contributes
    #[arg(long, conflicts_with = "ab")]
    pub attribute: bool,
    /// Run everything at half and at twice its size as well, and say which verdicts are not the same there
    #[arg(long, conflicts_with_all = ["ab", "attribute"])]
    pub sizes: bool,
    /// Also write one page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Runs of each side, on the same seeds for all sides [default: the scenario's, 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub seeds: Option<u32>,
    /// Threads to use [default: one for each processor]
    #[arg(long, short, value_name = "N")]
    pub jobs: Option<usize>,
    /// How to print
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// How often the machine is looked at for the pictures, to begin with.
const SAMPLE_NS: u64 = 500_000;

/// The sizes of `--sizes`, in times that of the file.
const SIZES: [f64; 2] = [0.5, 2.0];

/// Prints the built-in scenarios.
pub fn list() -> anyhow::Result<ExitCode> {
    let width = BUILTIN.iter().map(|b| b.name.len()).max().unwrap_or(0);
    let mut out = String::new();
    for b in BUILTIN {
        let s = Scenario::parse(b.name, b.text)?;
        out += &format!("{:<width$} {}\n", s.name, s.title);
    }
    print(&out)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a built-in scenario's file.
pub fn show(name: &str) -> anyhow::Result<ExitCode> {
    print(find(name)?.text)?;
    Ok(ExitCode::SUCCESS)
}

/// The sides of `KEY=A,B`.
fn sides(text: &str) -> anyhow::Result<Vec<ArmSpec>> {
    let expected = "expected KEY=A,B, such as lru=classic,gen";
    let Some((key, values)) = text.split_once('=') else { bail!("--ab {text}: {expected}") };
    let arms: Vec<ArmSpec> = values
        .split(',')
        .map(|value| {
            let pair = format!("{}={}", key.trim(), value.trim());
            ArmSpec { name: pair.clone(), set: vec![pair] }
        })
        .collect();
    if arms.len() < 2 {
        bail!("--ab {text}: {expected}");
    }
    Ok(arms)
}

fn job(args: &RunArgs, file: &str, text: &str) -> anyhow::Result<Job> {
    let mut scenario = Scenario::parse(file, text)?;
    if let Some(seeds) = args.seeds {
        scenario.measure.seeds = seeds;
    }
    // Told here rather than in the middle of a long run.
    Scenario::with(text, &args.set)?;
    let mut arms = args.ab.as_deref().map(sides).transpose()?;
    if args.attribute {
        arms = Some(attribute::arms(&args.set));
    }
    if let Some(arms) = &arms {
        for arm in arms {
            Scenario::with(text, &arm.set).with_context(|| "--ab".to_owned())?;
        }
    }
    let seeds = scenario.measure.seeds;
    let samples = if args.html.is_some() { SAMPLE_NS } else { 0 };
    Ok(Job {
        scenario,
        text: text.to_owned(),
        set: args.set.clone(),
        arms,
        seeds,
        first_seed: 0,
        size: 1.0,
        samples,
    })
}

fn jobs(args: &RunArgs) -> anyhow::Result<Vec<Job>> {
    if args.all {
        return BUILTIN.iter().map(|b| job(args, b.name, b.text)).collect();
    }
    let name = args.scenario.as_deref().unwrap_or_default();
    if name.ends_with(".toml") {
        let text = std::fs::read_to_string(PathBuf::from(name)).with_context(|| name.to_owned())?;
        return Ok(vec![job(args, name, &text)?]);
    }
    let b = find(name)?;
    Ok(vec![job(args, b.name, b.text)?])
}

/// Runs.
pub fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let jobs = jobs(args)?;
    let threads = args
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let bar = indicatif::ProgressBar::hidden();
    let style = "{bar:30} {pos}/{len} runs, {eta} left";
    if let Ok(style) = indicatif::ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    let start = Instant::now();
    let sizes = if args.sizes { &SIZES[..] } else { &[] };
    let results = experiment::run_at_sizes(&jobs, sizes, threads.max(1), &|done, all| {
        // Nothing is shown of what takes less than a second.
        if start.elapsed() > Duration::from_secs(1) {
            if bar.is_hidden() {
                bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            }
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        }
    })?;
    bar.finish_and_clear();
    if let Some(path) = &args.html {
        std::fs::write(path, html::document(&results))
            .with_context(|| path.display().to_string())?;
    }
    print(&match args.format {
        OutputFormat::Text if args.attribute => attribute::report(&results),
        OutputFormat::Text => text::report(&results, !args.all),
        OutputFormat::Json => json::document(&results),
        OutputFormat::Csv => json::csv(&results),
    })?;
    Ok(ExitCode::SUCCESS)
}
