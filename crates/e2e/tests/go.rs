//! Tests static programs of Go. They get the agent while they stand at their first instruction.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use ebb_e2e::TINY;
use ebb_e2e::build::{ebb, go_program, script, target};
use ebb_e2e::launch::{Launch, Outcome, need_root_for};
use ebb_e2e::same::need;
use ebb_testing::{eventually_some, skip};
use tempfile::TempDir;

fn work() -> String {
    need_go();
    go_program("go-work", ".", &[]).display().to_string()
}

/// Skips the test without Go.
#[track_caller]
pub fn need_go() {
    if !Command::new("go").arg("version").output().is_ok_and(|output| output.status.success()) {
        skip("go is missing");
    }
}

/// Returns the build cache that all tests share.
fn cache() -> PathBuf {
    target().join("e2e-programs/go-cache")
}

/// Number of stores that shows paging: about half of 24 MiB is out at least once where a case waits
/// for that (`paged`).
const OUT: u64 = 10 << 8;

#[test]
fn a_program_that_a_script_starts_is_paged() {
    let folder = tempfile::tempdir().expect("a folder");
    let script = folder.path().join("script");
    fs::write(&script, format!("#!/bin/sh\n'{}' waits 24 paged\n", work())).expect("a script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    fs::set_permissions(&script, mode).expect("executable");
    let launch = Launch::new(script.display().to_string()).limit(TINY);
    // With `--strict` the run ends if it meets the program as unmanageable.
    let outcome = launch.options("--report json --strict").run();
    outcome.expect_line("waits: ok");
    assert!(outcome.figure("pages_evicted") > OUT, "{}", outcome.report);
}

/// Shows that more programs than get the agent at a time end well. Sixteen at a time get it. A
/// program that comes meanwhile, or is met before its exec, must not stay without. `./test measure
/// go` measures the number with an agent.
#[test]
fn more_programs_than_get_the_agent_at_a_time_end_well() {
    let script = format!("{} wait", "\"$0\" waits 1 & ".repeat(24));
    let launch = Launch::new("sh").args(["-c", &script, &work()]).limit(128 << 20);
    let outcome = launch.run();
    outcome.expect_code(0);
    assert_eq!(outcome.text(), "waits: ok\n".repeat(24));
}

#[test]
fn a_go_program_is_paged_with_exec() {
    let folder = tempfile::tempdir().expect("a folder");
    let report = folder.path().join("report").display().to_string();
    let options = format!("--exec --report json --report-file {report}");
    let launch = Launch::new(work()).args(["waits", "24", "paged"]).limit(TINY);
    let outcome = launch.options(&options).run();
    outcome.expect_code(0);
    assert_eq!(outcome.text(), "waits: ok\n");
    let read = || serde_json::from_str(&fs::read_to_string(&report).unwrap_or_default()).ok();
    let report: serde_json::Value = eventually_some("a report", read);
    assert!(report["pages_evicted"].as_u64() > Some(OUT), "{report}");
}

/// Shows that the tools of Go, which start dozens of each other within seconds, get the agent or
/// have ended before.
#[test]
fn a_build_by_go_of_many_packages() {
    // The build of `work` fills the cache with the standard library.
    work();
    let folder = TempDir::new_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
    write("go.mod", "module ebb.test/many\n\ngo 1.19\n");
    let (mut imports, mut calls) = (String::new(), String::new());
    for number in 0..8 {
        fs::create_dir(folder.path().join(format!("p{number}"))).expect("a folder");
        let text = format!("package p{number}\n\nfunc F(a int) int {{ return a * {number} }}\n");
        write(&format!("p{number}/f.go"), &text);
        imports += &format!("import \"ebb.test/many/p{number}\"\n");
        calls += &format!("println(p{number}.F(2)); ");
    }
    write("main.go", &format!("package main\n\n{imports}\nfunc main() {{ {calls} }}\n"));
    // The cache is copied as hard links, because Go never writes to an existing cache entry.
    let copy = "cp -rl \"$0\" cache-plain && cp -rl \"$0\" cache-paged";
    let copy = Launch::new("sh").args(["-c", copy]).arg(cache()).directory(folder.path());
    copy.run().expect_code(0);
    let build = |output: &str| {
        let script = format!(
            "CGO_ENABLED=0 GOFLAGS=-buildvcs=false GOCACHE=$PWD/cache-{output} go build -o {output} ."
        );
        Launch::new("sh").args(["-c", &script]).directory(folder.path())
    };
    build("plain").run().expect_code(0);
    let outcome = build("paged").limit(160 << 20).options("--report json").run();
    outcome.expect_code(0);
    assert!(outcome.figure("processes") > 0, "{}", outcome.report);
    let read = |name: &str| fs::read(folder.path().join(name)).expect("a program");
    assert!(read("plain") == read("paged"), "other bytes");
}

/// Runs a case with 24 MiB of its own, in a third of that.
fn run(program: &str, name: &str) -> Outcome {
    let launch = Launch::new(program).args([name, "24", "paged"]).limit(TINY);
    let outcome = launch.options("--report json").run();
    outcome.expect_line(&format!("{name}: ok"));
    outcome
}

#[track_caller]
fn case(name: &str) {
    let outcome = run(&work(), name);
    assert!(outcome.figure("pages_evicted") > OUT, "little of it was ever out");
}

#[test]
fn goroutines_fill_memory_and_collect_garbage() {
    case("fills");
}

#[test]
fn signals_reach_a_go_program_while_its_pages_move() {
    case("signals");
}

#[test]
fn threads_of_go_end_while_their_pages_move() {
    case("threads");
}

#[test]
fn memory_that_the_go_runtime_gives_back_can_be_used_again() {
    case("gives-back");
}

#[test]
fn mappings_around_the_runtime() {
    case("maps");
}

#[test]
fn programs_with_and_without_loaders_are_started() {
    case("starts");
}

#[test]
fn a_server_and_its_clients() {
    case("serves");
}

#[test]
fn a_go_program_is_let_go_as_it_was_started() {
    case("bare");
}

/// Shows that a position-independent program, which has a loader, loads the agent itself.
#[test]
fn a_position_independent_go_program_loads_the_agent_itself() {
    need_go();
    let program = go_program("go-little-pie", "./little", &["-buildmode=pie"]);
    let launch = Launch::new(program.display().to_string()).limit(TINY);
    let outcome = launch.options("--report json").run();
    outcome.expect_line("fills: ok");
    assert!(outcome.figure("pages_evicted") > OUT, "{}", outcome.report);
}

/// Shows that Go's compiler writes an identical object file in a third of its memory.
#[test]
fn the_go_compiler_writes_the_same_object_file_in_a_third_of_its_memory() {
    need_go();
    let folder = tempfile::tempdir().expect("a folder");
    let source = folder.path().join("big.go");
    let function = |number: usize| {
        format!(
            "func F{number}(a, b int, s []int) int {{\n\tfor i := range s {{\n\t\tif s[i]%{} == 0 {{ a += s[i] * b }}\n\t\t\
             switch a & 3 {{ case 0: a++; case 1: a -= b; case 2: s[i] = a }}\n\t}}\n\treturn a\n}}\n",
            number + 2
        )
    };
    let text: String = (0..400).map(function).collect();
    fs::write(&source, format!("package big\n{text}")).expect("a source");
    let named = Command::new("go").args(["tool", "-n", "compile"]).output().expect("go runs");
    let compiler = String::from_utf8(named.stdout).expect("a path").trim().to_owned();
    let compile = |object: &str| {
        let (object, source) = (folder.path().join(object), source.display().to_string());
        let object = object.display().to_string();
        Launch::new(&compiler).args(["-c=2", "-p", "big", "-o", &object, &source])
    };
    compile("plain.o").run().expect_code(0);
    let outcome = compile("paged.o").limit(18 << 20).options("--report json").run();
    outcome.expect_code(0);
    assert!(outcome.figure("processes") > 0, "{}", outcome.report);
    let read = |name: &str| fs::read(folder.path().join(name)).expect("an object");
    assert!(read("plain.o") == read("paged.o"), "other bytes");
}

/// Shows that a program traced by another process runs without an agent, unpaged, and that Ebb
/// reports it.
#[test]
fn a_program_that_is_traced_already_runs_without_an_agent() {
    need("/usr/bin/strace");
    need_root_for("a traced ebb does not get the capability of its file");
    let words = ["-f", "-o", "/dev/null", &ebb().display().to_string(), "run", "--memory-max"];
    let program = work();
    let run = ["16M", "--", &program, "fills", "8"];
    let outcome = Launch::new("strace").args(words).args(run).run();
    outcome.expect_code(0);
    assert_eq!(outcome.text(), "fills: ok\n");
    assert!(outcome.stderr.contains("(ptrace): Operation not permitted"), "{}", outcome.stderr);
}

#[test]
fn the_status_and_the_message_of_a_failing_go_program_are_passed_on() {
    let program = work();
    let nothing = Launch::new(&program).limit(TINY).run();
    nothing.expect_code(1);
    assert!(nothing.stderr.contains("which case, and how many MiB?"), "{}", nothing.stderr);
}

/// Shows that a program with C code and glibc's threads is paged.
#[test]
fn a_go_program_with_c_code_is_paged() {
    need_go();
    let folder = tempfile::tempdir().expect("a folder");
    for file in ["go.mod", "main.go"] {
        fs::copy(script("go").join(file), folder.path().join(file)).expect("a copy");
    }
    fs::write(folder.path().join("c.go"), "package main\n\nimport \"C\"\n").expect("a file");
    let mixed = folder.path().join("mixed");
    let built = Command::new("go")
        .args(["build", "-buildvcs=false", "-ldflags", "-linkmode=external -extldflags=-static"])
        .arg("-o")
        .arg(&mixed)
        .arg(".")
        .env("CGO_ENABLED", "1")
        .env("GOCACHE", cache())
        .current_dir(folder.path())
        .status();
    assert!(built.expect("go runs").success());
    for name in ["threads", "fills"] {
        let outcome = run(&mixed.display().to_string(), name);
        assert!(outcome.figure("pages_evicted") > OUT, "{}", outcome.report);
    }
}
