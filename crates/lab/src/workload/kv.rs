//! A key-value store in memory under a load like memtier's: memcached, Redis.
//!
//! Items lie one after the other in the order in which they were loaded. That is the order of their
//! keys, unless several clients load at one time, each its own part of the keys. Those take turns.
//! Every operation touches a table that maps keys to items. If `chain` is set, it also touches
//! other items in a hash chain. If `moves` is set, it also touches the neighbours of an item that
//! moves in the store's own LRU list. Each server thread serves one client's requests one after the
//! other.

use std::sync::Arc;

use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::keys::{Keys, Pattern, THETA, about, unit};
use super::spec::{Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use ebb_mm::random::Random;

/// Parameters of a key-value store.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyValue {
    /// Server processes, each with its share of the data.
    #[serde(default = "one")]
    pub processes: u32,
    /// Threads of each process.
    pub threads: u32,
    /// Size of all items, as a multiple of memory.
    pub data: f64,
    /// Bytes of one item, including overhead.
    pub item_bytes: u32,
    /// Size of the table that maps keys to items, as a share of the data.
    #[serde(default = "index")]
    pub index: f64,
    /// Clients that load items at the same time, each its own part of the keys in order; 1: all
    /// keys in order.
    #[serde(default = "one")]
    pub loaders: u32,
    /// Mean number of other items in an operation's hash chain, drawn from all items.
    #[serde(default)]
    pub chain: f64,
    /// Share of operations whose item moves in the store's LRU lists. A move accesses three other
    /// items, which were used about as long ago.
    #[serde(default)]
    pub moves: f64,
    /// Distribution of the keys that clients request.
    pub pattern: Pattern,
    /// Exponent of zipfian patterns.
    #[serde(default = "theta")]
    pub theta: f64,
    /// Share of operations that write.
    #[serde(default)]
    pub writes: f64,
    /// Processor time of one operation beside its memory accesses, in nanoseconds.
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

/// Other items touched when one moves: the two beside it, and the last of the list that gives one
/// up.
const MOVE_TOUCHES: u32 = 3;

/// Returns the location in memory of each key. `loaders` clients load their parts, any of them
/// next.
fn places(items: u64, loaders: u64, random: &mut Random) -> Option<Arc<[u32]>> {
    if loaders < 2 {
        return None;
    }
    let mut parts: Vec<_> =
        (0..loaders).map(|l| items * l / loaders..items * (l + 1) / loaders).collect();
    let mut places = vec![0; items as usize];
    for place in 0..items as u32 {
        parts.retain(|part| !part.is_empty());
        let next = random.below(parts.len() as u32) as usize;
        if let Some(key) = parts[next].next() {
            places[key as usize] = place;
        }
    }
    Some(places.into())
}

impl KeyValue {
    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
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
            let mut order = Random(place.seed_of(process, LOADER));
            let places = places(items, u64::from(self.loaders), &mut order);
            for thread in 0..threads {
                let keys = Keys::new(self.pattern, items, self.theta, thread, threads);
                let server = Server {
                    spec: self.clone(),
                    space,
                    index,
                    items,
                    places: places.clone(),
                    keys,
                    random: Random(place.seed_of(process, thread)),
                    load: if self.loaders > 1 {
                        // All threads load at one time, side by side.
                        (thread, pages, threads)
                    } else {
                        (pages * thread / threads, pages * (thread + 1) / threads, 1)
                    },
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

/// A server thread.
struct Server {
    spec: KeyValue,
    space: u16,
    index: u64,
    items: u64,
    places: Option<Arc<[u32]>>,
    keys: Keys,
    random: Random,
    /// Next page to load, end, and distance between pages.
    load: (u64, u64, u64),
    load_index: (u64, u64),
    warm: u64,
    left: u64,
    started: bool,
}

/// Number of operations or pages in one call of `fill`.
const BATCH: u64 = 64;
/// Thread number of the random numbers that decide the order of loading.
const LOADER: u64 = 1 << 20;

impl Server {
    fn touch(&self, page: u64, access: Access) -> Step {
        Step::Touch { page: page as u32, space: self.space, access }
    }

    fn operation(&mut self, steps: &mut Vec<Step>) {
        let key = self.keys.draw(&mut self.random);
        let bytes = u64::from(self.spec.item_bytes);
        let bucket = Random(key).word().checked_rem(self.index);
        let at = self.place(key);
        let first = at * bytes / 4096;
        let last = (at * bytes + bytes - 1) / 4096;
        let writes = (self.random.word() >> 40) as f64 / (1u64 << 24) as f64;
        let writes = writes < self.spec.writes;
        let access = if writes { Access::Write } else { Access::Read };
        steps.push(Step::Cpu(about(&mut self.random, self.spec.op_ns)));
        steps.extend(bucket.map(|page| self.touch(page, Access::Read)));
        if self.chance(self.spec.chain) {
            let key = u64::from(self.random.below(self.items as u32));
            self.header(key, steps);
        }
        for page in first..=last {
            steps.push(self.touch(self.index + page, access));
        }
        if self.chance(self.spec.moves) {
            for _ in 0..MOVE_TOUCHES {
                let key = self.keys.draw(&mut self.random);
                self.header(key, steps);
            }
        }
        steps.push(Step::Done(u8::from(writes)));
    }

    fn chance(&mut self, share: f64) -> bool {
        share > 0.0 && unit(&mut self.random) < share
    }

    fn place(&self, key: u64) -> u64 {
        self.places.as_ref().map_or(key, |places| u64::from(places[key as usize]))
    }

    /// Touches the first bytes of an item, with its key and its links.
    fn header(&self, key: u64, steps: &mut Vec<Step>) {
        let page = self.place(key) * u64::from(self.spec.item_bytes) / 4096;
        steps.push(self.touch(self.index + page, Access::Read));
    }
}

impl Program for Server {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        if self.load_index.0 < self.load_index.1 {
            let (from, to) = self.load_index;
            steps.extend((from..to).map(|page| self.touch(page, Access::Write)));
            self.load_index.0 = to;
        } else if self.load.0 < self.load.1 {
            let (from, end, step) = self.load;
            let to = end.min(from + BATCH * step);
            let pages = (from..to).step_by(step as usize);
            steps.extend(pages.map(|page| self.touch(self.index + page, Access::Write)));
            self.load.0 = from + (to - from).div_ceil(step) * step;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_lie_as_their_loaders_took_turns() {
        assert!(places(10, 1, &mut Random(1)).is_none(), "one loader: in the order of keys");
        let places = places(16_000, 16, &mut Random(1)).unwrap();
        let mut seen = vec![false; 16_000];
        places.iter().for_each(|&p| seen[p as usize] = true);
        assert!(seen.iter().all(|&s| s));
        for part in places.chunks(1000) {
            // Each part is in order, and spread over all of memory.
            assert!(part.windows(2).all(|w| w[0] < w[1]));
            assert!(part[0] < 200 && part[999] > 15_000, "{} to {}", part[0], part[999]);
            assert!((7_000..9_000).contains(&part[500]), "{}", part[500]);
        }
    }
}
