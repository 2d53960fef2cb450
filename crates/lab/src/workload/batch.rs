//! Batch jobs that sort (Spark, TeraSort), in phases: reading, sorting in memory, shuffling,
//! writing.
//!
//! Each task reads its split in order into its part of the heap. It touches its heap in random
//! order (sorting, and the collector's marking), and spills. Then it waits for the others, reads
//! their spills, and writes its output.

use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::spec::{Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use ebb_mm::random::Random;

/// Parameters of batch jobs.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Jobs, each with a heap of its own.
    #[serde(default = "one")]
    pub jobs: u32,
    /// Tasks of each job, one thread each.
    pub tasks: u32,
    /// Size of the input, as a multiple of memory.
    pub input: f64,
    /// Size of all heaps, as a multiple of memory.
    pub heap: f64,
    /// Rounds in which a task reads, sorts and spills.
    #[serde(default = "rounds")]
    pub rounds: u32,
    /// Accesses to the heap in sorting and collecting, for each heap page and round.
    #[serde(default = "passes")]
    pub passes: f64,
    /// Processor time for each page of input, in all phases together, in nanoseconds.
    pub page_ns: u32,
}

fn one() -> u32 {
    1
}
fn rounds() -> u32 {
    3
}
fn passes() -> f64 {
    2.0
}

impl Batch {
    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
        let (jobs, tasks) = (u64::from(self.jobs), u64::from(self.tasks));
        let all = jobs * tasks;
        let heap = (place.pages(self.heap) / all).max(4);
        let split = (place.pages(self.input) / all).max(4);
        let region =
            |pages, backing| Region { pages, backing, recency: true, exec: false, processes: 1 };
        let group = plan.group();
        for job in 0..jobs {
            let own = plan.space(place.memcg, vec![region(heap * tasks, Backing::Anon)]);
            // Input, spills, output.
            let part = || region(split * tasks, Backing::File);
            let files = plan.space(place.memcg, vec![part(), part(), part()]);
            for task in 0..tasks {
                let worker = Task {
                    own,
                    files,
                    task,
                    tasks,
                    heap,
                    split,
                    group,
                    parties: all as u16,
                    random: Random(place.seed_of(job, task)),
                    phase: Phase::Start,
                    at: 0,
                    spec: self.clone(),
                };
                plan.thread(Box::new(worker), own, place.measured);
            }
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Start,
    Read(u32),
    Sort(u32),
    Spill(u32),
    Wait,
    Shuffle,
    End,
}

struct Task {
    spec: Batch,
    own: u16,
    files: u16,
    task: u64,
    tasks: u64,
    heap: u64,
    split: u64,
    group: u16,
    parties: u16,
    random: Random,
    phase: Phase,
    /// Progress within the phase.
    at: u64,
}

/// Number of pages handled at a time.
const BATCH: u64 = 64;

impl Task {
    fn heap_page(&self, page: u64, access: Access) -> Step {
        let page = (self.task * self.heap + page) as u32;
        Step::Touch { page, space: self.own, access }
    }

    fn file_page(&self, file: u64, task: u64, page: u64, access: Access) -> Step {
        let page = (file * self.split * self.tasks + task * self.split + page) as u32;
        Step::Touch { page, space: self.files, access }
    }

    /// Returns the pages of the split that a round handles.
    fn round(&self, round: u32) -> (u64, u64) {
        let (r, all) = (u64::from(round), u64::from(self.spec.rounds));
        (self.split * r / all, self.split * (r + 1) / all)
    }

    fn random_heap(&mut self) -> u64 {
        u64::from(self.random.below(self.heap as u32))
    }

    fn next_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.at = 0;
    }

    fn read(&mut self, steps: &mut Vec<Step>, round: u32) {
        let (from, to) = self.round(round);
        let end = (from + self.at + BATCH).min(to);
        for page in from + self.at..end {
            steps.push(self.file_page(0, self.task, page, Access::FdRead));
            steps.push(Step::Cpu(self.spec.page_ns / 4));
            // Text becomes objects, so the heap fills as the input is read.
            let (first, last) = (
                (page - from) * self.heap / (to - from),
                (page + 1 - from) * self.heap / (to - from),
            );
            steps.extend((first..last).map(|p| self.heap_page(p, Access::Write)));
        }
        self.at = end - from;
        if end == to {
            self.next_phase(Phase::Sort(round));
        }
    }

    fn sort(&mut self, steps: &mut Vec<Step>, round: u32) {
        let (from, to) = self.round(round);
        let touches = (self.heap as f64 * self.spec.passes) as u64;
        let cpu = u64::from(self.spec.page_ns) / 4 * (to - from) / touches.max(1);
        for _ in 0..BATCH.min(touches - self.at) {
            let page = self.random_heap();
            let access = if page.is_multiple_of(2) { Access::Write } else { Access::Read };
            steps.push(self.heap_page(page, access));
            steps.push(Step::Cpu(cpu as u32));
        }
        self.at += BATCH;
        if self.at >= touches {
            self.next_phase(Phase::Spill(round));
        }
    }

    fn spill(&mut self, steps: &mut Vec<Step>, round: u32) {
        let (from, to) = self.round(round);
        let end = (from + self.at + BATCH).min(to);
        for page in from + self.at..end {
            let at = self.random_heap();
            steps.push(self.heap_page(at, Access::Read));
            steps.push(Step::Cpu(self.spec.page_ns / 4));
            steps.push(self.file_page(1, self.task, page, Access::FdWrite));
        }
        self.at = end - from;
        if end == to {
            let next = round + 1;
            let more = next < self.spec.rounds;
            self.next_phase(if more { Phase::Read(next) } else { Phase::Wait });
        }
    }

    fn shuffle(&mut self, steps: &mut Vec<Step>) {
        let end = (self.at + BATCH).min(self.split);
        for page in self.at..end {
            // The task reads a run from each of the others in turn.
            let other = (self.task + page * self.tasks / self.split) % self.tasks;
            steps.push(self.file_page(1, other, page, Access::FdRead));
            let at = self.random_heap();
            steps.push(self.heap_page(at, Access::Write));
            steps.push(Step::Cpu(self.spec.page_ns / 4));
            steps.push(self.file_page(2, self.task, page, Access::FdWrite));
        }
        self.at = end;
        if end == self.split {
            self.next_phase(Phase::End);
            steps.push(Step::Done(0));
        }
    }
}

impl Program for Task {
    fn group(&self) -> Option<u16> {
        Some(self.group)
    }

    fn fill(&mut self, steps: &mut Vec<Step>) {
        match self.phase {
            Phase::Start => {
                steps.push(Step::Start);
                self.next_phase(Phase::Read(0));
            }
            Phase::Read(round) => self.read(steps, round),
            Phase::Sort(round) => self.sort(steps, round),
            Phase::Spill(round) => self.spill(steps, round),
            Phase::Wait => {
                steps.push(Step::Barrier { group: self.group, parties: self.parties });
                self.next_phase(Phase::Shuffle);
            }
            Phase::Shuffle => self.shuffle(steps),
            Phase::End => {}
        }
    }
}
