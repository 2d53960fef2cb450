//! Tests kinds of memory, and accesses by the kernel or another process, while most of the memory
//! is elsewhere.

use ebb_e2e::account::{may_look_up, need_locked};
use ebb_e2e::launch::Launch;
use ebb_e2e::same::need;
use ebb_e2e::{MIB, SMALL, TINY, build};
use ebb_testing::{eventually, skip};
use rustix::fs::{Mode, OFlags};

/// Runs a case with 16 MiB of its own, in half of that.
#[track_caller]
fn case(arguments: &str) {
    case_of(Launch::program("memory", arguments), arguments);
}

#[track_caller]
fn case_of(launch: Launch, name: &str) {
    let name = name.split(' ').next().unwrap_or_default();
    let outcome = launch.limit(TINY).run();
    outcome.expect_line(&format!("{name}: ok"));
    outcome.expect_silence();
}

/// Runs a case with direct I/O. Its files lie beside the compiled programs, because not every /tmp
/// supports direct I/O.
#[track_caller]
fn case_of_direct_io(name: &str) {
    let folder = tempfile::tempdir_in(build::target()).expect("a folder");
    let file = folder.path().join("file");
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::DIRECT;
    if rustix::fs::open(&file, flags, Mode::RUSR | Mode::WUSR).is_err() {
        skip("no direct I/O where the build is");
    }
    case_of(Launch::program("memory", &format!("{name} 16")).arg(folder.path()), name);
}

fn python(program: &str) -> Launch {
    Launch::new(need("/usr/bin/python3")).args(["-c", program]).limit(40 * MIB)
}

/// Reads a little more than fits, in order, repeatedly, and checks every page.
const PASSES: &str = "
memory = bytearray(40 << 20)
for at in range(0, len(memory), 4096):
    memory[at] = at // 4096 % 251
for _ in range(6):
    for at in range(0, len(memory), 4096):
        assert memory[at] == at // 4096 % 251, at
print('same')
";

#[test]
fn a_pass_over_memory_brings_back_what_lies_ahead() {
    let pass = |options: &str| {
        let outcome = python(PASSES).options("--report json").options(options).run();
        outcome.expect_line("same");
        outcome.figure("reactivated_ahead")
    };
    eventually("a pass in which something comes back beside what is touched", || pass("") > 0);
    assert_eq!(pass("--set look_around=0"), 0);
}

#[test]
fn wiped_on_fork() {
    case("wipe-on-fork 16");
}

/// Shows that advice given during a fork applies to all of a child or to nothing. A child must not
/// lack stored pages, nor get pages that the advice dropped.
#[test]
fn advice_that_changes_while_a_thread_forks_is_for_all_of_a_child_or_for_nothing() {
    case("advice-taken-back 16");
}

/// Shows that a handler which gives advice during a fork does not wait for the fork that it has
/// interrupted.
#[test]
fn a_handler_that_gives_advice_within_a_fork_does_not_wait_for_that() {
    case("advice-in-handler");
}

/// Shows that such a handler does not wait at any step of a fork. Between the count of forks and
/// the note of their thread it must not take its own fork for another thread's.
#[test]
fn a_handler_that_gives_advice_at_any_step_of_a_fork_does_not_wait_for_that() {
    case("advice-at-each-step 40");
}

#[test]
fn absent_after_fork() {
    case("dont-fork 16");
}

#[test]
fn discarded_memory_is_zero() {
    case("discard 16");
}

#[test]
fn the_break_grows_and_shrinks() {
    case("break 16");
}

#[test]
fn direct_io_from_and_into_memory() {
    case_of_direct_io("direct-io");
}

#[test]
fn aio_from_and_into_memory() {
    case_of_direct_io("aio");
}

#[test]
fn one_call_with_many_buffers() {
    case("vectors 16");
}

#[test]
fn pages_lent_to_a_pipe() {
    case("vmsplice 16");
}

/// Shows that a program reads and writes its own memory through `/proc/self/mem`. The kernel waits
/// for no page there, and Julia's compiler repeated its write for ever.
#[test]
fn a_program_accesses_its_own_memory_through_a_file() {
    case("own-memory 16");
}

/// Shows that the hook of `pread` does not wait for the loader's lock, which a thread may hold that
/// waits for the read. The hook looked its function up at its first call.
#[test]
fn a_read_does_not_wait_for_a_library_that_is_being_loaded() {
    let library = build::library("reads-while-loading");
    case_of(Launch::program("memory", "load 1").arg(&library), "load");
}

#[test]
fn another_process_reads_and_writes() {
    if !may_look_up() {
        skip("no process may look into its parent here");
    }
    case("peek 16");
}

#[test]
fn a_huge_area_touched_sparsely() {
    case("sparse 16");
}

#[test]
fn a_thousand_areas() {
    case("areas 16 1000");
}

#[test]
fn areas_that_come_and_go() {
    case("short-lived 16");
}

#[test]
fn a_deep_stack() {
    case("stack 16");
}

#[test]
#[ignore = "not met: MOVE takes no page of an area that is not writable"]
fn a_write_barrier_of_the_program() {
    case("write-barrier 16");
}

#[test]
fn locked_pages_stay() {
    case("lock 16");
}

#[test]
fn shared_memory_and_private_file_pages() {
    let launch = Launch::program("memory", "shared 16").limit(TINY);
    eventually("a run in which it is seen that memory is shared", || {
        let outcome = launch.run();
        let said = outcome.expect_line("shared: ok").said();
        let is_right = said.len() < 2 && said.iter().all(|line| line.contains("shares memory"));
        assert!(is_right, "{}", outcome.stderr);
        !said.is_empty()
    });
}

#[test]
fn threads_wait_on_locks_in_stored_pages() {
    case("waiters 16");
}

#[test]
fn two_threads_touch_one_missing_page() {
    case("together 16");
}

#[test]
fn mappings_that_never_stop_changing() {
    case("restless 16");
}

#[test]
fn everything_locked_for_a_while() {
    need_locked(u64::MAX);
    case("lock-all 16");
}

/// Shows that a program which locks all memory without the C library does not end the run. Pages of
/// the pool that hold nothing must remain discardable.
#[test]
fn everything_locked_around_the_c_library() {
    need_locked(u64::MAX);
    case("lock-all 16 raw");
}

#[test]
fn a_program_that_reads_all_of_its_address_space() {
    case("scan-self 16");
}

/// Shows that a signal handler may move memory. It must not wait for the thread that it has
/// interrupted while that thread holds the right to move.
#[test]
fn a_handler_of_signals_that_moves_memory() {
    case("move-in-handler 16");
}

/// Shows that areas without any announcement are all found, even beside busy programs. Otherwise
/// one run in twenty ends as out of memory there.
#[test]
fn all_areas_without_an_announcement_are_found() {
    for _ in 0..3 {
        Launch::program("memory", "unheard 8 64 64").limit(SMALL).run().expect_line("unheard: ok");
    }
}

/// Shows that a move that the kernel refuses changes nothing. The hook must not move areas one by
/// one and report success.
#[test]
fn a_move_that_the_kernel_refuses_changes_nothing() {
    case("move-refused 16");
}
