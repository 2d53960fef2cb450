//! A database under YCSB: MongoDB, Cassandra.
//!
//! Records lie in the pages of a file, in the order of their keys. With an engine cache a page is
//! looked up there first, and read through the page cache if it is missing. Without one it is read
//! from a mapping of the file. Updates change the page in the engine's cache (or memtable) and
//! append to a log. Inner pages of the index are touched on every operation.
//!
//! The engine reads and writes blocks of several pages: a record that is missing brings its whole
//! block. `extents` places blocks in the file, `arena` places them in the engine's memory. The
//! database is loaded before anything else, so that the page cache is full as it is after YCSB's
//! load phase.
//!
//! All threads ask for one set of records and share the engine's cache. Each loads a part of the
//! database and appends to a part of the log.

use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::arena::Arena;
use super::extents::Extents;
use super::keys::{Keys, Pattern, THETA, about, unit};
use super::pool::Pool;
use super::spec::{Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use crate::value::ValueError;
use ebb_mm::random::Random;

/// Parameters of a database under YCSB.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ycsb {
    /// Client threads.
    pub threads: u32,
    /// Size of the database, as a multiple of memory.
    pub data: f64,
    /// Bytes of a record.
    pub record_bytes: u32,
    /// Pages of a block, which the engine reads, keeps and writes as a whole.
    #[serde(default = "leaf_pages")]
    pub leaf_pages: u32,
    /// Size of the engine's cache, as a share of memory; 0: there is no cache, and the file is
    /// mapped.
    #[serde(default)]
    pub cache: f64,
    /// Data of the database in the engine's cache, as a share of memory. It is less than `cache`,
    /// because allocators and the engine's own records need room. 0: as much as `cache`.
    #[serde(default)]
    pub content: f64,
    /// Memory that a block takes in the engine's cache, as a multiple of the block's size. The
    /// remaining memory of the cache is free locations of the allocator. 0: there are no free
    /// locations.
    #[serde(default)]
    pub overhead: f64,
    /// Share of the blocks read that get another free location than that of the evicted block.
    #[serde(default)]
    pub stray: f64,
    /// Share of the content that may be changed. Beyond that share the engine writes the blocks
    /// that were changed first. 0: all may be changed.
    #[serde(default)]
    pub dirty: f64,
    /// Number of blocks drawn at random, of which the engine evicts the least recently used. 0: the
    /// engine evicts blocks that were not used since its last round.
    #[serde(default)]
    pub sample: u32,
    /// Other memory of the engine (heap, index), all of it in use, as a share of memory.
    #[serde(default)]
    pub heap: f64,
    /// Free locations in the database's file, as a share of the database. A changed block is
    /// written to the location that has been free for longest, and its old location becomes free.
    /// 0: a changed block is overwritten.
    #[serde(default)]
    pub spare: f64,
    /// Heap pages that an operation accesses.
    #[serde(default = "heap_touches")]
    pub heap_touches: u32,
    /// Distribution of the records that clients request.
    pub pattern: Pattern,
    /// Exponent of zipfian patterns.
    #[serde(default = "theta")]
    pub theta: f64,
    /// Number of records in the database that this one stands for; 0: as many as this one has.
    #[serde(default)]
    pub records: f64,
    /// Share of operations that read; the others update.
    pub reads: f64,
    /// Processor time of one operation beside its memory accesses, in nanoseconds.
    pub op_ns: u32,
    /// Processor time to read, verify and unpack a block that is not in the engine's cache, and to
    /// evict another, in nanoseconds.
    #[serde(default)]
    pub miss_ns: u32,
    /// Bytes that an update appends to the log.
    #[serde(default = "log_bytes")]
    pub log_bytes: u32,
    /// Whether changed blocks that leave the engine's cache are written to the file.
    #[serde(default)]
    pub write_back: bool,
    /// Operations before measuring, as a multiple of the number of records.
    #[serde(default = "warm")]
    pub warm: f64,
    /// Operations measured, as a multiple of the number of records.
    pub ops: f64,
}

fn theta() -> f64 {
    THETA
}
fn leaf_pages() -> u32 {
    1
}
fn heap_touches() -> u32 {
    3
}
fn log_bytes() -> u32 {
    100
}
fn warm() -> f64 {
    1.0
}

impl Ycsb {
    /// Checks the values.
    ///
    /// # Errors
    /// Blocks take more than the cache has, or a value would be ignored without a cache.
    pub(crate) fn check(&self) -> Result<(), ValueError> {
        let content = if self.content > 0.0 { self.content } else { self.cache };
        if self.overhead != 0.0 && self.overhead < 1.0 {
            return Err(ValueError::Number("overhead", self.overhead, "1 or more, or 0"));
        }
        if content * self.overhead > self.cache {
            return Err(ValueError::Content(content, self.overhead, self.cache));
        }
        if self.overhead == 0.0 && self.stray > 0.0 {
            let rule = "expected with overhead; else there are no free places";
            return Err(ValueError::Rule("stray", rule));
        }
        if !(0.0..=1.0).contains(&self.stray) {
            return Err(ValueError::Number("stray", self.stray, "0 to 1"));
        }
        if self.spare != 0.0 && !(self.spare > 0.0 && self.cache > 0.0 && self.write_back) {
            let rule =
                "expected a share, with cache and write_back; else nothing is written to the file";
            return Err(ValueError::Rule("spare", rule));
        }
        Ok(())
    }

    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
        let (threads, block) = (u64::from(self.threads), u64::from(self.leaf_pages.max(1)));
        let share = |ratio: f64| place.pages(ratio) / threads / block * block;
        let (data, cache) = (share(self.data).max(8 * block), share(self.cache));
        let cache = if self.cache > 0.0 { cache.max(block) } else { 0 };
        let content =
            if self.content > 0.0 { share(self.content).clamp(block, cache) } else { cache };
        let heap = place.pages(self.heap).max(1);
        let (all, slots) = (data * threads, content * threads / block);
        let changed_max = (slots as f64 * self.dirty).ceil() as u64;
        let spare = ((all / block) as f64 * self.spare).ceil() as u64;
        // The log lies behind the database, free locations included.
        let end = all + spare * block;
        let shared = (cache > 0).then(|| {
            let pool = Pool::new(all / block, slots).with_changed_max(changed_max);
            let pool = match self.sample {
                0 => pool,
                of => pool.with_samples(of, place.seed_of(1, 0)),
            };
            let file = Extents::new(all / block, spare);
            let size = block as f64 * self.overhead;
            let seed = place.seed_of(2, 0);
            let memory = Arena::new((heap, cache * threads), slots, size, self.stray, seed);
            Arc::new(Mutex::new(Engine { pool, file, memory }))
        });
        let records = all * 4096 / u64::from(self.record_bytes);
        let anon = |pages| Region {
            pages,
            backing: Backing::Anon,
            recency: true,
            exec: false,
            processes: 1,
        };
        let file = |pages| Region {
            pages,
            backing: Backing::File,
            recency: true,
            exec: false,
            processes: 1,
        };
        let log = place.pages(4.0);
        let engine = plan.space(place.memcg, vec![anon(heap), anon((cache * threads).max(1))]);
        let files = plan.space(place.memcg, vec![file(end), file(log)]);
        for thread in 0..threads {
            let client = Client {
                engine,
                files,
                heap,
                log: (end + log * thread / threads, log / threads),
                logged: 0,
                shared: shared.clone(),
                part: (data * thread, data * (thread + 1)),
                block,
                keys: self.keys(records),
                random: Random(place.seed_of(0, thread)),
                load: (heap * thread / threads, heap * (thread + 1) / threads),
                warm: (records as f64 * self.warm) as u64 / threads,
                left: (records as f64 * self.ops) as u64 / threads,
                started: false,
                spec: self.clone(),
            };
            plan.thread(Box::new(client), engine, place.measured);
        }
    }

    fn keys(&self, records: u64) -> Keys {
        if self.pattern == Pattern::Zipfian && self.theta == THETA {
            return Keys::of_ycsb(self.pattern, records, self.records);
        }
        Keys::new(self.pattern, records, self.theta, 0, 1)
    }
}

/// State that all threads of the engine share.
struct Engine {
    pool: Pool,
    file: Extents,
    memory: Arena,
}

impl Engine {
    /// Finds a block in the cache, or makes room for it.
    fn get(&mut self, block: u64, update: bool) -> Looked {
        let found = self.pool.get(block as u32, update);
        let wrote = found.wrote.into_iter().chain(found.cleaned);
        let wrote = wrote.map(|old| u64::from(self.file.write(old))).collect();
        let place = u64::from(self.file.find(block as u32));
        let at = match found.miss {
            true => self.memory.replace(found.slot),
            false => self.memory.find(found.slot),
        };
        Looked { at, miss: found.miss, place, wrote }
    }
}

/// Result of a look into the engine's cache.
struct Looked {
    /// Pages of the block in memory.
    at: Range<u64>,
    miss: bool,
    /// Location of the block in the file.
    place: u64,
    /// Locations to which other blocks are written.
    wrote: Vec<u64>,
}

struct Client {
    spec: Ycsb,
    engine: u16,
    files: u16,
    /// Pages of the engine's heap. The cache lies behind them.
    heap: u64,
    /// Pages of the database that this thread loads.
    part: (u64, u64),
    /// Pages of a block.
    block: u64,
    /// First page and length of this thread's part of the log.
    log: (u64, u64),
    logged: u64,
    /// The engine's cache and file, shared by all threads.
    shared: Option<Arc<Mutex<Engine>>>,
    keys: Keys,
    random: Random,
    load: (u64, u64),
    warm: u64,
    left: u64,
    started: bool,
}

impl Client {
    fn operation(&mut self, steps: &mut Vec<Step>) {
        let (engine, files, block) = (self.engine, self.files, self.block);
        let own = |page: u64, access| Step::Touch { page: page as u32, space: engine, access };
        let file = |page: u64, access| Step::Touch { page: page as u32, space: files, access };
        let record = self.keys.draw(&mut self.random);
        let page = record * u64::from(self.spec.record_bytes) / 4096;
        let update = unit(&mut self.random) >= self.spec.reads;
        steps.push(Step::Cpu(about(&mut self.random, self.spec.op_ns)));
        for _ in 0..self.spec.heap_touches {
            let at = u64::from(self.random.below(self.heap as u32));
            steps.push(own(at, if update { Access::Write } else { Access::Read }));
        }
        match &self.shared {
            Some(shared) => {
                let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
                let found = shared.get(page / block, update);
                drop(shared);
                if self.spec.write_back {
                    for old in found.wrote {
                        let old = old * block;
                        steps.extend((old..old + block).map(|p| file(p, Access::FdWrite)));
                    }
                }
                let at = found.at;
                if found.miss {
                    // The block is read and unpacked whole.
                    if self.spec.miss_ns > 0 {
                        steps.push(Step::Cpu(about(&mut self.random, self.spec.miss_ns)));
                    }
                    let first = found.place * block;
                    if block > 1 {
                        let (page, pages) = (first as u32, block as u32);
                        steps.push(Step::Ahead { page, space: files, pages });
                    }
                    steps.extend((first..first + block).map(|p| file(p, Access::FdRead)));
                    steps.extend(at.map(|p| own(p, Access::Write)));
                } else {
                    let access = if update { Access::Write } else { Access::Read };
                    steps.push(own(at.start + page % block * (at.end - at.start) / block, access));
                }
            }
            None if !update => {
                let first = page / block * block;
                steps.extend((first..first + block).map(|p| file(p, Access::Read)));
            }
            None => {}
        }
        if update {
            self.logged += u64::from(self.spec.log_bytes);
            let at = self.logged / 4096 % self.log.1.max(1);
            steps.push(file(self.log.0 + at, Access::FdWrite));
        }
        steps.push(Step::Done(u8::from(update)));
    }
}

const BATCH: u64 = 64;
/// Operations in one call of `fill`: few, because all look for blocks that others have brought into
/// the cache.
const OPS: u64 = 4;

impl Program for Client {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        if self.load.0 < self.load.1 {
            let (from, to) = (self.load.0, self.load.1.min(self.load.0 + BATCH));
            let space = self.engine;
            let touch = |p: u64| Step::Touch { page: p as u32, space, access: Access::Write };
            steps.extend((from..to).map(touch));
            self.load.0 = to;
        } else if self.part.0 < self.part.1 {
            let (from, to) = (self.part.0, self.part.1.min(self.part.0 + BATCH));
            let space = self.files;
            let touch = |p| Step::Touch { page: p as u32, space, access: Access::FdRead };
            steps.extend((from..to).map(touch));
            self.part.0 = to;
        } else if self.warm > 0 {
            let n = self.warm.min(OPS);
            (0..n).for_each(|_| self.operation(steps));
            self.warm -= n;
        } else if !self.started {
            self.started = true;
            steps.push(Step::Start);
        } else if self.left > 0 {
            let n = self.left.min(OPS);
            (0..n).for_each(|_| self.operation(steps));
            self.left -= n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(more: &str) -> Result<(), ValueError> {
        let text = "threads = 1\ndata = 2.0\nrecord_bytes = 1000\npattern = 'uniform'\nreads = 0.5\nop_ns = 1\nops = 1.0\n";
        toml::from_str::<Ycsb>(&format!("{text}{more}")).unwrap().check()
    }

    #[test]
    fn an_engine_that_does_not_fit_in_its_memory_is_refused() {
        let fits = "cache = 0.5\ncontent = 0.4\noverhead = 1.25\nstray = 0.1\nwrite_back = true\nspare = 0.1";
        assert_eq!(told(fits), Ok(()));
        for (more, what) in [
            (
                "cache = 0.5\ncontent = 0.4\noverhead = 1.3",
                "content 0.4 with overhead 1.3 does not fit",
            ),
            ("cache = 0.5\noverhead = 1.1", "content 0.5 with overhead 1.1 does not fit"),
            ("cache = 0.5\noverhead = 0.9", "overhead = 0.9: expected 1 or more"),
            ("cache = 0.5\nstray = 0.1", "stray: expected with overhead"),
            ("cache = 0.5\noverhead = 1.0\nstray = 1.1", "stray = 1.1: expected 0 to 1"),
            ("spare = 0.1", "spare: expected a share, with cache and write_back"),
            ("cache = 0.5\nwrite_back = true\nspare = -0.1", "spare: expected a share"),
        ] {
            let told = told(more).unwrap_err().to_string();
            assert!(told.contains(what), "{more}: {told}");
        }
    }
}
