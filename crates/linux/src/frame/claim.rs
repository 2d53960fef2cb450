//! The claim on one CPU's sets, and the two fast paths (allocation and free).
//!
//! A claim keeps all data that a hit needs: the set and flags of the zone that ordinary requests
//! try first, and the pageblock map. So every address on the path depends on the claim alone. A
//! free needs the zone and type of its frame. It assumes those of the last refill and checks them
//! by one comparison. The processor predicts that branch, so the loads behind it do not wait. The
//! cost of both paths is their instructions. A test that a refill or the claim can make once is not
//! repeated here.

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
use ebb_mm::types::Pfn;

/// The claim on one CPU's sets. It can move between threads, but only one thread at a time can use
/// it.
#[derive(Debug)]
pub struct Cpu<'a> {
    gate: &'a Gate,
    /// The set of the zone that ordinary requests try first.
    main: &'a Pcp,
    /// The words of the pageblock map.
    blocks: &'a [AtomicU16],
    frames: &'a Frames,
    cpu: u32,
    /// A bit for each kind of zone whose requests try the main zone first.
    kinds: u8,
    not_sync: PhantomData<Cell<()>>,
}

impl Frames {
    /// Claims the sets of `cpu`. `None` if another claim on them exists.
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
    /// Allocates one block if the sets have it and memory is plentiful.
    #[inline(always)]
    #[must_use]
    pub fn hit(&self, gfp: Gfp, order: Order) -> Option<Pfn> {
        let list = list_index(order, gfp.migratetype().pcp_list()?);
        // By definition, requests for movable memory go to the main zone.
        let routed =
            gfp.zone_kind() == ZoneKind::Movable || self.kinds >> (gfp.zone_kind() as u8) & 1 != 0;
        if !routed || gfp.has(Gfp::WRITE) || !self.gate.enter() {
            return None;
        }
        let pfn = self.main.lists[list].pop();
        self.gate.leave();
        pfn.map(Pfn)
    }

    /// Allocates one block for `request`; see [`Frames::alloc_on`].
    #[inline(always)]
    pub fn alloc(&self, request: &Request, host: &dyn Host) -> Option<Pfn> {
        match self.hit(request.gfp, request.order) {
            Some(pfn) => Some(pfn),
            None => self.missed(*request, host),
        }
    }

    /// Allocates after a miss. `request` comes by value, so that on a hit the request never needs
    /// an address.
    #[cold]
    #[inline(never)]
    fn missed(&self, request: Request, host: &dyn Host) -> Option<Pfn> {
        self.frames
            .hit_heavy(self.number(), request.gfp, request.order)
            .or_else(|| self.frames.miss(self.who(), request, host))
    }

    /// Frees a block. A refused free changes nothing.
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
        self.frames.free_after_miss(self.who(), pfn, order)
    }

    #[inline(always)]
    fn who(&self) -> Who {
        Who { cpu: self.cpu as usize, owner: true }
    }

    /// Returns the CPU's number.
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
    /// Returns the zone that ordinary requests of this CPU try first, if hits are possible.
    pub(super) fn main_route(&self) -> Option<usize> {
        let route = self.routes[ZoneKind::Movable as usize];
        (route != NO_ROUTE).then_some(usize::from(route))
    }
}
