//! What a message brings with it that takes more than a moment: it is followed a slice at a time, a slice in each
//! turn of the first fault thread, and other address spaces are served in between.
//!
//! ORD-6: from the reading of the message until all of it has been followed nothing else of that address space changes:
//! `busy` is set, and `copying`. What it had to say after it is heard then.

use crate::broken::{Rule, is_broken};
use crate::counters;
use crate::fork::Copying;
use crate::limits::SLICE_PAGES;
use crate::mm::{Mm, State};
use crate::seam::Event;
use crate::server::Pager;
use ebb_mm::resident::Dropped;
use ebb_mm::types::{PAGE_SIZE, Vpn};
use std::sync::Arc;

/// A message that is being followed.
pub enum Following {
    /// The program forked.
    Fork(Box<Copying>),
    /// It let go of pages, or moved them.
    Leave(Leaving),
}

impl Following {
    /// Begins to follow a message, if it is one that may take longer.
    pub fn begin(
        pager: &Pager,
        mm: &Arc<Mm>,
        state: &mut State,
        event: Event,
    ) -> Result<Self, Event> {
        let following = Self::of(pager, mm, state, event)?;
        counters::count(&pager.counters.changes);
        Ok(following)
    }

    fn of(pager: &Pager, mm: &Arc<Mm>, state: &mut State, event: Event) -> Result<Self, Event> {
        Ok(match event {
            Event::Fork(uffd) => Self::Fork(Box::new(Copying::begin(pager, mm, state, uffd))),
            Event::Unmap { start, end } => {
                state.areas.remove(start, end);
                if let Some(link) = mm.link.get() {
                    link.unpin(start >> 12, end >> 12);
                }
                Self::Leave(Leaving::begin(mm, state, (start, end), None))
            }
            Event::Remove { start, end } if state.pool.bell(start).is_none() => {
                Self::Leave(Leaving::begin(mm, state, (start, end), None))
            }
            Event::Remap { from, to, len } => {
                state.areas.shift(from, to, len);
                Self::Leave(Leaving::begin(mm, state, (from, from + len), Some(to)))
            }
            other => return Err(other),
        })
    }

    /// Whose message it is.
    pub fn mm(&self) -> &Arc<Mm> {
        match self {
            Self::Fork(copying) => &copying.parent,
            Self::Leave(leaving) => &leaving.mm,
        }
    }

    /// Whether it needs something that takes long before it is gone on with (`errand.rs`).
    pub fn has_errand(&self) -> bool {
        match self {
            Self::Fork(copying) => copying.has_errand(),
            Self::Leave(_) => false,
        }
    }

    /// Does that, with no lock held.
    pub fn go_errand(&mut self, pager: &Pager) {
        if let Self::Fork(copying) = self {
            copying.go_errand(pager);
        }
    }

    /// Follows a slice of it. True if that was the last.
    pub fn go_on(&mut self, pager: &Pager, state: &mut State) -> bool {
        self.mm().note_followed();
        match self {
            Self::Fork(copying) => copying.go_on(pager, state),
            Self::Leave(leaving) => leaving.go_on(pager, state),
        }
    }

    /// All of it was followed.
    pub fn end(self, pager: &Pager, state: &mut State) {
        match self {
            Self::Fork(copying) => copying.end(pager, state),
            Self::Leave(leaving) => still(&leaving.mm, state, false),
        }
    }

    /// The table of a child so far.
    #[cfg(test)]
    pub fn child(&self) -> Option<&ebb_mm::resident::Space> {
        match self {
            Self::Fork(copying) => Some(copying.space()),
            Self::Leave(_) => None,
        }
    }
}

/// Has an address space stand still, or go on (ORD-6).
pub fn still(mm: &Mm, state: &mut State, still: bool) {
    state.copying = still && !is_broken(Rule::Ord6);
    mm.note_still(still);
    if still {
        state.busy = !is_broken(Rule::Ord6);
    } else {
        mm.end_batch(state);
    }
}

/// Pages that are let go of, or move.
pub struct Leaving {
    mm: Arc<Mm>,
    next: Vpn,
    end: Vpn,
    /// Where the first of those to come moves, if they do.
    to: Option<Vpn>,
}

impl Leaving {
    fn begin(mm: &Arc<Mm>, state: &mut State, (start, end): (u64, u64), to: Option<u64>) -> Self {
        still(mm, state, true);
        let of = |address: u64| Vpn(address / PAGE_SIZE as u64);
        Self { mm: mm.clone(), next: of(start), end: of(end), to: to.map(of) }
    }

    fn go_on(&mut self, pager: &Pager, state: &mut State) -> bool {
        let stop = slice(state, self.next, self.end);
        // What lies where they go is forgotten with them, as many pages at most.
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
                pager.resident().remap(space, from, *to, pages, &mut dropped);
                *to = Vpn(to.0 + pages);
            }
            None => {
                pager.resident().forget_range(&mut state.space, self.next, stop, &mut dropped);
            }
        }
        pager.let_go(&self.mm, state, &dropped);
        self.next = stop;
        stop >= self.end
    }
}

/// How far `[start, end)` goes with a slice of what is known there.
fn slice(state: &State, start: Vpn, end: Vpn) -> Vpn {
    let next = state.space.visit(start, SLICE_PAGES, |_, _| {});
    next.map_or(end, |next| next.min(end))
}
