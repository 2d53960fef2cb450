//! Waits of reclaiming tasks: the reason, the longest duration, and the events that end a wait
//! early.
//!
//! [`Throttle::begin`] begins a wait. The driver ends it when its time is over or when
//! [`Throttle::over`] returns true. In any case it calls [`Throttle::end`].

use crate::frame::sync::{AtomicU32, AtomicU64, Mutex, Relaxed, lock};

/// Length of one timer tick in milliseconds.
pub const TICK_MS: u64 = 4;
/// Number of pages that have to be written for each waiter before all waiters go on.
const WRITTEN_PER_WAITER: u64 = 32;

/// Reason of a wait.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// Pages are under writeback.
    Writeback,
    /// Other reclaimers have isolated too many pages.
    Isolated,
    /// No task's reclaim makes progress.
    NoProgress,
    /// The disk has more requests than it can take.
    Congested,
}

impl Reason {
    /// Returns the longest wait in milliseconds.
    #[must_use]
    pub const fn limit_ms(self) -> u64 {
        match self {
            Self::Writeback => 100,
            Self::Isolated => 20,
            Self::NoProgress | Self::Congested => TICK_MS,
        }
    }
}

/// The state of a node, for a task about to wait.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NodeState {
    /// Whether the last runs all freed nothing.
    pub hopeless: bool,
    /// Number of pages dirty or under writeback.
    pub write_pending: u64,
    /// Number of pages on lists from which reclaim may take.
    pub reclaimable: u64,
    /// Number of pages written since the machine started.
    pub written: u64,
}

/// A wait under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// Reason of the wait.
    pub reason: Reason,
    epoch: u64,
}

/// The waits of a node.
#[derive(Debug, Default)]
pub struct Throttle {
    /// Number of tasks that wait for writeback. Relaxed, because all values here but `mark` are
    /// hints.
    waiters: AtomicU32,
    /// Number of times the waiters for progress were released.
    epoch: AtomicU64,
    /// Number of pages written when the first of the present waiters began.
    mark: Mutex<u64>,
}

impl Throttle {
    /// Begins a wait, unless it would be pointless.
    pub fn begin(&self, reason: Reason, seen: &NodeState) -> Option<Wait> {
        match reason {
            Reason::Writeback => {
                let mut mark = lock(&self.mark);
                if self.waiters.fetch_add(1, Relaxed) == 0 {
                    *mark = seen.written;
                }
            }
            Reason::Isolated => {}
            Reason::NoProgress | Reason::Congested => {
                if seen.hopeless || 2 * seen.write_pending <= seen.reclaimable {
                    return None;
                }
            }
        }
        Some(Wait { reason, epoch: self.epoch.load(Relaxed) })
    }

    /// Returns whether the wait is over before its time.
    #[must_use]
    pub fn over(&self, wait: &Wait, written: u64) -> bool {
        match wait.reason {
            Reason::Writeback => {
                let waiters = u64::from(self.waiters.load(Relaxed));
                written.saturating_sub(*lock(&self.mark)) > WRITTEN_PER_WAITER * waiters
            }
            Reason::NoProgress => self.epoch.load(Relaxed) != wait.epoch,
            Reason::Isolated | Reason::Congested => false,
        }
    }

    /// Ends a wait.
    pub fn end(&self, wait: Wait) {
        if wait.reason == Reason::Writeback {
            self.waiters.fetch_sub(1, Relaxed);
        }
    }

    /// Releases the waiters for progress, because pages were freed at a good rate.
    pub fn progress(&self) {
        self.epoch.fetch_add(1, Relaxed);
    }
}

/// Returns whether so many pages are isolated that one more reclaimer would find too few. The limit
/// is higher for tasks that may not enter file systems, because others may wait for them.
#[must_use]
pub fn too_many_isolated(isolated: u64, inactive: u64, may_wait_for_io: bool) -> bool {
    let inactive = if may_wait_for_io { inactive / 8 } else { inactive };
    isolated > inactive
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn seen(written: u64) -> NodeState {
        NodeState { written, write_pending: 100, reclaimable: 100, hopeless: false }
    }

    #[test]
    fn a_wait_for_writeback_ends_when_enough_is_written_for_all() {
        let t = Throttle::default();
        let a = t.begin(Reason::Writeback, &seen(1000)).unwrap();
        let b = t.begin(Reason::Writeback, &seen(1010)).unwrap();
        assert!(!t.over(&a, 1064), "two waiters need more than 64 pages");
        assert!(t.over(&a, 1065) && t.over(&b, 1065));
        t.end(a);
        assert!(t.over(&b, 1033));
        t.end(b);
        let c = t.begin(Reason::Writeback, &seen(5000)).unwrap();
        assert!(!t.over(&c, 5032) && t.over(&c, 5033));
    }

    #[test]
    fn no_task_waits_on_a_hopeless_node_or_if_half_of_its_pages_are_clean() {
        let t = Throttle::default();
        let clean = NodeState { write_pending: 50, ..seen(0) };
        let hopeless = NodeState { hopeless: true, ..seen(0) };
        for reason in [Reason::NoProgress, Reason::Congested] {
            assert!(t.begin(reason, &seen(0)).is_some());
            assert!(t.begin(reason, &clean).is_none(), "half of all can be had at once");
            assert!(t.begin(reason, &hopeless).is_none());
        }
    }

    #[test]
    fn progress_ends_the_waits_for_it() {
        let t = Throttle::default();
        let wait = t.begin(Reason::NoProgress, &seen(0)).unwrap();
        assert!(!t.over(&wait, 1 << 40));
        t.progress();
        assert!(t.over(&wait, 0));
        let later = t.begin(Reason::NoProgress, &seen(0)).unwrap();
        assert!(!t.over(&later, 0));
    }

    #[test]
    fn an_eighth_isolated_is_too_many_for_a_task_that_can_wait() {
        assert!(too_many_isolated(13, 100, true) && !too_many_isolated(12, 100, true));
        assert!(!too_many_isolated(100, 100, false) && too_many_isolated(101, 100, false));
    }
}
