//! Tests children made in every way, by parents that have changed their user, root or namespaces.

use ebb_e2e::launch::{Launch, Outcome};
use ebb_e2e::same::need_linux;
use ebb_e2e::{MIB, SMALL, TINY, build};
use ebb_testing::skip;

fn run(name: &str, limit: u64) -> Outcome {
    Launch::program("children", name).arg("16").limit(limit).run()
}

/// Checks that all of the case's memory is paged: Ebb prints nothing, and the limit holds.
#[track_caller]
fn paged(name: &str) {
    let outcome = run(name, TINY);
    outcome.expect_line(&format!("{name}: ok"));
    outcome.expect_silence();
}

/// Checks a case that changes its user, root or namespace, which needs root.
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

/// Shows that a child of `_Fork` can map memory. It must not wait for ever in `mmap` for an answer
/// to a call made in its parent's name.
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

/// Shows that a process which keeps the memory of an ended process can fork. The agent of that
/// memory has ended with the other process, and the fork is what makes the pager look for it.
/// Readahead for it must not fill the limit with pages that cannot leave.
#[test]
fn a_process_that_keeps_the_memory_of_an_ended_process_can_fork() {
    // Nothing of the 45 MiB can leave once their agent has ended, and a child reads some.
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

/// Shows that a fork handler may map memory before the agent's handler runs. The handlers of a
/// child run in the order of their registration.
#[test]
fn a_handler_of_forks_that_maps_memory_before_the_agent_has_joined() {
    let (_folder, library) = build::library_to_preload("early");
    let early =
        Launch::program_behind(&library, "children", "handlers 16").env("EARLY", "handlers");
    early.limit(SMALL).run().expect_line("handlers: ok");
}

/// Shows that a fork handler may start threads before the agent has joined. Their records must not
/// be cleared as the parent's, or the threads begin at address 0.
#[test]
fn threads_that_a_handler_of_forks_makes_before_the_agent_has_joined() {
    let (_folder, library) = build::library_to_preload("early");
    let early = Launch::program_behind(&library, "children", "handler-threads 16")
        .env("EARLY", "handler-threads");
    early.limit(TINY).run().expect_line("handler-threads: ok");
}

/// Shows that processes which begin far from the limit, and so do not wait for their agents, may do
/// at once what an agent matters for: fork, take signals, make threads, filter system calls,
/// execute another program, end. Their memory is paged when the limit is near.
#[test]
fn processes_that_do_not_wait_for_their_agents_are_right_and_paged() {
    let launch = Launch::program("later", "").limit(160 * MIB);
    let outcome = launch.options("--report json").run();
    outcome.expect_line("later: ok");
    // The report is the only line.
    assert_eq!(outcome.said().len(), 1, "{}", outcome.stderr);
    // 240 MiB are filled at one time.
    assert!(outcome.figure("pages_evicted") > 10_000, "{}", outcome.stderr);
}

/// Shows that call slots of killed callers are reused. If they stayed taken, no child could call
/// when all are taken.
#[test]
fn call_slots_of_killed_callers_are_reused() {
    paged_as_root("dead-callers");
}

/// Shows that children of a process with a changed user can connect. Without that, they are killed
/// without a message.
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

/// Shows that the kernel treats a program as a process of one thread where it has one. The agent's
/// thread is another: the kernel refused such calls with an error that does not say why.
#[test]
fn the_agent_steps_aside_for_calls_of_a_process_of_one_thread() {
    need_linux(6, 9, "an agent that steps aside");
    paged("one-thread");
}

/// Shows that a program of two threads meets the kernel's own refusal, and pays nothing else.
#[test]
fn the_agent_of_a_program_of_two_threads_stays() {
    paged("two-threads");
}

#[test]
fn forks_in_new_namespaces_of_users() {
    paged_where_users_may("users");
}

#[test]
fn a_fork_in_entered_namespaces() {
    paged_where_users_may("enter");
}

/// Checks a case that makes user namespaces, which some machines refuse.
#[track_caller]
fn paged_where_users_may(name: &str) {
    need_linux(6, 9, "an agent that steps aside");
    if Launch::program("children", name).arg("1").run().code() != 0 {
        skip("this machine lets the program have no user namespaces");
    }
    paged(name);
}

/// Shows that the agent makes no call of its own behind a filter to step aside, and that the
/// refusal is explained.
#[test]
fn the_agent_does_not_step_aside_behind_a_filter() {
    let outcome = run("filtered-thread", TINY);
    outcome.expect_line("filtered-thread: ok");
    let word = "ebb: the kernel wants a process of one thread";
    assert!(outcome.stderr.contains(word), "{}", outcome.stderr);
}

/// Shows that the agent does not step aside if the process has no free descriptor, if it may start
/// no thread in its own process namespace, or if its limit of processes is spent. Each refusal is
/// explained, and the process stays paged.
#[test]
fn the_agent_does_not_step_aside_where_no_thread_could_start_again() {
    need_root();
    need_linux(6, 9, "an agent that steps aside");
    let outcome = run("refused-thread", TINY);
    outcome.expect_line("refused-thread: ok");
    let word = "could not step aside (Linux before 6.9, a filter of system calls, no free \
                descriptor, a spent limit of processes, or another process namespace for children)";
    assert_eq!(outcome.stderr.matches(word).count(), 3, "{}", outcome.stderr);
}

/// Shows that a fork works with no descriptor left. A failure ends the run as out of memory.
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
    // The process may have ended before its name was read.
    let said = ["children", "?"].iter().any(|name| {
        let line = format!("({name}: Operation not permitted (os error 1)) can have no agent");
        outcome.stderr.contains(&line)
    });
    assert!(said && outcome.stderr.contains("\"cannot_join\""), "{}", outcome.stderr);
}

/// Shows that a process with a filter that kills goes on after a fork. Neither it nor its children
/// may die by SIGSYS for a call of the agent.
#[test]
fn a_fork_behind_a_filter_that_kills_runs_on() {
    let launch = Launch::program("children", "killing-filter 48").limit(80 * MIB);
    let outcome = launch.run();
    outcome.expect_code(0);
    assert_eq!(outcome.text(), "kept\nkilling-filter: ok\n");
}

/// Shows that a program is paged behind commands that set up another PID namespace, network,
/// session, root or scheduling class.
#[test]
fn a_program_that_a_wrapper_command_starts_is_paged() {
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
