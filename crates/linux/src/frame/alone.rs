//! The entry points for a caller that has the allocator to itself: single movable frames of the
//! first zone.
//!
//! `&mut` guarantees that no other caller is inside, so a hit takes no lock and no fence. No
//! watermark is tested. Such a caller keeps a budget of its own and tests it against the zone's
//! watermarks first. An allocation fails only when no frame is left.

use super::checks::BadFree;
use super::frames::{Frames, Who};
use super::kinds::{AllocFlags, Migratetype, Order};
use super::state::Want;
use ebb_mm::types::Pfn;

/// The sets of only one CPU keep frames, because there is one caller.
const CPU: usize = 0;
const ZONE: usize = 0;

impl Frames {
    /// Allocates a frame, whatever the watermarks say.
    #[inline]
    pub fn alloc_alone(&mut self) -> Option<Pfn> {
        if self.plain
            && let Some(list) = Migratetype::Movable.pcp_list()
            && let Some(pfn) = self.cpus[CPU].sets[ZONE].lists[list].pop()
        {
            return Some(Pfn(pfn));
        }
        self.refill_alone()
    }

    #[cold]
    fn refill_alone(&mut self) -> Option<Pfn> {
        let want = Want {
            order: Order::ZERO,
            migratetype: Migratetype::Movable,
            flags: AllocFlags::CMA,
            cpu: CPU,
        };
        self.rmqueue(Who { cpu: CPU, owner: false }, &self.zones[ZONE], &want)
    }

    /// Frees a frame. A refused free changes nothing.
    #[inline]
    pub fn free_alone(&mut self, pfn: Pfn) -> Result<(), BadFree> {
        let info = self.blocks.get(pfn);
        let set = &self.cpus[CPU].sets[ZONE];
        if self.plain
            && info.zone_or_beyond() == ZONE
            && info.list() < 3
            && set.pushes_freely()
            && set.lists[info.list()].push(pfn.0)
        {
            return Ok(());
        }
        self.free_on(CPU, pfn, Order::ZERO)
    }

    /// Returns the number of frames that callers hold: neither in a store nor in a set.
    #[must_use]
    pub fn in_hands(&self) -> u64 {
        let of = |zone: &super::frames::Zone| {
            let state = zone.state();
            let free = state.counters.snapshot(super::counter::ZoneItem::FreePages);
            state.managed - free - self.pages_in_sets(state.index)
        };
        self.zones.iter().map(of).sum()
    }
}
