//! Children made in every way there is, by parents that have become somebody else, or are somewhere else.

use ebb_e2e::launch::{Launch, Outcome};
use ebb_e2e::{MIB, SMALL, TINY, build};
use ebb_testing::skip;

fn run(name: &str, limit: u64) -> Outcome {
    Launch::program("children", name).arg("16").limit(limit).run()
}

/// All of it is paged: nothing is said, and the limit holds.
#[track_caller]
fn paged(name: &str) {
    let outcome = run(name, TINY);
    outcome.expect_line(&format!("{name}: ok"));
    outcome.expect_silence();
}

/// It changes who or where it is, which root may.
#[track_caller]
fn paged_as_root(name: &str) {
    need_root();
    paged(name);
}

#[track_caller]
fn need_root() {
    if !rustix::process::getuid().is_root() {
        skip("only root may do what the program does");
    }
}

/// It waited for ever in `mmap`, for an answer to a call that it had made as its parent.
#[test]
fn a_child_of_underscore_fork_maps_memory() {
    paged("_Fork");
}

#[test]
fn a_child_of_a_clone_instruction_maps_memory() {
    paged("raw-clone");
}

#[test]
fn a_child_of_a_clone3_instruction_maps_memory() {
    paged("raw-clone3");
}

#[test]
fn a_grandchild_joins_after_its_parents_have_ended() {
    paged("raw-chain");
}

/// A process goes on with the memory of one that has ended, and whose agent has ended with it; it is looked for as it forks.
/// Pages were read ahead for it, none of which can leave any more, and the run ended as out of memory.
#[test]
fn who_goes_on_with_the_memory_of_a_process_that_has_ended_forks() {
    // Nothing of 45 MiB leaves any more once their agent has ended, and a child looks at some.
    for how in ["0", "1"] {
        let launch = Launch::program("children", "successor 48").arg(how).limit(72 * MIB);
        let outcome = launch.options("--report json").run();
        outcome.expect_line("successor: ok");
        assert!(outcome.figure("pages_evicted") > 2000, "{}", outcome.stderr);
    }
}

#[test]
fn a_child_that_passes_no_hook_reads_what_it_inherited() {
    run("silent", 40 * MIB).expect_line("silent: ok");
}

#[test]
fn children_that_borrow_memory_map_more() {
    paged("vfork");
}

/// The child's handlers run in the order of their registration: this one maps memory before the agent's.
#[test]
fn a_handler_of_forks_that_maps_memory_before_the_agent_has_joined() {
    let (_folder, library) = build::library_to_preload("early");
    let early =
        Launch::program_behind(&library, "children", "handlers 16").env("EARLY", "handlers");
    early.limit(SMALL).run().expect_line("handlers: ok");
}

/// Their records were cleared as the parent's, and they began at address 0.
#[test]
fn threads_that_a_handler_of_forks_makes_before_the_agent_has_joined() {
    let (_folder, library) = build::library_to_preload("early");
    let early = Launch::program_behind(&library, "children", "handler-threads 16")
        .env("EARLY", "handler-threads");
    early.limit(TINY).run().expect_line("handler-threads: ok");
}

/// Places of callers that were killed were nobody's for ever, and when all were, no child could call.
#[test]
fn places_of_callers_that_were_killed_are_taken_over() {
    paged_as_root("dead-callers");
}

/// Their children were killed without a word: they could not connect.
#[test]
fn a_fork_after_the_user_was_changed() {
    paged_as_root("setuid");
}

#[test]
fn a_fork_after_the_root_was_changed() {
    paged_as_root("chroot");
}

#[test]
fn a_fork_where_other_things_are_mounted() {
    paged_as_root("mounts");
}

#[test]
fn a_fork_in_another_network() {
    paged_as_root("network");
}

#[test]
fn forks_in_another_process_namespace() {
    paged_as_root("processes");
}

/// It ended as out of memory.
#[test]
fn a_fork_with_no_descriptor_left() {
    paged("descriptors");
}

#[test]
fn a_fork_behind_a_filter_that_refuses_connections() {
    paged("filter");
}

#[test]
fn a_fork_that_cannot_join_runs_on_and_is_named() {
    let launch = Launch::program("children", "strict-filter 48").limit(80 * MIB);
    let outcome = launch.options("--report json").run();
    outcome.expect_code(0);
    assert!(outcome.text().ends_with("strict-filter: ok\n"), "{}", outcome.text());
    // It may have ended before its name was read.
    let said = ["children", "?"].iter().any(|name| {
        let line = format!("({name}: Operation not permitted (os error 1)) can have no agent");
        outcome.stderr.contains(&line)
    });
    assert!(said && outcome.stderr.contains("\"cannot_join\""), "{}", outcome.stderr);
}

/// It was killed by SIGSYS, for a call of the agent's, and so was what it started.
#[test]
fn a_fork_behind_a_filter_that_kills_runs_on() {
    let launch = Launch::program("children", "killing-filter 48").limit(80 * MIB);
    let outcome = launch.run();
    outcome.expect_code(0);
    assert_eq!(outcome.text(), "kept\nkilling-filter: ok\n");
}

/// What stands before a program on a command line: another process namespace, another network, session, root or class. The
/// program is paged behind each.
#[test]
fn a_program_behind_another_that_starts_it_is_paged() {
    need_root();
    let verify = build::program("verify").display().to_string();
    let right = Launch::program("verify", "16 1").run().text();
    for before in [
        "unshare --pid --fork",
        "unshare --pid --fork --mount-proc",
        "unshare -n -u -i",
        "setsid -w",
        "chroot /",
        "nice -n 19",
        "stdbuf -o0",
        "timeout 100000",
        "setpriv --no-new-privs",
        "prlimit --nofile=8",
    ] {
        let mut words = before.split(' ');
        let launch = Launch::new(words.next().expect("a command")).args(words).arg(&verify);
        let launch = launch.args(["16", "1"]).limit(TINY).options("--report json");
        let outcome = launch.run();
        assert_eq!(outcome.expect_code(0).text(), right, "{before}");
        assert!(outcome.figure("pages_evicted") > 2 << 8, "{before}: {}", outcome.stderr);
    }
}
