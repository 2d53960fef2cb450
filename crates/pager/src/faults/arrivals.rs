//! Arrivals: places pages that were read from the store, or drops them.
//!
//! Part of the fault threads, and the end of the loads that `loads.rs` begins. Pages that were read
//! together are mostly neighbours. So the pages of an address space that arrive together are placed
//! in one hold. A run of neighbours has one check of its addresses, one UFFDIO_COPY and one
//! wake-up. Placed one at a time, each page takes 20 us of a fault thread. A program that reads on
//! would also wake before its next page is placed.
//!
//! * ARRIVALS-1: A load first leaves `PendingState::loads`. The table entry of its page is settled
//!   in the hold in which the page is placed (ORD-3).
//! * ARRIVALS-2: One hold places [`ARRIVED_MAX`] pages at most. So no thread waits for longer than
//!   for a batch of faults.

use crate::broken::{Rule, is_broken};
use crate::faults::loads::{Joined, Load};
use crate::faults::look_around::runs;
use crate::faults::{Answer, PageFault, Server};
use crate::mm::{Mm, State, unmapped};
use crate::telemetry::stages::Kind;
use ebb_mm::resident::{Arrival, Charge, Dropped, Entry};
use ebb_mm::types::{PAGE_SIZE, Vpn};
use ebb_sys::anon::PageBuffer;
use std::sync::Arc;

/// Most pages that are placed in one hold (ARRIVALS-2). A simulated program has few pages.
const ARRIVED_MAX: usize = if cfg!(test) { 3 } else { 64 };

/// Pages that are read but not placed yet.
pub struct Arrived {
    tokens: Vec<u64>,
    /// Contents of the pages, in the order of `tokens`.
    pages: PageBuffer,
}

impl Default for Arrived {
    fn default() -> Self {
        Self { tokens: Vec::with_capacity(ARRIVED_MAX), pages: PageBuffer::new(ARRIVED_MAX) }
    }
}

/// A completed load, and the index of its content in [`Arrived::pages`].
struct Over {
    load: Load,
    at: usize,
}

impl Over {
    fn vpn(&self) -> Vpn {
        Vpn::of_address(self.load.fault.address)
    }
}

impl Server {
    /// Places the pages whose reads have completed.
    pub fn take_completions(&mut self) {
        let pager = self.pager.clone();
        pager.budget.store.poll_completions(&mut |token, result| match result {
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

    /// Handles a failed read. A page that was fetched ahead is not lost yet: a later fault reports
    /// the loss.
    fn fail(&mut self, token: u64, why: &str) {
        let load = self.pending.lock().loads.remove(&token);
        let Some(load) = load else { return };
        let mm = load.fault.mm.clone();
        let mut state = mm.lock();
        let is_wanted = self.end_loads(&mut state, std::slice::from_ref(&load))[0];
        if !is_wanted || load.ahead || state.following_message {
            self.turn_away(&mut state, load);
        } else {
            self.give_back(load.charge);
            if let Answer::Later = self.lost(&mm, &mut state, &load.fault, why) {
                self.defer_fault(load.fault);
            }
        }
        self.unlock_and_wake(&mm, state);
    }

    fn place_arrived(&mut self) {
        let mut over: Vec<Over> = {
            let mut pending_state = self.pending.lock();
            let tokens = self.arrived.tokens.drain(..).enumerate();
            tokens
                .filter_map(|(at, token)| {
                    Some(Over { load: pending_state.loads.remove(&token)?, at })
                })
                .collect()
        };
        over.sort_by_key(|over| over.load.fault.mm.id);
        while let Some(last) = over.last() {
            let mm = last.load.fault.mm.clone();
            let first = over.partition_point(|over| over.load.fault.mm.id < mm.id);
            let of_one = over.split_off(first);
            self.place_of(&mm, of_one);
        }
    }

    /// Places pages of one address space. A batch of moves may be under way, because it concerns
    /// other pages. While a mapping change is in flight, the kernel accepts no page (EAGAIN).
    fn place_of(&mut self, mm: &Arc<Mm>, over: Vec<Over>) {
        let mut state = mm.lock();
        let (mut loads, at): (Vec<Load>, Vec<usize>) =
            over.into_iter().map(|over| (over.load, over.at)).unzip();
        // Threads that wait are woken below, or stall anew.
        loads.iter_mut().for_each(|load| load.stalls.clear());
        let is_wanted = self.end_loads(&mut state, &loads);
        let mut wanted = Vec::with_capacity(loads.len());
        for ((load, at), is_wanted) in loads.into_iter().zip(at).zip(is_wanted) {
            // ORD-6: a long message is being followed. The waiting thread faults again, and a fault
            // thread reads that fault afterwards.
            if (is_wanted || is_broken(Rule::Ord3)) && !state.following_message {
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
            self.place_unmapped(mm, &mut state, wanted.by_ref().take(length).collect());
        }
        self.unlock_and_wake(mm, state);
    }

    /// Places consecutive pages where nothing is mapped, and turns the others away.
    fn place_unmapped(&self, mm: &Arc<Mm>, state: &mut State, run: Vec<(Vpn, Over)>) {
        let Some(&(first, _)) = run.first() else { return };
        // A stored page is placed if the page table cannot be read (UNMAPPED-3).
        let unmapped = unmapped::all(mm, first, run.len());
        let mut together: Vec<Over> = Vec::with_capacity(run.len());
        for (vpn, over) in run {
            let is_taken =
                unmapped.as_ref().is_some_and(|unmapped| !unmapped[(vpn.0 - first.0) as usize]);
            // One call places a run of pages, so their contents must be consecutive, too.
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
            let (address, from) = (first.load.fault.address, first.at);
            pages.iter().for_each(|over| self.end_wait(&over.load.fault));
            let content = self.arrived.pages[from..from + pages.len()].as_flattened();
            let (bytes, error) = match mm.uffd.copy(address, content) {
                Ok(()) => (content.len() as u64, None),
                Err((bytes, error)) => (bytes, Some(error)),
            };
            let rest = pages.split_off((bytes / PAGE_SIZE as u64) as usize);
            let placed = std::mem::replace(&mut pages, rest);
            if !placed.is_empty() {
                state.wake_after(address, bytes);
                self.record_placed(mm, state, placed);
            }
            let Some(error) = error.filter(|_| !pages.is_empty()) else { continue };
            let Over { load, .. } = pages.remove(0);
            let Load { mut fault, charge, ahead, joined, .. } = load;
            self.give_back(charge);
            match self.not_placed(mm, state, &fault, error) {
                Answer::Given => self.note_joined(&mut fault, joined),
                // The mapping is changing. A page that a thread waits for is looked up again once
                // that is settled.
                Answer::Later if ahead => fault_again(state, &fault),
                Answer::Later => self.defer_fault(fault),
            }
        }
    }

    /// Updates the records of placed pages, and notes their faults as served.
    fn record_placed(&self, mm: &Mm, state: &mut State, placed: Vec<Over>) {
        let mut all = Charge::default();
        let mut pages = Vec::with_capacity(placed.len());
        let mut served = Vec::with_capacity(placed.len());
        for over in placed {
            let vpn = over.vpn();
            let Load { fault, slot, ahead, wanted, joined, charge, .. } = over.load;
            all = all.and(charge);
            pages.push((vpn, slot, if ahead { Arrival::Ahead } else { Arrival::Loaded }));
            served.push((fault, slot, wanted, joined));
        }
        self.map_all(mm, state, all, &pages);
        for (mut fault, slot, wanted, joined) in served {
            let kind = match wanted {
                true if self.pager.budget.store.is_remote(slot) => Kind::Remote,
                true => Kind::File,
                false => Kind::Ahead,
            };
            self.note_served(&fault, kind);
            self.note_joined(&mut fault, joined);
        }
    }

    fn note_joined(&self, fault: &mut PageFault, joined: Vec<Joined>) {
        for Joined { thread, since, asked } in joined {
            (fault.thread, fault.since, fault.asked) = (thread, since, asked);
            self.note_served(fault, Kind::Ahead);
        }
    }

    /// Ends loads. Returns which of their pages are still wanted, and marks their entries as no
    /// longer loading.
    fn end_loads(&self, state: &mut State, loads: &[Load]) -> Vec<bool> {
        let mut dropped = Dropped::default();
        let mut resident = self.pager.resident();
        let mut end = |load: &Load| {
            let vpn = Vpn::of_address(load.fault.address);
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
        self.pager.budget.discard(&dropped);
        wanted
    }

    /// Drops a page that is not placed. A thread that waits for the page faults again.
    fn turn_away(&self, state: &mut State, load: Load) {
        fault_again(state, &load.fault);
        self.give_back(load.charge);
    }
}

/// Wakes the threads that wait for a page that is no longer wanted (discarded, unmapped or moved).
/// They fault again and get the present content.
fn fault_again(state: &mut State, fault: &PageFault) {
    state.wake_after(fault.address, PAGE_SIZE as u64);
}
