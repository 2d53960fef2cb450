//! `ebb bench account` checks whether the parts in a run's report add up to the time that the run
//! loses.
//!
//! A program runs plain and under Ebb, in turns. The lost time is the difference. It is compared
//! with the sum of these parts:
//! * the time in which the thread sleeps and waits for pages;
//! * the extra processor time of the thread: the kernel's part of each fault and cold caches;
//! * mapping changes, calls to the pager, the freezer, and other threads on its CPU;
//! * the time before the program begins and after it has ended.
//!
//! All parts but the second and the last come from the report. The parts are times of one thread.
//! If several threads do the same work, each part but the last is the mean over the threads.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Instant;

use clap::Parser;
use ebb_sys::process;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::RunError;
use crate::paging::Outcome;
use crate::stats::Summary;

/// Check whether the parts of a run's report add up to the time that the run lost.
#[derive(Debug, Parser)]
#[command(
    name = "ebb bench account",
    after_help = "\
Without PROGRAM the benchmark runs a load that also times its own accesses, and compares the waiting in the
report with these times.

Examples:
  ebb bench account
  ebb bench account --swap file --accesses 200000
  ebb bench account --memory-max 128M -- python3 job.py"
)]
struct Args {
    /// Rounds; medians are shown, with quartiles
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// As for `ebb run`
    #[arg(long, default_value = "186M")]
    memory_max: String,
    /// As for `ebb run`
    #[arg(long, default_value = "ram")]
    swap: String,
    /// Threads of the load
    #[arg(long, default_value_t = 1)]
    threads: u32,
    /// Accesses of the load, over 256 MiB
    #[arg(long, default_value_t = 1_000_000)]
    accesses: u64,
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    /// The `ebb` to measure [default: the one beside this program]
    #[arg(long)]
    ebb: Option<PathBuf>,
    /// A program of one thread, and its arguments
    #[arg(last = true, value_name = "PROGRAM")]
    program: Vec<String>,
}

/// Measurements of the program, which its parent process makes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Inner {
    /// Wall time in microseconds.
    pub wall_us: u64,
    cpu_us: u64,
}

/// Measurements of one run.
#[derive(Clone, Copy, Debug, Default)]
struct Run {
    wall_s: f64,
    inner: Inner,
    /// Time that the load itself has measured, in seconds.
    timed_s: f64,
}

/// The parts, in the order in which they are shown.
const PARTS: [&str; 7] = [
    "waiting for pages",
    "processor time beyond the plain run's",
    "mapping changes",
    "calls to the pager",
    "the freezer",
    "without a CPU between faults",
    "before the program begins and after it ends",
];

/// Result of one round.
#[derive(Clone, Debug)]
struct Round {
    plain_s: f64,
    ebb_s: f64,
    parts_s: [f64; PARTS.len()],
    /// Ratio of the waiting in the report to the waiting that the load has timed.
    timed: Option<f64>,
}

impl Round {
    fn of(plain: Run, ebb: Run, report: &Value, threads: u32) -> Self {
        let get = |path: &str| report.pointer(path).and_then(Value::as_u64).unwrap_or(0) as f64;
        let threads = f64::from(threads);
        let waited_s = get("/waiting/total_us") / 1e6;
        let within_s = get("/stages/in_thread_ns") * get("/stages/count") / 1e9;
        let inner = |us: fn(&Inner) -> u64| (us(&ebb.inner) as f64 - us(&plain.inner) as f64) / 1e6;
        let around = |run: Run| run.wall_s - run.inner.wall_us as f64 / 1e6;
        // The agent is a thread of the program.
        let cpu_s = inner(|inner| inner.cpu_us) - get("/cpu/agents_us") / 1e6;
        let parts_s = [
            (waited_s - within_s) / threads,
            cpu_s / threads,
            get("/lost/changes_us") / 1e6 / threads,
            get("/lost/calls_us") / 1e6 / threads,
            get("/lost/freezer_us") / 1e6 / threads,
            get("/stages/kept_off_ns") / 1e9 / threads,
            around(ebb) - around(plain),
        ];
        let timed = (ebb.timed_s > 0.0).then_some(waited_s / ebb.timed_s);
        Self { plain_s: plain.wall_s, ebb_s: ebb.wall_s, parts_s, timed }
    }

    fn lost_s(&self) -> f64 {
        self.ebb_s - self.plain_s
    }

    /// Returns the sum of the parts as a share of the lost time.
    fn share(&self) -> f64 {
        self.parts_s.iter().sum::<f64>() / self.lost_s()
    }
}

/// Runs `ebb bench account` with these arguments, which leave out the command's name.
pub fn main(args: impl IntoIterator<Item = String>) -> ExitCode {
    let args: Args = match crate::parse("ebb bench account", args) {
        Ok(args) => args,
        Err(code) => return code,
    };
    match run(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("ebb bench account: {why}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &Args) -> Result<(), RunError> {
    if args.rounds == 0 || args.threads == 0 {
        return Err(RunError::Zero("--rounds and --threads"));
    }
    let ebb = crate::ebb_to_measure(args.ebb.clone())?;
    let folder = tempfile::tempdir().map_err(RunError::Folder)?;
    let mut rounds = Vec::new();
    for _ in 0..args.rounds {
        let plain = start(args, folder.path(), None)?;
        let run = start(args, folder.path(), Some(&ebb))?;
        let report = read(&folder.path().join("report"))?;
        rounds.push(Round::of(plain, run, &report, args.threads));
    }
    if args.json {
        println!("{}", json(&rounds));
    } else {
        print!("{}", text(&rounds));
    }
    Ok(())
}

/// Reads a file of JSON.
pub(crate) fn read<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, RunError> {
    let text = fs::read_to_string(path).map_err(|error| RunError::Read(path.into(), error))?;
    serde_json::from_str(&text).map_err(|error| RunError::Json(path.into(), error))
}

/// Runs the program once, plain or under `ebb`.
fn start(args: &Args, folder: &Path, ebb: Option<&Path>) -> Result<Run, RunError> {
    let own = crate::own_bench()?;
    let [report, inner] = ["report", "inner"].map(|name| folder.join(name));
    let mut words: Vec<String> = Vec::new();
    if let Some(ebb) = ebb {
        words.push(ebb.to_string_lossy().into_owned());
        words.extend(
            ["run", "--memory-max", &args.memory_max, "--swap", &args.swap].map(Into::into),
        );
        words.extend(["--report", "json", "--report-file"].map(Into::into));
        words.extend([report.to_string_lossy().into_owned(), "--".into()]);
    }
    words.extend(own.iter().cloned());
    words.extend(["account-run".into(), inner.to_string_lossy().into_owned()]);
    let is_load = args.program.is_empty();
    if is_load {
        words.extend(own);
        words.extend(
            ["paging-load", "--pattern", "loop", "--mib", "256", "--timed"].map(Into::into),
        );
        words.extend(["--warm", "0", "--seconds", "0", "--threads"].map(Into::into));
        words.extend([args.threads.to_string(), "--accesses".into(), args.accesses.to_string()]);
    } else {
        words.extend(args.program.iter().cloned());
    }
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null());
    let stdout = if is_load { Stdio::piped() } else { Stdio::null() };
    let began = Instant::now();
    let output = (command.stdout(stdout).stderr(Stdio::inherit()).output())
        .map_err(|error| RunError::Start(words[0].clone(), error))?;
    let wall_s = began.elapsed().as_secs_f64();
    if !output.status.success() {
        return Err(RunError::Failed("the program", output.status));
    }
    let timed_s = if is_load {
        let outcome: Outcome = serde_json::from_slice(&output.stdout).map_err(RunError::Load)?;
        outcome.long_us as f64 / 1e6
    } else {
        0.0
    };
    Ok(Run { wall_s, inner: read(&inner)?, timed_s })
}

/// Runs the program, and measures its wall time and processor time. `account` starts this as a
/// process of its own.
pub fn inner(args: impl IntoIterator<Item = String>) -> ExitCode {
    let mut args = args.into_iter();
    let (Some(file), Some(program)) = (args.next(), args.next()) else { return ExitCode::from(2) };
    let began = Instant::now();
    let status = Command::new(program).args(args).status();
    let wall_us = began.elapsed().as_micros() as u64;
    let found = Inner { wall_us, cpu_us: process::children_cpu().as_micros() as u64 };
    match (status, fs::write(file, serde_json::json!(found).to_string())) {
        (Ok(status), Ok(())) => ExitCode::from(status.code().map_or(1, |code| code as u8)),
        _ => ExitCode::from(2),
    }
}

/// Summarises one figure over the rounds.
fn summary(rounds: &[Round], figure: impl Fn(&Round) -> Option<f64>) -> Option<Summary> {
    Summary::of(&rounds.iter().filter_map(figure).collect::<Vec<_>>())
}

fn text(rounds: &[Round]) -> String {
    let show = |figure: &dyn Fn(&Round) -> f64, digits| {
        summary(rounds, |round| Some(figure(round))).map_or("-".into(), |all| all.show(digits))
    };
    let mut out =
        String::from("| part | seconds [quartiles] | share of the loss |\n|---|---|---|\n");
    let mut line = |name: &str, seconds: String, share: String| {
        out += &format!("| {name} | {seconds} | {share} |\n");
    };
    line("plain", show(&|round| round.plain_s, 3), String::new());
    line("under ebb", show(&|round| round.ebb_s, 3), String::new());
    line("lost", show(&|round| round.lost_s(), 3), "1".into());
    for (part, name) in PARTS.iter().enumerate() {
        let share = show(&|round| round.parts_s[part] / round.lost_s(), 3);
        line(name, show(&|round| round.parts_s[part], 3), share);
    }
    let all = show(&|round| round.parts_s.iter().sum(), 3);
    line("all parts", all, show(&Round::share, 3));
    if let Some(timed) = summary(rounds, |round| round.timed) {
        out += &format!(
            "\nWaiting in the report, divided by the waiting that the load timed: {}\n",
            timed.show(3)
        );
    }
    out
}

fn json(rounds: &[Round]) -> Value {
    let median = |figure: &dyn Fn(&Round) -> Option<f64>| {
        summary(rounds, figure).map(|all| (all.median * 1000.0).round() / 1000.0)
    };
    serde_json::json!({
        "plain_s": median(&|round| Some(round.plain_s)),
        "ebb_s": median(&|round| Some(round.ebb_s)),
        "parts_s": (0..PARTS.len())
            .map(|part| median(&|round| Some(round.parts_s[part])))
            .collect::<Vec<_>>(),
        "parts_to_lost": median(&|round| Some(round.share())),
        "waiting_to_timed": median(&|round| round.timed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Round {
        let inner = |wall_us, cpu_us| Inner { wall_us, cpu_us };
        let plain = Run { wall_s: 1.1, inner: inner(1_000_000, 900_000), timed_s: 0.0 };
        let ebb = Run { wall_s: 4.35, inner: inner(4_000_000, 1_600_000), timed_s: 2.0 };
        let report = serde_json::json!({
            "waiting": { "total_us": 2_200_000 },
            "stages": { "in_thread_ns": 2_000, "count": 100_000 },
            "cpu": { "agents_us": 100_000 },
            "lost": { "changes_us": 150_000, "calls_us": 50_000, "freezer_us": 0 },
        });
        Round::of(plain, ebb, &report, 1)
    }

    #[test]
    fn nothing_counts_twice() {
        let round = example();
        let want = [2.0, 0.6, 0.15, 0.05, 0.0, 0.0, 0.25];
        for (got, want) in round.parts_s.iter().zip(want) {
            assert!((got - want).abs() < 1e-9, "{got} {want}");
        }
        assert!((round.share() - 3.05 / 3.25).abs() < 1e-9);
        assert!((round.timed.unwrap() - 1.1).abs() < 1e-9);
    }

    #[test]
    fn the_table_has_the_sum_of_the_parts() {
        let text = text(&[example(), example()]);
        assert!(text.contains("| all parts | 3.050 | 0.938 |"), "{text}");
        assert!(text.contains("that the load timed: 1.100"), "{text}");
        assert_eq!(json(&[example()])["parts_to_lost"], 0.938);
    }
}
