//! Bringing areas of a program under management, with the pages that are in them already.
//!
//! Part of the monitor thread. An area is registered and its pages are taken on slice by slice, each in one
//! hold of the address space's lock (P4), so that faults wait for no more than a slice.
//!
//! * T1: what is registered in a slice was so before as far as its page table says: `Areas` has only what was.
//! * T2: between slices the program may do what it likes: each slice asks anew what is missing in it.
//! * T3: what is not registered yet fills at the speed of the kernel, faster than pages are taken on: before each
//!   slice the caller is asked, who may hold the program.

use crate::broken::{Rule, is_broken};
use crate::guard;
use crate::limits::{BATCH_PATIENCE, REACH_BYTES, SLICE_PAGES};
use crate::link::Link;
use crate::mm::{Mm, State};
use crate::seam::Process;
use crate::server::Pager;
use ebb_core::resident::{Arrival, Entry};
use ebb_core::types::Vpn;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Registers what of a process can be paged and is not registered yet; `before` is called ahead of each slice (T3).
/// How many pages that were there already were taken on; None if it could not be done now.
pub fn areas(
    pager: &Pager,
    mm: &Arc<Mm>,
    process: &dyn Process,
    before: &mut dyn FnMut(),
) -> Option<u64> {
    let areas = process.areas().ok()?;
    let mut learnt = 0;
    let (pool_start, pool_end) = {
        let state = mm.lock();
        (state.pool.start(), state.pool.end())
    };
    let ours = |start: u64, end: u64| start < pool_end && end > pool_start;
    for area in areas.iter().filter(|area| area.is_pageable() && !ours(area.start, area.end)) {
        let mut at = area.start;
        while at < area.end {
            before();
            let mut state = mm.lock_quiet(BATCH_PATIENCE)?.timed();
            if state.ended {
                return None;
            }
            // What is registered already may have page tables of any size with nothing in them.
            let Some(first) = state.areas.next_missing(at, area.end) else { break };
            // Of address space nobody has touched there may be terabytes, a slice for each GiB.
            let end = area.end.min(first + REACH_BYTES);
            let stop = process.reach(first, end, SLICE_PAGES).ok()?;
            // Also what an mremap has added to a registered area: to register it again does nothing, and an
            // area that took the place of one whose end is yet to be heard of is found here.
            for (start, end) in state.areas.missing(first, stop) {
                if register(mm, &mut state, start, end) {
                    if is_broken(Rule::P4) {
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
    Some(learnt)
}

/// False if that cannot be: it may have been unmapped, or belong to another userfaultfd.
fn register(mm: &Mm, state: &mut State, start: u64, end: u64) -> bool {
    if !mm.manage(start, end) {
        return false;
    }
    state.areas.add(start, end);
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
