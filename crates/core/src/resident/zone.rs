//! The budget: how many pages there may be, how many there are, when to reclaim.
//!
//! Watermarks and their test are the frame allocator's. What is free is not its count of free frames
//! but what was measured: pages come and go behind our back, the store holds some, relatives share
//! some, and some may be lent.

use crate::frame::AllocFlags;
use crate::frame::watermark::{Marks, ZoneView, watermark_ok};
use crate::memcg::high_penalty_us;

/// The budget. `used` is what the driver charges and uncharges, and corrects from time to time by what
/// the kernel says (`resync`): pages come and go behind its back.
#[derive(Debug)]
pub struct Zone {
    limit: u64,
    /// Where reclaim aims: the limit, or less.
    high: u64,
    /// Pages lent beyond the limit.
    lent: u64,
    used: u64,
    marks: Marks,
}

impl Zone {
    /// A budget of `limit` pages with the watermarks of its zone, with reclaim aiming at `high` pages,
    /// at most the limit. Between the two whoever takes pages is slowed down ([`Zone::penalty_us`]).
    #[must_use]
    pub(super) fn new(limit: u64, high: u64, marks: Marks) -> Self {
        Self { limit, high: high.min(limit), lent: 0, used: 0, marks }
    }

    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    #[must_use]
    pub fn lent(&self) -> u64 {
        self.lent
    }

    /// The limit and what is lent beyond it.
    #[must_use]
    pub fn ceiling(&self) -> u64 {
        self.limit + self.lent
    }

    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    #[must_use]
    pub fn watermarks(&self) -> Marks {
        self.marks
    }

    /// Pages left.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.ceiling().saturating_sub(self.used)
    }

    /// Lends `pages` beyond the limit, instead of what was lent before: few, and only as long as what
    /// is used is held by somebody who cannot give it back just now.
    pub fn lend(&mut self, pages: u64) {
        self.lent = pages;
    }

    /// Takes `pages` if that leaves at least `mark` free.
    pub fn try_charge(&mut self, pages: u64, mark: u64) -> bool {
        let fits = self.free() >= pages + mark;
        if fits {
            self.used += pages;
        }
        fits
    }

    /// Takes `pages` whatever is left.
    pub fn charge(&mut self, pages: u64) {
        self.used += pages;
    }

    /// Gives `pages` back.
    pub fn uncharge(&mut self, pages: u64) {
        self.used = self.used.saturating_sub(pages);
    }

    /// The truth, as measured.
    pub fn resync(&mut self, used: u64) {
        self.used = used;
    }

    /// Whether more than `mark` is free below where reclaim aims.
    fn passes(&self, mark: u64) -> bool {
        let free = self.high as i64 - self.used as i64;
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

    /// How long whoever took one page must pause for it, in microseconds: as for `memory.high`, a second at most.
    #[must_use]
    pub fn penalty_us(&self) -> u64 {
        high_penalty_us(self.used, self.high, 1).min(1_000_000)
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
            zone.resync(10_000 - free);
            (zone.is_low(), zone.is_balanced())
        };
        assert_eq!(at(&mut zone, 161), (false, true));
        assert_eq!(at(&mut zone, 160), (false, false), "strictly more than the mark");
        assert_eq!(at(&mut zone, 101), (false, false));
        assert_eq!(at(&mut zone, 100), (true, false));
        zone.resync(10_001);
        assert!(zone.is_low() && zone.free() == 0, "beyond the limit");
    }

    #[test]
    fn between_high_and_the_limit_pages_cost_time_and_reclaim_works() {
        let mut zone = budget(20_000, 10_000);
        assert!(zone.try_charge(9_000, 0));
        assert!(zone.is_balanced() && zone.penalty_us() == 0);
        zone.charge(1_000);
        assert!(zone.is_low() && zone.penalty_us() == 0);
        zone.charge(1_000);
        assert_eq!(zone.penalty_us(), 10_000, "a tenth over: a hundredth of a second");
        assert_eq!(zone.free(), 9_000, "the limit is the limit");
        zone.charge(50_000);
        assert_eq!(zone.penalty_us(), 1_000_000, "twice as much and more: a second");
        let mut lender = budget(100, 100);
        lender.charge(100);
        lender.lend(2);
        assert_eq!((lender.limit(), lender.ceiling(), lender.lent()), (100, 102, 2));
        assert!(lender.try_charge(1, 0) && lender.free() == 1 && !lender.is_balanced());
        lender.lend(0);
        assert_eq!(lender.free(), 0);
        assert_eq!(budget(100, 100).high(), 100);
        assert_eq!(budget(100, 200).high(), 100);
    }
}
