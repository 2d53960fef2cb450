//! One run of kswapd: passes of growing pressure until memory is in balance.
//!
//! A run aims at one order and one highest zone. It ends when some zone up to that one passes its
//! high watermark, or at the highest pressure. Boosted watermarks are worked off first and gently:
//! nothing is written or swapped for them.

use super::wake_requests::{Flags, WakeRequests};
use super::{CLASSES_MAX, Node, Policy};
use crate::lru::scan::DEF_PRIORITY;
use crate::lru::{ReclaimStat, Reclaimer, Scan};
use crate::order::Order;

/// Priority at which a run for a boost stops raising the pressure. Below it the run may write.
const GENTLE_PRIORITY: u8 = DEF_PRIORITY - 2;

/// One pass over the node's lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    /// Scan priority: lists are scanned by `size >> priority`.
    pub priority: u8,
    /// Number of pages to scan or free.
    pub target: u64,
    /// Order for which the run works.
    pub order: Order,
    /// Highest zone whose pages help.
    pub highest: usize,
    /// Whether dirty pages may be written.
    pub may_write: bool,
    /// Whether anonymous pages may be stored.
    pub may_swap: bool,
    /// Switches off the preference for file pages that holds when there are many inactive ones.
    pub cache_trim_off: bool,
    /// The node's dirty flag: see [`Flags`].
    pub node_dirty: bool,
    /// The node's writeback flag: see [`Flags`].
    pub node_writeback: bool,
}

impl Pass {
    /// Returns the pass as a request to the lists.
    #[must_use]
    pub fn scan(&self, swappiness: u32) -> Scan {
        let mut sc = Scan::new(Reclaimer::Kswapd, true, self.target, swappiness);
        sc.priority = self.priority;
        sc.order = self.order.get();
        sc.zone = self.highest;
        sc.may_write = self.may_write;
        sc.may_swap = self.may_swap;
        sc.cache_trim_off = self.cache_trim_off;
        sc.node_dirty = self.node_dirty;
        sc.node_writeback = self.node_writeback;
        sc
    }
}

/// Result of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Passed {
    /// Number of pages scanned.
    pub scanned: u64,
    /// Number of pages freed.
    pub reclaimed: u64,
    /// Writes are under way whose end will free pages, so a pass that freed nothing is no failure.
    pub writing: bool,
    /// Dirty and written pages met, for classic lists that do not note it batch by batch. Multi-gen
    /// lists report nothing to the node.
    pub met: Option<ReclaimStat>,
}

/// A run under way.
#[derive(Clone, Debug)]
pub(super) struct Balance {
    order: Order,
    highest: usize,
    priority: u8,
    boosts: [u64; CLASSES_MAX],
    boost_left: u64,
    boosted: bool,
    target: u64,
    reclaimed: u64,
    wrote: bool,
    cache_trim_off: bool,
    passes: u64,
    met: bool,
    ended: bool,
}

impl Balance {
    pub fn begin(node: &dyn Node, order: Order, highest: usize) -> Self {
        let boosts = node.boosts(highest);
        let boost_left: u64 = boosts.iter().sum();
        node.set_active(highest, true);
        Self {
            order,
            highest,
            priority: DEF_PRIORITY,
            boosts,
            boost_left,
            boosted: boost_left > 0,
            target: node.target(highest),
            reclaimed: 0,
            wrote: false,
            cache_trim_off: false,
            passes: 0,
            met: false,
            ended: false,
        }
    }

    pub fn passes(&self) -> u64 {
        self.passes
    }

    /// Returns whether some zone needs room.
    pub fn wants(&self) -> bool {
        self.target > 0
    }

    /// Returns the next pass, or `None` when the run is over.
    pub fn next(
        &mut self,
        wake_requests: &WakeRequests,
        node: &dyn Node,
        policy: Policy,
    ) -> Option<Pass> {
        if self.ended {
            return None;
        }
        if self.priority == 0 {
            // The run freed nothing with files preferred, so it tries once more without that
            // preference.
            if self.reclaimed > 0 || self.wrote || self.cache_trim_off || !policy.trim_again {
                return None;
            }
            self.cache_trim_off = true;
            self.priority = DEF_PRIORITY;
        }
        let balanced = wake_requests.balanced(node, policy, self.order, self.highest);
        if !balanced && self.boost_left > 0 {
            // Free memory itself is short, not just the order, so the boost can wait.
            self.boost_left = 0;
            self.priority = DEF_PRIORITY;
        }
        if balanced && self.boost_left == 0 {
            self.met = true;
            return None;
        }
        self.passes += 1;
        let gentle = self.boost_left > 0;
        Some(Pass {
            priority: self.priority,
            target: self.target,
            order: self.order,
            highest: self.highest,
            may_write: !gentle || self.priority < GENTLE_PRIORITY,
            may_swap: !gentle,
            cache_trim_off: self.cache_trim_off,
            node_dirty: wake_requests.has_flag(Flags::DIRTY),
            node_writeback: wake_requests.has_flag(Flags::WRITEBACK),
        })
    }

    pub fn passed(&mut self, wake_requests: &WakeRequests, p: &Passed) {
        self.reclaimed += p.reclaimed;
        self.wrote |= p.writing;
        if p.reclaimed > 0 {
            wake_requests.progress();
        }
        if self.order > Order::ZERO && self.reclaimed >= 2 << self.order.get() {
            // Enough pages for compaction to work with.
            self.order = Order::ZERO;
        }
        let gentle = self.boost_left > 0;
        let mut raise = p.scanned.max(p.reclaimed) < self.target;
        if gentle && self.priority == GENTLE_PRIORITY {
            raise = false;
        }
        if gentle {
            self.boost_left = self.boost_left.saturating_sub(p.reclaimed);
            self.ended |= p.reclaimed == 0;
        }
        if raise || p.reclaimed == 0 {
            self.priority -= 1;
        }
    }

    /// Ends the run. Returns the order for which it worked at the end.
    pub fn end(&self, wake_requests: &WakeRequests, node: &dyn Node) -> Order {
        if !self.met && self.reclaimed == 0 && !self.wrote {
            wake_requests.failed();
        }
        node.set_active(self.highest, false);
        if self.boosted {
            node.work_off(&self.boosts);
        }
        self.order
    }
}
