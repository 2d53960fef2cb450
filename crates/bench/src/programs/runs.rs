//! One run of one program.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use ebb_sys::signals::{SIGHUP, SIGINT, SIGKILL, SIGTERM, Signals};
use ebb_sys::{proc, process, signals};
use serde::Serialize;
use serde_json::Value;

use super::inputs::find;
use super::list::{Program, Use};
use super::redis;
use crate::kernel::{Cgroup, Compressed, Swap, SwapFile};

/// Enters the cgroup named first, then becomes the program.
const ENTER: &str = r#"echo 0 > "$0/cgroup.procs" && exec "$@""#;
/// Clock ticks of `/proc/PID/stat` are hundredths of a second on every Linux of today.
const TICKS_PER_S: f64 = 100.0;

/// Where a program runs.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Without a limit.
    Plain,
    /// Under `ebb run`.
    Ebb { limit_bytes: u64 },
    /// In a memory cgroup, with a swap file.
    SwapFile { limit_bytes: u64, page_cluster: u32 },
    /// In a memory cgroup, with compressed swap of so much memory at most.
    Zram { limit_bytes: u64, memory_bytes: Option<u64>, page_cluster: u32 },
}

/// How a run ended.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// As it should.
    Done,
    /// The kernel ended it, for want of memory.
    Killed,
    /// It took longer than it may.
    TimedOut,
    /// It went wrong.
    Failed(String),
    /// What came out was not what comes out alone.
    Different,
}

/// One run.
#[derive(Clone, Debug, Serialize)]
pub struct Sample {
    /// How it ended.
    pub end: End,
    /// How long it took, or what is measured of it.
    pub wall_s: f64,
    /// Processor time of all its processes, and of Ebb's.
    pub cpu_s: f64,
    /// Of what came out.
    pub checksum: u64,
    /// Most memory it had at once, as far as the place tells.
    pub peak_bytes: Option<u64>,
    /// What `ebb run` reports.
    pub report: Option<Value>,
    /// The fullest that compressed swap was.
    #[serde(skip)]
    pub compressed: Compressed,
}

/// What using a program gave.
#[derive(Debug)]
pub struct Driven {
    /// Of what came out.
    pub checksum: u64,
    /// The part of the time that counts; the whole run if none.
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
    /// Takes in whole pieces; where they are cut matters.
    pub fn add(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.0 = (self.0 ^ u64::from_le_bytes(word)).wrapping_mul(0x0100_0000_01b3);
            self.0 ^= self.0 >> 29;
        }
        self.0 = (self.0 ^ bytes.len() as u64).wrapping_mul(0x0100_0000_01b3);
    }

    /// What it has come to.
    pub fn value(&self) -> u64 {
        self.0
    }
}

/// Runs programs, and ends them when they take too long or the benchmark is told to end.
#[derive(Debug)]
pub struct Runner {
    /// The `ebb` to measure.
    pub ebb: PathBuf,
    /// Further arguments of `ebb run`.
    pub more: Vec<String>,
    /// The folder of all inputs.
    pub folder: PathBuf,
    /// How long a run may take.
    pub timeout: Duration,
    /// The swap file, if there is one.
    pub swap_file: Option<SwapFile>,
    signals: Signals,
}

impl Runner {
    /// Takes over the signals that end a benchmark.
    pub fn new(
        ebb: PathBuf,
        more: Vec<String>,
        folder: PathBuf,
        timeout: Duration,
    ) -> Result<Self, String> {
        let signals = Signals::take(&[SIGHUP, SIGINT, SIGTERM])
            .map_err(|error| format!("cannot take signals: {error}"))?;
        // The pager outlives the front for a moment; what it used is told to who waits for it.
        process::adopt_orphans();
        Ok(Self { ebb, more, folder, timeout, swap_file: None, signals })
    }

    /// Runs `program` once. An error is one of the benchmark's own, or that it was interrupted.
    pub fn run(&self, program: &Program, place: Place) -> Result<Sample, String> {
        let folder = self.folder.join(program.name);
        let cgroup = match place {
            // Without one, memory is looked at now and then instead.
            Place::Plain => Cgroup::new(None).ok(),
            Place::Ebb { .. } => None,
            Place::SwapFile { limit_bytes, .. } | Place::Zram { limit_bytes, .. } => {
                Some(Cgroup::new(Some(limit_bytes))?)
            }
        };
        let swap = self.swap(place)?;
        let report = folder.join("report");
        let mut command = self.command(program, place, cgroup.as_ref(), &report)?;
        let said = folder.join("stderr");
        let errors = std::fs::File::create(&said).map_err(|error| format!("stderr: {error}"))?;
        command.current_dir(&folder).envs([("LC_ALL", "C"), ("PYTHONHASHSEED", "0")]);
        command.env("PERL_HASH_SEED", "0").stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(errors);
        process::attend(&mut command);
        // Left by the run before.
        let _ = std::fs::remove_file(folder.join("redis.sock"));
        let look = place == Place::Plain && cgroup.is_none();
        let before = children_ticks();
        let strangers = proc::children(std::process::id());
        let start = Instant::now();
        let child = command.spawn().map_err(|error| format!("cannot start: {error}"))?;
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
            report: matches!(place, Place::Ebb { .. })
                .then(|| serde_json::from_str(&std::fs::read_to_string(&report).ok()?).ok())
                .flatten(),
            compressed: watch.compressed.unwrap_or_default(),
        })
    }

    fn swap(&self, place: Place) -> Result<Option<Swap>, String> {
        match place {
            Place::Plain | Place::Ebb { .. } => Ok(None),
            Place::SwapFile { page_cluster, .. } => {
                self.swap_file.as_ref().ok_or("no swap file")?.on(page_cluster).map(Some)
            }
            Place::Zram { memory_bytes, page_cluster, .. } => {
                Swap::zram(4 << 30, memory_bytes, page_cluster).map(Some)
            }
        }
    }

    fn command(
        &self,
        program: &Program,
        place: Place,
        cgroup: Option<&Cgroup>,
        report: &Path,
    ) -> Result<Command, String> {
        let path = find(program.command[0]).ok_or("the program is gone")?;
        let mut command = match (place, cgroup) {
            (Place::Ebb { limit_bytes }, _) => {
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

/// A program that runs.
struct Watch<'a> {
    runner: &'a Runner,
    child: Child,
    start: Instant,
    peak: u64,
    compressed: Option<Compressed>,
}

impl Watch<'_> {
    /// Uses the program and waits for its end, or ends it.
    fn wait(
        &mut self,
        program: &Program,
        folder: &Path,
        measure: bool,
        swap: Option<&Swap>,
    ) -> Result<(End, Option<Driven>), String> {
        let stdout = self.child.stdout.take().ok_or("the program has no output")?;
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
                Err(error) => return Err(format!("cannot wait for the program: {error}")),
            }
        };
        Ok(match (ended(status), driven) {
            (Some(why), _) => (End::Failed(why), None),
            (None, Some(Ok(driven))) => (End::Done, Some(driven)),
            (None, Some(Err(why))) => (End::Failed(why), None),
            (None, None) => (End::Failed("it was not used to the end".into()), None),
        })
    }

    /// What is seen only while it runs.
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

    /// Ends the program if its time is over, or the benchmark's: then with an error.
    fn end_if_over(&mut self) -> Result<bool, String> {
        let interrupted = self.runner.signals.next().is_some();
        let late = self.start.elapsed() > self.runner.timeout;
        if interrupted || late {
            self.end();
        }
        if interrupted { Err("interrupted".into()) } else { Ok(late) }
    }

    fn end(&mut self) {
        for pid in tree(self.child.id()).into_iter().rev() {
            signals::send(pid, SIGKILL);
        }
        // Gone already is as good.
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

/// Uses a program in a thread: what came of it, then the end of the channel.
fn use_it(use_: Use, mut stdout: ChildStdout, socket: PathBuf) -> Receiver<Result<Driven, String>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let result = match use_ {
            Use::Redis => redis::drive(&socket),
            Use::Once => digest(&mut stdout).map(|checksum| Driven { checksum, wall: None }),
        };
        // Nobody hears it when the benchmark ends.
        let _ = sender.send(result);
    });
    receiver
}

/// The checksum of all there is to be read, however it comes in pieces.
fn digest(from: &mut impl Read) -> Result<u64, String> {
    let mut digest = Digest::default();
    let mut buffer = vec![0; 1 << 16];
    let mut full = 0;
    loop {
        let got = from.read(&mut buffer[full..]).map_err(|error| format!("output: {error}"))?;
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

/// Why an end is not a good one.
fn ended(status: ExitStatus) -> Option<String> {
    (!status.success()).then(|| status.to_string())
}

/// A process and all below it.
fn tree(pid: u32) -> Vec<u32> {
    let mut all = vec![pid];
    let mut next = 0;
    while let Some(&pid) = all.get(next) {
        all.extend(proc::children(pid));
        next += 1;
    }
    all
}

/// Memory of a process that is no file's.
fn memory(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let of = |line: &str| {
        let value = line.strip_prefix("RssAnon:").or_else(|| line.strip_prefix("RssShmem:"))?;
        value.split_whitespace().next()?.parse::<u64>().ok()
    };
    text.lines().filter_map(of).sum::<u64>() * 1024
}

/// Waits a while for what has become a child of this process meanwhile.
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

/// Processor time of the children that were waited for, and of theirs.
fn children_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name, in parentheses, may hold spaces; the 16th and 17th fields are wanted.
    let after = stat.rsplit(')').next().unwrap_or_default();
    let fields = after.split_whitespace().skip(13).take(2);
    fields.filter_map(|field| field.parse::<u64>().ok()).sum()
}

/// What a program said last, if anything.
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
    fn a_checksum_is_of_what_was_read_and_not_of_how() {
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
