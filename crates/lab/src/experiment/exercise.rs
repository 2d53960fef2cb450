//! Tells whether the code in which two arms differ ran at all.
//!
//! Each value of a switch with a path of its own has counters here. At least one of them is not
//! zero if that path ran. The counters come from the places in the code that read the switch. A
//! value without counters (mostly "off") is the absence of a path.

use ebb_mm::tunables::Tunables;

use super::runner::Arm;
use crate::scenario::Scenario;

/// A code path: a key, a value of it (`*`: any), and its counters.
type Path = (&'static str, &'static str, &'static [&'static str]);

/// Counter of folios scanned in generation lists; scans of the classic lists do not count here.
const GENERATIONS: &[&str] = &["ebb_scanned"];
/// Counter of pages scanned in the classic lists.
const CLASSIC: &[&str] = &["ebb_classic_scanned"];
const REFAULTS: &[&str] = &["workingset_refault_anon", "workingset_refault_file"];

/// Counters of every path.
const PATHS: &[Path] = &[
    ("lru", "gen", GENERATIONS),
    ("lru", "classic", CLASSIC),
    ("swap.keep_slot", "on", &["pswpin"]),
    ("gen.loop", "*", GENERATIONS),
    ("gen.placement", "*", GENERATIONS),
    ("gen.admission", "probation", &["ebb_probation"]),
    ("gen.history", "on", &["ebb_walk_promoted", "ebb_refs_met"]),
    ("gen.second_chance", "on", &["ebb_second_chance"]),
    ("gen.promote", "*", &["ebb_walk_entries", "ebb_refs_met"]),
    ("gen.set_refs", "*", &["ebb_refs_met"]),
    ("gen.strict_fallback", "on", &["ebb_scanned_no_progress"]),
    ("gen.tiers", "on", &["ebb_tier_kept"]),
    ("gen.type_select", "*", GENERATIONS),
    ("gen.walk", "on", &["ebb_walk_entries"]),
    ("gen.bloom", "on", &["ebb_walk_skip_bloom"]),
    ("gen.non_leaf", "on", &["ebb_walk_skip_nonleaf"]),
    ("gen.look_around", "pressed", &["ebb_look_around"]),
    ("gen.look_around", "on", &["ebb_look_around"]),
    ("gen.bulk_move", "on", &["ebb_bulk_moved"]),
    ("gen.counter_batch", "on", &["ebb_counter_batched"]),
    ("gen.prefetch", "on", &["ebb_looked_ahead"]),
    ("gen.target_end", "*", &["ebb_aged_folios"]),
    ("gen.memcg_lru", "on", &["ebb_memcg_rotated"]),
    ("gen.per_type_aging", "on", &["ebb_aged"]),
    ("gen.refault_distance", "place", REFAULTS),
    ("gen.refault_distance", "reuse", REFAULTS),
    ("gen.exact_target", "on", GENERATIONS),
    ("dirty", "*", &["ebb_dirty_met"]),
    ("kswapd.idle_index", "*", &["kswapd_unasked_looks"]),
    ("kswapd.balanced", "*", &["kswapd_naps", "kswapd_sleeps", "kswapd_high_wmark_hit_quickly"]),
    ("kswapd.clear", "*", &["kswapd_flag_clears"]),
    ("kswapd.trim_again", "on", &["kswapd_trim_passes"]),
    ("reclaim.hold", "on", &["pgscan_direct_throttle"]),
    ("reclaim.no_progress", "on", &["progress_waits"]),
    ("file.one_mark", "on", &["false_marks"]),
    ("classic.flush", "on", &["flush_s"]),
    ("classic.finish", "on", CLASSIC),
    ("classic.rotations", "on", CLASSIC),
    // Allocation benchmark: refills and drains of a per-CPU list.
    ("workload.check", "*", &["refills", "drains"]),
    ("workload.cma", "*", &["refills"]),
];

/// Returns the counters of a value; none if the value has no path of its own, or no known one.
#[must_use]
pub fn counters(key: &str, value: &str) -> Option<&'static [&'static str]> {
    PATHS.iter().find(|(k, v, _)| *k == key && (*v == "*" || *v == value)).map(|p| p.2)
}

/// Returns all settings in which arms may differ and that have paths: keys and values.
#[must_use]
pub fn settings(scenario: &Scenario) -> Vec<(String, String)> {
    let mut tun = Tunables::default();
    for pair in &scenario.switches {
        // The settings were checked when the scenario was read.
        let _ = tun.set(pair);
    }
    let rows = tun.rows().into_iter();
    let mut all: Vec<_> = rows.map(|row| (row.key.to_owned(), row.value)).collect();
    for a in scenario.workload.iter().filter_map(|w| w.allocation.as_ref()) {
        all.push(("workload.check".into(), format!("{:?}", a.check)));
        all.push(("workload.cma".into(), format!("{:?}", a.cma)));
    }
    all
}

/// Returns whether one of the counters is not zero in any run of an arm.
#[must_use]
pub fn ran(arm: &Arm, counters: &[&str]) -> bool {
    counters.iter().any(|name| arm.of(name).iter().any(|v| *v != 0.0))
}

/// Returns the counters of each key in which the second arm has a path that the first has not. If
/// there is none, returns `false` and the counters of the first arm's paths.
fn paths(a: &Scenario, b: &Scenario) -> (bool, Vec<&'static [&'static str]>) {
    let (before, after) = (settings(a), settings(b));
    let differ = || before.iter().zip(&after).filter(|(x, y)| x.1 != y.1);
    let of_second: Vec<_> = differ().filter_map(|(_, (k, v))| counters(k, v)).collect();
    if of_second.is_empty() {
        return (false, differ().filter_map(|((k, v), _)| counters(k, v)).collect());
    }
    (true, of_second)
}

/// Returns whether any code ran in which two arms differ. Looks at the second arm, which has the
/// patch, or at the first if the patch only removes code. Arms without a difference known as a path
/// count as exercised.
#[must_use]
pub fn exercised((a, arm_a): (&Scenario, &Arm), (b, arm_b): (&Scenario, &Arm)) -> bool {
    let (second, paths) = paths(a, b);
    paths.is_empty()
        || paths.iter().any(|counters| ran(if second { arm_b } else { arm_a }, counters))
}

/// Returns whether the first arm ran any code that the second arm does differently. A difference
/// that is not known as a path counts as run.
#[must_use]
pub fn ran_in_first((a, arm_a): (&Scenario, &Arm), b: &Scenario) -> bool {
    let (first, second) = (settings(a), settings(b));
    let differ = first.iter().zip(&second).filter(|(x, y)| x.1 != y.1);
    let paths: Vec<_> = differ.filter_map(|((k, v), _)| counters(k, v)).collect();
    paths.is_empty() || paths.iter().any(|counters| ran(arm_a, counters))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::scenario::BUILTIN;

    fn arm(counters: &[(&str, f64)]) -> Arm {
        let values = counters.iter().map(|(n, v)| ((*n).to_owned(), vec![*v, *v])).collect();
        Arm { name: String::new(), values, samples: vec![], pressure: vec![] }
    }

    fn scenario(pairs: &[&str]) -> Scenario {
        let pairs: Vec<String> = pairs.iter().map(|p| (*p).to_owned()).collect();
        Scenario::with(BUILTIN[0].text, &pairs).unwrap()
    }

    #[test]
    fn a_path_has_run_if_its_counter_is_not_zero_in_the_arm_that_has_it() {
        let (off, on) =
            (scenario(&["preset=k618"]), scenario(&["preset=k618", "gen.bulk_move=on"]));
        let (zero, some) = (arm(&[("ebb_bulk_moved", 0.0)]), arm(&[("ebb_bulk_moved", 2.0)]));
        assert!(exercised((&off, &zero), (&on, &some)));
        assert!(!exercised((&off, &zero), (&on, &zero)));
        assert!(!exercised((&off, &some), (&on, &zero)), "the arm without it does not count");
        // Code that the patch removes can run only in the first arm.
        assert!(exercised((&on, &some), (&off, &zero)));
        assert!(!exercised((&on, &zero), (&off, &zero)));
    }

    #[test]
    fn one_of_several_paths_is_enough() {
        let a = scenario(&["preset=k618"]);
        let b = scenario(&["preset=k618", "gen.prefetch=on", "gen.bulk_move=on"]);
        let looked = arm(&[("ebb_looked_ahead", 5.0), ("ebb_bulk_moved", 0.0)]);
        assert!(exercised((&a, &arm(&[])), (&b, &looked)));
    }

    #[test]
    fn every_published_comparison_differs_in_a_path_with_counters() {
        for b in BUILTIN {
            let s = Scenario::parse(b.name, b.text).unwrap();
            for case in &s.case {
                let arms = s.arms_of(case);
                let of = |i: usize| {
                    let pairs: Vec<_> = case.set.iter().chain(&arms[i].set).cloned().collect();
                    Scenario::with(b.text, &pairs).unwrap()
                };
                assert!(!paths(&of(0), &of(1)).1.is_empty(), "{}/{}", b.name, case.name);
            }
        }
    }

    #[test]
    fn counters_are_measured() {
        let text = include_str!("../../tests/small.toml");
        let (machine, _) =
            crate::scenario::run_once(&Scenario::parse("small.toml", text).unwrap(), 1, 0).unwrap();
        let allocation = ["refills", "drains"];
        let known: BTreeMap<_, _> = machine;
        for (key, _, counters) in PATHS {
            for name in *counters {
                assert!(allocation.contains(name) || known.contains_key(*name), "{key}: {name}");
            }
            assert!(Tunables::KEYS.contains(key) || key.starts_with("workload."), "{key}");
        }
    }
}
