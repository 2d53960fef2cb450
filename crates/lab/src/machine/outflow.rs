//! Destination of the pages that reclaim takes out: the swap device, a file, or nowhere for clean
//! file pages.
//!
//! Owns the frames, the charges of memcgs, swap with its contents, the page cache, and the writes
//! under way. The engine calls [`Pageout::evict`] for each folio it has chosen.
//!
//! Invariants
//! * OUTFLOW-1: a memcg is charged for exactly the frames of its own pages and of the memcgs below
//!   it.
//! * OUTFLOW-2: a folio is `WRITEBACK` while it is gathered in `writes` or is in `started`, or its
//!   `WriteDone` event is pending. It is so at no other time.

use ebb_linux::frame::{Frames, Gfp, NoHost, Order, Request};
use ebb_linux::memcg::Memcgs;
use ebb_linux::swap::SwapCache;
use ebb_linux::writeback::{FileId, PageCache, To, Writes};
use ebb_mm::folio::{LruType, Word};
use ebb_mm::lru::{Ctx, Evicted, Pageout, ScanEvent, Shadow};
use ebb_mm::space::Pte;
use ebb_mm::types::Pfn;

use super::costs::Costs;
use super::device::Device;
use super::mappings::Mappings;
use super::signs::Part;
use super::tracepoints::Tracepoints;

/// Number of slots of a device without a limit.
const SLOTS_MAX: u64 = 1 << 31;

/// The part of memory that reclaim frees into: frames, swap, writes.
#[derive(Debug)]
pub struct Outflow {
    /// The page-frame allocator.
    pub frames: Frames,
    /// Limits, protection and charges of each memcg.
    pub groups: Memcgs,
    /// The swap device, if there is one.
    pub swap: Option<Device>,
    /// Anonymous pages with a stored copy.
    pub stored: SwapCache,
    /// Whether the last look for slots found pages that have a copy in swap and are not mapped.
    pub(super) found_unmapped_copy: bool,
    /// Frames that compressed memory occupies.
    pub pool: Vec<Pfn>,
    /// By frame: time at which the read into it ends.
    pub ready_ns: Vec<u64>,
    /// Frames whose writes are submitted and have no event yet, each with the time at which its
    /// write ends.
    pub started: Vec<(u64, Pfn)>,
    /// Writes under way.
    pub writes: Writes,
    /// The pages of files.
    pub cache: PageCache,
    /// Index of the running task.
    pub task: usize,
    /// Whether the running pass stops after each batch.
    pub(super) batched: bool,
    /// Time at which a task that found no room may look again; none: there is nothing to wait for.
    pub(super) patience: Option<u64>,
    /// Whether the reclaiming task may not enter file systems.
    pub(super) no_fs: bool,
    /// Time at which the running reclaim pass began, in nanoseconds.
    pub now_ns: u64,
    /// Nanoseconds that the running pass has cost, with device time spent on the reclaimer's
    /// processor.
    pub spent_ns: u64,
    /// Number of folios that the running pass took out.
    pub freed: u64,
    /// CPU of the running task. Freed frames go to its per-CPU sets.
    pub cpu: usize,
    /// Processes that map each folio, and the cost of finding their entries.
    pub mappings: Mappings,
    costs: Costs,
    /// Zone (node, index) at which root reclaim stops when the zone, or one below it, is balanced.
    pub watch_zone: Option<(usize, usize)>,
    /// Counts of pages that come in and go out by address, if they are recorded.
    pub heat: Option<Box<super::heat::Heat>>,
    /// Frames taken from the lowest zone at the start.
    pub pinned: Vec<Pfn>,
    /// Whether the running pass reclaims from all memcgs.
    pub(super) for_all: bool,
    /// Pages taken below a memcg's `min`, see [`Signs`](super::signs::Signs).
    pub(super) below_min: Part,
    /// Record of reclaim as tracepoints, if it is wanted.
    pub tracepoints: Option<Box<Tracepoints>>,
}

impl Outflow {
    /// Creates an outflow with all frames free.
    #[must_use]
    pub fn new(frames: Frames, table: u32, swap: Option<Device>, costs: &Costs) -> Self {
        let capacity = swap.as_ref().map_or(0, |d| d.pages_max.min(SLOTS_MAX));
        Self {
            frames,
            groups: Memcgs::new(),
            swap,
            stored: SwapCache::new(capacity as u32),
            found_unmapped_copy: false,
            pool: Vec::new(),
            ready_ns: vec![0; table as usize],
            started: Vec::new(),
            writes: Writes::default(),
            cache: PageCache::new(),
            task: 0,
            batched: false,
            patience: None,
            no_fs: false,
            now_ns: 0,
            spent_ns: 0,
            freed: 0,
            cpu: 0,
            mappings: Mappings::new(costs),
            costs: costs.clone(),
            watch_zone: None,
            heat: None,
            pinned: Vec::new(),
            for_all: false,
            below_min: Part::default(),
            tracepoints: None,
        }
    }

    /// Takes a frame for compressed memory, or gives one back, so that a frame holds about `ratio`
    /// stored pages.
    pub fn settle_pool(&mut self) {
        let ratio = self.swap.as_ref().map_or(0.0, |d| d.ratio);
        if ratio <= 0.0 {
            return;
        }
        let (stored, pool) = (self.stored.slots() as f64, self.pool.len() as f64);
        if stored > pool * ratio {
            // The frame is movable, as in the kernel. An unmovable frame could break into a block
            // of movable frames.
            let gfp = Gfp::HIGHUSER_MOVABLE.without(Gfp::DIRECT).with(Gfp::MEMALLOC);
            let request = Request::new(gfp, Order::ZERO);
            let request = Request { reclaiming: true, ..request };
            if let Some(pfn) = self.frames.alloc_on(self.cpu, &request, &NoHost) {
                self.pool.push(pfn);
            }
        } else if stored < (pool - 1.0) * ratio
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
            frames.zones()[0].state().counters().snapshot(ebb_linux::frame::ZoneItem::FreePages)
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
        let group = cx.folios.memcg(pfn);
        self.groups.uncharge(group, 1);
        if self.for_all {
            self.note_protected(group);
        }
        self.release(pfn);
        self.freed += 1;
    }

    /// Hands the gathered writes to the devices.
    pub fn submit(&mut self, cx: &Ctx, disk: &mut Device) {
        let now = self.now_ns + self.spent_ns;
        for request in self.writes.submit(cx, &mut self.stored) {
            let n = request.frames.len() as u64;
            let done = match (request.to, &mut self.swap) {
                (To::Swap(slot), Some(swap)) => swap.submit(now, true, u64::from(slot.0), n),
                (To::File(file, page), _) => disk.submit(now, true, place_of(file, page), n),
                (To::Swap(_), None) => now,
            };
            self.started.extend(request.frames.iter().map(|&pfn| (done, pfn)));
        }
    }

    /// Records that the reclaimer writes a page.
    fn note_write(&mut self, pfn: Pfn, ty: LruType) {
        let at = self.now_ns + self.spent_ns;
        if let Some(tracepoints) = &mut self.tracepoints {
            tracepoints.writes(at, pfn.0, ty == LruType::File);
        }
    }

    /// Adds the cost of taking out a folio: its entries and its record.
    fn spend(&mut self, cx: &Ctx, pfn: Pfn, ty: LruType, mapped: bool) {
        let (mm, vpn) = cx.folios.owner(pfn);
        let further = self.mappings.taken(ty, mapped, mm.0, vpn.0);
        self.spent_ns += further + if mapped { self.costs.evict_ns } else { self.costs.drop_ns };
    }
}

/// Returns the position of a file's page on the disk.
pub(super) fn place_of(file: FileId, page: u64) -> u64 {
    (u64::from(file.0) << 36) + page
}

impl Outflow {
    /// Returns whether a page of shared memory stays in memory. A page that stays is unmapped.
    /// Without a slot the file system has to write the page, and the task may not enter file
    /// systems. The kernel unmaps such a page before it finds this out, and keeps it
    /// (`shrink_page_list`).
    fn keeps(&mut self, cx: &Ctx, pfn: Pfn) -> bool {
        let (mm, vpn) = cx.folios.owner(pfn);
        let w = cx.folios.word(pfn);
        if !self.no_fs || w.has(Word::SWAPCACHE) || !self.mappings.is_shared(mm.0, vpn.0) {
            return false;
        }
        let mapped = w.has(Word::MAPPED);
        let further = self.mappings.taken(LruType::Anon, mapped, mm.0, vpn.0);
        self.spent_ns += if mapped { further + self.costs.evict_ns } else { 0 };
        if let Some(space) = cx.spaces.get(mm)
            && let Some(place) = space.tree().find(vpn)
        {
            place.table.clear(place.index, Pte::MAPPED | Pte::ACCESSED | Pte::DIRTY);
        }
        cx.folios.clear(pfn, Word::MAPPED);
        true
    }
}

impl Pageout for Outflow {
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, ty: LruType, shadow: Shadow) -> Evicted {
        if self.ready_ns[pfn.0 as usize] > self.now_ns {
            return Evicted::Busy;
        }
        let mapped = cx.folios.word(pfn).has(Word::MAPPED);
        if ty == LruType::Anon && !self.stored.is_stored(cx, pfn) {
            if self.keeps(cx, pfn) {
                return Evicted::Busy;
            }
            if !self.swap.as_ref().is_some_and(Device::is_sync) {
                if !self.writes.begin(cx, &mut self.cache, &mut self.stored, pfn) {
                    return Evicted::Young;
                }
                self.note_write(pfn, ty);
                self.settle_pool();
                self.spend(cx, pfn, ty, mapped);
                self.spent_ns += self.costs.swap_out_ns;
                return Evicted::Writing;
            }
            if !self.stored.store(cx, pfn) {
                return Evicted::Young;
            }
            self.note_write(pfn, ty);
            self.settle_pool();
            let now = self.now_ns + self.spent_ns;
            if let Some(swap) = self.swap.as_mut() {
                let slot = cx.folios.store_slot(pfn).unwrap_or(0);
                self.spent_ns += swap.submit(now, true, u64::from(slot), 1) - now;
            }
        }
        if ty == LruType::File {
            let fate = self.cache.evict(cx, pfn, shadow);
            if fate != Evicted::Freed {
                return fate;
            }
        } else {
            cx.spaces.unmap(cx.folios, pfn, shadow.0);
            self.stored.leave(cx, pfn);
        }
        self.spend(cx, pfn, ty, mapped);
        self.forget(cx, pfn);
        Evicted::Freed
    }

    fn write_file(&mut self, cx: &Ctx, pfn: Pfn) -> bool {
        self.spent_ns += self.costs.submit_ns;
        let begun = self.writes.begin(cx, &mut self.cache, &mut self.stored, pfn);
        if begun {
            self.note_write(pfn, LruType::File);
        }
        begun
    }

    fn note(&mut self, told: &ScanEvent) {
        let (at, task) = (self.now_ns + self.spent_ns, (self.task, self.cpu));
        if let Some(tracepoints) = &mut self.tracepoints {
            tracepoints.batch(at, told, task);
        }
    }

    fn wake_flusher(&mut self) {
        self.cache.ask_flusher();
    }

    fn pause(&mut self) -> bool {
        self.batched
    }

    fn enough(&mut self) -> bool {
        self.watch_zone
            .is_some_and(|(node, zone)| self.frames.balanced(node, Order::ZERO, zone, false))
    }
}

#[cfg(test)]
mod tests {
    use ebb_mm::space::Backing;
    use ebb_mm::types::Vpn;

    use super::super::ahead::Descriptors;
    use super::super::mem::{Access, Fault, Mem, Region, cx};
    use super::super::testing::machine;
    use super::*;

    /// Creates a space with one page of each kind, all touched. Each kind comes with the number of
    /// processes that map it.
    fn touched(kinds: &[(Backing, u32)]) -> (Mem, usize) {
        let mut mem = machine().mem;
        let regions: Vec<Region> = kinds
            .iter()
            .map(|&(backing, processes)| Region {
                pages: 1,
                backing,
                recency: true,
                exec: false,
                processes,
            })
            .collect();
        let space = mem.add_space(0, &regions);
        for page in 0..kinds.len() as u64 {
            let fault = mem.fault(0, space, page, Access::Write, &mut Descriptors::default());
            assert!(matches!(fault, Fault::Done(_)), "{fault:?}");
        }
        (mem, space)
    }

    #[test]
    fn reclaim_without_file_systems_unmaps_shared_memory_and_keeps_it() {
        let (mut mem, space) = touched(&[(Backing::Shmem, 3), (Backing::Anon, 1)]);
        let pte = |mem: &Mem, page| mem.list[space].tree().find(Vpn(page)).unwrap().get();
        let [shared, own] = [0, 1].map(|page| pte(&mem, page).pfn());
        for (no_fs, pfn, kept) in [(false, shared, false), (true, own, false), (true, shared, true)]
        {
            mem.out.no_fs = no_fs;
            assert_eq!(mem.out.keeps(&cx!(mem, 0), pfn), kept);
        }
        assert!(pte(&mem, 0).present() && !pte(&mem, 0).all(Pte::MAPPED), "a fault away");
        assert!(pte(&mem, 1).all(Pte::MAPPED));
        let spent = mem.out.spent_ns;
        assert!(spent > 2 * mem.costs.rmap_more_ns, "three processes: {spent}");
        assert!(mem.out.keeps(&cx!(mem, 0), shared));
        assert_eq!(mem.out.spent_ns, spent, "nobody maps it any more");
    }

    #[test]
    fn pages_that_no_process_maps_are_on_no_list() {
        let (mut mem, _) = touched(&[(Backing::Anon, 0), (Backing::Anon, 1)]);
        let cx = cx!(mem, 0);
        let lists = &mut mem.memcgs[0].on[0];
        lists.pagevec.drain(&lists.lruvec, &cx);
        assert_eq!(lists.lruvec.total(LruType::Anon), 1);
    }
}
