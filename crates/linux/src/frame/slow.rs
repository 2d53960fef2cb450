//! The slow path: the steps of an allocation after the fast attempt failed. Callers rely on the
//! order (`tests/frame_contract.rs`).
//!
//! 1. Flags for the min watermark: reserves by importance.
//! 2. Wake the kswapds.
//! 3. Try the free lists.
//! 4. For a costly order, or for a block above order 0 that is not movable, compact first.
//! 5. Wake the kswapds again; requests excused from watermarks ignore them. Try again.
//! 6. A request that may not reclaim fails, and so does one of a reclaiming caller.
//! 7. Direct reclaim. After progress try again; then give back a high-atomic reserve and all sets,
//!    and try once more.
//! 8. Direct compaction, for a block above order 0.
//! 9. A request that may not retry fails, and so does a costly one without `RETRY_MAYFAIL` or
//!    `NOFAIL`.
//! 10. Reclaim again if another round may help.
//! 11. Compact again if that may help.
//! 12. Decide about an OOM kill.

use super::alloc::{Attempt, Compaction, Host, Request};
use super::counter::ZoneItem;
use super::frames::Frames;
use super::kinds::{AllocFlags, COSTLY_ORDER, Gfp, Migratetype, Order, ZoneKind};
use super::watermark::Level;
use ebb_mm::types::Pfn;

/// Rounds of reclaim without progress before killing is considered.
pub const RECLAIM_RETRIES_MAX: u32 = 16;
/// Pages that direct reclaim is asked to free.
pub const SWAP_CLUSTER: u64 = 32;

enum OomVerdict {
    Got(Pfn),
    Retry,
    Fail,
}

impl Frames {
    pub(super) fn alloc_slow(&self, fast: Attempt<'_>, host: &dyn Host) -> Option<Pfn> {
        // Dirty limits spread pages over nodes. They are no reason to reclaim or to fail.
        let request = Request { gfp: fast.request.gfp.without(Gfp::WRITE), ..*fast.request };
        let request = &request;
        let mut attempt = Attempt { request, level: Level::Min, flags: min_flags(request), ..fast };
        self.wake_kswapds(&attempt, host);
        if let Some(pfn) = self.try_freelists(&attempt, host) {
            return Some(pfn);
        }
        let order = request.order.get();
        let costly = order > COSTLY_ORDER;
        let mixes = order > 0 && request.gfp.migratetype() != Migratetype::Movable;
        if request.can_reclaim() && (costly || mixes) && !excused(request) {
            let done = host.compact(request, attempt.highest, false);
            if let Some(pfn) = self.try_freelists(&attempt, host) {
                return Some(pfn);
            }
            let gives_up = costly && request.gfp.has(Gfp::NORETRY);
            if gives_up && done == Compaction::Skipped {
                return self.nofail(&attempt, host);
            }
        }
        let mut without_progress = 0;
        loop {
            self.wake_kswapds(&attempt, host);
            if let Some(reserve) = excuse_flags(request) {
                let keep = attempt.flags.has(AllocFlags::KSWAPD);
                let cma = request.gfp.migratetype() == Migratetype::Movable;
                attempt.flags =
                    reserve.with_if(AllocFlags::KSWAPD, keep).with_if(AllocFlags::CMA, cma);
            }
            if let Some(pfn) = self.try_freelists(&attempt, host) {
                return Some(pfn);
            }
            if !request.can_reclaim() {
                return None;
            }
            if request.reclaiming {
                return self.nofail(&attempt, host);
            }
            match self.round(&attempt, host, &mut without_progress) {
                OomVerdict::Got(pfn) => return Some(pfn),
                OomVerdict::Retry => {}
                OomVerdict::Fail => match self.nofail(&attempt, host) {
                    Some(pfn) => return Some(pfn),
                    None => return None,
                },
            }
        }
    }

    /// Does steps 7 to 12.
    fn round(&self, attempt: &Attempt<'_>, host: &dyn Host, without: &mut u32) -> OomVerdict {
        let request = attempt.request;
        let progress = host.reclaim(request, attempt.highest, SWAP_CLUSTER);
        if progress > 0
            && let Some(pfn) = self.after_reclaim(attempt, host)
        {
            return OomVerdict::Got(pfn);
        }
        if request.order.get() > 0 {
            host.compact(request, attempt.highest, true);
            if let Some(pfn) = self.try_freelists(attempt, host) {
                return OomVerdict::Got(pfn);
            }
        }
        let costly = request.order.get() > COSTLY_ORDER;
        let patient = request.gfp.has(Gfp::RETRY_MAYFAIL) || request.gfp.has(Gfp::NOFAIL);
        if request.gfp.has(Gfp::NORETRY) || (costly && !patient) {
            return OomVerdict::Fail;
        }
        if self.reclaim_again(attempt, host, progress > 0, without)
            || (progress > 0 && request.order.get() > 0 && host.compact_again(request))
        {
            return OomVerdict::Retry;
        }
        let verdict = self.decide_oom(attempt, host);
        if matches!(verdict, OomVerdict::Retry) {
            *without = 0;
        }
        verdict
    }

    /// Tries after progress. If that fails, gives back the last reserves and all sets and tries
    /// once more.
    fn after_reclaim(&self, attempt: &Attempt<'_>, host: &dyn Host) -> Option<Pfn> {
        self.try_freelists(attempt, host).or_else(|| {
            let to = attempt.request.gfp.migratetype();
            self.unreserve_highatomic(attempt.node, attempt.highest, to, false);
            self.drain_all();
            self.try_freelists(attempt, host)
        })
    }

    fn reclaim_again(
        &self,
        attempt: &Attempt<'_>,
        host: &dyn Host,
        progress: bool,
        without: &mut u32,
    ) -> bool {
        let order = attempt.request.order;
        *without = if progress && order.get() <= COSTLY_ORDER { 0 } else { *without + 1 };
        let hopeful = *without <= RECLAIM_RETRIES_MAX
            && self.zonelists[attempt.node][attempt.highest].iter().any(|&z| {
                let zone = &self.zones[z];
                let free = zone.state.counters.snapshot(ZoneItem::FreePages);
                let could_be = free + host.reclaimable(z);
                let mark = zone.state.effective_mark(Level::Min);
                zone.watermark_ok_with(order, mark, attempt.highest, attempt.flags, could_be)
            });
        // The high-atomic reserve is released before the allocator would kill a process.
        let to = attempt.request.gfp.migratetype();
        hopeful || self.unreserve_highatomic(attempt.node, attempt.highest, to, true)
    }

    fn decide_oom(&self, attempt: &Attempt<'_>, host: &dyn Host) -> OomVerdict {
        let request = attempt.request;
        if !host.oom_begin() {
            host.sleep_tick();
            return OomVerdict::Retry;
        }
        let last = Attempt { level: Level::High, flags: AllocFlags::NONE, ..*attempt };
        let verdict = if let Some(pfn) = self.try_freelists(&last, host) {
            OomVerdict::Got(pfn)
        } else if self.never_kills(attempt) || !host.oom_kill(request, attempt.highest) {
            OomVerdict::Fail
        } else {
            OomVerdict::Retry
        };
        host.oom_end();
        verdict
    }

    /// Whether no process is killed for this request.
    fn never_kills(&self, attempt: &Attempt<'_>) -> bool {
        let request = attempt.request;
        let low = self.kinds.get(attempt.highest).is_some_and(|&kind| kind < ZoneKind::Normal);
        request.order.get() > COSTLY_ORDER
            || request.gfp.has(Gfp::RETRY_MAYFAIL)
            || request.gfp.has(Gfp::THISNODE)
            || low
    }

    /// Tries for ever if the request must not fail, down to half of the min watermark.
    fn nofail(&self, attempt: &Attempt<'_>, host: &dyn Host) -> Option<Pfn> {
        let request = attempt.request;
        if !request.gfp.has(Gfp::NOFAIL) || !request.can_reclaim() {
            return None;
        }
        let last = Attempt { flags: attempt.flags.with(AllocFlags::MIN_RESERVE), ..*attempt };
        loop {
            if let Some(pfn) = self.try_freelists(&last, host) {
                return Some(pfn);
            }
            host.sleep_tick();
            host.reclaim(request, attempt.highest, SWAP_CLUSTER);
        }
    }

    fn wake_kswapds(&self, attempt: &Attempt<'_>, host: &dyn Host) {
        if !attempt.flags.has(AllocFlags::KSWAPD) {
            return;
        }
        let mut last = None;
        for &z in &self.zonelists[attempt.node][attempt.highest] {
            let node = self.zones[z].state.node;
            if last != Some(node) {
                host.wake_kswapd(node, attempt.request.order, attempt.highest);
            }
            last = Some(node);
        }
    }

    /// Whether memory up to class `highest` of `node` is in balance for blocks of `order`. Memory
    /// is in balance if some zone passes its high watermark (promo where memory has tiers), boost
    /// included. A node without such zones is in balance.
    #[must_use]
    pub fn balanced(&self, node: usize, order: Order, highest: usize, tiers: bool) -> bool {
        let level = if tiers { Level::Promo } else { Level::High };
        let mut zones = self
            .zones
            .iter()
            .filter(|z| z.state.node == node && z.state.class <= highest && z.state.managed > 0)
            .peekable();
        zones.peek().is_none()
            || zones.any(|zone| {
                let free = zone.state.free_pages_safe();
                let mark = zone.state.effective_mark(level);
                zone.watermark_ok_with(order, mark, highest, AllocFlags::NONE, free)
            })
    }
}

/// Returns the flags of step 1.
fn min_flags(request: &Request) -> AllocFlags {
    let gfp = request.gfp;
    let blocking = request.can_reclaim();
    let high = gfp.has(Gfp::HIGH);
    let mut flags = AllocFlags::NONE
        .with_if(AllocFlags::MIN_RESERVE, high)
        .with_if(AllocFlags::KSWAPD, gfp.has(Gfp::KSWAPD))
        .with_if(AllocFlags::CMA, gfp.migratetype() == Migratetype::Movable);
    if !blocking && !gfp.has(Gfp::NOMEMALLOC) {
        flags = flags
            .with(AllocFlags::NON_BLOCK)
            .with_if(AllocFlags::HIGHATOMIC, request.order > Order::ZERO && high);
    }
    flags
}

/// Returns the flags of a request that frees memory or is about to do so, or None for others.
fn excuse_flags(request: &Request) -> Option<AllocFlags> {
    if request.gfp.has(Gfp::NOMEMALLOC) {
        None
    } else if request.gfp.has(Gfp::MEMALLOC) || request.reclaiming {
        Some(AllocFlags::NO_WATERMARKS)
    } else if request.oom_victim {
        Some(AllocFlags::OOM)
    } else {
        None
    }
}

fn excused(request: &Request) -> bool {
    excuse_flags(request) == Some(AllocFlags::NO_WATERMARKS)
}
