//! Tests keys typed at a terminal: they have one effect with Ebb and without.

use ebb_e2e::SMALL;
use ebb_e2e::build::{ebb, program, script};
use ebb_e2e::launch::Launch;
use ebb_e2e::same::need;

/// Types a scenario at `command`, plainly and under Ebb.
#[track_caller]
fn scenario(name: &str, command: &[&str]) {
    let limit = SMALL.to_string();
    let ebb = ebb().display().to_string();
    let run = vec![ebb.as_str(), "run", "--memory-max", &limit, "--"];
    let exec = vec![ebb.as_str(), "run", "--exec", "--memory-max", &limit, "--"];
    for before in [vec![], run, exec] {
        // If the started process is the program, a key ends it with a signal and not with a code.
        if name == "key_ends_plain_program" && (before.is_empty() || before.contains(&"--exec")) {
            continue;
        }
        let launch = Launch::new(need("/usr/bin/python3")).arg(script("terminal.py")).arg(name);
        let outcome = launch.args(before.iter().chain(command)).run();
        let held = outcome.text();
        assert!(outcome.code() == 0 && held.ends_with("ok\n"), "{before:?}: {held}");
    }
}

fn process() -> String {
    program("process").display().to_string()
}

#[test]
fn ctrl_c_ends_a_program() {
    scenario("key_ends_plain_program", &["sh", "-c", "echo started; exec tail -f /dev/null"]);
}

#[test]
fn ctrl_c_reaches_a_handler() {
    scenario("key_reaches_handler", &[&process(), "wait-for-signal", "48"]);
}

#[test]
fn ctrl_c_is_one_signal() {
    scenario("key_is_one_signal", &[&process(), "count-interrupts"]);
}

#[test]
fn ctrl_z_stops_and_fg_continues() {
    scenario("stop_and_go", &[&process(), "wait-for-signal", "48"]);
}

#[test]
fn a_background_job_can_be_killed() {
    scenario("background", &[&process(), "wait-for-signal", "48"]);
}

#[test]
fn the_program_reads_what_is_typed() {
    scenario("typing", &[&process(), "copy", "48"]);
}

/// Shows that SIGTTOU does not stop the pager, for which the supervisor would wait for ever.
#[test]
fn a_report_from_the_background_does_not_stop_the_pager() {
    scenario("tostop", &["echo", "hello"]);
}
