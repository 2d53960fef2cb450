//! Conservation laws: relations of the counts that hold when a run has ended.

use ebb_mm::folio::{MemcgId, Word};
use ebb_mm::lru::Ctx;
use ebb_mm::space::Backing;
use ebb_mm::types::Vpn;

use super::mem::{Mem, cx};

impl Mem {
    /// Checks every conservation law.
    ///
    /// # Errors
    /// Returns which law does not hold.
    pub fn check(&mut self, now: u64) -> Result<(), String> {
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
                return Err(format!("memcg {id}: {pages} pages are present, {usage} charged"));
            }
        }
        let kept = inside.iter().filter(|&&pfn| self.folios.word(pfn).has(Word::SWAPCACHE)).count();
        if outside + kept as u64 != self.out.stored.slots() {
            let slots = self.out.stored.slots();
            return Err(format!(
                "{outside} pages outside and {kept} inside are stored in {slots} slots"
            ));
        }
        self.out.stored.check(&cx, inside.into_iter());
        let counted = [self.out.cache.dirty(), self.out.cache.writing()];
        if dirty != counted {
            return Err(format!("{dirty:?} file pages are dirty and written, {counted:?} counted"));
        }
        self.out.frames.drain_all();
        self.out.frames.check().map_err(|e| e.to_string())?;
        let managed: u64 = self.out.frames.zones().iter().map(|z| z.state().managed()).sum();
        let free = self.free_pages();
        let used =
            present.iter().sum::<u64>() + (self.out.pool.len() + self.out.pinned.len()) as u64;
        if free + used != managed {
            return Err(format!("{free} frames free and {used} in use of {managed}"));
        }
        Ok(())
    }
}
