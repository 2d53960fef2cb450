//! A relational database under TPC-C: MariaDB, PostgreSQL.
//!
//! Users run transactions over a pool of database pages. A page that is not in the pool is read
//! past the page cache (`direct`), or through it. The pool is private memory or shared memory. Each
//! user's connection has memory of its own.
//!
//! Each user has its own share of the database and of the pool, as the warehouses of TPC-C are
//! divided among terminals.

use ebb_mm::space::Backing;
use schemars::JsonSchema;
use serde::Deserialize;

use super::keys::{Keys, Pattern, THETA, about, unit};
use super::pool::Pool;
use super::spec::{LogSpec, Plan, Setting};
use super::{Program, Step};
use crate::machine::{Access, Region};
use ebb_mm::random::Random;

/// Parameters of a database under TPC-C.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Tpcc {
    /// Users, one thread each.
    pub users: u32,
    /// Size of the database, as a multiple of memory.
    pub data: f64,
    /// Size of the buffer pool, as a share of memory.
    pub pool: f64,
    /// Whether the users' parts of the pool add up to all of it, so that they may differ by a
    /// database page. Otherwise the parts are equal, and the remainder is left out.
    #[serde(default)]
    pub whole: bool,
    /// Memory of one connection, as a share of memory.
    pub connection: f64,
    /// Whether the pool reads and writes past the page cache (direct I/O).
    #[serde(default)]
    pub direct: bool,
    /// Whether the pool is shared memory.
    #[serde(default)]
    pub shared: bool,
    /// Frames of a database page.
    #[serde(default = "block")]
    pub block: u32,
    /// Database pages that a transaction uses.
    #[serde(default = "pages")]
    pub pages: u32,
    /// Whether transactions are of the five kinds of the standard, which use different numbers of
    /// pages. Kinds that only read end without the log. Otherwise all transactions are alike.
    #[serde(default)]
    pub mix: bool,
    /// Share of the used pages that are changed.
    #[serde(default = "changes")]
    pub changes: f64,
    /// Share of a user's pages over which the zipfian pattern goes. The other pages are used only
    /// by uniform draws (`cold`).
    #[serde(default = "all")]
    pub hot: f64,
    /// Share of uses that go to any page, all with the same probability.
    #[serde(default)]
    pub cold: f64,
    /// Exponent of the zipfian pattern.
    #[serde(default = "theta")]
    pub theta: f64,
    /// Pages that a transaction writes to the log, which is synced before the transaction ends. One
    /// transaction writes at a time, for all that wait (PostgreSQL's write-ahead log). If this and
    /// `log_ns` are 0, there is no log.
    #[serde(default)]
    pub log_pages: u32,
    /// Time of the log's writer for a transaction, with all other work that only one transaction
    /// does at a time, in nanoseconds.
    #[serde(default)]
    pub log_ns: u32,
    /// Size of the log, as a share of memory. The log's files are used again and again.
    #[serde(default)]
    pub log_size: f64,
    /// Changed pages of the pool that each transaction writes for checkpoints.
    #[serde(default)]
    pub checkpoint: f64,
    /// Pages by which page tables grow in each measured transaction, because processes access parts
    /// of the shared buffers for the first time.
    #[serde(default)]
    pub tables: f64,
    /// Processor time for each page used, in nanoseconds.
    pub page_ns: u32,
    /// Pages that transactions use before measuring, as a multiple of memory.
    #[serde(default = "warm")]
    pub warm: f64,
    /// Pages that measured transactions use, as a multiple of memory.
    pub ops: f64,
}

fn theta() -> f64 {
    THETA
}
fn all() -> f64 {
    1.0
}
fn block() -> u32 {
    1
}
fn pages() -> u32 {
    200
}
fn changes() -> f64 {
    0.2
}
fn warm() -> f64 {
    6.0
}

/// The kinds of transactions: New-Order, Payment, Order-Status, Delivery, Stock-Level. For each:
/// * its share (clause 5.2.3 of the standard, with the rest for New-Order);
/// * the rows it touches (by its profiles, 2.4 to 2.8: ten lines an order, a customer by name is
///   three rows, 20 orders in Stock-Level);
/// * whether it changes any row.
const MIX: [(f64, f64, bool); 5] = [
    (0.45, 46.0, true),
    (0.43, 8.0, true),
    (0.04, 13.0, false),
    (0.04, 130.0, true),
    (0.04, 401.0, false),
];

impl Tpcc {
    /// Adds the workload to the plan.
    pub fn plan(&self, plan: &mut Plan, place: &Setting) {
        let (users, block) = (u64::from(self.users), u64::from(self.block.max(1)));
        let share = |ratio: f64| (place.pages(ratio) / users / block).max(4) * block;
        let (data, pool) = (share(self.data), share(self.pool));
        // Start of a user's part of the pool. For the user after the last it is the size of the
        // pool.
        let blocks = place.pages(self.pool) / block;
        let part = |user: u64| if self.whole { blocks * user / users * block } else { pool * user };
        let hot = (((data / block) as f64 * self.hot).ceil() as u64).max(1);
        let connection = place.pages(self.connection).max(1);
        let backing = if self.shared { Backing::Shmem } else { Backing::Anon };
        let region =
            |pages, backing| Region { pages, backing, recency: true, exec: false, processes: 1 };
        // One process for each user maps shared buffers.
        let processes = if self.shared { self.users } else { 1 };
        let shared = |pages| Region { processes, ..region(pages, backing) };
        let mut regions = vec![shared(part(users)), region(connection * users, Backing::Anon)];
        let each = |ratio: f64| {
            let used = f64::from(self.pages) * block as f64;
            (place.memory as f64 * ratio / users as f64 / used).ceil() as u64
        };
        // No process maps page tables.
        let tables =
            (each(self.ops) as f64 * self.tables).ceil() as u64 + u64::from(self.tables > 0.0);
        regions.push(Region { processes: 0, ..region(tables * users, Backing::Anon) });
        let server = plan.space(place.memcg, regions);
        let files = plan.space(place.memcg, vec![region(data * users, Backing::File)]);
        let log = (self.log_pages > 0 || self.log_ns > 0).then(|| {
            let size = place.pages(self.log_size);
            let space = plan.space(place.memcg, vec![region(size, Backing::File)]);
            let (pages, ns) = (self.log_pages, self.log_ns);
            plan.log(LogSpec { space, size: size as u32, pages, ns })
        });
        for user in 0..users {
            let terminal = Terminal {
                server,
                files,
                pool_at: part(user),
                own_at: part(users) + connection * user,
                own: connection,
                data_at: data * user,
                pool: Pool::new(data / block, (part(user + 1) - part(user)).min(data) / block),
                fill: data / block,
                block,
                log,
                tables_at: part(users) + connection * users + tables * user,
                // The page tables of the users do not all grow at one time.
                tables: user as f64 / users as f64,
                due: user as f64 / users as f64,
                keys: Keys::new(Pattern::Zipfian, hot, self.theta, 0, 1),
                pages: (data / block) as u32,
                random: Random(place.seed_of(0, user)),
                warm: each(self.warm),
                left: each(self.ops),
                started: false,
                spec: self.clone(),
            };
            plan.thread(Box::new(terminal), server, place.measured);
        }
    }
}

struct Terminal {
    spec: Tpcc,
    server: u16,
    files: u16,
    pool_at: u64,
    own_at: u64,
    own: u64,
    data_at: u64,
    pool: Pool,
    /// Number of database pages still to be loaded.
    fill: u64,
    block: u64,
    /// Number of database pages.
    pages: u32,
    log: Option<u16>,
    /// First page of the user's page tables. `tables` is their growth in pages.
    tables_at: u64,
    tables: f64,
    /// Number of pages to be written for checkpoints.
    due: f64,
    keys: Keys,
    random: Random,
    warm: u64,
    left: u64,
    started: bool,
}

impl Terminal {
    fn page(&mut self, steps: &mut Vec<Step>, page: u32, change: bool) {
        let (block, server) = (self.block, self.server);
        let found = self.pool.get(page, change);
        let at = self.pool_at + u64::from(found.slot) * block;
        let own = |p: u64, access| Step::Touch { page: p as u32, space: server, access };
        let files = self.files;
        let file = |p: u64, access| Step::Touch { page: p as u32, space: files, access };
        let blocks = |page: u32| {
            let first = self.data_at + u64::from(page) * block;
            first..first + block
        };
        if let Some(old) = found.wrote {
            // The old content is written from the slot in which it lies.
            steps.extend((at..at + block).map(|p| own(p, Access::Read)));
            if self.spec.direct {
                steps.push(Step::Direct { pages: block as u32, write: true });
            } else {
                steps.extend(blocks(old).map(|p| file(p, Access::FdWrite)));
            }
        }
        if found.miss && self.spec.direct {
            steps.push(Step::Direct { pages: block as u32, write: false });
        } else if found.miss {
            steps.extend(blocks(page).map(|p| file(p, Access::FdRead)));
        }
        if found.miss {
            steps.extend((at..at + block).map(|p| own(p, Access::Write)));
        } else {
            let access = if change { Access::Write } else { Access::Read };
            steps.push(own(at, access));
            if block > 1 {
                // A page's head, and the row.
                let row = u64::from(self.random.below(block as u32 - 1));
                steps.push(own(at + 1 + row, access));
            }
        }
    }

    fn draw(&mut self) -> u32 {
        if self.spec.cold > 0.0 && unit(&mut self.random) < self.spec.cold {
            return self.random.below(self.pages);
        }
        self.keys.draw(&mut self.random) as u32
    }

    /// Returns the pages of the next transaction, and whether it changes any.
    fn kind(&mut self) -> (u32, bool) {
        if !self.spec.mix {
            return (self.spec.pages, true);
        }
        let mean: f64 = MIX.iter().map(|(share, rows, _)| share * rows).sum();
        let mut left = unit(&mut self.random);
        let kind = MIX.iter().find(|kind| {
            left -= kind.0;
            left < 0.0
        });
        let &(_, rows, changes) = kind.unwrap_or(&MIX[0]);
        ((f64::from(self.spec.pages) * rows / mean).round() as u32, changes)
    }

    fn transaction(&mut self, steps: &mut Vec<Step>) {
        let (pages, changes) = self.kind();
        for i in 0..pages {
            let page = self.draw();
            let change = changes && unit(&mut self.random) < self.spec.changes;
            steps.push(Step::Cpu(about(&mut self.random, self.spec.page_ns)));
            self.page(steps, page, change);
            if i % 16 == 0 {
                let own = u64::from(self.random.below(self.own as u32));
                let page = (self.own_at + own) as u32;
                steps.push(Step::Touch { page, space: self.server, access: Access::Write });
            }
        }
        if self.started {
            let was = self.tables as u64;
            self.tables += self.spec.tables;
            steps.extend((was..self.tables as u64).map(|i| {
                let page = (self.tables_at + i) as u32;
                Step::Touch { page, space: self.server, access: Access::Write }
            }));
        }
        self.checkpoint(steps);
        steps.extend(self.log.filter(|_| changes).map(|log| Step::Commit { log }));
        steps.push(Step::Done(0));
    }

    /// Writes the pages that are due for a checkpoint, in the order of slots.
    fn checkpoint(&mut self, steps: &mut Vec<Step>) {
        self.due += self.spec.checkpoint;
        while self.due >= 1.0 {
            self.due -= 1.0;
            let Some((slot, page)) = self.pool.clean() else { break };
            let (at, file) = (
                self.pool_at + u64::from(slot) * self.block,
                self.data_at + u64::from(page) * self.block,
            );
            for i in 0..self.block {
                let read =
                    Step::Touch { page: (at + i) as u32, space: self.server, access: Access::Read };
                let write = Step::Touch {
                    page: (file + i) as u32,
                    space: self.files,
                    access: Access::FdWrite,
                };
                steps.extend([read, write]);
            }
        }
    }
}

impl Program for Terminal {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        if self.fill > 0 {
            // The whole database was loaded through the pool before the run.
            self.fill -= 1;
            let page = self.fill as u32;
            self.page(steps, page, false);
            steps.retain(|s| !matches!(s, Step::Direct { .. }));
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

    const PLACE: Setting = Setting { memcg: 0, memory: 10_000, seed: 1, measured: true };

    fn spec(more: &str) -> Tpcc {
        let base = "users = 7\ndata = 0.8\npool = 0.5\nconnection = 0.0002\nblock = 2\nshared = true\n\
                    page_ns = 1000\nwarm = 0.1\nops = 20.0\n";
        toml::from_str(&format!("{base}{more}")).unwrap()
    }

    /// Returns all steps of the first user, from the start on.
    fn steps(spec: &Tpcc) -> Vec<Step> {
        let mut plan = Plan::default();
        spec.plan(&mut plan, &PLACE);
        let mut all = Vec::new();
        loop {
            let was = all.len();
            plan.threads[0].program.fill(&mut all);
            if all.len() == was {
                let start = all.iter().position(|s| *s == Step::Start).unwrap();
                return all.split_off(start);
            }
        }
    }

    #[test]
    fn parts_of_the_pool_add_up_to_the_whole() {
        for (more, pages) in [("", 714 / 2 * 2 * 7), ("whole = true", 5000)] {
            let mut plan = Plan::default();
            spec(more).plan(&mut plan, &PLACE);
            assert_eq!(plan.spaces[0].regions[0].pages, pages, "{more}");
        }
    }

    #[test]
    fn transactions_of_the_mix_differ_and_those_that_only_read_need_no_log() {
        let alike = steps(&spec("log_pages = 1\nlog_ns = 10\nlog_size = 0.01"));
        let count =
            |steps: &[Step], what: &dyn Fn(&Step) -> bool| steps.iter().filter(|s| what(s)).count();
        let done = |s: &Step| matches!(s, Step::Done(_));
        let commits = |s: &Step| matches!(s, Step::Commit { .. });
        let used = |s: &Step| matches!(s, Step::Cpu(_));
        assert_eq!(count(&alike, &done), count(&alike, &commits));
        let mixed = spec("log_pages = 1\nlog_ns = 10\nlog_size = 0.01\nmix = true");
        let mixed = steps(&Tpcc { ops: 2000.0, ..mixed });
        let share = count(&mixed, &commits) as f64 / count(&mixed, &done) as f64;
        assert!((0.90..0.94).contains(&share), "{share}");
        let pages = count(&mixed, &used) as f64 / count(&mixed, &done) as f64;
        assert!((170.0..230.0).contains(&pages), "{pages} pages a transaction");
    }

    #[test]
    fn page_tables_grow_and_checkpoints_write_as_much_as_asked() {
        let all = steps(&spec("tables = 0.5\ncheckpoint = 1.5"));
        let done = all.iter().filter(|s| matches!(s, Step::Done(_))).count();
        let touched =
            |s: &&Step, from: u32| matches!(s, Step::Touch { page, space: 0, .. } if *page >= from);
        let tables = all.iter().filter(|s| touched(s, 714 / 2 * 2 * 7 + 2 * 7)).count();
        assert!(tables.abs_diff(done / 2) <= 1, "{tables} pages in {done} transactions");
        let none = steps(&spec("tables = 0.5"));
        let writes = |steps: &[Step]| {
            let written = |s: &&Step| matches!(s, Step::Touch { access: Access::FdWrite, .. });
            steps.iter().filter(written).count()
        };
        assert!(writes(&all) > writes(&none) + done, "{} and {}", writes(&all), writes(&none));
    }
}
