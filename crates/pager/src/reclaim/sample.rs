//! Performs the rounds of sampling: hides the visible pages of the sample from the program.
//!
//! Part of the kswapd thread; `telemetry/sampling.rs` describes the sample. The pages move to
//! standby and come back as any page does.

use super::Reclaim;
use crate::mm::Mm;
use crate::telemetry::sampling::Sampling;
use crate::wait::limits::BATCH_PATIENCE;
use ebb_agent::protocol::BATCH_MAX;
use ebb_mm::reclaim::NAP_MS;
use ebb_mm::resident::Entry;
use ebb_mm::types::{MmId, Pfn, Vpn};
use std::time::Duration;

/// Number of page table entries scanned in one hold.
const SLICE: u64 = 16 << 10;

impl Reclaim {
    /// Returns the maximum sleep of an idle kswapd.
    pub fn nap(&self) -> Duration {
        let nap = Duration::from_millis(NAP_MS);
        let sampling = self.pager.telemetry.sampling.as_ref();
        sampling.map_or(nap, |sampling| nap.min(sampling.pause(self.pager.clock.now())))
    }

    /// Performs a round if one is due.
    pub fn sample_if_due(&mut self) {
        let pager = self.pager.clone();
        let Some(sampling) = &pager.telemetry.sampling else { return };
        let began = pager.clock.now();
        if !sampling.pause(began).is_zero() {
            return;
        }
        let mut pages = 0;
        // Frames of all address spaces, one after the other.
        let mut taken = Vec::new();
        for mm in pager.mms() {
            pages += self.take_sample(&mm, sampling, &mut taken);
        }
        sampling.set_pages(pages);
        let pages: Vec<(MmId, Vpn)> = {
            let resident = pager.resident();
            let of = |&pfn: &Pfn| resident.is_used(pfn).then(|| resident.frame(pfn));
            taken.iter().filter_map(of).map(|frame| (frame.mm, frame.vpn)).collect()
        };
        sampling.hide(&pages, pager.clock.now());
        for batch in taken.chunks(BATCH_MAX) {
            self.deactivate_isolated(batch);
        }
        sampling.end_round(began, pager.clock.now());
    }

    /// Isolates the visible pages of the sample in an address space. Returns the number of pages
    /// that the address space has.
    fn take_sample(&self, mm: &Mm, sampling: &Sampling, taken: &mut Vec<Pfn>) -> u64 {
        let mut pages = 0;
        let mut next = Some(Vpn(0));
        while let Some(start) = next {
            let Some(state) = mm.lock_settled(BATCH_PATIENCE) else { break };
            if state.ended {
                break;
            }
            let mut visible: Vec<Vpn> = Vec::new();
            next = state.space.visit(start, SLICE, |vpn, entry| {
                pages += 1;
                if let Entry::Resident(_) = entry {
                    visible.push(vpn);
                }
            });
            let chosen = sampling.choose(mm.id, visible.into_iter(), self.pager.clock.now());
            let mut resident = self.pager.resident();
            for vpn in chosen {
                if let Entry::Resident(pfn) = state.space.get(vpn)
                    && resident.isolate_frame(pfn)
                {
                    taken.push(pfn);
                }
            }
        }
        pages
    }
}
