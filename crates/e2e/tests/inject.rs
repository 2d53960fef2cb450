//! Tests storage that fails, returns wrong data, is slow or fills up. The program reads right data,
//! or dies by SIGBUS with one line that names the cause. With full storage it dies as out of
//! memory. It never reads wrong data and never hangs.

use std::sync::OnceLock;

use ebb_e2e::MIB;
use ebb_e2e::launch::{Launch, Outcome};

/// Arguments for pages that compress, so that the compressed tier can store them, too.
const ARGUMENTS: &str = "48 1 5 2 32";

const SIGBUS_CODE: i32 = 128 + 7;
const OOM_CODE: i32 = 128 + 9;

fn run(plan: &str, swap: &str) -> Outcome {
    let options = format!("--swap {swap} --inject {plan},seed=7");
    Launch::program("verify", ARGUMENTS).limit(24 * MIB).options(&options).run()
}

fn right_answer() -> &'static str {
    static RIGHT: OnceLock<String> = OnceLock::new();
    RIGHT.get_or_init(|| Launch::program("verify", ARGUMENTS).run().text())
}

/// Checks that the program is right, or dies with one line that has one of these words.
#[track_caller]
fn right_or_dead(plan: &str, code: i32, causes: &[&str]) {
    for swap in ["ram", "file"] {
        let outcome = run(plan, swap);
        assert!(!outcome.stderr.contains("wrong word"), "{plan} {swap}: {}", outcome.stderr);
        if outcome.code() == 0 {
            assert_eq!(outcome.text(), right_answer(), "{plan} {swap}");
            continue;
        }
        outcome.expect_code(code);
        assert_eq!(outcome.said().len(), 1, "{plan} {swap}: {}", outcome.stderr);
        let named = causes.iter().any(|cause| outcome.stderr.contains(cause));
        assert!(named, "{plan} {swap}: {}", outcome.stderr);
    }
}

/// Checks that the program survives the plan.
#[track_caller]
fn right(plan: &str) {
    for swap in ["ram", "file"] {
        let outcome = run(plan, swap);
        assert_eq!(outcome.expect_code(0).text(), right_answer(), "{plan} {swap}");
    }
}

#[test]
fn a_read_that_fails() {
    right_or_dead("read-error@0.01", SIGBUS_CODE, &["read"]);
    // Several threads may each meet a lost page before the first of them has died.
    right_or_dead("read-error@once1", SIGBUS_CODE, &["read"]);
}

/// Shows that a fault on a lost page is not forgotten. The kernel refuses the poison (EAGAIN) while
/// a change of the address space is yet to be read.
#[test]
fn a_page_lost_while_mappings_change() {
    for swap in ["ram", "file"] {
        let options = format!("--swap {swap} --inject read-error@0.01,seed=7");
        let outcome =
            Launch::program("memory", "restless 48").limit(24 * MIB).options(&options).run();
        // The page is read again because the poison was refused, and it may then be right.
        if outcome.code() == 0 {
            outcome.expect_line("restless: ok");
            continue;
        }
        outcome.expect_code(SIGBUS_CODE);
        assert_eq!(outcome.said().len(), 1, "{swap}: {}", outcome.stderr);
    }
}

#[test]
fn a_page_that_comes_back_changed() {
    right_or_dead("flip@0.001", SIGBUS_CODE, &["hash", "checksum", "corrupt"]);
}

#[test]
fn reads_that_give_less_than_asked() {
    right_or_dead("short-read@0.1", SIGBUS_CODE, &["read", "short"]);
}

#[test]
fn slow_reads_only_cost_time() {
    right("slow-read=1ms@0.01");
}

#[test]
fn a_write_that_fails_costs_no_data() {
    right("write-error@n100");
}

#[test]
fn storage_that_is_full() {
    right_or_dead("full@n2000", OOM_CODE, &["full"]);
}

#[test]
fn everything_at_once() {
    let plan = "read-error@0.0005,short-read@0.01,slow-read=2ms@0.005,write-error@n300";
    right_or_dead(plan, SIGBUS_CODE, &["read", "write", "short"]);
}

#[test]
fn a_plan_that_cannot_be_read_is_refused() {
    let launch = Launch::new("echo").arg("started").limit(24 * MIB);
    let outcome = launch.options("--swap ram --inject explode@0.5,seed=7").run();
    outcome.expect_code(125);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    assert_eq!(outcome.text(), "", "nothing may start");
}
