//! Pages that come back from swap, and the pages read ahead with them.
//!
//! The engine decides how large the window is, and where it lies ([`ebb_linux::swap::SwapAhead`]).
//! The window goes by address with a state for each area, or by slot with one state for the device.
//! As in the kernel, nothing is read ahead from a device that works on the processor of the thread
//! that asks. Slots in a row are one request.

use ebb_mm::lru::Ctx;
use ebb_mm::observe::vmstat::Event;
use ebb_mm::tunables::AheadBy;
use ebb_mm::types::{Pfn, SlotId, Vpn};

use super::device::Device;
use super::mem::{Mem, cx};

impl Mem {
    /// Returns the index of the region, and so of the readahead state, of a page.
    fn region_at(&self, space: usize, page: u64) -> usize {
        let ends = &self.ends[space];
        ends.partition_point(|&(end, _)| end <= page).min(ends.len() - 1)
    }

    /// Returns the pages to bring in with a missing page, without that page.
    pub(super) fn ahead_from_swap(&mut self, space: usize, page: u64) -> Vec<(usize, u64)> {
        let max = (1 << self.tun.swap.page_cluster.min(5)).min(self.read_ahead);
        if max < 2 || self.out.swap.as_ref().is_none_or(Device::is_sync) {
            return Vec::new();
        }
        match self.tun.swap.ahead_by {
            AheadBy::Address => self.ahead_by_address(space, page, max),
            AheadBy::Cluster => self.ahead_by_slot(space, page, max),
        }
    }

    fn ahead_by_address(&mut self, space: usize, page: u64, max: u64) -> Vec<(usize, u64)> {
        let i = self.region_at(space, page);
        let from = if i == 0 { 0 } else { self.ends[space][i - 1].0 };
        let area = from..self.ends[space][i].0;
        let window = self.swap_ahead[space][i].by_address(page, area, max);
        let mm = self.list[space].id();
        let outside = |at: &u64| self.out.stored.slot_outside(mm, Vpn(*at)).is_some();
        window.filter(|&at| at != page).filter(outside).map(|at| (space, at)).collect()
    }

    /// Returns only pages of one memcg, because room is made in one.
    fn ahead_by_slot(&mut self, space: usize, page: u64, max: u64) -> Vec<(usize, u64)> {
        let Some(slot) = self.out.stored.slot_outside(self.list[space].id(), Vpn(page)) else {
            return Vec::new();
        };
        let window = self.slots_ahead.by_cluster(u64::from(slot.0), max);
        let stored = &self.out.stored;
        let page_at = |at: u64| {
            let (mm, vpn) = stored.owner(SlotId(at as u32))?;
            stored.slot_outside(mm, vpn)?;
            let other = self.list.iter().position(|s| s.id() == mm)?;
            (self.owner[other] == self.owner[space]).then_some((other, vpn.0))
        };
        window.filter(|&at| at != u64::from(slot.0)).filter_map(page_at).collect()
    }

    /// Counts the first use of a page that was read ahead.
    pub(super) fn hit_ahead(&mut self, space: usize, page: u64, pfn: Pfn, now: u64) {
        self.stat.add(Event::SwapRaHit, 1);
        match self.tun.swap.ahead_by {
            AheadBy::Address => {
                let i = self.region_at(space, page);
                self.swap_ahead[space][i].hit(Some(page));
            }
            AheadBy::Cluster => self.slots_ahead.hit(None),
        }
        if !self.tun.swap.keep_slot || self.out.stored.is_half_full() {
            self.out.stored.drop_copy(&cx!(self, now), pfn);
        }
    }

    /// Reads the pages that have got frames. A thread waits for the first of them. Returns when
    /// that one is in memory, and whether the read took the processor.
    pub(super) fn read_swap(&mut self, start: u64, later: u64) -> (u64, bool) {
        self.stat.add(Event::PswpIn, self.brought.len() as u64);
        self.stat.add(Event::SwapRa, self.brought.len() as u64 - 1);
        let Some(mut device) = self.out.swap.take() else { return (start, true) };
        let from = self.brought_from.iter().copied();
        let mut order: Vec<(u64, usize)> = from.enumerate().map(|(i, slot)| (slot, i)).collect();
        order.sort_unstable();
        let mut asked = start;
        for run in order.chunk_by(|a, b| a.0 + 1 == b.0) {
            let done = device.submit(start - later, false, run[0].0, run.len() as u64) + later;
            if run.iter().any(|&(_, i)| i == 0) {
                asked = done;
            }
            if !device.is_sync() && done > start {
                run.iter().for_each(|&(_, i)| self.set_ready(i, done));
            }
        }
        let sync = device.is_sync();
        self.out.swap = Some(device);
        (asked, sync)
    }
}
