//! Loads stored pages back into memory, on demand or as readahead.
//!
//! Part of the fault threads. The end of a load is in `arrivals.rs`. A load is in
//! `PendingState::loads` from its start to its end (PENDING-2). It holds a reference to its slot
//! and the charge of its page. However a load ends, a fault thread wakes each thread that waits for
//! the page. The woken thread finds the page, gets a bus error, or repeats its access.

use crate::faults::look_around::runs;
use crate::faults::{Answer, Asked, NO_THREAD, PageFault, Server};
use crate::mm::{Mm, State, unmapped};
use crate::telemetry::counters;
use crate::telemetry::pressure::Stall;
use crate::telemetry::stages::Kind;
use ebb_mm::driver::BESIDE_MAX;
use ebb_mm::resident::{Arrival, Charge, Dropped, Entry};
use ebb_mm::types::{PAGE_SIZE, SlotId, Vpn};
use ebb_swap::Source;
use ebb_sys::ticks;
use ebb_sys::uffd::PlaceError;
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// A page that is being loaded from the store. Holds a reference to the slot.
pub struct Load {
    pub fault: PageFault,
    pub slot: SlotId,
    /// True while no thread has asked for the page (readahead).
    pub ahead: bool,
    /// Whether a thread had asked for the page when the load began.
    pub wanted: bool,
    /// One stall for each thread that waits for the page.
    pub stalls: Vec<Stall>,
    /// Threads that began to wait for the page after the load had started.
    pub joined: Vec<Joined>,
    pub charge: Charge,
}

/// A thread that waits for a page whose load was already under way.
#[derive(Clone, Copy)]
pub struct Joined {
    pub thread: u32,
    pub since: Instant,
    pub asked: Asked,
}

/// Returns the charges of all loads when a fault thread ends, because no load can complete any
/// more.
impl Drop for Server {
    fn drop(&mut self) {
        for load in std::mem::take(&mut self.pending.lock().loads).into_values() {
            self.give_back(load.charge);
        }
    }
}

impl Server {
    /// Serves a fault on a stored page: places it at once if the store has it in memory, or starts
    /// to load it.
    pub fn load(
        &mut self,
        mm: &Arc<Mm>,
        state: &mut State,
        fault: &PageFault,
        vpn: Vpn,
        slot: SlotId,
    ) -> Answer {
        let Some(charge) = self.charge(mm, fault) else { return Answer::Later };
        fault.begun.set(ticks::now());
        let answer = match self.pager.budget.store.get_now(slot, &mut self.buffer[0]) {
            Ok(Some(source)) => {
                let kind = match source {
                    Source::Same => Kind::Same,
                    Source::Compressed => Kind::Compressed,
                };
                self.place_loaded(mm, state, fault, charge, (slot, kind))
            }
            Ok(None) => {
                let (mut beside, ahead) = self.stored_beside(mm, state, fault);
                let charge = charge.and(self.place_ahead(mm, state, &mut beside, ahead));
                self.load_all(mm, state, fault, Some((vpn, slot)), &beside, charge);
                Answer::Given
            }
            Err(error) => {
                self.give_back(charge);
                self.lost(mm, state, fault, &error.to_string())
            }
        };
        if matches!(answer, Answer::Given) {
            self.load_beside(mm, state, fault);
            self.look_around(mm, state, fault);
        }
        answer
    }

    /// Places the pages whose content the store has in memory, a few at a time, each run by one
    /// call. Leaves the other pages in `pages` and returns the rest of the charge for them.
    fn place_ahead(
        &mut self,
        mm: &Mm,
        state: &mut State,
        pages: &mut Vec<(Vpn, SlotId)>,
        mut charge: Charge,
    ) -> Charge {
        pages.sort_unstable();
        let (mut near, mut far) = (Vec::new(), Vec::new());
        let mut changing = false;
        for (vpn, slot) in pages.drain(..) {
            let there = !changing
                && matches!(
                    self.pager.budget.store.get_now(slot, &mut self.beside[near.len()]),
                    Ok(Some(_))
                );
            if !there {
                far.push((vpn, slot));
                continue;
            }
            near.push((vpn, slot));
            if near.len() == BESIDE_MAX {
                changing = !self.place_near(mm, state, &near, &mut charge);
                near.clear();
            }
        }
        if !near.is_empty() {
            changing |= !self.place_near(mm, state, &near, &mut charge);
        }
        if changing {
            // If the program needs the rest, its accesses fault again.
            far.clear();
        }
        let spare = charge.pages() - charge.pages().min(far.len() as u64);
        self.give_back(charge.split(spare));
        *pages = far;
        charge
    }

    /// Places pages whose content is in `beside`. Returns false if the mapping is changing.
    fn place_near(
        &self,
        mm: &Mm,
        state: &mut State,
        near: &[(Vpn, SlotId)],
        charge: &mut Charge,
    ) -> bool {
        let mut placed = 0;
        let mut changing = false;
        for run in runs(near) {
            let start = near[run.start].0.address();
            let content = self.beside[run.clone()].as_flattened();
            let bytes = match mm.uffd.copy(start, content) {
                Ok(()) => content.len() as u64,
                Err((bytes, error)) => {
                    changing |= error == PlaceError::Changing;
                    bytes
                }
            };
            let pages = bytes / PAGE_SIZE as u64;
            let placed_now = &near[run.start..run.start + pages as usize];
            let placed_now: SmallVec<[_; BESIDE_MAX]> =
                placed_now.iter().map(|&(vpn, slot)| (vpn, slot, Arrival::Ahead)).collect();
            self.map_all(mm, state, charge.split(pages), &placed_now);
            // Another thread may have faulted on these pages meanwhile.
            state.wake_after(start, bytes);
            placed += pages;
        }
        counters::add(&self.pager.telemetry.counters.pages_ahead, placed);
        !changing
    }

    /// Adds a fault to the load of its page that is under way. The end of the load wakes every
    /// waiting thread.
    pub fn join_load(&mut self, fault: &PageFault) -> Answer {
        let same = |load: &&mut Load| {
            load.fault.address == fault.address && Arc::ptr_eq(&load.fault.mm, &fault.mm)
        };
        let stall = self.stall(fault);
        if let Some(load) = self.pending.lock().loads.values_mut().find(same) {
            load.stalls.push(stall);
            let (thread, since, asked) = (fault.thread, fault.since, fault.asked);
            if std::mem::take(&mut load.ahead) {
                (load.fault.thread, load.fault.since, load.fault.asked) = (thread, since, asked);
            } else {
                load.joined.push(Joined { thread, since, asked });
            }
        }
        Answer::Given
    }

    /// Returns the stored pages in a fault's readahead window, as many as there is memory for, with
    /// their charge.
    fn stored_beside(
        &self,
        mm: &Mm,
        state: &State,
        fault: &PageFault,
    ) -> (Vec<(Vpn, SlotId)>, Charge) {
        if fault.window.count == 0 {
            return <_>::default();
        }
        let stored = |vpn| match state.space.get(vpn) {
            Entry::Stored { slot, loading: false, .. } => Some((vpn, slot)),
            _ => None,
        };
        let window = fault.window.pages(Vpn::of_address(fault.address));
        let mut beside: Vec<(Vpn, SlotId)> = window.filter_map(stored).collect();
        unmapped::keep(mm, &mut beside);
        let charge = self.charge_ahead(beside.len());
        beside.truncate(charge.pages() as usize);
        (beside, charge)
    }

    /// Fetches the stored pages ahead of a fault. Places those that the store has in memory, and
    /// starts to load the others, unless their loads are under way.
    pub fn load_beside(&mut self, mm: &Arc<Mm>, state: &mut State, fault: &PageFault) {
        let (mut beside, charge) = self.stored_beside(mm, state, fault);
        let charge = self.place_ahead(mm, state, &mut beside, charge);
        if !beside.is_empty() {
            self.load_all(mm, state, fault, None, &beside, charge);
        }
        let vpn = Vpn::of_address(fault.address);
        let is_left =
            |vpn: &Vpn| matches!(state.space.get(*vpn), Entry::Stored { loading: false, .. });
        if let Some(left) = fault.window.pages(vpn).find(is_left) {
            state.space.cut(vpn, fault.window, left);
        }
    }

    /// Starts to load the wanted page, if any, and the pages beside it, with the charge of all.
    fn load_all(
        &mut self,
        mm: &Arc<Mm>,
        state: &mut State,
        fault: &PageFault,
        wanted: Option<(Vpn, SlotId)>,
        beside: &[(Vpn, SlotId)],
        mut charge: Charge,
    ) {
        let mut reads = Vec::with_capacity(1 + beside.len());
        let all =
            wanted.iter().map(|page| (page, false)).chain(beside.iter().map(|page| (page, true)));
        for (&(vpn, slot), ahead) in all {
            let token = self.pending.token();
            self.pager.resident().begin_load(&mut state.space, vpn, slot);
            let (mm, address) = (mm.clone(), vpn.address());
            let stalls = if ahead { Vec::new() } else { vec![self.stall(fault)] };
            let begun = fault.begun.clone();
            let (stall, refused, got) = (Cell::default(), Cell::default(), Cell::new(0));
            let thread = if ahead { NO_THREAD } else { fault.thread };
            let fault = PageFault { mm, address, thread, stall, refused, begun, got, ..*fault };
            let charge = charge.split(1);
            let (wanted, joined) = (!ahead, Vec::new());
            let load = Load { fault, slot, ahead, wanted, stalls, joined, charge };
            self.pending.lock().loads.insert(token, load);
            reads.push((slot, token));
        }
        counters::add(&self.pager.telemetry.counters.pages_ahead, beside.len() as u64);
        self.pager.budget.store.start_batch(&reads);
    }

    /// Poisons a page whose content the pager cannot get back from the store or the pool. An access
    /// kills the program, and no thread reads a wrong byte. If the kernel cannot set the poison
    /// yet, the method reports nothing and the page is read again.
    pub fn lost(&self, mm: &Arc<Mm>, state: &mut State, fault: &PageFault, why: &str) -> Answer {
        // The program dies at once. The lock keeps the run from ending before the message is out.
        let _explaining = self.pager.run.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = mm.uffd.poison(fault.address, PAGE_SIZE as u64) {
            return self.not_placed(mm, state, fault, error);
        }
        counters::count(&self.pager.telemetry.counters.poisoned);
        // Several threads may each meet a lost page before the first has died. One line per process
        // is enough.
        if mm.served.note_lost() {
            self.pager.complain(&format!(
                "a stored page of process {} is lost ({why}); touching it is a bus error (SIGBUS)",
                mm.owner.pid()
            ));
        }
        Answer::Given
    }

    /// Records stored pages as resident after they have been placed, with the charge of all.
    pub fn map_all(
        &self,
        mm: &Mm,
        state: &mut State,
        charge: Charge,
        pages: &[(Vpn, SlotId, Arrival)],
    ) {
        let copies: SmallVec<[Option<SlotId>; BESIDE_MAX]> = (pages.iter())
            .map(|&(_, slot, _)| self.pager.budget.store.is_worth_keeping(slot).then_some(slot))
            .collect();
        let mut dropped = Dropped::default();
        let mut resident = self.pager.resident();
        mm.place(&mut resident.zone, charge);
        for (&(vpn, slot, how), copy) in pages.iter().zip(copies) {
            resident.map(&mut state.space, vpn, how, copy);
            if copy.is_none() {
                resident.release_slot(slot, &mut dropped);
            }
            if how == Arrival::Loaded {
                counters::count(&self.pager.telemetry.counters.faults_loaded);
            }
        }
        drop(resident);
        self.pager.budget.discard(&dropped);
    }

    /// Places the page whose content is in `buffer`. The page-table entry still has the page's
    /// slot.
    fn place_loaded(
        &self,
        mm: &Arc<Mm>,
        state: &mut State,
        fault: &PageFault,
        charge: Charge,
        (slot, kind): (SlotId, Kind),
    ) -> Answer {
        self.end_wait(fault);
        match mm.uffd.copy(fault.address, &self.buffer[0]) {
            Ok(()) => {
                state.wake_after(fault.address, PAGE_SIZE as u64);
                let page = (Vpn::of_address(fault.address), slot, Arrival::Loaded);
                self.map_all(mm, state, charge, &[page]);
                self.note_served(fault, kind);
                Answer::Given
            }
            Err((_, error)) => {
                self.give_back(charge);
                self.not_placed(mm, state, fault, error)
            }
        }
    }
}
