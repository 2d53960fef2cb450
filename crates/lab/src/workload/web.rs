//! Browsers that load a page again and again, each from a server of its own: "Chrome and Node.js"
//! (Y. Zhao, linux-mm, December 2022, message 20221220214923.1229538).
//!
//! For each request the server writes to every page of one random block of its memory, in order.
//! Then the browser touches part of its own memory and of its text. A script fills an array, which
//! is freed. A server and its browser take turns, so they are one thread.

use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::spec::{Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use crate::value::ValueError;
use ebb_mm::random::Random;

/// Parameters of browsers and servers.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Web {
    /// Servers, each with its browser.
    pub pairs: u32,
    /// Memory of all servers, as a multiple of memory.
    pub data: f64,
    /// Blocks of memory of a server.
    #[serde(default = "blocks")]
    pub blocks: u32,
    /// Memory of all browsers, as a share of memory.
    pub heap: f64,
    /// Text and data of the browser that are mapped, as a share of memory.
    pub text: f64,
    /// Share of the browser's memory and text that one page load accesses.
    #[serde(default = "used")]
    pub used: f64,
    /// Arrays of all scripts, as a share of memory.
    pub array: f64,
    /// Processor time for each page of a block, in nanoseconds.
    pub page_ns: u32,
    /// Processor time of the browser for each request, in nanoseconds.
    pub browser_ns: u32,
    /// Requests of each pair before measuring.
    #[serde(default = "warm")]
    pub warm: u32,
    /// Measured requests of each pair; 0: as many as fit in the measured time.
    #[serde(default)]
    pub requests: u32,
}

fn blocks() -> u32 {
    16
}
fn used() -> f64 {
    0.5
}
fn warm() -> u32 {
    4
}

impl Web {
    /// Checks the values.
    ///
    /// # Errors
    /// There are no pairs or blocks, or `used` is no share.
    pub(crate) fn check(&self) -> Result<(), ValueError> {
        ValueError::of_zero(&[("pairs", self.pairs), ("blocks", self.blocks)])?;
        if !(0.0..=1.0).contains(&self.used) {
            return Err(ValueError::Number("used", self.used, "0 to 1"));
        }
        Ok(())
    }

    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
        let pairs = u64::from(self.pairs);
        let region = |pages, backing, processes| Region {
            pages,
            backing,
            recency: true,
            exec: backing == Backing::File,
            processes,
        };
        let text = place.pages(self.text);
        let files = plan.space(place.memcg, vec![region(text, Backing::File, self.pairs)]);
        let block = (place.pages(self.data) / pairs / u64::from(self.blocks)).max(1);
        let heap = (place.pages(self.heap) / pairs).max(1);
        let array = (place.pages(self.array) / pairs).max(1);
        for pair in 0..pairs {
            let all = block * u64::from(self.blocks) + heap + array;
            let space = plan.space(place.memcg, vec![region(all, Backing::Anon, 1)]);
            let sizes = Sizes { block, heap, array, text };
            let random = Random(place.seed_of(0, pair));
            let pair =
                Pair { spec: self.clone(), space, files, sizes, random, filled: false, done: 0 };
            plan.thread(Box::new(pair), space, place.measured);
        }
    }
}

/// Sizes of a pair's memory in pages.
#[derive(Clone, Copy)]
struct Sizes {
    block: u64,
    heap: u64,
    array: u64,
    text: u64,
}

struct Pair {
    spec: Web,
    space: u16,
    files: u16,
    sizes: Sizes,
    random: Random,
    /// Whether all memory was touched once.
    filled: bool,
    done: u32,
}

impl Pair {
    fn own(&self, page: u64, access: Access) -> Step {
        Step::Touch { page: page as u32, space: self.space, access }
    }

    /// Returns the pages that a page load touches of `pages` pages: in order from a random one on.
    fn part(&mut self, pages: u64) -> impl Iterator<Item = u64> + use<> {
        let first = u64::from(self.random.below(pages as u32));
        let n = (pages as f64 * self.spec.used) as u64;
        (0..n).map(move |i| (first + i) % pages)
    }

    fn request(&mut self, steps: &mut Vec<Step>) {
        let Sizes { block, heap, array, text } = self.sizes;
        let blocks = self.spec.blocks;
        let first = u64::from(self.random.below(blocks)) * block;
        for page in first..first + block {
            steps.push(self.own(page, Access::Write));
            steps.push(Step::Cpu(self.spec.page_ns));
        }
        let (own, file) = (u64::from(blocks) * block, self.files);
        let used = self.part(text);
        let read = |page| Step::Touch { page: page as u32, space: file, access: Access::Read };
        steps.extend(used.map(read));
        for page in self.part(heap) {
            let access = if page.is_multiple_of(2) { Access::Write } else { Access::Read };
            steps.push(self.own(own + page, access));
        }
        let new = own + heap;
        steps.extend((new..new + array).map(|page| self.own(page, Access::Write)));
        steps.push(Step::Cpu(self.spec.browser_ns));
        steps.push(Step::Free { space: self.space, page: new as u32, pages: array as u32 });
        steps.push(Step::Done(0));
    }
}

impl Program for Pair {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        if !self.filled {
            self.filled = true;
            let all = self.sizes.block * u64::from(self.spec.blocks) + self.sizes.heap;
            steps.extend((0..all).map(|page| self.own(page, Access::Write)));
            return;
        }
        if self.done == self.spec.warm {
            steps.push(Step::Start);
        } else if self.spec.requests > 0 && self.done >= self.spec.warm + self.spec.requests {
            return;
        }
        self.done = self.done.saturating_add(1);
        self.request(steps);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Web {
        let text = "pairs = 2\ndata = 1.0\nblocks = 4\nheap = 0.1\ntext = 0.05\narray = 0.02\n\
                    page_ns = 7\nbrowser_ns = 9\nwarm = 1\nrequests = 2";
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_request_goes_through_one_block_and_gives_its_array_back() {
        let mut plan = Plan::default();
        spec().plan(&mut plan, &Setting { memcg: 0, memory: 800, seed: 1, measured: true });
        assert_eq!((plan.threads.len(), plan.spaces.len()), (2, 3));
        let program = &mut plan.threads[0].program;
        let mut requests: Vec<Vec<Step>> = Vec::new();
        loop {
            let mut steps = Vec::new();
            program.fill(&mut steps);
            if steps.is_empty() {
                break;
            }
            requests.push(steps);
        }
        // All memory once, one request to warm up, the start and two more.
        assert_eq!(requests.len(), 4);
        assert_eq!(requests[0].len(), 400 + 40);
        assert_eq!(requests[2][0], Step::Start);
        for request in &requests[1..] {
            let blocks: Vec<u32> = request
                .iter()
                .filter_map(|step| match step {
                    Step::Touch { page, space: 1, .. } if *page < 400 => Some(page / 100),
                    _ => None,
                })
                .collect();
            assert_eq!(blocks.len(), 100);
            assert!(blocks.iter().all(|&b| b == blocks[0]));
            let texts = request.iter().filter(|s| matches!(s, Step::Touch { space: 0, .. }));
            assert_eq!(texts.count(), 20);
            let free = Step::Free { space: 1, page: 440, pages: 8 };
            assert_eq!(request[request.len() - 2..], [free, Step::Done(0)]);
        }
    }

    #[test]
    fn a_workload_with_a_count_of_zero_is_refused() {
        assert_eq!(spec().check(), Ok(()));
        for (wrong, what) in [
            (Web { pairs: 0, ..spec() }, "pairs = 0: expected 1 or more"),
            (Web { blocks: 0, ..spec() }, "blocks = 0: expected 1 or more"),
            (Web { used: 1.5, ..spec() }, "used = 1.5: expected 0 to 1"),
        ] {
            assert_eq!(wrong.check().unwrap_err().to_string(), what);
        }
    }
}
