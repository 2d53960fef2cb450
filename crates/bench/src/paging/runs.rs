//! Runs the load once in one configuration.

use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use ebb_sys::process;
use ebb_sys::sched::CpuSet;
use ebb_sys::signals::{SIGINT, SIGTERM, Signals};

use super::command::NAMES;
use super::load::Outcome;
use crate::error::RunError;
use crate::kernel::{Cgroup, KernelError, SwapFile};

/// Why `ebb bench paging` fails or refuses its arguments.
#[derive(Debug, thiserror::Error)]
pub enum PagingError {
    /// The text names no load.
    #[error("--loads {0}: write {names}, then :THREADS, then +busy", names = NAMES.join(", "))]
    Name(String),
    /// The benchmark cannot run the load.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The benchmark cannot set up the kernel's side of the comparison.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// The kernel does not tell the CPUs of this thread.
    #[error("cannot ask for CPUs: {0}")]
    Cpus(io::Error),
    /// The benchmark cannot read the output of the load.
    #[error(transparent)]
    Output(io::Error),
    /// The load printed this text in place of a result.
    #[error("unreadable result {0:?}: {1}")]
    Outcome(String, serde_json::Error),
}

/// Environment of the load.
#[derive(Clone, Debug)]
pub enum Environment {
    /// Under `ebb run` with this limit and these further arguments.
    Ebb { limit_bytes: u64, more: Vec<String> },
    /// In a memory cgroup with this limit and with this swap file.
    Kernel { limit_bytes: u64, swap: Rc<SwapFile> },
    /// Without a limit.
    Plain,
}

/// Parameters of the load.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    pub pattern: &'static str,
    pub threads: usize,
    pub mib: usize,
    pub warm: f64,
    pub seconds: f64,
    /// Number of accesses of `loop`.
    pub accesses: u64,
    /// Whether another process spins on one CPU meanwhile.
    pub busy: bool,
}

/// Starts runs, and ends them when a signal ends the benchmark.
#[derive(Debug)]
pub struct Runner {
    ebb: PathBuf,
    load: Vec<String>,
    signals: Signals,
}

impl Runner {
    /// Finds the `ebb` to measure: the given one, or the one beside this program.
    pub fn new(ebb: Option<PathBuf>) -> Result<Self, RunError> {
        let ebb = crate::ebb_to_measure(ebb)?;
        let mut load = crate::own_bench()?;
        load.push("paging-load".to_string());
        let signals = Signals::take(&[SIGINT, SIGTERM]).map_err(RunError::Signals)?;
        Ok(Self { ebb, load, signals })
    }

    /// Runs the load and returns its result.
    pub fn run(&self, place: &Environment, load: &Load) -> Result<Outcome, PagingError> {
        let _busy = load.busy.then(|| self.busy()).transpose()?;
        let cgroup = match place {
            Environment::Kernel { limit_bytes, .. } => Some(Cgroup::new(Some(*limit_bytes))?),
            _ => None,
        };
        // Swap-in of single pages is the kernel's best on loads without order.
        let _swap = match place {
            Environment::Kernel { swap, .. } => Some(swap.on(0)?),
            _ => None,
        };
        let mut command = match place {
            Environment::Ebb { limit_bytes, more } => {
                let mut command = Command::new(&self.ebb);
                command.args(["run", "--memory-max", &limit_bytes.to_string()]);
                command.args(["--report-file", "/dev/null"]);
                command.args(more).arg("--").args(&self.load).arg("--siblings");
                command
            }
            Environment::Kernel { .. } | Environment::Plain => {
                let mut command = Command::new(&self.load[0]);
                command.args(&self.load[1..]);
                command
            }
        };
        if let Some(cgroup) = &cgroup {
            command.arg("--cgroup").arg(&cgroup.folder);
        }
        command.args(["--pattern", load.pattern, "--mib", &load.mib.to_string()]);
        command.args(["--threads", &load.threads.to_string()]);
        command.args(["--warm", &load.warm.to_string(), "--seconds", &load.seconds.to_string()]);
        command.args(["--accesses", &load.accesses.to_string()]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        self.wait(start(&mut command, "the load")?)
    }

    /// Starts a process that spins on the last CPU.
    fn busy(&self) -> Result<Busy, PagingError> {
        let cpus = CpuSet::of_this_thread().map_err(PagingError::Cpus)?;
        let cpu = (0..1024).rev().find(|&cpu| cpus.contains(cpu)).unwrap_or(0);
        let mut command = Command::new(&self.load[0]);
        command.args(&self.load[1..]).args(["--pattern", "busy", "--cpu", &cpu.to_string()]);
        command.args(["--mib", "0", "--threads", "1", "--warm", "0", "--seconds", "0"]);
        command.stdin(Stdio::null());
        Ok(Busy(start(&mut command, "the busy loop")?))
    }

    fn wait(&self, mut child: Child) -> Result<Outcome, PagingError> {
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if self.signals.next().is_some() => {
                    // An error means that the child has ended already.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(RunError::Interrupted.into());
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return Err(RunError::Wait("the load", error).into()),
            }
        };
        if !status.success() {
            return Err(RunError::Failed("the load", status).into());
        }
        let mut text = String::new();
        let stdout = child.stdout.as_mut().ok_or(RunError::NoOutput("the load"))?;
        stdout.read_to_string(&mut text).map_err(PagingError::Output)?;
        serde_json::from_str(&text).map_err(|error| PagingError::Outcome(text, error))
    }
}

/// Starts a program that does not outlive this process.
fn start(command: &mut Command, name: &str) -> Result<Child, RunError> {
    process::confine(command);
    command.spawn().map_err(|error| RunError::Start(name.into(), error))
}

/// A process that spins until this value is dropped.
struct Busy(Child);

impl Drop for Busy {
    fn drop(&mut self) {
        // An error means that the child has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
