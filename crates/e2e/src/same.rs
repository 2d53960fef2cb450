//! The central promise: in less memory a program does exactly what it does with plenty.

use std::path::Path;

use crate::SMALL;
use crate::launch::{Launch, Outcome, note};

/// The shares of the plain run's peak that every program is given.
pub const PERCENTS: [u64; 2] = [50, 25];

/// Runs it plainly, then at 50 % and 25 % of the plain run's peak: same output and same status.
/// Gives back the plain run.
#[track_caller]
pub fn same_in_less(name: &str, launch: &Launch) -> Outcome {
    let plain = launch.run();
    plain.expect_code(0);
    record(name, 100, &plain);
    for percent in PERCENTS {
        let limited = launch.clone().limit((plain.peak.bytes * percent / 100).max(SMALL)).run();
        record(name, percent, &limited);
        same(&plain, &limited);
        limited.note_peak();
    }
    plain
}

/// Fails unless both runs wrote the same bytes and ended alike.
#[track_caller]
pub fn same(plain: &Outcome, limited: &Outcome) {
    limited.expect_code(plain.code());
    assert!(
        plain.stderr == without_thrashing(&limited.stderr),
        "stderr differs: {:?}",
        limited.stderr
    );
    if plain.stdout != limited.stdout {
        let pairs = plain.stdout.iter().zip(&limited.stdout);
        let at = pairs.take_while(|(ours, theirs)| ours == theirs).count();
        let lengths = (plain.stdout.len(), limited.stdout.len());
        panic!("stdout differs at byte {at} (lengths {lengths:?}) of {}", limited.command);
    }
}

/// What was said, but for the one line by which a run says that it has too little memory: a quarter may be.
fn without_thrashing(text: &str) -> String {
    text.split_inclusive('\n').filter(|line| !line.starts_with("ebb: thrashing: ")).collect()
}

/// Keeps the time and the peak of a run in the table.
pub fn record(name: &str, percent: u64, outcome: &Outcome) {
    let (wall, peak) = (outcome.wall.as_secs_f64(), outcome.peak.bytes >> 20);
    let own = outcome.peak.own >> 20;
    let line = format!("{name:28} {percent:3} %  {wall:7.2} s  peak {peak:5} MiB  ebb {own:4} MiB");
    note("times", &line).expect("table of times");
    println!("{line}");
}

/// A program that the test needs; without it the test is skipped.
#[track_caller]
pub fn need(path: &str) -> &Path {
    let path = Path::new(path);
    if !path.exists() {
        ebb_testing::skip(&format!("{} is missing", path.display()));
    }
    path
}
