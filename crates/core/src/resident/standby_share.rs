//! The share of pages to keep on standby.
//!
//! A used page on standby costs a fault, and the fault proves that the page is used. A standby page
//! without a fault leaves; of all pages it is the one unused for the longest time. So more standby
//! pages give a better choice, and more faults. When the pages that were used only once have left,
//! pages in constant use go to standby. Each of those comes back by a fault on every round, which
//! no longer pays. The share of standby pages that are reactivated before they leave shows this.
//! The right value of that share depends on the cost of a wrong choice. A load from compressed
//! memory costs hardly more than a reactivation; a load from a file costs ten times as much.
//!
//! * STANDBY-1: the target is between [`LEAST_PERMILLE`] and the most that the driver set, in
//!   thousandths of the evictable pages.

/// Lowest target, in thousandths: batches need pages to choose from.
const LEAST_PERMILLE: u32 = 10;
/// First target, in thousandths, unless the driver set a lower limit.
const FIRST_PERMILLE: u32 = 125;
/// Pages moved to standby between two adaptations of the target.
const PERIOD: u64 = 1024;
/// Share of standby pages, in thousandths, that may be reactivated where a load costs as much as a
/// reactivation. It grows with the cost of a load, up to [`DEAR_MAX`] times.
const REACTIVATED_PERMILLE: u64 = 60;
/// Cost of a load, in reactivations, above which a higher cost makes no difference.
const DEAR_MAX: u64 = 4;

/// The target, and the counts since the last adaptation.
#[derive(Clone, Debug)]
pub struct StandbyShare {
    most: u32,
    target: u32,
    deactivated: u64,
    reactivated: u64,
    /// Cost of a load, in thousandths of the cost of a reactivation.
    load_cost: u64,
}

impl StandbyShare {
    /// Creates a share of at most `most_permille` of the evictable pages.
    #[must_use]
    pub fn new(most_permille: u32) -> Self {
        let target = FIRST_PERMILLE.min(most_permille);
        Self { most: most_permille, target, deactivated: 0, reactivated: 0, load_cost: 1000 }
    }

    /// Sets the measured cost of a load, in thousandths of the cost of a reactivation.
    pub fn set_load_cost(&mut self, permille: u64) {
        self.load_cost = permille.clamp(1000, DEAR_MAX * 1000);
    }

    /// Returns the target, in thousandths of the evictable pages.
    #[must_use]
    pub fn permille(&self) -> u32 {
        self.target
    }

    /// Counts a page that moved to standby.
    pub fn note_deactivated(&mut self) {
        self.deactivated += 1;
        if self.deactivated >= PERIOD {
            self.adapt();
        }
    }

    /// Counts a reactivated page.
    pub fn note_reactivated(&mut self) {
        self.reactivated += 1;
    }

    fn adapt(&mut self) {
        let share = self.reactivated * 1000 / self.deactivated;
        let most = REACTIVATED_PERMILLE * self.load_cost / 1000;
        let step = (self.target / 8).max(1);
        if share > most {
            self.target -= step;
        } else if share < most / 2 {
            self.target += step;
        }
        // STANDBY-1
        self.target = self.target.max(LEAST_PERMILLE).min(self.most);
        (self.deactivated, self.reactivated) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(share: &mut StandbyShare, reactivated_permille: u64) -> u32 {
        for page in 0..100 * PERIOD {
            if page % PERIOD * 1000 / PERIOD < reactivated_permille {
                share.note_reactivated();
            }
            share.note_deactivated();
        }
        share.permille()
    }

    #[test]
    fn many_reactivations_lower_the_standby_share_and_none_raises_it() {
        let mut share = StandbyShare::new(500);
        assert_eq!(after(&mut share, 400), LEAST_PERMILLE);
        assert_eq!(after(&mut share, 0), 500);
        let kept = after(&mut share, 45);
        assert_eq!(after(&mut share, 45), kept, "in between it stays");
    }

    #[test]
    fn expensive_loads_justify_more_reactivations() {
        let mut share = StandbyShare::new(500);
        share.set_load_cost(9000);
        assert_eq!(after(&mut share, 110), 500);
        share.set_load_cost(1000);
        assert_eq!(after(&mut share, 110), LEAST_PERMILLE);
    }

    #[test]
    fn the_standby_share_never_exceeds_the_configured_one() {
        assert_eq!(StandbyShare::new(30).permille(), 30);
        assert_eq!(after(&mut StandbyShare::new(0), 0), 0);
    }
}
