//! Where pages go that reclaim takes out: the swap device, or nowhere for clean file pages.
//!
//! Owns the frames, what each memcg is charged, the swap device and the count of its slots, and
//! what is being written. The engine calls [`Pageout::evict`] for each folio it has chosen.
//!
//! Invariants
//! * I1: a memcg is charged for exactly the frames its pages occupy.
//! * I2: `slots` counts the anonymous pages that have a stored copy: those out of memory, and those
//!   in memory whose folio is `SWAPCACHE`.
//! * I3: a folio is `WRITEBACK` exactly while its entry is in `started` or its event is pending.

use ebb_core::folio::{LruType, Word};
use ebb_core::frame::{Frames, Gfp, NoHost, Order, Request};
use ebb_core::lru::{Ctx, Evicted, Pageout, Shadow};
use ebb_core::reclaim::throttle::{Throttle, Wait};
use ebb_core::reclaim::{Desk, Hope};
use ebb_core::space::Pte;
use ebb_core::types::Pfn;
use ebb_core::writeback::PageCache;

use super::costs::Costs;
use super::device::Device;

/// The other side of reclaim.
#[derive(Debug)]
pub struct Outflow {
    /// The page-frame allocator.
    pub frames: Frames,
    /// Pages charged, by memcg.
    pub charged: Vec<u64>,
    /// The swap device, if there is one.
    pub swap: Option<Device>,
    /// Anonymous pages with a stored copy.
    pub slots: u64,
    /// Whether pages in memory have been met that have a copy and nobody uses.
    pub(super) stored_here: bool,
    /// Frames that compressed memory occupies.
    pub pool: Vec<Pfn>,
    /// Until when a frame is being read into, by frame.
    pub ready_ns: Vec<u64>,
    /// Writes begun and not yet handed to the clock: when each ends.
    pub started: Vec<(u64, Pfn)>,
    /// Writes under way.
    pub writing: u64,
    /// Pages whose write has ended.
    pub(super) written_done: u64,
    /// The pages of files.
    pub cache: PageCache,
    /// Where kswapd is asked for.
    pub desk: Desk,
    /// What those who reclaim wait for.
    pub throttle: Throttle,
    /// Who runs.
    pub task: usize,
    /// What is left of each task's hope while it reclaims, and the wait it is in.
    pub(super) hopes: Vec<(Hope, Option<(Wait, u64)>)>,
    /// When a task that found no room may look again; none: there is nothing to wait for.
    pub(super) patience: Option<u64>,
    /// Dirty file pages that reclaim wants written at once.
    pub(super) write_now: Vec<(u64, Pfn)>,
    /// When the running reclaim pass began, and what it has cost so far.
    pub now_ns: u64,
    /// Device time spent on the processor of who reclaims.
    pub spent_ns: u64,
    /// Folios taken out by the running pass.
    pub freed: u64,
    /// Pages written in all.
    pub written: u64,
    /// Which CPU's sets frames go to.
    pub cpu: usize,
    /// The cost of handing a page to a device.
    pub submit_ns: u64,
    /// Root reclaim stops when this zone, or one below it, is fine.
    pub watch_zone: Option<usize>,
    /// Where pages come and go, if somebody wants to know.
    pub heat: Option<Box<super::heat::Heat>>,
    /// Frames taken from the lowest zone at the start.
    pub pinned: Vec<Pfn>,
}

impl Outflow {
    /// With all frames free.
    #[must_use]
    pub fn new(frames: Frames, table: u32, swap: Option<Device>, costs: &Costs) -> Self {
        Self {
            frames,
            charged: Vec::new(),
            swap,
            slots: 0,
            stored_here: false,
            pool: Vec::new(),
            ready_ns: vec![0; table as usize],
            started: Vec::new(),
            writing: 0,
            written_done: 0,
            cache: PageCache::new(),
            desk: Desk::new(),
            throttle: Throttle::default(),
            task: 0,
            hopes: Vec::new(),
            patience: None,
            write_now: Vec::new(),
            now_ns: 0,
            spent_ns: 0,
            freed: 0,
            written: 0,
            cpu: 0,
            submit_ns: costs.submit_ns,
            watch_zone: None,
            heat: None,
            pinned: Vec::new(),
        }
    }

    /// Whether the swap device has room for one more page.
    #[must_use]
    pub fn swap_has_room(&self) -> bool {
        self.swap.as_ref().is_some_and(|d| self.slots < d.pages_max)
    }

    /// A page got a stored copy. Compressed memory takes a frame for every few of them.
    fn take_slot(&mut self) {
        self.slots += 1;
        let ratio = self.swap.as_ref().map_or(0.0, |d| d.ratio);
        if ratio > 0.0 && self.slots as f64 > self.pool.len() as f64 * ratio {
            // Movable, as the kernel's: an unmovable one would break into others' blocks for each.
            let gfp = Gfp::HIGHUSER_MOVABLE.without(Gfp::DIRECT).with(Gfp::MEMALLOC);
            let request = Request::new(gfp, Order::ZERO);
            let request = Request { reclaiming: true, ..request };
            if let Some(pfn) = self.frames.alloc_on(self.cpu, &request, &NoHost) {
                self.pool.push(pfn);
            }
        }
    }

    /// A stored copy is of no more use.
    pub fn drop_slot(&mut self) {
        debug_assert!(self.slots > 0, "a slot is dropped once");
        self.slots -= 1;
        let ratio = self.swap.as_ref().map_or(0.0, |d| d.ratio);
        if ratio > 0.0
            && (self.slots as f64) < (self.pool.len() as f64 - 1.0) * ratio
            && let Some(pfn) = self.pool.pop()
        {
            self.release(pfn);
        }
    }

    /// Takes frames of the lowest zone until only `left` are free there.
    pub fn pin_lowest(&mut self, left: u64) {
        let request = Request::new(Gfp::DMA.with(Gfp::MEMALLOC), Order::ZERO);
        let request = Request { reclaiming: true, ..request };
        let free = |frames: &Frames| {
            frames.zones()[0].state().counters().snapshot(ebb_core::frame::ZoneItem::FreePages)
        };
        while free(&self.frames) > left {
            match self.frames.alloc_on(0, &request, &NoHost) {
                Some(pfn) => self.pinned.push(pfn),
                None => break,
            }
        }
    }

    /// Gives a frame back to the allocator.
    pub fn release(&mut self, pfn: Pfn) {
        let freed = self.frames.free_on(self.cpu, pfn, Order::ZERO);
        debug_assert!(freed.is_ok(), "{freed:?}");
    }

    fn forget(&mut self, cx: &Ctx, pfn: Pfn) {
        if let Some(heat) = &mut self.heat {
            let (mm, vpn) = cx.folios.owner(pfn);
            heat.count(1, mm.0 as usize, vpn.0);
        }
        cx.folios.unpin(pfn);
        cx.folios.unpin(pfn);
        self.charged[usize::from(cx.folios.memcg(pfn).0 - 1)] -= 1;
        self.release(pfn);
        self.freed += 1;
    }

    /// Starts to write an anonymous page. The entry stays present, so that a touch finds the page.
    fn start_write(&mut self, cx: &Ctx, pfn: Pfn) -> Evicted {
        let (mm, vpn) = cx.folios.owner(pfn);
        if let Some(space) = cx.spaces.get(mm)
            && let Some(place) = space.tree().find(vpn)
        {
            place.table.clear(place.index, Pte::MAPPED | Pte::ACCESSED | Pte::DIRTY);
        }
        cx.folios.update(pfn, |w| w.with(Word::SWAPCACHE).without(Word::MAPPED.or(Word::DIRTY)));
        self.take_slot();
        let now = self.now_ns + self.spent_ns;
        let place = self.written;
        let Some(swap) = self.swap.as_mut() else { return Evicted::Busy };
        let done = swap.submit(now, true, place, 1);
        self.written += 1;
        self.writing += 1;
        self.spent_ns += self.submit_ns;
        self.started.push((done, pfn));
        Evicted::Writing
    }
}

impl Pageout for Outflow {
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, ty: LruType, shadow: Shadow) -> Evicted {
        if self.ready_ns[pfn.0 as usize] > self.now_ns {
            return Evicted::Busy;
        }
        if ty == LruType::Anon {
            let w = cx.folios.word(pfn);
            let stored = w.has(Word::SWAPCACHE) && !w.has(Word::DIRTY) && !entry_dirty(cx, pfn);
            if !stored {
                let sync = self.swap.as_ref().is_some_and(Device::is_sync);
                if !w.has(Word::SWAPCACHE) && !self.swap_has_room() {
                    return Evicted::Young;
                }
                if w.has(Word::SWAPCACHE) {
                    // The old copy is stale; its slot is used again.
                    self.slots -= 1;
                }
                if !sync {
                    return self.start_write(cx, pfn);
                }
                self.take_slot();
                let now = self.now_ns + self.spent_ns;
                if let Some(swap) = self.swap.as_mut() {
                    self.spent_ns += swap.submit(now, true, self.written, 1) - now;
                }
                self.written += 1;
            }
        }
        if ty == LruType::File {
            let fate = self.cache.evict(cx, pfn, shadow);
            if fate != Evicted::Freed {
                return fate;
            }
        } else {
            cx.spaces.unmap(cx.folios, pfn, shadow.0);
        }
        self.forget(cx, pfn);
        Evicted::Freed
    }

    fn write_file(&mut self, cx: &Ctx, pfn: Pfn) -> bool {
        let Some((file, page)) = self.cache.take_one(cx, pfn) else { return false };
        self.write_now.push(((u64::from(file.0) << 36) + page, pfn));
        self.spent_ns += self.submit_ns;
        self.writing += 1;
        true
    }

    fn wake_flusher(&mut self) {
        self.cache.ask_flusher();
    }

    fn enough(&mut self) -> bool {
        self.watch_zone.is_some_and(|zone| self.frames.balanced(0, Order::ZERO, zone, false))
    }
}

fn entry_dirty(cx: &Ctx, pfn: Pfn) -> bool {
    let (mm, vpn) = cx.folios.owner(pfn);
    cx.spaces.get(mm).is_some_and(|space| {
        space.tree().find(vpn).is_some_and(|place| {
            let pte = place.get();
            pte.present() && pte.pfn() == pfn && pte.all(Pte::DIRTY)
        })
    })
}
