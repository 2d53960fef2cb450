//! `ebb stat` asks the pager of a run for its figures, over the socket in the user's runtime
//! folder.

use crate::picture::{Picture, Sample};
use crate::{folder, metrics};
use ebb_control::{
    Client, Content, ControlError, Faults, MemoryPressure, Metric, Metrics, Patience, Request,
};
use ebb_sys::proc;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Interval at which a growing picture is written.
const REDRAWN: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
#[command(after_help = "\
The counters have the names of /proc/vmstat. Names with nr_ are levels, in pages; names that only Ebb
has begin with ebb_. Pressure (--pressure): the share of the last 10, 60 and 300 seconds in which at least one
thread (some), or all that had something to do (full), waited for memory, and the total in us.

Faults (--faults): how long each stage of a fault takes, by the kind of fault. Ebb counts every fault.
From samples it estimates the time until it reads the message of a fault, and the time from the wake-up
of the thread until the thread runs. It measures once how long the kernel works in the thread itself.

--watch prints the figures repeatedly until the run ends. As text: first all figures, then those that
have changed, each with its change per second. As JSON: one line each time, with the time.

Exit status: 0, or 1 if PID belongs to no run of yours.

Examples:
  ebb stat 4711
  ebb stat --pressure 4711
  ebb stat --faults 4711
  ebb stat --faults --format json 4711 | jq .waited_ns
  ebb stat --watch 4711
  ebb stat 4711 --watch 5 --format json >> figures.jsonl
  ebb stat 4711 --watch 0.2 --svg run.svg
  ebb stat --format openmetrics 4711 > /var/lib/node_exporter/ebb.prom
  ebb stat $(pgrep -o -x redis-server) | grep -E \"pgmajfault|nr_free\"")]
pub struct Arguments {
    /// Any process of the run, or the `ebb run` itself
    #[arg(value_name = "PID", required_unless_present = "watch")]
    pid: Option<u32>,
    /// Show the time lost waiting for memory, in the format of memory.pressure
    #[arg(long)]
    pressure: bool,
    /// Show the time of faults by kind and stage
    #[arg(long, conflicts_with = "pressure")]
    faults: bool,
    /// Form of the figures
    #[arg(long, value_enum, default_value = "text", conflicts_with = "pressure")]
    format: Format,
    /// Repeat every SECONDS until the run ends [default: 1]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "1")]
    watch: Option<String>,
    /// Draw to FILE where pages are over time and how long threads wait; written every few seconds
    /// and at the end
    #[arg(long, value_name = "FILE", requires = "watch", conflicts_with_all = ["pressure", "faults"])]
    svg: Option<PathBuf>,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
    /// OpenMetrics, as Prometheus reads it
    Openmetrics,
}

/// Answer of a run: figures, or text that is shown as it is.
enum Told {
    Metrics(Metrics),
    Text(String),
}

impl fmt::Display for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Metrics(metrics) => metrics.fmt(f),
            Self::Text(text) => f.write_str(text),
        }
    }
}

/// Why a run gives no answer.
#[derive(PartialEq, Eq, Debug, thiserror::Error)]
pub enum AskError {
    /// No run of the user has this process.
    #[error(
        "process {0} belongs to no run of yours; give the PID of a run, or of a process in it \
         (`ebb ps` lists your runs)"
    )]
    NoRun(u32),
    /// The run refuses the request or does not answer.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
enum StatError {
    #[error("--watch {0}: {1}")]
    Watch(String, DelayError),
    #[error("the process is missing; write ebb stat PID --watch")]
    NoProcessToWatch,
    #[error("the process is missing; write ebb stat PID")]
    NoProcess,
    #[error("--faults has no format openmetrics; write --format json, or leave --faults out")]
    FaultsInOpenmetrics,
    #[error(
        "--watch has no format openmetrics, which is for one moment; write --format json, or use \
         ebb run --metrics for Prometheus"
    )]
    WatchInOpenmetrics,
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error(transparent)]
    Format(#[from] fmt::Error),
    #[error("--svg {}: {}", .0.display(), .1)]
    Svg(PathBuf, std::io::Error),
}

/// A text is no interval.
#[derive(Debug, thiserror::Error)]
#[error("write seconds from 0.1 to 3600, as 1 or 0.5")]
pub struct DelayError;

fn metrics(pid: u32) -> Result<Metrics, AskError> {
    ask(pid, &Request::Metrics, Patience::Answer)
}

fn pressure(pid: u32) -> Result<MemoryPressure, AskError> {
    ask(pid, &Request::Pressure, Patience::Answer)
}

fn faults(pid: u32) -> Result<Faults, AskError> {
    ask(pid, &Request::Faults, Patience::Answer)
}

impl Arguments {
    /// Returns the process, and the interval if its run is asked repeatedly. In `--watch 4711`
    /// without PID the number is the process.
    fn subject(&self) -> Result<(u32, Option<Duration>), StatError> {
        let every = |text: &str| delay(text).map_err(|why| StatError::Watch(text.into(), why));
        match (self.pid, self.watch.as_deref()) {
            (Some(pid), None) => Ok((pid, None)),
            (Some(pid), Some(text)) => Ok((pid, Some(every(text)?))),
            (None, Some(text)) => match text.parse() {
                Ok(pid) if text != "1" => Ok((pid, Some(Duration::from_secs(1)))),
                _ => Err(StatError::NoProcessToWatch),
            },
            (None, None) => Err(StatError::NoProcess),
        }
    }

    /// Asks for the figures in the chosen form.
    fn told(&self, pid: u32) -> Result<Told, StatError> {
        Ok(match (self.faults, self.format) {
            (true, Format::Text) => Told::Text(faults(pid)?.to_string()),
            (true, Format::Json) => {
                let json = serde_json::to_string(&faults(pid)?).expect("numbers and names");
                Told::Text(json + "\n")
            }
            (true, Format::Openmetrics) => return Err(StatError::FaultsInOpenmetrics),
            (false, _) if self.pressure => Told::Text(pressure(pid)?.to_string()),
            (false, Format::Text) => Told::Metrics(metrics(pid)?),
            (false, Format::Json) => Told::Text(metrics::json(&metrics(pid)?)),
            (false, Format::Openmetrics) => {
                let all = (metrics(pid)?, pressure(pid)?, faults(pid)?);
                Told::Text(metrics::openmetrics(pid, &all.0, &all.1, &all.2)?)
            }
        })
    }

    /// Prints the figures repeatedly, until the run ends or the output is closed.
    fn watch(&self, pid: u32, every: Duration) -> Result<(), StatError> {
        if self.format == Format::Openmetrics {
            return Err(StatError::WatchInOpenmetrics);
        }
        // The loop asks by the supervisor's number, because process `pid` may end before its run
        // does.
        let supervisor = supervisor_of(pid)?;
        if let Some(file) = &self.svg {
            return draw(supervisor, every, file);
        }
        let mut before: Option<(Instant, Told)> = None;
        loop {
            let at = Instant::now();
            let told = match self.told(supervisor) {
                Ok(told) => told,
                Err(_) if before.is_some() && has_ended(supervisor) => return Ok(()),
                Err(reason) => return Err(reason),
            };
            let shown = match (&before, &told) {
                _ if self.format == Format::Json => with_time(&told.to_string()),
                (None, told) => told.to_string(),
                (Some((then, Told::Metrics(before))), Told::Metrics(now)) => {
                    format!("\n{}", changes(before, now, at.duration_since(*then).as_secs_f64()))
                }
                (Some(_), told) => format!("\n{told}"),
            };
            if !reads(&shown) {
                return Ok(());
            }
            before = Some((at, told));
            std::thread::sleep(every.saturating_sub(at.elapsed()));
        }
    }
}

/// Draws a run until it ends.
fn draw(supervisor: u32, every: Duration, file: &Path) -> Result<(), StatError> {
    let command = crate::ps::command_of(supervisor).ok_or(AskError::NoRun(supervisor))?;
    let program = command.split_ascii_whitespace().next().unwrap_or_default();
    let title = format!("ebb run -- {}", program.rsplit('/').next().unwrap_or_default());
    let write = |picture: &Picture| {
        let written = std::fs::write(file, picture.svg(&title));
        written.map_err(|error| StatError::Svg(file.into(), error))
    };
    let mut picture = Picture::default();
    // Written once before the first sample, so that a file that cannot be written is reported now.
    write(&picture)?;
    let mut written = Instant::now();
    // Time counts from the first sample. So the areas begin at the edge, however long the first
    // answer takes.
    let mut began = None;
    loop {
        let at = Instant::now();
        let told = metrics(supervisor).and_then(|metrics| Ok((metrics, pressure(supervisor)?)));
        match told {
            Ok((metrics, pressure)) => {
                let since = at - *began.get_or_insert(at);
                picture.add(Sample::of(since.as_secs_f64(), &metrics, &pressure));
            }
            Err(_) if has_ended(supervisor) => return write(&picture),
            Err(reason) => return Err(reason.into()),
        }
        if written.elapsed() > REDRAWN {
            write(&picture)?;
            written = Instant::now();
        }
        std::thread::sleep(every.saturating_sub(at.elapsed()));
    }
}

/// Parses an interval in seconds.
pub fn delay(text: &str) -> Result<Duration, DelayError> {
    match text.parse::<f64>() {
        Ok(seconds @ 0.1..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err(DelayError),
    }
}

/// Returns an object in one line, with the time as its first member.
fn with_time(object: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let rest = object.trim_start().strip_prefix('{').unwrap_or_default();
    format!("{{\"time_unix_us\":{now},{rest}")
}

/// Returns the figures that have changed, each with its change in a second.
fn changes(before: &Metrics, now: &Metrics, seconds: f64) -> String {
    let mut text = String::new();
    for Metric { name, value, .. } in &now.0 {
        let then = before.value(name).unwrap_or(0);
        if then != *value {
            let change = (*value as f64 - then as f64) / seconds.max(0.001);
            text += &format!("{name} {value} {change:+.1}/s\n");
        }
    }
    if text.is_empty() { "nothing has changed\n".to_owned() } else { text }
}

/// Prints at once to standard output. Returns false if the output is closed.
fn reads(text: &str) -> bool {
    use std::io::Write;
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).is_ok()
}

/// Prints to standard output. A closed pipe is no failure: the reader has seen enough.
pub fn say(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Prints the figures of a run.
pub fn stat(arguments: &Arguments) -> ExitCode {
    let (pid, every) = match arguments.subject() {
        Ok(subject) => subject,
        Err(reason) => {
            crate::tell(reason);
            return ExitCode::from(2);
        }
    };
    let done = match every {
        None => arguments.told(pid).map(|told| say(&told.to_string())),
        Some(every) => arguments.watch(pid, every),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            crate::tell(reason);
            ExitCode::FAILURE
        }
    }
}

/// Asks the run that `pid` belongs to.
pub fn ask<T: Content>(pid: u32, request: &Request, patience: Patience) -> Result<T, AskError> {
    Ok(client_to(pid)?.1.ask(request, patience)?)
}

/// Returns the PID of the supervisor (`ebb run`) that `pid` belongs to.
pub fn supervisor_of(pid: u32) -> Result<u32, AskError> {
    client_to(pid).map(|(supervisor, _)| supervisor)
}

/// Asks the run of this supervisor, as a command that asks repeatedly.
#[cfg(feature = "top")]
pub fn ask_supervisor<T: Content>(supervisor: u32, request: &Request) -> Result<T, AskError> {
    let client = client_of_run(supervisor).map_err(ControlError::from)?;
    Ok(client.ok_or(AskError::NoRun(supervisor))?.ask(request, Patience::Glance)?)
}

/// Returns whether a run that does not answer has ended, so that nothing is left to ask.
pub fn has_ended(supervisor: u32) -> bool {
    matches!(client_of_run(supervisor), Ok(None))
}

/// Connects to a run by the PID of its supervisor, or of its program with `--exec` and `ebb
/// attach`.
fn client_of_run(number: u32) -> std::io::Result<Option<Client>> {
    match folder::client_to(number)? {
        Some(client) => Ok(Some(client)),
        None => Ok(folder::client_of_member(number)?.map(|(_, client)| client)),
    }
}

/// Finds the run that a process belongs to. Returns the run's number and a connection to it.
fn client_to(process: u32) -> Result<(u32, Client), AskError> {
    let find = || {
        let mut pid = process;
        while pid > 1 {
            if let Some(client) = folder::client_to(pid)? {
                return Ok(Some((pid, client)));
            }
            let Some(parent) = proc::parent(pid) else { break };
            pid = parent;
        }
        folder::client_of_member(process)
    };
    find().map_err(ControlError::from)?.ok_or(AskError::NoRun(process))
}

#[cfg(test)]
mod tests {
    use super::{Metric, Metrics, changes, with_time};

    #[test]
    fn changed_figures_are_printed_with_their_rates() {
        let of = |figures: &[(&str, u64)]| {
            Metrics(figures.iter().map(|&(name, value)| Metric::counter(name, value)).collect())
        };
        let before = of(&[("pgfault", 10), ("nr_free_pages", 9), ("nr_anon_pages", 5)]);
        let now = of(&[("pgfault", 30), ("nr_free_pages", 4), ("nr_anon_pages", 5), ("new", 2)]);
        let text = "pgfault 30 +10.0/s\nnr_free_pages 4 -2.5/s\nnew 2 +1.0/s\n";
        assert_eq!(changes(&before, &now, 2.0), text);
        assert_eq!(changes(&now, &now, 2.0), "nothing has changed\n");
    }

    #[test]
    fn a_line_of_json_has_its_time() {
        let value: serde_json::Value = serde_json::from_str(&with_time("{\"a\":1}\n")).unwrap();
        assert!(value["a"] == 1 && value["time_unix_us"].as_u64() > Some(1 << 50));
    }
}
