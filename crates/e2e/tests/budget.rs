//! Tests the limit itself: programs that take memory fast, the least limit that works, tiers, and
//! full tiers.

use ebb_e2e::build::static_program;
use ebb_e2e::launch::{Launch, Outcome, need_paging, send};
use ebb_e2e::{MIB, SMALL};
use rustix::process::Signal;
use tempfile::TempDir;

/// Arguments of `verify` for 40 MiB, of which every word is checked.
const RIGHT: &str = "40 1 3 2";
/// Arguments of `verify` for 24 MiB, for the least limits.
const FEWER: &str = "24 1 3 2";

fn verify(arguments: &str, limit: u64, options: &str) -> Outcome {
    Launch::program("verify", arguments).limit(limit).options(options).run()
}

fn right_answer(arguments: &str) -> String {
    Launch::program("verify", arguments).run().text()
}

#[test]
fn four_threads_take_memory_as_fast_as_they_can() {
    let outcome = Launch::program("hog", "128 4").limit(24 * MIB).run();
    outcome.expect_line("hog: ok");
}

/// Shows that a program far below its limit comes under management while it takes more.
#[test]
fn a_program_comes_under_management_as_the_limit_comes_near() {
    let outcome = Launch::program("hog", "192 4").limit(128 * MIB).run();
    outcome.expect_line("hog: ok");
}

/// Shows that a tree at rest is within its limit and stays right, though it filled memory of every
/// kind faster than pages can leave.
#[test]
fn at_rest_a_tree_is_within_its_limit() {
    let kinds =
        ["heap", "break", "areas", "huge", "grown", "populated", "read", "stacks", "children"];
    let loaded = kinds.map(|kind| (kind, Launch::program("settle", kind)));
    let fixed = Launch::new(static_program("settle")).arg("heap");
    for (kind, launch) in loaded.into_iter().chain([("of a static program", fixed)]) {
        let mut run = launch.limit(SMALL).start();
        run.wait_for("ready");
        run.wait_until("its limit", |run| run.root().descendants().anonymous() <= SMALL);
        run.root().find().first().into_iter().for_each(|pid| send(pid, Signal::TERM));
        let outcome = run.finish();
        assert_eq!(outcome.expect_code(0).text(), "ready\nsettle: ok\n", "{kind}");
    }
}

/// Shows that reclaim brings the tree back below `--memory-high`, though the limit is far and no
/// process takes more.
#[test]
fn reclaim_brings_an_idle_tree_below_memory_high() {
    let launch = Launch::program("process", "wait-for-signal 64").limit(96 * MIB);
    let mut run = launch.options("--memory-high 32M --report json").start();
    run.wait_for("ready");
    run.wait_until("the aim", |run| run.root().descendants().anonymous() <= 40 * MIB);
    run.root().find().program.iter().for_each(|&pid| send(pid, Signal::TERM));
    let outcome = run.finish();
    outcome.expect_code(40);
    assert!(outcome.figure("pages_evicted") > 16 << 8, "{}", outcome.stderr);
}

/// Shows that a run whose working set does not fit ends if a setting asks for an end instead of
/// thrashing.
#[test]
fn a_working_set_that_does_not_fit_ends_the_run_if_a_setting_asks_for_it() {
    let killed = Launch::program("hog", "96 3")
        .limit(48 * MIB)
        .options("--set gen.min_ttl_ms=3600000")
        .run();
    killed.expect_code(137);
    assert!(killed.stderr.starts_with("ebb: thrashing: "), "{}", killed.stderr);
    let slow = Launch::program("hog", "96 3").limit(48 * MIB).run();
    slow.expect_line("hog: ok");
}

/// Shows that Ebb's tables grow with the memory in use. Tables for the whole limit would not fit
/// into memory.
#[test]
fn a_limit_far_beyond_the_machine_costs_nothing() {
    Launch::program("verify", "16 2 3 1").limit(1 << 43).run().expect_code(0);
}

#[test]
fn three_processes_share_one_limit() {
    let hog = ebb_e2e::build::program("hog").display().to_string();
    let script = "\"$0\" 40 2 & \"$0\" 40 2 & \"$0\" 40 2 & wait";
    let outcome = Launch::new("sh").args(["-c", script, &hog]).limit(48 * MIB).run();
    assert_eq!(outcome.expect_code(0).text(), "hog: ok\n".repeat(3));
}

/// Shows that a size either works or is refused with a line that names the least size. That least
/// size does work.
#[test]
fn the_least_limit_works_and_less_is_refused() {
    let mut works = false;
    for size in [64 << 10, MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB] {
        let arguments = if size <= 4 * MIB { FEWER } else { RIGHT };
        let outcome = verify(arguments, size, "");
        if outcome.code() == 125 {
            assert!(!works, "{size} is refused but less works");
            assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
            assert!(outcome.text().is_empty(), "nothing may start");
            continue;
        }
        works = true;
        assert_eq!(outcome.expect_code(0).text(), right_answer(arguments));
    }
    assert!(works);
    let refused = verify(FEWER, 4096, "");
    refused.expect_code(125);
    let words = refused.stderr.split([' ', '\n', ',', ';', '`', '\'']);
    let least = words.filter_map(size_of).filter(|bytes| *bytes > 4096).min();
    let least = least.unwrap_or_else(|| panic!("names no least size: {}", refused.stderr));
    assert_eq!(verify(FEWER, least, "").expect_code(0).text(), right_answer(FEWER));
}

/// Parses `8M`, `8MiB` or plain bytes.
fn size_of(word: &str) -> Option<u64> {
    let digits = word.trim_end_matches(|c: char| !c.is_ascii_digit());
    let number: u64 = digits.parse().ok()?;
    match &word[digits.len()..] {
        "" => Some(number),
        "K" | "KiB" => Some(number << 10),
        "M" | "MiB" => Some(number << 20),
        _ => None,
    }
}

#[test]
fn sizes_are_written_as_systemd_takes_them() {
    need_paging();
    for size in ["33554432", "32768K", "32M", "1G", "1T", "50%", "100%"] {
        let ebb = ebb_e2e::build::ebb();
        let program = ebb_e2e::build::program("verify");
        let outcome = Launch::new(ebb)
            .args(["run", "--memory-max", size, "--"])
            .arg(program)
            .args(["8", "1", "3", "1"])
            .run();
        assert!(outcome.expect_code(0).text().starts_with("verify: ok"), "{size}");
    }
}

#[test]
fn pages_go_to_a_file() {
    let folder = TempDir::new_in("/var/tmp").expect("temporary folder");
    let path = folder.path().join("pages");
    let right = right_answer(RIGHT);
    for options in [
        "--swap file".to_owned(),
        format!("--swap file:{}:256M", path.display()),
        format!("--swap ram:8M,file:{}:256M", path.display()),
        "--swap ram,file".to_owned(),
    ] {
        let outcome = verify(RIGHT, 16 * MIB, &options);
        assert_eq!(outcome.expect_code(0).text(), right, "{options}");
    }
}

/// Shows that pages that compress stay in memory, inside the limit.
#[test]
fn pages_go_to_compressed_memory() {
    let compressible = "48 1 3 2 32";
    let right = Launch::program("verify", compressible).run().text();
    for options in ["--swap ram", "--swap ram:20M", "--swap ram:4M,file"] {
        let launch = Launch::program("verify", compressible).limit(24 * MIB).options(options);
        let outcome = launch.run();
        assert_eq!(outcome.expect_code(0).text(), right, "{options}");
    }
}

#[test]
fn a_full_tier_kills_the_program_and_says_so() {
    let folder = TempDir::new_in("/var/tmp").expect("temporary folder");
    let path = folder.path().join("pages");
    for options in ["--swap ram:8M".to_owned(), format!("--swap file:{}:8M", path.display())] {
        let outcome = verify(RIGHT, 16 * MIB, &options);
        outcome.expect_code(128 + 9);
        assert_eq!(outcome.said().len(), 1, "{}", outcome.stderr);
        // Incompressible pages are not stored in the compressed tier, so they never fill it.
        let full = outcome.stderr.contains("full") || outcome.stderr.contains("do not compress");
        let says = full && outcome.stderr.contains("--swap");
        assert!(says, "{}", outcome.stderr);
    }
}
