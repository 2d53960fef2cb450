//! Where requests for kswapd are left, and what is known of a node's trouble.
//!
//! Allocating tasks and kswapd meet only here. What is asked for is the largest order and the
//! highest zone since kswapd last read, and "nobody asked" is a value of its own.
//!
//! Invariants
//! * REQUEST-1: a request is recorded before it is looked at whether kswapd sleeps; kswapd says that it
//!   lies down, and reads what was recorded, in one hold of the lock, before it looks whether it
//!   may. So one of the two sees the other: no request is lost.
//! * REQUEST-2: reading a request for a run puts "nobody asked" back.
//! * REQUEST-3: flags are cleared by kswapd going to sleep, or, by the old policy, by whoever finds a zone fine.
//!
//! Lock order: the lock is a leaf; [`Node`] is never called under it.

use super::{FAILURES_MAX, FlagClear, Node, Policy, SleepCheck, order_of};
use crate::frame::Order;
use crate::frame::sync::{AtomicU32, Mutex, Relaxed, lock};
use crate::lru::Met;

/// What reclaim has found out about a node since kswapd last slept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// Dirty pages came to the old end faster than they are written.
    pub const DIRTY: Self = Self(1);
    /// Pages under write-out came round to the old end.
    pub const WRITEBACK: Self = Self(2);
    /// All dirty pages met were under write-out already: those who allocate wait a moment.
    pub const CONGESTED: Self = Self(4);
}

/// How deep kswapd sleeps.
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

/// What becomes of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// It is recorded; kswapd is awake and will see it.
    Recorded,
    /// kswapd's thread has to be woken.
    Wake,
    /// Memory is in balance for it, or the node is hopeless: kswapd sleeps on. A caller that cannot
    /// reclaim is short of large blocks, not of memory.
    LetSleep,
}

/// The desk of one node.
#[derive(Debug)]
pub struct Desk {
    state: Mutex<State>,
    /// Runs without progress in a row. Relaxed: a count nothing else hangs on.
    failures: AtomicU32,
    /// Relaxed: hints, read again and again.
    flags: AtomicU32,
    clears: AtomicU32,
}

impl Default for Desk {
    fn default() -> Self {
        Self::new()
    }
}

impl Desk {
    /// Nobody asked; kswapd is awake and on its way to bed.
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

    /// Somebody wants `order` from class `highest` or below and found too little.
    pub fn ask(&self, node: &dyn Node, policy: Policy, order: Order, highest: usize) -> Asked {
        {
            let mut s = lock(&self.state);
            s.highest = Some(s.highest.map_or(highest, |h| h.max(highest)));
            s.order = s.order.max(order.get());
            if s.sleep == Sleep::Awake || s.woken {
                return Asked::Recorded;
            }
        }
        let boosted = node.boosts(highest).iter().any(|&b| b > 0);
        let hopeless = self.hopeless() && policy.sleep != SleepCheck::One;
        if hopeless || (!boosted && self.balanced(node, policy, order, highest)) {
            return Asked::LetSleep;
        }
        let mut s = lock(&self.state);
        if s.sleep == Sleep::Awake || s.woken {
            return Asked::Recorded;
        }
        s.woken = true;
        Asked::Wake
    }

    /// Wakes kswapd if it sleeps, without a look at the balance, and changes what is asked for.
    pub(super) fn ask_lower(&self, highest: impl Fn(Option<usize>) -> Option<usize>) -> Asked {
        let mut s = lock(&self.state);
        if s.sleep == Sleep::Awake || s.woken {
            return Asked::Recorded;
        }
        s.highest = highest(s.highest);
        s.woken = true;
        Asked::Wake
    }

    /// The one predicate; the old policy forgets flags whenever it is true.
    pub(super) fn balanced(
        &self,
        node: &dyn Node,
        policy: Policy,
        order: Order,
        highest: usize,
    ) -> bool {
        // What is true of some zone was, until the third fix, true of none where there is none.
        let there = policy.sleep == SleepCheck::Any || node.has_zone(highest);
        let balanced = there && node.balanced(order, highest);
        if balanced && policy.clear == FlagClear::Check {
            self.clear_flags();
        }
        balanced
    }

    /// Whether kswapd may sleep, judged for `order` and `highest`. Clears the flags if so; by the old
    /// policy the look at a zone does, so nothing is forgotten where there is no zone to look at.
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

    /// kswapd lies down and reads what was asked meanwhile, without taking it. False: it was woken.
    pub(super) fn lie_down(&self, depth: Sleep) -> Option<(Option<usize>, Order)> {
        let mut s = lock(&self.state);
        if depth == Sleep::Nap {
            s.woken = false;
        } else if s.woken {
            return None;
        }
        s.sleep = depth;
        Some((s.highest, order_of(s.order)))
    }

    /// Whether somebody woke it since it lay down.
    #[must_use]
    pub fn woken(&self) -> bool {
        lock(&self.state).woken
    }

    /// kswapd is up: it needs no waking, and what is asked is left for it to read.
    pub(super) fn get_up(&self) {
        let mut s = lock(&self.state);
        s.sleep = Sleep::Awake;
        s.woken = false;
    }

    /// What is asked, left where it is.
    pub(super) fn look(&self) -> (Option<usize>, Order) {
        let s = lock(&self.state);
        (s.highest, order_of(s.order))
    }

    /// What is asked, taken: nobody asks from now on.
    pub(super) fn take(&self) -> (Option<usize>, Order) {
        let mut s = lock(&self.state);
        let order = order_of(std::mem::take(&mut s.order));
        (s.highest.take(), order)
    }

    /// Puts back what an interrupted sleep was judged for.
    pub(super) fn put_back(&self, order: Order, highest: impl Fn(Option<usize>) -> usize) {
        let mut s = lock(&self.state);
        s.highest = Some(highest(s.highest));
        s.order = s.order.max(order.get());
    }

    /// Somebody freed something: the node is not hopeless.
    pub fn progress(&self) {
        if self.failures.load(Relaxed) > 0 {
            self.failures.store(0, Relaxed);
        }
    }

    /// A run came to nothing.
    pub(super) fn failed(&self) {
        self.failures.fetch_add(1, Relaxed);
    }

    /// Whether run after run came to nothing.
    #[must_use]
    pub fn hopeless(&self) -> bool {
        self.failures.load(Relaxed) >= FAILURES_MAX
    }

    /// Notes a trouble.
    pub fn set_flag(&self, flag: Flags) {
        self.flags.fetch_or(flag.0, Relaxed);
    }

    /// Whether a trouble was noted and kswapd has not slept since.
    #[must_use]
    pub fn has_flag(&self, flag: Flags) -> bool {
        self.flags.load(Relaxed) & flag.0 != 0
    }

    /// Draws conclusions from what a pass over classic lists, or a batch of one, met.
    pub fn note(&self, met: &Met) {
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

    /// How often flags that were set have been cleared.
    #[must_use]
    pub fn flag_clears(&self) -> u32 {
        self.clears.load(Relaxed)
    }
}
