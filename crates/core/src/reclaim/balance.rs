//! One run of kswapd: passes of growing pressure until memory is in balance.
//!
//! A run aims at one order and one highest zone. It ends when some zone up to that passes its high
//! mark, or when the pressure has grown to the utmost. Boosted marks are worked off first, gently:
//! nothing is written or swapped for them.

use super::desk::{Desk, Flags};
use super::{CLASSES_MAX, Node, Policy};
use crate::frame::Order;
use crate::lru::scan::DEF_PRIORITY;
use crate::lru::{Met, Scan, Who};

/// Below this priority a run for a boost may write after all, and at it stops growing.
const GENTLE_PRIORITY: u8 = DEF_PRIORITY - 2;

/// One pass over the node's lists.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Pass {
    /// Lists are scanned by `size >> priority`.
    pub priority: u8,
    /// Pages to look at or free.
    pub target: u64,
    /// The order worked for.
    pub order: Order,
    /// The highest zone that helps.
    pub highest: usize,
    /// Dirty pages may be written.
    pub may_write: bool,
    /// Anonymous pages may be stored.
    pub may_swap: bool,
    /// Files are not preferred merely because there are many cold ones.
    pub cache_trim_off: bool,
    /// What is known of the node: see [`Flags`].
    pub node_dirty: bool,
    /// See [`Flags`].
    pub node_writeback: bool,
}

impl Pass {
    /// As a request to the lists.
    #[must_use]
    pub fn scan(&self, swappiness: u32) -> Scan {
        let mut sc = Scan::new(Who::Kswapd, true, self.target, swappiness);
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

/// What came of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Passed {
    /// Pages looked at.
    pub scanned: u64,
    /// Pages freed.
    pub reclaimed: u64,
    /// Writes are under way whose end will free pages: nothing freed is no failure.
    pub writing: bool,
    /// What was met, where the lists are classic and it was not noted batch by batch; multi-gen lists tell the node
    /// nothing.
    pub met: Option<Met>,
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

    /// Whether there are zones that it makes room in.
    pub fn wants(&self) -> bool {
        self.target > 0
    }

    /// The next pass, or none when the run is over.
    pub fn next(&mut self, desk: &Desk, node: &dyn Node, policy: Policy) -> Option<Pass> {
        if self.ended {
            return None;
        }
        if self.priority == 0 {
            // All for nothing with files preferred: once more without that preference.
            if self.reclaimed > 0 || self.wrote || self.cache_trim_off || !policy.trim_again {
                return None;
            }
            self.cache_trim_off = true;
            self.priority = DEF_PRIORITY;
        }
        let balanced = desk.balanced(node, policy, self.order, self.highest);
        if !balanced && self.boost_left > 0 {
            // Short of memory and not just of order: the boost can wait.
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
            node_dirty: desk.has_flag(Flags::DIRTY),
            node_writeback: desk.has_flag(Flags::WRITEBACK),
        })
    }

    pub fn passed(&mut self, desk: &Desk, p: &Passed) {
        self.reclaimed += p.reclaimed;
        self.wrote |= p.writing;
        if p.reclaimed > 0 {
            desk.progress();
        }
        if self.order > Order::ZERO && self.reclaimed >= 2 << self.order.get() {
            // Enough for compaction to work with.
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

    /// Ends the run. Returns the order it worked for in the end.
    pub fn end(&self, desk: &Desk, node: &dyn Node) -> Order {
        if !self.met && self.reclaimed == 0 && !self.wrote {
            desk.failed();
        }
        node.set_active(self.highest, false);
        if self.boosted {
            node.work_off(&self.boosts);
        }
        self.order
    }
}
