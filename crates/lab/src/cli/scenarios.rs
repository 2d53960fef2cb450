//! `ebb lab list`, `show`, `run` and `merge`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

use super::{attribute, print, quoted};
use crate::experiment::shard::{self, Shard};
use crate::experiment::{
    Job, Outcome, Plan, Results, Traced, at_sizes, beside_sizes, html, json, text,
};
use crate::report::OutputFormat;
use crate::scenario::{ArmSpec, BUILTIN, Scenario, find};

/// Arguments of `ebb lab run`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ebb lab run memcached                              a published result, and the lab's beside it
  ebb lab run redis --ab gen.walk=on,off             any switch against any other
  ebb lab run redis --seeds 2 --trace-events run.txt --trace-arm mglru
  trace-vmscan-postprocess.pl < run.txt              the kernel's script for that (docs/lab.md)")]
pub struct RunArgs {
    /// Scenario and settings of the runs
    #[command(flatten)]
    pub question: Question,
    /// Do only shard I of N of the runs, and print the input of `ebb lab merge`
    #[arg(long, value_name = "I/N", conflicts_with_all = ["html", "format"])]
    pub shard: Option<Shard>,
    /// Also write an HTML page with plots to this file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Events of one run
    #[command(flatten)]
    pub events: EventArgs,
    /// Threads to use [default: one for each processor]
    #[arg(long, short, value_name = "N")]
    pub jobs: Option<usize>,
    /// Format of the output
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// Choice of the run whose events are written.
#[derive(Debug, Args)]
pub struct EventArgs {
    /// Also write the events of reclaim in one run to this file, in the format in which ftrace
    /// prints the kernel's tracepoints (vmscan and mark_victim). Expect 400 bytes for each batch of
    /// up to 64 pages that reclaim scans, and 120 bytes for each page that it writes: 10 to 150 MB
    /// for a million pages
    #[arg(long, value_name = "FILE", conflicts_with_all = ["shard", "all"])]
    pub trace_events: Option<PathBuf>,
    /// Case of the run whose events are written [default: the first]
    #[arg(long, value_name = "NAME", requires = "trace_events")]
    pub trace_case: Option<String>,
    /// Arm of the run whose events are written [default: the first]
    #[arg(long, value_name = "NAME", requires = "trace_events")]
    pub trace_arm: Option<String>,
    /// Number of the run among the arm's runs, from 0
    #[arg(long, value_name = "N", requires = "trace_events", default_value_t = 0)]
    pub trace_seed: u32,
}

impl EventArgs {
    fn wanted(&self) -> Option<Traced> {
        Some(Traced {
            case: self.trace_case.clone(),
            arm: self.trace_arm.clone(),
            seed: self.trace_seed,
            file: self.trace_events.clone()?,
        })
    }
}

/// Settings that decide the results, on whichever machine the runs are done.
#[derive(Clone, Default, Debug, Args, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// A built-in scenario (`ebb lab list`), or a file ending in .toml
    #[arg(required_unless_present = "all")]
    pub scenario: Option<String>,
    /// Text of the scenario file, if the scenario is a file.
    #[arg(skip)]
    text: Option<String>,
    /// Run every built-in scenario, and score them by the rule in docs/lab.md
    #[arg(long, conflicts_with = "scenario")]
    pub all: bool,
    /// Set a key of the scenario, such as machine.cpus=4, or a switch, such as gen.walk=off
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Compare these values of one key instead of the scenario's arms; the first is the baseline
    #[arg(long, value_name = "KEY=A,B[,C]")]
    pub ab: Option<String>,
    /// Turn the mechanisms of the engine off, one at a time, and show the contribution of each
    #[arg(long, conflicts_with = "ab")]
    pub attribute: bool,
    /// Also run everything at half and at twice its size, and show which verdicts differ there
    #[arg(long, conflicts_with_all = ["ab", "attribute"])]
    pub sizes: bool,
    /// Runs of each arm, with the same seeds for all arms [default: the scenario's, 10]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(2..=10_000))]
    pub seeds: Option<u32>,
}

/// Arguments of `ebb lab merge`.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// Output of `ebb lab run --shard I/N` for every I: in a file each, or several in one
    #[arg(required = true, value_name = "FILE")]
    pub files: Vec<PathBuf>,
    /// Format of the output
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
}

/// First interval between samples of the machine for the pictures, in ns.
const SAMPLE_NS: u64 = 500_000;

/// Sizes of `--sizes`, as multiples of the file's.
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

/// Returns the arms of `KEY=A,B`.
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

impl Question {
    /// Reads the text of the scenario file, if the question names one.
    fn with_text(mut self) -> anyhow::Result<Self> {
        if let Some(name) = self.scenario.as_deref().filter(|name| name.ends_with(".toml")) {
            let text = std::fs::read_to_string(name).with_context(|| name.to_owned())?;
            self.text = Some(text);
        }
        Ok(self)
    }

    fn job(&self, file: &str, text: &str, samples: u64) -> anyhow::Result<Job> {
        let mut scenario = Scenario::parse(file, text)?;
        if let Some(seeds) = self.seeds {
            scenario.measure.seeds = seeds;
        }
        // Report a wrong setting here rather than in the middle of a long run.
        Scenario::with(text, &self.set)?;
        let mut arms = self.ab.as_deref().map(sides).transpose()?;
        if self.attribute {
            arms = Some(attribute::arms(&self.set));
        }
        if let Some(arms) = &arms {
            for arm in arms {
                Scenario::with(text, &arm.set).with_context(|| "--ab".to_owned())?;
            }
        }
        let seeds = scenario.measure.seeds;
        Ok(Job {
            scenario,
            text: text.to_owned(),
            set: self.set.clone(),
            arms,
            seeds,
            first_seed: 0,
            size: 1.0,
            samples,
        })
    }

    /// Plans all runs, with `samples` ns between samples of the machine.
    fn plan(&self, samples: u64) -> anyhow::Result<Plan> {
        let jobs = if self.all {
            let all = BUILTIN.iter().map(|b| self.job(b.name, b.text, samples));
            all.collect::<anyhow::Result<Vec<_>>>()?
        } else {
            let name = self.scenario.as_deref().unwrap_or_default();
            let (file, text) = match &self.text {
                Some(text) => (name, text.as_str()),
                None => find(name).map(|b| (b.name, b.text))?,
            };
            vec![self.job(file, text, samples)?]
        };
        Plan::new(at_sizes(&jobs, self.sizes()))
    }

    fn sizes(&self) -> &'static [f64] {
        if self.sizes { &SIZES } else { &[] }
    }

    /// Formats the results.
    fn report(&self, results: &[Results], format: OutputFormat) -> String {
        match format {
            OutputFormat::Text if self.attribute => attribute::report(results),
            OutputFormat::Text => text::report(results, !self.all),
            OutputFormat::Json => json::document(results),
            OutputFormat::Csv => json::csv(results),
        }
    }

    /// Returns the command line that asks this question.
    fn words(&self) -> String {
        let mut words = vec!["ebb".to_owned(), "lab".into(), "run".into()];
        let mut add = |name: &str, value: &dyn std::fmt::Display| {
            words.push(format!("--{name} {}", quoted(&value.to_string())));
        };
        self.set.iter().for_each(|pair| add("set", pair));
        self.ab.iter().for_each(|ab| add("ab", ab));
        self.seeds.iter().for_each(|seeds| add("seeds", seeds));
        let switches =
            [("--all", self.all), ("--attribute", self.attribute), ("--sizes", self.sizes)];
        words.extend(switches.into_iter().filter(|(_, on)| *on).map(|(name, _)| name.to_owned()));
        words.extend(self.scenario.as_deref().map(quoted));
        words.join(" ")
    }
}

/// Runs `ebb lab run`.
pub fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let question = args.question.clone().with_text()?;
    let samples = if args.html.is_some() { SAMPLE_NS } else { 0 };
    let mut plan = question.plan(samples)?;
    if let Some(wanted) = args.events.wanted() {
        plan.trace(&wanted).context("--trace-events")?;
    }
    let which = match args.shard {
        Some(shard) => shard.runs(plan.len()),
        None => (0..plan.len()).collect(),
    };
    let outcomes = perform(&plan, &which, args.jobs)?;
    if let Some(shard) = args.shard {
        let asked = serde_json::to_value(&question).context("the arguments")?;
        print(&shard::part(asked, shard, plan.len(), &outcomes))?;
        return Ok(ExitCode::SUCCESS);
    }
    let results = beside_sizes(plan.results(&outcomes)?, question.sizes());
    if let Some(path) = &args.html {
        std::fs::write(path, html::document(&results))
            .with_context(|| path.display().to_string())?;
    }
    print(&question.report(&results, args.format))?;
    Ok(ExitCode::SUCCESS)
}

/// Runs `ebb lab merge`: prints the report of one run of everything.
pub fn merge(args: &MergeArgs) -> anyhow::Result<ExitCode> {
    let read = |path: &PathBuf| {
        let name = path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(|| name.clone())?;
        Ok((name, text))
    };
    let files = args.files.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    let merged = shard::merge(&files)?;
    let question: Question =
        serde_json::from_value(merged.question).context("arguments in the files")?;
    if let [first, ..] = merged.missing[..] {
        let all: Vec<String> = merged.missing.iter().map(ToString::to_string).collect();
        bail!("missing: shard {}; to run it: {} --shard {first}", all.join(", "), question.words());
    }
    let plan = question.plan(0)?;
    ensure!(
        plan.len() == merged.outcomes.len(),
        "the files have {} runs, but this ebb plans {}",
        merged.outcomes.len(),
        plan.len()
    );
    let results = beside_sizes(plan.results(&merged.outcomes)?, question.sizes());
    print(&question.report(&results, args.format))?;
    Ok(ExitCode::SUCCESS)
}

fn perform(plan: &Plan, which: &[usize], jobs: Option<usize>) -> anyhow::Result<Vec<Outcome>> {
    let threads = jobs
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    let bar = indicatif::ProgressBar::hidden();
    let style = "{bar:30} {pos}/{len} runs, {eta} left";
    if let Ok(style) = indicatif::ProgressStyle::with_template(style) {
        bar.set_style(style);
    }
    let start = Instant::now();
    let outcomes = plan.perform(which, threads.max(1), &|done, all| {
        // Show no progress in the first second.
        if start.elapsed() > Duration::from_secs(1) {
            if bar.is_hidden() {
                bar.set_draw_target(indicatif::ProgressDrawTarget::stderr());
            }
            bar.set_length(all as u64);
            bar.set_position(done as u64);
        }
    })?;
    bar.finish_and_clear();
    Ok(outcomes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_question_is_printed_as_the_command_line_that_asks_it() {
        let question = Question {
            scenario: Some("my scenario.toml".into()),
            set: vec!["machine.cpus=4".into()],
            seeds: Some(3),
            sizes: true,
            ..Question::default()
        };
        let words = "ebb lab run --set machine.cpus=4 --seeds 3 --sizes 'my scenario.toml'";
        assert_eq!(question.words(), words);
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
