//! The choice of the list that serves a request: own type, CMA, then other types by claiming
//! pageblocks or stealing.

use super::buddy::Buddy;
use crate::frame::kinds::{AllocFlags, MAX_ORDER, Migratetype, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES};
use crate::frame::state::{Want, ZoneState};

/// How far the search had to go. A refill remembers this, so that it does not repeat a failed
/// search for every block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Mode {
    Normal,
    Cma,
    Claim,
    Steal,
}

/// Whether one block of `order` may change the type of a whole pageblock.
pub(in crate::frame) fn may_claim(order: u8, t: Migratetype, grouping: bool) -> bool {
    order >= PAGEBLOCK_ORDER / 2
        || matches!(t, Migratetype::Unmovable | Migratetype::Reclaimable)
        || !grouping
}

/// Whether enough of a pageblock is free, or compatible with the request, to change its type.
pub(in crate::frame) fn worth_claiming(
    t: Migratetype,
    block_type: Migratetype,
    free: u32,
    movable: u32,
    grouping: bool,
) -> bool {
    let alike = if t == Migratetype::Movable {
        movable
    } else if block_type == Migratetype::Movable {
        PAGEBLOCK_PAGES.saturating_sub(free + movable)
    } else {
        0
    };
    free + alike >= PAGEBLOCK_PAGES / 2 || !grouping
}

impl Buddy {
    /// Takes one block for `want`.
    pub(super) fn rmqueue(
        &mut self,
        zone: &ZoneState,
        want: &Want,
        mode: &mut Mode,
    ) -> Option<u32> {
        let (order, t) = (want.order.get(), want.migratetype);
        let cma = want.flags.has(AllocFlags::CMA);
        // Balance rule: once most free memory is CMA, use it first.
        if cma
            && self.totals.cma > self.totals.free / 2
            && let Some(pfn) = self.smallest(order, Migratetype::Cma)
        {
            return Some(pfn);
        }
        if want.flags.has(AllocFlags::HIGHATOMIC)
            && let Some(pfn) = self.smallest(order, Migratetype::HighAtomic)
        {
            return Some(pfn);
        }
        if *mode == Mode::Normal {
            if let Some(pfn) = self.smallest(order, t) {
                return Some(pfn);
            }
            *mode = Mode::Cma;
        }
        if *mode == Mode::Cma {
            if cma && let Some(pfn) = self.smallest(order, Migratetype::Cma) {
                return Some(pfn);
            }
            *mode = Mode::Claim;
        }
        if *mode == Mode::Claim {
            if let Some(pfn) = self.claim(zone, want) {
                *mode = Mode::Normal;
                return Some(pfn);
            }
            *mode = Mode::Steal;
        }
        let stolen =
            if want.flags.has(AllocFlags::NOFRAGMENT) { None } else { self.steal(order, t) };
        // A request that must not wait, or that an OOM victim makes, takes the reserve rather than
        // fails.
        stolen.or_else(|| {
            let desperate = want.flags.any(AllocFlags::OOM.with(AllocFlags::NON_BLOCK));
            if desperate { self.smallest(order, Migratetype::HighAtomic) } else { None }
        })
    }

    fn fallback_at(&self, order: u8, t: Migratetype) -> Option<(u32, Migratetype)> {
        t.fallbacks().iter().find_map(|&other| Some((self.head(order, other)?, other)))
    }

    /// Takes the largest block of another type first, and retypes its whole pageblock if it can.
    fn claim(&mut self, zone: &ZoneState, want: &Want) -> Option<u32> {
        let (order, t) = (want.order.get(), want.migratetype);
        let whole_only = want.flags.has(AllocFlags::NOFRAGMENT);
        let least = if whole_only { order.max(PAGEBLOCK_ORDER) } else { order };
        for from in (least..=MAX_ORDER).rev() {
            if !may_claim(from, t, zone.grouping) {
                return None;
            }
            let Some((pfn, other)) = self.fallback_at(from, t) else { continue };
            if from >= PAGEBLOCK_ORDER {
                self.remove(pfn, from, other);
                for block in (pfn..pfn + (1 << from)).step_by(PAGEBLOCK_PAGES as usize) {
                    zone.blocks.set_type(block, t);
                }
                self.split(pfn, from, order, t);
                return Some(pfn);
            }
            zone.boost(want.flags);
            let block = pfn & !(PAGEBLOCK_PAGES - 1);
            let (free, movable) = self.census(zone, block);
            if worth_claiming(t, other, free, movable, zone.grouping) {
                self.set_migratetype(zone, block, t);
                return self.smallest(order, t);
            }
        }
        None
    }

    /// Takes the smallest fitting block of another type. The pageblock keeps its type.
    fn steal(&mut self, order: u8, t: Migratetype) -> Option<u32> {
        for from in order..=MAX_ORDER {
            if let Some((pfn, other)) = self.fallback_at(from, t) {
                self.remove(pfn, from, other);
                self.split(pfn, from, order, other);
                return Some(pfn);
            }
        }
        None
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use Migratetype::{Movable, Reclaimable, Unmovable};

    #[test]
    fn half_of_a_pageblock_must_be_free_or_alike() {
        let worth = |t, from, free, movable| worth_claiming(t, from, free, movable, true);
        // For a movable request, movable frames count as alike.
        assert!(worth(Movable, Unmovable, 100, 156) && !worth(Movable, Unmovable, 100, 155));
        // For any other request, in a movable block, frames that are neither free nor movable count
        // as alike.
        assert!(worth(Unmovable, Movable, 100, 256) && !worth(Unmovable, Movable, 100, 257));
        // Between the other two types no frame is alike.
        assert!(worth(Reclaimable, Unmovable, 256, 0) && !worth(Reclaimable, Unmovable, 255, 255));
        assert!(worth_claiming(Reclaimable, Unmovable, 0, 0, false), "without grouping always");
    }

    #[test]
    fn a_movable_request_claims_no_small_block() {
        assert!(may_claim(4, Movable, true) && !may_claim(3, Movable, true));
        assert!(may_claim(0, Unmovable, true) && may_claim(0, Reclaimable, true));
        assert!(may_claim(0, Movable, false), "without grouping always");
    }
}
