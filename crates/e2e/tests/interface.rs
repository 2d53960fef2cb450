//! Tests what the user and the program see of `ebb run` besides memory: statuses, streams,
//! environment, messages, reports.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use ebb_e2e::account::need_root;
use ebb_e2e::build::{self, ebb, foreign_program, program};
use ebb_e2e::client::{Random, value_of};
use ebb_e2e::launch::{Launch, Outcome, need_paging, need_root_for, send};
use ebb_e2e::same::{need, same};
use ebb_e2e::{MIB, SMALL};
use ebb_testing::eventually;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::exec::{fifo, write_to};

const PYTHON: &str = "/usr/bin/python3";

/// Shows that exit statuses are passed on. Ebb's own statuses are among them.
#[test]
fn exit_statuses_are_passed_on() {
    for code in (0..=3).chain([63, 64, 65, 100]).chain(123..=130).chain([137, 143, 192, 254, 255]) {
        Launch::program("process", &format!("exit {code}")).limit(SMALL).run().expect_code(code);
    }
}

#[test]
fn the_signal_that_killed_the_program_is_passed_on() {
    for signal in [1, 2, 3, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 31, 34, 64] {
        let launch = Launch::program("process", &format!("signal {signal} 1")).limit(SMALL);
        let outcome = launch.run();
        outcome.expect_code(128 + signal).expect_silence();
    }
}

/// Shows that the supervisor stops when the program does, for the shell to see. The supervisor must
/// not stay stopped when another process continues only the program.
#[test]
fn a_program_that_is_stopped_and_continued_by_another() {
    // The program ends when it reads a word, however long the rest takes.
    let (_folder, word) = fifo();
    let mut run = Launch::new("cat").arg(&word).limit(SMALL).start();
    run.wait_until("the program", |run| run.root().find().program.len() == 1);
    let program = run.root().find().program[0];
    let supervisor = run.pid();
    // The test repeats each signal, because other processes may stop the whole tree and continue
    // it.
    for _ in 0..3 {
        run.wait_until("the supervisor's stop", |_| {
            send(program, Signal::STOP);
            is_stopped(supervisor)
        });
        run.wait_until("the supervisor's going on", |_| {
            send(program, Signal::CONT);
            !is_stopped(supervisor)
        });
    }
    write_to(&word, "go\n");
    assert_eq!(run.finish().expect_code(0).text(), "go\n");
}

fn is_stopped(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
}

#[test]
fn streams_are_the_programs_own() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let input = folder.path().join("input");
    let bytes = value_of(Random::new(4).next(), 1, 8 << 20);
    fs::write(&input, &bytes).expect("input");
    let outcome = Launch::program("process", "copy 32").input(&input).limit(SMALL).run();
    outcome.expect_code(0);
    assert!(outcome.stdout == bytes);
    assert_eq!(outcome.said(), ["copied"]);
}

/// Shows that the environment stays. Ebb adds only LD_PRELOAD and names that begin with EBB_.
#[test]
fn the_environment_stays() {
    let variables = |outcome: &Outcome| -> BTreeMap<String, String> {
        let text = outcome.expect_code(0).text();
        let pairs = text.lines().filter_map(|line| line.split_once('='));
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    };
    // A library of the user stays preloaded, too.
    let library = build::library("early").display().to_string();
    let space = library.contains([' ', ':']);
    for preload in [None, (!space).then_some(&*library)] {
        let mut launch = Launch::program("process", "environment").env("ODD", "a=b c");
        if let Some(path) = preload {
            launch = launch.env("LD_PRELOAD", path);
        }
        let (plain, limited) = (variables(&launch.run()), variables(&launch.limit(SMALL).run()));
        for (name, value) in &limited {
            let own = name.starts_with("EBB_") || name == "LD_PRELOAD";
            assert!(own || plain.get(name) == Some(value), "{name}={value} is new or changed");
        }
        for name in plain.keys() {
            assert!(limited.contains_key(name), "{name} is gone");
        }
        if let Some(path) = preload {
            assert!(limited["LD_PRELOAD"].split([':', ' ']).any(|entry| entry == path));
        }
    }
}

/// Shows that a preloaded library of the user still sees the program's calls, as a recorder of
/// builds needs. The agent must come behind it.
#[test]
fn a_preloaded_library_of_the_user_sees_the_calls_of_the_program() {
    let (_folder, library) = build::library_to_preload("before");
    let launch = Launch::program("process", "passed-on").env("LD_PRELOAD", library);
    let plain = launch.run();
    plain.expect_code(0);
    assert!(plain.stderr.contains("execve /bin/true"), "{}", plain.stderr);
    let limited = launch.limit(SMALL).run();
    assert_eq!(limited.expect_code(0).stderr, plain.stderr);
}

/// Shows that directory, umask, priority, descriptors, signal masks and dispositions, credentials
/// and name stay.
#[test]
fn the_process_attributes_stay() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let launch = Launch::program("process", "surroundings").args(["-x", "--", "", "a b", "*"]);
    let launch = launch.directory(folder.path());
    let seen = |outcome: Outcome| -> Vec<String> {
        let text = outcome.expect_code(0).text();
        // The agent is a thread of the program.
        text.lines().filter(|line| !line.starts_with("Threads")).map(str::to_owned).collect()
    };
    assert_eq!(seen(launch.run()), seen(launch.limit(SMALL).run()));
}

#[test]
fn the_program_stays_in_its_process_group() {
    let launch = Launch::program("process", "group");
    same(&launch.run(), &launch.clone().limit(SMALL).run());
}

#[test]
fn without_a_limit_the_program_just_runs() {
    let outcome = Launch::new(ebb()).args(["run", "--", "sh", "-c", "echo hello; exit 3"]).run();
    assert_eq!(outcome.expect_code(3).text(), "hello\n");
}

/// Shows that all options can come from a file with a profile. Options on the command line override
/// both.
#[test]
fn options_come_from_a_file() {
    need_paging();
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let (file, report) = (folder.path().join("ebb.toml"), folder.path().join("report"));
    let text = format!(
        "memory-max = '64M'\nreport = 'json'\nreport-file = '{}'\n[profile.small]\nmemory-max = '32M'\n",
        report.display()
    );
    fs::write(&file, text).expect("a file");
    let limit = |words: &[&str]| {
        let launch = Launch::new(ebb()).args(["run", "--config"]).arg(&file).args(words);
        launch.args(["--", "true"]).run().expect_code(0).expect_silence();
        let report = fs::read_to_string(&report).expect("a report");
        let (_, rest) = report.split_once("\"memory_max_bytes\":").expect("the limit");
        rest.split(',').next().and_then(|number| number.parse::<u64>().ok()).expect("a number")
            / MIB
    };
    assert_eq!(limit(&[]), 64);
    assert_eq!(limit(&["--profile", "small"]), 32);
    assert_eq!(limit(&["--profile", "small", "--memory-max", "48M"]), 48);
    fs::write(&file, "\nmemory_max = '64M'\n").expect("a file");
    let launch = Launch::new(ebb()).args(["run", "--config"]).arg(&file).args(["--", "echo", "no"]);
    let outcome = launch.run();
    assert_eq!(
        (outcome.expect_code(125).text(), outcome.stderr.lines().count()),
        (String::new(), 1)
    );
    let told = "ebb.toml:2: unknown key 'memory_max'; did you mean 'memory-max'?\n";
    assert!(outcome.stderr.ends_with(told), "{}", outcome.stderr);
    let outcome = Launch::new(ebb()).args(["run", "--config", "/nowhere", "--", "true"]).run();
    assert_eq!(
        outcome.expect_code(125).stderr,
        "ebb: --config /nowhere: No such file or directory (os error 2)\n"
    );
}

// ---- bad input -------------------------------------------------------------------------------

/// Programs and files that cannot be used, one of each kind.
struct Unusable {
    folder: TempDir,
}

impl Unusable {
    fn new() -> Self {
        let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("temporary folder");
        let this = Self { folder };
        fs::create_dir(this.path("directory")).expect("directory");
        fs::write(this.path("text"), "just text\n").expect("text");
        fs::copy("/bin/true", this.path("plain")).expect("copy");
        fs::copy("/bin/true", this.path("setuid")).expect("copy");
        set_mode(&this.path("text"), 0o755);
        set_mode(&this.path("plain"), 0o644);
        // A set-uid file is special only if it belongs to another user.
        if rustix::process::getuid().is_root() {
            std::os::unix::fs::chown(this.path("setuid"), Some(65534), None).expect("chown");
        }
        set_mode(&this.path("setuid"), 0o4755);
        this
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    fn name(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

fn set_mode(path: &Path, mode: u32) {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("mode");
}

#[test]
fn a_run_reports_its_figures_while_it_lasts() {
    // A run that gets no CPU may answer late.
    let script = "until \"$0\" stat $$ 2>/dev/null; do :; done; \
                  while said=$(\"$0\" stat 1 2>&1 >&3); code=$?; \
                  case $said in *'does not answer'*) :;; *) false;; esac; do :; done 3>&1; \
                  echo \"$said\" >&2; exit $code";
    let outcome = Launch::new("sh").args(["-c", script]).arg(ebb()).limit(64 * MIB).run();
    outcome.expect_code(1);
    let text = outcome.text();
    let value = |name: &str| {
        let line = text.lines().find(|line| line.split(' ').next() == Some(name));
        let number = line.and_then(|line| line.split(' ').nth(1)?.parse::<u64>().ok());
        number.unwrap_or_else(|| panic!("no {name} in {text}"))
    };
    assert_eq!(value("ebb_nr_limit"), 64 * MIB / 4096);
    assert!(value("nr_free_pages") + value("nr_anon_pages") == 64 * MIB / 4096, "{text}");
    assert_eq!(value("pgmajfault"), 0, "nothing was short");
    let said = outcome.said();
    assert!(said.len() == 1 && said[0].starts_with("ebb: process 1 belongs to no run"), "{said:?}");
}

/// Creates the leftovers of a killed run with this process's PID, and asks for figures.
const LEFTOVER: &str = r#"
import os, shutil, socket, subprocess, sys
folder = "/tmp/ebb-%d-0123456789abcdef" % os.getpid()
shutil.rmtree(folder, ignore_errors=True)
os.mkdir(folder)
line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
line.bind(folder + "/socket")
line.listen()
line.close()
while True:
    done = subprocess.run([sys.argv[1], "stat", str(os.getpid())], capture_output=True, text=True)
    # A run that gets no processor may be late.
    if "does not answer" not in done.stderr:
        break
shutil.rmtree(folder)
print(done.returncode, done.stderr, "ebb_nr_limit" in done.stdout)
"#;

/// Shows that the socket of a killed run is not used when a program has the PID of its supervisor.
/// PIDs are soon reused where the kernel has only 32768 of them.
#[test]
fn a_socket_left_by_a_killed_run_with_this_number() {
    let command = [OsStr::new("-c"), OsStr::new(LEFTOVER), ebb().as_os_str()];
    let outcome = Launch::new(need(PYTHON)).args(command).limit(64 * MIB).run();
    assert_eq!(outcome.expect_code(0).text(), "0  True\n");
}

/// Shows that a program finds its run in the list of runs. It reads the run's figures in formats of
/// other programs.
const LISTED: &str = r#"
import json, os, subprocess, sys
def ask(*words):
    while True:
        done = subprocess.run([sys.argv[1], *words], capture_output=True, text=True)
        if done.returncode == 0:
            return done.stdout
        # A run that gets no processor may be late.
        assert "does not answer" in done.stderr, (words, done.stderr)
front = os.getppid()
# So may it be with the list, and with what it has seen of memory.
def own():
    runs = json.loads(ask("ps", "--format", "json"))
    return next((run for run in runs if run["pid"] == front), None)
run = own()
while run is None or run["used_bytes"] <= 1 << 20:
    run = own()
assert run["memory_max_bytes"] == 64 << 20, run
assert run["command"].startswith("/usr/bin/python3 -c"), run
lines = []
while not any(line.split()[:2] == [str(front), "64.0M"] for line in lines):
    head, *lines = ask("ps").splitlines()
    assert head.split()[0] == "PID", head
assert len(lines) == sum(line.split()[0].isdigit() for line in lines), lines
figures = json.loads(ask("stat", "--format", "json", str(front)))
assert figures["ebb_nr_limit"] == 16384, figures
text = ask("stat", "--format", "openmetrics", str(front))
assert f'ebb_nr_limit{{pid="{front}"}} 16384' in text and text.rstrip().endswith(" EOF"), text
print("well")
"#;

#[test]
fn a_run_is_listed_and_its_figures_have_the_forms_of_other_programs() {
    let command = [OsStr::new("-c"), OsStr::new(LISTED), ebb().as_os_str()];
    let outcome = Launch::new(need(PYTHON)).args(command).limit(64 * MIB).run();
    assert_eq!(outcome.expect_code(0).text(), "well\n", "{}", outcome.stderr);
}

/// Asks a run for its generations from inside, makes it age and reclaim, and reads its memory
/// again.
const LRU_GEN: &str = r#"
import os, subprocess, sys
def ask_once(*words):
    done = subprocess.run([sys.argv[1], *words], capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr
# A run that gets no processor may be late.
def is_late(answer):
    return answer[0] == 1 and "does not answer" in answer[1]
def ask(*words):
    while is_late(answer := ask_once(*words)):
        pass
    return answer
def lru_gen(*words):
    return ask("lru-gen", str(os.getpid()), *words)
def evicted():
    return int(next(l for l in ask("stat", str(os.getpid()))[1].splitlines() if "pgsteal_anon" in l).split()[1])
def rows():
    status, text = lru_gen()
    assert status == 0 and text.startswith("memcg     1 /\n node     0\n"), text
    return [[int(word) for word in line.split()] for line in text.splitlines()[2:]]
memory = bytearray(24 << 20)
for at in range(0, len(memory), 4096):
    memory[at] = at // 4096 % 251
youngest = rows()[-1][0]
while rows()[-1][0] == youngest:
    answer = ask_once("lru-gen", str(os.getpid()), "+ 1 0 %d" % youngest)
    assert answer == (0, "") or is_late(answer), answer
while sum(row[2] for row in rows()) < 6000:
    pass
assert rows()[-1][0] == youngest + 1, rows()
times = 0
while evicted() < 2000:
    times += 1
    answer = ask_once("lru-gen", str(os.getpid()), "- 1 0 %d 200 2000" % (youngest - 1))
    assert answer == (0, "") or is_late(answer), answer
assert evicted() < 2200 * times, evicted()
assert lru_gen("--full")[1].count("\n") == 2 + 4 * 6
for wrong, word in [("+ 1 0 99", "generation"), ("- 1 0 %d" % (youngest + 1), "two youngest"), ("x", "no command"),
                    ("+ 2 0 3", "memcg"), ("+ 1", "write '+")]:
    status, text = lru_gen(wrong)
    assert status == 1 and word in text and text.count("\n") == 1, (wrong, text)
assert lru_gen("--enabled") == (0, "0x0007\n")
assert lru_gen("--enabled", "n") == (0, "") and lru_gen("--enabled") == (0, "0x0000\n")
assert lru_gen("--enabled", "maybe")[0] == 1
for at in range(0, len(memory), 4096):
    assert memory[at] == at // 4096 % 251, at
print("same")
"#;

#[test]
fn a_run_shows_its_generations_and_reclaims_on_command() {
    let command = [OsStr::new("-c"), OsStr::new(LRU_GEN), ebb().as_os_str()];
    let outcome = Launch::new(need(PYTHON)).args(command).limit(64 * MIB).run();
    outcome.expect_code(0);
    assert_eq!(outcome.text(), "same\n", "{}", outcome.stderr);
}

/// Passes over memory until the run reports pressure, if the passes cause any.
const PRESSURE: &str = r#"
import os, subprocess, sys
memory = bytearray(int(sys.argv[2]) << 20)
while True:
    for turn in range(3):
        for at in range(0, len(memory), 4096):
            memory[at] = 1
    words = [sys.argv[1], "stat", "--pressure", str(os.getpid())]
    done = subprocess.run(words, capture_output=True, text=True)
    if "does not answer" in done.stderr:
        continue
    assert done.returncode == 0, done.stderr
    if sys.argv[3] == "none" or "some avg10=0.00" not in done.stdout:
        break
print(done.stdout, end="")
"#;

#[test]
fn memory_pressure_is_reported_as_the_kernel_reports_it() {
    let pressure = |mib: &str, what: &str| {
        let command = [OsStr::new("-c"), PRESSURE.as_ref(), ebb().as_ref()];
        let launch = Launch::new(need(PYTHON)).args(command).args([mib, what]).limit(48 * MIB);
        let outcome = launch.options("--report json --swap file").run();
        outcome.expect_code(0);
        let text = outcome.text();
        let lines: Vec<(f64, u64)> = ["some", "full"]
            .iter()
            .zip(text.lines())
            .map(|(name, line)| {
                let words: Vec<&str> = line.split([' ', '=']).collect();
                let [kind, "avg10", a, "avg60", _, "avg300", _, "total", total] = words[..] else {
                    panic!("{text}")
                };
                assert_eq!(kind, *name, "{text}");
                (a.parse().expect("percent"), total.parse().expect("microseconds"))
            })
            .collect();
        assert_eq!(lines.len(), 2, "{text}");
        let told = outcome.figure("some_us");
        assert!(told >= lines[0].1 && lines[0].1 >= lines[1].1, "{told}: {text}");
        (lines[0].0, told)
    };
    let (average, total) = pressure("80", "some");
    assert!(average > 0.0 && total > 0, "{average} % and {total} us");
    assert_eq!(pressure("8", "none"), (0.0, 0), "nothing is short");
}

/// Accesses more memory than fits, in pseudorandom order.
const SCATTERED: &str = "
memory = bytearray(40 << 20)
page = 1
for _ in range(30000):
    page = page * 5 % 10240 + 1
    memory[page * 4096 - 1] = 1
";

#[test]
fn a_recording_is_a_trace_that_the_lab_replays() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["faults.csv", "faults.csv.zst"] {
        let path = folder.path().join(name);
        let launch = Launch::new(need(PYTHON)).args(["-c", SCATTERED]).limit(24 * MIB);
        let launch = launch.options(&format!("--report json --record {}", path.display()));
        let mut recorded = 0;
        // If the monitor gets no CPU, the program ends before any of its pages has left.
        eventually("a run in which pages come back", || {
            let outcome = launch.run();
            outcome.expect_code(0);
            // A writer that gets no CPU loses some records.
            recorded = outcome.figure("recorded");
            let lost = outcome.figure("recorded_lost");
            let faults = ["first_touch", "reactivated", "loaded"].map(|name| outcome.figure(name));
            let seen = faults.iter().sum::<u64>();
            assert!(recorded + lost >= seen, "{recorded} {lost} {faults:?}");
            recorded > 0 && faults[1] + faults[2] > 0
        });
        let replay = ["lab", "replay", &path.display().to_string(), "--memory", "50%"];
        let replay = replay.map(str::to_owned);
        let outcome = Launch::new(ebb()).args(&replay).arg("--format").arg("json").run();
        outcome.expect_code(0);
        assert!(
            outcome.text().contains(&format!("\"accesses\": {recorded},")),
            "{}",
            outcome.text()
        );
    }
}

/// Checks that `ebb run` with these words fails with this status, prints one line with `word`, and
/// leaves no process.
#[track_caller]
fn refused(words: &[&str], code: i32, word: &str) {
    let outcome = Launch::new(ebb()).arg("run").args(words).run();
    let stderr = &outcome.stderr;
    outcome.expect_code(code);
    assert!(stderr.lines().count() == 1, "{words:?}: not one line: {stderr}");
    assert!(stderr.starts_with("ebb: "), "{words:?}: {stderr}");
    assert!(stderr.contains(word), "{words:?}: does not name {word:?}: {stderr}");
    assert_eq!(outcome.text(), "", "{words:?}");
}

#[test]
fn bad_options_are_refused_with_one_line() {
    let unusable = Unusable::new();
    let marker = unusable.name("started");
    let program = ["--", "touch", &marker];
    let no_folder = format!("file:{}/no/such/folder/pages", unusable.folder.path().display());
    let no_report = unusable.name("no/such/report");
    for (options, word) in [
        (vec!["--memory-max", "0"], "0"),
        (vec!["--memory-max", "64M", "--memory-high", "65M"], "65M"),
        (vec!["--memory-max", "64M", "--memory-high", "1M"], "1M"),
        (vec!["--memory-high", "some"], "some"),
        (vec!["--memory-max", "4K"], "4K"),
        (vec!["--memory-max", "12Q"], "12Q"),
        (vec!["--memory-max", "-5M"], "-5M"),
        (vec!["--memory-max", "lots"], "lots"),
        (vec!["--memory-max", ""], "--memory-max"),
        (vec!["--memory-max", "0%"], "0%"),
        (vec!["--memory-max", "99999999999999999999"], "99999999999999999999"),
        (vec!["--memory-max", "64M", "--swap", "floppy"], "floppy"),
        (vec!["--memory-max", "64M", "--swap", ""], "--swap"),
        (vec!["--memory-max", "64M", "--swap", "ram,,file"], "ram,,file"),
        (vec!["--memory-max", "64M", "--swap", "ram:much"], "much"),
        (vec!["--memory-max", "64M", "--swap", &no_folder], "no/such/folder"),
        (vec!["--memory-max", "64M", "--swap", "file:/proc/pages"], "/proc/pages"),
        (vec!["--memory-max", "64M", "--report", "xml"], "xml"),
        (vec!["--memory-max", "64M", "--report-file", &no_report], "no/such/report"),
        (vec!["--memory-max", "64M", "--record", &no_report], "no/such/report"),
        (vec!["--memory-maximum", "64M"], "--memory-maximum"),
    ] {
        let words: Vec<&str> = options.iter().chain(&program).copied().collect();
        refused(&words, 125, word);
        assert!(!Path::new(&marker).exists(), "{options:?}: the program was started");
    }
    refused(&["--memory-max", "64M"], 125, "ebb run");
    refused(&["--memory-max", "64M", "--"], 125, "ebb run");
    refused(&["--memory-max"], 125, "--memory-max");
}

#[test]
fn programs_that_cannot_be_run_are_refused_with_one_line() {
    let unusable = Unusable::new();
    let fixed = foreign_program("process").display().to_string();
    for (path, code, word) in [
        (unusable.name("directory"), 126, "directory"),
        (unusable.name("text"), 126, "text"),
        (unusable.name("plain"), 126, "plain"),
        (unusable.name("setuid"), 126, "setuid"),
        (fixed, 126, "static"),
        (unusable.name("absent"), 127, "absent"),
        ("no-such-program-anywhere".to_owned(), 127, "no-such-program-anywhere"),
    ] {
        // Another user's programs of their own gain nothing by that bit.
        if word == "setuid" && !rustix::process::getuid().is_root() {
            continue;
        }
        refused(&["--memory-max", "64M", "--", &path, "exit", "0"], code, word);
    }
}

// ---- users and environments ------------------------------------------------------------------

/// Command that runs another command as an ordinary user.
const NOBODY: [&str; 6] = ["setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups"];

/// A folder that every user may reach, unlike the checkout.
struct Public(TempDir);

impl Public {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755))
            .expect("for all to enter");
        Self(folder)
    }

    /// Copies a file into the folder. Another process writes the copy. Programs of other tests
    /// could inherit a writable descriptor of this process. The kernel could then not execute the
    /// copy.
    fn copy(&self, from: &Path, name: &str) -> String {
        let to = self.0.path().join(name);
        let copied = Command::new("cp").arg(from).arg(&to).status().expect("cp");
        assert!(copied.success());
        set_mode(&to, 0o755);
        to.display().to_string()
    }
}

/// Runs a program under Ebb through another command. `ebb` and the program are in a folder that
/// every user may reach.
fn verify_through(before: &[&str]) -> Outcome {
    let folder = Public::new();
    let mut words: Vec<String> = before.iter().map(|word| (*word).to_owned()).collect();
    words.push(folder.copy(ebb(), "ebb"));
    words.extend(["run", "--memory-max", "16M", "--"].map(str::to_owned));
    words.push(folder.copy(&program("verify"), "verify"));
    words.extend(["48", "1"].map(str::to_owned));
    Launch::new(&words[0]).args(&words[1..]).run()
}

fn right_answer() -> String {
    Launch::program("verify", "48 1").run().text()
}

/// Shows that an ordinary user gets a working run, or a message about how to get the needed right.
#[test]
fn an_ordinary_user_gets_a_run_or_a_message() {
    need_root();
    need("/usr/bin/setpriv");
    let outcome = verify_through(&NOBODY);
    if outcome.code() == 0 {
        assert_eq!(outcome.text(), right_answer());
        return;
    }
    outcome.expect_code(125);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("ebb doctor"), "{}", outcome.stderr);
}

#[test]
fn few_descriptors_are_enough() {
    need_root_for("a copy of ebb has no capability");
    let outcome = verify_through(&["sh", "-c", "ulimit -n 32; exec \"$@\"", "sh"]);
    assert_eq!(outcome.expect_code(0).text(), right_answer());
}

/// Shows that a program that gives up its rights, and so cannot be managed, still runs right.
#[test]
fn a_program_that_gives_up_its_rights_still_runs_right() {
    need_root();
    let folder = Public::new();
    let verify = folder.copy(&program("verify"), "verify");
    let words = ["--reuid", "65534", "--clear-groups", &verify, "48", "1"];
    let outcome = Launch::new(need("/usr/bin/setpriv")).args(words).limit(SMALL).run();
    assert_eq!(outcome.expect_code(0).text(), right_answer());
}

/// Shows that a program that takes no preloaded library still runs right.
#[test]
fn a_program_that_takes_no_agent_still_runs_right() {
    let launch = Launch::new("sh").args(["-c", "\"$0\" fork 16; :"]);
    let outcome = launch.arg(foreign_program("process")).limit(SMALL).run();
    assert_eq!(outcome.expect_code(0).text(), "fork: ok\n");
}

/// Shows that Ebb in Ebb gives the right answer or refuses with one line.
#[test]
fn a_run_inside_a_run() {
    need_root_for("the agent goes into no program whose file has capabilities");
    let outcome =
        verify_through(&[&ebb().display().to_string(), "run", "--memory-max", "32M", "--"]);
    if outcome.code() == 125 {
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
        return;
    }
    assert_eq!(outcome.expect_code(0).text(), right_answer());
}

// ---- reports ---------------------------------------------------------------------------------

fn is_json(bytes: &[u8]) -> bool {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let path = folder.path().join("report.json");
    fs::write(&path, bytes).expect("report");
    let python = Launch::new(need(PYTHON)).args(["-m", "json.tool"]).arg(path);
    python.run().code() == 0
}

#[test]
fn reports_go_where_they_are_sent() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let file = folder.path().join("report");
    let plain = Launch::program("verify", "16 1").run();
    for format in ["text", "json"] {
        let to_file = format!("--report {format} --report-file {}", file.display());
        let launch = Launch::program("verify", "16 1").limit(SMALL);
        let outcome = launch.clone().options(&to_file).run();
        same(&plain, &outcome);
        let report = fs::read(&file).expect("report");
        assert!(!report.is_empty() && is_json(&report) == (format == "json"));
        let outcome = launch.options(&format!("--report {format}")).run();
        assert_eq!(outcome.expect_code(0).text(), plain.text());
        assert!(!outcome.said().is_empty());
        assert_eq!(is_json(outcome.said().join("\n").as_bytes()), format == "json");
    }
}

/// Shows that a report on standard output follows the program's output in one stream, and can be
/// left out.
#[test]
fn a_report_goes_to_standard_output_or_is_left_out() {
    need_paging();
    let run = |options: &str, limit: u64| {
        let line = format!("run {options} --memory-max {limit} --");
        let launch = Launch::new(ebb()).args(line.split_ascii_whitespace());
        launch.arg(program("verify")).args(["24", "1"]).run()
    };
    let outcome = run("--report-file -", SMALL);
    let text = outcome.expect_code(0).text();
    let (answer, report) = text.split_once('\n').expect("two parts");
    assert_eq!(format!("{answer}\n"), Launch::program("verify", "24 1").run().text());
    assert!(report.starts_with("ebb: wall time") && report.contains("pages evicted"), "{text}");
    outcome.expect_silence();
    let outcome = run("--quiet", SMALL);
    assert_eq!(outcome.expect_code(0).expect_silence().text().lines().count(), 1);
    // A run that never came near its limit prints no lines of zeros.
    let outcome = run("", 512 * MIB);
    assert!(!outcome.expect_code(0).stderr.contains(" 0 pages"), "{}", outcome.stderr);
    assert_eq!(outcome.said().len(), 4, "{}", outcome.stderr);
}

#[test]
fn doctor_says_what_the_kernel_offers() {
    let text = Launch::new(ebb()).arg("doctor").run();
    assert!(text.text().contains("userfaultfd"), "{}", text.text());
    let json = Launch::new(ebb()).args(["doctor", "--format", "json"]).run();
    assert!(is_json(&json.stdout), "{}", json.text());
    assert_eq!(text.code(), json.code());
}
