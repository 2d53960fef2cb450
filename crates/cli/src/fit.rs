//! `ebb fit`: the smallest limit that keeps a program's slowdown, found by running it.
//!
//! First as it is; then with all its memory, how soon a sample of its pages is used again being watched
//! (`ebb run --sample`), which gives how often each smaller memory would miss; then in the smallest memory that this allows, and
//! from there up or down. What is told at the end has been run.

use crate::run::memory_total;
use crate::{program, size};
use ebb_pager::patience::Patience;
use ebb_sys::process;
use ebb_sys::signals::{self, Signal, Signals};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// What a miss costs until that is known, in seconds.
const MISS_S: f64 = 40e-6;
/// Sizes closer than that are the same.
const CLOSE: f64 = 1.06;
/// Beyond what was resident: the watermarks, and what is used otherwise the next time.
const SPARE: f64 = 1.1;
/// A plain run that takes longer is not made twice.
const LONG: Duration = Duration::from_secs(60);
/// A run that takes so many times what it may is not waited for.
const TOO_SLOW: f64 = 2.0;
/// Signals that end the search.
const ENDING: [i32; 4] = [signals::SIGINT, signals::SIGTERM, signals::SIGHUP, signals::SIGQUIT];
/// How often to look whether it is over.
const LOOK: Duration = Duration::from_millis(5);
/// Lines of what a failed program said that are shown.
const LINES: usize = 10;
const MIB: f64 = 1048576.0;
/// Sizes in the picture.
const ROWS: usize = 12;
const BAR: usize = 40;

#[derive(clap::Args)]
#[command(after_help = "\
The program is run several times, so each run must do the same; it reads nothing (or --input), and its output is
not shown. One that does not end by itself: ebb run --pressure-target instead.

A run that takes twice as long as it may is ended.

The picture has the slowdown that the sample predicts at each size, its 95 % interval, and what runs measured.

Exit status: 0; 1 if no limit keeps the slowdown; 125 if the program or ebb failed; 128+n if signal n ended it.

Examples:
  ebb fit -- python3 job.py
  ebb fit --slowdown 10% --swap ram -- ./simulate --steps 100
  ebb fit --input data.csv --html fit.html -- sort --parallel=1 -k2")]
pub struct Arguments {
    /// How much longer it may take than with all the memory it wants
    #[arg(long, value_name = "PERCENT", default_value = "5%")]
    slowdown: String,
    /// Where pages go that do not fit, as for ebb run
    #[arg(long, value_name = "TIER[,TIER...]", default_value = "ram,file")]
    swap: String,
    /// Runs in less memory, at most
    #[arg(long, value_name = "N", default_value = "6", value_parser = clap::value_parser!(u32).range(1..=50))]
    runs: u32,
    /// What the program reads from its standard input, from the beginning in each run
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// Form of the result on standard output
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
    /// A page with the picture
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

/// What is needed of a run's report.
#[derive(Deserialize)]
struct Report {
    peak_resident_bytes: u64,
    faults: Faults,
    reuse: Option<Reuse>,
}

#[derive(Deserialize)]
struct Faults {
    loaded: u64,
    rescued: u64,
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

/// A run in less memory.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Proof {
    memory_max_bytes: u64,
    slowdown_percent: f64,
}

/// What is predicted of a size.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
struct Predicted {
    memory_max_bytes: u64,
    slowdown_percent: f64,
    /// Half of the 95 % interval.
    error_percent: f64,
}

/// All that was found.
#[derive(Serialize)]
struct Fit {
    schema: u32,
    command: Vec<String>,
    wanted_slowdown_percent: f64,
    plain_s: f64,
    /// How far the plain runs are from each other.
    noise_percent: f64,
    sampled_slowdown_percent: f64,
    one_page_in: u64,
    peak_bytes: u64,
    /// The curve says too little below this.
    grain_bytes: u64,
    miss_us: f64,
    curve: Vec<Predicted>,
    runs: Vec<Proof>,
    memory_max_bytes: Option<u64>,
    slowdown_percent: Option<f64>,
}

/// Finds the limit.
pub fn fit(arguments: &Arguments) -> ExitCode {
    match find(arguments) {
        Ok(fit) => show(&fit, arguments),
        Err(Failure { status, reason }) => {
            crate::tell(reason);
            ExitCode::from(status)
        }
    }
}

/// Why nothing is found: the exit status, and what to say.
struct Failure {
    status: u8,
    reason: String,
}

impl From<String> for Failure {
    fn from(reason: String) -> Self {
        Self { status: 125, reason }
    }
}

impl From<&str> for Failure {
    fn from(reason: &str) -> Self {
        reason.to_owned().into()
    }
}

fn find(arguments: &Arguments) -> Result<Fit, Failure> {
    let wanted = percent(&arguments.slowdown)?;
    ebb_swap::parse_tiers(&arguments.swap).map_err(|error| format!("--swap: {error}"))?;
    let Some(name) = arguments.command.first() else {
        return Err("no program; write: ebb fit -- PROGRAM [ARGS...]".into());
    };
    let (path, _) = program::find(name).map_err(|refusal| refusal.to_string())?;
    if let Some(path) = &arguments.input {
        File::open(path).map_err(|error| format!("--input {}: {error}", path.display()))?;
    }
    if let Some(path) = &arguments.html {
        File::create(path).map_err(|error| format!("--html {}: {error}", path.display()))?;
    }
    // What is made is removed again, and no run goes on.
    let signals =
        Signals::take(&ENDING).map_err(|error| format!("cannot take signals: {error}"))?;
    let runner = Runner { arguments, path, folder: folder()?, signals };
    let (plain, noise) = runner.plain()?;
    let all = (memory_total() as f64 * 0.9) as u64;
    let (sampled, report) = runner.paged(all, true, Duration::MAX)?;
    let report = report.ok_or("the run has no report")?;
    let reuse = report.reuse.ok_or("the run has no curve")?;
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
        crate::tell(format_args!("in {:.1} MiB ...", bytes as f64 / MIB));
        let most = plain.mul_f64((1.0 + wanted) * TOO_SLOW) + Duration::from_secs(1);
        match runner.paged(bytes, false, most)? {
            (took, Some(report)) => {
                let fetched = report.faults.loaded + report.faults.rescued;
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

/// A share as it is written: 5%.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').and_then(|number| number.parse::<f64>().ok());
    match number {
        Some(percent) if percent > 0.0 && percent <= 1000.0 => Ok(percent / 100.0),
        _ => Err(format!("--slowdown {text}: write a share of the time, as 5%")),
    }
}

/// Where reports go, removed again by [`Drop`]. Its name is one that nobody can guess, and prepare.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        // Somebody else has removed it.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn folder() -> Result<Folder, String> {
    use std::os::unix::fs::DirBuilderExt;
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|error| format!("no random number: {error}"))?;
    let path = std::env::temp_dir().join(format!("ebb-fit-{:016x}", u64::from_ne_bytes(random)));
    std::fs::DirBuilder::new()
        .mode(0o700)
        .create(&path)
        .map_err(|error| format!("{}: {error}", path.display()))?;
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
    /// As it is: how long it takes, and how far two runs are from each other.
    fn plain(&self) -> Result<(Duration, f64), Failure> {
        crate::tell("as it is ...");
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

    /// In so much memory; without a report where it took longer than `most`, and was ended.
    fn paged(
        &self,
        bytes: u64,
        sample: bool,
        most: Duration,
    ) -> Result<(Duration, Option<Report>), Failure> {
        if sample {
            crate::tell("with all its memory, a sample of it being watched ...");
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
        let text = std::fs::read(&to).map_err(|error| format!("the report: {error}"))?;
        let report =
            serde_json::from_slice(&text).map_err(|error| format!("the report: {error}"))?;
        Ok((took, Some(report)))
    }

    /// How long it takes, and whether it came to its end within `most`.
    fn time(&self, mut command: Command, most: Duration) -> Result<(Duration, bool), Failure> {
        let cannot = |error: std::io::Error| format!("{}: {error}", self.path.display());
        let said = self.folder.0.join("said");
        let stdin = match &self.arguments.input {
            Some(path) => File::open(path).map_err(cannot)?.into(),
            None => Stdio::null(),
        };
        let stderr = File::create(&said).map_err(cannot)?;
        command.stdin(stdin).stdout(Stdio::null()).stderr(stderr);
        process::attend(&mut command);
        let began = Instant::now();
        let mut child = command.spawn().map_err(cannot)?;
        let status = loop {
            if let Some(status) = child.try_wait().map_err(cannot)? {
                break status;
            }
            if began.elapsed() > most {
                // The pager ends the program when `ebb run` has ended.
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
        if status.success() { Ok((took, true)) } else { Err(self.failed(status, &said).into()) }
    }

    /// A signal ends the search, and with it the run, which is given a while for that.
    fn end(&self, child: &mut Child, signal: Signal) -> Failure {
        if !signal.from_terminal {
            signals::send(child.id(), signal.number);
        }
        let mut has_ended = |pause| {
            std::thread::sleep(pause);
            !matches!(child.try_wait(), Ok(None))
        };
        if !Patience::Ending.sees(&mut has_ended) {
            // What fails has ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
        let reason = format!("ended by signal {}, before anything was found", signal.number);
        Failure { status: 128 + signal.number as u8, reason }
    }

    fn failed(&self, status: ExitStatus, said: &Path) -> String {
        let mut text = Vec::new();
        // What it said is worth showing if it can be read.
        let _ = File::open(said).and_then(|mut file| file.read_to_end(&mut text));
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        let how = match (status.code(), status.signal()) {
            (Some(code), _) => format!("status {code}"),
            (None, signal) => format!("signal {}", signal.unwrap_or(0)),
        };
        let mut out = format!(
            "{} ended with {how}, so nothing is found; each run must end well by itself. It said:",
            self.path.display()
        );
        for line in &lines[lines.len().saturating_sub(LINES)..] {
            let _ = write!(out, "\n  {line}");
        }
        out
    }
}

/// Which size is tried next.
struct Search {
    wanted: f64,
    /// Seconds of a plain run.
    plain: f64,
    peak: u64,
    /// What a miss costs, in seconds.
    miss_s: f64,
    curve: Vec<Point>,
    runs: Vec<Proof>,
}

impl Search {
    /// Misses with so much memory, and half of their interval.
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

    /// The smallest size that should keep the slowdown.
    fn guess(&self) -> f64 {
        let keeps = |point: &&Point| point.misses as f64 * self.miss_s <= self.wanted * self.plain;
        let found = self.curve.iter().find(keeps).map_or(self.peak, |point| point.bytes);
        (found as f64).clamp(ebb_pager::MEMORY_MIN_BYTES as f64, self.peak as f64 * SPARE)
    }

    /// The smallest size that kept it, the largest that did not.
    fn best(&self) -> Option<Proof> {
        let kept = |proof: &&Proof| proof.slowdown_percent <= self.wanted * 100.0;
        let smallest = |a: &&Proof, b: &&Proof| a.memory_max_bytes.cmp(&b.memory_max_bytes);
        self.runs.iter().filter(kept).min_by(smallest).copied()
    }

    fn worst(&self) -> Option<u64> {
        let best = self.best().map_or(u64::MAX, |proof| proof.memory_max_bytes);
        let lost = self.runs.iter().map(|proof| proof.memory_max_bytes).filter(|&at| at < best);
        lost.max()
    }

    fn next(&self) -> Option<u64> {
        let most = self.peak as f64 * SPARE;
        let least = ebb_pager::MEMORY_MIN_BYTES as f64;
        let guess = self.guess();
        let size = match (self.worst(), self.best()) {
            (None, None) => guess,
            (None, Some(best)) => {
                let best = best.memory_max_bytes as f64;
                // Less than was kept: by the curve, and at least by a tenth.
                guess.clamp(best / 2.0, best / 1.1)
            }
            (Some(worst), None) => {
                let worst = worst as f64;
                if worst >= most / CLOSE {
                    return None;
                }
                // Halfway to all of it, as sizes go, unless the curve wants more.
                guess.max((worst * most).sqrt()).min(most)
            }
            (Some(worst), Some(best)) => {
                let (worst, best) = (worst as f64, best.memory_max_bytes as f64);
                if best / worst <= CLOSE {
                    return None;
                }
                let middle = (worst * best).sqrt();
                // By the curve where that lies well between them.
                if guess > worst * 1.02 && guess < best / 1.02 { guess } else { middle }
            }
        };
        let size = size.max(least).round() as u64 & !4095;
        let tried = self.runs.iter().any(|proof| proof.memory_max_bytes == size);
        (!tried).then_some(size)
    }

    /// A run in `bytes` took so many seconds, and fetched so many pages.
    fn note(&mut self, bytes: u64, took: f64, fetched: u64) {
        let slowdown = took / self.plain - 1.0;
        self.runs.push(Proof { memory_max_bytes: bytes, slowdown_percent: slowdown * 100.0 });
        // What a miss of the curve costs here, pages fetched together included. A few say nothing: what is lost is the start.
        let (misses, error) = self.misses(bytes as f64);
        let lost = took - self.plain;
        if misses > 4.0 * error && fetched > 0 && misses * MISS_S > 0.01 * self.plain {
            // One run on a busy machine changes it by so much only.
            self.miss_s = (lost / misses).clamp(self.miss_s / 2.0, self.miss_s * 4.0);
        }
    }

    /// The curve at a few sizes, smallest first.
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
        "It takes {:.2} s as it is, and has {} at most.\n\n{:>12}  {:<22} slowdown",
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
            "Two runs as it is differ by {:.1} %: on a machine as busy as this one the slowdown is not known better.",
            fit.noise_percent
        );
    }
    match (fit.memory_max_bytes, fit.slowdown_percent) {
        (Some(bytes), Some(slowdown)) => {
            let share = bytes as f64 * 100.0 / fit.peak_bytes as f64;
            let _ = writeln!(
                out,
                "{} keeps {} % ({share:.0} % of what it has; measured: {slowdown:.1} %):\n  ebb run --memory-max {} -- {}",
                mib(bytes),
                fit.wanted_slowdown_percent,
                size::whole(bytes),
                fit.command.join(" ")
            );
        }
        _ => {
            let _ = writeln!(
                out,
                "No limit that was tried keeps {} %. More of the time: --slowdown 20%; more tries: --runs 12.",
                fit.wanted_slowdown_percent
            );
        }
    }
    out
}

fn page(fit: &Fit) -> String {
    use ebb_lab::plot::{Chart, Series, escape, page};
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

    /// A program that misses as often as `misses` says of a size, which costs it `cost` each time.
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
        // 0.5 s of 10 may be lost. A cliff at 200 MiB; a slope; misses that cost a fifth or five times of what is assumed.
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
    fn where_no_size_keeps_it_none_is_told() {
        let (size, runs) = found(|_| 1_000_000, 1e-3, 0.05);
        assert_eq!(size, None);
        assert!(runs <= 12);
    }
}
