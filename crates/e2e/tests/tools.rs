//! Tests programs that inspect others, or are built to be inspected: debuggers, tracers,
//! sanitizers.

use std::path::PathBuf;
use std::process::Command;

use ebb_e2e::launch::{Launch, need_root_for};
use ebb_e2e::same::{need, need_linux};
use ebb_e2e::{MIB, SMALL, TINY, build};
use ebb_testing::skip;
use tempfile::TempDir;

/// Builds a program that fills 40 MiB and adds them up, with one more compiler flag.
fn filler(folder: &TempDir, flag: &str) -> PathBuf {
    built(folder, "filler.c", flag)
}

fn built(folder: &TempDir, source: &str, flag: &str) -> PathBuf {
    let path = folder.path().join(format!("{source}{flag}"));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-g", flag, "-o"]).arg(&path).arg(build::script(source));
    assert!(cc.status().expect("cc runs").success(), "{source} does not compile with {flag}");
    path
}

const SUM: &str = "sum 3916800";

#[test]
fn programs_with_address_sanitizer_run() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let launch = Launch::new(filler(&folder, "-fsanitize=address")).limit(64 * MIB);
    launch.run().expect_line(SUM);
}

/// Shows that the leak sanitizer can check more memory than the limit. Its process stops all
/// threads, and must not wait for a page from an agent stopped in a batch.
#[test]
fn leak_sanitizer_looks_at_more_than_the_limit() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    for flag in ["-fsanitize=leak", "-fsanitize=address"] {
        let launch = Launch::new(built(&folder, "reachable.c", flag));
        launch.limit(24 * MIB).run().expect_line("sum 6266880");
    }
}

#[test]
fn programs_with_thread_sanitizer_are_paged() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let launch = Launch::new(filler(&folder, "-fsanitize=thread"));
    if launch.run().code() != 0 {
        skip("thread sanitizer does not run on this kernel");
    }
    launch.limit(32 * MIB).run().expect_line(SUM);
}

/// Shows that a program under valgrind runs without the agent, whose thread valgrind cannot run.
#[test]
fn a_program_under_valgrind_runs_on_by_itself() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let launch = Launch::new(need("/usr/bin/valgrind"))
        .arg("-q")
        .arg(filler(&folder, "-O0"))
        .limit(400 * MIB);
    launch.run().expect_line(SUM);
}

#[test]
fn a_debugger_runs_a_program_and_is_run_around_it() {
    need_root_for("a traced ebb does not get the capability of its file");
    if ebb_sys::cgroup::may_be_used_up() {
        // The debugger polls when its program ends, and a signal is pending then (docs/limits.md).
        skip("a control group limits CPU time: a signal in a system call may use it up");
    }
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let filler = filler(&folder, "-O0");
    let inside =
        Launch::new(need("/usr/bin/gdb")).args(["-q", "-batch", "-ex", "run"]).arg(&filler);
    let outcome = inside.limit(SMALL * 2).run();
    assert!(outcome.expect_code(0).text().contains(SUM), "{}", outcome.text());
    let outside = Launch::new(need("/usr/bin/gdb")).args(["-q", "-batch", "-ex", "run", "--args"]);
    let outside = outside.arg(build::ebb()).args(["run", "--memory-max", "24M", "--"]).arg(&filler);
    let outcome = outside.run();
    assert!(outcome.expect_code(0).text().contains(SUM), "{}", outcome.text());
}

#[test]
fn a_tracer_is_run_around_a_program() {
    need_root_for("a traced ebb does not get the capability of its file");
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let filler = filler(&folder, "-O0");
    let trace = folder.path().join("trace");
    let launch =
        Launch::new(need("/usr/bin/strace")).args(["-f", "-o"]).arg(&trace).arg(build::ebb());
    let launch = launch.args(["run", "--memory-max", "24M", "--"]).arg(&filler);
    launch.run().expect_line(SUM);
}

/// Shows that a program runs in new namespaces of users and processes, and is paged there.
#[test]
fn a_program_in_a_new_user_namespace_is_paged() {
    need_linux(6, 9, "an agent that steps aside");
    let unshare = || Launch::new(need("/usr/bin/unshare")).args(["-r", "--pid", "--fork"]);
    if unshare().arg("true").run().code() != 0 {
        skip("this machine lets the program have no user namespaces");
    }
    let right = Launch::program("verify", "16 1").run().text();
    let launch = unshare().arg(build::program("verify")).args(["16", "1"]).limit(TINY);
    let outcome = launch.options("--report json").run();
    assert_eq!(outcome.expect_code(0).text(), right);
    assert!(outcome.figure("pages_evicted") > 2 << 8, "{}", outcome.stderr);
}
