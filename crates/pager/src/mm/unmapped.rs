//! Checks whether a page may be placed: whether its address is unmapped.
//!
//! The pager's tables do not show everything that can be at an address. A guard
//! (`MADV_GUARD_INSTALL`) is a marker in the kernel's page table. The kernel does not report it,
//! and UFFDIO_COPY overwrites it silently. So the pager reads the page map in these cases:
//!
//! * UNMAPPED-1: before it places a page that no thread has requested (readahead, look-around).
//! * UNMAPPED-2: before it answers a fault that was not answered as soon as it was read. A thread
//!   that accesses a guard gets a signal from the kernel and does not fault here. But the guard may
//!   have been installed since the fault.
//! * UNMAPPED-3: the page map of some processes cannot be read (a child that is unidentified, or
//!   cannot be inspected). Then no page is placed ahead. A waiting fault on a page that was never
//!   accessed is not answered. Its thread is woken and repeats the access (`Server::recall`). It
//!   meets the guard, or its fault is answered as soon as it is read. A fault on a standby or
//!   stored page is answered, because the agent's hook discards such a page, with a message, before
//!   it installs a guard.
//!
//! A short time remains between a thread's fault and its answer, if the answer comes as soon as the
//! fault is read. No call checks and places at once. UFFDIO_COPY replaces a guard. UFFDIO_ZEROPAGE
//! keeps it but places only zero pages. UFFDIO_MOVE keeps it but only the process itself can call
//! it.

use crate::mm::Mm;
use ebb_mm::types::Vpn;

/// Keeps those of `pages` whose address is unmapped (UNMAPPED-1).
pub fn keep<T>(mm: &Mm, pages: &mut Vec<(Vpn, T)>) {
    let numbers = || pages.iter().map(|&(page, _)| page.0);
    let (Some(low), Some(high)) = (numbers().min(), numbers().max()) else { return };
    let unmapped = all(mm, Vpn(low), (high - low) as usize + 1).unwrap_or_default();
    pages.retain(|&(page, _)| unmapped.get((page.0 - low) as usize) == Some(&true));
}

/// Returns the number of consecutive unmapped pages from `first` on, `most` at most (UNMAPPED-1).
pub fn run(mm: &Mm, first: Vpn, most: usize) -> usize {
    if most == 0 {
        return 0;
    }
    let unmapped = all(mm, first, most).unwrap_or_default();
    unmapped.into_iter().take_while(|&unmapped| unmapped).count()
}

/// Whether a page that a thread has waited for is still unmapped (UNMAPPED-2). None if that cannot
/// be determined.
pub fn still(mm: &Mm, page: Vpn) -> Option<bool> {
    all(mm, page, 1).map(|unmapped| unmapped[0])
}

/// Returns for each of `count` pages from `first` on whether it is unmapped. None if that cannot be
/// determined.
pub fn all(mm: &Mm, first: Vpn, count: usize) -> Option<Vec<bool>> {
    mm.process()?.unmapped(first.0, count).ok()
}
