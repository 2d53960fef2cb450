//! What a fork makes of an address space, and which process that then is.
//!
//! Called by a fault thread with the parent's (or the child's) state held, and nothing else; what takes long is an errand
//! (`errand.rs`), with no lock held.
//!
//! * FORK-1: which areas a process passes on is read where it is seen. One that nobody could tell has had an agent at no
//!   time: no page of its own was ever moved out, and what it has in the store it inherited, of areas that were passed
//!   on. Its child is given all of that. What the kernel wiped, or left out, counts as there and is not, and reads as
//!   zeros when it is touched (`Server::stale`).
//!
//! * FORK-2: between the fork and the look other threads of the process may unmap or move an area, and then it cannot be
//!   asked about. The child has it still: what it may have changed itself it would wait for us to read of, and until then no
//!   page can be put into it. Where the child cannot be told it is given all of such an area if it has that; where it is
//!   changing already it is given all of it.
//!
//! A table is copied in slices, and nothing of the parent's changes until all of it is (ORD-6, `following.rs`): no message
//! is read, nothing is cooled, stored, placed or taken on, and the address space is not dropped. The child has what
//! the parent had when it forked, whenever that is copied. What it shares is guarded in slices, too. Which areas it
//! has is an errand, and so is storing what is cool of a child that will be hidden.

use crate::events::Why;
use crate::limits::{FIND_PAUSE, FIND_TRIES, SEEK_TRIES, SLICE_PAGES};
use crate::mm::{Areas, Mm, State, Token};
use crate::patience::{Patience, Wait};
use crate::pool::Pool;
use crate::seam::{AddressSpace, Process};
use crate::server::Pager;
use crate::{counters, guard};
use crate::{following, hidden};
use ebb_agent::protocol::BATCH_MAX;
use ebb_mm::resident::{Entry, Space};
use ebb_mm::types::{MmId, PAGE_SIZE, Vpn};
use ebb_sys::proc::Passing;
use ebb_sys::uffd::{Mode, PlaceError};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, PoisonError};

/// How long it is waited between looks at a process that has forked and ended, until its memory is gone.
const END_PAUSE: std::time::Duration = std::time::Duration::from_millis(1);

/// A forked child that has not greeted may be known by a thread of its own. That of a debugger
/// that looks at its memory is not: it must prove to be the same address space.
pub fn learn_process(pager: &Pager, mm: &Arc<Mm>, state: &mut State, thread: u32) {
    if mm.process().is_some() {
        return;
    }
    if let Some(pid) = pager.host.process_of(thread) {
        prove(pager, mm, state, pid);
    }
}

/// Puts a page into an address space by which it can be told: it must be seen in the process that it is. Two
/// forks of one process cannot be told apart otherwise, and to take one child for another would be to read the
/// wrong memory. The page counts until its place is dropped; where there is none the place is free again.
pub fn show_token(pager: &Pager, mm: &Mm, state: &mut State) -> Result<Token, PlaceError> {
    let (placed, pages) = put_token(pager, mm.id, &*mm.uffd, &mut state.pool);
    mm.found(&mut pager.resident().zone, pages);
    placed
}

/// The same for one that nobody serves yet; and how many pages it has more.
fn put_token(
    pager: &Pager,
    id: MmId,
    uffd: &dyn AddressSpace,
    pool: &mut Pool,
) -> (Result<Token, PlaceError>, u64) {
    let mut page = Box::new([0; PAGE_SIZE]);
    page[..4].copy_from_slice(&id.0.to_ne_bytes());
    page[4..20].copy_from_slice(&pager.host.token().to_ne_bytes());
    let Some(place) = pool.take_for_token() else { return (Err(PlaceError::NoMemory), 0) };
    let address = pool.address(place);
    let placed = uffd.copy(address, &*page).map_err(|(_, error)| error);
    let there = matches!(placed, Ok(()) | Err(PlaceError::Exists));
    if there {
        pool.retire(place);
    } else {
        pool.give_back(place);
    }
    (placed.map(|()| Token::new(address, page)), u64::from(there))
}

/// Whether it is the process `pid`: then it is known from now on.
fn prove(pager: &Pager, mm: &Mm, state: &mut State, pid: u32) {
    if let Ok(token) = show_token(pager, mm, state)
        && let Ok(process) = pager.host.open(pid)
        && token.is_seen_by(&*process)
    {
        mm.set_process(process);
    }
}

/// A token put into an address space that nobody holds.
fn show_token_in(pager: &Pager, mm: &Mm) -> Result<Token, PlaceError> {
    let mut state = mm.lock();
    if state.ended { Err(PlaceError::Dead) } else { show_token(pager, mm, &mut state) }
}

/// The processes that are known.
fn known(pager: &Pager) -> Vec<u32> {
    pager.mms().iter().filter_map(|mm| mm.process().map(Process::pid)).collect()
}

/// The processes of the tree that are not known.
fn unknown(pager: &Pager) -> Vec<u32> {
    let known = known(pager);
    let mut pids = pager.host.tree(pager);
    pids.retain(|pid| !known.contains(pid));
    pids
}

/// Which of the processes `pids` it is that has this token.
fn who_sees(pager: &Pager, token: &Token, pids: &[u32]) -> Option<Box<dyn Process>> {
    let mut processes = pids.iter().filter_map(|&pid| pager.host.open(pid).ok());
    processes.find(|process| token.is_seen_by(&**process))
}

/// A child that has not greeted is looked for among the processes of the tree. None if it cannot be found out
/// now whether it is among them. No lock is held: there may be many.
///
/// `thread` is one of its threads, as it says itself: most often that is the number here, too. Whose it is here is looked at
/// first, if it is a child of the run's: what a program says leads to nobody else.
pub fn find_process(pager: &Pager, mm: &Mm, thread: Option<u32>) -> Option<bool> {
    if mm.process().is_some() {
        return Some(true);
    }
    // First, as it may not go just now, and to walk the tree takes milliseconds where there are hundreds of processes.
    let token = match show_token_in(pager, mm) {
        Ok(token) => token,
        Err(PlaceError::Dead) => return Some(false),
        // Something is there already, or the mapping is changing: another place, another time.
        Err(_) => return None,
    };
    let said = thread.and_then(|thread| pager.host.child_of(thread, &known(pager)));
    let found = said.and_then(|pid| who_sees(pager, &token, &[pid]));
    if let Some(process) = found.or_else(|| who_sees(pager, &token, &unknown(pager))) {
        mm.set_process(process);
    }
    // It may have become known meanwhile, and then it was not looked at.
    Some(mm.process().is_some())
}

/// The same for one that forks.
fn find_parent(pager: &Pager, mm: &Mm) {
    let mut unseen = 0;
    for _ in 0..FIND_TRIES {
        match find_process(pager, mm, None) {
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
    /// Tokens that were put into its pool.
    tokens: u64,
    guarded: bool,
    next: Next,
}

/// What is to be done next.
enum Next {
    /// The processes are looked at, which takes long.
    Look,
    /// Its table is copied from here on.
    Copy(Vpn),
    /// What is cool of it is stored, which takes long.
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
        following::still(parent, state, true);
        Self {
            parent: parent.clone(),
            uffd,
            space: Space::new(pager.new_mm_id()),
            areas: state.areas.clone(),
            pool: state.pool.inherited(),
            withheld: Areas::default(),
            hidden: false,
            cool: Vec::new(),
            held: 0,
            tokens: 0,
            guarded: false,
            next: Next::Look,
        }
    }

    /// Whether what is next takes long.
    pub fn has_errand(&self) -> bool {
        matches!(self.next, Next::Look | Next::Store)
    }

    /// Does that, with no lock held.
    pub fn go_errand(&mut self, pager: &Pager) {
        self.next = match std::mem::replace(&mut self.next, Next::End) {
            Next::Look => {
                self.look(pager);
                Next::Copy(Vpn(0))
            }
            Next::Store => {
                while !self.cool.is_empty() {
                    self.store(pager);
                }
                self.begin_guard(pager)
            }
            other => other,
        };
    }

    /// What the child inherits, and whether it can be looked into.
    fn look(&mut self, pager: &Pager) {
        if self.parent.process().is_none() {
            find_parent(pager, &self.parent);
        }
        if let Some(passing) = passing(pager, &self.parent) {
            self.withhold(&passing.withheld);
            self.ask_child(pager, passing.registered);
        } else if self.parent.process().is_some() {
            // It has ended since: only its child can be asked.
            self.ask_child(pager, Vec::new());
        }
        self.withheld.iter().for_each(|(start, end)| self.areas.remove(start, end));
        let absent = settle_inherited(&*self.uffd, &mut self.areas);
        // It has not changed anything yet: what is not there never was.
        if !absent.is_empty() && self.put_token(pager).is_some() {
            self.withhold(&absent);
        }
        self.hidden = hidden::is_hidden(pager, &self.parent);
    }

    /// Does a slice of it. True if that was the last.
    pub fn go_on(&mut self, pager: &Pager, state: &State) -> bool {
        self.next = match std::mem::replace(&mut self.next, Next::End) {
            Next::Copy(start) => match self.copy(pager, state, start) {
                Some(next) => Next::Copy(next),
                None if self.cool.is_empty() => self.begin_guard(pager),
                None => Next::Store,
            },
            Next::Guard(at, pins) => match self.guard(at, &pins) {
                Some(next) => Next::Guard(next, pins),
                None => Next::End,
            },
            errand @ (Next::Look | Next::Store) => errand,
            Next::End => Next::End,
        };
        matches!(self.next, Next::End)
    }

    /// Nothing of these ranges reaches the child.
    fn withhold(&mut self, ranges: &[(u64, u64)]) {
        for &(start, end) in ranges {
            self.withheld.remove(start, end);
            self.withheld.add(start, end);
        }
    }

    /// The parent runs since its message was read, and other threads of it ran before: what it has let go of since the
    /// fork it cannot be asked about any more (FORK-2). `registered`: what it still has.
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

    /// What the child would pass on, which is what it got. None if that cannot be found out.
    fn passing_of_child(&mut self, pager: &Pager) -> Option<Passing> {
        for _ in 0..FIND_TRIES {
            let process =
                self.put_token(pager).and_then(|token| who_sees(pager, &token, &unknown(pager)));
            if let Some(passing) = process.and_then(|process| process.passing().ok()) {
                // Whatever it may have changed meanwhile it would still wait for us to read of.
                return self.put_token(pager).map(|_| passing);
            }
            pager.host.sleep(FIND_PAUSE);
        }
        None
    }

    /// A token in the child's pool, unless its mapping is changing.
    fn put_token(&mut self, pager: &Pager) -> Option<Token> {
        let (token, pages) = put_token(pager, self.space.mm(), &*self.uffd, &mut self.pool);
        self.tokens += pages;
        token.ok()
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
        // All of it is the parent's too, until counted; so is what the parent has in areas that are not registered yet.
        let shared = (resident - self.tokens).max(parent.resident_pages());
        child.discount.store(shared.cast_signed(), Relaxed);
        pager.resident().zone.found(self.tokens);
        child.guarded.store(self.guarded, Relaxed);
        // Both may be copied from now on: what was guarded before is, what has come since is not.
        parent.guarded.store(false, Relaxed);
        following::still(parent, state, false);
        if let Err(error) = pager.add_mm(&child) {
            pager.complain(&format!("cannot serve a forked process: {error}"));
            pager.kill_tree(Why::NotServed);
            return;
        }
        // After that: the monitor marks who is alone, and looks again (`Sharing::count`).
        if !parent.related.load(Relaxed) {
            parent.discount.store(0, Relaxed);
        }
        parent.related.store(true, SeqCst);
        pager.forked.lock().unwrap_or_else(PoisonError::into_inner).push(child);
        pager.fork_seen.raise();
        pager.monitor.raise();
    }

    /// What the child has so far.
    #[cfg(test)]
    pub fn space(&self) -> &Space {
        &self.space
    }
}

/// What a process that forks passes on; the program may have asked for that at any time. None of a process that nobody could
/// tell (FORK-1).
fn passing(pager: &Pager, parent: &Mm) -> Option<Passing> {
    let process = parent.process()?;
    let sees = |error| successor(pager, parent).ok_or(error)?.passing();
    let mut seen = process.passing().or_else(sees);
    // It forked and ended: its number is gone before its memory is.
    let wait = Wait::new(&pager.clock, Patience::Passing);
    while seen.is_err() && parent.is_alive() && !wait.is_over(&pager.clock) {
        pager.host.sleep(END_PAUSE);
        seen = process.passing().or_else(sees);
    }
    match seen {
        Ok(passing) => Some(passing),
        // Pages of it may be in the store that the child must not see.
        Err(error) => {
            if parent.is_alive() {
                let pid = parent.pid();
                pager.complain(&format!(
                    "cannot see which areas process {pid} passes on ({error}); the run is stopped"
                ));
                pager.kill_tree(Why::NotServed);
            }
            None
        }
    }
}

/// Another process with the same memory (a clone with `CLONE_VM` and no `CLONE_THREAD`): that which was known may
/// have ended.
fn successor(pager: &Pager, mm: &Mm) -> Option<Box<dyn Process>> {
    let token = show_token_in(pager, mm).ok()?;
    who_sees(pager, &token, &pager.host.tree(pager))
}

/// An area may have come under management after the fork copied it and before its message was read:
/// the child's is then registered nowhere, and a page moved out of it would read as zeros. Each is
/// registered here, which changes nothing where it is already.
///
/// One that cannot be is not there: those are returned. The child, which runs since the message was read, may have moved
/// it, and says so in a message of its own, by which its pages move, too: if it is changing they stay known until then.
/// Or it never was: it was not passed on, or its pages were found in the parent after the fork.
fn settle_inherited(uffd: &dyn AddressSpace, areas: &mut Areas) -> Vec<(u64, u64)> {
    let mut absent = Vec::new();
    for (start, end) in areas.clone().iter() {
        let Err(error) = uffd.register(start, end - start, Mode::Managed) else { continue };
        areas.remove(start, end);
        // The kernel's word for a range in which there is nothing.
        if error.kind() == std::io::ErrorKind::InvalidInput {
            absent.push((start, end));
        }
    }
    absent
}
