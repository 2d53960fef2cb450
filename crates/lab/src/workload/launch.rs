//! A phone or a car that starts applications from nothing, one after another, in rounds, while
//! services run.
//!
//! An application that starts reads its files and the shared text through mappings, and fills its
//! memory. It does so in runs of pages that take turns. Then it writes to a file. Nothing happens
//! for a while, its process ends, and the next application starts. Services touch their memory,
//! read on in one file and write another, all the time.

use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::spec::{Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use crate::value::ValueError;
use ebb_mm::random::Random;

/// Parameters of applications that are started from nothing.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Number of applications.
    pub apps: u32,
    /// Private memory of all applications, as a multiple of memory. The largest application has
    /// three times the memory of the smallest.
    pub anon: f64,
    /// Size of the files that all applications read when they start, as a multiple of memory.
    pub files: f64,
    /// Text that all applications share, as a share of memory.
    pub shared: f64,
    /// Data that a start writes to files, as a share of memory.
    pub written: f64,
    /// Memory of the system and its services, as a share of memory.
    pub system: f64,
    /// Share of the memory of the system that is used all the time.
    #[serde(default = "hot")]
    pub hot: f64,
    /// Threads of services.
    #[serde(default = "services")]
    pub services: u32,
    /// Files that services read in order, page by page, as a multiple of memory.
    #[serde(default)]
    pub read: f64,
    /// Pause of a service between two uses of its memory, in microseconds.
    pub service_us: u32,
    /// Processor time of a start for each accessed page, in nanoseconds.
    pub page_ns: u32,
    /// Time after a start in which nothing else is started, in microseconds.
    pub rest_us: u32,
    /// Rounds before measuring.
    #[serde(default = "warm")]
    pub warm: u32,
    /// Rounds measured.
    pub rounds: u32,
}

fn hot() -> f64 {
    0.33
}
fn services() -> u32 {
    2
}
fn warm() -> u32 {
    3
}

/// Number of pages that are read or filled in a row.
const RUN: u64 = 16;
/// Pages of the file that a service writes over and over.
const LOG: u64 = 256;
/// Number of parts of its memory that a service touches in turn.
const PARTS: u64 = 8;

impl Launch {
    /// Checks the values.
    ///
    /// # Errors
    /// There are no applications, services or rounds.
    pub(crate) fn check(&self) -> Result<(), ValueError> {
        ValueError::of_zero(&[
            ("apps", self.apps),
            ("services", self.services),
            ("rounds", self.rounds),
        ])
    }

    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
        let n = u64::from(self.apps);
        let region = |pages, backing, exec, processes| Region {
            pages,
            backing,
            recency: true,
            exec,
            processes,
        };
        let shared = place.pages(self.shared);
        let text = plan.space(place.memcg, vec![region(shared, Backing::File, true, self.apps)]);
        let written = place.pages(self.written);
        let apps: Vec<App> = (0..n)
            .map(|i| {
                // From half of the mean to one and a half.
                let part = (0.5 + i as f64 / (n - 1).max(1) as f64) / n as f64;
                let (anon, files) = (place.pages(self.anon * part), place.pages(self.files * part));
                let own = vec![
                    region(anon, Backing::Anon, false, 1),
                    region(files, Backing::File, true, 1),
                    region(written, Backing::File, false, 1),
                ];
                App { space: plan.space(place.memcg, own), anon, files }
            })
            .collect();
        let user = User {
            apps,
            text,
            shared,
            written,
            random: Random(place.seed_of(0, 0)),
            at: 0,
            spec: self.clone(),
        };
        let home = user.apps[0].space;
        plan.thread(Box::new(user), home, place.measured);
        let services = u64::from(self.services);
        let (all, read) = (place.pages(self.system), place.pages(self.read.max(0.001)));
        for service in 0..services {
            let own = vec![
                region((all / services).max(PARTS), Backing::Anon, false, 1),
                region((read / services).max(8), Backing::File, false, 1),
                region(LOG, Backing::File, false, 1),
            ];
            let (anon, files) = (own[0].pages, own[1].pages);
            let space = plan.space(place.memcg, own);
            let random = Random(place.seed_of(1, service));
            let hot = (anon as f64 * self.hot) as u64;
            let rest_us = self.service_us;
            let service =
                Service { space, anon, files, hot, rest_us, random, filled: false, at: 0 };
            plan.thread(Box::new(service), space, false);
        }
    }
}

/// An application's space: its memory, its files, and the file that it writes.
struct App {
    space: u16,
    anon: u64,
    files: u64,
}

struct User {
    spec: Launch,
    apps: Vec<App>,
    text: u16,
    shared: u64,
    written: u64,
    random: Random,
    /// Number of starts until now.
    at: u64,
}

impl User {
    fn start(&mut self, steps: &mut Vec<Step>, app: usize) {
        let App { space, anon, files } = self.apps[app];
        let ns = self.spec.page_ns;
        // Files come in an order that has no pattern and does not change. The rest comes in order.
        let runs = files.div_ceil(RUN);
        for i in 0..runs {
            let run = i * 769 % runs * RUN;
            let (from, to) = (anon * i / runs, anon * (i + 1) / runs);
            let file = (run..(run + RUN).min(files)).map(|page| (anon + page, Access::Read));
            let own = (from..to).map(|page| (page, Access::Write));
            for (page, access) in file.chain(own) {
                steps.push(Step::Touch { page: page as u32, space, access });
                steps.push(Step::Cpu(ns));
            }
            let first = u64::from(self.random.below(self.shared as u32));
            for page in (first..first + RUN).map(|page| page % self.shared) {
                let touch =
                    Step::Touch { page: page as u32, space: self.text, access: Access::Read };
                steps.extend([touch, Step::Cpu(ns)]);
            }
        }
        let data = anon + files;
        let write = |page| Step::Touch { page: page as u32, space, access: Access::FdWrite };
        steps.extend((data..data + self.written).map(write));
        steps.push(Step::Done(0));
        steps.push(Step::Sleep(1000 * u64::from(self.spec.rest_us)));
        steps.push(Step::Free { space, page: 0, pages: anon as u32 });
        // The next operation begins here.
        steps.push(Step::Done(3));
    }
}

impl Program for User {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        let n = self.apps.len() as u64;
        let (warm, rounds) = (u64::from(self.spec.warm), u64::from(self.spec.rounds));
        if self.at == n * (warm + rounds) {
            return;
        }
        if self.at == n * warm {
            steps.push(Step::Start);
        }
        let app = (self.at % n) as usize;
        self.at += 1;
        self.start(steps, app);
    }
}

struct Service {
    space: u16,
    anon: u64,
    files: u64,
    /// Pages of its memory that the service uses all the time.
    hot: u64,
    rest_us: u32,
    random: Random,
    filled: bool,
    /// Number of turns until now.
    at: u64,
}

impl Program for Service {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        let touch =
            |page: u64, access| Step::Touch { page: page as u32, space: self.space, access };
        if !self.filled {
            self.filled = true;
            steps.extend((0..self.anon).map(|page| touch(page, Access::Write)));
            return;
        }
        let part = self.at % PARTS;
        let (from, to) = (self.hot * part / PARTS, self.hot * (part + 1) / PARTS);
        for page in from..to {
            let access = if self.random.below(4) == 0 { Access::Write } else { Access::Read };
            steps.push(touch(page, access));
        }
        let log = self.anon + self.files;
        steps.push(touch(self.anon + self.at % self.files, Access::FdRead));
        steps.push(touch(log + self.at % LOG, Access::FdWrite));
        self.at += 1;
        steps.push(Step::Sleep(1000 * u64::from(self.rest_us)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Launch {
        let text = "apps = 3\nanon = 0.3\nfiles = 0.3\nshared = 0.1\nwritten = 0.01\nsystem = 0.2\n\
                    service_us = 5\npage_ns = 7\nrest_us = 9\nwarm = 1\nrounds = 2";
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_start_fills_new_memory_and_reads_the_same_files_each_time() {
        let mut plan = Plan::default();
        spec().plan(&mut plan, &Setting { memcg: 0, memory: 1000, seed: 1, measured: true });
        assert_eq!((plan.threads.len(), plan.spaces.len()), (3, 6));
        let mut starts: Vec<Vec<Step>> = Vec::new();
        loop {
            let mut steps = Vec::new();
            plan.threads[0].program.fill(&mut steps);
            if steps.is_empty() {
                break;
            }
            starts.push(steps);
        }
        assert_eq!(starts.len(), 9);
        assert_eq!(starts[3][0], Step::Start);
        let own = |steps: &[Step], space| {
            let mut pages: Vec<u32> = steps
                .iter()
                .filter_map(|step| match step {
                    Step::Touch { page, space: s, .. } if *s == space => Some(*page),
                    _ => None,
                })
                .collect();
            pages.sort_unstable();
            pages
        };
        for (app, pages) in [(0, 50), (1, 100), (2, 150)] {
            let space = app as u16 + 1;
            let once = own(&starts[app], space);
            assert_eq!(once, (0..2 * pages + 10).collect::<Vec<u32>>());
            assert_eq!(own(&starts[app + 3], space), once);
            let free = Step::Free { space, page: 0, pages };
            assert_eq!(starts[app][starts[app].len() - 2..], [free, Step::Done(3)]);
        }
    }

    #[test]
    fn a_service_never_ends_and_uses_a_part_of_its_memory() {
        let mut plan = Plan::default();
        spec().plan(&mut plan, &Setting { memcg: 0, memory: 1000, seed: 1, measured: true });
        let program = &mut plan.threads[1].program;
        let mut steps = Vec::new();
        program.fill(&mut steps);
        assert_eq!(steps.len(), 100);
        let mut most = 0;
        for _ in 0..20 {
            let mut steps = Vec::new();
            program.fill(&mut steps);
            assert_eq!(steps.pop(), Some(Step::Sleep(5000)));
            for step in steps {
                if let Step::Touch { page, access: Access::Read | Access::Write, .. } = step {
                    most = most.max(page);
                }
            }
        }
        assert_eq!(most, 32, "a third of a hundred");
    }

    #[test]
    fn a_workload_with_a_count_of_zero_is_refused() {
        assert_eq!(spec().check(), Ok(()));
        for (wrong, what) in [
            (Launch { apps: 0, ..spec() }, "apps = 0: expected 1 or more"),
            (Launch { services: 0, ..spec() }, "services = 0: expected 1 or more"),
            (Launch { rounds: 0, ..spec() }, "rounds = 0: expected 1 or more"),
        ] {
            assert_eq!(wrong.check().unwrap_err().to_string(), what);
        }
    }
}
