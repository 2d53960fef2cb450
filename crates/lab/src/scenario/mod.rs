//! Scenarios: a machine, what runs on it, what is compared, and what was published.
//!
//! Owns the form of scenario files (TOML), the built-in ones, and settings from the command line.
//! A wrong key or value is an error with its line and the nearest right one.
//!
//! A file says where each parameter is from: the publication, the rule that scales it down, or a
//! choice made here. No parameter is fitted to the published effect.

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
pub use error::ScenarioError;
pub use reference::{reference, schema};

use crate::machine::ahead::WINDOW_FILE;
use crate::machine::{Costs, DeviceSpec, DirtySpec, LiveSpec, SlabSpec};
use crate::workload::WorkloadSpec;
use crate::workload::build::Build;
use crate::workload::launch::Launch;
use crate::workload::mix::Mix;
use crate::workload::sysbench::Sysbench;
use crate::workload::trace::Trace;
use crate::workload::web::Web;
use crate::workload::ycsb::Ycsb;

/// The bodies of published work that the lab reproduces.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Topic {
    /// The multi-gen LRU against the classic one, and its patch on prefaulted pages.
    MultiGenLru,
    /// Aging in batches.
    BatchedAging,
    /// What is done under the zone lock when a CPU's set is filled.
    PcpRefill,
    /// When kswapd may sleep.
    KswapdSleep,
    /// Dirty pages at the old end, and the loop around them.
    DirtyPages,
}

impl Topic {
    /// All of them.
    pub const ALL: [Self; 5] = [
        Self::MultiGenLru,
        Self::BatchedAging,
        Self::PcpRefill,
        Self::KswapdSleep,
        Self::DirtyPages,
    ];

    /// Its name in reports.
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

/// The hardware.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MachineSpec {
    /// Frames of 4 KiB in its Normal zones, those of a DMA zone not counted.
    pub frames: u32,
    /// CPUs.
    pub cpus: usize,
    /// Memory nodes: frames and CPUs are dealt out to them evenly, in order. A DMA zone lies on the first.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Gigabytes of the machine that the frames stand for: what the kernel sizes by a machine, the free
    /// memory it keeps and the frames each CPU holds, is then that machine's, scaled down with it.
    /// Absent: the machine is as large as it is.
    pub gb: Option<f64>,
    /// The machine is a node that is not the first: low zones are known, but lie on another node.
    #[serde(default)]
    pub second_node: bool,
    /// Frames of a DMA zone below them; 0: none.
    #[serde(default)]
    pub dma: u32,
    /// Frames that stay free in the DMA zone once the machine is up; the others are taken.
    pub dma_free: Option<u64>,
    /// Frames that are taken from the start and never given back.
    #[serde(default)]
    pub reserved: u32,
    /// Where anonymous pages are stored; none: they cannot be.
    pub swap: Option<DeviceSpec>,
    /// Where files are.
    pub disk: Option<DeviceSpec>,
    /// When dirty file pages are written.
    #[serde(default)]
    pub dirty: DirtySpec,
    /// Caches beside the page lists (inodes, names of files), of which each pass of reclaim looks through a share;
    /// absent: none.
    pub slab: Option<SlabSpec>,
    /// Memory is Ebb's, as under `ebb run`, instead of a kernel's.
    #[serde(default)]
    pub live: LiveSpec,
    /// Pages read ahead at most, in a file that is read in order.
    #[serde(default = "read_ahead")]
    pub read_ahead: u64,
}

fn one() -> u32 {
    1
}

fn read_ahead() -> u64 {
    WINDOW_FILE
}

/// The most nodes a machine has.
const NODES_MAX: u32 = 8;
/// The fewest frames a node has.
const NODE_FRAMES_MIN: u32 = 4096;
/// Frames in a gigabyte.
pub const FRAMES_OF_A_GB: f64 = 262_144.0;

/// A memory control group.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemcgSpec {
    /// Its name.
    pub name: String,
    /// How many there are of it; each has the workloads that are put into it to itself.
    #[serde(default = "one")]
    pub copies: u32,
    /// The memcg it lies in, which comes before it in the file; none: it lies at the top.
    pub parent: Option<String>,
    /// Its limit (`memory.max`) as a share of the machine's frames; none: only what is above limits it.
    pub limit: Option<f64>,
    /// Above this share it is reclaimed and its tasks are slowed down.
    pub high: Option<f64>,
    /// Below this share it is reclaimed only if nothing else is left.
    #[serde(default)]
    pub low: f64,
    /// Below this share it is never reclaimed for others.
    #[serde(default)]
    pub min: f64,
    /// So large a share is reclaimed on command (`memory.reclaim`) again and again.
    #[serde(default)]
    pub reclaim: f64,
    /// How often, in milliseconds of the run.
    #[serde(default = "reclaim_ms")]
    pub reclaim_ms: f64,
}

fn reclaim_ms() -> f64 {
    10.0
}

/// One side of the comparison.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ArmSpec {
    /// Its name.
    pub name: String,
    /// Settings, `KEY=VALUE`.
    #[serde(default)]
    pub set: Vec<String>,
}

/// What the publication says of a case.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The metric's value before.
    pub baseline: Option<f64>,
    /// And after.
    pub patched: Option<f64>,
    /// The change in percent, if only that is published.
    pub effect: Option<f64>,
    /// Its interval, in percent.
    pub interval: Option<[f64; 2]>,
    /// Whether the publication finds it significant.
    #[serde(default = "yes")]
    pub significant: bool,
    /// The same comparison once more, where it was published twice.
    pub again: Option<Run>,
    /// By how many percent its means differ by chance, where it says so or gives deviations.
    pub spread: Option<f64>,
    /// A figure of it, of whichever arm, was used to bring the lab's level to it: it proves nothing.
    #[serde(default)]
    pub calibration: bool,
    /// Whether there is a figure: a bug that was there and is gone may have none.
    #[serde(default = "yes")]
    pub figure: bool,
    /// What the values are rounded to ([`MeasureSpec::rounded_to`]).
    #[serde(skip)]
    pub rounded_to: f64,
}

/// One run of a published comparison.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Run {
    /// The metric's value before.
    pub baseline: f64,
    /// And after.
    pub patched: f64,
}

impl Run {
    /// The change in percent.
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
    /// The change in percent.
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
    /// Its name.
    pub name: String,
    /// Settings, `KEY=VALUE`, before those of the arms.
    #[serde(default)]
    pub set: Vec<String>,
    /// The metric compared, if not the scenario's.
    pub metric: Option<String>,
    /// Whether more of that is better, if it is not as with the scenario's.
    pub higher_is_better: Option<bool>,
    /// What the lab measures here, where rows with other metrics say the same by definition: they have one vote
    /// together ([`rule`](crate::experiment::rule)).
    pub quantity: Option<String>,
    /// What is compared, if not the scenario's arms: some of these, by name.
    #[serde(default)]
    pub arms: Vec<String>,
    /// ... or arms of its own.
    #[serde(default)]
    pub arm: Vec<ArmSpec>,
    /// What was published; absent: nothing was, and nothing is judged.
    pub published: Option<Published>,
}

/// What is measured and how often.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MeasureSpec {
    /// The metric that decides.
    pub metric: String,
    /// Whether more of it is better.
    #[serde(default = "yes")]
    pub higher_is_better: bool,
    /// Further metrics to print.
    #[serde(default)]
    pub also: Vec<String>,
    /// Seeds, at least 2.
    #[serde(default = "ten")]
    pub seeds: u32,
    /// What published values are rounded to: 1 for whole numbers; 0 if they have digits enough.
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
    /// Its name.
    pub name: String,
    /// Why.
    pub why: String,
}

/// A scenario file.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Its name.
    pub name: String,
    /// One line.
    pub title: String,
    /// Where the published result is.
    pub source: String,
    /// Which of the five bodies of published work it is of; none: it is the user's own.
    pub topic: Option<Topic>,
    /// The hardware.
    pub machine: MachineSpec,
    /// Costs that differ from the model's.
    #[serde(default)]
    pub costs: Costs,
    /// Memcgs; one without a limit if there are none.
    #[serde(default)]
    pub memcg: Vec<MemcgSpec>,
    /// What runs.
    pub workload: Vec<WorkloadSpec>,
    /// What is measured.
    pub measure: MeasureSpec,
    /// What is compared: the first is the baseline, the second is what was published.
    pub arm: Vec<ArmSpec>,
    /// Variants.
    #[serde(default)]
    pub case: Vec<CaseSpec>,
    /// What was published and is not run.
    #[serde(default)]
    pub missing: Vec<Missing>,
    /// Settings of the engine in every arm and case.
    #[serde(default)]
    pub set: Vec<String>,
    /// What was set beyond the file, for the engine.
    #[serde(skip)]
    pub switches: Vec<String>,
}

impl Scenario {
    /// Reads a file's text.
    ///
    /// # Errors
    /// With the line, the key and the nearest right one.
    pub fn parse(file: &str, text: &str) -> Result<Self, ScenarioError> {
        let scenario: Self =
            toml::from_str(text).map_err(|e| ScenarioError::in_file(file, text, &e))?;
        scenario.check().map_err(|what| ScenarioError::Wrong { file: file.into(), what })?;
        // Settings are tried out here, so that a wrong one is told of before anything runs.
        let table = set::table(text)?;
        let arms = scenario.arm.iter().chain(scenario.case.iter().flat_map(|c| &c.arm));
        for pairs in scenario.case.iter().map(|c| &c.set).chain(arms.map(|a| &a.set)) {
            set::try_out(&table, pairs)?;
        }
        set::try_out(&table, &scenario.set)?;
        Ok(scenario)
    }

    /// The same with settings applied in order.
    ///
    /// # Errors
    /// A setting that makes no sense.
    pub fn with(text: &str, pairs: &[String]) -> Result<Self, ScenarioError> {
        let mut scenario = set::apply(text, pairs)?;
        let own = scenario.set.clone();
        scenario.switches.splice(0..0, own);
        // Each is a possible value by itself; together they may not be.
        scenario.check().map_err(|what| ScenarioError::Wrong { file: "--set".into(), what })?;
        Ok(scenario)
    }

    /// What a case compares.
    #[must_use]
    pub fn arms_of(&self, case: &CaseSpec) -> Vec<ArmSpec> {
        if !case.arms.is_empty() {
            let named = |name: &String| self.arm.iter().find(|a| &a.name == name).cloned();
            return case.arms.iter().filter_map(named).collect();
        }
        if case.arm.is_empty() { self.arm.clone() } else { case.arm.clone() }
    }

    fn check_arms(&self, case: &CaseSpec) -> Result<(), String> {
        let wrong = |what: String| Err(format!("case {:?}: {what}", case.name));
        if !case.arms.is_empty() && !case.arm.is_empty() {
            return wrong("expected arms = [NAME, ...] or [[case.arm]] tables, not both".into());
        }
        let names = || self.arm.iter().map(|a| a.name.as_str());
        for name in &case.arms {
            if !names().any(|n| n == name) {
                let best = nearest(name, names()).unwrap_or_default();
                return wrong(format!("there is no [[arm]] {name:?}; did you mean {best:?}?"));
            }
        }
        if self.arms_of(case).len() < 2 {
            return wrong("a comparison needs two arms at least".into());
        }
        Ok(())
    }

    fn check(&self) -> Result<(), String> {
        if self.workload.is_empty() {
            return Err("there is no [[workload]]".into());
        }
        if self.arm.len() < 2 {
            return Err("a comparison needs two [[arm]] tables at least".into());
        }
        if self.machine.frames < 4096 || self.machine.frames > 1 << 24 {
            return Err(format!(
                "machine.frames = {}: expected 4096 to 16777216",
                self.machine.frames
            ));
        }
        if self.machine.reserved > self.machine.frames / 2 {
            return Err("machine.reserved: expected half of machine.frames at most".into());
        }
        if !self.machine.dma.is_multiple_of(1024) || self.machine.dma > 1 << 20 {
            return Err("machine.dma: expected a multiple of 1024".into());
        }
        if self.machine.second_node && self.machine.dma > 0 {
            return Err(
                "machine.second_node: low zones lie on the first node, but there is machine.dma"
                    .into(),
            );
        }
        let (nodes, cpus) = (self.machine.nodes, self.machine.cpus);
        let nodes_max = (self.machine.frames / NODE_FRAMES_MIN).min(NODES_MAX).min(cpus as u32);
        if nodes == 0 || nodes > nodes_max.max(1) {
            return Err(format!(
                "machine.nodes = {nodes}: expected 1 to {}, each with a CPU and {NODE_FRAMES_MIN} frames",
                nodes_max.max(1)
            ));
        }
        if self.machine.second_node && nodes > 1 {
            return Err("machine.second_node: that is one node of several, alone; \
                        with machine.nodes the second one is there anyway"
                .into());
        }
        let real = self.machine.gb.unwrap_or(f64::MAX) * FRAMES_OF_A_GB;
        if real < f64::from(self.machine.frames) {
            return Err("machine.gb: expected no less than machine.frames are".into());
        }
        self.machine.live.check().map_err(|e| format!("machine.live.{e}"))?;
        if self.machine.read_ahead == 0 || self.machine.read_ahead > 1024 {
            return Err("machine.read_ahead: expected 1 to 1024 pages".into());
        }
        if self.machine.cpus == 0 || self.machine.cpus > 1024 {
            return Err(format!("machine.cpus = {}: expected 1 to 1024", self.machine.cpus));
        }
        let (disk, swap) = (self.machine.disk.as_ref(), self.machine.swap.as_ref());
        if let Some(Err(e)) = disk.map(|d| d.check(None)) {
            return Err(format!("machine.disk: {e}"));
        }
        if let Some(Err(e)) = swap.map(|d| d.check(disk)) {
            return Err(format!("machine.swap: {e}"));
        }
        if let Some(Err(e)) = self.machine.slab.map(|slab| slab.check()) {
            return Err(format!("machine.slab: {e}"));
        }
        if self.measure.seeds < 2 {
            return Err("measure.seeds: an interval needs two seeds at least".into());
        }
        let to = self.measure.rounded_to;
        if !(0.0..f64::INFINITY).contains(&to) {
            return Err(format!("measure.rounded_to = {to}: expected 0 or more"));
        }
        self.case.iter().try_for_each(|case| self.check_arms(case))?;
        self.check_copies()?;
        for (i, m) in self.memcg.iter().enumerate() {
            if m.reclaim_ms < 0.1 {
                return Err(format!("memcg {:?}: reclaim_ms: expected 0.1 or more", m.name));
            }
            if let Some(parent) = &m.parent
                && !self.memcg[..i].iter().any(|g| &g.name == parent)
            {
                return Err(format!("memcg {:?}: there is no memcg {parent:?} before it", m.name));
            }
        }
        for w in &self.workload {
            if let Some(m) = &w.memcg
                && !self.memcg.iter().any(|g| &g.name == m)
            {
                return Err(format!("workload {:?}: there is no memcg {m:?}", w.name));
            }
            let told = [
                w.ycsb.as_ref().map(Ycsb::check),
                w.mix.as_ref().map(Mix::check),
                w.sysbench.as_ref().map(Sysbench::check),
                w.web.as_ref().map(Web::check),
                w.launch.as_ref().map(Launch::check),
                w.allocation.as_ref().map(|a| a.check(self.machine.cpus)),
                w.build.as_ref().map(Build::check),
                w.trace.as_ref().map(Trace::check),
            ];
            let told: Result<(), _> = told.into_iter().flatten().collect();
            told.map_err(|what| format!("workload {:?}: {what}", w.name))?;
        }
        Ok(())
    }
}
