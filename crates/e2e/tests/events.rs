//! Tests `ebb run --events`, which writes each event of a run as a line of JSON.

use ebb_e2e::build::{ebb, foreign_program};
use ebb_e2e::launch::{Launch, need_paging, send};
use ebb_e2e::same::need;
use ebb_e2e::{MIB, SMALL};
use ebb_testing::{eventually, eventually_some};
use rustix::process::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

fn folder() -> (TempDir, PathBuf) {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let file = folder.path().join("events");
    (folder, file)
}

fn python(script: &str) -> Launch {
    Launch::new(need("/usr/bin/python3")).args(["-c", script]).arg(ebb())
}

fn to(file: &Path) -> String {
    format!("--events {}", file.display())
}

/// Parses the lines of a file and checks that each is an object with the time, the run and the
/// process.
#[track_caller]
fn events(text: &str) -> Vec<Value> {
    let all: Vec<Value> = (text.lines())
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let mut before = 0;
    for event in &all {
        let number = |key: &str| event[key].as_u64().unwrap_or_else(|| panic!("no {key}: {event}"));
        assert!(number("run") > 1 && number("pid") > 1);
        assert!(number("time_unix_us") >= before.max(1_700_000_000_000_000), "{event}");
        before = number("time_unix_us");
    }
    all
}

fn read(file: &Path) -> Vec<Value> {
    events(&std::fs::read_to_string(file).expect("events"))
}

/// Returns the names of the events. Thrashing is left out, because a run also thrashes where the
/// host gives it no CPU.
fn names(events: &[Value]) -> Vec<&str> {
    let names = events.iter().map(|event| event["event"].as_str().expect("a name"));
    names.filter(|&name| name != "thrashing").collect()
}

/// Returns the events with these names.
fn only(events: Vec<Value>, names: &[&str]) -> Vec<Value> {
    let is_one = |event: &Value| names.iter().any(|&name| event["event"] == name);
    events.into_iter().filter(is_one).collect()
}

fn has(file: &Path, text: &str) -> bool {
    std::fs::read_to_string(file).is_ok_and(|all| all.contains(text))
}

#[test]
fn the_start_the_changed_limits_and_the_end_of_a_run_are_events() {
    let (_folder, file) = folder();
    let script = "import os, subprocess, sys\narea = os.urandom(24 << 20)\n\
                  ebb = [sys.argv[1], 'set', str(os.getpid())]\n\
                  assert subprocess.run([*ebb, 'memory.max=96M']).returncode == 0\n\
                  assert subprocess.run([*ebb, 'memory.max=60M', 'memory.high=58M']).returncode == 0\n\
                  sys.exit(3)";
    let run = python(script).limit(64 * MIB).options(&to(&file)).start();
    let supervisor = run.pid();
    run.finish().expect_code(3);
    let all = only(read(&file), &["started", "limit_changed", "ended"]);
    assert_eq!(names(&all), ["started", "limit_changed", "limit_changed", "ended"]);
    assert!(all.iter().all(|event| event["run"] == supervisor && event["pid"] == all[0]["pid"]));
    assert_eq!(all[0]["memory_max_bytes"], 64 * MIB);
    assert_eq!(all[0]["command"][1], "-c");
    assert_eq!((&all[1]["memory_max_bytes"], &all[1]["by"]), (&(96 * MIB).into(), &"set".into()));
    assert_eq!(all[2]["memory_max_bytes"], 60 * MIB);
    assert_eq!(all[2]["memory_high_bytes"], 58 * MIB);
    assert_eq!(all[3]["exit_status"], 3);
    let (peak, wall) = (all[3]["peak_resident_bytes"].as_u64(), all[3]["wall_time_us"].as_u64());
    assert!(peak > Some(20 * MIB) && wall > Some(0), "{}", all[3]);
    assert!(all[3]["faults"].as_u64() > Some(0), "{}", all[3]);
}

#[test]
fn a_run_that_is_out_of_memory_is_full_then_killed_then_ends() {
    let (_folder, file) = folder();
    let options = format!("--swap ram:1M {}", to(&file));
    let script = "import os\nparts = [os.urandom(1 << 20) for _ in range(64)]";
    let outcome = python(script).limit(24 * MIB).options(&options).run();
    outcome.expect_code(137);
    let all = only(read(&file), &["started", "full", "killed", "ended"]);
    assert_eq!(names(&all), ["started", "full", "killed", "ended"]);
    assert_eq!(all[1]["memory_max_bytes"], 24 * MIB);
    assert!(all[1]["waited_us"].is_u64(), "{}", all[1]);
    assert!(all[1]["why"].as_str().expect("why").contains("store"), "{}", all[1]);
    assert_eq!(all[2]["why"], "out_of_memory");
    assert_eq!(all[3]["exit_status"], 137);
}

#[test]
fn unmanaged_memory_is_reported_with_its_process() {
    let (_folder, file) = folder();
    let fixed = foreign_program("verify").canonicalize().expect("it is built");
    let fixed = fixed.display().to_string();
    let script = ["-c", "\"$0\" 24 0; :", &fixed];
    let launch = || Launch::new("sh").args(script).limit(64 * MIB);
    let mut run = launch().options(&to(&file)).start();
    run.wait_until("it is told", |_| has(&file, "unmanaged"));
    let is_it = |pid: &&i32| {
        std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == Path::new(&fixed))
    };
    let program = run.root().find().program;
    send(*program.iter().find(is_it).expect("it runs"), Signal::TERM);
    run.finish().expect_code(0);
    let all = only(read(&file), &["started", "unmanaged", "ended"]);
    assert_eq!(names(&all), ["started", "unmanaged", "ended"]);
    let why = (&"static_program".into(), &"verify-foreign".into());
    assert_eq!((&all[1]["why"], &all[1]["name"]), why);
    assert_ne!(all[1]["pid"], all[0]["pid"]);
    launch().options(&format!("--strict {}", to(&file))).run().expect_code(125);
    let all = only(read(&file), &["started", "unmanaged", "killed", "ended"]);
    assert_eq!(names(&all)[3..], ["started", "unmanaged", "killed", "ended"], "appended");
}

#[test]
fn a_thrashing_run_reports_the_memory_that_would_be_enough() {
    let (_folder, file) = folder();
    let options = format!("--swap file --inject slow-read=1ms@n1 {}", to(&file));
    let launch = Launch::program("touch", "48 1000000").limit(SMALL).options(&options);
    let mut run = launch.start();
    run.wait_until("it is told", |_| has(&file, "thrashing"));
    run.root().find().program.iter().for_each(|&pid| send(pid, Signal::TERM));
    run.finish().expect_code(128 + 15);
    let all = only(read(&file), &["started", "thrashing", "ended"]);
    assert!(all[0]["event"] == "started" && all[2]["event"] == "ended", "{all:?}");
    // The event names all memory that the program had by then.
    let enough = all[1]["enough_bytes"].as_u64().expect("bytes");
    assert!((SMALL..80 * MIB).contains(&enough), "{}", all[1]);
    assert!(all[1]["lost_percent"].as_u64() >= Some(49), "{}", all[1]);
}

/// Shows that the end of the supervisor or of the pager is reported, by the killed process or by
/// the other one.
#[test]
fn the_end_of_the_supervisor_or_of_the_pager_is_reported() {
    for (which, why) in [("supervisor", "supervisor_ended"), ("pager", "pager_ended")] {
        let (_folder, file) = folder();
        let mut run = Launch::program("process", "wait-for-signal 16").limit(SMALL);
        run = run.options(&to(&file));
        let mut run = run.start();
        run.wait_until("the start", |_| has(&file, "\n"));
        let supervisor = run.pid();
        let children =
            std::fs::read_to_string(format!("/proc/{supervisor}/task/{supervisor}/children"));
        let children = children.expect("children");
        let pager =
            (children.split_ascii_whitespace().map(|pid| pid.parse::<i32>().expect("a number")))
                .find(|pid| {
                    let words = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                    String::from_utf8_lossy(&words).contains("__pager")
                });
        send(
            if which == "supervisor" { supervisor } else { pager.expect("a pager") },
            Signal::KILL,
        );
        eventually(why, || has(&file, &format!("\"{why}\"")) && has(&file, "}\n"));
        let all = read(&file);
        assert_eq!(names(&all), ["started", "killed"]);
        assert_eq!(all[1]["run"], supervisor);
        run.finish();
    }
}

#[test]
fn a_full_disk_for_events_harms_nothing_and_is_reported_once() {
    let script = "import os, subprocess, sys\n\
                  for size in '70M', '80M', '90M':\n\
                  \x20   subprocess.run([sys.argv[1], 'set', str(os.getpid()), f'memory.max={size}'], check=True)\n\
                  print('well')";
    let outcome = python(script).limit(64 * MIB).options("--events /dev/full").run();
    outcome.expect_line("well");
    let said: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains("--events")).collect();
    assert!(said.len() == 1 && said[0].contains("No space left"), "{}", outcome.stderr);
    assert!(said[0].contains("the run goes on"), "{}", outcome.stderr);
}

#[test]
fn events_go_to_standard_error_and_several_runs_share_a_file() {
    let outcome =
        Launch::program("verify", "24 1").limit(SMALL).options("--quiet --events -").run();
    outcome.expect_code(0);
    assert_eq!(names(&events(&outcome.said().join("\n"))), ["started", "ended"]);
    let (_folder, file) = folder();
    let runs: Vec<_> = (0..3)
        .map(|_| Launch::program("verify", "24 1").limit(SMALL).options(&to(&file)).start())
        .collect();
    for run in runs {
        run.finish().expect_code(0);
    }
    let text = std::fs::read_to_string(&file).expect("events");
    let mut all: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("whole lines")).collect();
    all.sort_by_key(|event| event["event"].as_str().map(str::to_owned));
    assert_eq!(names(&all), ["ended", "ended", "ended", "started", "started", "started"]);
}

#[test]
fn a_file_that_cannot_be_written_starts_nothing() {
    let (folder, _) = folder();
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("mkfifo runs").success());
    let marker = folder.path().join("started");
    let [missing, pipe, itself] = [folder.path().join("no/such"), pipe, folder.path().to_owned()]
        .map(|path| path.display().to_string());
    for (path, why) in
        [(missing, "No such file"), (pipe, "no process reads"), (itself, "directory")]
    {
        let words = ["run", "--events", &path, "--", "touch"];
        let outcome = Launch::new(ebb()).args(words).arg(&marker).run();
        outcome.expect_code(125);
        let line = &outcome.stderr;
        assert!(line.starts_with(&format!("ebb: --events {path}: ")), "{line}");
        assert!(line.contains(why) && line.lines().count() == 1, "{line}");
        assert!(!marker.exists());
    }
}

/// Shows that a run with `--exec` has its events, too. The supervisor there is no parent of the
/// program, but must report its start and its end.
#[test]
fn a_run_with_exec_has_its_events_too() {
    need_paging();
    let (_folder, file) = folder();
    let words = format!("{} --exec --quiet --memory-max 64M", to(&file));
    let mut child = Command::new(ebb())
        .arg("run")
        .args(words.split(' '))
        .args(["--", "/bin/sh", "-c", "exit 3"])
        .spawn()
        .expect("it starts");
    let pid = child.id();
    let status = eventually_some("its end", || child.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(3));
    eventually("the end is told", || has(&file, "\"ended\""));
    let all = read(&file);
    assert_eq!(names(&all), ["started", "ended"]);
    assert!(all.iter().all(|event| event["pid"] == pid && event["run"] != pid), "{all:?}");
}
