//! Waits of those who reclaim: for what, how long at most, what ends them early.
//!
//! A wait is begun with [`Throttle::begin`] and ended by the driver when its time is over or when
//! [`Throttle::over`] says so; [`Throttle::end`] in any case.

use crate::frame::sync::{AtomicU32, AtomicU64, Mutex, Relaxed, lock};

/// One timer tick.
pub const TICK_MS: u64 = 4;
/// Pages that have to be written for each waiter before all are let go.
const WRITTEN_PER_WAITER: u64 = 32;

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Reason {
    /// Pages under write-out.
    Writeback,
    /// Others who hold too many pages off the lists.
    Isolated,
    /// Anybody's reclaim to get anywhere.
    NoProgress,
    /// The disk, which has more than it can take.
    Congested,
}

impl Reason {
    /// The longest wait.
    #[must_use]
    pub const fn limit_ms(self) -> u64 {
        match self {
            Self::Writeback => 100,
            Self::Isolated => 20,
            Self::NoProgress | Self::Congested => TICK_MS,
        }
    }
}

/// What a node looks like to somebody about to wait.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Outlook {
    /// Run after run came to nothing.
    pub hopeless: bool,
    /// Pages dirty or under write-out.
    pub write_pending: u64,
    /// Pages on lists that reclaim may take from.
    pub reclaimable: u64,
    /// Pages written since the machine started.
    pub written: u64,
}

/// A wait under way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wait {
    /// For what.
    pub reason: Reason,
    epoch: u64,
}

/// The waits of a node.
#[derive(Debug, Default)]
pub struct Throttle {
    /// Waiters for write-out. Relaxed: a hint, as is all here but the mark.
    waiters: AtomicU32,
    /// Times those who wait for progress were let go.
    epoch: AtomicU64,
    /// Pages written when the first of the present waiters began.
    mark: Mutex<u64>,
}

impl Throttle {
    /// Begins a wait, unless there is no point in one.
    pub fn begin(&self, reason: Reason, seen: &Outlook) -> Option<Wait> {
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

    /// Whether the wait is over before its time.
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

    /// Pages were freed at a good rate: those who wait for progress go on.
    pub fn progress(&self) {
        self.epoch.fetch_add(1, Relaxed);
    }
}

/// Whether so many pages are off the lists that one more reclaimer would find too few. Those who
/// may not enter file systems are let through: others may wait for them.
#[must_use]
pub fn too_many_isolated(isolated: u64, inactive: u64, may_wait_for_io: bool) -> bool {
    let inactive = if may_wait_for_io { inactive / 8 } else { inactive };
    isolated > inactive
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn seen(written: u64) -> Outlook {
        Outlook { written, write_pending: 100, reclaimable: 100, hopeless: false }
    }

    #[test]
    fn writers_are_let_go_when_enough_was_written_for_all() {
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
    fn nobody_waits_where_there_is_no_point() {
        let t = Throttle::default();
        let clean = Outlook { write_pending: 50, ..seen(0) };
        let hopeless = Outlook { hopeless: true, ..seen(0) };
        for reason in [Reason::NoProgress, Reason::Congested] {
            assert!(t.begin(reason, &seen(0)).is_some());
            assert!(t.begin(reason, &clean).is_none(), "half of all can be had at once");
            assert!(t.begin(reason, &hopeless).is_none());
        }
    }

    #[test]
    fn progress_lets_those_go_who_wait_for_it() {
        let t = Throttle::default();
        let wait = t.begin(Reason::NoProgress, &seen(0)).unwrap();
        assert!(!t.over(&wait, 1 << 40));
        t.progress();
        assert!(t.over(&wait, 0));
        let later = t.begin(Reason::NoProgress, &seen(0)).unwrap();
        assert!(!t.over(&later, 0));
    }

    #[test]
    fn an_eighth_off_the_lists_is_enough_for_those_who_can_wait() {
        assert!(too_many_isolated(13, 100, true) && !too_many_isolated(12, 100, true));
        assert!(!too_many_isolated(100, 100, false) && too_many_isolated(101, 100, false));
    }
}
