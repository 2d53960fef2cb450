//! Searches for bugs of reclaim: draws machines at random, checks rules that no machine may break,
//! and shrinks findings.
//!
//! * [`draw`]: makes a scenario from a seed. [`oracle`]: the rules. [`shrink`]: makes a finding
//!   small.
//! * [`text`]: scenarios as files. [`bugs`]: known bugs that the fuzzer must find.
//!
//! Invariants
//! * FUZZ-1: the machine that runs is the one in the file. Every machine, a drawn one too, is built
//!   from its text. So a machine that breaks a rule by its seed breaks it as a file.
//! * FUZZ-2: findings do not depend on the number of threads.

pub mod bugs;
pub mod draw;
pub mod oracle;
pub mod shrink;
pub mod text;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crate::scenario::{Scenario, ScenarioError};
use oracle::{ORACLES, Oracle, Seen};

/// A rule that a machine breaks.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Seed of the machine.
    pub seed: u64,
    /// Rule that the machine breaks.
    pub oracle: &'static Oracle,
    /// Description of the violation.
    pub told: String,
    /// Text of the scenario.
    pub text: String,
}

/// Range and limits of a search.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// First seed.
    pub first: u64,
    /// Largest number of seeds.
    pub machines: u64,
    /// The only rule to check; none for all rules.
    pub only: Option<&'static Oracle>,
    /// Settings of every machine, applied after the drawn ones.
    pub set: Vec<String>,
    /// Number of threads.
    pub jobs: usize,
    /// Whether to stop at the first finding.
    pub first_only: bool,
}

/// Result of a search.
#[derive(Clone, Default, Debug)]
pub struct Caught {
    /// Findings in the order of their seeds.
    pub findings: Vec<Finding>,
    /// Number of machines that ran.
    pub machines: u64,
}

/// Returns why a machine panicked, in builds where a panic does not end the program.
fn panicked(payload: &(dyn std::any::Any + Send)) -> String {
    let text = payload.downcast_ref::<&str>().map(|s| (*s).to_owned());
    let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
    format!("panicked: {}", text.unwrap_or_default())
}

/// Returns the machine of a scenario's last arm.
///
/// # Errors
/// Fails if the text is no scenario.
pub fn machine(text: &str) -> Result<Scenario, ScenarioError> {
    let mut scenario = Scenario::with(text, &[])?;
    let arm = scenario.arm.last().map(|arm| arm.set.clone()).unwrap_or_default();
    let engine = |pair: &String| !pair.starts_with("machine.") && !pair.starts_with("workload.");
    if arm.iter().all(engine) {
        scenario.switches.extend(arm);
        return Ok(scenario);
    }
    Scenario::with(text, &arm)
}

/// Runs a machine and checks all rules, or one of them. Returns the broken rules, each with a
/// description.
#[must_use]
pub fn examine(scenario: &Scenario, only: Option<&Oracle>) -> Vec<(&'static Oracle, String)> {
    let asked = |oracle: &&Oracle| only.is_none_or(|only| only.name == oracle.name);
    let looked = catch_unwind(AssertUnwindSafe(|| {
        let run = oracle::run(scenario);
        let seen = Seen { scenario, run: &run };
        let broken = |oracle: &'static Oracle| Some((oracle, oracle.broken_by(&seen)?));
        ORACLES.iter().filter(asked).filter_map(broken).collect()
    }));
    looked.unwrap_or_else(|payload| {
        let books = ORACLES.iter().filter(asked).filter(|oracle| oracle.name == "books");
        books.map(|oracle| (oracle, panicked(&*payload))).collect()
    })
}

/// Draws and examines machines until the search has enough, or until `enough` returns true.
///
/// # Errors
/// Fails if a setting is invalid.
pub fn hunt(hunt: &Hunt, enough: &(dyn Fn(u64) -> bool + Sync)) -> Result<Caught, ScenarioError> {
    // Report a wrong setting before the first machine runs.
    Scenario::with(&draw::draw(hunt.first), &hunt.set)?;
    let (next, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let caught = Mutex::new(Caught::default());
    std::thread::scope(|scope| {
        for _ in 0..hunt.jobs.max(1) {
            scope.spawn(|| {
                // Relaxed: each number is handed out once, and a stop that a thread sees late costs
                // one machine.
                while !stop.load(Relaxed) {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= hunt.machines || enough(number) {
                        break;
                    }
                    let found = one(hunt, hunt.first.wrapping_add(number));
                    stop.fetch_or(hunt.first_only && !found.is_empty(), Relaxed);
                    let mut caught = caught.lock().unwrap_or_else(|e| e.into_inner());
                    caught.machines += 1;
                    caught.findings.extend(found);
                }
            });
        }
    });
    let mut caught = caught.into_inner().unwrap_or_else(|e| e.into_inner());
    caught.findings.sort_by_key(|f| f.seed);
    if hunt.first_only {
        // Another thread may have found something at a later seed.
        let first = caught.findings.first().map(|f| f.seed);
        caught.findings.retain(|f| Some(f.seed) == first);
    }
    Ok(caught)
}

/// Returns the findings for the machine of a seed.
fn one(hunt: &Hunt, seed: u64) -> Vec<Finding> {
    SEED.set(Some(seed));
    let text = draw::with(seed, &hunt.set);
    let broken = match machine(&text) {
        Ok(scenario) => examine(&scenario, hunt.only),
        // A setting may be invalid for this machine.
        Err(_) => Vec::new(),
    };
    SEED.set(None);
    let finding = |(oracle, told)| Finding { seed, oracle, told, text: text.clone() };
    broken.into_iter().map(finding).collect()
}

thread_local! {
    /// Seed of the machine that this thread runs, for the report of a panic that ends the program.
    static SEED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// Returns the seed of the machine that this thread runs.
#[must_use]
pub fn running() -> Option<u64> {
    SEED.get()
}

impl Finding {
    /// Returns the text of the shrunk scenario, and the number of steps.
    #[must_use]
    pub fn shrunk(&self) -> (String, u32) {
        let mut fails = |text: &str| {
            machine(text).is_ok_and(|scenario| !examine(&scenario, Some(self.oracle)).is_empty())
        };
        shrink::shrink(&self.text, &mut fails)
    }
}

#[cfg(test)]
mod tests {
    use super::bugs::{BUGS, Bug};
    use super::*;

    fn hunt_of(set: &[&str], machines: u64, only: Option<&'static Oracle>) -> Hunt {
        let set = set.iter().map(|&pair| pair.to_owned()).collect();
        Hunt { first: 0, machines, only, set, jobs: 2, first_only: true }
    }

    #[test]
    fn the_engine_as_it_is_breaks_no_rule() {
        let caught = hunt(&hunt_of(&[], 100, None), &|_| false).unwrap();
        let told: Vec<String> = caught
            .findings
            .iter()
            .map(|f| format!("{}: {:?}: {}", f.seed, f.oracle, f.told))
            .collect();
        assert_eq!((told, caught.machines), (Vec::new(), 100));
    }

    #[test]
    fn each_bug_of_kernels_is_found_and_small_again() {
        // Shrinking takes hundreds of runs. Leave out busy-kswapd, because such runs are the
        // longest.
        let mut smalls = std::collections::BTreeSet::from(["busy-kswapd"]);
        for Bug { about, set, oracle, machines } in BUGS {
            let oracle = oracle::find(oracle).unwrap();
            // Run only the last of the machines that a cold start takes.
            let near = Hunt { first: machines.saturating_sub(8), ..hunt_of(set, 8, Some(oracle)) };
            let caught = hunt(&near, &|_| false).unwrap();
            let found = caught.findings.first().unwrap_or_else(|| panic!("not found: {about}"));
            assert_eq!(found.seed + 1, *machines, "{about}");
            // Shrink one finding of each rule.
            let text = if smalls.insert(oracle.name) {
                let (small, steps) = found.shrunk();
                assert!(steps > 0, "{about}");
                small
            } else {
                found.text.clone()
            };
            // The file shows the bug, and shows nothing with the bug switched off.
            let mut scenario = machine(&text).unwrap();
            assert!(!examine(&scenario, Some(oracle)).is_empty(), "{about}: {text}");
            scenario.switches.retain(|pair| !set.contains(&pair.as_str()));
            assert!(examine(&scenario, Some(oracle)).is_empty(), "{about}: {text}");
        }
    }

    #[test]
    fn findings_do_not_depend_on_the_number_of_threads() {
        let with = |jobs| {
            let only = Some(oracle::find("busy-kswapd").unwrap());
            let hunt_of = Hunt { jobs, ..hunt_of(&["kswapd.balanced=all"], 100, only) };
            let caught = hunt(&hunt_of, &|_| false).unwrap();
            caught.findings.iter().map(|f| (f.seed, f.told.clone())).collect::<Vec<_>>()
        };
        assert_eq!(with(1), with(3));
    }

    #[test]
    fn a_wrong_name_of_a_rule_is_answered_with_the_right_one() {
        assert!(
            oracle::find("false-ooms")
                .unwrap_err()
                .to_string()
                .contains("did you mean \"false-oom\"?")
        );
        assert!(hunt(&hunt_of(&["gen.wlak=off"], 1, None), &|_| false).is_err());
    }
}
