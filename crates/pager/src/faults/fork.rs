//! Follows a fork: builds the child's address space, and finds out which process the child is.
//!
//! A fault thread calls [`Copying`] with the lock of the parent's state held, and no other. Parts
//! that take long are slow work (`slow_work.rs`), with no lock held.
//!
//! * FORK-1: The pager reads from a process itself which areas a fork passes on. It cannot read an
//!   unidentified process. Such a process never had an agent. Hence no page of its own was ever
//!   moved out. Its stored pages are inherited, from areas that were passed on. So its child gets
//!   all of them. A resident page that the kernel wiped or left out counts as present in the child,
//!   though it is not. It reads as zeros at the next fault (`Server::stale`).
//!
//! * FORK-2: Other threads of the process may unmap or move an area between the fork and the look.
//!   Then the parent does not show any more whether it passed the area on. So the pager looks at
//!   the child. A mapping change by the child blocks until the pager reads the message. Until then
//!   the kernel places no page in the child. So a page that can be placed shows that the child has
//!   changed nothing. An unidentified child gets all of such an area if the area exists in it. A
//!   child whose mapping is already changing gets all of it.
//!
//! The pager copies the table in slices. Nothing of the parent changes until the whole table is
//! copied (ORD-6, `following.rs`). No thread reads a message of the parent. No page of it is moved
//! to standby, stored, placed or adopted. The address space is not dropped. So the child has the
//! parent's pages of the time of the fork, however late they are copied. The copy-on-write
//! protection of shared pages is set in slices, too. Two parts are slow work. One finds out which
//! areas the child has. The other stores the standby pages of a hidden child.

use crate::budget::Budget;
use crate::faults::hidden;
use crate::mm::pool::Pool;
use crate::mm::{Areas, IdentityPage, Mm, State, cow_protect};
use crate::pager::Pager;
use crate::processes::identify;
use crate::seam::{AddressSpace, Process};
use crate::telemetry::counters;
use crate::telemetry::events::Why;
use crate::wait::limits::{FIND_PAUSE, FIND_TRIES, SEEK_TRIES, SLICE_PAGES};
use crate::wait::patience::{BEAT, Patience, Wait};
use ebb_agent::protocol::BATCH_MAX;
use ebb_mm::resident::{Entry, Space};
use ebb_mm::types::Vpn;
use ebb_sys::proc::Passing;
use ebb_sys::uffd::Mode;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, PoisonError};

/// Pause between looks at a process that has forked and ended, until its memory is gone.
const END_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// Looks for the process of a parent that has forked, several times.
fn find_parent(pager: &Pager, mm: &Mm) {
    let mut unseen = 0;
    for _ in 0..FIND_TRIES {
        match pager.find_process(mm, None) {
            Some(true) => return,
            // The process may be in the tree but unreadable. Or its parent has just ended, and the
            // search missed it.
            Some(false) => unseen += 1,
            None => {}
        }
        if unseen == SEEK_TRIES {
            return;
        }
        // No identity page can be placed before the forking thread runs on. It runs on soon,
        // because its message is read.
        pager.host.sleep(FIND_PAUSE);
    }
}

/// A fork that is being followed: the child starts with the parent's pages, in memory and in the
/// store.
pub struct Copying {
    pub parent: Arc<Mm>,
    uffd: Box<dyn AddressSpace>,
    space: Space,
    areas: Areas,
    pool: Pool,
    /// Areas that the child did not inherit.
    withheld: Areas,
    /// Whether the pager may not open the child (`hidden.rs`).
    hidden: bool,
    /// Standby pages of the child that must be stored.
    standby: Vec<Vpn>,
    /// Number of copied pages that are in memory.
    held: u64,
    /// Number of identity pages placed in the child's pool.
    identity_pages: u64,
    cow_protected: bool,
    next: Next,
}

/// The next step.
enum Next {
    /// Look at the processes. This is slow work.
    Look,
    /// Copy the parent's table from this page on.
    Copy(Vpn),
    /// Store the child's standby pages. This is slow work.
    Store,
    /// Write-protect the shared pages from this address on, except the pinned pages.
    CowProtect(u64, Vec<u64>),
    /// Finish: the child is ready.
    End,
}

impl Copying {
    /// Begins to follow a fork. Nothing of the parent's address space changes from here to
    /// [`Self::end`].
    pub fn begin(
        pager: &Pager,
        parent: &Arc<Mm>,
        state: &mut State,
        uffd: Box<dyn AddressSpace>,
    ) -> Self {
        counters::count(&pager.telemetry.counters.forks);
        parent.keep_still(state, true);
        // A parent without managed areas passes on nothing that the pager knows. To read its areas,
        // the kernel would walk all of its page tables.
        let next = if state.areas.is_empty() && parent.process().is_some() {
            Next::Copy(Vpn(0))
        } else {
            Next::Look
        };
        Self {
            parent: parent.clone(),
            uffd,
            space: Space::new(pager.processes.new_mm_id()),
            areas: state.areas.clone(),
            pool: state.pool.inherited(),
            withheld: Areas::default(),
            hidden: false,
            standby: Vec::new(),
            held: 0,
            identity_pages: 0,
            cow_protected: false,
            next,
        }
    }

    /// Returns whether the next step is slow work.
    pub fn has_slow_work(&self) -> bool {
        matches!(self.next, Next::Look | Next::Store)
    }

    /// Does the slow work of the next step, with no lock held. While the parent is stuck, the step
    /// remains (MAPLOCK-2). Other forks are followed in between.
    pub fn do_slow_work(&mut self, pager: &Pager) {
        if self.parent.is_stuck() {
            return pager.host.sleep(BEAT);
        }
        self.next = match std::mem::replace(&mut self.next, Next::End) {
            Next::Look if self.look(pager) => Next::Copy(Vpn(0)),
            Next::Store if self.store_all(pager) => self.begin_cow_protect(pager),
            other => other,
        };
    }

    /// Finds out which areas the child inherits, and whether it is hidden. Returns false if the
    /// parent is stuck.
    fn look(&mut self, pager: &Pager) -> bool {
        if self.parent.process().is_none() {
            find_parent(pager, &self.parent);
        }
        let passing = passing(pager, &self.parent);
        if self.parent.is_stuck() {
            return false;
        }
        if let Some(passing) = passing {
            self.withhold(&passing.withheld);
            self.ask_child(pager, passing.registered);
        } else if self.parent.process().is_some() {
            // The parent has ended since the fork. Only its child shows the areas now.
            self.ask_child(pager, Vec::new());
        }
        self.withheld.iter().for_each(|(start, end)| self.areas.remove(start, end));
        let absent = settle_inherited(&*self.uffd, &mut self.areas);
        // An identity page can be placed only if the child has not changed its mappings. Then an
        // area that is absent now was absent at the fork.
        if !absent.is_empty() && self.put_identity(pager).is_some() {
            self.withhold(&absent);
        }
        self.hidden = hidden::is_hidden(&self.parent);
        true
    }

    /// Does the next slice. Returns true if that was the last.
    pub fn go_on(&mut self, pager: &Pager, state: &State) -> bool {
        self.next = match std::mem::replace(&mut self.next, Next::End) {
            Next::Copy(start) => match self.copy(&pager.budget, state, start) {
                Some(next) => Next::Copy(next),
                None if self.standby.is_empty() => self.begin_cow_protect(pager),
                None => Next::Store,
            },
            Next::CowProtect(at, pins) => match self.cow_protect(at, &pins) {
                Some(next) => Next::CowProtect(next, pins),
                None => Next::End,
            },
            slow_work @ (Next::Look | Next::Store) => slow_work,
            Next::End => Next::End,
        };
        matches!(self.next, Next::End)
    }

    /// Marks ranges whose pages the child did not inherit.
    fn withhold(&mut self, ranges: &[(u64, u64)]) {
        for &(start, end) in ranges {
            self.withheld.remove(start, end);
            self.withheld.add(start, end);
        }
    }

    /// Looks in the child for areas that the parent has let go of since the fork (FORK-2). The
    /// forking thread runs on once its message is read, and the parent's other threads ran before.
    /// `registered` are the areas that the parent still has.
    fn ask_child(&mut self, pager: &Pager, registered: Vec<(u64, u64)>) {
        let mut gone = self.areas.clone();
        registered.into_iter().for_each(|(start, end)| gone.remove(start, end));
        if gone.is_empty() {
            return;
        }
        let Some(passing) = self.passing_of_child(pager) else { return };
        let mut passed = Areas::default();
        passing.registered.into_iter().for_each(|(start, end)| passed.add(start, end));
        passing.withheld.into_iter().for_each(|(start, end)| passed.remove(start, end));
        let lost: Vec<(u64, u64)> =
            gone.iter().flat_map(|(start, end)| passed.missing(start, end)).collect();
        self.withhold(&lost);
    }

    /// Returns which areas the child would pass on: these are the areas that it got. None if that
    /// cannot be found out.
    fn passing_of_child(&mut self, pager: &Pager) -> Option<Passing> {
        for _ in 0..FIND_TRIES {
            let process = self
                .put_identity(pager)
                .and_then(|identity| identify::unknown(&*pager.host, &pager.processes, &identity));
            if let Some(passing) = process.and_then(|process| process.passing().ok()) {
                // If this page can be placed, the child has changed nothing: a change would block
                // until the pager reads its message.
                return self.put_identity(pager).map(|_| passing);
            }
            pager.host.sleep(FIND_PAUSE);
        }
        None
    }

    /// Places an identity page in the child's pool. None if the mapping is changing.
    fn put_identity(&mut self, pager: &Pager) -> Option<IdentityPage> {
        let (identity, pages) =
            identify::put_identity(&*pager.host, self.space.mm(), &*self.uffd, &mut self.pool);
        self.identity_pages += pages;
        identity.ok()
    }

    /// Copies a slice of the table. Returns where the next slice begins.
    fn copy(&mut self, budget: &Budget, state: &State, start: Vpn) -> Option<Vpn> {
        let passes = |vpn: Vpn| self.withheld.end_of(vpn.address()).is_none();
        let mut resident = budget.resident();
        if self.hidden || !self.withheld.is_empty() {
            state.space.visit(start, SLICE_PAGES, |vpn, entry| match entry {
                Entry::Standby(_) if passes(vpn) && self.hidden => self.standby.push(vpn),
                // The child's pool has the parent's standby pages even of areas that were not
                // passed on.
                Entry::Standby(pfn) if !passes(vpn) => {
                    self.pool.discard_later(resident.frame(pfn).pool)
                }
                _ => {}
            });
        }
        let slice = (start, SLICE_PAGES);
        let (next, held) = resident.fork(&state.space, &mut self.space, slice, passes);
        self.held += held;
        next
    }

    /// Stores the child's standby pages. Returns false if the parent is stuck.
    fn store_all(&mut self, pager: &Pager) -> bool {
        while !self.standby.is_empty() {
            let batch = self.standby.split_off(self.standby.len().saturating_sub(BATCH_MAX));
            let (space, pool) = (&mut self.space, &mut self.pool);
            match hidden::store(pager, &self.parent, space, pool, &batch) {
                Some(stored) => self.held -= stored,
                None => {
                    self.standby.extend(batch);
                    return false;
                }
            }
        }
        true
    }

    /// Returns the number of the child's pages in memory.
    fn resident(&self) -> u64 {
        self.held + self.pool.pending_discards() as u64
    }

    /// Decides whether to write-protect the child's shared pages now. The child runs already, and
    /// the pages that it has copied by now count nowhere. The monitor protects the parent's pages,
    /// because the parent runs, too.
    fn begin_cow_protect(&self, pager: &Pager) -> Next {
        let needed = pager.run.managing.load(Relaxed)
            && cow_protect::is_needed(&pager.budget, self.resident());
        let pins = needed.then(|| self.parent.agent.pins_of_child()).flatten();
        pins.map_or(Next::End, |pins| Next::CowProtect(0, pins))
    }

    /// Write-protects a slice. Returns where the next slice begins.
    fn cow_protect(&mut self, at: u64, pins: &[u64]) -> Option<u64> {
        let mut pages = 0;
        for (start, end) in self.areas.iter().filter(|&(_, end)| end > at) {
            if pages >= SLICE_PAGES {
                return Some(start);
            }
            let start = start.max(at);
            let left = SLICE_PAGES - pages;
            let next = self.space.visit(Vpn::of_address(start), left, |_, _| pages += 1);
            let stop = next.map_or(end, |next| next.address().min(end));
            if !cow_protect::raise_range(&*self.uffd, start, stop, pins) {
                return None;
            }
            if stop < end {
                return Some(stop);
            }
        }
        self.cow_protected = true;
        None
    }

    /// Adds the finished child to the pager, and lets the parent change again.
    pub fn end(self, pager: &Pager, state: &mut State) {
        let (parent, resident) = (&self.parent, self.resident());
        let child_state = State::new(self.space, self.areas, self.pool, pager.config.window_max());
        let child = Mm::new(self.uffd, child_state, pager.clock.clone()).related_to(parent);
        let child = Arc::new(child);
        child.note_known(resident);
        // All pages count as shared with the parent until the next count. That includes the
        // parent's pages in areas that are not registered yet.
        let shared = (resident - self.identity_pages).max(parent.resident_pages());
        child.fork_group.discount.store(shared.cast_signed(), Relaxed);
        pager.resident().zone.add_resident(self.identity_pages);
        child.fork_group.cow_protected.store(self.cow_protected, Relaxed);
        // From now on both processes may copy pages. Pages that the parent got after its last
        // protection are not write-protected in it.
        parent.fork_group.cow_protected.store(false, Relaxed);
        parent.keep_still(state, false);
        if let Err(error) = pager.add_mm(&child) {
            pager.complain(&format!(
                "cannot serve a forked process ({error}); the program is killed"
            ));
            pager.kill_tree(Why::NotServed);
            return;
        }
        // This comes after `add_mm`. The sharing thread clears the mark of a process that shares
        // with no other, and then looks again (`sharing::count`).
        if !parent.fork_group.is_related() {
            parent.fork_group.discount.store(0, Relaxed);
        }
        parent.fork_group.related.store(true, SeqCst);
        pager.processes.sharing_begins.raise();
        pager.processes.forked.lock().unwrap_or_else(PoisonError::into_inner).push(child);
        pager.processes.fork_seen.raise();
        pager.run.wake_monitor();
    }

    /// Returns the part of the child's table that is copied by now.
    #[cfg(test)]
    pub fn space(&self) -> &Space {
        &self.space
    }
}

/// Returns which areas a forking process passes on; the program may have changed that at any time.
/// None for an unidentified process (FORK-1) or a stuck one, or if the areas cannot be read.
fn passing(pager: &Pager, parent: &Mm) -> Option<Passing> {
    let process = parent.process()?;
    let sees = |error| successor(pager, parent).ok_or(error)?.passing();
    let mut seen = process.passing().or_else(sees);
    // The process has forked and ended. Its number vanishes before its memory does.
    let wait = Wait::new(&pager.clock, Patience::Passing);
    while seen.is_err()
        && parent.uffd.is_alive()
        && !parent.is_stuck()
        && !wait.is_over(&pager.clock)
    {
        pager.host.sleep(END_PAUSE);
        seen = process.passing().or_else(sees);
    }
    match seen {
        Ok(passing) => Some(passing),
        // The store may have pages of the parent that the child must not see.
        Err(error) => {
            if !parent.is_stuck() && parent.uffd.is_alive() {
                let pid = parent.owner.pid();
                pager.complain(&format!(
                    "cannot read which areas process {pid} passes to its child ({error}); the program is killed"
                ));
                pager.kill_tree(Why::NotServed);
            }
            None
        }
    }
}

/// Returns another process with this memory (a clone with `CLONE_VM` and no `CLONE_THREAD`),
/// because the identified process may have ended.
fn successor(pager: &Pager, mm: &Mm) -> Option<Box<dyn Process>> {
    let identity = identify::show_identity_in(&*pager.host, &pager.budget, mm).ok()?;
    identify::who_sees(&*pager.host, &identity, &pager.host.tree(&pager.processes))
}

/// Registers the child's areas, and returns those that do not exist in the child.
///
/// The parent's area may be registered after the fork copied it and before the pager read the
/// message. The child's copy of that area is registered nowhere, and a page moved out of it would
/// read as zeros. Registering an area a second time changes nothing.
///
/// The child runs once the message is read, and may have moved an area that is absent now. It
/// reports the move in a message of its own, and the entries move with the area. Until that message
/// they stay in the table. If the child's mapping is not changing, the area never existed in the
/// child. It was not passed on, or it appeared in the parent after the fork.
fn settle_inherited(uffd: &dyn AddressSpace, areas: &mut Areas) -> Vec<(u64, u64)> {
    let mut absent = Vec::new();
    for (start, end) in areas.clone().iter() {
        let Err(error) = uffd.register(start, end - start, Mode::Managed) else { continue };
        areas.remove(start, end);
        // The kernel answers EINVAL for a range without a mapping.
        if error.kind() == std::io::ErrorKind::InvalidInput {
            absent.push((start, end));
        }
    }
    absent
}
