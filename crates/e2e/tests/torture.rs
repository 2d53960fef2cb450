//! Eight threads that verify every word while the address space changes at random, in half and in
//! a quarter of the memory; once for a minute, and shorter with other seeds.

use ebb_e2e::MIB;
use ebb_e2e::launch::{Launch, Outcome};
use ebb_e2e::same::record;
use std::process::Command;

/// Every word is right; what it took of memory is told apart.
fn torture(seconds: u64, seed: u64, limit: u64) -> Outcome {
    let launch = Launch::program("torture", &format!("{seconds} {seed}"));
    let outcome = launch.limit(limit).at_most(seconds * 4 + 90).run();
    record(&format!("torture seed {seed}"), limit * 100 / (96 * MIB), &outcome);
    outcome.expect_line("torture: ok");
    outcome
}

#[test]
fn a_minute_in_half_of_the_memory() {
    torture(60, 1, 48 * MIB).expect_within_limit();
}

#[test]
fn other_seeds_in_a_quarter_of_the_memory() {
    for seed in 2..=5 {
        torture(6, seed, 24 * MIB);
    }
}

/// Agents that wait for a processor answer late, and are not for that taken for dead.
#[test]
fn on_a_machine_with_other_things_to_do() {
    let busy = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
    let mut others = [busy(), busy(), busy(), busy()];
    let results = [2, 3].map(|seed| std::panic::catch_unwind(|| torture(3, seed, 24 * MIB)));
    for other in &mut others {
        other.kill().unwrap();
        other.wait().unwrap();
    }
    for result in results {
        result.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    }
}

#[test]
fn with_plenty_nothing_changes() {
    torture(3, 6, 1024 * MIB).expect_within_limit();
}
