//! The commands of `ebb lab` as a library: takes arguments, prints a report on standard output,
//! returns the exit code.

mod attribute;
mod check;
mod fuzz;
mod mrc;
mod new;
mod rank;
mod scenarios;
mod tune;

use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::{Context, bail};
use clap::{Args, Subcommand};
use ebb_mm::tunables::{self, Tunables};

pub use check::CheckArgs;
pub use fuzz::FuzzArgs;
pub use mrc::MrcArgs;
pub use new::NewArgs;
pub use rank::RankArgs;
pub use scenarios::{MergeArgs, RunArgs};
pub use tune::TuneArgs;

use crate::policy::{Layout, Nature, POLICIES, PolicyInfo, Settings, parse_list};
use crate::replay::{self, Job, Outcome};
use crate::report::{self, OutputFormat, TraceInfo};
use crate::trace::synth::{self, Synth};
use crate::trace::{self, CompactWriter, Format, Lack, Reader, Spool, Thinner};

/// Subcommands of `ebb lab`.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// List the built-in scenarios
    List,
    /// Print the file of a built-in scenario, to read or to start from
    Show {
        /// Name of the scenario
        name: String,
    },
    /// Run a scenario on the simulated machine and compare its arms
    Run(RunArgs),
    /// Write a scenario with comments, as a file to edit
    New(NewArgs),
    /// Combine the output of `ebb lab run --shard` from one machine or several
    Merge(MergeArgs),
    /// Simulate random machines and look for bugs of reclaim
    Fuzz(FuzzArgs),
    /// Search for the values of switches and constants that are best for one metric
    Tune(TuneArgs),
    /// Replay a page trace through one or more policies
    Replay(ReplayArgs),
    /// Draw miss-ratio curves: miss ratios of policies at many memory sizes
    Mrc(mrc::MrcArgs),
    /// List the policies and the parameters of each
    Policies,
    /// Convert a trace to the compact format
    Convert(ConvertArgs),
    /// Compare replays with miss counts measured elsewhere
    CheckBaseline(CheckArgs),
    /// Rank a policy among policies measured elsewhere: misses relative to the optimum, by kind of
    /// trace
    Rank(RankArgs),
}

/// A trace, and the number of accesses to take from it.
#[derive(Debug, Args)]
pub struct TraceArgs {
    /// Trace file (zstd or plain), or a synthetic trace: synth:zipf, synth:uniform, synth:scanzipf
    /// or synth:loop, with ,pages=N,accesses=N,seed=N,theta=X after it
    pub trace: PathBuf,
    /// Format of the file, if it cannot be detected
    #[arg(long, value_name = "FORMAT")]
    pub input_format: Option<Format>,
    /// Replay only the first N accesses
    #[arg(long, value_name = "N", default_value_t = u64::MAX, hide_default_value = true)]
    pub accesses: u64,
}

/// Settings of the policies of a replay.
#[derive(Debug, Args)]
pub struct PolicyArgs {
    /// Set a policy's parameter, such as clock.bits=2; `ebb lab policies` lists them
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Kind of memory that gen and classic take the pages for
    #[arg(long = "as", value_name = "NATURE", value_enum, default_value_t)]
    pub nature: Nature,
    /// Order in which gen and classic put the pages in their address space
    #[arg(long, value_name = "ORDER", value_enum, default_value_t)]
    pub layout: Layout,
}

impl PolicyArgs {
    fn settings(&self) -> anyhow::Result<Arc<Settings>> {
        let mut settings = Settings::parse(&self.set)?;
        settings.engine.nature = self.nature;
        settings.engine.layout = self.layout;
        Ok(Arc::new(settings))
    }
}

/// Arguments of `ebb lab replay`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  ebb lab replay app.csv.zst --memory 10%,50% --policy lru,arc,gen
  ebb lab replay faults.txt --policy lru,gen         of perf script, or of bpftrace: page faults only
  ebb lab replay damon.txt --policy lru,gen          of damo report access --raw_form: regions, not accesses
docs/traces.md describes the formats of traces.")]
pub struct ReplayArgs {
    /// Trace to replay
    #[command(flatten)]
    pub trace: TraceArgs,
    /// Memory in pages, or in percent of the trace's pages; several sizes with commas
    #[arg(long, short, value_name = "PAGES|PERCENT", default_value = "50%")]
    pub memory: String,
    /// Policies to run, with commas; all: every policy
    #[arg(long, short, value_name = "LIST", default_value = "lru")]
    pub policy: String,
    /// Settings of the policies
    #[command(flatten)]
    pub policies: PolicyArgs,
    /// Format of the output
    #[arg(long, value_enum, default_value_t)]
    pub format: OutputFormat,
    /// Threads to use
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    pub jobs: usize,
}

/// Arguments of `ebb lab convert`.
#[derive(Debug, Args)]
pub struct ConvertArgs {
    /// Trace to convert
    #[command(flatten)]
    pub trace: TraceArgs,
    /// File to write; compressed with zstd if its name ends in .zst
    #[arg(value_name = "OUTPUT")]
    pub output: PathBuf,
    /// Keep each page once in N units of the trace's time, as scans of accessed bits at this
    /// interval would see it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub window: Option<u64>,
    /// With --window: count K consecutive pages as one
    #[arg(long, value_name = "K", default_value_t = 1, requires = "window",
          value_parser = clap::value_parser!(u64).range(1..))]
    pub frame: u64,
}

/// Runs a command. The exit code is 0, or 1 for a check that does not pass.
pub fn run(command: &LabCommand) -> anyhow::Result<ExitCode> {
    match command {
        LabCommand::List => scenarios::list(),
        LabCommand::Show { name } => scenarios::show(name),
        LabCommand::Run(args) => scenarios::run(args),
        LabCommand::New(args) => new::run(args),
        LabCommand::Merge(args) => scenarios::merge(args),
        LabCommand::Fuzz(args) => fuzz::run(args),
        LabCommand::Tune(args) => tune::run(args),
        LabCommand::Replay(args) => run_replay(args),
        LabCommand::Mrc(args) => mrc::run(args),
        LabCommand::Policies => run_policies(),
        LabCommand::Convert(args) => run_convert(args),
        LabCommand::CheckBaseline(args) => check::run(args),
        LabCommand::Rank(args) => rank::run(args),
    }
}

/// Quotes a word for the shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=,:%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// Writes to standard output; a closed pipe is no error.
fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other.context("standard output"),
    }
}

/// Loads a trace by path or synthetic name.
pub fn load(args: &TraceArgs) -> anyhow::Result<(TraceInfo, Spool)> {
    let name = args.trace.to_string_lossy().into_owned();
    let spool = if let Some(text) = name.strip_prefix(synth::PREFIX) {
        let mut synth = Synth::parse(text).with_context(|| name.clone())?;
        synth.accesses = synth.accesses.min(args.accesses);
        synth.spool().context("temporary file")?
    } else {
        let mut reader = Reader::open(&args.trace, args.input_format)?;
        trace::load(&args.trace, &mut reader, args.accesses, |_| true)?.0
    };
    let info = TraceInfo { name, accesses: spool.len(), pages: spool.pages() };
    Ok((info, spool))
}

/// Returns the message for a trace that lacks something.
#[must_use]
pub fn lacking(name: &str, lack: Lack) -> String {
    match lack {
        Lack::Touches => {
            format!("{name} has page faults only; accesses to resident pages are missing")
        }
        Lack::Accesses => format!(
            "{name} has regions, not accesses; the lab derives one access to each page of an accessed region in each \
             interval"
        ),
    }
}

/// Reads sizes such as `4096` or `25%`, with commas, for a trace of `pages` pages.
pub fn parse_memory(text: &str, pages: u32) -> anyhow::Result<Vec<u32>> {
    let mut sizes = Vec::new();
    for part in text.split(',').map(str::trim) {
        let size = match part.strip_suffix('%') {
            Some(percent) => {
                let percent = percent.trim().parse::<f64>().ok();
                percent
                    .filter(|percent| *percent > 0.0 && *percent <= 1000.0)
                    .map(|percent| ((percent / 100.0 * f64::from(pages)) as u32).max(1))
            }
            None => part.replace('_', "").parse().ok().filter(|&size| size > 0),
        };
        let Some(size) = size else {
            bail!(
                "--memory {part:?}: expected a number of pages, such as 4096, or a share of \
                the trace's pages, such as 25%"
            );
        };
        sizes.push(size);
    }
    Ok(sizes)
}

/// Returns the policies of a list, which must not be empty.
pub fn parse_policies(text: &str) -> anyhow::Result<Vec<&'static PolicyInfo>> {
    let policies = parse_list(text)?;
    if policies.is_empty() {
        bail!("--policy {text:?}: expected names with commas, such as lru,arc");
    }
    Ok(policies)
}

/// Display of a long run's progress, on a terminal only.
pub struct Progress {
    total: u64,
    done: std::sync::atomic::AtomicU64,
    start: std::time::Instant,
    shown: std::sync::atomic::AtomicU64,
    terminal: bool,
}

impl Progress {
    /// Starts to count towards `total`.
    #[must_use]
    pub fn new(total: u64) -> Self {
        Self {
            total,
            done: 0.into(),
            start: std::time::Instant::now(),
            shown: 0.into(),
            terminal: io::stderr().is_terminal(),
        }
    }

    /// Adds `part` to the work done.
    pub fn add(&self, part: u64) {
        use std::sync::atomic::Ordering::Relaxed;
        // Relaxed: only the display depends on these counters.
        let done = self.done.fetch_add(part, Relaxed) + part;
        let elapsed = self.start.elapsed();
        let tenths = elapsed.as_millis() as u64 / 100;
        if !self.terminal || tenths < 10 || self.shown.swap(tenths, Relaxed) == tenths {
            return;
        }
        let share = done as f64 / self.total.max(1) as f64;
        let left = elapsed.as_secs_f64() * (1.0 - share) / share.max(1e-9);
        eprint!("\r{:3.0} %, {left:.0} s left \x1b[K", share * 100.0);
        if done >= self.total {
            eprint!("\r\x1b[K");
        }
    }
}

/// Replays the trace of this name in `dir`, if the file exists and there are jobs.
fn replay_named(
    dir: &Path,
    trace: &str,
    jobs: &[Job],
    threads: usize,
) -> anyhow::Result<Option<Vec<Outcome>>> {
    let path = dir.join(format!("{trace}.csv.zst"));
    if jobs.is_empty() || !path.exists() {
        return Ok(None);
    }
    let mut reader = Reader::open(&path, None)?;
    let (spool, _) = trace::load(&path, &mut reader, u64::MAX, |_| true)?;
    let progress = Progress::new(spool.len() * jobs.len() as u64);
    Ok(Some(replay::run(&spool, jobs, threads, &|part| progress.add(part))?))
}

fn run_replay(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let policies = parse_policies(&args.policy)?;
    let settings = args.policies.settings()?;
    parse_memory(&args.memory, 1)?;
    let (info, spool) = load(&args.trace)?;
    let sizes = parse_memory(&args.memory, info.pages)?;
    match spool.lacks() {
        Some(lack @ Lack::Touches) => {
            eprintln!(
                "ebb: {}, so policies see fewer accesses than the program made",
                lacking(&info.name, lack)
            );
        }
        Some(lack @ Lack::Accesses) => {
            eprintln!("ebb: {}, so misses are no program's", lacking(&info.name, lack));
        }
        None => {}
    }
    let mut jobs = Vec::new();
    for &memory_pages in &sizes {
        for &policy in &policies {
            jobs.push(Job { policy, memory_pages, settings: Arc::clone(&settings) });
        }
    }
    let progress = Progress::new(spool.len() * jobs.len() as u64);
    let outcomes = replay::run(&spool, &jobs, args.jobs, &|part| progress.add(part))?;
    print(&report::replay(args.format, &info, &outcomes))?;
    Ok(ExitCode::SUCCESS)
}

fn run_policies() -> anyhow::Result<ExitCode> {
    let mut text = String::new();
    for info in POLICIES {
        text += &format!("{:<10} {}\n", info.name, info.about);
        for parameter in info.parameters {
            let key = format!("{}.{}={}", info.name, parameter.key, parameter.default);
            text += &format!("{:<10} --set {key:<24} {}\n", "", parameter.about);
        }
    }
    text += "\nSwitches of gen and classic, for --set KEY=VALUE:\n";
    for row in Tunables::default().rows() {
        if row.key != "lru" {
            let pair = format!("{}={}", row.key, row.value);
            text += &format!("{pair:<28} {} ({})\n", row.meaning, row.expected);
        }
    }
    text += "\nPresets set several switches, by --set preset=NAME:\n";
    for (name, meaning) in tunables::PRESETS.iter().zip(tunables::MEANINGS) {
        text += &format!("{:<28} {meaning}\n", format!("preset={name}"));
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn run_convert(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    let output = || args.output.display().to_string();
    let mut reader = Reader::open(&args.trace.trace, args.trace.input_format)?;
    let file = io::BufWriter::new(std::fs::File::create(&args.output).with_context(output)?);
    if args.output.extension().is_some_and(|extension| extension == "zst") {
        let packed = zstd::stream::write::Encoder::new(file, 10).with_context(output)?;
        let packed = copy_records(&mut reader, args, packed)?;
        packed.finish().and_then(|mut file| file.flush()).with_context(output)?;
    } else {
        copy_records(&mut reader, args, file)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn copy_records<W: Write>(reader: &mut Reader, args: &ConvertArgs, sink: W) -> anyhow::Result<W> {
    let output = || args.output.display().to_string();
    let mut thinner = args.window.map(|window| Thinner::new(window, args.frame));
    let (mut records, mut thin) = (Vec::new(), Vec::new());
    let mut left = args.trace.accesses;
    // Only the first records show the contents of the file.
    let mut more = reader.read(&mut records)?;
    let mut writer = CompactWriter::new(sink, reader.lacks()).with_context(output)?;
    while left > 0 && more {
        records.truncate(left.min(records.len() as u64) as usize);
        left -= records.len() as u64;
        if let Some(thinner) = &mut thinner {
            records.drain(..).for_each(|record| thinner.push(&record, &mut thin));
            std::mem::swap(&mut records, &mut thin);
        }
        records.iter().try_for_each(|record| writer.write(record)).with_context(output)?;
        more = reader.read(&mut records)?;
    }
    if let Some(thinner) = &mut thinner {
        thinner.finish(&mut thin);
        thin.iter().try_for_each(|record| writer.write(record)).with_context(output)?;
    }
    writer.finish().with_context(output)
}
