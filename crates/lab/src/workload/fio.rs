//! Files read or written in blocks of a page, as by fio with buffered I/O: each job has its own
//! file.

use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::keys::{Keys, Pattern, about, unit};
use super::spec::{Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use ebb_mm::random::Random;

/// Parameters of jobs as of fio.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Fio {
    /// Jobs, one thread and one file each.
    pub jobs: u32,
    /// Size of all files, as a multiple of memory.
    pub data: f64,
    /// Order of the blocks.
    pub pattern: Pattern,
    /// Exponent of zipfian patterns.
    #[serde(default = "theta")]
    pub theta: f64,
    /// Share of the blocks that are written.
    #[serde(default)]
    pub writes: f64,
    /// Processor time of one operation beside the copy, in nanoseconds.
    pub op_ns: u32,
    /// Operations before measuring, as a multiple of the files' pages.
    #[serde(default = "warm")]
    pub warm: f64,
    /// Operations measured, as a multiple of the files' pages.
    pub ops: f64,
}

fn theta() -> f64 {
    0.5
}
fn warm() -> f64 {
    1.0
}

impl Fio {
    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
        let jobs = u64::from(self.jobs);
        let pages = (place.pages(self.data) / jobs).max(4);
        let region = Region {
            pages: pages * jobs,
            backing: Backing::File,
            recency: true,
            exec: false,
            processes: 1,
        };
        let space = plan.space(place.memcg, vec![region]);
        for job in 0..jobs {
            let worker = Worker {
                space,
                at: pages * job,
                keys: Keys::new(self.pattern, pages, self.theta, 0, 1),
                random: Random(place.seed_of(0, job)),
                warm: (pages as f64 * self.warm) as u64,
                left: (pages as f64 * self.ops) as u64,
                started: false,
                spec: self.clone(),
            };
            plan.thread(Box::new(worker), space, place.measured);
        }
    }
}

struct Worker {
    spec: Fio,
    space: u16,
    at: u64,
    keys: Keys,
    random: Random,
    warm: u64,
    left: u64,
    started: bool,
}

const BATCH: u64 = 64;

impl Worker {
    fn blocks(&mut self, steps: &mut Vec<Step>, n: u64) {
        for _ in 0..n {
            let page = (self.at + self.keys.draw(&mut self.random)) as u32;
            let write = self.spec.writes > 0.0 && unit(&mut self.random) < self.spec.writes;
            let access = if write { Access::FdWrite } else { Access::FdRead };
            steps.push(Step::Cpu(about(&mut self.random, self.spec.op_ns)));
            steps.push(Step::Touch { page, space: self.space, access });
            steps.push(Step::Done(u8::from(write)));
        }
    }
}

impl Program for Worker {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        if self.warm > 0 {
            let n = self.warm.min(BATCH);
            self.blocks(steps, n);
            self.warm -= n;
        } else if !self.started {
            self.started = true;
            steps.push(Step::Start);
        } else if self.left > 0 {
            let n = self.left.min(BATCH);
            self.blocks(steps, n);
            self.left -= n;
        }
    }
}
