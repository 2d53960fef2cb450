//! kswapd: when it runs, for which order and zones, when it sleeps.
//!
//! ```text
//!              ask                            in balance, or priority ran out
//!   Deep ----------------> Run <-----------------------------------------------------+
//!    ^                     | ^                                                       |
//!    |                     v | not fine: up again at once                            |
//!    |     may sleep?    Top ----------------------- > a run for what is asked ------+
//!    |                     | fine
//!    |                     v         asked, or not fine after 100 ms
//!    +--- fine after ---  Nap -----------------------------------------------> Run
//!         100 ms
//! ```
//! [`Kswapd::step`] says what to do next: a pass over the lists, a nap, a sleep, or nothing but to
//! come back; a pass is answered by [`Kswapd::passed`]. A driver that naps calls `step` again when
//! 100 ms are over or when [`Desk::woken`], whichever is first; one that sleeps, when woken.
//!
//! The three idle policies are three answers to "what if nobody asked": the lowest zone (whose
//! sleep is then judged for requests that nobody makes), the lowest only after a sleep (kswapd may
//! go round for a zone nobody asked for), the zone of the cycle before.

use super::balance::{Balance, Pass, Passed};
use super::desk::{Desk, Sleep};
use super::{IdleIndex, Node, Policy};
use crate::frame::Order;
use crate::observe::vmstat::{Event, VmStat};

/// What to do next.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    /// A pass over the node's lists; then [`Kswapd::passed`].
    Pass(Pass),
    /// Nothing was found to do, and sleep is not allowed: come back at once.
    Again,
    /// Writes are under way and nothing else can be freed: wait until some end, 100 ms at most.
    AwaitWrites,
    /// Pages under write-out that were met before have come round again: they are not written as fast as the
    /// lists turn. Wait for [`Reason::Writeback`](super::Reason::Writeback).
    Throttle,
    /// Wait until woken, [`NAP_MS`](super::NAP_MS) at most.
    Nap,
    /// Wait until woken.
    Sleep,
}

/// What it did.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KswapdStats {
    /// Short sleeps begun.
    pub naps: u64,
    /// Deep sleeps begun.
    pub sleeps: u64,
    /// Naps and deep sleeps begun while memory was not in balance for what had last been asked.
    pub early: u64,
    /// Of these, deep sleeps.
    pub early_deep: u64,
    /// Deep sleeps ended by a request.
    pub wakes: u64,
    /// Runs.
    pub runs: u64,
    /// Passes.
    pub passes: u64,
    /// Passes for lower zones than anybody had asked for in this cycle or the one before.
    pub unasked_passes: u64,
    /// Turns in which there was nothing to do and no leave to sleep.
    pub idle_turns: u64,
    /// Times that it looked what it is asked for and nobody asked for anything.
    pub unasked_looks: u64,
    /// Passes made once more without preferring files, after all had come to nothing.
    pub trim_passes: u64,
}

impl KswapdStats {
    /// What two of them did.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            naps: self.naps + other.naps,
            sleeps: self.sleeps + other.sleeps,
            early: self.early + other.early,
            early_deep: self.early_deep + other.early_deep,
            wakes: self.wakes + other.wakes,
            runs: self.runs + other.runs,
            passes: self.passes + other.passes,
            unasked_passes: self.unasked_passes + other.unasked_passes,
            idle_turns: self.idle_turns + other.idle_turns,
            unasked_looks: self.unasked_looks + other.unasked_looks,
            trim_passes: self.trim_passes + other.trim_passes,
        }
    }

    /// What was done after `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            naps: self.naps - before.naps,
            sleeps: self.sleeps - before.sleeps,
            early: self.early - before.early,
            early_deep: self.early_deep - before.early_deep,
            wakes: self.wakes - before.wakes,
            runs: self.runs - before.runs,
            passes: self.passes - before.passes,
            unasked_passes: self.unasked_passes - before.unasked_passes,
            idle_turns: self.idle_turns - before.idle_turns,
            unasked_looks: self.unasked_looks - before.unasked_looks,
            trim_passes: self.trim_passes - before.trim_passes,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    /// Before the question whether to sleep. `keep`: judged for what the last run reached.
    Top {
        keep: bool,
    },
    Nap,
    Deep,
    Run,
}

/// The background reclaimer of one node.
#[derive(Debug)]
pub struct Kswapd {
    policy: Policy,
    at: At,
    run: Option<Balance>,
    /// What the run was asked for, and what its end is judged by.
    alloc_order: Order,
    reclaim_order: Order,
    highest: usize,
    /// What somebody last asked for, for statistics only.
    last_asked: Option<(Order, usize)>,
    asked_before: Option<usize>,
    stalled: Option<Step>,
    ended: bool,
    stats: KswapdStats,
}

impl Kswapd {
    /// On its way to its first sleep, judged for every zone.
    #[must_use]
    pub fn new(policy: Policy, classes: usize) -> Self {
        let highest = match policy.idle {
            IdleIndex::Zero => 0,
            IdleIndex::Sentinel | IdleIndex::Previous => classes.max(1) - 1,
        };
        Self {
            policy,
            at: At::Top { keep: true },
            run: None,
            alloc_order: Order::ZERO,
            reclaim_order: Order::ZERO,
            highest,
            last_asked: None,
            asked_before: None,
            stalled: None,
            ended: false,
            stats: KswapdStats::default(),
        }
    }

    /// What it did so far.
    #[must_use]
    pub fn stats(&self) -> &KswapdStats {
        &self.stats
    }

    /// Whether it sleeps, short or deep.
    #[must_use]
    pub fn asleep(&self) -> bool {
        matches!(self.at, At::Nap | At::Deep)
    }

    /// Whether it sleeps until woken.
    #[must_use]
    pub fn deep(&self) -> bool {
        self.at == At::Deep
    }

    /// Whether a run has ended since this was last asked. The lists are told of that
    /// ([`Lruvec::end_reclaim`](crate::lru::Lruvec::end_reclaim)), and not of the end of each of its passes.
    pub fn ended(&mut self) -> bool {
        std::mem::take(&mut self.ended)
    }

    /// The highest zone it works, or judged its sleep, for.
    #[must_use]
    pub fn highest(&self) -> usize {
        self.highest
    }

    /// The zone to judge a sleep by, given what is asked: see the head of the file.
    fn judged(&self, asked: Option<usize>) -> usize {
        match (self.policy.idle, asked) {
            (IdleIndex::Zero, asked) => asked.unwrap_or(0),
            (IdleIndex::Sentinel, Some(asked)) => asked.max(self.highest),
            (IdleIndex::Previous, Some(asked)) => asked,
            (_, None) => self.highest,
        }
    }

    /// The zone of the next run, given what is asked.
    fn chosen(&self, asked: Option<usize>) -> usize {
        match (self.policy.idle, asked) {
            (_, Some(asked)) => asked,
            (IdleIndex::Zero | IdleIndex::Sentinel, None) => 0,
            (IdleIndex::Previous, None) => self.highest,
        }
    }

    /// The next thing to do.
    pub fn step(&mut self, desk: &Desk, node: &dyn Node, stat: &VmStat) -> Step {
        match self.at {
            At::Top { keep } => {
                if !keep {
                    let (asked, order) = desk.look();
                    self.stats.unasked_looks += u64::from(asked.is_none());
                    self.alloc_order = order;
                    self.reclaim_order = order;
                    self.highest = self.judged(asked);
                }
                self.lie_down(desk, node, stat)
            }
            At::Nap => self.after_nap(desk, node, stat),
            At::Deep if !desk.woken() => Step::Sleep,
            At::Deep => {
                node.set_awake(true);
                self.stats.wakes += 1;
                self.begin(desk, node, stat)
            }
            At::Run => self.go_on(desk, node, stat),
        }
    }

    /// The first, short sleep, if memory is fine.
    fn lie_down(&mut self, desk: &Desk, node: &dyn Node, stat: &VmStat) -> Step {
        let news = desk.lie_down(Sleep::Nap);
        if self.fine_with(desk, node, news) {
            self.at = At::Nap;
            self.stats.naps += 1;
            self.note_early(node, false);
            return Step::Nap;
        }
        stat.add(Event::KswapdHighQuickly, 1);
        self.begin(desk, node, stat)
    }

    /// Whether it may sleep, also for what was asked since it last looked.
    fn fine_with(
        &mut self,
        desk: &Desk,
        node: &dyn Node,
        news: Option<(Option<usize>, Order)>,
    ) -> bool {
        let Some((asked, order)) = news else { return false };
        let highest = asked.map_or(self.highest, |asked| asked.max(self.highest));
        let order =
            if asked.is_some() { order.max(self.reclaim_order) } else { self.reclaim_order };
        desk.may_sleep(node, self.policy, order, highest)
    }

    fn after_nap(&mut self, desk: &Desk, node: &dyn Node, stat: &VmStat) -> Step {
        let Some(news) = desk.lie_down(Sleep::Deep) else {
            // Asked early: what the nap was judged for counts as asked, too.
            stat.add(Event::KswapdLowQuickly, 1);
            let highest = self.highest;
            let policy = self.policy.idle;
            desk.put_back(self.reclaim_order, |asked| match policy {
                IdleIndex::Previous => asked.unwrap_or(highest),
                IdleIndex::Zero | IdleIndex::Sentinel => asked.map_or(highest, |a| a.max(highest)),
            });
            return self.begin(desk, node, stat);
        };
        if self.fine_with(desk, node, Some(news)) {
            self.at = At::Deep;
            self.stats.sleeps += 1;
            self.note_early(node, true);
            node.set_awake(false);
            return Step::Sleep;
        }
        stat.add(Event::KswapdHighQuickly, 1);
        self.begin(desk, node, stat)
    }

    fn note_early(&mut self, node: &dyn Node, deep: bool) {
        if let Some((order, highest)) = self.last_asked
            && !node.balanced(order, highest)
        {
            self.stats.early += 1;
            self.stats.early_deep += u64::from(deep);
        }
    }

    /// Reads what is asked and sets out.
    fn begin(&mut self, desk: &Desk, node: &dyn Node, stat: &VmStat) -> Step {
        desk.get_up();
        let (asked, order) = desk.take();
        self.stats.unasked_looks += u64::from(asked.is_none());
        self.asked_before = self.last_asked.map(|(_, highest)| highest);
        if let Some(highest) = asked {
            self.last_asked = Some((order, highest));
        }
        self.highest = self.chosen(asked);
        self.alloc_order = order;
        self.stats.runs += 1;
        stat.add(Event::PageOutRun, 1);
        self.run = Some(Balance::begin(node, order, self.highest));
        self.at = At::Run;
        self.stalled = None;
        self.go_on(desk, node, stat)
    }

    /// The next pass of the run, or its end.
    fn go_on(&mut self, desk: &Desk, node: &dyn Node, _stat: &VmStat) -> Step {
        if let Some(wait) = self.stalled.take() {
            return wait;
        }
        let Some(run) = self.run.as_mut() else {
            self.at = At::Top { keep: false };
            return Step::Again;
        };
        if let Some(pass) = run.next(desk, node, self.policy) {
            self.stats.passes += 1;
            self.stats.trim_passes += u64::from(pass.cache_trim_off);
            let asked = self.last_asked.map(|(_, highest)| highest).max(self.asked_before);
            let unasked = asked.is_some_and(|asked| pass.highest < asked);
            self.stats.unasked_passes += u64::from(unasked);
            return Step::Pass(pass);
        }
        let passes = run.passes();
        self.reclaim_order = run.end(desk, node);
        self.run = None;
        self.ended = true;
        self.at = At::Top { keep: self.reclaim_order < self.alloc_order };
        // A run that found nothing to do must not keep the driver from its clock.
        self.stats.idle_turns += u64::from(passes == 0);
        Step::Again
    }

    /// What came of the pass.
    pub fn passed(&mut self, desk: &Desk, passed: &Passed) {
        if let Some(run) = self.run.as_mut() {
            run.passed(desk, passed);
            // Who wants no page waits for none.
            let waits = run.wants() && passed.reclaimed == 0 && passed.writing;
            self.stalled = waits.then_some(Step::AwaitWrites);
            if let Some(met) = &passed.met {
                desk.note(met);
                if met.immediate > 0 {
                    self.stalled = Some(Step::Throttle);
                }
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::lru::Met;
    use crate::tunables::{FlagClear, SleepCheck};

    /// A node that never has enough, with its upper zone alone.
    struct Short;

    const NORMAL: usize = 1;

    impl Node for Short {
        fn classes(&self) -> usize {
            2
        }
        fn balanced(&self, _: Order, _: usize) -> bool {
            false
        }
        fn has_zone(&self, highest: usize) -> bool {
            highest >= NORMAL
        }
        fn all_balanced(&self, _: Order, _: usize) -> bool {
            false
        }
        fn target(&self, highest: usize) -> u64 {
            if highest >= NORMAL { 100 } else { 0 }
        }
        fn reserve_left(&self) -> bool {
            true
        }
    }

    /// What comes after the first pass for zones up to `highest` that went like `passed`.
    fn after(idle: IdleIndex, highest: usize, passed: &Passed) -> Step {
        let policy =
            Policy { idle, sleep: SleepCheck::One, clear: FlagClear::Sleep, trim_again: false };
        let (desk, mut kswapd, stat) = (Desk::new(), Kswapd::new(policy, 2), VmStat::default());
        loop {
            if let Step::Pass(pass) = kswapd.step(&desk, &Short, &stat) {
                assert_eq!(pass.highest, highest);
                kswapd.passed(&desk, passed);
                return kswapd.step(&desk, &Short, &stat);
            }
        }
    }

    #[test]
    fn pages_that_come_round_again_under_write_are_waited_for() {
        let met = |immediate| Met { taken: 32, writeback: 4, immediate, ..Met::default() };
        let passed = |immediate| Passed {
            scanned: 32,
            reclaimed: 28,
            writing: true,
            met: Some(met(immediate)),
        };
        assert!(matches!(after(IdleIndex::Previous, NORMAL, &passed(0)), Step::Pass(_)));
        assert_eq!(after(IdleIndex::Previous, NORMAL, &passed(1)), Step::Throttle);
    }

    /// It once waited a millisecond after each, while tasks asked for the zone that is there.
    #[test]
    fn a_pass_for_zones_that_are_not_there_waits_for_no_write() {
        let nothing = Passed { writing: true, ..Passed::default() };
        assert_eq!(after(IdleIndex::Previous, NORMAL, &nothing), Step::AwaitWrites);
        assert!(matches!(after(IdleIndex::Zero, 0, &nothing), Step::Pass(_)));
    }
}
