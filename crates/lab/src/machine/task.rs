//! What a task is in the middle of: its reclaim, its hopes, what it was going to read.
//!
//! A task reclaims in batches, each an event of its own; between two of them others run. So a fault
//! that lacks room comes back again and again, and here is what it knows from the last time.
//!
//! Invariants
//! * TASK-1: a run is here exactly while the task has asked to be called again at the end of a batch.
//! * TASK-2: writes counted as begun by a run were begun in one of its own batches.

use ebb_mm::frame::Order;
use ebb_mm::lru::Scan;
use ebb_mm::reclaim::throttle::Wait;
use ebb_mm::reclaim::{Direct, Hope};
use ebb_mm::writeback::Window;

/// A task.
#[derive(Debug, Default)]
pub(super) struct Task {
    /// What is left of its hope while it reclaims.
    pub hope: Hope,
    /// The wait it is in, on which node, and until when at most.
    pub wait: Option<(Wait, usize, u64)>,
    /// It waits for kswapd before it may reclaim.
    pub held: Option<Held>,
    /// Its reclaim.
    pub run: Option<Run>,
    /// Runs of one fault so far.
    pub rounds: u32,
    /// Whether what other CPUs hold was given back for this fault.
    pub drained: bool,
    /// Whether it has to reclaim without entering file systems.
    pub no_fs: bool,
    /// Whether it is about to write what it takes a frame for.
    pub writes: bool,
    /// What the fault under way is to read.
    pub plan: Option<Plan>,
}

/// A wait for kswapd to make room in the reserve.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    /// The node whose kswapd it is.
    pub node: usize,
    /// Until when at most.
    pub until: u64,
    /// How often those who wait there had been let go when it last looked.
    pub let_go: u64,
}

/// What a fault reads, worked out before there is room for it.
#[derive(Debug)]
pub(super) struct Plan {
    /// The space and page it is for.
    pub at: (usize, u64),
    /// Pages in a row.
    pub window: Window,
    /// Others that come with them.
    pub others: Vec<(usize, u64)>,
}

/// A pass that may be interrupted.
#[derive(Debug)]
pub(super) struct Under {
    /// What is asked, and what came of it so far.
    pub sc: Scan,
    /// The node it is at, and how many it has still to do, that one included.
    pub node: (usize, usize),
    /// Where among that node's memcgs it is: who was first, and how many of them are done with.
    pub at: (usize, usize),
    /// Pages freed, and writes begun.
    pub freed: u64,
    pub begun: u64,
    /// Whether something was left alone that is only taken when all else fails.
    pub spared: bool,
}

impl Under {
    /// At its beginning, to go to so many nodes from one on.
    pub fn new(sc: Scan, node: (usize, usize), spared: bool) -> Self {
        Self { sc, node, at: (0, 0), freed: 0, begun: 0, spared }
    }

    /// Whether it has been to all of its nodes.
    pub fn is_over(&self) -> bool {
        self.node.1 == 0
    }
}

/// A run of direct reclaim.
#[derive(Debug)]
pub(super) struct Run {
    /// From one memcg or from all.
    pub from: Option<usize>,
    /// What it tries, how hard.
    pub direct: Direct,
    /// The pass under way.
    pub pass: Option<Under>,
    /// Pages wanted, and freed.
    pub target: u64,
    pub freed: u64,
    /// When the first of the writes that it began ends.
    pub first_end: Option<u64>,
    /// It has waited for others before the batch that comes.
    pub stalled: bool,
}

impl Run {
    /// A run for so many pages.
    pub fn new(from: Option<usize>, target: u64) -> Self {
        let direct = Direct::new(target, Order::ZERO);
        Self { from, direct, pass: None, target, freed: 0, first_end: None, stalled: false }
    }
}
