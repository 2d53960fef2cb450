//! A kernel build: many short programs, some at a time.
//!
//! Each program reads its source and some headers, runs the compiler's text (a shared mapping), and
//! fills memory of its own. It goes over that memory again, writes an object file and ends. Its
//! accesses between reading and writing are drawn or recorded.

use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::keys::{Keys, Pattern};
use super::recording::{self, Recording};
use super::spec::{Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use crate::value::ValueError;
use ebb_mm::random::Random;

/// Parameters of a kernel build.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// Programs that run at a time.
    pub jobs: u32,
    /// Programs in all.
    pub programs: u32,
    /// Size of the compiler's text, as a share of memory.
    pub text: f64,
    /// Size of all headers, as a share of memory.
    pub headers: f64,
    /// Size of all sources, as a share of memory. Each program reads its part.
    pub sources: f64,
    /// Private memory of one program, as a share of memory.
    pub memory: f64,
    /// Number of times that a program goes over its memory, by default 3. A recording has its own
    /// passes.
    pub passes: Option<u32>,
    /// Share of the headers that a program reads.
    #[serde(default = "includes")]
    pub includes: f64,
    /// Processor time for each accessed page, in nanoseconds.
    pub page_ns: u32,
    /// Recording of a program, whose uses of text and memory are played back, stretched to the size
    /// of each program here.
    pub recording: Option<recording::Recorded>,
    /// Share of a job's programs that are larger. They come last, as those of a directory of large
    /// drivers.
    #[serde(default)]
    pub large_share: f64,
    /// Size of the larger programs, as a multiple of the size of the others.
    #[serde(default = "as_large")]
    pub large_factor: f64,
}

/// Number of times that a program goes over its memory, by default.
const PASSES: u32 = 3;

fn as_large() -> f64 {
    1.0
}
fn includes() -> f64 {
    0.2
}

impl Build {
    /// Checks the values.
    ///
    /// # Errors
    /// The share of larger programs is more than 1 or below 0, or they are smaller than the others.
    /// Passes over memory are given beside a recording.
    pub(crate) fn check(&self) -> Result<(), ValueError> {
        if !(0.0..=1.0).contains(&self.large_share) {
            return Err(ValueError::Number("large_share", self.large_share, "0 to 1"));
        }
        if !(1.0..=100.0).contains(&self.large_factor) {
            return Err(ValueError::Number("large_factor", self.large_factor, "1 to 100"));
        }
        if (self.large_share > 0.0) != (self.large_factor > 1.0) {
            return Err(ValueError::Rule(
                "large_share and large_factor",
                "expected both or neither",
            ));
        }
        if self.recording.is_some() && self.passes.is_some() {
            return Err(ValueError::Rule("passes", "expected none, a recording has its own"));
        }
        Ok(())
    }

    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
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
        // Programs differ in size by a half.
        let largest = ((own + own / 2) as f64 * self.large_factor) as u64;
        for job in 0..u64::from(self.jobs) {
            let anon = Region {
                pages: largest,
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
                largest,
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
    /// Pages of text, headers, sources, and memory of a program.
    sizes: [u64; 4],
    /// Pages of the largest program.
    largest: u64,
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

    /// Returns how many pages of memory the program uses.
    fn size(&mut self, number: u64) -> u64 {
        let own = self.sizes[3];
        let mine = own / 2 + u64::from(self.random.below(own.max(1) as u32));
        let of = u64::from(self.spec.programs / self.spec.jobs).max(1);
        let large = (number % of) as f64 >= (1.0 - self.spec.large_share) * of as f64;
        if large { (mine as f64 * self.spec.large_factor) as u64 } else { mine }.max(1)
    }

    /// Fills memory in order, then touches it in random order.
    fn drawn(&mut self, steps: &mut Vec<Step>, mine: u64) {
        for pass in 0..self.spec.passes.unwrap_or(PASSES) {
            for i in 0..mine {
                let page = if pass == 0 { i } else { u64::from(self.random.below(mine as u32)) };
                let access = if pass == 0 { Access::Write } else { Access::Read };
                steps.push(Step::Cpu(self.spec.page_ns));
                steps.push(Step::Touch { page: page as u32, space: self.space, access });
                let at = self.text.draw(&mut self.random);
                steps.push(self.file(at, Access::Read));
            }
        }
    }

    /// Uses text and memory as recorded. A page of the recording stands for an equal share of a
    /// program's memory here.
    fn recorded(&self, steps: &mut Vec<Step>, of: &Recording, mine: u64) {
        // A program of another size takes as much longer.
        let stretch = mine as f64 / of.own as f64;
        let cpu = (f64::from(self.spec.page_ns) * stretch) as u32;
        let mut filled = vec![false; mine as usize];
        for used in &of.uses {
            steps.push(Step::Cpu(cpu));
            if used.file {
                let at = u64::from(used.page) % self.sizes[0];
                steps.push(self.file(at, Access::Read));
                continue;
            }
            let (from, to) = (u64::from(used.page), u64::from(used.page) + 1);
            let (from, to) = (from * mine / of.own, to * mine / of.own);
            for page in from..to.max(from + 1) {
                let first = !std::mem::replace(&mut filled[page as usize], true);
                let access = if first || used.write { Access::Write } else { Access::Read };
                steps.push(Step::Touch { page: page as u32, space: self.space, access });
            }
        }
    }

    fn program(&mut self, steps: &mut Vec<Step>, number: u64) {
        let [text, headers, sources, _] = self.sizes;
        let all = u64::from(self.spec.programs);
        let part = (sources / all).max(1);
        let source = text + headers + number * sources / all;
        steps.extend((0..part).map(|i| self.file(source + i, Access::FdRead)));
        let includes = (headers as f64 * self.spec.includes) as u64;
        for _ in 0..includes {
            let page = text + self.headers.draw(&mut self.random);
            steps.push(self.file(page, Access::FdRead));
        }
        let mine = self.size(number);
        match self.spec.recording {
            Some(program) => self.recorded(steps, program.recording(), mine),
            None => self.drawn(steps, mine),
        }
        let object = text + headers + sources + number * sources / all;
        steps.extend((0..part).map(|i| self.file(object + i, Access::FdWrite)));
        steps.push(Step::Free { space: self.space, page: 0, pages: self.largest as u32 });
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

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(more: &str) -> Build {
        let text = "jobs = 2\nprograms = 20\ntext = 0.2\nheaders = 0.1\nsources = 0.02\nmemory = 0.1\npage_ns = 7\n";
        toml::from_str(&format!("{text}{more}")).unwrap()
    }

    /// Returns the steps of the first job's programs.
    fn programs(spec: &Build) -> Vec<Vec<Step>> {
        let mut plan = Plan::default();
        spec.plan(&mut plan, &Setting { memcg: 0, memory: 10_000, seed: 1, measured: true });
        let mut all = Vec::new();
        loop {
            let mut steps = Vec::new();
            plan.threads[0].program.fill(&mut steps);
            match steps.first() {
                None => return all,
                Some(Step::Start) => {}
                Some(_) => all.push(steps),
            }
        }
    }

    /// Returns the accesses of a program to its own pages.
    fn own(steps: &[Step]) -> Vec<(u32, Access)> {
        steps
            .iter()
            .filter_map(|step| match step {
                Step::Touch { page, space: 1, access } => Some((*page, *access)),
                _ => None,
            })
            .collect()
    }

    fn size(steps: &[Step]) -> u32 {
        own(steps).iter().map(|(page, _)| page + 1).max().unwrap()
    }

    #[test]
    fn a_recorded_program_writes_a_page_before_it_reads_it_and_uses_all_its_memory() {
        let programs = programs(&spec("recording = \"cc1plus\""));
        assert_eq!(programs.len(), 10);
        for steps in &programs {
            let mut seen = vec![false; size(steps) as usize];
            for (page, access) in own(steps) {
                assert!(seen[page as usize] || access == Access::Write, "page {page}");
                seen[page as usize] = true;
            }
            assert!(seen.iter().all(|&s| s), "{} pages", seen.len());
            assert!((500..1500).contains(&seen.len()), "{} pages", seen.len());
        }
        // Time is proportional to size.
        let cpu = |steps: &[Step]| -> u64 {
            steps.iter().map(|s| if let Step::Cpu(ns) = s { u64::from(*ns) } else { 0 }).sum()
        };
        let rate = |steps: &[Step]| cpu(steps) as f64 / f64::from(size(steps));
        let rates: Vec<f64> = programs.iter().map(|s| rate(s)).collect();
        let (least, most) =
            rates.iter().fold((f64::MAX, 0.0f64), |(l, m), &r| (l.min(r), m.max(r)));
        assert!(most / least < 2.0, "{rates:?}");
    }

    #[test]
    fn the_last_programs_of_a_job_are_the_larger_ones() {
        let recorded = "recording = \"cc1plus\"\n";
        let equal = programs(&spec(recorded));
        let some = programs(&spec(&format!("{recorded}large_share = 0.3\nlarge_factor = 4.0")));
        let factors: Vec<u32> = std::iter::zip(&some, &equal)
            .map(|(a, b)| (f64::from(size(a)) / f64::from(size(b))).round() as u32)
            .collect();
        assert_eq!(factors, [1, 1, 1, 1, 1, 1, 1, 4, 4, 4]);
        // The program frees all of its memory.
        let freed = some[9].iter().find_map(|step| match step {
            Step::Free { space: 1, page: 0, pages } => Some(*pages),
            _ => None,
        });
        assert!(freed.is_some_and(|pages| pages >= size(&some[9])));
    }

    #[test]
    fn larger_programs_that_make_no_sense_are_refused() {
        assert_eq!(spec("").check(), Ok(()));
        for (more, what) in [
            ("large_share = 1.5", "large_share = 1.5: expected 0 to 1"),
            ("large_share = 0.5", "large_share and large_factor: expected both or neither"),
            ("large_factor = 2.0", "large_share and large_factor: expected both or neither"),
            (
                "recording = \"cc1plus\"\npasses = 2",
                "passes: expected none, a recording has its own",
            ),
            ("large_factor = 0.5", "large_factor = 0.5: expected 1 to 100"),
            ("large_factor = nan", "large_factor = NaN: expected 1 to 100"),
        ] {
            assert_eq!(spec(more).check().unwrap_err().to_string(), what);
        }
    }
}
