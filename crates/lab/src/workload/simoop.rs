//! simoop: readers of large random chunks, writers that sync now and then, and allocators that map,
//! touch and free large areas. Each kind's latencies are kept apart: `read`, `write`, `alloc`.

use ebb_core::space::Backing;
use serde::Deserialize;

use super::spec::{Place, Plan};
use super::{Program, Step};
use crate::machine::{Access, Region};
use crate::trace::synth::Random;

/// Parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Simoop {
    /// Threads that read.
    pub readers: u32,
    /// Threads that write.
    pub writers: u32,
    /// Threads that allocate.
    pub allocators: u32,
    /// The files read, as a multiple of memory.
    pub data: f64,
    /// Pages of one read.
    #[serde(default = "chunk")]
    pub chunk: u32,
    /// Pages of one write.
    #[serde(default = "write")]
    pub write: u32,
    /// Writes between two syncs.
    #[serde(default = "sync")]
    pub sync_every: u32,
    /// Pages of one allocation, as a share of memory.
    pub area: f64,
    /// How long an allocator holds its area.
    #[serde(default = "hold")]
    pub hold_us: u32,
    /// How long every thread rests between two operations.
    #[serde(default = "rest")]
    pub rest_us: u32,
    /// The files are written before the threads begin, each reader its part, as simoop prepares them.
    #[serde(default)]
    pub prepare: bool,
    /// Operations of each thread; 0: as long as the scenario measures.
    #[serde(default)]
    pub ops: u64,
}

fn chunk() -> u32 {
    64
}
fn write() -> u32 {
    16
}
fn sync() -> u32 {
    32
}
fn hold() -> u32 {
    1000
}
fn rest() -> u32 {
    500
}

impl Simoop {
    /// Puts it on the machine.
    pub fn plan(&self, plan: &mut Plan, place: &Place) {
        let data = place.pages(self.data).max(u64::from(self.chunk) * 2);
        let area = place.pages(self.area).max(2);
        let region =
            |pages, backing| Region { pages, backing, recency: true, exec: false, processes: 1 };
        let files = plan.space(place.memcg, vec![region(data, Backing::File)]);
        let kinds = [(0, self.readers), (1, self.writers), (2, self.allocators)];
        for (kind, threads) in kinds {
            for thread in 0..threads {
                let part = |n: u32| data * u64::from(n) / u64::from(threads.max(1));
                let prepare = match kind {
                    0 if self.prepare => (part(thread), part(thread + 1)),
                    _ => (0, 0),
                };
                let pages = place.pages(8.0);
                let (space, size) = match kind {
                    0 => (files, data),
                    1 => (plan.space(place.memcg, vec![region(pages, Backing::File)]), pages),
                    _ => (plan.space(place.memcg, vec![region(area, Backing::Anon)]), area),
                };
                let worker = Worker {
                    kind,
                    space,
                    size,
                    at: 0,
                    done: 0,
                    started: false,
                    prepare,
                    random: Random(place.seed_of(u64::from(kind), u64::from(thread))),
                    spec: self.clone(),
                };
                plan.thread(Box::new(worker), space, place.measured);
            }
        }
    }
}

struct Worker {
    spec: Simoop,
    kind: u8,
    space: u16,
    size: u64,
    at: u64,
    done: u64,
    started: bool,
    /// What is left of the files to be written first.
    prepare: (u64, u64),
    random: Random,
}

/// Pages written between two looks at what comes next.
const PREPARE_BATCH: u64 = 256;

impl Program for Worker {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        let (from, to) = self.prepare;
        if from < to {
            let until = to.min(from + PREPARE_BATCH);
            let (space, access) = (self.space, Access::FdWrite);
            steps.extend((from..until).map(|p| Step::Touch { page: p as u32, space, access }));
            self.prepare.0 = until;
            return;
        }
        if !self.started {
            self.started = true;
            // They do not all begin at once.
            steps.push(Step::Start);
            steps.push(Step::Sleep(1000 * u64::from(self.random.below(self.spec.rest_us.max(1)))));
            return;
        }
        if self.spec.ops > 0 && self.done == self.spec.ops {
            return;
        }
        self.done += 1;
        let space = self.space;
        let touch = |page: u64, access| Step::Touch { page: page as u32, space, access };
        match self.kind {
            0 => {
                let n = u64::from(self.spec.chunk);
                let first = u64::from(self.random.below((self.size - n) as u32));
                let (page, pages) = (first as u32, n as u32);
                steps.push(Step::Ahead { page, space, pages });
                steps.extend((first..first + n).map(|p| touch(p, Access::FdRead)));
            }
            1 => {
                let n = u64::from(self.spec.write);
                for _ in 0..n {
                    steps.push(touch(self.at % self.size, Access::FdWrite));
                    self.at += 1;
                }
                if self.done.is_multiple_of(u64::from(self.spec.sync_every.max(1))) {
                    steps.push(Step::Sync { space });
                }
            }
            _ => steps.extend((0..self.size).map(|p| touch(p, Access::Write))),
        }
        steps.push(Step::Done(self.kind));
        if self.kind == 2 {
            steps.push(Step::Sleep(1000 * u64::from(self.spec.hold_us)));
            steps.push(Step::Free { space, page: 0, pages: self.size as u32 });
        }
        steps.push(Step::Sleep(
            1000 * u64::from(self.spec.rest_us / 2 + self.random.below(self.spec.rest_us.max(1))),
        ));
    }
}
