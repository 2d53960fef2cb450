//! What a fork makes of an address space, and which process that then is.
//!
//! Called by a fault thread with the parent's (or the child's) state held, and nothing else.
//!
//! * F1: which areas a process passes on is read where it is seen. One that nobody could tell has had an agent at no
//!   time: no page of its own was ever moved out, and what it has in the store it inherited, of areas that were passed
//!   on. Its child is given all of that. What the kernel wiped, or left out, counts as there and is not, and reads as
//!   zeros when it is touched (`Server::stale`).
//!
//! A table is copied in slices, and nothing of the parent's changes until all of it is (P6, `following.rs`): no message
//! is read, nothing is cooled, stored, placed or taken on, and the address space is not dropped. The child has what
//! the parent had when it forked, whenever that is copied. What is cool of a child that will be hidden is stored, and
//! what it shares is guarded, in slices, too.

use crate::limits::{FIND_PAUSE, FIND_TRIES, SEEK_TRIES, SLICE_PAGES};
use crate::mm::{Areas, Mm, State, Token};
use crate::pool::Pool;
use crate::seam::{AddressSpace, Process};
use crate::server::Pager;
use crate::{counters, guard};
use crate::{following, hidden};
use ebb_agent::protocol::BATCH_MAX;
use ebb_core::resident::{Entry, Space};
use ebb_core::types::{PAGE_SIZE, Vpn};
use ebb_sys::uffd::{Mode, PlaceError};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, PoisonError};

/// How often a process that has forked and ended is looked at until its memory is gone, and how long it is waited in
/// between.
const END_TRIES: u32 = 50;
const END_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

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
/// wrong memory. The page counts until its place is dropped; where there is none the place is free again.
pub fn show_token(pager: &Pager, mm: &Mm, state: &mut State) -> Result<Token, PlaceError> {
    let mut page = Box::new([0; PAGE_SIZE]);
    page[..4].copy_from_slice(&mm.id.0.to_ne_bytes());
    page[4..20].copy_from_slice(&pager.host.token().to_ne_bytes());
    let place = state.pool.take_for_token().ok_or(PlaceError::NoMemory)?;
    let address = state.pool.address(place);
    let placed = mm.uffd.copy(address, &*page).map_err(|(_, error)| error);
    if matches!(placed, Ok(()) | Err(PlaceError::Exists)) {
        state.pool.retire(place);
        mm.found(&mut pager.resident().zone, 1);
    } else {
        state.pool.give_back(place);
    }
    placed.map(|()| Token::new(address, page))
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
    let mut unseen = 0;
    for _ in 0..FIND_TRIES {
        match find_process(pager, mm, state) {
            Some(true) => return,
            // It is in the tree, and may not be looked into; or its parent has just ended, and it was missed.
            Some(false) => unseen += 1,
            None => {}
        }
        if unseen == SEEK_TRIES {
            return;
        }
        // No token can be put into it until its thread goes on, which the reading of its message lets it.
        pager.host.sleep(FIND_PAUSE);
    }
}

/// A fork that is being followed: the child starts with the same pages, in memory and in the store.
pub struct Copying {
    pub parent: Arc<Mm>,
    uffd: Box<dyn AddressSpace>,
    space: Space,
    areas: Areas,
    pool: Pool,
    /// What the child did not inherit.
    withheld: Areas,
    /// The child can be looked into by nobody.
    hidden: bool,
    /// Pages of it that are cool and must not stay so.
    cool: Vec<Vpn>,
    /// Pages copied that are in memory.
    held: u64,
    guarded: bool,
    next: Next,
}

/// What is to be done next.
enum Next {
    /// Its table is copied from here on.
    Copy(Vpn),
    /// What is cool of it is stored.
    Store,
    /// What it shares is guarded from this address on, these pages excepted.
    Guard(u64, Vec<u64>),
    /// It is ready.
    End,
}

impl Copying {
    /// The program forked. Its address space is still from here to [`Self::end`].
    pub fn begin(
        pager: &Pager,
        parent: &Arc<Mm>,
        state: &mut State,
        uffd: Box<dyn AddressSpace>,
    ) -> Self {
        counters::count(&pager.counters.forks);
        if parent.process().is_none() {
            find_parent(pager, parent, state);
        }
        let withheld = not_inherited(pager, parent, state);
        let mut areas = state.areas.clone();
        withheld.iter().for_each(|(start, end)| areas.remove(start, end));
        settle_inherited(&*uffd, &mut areas);
        following::still(parent, state, true);
        Self {
            parent: parent.clone(),
            uffd,
            space: Space::new(pager.new_mm_id()),
            areas,
            pool: state.pool.inherited(),
            withheld,
            hidden: hidden::is_hidden(pager, parent),
            cool: Vec::new(),
            held: 0,
            guarded: false,
            next: Next::Copy(Vpn(0)),
        }
    }

    /// Does a slice of it. True if that was the last.
    pub fn go_on(&mut self, pager: &Pager, state: &State) -> bool {
        self.next = match std::mem::replace(&mut self.next, Next::End) {
            Next::Copy(start) => match self.copy(pager, state, start) {
                Some(next) => Next::Copy(next),
                None if self.cool.is_empty() => self.begin_guard(pager),
                None => Next::Store,
            },
            Next::Store => {
                self.store(pager);
                if self.cool.is_empty() { self.begin_guard(pager) } else { Next::Store }
            }
            Next::Guard(at, pins) => match self.guard(at, &pins) {
                Some(next) => Next::Guard(next, pins),
                None => Next::End,
            },
            Next::End => Next::End,
        };
        matches!(self.next, Next::End)
    }

    /// Copies a slice of the table. Where the next begins.
    fn copy(&mut self, pager: &Pager, state: &State, start: Vpn) -> Option<Vpn> {
        let passes = |vpn: Vpn| self.withheld.end_of(vpn.address()).is_none();
        let mut books = pager.resident();
        if self.hidden || !self.withheld.is_empty() {
            state.space.visit(start, SLICE_PAGES, |vpn, entry| match entry {
                Entry::Cool(_) if passes(vpn) && self.hidden => self.cool.push(vpn),
                // What the parent had cooled of what was not passed on is in the child's pool all the same.
                Entry::Cool(pfn) if !passes(vpn) => self.pool.retire(books.frame(pfn).pool),
                _ => {}
            });
        }
        let slice = (start, SLICE_PAGES);
        let (next, held) = books.fork(&state.space, &mut self.space, slice, passes);
        self.held += held;
        next
    }

    /// Stores a batch of what is cool.
    fn store(&mut self, pager: &Pager) {
        let batch = self.cool.split_off(self.cool.len().saturating_sub(BATCH_MAX));
        self.held -= hidden::store(pager, &self.parent, &mut self.space, &mut self.pool, &batch);
    }

    /// What of it is in memory.
    fn resident(&self) -> u64 {
        self.held + self.pool.retired() as u64
    }

    /// What the child has copied by now was counted by nobody. The parent runs, too: the monitor's turn.
    fn begin_guard(&self, pager: &Pager) -> Next {
        let needed = guard::is_needed(pager, self.resident());
        let pins = needed.then(|| self.parent.pins_of_child()).flatten();
        pins.map_or(Next::End, |pins| Next::Guard(0, pins))
    }

    /// Guards a slice. Where the next begins.
    fn guard(&mut self, at: u64, pins: &[u64]) -> Option<u64> {
        let mut pages = 0;
        for (start, end) in self.areas.iter().filter(|&(_, end)| end > at) {
            if pages >= SLICE_PAGES {
                return Some(start);
            }
            let start = start.max(at);
            let left = SLICE_PAGES - pages;
            let next = self.space.visit(Vpn::of_address(start), left, |_, _| pages += 1);
            let stop = next.map_or(end, |next| next.address().min(end));
            if !guard::raise_range(&*self.uffd, start, stop, pins) {
                return None;
            }
            if stop < end {
                return Some(stop);
            }
        }
        self.guarded = true;
        None
    }

    /// All is copied.
    pub fn end(self, pager: &Pager, state: &mut State) {
        let (parent, resident) = (&self.parent, self.resident());
        let child_state = State::new(self.space, self.areas, self.pool, pager.window_max());
        let child = Mm::new(self.uffd, child_state, pager.clock.clone()).related_to(parent);
        let child = Arc::new(child);
        child.learnt(resident);
        // All of it is the parent's too, until counted.
        child.discount.store(resident, Relaxed);
        child.guarded.store(self.guarded, Relaxed);
        // Both may be copied from now on: what was guarded before is, what has come since is not.
        parent.guarded.store(false, Relaxed);
        following::still(parent, state, false);
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

    /// What the child has so far.
    #[cfg(test)]
    pub fn space(&self) -> &Space {
        &self.space
    }
}

/// The ranges of which nothing reaches a child; the program may have asked for that at any time. None of a process
/// that nobody could tell (F1).
fn not_inherited(pager: &Pager, parent: &Mm, state: &mut State) -> Areas {
    let mut withheld = Areas::default();
    let Some(process) = parent.process() else { return withheld };
    let mut sees = |error| successor(pager, parent, state).ok_or(error)?.areas_not_inherited();
    let mut seen = process.areas_not_inherited().or_else(&mut sees);
    // It forked and ended: its number is gone before its memory is.
    for _ in 0..END_TRIES {
        if seen.is_ok() || !parent.is_alive() {
            break;
        }
        pager.host.sleep(END_PAUSE);
        seen = process.areas_not_inherited().or_else(&mut sees);
    }
    match seen {
        Ok(ranges) => {
            for (start, end) in ranges {
                withheld.remove(start, end);
                withheld.add(start, end);
            }
        }
        // Pages of it may be in the store that the child must not see.
        Err(error) => {
            if parent.is_alive() {
                let pid = parent.pid();
                pager.complain(&format!(
                    "cannot see which areas process {pid} passes on ({error}); the run is stopped"
                ));
                pager.kill_tree();
            }
        }
    }
    withheld
}

/// Another process with the same memory (a clone with `CLONE_VM` and no `CLONE_THREAD`): that which was known may
/// have ended.
fn successor(pager: &Pager, mm: &Mm, state: &mut State) -> Option<Box<dyn Process>> {
    let token = show_token(pager, mm, state).ok()?;
    let mut processes =
        pager.host.tree(pager).into_iter().filter_map(|pid| pager.host.open(pid).ok());
    processes.find(|process| token.is_seen_by(&**process))
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
