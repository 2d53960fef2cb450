//! Scenarios: a machine, the workloads on it, the arms that are compared, and the published result.
//!
//! Owns the form of scenario files (TOML), the built-in scenarios, and settings from the command
//! line. A wrong key or value gives an error with the line and the nearest right name.
//!
//! A file says where each parameter comes from: the publication, the rule that scales it down, or a
//! choice made here. A published figure that set a parameter is marked `calibration`.

mod build;
mod builtin;
mod copies;
mod error;
mod reference;
mod set;
mod size;

use ebb_mm::nearest::nearest;
use schemars::JsonSchema;
use serde::Deserialize;

pub use build::{Metrics, metric_names, no_tracepoints, run_once, run_traced, run_with};
pub use builtin::{BUILTIN, Builtin, find};
pub use error::{RunError, ScenarioError, ScenarioFault, SettingFault};
pub use reference::{reference, schema};

use crate::machine::ahead::WINDOW_FILE;
use crate::machine::{Costs, DeviceSpec, DirtySpec, LiveSpec, SlabSpec};
use crate::value::ValueError;
use crate::workload::WorkloadSpec;
use crate::workload::build::Build;
use crate::workload::launch::Launch;
use crate::workload::mix::Mix;
use crate::workload::sysbench::Sysbench;
use crate::workload::trace::{PlayError, Trace};
use crate::workload::web::Web;
use crate::workload::ycsb::Ycsb;

/// The bodies of published work that the lab reproduces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// The multi-gen LRU against the classic LRU, and its patch for prefaulted pages.
    MultiGenLru,
    /// Aging in batches.
    BatchedAging,
    /// Work under the zone lock when a CPU's page set (pcp) is refilled.
    PcpRefill,
    /// When kswapd may sleep.
    KswapdSleep,
    /// Dirty pages at the old end of the lists, and the reclaim loop around them.
    DirtyPages,
}

impl Topic {
    /// All topics, in the order of reports.
    pub const ALL: [Self; 5] = [
        Self::MultiGenLru,
        Self::BatchedAging,
        Self::PcpRefill,
        Self::KswapdSleep,
        Self::DirtyPages,
    ];

    /// Returns the name of the topic in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::MultiGenLru => "multi-gen LRU",
            Self::BatchedAging => "batched aging",
            Self::PcpRefill => "pcp refill, CMA",
            Self::KswapdSleep => "kswapd's sleep",
            Self::DirtyPages => "dirty pages",
        }
    }
}

/// The hardware of a machine.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    /// Frames of 4 KiB in the Normal zones; frames of a DMA zone are not counted.
    pub frames: u32,
    /// Number of CPUs.
    pub cpus: usize,
    /// Memory nodes. Frames and CPUs are divided among them evenly, in order. A DMA zone is on the
    /// first node.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Gigabytes of the real machine that the frames stand for. The kernel derives some sizes from
    /// a machine's memory: the free memory it keeps, and the frames each CPU holds. With this key
    /// the sizes of the real machine are scaled down as its memory is. Absent: the machine is as
    /// large as its frames.
    pub gb: Option<f64>,
    /// The machine stands for a node other than the first: low zones exist, but on another node.
    #[serde(default)]
    pub second_node: bool,
    /// Frames of a DMA zone below the Normal zones; 0: no such zone.
    #[serde(default)]
    pub dma: u32,
    /// Frames that stay free in the DMA zone after boot; the others are allocated for good.
    pub dma_free: Option<u64>,
    /// Frames that are allocated from the start and never freed.
    #[serde(default)]
    pub reserved: u32,
    /// Device for anonymous pages; none: no anonymous page can be swapped out.
    pub swap: Option<DeviceSpec>,
    /// Device with the files; absent: `nvme`.
    pub disk: Option<DeviceSpec>,
    /// When dirty file pages are written.
    #[serde(default)]
    pub dirty: DirtySpec,
    /// Slab caches beside the page lists (inodes, names of files). Each pass of reclaim scans a
    /// share of them. Absent: there are none.
    pub slab: Option<SlabSpec>,
    /// Ebb manages the memory, as under `ebb run`, instead of a kernel.
    #[serde(default)]
    pub live: LiveSpec,
    /// Largest readahead window of a file that is read in order, in pages.
    #[serde(default = "read_ahead")]
    pub read_ahead: u64,
}

fn one() -> u32 {
    1
}

fn read_ahead() -> u64 {
    WINDOW_FILE
}

/// Largest number of nodes of a machine.
const NODES_MAX: u32 = 8;
/// Smallest number of frames of a node.
const NODE_FRAMES_MIN: u32 = 4096;
/// Number of frames in a gigabyte.
pub const FRAMES_OF_A_GB: f64 = 262_144.0;

/// A memory control group.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemcgSpec {
    /// Name of the memcg.
    pub name: String,
    /// Number of copies of the memcg. Each copy runs all workloads of the memcg by itself.
    #[serde(default = "one")]
    pub copies: u32,
    /// Parent of the memcg, which comes before it in the file; none: the memcg is at the top.
    pub parent: Option<String>,
    /// Limit of the memcg (`memory.max`) as a share of the machine's frames; none: only the limits
    /// above it apply.
    pub limit: Option<f64>,
    /// Share of the frames above which the memcg is reclaimed and its tasks are throttled
    /// (`memory.high`).
    pub high: Option<f64>,
    /// Share of the frames below which the memcg is reclaimed only if nothing else is left
    /// (`memory.low`).
    #[serde(default)]
    pub low: f64,
    /// Share of the frames below which the memcg is never reclaimed for other memcgs
    /// (`memory.min`).
    #[serde(default)]
    pub min: f64,
    /// Share of the frames that is reclaimed on command (`memory.reclaim`), at regular intervals.
    #[serde(default)]
    pub reclaim: f64,
    /// Interval between two commands to reclaim, in milliseconds of the run.
    #[serde(default = "reclaim_ms")]
    pub reclaim_ms: f64,
}

fn reclaim_ms() -> f64 {
    10.0
}

/// One arm of the comparison.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArmSpec {
    /// Name of the arm.
    pub name: String,
    /// Settings of the arm, `KEY=VALUE`.
    #[serde(default)]
    pub set: Vec<String>,
}

/// The published result of a case.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Published value of the metric for the baseline.
    pub baseline: Option<f64>,
    /// Published value of the metric with the change.
    pub patched: Option<f64>,
    /// Published change in percent, if only the change is published.
    pub effect: Option<f64>,
    /// Published interval of the change, in percent.
    pub interval: Option<[f64; 2]>,
    /// Whether the publication finds the change significant.
    #[serde(default = "yes")]
    pub significant: bool,
    /// Values of a second run of the comparison, if it was published twice.
    pub again: Option<Run>,
    /// Percent by which the means differ by chance, if the publication states it or gives
    /// deviations.
    pub spread: Option<f64>,
    /// Whether a published figure, of any arm, was used to set the lab's level. Then the comparison
    /// proves nothing.
    #[serde(default)]
    pub calibration: bool,
    /// Whether a figure was published. A bug that was found and fixed may have none.
    #[serde(default = "yes")]
    pub figure: bool,
    /// Unit to which the published values are rounded ([`MeasureSpec::rounded_to`]).
    #[serde(skip)]
    pub rounded_to: f64,
}

/// One run of a published comparison.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// Published value of the metric for the baseline.
    pub baseline: f64,
    /// Published value of the metric with the change.
    pub patched: f64,
}

impl Run {
    /// Returns the change in percent.
    #[must_use]
    pub fn change(self) -> f64 {
        if self.baseline == 0.0 { 0.0 } else { (self.patched / self.baseline - 1.0) * 100.0 }
    }
}

fn yes() -> bool {
    true
}

impl Default for Published {
    fn default() -> Self {
        Self {
            baseline: None,
            patched: None,
            effect: None,
            interval: None,
            significant: true,
            again: None,
            spread: None,
            calibration: false,
            figure: true,
            rounded_to: 0.0,
        }
    }
}

impl Published {
    /// Returns the published change in percent.
    #[must_use]
    pub fn change(&self) -> f64 {
        match (self.effect, self.baseline, self.patched) {
            (Some(effect), ..) => effect,
            (None, Some(b), Some(p)) if b != 0.0 => (p / b - 1.0) * 100.0,
            _ => 0.0,
        }
    }
}

/// A variant of the scenario with its own published result.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaseSpec {
    /// Name of the case.
    pub name: String,
    /// Settings of the case, `KEY=VALUE`, which are applied before those of the arms.
    #[serde(default)]
    pub set: Vec<String>,
    /// Metric to compare, if it is not the scenario's.
    pub metric: Option<String>,
    /// Whether a higher value of this metric is better, if it differs from the scenario's
    /// `higher_is_better`.
    pub higher_is_better: Option<bool>,
    /// Quantity that the lab measures, for rows whose different metrics are equal by definition.
    /// Such rows have one vote together ([`rule`](crate::experiment::rule)).
    pub quantity: Option<String>,
    /// Names of the scenario's arms to compare, if not all of them.
    #[serde(default)]
    pub arms: Vec<String>,
    /// Arms of the case itself, instead of the scenario's.
    #[serde(default)]
    pub arm: Vec<ArmSpec>,
    /// Published result of the case; absent: nothing was published, and nothing is judged.
    pub published: Option<Published>,
}

/// The metrics, and how often and how long the lab measures.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasureSpec {
    /// Metric that decides.
    pub metric: String,
    /// Whether a higher value of the metric is better.
    #[serde(default = "yes")]
    pub higher_is_better: bool,
    /// Further metrics to print.
    #[serde(default)]
    pub also: Vec<String>,
    /// Number of seeds, at least 2. Each arm runs once with each seed.
    #[serde(default = "ten")]
    pub seeds: u32,
    /// Unit to which the published values are rounded: 1 for whole numbers; 0 if they have enough
    /// digits.
    #[serde(default)]
    pub rounded_to: f64,
    /// Virtual seconds to measure; 0: until the work is done.
    #[serde(default)]
    pub seconds: f64,
}

fn ten() -> u32 {
    10
}

/// A published result that the lab cannot run, and why.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Missing {
    /// Name of the published result.
    pub name: String,
    /// Reason why the lab cannot run it.
    pub why: String,
}

/// A scenario file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name of the scenario.
    pub name: String,
    /// Title of the scenario, in one line.
    pub title: String,
    /// Publication with the result.
    pub source: String,
    /// Body of published work to which the scenario belongs; none: the scenario is the user's own.
    pub topic: Option<Topic>,
    /// Hardware of the machine.
    pub machine: MachineSpec,
    /// Costs that differ from the model's.
    #[serde(default)]
    pub costs: Costs,
    /// Memcgs; if there are none, one without a limit.
    #[serde(default)]
    pub memcg: Vec<MemcgSpec>,
    /// Workloads that run.
    pub workload: Vec<WorkloadSpec>,
    /// Metrics, and how often and how long the lab measures.
    pub measure: MeasureSpec,
    /// Arms that are compared: the first is the baseline, the second is the published change.
    pub arm: Vec<ArmSpec>,
    /// Variants of the scenario, each with its own published result.
    #[serde(default)]
    pub case: Vec<CaseSpec>,
    /// Published results that the lab does not run.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// Settings of the engine in every arm and case.
    #[serde(default)]
    pub set: Vec<String>,
    /// Settings of the engine that apply to this run: those of the file's `set`, then those set for
    /// the run.
    #[serde(skip)]
    pub switches: Vec<String>,
}

impl MachineSpec {
    fn check(&self) -> Result<(), ScenarioFault> {
        let rule = |key, rule| Err(ValueError::Rule(key, rule).into());
        if self.frames < 4096 || self.frames > 1 << 24 {
            let frames = self.frames.into();
            return Err(ValueError::Count("machine.frames", frames, "4096 to 16777216").into());
        }
        if self.reserved > self.frames / 2 {
            return rule("machine.reserved", "expected half of machine.frames at most");
        }
        if !self.dma.is_multiple_of(1024) || self.dma > 1 << 20 {
            return rule("machine.dma", "expected a multiple of 1024");
        }
        if self.second_node && self.dma > 0 {
            let what = "a second node has no DMA zone; leave machine.dma out";
            return rule("machine.second_node", what);
        }
        let (nodes, cpus) = (self.nodes, self.cpus);
        let nodes_max = (self.frames / NODE_FRAMES_MIN).min(NODES_MAX).min(cpus as u32).max(1);
        if nodes == 0 || nodes > nodes_max {
            return Err(ScenarioFault::Nodes(nodes, nodes_max));
        }
        if self.second_node && nodes > 1 {
            let what = "expected with one node only; machine.nodes has a second one already";
            return rule("machine.second_node", what);
        }
        let real = self.gb.unwrap_or(f64::MAX) * FRAMES_OF_A_GB;
        if real < f64::from(self.frames) {
            return rule("machine.gb", "expected at least the size of machine.frames");
        }
        let in_part = |part| move |error| ScenarioFault::Part(part, error);
        self.live.check().map_err(in_part("machine.live."))?;
        if self.read_ahead == 0 || self.read_ahead > 1024 {
            return rule("machine.read_ahead", "expected 1 to 1024 pages");
        }
        if cpus == 0 || cpus > 1024 {
            return Err(ValueError::Count("machine.cpus", cpus as u64, "1 to 1024").into());
        }
        let (disk, swap) = (self.disk.as_ref(), self.swap.as_ref());
        disk.map_or(Ok(()), |d| d.check(None)).map_err(in_part("machine.disk: "))?;
        swap.map_or(Ok(()), |d| d.check(disk)).map_err(in_part("machine.swap: "))?;
        self.slab.map_or(Ok(()), |slab| slab.check()).map_err(in_part("machine.slab: "))
    }
}

impl Scenario {
    /// Reads the text of a scenario file.
    ///
    /// # Errors
    /// Returns an error with the line, the wrong key and the nearest right one.
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self =
            toml::from_str(text).map_err(|e| ScenarioError::in_file(file, text, &e))?;
        scenario.check().map_err(|what| ScenarioError::Wrong { file: file.into(), what })?;
        // Tries all settings here, so that a wrong setting is reported before anything runs.
        let table = set::table(text)?;
        let arms = scenario.arm.iter().chain(scenario.case.iter().flat_map(|c| &c.arm));
        for pairs in scenario.case.iter().map(|c| &c.set).chain(arms.map(|a| &a.set)) {
            set::try_out(&table, pairs)?;
        }
        set::try_out(&table, &scenario.set)?;
        Ok(scenario)
    }

    /// Reads a scenario from `text` and applies the settings `pairs` in order.
    ///
    /// # Errors
    /// Fails if a setting is invalid.
    pub fn with(text: &str, pairs: &[String]) -> Result<Self, ScenarioError> {
        let mut scenario = set::apply(text, pairs)?;
        let own = scenario.set.clone();
        scenario.switches.splice(0..0, own);
        // Each setting is valid by itself, but several together may be invalid.
        scenario.check().map_err(|what| ScenarioError::Wrong { file: "--set".into(), what })?;
        Ok(scenario)
    }

    /// Returns the arms that a case compares.
    #[must_use]
    pub fn arms_of(&self, case: &CaseSpec) -> Vec<ArmSpec> {
        if !case.arms.is_empty() {
            let named = |name: &String| self.arm.iter().find(|a| &a.name == name).cloned();
            return case.arms.iter().filter_map(named).collect();
        }
        if case.arm.is_empty() { self.arm.clone() } else { case.arm.clone() }
    }

    fn check_arms(&self, case: &CaseSpec) -> Result<(), ScenarioFault> {
        if !case.arms.is_empty() && !case.arm.is_empty() {
            return Err(ScenarioFault::BothArms(case.name.clone()));
        }
        let names = || self.arm.iter().map(|a| a.name.as_str());
        for name in &case.arms {
            if !names().any(|n| n == name) {
                let best = nearest(name, names()).unwrap_or_default();
                return Err(ScenarioFault::NoArm(case.name.clone(), name.clone(), best.into()));
            }
        }
        if self.arms_of(case).len() < 2 {
            return Err(ScenarioFault::FewArmsOf(case.name.clone()));
        }
        Ok(())
    }

    fn check(&self) -> Result<(), ScenarioFault> {
        if self.workload.is_empty() {
            return Err(ScenarioFault::NoWorkload);
        }
        if self.arm.len() < 2 {
            return Err(ScenarioFault::FewArms);
        }
        self.machine.check()?;
        if self.measure.seeds < 2 {
            let rule = "an interval needs two seeds at least";
            return Err(ValueError::Rule("measure.seeds", rule).into());
        }
        let to = self.measure.rounded_to;
        if !(0.0..f64::INFINITY).contains(&to) {
            return Err(ValueError::Number("measure.rounded_to", to, "0 or more").into());
        }
        self.case.iter().try_for_each(|case| self.check_arms(case))?;
        self.check_copies()?;
        for (i, m) in self.memcg.iter().enumerate() {
            if m.reclaim_ms < 0.1 {
                let what = ValueError::Rule("reclaim_ms", "expected 0.1 or more");
                return Err(ScenarioFault::Memcg(m.name.clone(), what));
            }
            if let Some(parent) = &m.parent
                && !self.memcg[..i].iter().any(|g| &g.name == parent)
            {
                return Err(ScenarioFault::Parent(m.name.clone(), parent.clone()));
            }
        }
        for w in &self.workload {
            if let Some(m) = &w.memcg
                && !self.memcg.iter().any(|g| &g.name == m)
            {
                return Err(ScenarioFault::NoMemcg(w.name.clone(), m.clone()));
            }
            let told = [
                w.ycsb.as_ref().map(Ycsb::check),
                w.mix.as_ref().map(Mix::check),
                w.sysbench.as_ref().map(Sysbench::check),
                w.web.as_ref().map(Web::check),
                w.launch.as_ref().map(Launch::check),
                w.allocation.as_ref().map(|a| a.check(self.machine.cpus)),
                w.build.as_ref().map(Build::check),
            ];
            let told: Result<(), _> = told.into_iter().flatten().collect();
            let told = told.map_err(PlayError::from);
            let told = told.and_then(|()| w.trace.as_ref().map_or(Ok(()), Trace::check));
            told.map_err(|what| ScenarioFault::Workload(w.name.clone(), what.into()))?;
        }
        Ok(())
    }
}
