//! Reclaim control: when kswapd runs and when it sleeps, and how tasks wake it.
//!
//! The code here only decides. It does not sleep, read a clock or create a thread. A driver (the
//! pager's threads, the lab's events) asks for the next step, carries it out and reports the
//! result.
//!
//! * [`wake_requests`]: requests for kswapd, and the trouble flags of a node.
//! * [`kswapd`]: the loop of the background reclaimer, [`balance`] one run of it.
//!
//! [`Node`] describes the memory. There is one predicate for "in balance". Wakers, runs and sleep
//! all use it.

pub mod balance;
pub mod kswapd;
#[cfg(all(test, loom))]
mod models;
pub mod wake_requests;

pub use balance::{Pass, Passed};
pub use kswapd::{Kswapd, KswapdStats, Step};
pub use wake_requests::{Flags, RequestResult, WakeRequests};

use crate::order::{MAX_ORDER, Order};
use crate::tunables::{FlagClear, IdleIndex, SleepCheck, Tunables};

/// Number of runs without progress after which a node counts as hopeless. Then kswapd leaves it to
/// direct reclaim.
pub const FAILURES_MAX: u32 = 16;
/// Length of kswapd's first, short sleep, in milliseconds.
pub const NAP_MS: u64 = 100;
/// Largest number of kinds of zone in a node.
pub const CLASSES_MAX: usize = 6;

/// A node's memory, as reclaim control sees it. Classes are indices of the kinds of zone, lowest
/// first. By default a node has no boosts and no counters of its own.
pub trait Node {
    /// Returns the number of kinds of zone.
    fn classes(&self) -> usize;

    /// Returns whether some zone up to class `highest` passes its high watermark, boost included,
    /// for a block of `order`. Returns true also if there is no such zone. The check is strict, and
    /// exact near the watermarks.
    fn balanced(&self, order: Order, highest: usize) -> bool;

    /// Returns whether there is a zone up to class `highest` at all. Only the first node of a
    /// machine has the low zones.
    fn has_zone(&self, highest: usize) -> bool {
        let _ = highest;
        true
    }

    /// Returns whether every zone up to class `highest` passes its high watermark.
    fn all_balanced(&self, order: Order, highest: usize) -> bool;

    /// Returns the number of pages that one pass should scan or free. In Linux: the sum of the high
    /// watermarks of the zones up to `highest`, at least 32 for each.
    fn target(&self, highest: usize) -> u64;

    /// Returns the boost of the watermarks of each class up to `highest`.
    fn boosts(&self, highest: usize) -> [u64; CLASSES_MAX] {
        let _ = highest;
        [0; CLASSES_MAX]
    }

    /// Lowers the watermarks by the boosts for which a run has worked.
    fn work_off(&self, boosts: &[u64; CLASSES_MAX]) {
        let _ = boosts;
    }

    /// Records whether zones up to `highest` are being reclaimed.
    fn set_active(&self, highest: usize, active: bool) {
        let _ = (highest, active);
    }

    /// Makes the counters tighter while kswapd is awake.
    fn set_awake(&self, awake: bool) {
        let _ = awake;
    }

    /// Returns whether more pages are free than half of the min watermarks. Then allocating tasks
    /// may reclaim instead of waiting for kswapd.
    fn reserve_left(&self) -> bool;
}

/// The steps of kswapd's history, each a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// Zone by which kswapd judges if no task asked.
    pub idle: IdleIndex,
    /// Which zones have to be in balance before kswapd sleeps.
    pub sleep: SleepCheck,
    /// When flags are cleared.
    pub clear: FlagClear,
    /// Whether a run that freed nothing is repeated without preferring files.
    pub trim_again: bool,
}

impl Policy {
    /// Returns the policy that the switches select.
    #[must_use]
    pub fn of(tun: &Tunables) -> Self {
        Self {
            idle: tun.kswapd.idle_index,
            sleep: tun.kswapd.balanced,
            clear: tun.kswapd.clear,
            trim_again: tun.kswapd.trim_again,
        }
    }
}

/// Returns the order with the number `order`, at most the allocator's largest.
fn order_of(order: u8) -> Order {
    Order::new(order.min(MAX_ORDER)).unwrap_or(Order::ZERO)
}
