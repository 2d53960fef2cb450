//! Runs test programs for `./test`: each test in a process of its own, a few at a time.
//!
//! Standard input is the output of `cargo test --no-run --message-format=json`. The first argument
//! is the NAME of the run. The other arguments are the packages to run or, after `--except`, to
//! leave out. The output shows failures, skipped and slow tests, and the progress. The last line is
//! `N passed, N failed, N skipped`. The folder `EBB_TEST_LOGS` gets `NAME.slowest`, `NAME.times`
//! and `NAME.skipped`.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::io::{BufRead, Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ebb_testing::{HANG, SKIPPED};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

/// Duration above which a test is shown when it ends.
const SLOW: Duration = Duration::from_secs(10);
/// Interval at which the output shows the progress and the tests that run for longer than that.
const TELL_EVERY: Duration = Duration::from_secs(30);
/// Duration after which the runner kills a test process that its own clock has not ended.
const KILL_AFTER: Duration = Duration::from_secs(HANG.as_secs() * 2);
/// Clock ticks in a second: USER_HZ.
const TICKS: u64 = 100;
/// Number of lines of the list of the slowest tests.
const SLOWEST: usize = 30;

/// A test: its program, and its name in the program.
#[derive(Clone, Debug)]
struct Test {
    program: PathBuf,
    folder: PathBuf,
    target: String,
    name: String,
}

impl Test {
    fn label(&self) -> String {
        format!("{}: {}", self.target, self.name)
    }
}

/// State of the run.
#[derive(Default)]
struct Board {
    waiting: Vec<Test>,
    running: HashMap<String, Instant>,
    total: usize,
    passed: usize,
    failed: Vec<String>,
    skipped: Vec<String>,
    times: Vec<Time>,
}

/// Duration of a test, CPU time of the test and of its ended child processes, and its name.
type Time = (Duration, Duration, String);

enum Outcome {
    Passed,
    Failed(String),
    Skipped(String),
}

fn main() -> ExitCode {
    let (name, except, packages) = arguments();
    let programs = programs(|package| packages.iter().any(|other| other == package) != except);
    let mut waiting: Vec<Test> = programs.iter().flat_map(tests_of).collect();
    let logs =
        PathBuf::from(std::env::var_os("EBB_TEST_LOGS").unwrap_or("target/test-logs".into()));
    std::fs::create_dir_all(&logs).expect("a folder for logs");
    order(
        &mut waiting,
        &std::fs::read_to_string(logs.join(format!("{name}.times"))).unwrap_or_default(),
    );
    // One more job than CPUs, because some tests wait; five jobs at most.
    let jobs = std::thread::available_parallelism().map_or(2, |cpus| cpus.get().clamp(1, 4) + 1);
    let total = waiting.len();
    let board = Mutex::new(Board { waiting, total, ..Board::default() });
    let began = Instant::now();
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(|| work(&board))).collect();
        tell(&board, began, || workers.iter().all(|worker| worker.is_finished()));
    });
    let mut board = board.into_inner().unwrap_or_else(PoisonError::into_inner);
    board.times.sort_by(|one, other| other.cmp(one));
    let lines = |times: &[Time]| {
        let mut text = String::new();
        for (time, cpu, label) in times {
            let (time, cpu) = (time.as_secs_f64(), cpu.as_secs_f64());
            let _ = writeln!(text, "{time:8.2} s  {cpu:8.2} s of CPU  {label}");
        }
        text
    };
    let shown = board.times.len().min(SLOWEST);
    let write = |what: &str, text: &str| {
        std::fs::write(logs.join(format!("{name}.{what}")), text).expect("a log");
    };
    write("times", &lines(&board.times));
    write("slowest", &lines(&board.times[..shown]));
    write("skipped", &board.skipped.iter().map(|line| format!("{line}\n")).collect::<String>());
    for line in &board.failed {
        println!("failed: {line}");
    }
    let (failed, skipped) = (board.failed.len(), board.skipped.len());
    println!("{} passed, {failed} failed, {skipped} skipped", board.passed);
    ExitCode::from(u8::from(failed > 0 || total == 0))
}

/// Parses the run's name, whether the packages are to be left out, and the packages.
fn arguments() -> (String, bool, Vec<String>) {
    let mut words: Vec<String> = std::env::args().skip(1).collect();
    if words.is_empty() {
        eprintln!("usage: run-tests NAME [--except] PACKAGE...");
        std::process::exit(2);
    }
    let name = words.remove(0);
    let except = words.first().is_some_and(|word| word == "--except");
    words.drain(..usize::from(except));
    (name, except, words)
}

/// Reads the test programs that cargo has built: program, the package's folder, target.
fn programs(is_wanted: impl Fn(&str) -> bool) -> Vec<(PathBuf, PathBuf, String)> {
    let mut programs = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("cargo's messages");
        let Ok(message) = serde_json::from_str::<serde_json::Value>(&line) else { continue };
        let is_test = message["profile"]["test"] == true;
        let (Some(program), Some(manifest)) =
            (message["executable"].as_str(), message["manifest_path"].as_str())
        else {
            continue;
        };
        let folder = PathBuf::from(manifest).parent().expect("a folder").to_owned();
        let target = message["target"]["name"].as_str().unwrap_or("?").to_owned();
        let package = message["package_id"].as_str().unwrap_or_default();
        // path+file:///…/crates/e2e#ebb-e2e@0.1.0, or …#0.1.0 where the folder has the package's
        // name
        let package = package.rsplit('#').next().and_then(|rest| rest.split('@').next());
        if is_test && is_wanted(package.unwrap_or_default()) {
            programs.push((PathBuf::from(program), folder, target));
        }
    }
    programs
}

fn tests_of((program, folder, target): &(PathBuf, PathBuf, String)) -> Vec<Test> {
    let list = |ignored: &[&str]| {
        let mut command = Command::new(program);
        command.args(["--list", "--format", "terse"]).args(ignored).current_dir(folder);
        let output = command.output().expect("a test program lists its tests");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        text.lines().filter_map(|line| Some(line.strip_suffix(": test")?.to_owned())).collect()
    };
    let (all, ignored): (Vec<String>, Vec<String>) = (list(&[]), list(&["--ignored"]));
    let test = |name| Test {
        program: program.clone(),
        folder: folder.clone(),
        target: target.clone(),
        name,
    };
    all.into_iter().filter(|name| !ignored.contains(name)).map(test).collect()
}

/// Sorts the tests by their last duration, the longest at the end of the list. The workers take
/// tests from the end, so that no long test runs last.
fn order(tests: &mut [Test], times: &str) {
    let time = |line: &str| {
        let (time, rest) = line.split_once(" s  ")?;
        let (_, label) = rest.split_once(" of CPU  ")?;
        Some((label.to_owned(), (time.trim().parse::<f64>().ok()? * 1000.0) as u64))
    };
    let times: HashMap<String, u64> = times.lines().filter_map(time).collect();
    tests.reverse();
    tests.sort_by_key(|test| times.get(&test.label()).copied().unwrap_or(0));
}

fn lock(board: &Mutex<Board>) -> MutexGuard<'_, Board> {
    board.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs tests until none waits.
fn work(board: &Mutex<Board>) {
    loop {
        let (test, began) = {
            let mut board = lock(board);
            let Some(test) = board.waiting.pop() else { return };
            let began = Instant::now();
            board.running.insert(test.label(), began);
            (test, began)
        };
        let (outcome, cpu) = run(&test);
        let (label, took) = (test.label(), began.elapsed());
        let mut board = lock(board);
        board.running.remove(&label);
        board.times.push((took, cpu, label.clone()));
        let so_far = format!("{} of {}", board.times.len(), board.total);
        let seconds = took.as_secs_f64();
        match outcome {
            Outcome::Passed => {
                board.passed += 1;
                if took >= SLOW {
                    println!("[{so_far}] passed in {seconds:.0} s: {label}");
                }
            }
            Outcome::Skipped(why) => {
                println!("[{so_far}] skipped: {label}: {why}");
                board.skipped.push(format!("{label}: {why}"));
            }
            Outcome::Failed(text) => {
                // Indented, so that a line of a harness does not look like the runner's own count.
                let text = text.replace('\n', "\n    ");
                println!("[{so_far}] FAILED in {seconds:.0} s: {label}\n    {text}");
                board.failed.push(label);
            }
        }
    }
}

/// Runs one test. Returns its outcome and its CPU time.
fn run(test: &Test) -> (Outcome, Duration) {
    let mut command = Command::new(&test.program);
    command
        .args(["--exact", &test.name, "--test-threads=1"])
        .current_dir(&test.folder)
        .env("EBB_TEST_RUNNER", "1")
        .env("CARGO_MANIFEST_DIR", &test.folder)
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .stdout(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return (Outcome::Failed(error.to_string()), Duration::ZERO),
    };
    // Processes that the test leaves behind may keep the pipes open. So the readers get only a
    // short time after the test's end.
    let texts = [
        read_along(child.stdout.take().expect("piped")),
        read_along(child.stderr.take().expect("piped")),
    ];
    let (status, cpu) = wait(&mut child);
    for _ in 0..50 {
        if texts.iter().all(|(_, reader)| reader.is_finished()) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let text: String = texts
        .iter()
        .map(|(text, _)| {
            String::from_utf8_lossy(&text.lock().unwrap_or_else(PoisonError::into_inner))
                .into_owned()
        })
        .collect();
    let outcome = match status {
        None => Outcome::Failed(format!("killed after {KILL_AFTER:?}\n{text}")),
        Some(status) if status.success() && text.contains("1 passed") => Outcome::Passed,
        Some(status) if status.code() == Some(SKIPPED) => {
            let why = text.lines().find_map(|line| line.split_once("skipped: "));
            Outcome::Skipped(why.map_or("no reason", |(_, why)| why).to_owned())
        }
        Some(status) => Outcome::Failed(format!("{status}\n{text}")),
    };
    (outcome, cpu)
}

/// The text read from a pipe, and the thread that reads it.
type Reading = (std::sync::Arc<Mutex<Vec<u8>>>, std::thread::JoinHandle<()>);

fn read_along(mut pipe: impl Read + Send + 'static) -> Reading {
    let text = std::sync::Arc::<Mutex<Vec<u8>>>::default();
    let shared = text.clone();
    let reader = std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(got @ 1..) = pipe.read(&mut buffer) {
            shared.lock().unwrap_or_else(PoisonError::into_inner).extend(&buffer[..got]);
        }
    });
    (text, reader)
}

/// Waits for the end of a test. If it takes too long, kills it and returns no status.
fn wait(child: &mut Child) -> (Option<ExitStatus>, Duration) {
    let began = Instant::now();
    let mut pause = Duration::from_millis(1);
    let id = Pid::from_child(child);
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    loop {
        if matches!(waitid(WaitId::Pid(id), look), Ok(Some(_))) {
            let cpu = cpu_time(child.id());
            return (child.wait().ok(), cpu);
        }
        if began.elapsed() > KILL_AFTER {
            let _ = child.kill();
            let _ = child.wait();
            return (None, Duration::ZERO);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(50));
    }
}

/// Returns the CPU time of an ended process, with the children that it waited for:
/// proc_pid_stat(5), utime to cstime.
fn cpu_time(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap_or_default();
    let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let ticks: u64 = fields.skip(11).take(4).filter_map(|field| field.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 1000 / TICKS)
}

/// Prints the progress at intervals.
fn tell(board: &Mutex<Board>, began: Instant, is_over: impl Fn() -> bool) {
    let mut told = Instant::now();
    while !is_over() {
        std::thread::sleep(Duration::from_millis(50));
        if told.elapsed() < TELL_EVERY {
            continue;
        }
        told = Instant::now();
        let board = lock(board);
        let long = board.running.iter().filter(|(_, since)| since.elapsed() > TELL_EVERY);
        let long: Vec<String> = long
            .map(|(label, since)| format!("{label} for {} s", since.elapsed().as_secs()))
            .collect();
        let long =
            if long.is_empty() { String::new() } else { format!("; runs: {}", long.join(", ")) };
        println!(
            "[{} of {}] {} s{long}",
            board.times.len(),
            board.total,
            began.elapsed().as_secs()
        );
        let _ = std::io::stdout().flush();
    }
}
