//! The guard: has writes to pages that relatives share ask first.
//!
//! After a fork the kernel copies each page that either side writes to, at its own speed, and tells
//! nobody: near the limit a child that writes to what it inherited would double the tree's memory
//! unseen. So shared pages are write-protected on both sides. The first write to one arrives as a
//! message, the copy is charged, and waits for memory like any other page.
//!
//! * COW-1: pages that hold what the kernel writes when a thread ends are left out: no message is sent
//!   for a fault at that moment, and the write would be lost (`Link::pins`).
//! * COW-2: a page that turns out to be the process's own costs nothing: the guard is lifted from it and
//!   from those beside it.
//! * COW-3: the guard is about memory only: a page that escapes it (registered later, a change in
//!   flight) is copied unseen and found by the next measurement.

use crate::limits::SLICE_PAGES;
use crate::mm::{Mm, State};
use crate::seam::AddressSpace;
use crate::server::Pager;
use ebb_mm::resident::Entry;
use ebb_mm::types::{PAGE_SIZE, Vpn};
use ebb_sys::pagemap::EXCLUSIVE_RUN_MAX;
use ebb_sys::uffd::PlaceError;
use std::sync::atomic::Ordering::Relaxed;

/// Pages that may be copied unseen beside the reserve: a little.
const UNSEEN_PAGES: u64 = 64;

/// Whether `copies` more pages would not fit.
pub fn is_needed(pager: &Pager, copies: u64) -> bool {
    pager.managing.load(Relaxed) && copies > UNSEEN_PAGES && pager.resident().zone.free() < copies
}

/// Guards the pages of a range, `pins` (in order) excepted. False if the address space is changing: to be tried again.
pub fn raise_range(uffd: &dyn AddressSpace, start: u64, end: u64, pins: &[u64]) -> bool {
    let page = PAGE_SIZE as u64;
    let protect = |from: u64, to: u64| {
        // What is gone needs no guard.
        from >= to || uffd.protect(from, to - from) != Err(PlaceError::Changing)
    };
    let first = pins.partition_point(|&vpn| vpn * page < start);
    let mut at = start;
    for &vpn in pins[first..].iter().take_while(|&&vpn| vpn * page < end) {
        if !protect(at, vpn * page) {
            return false;
        }
        at = (vpn + 1) * page;
    }
    protect(at, end)
}

/// Guards a process that shares pages with relatives. For the monitor.
pub fn raise_all(mm: &Mm) {
    let Some(link) = mm.link.get() else { return };
    let Some(pins) = link.pins() else { return };
    let areas = mm.lock().areas.clone();
    let all = areas.iter().all(|(start, end)| {
        slices(mm, start, end).all(|(from, to)| raise_range(&*mm.uffd, from, to, &pins))
    });
    if !all {
        return;
    }
    mm.guarded.store(true, Relaxed);
    // Pinned in between.
    let Some(now) = link.pins() else {
        for (from, to) in areas.iter().flat_map(|(start, end)| slices(mm, start, end)) {
            // What is gone is not guarded either.
            let _ = mm.uffd.unprotect(from, to - from);
        }
        return;
    };
    for vpn in now.into_iter().filter(|vpn| pins.binary_search(vpn).is_err()) {
        // It may be gone again.
        let _ = mm.uffd.unprotect(vpn * PAGE_SIZE as u64, PAGE_SIZE as u64);
    }
}

/// A range in stretches with a slice of what is known there. The calls for them are made with no lock held, but the kernel has
/// whoever maps memory wait for each, and whoever touches it behind those.
fn slices(mm: &Mm, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = start;
    std::iter::from_fn(move || {
        let from = (at < end).then_some(at)?;
        let next = mm.lock().space.visit(Vpn::of_address(from), SLICE_PAGES, |_, _| {});
        at = next.map_or(end, |next| next.address().min(end));
        Some((from, at))
    })
}

/// How many pages from a guarded one on are the process's own: the guard is lifted from them. None:
/// that page is shared, and the write will copy it.
pub fn own_run(mm: &Mm, state: &State, vpn: Vpn) -> Option<u64> {
    let process = mm.process()?;
    let end = state.areas.end_of(vpn.address()).unwrap_or(vpn.address() + PAGE_SIZE as u64);
    let most = Vpn::of_address(end).0 - vpn.0;
    let run = process.exclusive_run(vpn.0, EXCLUSIVE_RUN_MAX.min(most as usize)).ok()?;
    // Beyond a page that we know nothing of there may be the kernel's zero page, which is guarded too.
    let known = (0..run as u64)
        .take_while(|&ahead| matches!(state.space.get(Vpn(vpn.0 + ahead)), Entry::Resident(_)))
        .count() as u64;
    (known > 0).then_some(known)
}
