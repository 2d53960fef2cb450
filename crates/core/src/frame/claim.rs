//! The claim on one CPU's sets, and the two paths that must cost next to nothing.
//!
//! A claim keeps at hand what a hit needs, so that no address on the way depends on anything but
//! the claim itself: the set and flags of the zone that ordinary requests try first, and the
//! pageblock map. What a free needs to know of its frame (zone, type) is guessed to be as in the
//! last refill and checked by one comparison, which the processor predicts; the loads behind it do
//! not wait for it. Instructions are what the two paths cost: what can be said once, by a refill or
//! at the claim, is not asked again here.

use std::cell::Cell;
use std::marker::PhantomData;

use super::alloc::{Host, Request};
use super::blocks::BlockMap;
use super::checks::BadFree;
use super::frames::{CpuSets, Frames, NO_ROUTE, Who};
use super::gate::Gate;
use super::kinds::{Gfp, Order, ZoneKind};
use super::pcp::{Pcp, list_index};
use super::sync::{AtomicU16, Relaxed};
use crate::types::Pfn;

/// The claim on one CPU's sets. It can move between threads, but only one at a time can use it.
#[derive(Debug)]
pub struct Cpu<'a> {
    gate: &'a Gate,
    /// The set of the zone that ordinary requests try first.
    main: &'a Pcp,
    /// The words of the pageblock map.
    blocks: &'a [AtomicU16],
    frames: &'a Frames,
    cpu: u32,
    /// A bit per kind of zone: requests for it try the main zone first.
    kinds: u8,
    not_sync: PhantomData<Cell<()>>,
}

impl Frames {
    /// Claims the sets of `cpu`. `None` if another claim on them is alive.
    #[must_use]
    pub fn cpu(&self, cpu: usize) -> Option<Cpu<'_>> {
        let cpu = cpu % self.cpus.len();
        let sets = &self.cpus[cpu];
        if !sets.gate.lock.claim() {
            return None;
        }
        let route = sets.main_route();
        let main = route.unwrap_or(0);
        let routed = |&kind: &usize| route == Some(usize::from(sets.routes[kind]));
        Some(Cpu {
            gate: &sets.gate,
            main: &sets.sets[main],
            blocks: self.blocks.words(),
            frames: self,
            cpu: cpu as u32,
            kinds: (0..sets.routes.len()).filter(routed).fold(0, |bits, kind| bits | 1 << kind),
            not_sync: PhantomData,
        })
    }
}

impl Cpu<'_> {
    /// One block if the sets have it and memory is plentiful.
    #[inline(always)]
    #[must_use]
    pub fn hit(&self, gfp: Gfp, order: Order) -> Option<Pfn> {
        let list = list_index(order, gfp.migratetype().pcp_list()?);
        // The main zone is by definition where requests for movable memory go.
        let routed =
            gfp.zone_kind() == ZoneKind::Movable || self.kinds >> (gfp.zone_kind() as u8) & 1 != 0;
        if !routed || gfp.has(Gfp::WRITE) || !self.gate.enter() {
            return None;
        }
        let pfn = self.main.lists[list].pop();
        self.gate.leave();
        pfn.map(Pfn)
    }

    /// One block for `request`; see [`Frames::alloc_on`].
    #[inline(always)]
    pub fn alloc(&self, request: &Request, host: &dyn Host) -> Option<Pfn> {
        match self.hit(request.gfp, request.order) {
            Some(pfn) => Some(pfn),
            None => self.missed(*request, host),
        }
    }

    /// By value, so that on a hit the request never needs an address.
    #[cold]
    #[inline(never)]
    fn missed(&self, request: Request, host: &dyn Host) -> Option<Pfn> {
        self.frames
            .hit_heavy(self.number(), request.gfp, request.order)
            .or_else(|| self.frames.miss(self.who(), request, host))
    }

    /// Gives a block back. On a refusal nothing has changed.
    #[inline(always)]
    pub fn free(&self, pfn: Pfn, order: Order) -> Result<(), BadFree> {
        if let Some(word) = self.blocks.get(BlockMap::index(pfn))
            && let Some(t) = self.gate.usual_type(word.load(Relaxed))
            && self.gate.enter()
        {
            let done = self.main.lists[list_index(order, t)].push(pfn.0);
            self.gate.leave();
            if done {
                return Ok(());
            }
        }
        self.frames.free_unusual(self.who(), pfn, order)
    }

    #[inline(always)]
    fn who(&self) -> Who {
        Who { cpu: self.cpu as usize, owner: true }
    }

    /// The CPU's number.
    #[must_use]
    pub fn number(&self) -> usize {
        self.cpu as usize
    }
}

impl Drop for Cpu<'_> {
    fn drop(&mut self) {
        self.gate.lock.unclaim();
    }
}

impl CpuSets {
    /// The zone that ordinary requests of this CPU try first, if hits are possible.
    pub(super) fn main_route(&self) -> Option<usize> {
        let route = self.routes[ZoneKind::Movable as usize];
        (route != NO_ROUTE).then_some(usize::from(route))
    }
}
