//! Processes that run already are put under a limit, and given back: `ebb attach`, `ebb detach`.

use ebb_e2e::MIB;
use ebb_e2e::build::{ebb, foreign_program, go_program, program, static_program};
use ebb_e2e::launch::Launch;
use ebb_e2e::same::need;
use ebb_e2e::tree::is_alive;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(90);

/// A process with its output in a file; killed when this is dropped.
struct Running {
    child: Child,
    output: PathBuf,
    _folder: TempDir,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let output = folder.path().join("output");
        let file = File::create(&output).expect("a file");
        let errors = file.try_clone().expect("a descriptor");
        let child = command.stdin(Stdio::null()).stdout(file).stderr(errors).spawn();
        Self { child: child.expect("it starts"), output, _folder: folder }
    }

    fn program(path: PathBuf, arguments: &str) -> Self {
        Self::start(Command::new(path).args(arguments.split(' ')))
    }

    /// `ebb attach` to process `pid`.
    fn attach(pid: u32, options: &str) -> Self {
        let mut command = Command::new(ebb());
        Self::start(command.args(["attach", &pid.to_string()]).args(options.split(' ')))
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn text(&self) -> String {
        fs::read_to_string(&self.output).unwrap_or_default()
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it is there");
    }

    fn runs(&mut self) -> bool {
        self.child.try_wait().expect("a child").is_none()
    }

    #[track_caller]
    fn end(&mut self) -> ExitStatus {
        let began = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(began.elapsed() < PATIENCE, "it does not end: {}", self.text());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[track_caller]
    fn ends_well(&mut self, line: &str) {
        let status = self.end();
        assert!(status.success() && self.text().contains(line), "{status}: {}", self.text());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn detach(pid: u32) -> Output {
    Command::new(ebb()).args(["detach", &pid.to_string()]).output().expect("ebb runs")
}

#[track_caller]
fn gives_back(pid: u32) {
    let output = detach(pid);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    expect_nothing_left(pid);
}

fn status_of(pid: u32, name: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

fn resident(pid: u32) -> u64 {
    status_of(pid, "RssAnon:") << 10
}

fn areas_of_ebb(pid: u32) -> usize {
    let areas = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    areas.lines().filter(|line| line.contains("/ebb-") || line.contains(":ebb-")).count()
}

#[track_caller]
fn expect_nothing_left(pid: u32) {
    assert_eq!(areas_of_ebb(pid), 0);
    assert_eq!(status_of(pid, "TracerPid:"), 0);
    let flags = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let of_uffd = |line: &&str| line.starts_with("VmFlags:") && line.contains(" um");
    assert_eq!(flags.lines().filter(of_uffd).count(), 0, "registered still");
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_within(pid: u32, limit: u64) -> bool {
    areas_of_ebb(pid) > 0 && resident(pid) <= limit + 8 * MIB
}

/// Passes over 64 MiB for so many rounds, and verifies every word.
fn verify(rounds: u32) -> Running {
    let running = Running::program(program("verify"), &format!("64 {rounds} 5 1"));
    wait_until("all of it is there", || resident(running.pid()) > 60 * MIB);
    running
}

#[test]
fn the_limit_comes_down_and_memory_comes_back() {
    let mut program = verify(400);
    let pid = program.pid();
    let threads = status_of(pid, "Threads:");
    let mut attached = Running::attach(pid, "--memory-max 24M --report json");
    wait_until("the limit", || is_within(pid, 24 * MIB));
    let runs = Command::new(ebb()).arg("ps").output().expect("ebb runs").stdout;
    let runs = String::from_utf8_lossy(&runs).into_owned();
    assert!(runs.lines().any(|line| line.trim().starts_with(&pid.to_string())), "{runs}");
    let more = ["set", &pid.to_string(), "memory.max=40M"];
    assert!(Command::new(ebb()).args(more).status().expect("ebb runs").success());
    gives_back(pid);
    assert!(resident(pid) > 60 * MIB, "{}", resident(pid));
    assert_eq!(status_of(pid, "Threads:"), threads);
    assert!(attached.end().success());
    let report = attached.text();
    assert!(report.contains("\"memory_max_bytes\":41943040"), "{report}");
    program.ends_well("verify: ok");
}

/// What could not leave when it was attached to does later; the limit stayed where it was.
#[test]
fn a_limit_that_cannot_be_had_yet_is_had_later() {
    const LOCKS: &str = r#"
import ctypes, mmap, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
area = mmap.mmap(-1, 64 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
for page in range(16384):
    area[page * 4096 : page * 4096 + 8] = page.to_bytes(8, "little")
locked = [ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(area))), ctypes.c_size_t(48 << 20)]
assert libc.mlock(*locked) == 0
signal.sigwait([signal.SIGUSR1])
assert libc.munlock(*locked) == 0
signal.sigwait([signal.SIGUSR1])
wrong = [page for page in range(16384) if area[page * 4096 : page * 4096 + 8] != page.to_bytes(8, "little")]
print("wrong:", wrong or "none")
"#;
    let blocked = "import signal; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])";
    let script = format!("{blocked}\n{LOCKS}");
    let mut program = Running::start(Command::new("/usr/bin/python3").args(["-c", &script]));
    let pid = program.pid();
    wait_until("it has locked its memory", || status_of(pid, "VmLck:") > 0);
    let mut attached = Running::attach(pid, "--memory-max 24M");
    wait_until("it is told", || attached.text().contains("it is tried again"));
    assert!(!is_within(pid, 24 * MIB));
    program.signal(Signal::USR1);
    wait_until("the limit", || is_within(pid, 24 * MIB));
    program.signal(Signal::USR1);
    program.ends_well("wrong: none");
    assert!(attached.end().success());
}

/// Forks, threads, mappings that change: whatever is under way when it comes or goes.
#[test]
fn every_word_is_right_while_it_comes_and_goes() {
    for (path, rounds) in [(program("torture"), 8), (static_program("torture"), 4)] {
        let mut program = Running::program(path, "14 6");
        let pid = program.pid();
        std::thread::sleep(Duration::from_millis(500));
        let mut done = 0;
        for round in 0..rounds {
            let mut attached = Running::attach(pid, "--memory-max 36M --quiet");
            wait_until("an agent", || areas_of_ebb(pid) > 0 || !attached.runs());
            std::thread::sleep(Duration::from_millis(40 * round));
            let output = detach(pid);
            if !program.runs() {
                break;
            }
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            assert!(attached.end().success(), "{}", attached.text());
            assert_eq!(attached.text(), "");
            assert_eq!(areas_of_ebb(pid), 0);
            done += 1;
        }
        assert!(done > 1, "it ended too soon");
        program.ends_well("torture: ok");
    }
}

#[test]
fn static_programs_and_those_of_go_are_taken() {
    let fixed = (static_program("verify"), "64 60 5 1", "48M", "verify: ok");
    let go = (go_program("go-work", false, &[]), "waits 200", "24M", "waits: ok");
    for (path, arguments, limit, line) in [fixed, go] {
        let mut program = Running::program(path, arguments);
        let pid = program.pid();
        wait_until("much of it is there", || resident(pid) > 40 * MIB || !program.runs());
        let mut attached = Running::attach(pid, &format!("--memory-max {limit} --report json"));
        program.ends_well(line);
        assert!(attached.end().success(), "{}", attached.text());
        assert!(attached.text().contains("\"pages_evicted\""), "{}", attached.text());
        assert!(!attached.text().contains("\"pages_evicted\":0"), "{}", attached.text());
    }
}

/// Whoever ends: the process goes on as if nothing had been, with all of its memory.
#[test]
fn it_is_given_back_whatever_ends() {
    let mut program = verify(900);
    let pid = program.pid();
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut attached = Running::attach(pid, "--memory-max 24M");
        wait_until("the limit", || is_within(pid, 24 * MIB));
        attached.signal(signal);
        let status = attached.end();
        if signal != Signal::KILL {
            assert!(status.success(), "{status}");
            assert!(attached.text().contains("ebb: memory"), "a report: {}", attached.text());
        }
        wait_until("it is given back", || areas_of_ebb(pid) == 0);
        wait_until("nobody traces it", || status_of(pid, "TracerPid:") == 0);
        expect_nothing_left(pid);
        assert!(resident(pid) > 60 * MIB);
    }
    assert!(program.runs());
    program.child.kill().expect("it runs");
}

/// A dead pager is a dead program, as under `ebb run`: its pages are nowhere.
#[test]
fn it_dies_with_the_pager_while_it_is_attached() {
    let mut program = verify(100_000);
    let pid = program.pid();
    let mut attached = Running::attach(pid, "--memory-max 24M");
    wait_until("the limit", || is_within(pid, 24 * MIB));
    kill_process(pager_of(&attached), Signal::KILL).expect("it is there");
    assert!(!program.end().success());
    assert_eq!(attached.end().code(), Some(125), "{}", attached.text());
    assert!(attached.text().contains("the pager ended"), "{}", attached.text());
}

fn pager_of(attached: &Running) -> Pid {
    let children = fs::read_to_string(format!("/proc/{0}/task/{0}/children", attached.pid()));
    let pager = children.expect("a front").trim().parse().expect("one pager");
    Pid::from_raw(pager).expect("a number")
}

/// Who waits in the kernel for a message to be read cannot look whether anybody ever will, and nobody else was left to see
/// to it.
#[test]
fn an_agent_that_waits_for_the_pager_inside_the_kernel_ends_with_it() {
    const MADVISE: &str = "28 ";
    let mut program = verify(100_000);
    let pid = program.pid();
    let mut attached = Running::attach(pid, "--memory-max 24M");
    wait_until("the limit", || is_within(pid, 24 * MIB));
    let pager = pager_of(&attached);
    let is_discarding = |task: std::io::Result<fs::DirEntry>| {
        let call = task.and_then(|task| fs::read_to_string(task.path().join("syscall")));
        call.is_ok_and(|call| call.starts_with(MADVISE))
    };
    wait_until("an agent that waits for a pager which does not run", || {
        kill_process(pager, Signal::STOP).expect("it is there");
        std::thread::sleep(Duration::from_millis(20));
        let waits = fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").any(is_discarding);
        if !waits {
            kill_process(pager, Signal::CONT).expect("it is there");
        }
        waits
    });
    attached.signal(Signal::KILL);
    attached.end();
    kill_process(pager, Signal::KILL).expect("it is there");
    assert!(!program.end().success());
}

/// What has only just begun has no library yet by which it is known. Its loader waits here for one that it is to load first.
#[test]
fn a_program_that_is_being_loaded_is_waited_for() {
    let folder = tempfile::tempdir().expect("a folder");
    let library = folder.path().join("library");
    assert!(Command::new("mkfifo").arg(&library).status().expect("mkfifo runs").success());
    let mut command = Command::new(program("verify"));
    command.args("20 20 5 1".split(' ')).env("LD_PRELOAD", &library);
    let mut program = Running::start(&mut command);
    let mut attached = Running::attach(program.pid(), "--memory-max 16M --quiet");
    std::thread::sleep(Duration::from_millis(500));
    assert!(attached.runs() && areas_of_ebb(program.pid()) == 0, "{}", attached.text());
    drop(File::options().write(true).open(&library).expect("it is being read"));
    wait_until("an agent", || areas_of_ebb(program.pid()) > 0 || !attached.runs());
    program.ends_well("verify: ok");
    assert!(attached.end().success(), "{}", attached.text());
}

/// It was there before the limit, and is not killed for it.
#[test]
fn it_is_given_back_when_nothing_more_can_be_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let go = folder.path().join("go").display().to_string();
    let script = format!(
        "import os, time\nfirst = os.urandom(20 << 20)\n\
         while not os.path.exists('{go}'): time.sleep(0.01)\n\
         more = [os.urandom(1 << 20) for _ in range(100)]\nprint(len(first) + sum(map(len, more)))\n"
    );
    let mut program = Running::start(Command::new("/usr/bin/python3").args(["-c", &script]));
    let pid = program.pid();
    wait_until("it has begun", || resident(pid) > 20 * MIB);
    let mut attached = Running::attach(pid, "--memory-max 48M --swap ram:4M --quiet");
    wait_until("an agent", || areas_of_ebb(pid) > 0);
    fs::write(&go, "").expect("a file");
    program.ends_well("125829120");
    assert!(attached.end().success(), "{}", attached.text());
    assert!(
        attached.text().contains("is given back: it has no limit any more"),
        "{}",
        attached.text()
    );
}

/// What it starts is, too, though nothing in its environment says where the pager is.
#[test]
fn what_it_starts_is_paged() {
    let verify = program("verify").display().to_string();
    let script = format!("read line < $0; {verify} 48 12");
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs").success());
    let mut shell = Running::start(Command::new("sh").args(["-c", &script]).arg(&fifo));
    let mut attached = Running::attach(shell.pid(), "--memory-max 16M --report json");
    wait_until("an agent", || areas_of_ebb(shell.pid()) > 0 || !attached.runs());
    assert!(attached.runs(), "{}", attached.text());
    fs::write(&fifo, "go\n").expect("a reader");
    shell.ends_well("verify: ok");
    assert!(attached.end().success());
    // A busy machine may have more to say before.
    let text = attached.text();
    let report = text.lines().find(|line| line.starts_with('{')).expect(&text);
    let report: serde_json::Value = serde_json::from_str(report).expect("a report");
    assert!(report["pages_evicted"].as_u64() > Some(32 << 8), "{report}");
}

fn children_of(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// A server that has forked its workers: what they share stays right, and the limit is for all of them.
#[test]
fn with_its_tree_what_it_had_started_before_is_paged_and_given_back() {
    let folder = tempfile::tempdir().expect("a folder");
    let go = folder.path().join("go").display().to_string();
    let script = format!(
        "import os, time, zlib\n\
         common = bytearray(os.urandom(8 << 20)); is_now = zlib.crc32(common)\n\
         def work():\n    own = bytearray(os.urandom(14 << 20)); was = zlib.crc32(own)\n    \
         while not os.path.exists('{go}'):\n        \
         if zlib.crc32(own) != was or zlib.crc32(common) != is_now: os._exit(3)\n        time.sleep(0.3)\n    \
         os._exit(0)\n\
         for _ in range(3):\n    if os.fork() == 0: work()\n\
         while not os.path.exists('{go}'): time.sleep(0.05)\n\
         print([os.wait()[1] for _ in range(3)], zlib.crc32(common) == is_now)\n"
    );
    let mut server = Running::start(Command::new("/usr/bin/python3").args(["-c", &script]));
    let pid = server.pid();
    let all = || [vec![pid], children_of(pid)].concat();
    wait_until("all of it is there", || {
        all().len() == 4 && all().into_iter().skip(1).all(|pid| resident(pid) > 20 * MIB)
    });
    let mut attached = Running::attach(pid, "--tree --memory-max 40M --report json");
    wait_until("the limit", || {
        let there: u64 = all().into_iter().map(resident).sum();
        all().into_iter().all(|pid| areas_of_ebb(pid) > 0) && there <= 48 * MIB
    });
    std::thread::sleep(Duration::from_millis(500));
    gives_back(pid);
    all().into_iter().for_each(expect_nothing_left);
    assert!(all().into_iter().skip(1).all(|pid| resident(pid) > 20 * MIB));
    assert!(attached.end().success());
    fs::write(&go, "").expect("a file");
    server.ends_well("[0, 0, 0] True");
}

/// It has an agent already, and its front and pager are no programs.
#[test]
fn a_run_within_what_was_attached_to_is_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let fifo = folder.path().join("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).status().expect("mkfifo runs").success());
    let run = format!("{} run --memory-max 16M --quiet", ebb().display());
    let script = format!("read line < $0; {run} -- {} 24 30 5 1", program("verify").display());
    let mut shell = Running::start(Command::new("sh").args(["-c", &script]).arg(&fifo));
    let mut attached = Running::attach(shell.pid(), "--memory-max 64M --quiet");
    wait_until("an agent", || areas_of_ebb(shell.pid()) > 0 || !attached.runs());
    fs::write(&fifo, "go\n").expect("a reader");
    let has_image = |&pid: &u32| {
        // The shell's own child has what it was forked with until it is another program; that is asked first.
        let is_shell =
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sh\n");
        let areas = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        !is_shell && areas.contains("agent.image")
    };
    let mut met = 0;
    while shell.runs() {
        let fronts = children_of(shell.pid());
        let below: Vec<u32> = fronts.iter().flat_map(|&front| children_of(front)).collect();
        met = met.max(below.len());
        let given = fronts.iter().chain(&below).find(|pid| has_image(pid));
        assert_eq!(given, None, "{}", attached.text());
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(met, 2, "a pager and a program");
    shell.ends_well("verify: ok");
    assert!(attached.end().success(), "{}", attached.text());
}

/// One that cannot run cannot go: that is said, and it is served until it can.
#[test]
fn a_stopped_process_is_given_back_when_it_goes_on() {
    let mut program = verify(400);
    let pid = program.pid();
    let mut attached = Running::attach(pid, "--memory-max 24M --quiet");
    wait_until("the limit", || is_within(pid, 24 * MIB));
    program.signal(Signal::STOP);
    let output = detach(pid);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("kill -CONT"), "{told}");
    program.signal(Signal::CONT);
    gives_back(pid);
    assert!(attached.end().success());
    program.ends_well("verify: ok");
}

/// A server with clients keeps every key, and saves what it has, meanwhile.
#[test]
fn redis_while_clients_write() {
    need("/usr/bin/redis-server");
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("redis").display().to_string();
    let words = ["--port", "0", "--enable-debug-command", "local", "--save", "", "--unixsocket"];
    let options = words.into_iter().chain([socket.as_str(), "--dir"]);
    let mut command = Command::new("redis-server");
    let mut server = Running::start(command.args(options).arg(folder.path()));
    let redis = |words: &str| {
        let output =
            Command::new("redis-cli").args(["-s", &socket]).args(words.split(' ')).output();
        String::from_utf8_lossy(&output.expect("redis-cli runs").stdout).trim().to_owned()
    };
    wait_until("it answers", || redis("ping") == "PONG");
    assert_eq!(redis("debug populate 60000 key 1000"), "OK");
    let before = redis("debug digest");
    let pid = server.pid();
    let mut attached = Running::attach(pid, "--memory-max 32M --quiet");
    wait_until("the limit", || is_within(pid, 32 * MIB));
    assert_eq!(redis("debug digest"), before);
    assert!(redis("bgsave").contains("started"));
    wait_until("it has saved", || redis("info persistence").contains("rdb_bgsave_in_progress:0"));
    assert!(redis("info persistence").contains("rdb_last_bgsave_status:ok"));
    gives_back(pid);
    assert!(attached.end().success(), "{}", attached.text());
    assert_eq!(redis("debug digest"), before);
    assert!(server.runs());
}

/// Locks all of its memory, now and as it comes; or takes a filter of system calls that lets all of them pass.
const SHUT: &str = r#"
import ctypes, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
if sys.argv[1] == "locked":
    assert libc.mlockall(3) == 0
else:
    filters = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(filters)))
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
print("shut", flush=True)
time.sleep(600)
"#;

#[test]
fn what_cannot_be_attached_to_is_refused_with_a_word_and_left_as_it_was() {
    let refused = |pid: u32, options: &str, word: &str| {
        let mut attached = Running::attach(pid, options);
        assert_eq!(attached.end().code(), Some(125), "{}", attached.text());
        let text = attached.text();
        assert!(text.contains(word) && text.lines().count() == 1, "{word}: {text}");
    };
    refused(u32::MAX >> 1, "--memory-max 24M", "no such process");
    // In a process namespace there is none of those.
    if fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n") {
        refused(2, "--memory-max 24M", "kernel");
    }
    let mut plain = verify(100_000);
    refused(plain.pid(), "--memory-max 1M", "less than a program can run in");
    refused(plain.pid(), "--memory-max 24M --swap tape", "--swap");
    plain.signal(Signal::STOP);
    wait_until("it is stopped", || {
        fs::read_to_string(format!("/proc/{}/stat", plain.pid()))
            .is_ok_and(|text| text.contains(") T"))
    });
    refused(plain.pid(), "--memory-max 24M", "it is stopped: kill -CONT");
    plain.signal(Signal::CONT);
    let foreign = Running::program(foreign_program("verify"), "8 100000 5 1");
    refused(foreign.pid(), "--memory-max 24M", "neither of glibc nor of Go alone");
    for (how, word) in [("filtered", "seccomp"), ("locked", "mlockall")] {
        let mut python = Command::new("/usr/bin/python3");
        let mut shut = Running::start(python.args(["-c", SHUT, how]));
        wait_until("it is shut", || shut.text().contains("shut") || !shut.runs());
        // Where little may be locked that is refused.
        if shut.runs() {
            refused(shut.pid(), "--memory-max 24M", word);
            expect_nothing_left(shut.pid());
            assert!(shut.runs());
        }
    }
    refused(std::process::id(), "--memory-max 1M", "less than a program can run in");
    if rustix::process::getuid().is_root() {
        let verify = program("verify");
        // Its path may be closed to others.
        let folder = Command::new("mktemp").args(["-d", "-p", "/var/tmp"]).output();
        let folder = String::from_utf8(folder.expect("mktemp runs").stdout).expect("a path");
        let copy = PathBuf::from(folder.trim()).join("verify");
        let allow = |path: &std::path::Path| {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(path, mode).expect("ours");
        };
        fs::copy(&verify, &copy).expect("a copy");
        allow(copy.parent().expect("a folder"));
        let words = ["--reuid", "65534", "--regid", "65534", "--clear-groups"];
        let mut others = Command::new("setpriv");
        let others = Running::start(others.args(words).arg(&copy).args(["8", "100000", "5", "1"]));
        wait_until("it runs", || resident(others.pid()) > 6 * MIB);
        let allowed = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
        if allowed.is_ok_and(|allowed| allowed.trim() == "0") {
            refused(others.pid(), "--memory-max 24M", "its user may make no userfaultfd");
            expect_nothing_left(others.pid());
        }
        fs::remove_dir_all(copy.parent().expect("a folder")).expect("ours");
    }
    // Of a run already, started or attached to.
    let run = Launch::program("verify", "32 100000 5 1").limit(64 * MIB).start();
    let inside = run.root().find();
    wait_until("it runs", || run.root().find().program.iter().any(|&pid| is_alive(pid)));
    drop(inside);
    let started = run.root().find().program[0].unsigned_abs();
    wait_until("its agent", || areas_of_ebb(started) > 0);
    refused(started, "--memory-max 24M", "in a run already");
    let output = detach(started);
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && told.contains("started by ebb run"), "{told}");
    let mut attached = Running::attach(plain.pid(), "--memory-max 24M --quiet");
    wait_until("the limit", || is_within(plain.pid(), 24 * MIB));
    refused(plain.pid(), "--memory-max 24M", "in a run already");
    gives_back(plain.pid());
    assert!(attached.end().success());
    let mut text = String::new();
    assert!(plain.runs(), "{}", {
        let _ = File::open(&plain.output).and_then(|mut file| file.read_to_string(&mut text));
        text
    });
}
