//! Cooling: the oldest pages are moved out of the program's sight.
//!
//! Part of the kswapd thread. The agent of the process moves them; what it could not move goes back,
//! is parked, or is copied first because a relative shares it.

use super::{Reclaim, Stalled, Work, group_by_mm};
use crate::broken::{Rule, is_broken};
use crate::counters;
use crate::limits::BATCH_PATIENCE;
use crate::link::{Link, Operation, Outcome, UNTOLD};
use crate::mm::{Mm, State};
use ebb_agent::protocol::BATCH_MAX;
use ebb_mm::resident::{Dropped, Entry, Place, Resident};
use ebb_mm::types::{MmId, PAGE_SIZE, Pfn, Vpn};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

const EBUSY: i32 = 16;
const ENOENT: i32 = 2;
const EAGAIN: i32 = 11;
const EFAULT: i32 = 14;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
/// The result of a move that was kept from being made ([`Reclaim::decide`]): no errno is that, nor [`UNTOLD`].
const FILLED: i32 = 4094;

/// What becomes of isolated frames that were not moved.
#[derive(Clone, Copy)]
pub enum Fate {
    Park,
    Retry,
}

impl Reclaim {
    /// Moves up to `max` of the oldest pages out of sight.
    pub fn cool(&mut self, max: usize) -> usize {
        let mut victims = Vec::with_capacity(max);
        self.pager.engine().isolate(max, &mut victims);
        self.cool_isolated(&victims)
    }

    /// Moves isolated pages out of sight.
    pub fn cool_isolated(&mut self, victims: &[Pfn]) -> usize {
        self.scanned += victims.len() as u64;
        let groups = {
            let resident = self.pager.resident();
            group_by_mm(victims, &resident)
        };
        groups.into_iter().map(|(id, frames)| self.cool_of(id, frames)).sum()
    }

    fn cool_of(&mut self, id: MmId, frames: Vec<Pfn>) -> usize {
        let mm = self.pager.mm(id);
        let movable = mm.as_ref().is_some_and(|mm| {
            mm.link.get().is_some()
                && !mm.closing.load(Relaxed)
                && !self.is_stalled(id)
                && !self.is_deaf(mm)
        });
        let Some(mm) = mm else {
            park_unknown(&mut self.pager.resident(), id, &frames);
            return 0;
        };
        if !movable || !self.thread_words.keep(&mm) {
            self.settle(&mm, &frames, Fate::Park);
            return 0;
        }
        let link = mm.link.get().expect("checked above");
        let mut operations = Vec::with_capacity(frames.len());
        let mut moving = Vec::with_capacity(frames.len());
        // Thousands may be shared with one that is stopped: to ask the agent about each batch of them takes
        // far longer than to look at its page map.
        let stay = self.is_unheard() && !self.has_room_for_copies();
        {
            let Some(mut state) = mm.lock_settled(BATCH_PATIENCE) else {
                self.settle(&mm, &frames, Fate::Retry);
                return 0;
            };
            let mut resident = self.pager.resident();
            for &pfn in &frames {
                let Some(vpn) = still_isolated(&resident, &state, pfn) else { continue };
                let shared = stay && !is_alone(&mm, vpn);
                if shared || link.is_pinned(vpn.0) || !is_told(&mm, &mut state, vpn) {
                    self.immovable.busy += u64::from(shared);
                    resident.park(pfn);
                    continue;
                }
                let Some(place) = state.pool.take() else {
                    resident.put_back(pfn);
                    continue;
                };
                let to = state.pool.address(place);
                operations.push(Operation::Move { to, from: vpn.address() });
                moving.push((pfn, place));
            }
            if operations.is_empty() {
                return 0;
            }
            // ORD-2: from here to the commit no message of this address space is read.
            mm.begin_batch(&mut state);
        }
        match link.execute(&operations) {
            Outcome::Done => self.commit_cool(&mm, &moving),
            Outcome::Cancelled => {
                mm.fell_silent();
                let mut state = mm.lock();
                for &(_, place) in &moving {
                    state.pool.give_back(place);
                }
                mm.end_batch(&mut state);
                drop(state);
                self.settle(&mm, &frames, Fate::Park);
                0
            }
            Outcome::Stalled => {
                let decided = self.decide(&mm, &moving);
                let work = decided.map_or(Work::Cool(moving), |_| Work::Decided);
                self.stalled.push(Stalled { mm, work });
                decided.unwrap_or(0)
            }
        }
    }

    /// Ends a batch for the pager before its agent does, which a tracer has stopped, or which gets no CPU (ORD-7). The tracer may wait
    /// for a page, or for a thread whose change nobody reads. How many pages are cool; None if the places cannot be read.
    pub fn decide(&mut self, mm: &Arc<Mm>, moving: &[(Pfn, u32)]) -> Option<usize> {
        let (process, link) = (mm.process()?, mm.link.get().expect("it began a batch"));
        // In a call it waits for what a read would wait for as well, and tells of it then.
        let is_in_call = |agent| process.threads().contains(&(agent, 'D'));
        if process.agent().is_some_and(is_in_call) {
            return None;
        }
        let mut results = results(link, moving.len());
        let untold: Vec<usize> = (0..moving.len()).filter(|&at| results[at] == UNTOLD).collect();
        let places: Vec<u64> = {
            let state = mm.lock();
            untold.iter().map(|&at| state.pool.address(moving[at].1)).collect()
        };
        // A read puts the kernel's zero page where there is none: no move is made to there any more.
        let filled = is_broken(Rule::Ord7)
            || process.read_pages(&places, &mut self.pages[..]).ok()? == places.len();
        if !filled {
            return None;
        }
        for ((at, place), page) in untold.into_iter().zip(places).zip(self.pages.iter()) {
            // Whatever else fills a hole fills it with zeros.
            let is_moved = page.iter().any(|&byte| byte != 0);
            results[at] = if is_moved { 0 } else { EEXIST };
            let mut filled = |_, _| results[at] = FILLED;
            process.scan_zero(place, place + PAGE_SIZE as u64, &mut filled).ok()?;
        }
        Some(self.commit_moves(mm, moving, &results, false))
    }

    /// The agent has ended its batch.
    pub fn commit_cool(&mut self, mm: &Arc<Mm>, moving: &[(Pfn, u32)]) -> usize {
        let link = mm.link.get().expect("it executed a batch");
        self.commit_moves(mm, moving, &results(link, moving.len()), true)
    }

    /// The moves were made, or not, one by one. `idle`: the agent can be given another batch.
    fn commit_moves(
        &mut self,
        mm: &Arc<Mm>,
        moving: &[(Pfn, u32)],
        results: &[i32],
        idle: bool,
    ) -> usize {
        let mut cooled = 0;
        let (mut shared, mut own) = (Vec::new(), Vec::new());
        let mut dropped = Dropped::default();
        // A copy of one's own frees nothing while a relative that cannot give pages back holds the other.
        let unshare = !self.pager.mms().iter().any(|mm| mm.is_infant());
        {
            let mut guard = mm.lock();
            let state = &mut *guard;
            let mut resident = self.pager.resident();
            for (&(pfn, place), &result) in moving.iter().zip(results) {
                let Some(vpn) = still_isolated(&resident, state, pfn) else {
                    // Only the end of the address space can have taken it.
                    continue;
                };
                if result == 0 || matches!(result, EEXIST | UNTOLD) && has_left(mm, vpn) {
                    resident.cool(&mut state.space, pfn, place);
                    cooled += 1;
                    if self.unshared.remove(&pfn.0) {
                        self.offered.insert(pfn.0);
                    }
                    continue;
                }
                if matches!(result, EEXIST | FILLED) {
                    // Something filled the hole (mlockall does): it holds nothing and is dropped.
                    state.pool.retire(place);
                    mm.found(&mut resident.zone, 1);
                    resident.put_back(pfn);
                    continue;
                }
                state.pool.give_back(place);
                // What a guard was put over is gone, which nobody was told.
                let is_gone = result == ENOENT || result == EFAULT && has_left(mm, vpn);
                match result {
                    EBUSY if !idle => resident.put_back(pfn),
                    EBUSY if is_alone(mm, vpn) && self.unshared.insert(pfn.0) => own.push(pfn),
                    EBUSY if unshare && self.unshared.insert(pfn.0) => shared.push(pfn),
                    EAGAIN => resident.put_back(pfn),
                    _ if is_gone => {
                        resident.forget(&mut state.space, vpn, &mut dropped);
                        mm.dropped(&mut resident.zone, 1, 0);
                    }
                    errno => {
                        match errno {
                            EINVAL => self.immovable.fixed += 1,
                            _ => self.immovable.busy += 1,
                        }
                        self.unshared.remove(&pfn.0);
                        counters::count(&self.pager.counters.unmovable);
                        resident.park(pfn);
                    }
                }
            }
            mm.end_batch(state);
        }
        self.pager.discard(&dropped);
        counters::add(&self.pager.counters.cooled, cooled as u64);
        if !own.is_empty() {
            cooled += self.unshare(mm, own, false);
        }
        if !shared.is_empty() {
            cooled += self.make_copies(mm, shared);
        }
        cooled
    }

    /// Whether a batch of copies of one's own may be made now. They free nothing before the last
    /// relative has let go of what they are copies of, so no stock is laid in of them: what is cool goes
    /// to the store first. One that is stopped never lets go.
    fn has_room_for_copies(&self) -> bool {
        let resident = self.pager.resident();
        let batch = BATCH_MAX as u64;
        let none_is_cool = || resident.count(Place::Cool) < batch && !self.is_unheard();
        resident.zone.free() > 2 * batch || none_is_cool()
    }

    /// Pages also mapped by a relative cannot be moved until the process has its own copies.
    fn make_copies(&mut self, mm: &Arc<Mm>, frames: Vec<Pfn>) -> usize {
        if !self.has_room_for_copies() {
            frames.iter().for_each(|pfn| {
                self.unshared.remove(&pfn.0);
            });
            // No room will come of what a stopped relative holds: others are looked at meanwhile.
            self.crowded = !self.is_unheard();
            let fate = if self.crowded { Fate::Retry } else { Fate::Park };
            self.settle(mm, &frames, fate);
            return 0;
        }
        self.unshare(mm, frames, true)
    }

    /// Has the agent touch pages as a write does, so that they are its process's own. `copies` says
    /// that others have them, too.
    fn unshare(&mut self, mm: &Arc<Mm>, frames: Vec<Pfn>, copies: bool) -> usize {
        let link = mm.link.get().expect("it executed a batch");
        let operations: Vec<Operation> = {
            let state = mm.lock();
            let resident = self.pager.resident();
            frames
                .iter()
                .filter_map(|&pfn| still_isolated(&resident, &state, pfn))
                .map(|vpn| Operation::Unshare { start: vpn.address(), len: PAGE_SIZE as u64 })
                .collect()
        };
        // The agent would wait for the fault thread at every guarded page, and what was guarded before
        // the last fork still is.
        for operation in &operations {
            if let Operation::Unshare { start, len } = *operation {
                // What is gone is not guarded either.
                let _ = mm.uffd.unprotect(start, len);
            }
        }
        match link.execute(&operations) {
            Outcome::Done => {
                // At worst every one of them is a new page now; counted anew before long.
                let copied = if copies { operations.len() as u64 } else { 0 };
                self.copies += copied;
                let mut resident = self.pager.resident();
                let charge = resident.zone.charge(copied);
                mm.copied(&mut resident.zone, charge);
                drop(resident);
                self.settle(mm, &frames, Fate::Retry);
                copied as usize
            }
            Outcome::Cancelled => {
                mm.fell_silent();
                self.settle(mm, &frames, Fate::Park);
                0
            }
            Outcome::Stalled => {
                self.stalled.push(Stalled { mm: mm.clone(), work: Work::Unshare(frames) });
                0
            }
        }
    }

    /// What becomes of isolated frames that were not moved.
    pub fn settle(&mut self, mm: &Arc<Mm>, frames: &[Pfn], fate: Fate) {
        let state = mm.lock();
        let mut resident = self.pager.resident();
        for &pfn in frames {
            if still_isolated(&resident, &state, pfn).is_some() {
                match fate {
                    Fate::Park => resident.park(pfn),
                    Fate::Retry => resident.put_first(pfn),
                }
            }
        }
    }
}

/// What the agent has told of a batch of so many moves.
fn results(link: &Link, count: usize) -> Vec<i32> {
    (0..count).map(|index| link.result(index)).collect()
}

/// Isolated frames of an address space that is not known: a child whose table is still being copied (`fork.rs`) has pages
/// before it is. They are looked at again later.
fn park_unknown(resident: &mut Resident, id: MmId, frames: &[Pfn]) {
    for &pfn in frames {
        let its = resident.is_used(pfn) && resident.frame(pfn).mm == id;
        if its && resident.frame(pfn).place == Place::Isolated {
            resident.park(pfn);
        }
    }
}

/// Whether a page that could not be moved because its place is taken has been moved all the same. Linux 6.18 moves
/// pages in runs (`move_pages`, mm/userfaultfd.c) and keeps the error of a first attempt that met a change of
/// the page's entry: the next one moves the page, and a third then finds its place taken, by the page itself.
/// While the batch is under way nothing is put where it was. Where nobody can tell, the page counts as
/// moved: what is in the place is then kept, and a page that stayed is not missed.
fn has_left(mm: &Mm, vpn: Vpn) -> bool {
    mm.process().is_none_or(|process| !process.is_present(vpn.0).unwrap_or(false))
}

/// Whether a touch of the page is told of once it is gone, which is seen to. An area that a forked child was not given
/// may have left entries behind (`settle_inherited` in `fork.rs`), and something else lie there by now.
fn is_told(mm: &Mm, state: &mut State, vpn: Vpn) -> bool {
    let (start, end) = (vpn.address(), vpn.address() + PAGE_SIZE as u64);
    if state.areas.end_of(start).is_some() {
        return true;
    }
    let told = mm.manage(start, end);
    if told {
        state.areas.add(start, end);
    }
    told
}

/// Whether no relative maps the page any more. The kernel moves it only after the next write to it, which
/// copies nothing.
fn is_alone(mm: &Mm, vpn: Vpn) -> bool {
    mm.process().is_some_and(|process| process.exclusive_run(vpn.0, 1).is_ok_and(|run| run == 1))
}

/// The page of a frame that kswapd isolated, unless it is no longer that.
fn still_isolated(resident: &Resident, state: &State, pfn: Pfn) -> Option<Vpn> {
    if state.ended || !resident.is_used(pfn) {
        return None;
    }
    let frame = resident.frame(pfn);
    let mine = frame.place == Place::Isolated && frame.mm == state.space.mm();
    (mine && state.space.get(frame.vpn) == Entry::Resident(pfn)).then_some(frame.vpn)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mm::Areas;
    use crate::pool::Pool;
    use crate::quiet::Quiet;
    use crate::seam::{Clock, Known};
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
        mm.set_process(Box::new(Known::open(std::process::id()).expect("this process")));
        assert!(!has_left(&mm, first) && has_left(&mm, Vpn(first.0 + 1)));
    }

    /// An entry was left behind by an area that a forked child was not given, and a page of something else that lies there
    /// now was moved out: nobody was asked for it when it was touched again.
    #[test]
    fn a_page_is_moved_out_only_of_what_is_registered() {
        let page = PAGE_SIZE as u64;
        let mut areas = Areas::default();
        areas.add(8 * page, 10 * page);
        let uffd = Quiet::default();
        let quick = mm(&uffd, areas.clone());
        let mut state = quick.lock();
        assert!(is_told(&quick, &mut state, Vpn(8)) && is_told(&quick, &mut state, Vpn(9)));
        assert_eq!(uffd.registered.lock().unwrap().len(), 0, "nothing is asked of the kernel");
        assert!(is_told(&quick, &mut state, Vpn(10)), "now it is");
        assert_eq!(*uffd.registered.lock().unwrap(), [(10 * page, 11 * page)]);
        assert_eq!(state.areas.iter().collect::<Vec<_>>(), [(8 * page, 11 * page)]);
        assert!(is_told(&quick, &mut state, Vpn(10)));
        assert_eq!(uffd.registered.lock().unwrap().len(), 1, "known from then on");
        let refused = mm(&Quiet { refuses: true, ..Quiet::default() }, areas);
        let mut state = refused.lock();
        assert!(is_told(&refused, &mut state, Vpn(9)) && !is_told(&refused, &mut state, Vpn(10)));
        assert_eq!(state.areas.iter().collect::<Vec<_>>(), [(8 * page, 10 * page)]);
    }
}
