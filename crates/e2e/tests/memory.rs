//! Kinds of memory, and the kernel or another process reaching into it, while most of it is
//! elsewhere.

use ebb_e2e::launch::Launch;
use ebb_e2e::{MIB, SMALL};

/// A case with 48 MiB of its own, in a third of that. Files lie beside the compiled programs,
/// because not every /tmp has direct I/O.
#[track_caller]
fn case(arguments: &str) {
    let name = arguments.split(' ').next().unwrap_or_default();
    let launch = Launch::program("memory", arguments).limit(SMALL);
    let outcome = launch.run();
    outcome.expect_line(&format!("{name}: ok")).expect_within_limit();
    assert_eq!(outcome.stderr, "");
}

/// Reads a little more than fits, in order, again and again, and checks every page.
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
        let launch = Launch::new("/usr/bin/python3").args(["-c", PASSES]).limit(40 * MIB);
        let outcome = launch.options("--report json").options(options).run();
        outcome.expect_line("same").expect_within_limit();
        outcome.figure("rescued_ahead")
    };
    assert!(pass("") > 0, "nothing came back beside what was touched");
    assert_eq!(pass("--set look_around=0"), 0);
}

#[test]
fn wiped_on_fork() {
    case("wipe-on-fork 48");
}

#[test]
fn absent_after_fork() {
    case("dont-fork 48");
}

#[test]
fn discarded_memory_is_zero() {
    case("discard 48");
}

#[test]
fn the_break_grows_and_shrinks() {
    case("break 48");
}

#[test]
fn direct_io_from_and_into_memory() {
    case(&format!("direct-io 48 {}", env!("CARGO_TARGET_TMPDIR")));
}

#[test]
fn aio_from_and_into_memory() {
    case(&format!("aio 48 {}", env!("CARGO_TARGET_TMPDIR")));
}

#[test]
fn one_call_with_many_buffers() {
    case("vectors 48");
}

#[test]
fn pages_lent_to_a_pipe() {
    case("vmsplice 48");
}

#[test]
fn another_process_reads_and_writes() {
    case("peek 48");
}

#[test]
fn a_huge_area_touched_sparsely() {
    case("sparse 48");
}

#[test]
fn a_thousand_areas() {
    case("areas 48 1000");
}

#[test]
fn areas_that_come_and_go() {
    case("short-lived 48");
}

#[test]
fn a_deep_stack() {
    case("stack 48");
}

#[test]
#[ignore = "not met: MOVE takes no page of an area that is not writable"]
fn a_write_barrier_of_the_program() {
    case("write-barrier 48");
}

#[test]
fn locked_pages_stay() {
    case("lock 48");
}

#[test]
fn shared_memory_and_private_file_pages() {
    case("shared 48");
}

#[test]
fn threads_asleep_on_pages_that_left() {
    case("sleepers 48");
}

#[test]
fn two_threads_touch_one_missing_page() {
    case("together 48");
}

#[test]
fn mappings_that_never_stop_changing() {
    case("restless 48");
}

#[test]
fn everything_locked_for_a_while() {
    case("lock-all 48");
}

#[test]
fn a_program_that_reads_all_of_its_address_space() {
    case("scan-self 48");
}
