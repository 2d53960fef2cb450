//! Children of hidden processes: what is cool of them is stored at once.
//!
//! A process may make itself one that nobody but root may look into (`PR_SET_DUMPABLE`, another user's rights). It
//! is still read through what was opened before. A child of it is hidden from its first moment: nothing of it can
//! be opened, and pages that lie in its pool could be read by nobody.
//!
//! * H1: so they are read from the parent's pool, where they lie as they did at the fork (P6), and stored for the child.
//!   Into its places they could not be put: it runs, and may be changing them.
//! * H2: a page that cannot be stored stays cool; whoever touches it is told after a while that it is lost.
//!
//! Called by the fault thread with the parent's state held, while its fork is followed. Writes to a file tier are
//! waited for: few pages are cool.

use crate::mm::Mm;
use crate::pool::Pool;
use crate::server::Pager;
use ebb_core::resident::{Dropped, Entry, Space};
use ebb_core::types::{PAGE_SIZE, Pfn};
use ebb_store::{Page, StoreError};

/// How often a page that cannot be read or written just now is tried again.
const TRIES: usize = 8;

/// Whether children of `parent` could not be looked into.
pub fn is_hidden(pager: &Pager, parent: &Mm) -> bool {
    parent.process().is_some() && pager.host.open(parent.pid()).is_err() && parent.is_alive()
}

/// Stores the cool pages of a child, which is nobody's yet (H1). Returns how many.
pub fn store(pager: &Pager, parent: &Mm, space: &mut Space, pool: &mut Pool) -> u64 {
    let mut cool: Vec<Pfn> = Vec::new();
    space.for_each(|_, entry| {
        if let Entry::Cool(pfn) = entry {
            cool.push(pfn);
        }
    });
    let mut dropped = Dropped::default();
    let mut stored = 0;
    for pfn in cool {
        let Some(page) = read(parent, pool.address(pager.resident().frame(pfn).pool)) else {
            continue;
        };
        let Ok(slot) = pager.resident().take_slot() else { break };
        let mut results = Vec::with_capacity(1);
        for _ in 0..TRIES {
            results.clear();
            pager.store.put_batch(&[(slot, &page)], &mut results);
            if !matches!(results[..], [Err(StoreError::Write { .. })]) {
                break;
            }
        }
        let mut resident = pager.resident();
        if results.iter().any(Result::is_err) {
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

fn read(process: &Mm, address: u64) -> Option<Page> {
    let mut page = [[0; PAGE_SIZE]];
    let read = || process.read_pages(&[address], &mut page).is_ok_and(|got| got == 1);
    let got = std::iter::repeat_with(read).take(TRIES).any(|read| read);
    got.then_some(page[0])
}
