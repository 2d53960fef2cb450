//! Page faults: a page that is absent gets a frame, and its content if it had any.
//!
//! A fault makes room first. Then it puts whole windows into frames and reads them together. The
//! functions return the cost of each step. The scheduler decides which thread waits, and for what.

use std::sync::Arc;

use ebb_linux::memcg::Charged;
use ebb_linux::writeback::Window;
use ebb_mm::folio::{LruType, MemcgId, Word};
use ebb_mm::lru::{Ctx, Shadow};
use ebb_mm::observe::vmstat::Event;
use ebb_mm::space::{Backing, Pte};
use ebb_mm::types::{Pfn, Vpn};

use super::ahead::Descriptors;
use super::device::Device;
use super::mem::{Access, Fault, Mem, Region, cx};
use super::task::Plan;

/// Returns the pages of a window without `page`.
fn others_of(window: Window, space: usize, page: u64) -> Vec<(usize, u64)> {
    window.range().filter(|&at| at != page).map(|at| (space, at)).collect()
}

impl Mem {
    /// Makes a page available that [`touch`](Self::touch) did not find.
    pub fn fault(
        &mut self,
        now: u64,
        space: usize,
        page: u64,
        access: Access,
        descriptors: &mut Descriptors,
    ) -> Fault {
        self.stalls = false;
        self.retries_at_once = false;
        self.clock_ns = now;
        if self.live.is_some() {
            return self.live_fault(now, space, page, access.writes());
        }
        let fault = self.handle(now, space, page, access, descriptors);
        if let Some(pfn) = self.held.take() {
            self.out.release(pfn);
        }
        self.hold_above_high(now, self.owner[space], fault)
    }

    fn handle(
        &mut self,
        now: u64,
        space: usize,
        page: u64,
        access: Access,
        descriptors: &mut Descriptors,
    ) -> Fault {
        let costs = self.costs.clone();
        let entry = if access.mapped() { costs.fault_ns } else { costs.fd_ns };
        let tree = Arc::clone(&self.list[space]);
        let place = tree.tree().place(Vpn(page));
        let pte = place.get();
        if pte.present() {
            let ready = self.out.ready_ns[pte.pfn().0 as usize];
            if ready > now {
                self.stalls = self.folios.word(pte.pfn()).has(Word::WORKINGSET);
                return Fault::Wait { until_ns: ready, cost_ns: 0 };
            }
            self.spent.fault_ns += entry;
            let mut cost = entry;
            let word = self.folios.word(pte.pfn());
            if access.mapped() && !word.has(Word::SWAPBACKED) {
                self.not_missed(space);
            }
            if access != Access::FdWrite && self.begins_ahead(pte.pfn()) {
                let both = Word::AHEAD.or(Word::RECLAIM);
                self.folios
                    .clear(pte.pfn(), if self.tun.file.one_mark { both } else { Word::AHEAD });
                self.spent.marks_met += 1;
                let is_false = !word.has(Word::AHEAD);
                self.spent.false_marks += u64::from(is_false);
                let (took, read) = self.read_on(now, space, page, access.mapped(), descriptors);
                self.spent.false_ahead += if is_false { read } else { 0 };
                cost += took;
            }
            let pte = place.get();
            if !pte.present() {
                // Making room for the pages that follow took this page out.
                return Fault::Wait { until_ns: now + cost, cost_ns: cost };
            }
            self.map_present(space, page, pte, access, now);
            return Fault::Done(cost + self.map_around(now, space, page, access));
        }
        let (end, region) = self.region(space, page);
        let anon = region.backing != Backing::File;
        let stored = pte.shadow().is_some();
        let reads = if anon { stored } else { access != Access::FdWrite };
        let plan = self.task().plan.take().filter(|plan| plan.at == (space, page));
        // A fault that comes back after a batch of reclaim is not a new fault.
        self.stat.add(Event::PgFault, u64::from(plan.is_none()));
        let (window, mut others) = match plan {
            // The plan was made when the task began to reclaim for it.
            Some(plan) => (plan.window, plan.others),
            None if !reads => (Window::one(page), Vec::new()),
            None if anon => (Window::one(page), self.ahead_from_swap(space, page)),
            None => {
                let window =
                    self.window(descriptors, (space, page), (end, region), access.mapped());
                (window, Vec::new())
            }
        };
        let pages = window.pages + others.len() as u64;
        // A task that reads a page of a file reclaims without entering file systems. A task that
        // writes a page may enter them.
        let writes = access == Access::FdWrite;
        let task = self.task();
        (task.no_fs, task.writes) = (!anon && !writes, writes);
        let (room, mut cost) = self.make_room(now, self.owner[space], pages, anon);
        if room == 0 {
            self.task().plan = Some(Plan { at: (space, page), window, others });
            if self.retries_at_once {
                return Fault::Again(cost);
            }
            cost += entry;
            return match self.next_try_ns() {
                Some(until_ns) => {
                    self.stalls = true;
                    self.spent.room_ns += until_ns.saturating_sub(now + cost);
                    Fault::Wait { until_ns: until_ns.max(now + cost), cost_ns: cost }
                }
                None => Fault::NoMemory(cost),
            };
        }
        cost += entry;
        self.fold();
        if !reads {
            let zero = costs.zero_ns + costs.alloc_ns;
            let Some(pfn) = self.insert(now, space, page, access, region, true) else {
                return self.no_frame(now, cost);
            };
            self.spent.fault_ns += entry + zero;
            cost += self.charge_add(now + cost, self.owner[space], pfn);
            return Fault::Done(cost + zero);
        }
        let window = window.within(page, room);
        if anon {
            others.truncate(room as usize - 1);
        } else {
            others = others_of(window, space, page);
        }
        self.bring_in(now, cost, (space, page, access), (&others, window.mark), anon)
    }

    /// Reclaims, because compressed memory took the frame of this fault. The thread then tries
    /// again.
    fn no_frame(&mut self, now: u64, cost: u64) -> Fault {
        let cost = cost + self.direct(now + cost, None).1;
        Fault::Wait { until_ns: now + cost, cost_ns: cost }
    }

    /// Reads a page together with the other pages of its window.
    fn bring_in(
        &mut self,
        now: u64,
        mut cost: u64,
        (space, page, access): (usize, u64, Access),
        (others, mark): (&[(usize, u64)], Option<u64>),
        anon: bool,
    ) -> Fault {
        self.stat.add(Event::PgMajFault, 1);
        cost += self.costs.major_ns;
        self.spent.fault_ns += self.costs.major_ns;
        let (at, flushed) = ((space, page, access), self.spent.flush_ns);
        let (first, took) = self.fill(now + cost, at, Some(page), others, mark);
        let later = self.spent.flush_ns - flushed;
        cost += took;
        let Some(first) = first else { return self.no_frame(now, cost) };
        let start = now + cost;
        let (done, sync) =
            if anon { self.read_swap(start, later) } else { self.read_file(start, later) };
        if sync {
            cost += self.map_around(done, space, page, access);
            Fault::Done(cost + (done - start))
        } else if done > start {
            self.stalls = self.folios.word(first).has(Word::WORKINGSET);
            Fault::Wait { until_ns: done, cost_ns: cost }
        } else {
            let pte = self.list[space].tree().place(Vpn(page)).get();
            debug_assert_eq!(pte.pfn(), first);
            self.map_present(space, page, pte, access, now);
            Fault::Done(cost + self.map_around(now, space, page, access))
        }
    }

    /// Puts pages into frames, `page` first. The pages that were absent and got a frame are in
    /// `brought`. `asked` is the page for which the thread waits. Returns the frame of `asked`, and
    /// the cost.
    fn fill(
        &mut self,
        now: u64,
        (space, page, access): (usize, u64, Access),
        asked: Option<u64>,
        others: &[(usize, u64)],
        mark: Option<u64>,
    ) -> (Option<Pfn>, u64) {
        let anon = self.region(space, page).1.backing != Backing::File;
        let sync = self.device(anon).is_none_or(|d| d.is_sync());
        self.brought.clear();
        self.brought_from.clear();
        let (mut first, mut cost) = (None, 0);
        for &(owner, at) in std::iter::once(&(space, page)).chain(others) {
            let pte = self.list[owner].tree().place(Vpn(at)).get();
            if pte.present() {
                continue;
            }
            if anon {
                let Some(slot) = self.out.stored.slot_outside(self.list[owner].id(), Vpn(at))
                else {
                    continue;
                };
                self.brought_from.push(u64::from(slot.0));
            }
            let asked = owner == space && asked == Some(at);
            let region = self.region(owner, at).1;
            let Some(pfn) = self.insert(now, owner, at, access, region, sync && asked) else {
                self.brought_from.truncate(self.brought.len());
                break;
            };
            if asked {
                first = Some(pfn);
            } else {
                self.folios.set(pfn, Word::PREFETCHED);
            }
            if anon {
                self.marked[pfn.0 as usize] = !asked;
            } else if mark == Some(at) {
                self.folios.set(pfn, Word::AHEAD);
            }
            cost += self.costs.alloc_ns + self.charge_add(now + cost, self.owner[owner], pfn);
            cost += self.flush_counters(now + cost);
            self.brought.push((owner, at));
        }
        (first, cost)
    }

    fn device(&mut self, anon: bool) -> Option<&mut Device> {
        if anon { self.out.swap.as_mut() } else { Some(&mut self.disk) }
    }

    /// Reads the pages of a file that have got frames. Returns when they are in memory, and whether
    /// the read occupied the processor.
    ///
    /// The device serves requests in the order in which they are submitted. Work for these pages
    /// delays their read by `later`. The request is still submitted without that delay. Otherwise
    /// requests that other threads submit meanwhile would wait for this one.
    fn read_file(&mut self, start: u64, later: u64) -> (u64, bool) {
        let n = self.brought.len() as u64;
        let first = self.brought.iter().min().copied().unwrap_or_default();
        let place = ((first.0 as u64) << 36) + first.1;
        let done = self.disk.submit(start - later, false, place, n) + later;
        let sync = self.disk.is_sync();
        if !sync && done > start {
            (0..self.brought.len()).for_each(|i| self.set_ready(i, done));
        }
        (done, sync)
    }

    /// Sets the time at which the `i`th page brought in will be in memory.
    pub(super) fn set_ready(&mut self, i: usize, done: u64) {
        let (space, page) = self.brought[i];
        let pte = self.list[space].tree().place(Vpn(page)).get();
        self.out.ready_ns[pte.pfn().0 as usize] = done;
    }

    /// Reads the next window because a marked page was reached. No thread waits for it. Returns the
    /// cost, and the number of pages read.
    fn read_on(
        &mut self,
        now: u64,
        space: usize,
        page: u64,
        mapped: bool,
        descriptors: &mut Descriptors,
    ) -> (u64, u64) {
        let next = self.next_window(descriptors, (space, page), mapped);
        let Some(window) = next else { return (0, 0) };
        let (room, mut cost) = self.make_room_once(now, self.owner[space], window.pages);
        if room == 0 {
            return (cost, 0);
        }
        let window = window.within(window.first, room);
        // The pages of a read that a fault begins count as brought in by the fault.
        let access = if mapped { Access::Read } else { Access::FdRead };
        let at = (space, window.first, access);
        let others = others_of(window, space, window.first);
        let flushed = self.spent.flush_ns;
        let (_, took) = self.fill(now + cost, at, None, &others, window.mark);
        let later = self.spent.flush_ns - flushed;
        cost += took;
        let read = self.brought.len() as u64;
        if read > 0 {
            cost += self.costs.submit_ns;
            let start = now + cost;
            let (done, sync) = self.read_file(start, later);
            cost += if sync { done - start } else { 0 };
        }
        (cost, read)
    }

    /// Maps a page that is in memory and not mapped, or touches it through a descriptor.
    fn map_present(&mut self, space: usize, page: u64, pte: Pte, access: Access, now: u64) {
        if !access.mapped() {
            self.touch_fd(space, page, pte.pfn(), access, now);
            return;
        }
        self.folios.update(pte.pfn(), |w| w.with(Word::MAPPED).without(Word::PREFETCHED));
        if std::mem::take(&mut self.marked[pte.pfn().0 as usize]) {
            self.hit_ahead(space, page, pte.pfn(), now);
        }
        let tree = Arc::clone(&self.list[space]);
        let place = tree.tree().place(Vpn(page));
        let mut bits = Pte::MAPPED | Pte::ACCESSED;
        if access.writes() {
            bits |= Pte::DIRTY;
            self.made_dirty(pte.pfn(), now);
        }
        place.touch(pte, bits);
    }

    /// Puts a page into the frame that [`make_room`](Self::make_room) has found. Returns none if
    /// there is no frame any more.
    fn insert(
        &mut self,
        now: u64,
        space: usize,
        page: u64,
        access: Access,
        region: Region,
        map: bool,
    ) -> Option<Pfn> {
        let id = self.owner[space];
        let pfn = self.alloc()?;
        let charged = self.out.groups.charge(MemcgId(id as u16 + 1), 1);
        debug_assert!(!matches!(charged, Charged::Full(_)), "room was made");
        if let Some(heat) = &mut self.out.heat {
            heat.count(0, space, page);
        }
        self.out.ready_ns[pfn.0 as usize] = 0;
        self.marked[pfn.0 as usize] = false;
        let anon = region.backing != Backing::File;
        let tree = Arc::clone(&self.list[space]);
        let place = tree.tree().place(Vpn(page));
        let shadow = place.get().shadow();
        let zone = self.zone_ends.partition_point(|&(end, _)| end <= pfn.0);
        let zone = self.zone_ends[zone.min(self.zone_ends.len() - 1)].1;
        let ty = if anon { LruType::Anon } else { LruType::File };
        let mut word = Word::new(ty, 0, zone);
        let mut bits = 0;
        if map && access.mapped() && region.processes > 0 {
            word = word.with(Word::MAPPED);
            bits = Pte::MAPPED | Pte::ACCESSED;
            bits |= if access.writes() { Pte::DIRTY } else { 0 };
        }
        let cx = cx!(self, now);
        let on = &mut self.memcgs[id].on;
        let node = usize::from(self.folios.node(pfn));
        self.folios.init(pfn, word, on[node].lruvec.memcg(), tree.id(), Vpn(page));
        if anon && shadow.is_some() {
            // As in the kernel, slots are kept only while swap is less than half full. Shared
            // memory gives its slot back at once (`shmem_swapin_page`).
            let shared = region.backing == Backing::Shmem;
            let keep = self.tun.swap.keep_slot && !shared && !self.out.stored.is_half_full();
            self.out.stored.arrive(&cx, pfn, keep && !(map && access.writes()));
            self.out.settle_pool();
        }
        let in_fault = access.mapped() && region.recency;
        // A page that is written whole is no refault, because no thread missed its old content.
        if let Some(s) = shadow.filter(|_| access != Access::FdWrite) {
            let left = &on[usize::from(Shadow(s).node())].lruvec;
            on[node].lruvec.refault_from(left, &cx, pfn, Shadow(s), in_fault);
            self.refaulted = true;
        }
        if in_fault {
            on[node].lruvec.note_fault(&cx, pfn);
        }
        place.table.set(place.index, Pte::of_frame(pfn, bits));
        place.touch(place.get(), bits);
        if region.processes > 0 {
            let lists = &mut on[node];
            lists.pagevec.add(&lists.lruvec, &cx, pfn);
        }
        if !access.mapped() {
            // A page that is read ahead or in transfer counts as used when a thread reads it.
            if map {
                self.touch_fd(space, page, pfn, access, now);
            }
        } else if !anon && bits & Pte::DIRTY != 0 {
            self.dirty_file(pfn, now);
        }
        Some(pfn)
    }
}
