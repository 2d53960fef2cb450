//! Tests `ebb attach` and `ebb detach`: running processes are put under a limit and given back.

use ebb_e2e::MIB;
use ebb_e2e::build::{ebb, foreign_program, go_program, program, static_program};
use ebb_e2e::launch::{Launch, need_paging, send};
use ebb_e2e::same::need;
use ebb_e2e::tree::{Root, TAG};
use ebb_testing::{Guard, eventually, eventually_some, give_time, skip};
use rustix::process::{Pid, Signal, getuid, kill_process};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::Duration;
use tempfile::TempDir;

use crate::exec::{fifo, write_to};
use crate::go::need_go;

/// Skips the test where this user may not attach to a process.
#[track_caller]
fn need_attach() {
    need_paging();
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    if !getuid().is_root() && !matches!(scope.trim(), "" | "0") {
        skip("it traces processes that are none of its children, which root may");
    }
}

/// A process with its output in a file. Drop kills it with all that it has started.
struct Running {
    child: Child,
    root: Root,
    output: PathBuf,
    _folder: TempDir,
}

impl Running {
    fn start(command: &mut Command) -> Self {
        need_attach();
        let folder = tempfile::tempdir().expect("a folder");
        let output = folder.path().join("output");
        let file = File::create(&output).expect("a file");
        let errors = file.try_clone().expect("a descriptor");
        let tag = output.display().to_string();
        // The process gets a group of its own, as the pager has. So a host that stops the test's
        // group does not stop half of a run.
        command.env(TAG, &tag).process_group(0);
        command.stdin(Stdio::null()).stdout(file).stderr(errors);
        let child = command.spawn().expect("it starts");
        let root = Root { pid: child.id().cast_signed(), tag, ebb: ebb().to_owned() };
        Self { child, root, output, _folder: folder }
    }

    fn program(path: PathBuf, arguments: &str) -> Self {
        Self::start(Command::new(path).args(arguments.split(' ')))
    }

    /// Runs `ebb attach` to process `pid`.
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

    /// Returns the messages of `ebb attach`, except those that come from a host without free CPU.
    fn complaints(&self) -> String {
        let text = self.text();
        let is_late = |line: &str| line.contains("tries again") || line.contains("thrashing: ");
        text.lines().filter(|line| !is_late(line)).collect::<Vec<_>>().join("\n")
    }

    /// Waits until `done` returns true. Fails if the process ends before.
    #[track_caller]
    fn until(&mut self, what: &str, mut done: impl FnMut() -> bool) {
        let guard = Guard::new();
        while !done() {
            assert!(self.runs(), "it ends before {what}: {}", self.text());
            guard.pause(&format!("{what}: {}", self.text()));
        }
    }

    /// Waits until process `pid` has the agent in it.
    #[track_caller]
    fn until_attached(&mut self, pid: u32) {
        self.until("an agent", || areas_of_ebb(pid) > 0);
    }

    /// Waits until process `pid` is within the limit.
    #[track_caller]
    fn until_within(&mut self, pid: u32, limit: u64) {
        self.until("the limit", || is_within(pid, limit));
    }

    #[track_caller]
    fn end(&mut self) -> ExitStatus {
        let guard = Guard::new();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            guard.pause(&format!("its end: {}", self.text()));
        }
    }

    /// Ends `ebb attach` by a signal. Repeats the signal if the pager had no CPU to give the
    /// process back.
    #[track_caller]
    fn ends_by(&mut self, signal: Signal) -> ExitStatus {
        let refusals = |text: &str| text.matches("cannot give process").count();
        loop {
            let before = refusals(&self.text());
            self.signal(signal);
            let guard = Guard::new();
            while refusals(&self.text()) == before {
                if let Some(status) = self.child.try_wait().expect("a child") {
                    return status;
                }
                guard.pause(&format!("its end: {}", self.text()));
            }
        }
    }

    /// Ends a program that works until SIGTERM.
    #[track_caller]
    fn ends_when_told(&mut self, line: &str) {
        self.signal(Signal::TERM);
        self.ends_well(line);
    }

    #[track_caller]
    fn ends_well(&mut self, line: &str) {
        let status = self.end();
        assert!(status.success() && self.text().contains(line), "{status}: {}", self.text());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // The second pass finds processes that were being forked during the first.
        for _ in 0..2 {
            self.root.find().all().for_each(|pid| send(pid, Signal::KILL));
        }
        let _ = self.child.wait();
    }
}

fn detach(pid: u32) -> Output {
    Command::new(ebb()).args(["detach", &pid.to_string()]).output().expect("ebb runs")
}

/// Reasons why a process is not given back at once. The process or the pager gets no CPU, or no
/// memory is free.
const LATE: [&str; 4] =
    ["does not answer", "cannot bring back", "is stopped", "the machine has room for"];

#[track_caller]
fn detaches(program: &Running, attached: &Running) {
    eventually("it is given back", || {
        let output = detach(program.pid());
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let late = LATE.iter().any(|why| told.contains(why));
        let texts = [program.text(), attached.text()];
        assert!(output.status.success() || late, "{told}\n{texts:?}");
        output.status.success()
    });
}

#[track_caller]
fn gives_back(program: &Running, attached: &Running) {
    detaches(program, attached);
    expect_nothing_left(program.pid());
}

/// Checks that a detach is refused, for a reason with this word in it.
#[track_caller]
fn refuses_to_detach(pid: u32, word: &str) {
    eventually("an answer", || {
        let output = detach(pid);
        let told = String::from_utf8_lossy(&output.stderr).into_owned();
        let late = told.contains("does not answer");
        assert!(!output.status.success() && (late || told.contains(word)), "{told}");
        !late
    });
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
    const NAMES: [&str; 3] = ["/agent.image", "/agent.so", "/memfd:ebb-agent"];
    let areas = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    areas.lines().filter(|line| NAMES.iter().any(|name| line.contains(name))).count()
}

#[track_caller]
fn expect_nothing_left(pid: u32) {
    assert_eq!(areas_of_ebb(pid), 0);
    assert_eq!(status_of(pid, "TracerPid:"), 0);
    let flags = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap_or_default();
    let of_uffd = |line: &&str| line.starts_with("VmFlags:") && line.contains(" um");
    assert_eq!(flags.lines().filter(of_uffd).count(), 0, "registered still");
}

fn is_within(pid: u32, limit: u64) -> bool {
    areas_of_ebb(pid) > 0 && resident(pid) <= limit + 8 * MIB
}

/// Starts a program that passes over 64 MiB and verifies every word, until SIGTERM.
fn verify() -> Running {
    let mut running = Running::program(program("verify"), "64 0 5 1");
    let pid = running.pid();
    running.until("all of it is there", || resident(pid) > 60 * MIB);
    running
}

#[test]
fn attach_brings_a_process_within_its_limit_and_detach_gives_its_memory_back() {
    let mut program = verify();
    let pid = program.pid();
    let threads = status_of(pid, "Threads:");
    let mut attached = Running::attach(pid, "--memory-max 24M --report json");
    attached.until_within(pid, 24 * MIB);
    attached.until("it is listed", || {
        let runs = Command::new(ebb()).arg("ps").output().expect("ebb runs").stdout;
        let runs = String::from_utf8_lossy(&runs).into_owned();
        runs.lines().any(|line| line.split_whitespace().next() == Some(pid.to_string().as_str()))
    });
    let more = ["set", &pid.to_string(), "memory.max=40M"];
    // A higher limit is accepted at once. A lower one is refused while the limit is still coming
    // down, which may take long on a slow host.
    eventually("the limit is another", || {
        Command::new(ebb()).args(more).status().expect("ebb runs").success()
    });
    gives_back(&program, &attached);
    assert!(resident(pid) > 60 * MIB, "{}", resident(pid));
    assert_eq!(status_of(pid, "Threads:"), threads);
    assert!(attached.end().success());
    let report = attached.text();
    assert!(report.contains("\"memory_max_bytes\":41943040"), "{report}");
    program.ends_when_told("verify: ok");
}

/// Shows that memory that cannot leave at the attach leaves later. The limit must come down in the
/// end.
#[test]
fn attach_reaches_its_limit_after_locked_memory_is_unlocked() {
    if !getuid().is_root() {
        skip("48 MiB are to be locked, which root may");
    }
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
    let mut program = Running::start(Command::new(need("/usr/bin/python3")).args(["-c", &script]));
    let pid = program.pid();
    program.until("it has locked its memory", || status_of(pid, "VmLck:") > 0);
    let mut attached = Running::attach(pid, "--memory-max 24M");
    eventually("it is told", || attached.text().contains("Ebb tries again"));
    assert!(!is_within(pid, 24 * MIB));
    program.signal(Signal::USR1);
    attached.until_within(pid, 24 * MIB);
    program.signal(Signal::USR1);
    program.ends_well("wrong: none");
    assert!(attached.end().success());
}

/// Shows that data stay right while the program forks, starts threads and changes mappings during
/// attaches and detaches.
#[test]
fn every_word_is_right_through_repeated_attaches_and_detaches() {
    for (path, rounds) in [(program("torture"), 3), (static_program("torture"), 2)] {
        let mut program = Running::program(path, "0 6");
        let pid = program.pid();
        program.until("some of it is there", || resident(pid) > 10 * MIB);
        for round in 0..rounds {
            let mut attached = Running::attach(pid, "--memory-max 36M --quiet");
            attached.until_attached(pid);
            // Each round detaches at another stage.
            give_time(Duration::from_millis(80 * round));
            detaches(&program, &attached);
            assert!(attached.end().success(), "{}", attached.text());
            let said = attached.complaints();
            assert!(said.is_empty() || said.contains("cannot give process"), "{said}");
            assert_eq!(areas_of_ebb(pid), 0);
        }
        program.ends_when_told("torture: ok");
    }
}

#[test]
fn attach_pages_static_programs_and_programs_of_go() {
    let is_taken = |path: PathBuf, arguments: &str, limit: u64, line: &str| {
        let mut program = Running::program(path, arguments);
        let pid = program.pid();
        program.until("much of it is there", || resident(pid) > 60 * MIB);
        let mut attached = Running::attach(pid, &format!("--memory-max {limit}M --report json"));
        if line.starts_with("verify") {
            attached.until_within(pid, limit * MIB);
            program.signal(Signal::TERM);
        }
        program.ends_well(line);
        assert!(attached.end().success(), "{}", attached.text());
        assert!(attached.text().contains("\"pages_evicted\""), "{}", attached.text());
        assert!(!attached.text().contains("\"pages_evicted\":0"), "{}", attached.text());
    };
    is_taken(static_program("verify"), "64 0 5 1", 48, "verify: ok");
    // The Go program goes on by itself when much of its memory has left.
    need_go();
    is_taken(go_program("go-work", ".", &[]), "waits 64 paged", 24, "waits: ok");
}

/// Shows that the process goes on with all of its memory, however the supervisor ends.
#[test]
fn an_attached_process_is_given_back_however_the_supervisor_ends() {
    let mut program = verify();
    let pid = program.pid();
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let mut attached = Running::attach(pid, "--memory-max 24M");
        attached.until_within(pid, 24 * MIB);
        let status = attached.ends_by(signal);
        if signal != Signal::KILL {
            assert!(status.success(), "{status}");
            assert!(attached.text().contains("ebb: memory"), "a report: {}", attached.text());
        }
        program.until("it is given back", || areas_of_ebb(pid) == 0);
        program.until("nobody traces it", || status_of(pid, "TracerPid:") == 0);
        expect_nothing_left(pid);
        assert!(resident(pid) > 60 * MIB);
    }
    program.ends_when_told("verify: ok");
}

/// Shows that an attached program dies with the pager, as under `ebb run`, because the program's
/// pages are lost.
#[test]
fn an_attached_process_dies_with_the_pager() {
    let mut program = verify();
    let pid = program.pid();
    let mut attached = Running::attach(pid, "--memory-max 24M");
    attached.until_within(pid, 24 * MIB);
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

/// Shows that an agent that waits in `madvise` until the pager reads a message ends with the pager.
/// The agent cannot check the pager during the call, and no other thread checks it.
#[test]
fn an_agent_that_waits_for_the_pager_inside_the_kernel_ends_with_it() {
    const MADVISE: &str = "28 ";
    let mut program = verify();
    let pid = program.pid();
    let mut attached = Running::attach(pid, "--memory-max 24M");
    attached.until_within(pid, 24 * MIB);
    let pager = pager_of(&attached);
    let is_discarding = |task: std::io::Result<fs::DirEntry>| {
        let call = task.and_then(|task| fs::read_to_string(task.path().join("syscall")));
        call.is_ok_and(|call| call.starts_with(MADVISE))
    };
    // Most discards come right after the limit comes down. A slow host may not yet run the agent
    // within so short a time.
    let mut tries = 0;
    eventually("an agent that waits for a pager which does not run", || {
        kill_process(pager, Signal::CONT).expect("it is there");
        give_time(Duration::from_micros(100 * (tries % 16) + 10 * tries));
        tries += 1;
        kill_process(pager, Signal::STOP).expect("it is there");
        give_time(Duration::from_millis(20));
        fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").any(is_discarding)
    });
    attached.signal(Signal::KILL);
    kill_process(pager, Signal::KILL).expect("it is there");
    attached.end();
    assert!(!program.end().success());
}

/// Shows that `ebb attach` waits for a program that is still being loaded. Such a program has not
/// yet mapped the library that identifies it. A FIFO in place of a library blocks the loader here.
#[test]
fn attach_waits_for_a_program_that_is_still_being_loaded() {
    let (_folder, library) = fifo();
    let attempt = || {
        let mut command = Command::new(program("verify"));
        command.args("20 0 5 1".split(' ')).env("LD_PRELOAD", &library);
        let mut program = Running::start(&mut command);
        let pid = program.pid();
        let mut attached = Running::attach(pid, "--memory-max 16M --quiet");
        give_time(Duration::from_millis(300));
        assert!(areas_of_ebb(pid) == 0, "{}", attached.text());
        write_to(&library, "");
        eventually("an agent, or an end", || areas_of_ebb(pid) > 0 || !attached.runs());
        if !attached.runs() {
            // `ebb attach` waits for two seconds, which a stopped host may exceed.
            let text = attached.text();
            assert!(text.contains("neither of glibc nor of Go alone"), "{text}");
            return None;
        }
        // An earlier SIGTERM would end the program, because its handler is not installed yet.
        program.until("it fills its memory", || resident(pid) > 8 * MIB);
        program.ends_when_told("verify: ok");
        assert!(attached.end().success(), "{}", attached.text());
        Some(())
    };
    eventually_some("a program that is waited for", attempt);
}

/// Shows that an attached process is given back and not killed when no more pages can be stored.
/// The process existed before the limit.
#[test]
fn an_attached_process_is_given_back_when_the_store_is_full() {
    // The program takes more memory until a file is there.
    const SCRIPT: &str = "
import os, select, sys, zlib
parts = [os.urandom(20 << 20)]
sums = [zlib.crc32(parts[0])]
open(sys.argv[1]).read()
while not os.path.exists(sys.argv[2]):
    if len(parts) < 400:
        parts.append(os.urandom(1 << 18))
        sums.append(zlib.crc32(parts[-1]))
    else:
        select.select([], [], [], 0.01)
print([zlib.crc32(part) for part in parts] == sums)
";
    let (folder, fifo) = fifo();
    let enough = folder.path().join("enough");
    let mut python = Command::new(need("/usr/bin/python3"));
    let mut program = Running::start(python.args(["-c", SCRIPT]).args([&fifo, &enough]));
    let pid = program.pid();
    program.until("it has begun", || resident(pid) > 20 * MIB);
    let mut attached = Running::attach(pid, "--memory-max 48M --swap ram:4M --quiet");
    attached.until_attached(pid);
    write_to(&fifo, "");
    program.until("it is told", || {
        attached.text().contains("is given back: it has no limit any more")
    });
    fs::write(&enough, "").expect("a file");
    program.ends_well("True");
    assert!(attached.end().success(), "{}", attached.text());
}

/// Shows that children of the attached process are paged, too, though their environment does not
/// name the pager.
#[test]
fn children_of_an_attached_process_are_paged() {
    let (_folder, fifo) = fifo();
    let script = "read line < \"$0\"; \"$1\" 48 0; :";
    let mut command = Command::new("sh");
    let mut shell = Running::start(command.args(["-c", script]).arg(&fifo).arg(program("verify")));
    let mut attached = Running::attach(shell.pid(), "--memory-max 16M --report json");
    attached.until_attached(shell.pid());
    write_to(&fifo, "go\n");
    let of_shell = shell.pid();
    let child = eventually_some("its program", || child_named(of_shell, "verify"));
    attached.until("much of it was out", || stored(child) > 24 << 8);
    kill_process(pid_of(child), Signal::TERM).expect("it is there");
    shell.ends_well("verify: ok");
    assert!(attached.end().success());
    // A busy machine may print more lines before the report.
    let text = attached.text();
    let report = text.lines().find(|line| line.starts_with('{')).expect(&text);
    let report: serde_json::Value = serde_json::from_str(report).expect("a report");
    assert!(report["pages_evicted"].as_u64() > Some(20 << 8), "{report}");
}

fn pid_of(pid: u32) -> Pid {
    Pid::from_raw(pid.cast_signed()).expect("a number")
}

/// Returns the number of pages that the process's run has stored.
fn stored(pid: u32) -> u64 {
    let stat = Command::new(ebb()).args(["stat", &pid.to_string()]).output().expect("ebb runs");
    let stat = String::from_utf8_lossy(&stat.stdout).into_owned();
    let line = stat.lines().find_map(|line| line.strip_prefix("pswpout "));
    line.and_then(|count| count.parse().ok()).unwrap_or(0)
}

fn is_named(pid: u32, name: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|found| found.trim_end() == name)
}

fn child_named(pid: u32, name: &str) -> Option<u32> {
    children_of(pid).into_iter().find(|&child| is_named(child, name))
}

fn children_of(pid: u32) -> Vec<u32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    let children = children.unwrap_or_default();
    children.split_ascii_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Shows that an attached server with forked workers keeps its shared data. The limit covers all of
/// them.
#[test]
fn attach_with_the_tree_option_pages_earlier_children_and_gives_them_back() {
    const SCRIPT: &str = "
import os, select, sys, zlib
common = bytearray(os.urandom(8 << 20))
is_now = zlib.crc32(common)
def work():
    own = bytearray(os.urandom(14 << 20))
    was = zlib.crc32(own)
    while not os.path.exists(sys.argv[1]):
        if zlib.crc32(own) != was or zlib.crc32(common) != is_now:
            os._exit(3)
        select.select([], [], [], 0.3)
    os._exit(0)
for _ in range(3):
    if os.fork() == 0:
        work()
while not os.path.exists(sys.argv[1]):
    select.select([], [], [], 0.05)
print([os.wait()[1] for _ in range(3)], zlib.crc32(common) == is_now)
";
    let folder = tempfile::tempdir().expect("a folder");
    let go = folder.path().join("go");
    let mut python = Command::new(need("/usr/bin/python3"));
    let mut server = Running::start(python.args(["-c", SCRIPT]).arg(&go));
    let pid = server.pid();
    let all = || [vec![pid], children_of(pid)].concat();
    server.until("all of it is there", || {
        all().len() == 4 && all().into_iter().skip(1).all(|pid| resident(pid) > 20 * MIB)
    });
    let mut attached = Running::attach(pid, "--tree --memory-max 40M --report json");
    attached.until("the limit", || {
        let there: u64 = all().into_iter().map(resident).sum();
        all().into_iter().all(|pid| areas_of_ebb(pid) > 0) && there <= 48 * MIB
    });
    // The workers verify their memory meanwhile.
    give_time(Duration::from_millis(500));
    gives_back(&server, &attached);
    all().into_iter().for_each(expect_nothing_left);
    assert!(all().into_iter().skip(1).all(|pid| resident(pid) > 20 * MIB));
    assert!(attached.end().success());
    fs::write(&go, "").expect("a file");
    server.ends_well("[0, 0, 0] True");
}

/// Shows that a run below the attached process is left alone. Its program has an agent already, and
/// its supervisor and pager are no programs.
#[test]
fn a_run_below_an_attached_process_is_left_alone() {
    let (_folder, fifo) = fifo();
    let script = "read line < \"$0\"; \"$1\" run --memory-max 16M --quiet -- \"$2\" 24 0 5 1; :";
    let mut command = Command::new("sh");
    let words = [fifo.as_path(), ebb(), &program("verify")];
    let mut shell = Running::start(command.args(["-c", script]).args(words));
    let of_shell = shell.pid();
    let mut attached = Running::attach(of_shell, "--memory-max 64M --quiet");
    attached.until_attached(of_shell);
    write_to(&fifo, "go\n");
    let has_image = |&pid: &u32| {
        // The shell's forked child has the shell's memory until its exec, so its name is checked
        // first.
        let is_shell = is_named(pid, "sh");
        let areas = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
        !is_shell && areas.contains("agent.image")
    };
    let expect_none = || {
        let supervisors = children_of(of_shell);
        let below: Vec<u32> =
            supervisors.iter().flat_map(|&supervisor| children_of(supervisor)).collect();
        assert_eq!(supervisors.iter().chain(&below).find(|pid| has_image(pid)), None);
        below
    };
    // The inner run is a pager and a program that this pager serves.
    let inner = eventually_some("a run within", || {
        let below = expect_none();
        let verify = below.iter().copied().find(|&pid| is_named(pid, "verify"));
        verify.filter(|&pid| below.len() == 2 && stored(pid) > 8 << 8)
    });
    give_time(Duration::from_millis(500));
    expect_none();
    assert!(attached.runs(), "{}", attached.text());
    kill_process(pid_of(inner), Signal::TERM).expect("it is there");
    shell.ends_well("verify: ok");
    assert!(attached.end().success(), "{}", attached.text());
}

/// Shows that a stopped process is not given back until it continues. The refusal is reported, and
/// the pager serves the process until then.
#[test]
fn a_stopped_process_is_given_back_when_it_goes_on() {
    let mut program = verify();
    let pid = program.pid();
    let mut attached = Running::attach(pid, "--memory-max 24M --quiet");
    attached.until_within(pid, 24 * MIB);
    program.signal(Signal::STOP);
    eventually("it is stopped", || is_stopped(pid));
    refuses_to_detach(pid, "kill -CONT");
    program.signal(Signal::CONT);
    gives_back(&program, &attached);
    assert!(attached.end().success());
    program.ends_when_told("verify: ok");
}

/// Returns whether all threads of a process are stopped.
fn is_stopped(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it is there").flatten();
    threads.map(|thread| fs::read_to_string(thread.path().join("stat"))).all(|text| {
        text.is_ok_and(|text| text.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
    })
}

/// Shows that an attached server keeps every key, and saves its data in a forked child.
#[test]
fn an_attached_redis_keeps_every_key_while_clients_write() {
    need("/usr/bin/redis-server");
    need("/usr/bin/redis-cli");
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
    server.until("it answers", || redis("ping") == "PONG");
    assert_eq!(redis("debug populate 20000 key 1000"), "OK");
    let before = redis("debug digest");
    let pid = server.pid();
    let mut attached = Running::attach(pid, "--memory-max 16M --quiet");
    attached.until("much of it is out", || stored(pid) > 4 << 8);
    assert_eq!(redis("debug digest"), before);
    assert!(redis("bgsave").contains("started"));
    eventually("it has saved", || redis("info persistence").contains("rdb_bgsave_in_progress:0"));
    assert!(redis("info persistence").contains("rdb_last_bgsave_status:ok"));
    gives_back(&server, &attached);
    assert!(attached.end().success(), "{}", attached.text());
    assert_eq!(redis("debug digest"), before);
    assert!(server.runs());
}

/// Locks all of its present and future memory, or installs a seccomp filter that lets all calls
/// pass.
const SHUT: &str = r#"
import ctypes, signal, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
if sys.argv[1] == "locked":
    assert libc.mlockall(3) == 0
else:
    filters = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
    program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(filters)))
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, program, 0, 0) == 0
print("shut", flush=True)
signal.pause()
"#;

#[test]
fn an_impossible_attach_is_refused_with_a_reason_and_changes_nothing() {
    let refused = |pid: u32, options: &str, word: &str| {
        let mut attached = Running::attach(pid, options);
        assert_eq!(attached.end().code(), Some(125), "{}", attached.text());
        let text = attached.text();
        assert!(text.contains(word) && text.lines().count() == 1, "{word}: {text}");
    };
    refused(u32::MAX >> 1, "--memory-max 24M", "no such process");
    // A PID namespace contains no kernel threads.
    let is_kernels = fs::read_to_string("/proc/2/comm").is_ok_and(|name| name == "kthreadd\n");
    // For an ordinary user it is another user's.
    if is_kernels && getuid().is_root() {
        refused(2, "--memory-max 24M", "kernel");
    }
    let mut plain = verify();
    refused(plain.pid(), "--memory-max 1M", "less than a program can run in");
    refused(plain.pid(), "--memory-max 24M --swap tape", "--swap");
    plain.signal(Signal::STOP);
    eventually("it is stopped", || is_stopped(plain.pid()));
    refused(plain.pid(), "--memory-max 24M", "it is stopped: kill -CONT");
    plain.signal(Signal::CONT);
    let foreign = Running::program(foreign_program("verify"), "8 0 5 1");
    refused(foreign.pid(), "--memory-max 24M", "neither of glibc nor of Go alone");
    for (how, word) in [("filtered", "seccomp"), ("locked", "mlockall")] {
        let mut python = Command::new(need("/usr/bin/python3"));
        let mut shut = Running::start(python.args(["-c", SHUT, how]));
        eventually("it is shut", || shut.text().contains("shut") || !shut.runs());
        // If the user may lock only little memory, mlockall fails and the program ends.
        if shut.runs() {
            refused(shut.pid(), "--memory-max 24M", word);
            expect_nothing_left(shut.pid());
            assert!(shut.runs());
        }
    }
    refused(std::process::id(), "--memory-max 1M", "less than a program can run in");
    if getuid().is_root() {
        // Other users may not reach the program's path. `cp` writes the copy, so that no process
        // inherits a writable descriptor of it.
        let folder = TempDir::new_in("/var/tmp").expect("a folder");
        let copy = folder.path().join("verify");
        let copied = Command::new("cp").arg(program("verify")).arg(&copy).status();
        assert!(copied.expect("cp runs").success());
        for path in [folder.path(), &copy] {
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
            fs::set_permissions(path, mode).expect("ours");
        }
        let as_other = || {
            let mut setpriv = Command::new("setpriv");
            setpriv.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]);
            setpriv
        };
        let mut others = Running::start(as_other().arg(&copy).args(["8", "0", "5", "1"]));
        let pid = others.pid();
        others.until("it runs", || resident(pid) > 6 * MIB);
        let allowed = fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
        let mut opens = as_other();
        opens.args(["sh", "-c", ": <> /dev/userfaultfd"]).stderr(Stdio::null());
        let opens = opens.status().expect("setpriv runs").success();
        if !opens && allowed.is_ok_and(|allowed| allowed.trim() == "0") {
            refused(pid, "--memory-max 24M", "its user may not create a userfaultfd");
            expect_nothing_left(pid);
        }
    }
    // A process of another run is refused, whether it was started or attached to.
    let run = Launch::program("verify", "32 0 5 1").limit(64 * MIB).start();
    let has_agent = |&pid: &i32| areas_of_ebb(pid.unsigned_abs()) > 0;
    let started = eventually_some("its agent", || {
        run.root().find().program.into_iter().find(has_agent).map(i32::unsigned_abs)
    });
    refused(started, "--memory-max 24M", "in a run already");
    refuses_to_detach(started, "ebb run started the process");
    let mut attached = Running::attach(plain.pid(), "--memory-max 24M --quiet");
    attached.until_within(plain.pid(), 24 * MIB);
    refused(plain.pid(), "--memory-max 24M", "in a run already");
    gives_back(&plain, &attached);
    assert!(attached.end().success());
    plain.ends_when_told("verify: ok");
}
