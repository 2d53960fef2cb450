//! A relational database under sysbench's `oltp_read_only`: MySQL.
//!
//! By sysbench's defaults a transaction reads ten rows by their keys and four ranges of a hundred
//! rows. A BEGIN and a COMMIT enclose them. That makes sixteen queries, and each is an operation
//! here. Keys are drawn by sysbench's own distribution, "special", the default up to 1.0. Three of
//! four come from the middle hundredth of a table. The others are the mean of twelve uniform draws.
//!
//! Rows lie in leaves of a B+ tree in the order of their keys. Leaves are database pages and come
//! through a pool in private memory. The nodes above them are few and always in memory. Each thread
//! has its own share of the tables and of the pool, so the order of the threads decides nothing.

use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::keys::{about, unit};
use super::pool::Pool;
use super::spec::{Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use crate::value::ValueError;
use ebb_mm::random::Random;

/// Parameters of a database under sysbench.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Sysbench {
    /// Connections, one thread each.
    pub threads: u32,
    /// Number of tables, divided evenly among the threads.
    pub tables: u32,
    /// Size of the tables' leaves, as a multiple of memory.
    pub data: f64,
    /// Size of the buffer pool, as a multiple of memory.
    pub pool: f64,
    /// Frames of a database page.
    #[serde(default = "block")]
    pub block: u32,
    /// Rows in a leaf.
    pub rows: u32,
    /// Leaves below one inner node.
    #[serde(default = "fanout")]
    pub fanout: u32,
    /// Whether reads bypass the page cache (direct I/O).
    #[serde(default)]
    pub direct: bool,
    /// Processor time of a query, the client's included, beside its memory accesses, in
    /// nanoseconds.
    pub query_ns: u32,
    /// Transactions of each thread before measuring.
    pub warm: u32,
    /// Transactions of each thread measured.
    pub ops: u32,
}

fn block() -> u32 {
    4
}
fn fanout() -> u32 {
    1000
}

/// `--point-selects`.
const POINTS: u32 = 10;
/// `--simple-ranges`, `--sum-ranges`, `--order-ranges` and `--distinct-ranges`, one of each.
const RANGES: u32 = 4;
/// `--range-size`.
const RANGE_ROWS: u64 = 100;
/// `--rand-spec-res`, `--rand-spec-pct` and `--rand-spec-iter`. The first is the share of keys that
/// come from the middle. The second is the size of the middle as a share of the range. The third is
/// the number of uniform draws in a mean.
const SPECIAL: (f64, f64, u32) = (0.75, 0.01, 12);

/// Draws a key of sysbench's distribution "special", as a share of the range. One draw decides
/// between the middle and the rest, and also which key of the middle it is. So the first quarter of
/// the middle is never drawn.
fn special(random: &mut Random) -> f64 {
    let (res, pct, iter) = SPECIAL;
    let u = unit(random);
    if u < 1.0 - res {
        (0..iter).map(|_| unit(random)).sum::<f64>() / f64::from(iter)
    } else {
        0.5 + pct * (u - 0.5)
    }
}

impl Sysbench {
    /// Checks the values.
    ///
    /// # Errors
    /// Returns which value makes no sense.
    pub fn check(&self) -> Result<(), ValueError> {
        for (name, value) in [
            ("threads", self.threads),
            ("block", self.block),
            ("rows", self.rows),
            ("fanout", self.fanout),
        ] {
            if value == 0 {
                return Err(ValueError::Rule(name, "expected 1 or more"));
            }
        }
        if self.tables < self.threads || !self.tables.is_multiple_of(self.threads) {
            return Err(ValueError::Rule("tables", "expected a multiple of threads"));
        }
        Ok(())
    }

    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
        let (threads, block) = (u64::from(self.threads), u64::from(self.block));
        let tables = u64::from(self.tables) / threads;
        let blocks = |ratio: f64| place.pages(ratio) / threads / block;
        // Leaves of a table. A range may not be longer than the table.
        let least = RANGE_ROWS.div_ceil(u64::from(self.rows)) + 1;
        let leaves = (blocks(self.data) / tables).max(least);
        let data = leaves * tables;
        let slots = blocks(self.pool).clamp(1, data);
        let nodes = leaves.div_ceil(u64::from(self.fanout)) + 1;
        let region =
            |pages, backing| Region { pages, backing, recency: true, exec: false, processes: 1 };
        let upper = nodes * tables;
        let pool = region(slots * block * threads, Backing::Anon);
        let server = plan.space(place.memcg, vec![pool, region(upper * threads, Backing::Anon)]);
        let files = region(data * block * threads, Backing::File);
        let files = plan.space(place.memcg, vec![files]);
        for thread in 0..threads {
            let connection = Connection {
                server,
                files,
                pool_at: slots * block * thread,
                nodes_at: slots * block * threads + upper * thread,
                data_at: data * block * thread,
                pool: Pool::new(data, slots),
                tables: tables as u32,
                leaves,
                nodes,
                fill: 0,
                random: Random(place.seed_of(0, thread)),
                warm: self.warm,
                left: self.ops,
                started: false,
                spec: self.clone(),
            };
            plan.thread(Box::new(connection), server, place.measured);
        }
    }
}

struct Connection {
    spec: Sysbench,
    server: u16,
    files: u16,
    pool_at: u64,
    nodes_at: u64,
    data_at: u64,
    pool: Pool,
    tables: u32,
    /// Leaves of a table. `nodes` is the number of nodes above them, with the root.
    leaves: u64,
    nodes: u64,
    /// Number of leaves loaded.
    fill: u64,
    random: Random,
    warm: u32,
    left: u32,
    started: bool,
}

impl Connection {
    fn own(&self, page: u64, access: Access) -> Step {
        Step::Touch { page: page as u32, space: self.server, access }
    }

    /// Brings a leaf into the pool. Returns its first page there, and whether it had to be read.
    fn leaf(&mut self, steps: &mut Vec<Step>, leaf: u64, read: bool) -> (u64, bool) {
        let block = u64::from(self.spec.block);
        let found = self.pool.get(leaf as u32, false);
        let at = self.pool_at + u64::from(found.slot) * block;
        if found.miss {
            if read && self.spec.direct {
                steps.push(Step::Direct { pages: self.spec.block, write: false });
            } else if read {
                let file = self.data_at + leaf * block;
                steps.extend((file..file + block).map(|page| Step::Touch {
                    page: page as u32,
                    space: self.files,
                    access: Access::FdRead,
                }));
            }
            steps.extend((at..at + block).map(|page| self.own(page, Access::Write)));
        }
        (at, found.miss)
    }

    /// Adds a query for `rows` rows of a table from some key on.
    fn select(&mut self, steps: &mut Vec<Step>, table: u64, rows: u64) {
        let (block, each) = (u64::from(self.spec.block), u64::from(self.spec.rows));
        let all = self.leaves * each;
        // The last keys have fewer rows behind them.
        let first = ((special(&mut self.random) * all as f64) as u64).min(all - 1);
        let last = (first + rows - 1).min(all - 1);
        steps.push(Step::Cpu(about(&mut self.random, self.spec.query_ns)));
        let root = self.nodes_at + table * self.nodes;
        let node = root + 1 + first / each / u64::from(self.spec.fanout);
        steps.extend([root, node].map(|page| self.own(page, Access::Read)));
        for leaf in first / each..=last / each {
            let (at, missed) = self.leaf(steps, table * self.leaves + leaf, true);
            if missed {
                continue;
            }
            // A page's head, its rows, and its directory, which is at the end.
            let frame =
                |row: u64| (row.clamp(leaf * each, (leaf + 1) * each - 1) % each) * block / each;
            let (from, to) = (frame(first), frame(last));
            let used = (0..block).filter(|&f| f == 0 || f + 1 == block || (from..=to).contains(&f));
            steps.extend(used.map(|f| self.own(at + f, Access::Read)));
        }
        steps.push(Step::Done(0));
    }

    fn transaction(&mut self, steps: &mut Vec<Step>) {
        let begin_or_commit =
            |random: &mut Random, ns| [Step::Cpu(about(random, ns)), Step::Done(0)];
        steps.extend(begin_or_commit(&mut self.random, self.spec.query_ns));
        let table = u64::from(self.random.below(self.tables));
        (0..POINTS).for_each(|_| self.select(steps, table, 1));
        for _ in 0..RANGES {
            let table = u64::from(self.random.below(self.tables));
            self.select(steps, table, RANGE_ROWS);
        }
        steps.extend(begin_or_commit(&mut self.random, self.spec.query_ns));
    }
}

impl Program for Connection {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        if self.fill < self.leaves * u64::from(self.tables) {
            // The tables were made through the pool before the run.
            let leaf = self.fill;
            self.leaf(steps, leaf, false);
            self.fill += 1;
        } else if self.warm > 0 {
            self.warm -= 1;
            self.transaction(steps);
        } else if !self.started {
            self.started = true;
            steps.push(Step::Start);
        } else if self.left > 0 {
            self.left -= 1;
            self.transaction(steps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACE: Setting = Setting { memcg: 0, memory: 20_000, seed: 1, measured: true };

    fn spec(more: &str) -> Sysbench {
        let base = "threads = 2\ntables = 4\ndata = 3.35\npool = 2.5\nrows = 73\nquery_ns = 1000\n\
                    warm = 0\nops = 500\n";
        toml::from_str(&format!("{base}{more}")).unwrap()
    }

    /// Returns all steps of the second thread, from the start on, and the pages of its spaces'
    /// regions.
    fn steps(spec: &Sysbench) -> (Vec<Step>, Vec<u64>) {
        let mut plan = Plan::default();
        spec.plan(&mut plan, &PLACE);
        let sizes = plan.spaces.iter().flat_map(|s| s.regions.iter().map(|r| r.pages)).collect();
        let mut all = Vec::new();
        loop {
            let was = all.len();
            plan.threads[1].program.fill(&mut all);
            if all.len() == was {
                let start = all.iter().position(|s| *s == Step::Start).unwrap();
                return (all.split_off(start), sizes);
            }
        }
    }

    #[test]
    fn keys_come_from_the_middle_hundredth_and_from_around_it() {
        let mut random = Random(3);
        let keys: Vec<f64> = (0..100_000).map(|_| special(&mut random)).collect();
        let share = |from: f64, to: f64| {
            keys.iter().filter(|&&k| from <= k && k < to).count() as f64 / keys.len() as f64
        };
        // The mean of twelve draws has a standard deviation of a twelfth. A hundredth is 0.12 of it
        // wide.
        let middle = share(0.495, 0.505);
        assert!((0.75..0.78).contains(&middle), "{middle}");
        assert!(share(0.495, 0.4975) < 0.01, "one draw decides both");
        let near = share(0.5 - 1.0 / 12.0, 0.5 + 1.0 / 12.0);
        assert!((near - (0.75 + 0.25 * 0.683)).abs() < 0.01, "{near}");
    }

    #[test]
    fn a_transaction_is_sixteen_queries_and_writes_nothing_that_is_in_the_pool() {
        let (all, _) = steps(&Sysbench { pool: 3.4, ..spec("") });
        let done = all.iter().filter(|s| matches!(s, Step::Done(0))).count();
        assert_eq!(done, 500 * 16);
        let other = |s: &&Step| {
            !matches!(s, Step::Cpu(_) | Step::Done(_) | Step::Start)
                && !matches!(s, Step::Touch { space: 0, access: Access::Read, .. })
        };
        assert_eq!(all.iter().find(other), None);
    }

    #[test]
    fn every_touch_lies_in_its_region_and_ranges_take_more_pages_than_points() {
        let few = Sysbench { rows: 7, ..spec("") };
        for spec in [spec(""), spec("direct = true"), spec("block = 1"), few] {
            let (all, sizes) = steps(&spec);
            let mut queries = Vec::new();
            let mut touched = 0;
            for step in &all {
                match *step {
                    Step::Touch { page, space: 0, .. } => {
                        assert!(u64::from(page) < sizes[0] + sizes[1], "{spec:?}");
                        touched += 1;
                    }
                    Step::Touch { page, .. } => assert!(u64::from(page) < sizes[2], "{spec:?}"),
                    Step::Done(_) => queries.push(std::mem::take(&mut touched)),
                    _ => {}
                }
            }
            let mean = |range: std::ops::Range<usize>| {
                let of = queries.iter().enumerate().filter(|(i, _)| range.contains(&(i % 16)));
                let (sum, n) = of.fold((0, 0), |(sum, n), (_, q)| (sum + q, n + 1));
                f64::from(sum) / f64::from(n)
            };
            assert_eq!((mean(0..1), mean(15..16)), (0.0, 0.0), "{spec:?}");
            assert!(mean(11..15) > mean(1..11), "{spec:?}");
        }
    }

    #[test]
    fn tables_that_cannot_be_divided_among_threads_are_refused() {
        assert_eq!(spec("").check(), Ok(()));
        let refused = |spec: Sysbench| spec.check().unwrap_err().to_string();
        assert!(refused(Sysbench { tables: 3, ..spec("") }).starts_with("tables:"));
        assert!(refused(Sysbench { rows: 0, ..spec("") }).starts_with("rows:"));
    }
}
