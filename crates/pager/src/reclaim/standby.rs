//! Moving to standby: moves the oldest pages out of the program's mappings into the pool.
//!
//! Part of the kswapd thread. The agent of the process moves the pages. A page that the agent
//! cannot move goes back to the lists or is unevictable. If the page is shared in the fork group,
//! the agent copies it first.
//!
//! * MOVE-1: The kernel moves a page only between areas with the same rights (EINVAL). A page of an
//!   area that is writable and executable goes to the executable part of the pool. The kernel does
//!   not report rights. So the pager looks at the area when a move fails. It tries the page again
//!   only if the rights are not those that it knew.

use super::{Reclaim, Stalled, Work, group_by_mm};
use crate::broken::{Rule, is_broken};
use crate::mm::link::{Link, Operation, Outcome, UNREPORTED};
use crate::mm::{Areas, Mm, State};
use crate::telemetry::counters;
use crate::wait::limits::BATCH_PATIENCE;
use ebb_agent::protocol::BATCH_MAX;
use ebb_mm::resident::{Dropped, Entry, FrameState, Resident};
use ebb_mm::types::{MmId, PAGE_SIZE, Pfn, Vpn};
use ebb_sys::proc::Area;
use std::sync::Arc;

const EBUSY: i32 = 16;
const ENOENT: i32 = 2;
const EAGAIN: i32 = 11;
const EFAULT: i32 = 14;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const EACCES: i32 = 13;
const EPERM: i32 = 1;
/// Result of a move that the pager has prevented ([`Reclaim::end_batch_by_reading_slots`]). No
/// errno has this value, nor has [`UNREPORTED`].
const FILLED: i32 = 4094;

/// Treatment of isolated frames that were not moved.
#[derive(Clone, Copy)]
pub enum Fate {
    MakeUnevictable,
    Retry,
}

impl Reclaim {
    /// Moves up to `max` of the oldest pages to standby.
    pub fn deactivate(&mut self, max: usize) -> usize {
        let mut victims = Vec::with_capacity(max);
        self.pager.engine().isolate(max, &mut victims);
        self.deactivate_isolated(&victims)
    }

    /// Moves isolated pages to standby.
    pub fn deactivate_isolated(&mut self, victims: &[Pfn]) -> usize {
        self.scanned += victims.len() as u64;
        let groups = {
            let resident = self.pager.resident();
            group_by_mm(victims, &resident)
        };
        groups.into_iter().map(|(id, frames)| self.deactivate_pages_of(id, frames)).sum()
    }

    fn deactivate_pages_of(&mut self, id: MmId, frames: Vec<Pfn>) -> usize {
        let mm = self.pager.mm(id);
        let movable = mm.as_ref().is_some_and(|mm| {
            mm.agent.is_there() && !self.is_stalled(id) && !self.is_unresponsive(mm)
        });
        let Some(mm) = mm else {
            make_unknown_unevictable(&mut self.pager.resident(), id, &frames);
            return 0;
        };
        if !movable || !self.thread_words.keep(&mm) {
            self.put_back_frames(&mm, &frames, Fate::MakeUnevictable);
            return 0;
        }
        if !self.prepare_pool(&mm, &frames) {
            return 0;
        }
        let link = mm.agent.link().expect("checked above");
        let mut operations = Vec::with_capacity(frames.len());
        let mut moving = Vec::with_capacity(frames.len());
        // A stopped process may share thousands of pages with this one. One look at this process's
        // page map is far faster than asking the agent about each batch of them.
        let stay = self.has_unresponsive_agent() && !self.has_room_for_copies();
        {
            let Some(mut state) = mm.lock_settled(BATCH_PATIENCE) else {
                self.put_back_frames(&mm, &frames, Fate::Retry);
                return 0;
            };
            let mut resident = self.pager.resident();
            for &pfn in &frames {
                let Some(vpn) = still_isolated(&resident, &state, pfn) else { continue };
                let shared = stay && !is_exclusive(&mm, vpn);
                if shared || link.is_pinned(vpn.0) || !ensure_registered(&mm, &mut state, vpn) {
                    self.immovable.busy += u64::from(shared);
                    resident.make_unevictable(pfn);
                    continue;
                }
                let executable = state.executable.end_of(vpn.address()).is_some();
                let Some(slot) = state.pool.take(executable) else {
                    resident.put_back(pfn);
                    continue;
                };
                let to = state.pool.address(slot);
                operations.push(Operation::Move { to, from: vpn.address() });
                moving.push((pfn, slot));
            }
            if operations.is_empty() {
                return 0;
            }
            // ORD-2: from here to the commit no thread reads a message of this address space.
            mm.state.begin_batch(&mut state);
        }
        match self.execute(&mm, &operations) {
            Outcome::Done => self.commit_standby(&mm, &moving),
            Outcome::Cancelled => {
                let mut state = mm.lock();
                for &(_, slot) in &moving {
                    state.pool.give_back(slot);
                }
                mm.state.end_batch(&mut state);
                drop(state);
                self.put_back_frames(&mm, &frames, Fate::MakeUnevictable);
                0
            }
            Outcome::Stalled => {
                let decided = self.end_batch_by_reading_slots(&mm, &moving);
                let work = decided.map_or(Work::ToStandby(moving), |_| Work::Decided);
                self.stalled.push(Stalled { mm, work });
                decided.unwrap_or(0)
            }
        }
    }

    /// Ends a batch for the pager before its agent does (ORD-7). A tracer has stopped the agent, or
    /// the agent gets no CPU. The tracer may wait for a page, or for a thread whose mapping change
    /// is unread. Returns the number of pages on standby; None if the slots cannot be read.
    pub fn end_batch_by_reading_slots(
        &mut self,
        mm: &Arc<Mm>,
        moving: &[(Pfn, u32)],
    ) -> Option<usize> {
        let (process, link) = (mm.process()?, mm.agent.link().expect("it began a batch"));
        // An agent that is in a system call reports the result afterwards. A read of the slots
        // could wait for the same event as that call.
        let is_in_call = |agent| process.threads().contains(&(agent, 'D'));
        if process.agent().is_some_and(is_in_call) {
            return None;
        }
        let mut results = results(link, moving.len());
        let unreported: Vec<usize> =
            (0..moving.len()).filter(|&at| results[at] == UNREPORTED).collect();
        let slots: Vec<u64> = {
            let state = mm.lock();
            unreported.iter().map(|&at| state.pool.address(moving[at].1)).collect()
        };
        // A read places the kernel's zero page in an empty slot. No later move can use that slot.
        let filled = is_broken(Rule::Ord7)
            || process.read_pages(&slots, &mut self.pages[..]).ok()? == slots.len();
        if !filled {
            return None;
        }
        for ((at, slot), page) in unreported.into_iter().zip(slots).zip(self.pages.iter()) {
            // Anything else that fills a hole fills it with zeros.
            let is_moved = page.iter().any(|&byte| byte != 0);
            results[at] = if is_moved { 0 } else { EEXIST };
            if !process.zero(slot, slot + PAGE_SIZE as u64).ok()?.is_empty() {
                results[at] = FILLED;
            }
        }
        Some(self.commit_moves(mm, moving, &results, false))
    }

    /// Commits the moves of a batch that the agent has ended.
    pub fn commit_standby(&mut self, mm: &Arc<Mm>, moving: &[(Pfn, u32)]) -> usize {
        let link = mm.agent.link().expect("it executed a batch");
        self.commit_moves(mm, moving, &results(link, moving.len()), true)
    }

    /// Commits the results of moves, one by one. `idle` says whether the agent can take another
    /// batch.
    fn commit_moves(
        &mut self,
        mm: &Arc<Mm>,
        moving: &[(Pfn, u32)],
        results: &[i32],
        idle: bool,
    ) -> usize {
        let mut moved = 0;
        let (mut shared, mut own, mut refused) = (Vec::new(), Vec::new(), Vec::new());
        let mut dropped = Dropped::default();
        // A private copy frees nothing while another member of the fork group, which cannot give
        // pages back, has the original.
        let unshare = !self.pager.mms().iter().any(|mm| mm.agent.is_starting());
        {
            let mut guard = mm.lock();
            let state = &mut *guard;
            let mut resident = self.pager.resident();
            for (&(pfn, slot), &result) in moving.iter().zip(results) {
                let Some(vpn) = still_isolated(&resident, state, pfn) else {
                    // Only the end of the address space can have taken the page.
                    continue;
                };
                if result == 0 || matches!(result, EEXIST | UNREPORTED) && has_left(mm, vpn) {
                    resident.deactivate(&mut state.space, pfn, slot);
                    moved += 1;
                    if self.unshared.remove(&pfn.0) {
                        self.offered.insert(pfn.0);
                    }
                    continue;
                }
                if matches!(result, EEXIST | FILLED) {
                    // Another event filled the hole (mlockall does). Its page is empty and is to be
                    // dropped.
                    state.pool.discard_later(slot);
                    mm.note_found(&mut resident.zone, 1);
                    resident.put_back(pfn);
                    continue;
                }
                state.pool.give_back(slot);
                // A page replaced by a guard is gone, and the kernel did not report that.
                let is_gone = result == ENOENT || result == EFAULT && has_left(mm, vpn);
                match result {
                    EBUSY if !idle => resident.put_back(pfn),
                    EBUSY if is_exclusive(mm, vpn) && self.unshared.insert(pfn.0) => own.push(pfn),
                    EBUSY if unshare && self.unshared.insert(pfn.0) => shared.push(pfn),
                    EAGAIN => resident.put_back(pfn),
                    EINVAL => refused.push((pfn, vpn)),
                    _ if is_gone => {
                        resident.forget(&mut state.space, vpn, &mut dropped);
                        mm.note_dropped(&mut resident.zone, 1, 0);
                    }
                    _ => {
                        self.immovable.busy += 1;
                        self.unshared.remove(&pfn.0);
                        counters::count(&self.pager.telemetry.counters.unmovable);
                        resident.make_unevictable(pfn);
                    }
                }
            }
            mm.state.end_batch(state);
        }
        self.pager.budget.discard(&dropped);
        counters::add(&self.pager.telemetry.counters.to_standby, moved as u64);
        if !refused.is_empty() {
            self.settle_refused(mm, &refused);
        }
        if !own.is_empty() {
            moved += self.unshare(mm, own, false);
        }
        if !shared.is_empty() {
            moved += self.make_copies(mm, shared);
        }
        moved
    }

    /// Decides about pages that the kernel refused to move because of their areas (EINVAL). If the
    /// rights of an area are others than the pager knew, its pages are tried again (MOVE-1). Any
    /// other page is locked or not writable.
    fn settle_refused(&mut self, mm: &Arc<Mm>, refused: &[(Pfn, Vpn)]) {
        let areas = areas_of(mm, refused);
        let mut guard = mm.lock();
        let state = &mut *guard;
        let mut resident = self.pager.resident();
        let is_known = |state: &State, at: u64| state.executable.end_of(at).is_some();
        let known: Vec<bool> =
            refused.iter().map(|&(_, vpn)| is_known(state, vpn.address())).collect();
        for (&(pfn, vpn), known) in refused.iter().zip(known) {
            match still_isolated(&resident, state, pfn) {
                None => continue,
                Some(now) if now == vpn => {}
                // The page was moved with its area since.
                Some(_) => {
                    resident.put_back(pfn);
                    continue;
                }
            }
            let area = areas.iter().find(|area| (area.start..area.end).contains(&vpn.address()));
            if let Some(area) = area.filter(|_| state.pool.may_be_executable())
                && is_executable(area) != known
            {
                state.executable.remove(area.start, area.end);
                if is_executable(area) {
                    state.executable.add(area.start, area.end);
                }
                resident.put_first(pfn);
                continue;
            }
            self.immovable.fixed += 1;
            self.unshared.remove(&pfn.0);
            counters::count(&self.pager.telemetry.counters.unmovable);
            resident.make_unevictable(pfn);
        }
    }

    /// Has the agent set the rights of the pool, if that is due. Returns false if that does not
    /// work now. The frames are then unevictable, or wait for the end of the agent's batch.
    fn prepare_pool(&mut self, mm: &Arc<Mm>, frames: &[Pfn]) -> bool {
        let rights = mm.lock().pool.rights_to_set();
        if rights.is_empty() {
            return true;
        }
        let operations: Vec<_> = rights
            .into_iter()
            .map(|(start, len, executable)| Operation::SetRights { start, len, executable })
            .collect();
        match self.execute(mm, &operations) {
            Outcome::Done => {
                record_rights(mm);
                true
            }
            Outcome::Cancelled => {
                self.put_back_frames(mm, frames, Fate::MakeUnevictable);
                false
            }
            Outcome::Stalled => {
                let work = Work::SetRights(frames.to_vec());
                self.stalled.push(Stalled { mm: mm.clone(), work });
                false
            }
        }
    }

    /// Whether there is room for a batch of private copies now. Copies free nothing before the last
    /// member of the fork group has released the originals. So kswapd makes none in advance, and
    /// stores standby pages first. A stopped process never releases its pages.
    fn has_room_for_copies(&self) -> bool {
        let resident = self.pager.resident();
        let batch = BATCH_MAX as u64;
        let none_on_standby =
            || resident.count(FrameState::Standby) < batch && !self.has_unresponsive_agent();
        resident.zone.free() > 2 * batch || none_on_standby()
    }

    /// Copies pages that other members of the fork group map, because such pages cannot be moved
    /// before.
    fn make_copies(&mut self, mm: &Arc<Mm>, frames: Vec<Pfn>) -> usize {
        if !self.has_room_for_copies() {
            frames.iter().for_each(|pfn| {
                self.unshared.remove(&pfn.0);
            });
            // No room will come from pages of a stopped member, so kswapd scans other pages
            // meanwhile.
            self.lacks_copy_room = !self.has_unresponsive_agent();
            let fate = if self.lacks_copy_room { Fate::Retry } else { Fate::MakeUnevictable };
            self.put_back_frames(mm, &frames, fate);
            return 0;
        }
        self.unshare(mm, frames, true)
    }

    /// Has the agent break the sharing of pages by write faults, so that they are private to its
    /// process. `copies` says that other processes have them, too.
    fn unshare(&mut self, mm: &Arc<Mm>, frames: Vec<Pfn>, copies: bool) -> usize {
        let operations: Vec<Operation> = {
            let state = mm.lock();
            let resident = self.pager.resident();
            frames
                .iter()
                .filter_map(|&pfn| still_isolated(&resident, &state, pfn))
                .map(|vpn| Operation::Unshare { start: vpn.address(), len: PAGE_SIZE as u64 })
                .collect()
        };
        // At every write-protected page the agent would wait for the fault thread. Pages protected
        // before the last fork still are.
        for operation in &operations {
            if let Operation::Unshare { start, len } = *operation {
                // A missing page is not protected either.
                let _ = mm.uffd.unprotect(start, len);
            }
        }
        match self.execute(mm, &operations) {
            Outcome::Done => {
                // At worst each of the pages is a new copy now. The monitor counts again soon.
                let copied = if copies { operations.len() as u64 } else { 0 };
                self.copies += copied;
                let mut resident = self.pager.resident();
                let charge = resident.zone.charge(copied);
                mm.note_copied(&mut resident.zone, charge);
                drop(resident);
                self.put_back_frames(mm, &frames, Fate::Retry);
                copied as usize
            }
            Outcome::Cancelled => {
                self.put_back_frames(mm, &frames, Fate::MakeUnevictable);
                0
            }
            Outcome::Stalled => {
                self.stalled.push(Stalled { mm: mm.clone(), work: Work::Unshare(frames) });
                0
            }
        }
    }

    /// Puts back isolated frames that were not moved.
    pub fn put_back_frames(&mut self, mm: &Arc<Mm>, frames: &[Pfn], fate: Fate) {
        let state = mm.lock();
        let mut resident = self.pager.resident();
        for &pfn in frames {
            if still_isolated(&resident, &state, pfn).is_some() {
                match fate {
                    Fate::MakeUnevictable => resident.make_unevictable(pfn),
                    Fate::Retry => resident.put_first(pfn),
                }
            }
        }
    }
}

/// Records the results of a batch that sets the rights of the pool.
pub fn record_rights(mm: &Mm) {
    let link = mm.agent.link().expect("it executed a batch");
    let mut state = mm.lock();
    let count = state.pool.rights_to_set().len();
    match (0..count).map(|index| link.result(index)).find(|&result| result != 0) {
        None => state.pool.rights_set(),
        Some(errno) => {
            state.pool.rights_not_set(matches!(errno, EACCES | EPERM));
            state.executable = Areas::default();
        }
    }
}

/// Whether pages of an area need a slot with every right.
fn is_executable(area: &Area) -> bool {
    area.readable && area.writable && area.executable
}

/// Returns the areas of these pages, as far as the kernel reports them. A query for the first page
/// covers the other pages of its area.
fn areas_of(mm: &Mm, pages: &[(Pfn, Vpn)]) -> Vec<Area> {
    let Some(process) = mm.process() else { return Vec::new() };
    let range = |vpn: Vpn| (vpn.address(), vpn.address() + PAGE_SIZE as u64);
    let found = |ranges: &[_]| process.areas_in(ranges).unwrap_or_default();
    let mut areas = pages.first().map_or_else(Vec::new, |&(_, vpn)| found(&[range(vpn)]));
    let is_missing = |vpn: Vpn| {
        !areas.iter().any(|area| area.start <= vpn.address() && vpn.address() < area.end)
    };
    let missing: Vec<_> =
        pages.iter().filter(|&&(_, vpn)| is_missing(vpn)).map(|&(_, vpn)| range(vpn)).collect();
    if !missing.is_empty() {
        areas.extend(found(&missing));
    }
    areas
}

/// Returns the results that the agent has reported of a batch of `count` moves.
fn results(link: &Link, count: usize) -> Vec<i32> {
    (0..count).map(|index| link.result(index)).collect()
}

/// Makes isolated frames of an unknown address space unevictable. A child whose table is still
/// being copied (`faults/fork.rs`) has pages before the pager knows it. The frames are retried
/// later.
fn make_unknown_unevictable(resident: &mut Resident, id: MmId, frames: &[Pfn]) {
    for &pfn in frames {
        let its = resident.is_used(pfn) && resident.frame(pfn).mm == id;
        if its && resident.frame(pfn).state == FrameState::Isolated {
            resident.make_unevictable(pfn);
        }
    }
}

/// Whether a page has left its address although its move failed with EEXIST. Linux 6.18 moves pages
/// in runs (`move_pages`, mm/userfaultfd.c). It keeps the error of a first attempt that met a
/// change of the page table entry. The second attempt moves the page, and a third finds its slot
/// taken, by the page itself. While the batch is under way no page is placed at the old address. If
/// the page map cannot be read, the page counts as moved. The page in the slot is then kept, and a
/// page that stayed does no harm.
fn has_left(mm: &Mm, vpn: Vpn) -> bool {
    mm.process().is_none_or(|process| !process.is_present(vpn.0).unwrap_or(false))
}

/// Whether the pager gets a fault on the page once it is gone; registers the page if needed. An
/// area that a forked child did not inherit may have left entries behind (`settle_inherited` in
/// `faults/fork.rs`). Another area may lie there by now.
fn ensure_registered(mm: &Mm, state: &mut State, vpn: Vpn) -> bool {
    let (start, end) = (vpn.address(), vpn.address() + PAGE_SIZE as u64);
    if state.areas.end_of(start).is_some() {
        return true;
    }
    let told = mm.uffd.manage(start, end);
    if told {
        state.areas.add(start, end);
    }
    told
}

/// Whether no other member of the fork group maps the page any more. The kernel moves it only after
/// the next write to it, which copies nothing.
fn is_exclusive(mm: &Mm, vpn: Vpn) -> bool {
    mm.process().is_some_and(|process| process.exclusive_run(vpn.0, 1).is_ok_and(|run| run == 1))
}

/// Returns the page of a frame that kswapd isolated, unless the frame has changed.
fn still_isolated(resident: &Resident, state: &State, pfn: Pfn) -> Option<Vpn> {
    if state.ended || !resident.is_used(pfn) {
        return None;
    }
    let frame = resident.frame(pfn);
    let mine = frame.state == FrameState::Isolated && frame.mm == state.space.mm();
    (mine && state.space.get(frame.vpn) == Entry::Resident(pfn)).then_some(frame.vpn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mm::pool::Pool;
    use crate::quiet::Quiet;
    use crate::seam::Known;
    use crate::wait::clock::Clock;
    use ebb_mm::resident::Space;
    use ebb_sys::anon::AnonBuffer;

    fn mm(uffd: &Quiet, areas: Areas) -> Mm {
        let pool = Pool::new(1 << 30, 64 * 4096, 0);
        let state = State::new(Space::new(MmId(2)), areas, pool, 8);
        Mm::new(Box::new(uffd.clone()), state, Clock::real())
    }

    #[test]
    fn a_page_has_left_where_the_page_map_does_not_have_it() {
        let mm = mm(&Quiet::default(), Areas::default());
        let mut buffer = AnonBuffer::new(2 * PAGE_SIZE).expect("two pages");
        buffer[0] = 1;
        let first = Vpn::of_address(buffer.as_ptr() as u64);
        assert!(has_left(&mm, first), "nobody can tell");
        mm.owner.identify(Box::new(Known::open(std::process::id()).expect("this process")));
        assert!(!has_left(&mm, first) && has_left(&mm, Vpn(first.0 + 1)));
    }

    /// Shows that a page moves out only from a registered area. An entry may remain from an area
    /// that a forked child did not inherit. A page of another area there would be lost at the next
    /// access, because the pager gets no fault.
    #[test]
    fn a_page_is_moved_out_only_of_a_registered_area() {
        let page = PAGE_SIZE as u64;
        let mut areas = Areas::default();
        areas.add(8 * page, 10 * page);
        let uffd = Quiet::default();
        let quick = mm(&uffd, areas.clone());
        let mut state = quick.lock();
        assert!(
            ensure_registered(&quick, &mut state, Vpn(8))
                && ensure_registered(&quick, &mut state, Vpn(9))
        );
        assert_eq!(uffd.registered.lock().unwrap().len(), 0, "nothing is asked of the kernel");
        assert!(ensure_registered(&quick, &mut state, Vpn(10)), "now it is");
        assert_eq!(*uffd.registered.lock().unwrap(), [(10 * page, 11 * page)]);
        assert_eq!(state.areas.iter().collect::<Vec<_>>(), [(8 * page, 11 * page)]);
        assert!(ensure_registered(&quick, &mut state, Vpn(10)));
        assert_eq!(uffd.registered.lock().unwrap().len(), 1, "known from then on");
        let refused = mm(&Quiet { refuses: true, ..Quiet::default() }, areas);
        let mut state = refused.lock();
        assert!(
            ensure_registered(&refused, &mut state, Vpn(9))
                && !ensure_registered(&refused, &mut state, Vpn(10))
        );
        assert_eq!(state.areas.iter().collect::<Vec<_>>(), [(8 * page, 10 * page)]);
    }
}
