//! Tests forks, threads, signals and endings while much of the program's memory is stored.

use std::fs;
use std::path::Path;

use ebb_e2e::launch::Launch;
use ebb_e2e::same::need;
use ebb_e2e::tree::is_alive;
use ebb_e2e::{MIB, SMALL, TINY, build};
use ebb_testing::{eventually, eventually_is, skip};
use rustix::process::{Signal, getuid};
use tempfile::TempDir;

/// Runs a case of `process` in 8 MiB. Most cases have 16 MiB of their own.
#[track_caller]
fn case(arguments: &str) {
    case_of("process", arguments);
}

#[track_caller]
fn case_of(program: &str, arguments: &str) {
    let name = arguments.split(' ').next().unwrap_or_default();
    let outcome = Launch::program(program, arguments).limit(TINY).run();
    let line = name.strip_suffix("-from-thread").unwrap_or(name);
    outcome.expect_line(&format!("{line}: ok"));
    outcome.expect_silence();
}

#[test]
fn fork_gives_the_child_a_copy() {
    case("fork 16");
}

#[test]
fn fork_gives_the_child_a_snapshot() {
    case("fork-snapshot 16");
}

/// Shows that a child keeps the pages of an area that came under management between the fork and
/// its message. The child must not run with the area unregistered, or it loses stored pages.
#[test]
fn an_area_that_came_under_management_between_a_fork_and_its_message() {
    let outcome = Launch::program("process", "fork-new-areas 96").limit(SMALL).run();
    outcome.expect_code(0).expect_silence();
}

#[test]
fn forks_around_the_c_library() {
    case("raw-fork 16");
}

#[test]
fn forks_of_a_child_made_around_the_c_library() {
    case("raw-fork-fork 16");
}

/// Shows that a process whose memory map stays locked keeps no other process from its memory.
/// Monitor and kswapd must not wait for the lock.
#[test]
fn a_process_whose_memory_map_stays_locked_delays_no_other() {
    if !getuid().is_root() || !Path::new("/dev/fuse").exists() {
        skip("it mounts a file system of its own");
    }
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let launch = Launch::program("stuck", &folder.path().display().to_string());
    let outcome = launch.limit(16 * MIB).run();
    outcome.expect_line("stuck: ok");
    outcome.expect_silence();
}

/// Shows that a child which asks to be traced like its parent goes on. The freezer traces a process
/// that outruns the limit. The kernel attaches such a child to the tracer of its parent, so the
/// pager must release the child.
#[test]
fn a_child_that_is_to_be_traced_like_its_parent_goes_on() {
    case("traced-children 40");
}

/// Shows that a process frozen during a move does not block others. It must not keep the right to
/// change areas until the freezer lets it go.
#[test]
fn a_process_frozen_while_it_moves_memory_blocks_no_other() {
    case("moves-untold 3000");
}

/// Shows that a freeze is invisible to a waiting call. No call may fail with EINTR or return a part
/// without a signal.
#[test]
fn a_call_that_waits_does_not_notice_the_freezer() {
    if ebb_sys::cgroup::may_be_used_up() {
        skip("a control group limits CPU time: who runs is not held");
    }
    let launch = Launch::program("waits", "2").limit(SMALL).options("--report json");
    eventually("a run in which it is held", || {
        let outcome = launch.run();
        outcome.expect_line("waits: ok").figure("freezer_us") > 0
    });
}

#[test]
fn a_stopped_child_holds_up_nobody() {
    case("stopped 32");
}

/// Shows that a stopped child which shares nearly all pages does not end the run. Reclaim must not
/// rely on the child's standby pages. It must not retry copies of shared pages for ever, or skip
/// private pages of others.
#[test]
fn a_stopped_child_that_shares_nearly_everything() {
    let outcome = Launch::program("process", "stopped 32").limit(24 * MIB).run();
    outcome.expect_line("stopped: ok");
}

#[test]
fn threads_of_the_c_standard() {
    case_of("threads", "standard-threads 16 10");
}

#[test]
fn threads_that_end_when_their_memory_is_gone() {
    case_of("threads", "late-threads 16");
}

#[test]
fn threads_that_end_far_from_their_descriptors() {
    let launch = Launch::program("threads", "bare-exit 24").limit(TINY);
    launch.env("GLIBC_TUNABLES", "glibc.pthread.rseq=0").run().expect_line("bare-exit: ok");
}

#[test]
fn threads_that_end_while_a_child_shares_their_pages() {
    case_of("threads", "forked-threads 16 6");
}

#[test]
fn a_robust_lock_of_a_dead_thread() {
    case_of("threads", "robust-lock 16");
}

/// Shows that many children keep the limit. A page that nine processes share is free only when all
/// nine have dropped it. Each process needs a copy of its own for that.
#[test]
fn many_children_at_once_keep_the_limit() {
    case("many 16 8");
}

#[test]
fn children_of_children() {
    case("deep 16 3");
}

const CHILDREN: &str = "
import os
memory = bytearray(28 << 20)
for at in range(0, len(memory), 4096):
    memory[at] = 1
for _ in range(40):
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
print('forked')
";

#[test]
fn children_that_share_everything() {
    let python = Launch::new(need("/usr/bin/python3")).args(["-c", CHILDREN]);
    python.limit(48 * MIB).run().expect_line("forked");
}

#[test]
fn a_child_that_crashes() {
    case("crash-child 16");
}

#[test]
fn vfork_posix_spawn_system_popen() {
    case("vfork 16");
}

#[test]
fn a_child_that_borrows_the_memory_for_a_while() {
    case("borrow 16");
}

#[test]
fn exec_in_place() {
    case("exec 16 3");
}

#[test]
fn exec_from_a_thread() {
    case("exec-from-thread 16");
}

/// Shows that the agent opens no file in the program's descriptor table as memory moves. The
/// program relies on the lowest free number, and after closing all others the agent must not close
/// its files.
#[test]
fn the_agent_takes_no_descriptor_of_the_program_while_memory_moves() {
    case_of("threads", "lowest-descriptor 16");
}

#[test]
fn threads_end_and_are_joined() {
    case_of("threads", "threads 16 8");
}

#[test]
fn signal_handlers_read_memory() {
    case("timer 16");
}

#[test]
fn closing_every_descriptor() {
    case("close-all 16");
}

#[test]
fn a_daemon_goes_on_after_its_parents() {
    let folder = TempDir::with_prefix("ebb-e2e-").expect("temporary folder");
    let word = folder.path().join("word");
    let launch = Launch::program("process", "daemon 16").arg(&word).limit(TINY);
    // The status is the started program's own, and the daemon keeps its memory until its end.
    let mut run = launch.start();
    run.wait_for("daemon: left");
    eventually_is("the daemon's word", "daemon: ok\n".to_owned(), || {
        fs::read_to_string(&word).unwrap_or_default()
    });
    run.finish().expect_line("daemon: left");
}

#[test]
fn forty_short_children() {
    let script = "i=0; while [ $i -lt 40 ]; do /bin/true & i=$((i+1)); done; wait; echo done";
    let outcome = Launch::new("sh").args(["-c", script]).limit(SMALL).run();
    outcome.expect_line("done");
}

/// Shows that a child killed while it joins causes no message. Its connection, its address space or
/// its PID may be gone when the pager asks.
#[test]
fn a_child_that_is_killed_while_it_joins_causes_no_message() {
    let script = r#"
import os, select, signal
for turn in range(60):
    child = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
    select.select([], [], [], turn * 0.00025)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL
print("well")
"#;
    let launch = Launch::new(need("/usr/bin/python3")).args(["-c", script]);
    launch.options("--strict").limit(SMALL).run().expect_line("well").expect_silence();
}

#[test]
fn a_pipeline_of_programs() {
    let script = "seq 200000 | sort -S 64M -rn | sed 's/7/x/' | md5sum";
    let launch = Launch::new("sh").args(["-c", script]);
    let plain = launch.run();
    let limited = launch.limit(SMALL).run();
    ebb_e2e::same::same(&plain, &limited);
}

#[test]
fn exit_from_a_thread() {
    Launch::program("process", "exit-from-thread 5 24").limit(TINY).run().expect_code(5);
}

#[test]
fn the_main_thread_ends_first() {
    let outcome = Launch::program("process", "main-thread-ends 16").limit(TINY).run();
    assert_eq!(outcome.expect_code(7).text(), "outlived\n");
}

#[test]
fn a_crash_of_the_program() {
    Launch::program("process", "crash 16").limit(TINY).run().expect_code(128 + 11);
}

/// Shows that a crash handler with a small stack can start another program. The hooks of `exec`
/// must not take 6.3 KiB of stack when they have nothing to copy.
#[test]
fn a_crash_handler_with_little_stack_starts_another_program() {
    let outcome = Launch::program("process", "crash-reports 2048 24").limit(TINY).run();
    outcome.expect_line("crash-reports: ok").expect_silence();
}

#[test]
fn the_program_is_killed() {
    Launch::program("process", "signal 9 24").limit(TINY).run().expect_code(128 + 9);
    // The signal also comes from outside, while the program works.
    let mut run = Launch::program("torture", "0 1").limit(32 * MIB).start();
    run.wait_until("work of it", |run| run.root().find().anonymous() > 20 * MIB);
    let program = run.root().find().first().expect("a program");
    ebb_e2e::launch::send(program, Signal::KILL);
    run.finish().expect_code(128 + 9);
    eventually("the end of the program", || !is_alive(program));
}

#[test]
fn a_signal_to_ebb_reaches_the_program() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1] {
        let mut run = Launch::program("process", "wait-for-signal 16").limit(TINY).start();
        run.wait_for("ready");
        run.signal(signal);
        let outcome = run.finish();
        let text = format!("ready\nsignal {}\n", signal.as_raw());
        assert_eq!(outcome.expect_code(40).text(), text);
    }
}

/// Shows that the hook does not read the thread handle after a detached thread has unmapped its
/// memory.
#[test]
fn detached_threads_that_free_their_own_job() {
    case_of("threads", "detached 16 2000");
}

#[test]
fn threads_that_are_cancelled_or_exit_run_their_cleanups() {
    case_of("threads", "cancelled 16");
}

/// Shows that threads started before the agent are joined. No hook has noted their descriptors. A
/// join must not wait for ever when the pages of these descriptors are out.
#[test]
fn threads_of_a_library_that_begins_before_the_agent() {
    let (_folder, library) = build::library_to_preload("early");
    let early = Launch::program_behind(&library, "threads", "early 24").env("EARLY", "threads");
    early.limit(TINY).run().expect_line("early: ok");
}

#[test]
fn pages_that_must_stay_are_reported_if_there_is_no_room_to_note_them() {
    let launch = Launch::program("threads", "pins 9000").limit(80 * MIB);
    eventually("a report of them", || {
        let outcome = launch.run();
        outcome.expect_line("pins: ok").report.contains("with too many pinned pages")
    });
}

/// Shows that threads which the C library starts without a hook work: for timers, asynchronous
/// reads and name lookups. The stacks of ended threads are used again.
#[test]
fn threads_of_the_c_librarys_own() {
    case_of("threads", "inner-threads 16");
}
