//! The budget: how many pages are allowed, how many are used, and when to reclaim.
//!
//! [`watermark`] computes the watermarks as the kernel does, with a smaller reserve. No allocator
//! counts the free pages: the driver measures the pages in memory. Pages come and go without the
//! driver's doing, the store holds some, and a fork group shares some. The limit may be
//! overcommitted.
//!
//! * ZONE-1: the pages used are those in memory plus those charged. A [`Charge`] ends in one of two
//!   ways. The driver has placed its pages in memory ([`Zone::place`]), or gives them back unused
//!   ([`Zone::give_back`]). So the number of pages charged is exact at any time: the sum of all
//!   charges.
//! * ZONE-2: the pages in memory are the last measurement plus the known changes since. A
//!   measurement does not count charged pages.

use crate::order::Order;
use crate::reclaim::Node;
use crate::watermark::{self, Marks};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Pages of dropped charges, of all budgets.
static LOST: AtomicU64 = AtomicU64::new(0);

/// Returns the pages that stay charged for ever, because a driver dropped their charges. The number
/// is 0 unless a driver has a bug.
#[must_use]
pub fn lost_pages() -> u64 {
    LOST.load(Relaxed)
}

/// Pages of the budget that are charged and not in memory yet. A driver charges a page before it
/// places the page in memory. A driver that drops a charge has a bug; [`lost_pages`] counts the
/// pages.
#[must_use = "a charge ends by being placed or given back"]
#[derive(Debug, Default)]
pub struct Charge(u64);

impl Charge {
    /// Returns the number of pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.0
    }

    /// Splits `pages` pages off, at most all.
    pub fn split(&mut self, pages: u64) -> Self {
        let taken = pages.min(self.0);
        self.0 -= taken;
        Self(taken)
    }

    /// Joins two charges to one.
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

/// Zone size in pages up to which the watermarks grow with the zone: 4 GiB.
pub const ZONE_MAX: u64 = 1 << 20;

/// Returns the watermarks for a budget of `limit` pages. The reserve is a 256th of the zone, and at
/// most the kernel's, because the program cannot use it. The distance between two watermarks is a
/// 128th of the zone.
pub(super) fn marks_of(limit: u64) -> Marks {
    let pages = limit.clamp(1, ZONE_MAX);
    let (min, step) = ((pages / 256).clamp(8, 1024), (pages / 128).clamp(16, 2048));
    watermark::marks(pages, pages, 4 * min, (step * 10_000).div_ceil(pages), false)
}

/// Returns the delay in microseconds for charging `pages` to a group that uses more than `high`.
/// The delay for each page is the square of the relative overage, in seconds (mm/memcontrol.c,
/// `calculate_high_delay`).
#[must_use]
pub fn high_penalty_us(usage: u64, high: u64, pages: u64) -> u64 {
    let (over, high) = (u128::from(usage.saturating_sub(high)), u128::from(high.max(1)));
    let square = over.saturating_mul(over).saturating_mul(1_000_000 * u128::from(pages));
    u64::try_from(square / (high * high)).unwrap_or(u64::MAX)
}

/// The budget of a resident set, in pages.
#[derive(Debug)]
pub struct Zone {
    limit: u64,
    /// Pages at which reclaim aims: the limit, or less.
    high: u64,
    /// Pages by which the limit is overcommitted.
    overcommit: u64,
    /// Pages in memory (ZONE-2).
    resident: u64,
    /// Pages in charges (ZONE-1).
    charged: u64,
    /// Pages that left memory when the count of pages in memory was 0 already.
    uncounted: u64,
    marks: Marks,
}

impl Zone {
    /// Creates a budget of `limit` pages with the watermarks of its zone. Reclaim aims at `high`
    /// pages, at most the limit. Between the two, a thread that takes pages must pause
    /// ([`Zone::penalty_us`]).
    #[must_use]
    pub(super) fn new(limit: u64, high: u64, marks: Marks) -> Self {
        Self {
            limit,
            high: high.min(limit),
            overcommit: 0,
            resident: 0,
            charged: 0,
            uncounted: 0,
            marks,
        }
    }

    /// Changes the budget. More pages than the new limit may be in use.
    pub(super) fn resize(&mut self, limit: u64, high: u64, marks: Marks) {
        (self.limit, self.high, self.marks) = (limit, high.min(limit), marks);
    }

    /// Returns the budget, in pages.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns the pages by which the limit is overcommitted.
    #[must_use]
    pub fn overcommit(&self) -> u64 {
        self.overcommit
    }

    /// Returns the limit plus the overcommit.
    #[must_use]
    pub fn ceiling(&self) -> u64 {
        self.limit + self.overcommit
    }

    /// Returns the pages in memory plus those charged.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.resident + self.charged
    }

    /// Returns the pages that are charged and not in memory yet.
    #[must_use]
    pub fn charged(&self) -> u64 {
        self.charged
    }

    /// Returns the watermarks, in free pages. `min` is the reserve. kswapd begins when no more than
    /// `low` is free, and ends when more than `high` is.
    #[must_use]
    pub fn watermarks(&self) -> Marks {
        self.marks
    }

    /// Returns the pages that are free.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.ceiling().saturating_sub(self.used())
    }

    /// Sets the overcommit to `pages` beyond the limit. The overcommit should be small, and last
    /// only while a stopped process occupies the memory.
    pub fn set_overcommit(&mut self, pages: u64) {
        self.overcommit = pages;
    }

    /// Charges `pages` if that leaves at least `mark` pages free.
    pub fn try_charge(&mut self, pages: u64, mark: u64) -> Option<Charge> {
        (self.free() >= pages + mark).then(|| self.charge(pages))
    }

    /// Charges `pages`, however many are free.
    pub fn charge(&mut self, pages: u64) -> Charge {
        self.charged += pages;
        Charge(pages)
    }

    /// Charges up to `pages`, as many as leave the reserve untouched.
    pub fn charge_spare(&mut self, pages: u64) -> Charge {
        let spare = self.free().saturating_sub(self.marks.min);
        self.charge(pages.min(spare))
    }

    /// Ends a charge whose pages are in memory now.
    pub fn place(&mut self, charge: Charge) {
        self.resident += self.end(charge);
    }

    /// Ends a charge whose pages are not needed.
    pub fn give_back(&mut self, charge: Charge) {
        self.end(charge);
    }

    /// Ends a charge of this zone. Returns the number of its pages.
    fn end(&mut self, mut charge: Charge) -> u64 {
        let pages = std::mem::take(&mut charge.0);
        self.charged -= pages;
        pages
    }

    /// Counts pages that came into memory without the driver's doing.
    pub fn add_resident(&mut self, pages: u64) {
        self.resident += pages;
    }

    /// Counts pages that left memory. If a measurement has already counted them out, the excess
    /// counts as uncounted.
    pub fn remove_resident(&mut self, pages: u64) {
        self.uncounted += pages.saturating_sub(self.resident);
        self.resident = self.resident.saturating_sub(pages);
    }

    /// Returns the pages in memory.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// Returns the total of pages that left memory when the count was 0 already.
    #[must_use]
    pub fn uncounted(&self) -> u64 {
        self.uncounted
    }

    /// Sets the pages in memory to a measured number.
    pub fn set_resident(&mut self, resident: u64) {
        self.resident = resident;
    }

    /// Whether the pages used are more than `mark` below the number at which reclaim aims.
    fn passes(&self, mark: u64) -> bool {
        self.high.saturating_sub(self.used()) > mark
    }

    /// Whether kswapd should work.
    #[must_use]
    pub fn is_low(&self) -> bool {
        !self.passes(self.marks.low)
    }

    /// Whether kswapd may rest: strictly more pages than the high watermark are free.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.passes(self.marks.high)
    }

    /// Returns the number of pages at which reclaim aims.
    #[must_use]
    pub fn high(&self) -> u64 {
        self.high
    }

    /// Returns how long a thread must pause after it took one page, in microseconds. The rule is
    /// that of `memory.high`, a second at most. The pause is 0 where reclaim aims at the limit
    /// itself.
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
    use super::{Marks, ZONE_MAX, Zone, marks_of};

    fn budget(limit: u64, high: u64) -> Zone {
        Zone::new(limit, high, Marks { min: 40, low: 100, high: 160, promo: 220 })
    }

    #[test]
    fn kswapd_wakes_at_low_and_rests_above_high() {
        let mut zone = budget(10_000, 10_000);
        let at = |zone: &mut Zone, free: u64| {
            zone.set_resident(10_000 - free);
            (zone.is_low(), zone.is_balanced())
        };
        assert_eq!(at(&mut zone, 161), (false, true));
        assert_eq!(at(&mut zone, 160), (false, false), "strictly more than the mark");
        assert_eq!(at(&mut zone, 101), (false, false));
        assert_eq!(at(&mut zone, 100), (true, false));
        zone.set_resident(10_001);
        assert!(zone.is_low() && zone.free() == 0, "beyond the limit");
    }

    #[test]
    fn between_high_and_the_limit_pages_cost_time_and_reclaim_works() {
        let mut zone = budget(20_000, 10_000);
        zone.add_resident(9_000);
        assert!(zone.is_balanced() && zone.penalty_us() == 0);
        zone.add_resident(1_000);
        assert!(zone.is_low() && zone.penalty_us() == 0);
        zone.add_resident(1_000);
        assert_eq!(zone.penalty_us(), 10_000, "a tenth over: a hundredth of a second");
        assert_eq!(zone.free(), 9_000, "the limit is the limit");
        zone.add_resident(50_000);
        assert_eq!(zone.penalty_us(), 1_000_000, "twice as much and more: a second");
        let mut lender = budget(100, 100);
        lender.add_resident(100);
        lender.set_overcommit(2);
        assert_eq!((lender.limit(), lender.ceiling(), lender.overcommit()), (100, 102, 2));
        let charge = lender.try_charge(1, 0).expect("two were lent");
        assert!(lender.free() == 1 && !lender.is_balanced());
        lender.give_back(charge);
        lender.set_overcommit(0);
        assert_eq!(lender.free(), 0);
        assert_eq!(budget(100, 100).high(), 100);
        assert_eq!(budget(100, 200).high(), 100);
    }

    #[test]
    fn the_watermarks_are_a_hundredth_of_the_zone() {
        let at = |limit: u64| {
            let m = marks_of(limit);
            [m.min, m.low, m.high]
        };
        assert_eq!(at(4096), [16, 48, 80]);
        assert_eq!(at(65_536), [256, 773, 1290]);
        assert_eq!(at(ZONE_MAX), [1024, 3121, 5218]);
        assert_eq!(at(1 << 40), [1024, 3121, 5218]);
        assert_eq!(at(100), [8, 24, 40]);
        assert_eq!(at(1), [8, 10, 12]);
    }

    #[test]
    fn charges_count_beside_the_measured_resident_pages() {
        let mut zone = budget(1_000, 1_000);
        let mut charge = zone.try_charge(5, 0).expect("there is room");
        assert_eq!((zone.used(), zone.charged()), (5, 5));
        zone.set_resident(600);
        assert_eq!((zone.used(), zone.charged()), (605, 5), "not in memory yet");
        let first = charge.split(2);
        zone.place(first);
        assert_eq!((zone.used(), zone.charged()), (605, 3), "in memory now");
        zone.give_back(charge);
        assert_eq!((zone.used(), zone.charged()), (602, 0));
        let (one, two) = (zone.charge(1), zone.charge(2));
        let both = one.and(two);
        assert_eq!(both.pages(), 3);
        zone.give_back(both);
        zone.remove_resident(700);
        assert_eq!((zone.used(), zone.uncounted()), (0, 98), "others saw them leave before");
    }

    #[test]
    fn no_charge_exceeds_the_limit_and_a_spare_charge_leaves_the_reserve() {
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
