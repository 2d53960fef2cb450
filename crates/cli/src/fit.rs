//! `ebb fit` runs a program to find the smallest limit at which its slowdown is permitted.
//!
//! The first runs are without Ebb. The next run gets nine tenths of the memory, and Ebb samples how
//! soon pages are reused (`ebb run --sample`). The sample gives a curve of the misses in each
//! smaller memory. The next run gets the smallest memory that the curve allows, and further runs go
//! up or down from there. The result is a size in which the program has run.

use crate::run::memory_total;
use crate::{program, size};
use ebb_pager::patience::Patience;
use ebb_swap::TierSpecError;
use ebb_sys::signals::{self, Signal, Signals};
use ebb_sys::{inherited, process};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Assumed cost of a miss, in seconds, until a run has measured it.
const MISS_S: f64 = 40e-6;
/// Ratio below which two sizes count as equal.
const CLOSE: f64 = 1.06;
/// Factor over the peak of resident memory: it covers the watermarks and variation between runs.
const SPARE: f64 = 1.1;
/// A plain run that takes longer is not repeated.
const LONG: Duration = Duration::from_secs(60);
/// A run is stopped when it takes this many times the allowed time.
const TOO_SLOW: f64 = 2.0;
/// Signals that end the search.
const ENDING: [i32; 4] = [signals::SIGINT, signals::SIGTERM, signals::SIGHUP, signals::SIGQUIT];
/// Interval at which a running program is checked for its end.
const LOOK: Duration = Duration::from_millis(5);
/// Number of lines of a failed program's output that are shown.
const LINES: usize = 10;
const MIB: f64 = 1048576.0;
/// Number of sizes in the picture.
const ROWS: usize = 12;
const BAR: usize = 40;

#[derive(clap::Args)]
#[command(after_help = "\
Ebb runs the program several times, so each run must do the same. The program's standard input is empty without
--input, and Ebb does not show its output. For a program that does not end by itself, use ebb run --pressure-target.

Ebb ends a run that takes twice the permitted time.

The picture shows the predicted slowdown at each size, its 95 % interval, and the slowdowns that runs measured.

Exit status: 0; 1 if no limit keeps the slowdown; 125 if the program or ebb failed; 128+n if signal n ended it.

Examples:
  ebb fit -- python3 job.py
  ebb fit --slowdown 10% --swap ram -- ./simulate --steps 100
  ebb fit --input data.csv --html fit.html -- sort --parallel=1 -k2")]
pub struct Arguments {
    /// Permitted slowdown against a run with all the memory that the program wants
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    slowdown: String,
    /// Tiers for pages that do not fit, as for ebb run
    #[arg(long, value_name = "TIER[,TIER...]", default_value = "ram,file")]
    swap: String,
    /// Largest number of runs in less memory
    #[arg(long, value_name = "N", default_value = "6", value_parser = clap::value_parser!(u32).range(1..=50))]
    runs: u32,
    /// File for the program's standard input, read from the start in each run
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Form of the result on standard output
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// Write an HTML page with the picture to FILE
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    /// The program and its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "PROGRAM")]
    command: Vec<OsString>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Fields of a run's report that the search needs.
#[derive(Deserialize)]
struct Report {
    peak_resident_bytes: u64,
    faults: Faults,
    reuse: Option<Reuse>,
}

#[derive(Deserialize)]
struct Faults {
    loaded: u64,
    reactivated: u64,
}

#[derive(Deserialize)]
struct Reuse {
    one_in: u64,
    grain_bytes: u64,
    curve: Vec<Point>,
}

#[derive(Clone, Copy, Deserialize)]
struct Point {
    bytes: u64,
    misses: u64,
    error: u64,
}

/// Result of one run in less memory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Proof {
    memory_max_bytes: u64,
    slowdown_percent: f64,
}

/// Prediction for one size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Predicted {
    memory_max_bytes: u64,
    slowdown_percent: f64,
    /// Half of the width of the 95 % interval.
    error_percent: f64,
}

/// Result of the search, as it is reported.
#[derive(Serialize)]
struct Fit {
    schema: u32,
    command: Vec<String>,
    wanted_slowdown_percent: f64,
    plain_s: f64,
    /// Difference between the two plain runs, in percent.
    noise_percent: f64,
    sampled_slowdown_percent: f64,
    one_page_in: u64,
    peak_bytes: u64,
    /// Size in bytes below which the curve is too coarse to be used.
    grain_bytes: u64,
    miss_us: f64,
    curve: Vec<Predicted>,
    runs: Vec<Proof>,
    memory_max_bytes: Option<u64>,
    slowdown_percent: Option<f64>,
}

/// Finds the limit and shows the result.
pub fn fit(arguments: &Arguments) -> ExitCode {
    match find(arguments) {
        Ok(fit) => show(&fit, arguments),
        Err(error) => {
            crate::tell(&error);
            ExitCode::from(match error {
                FitError::Signal(number) => 128 + number as u8,
                _ => 125,
            })
        }
    }
}

/// Why the search found nothing.
#[derive(Debug, thiserror::Error)]
enum FitError {
    #[error("--slowdown {0}: write a share of the time, as 5%")]
    Slowdown(String),
    #[error("--swap: {0}")]
    Swap(#[from] TierSpecError),
    #[error("no program; write: ebb fit -- PROGRAM [ARGS...]")]
    NoProgram,
    #[error("{0}")]
    Program(program::Refusal),
    /// The file of an option cannot be opened.
    #[error("{} {}: {}", .0, .1.display(), .2)]
    Option(&'static str, PathBuf, io::Error),
    #[error("cannot take signals: {0}")]
    Signals(io::Error),
    #[error("cannot get a random number: {0}")]
    Random(Errno),
    /// The folder of the reports cannot be created, or the program does not start.
    #[error("{}: {}", .0.display(), .1)]
    Path(PathBuf, io::Error),
    #[error("the run wrote no report")]
    NoReport,
    #[error("the report of the run has no miss-ratio curve")]
    NoCurve,
    #[error("cannot read the report: {0}")]
    Report(io::Error),
    #[error("cannot read the report: {0}")]
    Json(#[from] serde_json::Error),
    #[error("signal {0} ended the search before it found a limit")]
    Signal(i32),
    /// A run failed: the program, how it ended, and the end of its messages.
    #[error(
        "{} ended with {}, so the search stops; each run must end with status 0. Its messages:{}",
        .0.display(), .1, .2
    )]
    Failed(PathBuf, String, String),
}

fn find(arguments: &Arguments) -> Result<Fit, FitError> {
    let wanted = percent(&arguments.slowdown)?;
    ebb_swap::parse_tiers(&arguments.swap)?;
    let Some(name) = arguments.command.first() else {
        return Err(FitError::NoProgram);
    };
    let (path, _) = program::find(name).map_err(FitError::Program)?;
    if let Some(path) = &arguments.input {
        File::open(path).map_err(|error| FitError::Option("--input", path.clone(), error))?;
    }
    if let Some(path) = &arguments.html {
        File::create(path).map_err(|error| FitError::Option("--html", path.clone(), error))?;
    }
    // Signals are taken first, so that the folder is removed and no run goes on after a signal.
    let signals = Signals::take(&ENDING).map_err(FitError::Signals)?;
    let runner = Runner { arguments, path, folder: folder()?, signals };
    let (plain, noise) = runner.plain()?;
    let all = (memory_total() as f64 * 0.9) as u64;
    let (sampled, report) = runner.paged(all, true, Duration::MAX)?;
    let report = report.ok_or(FitError::NoReport)?;
    let reuse = report.reuse.ok_or(FitError::NoCurve)?;
    let mut search = Search {
        wanted,
        plain: plain.as_secs_f64(),
        peak: report.peak_resident_bytes.max(ebb_pager::MEMORY_MIN_BYTES),
        miss_s: MISS_S,
        curve: reuse.curve,
        runs: Vec::new(),
    };
    for _ in 0..arguments.runs {
        let Some(bytes) = search.next() else { break };
        crate::tell(format_args!("running in {:.1} MiB ...", bytes as f64 / MIB));
        let most = plain.mul_f64((1.0 + wanted) * TOO_SLOW) + Duration::from_secs(1);
        match runner.paged(bytes, false, most)? {
            (took, Some(report)) => {
                let fetched = report.faults.loaded + report.faults.reactivated;
                search.note(bytes, took.as_secs_f64(), fetched);
            }
            (took, None) => search.note(bytes, took.as_secs_f64(), 0),
        }
    }
    let best = search.best();
    Ok(Fit {
        schema: 1,
        command: arguments.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        wanted_slowdown_percent: wanted * 100.0,
        plain_s: search.plain,
        noise_percent: noise * 100.0,
        sampled_slowdown_percent: (sampled.as_secs_f64() / search.plain - 1.0) * 100.0,
        one_page_in: reuse.one_in,
        peak_bytes: report.peak_resident_bytes,
        grain_bytes: reuse.grain_bytes,
        miss_us: search.miss_s * 1e6,
        curve: search.rows(),
        memory_max_bytes: best.map(|proof| proof.memory_max_bytes),
        slowdown_percent: best.map(|proof| proof.slowdown_percent),
        runs: search.runs,
    })
}

/// Parses a share in percent, as 5%.
fn percent(text: &str) -> Result<f64, FitError> {
    let number = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    match number {
        Some(percent) if percent > 0.0 && percent <= 1000.0 => Ok(percent / 100.0),
        _ => Err(FitError::Slowdown(text.into())),
    }
}

/// Folder of the reports, removed by [`Drop`]. The name is random, so that no other user can create
/// the folder before.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // An error means that another process has removed the folder.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder() -> Result<Folder, FitError> {
    use std::os::unix::fs::DirBuilderExt;
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(FitError::Random)?;
    let folder = inherited::variable("TMPDIR").map_or_else(std::env::temp_dir, PathBuf::from);
    let path = folder.join(format!("ebb-fit-{:016x}", u64::from_ne_bytes(random)));
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&path)
        .map_err(|error| FitError::Path(path.clone(), error))?;
    Ok(Folder(path))
}

/// Runs the program.
struct Runner<'a> {
    arguments: &'a Arguments,
    path: PathBuf,
    folder: Folder,
    signals: Signals,
}

impl Runner<'_> {
    /// Runs the program without Ebb. Returns the time it takes and the difference between two runs.
    fn plain(&self) -> Result<(Duration, f64), FitError> {
        crate::tell("running without ebb ...");
        let run = || {
            let mut command = Command::new(&self.path);
            command.arg0(&self.arguments.command[0]).args(&self.arguments.command[1..]);
            self.time(command, Duration::MAX).map(|(took, _)| took)
        };
        let first = run()?;
        if first > LONG {
            return Ok((first, 0.0));
        }
        let second = run()?;
        let (less, more) = (first.min(second), first.max(second));
        Ok((less, more.as_secs_f64() / less.as_secs_f64() - 1.0))
    }

    /// Runs the program with a limit of `bytes`. Returns no report if the run takes longer than
    /// `most` and is stopped.
    fn paged(
        &self,
        bytes: u64,
        sample: bool,
        most: Duration,
    ) -> Result<(Duration, Option<Report>), FitError> {
        if sample {
            crate::tell("running with enough memory, to sample the reuse of pages ...");
        }
        let to = self.folder.0.join("report");
        let mut command = Command::new("/proc/self/exe");
        command.args(["run", "--memory-max", &bytes.to_string(), "--report", "json", "--swap"]);
        command.arg(&self.arguments.swap).arg("--report-file").arg(&to);
        if sample {
            command.arg("--sample");
        }
        command.arg("--").args(&self.arguments.command);
        let (took, ended) = self.time(command, most)?;
        if !ended {
            return Ok((took, None));
        }
        let text = std::fs::read(&to).map_err(FitError::Report)?;
        Ok((took, Some(serde_json::from_slice(&text)?)))
    }

    /// Runs `command`. Returns the time it takes and whether it ended within `most`.
    fn time(&self, mut command: Command, most: Duration) -> Result<(Duration, bool), FitError> {
        let cannot = |error| FitError::Path(self.path.clone(), error);
        let said = self.folder.0.join("said");
        let stdin = match &self.arguments.input {
            Some(path) => File::open(path).map_err(cannot)?.into(),
            None => Stdio::null(),
        };
        let stderr = File::create(&said).map_err(cannot)?;
        command.stdin(stdin).stdout(Stdio::null()).stderr(stderr);
        command.envs(inherited::removed_variables().iter().cloned());
        process::prepare_child(&mut command);
        let began = Instant::now();
        let mut child = command.spawn().map_err(cannot)?;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(cannot)? {
                break status;
            }
            if began.elapsed() > most {
                // When `ebb run` is killed, the pager kills the program.
                child.kill().map_err(cannot)?;
                child.wait().map_err(cannot)?;
                return Ok((began.elapsed(), false));
            }
            if let Some(signal) = self.signals.next() {
                return Err(self.end(&mut child, signal));
            }
            std::thread::sleep(LOOK);
        };
        let took = began.elapsed();
        if status.success() { Ok((took, true)) } else { Err(self.failed(status, &said)) }
    }

    /// Passes a signal on to the run and returns the failure to report. Kills the run if it does
    /// not end in time.
    fn end(&self, child: &mut Child, signal: Signal) -> FitError {
        if !signal.from_terminal {
            signals::send(child.id(), signal.number);
        }
        let mut has_ended = |pause| {
            std::thread::sleep(pause);
            !matches!(child.try_wait(), Ok(None))
        };
        if !Patience::Ending.sees(&mut has_ended) {
            // These calls fail only if the run has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        FitError::Signal(signal.number)
    }

    fn failed(&self, status: ExitStatus, said: &Path) -> FitError {
        let mut text = Vec::new();
        // An unreadable output is left out of the message.
        let _ = File::open(said).and_then(|mut file| file.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("status {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or(0)),
        };
        let last = &lines[lines.len().saturating_sub(LINES)..];
        let said = last.iter().map(|line| format!("\n  {line}")).collect();
        FitError::Failed(self.path.clone(), how, said)
    }
}

/// State of the search: the runs made and the choice of the next size.
struct Search {
    wanted: f64,
    /// Duration of a plain run, in seconds.
    plain: f64,
    peak: u64,
    /// Cost of a miss, in seconds.
    miss_s: f64,
    curve: Vec<Point>,
    runs: Vec<Proof>,
}

impl Search {
    /// Returns the misses that the curve predicts for `bytes`, and half of the width of the 95 %
    /// interval.
    fn misses(&self, bytes: f64) -> (f64, f64) {
        let point = self.curve.iter().find(|point| point.bytes as f64 >= bytes);
        point.map_or((0.0, 0.0), |point| (point.misses as f64, point.error as f64))
    }

    fn predict(&self, bytes: u64) -> Predicted {
        let (misses, error) = self.misses(bytes as f64);
        let percent = |count: f64| count * self.miss_s / self.plain * 100.0;
        Predicted {
            memory_max_bytes: bytes,
            slowdown_percent: percent(misses),
            error_percent: percent(error),
        }
    }

    /// Returns the smallest size at which the curve predicts a permitted slowdown.
    fn guess(&self) -> f64 {
        let keeps = |point: &&Point| point.misses as f64 * self.miss_s <= self.wanted * self.plain;
        let found = self.curve.iter().find(keeps).map_or(self.peak, |point| point.bytes);
        (found as f64).clamp(ebb_pager::MEMORY_MIN_BYTES as f64, self.peak as f64 * SPARE)
    }

    /// Returns the run with the smallest size among the runs with a permitted slowdown.
    fn best(&self) -> Option<Proof> {
        let kept = |proof: &&Proof| proof.slowdown_percent <= self.wanted * 100.0;
        let smallest = |a: &&Proof, b: &&Proof| a.memory_max_bytes.cmp(&b.memory_max_bytes);
        self.runs.iter().filter(kept).min_by(smallest).copied()
    }

    /// Returns the largest size below the best one. Runs in that size were too slow.
    fn largest_too_slow(&self) -> Option<u64> {
        let best = self.best().map_or(u64::MAX, |proof| proof.memory_max_bytes);
        let lost = self.runs.iter().map(|proof| proof.memory_max_bytes).filter(|&at| at < best);
        lost.max()
    }

    /// Returns the next size to run, or `None` if the search has ended.
    fn next(&self) -> Option<u64> {
        let most = self.peak as f64 * SPARE;
        let least = ebb_pager::MEMORY_MIN_BYTES as f64;
        let guess = self.guess();
        let size = match (self.largest_too_slow(), self.best()) {
            (None, None) => guess,
            (None, Some(best)) => {
                let best = best.memory_max_bytes as f64;
                // The next size is the curve's, but between half and ten elevenths of the best
                // size.
                guess.clamp(best / 2.0, best / 1.1)
            }
            (Some(worst), None) => {
                let worst = worst as f64;
                if worst >= most / CLOSE {
                    return None;
                }
                // The next size is the curve's, but at least the geometric mean of the worst and
                // the greatest size.
                guess.max((worst * most).sqrt()).min(most)
            }
            (Some(worst), Some(best)) => {
                let (worst, best) = (worst as f64, best.memory_max_bytes as f64);
                if best / worst <= CLOSE {
                    return None;
                }
                let middle = (worst * best).sqrt();
                // The curve decides if its size lies well between the two.
                if guess > worst * 1.02 && guess < best / 1.02 { guess } else { middle }
            }
        };
        let size = size.max(least).round() as u64 & !4095;
        let tried = self.runs.iter().any(|proof| proof.memory_max_bytes == size);
        (!tried).then_some(size)
    }

    /// Records that a run in `bytes` took `took` seconds and fetched `fetched` pages.
    fn note(&mut self, bytes: u64, took: f64, fetched: u64) {
        let slowdown = took / self.plain - 1.0;
        self.runs.push(Proof { memory_max_bytes: bytes, slowdown_percent: slowdown * 100.0 });
        // The lost time is divided by the misses of the curve. With few misses the lost time is
        // mostly start-up, so the cost stays as it is.
        let (misses, error) = self.misses(bytes as f64);
        let lost = took - self.plain;
        if misses > 4.0 * error && fetched > 0 && misses * MISS_S > 0.01 * self.plain {
            // One run on a busy machine changes the cost by these factors at most.
            self.miss_s = (lost / misses).clamp(self.miss_s / 2.0, self.miss_s * 4.0);
        }
    }

    /// Returns predictions for a few sizes, the smallest first.
    fn rows(&self) -> Vec<Predicted> {
        let (least, most) = (ebb_pager::MEMORY_MIN_BYTES as f64, self.peak as f64);
        let low = (most / 16.0).max(least).min(most);
        let at = |row: usize| low * (most / low).powf(row as f64 / (ROWS - 1) as f64);
        let mut rows: Vec<Predicted> = (0..ROWS).map(|row| self.predict(at(row) as u64)).collect();
        rows.dedup_by_key(|row| row.memory_max_bytes);
        rows
    }
}

fn show(fit: &Fit, arguments: &Arguments) -> ExitCode {
    if let Some(path) = &arguments.html
        && let Err(error) = std::fs::write(path, page(fit))
    {
        crate::tell(format_args!("--html {}: {error}", path.display()));
        return ExitCode::from(125);
    }
    let text = match arguments.format {
        Format::Text => text(fit),
        Format::Json => serde_json::to_string(fit).unwrap_or_default() + "\n",
    };
    print!("{text}");
    ExitCode::from(if fit.memory_max_bytes.is_some() { 0 } else { 1 })
}

fn mib(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / MIB)
}

fn text(fit: &Fit) -> String {
    let mut out = String::new();
    let _ = writeln!(
        out,
        "The program takes {:.2} s without ebb, and {} of memory at its peak.\n\n{:>12}  {:<22} slowdown",
        fit.plain_s,
        mib(fit.peak_bytes),
        "memory",
        "predicted"
    );
    let mut lines: Vec<(u64, String)> = Vec::new();
    for row in &fit.curve {
        let value = row.slowdown_percent;
        let bar = "#".repeat(((value / 100.0).min(1.0) * BAR as f64).ceil() as usize);
        let below = if row.memory_max_bytes < fit.grain_bytes { "at least " } else { "" };
        let said = format!("{below}{value:.1} ± {:.1} %", row.error_percent);
        lines.push((row.memory_max_bytes, format!("{said:<22} {bar}")));
    }
    for run in &fit.runs {
        let kept = run.slowdown_percent <= fit.wanted_slowdown_percent;
        let mark = if kept { "" } else { ", too slow" };
        lines.push((
            run.memory_max_bytes,
            format!("{:<22} measured: {:.1} %{mark}", "", run.slowdown_percent),
        ));
    }
    lines.sort_by_key(|&(bytes, _)| bytes);
    for (bytes, line) in lines {
        let _ = writeln!(out, "{:>12}  {}", mib(bytes), line.trim_end());
    }
    out.push('\n');
    if fit.noise_percent > fit.wanted_slowdown_percent / 2.0 {
        let _ = writeln!(
            out,
            "Two runs without ebb differ by {:.1} %, so the slowdown is no more exact than that. Run ebb fit on an idle machine.",
            fit.noise_percent
        );
    }
    match (fit.memory_max_bytes, fit.slowdown_percent) {
        (Some(bytes), Some(slowdown)) => {
            let share = bytes as f64 * 100.0 / fit.peak_bytes as f64;
            let _ = writeln!(
                out,
                "{} keeps the slowdown within {} % ({share:.0} % of the peak; measured: {slowdown:.1} %):\n  \
                 ebb run --memory-max {} -- {}",
                mib(bytes),
                fit.wanted_slowdown_percent,
                size::whole(bytes),
                fit.command.join(" ")
            );
        }
        _ => {
            let _ = writeln!(
                out,
                "No limit that ebb tried keeps the slowdown within {} %. Permit a larger slowdown (--slowdown \
                 PERCENT) or more runs (--runs N).",
                fit.wanted_slowdown_percent
            );
        }
    }
    out
}

fn page(fit: &Fit) -> String {
    use ebb_plot::{Chart, Series, escape, page};
    let x = |bytes: u64| bytes as f64 / MIB;
    let predicted = fit
        .curve
        .iter()
        .map(|row| (x(row.memory_max_bytes), row.slowdown_percent, Some(row.error_percent)));
    let mut runs: Vec<_> = (fit.runs.iter())
        .map(|run| (x(run.memory_max_bytes), run.slowdown_percent.max(0.0), None))
        .collect();
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let wanted =
        fit.curve.iter().map(|row| (x(row.memory_max_bytes), fit.wanted_slowdown_percent, None));
    let series = |name: &str, points: Vec<(f64, f64, Option<f64>)>, is_bound| Series {
        name: name.to_owned(),
        points,
        is_bound,
    };
    let chart = Chart {
        x_label: "memory, MiB".to_owned(),
        y_label: "slowdown, %".to_owned(),
        series: vec![
            series("predicted", predicted.collect(), false),
            series("measured", runs, false),
            series("wanted", wanted.collect(), true),
        ],
    };
    let title = format!("ebb fit: {}", fit.command.join(" "));
    page(
        &title,
        &format!("<h1>{}</h1>{}<pre>{}</pre>", escape(&title), chart.svg(), escape(&text(fit))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs the search for a program that misses `misses(MiB)` times at each size, at `cost`
    /// seconds a miss.
    fn found(misses: impl Fn(u64) -> u64, cost: f64, wanted: f64) -> (Option<u64>, usize) {
        const MIB: u64 = 1 << 20;
        let point = |mib: u64| Point { bytes: mib * MIB, misses: misses(mib), error: 0 };
        let mut search = Search {
            wanted,
            plain: 10.0,
            peak: 400 * MIB,
            miss_s: MISS_S,
            curve: (1..=400).map(point).collect(),
            runs: Vec::new(),
        };
        let mut count = 0;
        while let Some(bytes) = search.next().filter(|_| count < 12) {
            let missed = misses(bytes / MIB);
            search.note(bytes, 10.0 + missed as f64 * cost, missed);
            count += 1;
        }
        (search.best().map(|proof| proof.memory_max_bytes / MIB), count)
    }

    #[test]
    fn the_smallest_size_that_keeps_the_slowdown_is_found_in_few_runs() {
        // Of 10 s, 0.5 s may be lost. Tested are a cliff at 200 MiB and a slope. A miss costs a
        // fifth of the assumed cost, the assumed cost, or five times that.
        for cost in [8e-6, 40e-6, 200e-6] {
            let (size, runs) = found(|mib| if mib < 200 { 1_000_000 } else { 0 }, cost, 0.05);
            assert!(
                (200..=212).contains(&size.unwrap()) && runs <= 8,
                "cliff, {cost}: {size:?}, {runs} runs"
            );
            let slope = |mib: u64| 400u64.saturating_sub(mib) * 1000;
            let right = 400.0 - 0.5 / cost / 1000.0;
            let (size, runs) = found(slope, cost, 0.05);
            let size = size.unwrap() as f64;
            assert!(
                size >= right && size <= right * CLOSE + 2.0 && runs <= 8,
                "slope, {cost}: {size}, {runs} runs"
            );
        }
    }

    #[test]
    fn no_size_is_reported_where_none_keeps_the_slowdown() {
        let (size, runs) = found(|_| 1_000_000, 1e-3, 0.05);
        assert_eq!(size, None);
        assert!(runs <= 12);
    }
}
