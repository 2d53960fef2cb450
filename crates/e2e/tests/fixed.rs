//! Tests static programs of glibc. They get the agent while they stand at their first instruction.
//! The agent cannot hook the C library's functions in them, so the pager finds out what hooks would
//! report.

use ebb_e2e::build::{foreign_program, static_pie_program, static_program};
use ebb_e2e::launch::{Launch, Outcome, send};
use ebb_e2e::{MIB, SMALL, TINY};
use rustix::process::Signal;

/// Runs a case: its name, its memory in MiB, and further arguments.
#[track_caller]
fn case(program: &str, arguments: &str) {
    let launch = Launch::new(static_program(program)).args(arguments.split(' '));
    let outcome = launch.limit(TINY).run();
    let name = arguments.split(' ').next().expect("a name");
    outcome.expect_line(&format!("{name}: ok"));
    outcome.expect_silence();
}

fn verify(program: String) -> Outcome {
    Launch::new(program).args(["24", "2"]).limit(TINY).options("--report json --strict").run()
}

/// Runs a program of 24 MiB in a third of that until most of it is out, and then to its end. No
/// hook reports this memory.
#[track_caller]
fn is_paged(launch: &Launch, code: i32) {
    let mut run = launch.clone().limit(TINY).options("--report json --strict").start();
    run.wait_for("ready");
    run.wait_until("the limit", |run| run.root().descendants().anonymous() <= TINY + 4 * MIB);
    for pid in run.root().find().program {
        let exe = std::fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
        if exe.file_name().is_some_and(|name| name.to_string_lossy().starts_with("process")) {
            send(pid, Signal::TERM);
        }
    }
    let outcome = run.finish();
    outcome.expect_code(code);
    assert_eq!(outcome.text(), "ready\nsignal 15\n");
    assert!(outcome.figure("pages_evicted") > 10 << 8, "{}", outcome.report);
}

#[test]
fn every_word_is_right_in_static_programs_at_any_address() {
    for program in [static_program("verify"), static_pie_program("verify")] {
        let outcome = verify(program.display().to_string());
        outcome.expect_code(0);
        assert!(outcome.text().starts_with("verify: ok"), "{}", outcome.text());
    }
    is_paged(&Launch::new(static_pie_program("process")).args(["wait-for-signal", "24"]), 40);
}

/// Shows that data stay right through forks, ends of threads and mapping changes. The agent's hooks
/// see all of that elsewhere.
#[test]
fn threads_that_verify_while_the_address_space_changes() {
    let launch = Launch::new(static_program("torture")).args(["4", "8"]).limit(24 * MIB);
    launch.run().expect_line("torture: ok");
}

/// Shows that threads are joined without a hook. Newer C libraries have the kernel write to the
/// descriptor of a thread that was off the CPU (rseq). This write loads the page just in time, so
/// rseq is off here.
#[test]
fn threads_are_joined_without_a_hook_for_their_descriptors() {
    let launch = Launch::new(static_program("threads")).args(["bare-exit", "24"]).limit(TINY);
    launch.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0").run().expect_line("bare-exit: ok");
    case("threads", "threads 24 6");
    case("threads", "standard-threads 24 3");
}

#[test]
fn fork_gives_the_child_a_snapshot() {
    case("process", "fork-snapshot 24");
}

/// Shows that a child that fills memory before the pager meets it gets the agent without asking for
/// it.
#[test]
fn a_child_that_maps_memory_of_its_own() {
    case("children", "_Fork 16");
}

/// Shows that a stopped child, which cannot get the agent, is not killed for that. The run must not
/// end as out of memory.
#[test]
fn a_stopped_child_holds_up_nobody() {
    let program = static_program("process").display().to_string();
    let outcome = Launch::new(program).args(["stopped", "16"]).limit(SMALL).run();
    outcome.expect_line("stopped: ok");
}

#[test]
fn a_program_that_a_script_starts_is_paged() {
    let script = "\"$0\" wait-for-signal 24; true";
    is_paged(&Launch::new("sh").args(["-c", script]).arg(static_program("process")), 0);
}

/// Shows that a program of another C library is refused, because Ebb cannot know which words its
/// threads clear at their end.
#[test]
fn a_program_of_another_c_library_is_refused() {
    let outcome = verify(foreign_program("verify").display().to_string());
    outcome.expect_code(126);
    assert!(outcome.stderr.contains("neither against glibc nor of Go alone"), "{}", outcome.stderr);
}
