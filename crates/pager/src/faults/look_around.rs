//! Looks around a fault that continues a sequential pass over memory, and places the standby pages
//! ahead of it before the program needs them.
//!
//! Part of the fault thread. The kernel's look-around finds the accessed bits of neighbours while
//! it has the page table at hand (mm/vmscan.c, `lru_gen_look_around`). Here a standby neighbour has
//! no accessed bit, and would cost a fault of its own. A page that comes back unrequested does not
//! count as young. It returns to its old place on the lists.

use crate::faults::{PageFault, Server};
use crate::mm::{Mm, State, unmapped};
use crate::telemetry::counters;
use ebb_mm::driver::BESIDE_MAX;
use ebb_mm::resident::Entry;
use ebb_mm::types::{PAGE_SIZE, Vpn};
use std::sync::Arc;

impl Server {
    /// Reactivates the standby pages in the fault's window, as far as there is memory for them.
    pub fn look_around(&mut self, mm: &Arc<Mm>, state: &mut State, fault: &PageFault) {
        let wanted = self.pager.config.look_around && !self.pager.config.sample;
        if fault.window.count == 0 || !wanted {
            return;
        }
        let window = fault.window.pages(Vpn::of_address(fault.address));
        let standby = |vpn| match state.space.get(vpn) {
            Entry::Standby(pfn) => Some((vpn, pfn)),
            _ => None,
        };
        let mut standby: Vec<_> = window.filter_map(standby).take(BESIDE_MAX).collect();
        unmapped::keep(mm, &mut standby);
        let mut charge = self.charge_ahead(standby.len());
        standby.truncate(charge.pages() as usize);
        if standby.is_empty() {
            return;
        }
        standby.sort_unstable();
        let addresses: Vec<u64> = {
            let resident = self.pager.resident();
            standby.iter().map(|&(_, pfn)| state.pool.address(resident.frame(pfn).pool)).collect()
        };
        let got = mm.read_pages(&addresses, &mut self.beside[..]).unwrap_or(0);
        let mut placed = 0;
        for run in runs(&standby[..got]) {
            let pages = &self.beside[run.start..run.end];
            let bytes = match mm.uffd.copy(standby[run.start].0.address(), pages.as_flattened()) {
                Ok(()) => pages.len() * PAGE_SIZE,
                // The mapping is changing or gone. If the program needs the rest, its accesses
                // fault again.
                Err((bytes, _)) => bytes as usize,
            };
            let pages = (bytes / PAGE_SIZE) as u64;
            let mut resident = self.pager.resident();
            mm.place(&mut resident.zone, charge.split(pages));
            for &(_, pfn) in &standby[run.start..run.start + bytes / PAGE_SIZE] {
                state.pool.discard_later(resident.activate(&mut state.space, pfn));
            }
            // Another thread may have faulted on these pages meanwhile.
            state.wake_after(standby[run.start].0.address(), bytes as u64);
            placed += pages;
        }
        counters::add(&self.pager.telemetry.counters.reactivated_ahead, placed);
        self.give_back(charge);
    }
}

/// Returns the ranges of consecutive pages.
pub fn runs<T>(pages: &[(Vpn, T)]) -> impl Iterator<Item = std::ops::Range<usize>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let start = at;
        let first = pages.get(start)?.0.0;
        while pages.get(at).is_some_and(|&(vpn, _)| vpn.0 == first + (at - start) as u64) {
            at += 1;
        }
        Some(start..at)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_follow_one_another_are_placed_together() {
        let of = |pages: &[u64]| {
            let pages: Vec<(Vpn, ())> = pages.iter().map(|&page| (Vpn(page), ())).collect();
            runs(&pages).map(|run| (run.start, run.end)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[]), []);
        assert_eq!(of(&[7]), [(0, 1)]);
        assert_eq!(of(&[7, 8, 9]), [(0, 3)]);
        assert_eq!(of(&[1, 3, 4, 9, 10, 11, 13]), [(0, 1), (1, 3), (3, 6), (6, 7)]);
    }
}
