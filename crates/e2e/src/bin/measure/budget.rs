//! Measures the memory of a tree above its limit, and the freezes of a program that comes near the
//! limit.

use ebb_e2e::MIB;
use ebb_e2e::launch::Launch;

use crate::figure;
use crate::watch::{Watched, watched};

fn hog(arguments: &str, limit: u64, options: &str) -> Watched {
    let launch = Launch::program("hog", arguments).limit(limit * MIB);
    let run = watched(&launch.options(&format!("--report json {options}")));
    run.outcome.expect_line("hog: ok");
    run
}

fn mib(bytes: u64) -> f64 {
    bytes as f64 / MIB as f64
}

/// Measures the peak of a program that takes memory as fast as it can.
pub fn peaks() {
    for (arguments, limit, most) in [("256 4", 32, 40), ("640 4", 384, 395)] {
        let run = hog(arguments, limit, "");
        let what = format!("most that hog {arguments} held in {limit} MiB");
        figure(&what, mib(run.peak_bytes), "MiB", &format!("{most} MiB"));
    }
}

/// Measures the longest freeze. A freeze lasts one turn of 3 ms. To put all of 2 GiB under
/// management in one freeze would take sixty milliseconds.
pub fn holds() {
    let longest_us = hog("2048 1", 2200, "").outcome.figure("longest_freeze_us");
    figure("longest hold of a program of 2 GiB", longest_us as f64 / 1e3, "ms", "20 ms");
}

/// Measures a tree above `--memory-high`: threads that take pages pause, and reclaim brings the
/// tree back.
pub fn high() {
    let run = hog("256 4", 96, "--memory-high 32M");
    figure("most held with high at 32 MiB", mib(run.peak_bytes), "MiB", "40 MiB");
    let throttled_s = run.outcome.figure("throttled_us") as f64 / 1e6;
    figure("threads slowed down", throttled_s, "s", "more than 0");
}

/// Measures Ebb's own memory under a far limit. Ebb's tables grow with the memory in use, not with
/// the limit.
pub fn far_limit() {
    let own = watched(&Launch::program("verify", "16 2 3 1").limit(1 << 43)).own_bytes;
    figure("Ebb's own memory under a limit of 8 TiB", mib(own), "MiB", "16 MiB");
}
