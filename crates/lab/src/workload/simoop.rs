//! simoop: readers of large random chunks, writers that sync now and then, and allocators that map,
//! touch and free large areas. The latencies of each kind are kept apart: `read`, `write`, `alloc`.
//!
//! They are threads of their own, each with its pace, or the threads of workers, as in simoop
//! itself. A worker goes in rounds. Each of its threads reads a chunk and then writes one, without
//! a sync. When all have done so, the first thread touches the memory that the worker keeps. It
//! also maps, touches and frees an area. Beside them some threads only compute.

use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::spec::{Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use ebb_mm::random::Random;

/// Parameters of simoop.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Simoop {
    /// Threads that read.
    #[serde(default)]
    pub readers: u32,
    /// Threads that write.
    #[serde(default)]
    pub writers: u32,
    /// Threads that allocate.
    #[serde(default)]
    pub allocators: u32,
    /// Workers, which work in rounds.
    #[serde(default)]
    pub workers: u32,
    /// Threads of a worker.
    #[serde(default = "worker_threads")]
    pub worker_threads: u32,
    /// Memory that the workers keep and use in every round, as a share of memory.
    #[serde(default)]
    pub memory: f64,
    /// Pages of the file that each thread of a worker writes over and over.
    #[serde(default = "file")]
    pub file: u32,
    /// Rounds before measuring begins.
    #[serde(default)]
    pub warm_rounds: u32,
    /// Threads that only compute.
    #[serde(default)]
    pub burners: u32,
    /// Size of the files that are read, as a multiple of memory.
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
    /// Size of one allocation, as a share of memory.
    pub area: f64,
    /// Time for which an allocator keeps its area, in microseconds.
    #[serde(default = "hold")]
    pub hold_us: u32,
    /// Mean pause of every thread between two operations, in microseconds.
    #[serde(default = "rest")]
    pub rest_us: u32,
    /// Whether threads write the files first, each reader its part, as simoop prepares them.
    #[serde(default)]
    pub prepare: bool,
    /// Operations of each thread; 0: as many as fit in the measured time.
    #[serde(default)]
    pub ops: u64,
}

fn worker_threads() -> u32 {
    1
}
fn file() -> u32 {
    256
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
    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
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
        self.plan_workers(plan, place, files, data);
        for _ in 0..self.burners {
            plan.thread(Box::new(Burner), files, false);
        }
    }

    fn plan_workers(&self, plan: &mut Plan, place: &Setting, files: u16, data: u64) {
        let (of, recency) = (u64::from(self.worker_threads.max(1)), true);
        let region = |pages, backing| Region { pages, backing, recency, exec: false, processes: 1 };
        let area = place.pages(self.area).max(2);
        let kept = (place.pages(self.memory) / u64::from(self.workers.max(1))).max(1);
        let all = u64::from(self.workers) * of;
        for worker in 0..u64::from(self.workers) {
            let group = plan.group();
            let own = plan.space(place.memcg, vec![region(kept + area, Backing::Anon)]);
            for thread in worker * of..(worker + 1) * of {
                let file = u64::from(self.file.max(self.write));
                let out = plan.space(place.memcg, vec![region(file, Backing::File)]);
                let part = |n: u64| if self.prepare { data * n / all } else { 0 };
                let round = Round {
                    files: (files, data),
                    out: (out, file),
                    at: 0,
                    own: (own, kept, area),
                    leads: thread == worker * of,
                    group,
                    prepare: (part(thread), part(thread + 1)),
                    load: (0, kept),
                    rounds: 0,
                    random: Random(place.seed_of(3, thread)),
                    spec: self.clone(),
                };
                plan.thread(Box::new(round), own, place.measured);
            }
        }
    }
}

/// A thread that computes.
struct Burner;

impl Program for Burner {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        // Burners are scheduled like other threads that compute as long as they may.
        steps.push(Step::Cpu(1_000_000));
    }
}

/// A thread of a worker.
struct Round {
    spec: Simoop,
    /// Space of the files that are read, and its pages.
    files: (u16, u64),
    /// Space of the file that is written, and its pages.
    out: (u16, u64),
    /// Page of that file that is written next.
    at: u64,
    /// The worker's space: pages that it keeps, and behind them the pages that it maps.
    own: (u16, u64, u64),
    /// Whether the thread is the first of its worker.
    leads: bool,
    group: u16,
    /// Remaining pages of the files to be written first.
    prepare: (u64, u64),
    /// Remaining pages of the worker's memory to be filled.
    load: (u64, u64),
    rounds: u32,
    random: Random,
}

impl Program for Round {
    fn group(&self) -> Option<u16> {
        Some(self.group)
    }

    fn fill(&mut self, steps: &mut Vec<Step>) {
        let touch = |page: u64, space, access| Step::Touch { page: page as u32, space, access };
        let barrier =
            Step::Barrier { group: self.group, parties: self.spec.worker_threads.max(1) as u16 };
        let (from, to) = self.prepare;
        if from < to {
            let until = to.min(from + PREPARE_BATCH);
            steps.extend((from..until).map(|p| touch(p, self.files.0, Access::FdWrite)));
            self.prepare.0 = until;
            return;
        }
        let (own, kept, area) = self.own;
        if self.leads && self.load.0 < self.load.1 {
            let until = self.load.1.min(self.load.0 + PREPARE_BATCH);
            steps.extend((self.load.0..until).map(|p| touch(p, own, Access::Write)));
            self.load.0 = until;
            return;
        }
        if self.rounds == self.spec.warm_rounds {
            steps.push(Step::Start);
        }
        self.rounds = self.rounds.saturating_add(1);
        // Latencies count from a barrier, or from the end of the operation before.
        steps.push(barrier);
        let n = u64::from(self.spec.chunk).min(self.files.1);
        let first = u64::from(self.random.below((self.files.1 - n).max(1) as u32));
        steps.push(Step::Ahead { page: first as u32, space: self.files.0, pages: n as u32 });
        steps.extend((first..first + n).map(|p| touch(p, self.files.0, Access::FdRead)));
        steps.push(Step::Done(0));
        for _ in 0..self.spec.write {
            steps.push(touch(self.at, self.out.0, Access::FdWrite));
            self.at = (self.at + 1) % self.out.1;
        }
        steps.extend([Step::Done(1), barrier]);
        if self.leads {
            steps.extend((0..kept).map(|p| touch(p, own, Access::Write)));
            steps.push(Step::Sleep(1));
            steps.extend((kept..kept + area).map(|p| touch(p, own, Access::Write)));
            steps.push(Step::Done(2));
            steps.push(Step::Free { space: own, page: kept as u32, pages: area as u32 });
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
    /// Remaining pages of the files to be written first.
    prepare: (u64, u64),
    random: Random,
}

/// Number of pages written or filled in one call of `fill`.
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
            // A random sleep keeps the threads from beginning at one time.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the steps of each thread until it has come to so many barriers.
    fn steps(barriers: usize) -> Vec<Vec<Step>> {
        let spec = "workers = 2\nworker_threads = 3\nmemory = 0.5\ndata = 2.0\narea = 0.01\n\
                    chunk = 8\nwrite = 4\nwarm_rounds = 1\nprepare = true";
        let spec: Simoop = toml::from_str(spec).unwrap();
        let mut plan = Plan::default();
        spec.plan(&mut plan, &Setting { memcg: 0, memory: 6000, seed: 1, measured: true });
        let met =
            |steps: &[Step]| steps.iter().filter(|s| matches!(s, Step::Barrier { .. })).count();
        let of = |program: &mut Box<dyn Program>| {
            let mut steps = Vec::new();
            while met(&steps) < barriers {
                program.fill(&mut steps);
            }
            steps
        };
        plan.threads.iter_mut().map(|t| of(&mut t.program)).collect()
    }

    #[test]
    fn a_worker_goes_in_rounds_and_its_first_thread_maps_an_area_in_each() {
        let threads = steps(6);
        assert_eq!(threads.len(), 6);
        for (i, steps) in threads.iter().enumerate() {
            let done = |kind: u8| steps.iter().filter(|s| **s == Step::Done(kind)).count();
            let groups = steps.iter().filter_map(|s| match s {
                Step::Barrier { group, parties: 3 } => Some(usize::from(*group)),
                _ => None,
            });
            assert!(groups.eq([i / 3; 6]), "the threads of a worker wait for each other");
            assert_eq!((done(0), done(1), done(2)), (3, 3, if i % 3 == 0 { 3 } else { 0 }));
            let start = steps.iter().position(|s| *s == Step::Start).unwrap();
            let before = steps[..start].iter().filter(|s| **s == Step::Done(0)).count();
            assert_eq!(before, 1, "measured from the second round on");
            assert!(!steps.iter().any(|s| matches!(s, Step::Sync { .. })));
        }
    }

    #[test]
    fn a_worker_uses_its_own_pages_in_every_round_and_unmaps_its_areas() {
        let first = &steps(4)[0];
        let own = |step: &Step| match step {
            Step::Touch { page, access: Access::Write, .. } => Some(*page),
            _ => None,
        };
        let touched = |page| first.iter().filter_map(own).filter(|&p| p == page).count();
        // Filled once, and used in two rounds. The area lies behind it.
        assert_eq!((touched(0), touched(1499), touched(1500), touched(1559)), (3, 3, 2, 2));
        let freed = |s: &&Step| matches!(s, Step::Free { page: 1500, pages: 60, .. });
        assert_eq!(first.iter().filter(freed).count(), 2);
    }
}
