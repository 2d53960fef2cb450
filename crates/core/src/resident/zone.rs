//! The budget: how many pages there may be, how many there are, when to reclaim.
//!
//! Watermarks and their test are the frame allocator's. What is free is not its count of free frames
//! but what was measured: pages come and go behind our back, the store holds some, relatives share
//! some, and some may be lent.
//!
//! * ZONE-1: what is used is what is in memory and what is promised. A page is promised by a [`Charge`], which ends
//!   in one of two ways: its page is in place ([`Zone::place`]), or is not needed after all
//!   ([`Zone::give_back`]). So what is promised is exact at any time: the sum of the charges there are.
//! * ZONE-2: what is in memory is as last measured, and as it is known to have changed since. What is measured says
//!   nothing of promises.

use crate::frame::watermark::{Marks, ZoneView, watermark_ok};
use crate::frame::{AllocFlags, Order};
use crate::memcg::high_penalty_us;
use crate::reclaim::Node;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages of charges that were dropped, of all budgets there are.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Pages that are promised for ever because their charges were dropped: 0, or a driver has a fault.
#[must_use]
pub fn lost_pages() -> u64 {
    LOST.load(Relaxed)
}

/// Pages of the budget that are promised and not in place yet. There is no other way to put a page in place, and
/// none to keep one: a charge that is dropped is a fault of the driver, and counted ([`lost_pages`]).
#[must_use = "a charge ends by being placed or given back"]
#[derive(Debug, Default)]
pub struct Charge(u64);

impl Charge {
    /// How many pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.0
    }

    /// Takes `pages` of them off, at most all.
    pub fn split(&mut self, pages: u64) -> Self {
        let taken = pages.min(self.0);
        self.0 -= taken;
        Self(taken)
    }

    /// Both in one.
    pub fn and(mut self, mut other: Self) -> Self {
        self.0 += std::mem::take(&mut other.0);
        self
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.0 > 0 && !std::thread::panicking() {
            LOST.fetch_add(self.0, Relaxed);
            debug_assert!(false, "a charge was lost");
        }
    }
}

/// The budget.
#[derive(Debug)]
pub struct Zone {
    limit: u64,
    /// Where reclaim aims: the limit, or less.
    high: u64,
    /// Pages lent beyond the limit.
    lent: u64,
    /// In memory (ZONE-2).
    held: u64,
    /// In charges (ZONE-1).
    promised: u64,
    /// Left memory and were not held.
    unheld: u64,
    marks: Marks,
}

impl Zone {
    /// A budget of `limit` pages with the watermarks of its zone, with reclaim aiming at `high` pages,
    /// at most the limit. Between the two whoever takes pages is slowed down ([`Zone::penalty_us`]).
    #[must_use]
    pub(super) fn new(limit: u64, high: u64, marks: Marks) -> Self {
        Self { limit, high: high.min(limit), lent: 0, held: 0, promised: 0, unheld: 0, marks }
    }

    /// Another budget from here on. What is in use may be more than it.
    pub(super) fn resize(&mut self, limit: u64, high: u64, marks: Marks) {
        (self.limit, self.high, self.marks) = (limit, high.min(limit), marks);
    }

    /// The budget, in pages.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Pages lent beyond the limit, until they are given back.
    #[must_use]
    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// The limit and what is lent beyond it.
    #[must_use]
    pub fn ceiling(&self) -> u64 {
        self.limit + self.lent
    }

    /// Pages in memory and promised.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.held + self.promised
    }

    /// Pages promised and not in place yet.
    #[must_use]
    pub fn promised(&self) -> u64 {
        self.promised
    }

    /// Min, low and high: of how few free pages who may take the next, and between which kswapd works.
    #[must_use]
    pub fn watermarks(&self) -> Marks {
        self.marks
    }

    /// Pages left.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.ceiling().saturating_sub(self.used())
    }

    /// Lends `pages` beyond the limit, instead of what was lent before: few, and only as long as what
    /// is used is held by somebody who cannot give it back just now.
    pub fn lend(&mut self, pages: u64) {
        self.lent = pages;
    }

    /// Promises `pages` if that leaves at least `mark` free.
    pub fn try_charge(&mut self, pages: u64, mark: u64) -> Option<Charge> {
        (self.free() >= pages + mark).then(|| self.charge(pages))
    }

    /// Promises `pages` whatever is left.
    pub fn charge(&mut self, pages: u64) -> Charge {
        self.promised += pages;
        Charge(pages)
    }

    /// Promises up to `pages`, as many as leave the reserve untouched.
    pub fn charge_spare(&mut self, pages: u64) -> Charge {
        let spare = self.free().saturating_sub(self.marks.min);
        self.charge(pages.min(spare))
    }

    /// The pages of a charge are in memory now.
    pub fn place(&mut self, charge: Charge) {
        self.held += self.end(charge);
    }

    /// The pages of a charge are not needed.
    pub fn give_back(&mut self, charge: Charge) {
        self.end(charge);
    }

    /// A charge is one of this zone's: what is promised covers it.
    fn end(&mut self, mut charge: Charge) -> u64 {
        let pages = std::mem::take(&mut charge.0);
        self.promised -= pages;
        pages
    }

    /// So many pages came into memory by somebody else's doing.
    pub fn found(&mut self, pages: u64) {
        self.held += pages;
    }

    /// So many pages left memory. A measurement may have seen them leave before: nothing is held then.
    pub fn gone(&mut self, pages: u64) {
        self.unheld += pages.saturating_sub(self.held);
        self.held = self.held.saturating_sub(pages);
    }

    /// Pages in memory.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Pages that left memory when none were held any more, in all.
    #[must_use]
    pub fn unheld(&self) -> u64 {
        self.unheld
    }

    /// What is in memory, as measured.
    pub fn measured(&mut self, held: u64) {
        self.held = held;
    }

    /// Whether more than `mark` is free below where reclaim aims.
    fn passes(&self, mark: u64) -> bool {
        let free = self.high as i64 - self.used() as i64;
        watermark_ok(&ZoneView { free, ..ZoneView::default() }, 0, mark, AllocFlags::NONE)
    }

    /// kswapd should be at work.
    #[must_use]
    pub fn is_low(&self) -> bool {
        !self.passes(self.marks.low)
    }

    /// kswapd may rest: strictly more than the high mark is free.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.passes(self.marks.high)
    }

    /// Where reclaim aims.
    #[must_use]
    pub fn high(&self) -> u64 {
        self.high
    }

    /// How long whoever took one page must pause for it, in microseconds: as for `memory.high`, a second at most. Nobody
    /// does where reclaim aims at the limit itself.
    #[must_use]
    pub fn penalty_us(&self) -> u64 {
        if self.high == self.limit {
            return 0;
        }
        high_penalty_us(self.used(), self.high, 1).min(1_000_000)
    }
}

/// The budget as reclaim control sees a node: one zone, pages of one size, no boosts.
impl Node for Zone {
    fn classes(&self) -> usize {
        1
    }

    fn balanced(&self, _: Order, _: usize) -> bool {
        self.is_balanced()
    }

    fn all_balanced(&self, _: Order, _: usize) -> bool {
        self.is_balanced()
    }

    fn target(&self, _: usize) -> u64 {
        self.watermarks().high.max(1)
    }

    fn reserve_left(&self) -> bool {
        self.free() > self.watermarks().min / 2
    }
}

#[cfg(test)]
mod tests {
    use super::{Marks, Zone};

    fn budget(limit: u64, high: u64) -> Zone {
        Zone::new(limit, high, Marks { min: 40, low: 100, high: 160, promo: 220 })
    }

    #[test]
    fn kswapd_wakes_at_low_and_rests_above_high() {
        let mut zone = budget(10_000, 10_000);
        let at = |zone: &mut Zone, free: u64| {
            zone.measured(10_000 - free);
            (zone.is_low(), zone.is_balanced())
        };
        assert_eq!(at(&mut zone, 161), (false, true));
        assert_eq!(at(&mut zone, 160), (false, false), "strictly more than the mark");
        assert_eq!(at(&mut zone, 101), (false, false));
        assert_eq!(at(&mut zone, 100), (true, false));
        zone.measured(10_001);
        assert!(zone.is_low() && zone.free() == 0, "beyond the limit");
    }

    #[test]
    fn between_high_and_the_limit_pages_cost_time_and_reclaim_works() {
        let mut zone = budget(20_000, 10_000);
        zone.found(9_000);
        assert!(zone.is_balanced() && zone.penalty_us() == 0);
        zone.found(1_000);
        assert!(zone.is_low() && zone.penalty_us() == 0);
        zone.found(1_000);
        assert_eq!(zone.penalty_us(), 10_000, "a tenth over: a hundredth of a second");
        assert_eq!(zone.free(), 9_000, "the limit is the limit");
        zone.found(50_000);
        assert_eq!(zone.penalty_us(), 1_000_000, "twice as much and more: a second");
        let mut lender = budget(100, 100);
        lender.found(100);
        lender.lend(2);
        assert_eq!((lender.limit(), lender.ceiling(), lender.lent()), (100, 102, 2));
        let charge = lender.try_charge(1, 0).expect("two were lent");
        assert!(lender.free() == 1 && !lender.is_balanced());
        lender.give_back(charge);
        lender.lend(0);
        assert_eq!(lender.free(), 0);
        assert_eq!(budget(100, 100).high(), 100);
        assert_eq!(budget(100, 200).high(), 100);
    }
    #[test]
    fn what_is_promised_stands_beside_what_is_measured() {
        let mut zone = budget(1_000, 1_000);
        let mut charge = zone.try_charge(5, 0).expect("there is room");
        assert_eq!((zone.used(), zone.promised()), (5, 5));
        zone.measured(600);
        assert_eq!((zone.used(), zone.promised()), (605, 5), "not in memory yet");
        let first = charge.split(2);
        zone.place(first);
        assert_eq!((zone.used(), zone.promised()), (605, 3), "in memory now");
        zone.give_back(charge);
        assert_eq!((zone.used(), zone.promised()), (602, 0));
        let (one, two) = (zone.charge(1), zone.charge(2));
        let both = one.and(two);
        assert_eq!(both.pages(), 3);
        zone.give_back(both);
        zone.gone(700);
        assert_eq!((zone.used(), zone.unheld()), (0, 98), "others saw them leave before");
    }

    #[test]
    fn nobody_is_promised_more_than_there_is_or_the_reserve_unasked() {
        let mut zone = budget(100, 100);
        let spare = zone.charge_spare(80);
        assert_eq!(spare.pages(), 60, "40 are the reserve");
        assert!(zone.try_charge(41, 0).is_none() && zone.try_charge(1, 40).is_none());
        let last = zone.try_charge(40, 0).expect("who is waited for may have it");
        assert_eq!(zone.free(), 0);
        zone.give_back(spare.and(last));
    }

    #[test]
    #[should_panic(expected = "a charge was lost")]
    #[cfg(debug_assertions)]
    fn a_charge_that_is_dropped_is_found() {
        drop(budget(100, 100).charge(1));
    }

    #[test]
    #[cfg(not(debug_assertions))]
    fn a_charge_that_is_dropped_is_counted() {
        let before = super::lost_pages();
        drop(budget(100, 100).charge(3));
        assert_eq!(super::lost_pages() - before, 3);
    }
}
