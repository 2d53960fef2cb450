//! Copy-on-write protection: makes the first write to a page that a fork group shares a page fault.
//!
//! After a fork the kernel copies each page that either side writes to, at its own speed, and sends
//! no message. Near the limit, a child that writes to inherited pages would double the tree's
//! memory unseen. So the pager write-protects shared pages on both sides. The first write to such a
//! page arrives as a message. The pager charges the copy, and the copy waits for memory like any
//! other page.
//!
//! * COW-1: Pages to which the kernel writes when a thread ends are left out. The kernel sends no
//!   message for a fault at that moment, and the write would be lost (`Link::pins`). In a program
//!   without hooks the pager looks for them first (`thread_words.rs`).
//! * COW-2: A page that turns out to be the process's own costs nothing. The protection is removed
//!   from that page and its neighbours.
//! * COW-3: The protection concerns only the amount of memory. A page may escape it, because the
//!   page is registered later or a change is in flight. Such a page is copied unseen, and the next
//!   measurement finds it.

use crate::budget::Budget;
use crate::mm::thread_words::ThreadWords;
use crate::mm::{Mm, State};
use crate::seam::AddressSpace;
use crate::wait::limits::SLICE_PAGES;
use ebb_mm::resident::Entry;
use ebb_mm::types::{PAGE_SIZE, Vpn};
use ebb_sys::pagemap::EXCLUSIVE_RUN_MAX;
use ebb_sys::uffd::PlaceError;
use std::sync::atomic::Ordering::Relaxed;

/// Pages that may be copied unseen, beyond the reserve.
const UNSEEN_PAGES: u64 = 64;

/// Returns whether `copies` more pages would not fit.
pub fn is_needed(budget: &Budget, copies: u64) -> bool {
    copies > UNSEEN_PAGES && budget.resident().zone.free() < copies
}

/// Write-protects the pages of a range, except `pins` (in order). Returns false if the address
/// space is changing, so that the caller must retry.
pub fn raise_range(uffd: &dyn AddressSpace, start: u64, end: u64, pins: &[u64]) -> bool {
    let page = PAGE_SIZE as u64;
    let protect = |from: u64, to: u64| {
        // An unmapped range needs no protection.
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

/// Write-protects a process that shares pages in its fork group. The monitor calls this.
pub fn raise_all(mm: &Mm) {
    let Some(link) = mm.agent.link() else { return };
    if !ThreadWords::default().keep(mm) {
        return;
    }
    let Some(pins) = link.pins() else { return };
    let areas = mm.lock().areas.clone();
    let all = areas.iter().all(|(start, end)| {
        slices(mm, start, end).all(|(from, to)| raise_range(&*mm.uffd, from, to, &pins))
    });
    if !all {
        return;
    }
    mm.fork_group.cow_protected.store(true, Relaxed);
    // These pages were pinned in between.
    let Some(now) = link.pins() else {
        for (from, to) in areas.iter().flat_map(|(start, end)| slices(mm, start, end)) {
            // An unmapped range is not protected either.
            let _ = mm.uffd.unprotect(from, to - from);
        }
        return;
    };
    for vpn in now.into_iter().filter(|vpn| pins.binary_search(vpn).is_err()) {
        // The page may be unmapped again.
        let _ = mm.uffd.unprotect(vpn * PAGE_SIZE as u64, PAGE_SIZE as u64);
    }
}

/// Divides a range into parts with a slice of known pages each. The caller holds no lock for the
/// calls on these parts. But the kernel makes each thread that maps memory wait for the call.
/// Threads that fault wait behind those threads.
fn slices(mm: &Mm, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
    let mut at = start;
    std::iter::from_fn(move || {
        let from = (at < end).then_some(at)?;
        let next = mm.lock().space.visit(Vpn::of_address(from), SLICE_PAGES, |_, _| {});
        at = next.map_or(end, |next| next.address().min(end));
        Some((from, at))
    })
}

/// Returns how many pages from a write-protected one on are the process's own, so that the
/// protection is removed. None if that page is shared, so that the write will copy it.
pub fn own_run(mm: &Mm, state: &State, vpn: Vpn) -> Option<u64> {
    let process = mm.process()?;
    let end = state.areas.end_of(vpn.address()).unwrap_or(vpn.address() + PAGE_SIZE as u64);
    let most = Vpn::of_address(end).0 - vpn.0;
    let run = process.exclusive_run(vpn.0, EXCLUSIVE_RUN_MAX.min(most as usize)).ok()?;
    // Beyond an unknown page there may be the kernel's zero page, which is write-protected, too.
    let known = (0..run as u64)
        .take_while(|&ahead| matches!(state.space.get(Vpn(vpn.0 + ahead)), Entry::Resident(_)))
        .count() as u64;
    (known > 0).then_some(known)
}
