//! Looking around a touch that continues a pass over memory: what lies ahead of it and is cool comes
//! back with it, before the program has to ask.
//!
//! Part of the fault thread. The kernel's look-around finds the accessed bits of neighbours while it has the
//! page table at hand (mm/vmscan.c, `lru_gen_look_around`); here a neighbour that is cool has no bit left to
//! be found, and would cost a fault of its own. Pages that nobody has touched are not proven young by it:
//! they go back to where they were.

use crate::counters;
use crate::faults::{Server, Touch};
use crate::mm::{Mm, State};
use crate::vacant;
use ebb_mm::resident::Entry;
use ebb_mm::types::{PAGE_SIZE, Vpn};
use std::sync::Arc;

/// Most pages brought back beside a touch.
pub const BESIDE_MAX: usize = 16;

impl Server {
    /// Brings the cool pages of the touch's window back, as far as there is memory for them.
    pub fn look_around(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch) {
        let wanted = self.pager.config.look_around && !self.pager.config.sample;
        if touch.window.count == 0 || !wanted {
            return;
        }
        let window = touch.window.pages(Vpn::of_address(touch.address));
        let cool = |vpn| match state.space.get(vpn) {
            Entry::Cool(pfn) => Some((vpn, pfn)),
            _ => None,
        };
        let mut cool: Vec<_> = window.filter_map(cool).take(BESIDE_MAX).collect();
        vacant::keep(mm, &mut cool);
        let mut charge = self.charge_ahead(cool.len());
        cool.truncate(charge.pages() as usize);
        if cool.is_empty() {
            return;
        }
        cool.sort_unstable();
        let addresses: Vec<u64> = {
            let resident = self.pager.resident();
            cool.iter().map(|&(_, pfn)| state.pool.address(resident.frame(pfn).pool)).collect()
        };
        let got = mm.read_pages(&addresses, &mut self.beside[..]).unwrap_or(0);
        let mut placed = 0;
        for run in runs(&cool[..got]) {
            let pages = &self.beside[run.start..run.end];
            let bytes = match mm.uffd.copy(cool[run.start].0.address(), pages.as_flattened()) {
                Ok(()) => pages.len() * PAGE_SIZE,
                // The mapping is changing or gone: whoever wants the rest will touch it.
                Err((bytes, _)) => bytes as usize,
            };
            let pages = (bytes / PAGE_SIZE) as u64;
            let mut resident = self.pager.resident();
            mm.place(&mut resident.zone, charge.split(pages));
            for &(_, pfn) in &cool[run.start..run.start + bytes / PAGE_SIZE] {
                state.pool.retire(resident.uncool(&mut state.space, pfn));
            }
            // Another thread may have touched them meanwhile.
            state.wake_after(cool[run.start].0.address(), bytes as u64);
            placed += pages;
        }
        counters::add(&self.pager.counters.rescued_ahead, placed);
        self.give_back(charge);
    }
}

/// Stretches of pages that follow one another.
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
