//! `ebb lab fuzz`: draws machines at random, and checks rules that none may break.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::{Args, ValueEnum};
use serde_json::{Value, json};

use super::{print, quoted};
use crate::fuzz::oracle::{self, Oracle};
use crate::fuzz::{self, Finding, Hunt, draw};
use crate::scenario::Scenario;

/// Version of the JSON report.
const SCHEMA: u32 = 1;

/// Arguments of `ebb lab fuzz`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ebb lab fuzz                                   1,000 machines
  ebb lab fuzz --time 60s --seed 1000000         as many as fit in a minute, from another seed on
  ebb lab fuzz --set kswapd.idle_index=zero      with a bug that kswapd had until 2017
  ebb lab fuzz --set preset=classic --set classic.flush=on --only sum-storm --first
                                                 with a bug of Linux 5.15; docs/fuzz.md lists more
  ebb lab fuzz --seed 17 --machines 1 --only false-oom --out found
  ebb lab fuzz found/false-oom-17.toml           a finding again, from its file
Several computers: each takes its own seeds, --seed 0, --seed 100000, and so on.
The exit status is 1 if anything was found, and 2 for an error. The rules: docs/fuzz.md.")]
pub struct FuzzArgs {
    /// Check the machines of these scenarios, each with every arm, instead of random machines
    #[arg(value_name = "FILE", conflicts_with_all = ["seed", "machines", "time", "first"])]
    pub files: Vec<PathBuf>,
    /// Seed of the first machine; each further machine has the next number
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
    /// Number of machines [default: 1000, or unlimited with --time]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub machines: Option<u64>,
    /// Begin no machine after this time, such as 60s or 5m
    #[arg(long, value_name = "TIME")]
    pub time: Option<String>,
    /// Check only this rule
    #[arg(long, value_name = "ORACLE")]
    pub only: Option<String>,
    /// Set a switch of every machine, after the random ones: kswapd.idle_index=zero
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Stop at the first finding
    #[arg(long)]
    pub first: bool,
    /// Print the first machine's scenario and run nothing
    #[arg(long, conflicts_with_all = ["files", "machines", "time", "only", "first", "out"])]
    pub show: bool,
    /// Write each finding that could be shrunk to this folder, as a scenario
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Format of the output
    #[arg(long, value_enum, default_value_t)]
    pub format: Format,
    /// Threads to use [default: one for each processor]
    #[arg(long, short, value_name = "N")]
    pub jobs: Option<usize>,
}

/// Format of the output.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, ValueEnum)]
pub enum Format {
    /// Text for people.
    #[default]
    Text,
    /// JSON for programs.
    Json,
}

/// Number of machines without `--machines` and `--time`.
const MACHINES: u64 = 1000;

/// A finding; the first finding of each rule is shrunk, too.
struct Told {
    finding: Finding,
    small: Option<(String, u32)>,
}

/// Runs `ebb lab fuzz`.
pub fn run(args: &FuzzArgs) -> anyhow::Result<ExitCode> {
    let only = args.only.as_deref().map(oracle::find).transpose()?;
    if !args.files.is_empty() {
        return files(args, only);
    }
    let time = args.time.as_deref().map(seconds).transpose()?;
    let machines = args.machines.unwrap_or(if time.is_some() { u64::MAX } else { MACHINES });
    if let Some(pair) = args.set.iter().find(|pair| !is_switch(pair)) {
        bail!("--set {pair}: expected a switch of the engine (`ebb lab policies` lists them)");
    }
    if args.show {
        print(&draw::with(args.seed, &args.set))?;
        return Ok(ExitCode::SUCCESS);
    }
    let jobs = args
        .jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let hunt = Hunt {
        first: args.seed,
        machines,
        only,
        set: args.set.clone(),
        jobs,
        first_only: args.first,
    };
    tell_of_panics(args);
    let start = Instant::now();
    let bar = bar(machines, time);
    let caught = fuzz::hunt(&hunt, &|number| {
        if start.elapsed() > Duration::from_secs(1) && number % 16 == 0 {
            if bar.is_hidden() {
                bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            }
            bar.set_position(if time.is_some() { start.elapsed().as_secs() } else { number });
        }
        time.is_some_and(|time| start.elapsed() >= time)
    })?;
    bar.finish_and_clear();
    let took = start.elapsed();
    let mut known = BTreeSet::new();
    let told: Vec<Told> = caught
        .findings
        .into_iter()
        .map(|finding| {
            // Shrink only the first finding of each rule.
            let small = known.insert(finding.oracle.name).then(|| finding.shrunk());
            Told { finding, small }
        })
        .collect();
    if let Some(folder) = &args.out {
        write(folder, &told)?;
    }
    let run = Run { args, machines: caught.machines, took, told: &told };
    print(&match args.format {
        Format::Text => run.text(),
        Format::Json => run.json().to_string() + "\n",
    })?;
    Ok(ExitCode::from(u8::from(!told.is_empty())))
}

/// Returns whether a setting is a switch of the engine and not a key of the machine.
fn is_switch(pair: &str) -> bool {
    let root = pair.split(['.', '=']).next().unwrap_or_default();
    !["machine", "costs", "measure", "memcg", "workload"].contains(&root)
}

/// Parses `60s`, `5m`, `1h`.
fn seconds(text: &str) -> anyhow::Result<Duration> {
    let (number, unit) = text.split_at(text.trim_end_matches(['s', 'm', 'h']).len());
    let unit = match unit {
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => 0.0,
    };
    match number.parse::<f64>() {
        Ok(n) if n > 0.0 && n * unit > 0.0 && n * unit < 1e9 => {
            Ok(Duration::from_secs_f64(n * unit))
        }
        _ => bail!("--time {text:?}: expected a time such as 60s, 5m or 1h"),
    }
}

fn bar(machines: u64, time: Option<Duration>) -> indicatif::ProgressBar {
    let bar = indicatif::ProgressBar::hidden();
    let (length, what) = match time {
        Some(time) => (time.as_secs(), "s"),
        None => (machines, "machines"),
    };
    bar.set_length(length);
    let style = format!("{{bar:30}} {{pos}}/{{len}} {what}");
    if let Ok(style) = indicatif::ProgressStyle::with_template(&style) {
        bar.set_style(style);
    }
    bar
}

/// Reports the machine in a panic that ends the program.
fn tell_of_panics(args: &FuzzArgs) {
    let set = settings(&args.set);
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        let Some(seed) = fuzz::running() else { return before(info) };
        if cfg!(panic = "abort") {
            eprintln!("machine {seed}: books: {info}");
            eprintln!("to replay: ebb lab fuzz{set} --seed {seed} --machines 1 --only books");
            std::process::exit(1);
        }
    }));
}

fn settings(set: &[String]) -> String {
    set.iter().map(|pair| format!(" --set {}", quoted(pair))).collect()
}

fn write(folder: &Path, told: &[Told]) -> anyhow::Result<()> {
    let shown = |path: &Path| path.display().to_string();
    std::fs::create_dir_all(folder).with_context(|| shown(folder))?;
    for Told { finding, small } in told {
        let Some((text, _)) = small else { continue };
        let path = folder.join(format!("{}-{}.toml", finding.oracle.name, finding.seed));
        std::fs::write(&path, text).with_context(|| shown(&path))?;
    }
    Ok(())
}

/// Contents of the report.
struct Run<'a> {
    args: &'a FuzzArgs,
    machines: u64,
    took: Duration,
    told: &'a [Told],
}

impl Run<'_> {
    fn replay(&self, finding: &Finding) -> String {
        let (set, seed) = (settings(&self.args.set), finding.seed);
        format!("ebb lab fuzz{set} --seed {seed} --machines 1 --only {}", finding.oracle.name)
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for Told { finding, .. } in self.told {
            let _ = writeln!(
                text,
                "machine {}: {}: {}",
                finding.seed, finding.oracle.name, finding.told
            );
        }
        let (n, seconds) = (self.machines, self.took.as_secs_f64());
        let minute = 60.0 * n as f64 / seconds.max(1e-9);
        let seeds = match n {
            0 => String::new(),
            1 => format!(", seed {}", self.args.seed),
            _ => format!(", seeds {} to {}", self.args.seed, self.args.seed.wrapping_add(n - 1)),
        };
        let found = match self.told.len() {
            0 => "nothing was found".to_owned(),
            1 => "1 finding".to_owned(),
            many => format!("{many} findings"),
        };
        let machines = if n == 1 { "machine" } else { "machines" };
        let _ = writeln!(
            text,
            "{n} {machines} in {seconds:.1} s ({minute:.0} a minute){seeds}: {found}"
        );
        for Told { finding, small } in self.told {
            let Some((small, steps)) = small else { continue };
            let lines = |text: &str| text.lines().count();
            let (name, seed) = (finding.oracle.name, finding.seed);
            let sizes = (lines(&finding.text), lines(small));
            let _ = write!(
                text,
                "\n# {name}, machine {seed}, shrunk in {steps} steps, from {} lines to {}\n# {}\n{small}\n\
                 # to replay: {}\n",
                sizes.0,
                sizes.1,
                finding.oracle.rule,
                self.replay(finding)
            );
        }
        text
    }

    fn json(&self) -> Value {
        let findings = self.told.iter().map(|Told { finding, small }| {
            json!({
                "seed": finding.seed,
                "oracle": finding.oracle.name,
                "told": finding.told,
                "scenario": finding.text,
                "small": small.as_ref().map(|(text, _)| text),
                "replay": self.replay(finding),
            })
        });
        json!({
            "schema": SCHEMA,
            "seed": self.args.seed,
            "machines": self.machines,
            "seconds": self.took.as_secs_f64(),
            "findings": findings.collect::<Vec<_>>(),
        })
    }
}

/// Examines the machines of files, each with every arm.
fn files(args: &FuzzArgs, only: Option<&'static Oracle>) -> anyhow::Result<ExitCode> {
    ensure!(args.out.is_none(), "--out: the findings are in files already; leave --out out");
    let (mut text, mut all) = (String::new(), Vec::new());
    for path in &args.files {
        let name = path.display().to_string();
        let file = std::fs::read_to_string(path).with_context(|| name.clone())?;
        for arm in Scenario::parse(&name, &file)?.arm {
            let pairs: Vec<String> = arm.set.iter().chain(&args.set).cloned().collect();
            let scenario = Scenario::with(&file, &pairs)?;
            let broken = fuzz::examine(&scenario, only);
            for (oracle, told) in &broken {
                let _ = writeln!(text, "{name}, {}: {}: {told}", arm.name, oracle.name);
                all.push(
                    json!({ "file": name, "arm": arm.name, "oracle": oracle.name, "told": told }),
                );
            }
            if broken.is_empty() {
                let _ = writeln!(text, "{name}, {}: nothing was found", arm.name);
            }
        }
    }
    let found = !all.is_empty();
    print(&match args.format {
        Format::Text => text,
        Format::Json => json!({ "schema": SCHEMA, "findings": all }).to_string() + "\n",
    })?;
    Ok(ExitCode::from(u8::from(found)))
}
