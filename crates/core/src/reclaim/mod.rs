//! Who reclaims, when they sleep, who waits and for what.
//!
//! Everything here is a decision, never an act: nothing sleeps, nothing knows the time by itself,
//! no thread is made. A driver (the pager's threads, the lab's events) asks for the next step,
//! carries it out and says what came of it.
//!
//! * [`desk`]: where requests for kswapd are left, and what is known of a node's trouble.
//! * [`kswapd`]: the loop of the background reclaimer, [`balance`] one run of it.
//! * [`direct`]: a task's own reclaim; [`throttle`]: its waits; [`reserve`]: when it may not even
//!   reclaim; [`oom`]: when it gives up.
//! * [`slab`]: how much of the caches beside the page lists goes with a pass.
//!
//! What memory looks like comes through [`Node`]; there is one predicate for "in balance", and
//! wakers, runs and sleep all use it.

pub mod balance;
pub mod desk;
pub mod direct;
pub mod kswapd;
#[cfg(all(test, loom))]
mod models;
pub mod oom;
pub mod proactive;
pub mod reserve;
#[cfg(all(test, not(loom)))]
mod scenarios;
pub mod slab;
pub mod throttle;

pub use balance::{Pass, Passed};
pub use desk::{Asked, Desk, Flags};
pub use direct::{Direct, DirectPass, DirectPassed};
pub use kswapd::{Kswapd, KswapdStats, Step};
pub use oom::{Achieved, Hope, Verdict};
pub use proactive::Proactive;
pub use slab::{Shrinker, SlabPass};
pub use throttle::{Outlook, Reason, Throttle};

use crate::frame::watermark::Level;
use crate::frame::{AllocFlags, Frames, MAX_ORDER, Order, ZoneItem};
use crate::tunables::{FlagClear, IdleIndex, SleepCheck, Tunables};

/// Runs without any progress after which a node counts as hopeless: kswapd leaves it to those who
/// allocate.
pub const FAILURES_MAX: u32 = 16;
/// kswapd's first, short sleep.
pub const NAP_MS: u64 = 100;
/// Kinds of zone a node can have.
pub const CLASSES_MAX: usize = 6;
/// The least a zone contributes to a run's target.
const ZONE_TARGET_MIN: u64 = 32;

/// A node's memory, as reclaim control sees it. Classes are positions among the kinds of zone,
/// lowest first. What only some nodes have (boosts, counters of their own) is nothing by default.
pub trait Node {
    /// Kinds of zone.
    fn classes(&self) -> usize;

    /// Whether some zone up to class `highest` passes its high mark, boost included, for a block of
    /// `order`; also when there is no such zone. Strict, and exact near the marks.
    fn balanced(&self, order: Order, highest: usize) -> bool;

    /// Whether there is a zone up to class `highest` at all. The low zones of a machine are those of
    /// its first node.
    fn has_zone(&self, highest: usize) -> bool {
        let _ = highest;
        true
    }

    /// The same asked of every zone up to `highest`.
    fn all_balanced(&self, order: Order, highest: usize) -> bool;

    /// Pages one pass should look at or free: the high marks of the zones up to `highest`, at least
    /// 32 each.
    fn target(&self, highest: usize) -> u64;

    /// What the marks of each class up to `highest` are raised by.
    fn boosts(&self, highest: usize) -> [u64; CLASSES_MAX] {
        let _ = highest;
        [0; CLASSES_MAX]
    }

    /// Takes back the boosts that a run has worked for.
    fn work_off(&self, boosts: &[u64; CLASSES_MAX]) {
        let _ = boosts;
    }

    /// Says whether zones up to `highest` are being reclaimed.
    fn set_active(&self, highest: usize, active: bool) {
        let _ = (highest, active);
    }

    /// Tighter counters while kswapd is awake.
    fn set_awake(&self, awake: bool) {
        let _ = awake;
    }

    /// Whether more than half of the reserve below the low marks is left, so that those who
    /// allocate may reclaim instead of waiting for kswapd.
    fn reserve_left(&self) -> bool;
}

/// One node of the frame allocator.
#[derive(Clone, Copy, Debug)]
pub struct FramesNode<'a> {
    /// The allocator.
    pub frames: &'a Frames,
    /// Which node.
    pub node: usize,
}

impl FramesNode<'_> {
    fn zones(&self, highest: usize) -> impl Iterator<Item = &crate::frame::Zone> {
        let node = self.node;
        self.frames.zones().iter().filter(move |z| {
            let s = z.state();
            s.node() == node && s.class() <= highest && s.managed() > 0
        })
    }
}

impl Node for FramesNode<'_> {
    fn classes(&self) -> usize {
        self.zones(usize::MAX).map(|z| z.state().class() + 1).max().unwrap_or(1)
    }

    fn balanced(&self, order: Order, highest: usize) -> bool {
        self.frames.balanced(self.node, order, highest, false)
    }

    fn has_zone(&self, highest: usize) -> bool {
        self.zones(highest).next().is_some()
    }

    fn all_balanced(&self, order: Order, highest: usize) -> bool {
        self.zones(highest).all(|zone| {
            let (free, mark) =
                (zone.state().free_pages_safe(), zone.state().effective_mark(Level::High));
            zone.watermark_ok_with(order, mark, highest, AllocFlags::NONE, free)
        })
    }

    fn target(&self, highest: usize) -> u64 {
        self.zones(highest).map(|z| z.state().marks().high.max(ZONE_TARGET_MIN)).sum()
    }

    fn boosts(&self, highest: usize) -> [u64; CLASSES_MAX] {
        let mut boosts = [0; CLASSES_MAX];
        for zone in self.zones(highest) {
            boosts[zone.state().class()] = zone.state().boost_pages();
        }
        boosts
    }

    fn work_off(&self, boosts: &[u64; CLASSES_MAX]) {
        for zone in self.zones(usize::MAX) {
            let pages = boosts[zone.state().class()];
            if pages > 0 {
                zone.state().work_off_boost(pages);
            }
        }
    }

    fn set_active(&self, highest: usize, active: bool) {
        self.frames.set_reclaim_active(self.node, highest, active);
    }

    fn set_awake(&self, awake: bool) {
        self.frames.set_counter_pressure(self.node, awake);
    }

    fn reserve_left(&self) -> bool {
        let (mut free, mut reserve) = (0, 0);
        for zone in self.zones(usize::MAX) {
            reserve += zone.state().marks().min;
            free += zone.state().counters().snapshot(ZoneItem::FreePages);
        }
        reserve == 0 || free > reserve / 2
    }
}

/// The steps of kswapd's history, each a switch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Policy {
    /// The zone judged by when nobody asked.
    pub idle: IdleIndex,
    /// Which zones have to be in balance before it sleeps.
    pub sleep: SleepCheck,
    /// When flags are cleared.
    pub clear: FlagClear,
    /// Whether a run for nothing is repeated without preferring files.
    pub trim_again: bool,
}

impl Policy {
    /// As the switches say.
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

/// The larger of two orders as kept in requests; beyond the allocator's largest there is none.
fn order_of(order: u8) -> Order {
    Order::new(order.min(MAX_ORDER)).unwrap_or(Order::ZERO)
}
