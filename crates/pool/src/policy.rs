//! Which pages leave: the engine's word ([`ebb_mm::Engine`]), told by accessed bits.
//!
//! Who uses a page sets a bit of its frame and nothing else ([`Frames::touch`]). Before the engine is asked those bits are
//! handed to it, and the pages that have come in since: so a hit costs no lock, and a miss none that anybody waits for.

use crate::error::PageId;
use crate::frames::Frames;
use ebb_mm::engine::BATCH;
use ebb_mm::{Arrival, Desk, Did, Do, Engine, Entry, Evidence, Pfn, Seen, Space, Vpn};

/// Frames of each hundred that are kept free for those on their way in, a batch at most.
const SPARE_PERCENT: u64 = 1;

/// A page that came in.
#[derive(Clone, Copy, Debug)]
pub struct Came {
    pub page: PageId,
    /// It is not going to be used again, says who asked for it.
    pub once: bool,
}

/// See the head of the file.
pub struct Policy {
    engine: Engine,
    space: Space,
    desk: Desk,
    victims: Vec<Pfn>,
    low: usize,
}

/// A page that is to leave.
#[derive(Clone, Copy, Debug)]
pub struct Victim {
    pub page: PageId,
    pfn: Pfn,
}

impl Policy {
    /// For a pool of so many frames.
    pub fn new(frames: u32, pages_max: u64) -> Self {
        let evidence = Evidence::AccessedBits;
        let engine = |limit| Engine::new(limit, limit, evidence.tunables(), evidence);
        // The kernel keeps an amount free that suits a machine. A pool needs what its threads take while a batch leaves:
        // the engine's budget is larger than the pool by what it would keep free beyond that.
        let frames = u64::from(frames);
        let marks = engine(frames).set.zone.watermarks();
        let low = (frames * SPARE_PERCENT / 100).clamp(2, BATCH as u64);
        let spare = low + marks.high - marks.low;
        let mut engine = engine(frames + marks.high - spare.min(frames / 4));
        let space = engine.create_space(Vpn(pages_max));
        Self { engine, space, desk: Desk::new(), victims: Vec::new(), low: low as usize }
    }

    /// Free frames, from which down it is to be asked.
    pub fn low(&self) -> usize {
        self.low
    }

    /// Tells the engine what has come, and what was used.
    pub fn note(&mut self, came: &[Came], frames: &Frames) {
        let set = &mut self.engine.set;
        for &Came { page, once } in came {
            let vpn = Vpn(page.0);
            let charge = set.zone.charge(1);
            set.zone.place(charge);
            let (how, slot) = match self.space.get(vpn) {
                Entry::Stored { slot, .. } => (Arrival::Loaded, Some(slot)),
                _ => (Arrival::Fresh, None),
            };
            let pfn = set.map(&mut self.space, vpn, if once { Arrival::Ahead } else { how }, slot);
            if once {
                set.prefer(pfn);
            }
        }
        frames.harvest(|page| {
            self.space.touch(Vpn(page.0));
        });
    }

    /// Pages that are to leave next, one batch; none if there are enough free frames. `starving`: somebody waits, so that
    /// there are not. Answered by [`Policy::left`] or [`Policy::stays`] for each, and [`Policy::did`].
    pub fn victims(&mut self, starving: bool) -> Vec<Victim> {
        self.victims.clear();
        self.engine.ask(&self.desk);
        loop {
            match self.engine.next(&self.desk, Seen { starving, crowded: false }) {
                Do::Store(max) => {
                    self.engine.coolest(max, &mut self.victims);
                    if !self.victims.is_empty() {
                        break;
                    }
                    self.engine.did(Did::default());
                }
                Do::Drop(_) => self.engine.did(Did::default()),
                Do::Again => {}
                Do::Cool(_) | Do::Nap | Do::Sleep | Do::Despair | Do::Thrashing => {
                    if starving {
                        self.engine.set.isolate_hard(BATCH, &mut self.victims);
                    }
                    break;
                }
            }
        }
        let set = &self.engine.set;
        let page = |&pfn: &Pfn| Victim { page: PageId(set.frame(pfn).vpn.0), pfn };
        self.victims.iter().map(page).collect()
    }

    /// It is in no frame any more.
    pub fn left(&mut self, victim: Victim) {
        let set = &mut self.engine.set;
        let known = set.frame(victim.pfn).slot();
        // A slot stands for "in the files": there is one for each page that ever left.
        let slot = known.unwrap_or_else(|| set.take_slot().expect("as many slots as pages"));
        set.evict(&mut self.space, victim.pfn, slot);
        set.zone.gone(1);
    }

    /// It is latched: it joins those in use, or the engine would name the same few for ever.
    pub fn in_use(&mut self, victim: Victim) {
        self.stays(victim);
        self.space.touch(Vpn(victim.page.0));
    }

    /// It could not be written, or was latched meanwhile.
    pub fn stays(&mut self, victim: Victim) {
        self.engine.set.put_back(victim.pfn);
    }

    /// Of so many so many have left.
    pub fn did(&mut self, looked: usize, left: usize) {
        let (pages, scanned) = (left as u64, looked as u64);
        self.engine.did(Did { pages, scanned, progress: pages });
    }

    /// Pages that it knows to be in memory.
    #[cfg(test)]
    pub fn resident(&self) -> u64 {
        self.engine.set.zone.used()
    }
}
