//! One pass of kswapd over a budget: rounds of storing the pages that are out of sight longest, letting their room go, and
//! taking others out of sight.

use super::{BATCH, Did, Do, Evidence, Seen};
use crate::reclaim::balance;
use crate::resident::Pressure;

/// Where a round is: what is cool leaves first, which is memory soonest; then others take its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Begin,
    Drop,
    Cool,
    End,
}

/// What a round found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Found {
    /// Pages that were stored, and free memory.
    Progress,
    /// Pages to look at, or room.
    Pages,
    Nothing,
}

/// A pass under way.
#[derive(Debug)]
pub(super) struct Pass {
    pub pressure: Pressure,
    /// The run's last: there is no greater pressure.
    pub last: bool,
    target: u64,
    /// Pages it may look at.
    share: u64,
    scanned: u64,
    reclaimed: u64,
    pub stage: Stage,
    asked: Option<Do>,
    crowded: bool,
    /// What came of the round so far.
    round: Did,
    stored: u64,
    /// A round found nothing.
    done: bool,
    /// Nothing could be had.
    pub in_vain: bool,
}

impl Pass {
    /// A pass of a run, with so many pages that could leave.
    pub fn begin(pass: &balance::Pass, evictable: u64) -> Self {
        // What is less than a batch costs as much: lists so short that their share would be are taken for longer.
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
            crowded: false,
            round: Did::default(),
            stored: 0,
            done: false,
            in_vain: false,
        }
    }

    /// Whether its target is met, or its share looked at (ENGINE-1).
    pub fn is_over(&self) -> bool {
        self.done || self.reclaimed >= self.target || self.scanned >= self.share
    }

    /// The next order of the round; None at its end.
    pub fn order(&mut self, evidence: Evidence, cool: u64, target: u64, seen: Seen) -> Option<Do> {
        let cools = evidence == Evidence::Cooling;
        self.crowded |= seen.crowded;
        let order = loop {
            match self.stage {
                Stage::Begin => {
                    (self.round, self.stored) = (Did::default(), 0);
                    self.stage = Stage::Drop;
                    let crowded = std::mem::take(&mut self.crowded);
                    if !cools || cool >= target / 2 || crowded || seen.starving {
                        break Some(Do::Store(BATCH));
                    }
                }
                Stage::Drop => {
                    self.stage = Stage::Cool;
                    // Whoever waits waits for the few there are, if no more are to come.
                    let few = seen.starving && self.stored < BATCH as u64 / 2;
                    break Some(Do::Drop(if few { 1 } else { BATCH / 2 }));
                }
                Stage::Cool => {
                    self.stage = Stage::End;
                    // Where nothing came of the round, and nothing was looked at, what is cool cannot go, and is no stock.
                    let nothing = self.round.pages == 0 && self.round.scanned == 0;
                    if cools && (cool < target.max(BATCH as u64) || nothing) {
                        break Some(Do::Cool(BATCH));
                    }
                }
                Stage::End => break None,
            }
        };
        self.asked = order;
        order
    }

    /// What came of an order. Returns how many pages were stored that count as progress.
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

    /// The round is over. What it found.
    pub fn end_round(&mut self) -> Found {
        self.stage = Stage::Begin;
        if self.round.progress > 0 {
            return Found::Progress;
        }
        if self.round.pages > 0 || self.round.scanned > 0 {
            return Found::Pages;
        }
        // What is left is found under more pressure, if at all.
        self.done = true;
        Found::Nothing
    }

    /// As the run is told of it.
    pub fn passed(&self) -> balance::Passed {
        let (scanned, reclaimed) = (self.scanned, self.reclaimed);
        balance::Passed { scanned, reclaimed, ..balance::Passed::default() }
    }
}
