//! Brings areas of a program under management, with the pages that are already in them.
//!
//! Part of the monitor thread. The monitor registers an area as a whole (ADOPT-6). It adopts the
//! area's pages slice by slice, each in one hold of the address space's lock (ORD-4). So faults
//! wait for no more than a slice.
//!
//! * ADOPT-1: In a slice, the pager's table has entries only for parts that were registered before.
//!   `Areas` lists these parts (but see ADOPT-4).
//! * ADOPT-2: Between slices the program may do anything. Each slice asks anew which of its parts
//!   are missing.
//! * ADOPT-3: Unregistered areas fill at the speed of the kernel, faster than pages are adopted.
//!   Hence each slice begins with a call of the caller's `before`, which may freeze the program.
//! * ADOPT-4: `Areas` may list ranges that are not registered. The kernel registers the mappings in
//!   a range and does not report the holes. The list of areas read from a process may be outdated
//!   by then. An allocator maps twice the memory it needs and unmaps the unaligned part. The next
//!   mapping comes to lie there. So the monitor reads the areas again afterwards, and takes holes
//!   out. Pages that a program fills before that appear in the page map. Their range is registered
//!   again ([`strays`]).
//! * ADOPT-5: A growing area, such as a heap, gets an unregistered area beside it. So the
//!   neighbours of recently registered ranges are read first ([`beside`]). All areas are read only
//!   for pages that are not found there. To read tens of thousands of areas takes longer than a
//!   program needs to fill a part of the next.
//! * ADOPT-6: To the kernel, a registered part is an area of its own. An area beside it that a
//!   program fills meanwhile gets its own `anon_vma`. The kernel never joins the two again, and
//!   refuses an `mremap` of both. So the whole area is registered before its first slice is
//!   adopted. `Areas` lists the adopted ranges.

use crate::broken::{Rule, is_broken};
use crate::mm::link::Link;
use crate::mm::{Mm, MmGuard, State, cow_protect};
use crate::pager::Pager;
use crate::seam::Process;
use crate::wait::limits::{BATCH_PATIENCE, REACH_BYTES, REACH_BYTES_MAX, REACH_QUICK, SLICE_PAGES};
use ebb_mm::resident::{Arrival, Entry};
use ebb_mm::types::Vpn;
use ebb_sys::proc::Area;
use std::sync::Arc;

/// Areas looked at in one hold of the lock: some ten microseconds.
const AREAS_AT_ONCE: usize = 128;
/// Number of calls of `before` during a wait for a batch.
const ASKED_IN_PATIENCE: u32 = 4;

/// Registers the unregistered pageable areas of a process; `before` is called ahead of each slice
/// (ADOPT-3). Returns the number of adopted pages; None if it could not be done now.
pub fn areas(
    pager: &Pager,
    mm: &Arc<Mm>,
    process: &dyn Process,
    before: &mut dyn FnMut(),
) -> Option<u64> {
    register_areas(pager, mm, process, &process.areas().ok()?, before)
}

/// Registers the areas next to recently registered ones, like [`areas`] (ADOPT-5).
pub fn beside(
    pager: &Pager,
    mm: &Arc<Mm>,
    process: &dyn Process,
    before: &mut dyn FnMut(),
) -> Option<u64> {
    let recent = quiet(mm, before)?.areas.recent();
    let ends = |(start, end): (u64, u64)| [(start.saturating_sub(1), start), (end, end + 1)];
    let ends: Vec<(u64, u64)> = recent.into_iter().flat_map(ends).collect();
    register_areas(pager, mm, process, &process.areas_in(&ends).ok()?, before)
}

/// Registers the unregistered ones among these areas.
fn register_areas(
    pager: &Pager,
    mm: &Arc<Mm>,
    process: &dyn Process,
    areas: &[Area],
    before: &mut dyn FnMut(),
) -> Option<u64> {
    let areas = unregistered(mm, areas, before)?;
    let (mut learnt, mut registered) = (0, Vec::new());
    for area in areas {
        let (mut at, mut reach) = (area.start, REACH_BYTES);
        while at < area.end {
            before();
            let mut state = quiet(mm, before)?.timed();
            if state.ended {
                return None;
            }
            // Skips registered ranges, because their page tables may be large and empty.
            let Some(first) = state.areas.next_missing(at, area.end) else { break };
            if state.areas.missing(area.start, area.end) == [(area.start, area.end)] {
                // An area that cannot be registered as a whole may be registered in slices.
                // `Uffd::register` unregisters a range that has huge pages by now. So the whole
                // area is registered only while none of its pages is adopted.
                let _ = mm.uffd.manage(area.start, area.end);
            }
            // Unused address space may be terabytes. One hold scans a part of it.
            let began = pager.clock.now();
            let end = area.end.min(first + reach);
            let stop = process.reach(first, end, SLICE_PAGES).ok()?;
            // This includes a part that an mremap has added to a registered area. Registering it
            // again does nothing. It also includes an area in place of one whose unmap message is
            // not read yet.
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
            let is_quick = pager.clock.since(began) < REACH_QUICK;
            reach = if is_quick { REACH_BYTES_MAX.min(2 * reach) } else { REACH_BYTES };
        }
    }
    if !registered.is_empty() {
        take_holes_out(mm, &registered, &process.areas_in(&registered).ok()?, before)?;
    }
    Some(learnt)
}

/// Takes holes in registered ranges out of `Areas` (ADOPT-4). If a range was unmapped after its
/// registration, its message comes later and finds nothing.
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

/// Returns the parts of `[start, end)` that no area covers; `areas` are in order.
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

/// Locks the state with no batch under way. Calls `before` now and then while it waits (ADOPT-3).
fn quiet<'a>(mm: &'a Mm, before: &mut dyn FnMut()) -> Option<MmGuard<'a>> {
    for _ in 0..ASKED_IN_PATIENCE {
        if let Some(state) = mm.lock_quiet(BATCH_PATIENCE / ASKED_IN_PATIENCE) {
            return Some(state);
        }
        before();
    }
    None
}

/// Looks for unknown pages in ranges that seem to be registered, and registers these ranges again
/// (ADOPT-4). Returns the number of adopted pages; None if it could not be done now.
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
            let end = area.end.min(at + REACH_BYTES);
            let (runs, stop) = process.present(at, end, SLICE_PAGES).ok()?;
            let mut present = runs.into_iter().flat_map(vpns);
            if present.any(|vpn| state.space.get(vpn) == Entry::None) {
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

/// Returns the pages of a range of addresses.
fn vpns((start, end): (u64, u64)) -> impl Iterator<Item = Vpn> {
    (Vpn::of_address(start).0..Vpn::of_address(end).0).map(Vpn)
}

/// Returns the pageable areas that are not wholly registered. Most areas are registered. To call
/// `before` ahead of each of these (ADOPT-3) would take longer than adopting the others. With a
/// `node` process of 700 areas it takes 3 ms of every 75.
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

/// Registers a range. Returns false if that fails, because the range may be unmapped or belong to
/// another userfaultfd.
fn register(mm: &Mm, state: &mut State, start: u64, end: u64) -> bool {
    if !mm.uffd.manage(start, end) {
        return false;
    }
    for (start, end) in state.areas.missing(start, end) {
        state.areas.add(start, end);
    }
    if mm.fork_group.is_cow_protected()
        && let Some(pins) = mm.agent.link().and_then(Link::pins)
    {
        cow_protect::raise_range(&*mm.uffd, start, end, &pins);
    }
    true
}

/// Adopts the present pages of a range. Returns their number.
fn pages(
    pager: &Pager,
    mm: &Mm,
    state: &mut State,
    process: &dyn Process,
    start: u64,
    end: u64,
) -> u64 {
    // A page that was only read is the kernel's zero page and costs nothing. A write would make it
    // a page unseen by the pager. Write protection turns that write into a fault.
    let Ok(zero) = process.zero(start, end) else { return 0 };
    for (from, to) in zero {
        // An area that is being unmapped needs no protection.
        let _ = mm.uffd.protect(from, to - from);
    }
    // A process that is ending has nothing to scan. Missed pages stay where they are.
    let Ok((runs, _)) = process.present(start, end, u64::MAX) else { return 0 };
    let mut adopted = 0;
    let mut resident = pager.resident();
    for vpn in runs.into_iter().flat_map(vpns) {
        if state.space.get(vpn) == Entry::None {
            resident.map(&mut state.space, vpn, Arrival::Adopted, None);
            adopted += 1;
        }
    }
    mm.note_known(adopted);
    adopted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mm::Areas;
    use crate::mm::pool::Pool;
    use crate::quiet::{self, Quiet};
    use crate::seam::Known;
    use crate::wait::clock::Clock;
    use ebb_mm::resident::Space;
    use ebb_mm::types::{MmId, PAGE_SIZE};
    use std::sync::{Mutex, MutexGuard, PoisonError};

    const PAGES: u64 = 64;

    /// A run that pages this very process, with a mapping of its own that begins with [`PAGES`]
    /// filled pages.
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

    /// Serialises the tests, because one test may get memory that another gives back.
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

    /// Shows that an area unmapped before its registration does not count as registered. Otherwise
    /// a later mapping there is never found. A program whose threads fill that mapping is killed as
    /// out of memory.
    #[test]
    fn an_area_unmapped_before_its_registration_does_not_count_as_registered() {
        let mut own = own();
        let mut memory = own.memory.take();
        let mut before = || drop(memory.take());
        areas(&own.pager, &own.mm, &own.process, &mut before).expect("it is done");
        let registered = own.uffd.registered.lock().expect("nobody panicked");
        let is_in = |&(start, end): &(u64, u64)| start <= own.start && end > own.start;
        assert!(registered.iter().any(is_in), "as far as the kernel tells: {registered:x?}");
        assert_eq!(own.mm.lock().areas.end_of(own.start), None);
    }

    /// Shows that the whole area is registered at once. Otherwise Go's `mremap` of an area that it
    /// has filled meanwhile ends with EFAULT.
    #[test]
    fn the_whole_area_is_registered_at_once_while_its_pages_are_adopted() {
        let mut own = own();
        let memory = own.memory.as_mut().expect("not given back yet");
        // This fills more than a slice.
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

    /// Shows that a growing area is found next to a registered one. With tens of thousands of
    /// areas, a look at all of them takes longer than the program needs to grow.
    #[test]
    fn a_growing_area_is_found_beside_a_registered_one() {
        let own = own();
        let middle = own.start + PAGES / 2 * PAGE_SIZE as u64;
        own.mm.lock().areas.add(middle, own.end);
        let learnt = beside(&own.pager, &own.mm, &own.process, &mut || ()).expect("it is done");
        assert!(learnt >= PAGES / 2, "{learnt}");
        let registered = own.uffd.registered.lock().expect("nobody panicked").clone();
        let is_found = |&(start, end): &(u64, u64)| start <= own.start && end > own.start;
        assert!(registered.iter().any(is_found), "{registered:x?}");
        // Other tests map and unmap memory next to this, but not next to the heap.
        let areas = own.process.areas().expect("it is there");
        let heap = areas.iter().find(|area| area.name == "[heap]").expect("of the first thread");
        let is_heap = |&(start, end): &(u64, u64)| start < heap.end && end > heap.start;
        assert!(!registered.iter().any(is_heap), "{registered:x?}");
    }

    /// Shows that unknown pages in a range that seems to be registered are found. The range is
    /// registered again.
    #[test]
    fn unknown_pages_in_a_range_that_seems_registered_are_found() {
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
    fn holes_are_the_ranges_between_areas() {
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
