//! Reclaim by the tasks themselves, and what surrounds it: waits, reserves, slab, out of memory.
//!
//! * [`direct`]: a task's own reclaim; [`throttle`]: the task's waits; [`reserve`]: when the task
//!   may not reclaim; [`oom`]: when the task gives up.
//! * [`proactive`]: reclaim that `memory.reclaim` asks for.
//! * [`slab`]: how many objects of the slab caches a pass scans.
//!
//! [`ebb_mm::reclaim`] has kswapd. [`FramesNode`] makes a node of the frame allocator known to
//! kswapd.

pub mod direct;
pub mod oom;
pub mod proactive;
pub mod reserve;
#[cfg(all(test, not(loom)))]
mod scenarios;
pub mod slab;
pub mod throttle;

pub use direct::{Direct, DirectPass, DirectPassed};
pub use oom::{OomJudge, Progress, Verdict};
pub use proactive::Proactive;
pub use slab::{Shrinker, SlabPass};
pub use throttle::{NodeState, Reason, Throttle};

use crate::frame::watermark::Level;
use crate::frame::{AllocFlags, Frames, Order, ZoneItem};
use ebb_mm::reclaim::{CLASSES_MAX, Node};

/// Smallest contribution of a zone to a run's target, in pages.
const ZONE_TARGET_MIN: u64 = 32;

/// One node of the frame allocator, as kswapd sees it.
#[derive(Clone, Copy, Debug)]
pub struct FramesNode<'a> {
    /// The allocator.
    pub frames: &'a Frames,
    /// Number of the node.
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
