//! `--attribute`: what each mechanism contributes, by turning it off alone.

use std::fmt::Write;

use ebb_core::tunables::Tunables;

use crate::experiment::runner::Results;
use crate::experiment::stats::Estimate;
use crate::experiment::verdict::significant;
use crate::scenario::ArmSpec;

/// Mechanisms that are off by another value than `off`.
const OTHERS: [(&str, &str); 4] = [
    ("gen.admission", "open"),
    ("gen.refault_distance", "off"),
    ("gen.promote", "first"),
    ("lru", "classic"),
];

/// The engine as it is set, and with each mechanism off alone.
#[must_use]
pub fn arms(set: &[String]) -> Vec<ArmSpec> {
    let mut tun = Tunables::default();
    for pair in set {
        // Pairs that are none of the engine's are the scenario's.
        let _ = tun.set(pair);
    }
    let mut arms = vec![ArmSpec { name: "all as set".into(), set: Vec::new() }];
    for row in tun.rows() {
        let off = if row.expected == "on|off" {
            (row.value == "on").then_some("off")
        } else {
            OTHERS.iter().find(|(key, off)| *key == row.key && row.value != *off).map(|o| o.1)
        };
        if let Some(off) = off {
            let pair = format!("{}={off}", row.key);
            arms.push(ArmSpec { name: pair.clone(), set: vec![pair] });
        }
    }
    arms
}

/// The table: what the metric becomes without each mechanism.
#[must_use]
pub fn report(results: &[Results]) -> String {
    let mut text = String::new();
    for r in results {
        for case in &r.cases {
            let base = case.arms[0].of(&case.metric);
            let e = Estimate::of(base);
            let _ = writeln!(
                text,
                "{}: {} is {:.4} ± {:.4} with everything as set ({} seeds). Without:",
                case.name, case.metric, e.mean, e.ci95, r.seeds
            );
            for arm in &case.arms[1..] {
                let change = Estimate::of_change(base, arm.of(&case.metric));
                let word = match significant(&change) {
                    false => "no significant difference",
                    true if (change.mean > 0.0) == case.higher_is_better => "better",
                    true => "worse",
                };
                let here = format!("{:+.2} ± {:.2} %", change.mean, change.ci95);
                let _ = writeln!(text, "  {:<28} {here:>20}  {word}", arm.name);
            }
            text.push('\n');
        }
    }
    text
}
