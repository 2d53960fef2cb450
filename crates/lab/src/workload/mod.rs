//! Workloads: streams of steps for the simulated machine.
//!
//! Owns the generators and the steps that they produce. The generators and their parameters have
//! the names of the literature. A generator sees only its own random numbers, never the machine.
//! With one seed it produces one sequence of steps, whatever reclaim does. That makes pairs of runs
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

/// One step of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Step {
    /// Touches a page of a space.
    Touch {
        /// Page in the space.
        page: u32,
        /// Number of the space.
        space: u16,
        /// Kind of access.
        access: Access,
    },
    /// Announces that the touches of `pages` pages from `page` on are one request. Missing pages of
    /// a request are read together.
    Ahead {
        /// First page.
        page: u32,
        /// Number of the space.
        space: u16,
        /// Number of pages.
        pages: u32,
    },
    /// Computes for so many nanoseconds.
    Cpu(u32),
    /// Begins an operation here, instead of at the end of the one before.
    Begin,
    /// Ends an operation of a kind, and counts its latency.
    Done(u8),
    /// Sleeps for so many nanoseconds.
    Sleep(u64),
    /// Waits until every measured thread has arrived. Measuring begins then.
    Start,
    /// Waits until `parties` threads of the group have arrived.
    Barrier {
        /// Number of the group.
        group: u16,
        /// Number of threads that wait for each other.
        parties: u16,
    },
    /// Frees pages.
    Free {
        /// Number of the space.
        space: u16,
        /// First page.
        page: u32,
        /// Number of pages.
        pages: u32,
    },
    /// Transfers pages from or to the disk past the page cache. The thread waits for a read only.
    Direct {
        /// Number of pages.
        pages: u32,
        /// Whether the transfer is a write.
        write: bool,
    },
    /// Waits until the data written to a file is on the device.
    Sync {
        /// Space of the file.
        space: u16,
    },
    /// Waits until the log has been written and synced as far as this thread's record.
    Commit {
        /// Number of the log.
        log: u16,
    },
    /// Ends the work of the log's writer. Waiting threads look again.
    Logged {
        /// Number of the log.
        log: u16,
        /// Number of transactions whose records are on the device now.
        upto: u64,
    },
}

/// Number of kinds of operations whose latencies are kept apart.
pub const KINDS: usize = 4;

/// A program that a thread runs.
pub trait Program: Send {
    /// Appends the next steps. A program that appends none has ended.
    fn fill(&mut self, steps: &mut Vec<Step>);

    /// Returns the group at whose barriers the thread waits. If the thread is killed, these
    /// barriers do not wait for it.
    fn group(&self) -> Option<u16> {
        None
    }
}
