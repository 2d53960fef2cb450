//! kswapd: when it runs, for which order and zones, and when it sleeps.
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
//! [`Kswapd::step`] returns the next step: a pass over the lists, a nap, a sleep, or an immediate
//! further call. The driver answers a pass with [`Kswapd::passed`]. A driver that naps calls `step`
//! again after 100 ms or when [`WakeRequests::woken`], whichever is first. A driver that sleeps
//! calls `step` again when woken.
//!
//! The idle policy chooses the zone if no request has arrived. `Zero` takes the lowest zone. kswapd
//! then judges its sleep for a zone that no task asked for. `Sentinel` takes the lowest zone only
//! after a sleep. kswapd may then run for a zone that no task asked for. `Previous` takes the zone
//! of the cycle before.

use super::balance::{Balance, Pass, Passed};
use super::wake_requests::{Sleep, WakeRequests};
use super::{IdleIndex, Node, Policy};
use crate::observe::vmstat::{Event, VmStat};
use crate::order::Order;

/// The next thing that the driver must do.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Step {
    /// Do a pass over the node's lists, then call [`Kswapd::passed`].
    Pass(Pass),
    /// Call again at once: there is nothing to do, but sleep is not allowed.
    Again,
    /// Wait until some writes end, 100 ms at most. Writes are under way and nothing else can be
    /// freed.
    AwaitWrites,
    /// Wait until enough writes end (`Reason::Writeback` in `ebb-linux`). Pages under writeback
    /// have come to the old end a second time, because the disk is slower than the scan.
    Throttle,
    /// Wait until woken, [`NAP_MS`](super::NAP_MS) at most.
    Nap,
    /// Wait until woken.
    Sleep,
}

/// Counters of kswapd.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct KswapdStats {
    /// Number of short sleeps begun.
    pub naps: u64,
    /// Number of deep sleeps begun.
    pub sleeps: u64,
    /// Number of naps and deep sleeps begun while memory was not in balance for the last request.
    pub early: u64,
    /// Number of deep sleeps among `early`.
    pub early_deep: u64,
    /// Number of deep sleeps ended by a request.
    pub wakes: u64,
    /// Number of runs.
    pub runs: u64,
    /// Number of passes.
    pub passes: u64,
    /// Number of passes for lower zones than any task had asked for in this cycle or the one
    /// before.
    pub unasked_passes: u64,
    /// Number of turns with nothing to do and no permission to sleep.
    pub idle_turns: u64,
    /// Number of times that kswapd read the requests and found none.
    pub unasked_looks: u64,
    /// Number of passes repeated without preferring files, after a whole run had freed nothing.
    pub trim_passes: u64,
}

impl KswapdStats {
    /// Returns the sums of two sets of counters.
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

    /// Returns the increase of the counters since `before`.
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
    /// Before the question whether to sleep. `keep`: the sleep is judged for the order that the
    /// last run reached.
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
    /// The order that tasks requested (`alloc_order`), and the order by which kswapd judges its
    /// sleep (`reclaim_order`).
    alloc_order: Order,
    reclaim_order: Order,
    highest: usize,
    /// The last request, for statistics only.
    last_asked: Option<(Order, usize)>,
    asked_before: Option<usize>,
    stalled: Option<Step>,
    ended: bool,
    stats: KswapdStats,
}

impl Kswapd {
    /// Creates kswapd before its first sleep, which is judged for every zone.
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

    /// Returns the counters.
    #[must_use]
    pub fn stats(&self) -> &KswapdStats {
        &self.stats
    }

    /// Returns whether kswapd sleeps, briefly or deeply.
    #[must_use]
    pub fn asleep(&self) -> bool {
        matches!(self.at, At::Nap | At::Deep)
    }

    /// Returns whether kswapd sleeps until woken.
    #[must_use]
    pub fn deep(&self) -> bool {
        self.at == At::Deep
    }

    /// Returns whether a run has ended since the last call. The driver then calls
    /// [`Lruvec::end_reclaim`](crate::lru::Lruvec::end_reclaim), but not at the end of each pass.
    pub fn ended(&mut self) -> bool {
        std::mem::take(&mut self.ended)
    }

    /// Returns the highest zone for which kswapd works, or for which it judged its sleep.
    #[must_use]
    pub fn highest(&self) -> usize {
        self.highest
    }

    /// Returns the zone by which to judge a sleep, given the request, by the idle policy (head of
    /// the file).
    fn judged(&self, asked: Option<usize>) -> usize {
        match (self.policy.idle, asked) {
            (IdleIndex::Zero, asked) => asked.unwrap_or(0),
            (IdleIndex::Sentinel, Some(asked)) => asked.max(self.highest),
            (IdleIndex::Previous, Some(asked)) => asked,
            (_, None) => self.highest,
        }
    }

    /// Returns the zone of the next run, given the request.
    fn chosen(&self, asked: Option<usize>) -> usize {
        match (self.policy.idle, asked) {
            (_, Some(asked)) => asked,
            (IdleIndex::Zero | IdleIndex::Sentinel, None) => 0,
            (IdleIndex::Previous, None) => self.highest,
        }
    }

    /// Returns the next thing to do.
    pub fn step(&mut self, wake_requests: &WakeRequests, node: &dyn Node, stat: &VmStat) -> Step {
        match self.at {
            At::Top { keep } => {
                if !keep {
                    let (asked, order) = wake_requests.look();
                    self.stats.unasked_looks += u64::from(asked.is_none());
                    self.alloc_order = order;
                    self.reclaim_order = order;
                    self.highest = self.judged(asked);
                }
                self.prepare_sleep(wake_requests, node, stat)
            }
            At::Nap => self.after_nap(wake_requests, node, stat),
            At::Deep if !wake_requests.woken() => Step::Sleep,
            At::Deep => {
                node.set_awake(true);
                self.stats.wakes += 1;
                self.begin(wake_requests, node, stat)
            }
            At::Run => self.go_on(wake_requests, node, stat),
        }
    }

    /// Begins the first, short sleep, if memory is in balance.
    fn prepare_sleep(
        &mut self,
        wake_requests: &WakeRequests,
        node: &dyn Node,
        stat: &VmStat,
    ) -> Step {
        let news = wake_requests.prepare_sleep(Sleep::Nap);
        if self.fine_with(wake_requests, node, news) {
            self.at = At::Nap;
            self.stats.naps += 1;
            self.note_early(node, false);
            return Step::Nap;
        }
        stat.add(Event::KswapdHighQuickly, 1);
        self.begin(wake_requests, node, stat)
    }

    /// Returns whether kswapd may sleep, also for requests that came since it last read them.
    fn fine_with(
        &mut self,
        wake_requests: &WakeRequests,
        node: &dyn Node,
        news: Option<(Option<usize>, Order)>,
    ) -> bool {
        let Some((asked, order)) = news else { return false };
        let highest = asked.map_or(self.highest, |asked| asked.max(self.highest));
        let order =
            if asked.is_some() { order.max(self.reclaim_order) } else { self.reclaim_order };
        wake_requests.may_sleep(node, self.policy, order, highest)
    }

    fn after_nap(&mut self, wake_requests: &WakeRequests, node: &dyn Node, stat: &VmStat) -> Step {
        let Some(news) = wake_requests.prepare_sleep(Sleep::Deep) else {
            // A request ended the nap early. The zone for which kswapd judged the nap counts as
            // requested, too. With `Previous` it counts only if no request names a zone.
            stat.add(Event::KswapdLowQuickly, 1);
            let highest = self.highest;
            let policy = self.policy.idle;
            wake_requests.put_back(self.reclaim_order, |asked| match policy {
                IdleIndex::Previous => asked.unwrap_or(highest),
                IdleIndex::Zero | IdleIndex::Sentinel => asked.map_or(highest, |a| a.max(highest)),
            });
            return self.begin(wake_requests, node, stat);
        };
        if self.fine_with(wake_requests, node, Some(news)) {
            self.at = At::Deep;
            self.stats.sleeps += 1;
            self.note_early(node, true);
            node.set_awake(false);
            return Step::Sleep;
        }
        stat.add(Event::KswapdHighQuickly, 1);
        self.begin(wake_requests, node, stat)
    }

    fn note_early(&mut self, node: &dyn Node, deep: bool) {
        if let Some((order, highest)) = self.last_asked
            && !node.balanced(order, highest)
        {
            self.stats.early += 1;
            self.stats.early_deep += u64::from(deep);
        }
    }

    /// Reads the request and begins a run.
    fn begin(&mut self, wake_requests: &WakeRequests, node: &dyn Node, stat: &VmStat) -> Step {
        wake_requests.wake_up();
        let (asked, order) = wake_requests.take();
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
        self.go_on(wake_requests, node, stat)
    }

    /// Returns the next pass of the run, or ends it.
    fn go_on(&mut self, wake_requests: &WakeRequests, node: &dyn Node, _stat: &VmStat) -> Step {
        if let Some(wait) = self.stalled.take() {
            return wait;
        }
        let Some(run) = self.run.as_mut() else {
            self.at = At::Top { keep: false };
            return Step::Again;
        };
        if let Some(pass) = run.next(wake_requests, node, self.policy) {
            self.stats.passes += 1;
            self.stats.trim_passes += u64::from(pass.cache_trim_off);
            let asked = self.last_asked.map(|(_, highest)| highest).max(self.asked_before);
            let unasked = asked.is_some_and(|asked| pass.highest < asked);
            self.stats.unasked_passes += u64::from(unasked);
            return Step::Pass(pass);
        }
        let passes = run.passes();
        self.reclaim_order = run.end(wake_requests, node);
        self.run = None;
        self.ended = true;
        self.at = At::Top { keep: self.reclaim_order < self.alloc_order };
        // Return to the driver after each run. Otherwise runs that find nothing to do would stop
        // the driver's clock.
        self.stats.idle_turns += u64::from(passes == 0);
        Step::Again
    }

    /// Records the result of the pass.
    pub fn passed(&mut self, wake_requests: &WakeRequests, passed: &Passed) {
        if let Some(run) = self.run.as_mut() {
            run.passed(wake_requests, passed);
            // A run with a target of 0 waits for no write.
            let waits = run.wants() && passed.reclaimed == 0 && passed.writing;
            self.stalled = waits.then_some(Step::AwaitWrites);
            if let Some(met) = &passed.met {
                wake_requests.note(met);
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
    use crate::lru::ReclaimStat;
    use crate::tunables::{FlagClear, SleepCheck};

    /// A node that never has enough memory and has only its upper zone.
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

    /// Returns the step after a first pass for zones up to `highest` with the result `passed`.
    fn after(idle: IdleIndex, highest: usize, passed: &Passed) -> Step {
        let policy =
            Policy { idle, sleep: SleepCheck::One, clear: FlagClear::Sleep, trim_again: false };
        let (wake_requests, mut kswapd, stat) =
            (WakeRequests::new(), Kswapd::new(policy, 2), VmStat::default());
        loop {
            if let Step::Pass(pass) = kswapd.step(&wake_requests, &Short, &stat) {
                assert_eq!(pass.highest, highest);
                kswapd.passed(&wake_requests, passed);
                return kswapd.step(&wake_requests, &Short, &stat);
            }
        }
    }

    #[test]
    fn kswapd_waits_for_pages_that_it_meets_again_under_writeback() {
        let met = |immediate| ReclaimStat {
            taken: 32,
            writeback: 4,
            immediate,
            ..ReclaimStat::default()
        };
        let passed = |immediate| Passed {
            scanned: 32,
            reclaimed: 28,
            writing: true,
            met: Some(met(immediate)),
        };
        assert!(matches!(after(IdleIndex::Previous, NORMAL, &passed(0)), Step::Pass(_)));
        assert_eq!(after(IdleIndex::Previous, NORMAL, &passed(1)), Step::Throttle);
    }

    /// Shows that kswapd does not wait after each pass for a missing zone, while tasks ask for the
    /// existing one.
    #[test]
    fn kswapd_waits_for_no_write_after_a_pass_for_a_missing_zone() {
        let nothing = Passed { writing: true, ..Passed::default() };
        assert_eq!(after(IdleIndex::Previous, NORMAL, &nothing), Step::AwaitWrites);
        assert!(matches!(after(IdleIndex::Zero, 0, &nothing), Step::Pass(_)));
    }
}
