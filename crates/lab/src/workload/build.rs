//! A kernel build: many short programs, so many at a time.
//!
//! Each reads its source and some headers, runs the compiler's text (a shared mapping), fills memory
//! of its own, goes over it again, writes an object file and ends.

use ebb_core::space::Backing;
use serde::Deserialize;

use super::keys::{Keys, Pattern};
use super::spec::{Place, Plan};
use super::{Program, Step};
use crate::machine::{Access, Region};
use crate::trace::synth::Random;

/// Parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// Programs at a time.
    pub jobs: u32,
    /// Programs in all.
    pub programs: u32,
    /// The compiler's text, as a share of memory.
    pub text: f64,
    /// Headers, as a share of memory.
    pub headers: f64,
    /// Sources, as a share of memory; each program reads its part.
    pub sources: f64,
    /// Memory of one program, as a share of memory.
    pub memory: f64,
    /// How often a program goes over its memory.
    #[serde(default = "passes")]
    pub passes: u32,
    /// Headers read by a program, as a share of all.
    #[serde(default = "includes")]
    pub includes: f64,
    /// Processor time for each page touched.
    pub page_ns: u32,
}

fn passes() -> u32 {
    3
}
fn includes() -> f64 {
    0.2
}

impl Build {
    /// Puts it on the machine.
    pub fn plan(&self, plan: &mut Plan, place: &Place) {
        let (text, headers) = (place.pages(self.text), place.pages(self.headers));
        let (sources, own) = (place.pages(self.sources), place.pages(self.memory));
        let file = |pages, exec| Region {
            pages,
            backing: Backing::File,
            recency: true,
            exec,
            processes: 1,
        };
        let shared = vec![
            file(text, true),
            file(headers, false),
            file(sources, false),
            file(sources, false),
        ];
        let files = plan.space(place.memcg, shared);
        for job in 0..u64::from(self.jobs) {
            // Programs differ in size by a half.
            let anon = Region {
                pages: own + own / 2,
                backing: Backing::Anon,
                recency: true,
                exec: false,
                processes: 1,
            };
            let space = plan.space(place.memcg, vec![anon]);
            let first = u64::from(self.programs) * job / u64::from(self.jobs);
            let last = u64::from(self.programs) * (job + 1) / u64::from(self.jobs);
            let make = Make {
                sizes: [text, headers, sources, own],
                files,
                space,
                programs: (first, last),
                text: Keys::new(Pattern::Zipfian, text, 0.9, 0, 1),
                headers: Keys::new(Pattern::Zipfian, headers, 0.7, 0, 1),
                random: Random(place.seed_of(0, job)),
                started: false,
                spec: self.clone(),
            };
            plan.thread(Box::new(make), space, place.measured);
        }
    }
}

struct Make {
    spec: Build,
    /// Text, headers, sources, memory of a program.
    sizes: [u64; 4],
    files: u16,
    space: u16,
    programs: (u64, u64),
    text: Keys,
    headers: Keys,
    random: Random,
    started: bool,
}

impl Make {
    fn file(&self, page: u64, access: Access) -> Step {
        Step::Touch { page: page as u32, space: self.files, access }
    }

    fn program(&mut self, steps: &mut Vec<Step>, number: u64) {
        let [text, headers, sources, own] = self.sizes;
        let all = u64::from(self.spec.programs);
        let part = (sources / all).max(1);
        let source = text + headers + number * sources / all;
        steps.extend((0..part).map(|i| self.file(source + i, Access::FdRead)));
        let includes = (headers as f64 * self.spec.includes) as u64;
        for _ in 0..includes {
            let page = text + self.headers.draw(&mut self.random);
            steps.push(self.file(page, Access::FdRead));
        }
        let mine = own / 2 + u64::from(self.random.below(own.max(1) as u32));
        for pass in 0..self.spec.passes {
            for i in 0..mine.max(1) {
                // Memory fills in order; later it is gone over in no order.
                let page = if pass == 0 { i } else { u64::from(self.random.below(mine as u32)) };
                let access = if pass == 0 { Access::Write } else { Access::Read };
                steps.push(Step::Cpu(self.spec.page_ns));
                steps.push(Step::Touch { page: page as u32, space: self.space, access });
                let at = self.text.draw(&mut self.random);
                steps.push(self.file(at, Access::Read));
            }
        }
        let object = text + headers + sources + number * sources / all;
        steps.extend((0..part).map(|i| self.file(object + i, Access::FdWrite)));
        let pages = (own + own / 2) as u32;
        steps.push(Step::Free { space: self.space, page: 0, pages });
        steps.push(Step::Done(0));
    }
}

impl Program for Make {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        if !self.started {
            self.started = true;
            steps.push(Step::Start);
        } else if self.programs.0 < self.programs.1 {
            let number = self.programs.0;
            self.programs.0 += 1;
            self.program(steps, number);
        }
    }
}
