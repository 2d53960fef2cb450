//! Runs of a scenario, for the tests of the simulated machine.

use ebb_lab::experiment::{Job, Results, run as run_all};
use ebb_lab::scenario::{Metrics, Scenario, run_once};

/// Returns the measured values of one run of the scenario `text` with `pairs` set.
pub fn run(text: &str, pairs: &[&str], seed: u64) -> Metrics {
    let pairs: Vec<String> = pairs.iter().map(|p| (*p).to_owned()).collect();
    run_once(&Scenario::with(text, &pairs).unwrap(), seed, 0).unwrap().0
}

/// Runs all cases and arms of the scenario `text`, as for a report; samples every `samples` ns if
/// not 0.
pub fn experiment(text: &str, seeds: u32, threads: usize, samples: u64) -> Vec<Results> {
    let scenario = Scenario::parse("text.toml", text).unwrap();
    let text = text.to_owned();
    let job =
        Job { scenario, text, set: vec![], arms: None, seeds, first_seed: 0, size: 1.0, samples };
    run_all(&[job], threads, &|_, _| {}).unwrap()
}
