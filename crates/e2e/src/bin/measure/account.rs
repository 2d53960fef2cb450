//! Measures whether the time that a run loses is the sum of the parts in its report.

use std::process::Command;

use ebb_e2e::build::ebb;

use crate::{figure, number};

pub fn parts() {
    let mut bench = Command::new(ebb());
    bench.args(["bench", "account", "--rounds", "3", "--json", "--accesses", "150000"]);
    let output = bench.output().expect("ebb runs");
    let text = String::from_utf8_lossy(&output.stdout);
    for (name, what) in [
        ("parts_to_lost", "all parts, to what was lost"),
        ("waiting_to_timed", "waiting by the report, to what the load timed"),
    ] {
        figure(what, number(&text, name).unwrap_or(f64::NAN), "", "0.5 to 2");
    }
}
