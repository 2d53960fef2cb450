//! Runs the load once in one configuration.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::rc::Rc;
use std::time::Duration;

use ebb_sys::process;
use ebb_sys::sched::CpuSet;
use ebb_sys::signals::{SIGINT, SIGTERM, Signals};

use super::load::Outcome;
use crate::kernel::{Cgroup, SwapFile};

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
    pub fn new(ebb: Option<PathBuf>) -> Result<Self, String> {
        let ebb = crate::ebb_to_measure(ebb)?;
        let mut load = crate::own_bench()?;
        load.push("paging-load".to_string());
        let signals =
            Signals::take(&[SIGINT, SIGTERM]).map_err(|e| format!("cannot take signals: {e}"))?;
        Ok(Self { ebb, load, signals })
    }

    /// Runs the load and returns its result.
    pub fn run(&self, place: &Environment, load: &Load) -> Result<Outcome, String> {
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
        process::confine(&mut command);
        let child = command.spawn().map_err(|e| format!("cannot start the load: {e}"))?;
        self.wait(child)
    }

    /// Starts a process that spins on the last CPU.
    fn busy(&self) -> Result<Busy, String> {
        let cpus = CpuSet::of_this_thread().map_err(|e| format!("cannot ask for CPUs: {e}"))?;
        let cpu = (0..1024).rev().find(|&cpu| cpus.contains(cpu)).unwrap_or(0);
        let mut command = Command::new(&self.load[0]);
        command.args(&self.load[1..]).args(["--pattern", "busy", "--cpu", &cpu.to_string()]);
        command.args(["--mib", "0", "--threads", "1", "--warm", "0", "--seconds", "0"]);
        command.stdin(Stdio::null());
        process::confine(&mut command);
        let child = command.spawn().map_err(|e| format!("cannot start the busy loop: {e}"))?;
        Ok(Busy(child))
    }

    fn wait(&self, mut child: Child) -> Result<Outcome, String> {
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if self.signals.next().is_some() => {
                    // An error means that the child has ended already.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err("interrupted".into());
                }
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                Err(error) => return Err(format!("cannot wait for the load: {error}")),
            }
        };
        if !status.success() {
            return Err(format!("the load failed: {status}"));
        }
        let mut text = String::new();
        let stdout = child.stdout.as_mut().ok_or("the load has no output")?;
        std::io::Read::read_to_string(stdout, &mut text).map_err(|e| e.to_string())?;
        serde_json::from_str(&text).map_err(|error| format!("unreadable result {text:?}: {error}"))
    }
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
