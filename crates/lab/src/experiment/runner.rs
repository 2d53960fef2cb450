//! All runs of some scenarios.
//!
//! Cases are judged here, by the rule and by the one before it ([`rule`](super::rule), [`verdict`](super::verdict)).

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
    ArmSpec, Metrics, Published, Scenario, ScenarioError, metric_names, no_tracepoints, run_traced,
};

/// A scenario with everything decided but the seed.
#[derive(Clone, Debug)]
pub struct Job {
    /// The scenario as set.
    pub scenario: Scenario,
    /// Its text.
    pub text: String,
    /// Settings from the command line.
    pub set: Vec<String>,
    /// What is compared, in place of the file's arms.
    pub arms: Option<Vec<ArmSpec>>,
    /// Seeds.
    pub seeds: u32,
    /// The seed before the first.
    pub first_seed: u64,
    /// How large the machine and all that runs on it is, of what the file says.
    pub size: f64,
    /// Time between looks at the machine in the first run of each arm; 0: none.
    pub samples: u64,
}

/// What an arm measured.
#[derive(Clone, Debug, Default)]
pub struct Arm {
    /// Its name.
    pub name: String,
    /// By metric: its value for each seed.
    pub values: std::collections::BTreeMap<String, Vec<f64>>,
    /// The first run in pictures.
    pub samples: Vec<Sample>,
    /// The pressure of the machine and of each memcg in the first run.
    pub pressure: Vec<Reading>,
}

impl Arm {
    /// A metric's values.
    #[must_use]
    pub fn of(&self, metric: &str) -> &[f64] {
        self.values.get(metric).map_or(&[], Vec::as_slice)
    }
}

/// A case's results.
#[derive(Clone, Debug)]
pub struct Case {
    /// `SCENARIO` or `SCENARIO/CASE`.
    pub name: String,
    /// The metric that decides.
    pub metric: String,
    /// Whether more of it is better.
    pub higher_is_better: bool,
    /// What was published; none if the arms are the user's own.
    pub published: Option<Published>,
    /// The arms; the first is the baseline.
    pub arms: Vec<Arm>,
    /// The change from the first arm to the second, in percent.
    pub effect: Estimate,
    /// Miss ratios of textbook policies over what the first run of the baseline touched.
    pub curves: Vec<Curve>,
    /// What the lab measured: equal for cases that have one number.
    pub quantity: String,
    /// Whether anything ran of what differs between the first two arms.
    pub exercised: bool,
    /// For each arm after the first: whether anything ran in the first of what that one has otherwise.
    pub ran_in_first: Vec<bool>,
    /// The judgement by the rule.
    pub class: Option<Class>,
    /// The judgement by the rule before it.
    pub verdict: Option<Verdict>,
    /// The same at other sizes, if it was run there.
    pub sizes: Vec<AtSize>,
}

/// What a case comes to at another size.
#[derive(Clone, Copy, Debug)]
pub struct AtSize {
    /// Times the size that the file says.
    pub size: f64,
    /// The change.
    pub effect: Estimate,
    /// The judgement.
    pub class: Option<Class>,
}

impl Case {
    /// Whether the judgement is the same at all sizes; unknown if it was run at one alone.
    #[must_use]
    pub fn survives(&self) -> Option<bool> {
        let same = self.sizes.iter().all(|s| s.class == self.class);
        (!self.sizes.is_empty() && self.class.is_some()).then_some(same)
    }
}

/// A scenario's results.
#[derive(Clone, Debug)]
pub struct Results {
    /// The scenario.
    pub scenario: Scenario,
    /// Seeds run.
    pub seeds: u32,
    /// The seed before the first.
    pub first_seed: u64,
    /// Its cases.
    pub cases: Vec<Case>,
}

struct Run {
    scenario: Scenario,
    seed: u64,
    samples: u64,
    label: String,
    /// Whether the curves of what it touches are wanted.
    curves: bool,
    /// The file for what reclaim does, if that is wanted.
    events: Option<PathBuf>,
}

/// A run whose events are wanted.
#[derive(Clone, Debug)]
pub struct Traced {
    /// The case, as reports name it; none: the first.
    pub case: Option<String>,
    /// The arm; none: the first.
    pub arm: Option<String>,
    /// Which of the arm's runs, from 0.
    pub seed: u32,
    /// The file.
    pub file: PathBuf,
}

/// A case of a job, and each arm's scenario.
struct Planned {
    name: String,
    metric: String,
    higher_is_better: bool,
    published: Option<Published>,
    quantity: Option<String>,
    sides: Vec<Side>,
}

impl Planned {
    /// What it measures: by the name in the file, or by all that decides the number.
    fn quantity(&self) -> String {
        let own = || {
            let sides: Vec<String> = self.sides.iter().take(2).map(|s| s.pairs.join(" ")).collect();
            format!("{} of {}", self.metric, sides.join(" | "))
        };
        self.quantity.clone().unwrap_or_else(own)
    }
}

impl Planned {
    /// What comes of the runs of its sides.
    fn judged(&self, runs: &[&[Outcome]]) -> anyhow::Result<Case> {
        let (name, metric) = (self.name.clone(), self.metric.clone());
        let published = self.published.clone();
        let mut arms = Vec::new();
        let mut curves = Vec::new();
        for (side, outcomes) in self.sides.iter().zip(runs) {
            let mut arm = Arm { name: side.name.clone(), ..Arm::default() };
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
        // Such as the latency of a kind of operation that no thread does.
        if let Some(arm) = arms.iter().find(|a| a.of(&metric).is_empty()) {
            let known = arm.values.keys().cloned();
            anyhow::bail!("{name}, {}: {}", arm.name, no_metric(&metric, known));
        }
        let effect = match arms.as_slice() {
            [a, b, ..] => Estimate::of_change(a.of(&metric), b.of(&metric)),
            _ => Estimate::default(),
        };
        let exercised = match (self.sides.as_slice(), arms.as_slice()) {
            ([a, b, ..], [x, y, ..]) => exercised((&a.scenario, x), (&b.scenario, y)),
            _ => true,
        };
        let others = self.sides.iter().skip(1);
        let in_first = |b: &Side| ran_in_first((&self.sides[0].scenario, &arms[0]), &b.scenario);
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
struct Side {
    name: String,
    /// All settings: equal ones make equal runs.
    pairs: Vec<String>,
    scenario: Scenario,
}

fn plan(job: &Job) -> Result<Vec<Planned>, ScenarioError> {
    let s = &job.scenario;
    if s.case.is_empty() {
        let arms = job.arms.as_deref().unwrap_or(&s.arm);
        let sides = sides(job, &[], arms)?;
        let metric = s.measure.metric.clone();
        let (name, higher_is_better) = (s.name.clone(), s.measure.higher_is_better);
        let (published, quantity) = (None, None);
        let planned = Planned { name, metric, higher_is_better, published, quantity, sides };
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
            sides: sides(job, &c.set, arms)?,
        });
    }
    Ok(planned)
}

/// Each arm's scenario: the file, the case, the arm, the command line; the later wins. Arms that are the
/// user's own come last: a preset set for all of them must not undo what they compare. But a preset that is compared
/// comes first: it must not undo what was set for all.
fn sides(job: &Job, case: &[String], arms: &[ArmSpec]) -> Result<Vec<Side>, ScenarioError> {
    let side = |arm: &ArmSpec| {
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
        Ok(Side { name: arm.name.clone(), pairs, scenario })
    };
    arms.iter().map(side).collect()
}

/// Whether a case named `SCENARIO/CASE` or `SCENARIO` is the one that is called this.
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

/// Every run that some jobs need, in an order that depends on nothing but them.
pub struct Plan {
    jobs: Vec<Job>,
    cases: Vec<Vec<Planned>>,
    runs: Vec<Run>,
    /// For each arm of each case, in order: the first of its runs.
    places: Vec<usize>,
}

/// What one run came to.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// What it measured.
    pub metrics: Metrics,
    /// Looks at the machine, if they were wanted.
    pub samples: Vec<Sample>,
    /// Miss ratios of textbook policies, if they were wanted.
    pub curves: Vec<Curve>,
    /// The pressure of the machine and of each memcg.
    pub pressure: Vec<Reading>,
}

impl Plan {
    /// # Errors
    /// A setting that makes no sense, or a metric that there is not.
    pub fn new(jobs: Vec<Job>) -> anyhow::Result<Self> {
        let plans = jobs.iter().map(plan).collect::<Result<Vec<_>, _>>()?;
        // Before the first run: each may take a minute.
        for case in plans.iter().flatten() {
            for side in &case.sides {
                let known = metric_names(&side.scenario);
                if !known.contains(&case.metric) {
                    anyhow::bail!("{}: {}", case.name, no_metric(&case.metric, known));
                }
            }
        }
        let mut runs: Vec<Run> = Vec::new();
        // Cases that differ only in what they look at share their runs.
        let mut known = std::collections::BTreeMap::<(usize, &[String]), usize>::new();
        let mut places = Vec::new();
        for (number, (job, cases)) in jobs.iter().zip(&plans).enumerate() {
            for case in cases {
                for (place, side) in case.sides.iter().enumerate() {
                    let first = *known.entry((number, &side.pairs)).or_insert_with(|| {
                        for seed in 0..u64::from(job.seeds) {
                            let samples = if seed == 0 { job.samples } else { 0 };
                            let label = format!("{}, {}, seed {seed}", case.name, side.name);
                            let scenario = side.scenario.clone();
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

    /// Has the events of one run written to a file. Nothing else about any run changes.
    ///
    /// # Errors
    /// There is no such run, or none of a kernel.
    pub fn trace(&mut self, wanted: &Traced) -> anyhow::Result<()> {
        let mut places = self.places.iter().copied();
        let mut cases = self.cases.iter().flatten();
        let mut skipped = 0;
        let case = cases.find(|case| {
            let is = wanted.case.as_ref().is_none_or(|name| case_is(&case.name, name));
            skipped += if is { 0 } else { case.sides.len() };
            is
        });
        let Some(case) = case else {
            let known = self.cases.iter().flatten().map(|case| case.name.clone());
            anyhow::bail!(no_such("case", wanted.case.as_deref(), known));
        };
        let is = |side: &Side| wanted.arm.as_ref().is_none_or(|name| *name == side.name);
        let Some(arm) = case.sides.iter().position(is) else {
            let known = case.sides.iter().map(|side| side.name.clone());
            anyhow::bail!(no_such("arm", wanted.arm.as_deref(), known));
        };
        let seeds = self.jobs.first().map_or(0, |job| job.seeds);
        anyhow::ensure!(wanted.seed < seeds, "seed {}: there are 0 to {}", wanted.seed, seeds - 1);
        let side = &case.sides[arm];
        if let Some(why) = no_tracepoints(&side.scenario) {
            anyhow::bail!("{}, {}: it {why}; --trace-arm names another", case.name, side.name);
        }
        if let Some(first) = places.nth(skipped + arm) {
            self.runs[first + wanted.seed as usize].events = Some(wanted.file.clone());
        }
        Ok(())
    }

    /// Runs.
    #[must_use]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    /// Whether there is nothing to run.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }

    /// Does some of the runs over `threads` threads, and returns what they came to in the order in which they are named.
    /// `progress` is told of each that ended.
    ///
    /// # Errors
    /// A run that breaks a law.
    pub fn perform(
        &self,
        which: &[usize],
        threads: usize,
        progress: &(dyn Fn(usize, usize) + Sync),
    ) -> anyhow::Result<Vec<Outcome>> {
        let runs: Vec<&Run> = which.iter().map(|&run| &self.runs[run]).collect();
        spread(&runs, threads, progress)
    }

    /// What comes of the outcomes of all runs.
    ///
    /// # Errors
    /// A metric that a run did not measure.
    pub fn results(&self, outcomes: &[Outcome]) -> anyhow::Result<Vec<Results>> {
        let mut places = self.places.iter().copied();
        let mut results = Vec::new();
        for (job, cases) in self.jobs.iter().zip(&self.cases) {
            let mut done = Vec::new();
            for case in cases {
                let firsts = case.sides.iter().map(|_| places.next().unwrap_or(0));
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

/// Runs all jobs over `threads` threads. `progress` is told of each run that ended.
///
/// # Errors
/// A setting that makes no sense, or a run that breaks a law.
pub fn run(
    jobs: &[Job],
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> anyhow::Result<Vec<Results>> {
    let plan = Plan::new(jobs.to_vec())?;
    let all: Vec<usize> = (0..plan.len()).collect();
    plan.results(&plan.perform(&all, threads, progress)?)
}

/// The jobs, and again at each of `factors` of their size.
#[must_use]
pub fn at_sizes(jobs: &[Job], factors: &[f64]) -> Vec<Job> {
    let mut all = jobs.to_vec();
    for &factor in factors {
        all.extend(jobs.iter().cloned().map(|job| Job { size: factor, samples: 0, ..job }));
    }
    all
}

/// Puts what came of [`at_sizes`] at other sizes beside what came of the jobs' own.
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

fn run_one(run: &Run) -> Result<Outcome, String> {
    let tracepoints =
        run.events.as_deref().map(|path| tracepoints(path, &run.label)).transpose()?;
    let patience = Patience::default();
    let (metrics, outcome) =
        run_traced(&run.scenario, run.seed, run.samples, patience, tracepoints)?;
    let touches = outcome.trace.touches();
    let curves = if run.curves && !touches.is_empty() {
        crate::mrc::of_touches(touches).map_err(|e| e.to_string())?
    } else {
        Vec::new()
    };
    Ok(Outcome { metrics, samples: outcome.samples, curves, pressure: outcome.pressure })
}

fn tracepoints(path: &Path, label: &str) -> Result<Tracepoints, String> {
    let file = File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
    Ok(Tracepoints::new(Box::new(BufWriter::new(file)), label))
}

fn spread(
    runs: &[&Run],
    threads: usize,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> anyhow::Result<Vec<Outcome>> {
    let next = AtomicUsize::new(0);
    let ended = AtomicUsize::new(0);
    let results: Vec<Mutex<Option<Result<Outcome, String>>>> =
        runs.iter().map(|_| Mutex::new(None)).collect();
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, runs.len().max(1)) {
            scope.spawn(|| {
                loop {
                    // Relaxed: the number itself is all that is shared.
                    let i = next.fetch_add(1, Relaxed);
                    let Some(run) = runs.get(i) else { break };
                    let done = run_one(run).map_err(|e| format!("{}: {e}", run.label));
                    *results[i].lock().unwrap_or_else(std::sync::PoisonError::into_inner) =
                        Some(done);
                    progress(ended.fetch_add(1, Relaxed) + 1, runs.len());
                }
            });
        }
    });
    let mut done = Vec::new();
    for cell in results {
        let result = cell.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
        done.push(result.unwrap_or(Err("a run was lost".into())).map_err(anyhow::Error::msg)?);
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::BUILTIN;

    #[test]
    fn a_case_with_a_metric_of_its_own_says_what_is_better() {
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
    fn what_is_measured_is_what_is_known() {
        let text = include_str!("../../tests/small.toml");
        let scenario = Scenario::parse("small.toml", text).unwrap();
        let known = metric_names(&scenario);
        let (measured, _) = crate::scenario::run_once(&scenario, 1, 0).unwrap();
        assert!(!measured.is_empty() && measured.keys().all(|name| known.contains(name)));
    }

    #[test]
    fn a_preset_for_all_does_not_undo_what_is_compared() {
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
            planned[0].sides[1].pairs.last().cloned().unwrap()
        };
        assert_eq!(last(Some(vec![arm("dirty=k618"), arm("dirty=k72")])), "dirty=k72");
        assert_eq!(last(None), "preset=k612");
        // Nor does a preset that is compared undo what is set for all.
        let mut all = job(Some(vec![arm("preset=k618"), arm("preset=ebb")]));
        all.set = vec!["preset=k612".into(), "swap.page_cluster=1".into()];
        let pairs = plan(&all).unwrap()[0].sides[1].pairs.clone();
        assert_eq!(pairs[pairs.len() - 2..], ["preset=ebb", "swap.page_cluster=1"]);
    }
}
