//! A phone or a laptop: one application in the foreground, the others kept in memory.
//!
//! A switch to an application touches all of its hot pages, the private ones in an order without
//! pattern. Then the application works for a while in a part of them. Half of the switches go to
//! one of the three applications used last.

use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::spec::{Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use ebb_mm::random::Random;

/// Parameters of applications between which a user switches.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Apps {
    /// Number of applications.
    pub apps: u32,
    /// Private memory of all applications, as a multiple of memory.
    pub anon: f64,
    /// Mapped text and data files of all applications, as a share of memory.
    pub files: f64,
    /// Text that all applications share, as a share of memory.
    pub shared: f64,
    /// Share of an application's pages that a switch accesses.
    #[serde(default = "hot")]
    pub hot: f64,
    /// Accesses of the application in the foreground, as a multiple of its hot pages.
    #[serde(default = "work")]
    pub work: f64,
    /// Processor time for each accessed page, in nanoseconds.
    pub page_ns: u32,
    /// Switches before measuring.
    #[serde(default = "warm")]
    pub warm: u32,
    /// Switches measured.
    pub switches: u32,
}

fn hot() -> f64 {
    0.5
}
fn work() -> f64 {
    3.0
}
fn warm() -> u32 {
    60
}

impl Apps {
    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
        let n = u64::from(self.apps);
        let anon = (place.pages(self.anon) / n).max(8);
        let files = (place.pages(self.files) / n).max(4);
        let shared = place.pages(self.shared).max(4);
        let region =
            |pages, backing, exec| Region { pages, backing, recency: true, exec, processes: 1 };
        let everywhere = Region { processes: self.apps, ..region(shared, Backing::File, true) };
        let text = plan.space(place.memcg, vec![everywhere]);
        let spaces: Vec<u16> = (0..n)
            .map(|_| {
                let own =
                    vec![region(anon, Backing::Anon, false), region(files, Backing::File, true)];
                plan.space(place.memcg, own)
            })
            .collect();
        let user = User {
            order: (0..self.apps).collect(),
            home: spaces[0],
            spaces,
            text,
            sizes: [anon, files, shared],
            random: Random(place.seed_of(0, 0)),
            load: 0,
            switches: 0,
            spec: self.clone(),
        };
        let home = user.home;
        plan.thread(Box::new(user), home, place.measured);
    }
}

struct User {
    spec: Apps,
    spaces: Vec<u16>,
    home: u16,
    text: u16,
    /// Private pages and file pages of an application, pages of shared text.
    sizes: [u64; 3],
    /// Applications, the most recently used first.
    order: Vec<u32>,
    random: Random,
    load: u32,
    switches: u32,
}

impl User {
    fn touch(&self, app: u32, page: u64, access: Access) -> Step {
        Step::Touch { page: page as u32, space: self.spaces[app as usize], access }
    }

    /// Adds a cold start, which touches every page once.
    fn start(&mut self, steps: &mut Vec<Step>, app: u32) {
        let [anon, files, _] = self.sizes;
        steps.extend((0..anon).map(|p| self.touch(app, p, Access::Write)));
        steps.extend((anon..anon + files).map(|p| self.touch(app, p, Access::Read)));
    }

    fn shared(&mut self) -> Step {
        // The first quarter of the shared text is used far more than the rest.
        let all = self.sizes[2] as u32;
        let part = if self.random.below(10) < 9 { (all / 4).max(1) } else { all };
        let page = self.random.below(part);
        Step::Touch { page, space: self.text, access: Access::Read }
    }

    fn switch(&mut self, steps: &mut Vec<Step>) {
        // Half of the switches go to the three used last, the others to any.
        let among = if self.random.below(2) == 0 { 4 } else { self.order.len() as u32 };
        let place = 1 + self.random.below(among.min(self.order.len() as u32) - 1);
        let app = self.order.remove(place as usize);
        self.order.insert(0, app);
        let [anon, files, _] = self.sizes;
        let hot = |pages: u64| ((pages as f64 * self.spec.hot) as u64).max(1);
        let (hot_anon, hot_files) = (hot(anon), hot(files));
        let ns = self.spec.page_ns;
        let first = self.random.below(hot_anon as u32);
        for i in 0..hot_anon {
            // Every hot page once, in an order without pattern: with an odd stride.
            let page = (u64::from(first) + i * 769) % hot_anon;
            steps.push(self.touch(app, page, Access::Read));
            steps.push(Step::Cpu(ns));
            if i % 4 == 0 {
                let step = self.shared();
                steps.push(step);
            }
        }
        for i in 0..hot_files {
            steps.push(self.touch(app, anon + i, Access::Read));
            steps.push(Step::Cpu(ns));
        }
        steps.push(Step::Done(0));
        let work = ((hot_anon + hot_files) as f64 * self.spec.work) as u64;
        for i in 0..work {
            let page = u64::from(self.random.below(hot_anon as u32 / 2 + 1));
            let access = if i % 3 == 0 { Access::Write } else { Access::Read };
            steps.push(self.touch(app, page, access));
            steps.push(Step::Cpu(ns));
            if i % 8 == 0 {
                let step = self.shared();
                steps.push(step);
            }
        }
        steps.push(Step::Done(3));
    }
}

impl Program for User {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        if self.load < self.spec.apps {
            let app = self.load;
            self.load += 1;
            self.start(steps, app);
        } else if self.switches < self.spec.warm + self.spec.switches {
            if self.switches == self.spec.warm {
                steps.push(Step::Start);
            }
            self.switches += 1;
            self.switch(steps);
        }
    }
}
