//! `ebb lab tune`: searches switches and constants for the best of one metric.
//!
//! The search tries one key after the other at each of its values, on equal seeds, and keeps the
//! best value. It ends when a whole round changes nothing. Then it compares the result with the
//! start on new seeds, and on scenarios that the search never used. This shows a set that is good
//! only on the scenario it was fitted to.

use std::fmt::Write;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

use super::print;
use crate::experiment::stats::Estimate;
use crate::experiment::verdict::significant;
use crate::experiment::{self, Job};
use crate::scenario::{ArmSpec, Scenario, find};

/// Arguments of `ebb lab tune`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// A built-in scenario, or a file ending in .toml; its first case is used
    pub scenario: String,
    /// Metric to minimise
    #[arg(long, value_name = "METRIC", required_unless_present = "maximise")]
    pub minimise: Option<String>,
    /// Metric to maximise
    #[arg(long, value_name = "METRIC", conflicts_with = "minimise")]
    pub maximise: Option<String>,
    /// A key and the values to try: KEY=A,B,C or KEY=LOW..HIGH
    #[arg(long, value_name = "KEY=RANGE", required = true)]
    pub over: Vec<String>,
    /// Seeds for each try
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(2..))]
    pub seeds: u32,
    /// Threads to use
    #[arg(long, short, value_name = "N", default_value_t = 2)]
    pub jobs: usize,
    /// Scenarios on which the result is tried, with commas
    #[arg(long, value_name = "LIST", default_value = "memcached,redis,mongodb-ycsb")]
    pub check: String,
}

/// Largest number of rounds over all keys.
const ROUNDS_MAX: usize = 4;

/// Returns the key and the values of `KEY=A,B` or `KEY=LOW..HIGH`. `takes` tells whether the
/// scenario accepts a pair. If a key accepts only whole numbers, the values of a range are rounded.
fn values(
    text: &str,
    takes: &dyn Fn(&str) -> anyhow::Result<()>,
) -> anyhow::Result<(String, Vec<String>)> {
    let Some((key, range)) = text.split_once('=') else {
        bail!("--over {text}: expected KEY=A,B,C or KEY=LOW..HIGH");
    };
    if let Some((low, high)) = range.split_once("..") {
        let parse = |t: &str| t.trim().parse::<f64>().ok().filter(|v| *v >= 0.0);
        let (Some(low), Some(high)) = (parse(low), parse(high)) else {
            bail!("--over {text}: expected two numbers around ..");
        };
        if high <= low {
            bail!("--over {text}: {high} is not above {low}");
        }
        // Five values at equal ratios (or at equal distances from zero).
        let at = |i: i32| {
            let share = f64::from(i) / 4.0;
            if low > 0.0 { low * (high / low).powf(share) } else { high * share }
        };
        let text = |v: f64| {
            if v >= 10.0 || v.fract() == 0.0 { format!("{v:.0}") } else { format!("{v:.2}") }
        };
        let pair = |v: &str| format!("{}={v}", key.trim());
        let broken = (0..5).map(|i| text(at(i))).any(|v| takes(&pair(&v)).is_err());
        let whole = |v: f64| format!("{v:.0}");
        let mut list: Vec<String> =
            (0..5).map(|i| if broken { whole(at(i)) } else { text(at(i)) }).collect();
        list.dedup();
        list.iter().try_for_each(|v| takes(&pair(v)))?;
        return Ok((key.trim().into(), list));
    }
    let list: Vec<String> = range.split(',').map(|v| v.trim().to_owned()).collect();
    list.iter().try_for_each(|v| takes(&format!("{}={v}", key.trim())))?;
    Ok((key.trim().into(), list))
}

/// Returns the text of a built-in scenario, or of a file.
fn source(name: &str) -> anyhow::Result<String> {
    if name.ends_with(".toml") {
        return std::fs::read_to_string(name).with_context(|| name.to_owned());
    }
    Ok(find(name)?.text.to_owned())
}

/// Runs arms on the first case, and returns each arm's values of the metric.
fn measure(
    name: &str,
    arms: Vec<ArmSpec>,
    metric: &str,
    (seeds, first_seed, jobs): (u32, u64, usize),
) -> anyhow::Result<Vec<Vec<f64>>> {
    let text = source(name)?;
    let mut scenario = Scenario::parse(name, &text)?;
    scenario.case.truncate(1);
    scenario.measure.metric = metric.to_owned();
    if let Some(case) = scenario.case.first_mut() {
        case.metric = None;
    }
    let arms = Some(arms);
    let job = Job { scenario, text, set: vec![], arms, seeds, first_seed, size: 1.0, samples: 0 };
    let results = experiment::run(&[job], jobs, &|_, _| {})?;
    Ok(results[0].cases[0].arms.iter().map(|a| a.of(metric).to_vec()).collect())
}

fn arm(name: &str, set: &[(String, String)]) -> ArmSpec {
    let set = set.iter().map(|(k, v)| format!("{k}={v}")).collect();
    ArmSpec { name: name.into(), set }
}

/// Runs `ebb lab tune`: searches, and prints the report.
pub fn run(args: &TuneArgs) -> anyhow::Result<ExitCode> {
    let higher = args.maximise.is_some();
    let Some(metric) = args.maximise.as_ref().or(args.minimise.as_ref()) else {
        bail!("expected --minimise or --maximise");
    };
    // Report a wrong name here rather than after the search.
    let held_out = |n: &&str| !n.is_empty() && *n != args.scenario;
    let checked: Vec<&str> = args.check.split(',').map(str::trim).filter(held_out).collect();
    for name in &checked {
        source(name)?;
    }
    let text = source(&args.scenario)?;
    let takes = |pair: &str| Ok(Scenario::with(&text, &[pair.to_owned()]).map(drop)?);
    let keys = args.over.iter().map(|o| values(o, &takes)).collect::<anyhow::Result<Vec<_>>>()?;
    let mut best: Vec<(String, String)> = Vec::new();
    let mut tried = 0;
    for _ in 0..ROUNDS_MAX {
        let before = best.clone();
        for (key, list) in &keys {
            let others: Vec<_> = best.iter().filter(|(k, _)| k != key).cloned().collect();
            let mut arms = vec![arm("as it is", &best)];
            for value in list {
                let mut set = others.clone();
                set.push((key.clone(), value.clone()));
                arms.push(arm(value, &set));
            }
            let measured = measure(&args.scenario, arms, metric, (args.seeds, 0, args.jobs))?;
            tried += measured.len();
            let mean = |v: &[f64]| Estimate::of(v).mean * if higher { -1.0 } else { 1.0 };
            let mut choice = 0;
            for i in 1..measured.len() {
                if mean(&measured[i]) < mean(&measured[choice]) {
                    choice = i;
                }
            }
            if choice > 0 {
                best = others;
                best.push((key.clone(), list[choice - 1].clone()));
            }
        }
        if best == before {
            break;
        }
    }
    let mut text = format!("{tried} sets tried on {} ({} seeds each)\n", args.scenario, args.seeds);
    if best.is_empty() {
        text += "nothing is better than the defaults\n";
        print(&text)?;
        return Ok(ExitCode::SUCCESS);
    }
    let pairs: Vec<String> = best.iter().map(|(k, v)| format!("{k}={v}")).collect();
    let _ = writeln!(text, "best: {}", pairs.join(" "));
    for name in std::iter::once(args.scenario.as_str()).chain(checked) {
        let own = name == args.scenario;
        let arms = vec![arm("defaults", &[]), arm("best", &best)];
        let setup = (args.seeds.max(10), 1000, args.jobs);
        match measure(name, arms, metric, setup) {
            Ok(m) => {
                let e = Estimate::of_change(&m[0], &m[1]);
                let word = match significant(&e) {
                    false => "no significant difference",
                    true if (e.mean > 0.0) == higher => "better",
                    true => "worse",
                };
                let which = if own { "seeds not tuned on" } else { "not tuned on" };
                let here = format!("{:+.2} ± {:.2} %", e.mean, e.ci95);
                let _ = writeln!(text, "  {name:<22} {metric} {here:>20}  {word} ({which})");
            }
            Err(error) => {
                let _ = writeln!(text, "  {name:<22} not comparable: {error:#}");
            }
        }
    }
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> anyhow::Result<String> {
        let redis = find("redis")?.text;
        let takes = |pair: &str| Ok(Scenario::with(redis, &[pair.to_owned()]).map(drop)?);
        values(text, &takes).map(|(key, list)| format!("{key}: {}", list.join(" ")))
    }

    #[test]
    fn ranges_become_values() {
        assert_eq!(of("gen.near=1..16").unwrap(), "gen.near: 1 2 4 8 16");
        assert_eq!(of("workload.theta=0.5..2").unwrap(), "workload.theta: 0.50 0.71 1 1.41 2");
        assert_eq!(of("dirty=k618, k72").unwrap(), "dirty: k618 k72");
        assert!(of("gen.near=5..2").is_err() && of("gen.near").is_err());
    }

    #[test]
    fn a_range_of_a_switch_that_takes_whole_numbers_has_whole_numbers() {
        // The example in the README.
        assert_eq!(of("gen.probation=2..40").unwrap(), "gen.probation: 2 4 9 19 40");
        assert_eq!(of("machine.cpus=1..4").unwrap(), "machine.cpus: 1 2 3 4");
    }

    #[test]
    fn a_wrong_parameter_is_refused_before_the_search() {
        let told = |text: &str| of(text).unwrap_err().to_string();
        assert!(told("gen.probtion=2..40").contains("did you mean 'gen.probation'?"));
        assert!(told("dirty=k618,k7").contains("is not one of"));
    }
}
