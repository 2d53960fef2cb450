//! How many pages are kept cool.
//!
//! A page that is cool and used costs a fault, and is known by it to be of use; one that is not leaves, and is of all
//! pages the one longest unused. So more cool pages make a better choice, and more faults. Past the pages that came for
//! once they are taken from those in constant use, each of which is brought back by a fault on every round: that is
//! where it no longer pays. It shows in the share of cooled pages that are touched before they leave. What that share
//! may be depends on what a wrong choice costs: to load a page from compressed memory costs hardly more than a rescue,
//! from a file ten times as much.
//!
//! * STANDBY-1: the target is between [`LEAST_PERMILLE`] and the most that was asked for, in thousandths of what can leave.

/// Never less than that: batches need something to choose from.
const LEAST_PERMILLE: u32 = 10;
/// Where it begins, unless less was asked for.
const FIRST_PERMILLE: u32 = 125;
/// Cooled pages after which the share is looked at.
const PERIOD: u64 = 1024;
/// The share of cooled pages, in thousandths, that may be touched again where a load costs as much as a rescue; it
/// grows with that cost up to [`DEAR_MAX`] times.
const RESCUED_PERMILLE: u64 = 60;
/// So many times as much as a rescue is as good as any more.
const DEAR_MAX: u64 = 4;

/// The target, and what was seen since it was last looked at.
#[derive(Clone, Debug)]
pub struct Cooling {
    most: u32,
    target: u32,
    cooled: u64,
    rescued: u64,
    /// What a load costs, in thousandths of what a rescue does.
    load_cost: u64,
}

impl Cooling {
    /// With at most `most_permille` of what can leave.
    #[must_use]
    pub fn new(most_permille: u32) -> Self {
        let target = FIRST_PERMILLE.min(most_permille);
        Self { most: most_permille, target, cooled: 0, rescued: 0, load_cost: 1000 }
    }

    /// What a load costs, in thousandths of what a rescue does, as the driver has measured it.
    pub fn set_load_cost(&mut self, permille: u64) {
        self.load_cost = permille.clamp(1000, DEAR_MAX * 1000);
    }

    /// The target, in thousandths of what can leave.
    #[must_use]
    pub fn permille(&self) -> u32 {
        self.target
    }

    /// A page has become cool.
    pub fn cooled(&mut self) {
        self.cooled += 1;
        if self.cooled >= PERIOD {
            self.adapt();
        }
    }

    /// A cool page was touched.
    pub fn rescued(&mut self) {
        self.rescued += 1;
    }

    fn adapt(&mut self) {
        let share = self.rescued * 1000 / self.cooled;
        let most = RESCUED_PERMILLE * self.load_cost / 1000;
        let step = (self.target / 8).max(1);
        if share > most {
            self.target -= step;
        } else if share < most / 2 {
            self.target += step;
        }
        // STANDBY-1
        self.target = self.target.max(LEAST_PERMILLE).min(self.most);
        (self.cooled, self.rescued) = (0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(cooling: &mut Cooling, rescued_permille: u64) -> u32 {
        for page in 0..100 * PERIOD {
            if page % PERIOD * 1000 / PERIOD < rescued_permille {
                cooling.rescued();
            }
            cooling.cooled();
        }
        cooling.permille()
    }

    #[test]
    fn pages_in_constant_use_are_not_cooled_and_what_nobody_uses_is() {
        let mut cooling = Cooling::new(500);
        assert_eq!(after(&mut cooling, 400), LEAST_PERMILLE);
        assert_eq!(after(&mut cooling, 0), 500);
        let kept = after(&mut cooling, 45);
        assert_eq!(after(&mut cooling, 45), kept, "in between it stays");
    }

    #[test]
    fn where_loads_are_dear_more_rescues_pay() {
        let mut cooling = Cooling::new(500);
        cooling.set_load_cost(9000);
        assert_eq!(after(&mut cooling, 110), 500);
        cooling.set_load_cost(1000);
        assert_eq!(after(&mut cooling, 110), LEAST_PERMILLE);
    }

    #[test]
    fn no_more_than_was_asked_for() {
        assert_eq!(Cooling::new(30).permille(), 30);
        assert_eq!(after(&mut Cooling::new(0), 0), 0);
    }
}
