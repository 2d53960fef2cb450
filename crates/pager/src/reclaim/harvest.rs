//! Harvesting: pages that were written to lately are found in the page tables and spared from cooling.
//!
//! Part of the kswapd thread; the walk over page tables of the multi-gen LRU, as far as a process may make
//! it: the kernel tells which pages were written since it was last asked (`UFFD_FEATURE_WP_ASYNC`,
//! `PAGEMAP_SCAN`), not which were read.
//!
//! * V1: an area is scanned and what is found is looked up in one hold of the address space's lock, no batch
//!   under way: no change of the mapping can be read in between (P1), so a page found is the one we know.
//! * V2: a page found that we do not know is adopted. It was the kernel's zero page when its area came under
//!   management, and its first write asked nobody.

use super::Reclaim;
use crate::counters;
use crate::limits::{BATCH_PATIENCE, SLICE_BYTES};
use crate::mm::{Mm, State};
use crate::seam::Process;
use ebb_mm::resident::{Arrival, Entry};
use ebb_mm::types::{Pfn, Vpn};
use std::sync::Arc;

/// One harvest each time so much of what can be evicted has come up for cooling: a few in the time that a page
/// takes from the young end to the old.
const SHARE: u64 = 8;
const PAGES_MIN: u64 = 1024;

impl Reclaim {
    /// Looks for written pages, if that was asked for.
    pub fn harvest_now(&mut self) {
        if !self.pager.config.harvest {
            return;
        }
        self.harvested_at = self.scanned;
        let began = self.pager.clock.now();
        for mm in self.pager.mms() {
            self.harvest(&mm);
        }
        counters::count(&self.pager.counters.harvests);
        counters::add(
            &self.pager.counters.harvest_us,
            self.pager.clock.since(began).as_micros() as u64,
        );
    }

    /// The same if enough has happened since the last time.
    pub fn harvest_if_due(&mut self, evictable: u64) {
        if self.scanned - self.harvested_at >= (evictable / SHARE).max(PAGES_MIN) {
            self.harvest_now();
        }
    }

    fn harvest(&self, mm: &Arc<Mm>) {
        let Some(process) = mm.process() else { return };
        let areas: Vec<(u64, u64)> = mm.lock().areas.iter().collect();
        for (start, end) in areas {
            let mut at = start;
            while at < end {
                let stop = end.min(at + SLICE_BYTES);
                let Some(state) = mm.lock_quiet(BATCH_PATIENCE) else { return };
                let mut state = state.timed();
                if state.ended || !self.harvest_step(mm, &mut state, process, at, stop) {
                    return;
                }
                at = stop;
            }
        }
    }

    /// False if there is nothing to be had from this address space.
    fn harvest_step(
        &self,
        mm: &Mm,
        state: &mut State,
        process: &dyn Process,
        start: u64,
        end: u64,
    ) -> bool {
        let mut written: Vec<Pfn> = Vec::new();
        let mut pages: Vec<Vpn> = Vec::new();
        let mut unknown: Vec<Vpn> = Vec::new();
        let scanned = process.harvest_written(start, end, &mut |from, to| {
            for vpn in (Vpn::of_address(from).0..Vpn::of_address(to).0).map(Vpn) {
                match state.space.get(vpn) {
                    Entry::Resident(pfn) => {
                        written.push(pfn);
                        pages.push(vpn);
                    }
                    Entry::None => unknown.push(vpn),
                    // Placed by a load that is not entered yet.
                    Entry::Cool(_) | Entry::Stored { .. } => {}
                }
            }
        });
        if scanned.is_err() {
            return false;
        }
        if let Some(recorder) = &self.pager.recorder {
            recorder.note(mm.id, pages, true);
        }
        // Only of what is ours still.
        unknown.retain(|vpn| state.areas.end_of(vpn.address()).is_some());
        let mut resident = self.pager.resident();
        resident.accessed(&written);
        for &vpn in &unknown {
            resident.map(&mut state.space, vpn, Arrival::Adopted, None);
        }
        mm.learnt(unknown.len() as u64);
        counters::add(&self.pager.counters.harvested, written.len() as u64);
        true
    }
}
