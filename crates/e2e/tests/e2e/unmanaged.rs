//! Memory that Ebb sees and does not manage: it counts, is told of once, and ends the run where that is wanted.

use ebb_e2e::MIB;
use ebb_e2e::build::{foreign_program, program};
use ebb_e2e::launch::{Launch, Outcome};

const LIMIT: u64 = 64 * MIB;

/// A static program that stays for a moment, three times.
fn with_static_programs(options: &str) -> Outcome {
    let hold = format!("{} 24 3", foreign_program("holder").display());
    let script = format!("{hold} & {hold} & {hold} & wait");
    let options = format!("--report json {options}");
    Launch::new("sh").args(["-c", &script]).limit(2 * LIMIT).options(&options).run()
}

fn lines_with<'a>(outcome: &'a Outcome, text: &str) -> Vec<&'a str> {
    outcome.stderr.lines().filter(|line| line.contains(text)).collect()
}

#[test]
fn static_programs_are_told_of_once_and_counted_in_the_report() {
    let outcome = with_static_programs("");
    assert_eq!(outcome.expect_code(0).text(), "holder: ok\n".repeat(3));
    let told = lines_with(&outcome, "is statically linked");
    assert_eq!(told.len(), 1, "{}", outcome.stderr);
    let report = lines_with(&outcome, "\"why\":\"static_program\"");
    assert!(report[0].contains("\"static_program\",\"processes\":3,"), "{report:?}");
    let peak = outcome.figure("peak_bytes");
    assert!((72 * MIB..80 * MIB).contains(&peak), "{peak} at most");
}

#[test]
fn a_strict_run_ends_with_the_first_of_them() {
    let outcome = with_static_programs("--strict");
    outcome.expect_code(125);
    let told = lines_with(&outcome, "--strict");
    assert!(told.len() == 1 && told[0].contains("Link it dynamically"), "{}", outcome.stderr);
    assert_eq!(outcome.figure("exit_status"), 125);
}

/// The agent of another user's process may not be looked into, and does not join.
#[test]
fn a_process_of_another_user_is_told_of_and_reported() {
    if !rustix::process::getuid().is_root() {
        eprintln!("SKIPPED: a_process_of_another_user_is_told_of_and_reported needs root");
        return;
    }
    let words = ["--reuid", "65534", "--clear-groups", "sleep", "4"];
    let launch = Launch::new("setpriv").args(words).limit(LIMIT);
    let outcome = launch.options("--report json").run();
    outcome.expect_code(0);
    let told = lines_with(&outcome, " (sleep) can have no agent");
    assert!(told.len() == 1 && told[0].contains("cannot be stored"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("\"processes\":1,\"peak_bytes\":"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("\"names\":[\"sleep\"]"), "{}", outcome.stderr);
}

/// One that was started with an empty environment cannot know of the agent.
#[test]
fn a_program_with_an_empty_environment_is_told_of_and_reported() {
    let hold = program("holder").display().to_string();
    let script = format!("env -i {hold} 24 4; :");
    let launch = Launch::new("sh").args(["-c", &script]).limit(LIMIT);
    let outcome = launch.options("--report json").run();
    assert_eq!(outcome.expect_code(0).text(), "holder: ok\n");
    let told = lines_with(&outcome, "(holder) has no agent");
    assert!(told.len() == 1 && told[0].contains("empty environment"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("\"why\":\"no_agent\",\"processes\":1,"), "{}", outcome.stderr);
    let peak = outcome.figure("peak_bytes");
    assert!((24 * MIB..27 * MIB).contains(&peak), "{peak} at most");
}

/// What cannot be managed has its part of the limit, and the others what is left.
#[test]
fn a_static_program_squeezes_the_others() {
    let hold = format!("{} 24 6", foreign_program("holder").display());
    let verify = format!("{} 48 2", program("verify").display());
    let script = format!("{hold} & sleep 1; {verify}; wait");
    let launch = Launch::new("sh").args(["-c", &script]).limit(40 * MIB);
    let outcome = launch.options("--report json").run();
    outcome.expect_code(0).note_peak();
    let right = Launch::program("verify", "48 2").run().text();
    assert!(outcome.text().contains(right.trim()), "{}", outcome.text());
    assert!(outcome.peak.bytes > 36 * MIB, "only {} at once", outcome.peak.bytes);
    assert!(outcome.figure("pages_evicted") > 6000, "{}", outcome.stderr);
}

/// Four processes map the same 24 MiB: a tree that counted each of them would be far beyond its limit.
#[test]
fn shared_memory_counts_once_however_many_map_it() {
    let options = "--report json";
    let launch = Launch::program("holder", "24 1 3").limit(LIMIT).options(options);
    let outcome = launch.run();
    assert_eq!(outcome.expect_code(0).text(), "holder: ok\n");
    assert_eq!(lines_with(&outcome, "shares memory").len(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("\"shared_memory\",\"processes\":4,"), "{}", outcome.stderr);
    let peak = outcome.figure("peak_bytes");
    assert!((24 * MIB..26 * MIB).contains(&peak), "{peak} at most");
}

#[test]
fn shared_memory_beyond_the_limit_ends_the_run_and_is_named() {
    let [hold, touch] = ["holder", "touch"].map(|name| program(name).display().to_string());
    // The one has more than there may be, the other needs some.
    let script = format!("{hold} 96 20 1 & sleep 1; {touch} 16 20");
    let outcome = Launch::new("sh").args(["-c", &script]).limit(LIMIT).run();
    outcome.expect_code(137);
    assert_eq!(lines_with(&outcome, "ebb: out of memory: the limit is 64.0 MiB").len(), 1);
    // It is held soon after it is beyond the limit, wherever that is.
    let named = lines_with(&outcome, "ebb: not managed: ");
    assert!(named.len() == 1 && named[0].contains("with shared memory"), "{}", outcome.stderr);
    let mib = named[0].split_ascii_whitespace().nth(3).and_then(|mib| mib.parse::<f64>().ok());
    assert!(mib.is_some_and(|mib| (64.0..98.0).contains(&mib)), "{}", outcome.stderr);
}

/// Alone it went on or was killed, by luck: nobody else waited for memory.
#[test]
fn one_whose_shared_memory_is_more_than_the_limit_is_ended_alone_too() {
    let launch = Launch::program("holder", "96 20 1").limit(LIMIT);
    let outcome = launch.run();
    outcome.expect_code(137);
    assert!(outcome.stderr.contains("with shared memory"), "{}", outcome.stderr);
}

#[test]
fn a_strict_run_of_what_can_be_managed_goes_on() {
    let launch = Launch::program("process", "fork 16").limit(LIMIT).options("--strict");
    launch.run().expect_line("fork: ok");
}
