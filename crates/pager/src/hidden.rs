//! Children of hidden processes: what is cool of them is stored at once.
//!
//! A process may make itself one that nobody but root may look into (`PR_SET_DUMPABLE`, another user's rights). It
//! is still read through what was opened before. A child of it is hidden from its first moment: nothing of it can
//! be opened, and pages that lie in its pool could be read by nobody.
//!
//! * HIDDEN-1: so they are read from the parent's pool, where they lie as they did at the fork (ORD-6), and stored for the child.
//!   Into its places they could not be put: it runs, and may be changing them.
//! * HIDDEN-2: a page that cannot be stored stays cool; whoever touches it is told after a while that it is lost.
//!
//! An errand (`errand.rs`), a batch at a time, while the parent stands still and nobody holds its lock. Writes to a file
//! tier are waited for.

use crate::mm::Mm;
use crate::patience::{BEAT, Patience, Wait};
use crate::pool::Pool;
use crate::server::Pager;
use ebb_mm::resident::{Dropped, Entry, Space};
use ebb_mm::types::{Pfn, SlotId, Vpn};
use ebb_swap::Page;
use ebb_sys::anon::PageBuffer;

/// Whether children of `parent` could not be looked into.
pub fn is_hidden(pager: &Pager, parent: &Mm) -> bool {
    parent.process().is_some() && pager.host.open(parent.pid()).is_err() && parent.is_alive()
}

/// Stores the pages `cool` of a child, which is nobody's yet (HIDDEN-1): one batch. Returns how many.
pub fn store(pager: &Pager, parent: &Mm, space: &mut Space, pool: &mut Pool, cool: &[Vpn]) -> u64 {
    let pfns: Vec<Pfn> = cool.iter().filter_map(|&vpn| cool_frame(space, vpn)).collect();
    let mut pages = PageBuffer::new(pfns.len());
    let read = {
        let places: Vec<u64> = {
            let resident = pager.resident();
            pfns.iter().map(|&pfn| pool.address(resident.frame(pfn).pool)).collect()
        };
        read_all(pager, parent, &places, &mut pages[..pfns.len()])
    };
    let mut writes: Vec<(Pfn, SlotId, &Page)> = Vec::with_capacity(pfns.len());
    for ((&pfn, page), _) in pfns.iter().zip(pages.iter()).zip(read).filter(|&(_, read)| read) {
        let Ok(slot) = pager.resident().take_slot() else { break };
        writes.push((pfn, slot, page));
    }
    let batch: Vec<(SlotId, &Page)> = writes.iter().map(|&(_, slot, page)| (slot, page)).collect();
    let mut results = Vec::with_capacity(batch.len());
    pager.store.put_batch(&batch, &mut results);
    let mut dropped = Dropped::default();
    let mut stored = 0;
    for (result, &(pfn, slot, _)) in results.into_iter().zip(&writes) {
        let mut resident = pager.resident();
        if result.is_err() {
            resident.release_slot(slot, &mut dropped);
            continue;
        }
        dropped.slots.extend(resident.set_copy(pfn, None));
        pool.retire(resident.evict(space, pfn, slot));
        stored += 1;
    }
    pager.discard(&dropped);
    stored
}

fn cool_frame(space: &Space, vpn: Vpn) -> Option<Pfn> {
    match space.get(vpn) {
        Entry::Cool(pfn) => Some(pfn),
        _ => None,
    }
}

/// Reads pages, each as often as it takes; which of them could be.
fn read_all(pager: &Pager, process: &Mm, addresses: &[u64], pages: &mut [Page]) -> Vec<bool> {
    let mut read = vec![false; addresses.len()];
    let wait = Wait::new(&pager.clock, Patience::Unreadable);
    let mut at = 0;
    while at < addresses.len() {
        let got = process.read_pages(&addresses[at..], &mut pages[at..]).unwrap_or(0);
        read[at..at + got].fill(true);
        at += got;
        if got > 0 {
            continue;
        }
        if wait.is_over(&pager.clock) || !process.is_alive() {
            at += 1;
        } else {
            pager.host.sleep(BEAT);
        }
    }
    read
}
