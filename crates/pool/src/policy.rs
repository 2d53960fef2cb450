//! Replacement policy: the engine ([`ebb_mm::Engine`]) chooses the pages to evict, by accessed
//! bits.
//!
//! A thread that uses a page only sets a bit of the page's frame ([`Frames::touch`]). Before each
//! decision the engine gets those bits, and the pages that were loaded since the last one. So a hit
//! takes no lock. A miss waits for no other thread's reclaim while a frame is free.

use crate::error::PageId;
use crate::frames::Frames;
use ebb_mm::engine::BATCH;
use ebb_mm::{Arrival, Did, Do, Engine, Entry, Evidence, Pfn, Seen, Space, Vpn, WakeRequests};

/// Percentage of the frames that stays free for pages being loaded; at most one batch.
const SPARE_PERCENT: u64 = 1;

/// A page that was loaded.
#[derive(Clone, Copy, Debug)]
pub struct Loaded {
    pub page: PageId,
    /// Whether the caller will not use the page again.
    pub once: bool,
}

/// The policy of a pool. See the head of the file.
pub struct Policy {
    engine: Engine,
    space: Space,
    wake_requests: WakeRequests,
    victims: Vec<Pfn>,
    low: usize,
}

/// A page to be evicted.
#[derive(Clone, Copy, Debug)]
pub struct Victim {
    pub page: PageId,
    pfn: Pfn,
}

impl Policy {
    /// Creates the policy of a pool of `frames` frames.
    pub fn new(frames: u32, pages_max: u64) -> Self {
        let evidence = Evidence::AccessedBits;
        let engine = |limit| Engine::new(limit, limit, evidence.tunables(), evidence);
        // The kernel's free reserve suits a machine. A pool needs only the frames that its threads
        // take while a batch is evicted. So the engine's budget exceeds the pool by the rest of the
        // reserve.
        let frames = u64::from(frames);
        let marks = engine(frames).set.zone.watermarks();
        let low = (frames * SPARE_PERCENT / 100).clamp(2, BATCH as u64);
        let spare = low + marks.high - marks.low;
        let mut engine = engine(frames + marks.high - spare.min(frames / 4));
        let space = engine.create_space(Vpn(pages_max));
        Self {
            engine,
            space,
            wake_requests: WakeRequests::new(),
            victims: Vec::new(),
            low: low as usize,
        }
    }

    /// Returns the number of free frames below which the pool asks for victims.
    pub fn low(&self) -> usize {
        self.low
    }

    /// Reports loaded and used pages to the engine.
    pub fn note(&mut self, loaded: &[Loaded], frames: &Frames) {
        let set = &mut self.engine.set;
        for &Loaded { page, once } in loaded {
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

    /// Returns the next batch of pages to evict; none if there are enough free frames.
    /// `memory_stalled` means that a thread waits for a frame. For each page the caller reports
    /// [`Policy::left`], [`Policy::in_use`] or [`Policy::stays`], and then [`Policy::did`].
    pub fn victims(&mut self, memory_stalled: bool) -> Vec<Victim> {
        self.victims.clear();
        self.engine.request_wake(&self.wake_requests);
        loop {
            match self
                .engine
                .next(&self.wake_requests, Seen { memory_stalled, lacks_copy_room: false })
            {
                Do::Store(max) => {
                    self.engine.oldest_standby(max, &mut self.victims);
                    if !self.victims.is_empty() {
                        break;
                    }
                    self.engine.did(Did::default());
                }
                Do::Drop(_) => self.engine.did(Did::default()),
                Do::Again => {}
                Do::ToStandby(_) | Do::Nap | Do::Sleep | Do::OutOfMemory | Do::Thrashing => {
                    if memory_stalled {
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

    /// Records that a victim is in no frame any more.
    pub fn left(&mut self, victim: Victim) {
        let set = &mut self.engine.set;
        let known = set.frame(victim.pfn).slot();
        // A slot stands for "in the files". There is one for each page that was ever evicted.
        let slot = known.unwrap_or_else(|| set.take_slot().expect("as many slots as pages"));
        set.evict(&mut self.space, victim.pfn, slot);
        set.zone.remove_resident(1);
    }

    /// Records that a victim is latched. The page counts as used, because otherwise the engine
    /// would choose the same few pages for ever.
    pub fn in_use(&mut self, victim: Victim) {
        self.stays(victim);
        self.space.touch(Vpn(victim.page.0));
    }

    /// Records that a victim could not be written, or was latched meanwhile.
    pub fn stays(&mut self, victim: Victim) {
        self.engine.set.put_back(victim.pfn);
    }

    /// Reports that `left` of `looked` victims were evicted.
    pub fn did(&mut self, looked: usize, left: usize) {
        let (pages, scanned) = (left as u64, looked as u64);
        self.engine.did(Did { pages, scanned, progress: pages });
    }

    /// Returns the number of pages in memory, as far as the engine knows.
    #[cfg(test)]
    pub fn resident(&self) -> u64 {
        self.engine.set.zone.used()
    }
}
