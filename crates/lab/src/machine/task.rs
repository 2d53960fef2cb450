//! State of a task in the middle of a fault: its reclaim, its OOM judge, and the pages it is going
//! to read.
//!
//! A task reclaims in batches, each an event of its own, and other tasks run between two of them.
//! So a fault that lacks room comes back again and again. This file keeps the state between two
//! tries.
//!
//! Invariants
//! * TASK-1: `run` is set exactly while the task has asked to be called again at the end of a
//!   batch.
//! * TASK-2: writes counted as begun by a run were begun in one of its own batches.

use ebb_linux::frame::Order;
use ebb_linux::reclaim::throttle::Wait;
use ebb_linux::reclaim::{Direct, OomJudge};
use ebb_linux::writeback::Window;
use ebb_mm::lru::Scan;

/// State of a task in the middle of a fault.
#[derive(Debug, Default)]
pub(super) struct Task {
    /// OOM judge of the task while it reclaims.
    pub oom_judge: OomJudge,
    /// The wait that the task is in: wait, node, latest end.
    pub wait: Option<(Wait, usize, u64)>,
    /// The task's wait for kswapd before it may reclaim.
    pub held: Option<Held>,
    /// The run of reclaim under way.
    pub run: Option<Run>,
    /// Number of runs of reclaim in the fault under way.
    pub rounds: u32,
    /// Whether the sets of other CPUs were drained for this fault.
    pub drained: bool,
    /// Whether the task has to reclaim without entering file systems.
    pub no_fs: bool,
    /// Whether the task takes a frame for a page that it is about to write.
    pub writes: bool,
    /// Pages that the fault under way is to read.
    pub plan: Option<Plan>,
}

/// A wait for kswapd to make room in the reserve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// Node of the kswapd.
    pub node: usize,
    /// Latest end of the wait, in nanoseconds.
    pub until: u64,
    /// Value of the node's `releases` count when the task last looked.
    pub releases: u64,
}

/// Pages that a fault reads, worked out before there is room for them.
#[derive(Debug)]
pub(super) struct Plan {
    /// Space and page of the fault.
    pub at: (usize, u64),
    /// Pages in a row.
    pub window: Window,
    /// Other pages that come with them.
    pub others: Vec<(usize, u64)>,
}

/// A pass of reclaim that may be interrupted.
#[derive(Debug)]
pub(super) struct PassState {
    /// Request and results of the pass.
    pub sc: Scan,
    /// Current node, and the number of nodes still to do, with that one.
    pub node: (usize, usize),
    /// Position among the node's memcgs: the first one visited, and how many are done.
    pub at: (usize, usize),
    /// Number of pages freed. `begun` is the number of writes begun.
    pub freed: u64,
    pub begun: u64,
    /// Whether the pass left pages alone that are only taken when all else fails.
    pub spared: bool,
}

impl PassState {
    /// Creates a pass at its beginning. `node`: first node, number of nodes.
    pub fn new(sc: Scan, node: (usize, usize), spared: bool) -> Self {
        Self { sc, node, at: (0, 0), freed: 0, begun: 0, spared }
    }

    /// Returns whether the pass has been to all of its nodes.
    pub fn is_over(&self) -> bool {
        self.node.1 == 0
    }
}

/// A run of direct reclaim.
#[derive(Debug)]
pub(super) struct Run {
    /// Memcg from which the run reclaims; none for all.
    pub from: Option<usize>,
    /// Priority and progress of the run, by the engine's rules.
    pub direct: Direct,
    /// The pass under way.
    pub pass: Option<PassState>,
    /// Pages wanted. `freed` is the number of pages freed.
    pub target: u64,
    pub freed: u64,
    /// End of the first of the writes that the run began.
    pub first_end: Option<u64>,
    /// Whether the task has waited for others before the next batch.
    pub stalled: bool,
}

impl Run {
    /// Creates a run for so many pages.
    pub fn new(from: Option<usize>, target: u64) -> Self {
        let direct = Direct::new(target, Order::ZERO);
        Self { from, direct, pass: None, target, freed: 0, first_end: None, stalled: false }
    }
}
