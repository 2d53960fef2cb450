//! `ebb stat`: asks the pager of a run for its figures, over the socket in the user's runtime folder.

use crate::{folder, metrics};
use ebb_agent::protocol::{GREET_STAT, Greeting, MAGIC, VERSION};
use ebb_pager::{FAULTS, FAULTS_JSON, PRESSURE};
use ebb_sys::proc;
use ebb_sys::socket::Socket;
use std::process::ExitCode;
use std::time::Duration;

/// The longest answer.
const ANSWER_MAX: usize = 64 << 10;
/// How long a run may take to say its figures: it may be following a fork, or be stopped.
const PATIENCE: Duration = Duration::from_secs(10);

#[derive(clap::Args)]
#[command(after_help = "\
The counters have the names of /proc/vmstat; nr_ are levels, in pages; what only Ebb has begins
with ebb_. Pressure (--pressure): the share of the last 10, 60 and 300 seconds in which at least one
thread (some), or all that had something to do (full), waited for memory, and the total in us.

Faults (--faults): how long each stage of a fault takes, by what the touch found. Every fault is
counted; what passes before its message is read and after its thread is woken is estimated from
samples, and what the kernel does in the thread itself is measured once.

Exit status: 0, or 1 if PID belongs to no run of yours.

Examples:
  ebb stat 4711
  ebb stat --pressure 4711
  ebb stat --faults 4711
  ebb stat --faults --format json 4711 | jq .waited_ns
  ebb stat --format openmetrics 4711 > /var/lib/node_exporter/ebb.prom
  watch -n1 'ebb stat $(pgrep -o -x redis-server) | grep -E \"pgmajfault|nr_free\"'")]
pub struct Arguments {
    /// Any process of the run, or the `ebb run` itself
    #[arg(value_name = "PID")]
    pid: u32,
    /// The time lost waiting for memory instead, as the kernel's memory.pressure shows it
    #[arg(long)]
    pressure: bool,
    /// Where the time of faults goes instead, by kind and stage
    #[arg(long, conflicts_with = "pressure")]
    faults: bool,
    /// Form of the figures
    #[arg(long, value_enum, default_value = "text", conflicts_with = "pressure")]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
    /// What Prometheus and its like read
    Openmetrics,
}

impl Arguments {
    /// What is asked for, in its form.
    fn text(&self) -> Result<String, String> {
        let ask = |request| ask(self.pid, GREET_STAT, request);
        match (self.faults, self.format) {
            (true, Format::Text) => ask(FAULTS),
            (true, Format::Json) => ask(FAULTS_JSON),
            (true, Format::Openmetrics) => {
                Err("--faults has no openmetrics; --format json, or leave --faults out".into())
            }
            (false, _) if self.pressure => ask(PRESSURE),
            (false, Format::Text) => ask(""),
            (false, Format::Json) => Ok(metrics::json(&ask("")?)),
            (false, Format::Openmetrics) => {
                metrics::openmetrics(self.pid, &ask("")?, &ask(PRESSURE)?)
                    .map_err(|error| error.to_string())
            }
        }
    }
}

/// On standard output. A reader that has seen enough is no failure.
pub fn say(text: &str) {
    use std::io::Write;
    let _ = std::io::stdout().write_all(text.as_bytes());
}

/// Prints them.
pub fn stat(arguments: &Arguments) -> ExitCode {
    match arguments.text() {
        Ok(text) => {
            say(&text);
            ExitCode::SUCCESS
        }
        Err(reason) => {
            crate::tell(reason);
            ExitCode::FAILURE
        }
    }
}

/// Asks the run that `pid` belongs to.
pub fn ask(pid: u32, kind: u32, request: &str) -> Result<String, String> {
    // Changes that `ebb set` and `ebb lru-gen` ask for may take their time.
    let patience = (kind == GREET_STAT).then_some(PATIENCE);
    let (_, line) = line_to(pid).map_err(no_answer)?.ok_or_else(|| no_run(pid))?;
    converse(&line, kind, request, patience)
}

/// The `ebb run` that `pid` belongs to.
pub fn front_of(pid: u32) -> Result<u32, String> {
    line_to(pid).map_err(no_answer)?.map(|(front, _)| front).ok_or_else(|| no_run(pid))
}

/// A line to the run of this `ebb run`.
pub fn line_to_front(front: u32) -> Result<Socket, String> {
    folder::line_to(front).map_err(no_answer)?.ok_or_else(|| no_run(front))
}

/// Whether a run that does not answer is over: nothing of it is left to ask.
pub fn has_ended(front: u32) -> bool {
    matches!(folder::line_to(front), Ok(None))
}

fn no_run(pid: u32) -> String {
    format!(
        "process {pid} belongs to no run of yours; give the number of an `ebb run`, or of a \
         process below one (ebb ps shows them)"
    )
}

fn no_answer(error: std::io::Error) -> String {
    format!("the run does not answer: {error}")
}

/// Asks over a line that nobody else uses, and waits for the answer.
pub fn converse(
    line: &Socket,
    kind: u32,
    request: &str,
    patience: Option<Duration>,
) -> Result<String, String> {
    let greeting = Greeting { magic: MAGIC, version: VERSION, kind, ..Greeting::default() };
    let message = [&greeting.to_bytes()[..], request.as_bytes()].concat();
    line.send(&message, &[]).map_err(no_answer)?;
    if let Some(patience) = patience {
        line.receive_within(patience).map_err(no_answer)?;
    }
    let mut bytes = vec![0; ANSWER_MAX];
    let got = line.receive(&mut bytes, &mut Vec::new()).map_err(no_answer)?;
    if got == 0 {
        return Err("the run has just ended".into());
    }
    Ok(String::from_utf8_lossy(&bytes[..got]).into_owned())
}

/// The run that a process is, or is below, with a connection to it.
fn line_to(mut pid: u32) -> std::io::Result<Option<(u32, Socket)>> {
    while pid > 1 {
        if let Some(line) = folder::line_to(pid)? {
            return Ok(Some((pid, line)));
        }
        let Some(parent) = proc::parent(pid) else { break };
        pid = parent;
    }
    Ok(None)
}
