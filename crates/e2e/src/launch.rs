//! Starts one program and waits for it.
//!
//! Output goes to files. With a pipe a test would wait for an orphan that keeps the pipe open.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};

use ebb_testing::{Guard, HANG};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::build;
use crate::tree::{Root, TAG, Tree, folders_of};

/// A program to run: plainly, or under `ebb run` when it has a limit.
#[derive(Clone, Debug)]
pub struct Launch {
    program: OsString,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    input: Option<PathBuf>,
    limit: Option<u64>,
    options: Vec<OsString>,
}

impl Launch {
    /// Creates a launch of a program by path, or by name if PATH has it.
    pub fn new(program: impl AsRef<OsStr>) -> Self {
        Self {
            program: program.as_ref().to_owned(),
            arguments: Vec::new(),
            variables: Vec::new(),
            directory: None,
            input: None,
            limit: None,
            options: Vec::new(),
        }
    }

    /// Creates a launch of one of the C programs with its arguments, separated by spaces.
    pub fn program(name: &str, arguments: &str) -> Self {
        Self::new(build::program(name)).args(arguments.split_whitespace())
    }

    /// Creates a launch of a C program with a library that the loader initialises before the agent.
    /// The loader does so with libraries that a program is linked with.
    pub fn program_behind(library: &Path, name: &str, arguments: &str) -> Self {
        let behind = "LD_PRELOAD=$LD_PRELOAD:$0 exec \"$@\"";
        let shell = Self::new("/bin/sh").args(["-c", behind]).arg(library);
        shell.arg(build::program(name)).args(arguments.split_whitespace())
    }

    /// Adds an argument.
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    pub fn args<S: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = S>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// Sets an environment variable of the program.
    pub fn env(mut self, name: &str, value: impl AsRef<OsStr>) -> Self {
        self.variables.push((name.into(), value.as_ref().to_owned()));
        self
    }

    /// Sets the working directory of the program.
    pub fn directory(mut self, path: &Path) -> Self {
        self.directory = Some(path.to_owned());
        self
    }

    /// Sets the file for standard input, which is otherwise /dev/null.
    pub fn input(mut self, path: &Path) -> Self {
        self.input = Some(path.to_owned());
        self
    }

    /// Makes the program run under `ebb run --memory-max BYTES`.
    pub fn limit(mut self, bytes: u64) -> Self {
        self.limit = Some(bytes);
        self
    }

    /// Adds options of `ebb run`, separated by spaces.
    pub fn options(mut self, options: &str) -> Self {
        self.options.extend(options.split_whitespace().map(OsString::from));
        self
    }

    /// Returns the command. A limited run writes its report into `folder`, unless an option says
    /// otherwise.
    fn command(&self, folder: &Path) -> Command {
        let mut command = match self.limit {
            None => Command::new(&self.program),
            Some(bytes) => {
                let mut ebb = Command::new(build::ebb());
                ebb.arg("run").arg("--memory-max").arg(bytes.to_string());
                if !self.options.iter().any(|option| option == "--report") {
                    ebb.arg("--report-file").arg(folder.join("report"));
                }
                ebb.args(&self.options).arg("--").arg(&self.program);
                ebb
            }
        };
        command
            .args(&self.arguments)
            .envs(self.variables.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        command
    }

    /// Starts the program.
    pub fn start(&self) -> Running {
        if self.limit.is_some() {
            need_paging();
        }
        static RUNS: AtomicU64 = AtomicU64::new(0);
        let number = RUNS.fetch_add(1, Ordering::Relaxed);
        let tag = format!("{}-{number}", std::process::id());
        let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
        let output = |name| File::create(folder.path().join(name)).expect("output file");
        let input = match &self.input {
            Some(path) => Stdio::from(File::open(path).expect("input file")),
            None => Stdio::null(),
        };
        let mut command = self.command(folder.path());
        command.env(TAG, &tag).stdin(input).stdout(output("out")).stderr(output("err"));
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let root = Root {
            pid: child.id().cast_signed(),
            tag,
            ebb: build::existing_ebb().unwrap_or_default(),
        };
        Running { launch: self.clone(), child, root, folder, status: None }
    }

    /// Starts the program and waits for its end.
    pub fn run(&self) -> Outcome {
        self.start().finish()
    }
}

/// Skips the test if this user may not page programs. That takes a userfaultfd that reports the
/// kernel's faults, too, and the right to follow forks.
#[track_caller]
pub fn need_paging() {
    let device = || File::options().read(true).write(true).open("/dev/userfaultfd").is_ok();
    let setting = || fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
    let is_open = || setting().is_ok_and(|text| text.trim() == "1");
    let has_capability = || {
        let name = "security.capability";
        rustix::fs::getxattr(build::ebb(), name, &mut [0_u8; 64][..]).is_ok()
    };
    if !rustix::process::geteuid().is_root() && !(has_capability() && (device() || is_open())) {
        ebb_testing::skip("this user may not page programs; `ebb doctor` says why");
    }
}

/// Skips the test with this reason, unless this user is root.
#[track_caller]
pub fn need_root_for(why: &str) {
    if !rustix::process::geteuid().is_root() {
        ebb_testing::skip(why);
    }
}

/// Skips a test that looks into Ebb's own processes. The file of an ordinary user's `ebb` has a
/// capability, and the kernel shows such a process to root alone.
#[track_caller]
pub fn need_sight_of_ebb() {
    need_root_for("it looks into Ebb's own processes, which root may");
}

/// A running program.
pub struct Running {
    launch: Launch,
    child: Child,
    root: Root,
    folder: TempDir,
    status: Option<ExitStatus>,
}

impl Running {
    /// Returns the identity of the run.
    pub fn root(&self) -> &Root {
        &self.root
    }

    /// Returns the PID of the started process: the program, or `ebb`.
    pub fn pid(&self) -> i32 {
        self.root.pid
    }

    /// Returns the standard output up to now.
    pub fn stdout(&self) -> String {
        self.written("out")
    }

    /// Returns the standard error up to now.
    pub fn stderr(&self) -> String {
        self.written("err")
    }

    fn written(&self, name: &str) -> String {
        let bytes = fs::read(self.folder.path().join(name)).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Sends a signal to the started process.
    pub fn signal(&self, signal: Signal) {
        send(self.root.pid, signal);
    }

    /// Waits until the output contains `text`.
    pub fn wait_for(&mut self, text: &str) {
        self.wait_until(&format!("{text:?} in its output"), |run| run.stdout().contains(text));
    }

    /// Waits until `done`. Fails if the program ends before that.
    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut done: impl FnMut(&Self) -> bool) {
        let guard = Guard::new();
        while !done(self) {
            let ended = self.ended();
            if ended && !done(self) {
                panic!("ended before {what}\n{}", self.state());
            }
            self.pause(guard, what);
        }
    }

    /// Returns whether the started process has ended.
    pub fn ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().expect("wait for the program");
        }
        self.status.is_some()
    }

    /// Lets the program run until the next check. A run that hangs fails with the state of all its
    /// threads.
    #[track_caller]
    fn pause(&self, guard: Guard, what: &str) {
        assert!(!guard.hangs(), "hangs: waited {HANG:?} for {what}\n{}", self.state());
        guard.pause(what);
    }

    /// Returns the output and the state of all threads, for a message.
    fn state(&self) -> String {
        let (stdout, stderr) = (self.stdout(), self.stderr());
        let command = format!("{:?}", self.launch.command(self.folder.path()));
        let dump = self.root.find().dump();
        format!("command: {command}\nstdout: {stdout}\nstderr: {stderr}\n{dump}")
    }

    /// Waits for the end of the started process.
    pub fn finish(mut self) -> Outcome {
        let guard = Guard::new();
        while !self.ended() {
            self.pause(guard, "its end");
        }
        // With `--exec` the report comes only when the program and all of its descendants have
        // ended.
        while self.launch.options.iter().any(|option| option == "--exec")
            && self.root.find().all().next().is_some()
        {
            self.pause(guard, "the end of what it left behind");
        }
        let status = self.status.expect("ended");
        let read = |name| fs::read(self.folder.path().join(name)).expect("output");
        let stdout = read("out");
        let stderr = String::from_utf8_lossy(&read("err")).into_owned();
        let command = format!("{:?}", self.launch.command(self.folder.path()));
        let report = self.written("report");
        Outcome { command, status, stdout, stderr, report }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The second pass finds processes that were being forked during the first.
        for _ in 0..2 {
            kill_all(&self.root.find());
        }
        if self.status.is_none() {
            let _ = self.child.wait();
            // The killed supervisor leaves its folder. A later process with this PID must not find
            // the folder.
            for folder in folders_of(self.root.pid) {
                let _ = fs::remove_dir_all(folder);
            }
        }
    }
}

fn kill_all(tree: &Tree) {
    tree.all().for_each(|pid| send(pid, Signal::KILL));
}

/// Signals one process. A process that is gone already is no error.
pub fn send(pid: i32, signal: Signal) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process(pid, signal);
    }
}

/// Result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// Program and arguments, with spaces between them.
    pub command: String,
    /// Exit status of the started process.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error. Bytes that are not UTF-8 are replaced.
    pub stderr: String,
    /// Ebb's report, if there is one.
    pub report: String,
}

impl Outcome {
    /// Returns the status as a shell shows it: the exit code, or 128 and the signal's number.
    pub fn code(&self) -> i32 {
        self.status.code().or(self.status.signal().map(|signal| 128 + signal)).expect("ended")
    }

    /// Returns the standard output as text. Bytes that are not UTF-8 are replaced.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Fails unless the program ended with this status.
    #[track_caller]
    pub fn expect_code(&self, code: i32) -> &Self {
        assert!(self.code() == code, "status {} instead of {code}\n{}", self.code(), self.state());
        self
    }

    /// Fails unless the program ended with 0 and wrote exactly this line.
    #[track_caller]
    pub fn expect_line(&self, line: &str) -> &Self {
        self.expect_code(0);
        assert!(self.text() == format!("{line}\n"), "not {line:?}\n{}", self.state());
        self
    }

    /// Returns the lines of standard error without the warning about thrashing. A run warns when it
    /// did little but wait for ten seconds, as may happen on a busy machine. `thrashing.rs` tests
    /// which runs warn.
    pub fn said(&self) -> Vec<&str> {
        self.stderr
            .lines()
            .filter(|line| !line.starts_with("ebb: thrashing: in the last"))
            .collect()
    }

    /// Fails if standard error has a line other than the warning about thrashing.
    #[track_caller]
    pub fn expect_silence(&self) -> &Self {
        assert!(self.said().is_empty(), "{}", self.state());
        self
    }

    /// Returns a figure of the JSON report.
    #[track_caller]
    pub fn figure(&self, name: &str) -> u64 {
        let text = format!("{}{}", self.report, self.stderr);
        let (_, rest) = text.split_once(&format!("\"{name}\":")).unwrap_or_default();
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or_else(|_| panic!("no {name} in the report\n{}", self.state()))
    }

    fn state(&self) -> String {
        let (text, error) = (ends(&self.text()), ends(&self.stderr));
        let report = &self.report;
        format!("command: {}\nstdout: {text}\nstderr: {error}\nreport: {report}", self.command)
    }
}

/// Returns the beginning and the end of a text. Ebb's messages may stand before a long report.
fn ends(text: &str) -> String {
    const SHOWN: usize = 3000;
    const ALL: usize = 2 * SHOWN;
    let chars: Vec<char> = text.chars().collect();
    match chars.len() {
        ..=ALL => text.to_owned(),
        all => {
            let (head, tail) = (&chars[..SHOWN], &chars[all - SHOWN..]);
            let [head, tail] = [head, tail].map(|part| part.iter().collect::<String>());
            format!("{head}\n[...]\n{tail}")
        }
    }
}
