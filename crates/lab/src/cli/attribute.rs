//! `--attribute`: measures the contribution of each mechanism, by turning off one at a time. The
//! report names mechanisms that never ran with everything as set.

use std::fmt::Write;

use ebb_mm::tunables::Tunables;

use crate::experiment::runner::Results;
use crate::experiment::stats::Estimate;
use crate::experiment::verdict::significant;
use crate::scenario::ArmSpec;

/// Mechanisms that another value than `off` turns off.
const OTHERS: [(&str, &str); 4] = [
    ("gen.admission", "open"),
    ("gen.refault_distance", "off"),
    ("gen.promote", "first"),
    ("lru", "classic"),
];

/// Returns the arms: the engine as set, and with one mechanism off at a time.
#[must_use]
pub fn arms(set: &[String]) -> Vec<ArmSpec> {
    let mut tun = Tunables::default();
    for pair in set {
        // Other pairs belong to the scenario.
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

/// Returns the table: the metric without each mechanism.
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
            for (arm, ran) in case.arms[1..].iter().zip(&case.ran_in_first) {
                let change = Estimate::of_change(base, arm.of(&case.metric));
                let word = match significant(&change) {
                    _ if !ran => "not exercised",
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiment::exercise::counters;
    use crate::experiment::{self, Job};
    use crate::scenario::Scenario;

    #[test]
    fn every_mechanism_has_counters_that_show_whether_it_ran() {
        for preset in [&[][..], &["preset=k72".to_owned()], &["preset=classic".to_owned()]] {
            let mut tun = Tunables::default();
            preset.iter().for_each(|p| tun.set(p).unwrap());
            for arm in &arms(preset)[1..] {
                let key = arm.name.split('=').next().unwrap();
                let value = tun.rows().into_iter().find(|r| r.key == key).unwrap().value;
                assert!(counters(key, &value).is_some(), "{key}={value}");
            }
        }
    }

    #[test]
    fn a_mechanism_that_never_ran_is_not_exercised() {
        let text = include_str!("../../tests/small.toml").to_owned();
        let scenario = Scenario::parse("small.toml", &text).unwrap();
        let arms = Some(arms(&[]));
        let (set, first_seed, size, samples) = (vec![], 0, 1.0, 0);
        let job = Job { scenario, text, set, arms, seeds: 2, first_seed, size, samples };
        let report = report(&experiment::run(&[job], 1, &|_, _| {}).unwrap());
        let said = |key: &str| {
            let line = report.lines().find(|l| l.trim_start().starts_with(key)).unwrap();
            line.ends_with("not exercised")
        };
        // With generation lists the classic lists' share of rotations has no effect, and with
        // enough memory kswapd does not trim again.
        assert!(said("classic.rotations=off"), "{report}");
        assert!(said("kswapd.trim_again=off"), "{report}");
        assert!(!said("gen.exact_target=off") && !said("lru=classic"), "{report}");
    }
}
