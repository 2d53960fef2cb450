//! Arrivals: what was read of stored pages goes into its place, or comes to nothing.
//!
//! Part of the fault threads, and the end of what `loads.rs` begins. Pages that were read together mostly lie together, so
//! those that are there at once are taken together: one hold of the lock, one look at what lies there, one UFFDIO_COPY and one
//! wake-up for each run of them. One by one each took 20 us of a fault thread, and woke a program that asked for the next
//! page before that was placed.
//!
//! * ARRIVALS-1: a load leaves `Books::loads` first and its page's entry is settled in the hold in which the page is placed (ORD-3).
//! * ARRIVALS-2: pages of one hold are [`ARRIVED_MAX`] at most, so that nobody waits for longer than for a batch of touches.

use crate::broken::{Rule, is_broken};
use crate::faults::{Answer, Server, Touch};
use crate::loads::{Joined, Load};
use crate::look_around::runs;
use crate::mm::{Mm, State};
use crate::stages::Kind;
use crate::vacant;
use ebb_mm::resident::{Arrival, Charge, Dropped, Entry};
use ebb_mm::types::{PAGE_SIZE, Vpn};
use ebb_sys::anon::PageBuffer;
use std::sync::Arc;

/// Most pages that are put in place in one hold (ARRIVALS-2). A simulated program has few.
const ARRIVED_MAX: usize = if cfg!(test) { 3 } else { 64 };

/// Pages that have been read and are not in place yet.
pub struct Arrived {
    tokens: Vec<u64>,
    /// The content of each, in the same order.
    pages: PageBuffer,
}

impl Default for Arrived {
    fn default() -> Self {
        Self { tokens: Vec::with_capacity(ARRIVED_MAX), pages: PageBuffer::new(ARRIVED_MAX) }
    }
}

/// A load that is over, and where its content lies.
struct Over {
    load: Load,
    at: usize,
}

impl Over {
    fn vpn(&self) -> Vpn {
        Vpn::of_address(self.load.touch.address)
    }
}

impl Server {
    /// Puts in place what has been read by now.
    pub fn take_completions(&mut self) {
        let pager = self.pager.clone();
        pager.store.poll_completions(&mut |token, result| match result {
            Ok(page) => {
                self.arrived.pages[self.arrived.tokens.len()] = *page;
                self.arrived.tokens.push(token);
                if self.arrived.tokens.len() == ARRIVED_MAX {
                    self.place_arrived();
                }
            }
            Err(error) => self.fail(token, &error.to_string()),
        });
        self.place_arrived();
    }

    /// A page could not be read. One that nobody asked for is no loss yet: whoever does will be told.
    fn fail(&mut self, token: u64, why: &str) {
        let load = self.pending.books().loads.remove(&token);
        let Some(load) = load else { return };
        let mm = load.touch.mm.clone();
        let mut state = mm.lock();
        let is_wanted = self.end_loads(&mut state, std::slice::from_ref(&load))[0];
        if !is_wanted || load.ahead || state.copying {
            self.turn_away(&mut state, load);
        } else {
            self.give_back(load.charge);
            if let Answer::Later = self.lost(&mm, &mut state, &load.touch, why) {
                self.set_aside(load.touch);
            }
        }
        self.let_go(&mm, state);
    }

    fn place_arrived(&mut self) {
        let mut over: Vec<Over> = {
            let mut books = self.pending.books();
            let tokens = self.arrived.tokens.drain(..).enumerate();
            tokens
                .filter_map(|(at, token)| Some(Over { load: books.loads.remove(&token)?, at }))
                .collect()
        };
        over.sort_by_key(|over| over.load.touch.mm.id);
        while let Some(last) = over.last() {
            let mm = last.load.touch.mm.clone();
            let first = over.partition_point(|over| over.load.touch.mm.id < mm.id);
            let of_one = over.split_off(first);
            self.place_of(&mm, of_one);
        }
    }

    /// Puts pages of one address space in place. A batch of moves may be under way: no other page is its business, and
    /// while a mapping change is in flight the kernel takes no page (EAGAIN).
    fn place_of(&mut self, mm: &Arc<Mm>, over: Vec<Over>) {
        let mut state = mm.lock();
        let (mut loads, at): (Vec<Load>, Vec<usize>) =
            over.into_iter().map(|over| (over.load, over.at)).unzip();
        // Whoever waits is woken below, or begins anew.
        loads.iter_mut().for_each(|load| load.stalls.clear());
        let is_wanted = self.end_loads(&mut state, &loads);
        let mut wanted = Vec::with_capacity(loads.len());
        for ((load, at), is_wanted) in loads.into_iter().zip(at).zip(is_wanted) {
            // ORD-6: who waits for it touches again, and is heard when the fork has been followed.
            if (is_wanted || is_broken(Rule::Ord3)) && !state.copying {
                let over = Over { load, at };
                wanted.push((over.vpn(), over));
            } else {
                self.turn_away(&mut state, load);
            }
        }
        wanted.sort_by_key(|&(vpn, _)| vpn);
        let runs: Vec<_> = runs(&wanted).map(|run| run.len()).collect();
        let mut wanted = wanted.into_iter();
        for length in runs {
            self.place_vacant(mm, &mut state, wanted.by_ref().take(length).collect());
        }
        self.let_go(mm, state);
    }

    /// Puts pages that follow one another where there is nothing, and turns the others away.
    fn place_vacant(&self, mm: &Arc<Mm>, state: &mut State, run: Vec<(Vpn, Over)>) {
        let Some(&(first, _)) = run.first() else { return };
        // Where that cannot be seen a stored page is placed (UNMAPPED-3).
        let vacant = vacant::all(mm, first, run.len());
        let mut together: Vec<Over> = Vec::with_capacity(run.len());
        for (vpn, over) in run {
            let is_taken =
                vacant.as_ref().is_some_and(|vacant| !vacant[(vpn.0 - first.0) as usize]);
            // What is placed by one call lies together, and its content does.
            if is_taken || together.last().is_some_and(|last| last.at + 1 != over.at) {
                self.place_together(mm, state, std::mem::take(&mut together));
            }
            if is_taken {
                self.turn_away(state, over.load);
            } else {
                together.push(over);
            }
        }
        self.place_together(mm, state, together);
    }

    fn place_together(&self, mm: &Arc<Mm>, state: &mut State, mut pages: Vec<Over>) {
        while let Some(first) = pages.first() {
            let (address, from) = (first.load.touch.address, first.at);
            pages.iter().for_each(|over| self.end_wait(&over.load.touch));
            let content = self.arrived.pages[from..from + pages.len()].as_flattened();
            let (bytes, error) = match mm.uffd.copy(address, content) {
                Ok(()) => (content.len() as u64, None),
                Err((bytes, error)) => (bytes, Some(error)),
            };
            let rest = pages.split_off((bytes / PAGE_SIZE as u64) as usize);
            let placed = std::mem::replace(&mut pages, rest);
            if !placed.is_empty() {
                state.wake_after(address, bytes);
                self.settle(mm, state, placed);
            }
            let Some(error) = error.filter(|_| !pages.is_empty()) else { continue };
            let Over { load, .. } = pages.remove(0);
            let Load { mut touch, charge, ahead, joined, .. } = load;
            self.give_back(charge);
            match self.not_placed(mm, state, &touch, error) {
                Answer::Given => self.note_joined(&mut touch, joined),
                // The mapping is changing: looked up again once that is settled, if anybody cares.
                Answer::Later if ahead => touch_again(state, &touch),
                Answer::Later => self.set_aside(touch),
            }
        }
    }

    /// Pages are in place: the books, and who waited for them.
    fn settle(&self, mm: &Mm, state: &mut State, placed: Vec<Over>) {
        let mut all = Charge::default();
        let mut pages = Vec::with_capacity(placed.len());
        let mut served = Vec::with_capacity(placed.len());
        for over in placed {
            let vpn = over.vpn();
            let Load { touch, slot, ahead, wanted, joined, charge, .. } = over.load;
            all = all.and(charge);
            pages.push((vpn, slot, if ahead { Arrival::Ahead } else { Arrival::Loaded }));
            served.push((touch, slot, wanted, joined));
        }
        self.map_all(mm, state, all, &pages);
        for (mut touch, slot, wanted, joined) in served {
            let kind = match wanted {
                true if self.pager.store.is_remote(slot) => Kind::Remote,
                true => Kind::File,
                false => Kind::Ahead,
            };
            self.note_served(&touch, kind);
            self.note_joined(&mut touch, joined);
        }
    }

    fn note_joined(&self, touch: &mut Touch, joined: Vec<Joined>) {
        for Joined { thread, since, asked } in joined {
            (touch.thread, touch.since, touch.asked) = (thread, since, asked);
            self.note_served(touch, Kind::Ahead);
        }
    }

    /// The loads are over. Which of their pages are still wanted; the entries of those are then plainly stored again.
    fn end_loads(&self, state: &mut State, loads: &[Load]) -> Vec<bool> {
        let mut dropped = Dropped::default();
        let mut resident = self.pager.resident();
        let mut end = |load: &Load| {
            let vpn = Vpn::of_address(load.touch.address);
            let is_wanted = !state.ended
                && matches!(state.space.get(vpn),
                    Entry::Stored { slot, loading: true, .. } if slot == load.slot);
            if is_wanted {
                resident.end_load(&mut state.space, vpn);
            }
            resident.release_slot(load.slot, &mut dropped);
            is_wanted
        };
        let wanted = loads.iter().map(&mut end).collect();
        drop(resident);
        self.pager.discard(&dropped);
        wanted
    }

    /// A page that is not put in place: who waits for it touches again.
    fn turn_away(&self, state: &mut State, load: Load) {
        touch_again(state, &load.touch);
        self.give_back(load.charge);
    }
}

/// The page that threads wait for is not wanted any more (discarded, unmapped, moved): they touch
/// again and get what is there now.
fn touch_again(state: &mut State, touch: &Touch) {
    state.wake_after(touch.address, PAGE_SIZE as u64);
}
