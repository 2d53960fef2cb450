//! `ebb stat` asks the pager of a run for its figures, over the socket in the user's runtime
//! folder.

use crate::line::{converse, no_answer};
use crate::picture::{Picture, Sample};
use crate::{folder, metrics};
use ebb_agent::protocol::HELLO_STAT;
use ebb_pager::patience::Patience;
use ebb_pager::{FAULTS, FAULTS_JSON, PRESSURE};
use ebb_sys::proc;
use ebb_sys::socket::Socket;
use std::collections::HashMap;
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

impl Arguments {
    /// Returns the process, and the interval if its run is asked repeatedly. In `--watch 4711`
    /// without PID the number is the process.
    fn subject(&self) -> Result<(u32, Option<Duration>), String> {
        let every = |text: &str| delay(text).map_err(|why| format!("--watch {text}: {why}"));
        match (self.pid, self.watch.as_deref()) {
            (Some(pid), None) => Ok((pid, None)),
            (Some(pid), Some(text)) => Ok((pid, Some(every(text)?))),
            (None, Some(text)) => match text.parse() {
                Ok(pid) if text != "1" => Ok((pid, Some(Duration::from_secs(1)))),
                _ => Err("the process is missing; write ebb stat PID --watch".into()),
            },
            (None, None) => Err("the process is missing; write ebb stat PID".into()),
        }
    }

    /// Asks for the figures and returns them in the chosen form.
    fn text(&self, pid: u32) -> Result<String, String> {
        let ask = |request| ask(pid, HELLO_STAT, request);
        match (self.faults, self.format) {
            (true, Format::Text) => ask(FAULTS),
            (true, Format::Json) => ask(FAULTS_JSON),
            (true, Format::Openmetrics) => Err(
                "--faults has no format openmetrics; write --format json, or leave --faults out"
                    .into(),
            ),
            (false, _) if self.pressure => ask(PRESSURE),
            (false, Format::Text) => ask(""),
            (false, Format::Json) => Ok(metrics::json(&ask("")?)),
            (false, Format::Openmetrics) => {
                metrics::openmetrics(pid, &ask("")?, &ask(PRESSURE)?, &ask(FAULTS_JSON)?)
                    .map_err(|error| error.to_string())
            }
        }
    }

    /// Prints the figures repeatedly, until the run ends or the output is closed.
    fn watch(&self, pid: u32, every: Duration) -> Result<(), String> {
        if self.format == Format::Openmetrics {
            return Err("--watch has no format openmetrics, which is for one moment; write --format json, or use \
                        ebb run --metrics for Prometheus"
                .into());
        }
        // The loop asks by the supervisor's number, because process `pid` may end before its run
        // does.
        let supervisor = supervisor_of(pid)?;
        if let Some(file) = &self.svg {
            return draw(supervisor, every, file);
        }
        let mut before: Option<(Instant, String)> = None;
        loop {
            let at = Instant::now();
            let text = match self.text(supervisor) {
                Ok(text) => text,
                Err(_) if before.is_some() && has_ended(supervisor) => return Ok(()),
                Err(reason) => return Err(reason),
            };
            let shown = match (&before, self.format) {
                (_, Format::Json) => with_time(&text),
                (None, _) => text.clone(),
                (Some(_), _) if self.pressure || self.faults => format!("\n{text}"),
                (Some((then, before)), _) => {
                    format!("\n{}", changes(before, &text, at.duration_since(*then).as_secs_f64()))
                }
            };
            if !reads(&shown) {
                return Ok(());
            }
            before = Some((at, text));
            std::thread::sleep(every.saturating_sub(at.elapsed()));
        }
    }
}

/// Draws a run until it ends.
fn draw(supervisor: u32, every: Duration, file: &Path) -> Result<(), String> {
    let command = crate::ps::command_of(supervisor).ok_or_else(|| no_run(supervisor))?;
    let program = command.split_ascii_whitespace().next().unwrap_or_default();
    let title = format!("ebb run -- {}", program.rsplit('/').next().unwrap_or_default());
    let write = |picture: &Picture| {
        let written = std::fs::write(file, picture.svg(&title));
        written.map_err(|error| format!("--svg {}: {error}", file.display()))
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
        let told = ask(supervisor, HELLO_STAT, "")
            .and_then(|stat| Ok((stat, ask(supervisor, HELLO_STAT, PRESSURE)?)));
        match told {
            Ok((stat, pressure)) => {
                let since = at - *began.get_or_insert(at);
                picture.add(Sample::of(since.as_secs_f64(), &stat, &pressure));
            }
            Err(_) if has_ended(supervisor) => return write(&picture),
            Err(reason) => return Err(reason),
        }
        if written.elapsed() > REDRAWN {
            write(&picture)?;
            written = Instant::now();
        }
        std::thread::sleep(every.saturating_sub(at.elapsed()));
    }
}

/// Parses an interval in seconds.
pub fn delay(text: &str) -> Result<Duration, String> {
    match text.parse::<f64>() {
        Ok(seconds @ 0.1..=3600.0) => Ok(Duration::from_secs_f64(seconds)),
        _ => Err("write seconds from 0.1 to 3600, as 1 or 0.5".into()),
    }
}

/// Returns an object in one line, with the time as its first member.
fn with_time(object: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    let rest = object.trim_start().strip_prefix('{').unwrap_or_default();
    format!("{{\"time_unix_us\":{now},{rest}")
}

/// Returns the figures that have changed, each with its change in a second.
fn changes(before: &str, now: &str, seconds: f64) -> String {
    let old: HashMap<&str, &str> = before.lines().filter_map(|line| line.split_once(' ')).collect();
    let mut text = String::new();
    for (name, value) in now.lines().filter_map(|line| line.split_once(' ')) {
        let [then, now] = [old.get(name).copied().unwrap_or("0"), value].map(str::parse::<f64>);
        if let (Ok(then), Ok(now)) = (then, now)
            && then != now
        {
            text += &format!("{name} {value} {:+.1}/s\n", (now - then) / seconds.max(0.001));
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
        None => arguments.text(pid).map(|text| say(&text)),
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
pub fn ask(pid: u32, kind: u32, request: &str) -> Result<String, String> {
    // Changes for `ebb set` and `ebb lru-gen` may take long, so their answers have no time limit.
    let patience = (kind == HELLO_STAT).then_some(Patience::Answer);
    let (_, line) = line_to(pid).map_err(no_answer)?.ok_or_else(|| no_run(pid))?;
    converse(&line, kind, request, patience)
}

/// Returns the PID of the supervisor (`ebb run`) that `pid` belongs to.
pub fn supervisor_of(pid: u32) -> Result<u32, String> {
    line_to(pid).map_err(no_answer)?.map(|(supervisor, _)| supervisor).ok_or_else(|| no_run(pid))
}

/// Connects to the run of this supervisor.
#[cfg(feature = "top")]
pub fn connect_supervisor(supervisor: u32) -> Result<Socket, String> {
    line_of_run(supervisor).map_err(no_answer)?.ok_or_else(|| no_run(supervisor))
}

/// Returns whether a run that does not answer has ended, so that nothing is left to ask.
pub fn has_ended(supervisor: u32) -> bool {
    matches!(line_of_run(supervisor), Ok(None))
}

/// Connects to a run by the PID of its supervisor, or of its program with `--exec` and `ebb
/// attach`.
fn line_of_run(number: u32) -> std::io::Result<Option<Socket>> {
    match folder::line_to(number)? {
        Some(line) => Ok(Some(line)),
        None => Ok(folder::line_of_member(number)?.map(|(_, line)| line)),
    }
}

fn no_run(pid: u32) -> String {
    format!(
        "process {pid} belongs to no run of yours; give the PID of a run, or of a process in it \
         (`ebb ps` lists your runs)"
    )
}

/// Finds the run that a process belongs to. Returns the run's number and a connection to it.
fn line_to(process: u32) -> std::io::Result<Option<(u32, Socket)>> {
    let mut pid = process;
    while pid > 1 {
        if let Some(line) = folder::line_to(pid)? {
            return Ok(Some((pid, line)));
        }
        let Some(parent) = proc::parent(pid) else { break };
        pid = parent;
    }
    folder::line_of_member(process)
}

#[cfg(test)]
mod tests {
    use super::{changes, with_time};

    #[test]
    fn changed_figures_are_printed_with_their_rates() {
        let before = "pgfault 10\nnr_free_pages 9\nnr_anon_pages 5\n";
        let now = "pgfault 30\nnr_free_pages 4\nnr_anon_pages 5\nnew 2\n";
        let text = "pgfault 30 +10.0/s\nnr_free_pages 4 -2.5/s\nnew 2 +1.0/s\n";
        assert_eq!(changes(before, now, 2.0), text);
        assert_eq!(changes(now, now, 2.0), "nothing has changed\n");
    }

    #[test]
    fn a_line_of_json_has_its_time() {
        let value: serde_json::Value = serde_json::from_str(&with_time("{\"a\":1}\n")).unwrap();
        assert!(value["a"] == 1 && value["time_unix_us"].as_u64() > Some(1 << 50));
    }
}
