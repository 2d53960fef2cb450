//! Plans all runs of some scenarios, does them, and judges the cases.
//!
//! The rule and its predecessor judge each case ([`rule`](super::rule),
//! [`verdict`](super::verdict)).

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ebb_mm::nearest::nearest;

use super::exercise::{exercised, ran_in_first};
use super::rule::{Class, classify};
use super::stats::Estimate;
use super::verdict::{Verdict, judge};
use crate::machine::pressure::Reading;
use crate::machine::{Patience, Sample, Tracepoints};
use crate::mrc::Curve;
use crate::scenario::{
    ArmSpec, Metrics, Published, RunError, Scenario, ScenarioError, metric_names, no_tracepoints,
    run_traced,
};

/// A scenario with everything decided but the seed.
#[derive(Clone, Debug)]
pub struct Job {
    /// Scenario with its settings applied.
    pub scenario: Scenario,
    /// Text of the scenario file.
    pub text: String,
    /// Settings from the command line.
    pub set: Vec<String>,
    /// Arms from the command line, which replace the file's arms.
    pub arms: Option<Vec<ArmSpec>>,
    /// Number of seeds.
    pub seeds: u32,
    /// Seed before the first one that is used.
    pub first_seed: u64,
    /// Size of the machine and its workloads as a multiple of the file's.
    pub size: f64,
    /// Nanoseconds between samples of the machine in the first run of each arm; 0 for none.
    pub samples: u64,
}

/// Measurements of an arm.
#[derive(Clone, Debug, Default)]
pub struct Arm {
    /// Name of the arm.
    pub name: String,
    /// For each metric: its value for each seed.
    pub values: std::collections::BTreeMap<String, Vec<f64>>,
    /// Samples of the first run, for pictures.
    pub samples: Vec<Sample>,
    /// Pressure of the machine and of each memcg in the first run.
    pub pressure: Vec<Reading>,
}

impl Arm {
    /// Returns the values of a metric.
    #[must_use]
    pub fn of(&self, metric: &str) -> &[f64] {
        self.values.get(metric).map_or(&[], Vec::as_slice)
    }
}

/// Results of a case.
#[derive(Clone, Debug)]
pub struct Case {
    /// `SCENARIO` or `SCENARIO/CASE`.
    pub name: String,
    /// Metric that decides.
    pub metric: String,
    /// Whether a larger value of the metric is better.
    pub higher_is_better: bool,
    /// Published result; none if the arms come from the command line.
    pub published: Option<Published>,
    /// Arms; the first is the baseline.
    pub arms: Vec<Arm>,
    /// Change from the first arm to the second, in percent.
    pub effect: Estimate,
    /// Miss ratios of textbook policies for the accesses of the baseline's first run.
    pub curves: Vec<Curve>,
    /// Quantity that the lab measured; equal for cases that share one number.
    pub quantity: String,
    /// Whether any code ran in which the first two arms differ.
    pub exercised: bool,
    /// For each arm after the first: whether the first arm ran any code that this arm does
    /// differently.
    pub ran_in_first: Vec<bool>,
    /// Judgement by the rule.
    pub class: Option<Class>,
    /// Judgement by rule 1.
    pub verdict: Option<Verdict>,
    /// Results at other sizes, if the case ran there.
    pub sizes: Vec<AtSize>,
}

/// Result of a case at another size.
#[derive(Clone, Copy, Debug)]
pub struct AtSize {
    /// Size as a multiple of the file's.
    pub size: f64,
    /// Change in percent.
    pub effect: Estimate,
    /// Judgement by the rule.
    pub class: Option<Class>,
}

impl Case {
    /// Returns whether the judgement is equal at all sizes. None if the case ran at one size only,
    /// or has no judgement.
    #[must_use]
    pub fn survives(&self) -> Option<bool> {
        let same = self.sizes.iter().all(|s| s.class == self.class);
        (!self.sizes.is_empty() && self.class.is_some()).then_some(same)
    }
}

/// Results of a scenario.
#[derive(Clone, Debug)]
pub struct Results {
    /// Scenario that ran.
    pub scenario: Scenario,
    /// Number of seeds.
    pub seeds: u32,
    /// Seed before the first one that was used.
    pub first_seed: u64,
    /// Results of the scenario's cases.
    pub cases: Vec<Case>,
}

struct Run {
    scenario: Scenario,
    seed: u64,
    samples: u64,
    label: String,
    /// Whether to compute miss-ratio curves of the accesses.
    curves: bool,
    /// File for the reclaim events, if wanted.
    events: Option<PathBuf>,
}

/// A run whose reclaim events are written to a file.
#[derive(Clone, Debug)]
pub struct Traced {
    /// Case, as reports name it; none for the first.
    pub case: Option<String>,
    /// Arm; none for the first.
    pub arm: Option<String>,
    /// Number of the arm's run, from 0.
    pub seed: u32,
    /// File to write.
    pub file: PathBuf,
}

/// A case of a job, with the scenario of each arm.
struct Planned {
    name: String,
    metric: String,
    higher_is_better: bool,
    published: Option<Published>,
    quantity: Option<String>,
    planned_arms: Vec<PlannedArm>,
}

impl Planned {
    /// Returns the name of the measured quantity. That is `quantity` in the scenario file, or else
    /// the metric with the settings of the first two arms.
    fn quantity(&self) -> String {
        let own = || {
            let planned_arms: Vec<String> =
                self.planned_arms.iter().take(2).map(|s| s.pairs.join(" ")).collect();
            format!("{} of {}", self.metric, planned_arms.join(" | "))
        };
        self.quantity.clone().unwrap_or_else(own)
    }
}

impl Planned {
    /// Judges the case from the runs of its arms.
    fn judged(&self, runs: &[&[Outcome]]) -> anyhow::Result<Case> {
        let (name, metric) = (self.name.clone(), self.metric.clone());
        let published = self.published.clone();
        let mut arms = Vec::new();
        let mut curves = Vec::new();
        for (planned_arm, outcomes) in self.planned_arms.iter().zip(runs) {
            let mut arm = Arm { name: planned_arm.name.clone(), ..Arm::default() };
            for outcome in *outcomes {
                if curves.is_empty() {
                    curves.clone_from(&outcome.curves);
                }
                for (metric, value) in &outcome.metrics {
                    arm.values.entry(metric.clone()).or_default().push(*value);
                }
                if arm.pressure.is_empty() {
                    arm.pressure.clone_from(&outcome.pressure);
                }
                if !outcome.samples.is_empty() {
                    arm.samples.clone_from(&outcome.samples);
                }
            }
            arms.push(arm);
        }
        // An arm lacks for instance the latency of an operation that no thread does.
        if let Some(arm) = arms.iter().find(|a| a.of(&metric).is_empty()) {
            let known = arm.values.keys().cloned();
            anyhow::bail!("{name}, {}: {}", arm.name, no_metric(&metric, known));
        }
        let effect = match arms.as_slice() {
            [a, b, ..] => Estimate::of_change(a.of(&metric), b.of(&metric)),
            _ => Estimate::default(),
        };
        let exercised = match (self.planned_arms.as_slice(), arms.as_slice()) {
            ([a, b, ..], [x, y, ..]) => exercised((&a.scenario, x), (&b.scenario, y)),
            _ => true,
        };
        let others = self.planned_arms.iter().skip(1);
        let in_first =
            |b: &PlannedArm| ran_in_first((&self.planned_arms[0].scenario, &arms[0]), &b.scenario);
        let ran_in_first = others.map(in_first).collect();
        Ok(Case {
            name,
            metric,
            higher_is_better: self.higher_is_better,
            class: published.as_ref().map(|p| classify(&effect, p, exercised)),
            verdict: published.as_ref().map(|p| judge(&effect, p)),
            published,
            arms,
            effect,
            curves,
            quantity: self.quantity(),
            exercised,
            ran_in_first,
            sizes: Vec::new(),
        })
    }
}

/// An arm of a case.
struct PlannedArm {
    name: String,
    /// All settings; equal settings make equal runs.
    pairs: Vec<String>,
    scenario: Scenario,
}

fn plan(job: &Job) -> Result<Vec<Planned>, ScenarioError> {
    let s = &job.scenario;
    if s.case.is_empty() {
        let arms = job.arms.as_deref().unwrap_or(&s.arm);
        let planned_arms = plan_arms(job, &[], arms)?;
        let metric = s.measure.metric.clone();
        let (name, higher_is_better) = (s.name.clone(), s.measure.higher_is_better);
        let (published, quantity) = (None, None);
        let planned = Planned { name, metric, higher_is_better, published, quantity, planned_arms };
        return Ok(vec![planned]);
    }
    let mut planned = Vec::new();
    for c in &s.case {
        let own = s.arms_of(c);
        let arms = job.arms.as_deref().unwrap_or(&own);
        let alone = s.case.len() == 1;
        let rounded_to = s.measure.rounded_to;
        let published = c.published.clone().map(|p| Published { rounded_to, ..p });
        planned.push(Planned {
            name: if alone { s.name.clone() } else { format!("{}/{}", s.name, c.name) },
            metric: c.metric.as_ref().unwrap_or(&s.measure.metric).clone(),
            higher_is_better: c.higher_is_better.unwrap_or(s.measure.higher_is_better),
            published: published.filter(|_| job.arms.is_none()),
            quantity: c.quantity.clone(),
            planned_arms: plan_arms(job, &c.set, arms)?,
        });
    }
    Ok(planned)
}

/// Returns the scenario of each arm. Settings of the file, the case, the arm and the command line
/// apply in this order; later ones win. Arms from the command line apply last, so that a preset set
/// for all arms does not undo them. A preset in such an arm replaces a preset for all arms. It
/// applies before the other settings for all arms, so that it does not undo them.
fn plan_arms(
    job: &Job,
    case: &[String],
    arms: &[ArmSpec],
) -> Result<Vec<PlannedArm>, ScenarioError> {
    let plan_arm = |arm: &ArmSpec| {
        let (first, last) =
            if job.arms.is_some() { (&job.set, &arm.set) } else { (&arm.set, &job.set) };
        let is_preset = |pair: &&String| pair.starts_with("preset=");
        let compared = job.arms.is_some() && last.iter().any(|pair| is_preset(&pair));
        let (presets, rest): (Vec<_>, Vec<_>) = if compared {
            let rest = first.iter().chain(last).filter(|pair| !is_preset(pair));
            (last.iter().filter(is_preset).collect(), rest.collect())
        } else {
            (Vec::new(), first.iter().chain(last).collect())
        };
        let pairs: Vec<String> = case.iter().chain(presets).chain(rest).cloned().collect();
        let mut scenario = Scenario::with(&job.text, &pairs)?;
        if job.size != 1.0 {
            scenario = scenario.at_size(job.size)?;
        }
        Ok(PlannedArm { name: arm.name.clone(), pairs, scenario })
    };
    arms.iter().map(plan_arm).collect()
}

/// Returns whether `name` means the case `full`, which is `SCENARIO/CASE` or `SCENARIO`.
fn case_is(full: &str, name: &str) -> bool {
    full == name || full.split_once('/').is_some_and(|(_, case)| case == name)
}

fn no_such(what: &str, name: Option<&str>, known: impl Iterator<Item = String>) -> String {
    let known: Vec<String> = known.collect();
    format!("there is no {what} {:?}; there are {}", name.unwrap_or_default(), known.join(", "))
}

fn no_metric(metric: &str, known: impl IntoIterator<Item = String>) -> String {
    let near = nearest(metric, known).unwrap_or_default();
    format!("there is no metric {metric:?}; did you mean {near:?}?")
}

/// All runs that some jobs need, in an order that depends on the jobs only.
pub struct Plan {
    jobs: Vec<Job>,
    cases: Vec<Vec<Planned>>,
    runs: Vec<Run>,
    /// For each arm of each case, in order: the index of its first run.
    places: Vec<usize>,
}

/// Outcome of one run.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Measured values by metric.
    pub metrics: Metrics,
    /// Samples of the machine, if wanted.
    pub samples: Vec<Sample>,
    /// Miss ratios of textbook policies, if wanted.
    pub curves: Vec<Curve>,
    /// Pressure of the machine and of each memcg.
    pub pressure: Vec<Reading>,
}

impl Plan {
    /// Plans the runs of `jobs`.
    ///
    /// # Errors
    /// Fails if a setting is invalid or a metric does not exist.
    pub fn new(jobs: Vec<Job>) -> anyhow::Result<Self> {
        let plans = jobs.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
        // The check comes before the first run, because a run may take a minute.
        for case in plans.iter().flatten() {
            for planned_arm in &case.planned_arms {
                let known = metric_names(&planned_arm.scenario);
                if !known.contains(&case.metric) {
                    anyhow::bail!("{}: {}", case.name, no_metric(&case.metric, known));
                }
            }
        }
        let mut runs: Vec<Run> = Vec::new();
        // Cases that differ only in their metric share runs.
        let mut known = std::collections::BTreeMap::<(usize, &[String]), usize>::new();
        let mut places = Vec::new();
        for (number, (job, cases)) in jobs.iter().zip(&plans).enumerate() {
            for case in cases {
                for (place, planned_arm) in case.planned_arms.iter().enumerate() {
                    let first = *known.entry((number, &planned_arm.pairs)).or_insert_with(|| {
                        for seed in 0..u64::from(job.seeds) {
                            let samples = if seed == 0 { job.samples } else { 0 };
                            let label = format!("{}, {}, seed {seed}", case.name, planned_arm.name);
                            let scenario = planned_arm.scenario.clone();
                            let seed = job.first_seed + seed + 1;
                            let curves = samples > 0 && place == 0;
                            let events = None;
                            runs.push(Run { scenario, seed, samples, label, curves, events });
                        }
                        runs.len() - job.seeds as usize
                    });
                    places.push(first);
                }
            }
        }
        Ok(Self { jobs, cases: plans, runs, places })
    }

    /// Lets one run write its reclaim events to a file. The results of all runs stay the same.
    ///
    /// # Errors
    /// Fails if there is no such run, or if it has no kernel tracepoints.
    pub fn trace(&mut self, wanted: &Traced) -> anyhow::Result<()> {
        let mut places = self.places.iter().copied();
        let mut cases = self.cases.iter().flatten();
        let mut skipped = 0;
        let case = cases.find(|case| {
            let is = wanted.case.as_ref().is_none_or(|name| case_is(&case.name, name));
            skipped += if is { 0 } else { case.planned_arms.len() };
            is
        });
        let Some(case) = case else {
            let known = self.cases.iter().flatten().map(|case| case.name.clone());
            anyhow::bail!(no_such("case", wanted.case.as_deref(), known));
        };
        let is = |planned_arm: &PlannedArm| {
            wanted.arm.as_ref().is_none_or(|name| *name == planned_arm.name)
        };
        let Some(arm) = case.planned_arms.iter().position(is) else {
            let known = case.planned_arms.iter().map(|planned_arm| planned_arm.name.clone());
            anyhow::bail!(no_such("arm", wanted.arm.as_deref(), known));
        };
        let seeds = self.jobs.first().map_or(0, |job| job.seeds);
        anyhow::ensure!(wanted.seed < seeds, "seed {}: there are 0 to {}", wanted.seed, seeds - 1);
        let planned_arm = &case.planned_arms[arm];
        if let Some(why) = no_tracepoints(&planned_arm.scenario) {
            anyhow::bail!(
                "{}, {}: it {why}; --trace-arm names another",
                case.name,
                planned_arm.name
            );
        }
        if let Some(first) = places.nth(skipped + arm) {
            self.runs[first + wanted.seed as usize].events = Some(wanted.file.clone());
        }
        Ok(())
    }

    /// Returns the number of runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Returns whether there is nothing to run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Does the runs `which` over `threads` threads, and returns their outcomes in the order of
    /// `which`. Reports each ended run to `progress`.
    ///
    /// # Errors
    /// Fails if a run fails, for example because it violates a conservation law.
    pub fn perform(
        &self,
        which: &[usize],
        threads: usize,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> anyhow::Result<Vec<Outcome>> {
        let runs: Vec<&Run> = which.iter().map(|&run| &self.runs[run]).collect();
        spread(&runs, threads, progress)
    }

    /// Computes the results from the outcomes of all runs.
    ///
    /// # Errors
    /// Fails if a run did not measure a metric.
    pub fn results(&self, outcomes: &[Outcome]) -> anyhow::Result<Vec<Results>> {
        let mut places = self.places.iter().copied();
        let mut results = Vec::new();
        for (job, cases) in self.jobs.iter().zip(&self.cases) {
            let mut done = Vec::new();
            for case in cases {
                let firsts = case.planned_arms.iter().map(|_| places.next().unwrap_or(0));
                let seeds = job.seeds as usize;
                let runs: Vec<_> = firsts.map(|first| &outcomes[first..first + seeds]).collect();
                done.push(case.judged(&runs)?);
            }
            let (scenario, first_seed) = (job.scenario.clone(), job.first_seed);
            results.push(Results { scenario, seeds: job.seeds, first_seed, cases: done });
        }
        Ok(results)
    }
}

/// Runs all jobs over `threads` threads. Reports each ended run to `progress`.
///
/// # Errors
/// Fails if a setting is invalid or a run fails.
pub fn run(
    jobs: &[Job],
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> anyhow::Result<Vec<Results>> {
    let plan = Plan::new(jobs.to_vec())?;
    let all: Vec<usize> = (0..plan.len()).collect();
    plan.results(&plan.perform(&all, threads, progress)?)
}

/// Returns the jobs, followed by the jobs at each size of `factors`, as a multiple of the file's.
#[must_use]
pub fn at_sizes(jobs: &[Job], factors: &[f64]) -> Vec<Job> {
    let mut all = jobs.to_vec();
    for &factor in factors {
        all.extend(jobs.iter().cloned().map(|job| Job { size: factor, samples: 0, ..job }));
    }
    all
}

/// Adds the results at other sizes from [`at_sizes`] to the results at the jobs' own size.
#[must_use]
pub fn beside_sizes(mut results: Vec<Results>, factors: &[f64]) -> Vec<Results> {
    let jobs = results.len() / (1 + factors.len());
    let others = results.split_off(jobs);
    for (i, other) in others.into_iter().enumerate() {
        let size = factors[i / jobs];
        let cases = &mut results[i % jobs].cases;
        for (case, at) in cases.iter_mut().zip(other.cases) {
            case.sizes.push(AtSize { size, effect: at.effect, class: at.class });
        }
    }
    results
}

fn run_one(run: &Run) -> Result<Outcome, RunError> {
    let tracepoints =
        run.events.as_deref().map(|path| tracepoints(path, &run.label)).transpose()?;
    let patience = Patience::default();
    let (metrics, outcome) =
        run_traced(&run.scenario, run.seed, run.samples, patience, tracepoints)?;
    let touches = outcome.trace.touches();
    let curves = if run.curves && !touches.is_empty() {
        crate::mrc::of_touches(touches)?
    } else {
        Vec::new()
    };
    Ok(Outcome { metrics, samples: outcome.samples, curves, pressure: outcome.pressure })
}

fn tracepoints(path: &Path, label: &str) -> Result<Tracepoints, RunError> {
    let file = File::create(path).map_err(|e| RunError::EventFile(path.into(), e))?;
    Ok(Tracepoints::new(Box::new(BufWriter::new(file)), label))
}

fn spread(
    runs: &[&Run],
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> anyhow::Result<Vec<Outcome>> {
    let next = AtomicUsize::new(0);
    let ended = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<Outcome, RunError>>>> =
        runs.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, runs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    // Relaxed: the threads share nothing but the number itself.
                    let i = next.fetch_add(1, Relaxed);
                    let Some(run) = runs.get(i) else { break };
                    *results[i].lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                        Some(run_one(run));
                    progress(ended.fetch_add(1, Relaxed) + 1, runs.len());
                }
            });
        }
    });
    let mut done = Vec::new();
    for (run, cell) in runs.iter().zip(results) {
        let result = cell.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        let Some(result) = result else { anyhow::bail!("a run was lost") };
        done.push(result.map_err(|e| anyhow::anyhow!("{}: {e}", run.label))?);
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::BUILTIN;

    #[test]
    fn a_case_with_a_metric_of_its_own_says_whether_higher_is_better() {
        let text =
            BUILTIN.iter().find(|b| b.text.contains("name = \"dirty-ycsb-b\"")).unwrap().text;
        let scenario = Scenario::parse("x.toml", text).unwrap();
        let (text, set) = (text.to_owned(), Vec::new());
        let job =
            Job { scenario, text, set, arms: None, seeds: 2, first_seed: 0, size: 1.0, samples: 0 };
        let planned = plan(&job).unwrap();
        let said: Vec<_> = planned.iter().map(|p| (&*p.metric, p.higher_is_better)).collect();
        assert_eq!(said[..2], [("ops_per_s", true), ("latency_us", false)]);
        assert!(said.contains(&("workingset_refault_file", false)));
    }

    #[test]
    fn a_metric_that_there_is_not_is_refused_before_the_first_run() {
        let text = BUILTIN.iter().find(|b| b.name == "redis").unwrap().text.to_owned();
        let scenario = Scenario::parse("x.toml", &text).unwrap();
        let text = text.replace("metric = \"ops_per_s\"", "metric = \"ops_per_sec\"");
        let wrong = Scenario::parse("x.toml", &text).unwrap();
        assert_ne!(wrong.measure.metric, scenario.measure.metric);
        let (set, arms) = (Vec::new(), None);
        let job = Job {
            scenario: wrong,
            text,
            set,
            arms,
            seeds: 2,
            first_seed: 0,
            size: 1.0,
            samples: 0,
        };
        let error = run(&[job], 1, &|_, _| panic!("something has run")).unwrap_err().to_string();
        assert!(
            error.ends_with("there is no metric \"ops_per_sec\"; did you mean \"ops_per_s\"?"),
            "{error}"
        );
    }

    #[test]
    fn every_measured_metric_is_a_known_one() {
        let text = include_str!("../../tests/small.toml");
        let scenario = Scenario::parse("small.toml", text).unwrap();
        let known = metric_names(&scenario);
        let (measured, _) = crate::scenario::run_once(&scenario, 1, 0).unwrap();
        assert!(!measured.is_empty() && measured.keys().all(|name| known.contains(name)));
    }

    #[test]
    fn a_preset_for_all_arms_does_not_undo_the_compared_settings() {
        let text = BUILTIN[0].text.to_owned();
        let arm = |pair: &str| ArmSpec { name: pair.into(), set: vec![pair.into()] };
        let job = |arms| Job {
            scenario: Scenario::parse("x.toml", &text).unwrap(),
            text: text.clone(),
            set: vec!["preset=k612".into()],
            arms,
            seeds: 2,
            first_seed: 0,
            size: 1.0,
            samples: 0,
        };
        let last = |arms| {
            let planned = plan(&job(arms)).unwrap();
            planned[0].planned_arms[1].pairs.last().cloned().unwrap()
        };
        assert_eq!(last(Some(vec![arm("dirty=k618"), arm("dirty=k72")])), "dirty=k72");
        assert_eq!(last(None), "preset=k612");
        // A compared preset does not undo the settings for all arms either.
        let mut all = job(Some(vec![arm("preset=k618"), arm("preset=ebb")]));
        all.set = vec!["preset=k612".into(), "swap.page_cluster=1".into()];
        let pairs = plan(&all).unwrap()[0].planned_arms[1].pairs.clone();
        assert_eq!(pairs[pairs.len() - 2..], ["preset=ebb", "swap.page_cluster=1"]);
    }
}
