//! Requests for kswapd, and the trouble flags of a node.
//!
//! Allocating tasks and kswapd meet only here. The request is the largest order and the highest
//! zone since kswapd last read it. "No request" is a value of its own.
//!
//! Invariants
//! * REQUEST-1: a task records its request before it checks whether kswapd sleeps. kswapd notes its
//!   sleep and reads the request in one hold of the lock. Only then it checks whether it may sleep.
//!   So one of the two sees the other, and no request is lost.
//! * REQUEST-2: reading a request for a run resets it to "no request".
//! * REQUEST-3: kswapd clears the flags when it goes to sleep. With `FlagClear::Check` each check
//!   that finds a zone in balance clears them.
//!
//! Lock order: the lock is a leaf; [`Node`] is never called under it.

use super::{FAILURES_MAX, FlagClear, Node, Policy, SleepCheck, order_of};
use crate::lru::ReclaimStat;
use crate::order::Order;
use crate::sync::{AtomicU32, Mutex, Relaxed, lock};

/// Facts that reclaim has found out about a node since kswapd last slept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// Dirty pages come to the old end faster than they are written.
    pub const DIRTY: Self = Self(1);
    /// Pages under writeback have come round to the old end.
    pub const WRITEBACK: Self = Self(2);
    /// All dirty pages met were under writeback and marked for reclaim, so allocating tasks wait a
    /// moment.
    pub const CONGESTED: Self = Self(4);
}

/// How deeply kswapd sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sleep {
    Awake,
    Nap,
    Deep,
}

#[derive(Debug)]
struct State {
    order: u8,
    highest: Option<usize>,
    sleep: Sleep,
    woken: bool,
}

/// Result of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RequestResult {
    /// The request is recorded; kswapd is awake and will see it.
    Recorded,
    /// The caller must wake kswapd's thread.
    Wake,
    /// Memory is in balance for the request, or the node is hopeless: kswapd sleeps on. A caller
    /// that cannot reclaim is short of large blocks, not of memory.
    LetSleep,
}

/// The wake requests of one node.
#[derive(Debug)]
pub struct WakeRequests {
    state: Mutex<State>,
    /// Number of runs without progress in a row. Relaxed, because nothing else depends on the
    /// count.
    failures: AtomicU32,
    /// Trouble flags. Relaxed, because they are hints and read repeatedly.
    flags: AtomicU32,
    clears: AtomicU32,
}

impl Default for WakeRequests {
    fn default() -> Self {
        Self::new()
    }
}

impl WakeRequests {
    /// Creates an empty request, with kswapd awake and about to sleep.
    #[must_use]
    pub fn new() -> Self {
        let state = State { order: 0, highest: None, sleep: Sleep::Awake, woken: false };
        Self {
            state: Mutex::new(state),
            failures: AtomicU32::new(0),
            flags: AtomicU32::new(0),
            clears: AtomicU32::new(0),
        }
    }

    /// Asks for `order` from class `highest` or below, because a task found too little memory.
    pub fn request(
        &self,
        node: &dyn Node,
        policy: Policy,
        order: Order,
        highest: usize,
    ) -> RequestResult {
        {
            let mut s = lock(&self.state);
            s.highest = Some(s.highest.map_or(highest, |h| h.max(highest)));
            s.order = s.order.max(order.get());
            if s.sleep == Sleep::Awake || s.woken {
                return RequestResult::Recorded;
            }
        }
        let boosted = node.boosts(highest).iter().any(|&b| b > 0);
        let hopeless = self.hopeless() && policy.sleep != SleepCheck::One;
        if hopeless || (!boosted && self.balanced(node, policy, order, highest)) {
            return RequestResult::LetSleep;
        }
        let mut s = lock(&self.state);
        if s.sleep == Sleep::Awake || s.woken {
            return RequestResult::Recorded;
        }
        s.woken = true;
        RequestResult::Wake
    }

    /// Wakes kswapd if it sleeps, without a look at the balance, and changes the requested zone.
    /// `highest` maps the requested zone to the new one.
    pub fn request_lower(&self, highest: impl Fn(Option<usize>) -> Option<usize>) -> RequestResult {
        let mut s = lock(&self.state);
        if s.sleep == Sleep::Awake || s.woken {
            return RequestResult::Recorded;
        }
        s.highest = highest(s.highest);
        s.woken = true;
        RequestResult::Wake
    }

    /// Returns whether the node is in balance. With `FlagClear::Check` a true result also clears
    /// the flags.
    pub(super) fn balanced(
        &self,
        node: &dyn Node,
        policy: Policy,
        order: Order,
        highest: usize,
    ) -> bool {
        // Only with `SleepCheck::Any` does a node without such a zone count as in balance.
        let there = policy.sleep == SleepCheck::Any || node.has_zone(highest);
        let balanced = there && node.balanced(order, highest);
        if balanced && policy.clear == FlagClear::Check {
            self.clear_flags();
        }
        balanced
    }

    /// Returns whether kswapd may sleep, judged for `order` and `highest`. With `FlagClear::Sleep`
    /// memory in balance clears the flags.
    pub(super) fn may_sleep(
        &self,
        node: &dyn Node,
        policy: Policy,
        order: Order,
        highest: usize,
    ) -> bool {
        if self.hopeless() && policy.sleep != SleepCheck::One {
            return true;
        }
        let fine = match policy.sleep {
            SleepCheck::Any | SleepCheck::One => self.balanced(node, policy, order, highest),
            SleepCheck::All => {
                let _ = self.balanced(node, policy, order, highest);
                node.all_balanced(order, highest)
            }
        };
        if fine && policy.clear == FlagClear::Sleep {
            self.clear_flags();
        }
        fine
    }

    /// Notes that kswapd sleeps, and returns the present request without taking it. Returns `None`
    /// if a task woke kswapd from its nap.
    pub(super) fn prepare_sleep(&self, depth: Sleep) -> Option<(Option<usize>, Order)> {
        let mut s = lock(&self.state);
        if depth == Sleep::Nap {
            s.woken = false;
        } else if s.woken {
            return None;
        }
        s.sleep = depth;
        Some((s.highest, order_of(s.order)))
    }

    /// Returns whether a task has woken kswapd since it went to sleep.
    #[must_use]
    pub fn woken(&self) -> bool {
        lock(&self.state).woken
    }

    /// Notes that kswapd is awake and needs no waking. The request stays for it to read.
    pub(super) fn wake_up(&self) {
        let mut s = lock(&self.state);
        s.sleep = Sleep::Awake;
        s.woken = false;
    }

    /// Returns the request and leaves it recorded.
    pub(super) fn look(&self) -> (Option<usize>, Order) {
        let s = lock(&self.state);
        (s.highest, order_of(s.order))
    }

    /// Takes the request: from now on there is none.
    pub(super) fn take(&self) -> (Option<usize>, Order) {
        let mut s = lock(&self.state);
        let order = order_of(std::mem::take(&mut s.order));
        (s.highest.take(), order)
    }

    /// Puts back the request for which an interrupted sleep was judged.
    pub(super) fn put_back(&self, order: Order, highest: impl Fn(Option<usize>) -> usize) {
        let mut s = lock(&self.state);
        s.highest = Some(highest(s.highest));
        s.order = s.order.max(order.get());
    }

    /// Records that a task freed pages, so the node is not hopeless.
    pub fn progress(&self) {
        if self.failures.load(Relaxed) > 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// Records a run without progress.
    pub fn failed(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    /// Returns whether the last runs all made no progress.
    #[must_use]
    pub fn hopeless(&self) -> bool {
        self.failures.load(Relaxed) >= FAILURES_MAX
    }

    /// Sets a trouble flag.
    pub fn set_flag(&self, flag: Flags) {
        self.flags.fetch_or(flag.0, Relaxed);
    }

    /// Returns whether a trouble flag was set and kswapd has not slept since.
    #[must_use]
    pub fn has_flag(&self, flag: Flags) -> bool {
        self.flags.load(Relaxed) & flag.0 != 0
    }

    /// Sets flags from the pages that a pass over classic lists, or a batch of one, met.
    pub fn note(&self, met: &ReclaimStat) {
        if met.writeback > 0 && met.writeback == met.taken {
            self.set_flag(Flags::WRITEBACK);
        }
        if met.unqueued_dirty > 0 && met.unqueued_dirty == met.file_taken {
            self.set_flag(Flags::DIRTY);
        }
        if met.dirty > 0 && met.dirty == met.congested {
            self.set_flag(Flags::CONGESTED);
        }
    }

    fn clear_flags(&self) {
        if self.flags.swap(0, Relaxed) != 0 {
            self.clears.fetch_add(1, Relaxed);
        }
    }

    /// Returns how often set flags have been cleared.
    #[must_use]
    pub fn flag_clears(&self) -> u32 {
        self.clears.load(Relaxed)
    }
}
