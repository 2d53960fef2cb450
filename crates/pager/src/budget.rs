//! The budget of a run as a node of memory: what core's reclaim control (`core::reclaim`) asks about it.
//!
//! One zone, pages of one size, no boosts. Lock order: takes `Pager::resident`; the desk calls it with no lock
//! of its own held.

use crate::server::Pager;
use ebb_core::frame::Order;
use ebb_core::reclaim::Node;

/// The budget.
#[derive(Clone, Copy)]
pub struct Budget<'a>(pub &'a Pager);

impl Node for Budget<'_> {
    fn classes(&self) -> usize {
        1
    }

    fn balanced(&self, _: Order, _: usize) -> bool {
        self.0.resident().zone.is_balanced()
    }

    fn all_balanced(&self, order: Order, highest: usize) -> bool {
        self.balanced(order, highest)
    }

    fn target(&self, _: usize) -> u64 {
        self.0.resident().zone.watermarks().high.max(1)
    }

    fn reserve_left(&self) -> bool {
        let resident = self.0.resident();
        resident.zone.free() > resident.zone.watermarks().min / 2
    }
}
