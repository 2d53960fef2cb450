//! What a fork makes of an address space, and which process that then is.
//!
//! Called by the fault thread with the parent's (or the child's) state held, and nothing else.

use crate::mm::{Areas, Mm, State, Token};
use crate::seam::{AddressSpace, Process};
use crate::server::Pager;
use crate::{counters, guard};
use ebb_core::resident::{Dropped, Entry};
use ebb_core::types::{PAGE_SIZE, Vpn};
use ebb_sys::uffd::{Mode, PlaceError};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// How often a forking process that is not known yet is looked for, and how long that may take in between.
const FIND_TRIES: u32 = 20;
const FIND_PAUSE: Duration = Duration::from_micros(100);

/// A forked child that has not greeted may be known by a thread of its own. That of a debugger
/// that looks at its memory is not: it must prove to be the same address space.
pub fn learn_process(pager: &Pager, mm: &Arc<Mm>, state: &mut State, thread: u32) {
    if mm.process().is_some() {
        return;
    }
    if let Some(pid) = pager.host.process_of(thread) {
        prove(pager, mm, state, &[pid]);
    }
}

/// Puts a page into an address space by which it can be told: it must be seen in the process that it is. Two
/// forks of one process cannot be told apart otherwise, and to take one child for another would be to read the
/// wrong memory. The page counts until its place is dropped.
pub fn show_token(pager: &Pager, mm: &Mm, state: &mut State) -> Result<Token, PlaceError> {
    let mut page = Box::new([0; PAGE_SIZE]);
    page[..4].copy_from_slice(&mm.id.0.to_ne_bytes());
    page[4..20].copy_from_slice(&pager.nonce().to_ne_bytes());
    let place = state.pool.take().ok_or(PlaceError::NoMemory)?;
    let address = state.pool.address(place);
    let placed = mm.uffd.copy(address, &*page);
    state.pool.retire(place);
    mm.found(&mut pager.resident().zone, 1);
    placed.map(|()| Token::new(address, page)).map_err(|(_, error)| error)
}

/// Whether it is one of the processes `pids`: then it is known from now on. None if that cannot be found out
/// now.
fn prove(pager: &Pager, mm: &Mm, state: &mut State, pids: &[u32]) -> Option<bool> {
    let token = match show_token(pager, mm, state) {
        Ok(token) => token,
        Err(PlaceError::Dead) => return Some(false),
        // Something is there already, or the mapping is changing: another place, another time.
        Err(_) => return None,
    };
    let mut processes = pids.iter().filter_map(|&pid| pager.host.open(pid).ok());
    let found = processes.find(|process| token.is_seen_by(&**process));
    Some(found.map(|process| mm.set_process(process)).is_some())
}

/// A child that has not greeted is looked for among the processes of the tree. None if it cannot be found out
/// now whether it is among them.
pub fn find_process(pager: &Pager, mm: &Mm, state: &mut State) -> Option<bool> {
    if mm.process().is_some() {
        return Some(true);
    }
    let known: Vec<u32> = pager.mms().iter().map(|mm| mm.pid()).collect();
    let mut pids = pager.host.tree(pager);
    pids.retain(|pid| !known.contains(pid));
    prove(pager, mm, state, &pids)
}

/// The same for one whose page is needed, when it is time to look again.
pub fn seek_process(pager: &Pager, mm: &Mm, state: &mut State) {
    if mm.process().is_none() && mm.is_sought() {
        find_process(pager, mm, state);
    }
}

/// The same for one that forks.
fn find_parent(pager: &Pager, mm: &Mm, state: &mut State) {
    for _ in 0..FIND_TRIES {
        if find_process(pager, mm, state) == Some(true) {
            return;
        }
        // No token can be put into it until its thread goes on, which the reading of its message lets it.
        pager.host.sleep(FIND_PAUSE);
    }
}

/// The program forked: the child starts with the same pages, in memory and in the store.
pub fn forked(pager: &Pager, parent: &Arc<Mm>, state: &mut State, uffd: Box<dyn AddressSpace>) {
    counters::count(&pager.counters.forks);
    let id = pager.new_mm_id();
    let mut space = pager.resident().fork(&state.space, id);
    let mut areas = state.areas.clone();
    let mut pool = state.pool.inherited();
    if parent.process().is_none() {
        find_parent(pager, parent, state);
    }
    let parent_pid = parent.pid();
    // Nothing of these ranges reached the child; the program may have asked for that at any time.
    let unknown = || std::io::Error::other("it is not known which process it is");
    match parent.process().ok_or_else(unknown).and_then(Process::areas_not_inherited) {
        Ok(ranges) => {
            let mut dropped = Dropped::default();
            for (start, end) in ranges {
                let range = (Vpn::of_address(start), Vpn::of_address(end));
                pager.resident().forget_range(&mut space, range.0, range.1, &mut dropped);
                areas.remove(start, end);
            }
            dropped.pool.iter().for_each(|&place| pool.retire(place));
            pager.discard(&dropped);
        }
        Err(error) => {
            if parent.is_alive() {
                pager.complain(&format!(
                    "cannot see which areas process {parent_pid} passes on ({error}); \
                     the run is stopped"
                ));
                pager.kill_tree();
            }
        }
    }
    settle_inherited(&*uffd, &mut areas);
    let mut resident = pool.retired() as i64;
    space.for_each(|_, entry| {
        resident += i64::from(matches!(entry, Entry::Resident(_) | Entry::Cool(_)));
    });
    // What the child has copied by now was counted by nobody. The parent runs, too: the monitor's turn.
    let needed = guard::is_needed(pager, resident.unsigned_abs()).then(|| areas.clone());
    let state = State::new(space, areas, pool, pager.window_max());
    let child = Mm::new(uffd, state, pager.clock.clone()).related_to(parent);
    let guarded = needed.zip(child.inherited_pins.as_ref());
    let guarded = guarded.is_some_and(|(areas, pins)| guard::raise(&*child.uffd, &areas, pins));
    let child = Arc::new(child);
    child.known.store(resident, Relaxed);
    // All of it is the parent's too, until counted.
    child.discount.store(resident as u64, Relaxed);
    child.guarded.store(guarded, Relaxed);
    // Both may be copied from now on: what was guarded before is, what has come since is not.
    parent.guarded.store(false, Relaxed);
    if let Err(error) = pager.add_mm(&child) {
        pager.complain(&format!("cannot serve a forked process: {error}"));
        pager.kill_tree();
        return;
    }
    // After that: the monitor marks who is alone, and looks again (`count_sharing`).
    parent.related.store(true, SeqCst);
    pager.forked.lock().unwrap_or_else(PoisonError::into_inner).push(child);
    pager.fork_seen.notify_all();
    pager.monitor.raise();
}

/// An area may have come under management after the fork copied it and before its message was read:
/// the child's is then registered nowhere, and a page moved out of it would read as zeros. Each is
/// registered here, which changes nothing where it is already.
///
/// One that cannot be is not there. The child, which runs since the message was read, may have moved it, and says so in a
/// message of its own, by which its pages move, too: they stay known until then. Or it never was: its pages were
/// found in the parent after the fork. What is known of them does no harm: such a page is in no pool and in no
/// store, and if something else lies there one day, it reads as zeros where it is not there (`Server::stale`).
fn settle_inherited(uffd: &dyn AddressSpace, areas: &mut Areas) {
    let refused: Vec<(u64, u64)> = areas
        .iter()
        .filter(|&(start, end)| uffd.register(start, end - start, Mode::Managed).is_err())
        .collect();
    refused.into_iter().for_each(|(start, end)| areas.remove(start, end));
}
