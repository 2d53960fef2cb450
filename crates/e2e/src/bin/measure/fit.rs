//! Compares the misses that a sample predicts with the exact misses, and measures the limit that
//! `ebb fit` finds.

use std::process::Command;

use ebb_e2e::build;
use ebb_e2e::launch::Launch;

use crate::{figure, number};

/// A program with 64 MiB, of which it uses 16 all the time.
const LOAD: &str = "64 16 10000000";

/// Compares the misses that the sample predicts for other sizes with the exact misses. Sizes near
/// and below the report's `grain_bytes` are left out, because the curve is too coarse there.
pub fn curve() {
    let sizes = "20 24 28 32 40 48 56";
    let mut exact = Command::new(build::program("reuse"));
    let exact = exact.args(format!("exact {LOAD} {sizes}").split(' ')).output();
    let exact = String::from_utf8_lossy(&exact.expect("it runs").stdout).into_owned();
    let exact: Vec<(u64, f64)> = (exact.lines().filter_map(|line| line.split_once(' ')))
        .filter_map(|(size, misses)| Some((size.parse().ok()?, misses.parse().ok()?)))
        .collect();
    let most = exact.iter().map(|&(_, misses)| misses).fold(0.0, f64::max);
    let launch = Launch::program("reuse", &format!("run {LOAD}")).limit(1 << 30);
    let outcome = launch.options("--sample --report json").run();
    let report = format!("{}{}", outcome.report, outcome.stderr);
    let (_, reuse) = report.split_once("\"reuse\"").expect("a sample");
    let grain = number(reuse, "grain_bytes").unwrap_or(0.0);
    let points: Vec<&str> = reuse.split('{').filter(|part| part.contains("\"misses\"")).collect();
    for (size, exact) in exact {
        let bytes = (size << 20) as f64;
        if bytes <= grain + grain / 8.0 {
            continue;
        }
        let point = points.iter().find(|point| number(point, "bytes") >= Some(bytes));
        let of = |name| point.and_then(|point| number(point, name)).unwrap_or(0.0);
        let bound = format!("10 %, and its own interval of {:.1} %", of("error") / most * 100.0);
        let off = (of("misses") - exact) / most * 100.0;
        figure(&format!("the curve at {size} MiB is off by"), off, "% of the most", &bound);
    }
}

/// Measures the limit that `ebb fit` finds for a program that uses 16 of its 64 MiB all the time.
pub fn found() {
    let mut fit = Command::new(build::ebb());
    fit.args(["fit", "--slowdown", "300%", "--format", "json", "--"]);
    fit.arg(build::program("reuse")).args("run 64 16 1000000".split(' '));
    let output = fit.output().expect("ebb runs");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    // In the JSON text the result follows the list of runs.
    let (_, found) = text.split_once("\"runs\"").unwrap_or_default();
    let (_, found) = found.split_once(']').unwrap_or_default();
    let of = |text: &str, name| number(text, name).unwrap_or(f64::NAN);
    let bound = format!("the peak of {:.2} MiB", of(&text, "peak_bytes") / 1048576.0);
    let best = of(found, "memory_max_bytes");
    figure("limit that is found", best / 1048576.0, "MiB", &bound);
}
