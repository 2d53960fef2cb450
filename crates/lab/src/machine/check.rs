//! Conservation laws: relations of the counts that hold when a run has ended.

use ebb_mm::folio::{MemcgId, Word};
use ebb_mm::lru::Ctx;
use ebb_mm::space::Backing;
use ebb_mm::types::Vpn;

use super::mem::{Mem, cx};
use ebb_linux::frame::Contradiction;

/// A conservation law that does not hold.
#[derive(Debug, thiserror::Error)]
pub enum BooksError {
    /// A memcg (its index) is charged for another number of pages than it has.
    #[error("memcg {0}: {1} pages are present, {2} charged")]
    Charge(usize, u64, u64),
    /// The stored pages, outside and inside of memory, are not as many as the slots.
    #[error("{0} pages outside and {1} inside are stored in {2} slots")]
    Slots(u64, usize, u64),
    /// The file pages that are dirty and under writeback are not as many as counted.
    #[error("{0:?} file pages are dirty and written, {1:?} counted")]
    Dirty([u64; 2], [u64; 2]),
    /// The frames of a store, or their counters, contradict each other.
    #[error(transparent)]
    Frames(#[from] Contradiction),
    /// The free and the used frames are not as many as the machine manages.
    #[error("{0} frames free and {1} in use of {2}")]
    Managed(u64, u64, u64),
    /// LIVE-1: the budget has another number of pages than there are.
    #[error("LIVE-1: the budget holds {0} pages, {1} are known")]
    Budget(u64, u64),
    /// LIVE-2: the pages in compressed memory are not as many as their slots.
    #[error("LIVE-2: {0} pages are near, {1} slots are")]
    Near(u64, usize),
}

impl Mem {
    /// Checks every conservation law.
    ///
    /// # Errors
    /// Returns which law does not hold.
    pub fn check(&mut self, now: u64) -> Result<(), BooksError> {
        if let Some(live) = &self.live {
            return live.check();
        }
        let cx = cx!(self, now);
        for lists in self.memcgs.iter_mut().flat_map(|m| &mut m.on) {
            lists.pagevec.drain(&lists.lruvec, &cx);
            lists.lruvec.check_invariants(&cx);
        }
        let mut dirty = [0; 2];
        let mut present = vec![0; self.memcgs.len()];
        let (mut inside, mut outside) = (Vec::new(), 0);
        for (i, space) in self.list.iter().enumerate() {
            let mut at = 0;
            for &(end, region) in &self.ends[i] {
                for vpn in at..end {
                    let Some(place) = space.tree().find(Vpn(vpn)) else { continue };
                    let pte = place.get();
                    let anon = region.backing != Backing::File;
                    if pte.present() {
                        present[self.owner[i]] += 1;
                        let w = self.folios.word(pte.pfn());
                        inside.extend(anon.then(|| pte.pfn()));
                        dirty[0] += u64::from(!anon && w.has(Word::DIRTY));
                        dirty[1] += u64::from(!anon && w.has(Word::WRITEBACK));
                    } else if anon && pte.shadow().is_some() {
                        outside += 1;
                    }
                }
                at = end;
            }
        }
        let mut charged = vec![0; self.memcgs.len()];
        for (id, pages) in present.iter().enumerate() {
            self.out.groups.path(MemcgId(id as u16 + 1)).for_each(|up| {
                charged[usize::from(up.0) - 1] += pages;
            });
        }
        for (id, pages) in charged.into_iter().enumerate() {
            let usage = self.out.groups.usage(MemcgId(id as u16 + 1));
            if pages != usage {
                return Err(BooksError::Charge(id, pages, usage));
            }
        }
        let kept = inside.iter().filter(|&&pfn| self.folios.word(pfn).has(Word::SWAPCACHE)).count();
        let slots = self.out.stored.slots();
        if outside + kept as u64 != slots {
            return Err(BooksError::Slots(outside, kept, slots));
        }
        self.out.stored.check(&cx, inside.into_iter());
        let counted = [self.out.cache.dirty(), self.out.cache.writing()];
        if dirty != counted {
            return Err(BooksError::Dirty(dirty, counted));
        }
        self.out.frames.drain_all();
        self.out.frames.check()?;
        let managed: u64 = self.out.frames.zones().iter().map(|z| z.state().managed()).sum();
        let free = self.free_pages();
        let used =
            present.iter().sum::<u64>() + (self.out.pool.len() + self.out.pinned.len()) as u64;
        if free + used != managed {
            return Err(BooksError::Managed(free, used, managed));
        }
        Ok(())
    }
}
