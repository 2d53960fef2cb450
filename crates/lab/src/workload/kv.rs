//! A key-value store in memory under a load like memtier's: memcached, Redis.
//!
//! Items lie one after the other in the order of their keys, as a sequential load leaves them; a
//! table that maps keys to items is touched on every operation. Each server thread serves one
//! client's requests one after the other.

use ebb_core::space::Backing;
use serde::Deserialize;

use super::keys::{Keys, Pattern, THETA, about};
use super::spec::{Place, Plan};
use super::{Program, Step};
use crate::machine::{Access, Region};
use crate::trace::synth::Random;

/// Parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KeyValue {
    /// Server processes, each with its share of the data.
    #[serde(default = "one")]
    pub processes: u32,
    /// Threads of each process.
    pub threads: u32,
    /// All items, as a multiple of memory.
    pub data: f64,
    /// Bytes of one item, overhead included.
    pub item_bytes: u32,
    /// The table, as a share of the data.
    #[serde(default = "index")]
    pub index: f64,
    /// Which keys are asked for.
    pub pattern: Pattern,
    /// The exponent of zipfian patterns.
    #[serde(default = "theta")]
    pub theta: f64,
    /// Share of operations that write.
    #[serde(default)]
    pub writes: f64,
    /// Processor time of one operation beside its memory accesses.
    pub op_ns: u32,
    /// Operations before measuring, as a multiple of the data's pages.
    #[serde(default = "warm")]
    pub warm: f64,
    /// Operations measured, as a multiple of the data's pages.
    pub ops: f64,
}

fn one() -> u32 {
    1
}
fn index() -> f64 {
    0.004
}
fn theta() -> f64 {
    THETA
}
fn warm() -> f64 {
    2.0
}

impl KeyValue {
    /// Puts it on the machine.
    pub fn plan(&self, plan: &mut Plan, place: &Place) {
        let pages = place.pages(self.data) / u64::from(self.processes);
        let index = (pages as f64 * self.index).ceil() as u64;
        let region = |pages| Region {
            pages,
            backing: Backing::Anon,
            recency: true,
            exec: false,
            processes: 1,
        };
        let threads = u64::from(self.threads);
        let items = pages * 4096 / u64::from(self.item_bytes);
        for process in 0..u64::from(self.processes) {
            let space = plan.space(place.memcg, vec![region(index), region(pages + 1)]);
            for thread in 0..threads {
                let keys = Keys::new(self.pattern, items, self.theta, thread, threads);
                let server = Server {
                    spec: self.clone(),
                    space,
                    index,
                    items,
                    keys,
                    random: Random(place.seed_of(process, thread)),
                    load: (pages * thread / threads, pages * (thread + 1) / threads),
                    load_index: (index * thread / threads, index * (thread + 1) / threads),
                    warm: (pages as f64 * self.warm) as u64 / threads,
                    left: (pages as f64 * self.ops) as u64 / threads,
                    started: false,
                };
                plan.thread(Box::new(server), space, place.measured);
            }
        }
    }
}

/// One server thread.
struct Server {
    spec: KeyValue,
    space: u16,
    index: u64,
    items: u64,
    keys: Keys,
    random: Random,
    load: (u64, u64),
    load_index: (u64, u64),
    warm: u64,
    left: u64,
    started: bool,
}

/// Steps made at a time.
const BATCH: u64 = 64;

impl Server {
    fn touch(&self, page: u64, access: Access) -> Step {
        Step::Touch { page: page as u32, space: self.space, access }
    }

    fn operation(&mut self, steps: &mut Vec<Step>) {
        let key = self.keys.draw(&mut self.random);
        let bytes = u64::from(self.spec.item_bytes);
        let bucket = Random(key).bits() % self.index;
        let first = key * bytes / 4096;
        let last = (key * bytes + bytes - 1) / 4096;
        let writes = (self.random.bits() >> 40) as f64 / (1u64 << 24) as f64;
        let writes = writes < self.spec.writes;
        let access = if writes { Access::Write } else { Access::Read };
        steps.push(Step::Cpu(about(&mut self.random, self.spec.op_ns)));
        steps.push(self.touch(bucket, Access::Read));
        for page in first..=last {
            steps.push(self.touch(self.index + page, access));
        }
        steps.push(Step::Done(u8::from(writes)));
    }
}

impl Program for Server {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        if self.load_index.0 < self.load_index.1 {
            let (from, to) = self.load_index;
            steps.extend((from..to).map(|page| self.touch(page, Access::Write)));
            self.load_index.0 = to;
        } else if self.load.0 < self.load.1 {
            let (from, to) = (self.load.0, self.load.1.min(self.load.0 + BATCH));
            steps.extend((from..to).map(|page| self.touch(self.index + page, Access::Write)));
            self.load.0 = to;
        } else if self.warm > 0 {
            let n = self.warm.min(BATCH);
            (0..n).for_each(|_| self.operation(steps));
            self.warm -= n;
        } else if !self.started {
            self.started = true;
            steps.push(Step::Start);
        } else if self.left > 0 && self.items > 0 {
            let n = self.left.min(BATCH);
            (0..n).for_each(|_| self.operation(steps));
            self.left -= n;
        }
    }
}
