//! Bringing areas of a program under management, with the pages that are in them already.
//!
//! Part of the monitor thread. The kernel registers an area as a whole (ADOPT-6); its pages are taken on slice by slice, each in
//! one hold of the address space's lock (ORD-4), so that faults wait for no more than a slice.
//!
//! * ADOPT-1: what is registered in a slice was so before as far as its page table says: `Areas` has what was (but see ADOPT-4).
//! * ADOPT-2: between slices the program may do what it likes: each slice asks anew what is missing in it.
//! * ADOPT-3: what is not registered yet fills at the speed of the kernel, faster than pages are taken on: before each
//!   slice the caller is asked, and may hold the program.
//! * ADOPT-4: `Areas` may have what is not registered. The kernel registers what lies in a range and says nothing of the holes
//!   in it, and what was read of a process is old by then: an allocator maps twice what it needs and gives back what is
//!   not aligned, and the next that is mapped comes to lie there. So the areas are read again afterwards, and holes are
//!   taken out; what is filled before that is told by the page map, and registered again ([`strays`]).
//! * ADOPT-5: an area that grows gets one beside it that is not registered, a heap for one. So the neighbours of what was
//!   registered lately are asked for first ([`beside`]); all areas are read only for pages that are not there. To read
//!   tens of thousands takes longer than a program needs to fill a part of the next.
//! * ADOPT-6: a part that is registered is an area of its own to the kernel. One that is filled meanwhile beside it gets an
//!   `anon_vma` of its own, so the kernel never joins the two again, and refuses an `mremap` of both. So the whole area
//!   is registered before its first slice is taken on. `Areas` has what was taken on.

use crate::broken::{Rule, is_broken};
use crate::guard;
use crate::limits::{BATCH_PATIENCE, REACH_BYTES, SLICE_PAGES};
use crate::link::Link;
use crate::mm::{Held, Mm, State};
use crate::seam::Process;
use crate::server::Pager;
use ebb_mm::resident::{Arrival, Entry};
use ebb_mm::types::Vpn;
use ebb_sys::proc::Area;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Areas looked at in one hold of the lock: some ten microseconds.
const AREAS_AT_ONCE: usize = 128;
/// How often the caller is asked while a batch is waited for.
const ASKED_IN_PATIENCE: u32 = 4;

/// Registers what of a process can be paged and is not registered yet; `before` is called ahead of each slice (ADOPT-3).
/// How many pages that were there already were taken on; None if it could not be done now.
pub fn areas(
    pager: &Pager,
    mm: &Arc<Mm>,
    process: &dyn Process,
    before: &mut dyn FnMut(),
) -> Option<u64> {
    take_on(pager, mm, process, &process.areas().ok()?, before)
}

/// The same of those that lie next to what was registered lately (ADOPT-5).
pub fn beside(
    pager: &Pager,
    mm: &Arc<Mm>,
    process: &dyn Process,
    before: &mut dyn FnMut(),
) -> Option<u64> {
    let recent = quiet(mm, before)?.areas.recent();
    let ends = |(start, end): (u64, u64)| [(start.saturating_sub(1), start), (end, end + 1)];
    let ends: Vec<(u64, u64)> = recent.into_iter().flat_map(ends).collect();
    take_on(pager, mm, process, &process.areas_in(&ends).ok()?, before)
}

/// Registers what of these areas is not.
fn take_on(
    pager: &Pager,
    mm: &Arc<Mm>,
    process: &dyn Process,
    areas: &[Area],
    before: &mut dyn FnMut(),
) -> Option<u64> {
    let areas = unregistered(mm, areas, before)?;
    let (mut learnt, mut registered) = (0, Vec::new());
    for area in areas {
        let mut at = area.start;
        while at < area.end {
            before();
            let mut state = quiet(mm, before)?.timed();
            if state.ended {
                return None;
            }
            // What is registered already may have page tables of any size with nothing in them.
            let Some(first) = state.areas.next_missing(at, area.end) else { break };
            if state.areas.missing(area.start, area.end) == [(area.start, area.end)] {
                // What cannot be registered as a whole may be so in slices. The kernel forgets a range that it refuses (of huge
                // pages, by now): nothing of it may have been taken on.
                let _ = mm.manage(area.start, area.end);
            }
            // Of address space nobody has touched there may be terabytes, a slice for each GiB.
            let end = area.end.min(first + REACH_BYTES);
            let stop = process.reach(first, end, SLICE_PAGES).ok()?;
            // Also what an mremap has added to a registered area: to register it again does nothing, and an
            // area that took the place of one whose end is yet to be heard of is found here.
            for (start, end) in state.areas.missing(first, stop) {
                if register(mm, &mut state, start, end) {
                    registered.push((start, end));
                    if is_broken(Rule::Ord4) {
                        drop(state);
                        (0..10).for_each(|_| pager.host.sleep(BATCH_PATIENCE));
                        state = mm.lock();
                    }
                    learnt += pages(pager, mm, &mut state, process, start, end);
                }
            }
            at = stop;
        }
    }
    if !registered.is_empty() {
        take_holes_out(mm, &registered, &process.areas_in(&registered).ok()?, before)?;
    }
    Some(learnt)
}

/// What was registered where nothing is has not been (ADOPT-4). Of what has gone since a message comes, and finds nothing.
fn take_holes_out(
    mm: &Mm,
    registered: &[(u64, u64)],
    areas: &[Area],
    before: &mut dyn FnMut(),
) -> Option<()> {
    let holes: Vec<(u64, u64)> =
        registered.iter().flat_map(|&(start, end)| holes(areas, start, end)).collect();
    if !holes.is_empty() {
        let mut state = quiet(mm, before)?;
        holes.into_iter().for_each(|(start, end)| state.areas.remove(start, end));
    }
    Some(())
}

/// The parts of `[start, end)` in which none of the areas lies; they are in order.
fn holes(areas: &[Area], start: u64, end: u64) -> Vec<(u64, u64)> {
    let first = areas.partition_point(|area| area.end <= start);
    let (mut holes, mut at) = (Vec::new(), start);
    for area in areas[first..].iter().take_while(|area| area.start < end) {
        if area.start > at {
            holes.push((at, area.start));
        }
        at = area.end;
    }
    if at < end {
        holes.push((at, end));
    }
    holes
}

/// The state with no batch under way. The caller of [`areas`] is asked now and then meanwhile (ADOPT-3).
fn quiet<'a>(mm: &'a Mm, before: &mut dyn FnMut()) -> Option<Held<'a>> {
    for _ in 0..ASKED_IN_PATIENCE {
        if let Some(state) = mm.lock_quiet(BATCH_PATIENCE / ASKED_IN_PATIENCE) {
            return Some(state);
        }
        before();
    }
    None
}

/// Looks for pages that nobody knows where all is registered, as it seems, and registers again where there are some (ADOPT-4).
/// How many were taken on; None if it could not be done now.
pub fn strays(
    pager: &Pager,
    mm: &Arc<Mm>,
    process: &dyn Process,
    before: &mut dyn FnMut(),
) -> Option<u64> {
    let areas = process.areas().ok()?;
    let pool = {
        let state = quiet(mm, before)?.timed();
        state.pool.start()..state.pool.end()
    };
    let is_ours = |area: &Area| area.start < pool.end && area.end > pool.start;
    let mut learnt = 0;
    for area in areas.iter().filter(|area| area.is_pageable() && !is_ours(area)) {
        let mut at = area.start;
        while at < area.end {
            let state = quiet(mm, before)?.timed();
            let stop = process.reach(at, area.end.min(at + REACH_BYTES), SLICE_PAGES).ok()?;
            if has_strays(&state, process, at, stop) {
                drop(state);
                before();
                let mut state = quiet(mm, before)?.timed();
                if state.ended {
                    return None;
                }
                if register(mm, &mut state, at, stop) {
                    learnt += pages(pager, mm, &mut state, process, at, stop);
                }
            }
            at = stop;
        }
    }
    Some(learnt)
}

/// Whether pages are there that nobody knows.
fn has_strays(state: &State, process: &dyn Process, start: u64, end: u64) -> bool {
    let mut found = false;
    let mut look = |from: u64, to: u64| {
        let mut pages = (Vpn::of_address(from).0..Vpn::of_address(to).0).map(Vpn);
        found |= pages.any(|vpn| state.space.get(vpn) == Entry::None);
    };
    process.scan_present(start, end, &mut look).is_ok() && found
}

/// Those of them that could be paged and are not all registered. Most are, and to ask the caller ahead of each (ADOPT-3) took
/// longer than to take on the others: 3 ms of every 75 beside a node with 700 areas.
fn unregistered<'a>(mm: &Mm, areas: &'a [Area], before: &mut dyn FnMut()) -> Option<Vec<&'a Area>> {
    let mut found = Vec::new();
    for some in areas.chunks(AREAS_AT_ONCE) {
        let state = quiet(mm, before)?.timed();
        let pool = state.pool.start()..state.pool.end();
        let is_ours = |area: &Area| area.start < pool.end && area.end > pool.start;
        found.extend(some.iter().filter(|area| {
            area.is_pageable()
                && !is_ours(area)
                && state.areas.next_missing(area.start, area.end).is_some()
        }));
    }
    Some(found)
}

/// False if that cannot be: it may have been unmapped, or belong to another userfaultfd.
fn register(mm: &Mm, state: &mut State, start: u64, end: u64) -> bool {
    if !mm.manage(start, end) {
        return false;
    }
    for (start, end) in state.areas.missing(start, end) {
        state.areas.add(start, end);
    }
    if mm.guarded.load(Relaxed)
        && let Some(pins) = mm.link.get().and_then(Link::pins)
    {
        guard::raise_range(&*mm.uffd, start, end, &pins);
    }
    true
}

/// Takes on the pages that are there. How many.
fn pages(
    pager: &Pager,
    mm: &Mm,
    state: &mut State,
    process: &dyn Process,
    start: u64,
    end: u64,
) -> u64 {
    // Pages only read so far are the kernel's zero page and cost nothing; a write would make pages of them
    // behind our back, so it is made to ask.
    let mut protect = |from: u64, to: u64| {
        // An area that is going away needs no protection.
        let _ = mm.uffd.protect(from, to - from);
    };
    if process.scan_zero(start, end, &mut protect).is_err() {
        return 0;
    }
    let mut adopted = 0;
    let mut resident = pager.resident();
    // A process that is ending has nothing to scan; what was missed stays where it is.
    let _ = process.scan_present(start, end, &mut |from, to| {
        for vpn in (Vpn::of_address(from).0..Vpn::of_address(to).0).map(Vpn) {
            if state.space.get(vpn) == Entry::None {
                resident.map(&mut state.space, vpn, Arrival::Adopted, None);
                adopted += 1;
            }
        }
    });
    mm.learnt(adopted);
    adopted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mm::Areas;
    use crate::pool::Pool;
    use crate::quiet::{self, Quiet};
    use crate::seam::{Clock, Known};
    use ebb_mm::resident::Space;
    use ebb_mm::types::{MmId, PAGE_SIZE};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    const PAGES: u64 = 64;

    /// A run beside which this process is what is paged, and memory of it, mapped for that alone, that begins with so many
    /// pages.
    struct Own {
        pager: Pager,
        uffd: Quiet,
        mm: Arc<Mm>,
        process: Known,
        memory: Option<Vec<u8>>,
        start: u64,
        end: u64,
        _turn: MutexGuard<'static, ()>,
    }

    /// Memory that one test gives back another would get.
    static TURN: Mutex<()> = Mutex::new(());

    fn own() -> Own {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let uffd = Quiet::default();
        let pool = Pool::new(1 << 30, 64 * PAGE_SIZE as u64, 0);
        let state = State::new(Space::new(MmId(2)), Areas::default(), pool, 8);
        let mm = Arc::new(Mm::new(Box::new(uffd.clone()), state, Clock::real()));
        let process = Known::open(std::process::id()).expect("this process");
        let mut memory = vec![0u8; 64 << 20];
        let page = PAGE_SIZE as u64;
        let start = (memory.as_ptr() as u64).next_multiple_of(page);
        let end = (memory.as_ptr() as u64 + memory.len() as u64) / page * page;
        let first = (start - memory.as_ptr() as u64) as usize;
        memory[first..first + PAGES as usize * PAGE_SIZE].fill(1);
        let (pager, memory) = (quiet::pager(), Some(memory));
        Own { pager, uffd, mm, process, memory, start, end, _turn: turn }
    }

    /// An area was read of in the moment before it was given back: it counted as registered for ever, and what came to lie
    /// there was never found. A program whose threads filled it was killed as out of memory.
    #[test]
    fn what_is_gone_when_it_is_registered_is_not() {
        let mut own = own();
        let mut memory = own.memory.take();
        let mut before = || drop(memory.take());
        areas(&own.pager, &own.mm, &own.process, &mut before).expect("it is done");
        let registered = own.uffd.registered.lock().expect("nobody panicked");
        let is_in = |&(start, end): &(u64, u64)| start <= own.start && end > own.start;
        assert!(registered.iter().any(is_in), "as far as the kernel tells: {registered:x?}");
        assert_eq!(own.mm.lock().areas.end_of(own.start), None);
    }

    /// Go's `mremap` of what it had filled meanwhile ended with EFAULT.
    #[test]
    fn an_area_stays_one_to_the_kernel_while_its_pages_are_taken_on() {
        let mut own = own();
        let memory = own.memory.as_mut().expect("not given back yet");
        // More than a slice of it.
        memory.fill(1);
        let (start, end) = (own.start, own.end);
        areas(&own.pager, &own.mm, &own.process, &mut || ()).expect("it is done");
        let registered = own.uffd.registered.lock().expect("nobody panicked");
        let of_it: Vec<&(u64, u64)> =
            registered.iter().filter(|&&(from, to)| from < end && to > start).collect();
        let (from, to) = of_it[0];
        assert!(of_it.len() > 2 && *from <= start && *to >= end, "{of_it:x?}");
        assert_eq!(own.mm.lock().areas.next_missing(start, end), None);
    }

    /// With tens of thousands of areas each look at them all takes longer than the program needs to grow.
    #[test]
    fn what_grows_is_found_beside_what_is_registered() {
        let own = own();
        let middle = own.start + PAGES / 2 * PAGE_SIZE as u64;
        own.mm.lock().areas.add(middle, own.end);
        let learnt = beside(&own.pager, &own.mm, &own.process, &mut || ()).expect("it is done");
        assert!(learnt >= PAGES / 2, "{learnt}");
        let registered = own.uffd.registered.lock().expect("nobody panicked").clone();
        let is_found = |&(start, end): &(u64, u64)| start <= own.start && end > own.start;
        assert!(registered.iter().any(is_found), "{registered:x?}");
        // Other tests map and unmap their memory next to this, but not next to the heap.
        let areas = own.process.areas().expect("it is there");
        let heap = areas.iter().find(|area| area.name == "[heap]").expect("of the first thread");
        let is_heap = |&(start, end): &(u64, u64)| start < heap.end && end > heap.start;
        assert!(!registered.iter().any(is_heap), "{registered:x?}");
    }

    /// The same where something else lay there by then: its pages are known to nobody, and it is registered again.
    #[test]
    fn pages_in_what_seems_to_be_registered_are_found() {
        let own = own();
        own.mm.lock().areas.add(own.start, own.end);
        areas(&own.pager, &own.mm, &own.process, &mut || ()).expect("it is done");
        let is_known = || own.mm.lock().space.get(Vpn::of_address(own.start)) != Entry::None;
        assert!(!is_known(), "nothing of it seems to be missing");
        let learnt = strays(&own.pager, &own.mm, &own.process, &mut || ()).expect("it is done");
        assert!(learnt >= PAGES && is_known(), "{learnt}");
        let registered = own.uffd.registered.lock().expect("nobody panicked");
        let is_in = |&(start, end): &(u64, u64)| start <= own.start && end > own.start;
        assert!(registered.iter().any(is_in), "{registered:x?}");
    }

    #[test]
    fn holes_are_what_lies_between_areas() {
        let area = |start, end| Area { start, end, ..Area::default() };
        let areas = [area(10, 20), area(20, 30), area(40, 50)];
        assert_eq!(holes(&areas, 12, 28), []);
        assert_eq!(holes(&areas, 5, 60), [(5, 10), (30, 40), (50, 60)]);
        assert_eq!(holes(&areas, 32, 38), [(32, 38)]);
        assert_eq!(holes(&areas, 35, 45), [(35, 40)]);
        assert_eq!(holes(&areas, 50, 60), [(50, 60)]);
        assert_eq!(holes(&[], 1, 2), [(1, 2)]);
    }
}
