//! Loads: stored pages on their way back, asked for or ahead of being asked for.
//!
//! Part of the fault threads; how they end is in `arrivals.rs`. A load is in `Books::loads` from its start to its end (PENDING-2); it holds a share
//! of its slot, and the charge of its page. However it ends, whoever waits for the page is woken: by the
//! page being placed, by a bus error, or to touch it again.

use crate::counters;
use crate::faults::{Answer, Asked, NOBODY, Server, Touch};
use crate::look_around::{BESIDE_MAX, runs};
use crate::mm::{Mm, State};
use crate::pressure::Stall;
use crate::stages::Kind;
use crate::vacant;
use ebb_mm::resident::{Arrival, Charge, Dropped, Entry};
use ebb_mm::types::{PAGE_SIZE, SlotId, Vpn};
use ebb_swap::Source;
use ebb_sys::ticks;
use ebb_sys::uffd::PlaceError;
use smallvec::SmallVec;
use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

/// A page on its way from the store. Holds a share of the slot.
pub struct Load {
    pub touch: Touch,
    pub slot: SlotId,
    /// Nobody has asked for it yet.
    pub ahead: bool,
    /// It was asked for when it was begun.
    pub wanted: bool,
    /// One for each thread that waits for it.
    pub stalls: Vec<Stall>,
    /// The threads that came to wait for it when it was on its way.
    pub joined: Vec<Joined>,
    pub charge: Charge,
}

/// A thread that waits for a page on its way.
#[derive(Clone, Copy)]
pub struct Joined {
    pub thread: u32,
    pub since: Instant,
    pub asked: Asked,
}

/// A fault thread ends: nothing is on its way any more.
impl Drop for Server {
    fn drop(&mut self) {
        for load in std::mem::take(&mut self.pending.books().loads).into_values() {
            self.give_back(load.charge);
        }
    }
}

impl Server {
    /// A stored page.
    pub fn load(
        &mut self,
        mm: &Arc<Mm>,
        state: &mut State,
        touch: &Touch,
        vpn: Vpn,
        slot: SlotId,
    ) -> Answer {
        let Some(charge) = self.charge(mm, touch) else { return Answer::Later };
        touch.begun.set(ticks::now());
        let answer = match self.pager.store.get_now(slot, &mut self.buffer[0]) {
            Ok(Some(source)) => {
                let kind = match source {
                    Source::Same => Kind::Same,
                    Source::Compressed => Kind::Compressed,
                };
                self.place_loaded(mm, state, touch, charge, (slot, kind))
            }
            Ok(None) => {
                let (mut beside, ahead) = self.stored_beside(mm, state, touch);
                let charge = charge.and(self.place_ahead(mm, state, &mut beside, ahead));
                self.load_all(mm, state, touch, Some((vpn, slot)), &beside, charge);
                Answer::Given
            }
            Err(error) => {
                self.give_back(charge);
                self.lost(mm, state, touch, &error.to_string())
            }
        };
        if matches!(answer, Answer::Given) {
            self.load_beside(mm, state, touch);
            self.look_around(mm, state, touch);
        }
        answer
    }

    /// Puts those of `pages` in place that take no waiting, a few at a time, each run of them by one call, with their
    /// charge. Leaves the others, with what is left of the charge.
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
                    self.pager.store.get_now(slot, &mut self.beside[near.len()]),
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
            // Whoever wants the rest will touch it.
            far.clear();
        }
        let spare = charge.pages() - charge.pages().min(far.len() as u64);
        self.give_back(charge.split(spare));
        *pages = far;
        charge
    }

    /// Puts pages in place whose content is in `beside`. False if the mapping is changing.
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
            // Another thread may have touched them meanwhile.
            state.wake_after(start, bytes);
            placed += pages;
        }
        counters::add(&self.pager.counters.pages_ahead, placed);
        !changing
    }

    /// A page that is on its way: whoever loads it wakes every thread that waits for it.
    pub fn join_load(&mut self, touch: &Touch) -> Answer {
        let same = |load: &&mut Load| {
            load.touch.address == touch.address && Arc::ptr_eq(&load.touch.mm, &touch.mm)
        };
        let stall = self.stall(touch);
        if let Some(load) = self.pending.books().loads.values_mut().find(same) {
            load.stalls.push(stall);
            let (thread, since, asked) = (touch.thread, touch.since, touch.asked);
            if std::mem::take(&mut load.ahead) {
                (load.touch.thread, load.touch.since, load.touch.asked) = (thread, since, asked);
            } else {
                load.joined.push(Joined { thread, since, asked });
            }
        }
        Answer::Given
    }

    /// The stored pages of a touch's window, as many as there is memory for, with their charge.
    fn stored_beside(&self, mm: &Mm, state: &State, touch: &Touch) -> (Vec<(Vpn, SlotId)>, Charge) {
        if touch.window.count == 0 {
            return <_>::default();
        }
        let stored = |vpn| match state.space.get(vpn) {
            Entry::Stored { slot, loading: false, .. } => Some((vpn, slot)),
            _ => None,
        };
        let window = touch.window.pages(Vpn::of_address(touch.address));
        let mut beside: Vec<(Vpn, SlotId)> = window.filter_map(stored).collect();
        vacant::keep(mm, &mut beside);
        let charge = self.charge_ahead(beside.len());
        beside.truncate(charge.pages() as usize);
        (beside, charge)
    }

    /// Starts to load what lies ahead of a touch, if that has not begun.
    pub fn load_beside(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch) {
        let (mut beside, charge) = self.stored_beside(mm, state, touch);
        let charge = self.place_ahead(mm, state, &mut beside, charge);
        if !beside.is_empty() {
            self.load_all(mm, state, touch, None, &beside, charge);
        }
        let vpn = Vpn::of_address(touch.address);
        let is_left =
            |vpn: &Vpn| matches!(state.space.get(*vpn), Entry::Stored { loading: false, .. });
        if let Some(left) = touch.window.pages(vpn).find(is_left) {
            state.space.cut(vpn, touch.window, left);
        }
    }

    /// Starts to load the page that was asked for, if any, and those beside it, with the charge of
    /// all.
    fn load_all(
        &mut self,
        mm: &Arc<Mm>,
        state: &mut State,
        touch: &Touch,
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
            let stalls = if ahead { Vec::new() } else { vec![self.stall(touch)] };
            let begun = touch.begun.clone();
            let (stall, refused, got) = (Cell::default(), Cell::default(), Cell::new(0));
            let thread = if ahead { NOBODY } else { touch.thread };
            let touch = Touch { mm, address, thread, stall, refused, begun, got, ..*touch };
            let charge = charge.split(1);
            let (wanted, joined) = (!ahead, Vec::new());
            let load = Load { touch, slot, ahead, wanted, stalls, joined, charge };
            self.pending.books().loads.insert(token, load);
            reads.push((slot, token));
        }
        counters::add(&self.pager.counters.pages_ahead, beside.len() as u64);
        self.pager.store.start_batch(&reads);
    }

    /// The store cannot give a page back: whoever touches it dies of it, and nobody reads a wrong byte.
    /// Nothing is said, and the page is read once more, where the kernel cannot take the poison yet.
    pub fn lost(&self, mm: &Arc<Mm>, state: &mut State, touch: &Touch, why: &str) -> Answer {
        // The program dies of it at once; the run does not end before that was explained.
        let _explaining = self.pager.last_words.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = mm.uffd.poison(touch.address, PAGE_SIZE as u64) {
            return self.not_placed(mm, state, touch, error);
        }
        counters::count(&self.pager.counters.poisoned);
        // Several threads may each meet a lost page before the first has died of it: one line tells all.
        if !mm.told_lost.swap(true, Relaxed) {
            self.pager.complain(&format!(
                "a stored page of process {} is lost ({why}); touching it is a bus error (SIGBUS)",
                mm.pid()
            ));
        }
        Answer::Given
    }

    /// The books of stored pages that have been put in place, with the charge of all.
    pub fn map_all(
        &self,
        mm: &Mm,
        state: &mut State,
        charge: Charge,
        pages: &[(Vpn, SlotId, Arrival)],
    ) {
        let copies: SmallVec<[Option<SlotId>; BESIDE_MAX]> = (pages.iter())
            .map(|&(_, slot, _)| self.pager.store.is_worth_keeping(slot).then_some(slot))
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
                counters::count(&self.pager.counters.faults_loaded);
            }
        }
        drop(resident);
        self.pager.discard(&dropped);
    }

    /// Puts the page in `buffer` in its place; the entry still names its slot.
    fn place_loaded(
        &self,
        mm: &Arc<Mm>,
        state: &mut State,
        touch: &Touch,
        charge: Charge,
        (slot, kind): (SlotId, Kind),
    ) -> Answer {
        self.end_wait(touch);
        match mm.uffd.copy(touch.address, &self.buffer[0]) {
            Ok(()) => {
                state.wake_after(touch.address, PAGE_SIZE as u64);
                let page = (Vpn::of_address(touch.address), slot, Arrival::Loaded);
                self.map_all(mm, state, charge, &[page]);
                self.note_served(touch, kind);
                Answer::Given
            }
            Err((_, error)) => {
                self.give_back(charge);
                self.not_placed(mm, state, touch, error)
            }
        }
    }
}
