//! Children of hidden processes: their standby pages are stored at once.
//!
//! A process may hide itself, so that only root may look into it (`PR_SET_DUMPABLE`, another user's
//! rights). The pager still reads such a process through files that it opened before. A child of
//! the process is hidden from its first moment. The pager can open nothing of the child, and could
//! not read standby pages in the child's pool.
//!
//! * HIDDEN-1: The pager reads these pages from the parent's pool, where they lie as they did at
//!   the fork (ORD-6). It stores them for the child. It could not place them in the child, because
//!   the child runs and may be changing its mappings.
//! * HIDDEN-2: A page that cannot be stored stays on the standby list. If a thread faults on it,
//!   the pager reports after a while that the page is lost.
//!
//! This is slow work (`slow_work.rs`), a batch at a time. Meanwhile the parent's records are
//! frozen, and no thread holds the lock. The slow-work thread waits for writes to a file tier.

use crate::mm::Mm;
use crate::mm::pool::Pool;
use crate::pager::Pager;
use crate::seam::Process;
use crate::wait::patience::{BEAT, Patience, Wait};
use ebb_mm::resident::{Dropped, Entry, Space};
use ebb_mm::types::{Pfn, SlotId, Vpn};
use ebb_swap::Page;
use ebb_sys::anon::PageBuffer;

/// Returns whether children of `parent` would be hidden.
pub fn is_hidden(parent: &Mm) -> bool {
    parent.process().is_some_and(Process::is_hidden) && parent.uffd.is_alive()
}

/// Stores one batch of `standby` pages of a child that is not served yet (HIDDEN-1). Returns their
/// number. Returns None, and has done nothing, if the parent is stuck (MAPLOCK-2).
pub fn store(
    pager: &Pager,
    parent: &Mm,
    space: &mut Space,
    pool: &mut Pool,
    standby: &[Vpn],
) -> Option<u64> {
    let pfns: Vec<Pfn> = standby.iter().filter_map(|&vpn| standby_frame(space, vpn)).collect();
    let mut pages = PageBuffer::new(pfns.len());
    let read = {
        let places: Vec<u64> = {
            let resident = pager.resident();
            pfns.iter().map(|&pfn| pool.address(resident.frame(pfn).pool)).collect()
        };
        read_all(pager, parent, &places, &mut pages[..pfns.len()])
    };
    if read.contains(&false) && parent.is_stuck() {
        return None;
    }
    let mut writes: Vec<(Pfn, SlotId, &Page)> = Vec::with_capacity(pfns.len());
    for ((&pfn, page), _) in pfns.iter().zip(pages.iter()).zip(read).filter(|&(_, read)| read) {
        let Ok(slot) = pager.resident().take_slot() else { break };
        writes.push((pfn, slot, page));
    }
    let batch: Vec<(SlotId, &Page)> = writes.iter().map(|&(_, slot, page)| (slot, page)).collect();
    let mut results = Vec::with_capacity(batch.len());
    pager.budget.store.put_batch(&batch, &mut results);
    let mut dropped = Dropped::default();
    let mut stored = 0;
    for (result, &(pfn, slot, _)) in results.into_iter().zip(&writes) {
        let mut resident = pager.resident();
        if result.is_err() {
            resident.release_slot(slot, &mut dropped);
            continue;
        }
        dropped.slots.extend(resident.set_copy(pfn, None));
        pool.discard_later(resident.evict(space, pfn, slot));
        stored += 1;
    }
    pager.budget.discard(&dropped);
    Some(stored)
}

fn standby_frame(space: &Space, vpn: Vpn) -> Option<Pfn> {
    match space.get(vpn) {
        Entry::Standby(pfn) => Some(pfn),
        _ => None,
    }
}

/// Reads pages, each as often as needed, unless the process is stuck. Returns which of them could
/// be read.
fn read_all(pager: &Pager, process: &Mm, addresses: &[u64], pages: &mut [Page]) -> Vec<bool> {
    let mut read = vec![false; addresses.len()];
    let wait = Wait::new(&pager.clock, Patience::Unreadable);
    let mut at = 0;
    while at < addresses.len() && !process.is_stuck() {
        let got = process.read_pages(&addresses[at..], &mut pages[at..]).unwrap_or(0);
        read[at..at + got].fill(true);
        at += got;
        if got > 0 {
            continue;
        }
        if wait.is_over(&pager.clock) || !process.uffd.is_alive() {
            at += 1;
        } else {
            pager.host.sleep(BEAT);
        }
    }
    read
}
