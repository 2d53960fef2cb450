//! One pass of kswapd over a budget. Each round stores the oldest standby pages, drops their
//! memory, and moves other pages to standby.

use super::{BATCH, Did, Do, Evidence, Seen};
use crate::reclaim::balance;
use crate::resident::Pressure;

/// The next step of a round. Standby pages leave first, because they free memory soonest. Then
/// other pages move to standby.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Begin,
    Drop,
    Standby,
    End,
}

/// The result of a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// Pages were stored, and memory was or will be freed.
    Progress,
    /// There were pages to look at, or pages were moved or dropped.
    Pages,
    Nothing,
}

/// A reclaim pass in progress.
#[derive(Debug)]
pub(super) struct Pass {
    pub pressure: Pressure,
    /// Whether this is the last pass of the run, at the highest pressure.
    pub last: bool,
    target: u64,
    /// Pages that the pass may look at.
    share: u64,
    scanned: u64,
    reclaimed: u64,
    pub stage: Stage,
    asked: Option<Do>,
    lacks_copy_room: bool,
    /// Result of the round so far.
    round: Did,
    stored: u64,
    /// Whether a round found nothing.
    done: bool,
    /// Whether no page can be reclaimed.
    pub no_progress: bool,
}

impl Pass {
    /// Begins a pass of a run, with `evictable` pages.
    pub fn begin(pass: &balance::Pass, evictable: u64) -> Self {
        // A share below a batch costs as much as a batch. So `lift` makes short lists count as
        // longer.
        let most = (evictable / BATCH as u64).checked_ilog2().unwrap_or(0) as u8;
        let lift = pass.priority.saturating_sub(most);
        Self {
            pressure: Pressure { priority: pass.priority, lift },
            last: pass.priority <= 1,
            target: pass.target,
            share: (evictable >> (pass.priority - lift)).max(BATCH as u64),
            scanned: 0,
            reclaimed: 0,
            stage: Stage::Begin,
            asked: None,
            lacks_copy_room: false,
            round: Did::default(),
            stored: 0,
            done: false,
            no_progress: false,
        }
    }

    /// Whether the pass ends: its target is met, its share is looked at, or a round found nothing
    /// (ENGINE-1).
    pub fn is_over(&self) -> bool {
        self.done || self.reclaimed >= self.target || self.scanned >= self.share
    }

    /// Returns the next order of the round; None at its end.
    pub fn order(
        &mut self,
        evidence: Evidence,
        standby: u64,
        target: u64,
        seen: Seen,
    ) -> Option<Do> {
        let uses_standby = evidence == Evidence::Standby;
        self.lacks_copy_room |= seen.lacks_copy_room;
        let order = loop {
            match self.stage {
                Stage::Begin => {
                    (self.round, self.stored) = (Did::default(), 0);
                    self.stage = Stage::Drop;
                    let lacks_copy_room = std::mem::take(&mut self.lacks_copy_room);
                    if !uses_standby
                        || standby >= target / 2
                        || lacks_copy_room
                        || seen.memory_stalled
                    {
                        break Some(Do::Store(BATCH));
                    }
                }
                Stage::Drop => {
                    self.stage = Stage::Standby;
                    // If a thread waits for memory and this round stored few pages, even one page
                    // is dropped at once.
                    let few = seen.memory_stalled && self.stored < BATCH as u64 / 2;
                    break Some(Do::Drop(if few { 1 } else { BATCH / 2 }));
                }
                Stage::Standby => {
                    self.stage = Stage::End;
                    // If the round moved no page and looked at none, the standby pages cannot
                    // leave. So other pages move to standby.
                    let nothing = self.round.pages == 0 && self.round.scanned == 0;
                    if uses_standby && (standby < target.max(BATCH as u64) || nothing) {
                        break Some(Do::ToStandby(BATCH));
                    }
                }
                Stage::End => break None,
            }
        };
        self.asked = order;
        order
    }

    /// Records the result of an order. Returns how many stored pages count as progress.
    pub fn did(&mut self, did: Did) -> u64 {
        let stores = matches!(self.asked.take(), Some(Do::Store(_)));
        let progress = if stores { did.progress } else { 0 };
        self.stored += if stores { did.pages } else { 0 };
        self.round.progress += progress;
        self.round.pages += did.pages;
        self.round.scanned += did.scanned;
        self.scanned += did.scanned;
        self.reclaimed += did.pages;
        progress
    }

    /// Ends the round and returns its result.
    pub fn end_round(&mut self) -> Found {
        self.stage = Stage::Begin;
        if self.round.progress > 0 {
            return Found::Progress;
        }
        if self.round.pages > 0 || self.round.scanned > 0 {
            return Found::Pages;
        }
        // Only a higher pressure can find the remaining pages, if anything can.
        self.done = true;
        Found::Nothing
    }

    /// Returns the result of the pass for the run.
    pub fn passed(&self) -> balance::Passed {
        let (scanned, reclaimed) = (self.scanned, self.reclaimed);
        balance::Passed { scanned, reclaimed, ..balance::Passed::default() }
    }
}
