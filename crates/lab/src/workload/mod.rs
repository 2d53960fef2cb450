//! What programs do: streams of steps for the simulated machine.
//!
//! Owns the generators, under the names and with the parameters their field knows, and the steps
//! they are made of. A generator sees only its own random numbers, never the machine: with the same
//! seed it asks for the same things whatever reclaim does, which is what makes pairs of runs
//! comparable.

pub mod apps;
mod arena;
pub mod batch;
pub mod build;
mod extents;
pub mod fio;
pub mod keys;
pub mod kv;
pub mod launch;
pub mod mix;
pub mod pool;
pub mod recording;
pub mod simoop;
pub mod spec;
pub mod sysbench;
pub mod tpcc;
pub mod trace;
pub mod web;
pub mod ycsb;

pub use spec::{LogSpec, Plan, SpaceSpec, ThreadSpec, WorkloadSpec};

use crate::machine::Access;

/// One thing a thread does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Touches a page of a space.
    Touch {
        /// The page.
        page: u32,
        /// The space.
        space: u16,
        /// How.
        access: Access,
    },
    /// The touches of so many pages from here on are one request: read together what is missing.
    Ahead {
        /// The first page.
        page: u32,
        /// The space.
        space: u16,
        /// How many.
        pages: u32,
    },
    /// Computes.
    Cpu(u32),
    /// An operation begins here, not where the one before was done.
    Begin,
    /// An operation of a kind is done; its latency is counted.
    Done(u8),
    /// Does nothing for a while.
    Sleep(u64),
    /// Waits until every measured thread is here; measuring begins.
    Start,
    /// Waits until `parties` threads of the group are here.
    Barrier {
        /// The group.
        group: u16,
        /// Its size.
        parties: u16,
    },
    /// Gives pages back.
    Free {
        /// The space.
        space: u16,
        /// The first page.
        page: u32,
        /// How many.
        pages: u32,
    },
    /// A transfer from or to the disk that goes past the page cache. Reads are waited for.
    Direct {
        /// How many pages.
        pages: u32,
        /// Whether it writes.
        write: bool,
    },
    /// Waits until what was written to a file is on the device.
    Sync {
        /// The file's space.
        space: u16,
    },
    /// Waits until the log has been written and synced as far as this thread's record.
    Commit {
        /// The log.
        log: u16,
    },
    /// The log's writer is done; those who wait look again.
    Logged {
        /// The log.
        log: u16,
        /// How far it is on the device now.
        upto: u64,
    },
}

/// Kinds of operations whose latencies are kept apart.
pub const KINDS: usize = 4;

/// What a thread runs.
pub trait Program: Send {
    /// Appends the next steps; none means that it has ended.
    fn fill(&mut self, steps: &mut Vec<Step>);

    /// The group whose barriers it comes to, so that nobody waits there for one that was killed.
    fn group(&self) -> Option<u16> {
        None
    }
}
