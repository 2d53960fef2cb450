//! What a fork makes of an address space, and which process that then is.
//!
//! Called by the fault thread with the parent's (or the child's) state held, and nothing else.
//!
//! A table is copied in slices, and nothing of the parent's changes until all of it is (P6): no message is read, nothing
//! is cooled, stored, placed or taken on, and the address space is not dropped. The child has what the parent had
//! when it forked, whenever that is copied.

use crate::broken::{Rule, is_broken};
use crate::hidden;
use crate::limits::SLICE_PAGES;
use crate::mm::{Areas, Mm, State, Token};
use crate::pool::Pool;
use crate::seam::{AddressSpace, Process};
use crate::server::Pager;
use crate::{counters, guard};
use ebb_core::resident::{Entry, Space};
use ebb_core::types::{PAGE_SIZE, Vpn};
use ebb_sys::uffd::{Mode, PlaceError};
use std::collections::HashSet;
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
    page[4..20].copy_from_slice(&pager.host.token().to_ne_bytes());
    let place = state.pool.take_for_token().ok_or(PlaceError::NoMemory)?;
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

/// A fork that is being followed: the child starts with the same pages, in memory and in the store.
///
/// Its table is copied in slices (`limits.rs`), and nothing of the parent's changes meanwhile (P6).
pub struct Copying {
    pub parent: Arc<Mm>,
    uffd: Box<dyn AddressSpace>,
    space: Space,
    areas: Areas,
    pool: Pool,
    /// What the child did not inherit.
    withheld: Areas,
    next: Option<Vpn>,
    /// Pages copied that are in memory.
    held: u64,
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
        let withheld = not_inherited(pager, parent);
        let mut areas = state.areas.clone();
        withheld.iter().for_each(|(start, end)| areas.remove(start, end));
        settle_inherited(&*uffd, &mut areas);
        (state.busy, state.copying) = (!is_broken(Rule::P6), !is_broken(Rule::P6));
        Self {
            parent: parent.clone(),
            uffd,
            space: Space::new(pager.new_mm_id()),
            areas,
            pool: state.pool.inherited(),
            withheld,
            next: Some(Vpn(0)),
            held: 0,
        }
    }

    /// Copies a slice. True if that was the last.
    pub fn go_on(&mut self, pager: &Pager, state: &State) -> bool {
        let Some(start) = self.next else { return true };
        let passes = |vpn: Vpn| self.withheld.end_of(vpn.address()).is_none();
        let slice = (start, SLICE_PAGES);
        let (next, held) = pager.resident().fork(&state.space, &mut self.space, slice, passes);
        self.next = next;
        self.held += held;
        next.is_none()
    }

    /// All is copied.
    pub fn end(mut self, pager: &Pager, state: &mut State) {
        let parent = &self.parent;
        // What the parent had cooled of what was not passed on is in the child's pool all the same.
        if self.withheld.iter().next().is_some() {
            let mut cool = HashSet::new();
            let books = pager.resident();
            self.space.for_each(|_, entry| {
                if let Entry::Cool(pfn) = entry {
                    cool.insert(books.frame(pfn).pool);
                }
            });
            self.pool.retire_all_but(&cool);
        }
        if hidden::is_hidden(pager, parent) {
            self.held -= hidden::store(pager, parent, &mut self.space, &mut self.pool);
        }
        let resident = self.held + self.pool.retired() as u64;
        // What the child has copied by now was counted by nobody. The parent runs, too: the monitor's turn.
        let needed = guard::is_needed(pager, resident).then(|| self.areas.clone());
        let child_state = State::new(self.space, self.areas, self.pool, pager.window_max());
        let child = Mm::new(self.uffd, child_state, pager.clock.clone()).related_to(parent);
        let guarded = needed.zip(child.inherited_pins.as_ref());
        let guarded = guarded.is_some_and(|(areas, pins)| guard::raise(&*child.uffd, &areas, pins));
        let child = Arc::new(child);
        child.learnt(resident);
        // All of it is the parent's too, until counted.
        child.discount.store(resident, Relaxed);
        child.guarded.store(guarded, Relaxed);
        // Both may be copied from now on: what was guarded before is, what has come since is not.
        parent.guarded.store(false, Relaxed);
        state.copying = false;
        parent.end_batch(state);
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

/// The ranges of which nothing reaches a child; the program may have asked for that at any time.
fn not_inherited(pager: &Pager, parent: &Mm) -> Areas {
    let mut withheld = Areas::default();
    let unknown = || std::io::Error::other("it is not known which process it is");
    match parent.process().ok_or_else(unknown).and_then(Process::areas_not_inherited) {
        Ok(ranges) => {
            for (start, end) in ranges {
                withheld.remove(start, end);
                withheld.add(start, end);
            }
        }
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
