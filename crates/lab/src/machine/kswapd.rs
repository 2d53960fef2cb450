//! kswapd on the simulated machine: when it runs, for which zones it works, when it sleeps.
//!
//! The history of that protocol is a history of bugs, so each step of it can be chosen:
//! `idle` is the zone it judges by when nobody asks for any, and `sleep` says which zones have to be fine
//! before it may.
//!
//! ```text
//!            wake, from the allocator
//!   Deep -------------------------------> Working --- balanced, or priority ran out --> Short
//!    ^                                      ^  ^                                          |
//!    |                                      |  +---- woken, or not fine after 100 ms -----+
//!    +---------------- fine after 100 ms ---|---------------------------------------------+
//!                                           +-- not fine at all: works on
//! ```

use ebb_core::frame::watermark::Level;
use ebb_core::frame::{AllocFlags, Order};
use ebb_core::lru::{Scan, Who};
use serde::Deserialize;

use super::sched::{Event, Machine};

/// The zone that is judged by when nobody asked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Idle {
    /// The lowest: 4.10, whose sleep was judged for requests that nobody makes.
    Lowest,
    /// None while it works, the lowest after a sleep: 4.11 to 5.3.
    Sentinel,
    /// That of the last request: since then.
    #[default]
    Previous,
}

/// Which zones have to be fine.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fine {
    /// One that could serve the request.
    #[default]
    Any,
    /// All that could.
    All,
}

/// The protocol.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KswapdSpec {
    /// What is judged by when nobody asked.
    pub idle: Idle,
    /// What has to be fine before it sleeps.
    pub sleep: Fine,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Deep,
    Short,
    Working,
}

/// What it did.
#[derive(Clone, Copy, Default, Debug)]
pub struct KswapdStats {
    /// Times it went to sleep for good.
    pub sleeps: u64,
    /// Of those (and of short ones) while the highest zone was short.
    pub early_sleeps: u64,
    /// Times it was woken.
    pub wakes: u64,
    /// Passes for lower zones than anybody had asked for.
    pub useless_passes: u64,
    /// Passes.
    pub passes: u64,
    /// Time it worked, or looked round for work.
    pub awake_ns: u64,
}

/// Its state.
#[derive(Debug, Default)]
pub struct Kswapd {
    /// The protocol.
    pub spec: KswapdSpec,
    /// What it did.
    pub stats: KswapdStats,
    state: State,
    /// The highest zone asked for since it last looked.
    asked: Option<usize>,
    /// The zone it works for.
    index: usize,
    priority: u8,
    failures: u32,
    reclaimed: u64,
    turn: u64,
    since_ns: u64,
}

const SHORT_SLEEP_NS: u64 = 100_000_000;
/// One look round its loop that finds nothing to do.
const LOOP_NS: u64 = 10_000;
const FAILURES_MAX: u32 = 16;

impl Kswapd {
    /// Somebody reclaimed something: worth trying again.
    pub(super) fn not_hopeless(&mut self) {
        self.failures = 0;
    }
}

impl Machine {
    fn highest(&self) -> usize {
        self.mem.out.frames.zones().len() - 1
    }

    fn fine(&self, which: Fine, index: usize) -> bool {
        match which {
            Fine::Any => self.mem.out.frames.balanced(0, Order::ZERO, index, false),
            Fine::All => self.mem.out.frames.zones()[..=index]
                .iter()
                .all(|zone| zone.watermark_ok(Order::ZERO, Level::High, index, AllocFlags::NONE)),
        }
    }

    fn next_turn(&mut self, at: u64) {
        self.kswapd.turn += 1;
        let turn = self.kswapd.turn;
        self.ask(at, Event::Kswapd(turn));
    }

    /// The allocator asks for pages of zones up to `index`.
    pub(super) fn wake_kswapd(&mut self, index: usize) {
        let k = &mut self.kswapd;
        let index = index.min(self.mem.out.frames.zones().len() - 1);
        k.asked = Some(k.asked.map_or(index, |asked| asked.max(index)));
        if k.state == State::Working {
            return;
        }
        if k.failures >= FAILURES_MAX || self.fine(Fine::Any, index) {
            return;
        }
        let k = &mut self.kswapd;
        k.stats.wakes += 1;
        k.since_ns = self.now;
        let at = self.now + self.mem.costs.switch_ns;
        self.begin();
        self.next_turn(at);
    }

    /// Reads what was asked and sets out to balance.
    fn begin(&mut self) {
        let highest = self.highest();
        let k = &mut self.kswapd;
        let asked = k.asked.take();
        k.index = match (k.spec.idle, asked) {
            (_, Some(index)) => index,
            (Idle::Lowest | Idle::Sentinel, None) => 0,
            (Idle::Previous, None) => k.index.min(highest),
        };
        k.state = State::Working;
        k.priority = 12;
        k.reclaimed = 0;
    }

    /// Its event: a pass, or the end of a short sleep.
    pub(super) fn kswapd(&mut self, turn: u64) {
        if turn != self.kswapd.turn {
            return;
        }
        match self.kswapd.state {
            State::Working => self.pass(),
            State::Short if self.may_sleep() => {
                let early = !self.fine(Fine::Any, self.highest());
                let k = &mut self.kswapd;
                k.state = State::Deep;
                k.stats.sleeps += 1;
                k.stats.early_sleeps += u64::from(early);
            }
            State::Short => {
                self.kswapd.since_ns = self.now;
                self.begin();
                self.pass();
            }
            State::Deep => {}
        }
    }

    fn may_sleep(&self) -> bool {
        let k = &self.kswapd;
        let index = match (k.spec.idle, k.asked) {
            (_, Some(index)) => index.max(if k.spec.idle == Idle::Previous { 0 } else { k.index }),
            // The request was read when the work began; without one the lowest zone is asked about.
            (Idle::Lowest, None) => 0,
            (_, None) => k.index,
        };
        k.failures >= FAILURES_MAX || self.fine(k.spec.sleep, index)
    }

    /// The work is done, for better or worse: sleeps if it may.
    fn rest(&mut self) {
        if self.may_sleep() {
            let early = !self.fine(Fine::Any, self.highest());
            self.kswapd.stats.early_sleeps += u64::from(early);
            self.kswapd.state = State::Short;
            self.kswapd.stats.awake_ns += self.now - self.kswapd.since_ns;
            self.next_turn(self.now + SHORT_SLEEP_NS);
        } else {
            self.begin();
            self.next_turn(self.now + LOOP_NS);
        }
    }

    fn pass(&mut self) {
        let index = self.kswapd.index;
        let highest = self.highest();
        let useless = index < highest && !self.fine(Fine::Any, highest);
        self.kswapd.stats.passes += 1;
        self.kswapd.stats.useless_passes += u64::from(useless);
        if self.fine(Fine::Any, index) {
            self.kswapd.failures = 0;
            self.rest();
            return;
        }
        let marks = self.mem.out.frames.zones()[..=index].iter().map(|z| z.state().marks().high);
        let target = marks.map(|mark| mark.max(32)).sum::<u64>();
        let mut sc = Scan::new(Who::Kswapd, true, target, self.mem.tun.swappiness.0);
        sc.zone = index;
        let p = self.kswapd.priority;
        self.mem.out.watch_zone = Some(index);
        let cost = self.mem.shrink(self.now, None, &mut sc, p, p);
        self.mem.out.watch_zone = None;
        self.mem.spent.kswapd_ns += cost;
        let freed = self.mem.out.freed;
        let k = &mut self.kswapd;
        k.reclaimed += freed;
        if freed < target {
            k.priority -= 1;
        }
        if freed > 0 {
            k.failures = 0;
        }
        let writing = self.mem.out.writing > 256;
        let pause = if writing && freed == 0 { 1_000_000 } else { 1000 };
        self.now += cost;
        if self.kswapd.priority == 0 {
            let none = self.kswapd.reclaimed == 0 && self.mem.out.writing == 0;
            self.kswapd.failures += u32::from(none);
            self.rest();
        } else {
            self.next_turn(self.now + pause);
        }
        self.now -= cost;
    }

    /// What it did until now, the running stretch of work included.
    pub(super) fn kswapd_stats(&self) -> KswapdStats {
        let k = &self.kswapd;
        let mut stats = k.stats;
        if k.state == State::Working {
            stats.awake_ns += self.now.saturating_sub(k.since_ns);
        }
        stats
    }
}

impl KswapdStats {
    /// What was done after `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            sleeps: self.sleeps - before.sleeps,
            early_sleeps: self.early_sleeps - before.early_sleeps,
            wakes: self.wakes - before.wakes,
            useless_passes: self.useless_passes - before.useless_passes,
            passes: self.passes - before.passes,
            awake_ns: self.awake_ns - before.awake_ns,
        }
    }
}
