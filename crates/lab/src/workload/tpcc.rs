//! A relational database under TPC-C: MariaDB, PostgreSQL.
//!
//! Users run transactions over a pool of database pages. A page that is not in the pool is read past
//! the page cache (`direct`), or through it; the pool is private memory or shared memory. Each user's
//! connection has memory of its own.
//!
//! Each user has its own share of the database and of the pool, as the warehouses of TPC-C are dealt
//! out to terminals.

use ebb_core::space::Backing;
use serde::Deserialize;

use super::keys::{Keys, Pattern, THETA, about, unit};
use super::pool::Pool;
use super::spec::{Place, Plan};
use super::{Program, Step};
use crate::machine::{Access, Region};
use crate::trace::synth::Random;

/// Parameters.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tpcc {
    /// Users, one thread each.
    pub users: u32,
    /// The database, as a multiple of memory.
    pub data: f64,
    /// The pool, as a share of memory.
    pub pool: f64,
    /// Memory of one connection, as a share of memory.
    pub connection: f64,
    /// Reads go past the page cache.
    #[serde(default)]
    pub direct: bool,
    /// The pool is shared memory.
    #[serde(default)]
    pub shared: bool,
    /// Frames of a database page.
    #[serde(default = "block")]
    pub block: u32,
    /// Database pages used by a transaction.
    #[serde(default = "pages")]
    pub pages: u32,
    /// Share of them that are changed.
    #[serde(default = "changes")]
    pub changes: f64,
    /// The exponent of the zipfian pattern over a user's pages.
    #[serde(default = "theta")]
    pub theta: f64,
    /// Processor time for each page used.
    pub page_ns: u32,
    /// Transactions before measuring, in pages used, as a multiple of memory.
    #[serde(default = "warm")]
    pub warm: f64,
    /// Transactions measured, in pages used, as a multiple of memory.
    pub ops: f64,
}

fn theta() -> f64 {
    THETA
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

impl Tpcc {
    /// Puts it on the machine.
    pub fn plan(&self, plan: &mut Plan, place: &Place) {
        let (users, block) = (u64::from(self.users), u64::from(self.block.max(1)));
        let share = |ratio: f64| (place.pages(ratio) / users / block).max(4) * block;
        let (data, pool) = (share(self.data), share(self.pool));
        let connection = place.pages(self.connection).max(2);
        let backing = if self.shared { Backing::Shmem } else { Backing::Anon };
        let region =
            |pages, backing| Region { pages, backing, recency: true, exec: false, processes: 1 };
        // One process for each user maps shared buffers.
        let processes = if self.shared { self.users } else { 1 };
        let shared = |pages| Region { processes, ..region(pages, backing) };
        let regions = vec![shared(pool * users), region(connection * users, Backing::Anon)];
        let server = plan.space(place.memcg, regions);
        let files = plan.space(place.memcg, vec![region(data * users, Backing::File)]);
        let each = |ratio: f64| {
            let used = f64::from(self.pages) * block as f64;
            (place.memory as f64 * ratio / users as f64 / used).ceil() as u64
        };
        for user in 0..users {
            let terminal = Terminal {
                server,
                files,
                pool_at: pool * user,
                own_at: pool * users + connection * user,
                own: connection,
                data_at: data * user,
                pool: Pool::new(data / block, pool.min(data) / block),
                fill: data / block,
                block,
                keys: Keys::new(Pattern::Zipfian, data / block, self.theta, 0, 1),
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
    /// Database pages still to be loaded.
    fill: u64,
    block: u64,
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
            // The old content is written from where it lies.
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

    fn transaction(&mut self, steps: &mut Vec<Step>) {
        for i in 0..self.spec.pages {
            let page = self.keys.draw(&mut self.random) as u32;
            let change = unit(&mut self.random) < self.spec.changes;
            steps.push(Step::Cpu(about(&mut self.random, self.spec.page_ns)));
            self.page(steps, page, change);
            if i % 16 == 0 {
                let own = u64::from(self.random.below(self.own as u32));
                let page = (self.own_at + own) as u32;
                steps.push(Step::Touch { page, space: self.server, access: Access::Write });
            }
        }
        steps.push(Step::Done(0));
    }
}

impl Program for Terminal {
    fn fill(&mut self, steps: &mut Vec<Step>) {
        if self.fill > 0 {
            // The whole database was loaded through the pool before.
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
