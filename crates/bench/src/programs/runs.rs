//! Runs one program once.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ebb_sys::signals::{SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals};
use ebb_sys::{proc, process, signals};
use serde::Serialize;
use serde_json::Value;

use super::error::{ProgramsError, UseError};
use super::inputs::find;
use super::list::{Program, Use};
use super::redis;
use crate::error::RunError;
use crate::kernel::{Cgroup, Compressed, Swap, SwapFile};

/// Shell command that enters the cgroup in its first argument, then becomes the program.
const ENTER: &str = r#"echo 0 > "$0/cgroup.procs" && exec "$@""#;
/// Clock ticks of `/proc/PID/stat` in a second, on every present Linux.
const TICKS_PER_S: f64 = 100.0;

/// Environment of a program.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Environment {
    /// Without a limit.
    Plain,
    /// Under `ebb run`.
    Ebb { limit_bytes: u64 },
    /// In a memory cgroup, with a swap file.
    SwapFile { limit_bytes: u64, page_cluster: u32 },
    /// In a memory cgroup, with compressed swap of `memory_bytes` of memory at most.
    Zram { limit_bytes: u64, memory_bytes: Option<u64>, page_cluster: u32 },
}

/// How a run ended.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The run succeeded.
    Done,
    /// The kernel's OOM killer ended the run.
    Killed,
    /// The run took longer than the timeout.
    TimedOut,
    /// The run failed.
    Failed(String),
    /// The output differs from the output of the program alone.
    Different,
}

/// Result of one run.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// How the run ended.
    pub end: End,
    /// Duration of the run, or of the part that counts, in seconds.
    pub wall_s: f64,
    /// Processor time of all the run's processes and of Ebb, in seconds.
    pub cpu_s: f64,
    /// Checksum of the output.
    pub checksum: u64,
    /// Peak of the run's memory in bytes, if the environment shows the peak.
    pub peak_bytes: Option<u64>,
    /// The report of `ebb run`.
    pub report: Option<Value>,
    /// Contents of compressed swap when it was fullest.
    #[serde(skip)]
    pub compressed: Compressed,
}

/// Result of using a program.
#[derive(Debug)]
pub struct Driven {
    /// Checksum of the output.
    pub checksum: u64,
    /// Duration of the part that counts; `None` for the whole run.
    pub wall: Option<Duration>,
}

/// A checksum (FNV, eight bytes at a time).
#[derive(Debug)]
pub struct Digest(u64);

impl Default for Digest {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Digest {
    /// Adds bytes in pieces of eight. The result depends on how the bytes are split between calls.
    pub fn add(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3);
            self.0 ^= self.0 >> 29;
        }
        self.0 = (self.0 ^ bytes.len() as u64).wrapping_mul(0x0100_0000_01b3);
    }

    /// Returns the checksum.
    pub fn value(&self) -> u64 {
        self.0
    }
}

/// Runs programs. Kills a program that takes too long, or when a signal ends the benchmark.
#[derive(Debug)]
pub struct Runner {
    /// Path of the `ebb` to measure.
    pub ebb: PathBuf,
    /// Further arguments of `ebb run`.
    pub more: Vec<String>,
    /// The folder of all inputs.
    pub folder: PathBuf,
    /// Longest duration of a run.
    pub timeout: Duration,
    /// The swap file, if there is one.
    pub swap_file: Option<SwapFile>,
    signals: Signals,
}

impl Runner {
    /// Creates a runner that takes the signals SIGHUP, SIGINT and SIGTERM.
    pub fn new(
        ebb: PathBuf,
        more: Vec<String>,
        folder: PathBuf,
        timeout: Duration,
    ) -> Result<Self, RunError> {
        let signals = Signals::take(&[SIGHUP, SIGINT, SIGTERM]).map_err(RunError::Signals)?;
        // The pager outlives the supervisor for a moment, and this process adopts the pager. Only a
        // parent that waits for a process learns its processor time.
        process::adopt_orphans();
        Ok(Self { ebb, more, folder, timeout, swap_file: None, signals })
    }

    /// Runs `program` once. An error means a failure of the benchmark itself or an interruption.
    pub fn run(&self, program: &Program, place: Environment) -> Result<Sample, ProgramsError> {
        let folder = self.folder.join(program.name);
        let cgroup = match place {
            // If no cgroup can be created, the memory is sampled from time to time instead.
            Environment::Plain => Cgroup::new(None).ok(),
            Environment::Ebb { .. } => None,
            Environment::SwapFile { limit_bytes, .. } | Environment::Zram { limit_bytes, .. } => {
                Some(Cgroup::new(Some(limit_bytes))?)
            }
        };
        let swap = self.swap(place)?;
        let report = folder.join("report");
        let mut command = self.command(program, place, cgroup.as_ref(), &report)?;
        let said = folder.join("stderr");
        let errors = std::fs::File::create(&said).map_err(ProgramsError::Stderr)?;
        command.current_dir(&folder).envs([("LC_ALL", "C"), ("PYTHONHASHSEED", "0")]);
        command.env("PERL_HASH_SEED", "0").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(errors);
        process::prepare_child(&mut command);
        // An earlier run may have left this socket.
        let _ = std::fs::remove_file(folder.join("redis.sock"));
        let look = place == Environment::Plain && cgroup.is_none();
        let before = children_ticks();
        let strangers = proc::children(std::process::id());
        let start = Instant::now();
        let child = command.spawn().map_err(ProgramsError::Start)?;
        let mut watch = Watch { runner: self, child, start, peak: 0, compressed: None };
        let (end, driven) = watch.wait(program, &folder, look, swap.as_ref())?;
        let wall = driven.as_ref().and_then(|driven| driven.wall).unwrap_or(start.elapsed());
        reap(&strangers);
        let killed = cgroup.as_ref().is_some_and(|cgroup| cgroup.killed() > 0);
        let end = match end {
            End::Failed(_) if killed => End::Killed,
            End::Failed(why) => End::Failed(format!("{why}{}", last_lines(&said))),
            end => end,
        };
        Ok(Sample {
            end,
            wall_s: wall.as_secs_f64(),
            cpu_s: (children_ticks() - before) as f64 / TICKS_PER_S,
            checksum: driven.map_or(0, |driven| driven.checksum),
            peak_bytes: match &cgroup {
                Some(cgroup) => cgroup.peak_bytes(),
                None => Some(watch.peak).filter(|&peak| peak > 0),
            },
            report: matches!(place, Environment::Ebb { .. })
                .then(|| serde_json::from_str(&std::fs::read_to_string(&report).ok()?).ok())
                .flatten(),
            compressed: watch.compressed.unwrap_or_default(),
        })
    }

    fn swap(&self, place: Environment) -> Result<Option<Swap>, ProgramsError> {
        Ok(match place {
            Environment::Plain | Environment::Ebb { .. } => None,
            Environment::SwapFile { page_cluster, .. } => {
                let file = self.swap_file.as_ref().ok_or(ProgramsError::NoSwapFile)?;
                Some(file.on(page_cluster)?)
            }
            Environment::Zram { memory_bytes, page_cluster, .. } => {
                Some(Swap::zram(4 << 30, memory_bytes, page_cluster)?)
            }
        })
    }

    fn command(
        &self,
        program: &Program,
        place: Environment,
        cgroup: Option<&Cgroup>,
        report: &Path,
    ) -> Result<Command, ProgramsError> {
        let path = find(program.command[0]).ok_or(ProgramsError::Gone)?;
        let mut command = match (place, cgroup) {
            (Environment::Ebb { limit_bytes }, _) => {
                let mut command = Command::new(&self.ebb);
                command.args(["run", "--memory-max", &limit_bytes.to_string()]);
                command.args(["--report", "json", "--report-file"]).arg(report);
                command.args(&self.more).arg("--").arg(path);
                command
            }
            (_, Some(cgroup)) => {
                let mut command = Command::new("/bin/sh");
                command.args(["-c", ENTER]).arg(&cgroup.folder).arg(path);
                command
            }
            (_, None) => Command::new(path),
        };
        command.args(&program.command[1..]);
        Ok(command)
    }
}

/// A running program.
struct Watch<'a> {
    runner: &'a Runner,
    child: Child,
    start: Instant,
    peak: u64,
    compressed: Option<Compressed>,
}

impl Watch<'_> {
    /// Uses the program and waits for its end, or kills it after the timeout.
    fn wait(
        &mut self,
        program: &Program,
        folder: &Path,
        measure: bool,
        swap: Option<&Swap>,
    ) -> Result<(End, Option<Driven>), RunError> {
        let stdout = self.child.stdout.take().ok_or(RunError::NoOutput("the program"))?;
        let uses = use_it(program.use_, stdout, folder.join("redis.sock"));
        let mut driven = None;
        loop {
            match uses.recv_timeout(Duration::from_millis(20)) {
                Ok(result) => driven = Some(result),
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.look(measure, swap);
            if self.end_if_over()? {
                return Ok((End::TimedOut, None));
            }
        }
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if self.end_if_over()? => return Ok((End::TimedOut, None)),
                Ok(None) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => return Err(RunError::Wait("the program", error)),
            }
        };
        Ok(match (ended(status), driven) {
            (Some(why), _) => (End::Failed(why), None),
            (None, Some(Ok(driven))) => (End::Done, Some(driven)),
            (None, Some(Err(why))) => (End::Failed(why.to_string()), None),
            (None, None) => {
                (End::Failed("the benchmark did not use the program to the end".into()), None)
            }
        })
    }

    /// Samples the figures that exist only while the program runs.
    fn look(&mut self, measure: bool, swap: Option<&Swap>) {
        if measure {
            self.peak = self.peak.max(tree(self.child.id()).into_iter().map(memory).sum());
        }
        if let Some(now) = swap.and_then(Swap::compressed) {
            let most = self.compressed.get_or_insert(now);
            if now.original_bytes > most.original_bytes {
                *most = now;
            }
        }
    }

    /// Kills the program after the timeout, and then returns true. If a signal interrupts the
    /// benchmark, kills the program and returns an error.
    fn end_if_over(&mut self) -> Result<bool, RunError> {
        let interrupted = self.runner.signals.next().is_some();
        let late = self.start.elapsed() > self.runner.timeout;
        if interrupted || late {
            self.end();
        }
        if interrupted { Err(RunError::Interrupted) } else { Ok(late) }
    }

    fn end(&mut self) {
        for pid in tree(self.child.id()).into_iter().rev() {
            signals::send(pid, SIGKILL);
        }
        // An error means that the child has ended already.
        let _ = self.child.wait();
    }
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            self.end();
        }
    }
}

/// Uses a program in a thread. The thread sends its result over the channel, and the channel then
/// closes.
fn use_it(
    use_: Use,
    mut stdout: ChildStdout,
    socket: PathBuf,
) -> Receiver<Result<Driven, UseError>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let result = match use_ {
            Use::Redis => redis::drive(&socket),
            Use::Once => digest(&mut stdout).map(|checksum| Driven { checksum, wall: None }),
        };
        // The receiver may be gone when the benchmark ends.
        let _ = sender.send(result);
    });
    receiver
}

/// Returns the checksum of the whole input, independent of the sizes of reads.
fn digest(from: &mut impl Read) -> Result<u64, UseError> {
    let mut digest = Digest::default();
    let mut buffer = vec![0; 1 << 16];
    let mut full = 0;
    loop {
        let got = from.read(&mut buffer[full..]).map_err(UseError::Output)?;
        full += got;
        if got == 0 || full == buffer.len() {
            digest.add(&buffer[..full]);
            full = 0;
        }
        if got == 0 {
            return Ok(digest.value());
        }
    }
}

/// Returns the exit status as text if it is not success.
fn ended(status: ExitStatus) -> Option<String> {
    (!status.success()).then(|| status.to_string())
}

/// Returns a process and all of its descendants.
fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        all.extend(proc::children(pid));
        next += 1;
    }
    all
}

/// Returns the memory of a process that is not file-backed, in bytes.
fn memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |line: &str| {
        let value = line.strip_prefix("RssAnon:").or_else(|| line.strip_prefix("RssShmem:"))?;
        value.split_whitespace().next()?.parse::<u64>().ok()
    };
    text.lines().filter_map(of).sum::<u64>() * 1024
}

/// Waits a while for processes that have become children of this process during the run.
fn reap(before: &[u32]) {
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(5) {
        while signals::next_change().is_some() {}
        if proc::children(std::process::id()).iter().all(|pid| before.contains(pid)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns the processor time in ticks of reaped children and their descendants.
fn children_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may contain spaces. Wanted are the 16th and 17th fields.
    let after = stat.rsplit(')').next().unwrap_or_default();
    let fields = after.split_whitespace().skip(13).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// Returns the last lines of a program's output, if any.
fn last_lines(file: &Path) -> String {
    let text = std::fs::read(file).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(3)..].iter().fold(String::new(), |all, line| all + "; " + line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checksum_depends_on_the_bytes_and_not_on_the_size_of_reads() {
        struct Slowly<'a>(&'a [u8]);
        impl Read for Slowly<'_> {
            fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
                let some = self.0.len().min(into.len()).min(7);
                let (now, rest) = self.0.split_at(some);
                into[..some].copy_from_slice(now);
                self.0 = rest;
                Ok(some)
            }
        }
        let text = b"0123456789".repeat(20_000);
        let whole = digest(&mut text.as_slice()).unwrap();
        assert_eq!(digest(&mut Slowly(&text)).unwrap(), whole);
        let mut other = text.clone();
        other[77] = b'x';
        assert_ne!(digest(&mut other.as_slice()).unwrap(), whole);
        assert_ne!(digest(&mut &text[..text.len() - 1]).unwrap(), whole);
    }

    #[test]
    fn memory_of_this_process_is_seen() {
        assert!(memory(std::process::id()) > 0);
        assert!(tree(std::process::id()).contains(&std::process::id()));
    }
}
