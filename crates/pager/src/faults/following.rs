//! Follows a message that takes more than a moment, one slice in each turn of the first fault
//! thread. Other address spaces are served in between.
//!
//! ORD-6: Nothing else of that address space changes from the reading of the message until all of
//! it has been followed. `reads_blocked` is set, and `following_message`. The pager handles the
//! later messages after that.

use crate::budget::Budget;
use crate::faults::fork::Copying;
use crate::mm::{Mm, State};
use crate::pager::Pager;
use crate::seam::Event;
use crate::telemetry::counters;
use crate::wait::limits::SLICE_PAGES;
use ebb_mm::resident::Dropped;
use ebb_mm::types::{PAGE_SIZE, Vpn};
use std::sync::Arc;

/// A message that is being followed.
pub enum Following {
    /// The program forked.
    Fork(Box<Copying>),
    /// The program unmapped, discarded or moved pages.
    Leave(Leaving),
}

impl Following {
    /// Begins to follow a message. Returns the message as an error if it never takes long.
    pub fn begin(
        pager: &Pager,
        mm: &Arc<Mm>,
        state: &mut State,
        event: Event,
    ) -> Result<Self, Event> {
        let following = Self::of(pager, mm, state, event)?;
        counters::count(&pager.telemetry.counters.changes);
        Ok(following)
    }

    fn of(pager: &Pager, mm: &Arc<Mm>, state: &mut State, event: Event) -> Result<Self, Event> {
        Ok(match event {
            Event::Fork(uffd) => Self::Fork(Box::new(Copying::begin(pager, mm, state, uffd))),
            Event::Unmap { start, end } => {
                state.areas.remove(start, end);
                state.executable.remove(start, end);
                if let Some(link) = mm.agent.link() {
                    link.unpin(start >> 12, end >> 12);
                }
                Self::Leave(Leaving::begin(mm, state, (start, end), None))
            }
            Event::Remove { start, end } if state.pool.doorbell(start).is_none() => {
                Self::Leave(Leaving::begin(mm, state, (start, end), None))
            }
            Event::Remap { from, to, len } => {
                state.areas.shift(from, to, len);
                state.executable.shift(from, to, len);
                Self::Leave(Leaving::begin(mm, state, (from, from + len), Some(to)))
            }
            other => return Err(other),
        })
    }

    /// Returns the address space that sent the message.
    pub fn mm(&self) -> &Arc<Mm> {
        match self {
            Self::Fork(copying) => &copying.parent,
            Self::Leave(leaving) => &leaving.mm,
        }
    }

    /// Returns whether slow work is needed before the next slice (`slow_work.rs`).
    pub fn has_slow_work(&self) -> bool {
        match self {
            Self::Fork(copying) => copying.has_slow_work(),
            Self::Leave(_) => false,
        }
    }

    /// Does the slow work, with no lock held.
    pub fn do_slow_work(&mut self, pager: &Pager) {
        if let Self::Fork(copying) = self {
            copying.do_slow_work(pager);
        }
    }

    /// Follows a slice of the message. Returns true if that was the last.
    pub fn go_on(&mut self, pager: &Pager, state: &mut State) -> bool {
        self.mm().stillness.note_followed();
        match self {
            Self::Fork(copying) => copying.go_on(pager, state),
            Self::Leave(leaving) => leaving.go_on(&pager.budget, state),
        }
    }

    /// Ends the following of the message.
    pub fn end(self, pager: &Pager, state: &mut State) {
        match self {
            Self::Fork(copying) => copying.end(pager, state),
            Self::Leave(leaving) => leaving.mm.keep_still(state, false),
        }
    }

    /// Returns the part of a child's table that is copied by now.
    #[cfg(test)]
    pub fn child(&self) -> Option<&ebb_mm::resident::Space> {
        match self {
            Self::Fork(copying) => Some(copying.space()),
            Self::Leave(_) => None,
        }
    }
}

/// A range of pages that are unmapped, discarded or moved.
pub struct Leaving {
    mm: Arc<Mm>,
    next: Vpn,
    end: Vpn,
    /// New page number of the first remaining page, if the pages move.
    to: Option<Vpn>,
}

impl Leaving {
    fn begin(mm: &Arc<Mm>, state: &mut State, (start, end): (u64, u64), to: Option<u64>) -> Self {
        mm.keep_still(state, true);
        let of = |address: u64| Vpn(address / PAGE_SIZE as u64);
        Self { mm: mm.clone(), next: of(start), end: of(end), to: to.map(of) }
    }

    fn go_on(&mut self, budget: &Budget, state: &mut State) -> bool {
        let stop = slice(state, self.next, self.end);
        // Pages at the destination are forgotten, too, at most a slice of them.
        let stop = match self.to {
            Some(to) => {
                let there = slice(state, to, Vpn(to.0 + (stop.0 - self.next.0)));
                Vpn(self.next.0 + (there.0 - to.0))
            }
            None => stop,
        };
        let pages = stop.0 - self.next.0;
        let mut dropped = Dropped::default();
        match &mut self.to {
            Some(to) => {
                let (from, space) = (self.next, &mut state.space);
                budget.resident().remap(space, from, *to, pages, &mut dropped);
                *to = Vpn(to.0 + pages);
            }
            None => {
                budget.resident().forget_range(&mut state.space, self.next, stop, &mut dropped);
            }
        }
        self.mm.release_dropped(budget, state, &dropped);
        self.next = stop;
        stop >= self.end
    }
}

/// Returns where a slice of the known pages in `[start, end)` ends.
fn slice(state: &State, start: Vpn, end: Vpn) -> Vpn {
    let next = state.space.visit(start, SLICE_PAGES, |_, _| {});
    next.map_or(end, |next| next.min(end))
}
