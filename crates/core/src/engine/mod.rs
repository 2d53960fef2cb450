//! The engine as one piece: a budget of memory, what is in it, what leaves it next, what to bring back.
//!
//! [`Engine`] owns the resident set with its order ([`Resident`], over [`crate::lru`]), the budget and its watermarks
//! ([`Zone`](crate::resident::Zone)), reclaim control ([`Kswapd`], and what a pass of it does next), how many pages are
//! watched before they leave, how memory is divided with the compressed tier, and (in each [`Space`]) readahead. `ebb run`
//! drives it with the memory of real programs, the laboratory's `live` machine with simulated ones; to both it says what to
//! do next ([`Engine::next`]), and both say what came of it ([`Engine::did`]).
//!
//! Whether a page is used is not the engine's to find out. [`Evidence`] says how the driver tells it:
//! * *accessed bits*, as hardware keeps them: who touches a page sets its bit ([`Space::touch`]), the LRU's passes and walks
//!   look at it, and what they hand out leaves at once;
//! * *cooling*, where nobody may read those: what the LRU hands out is taken out of sight and watched. A touch brings it
//!   back, and is the evidence ([`Resident::rescue`]); what nobody touches is stored.
//!
//! What only a kernel has is beside it, and the laboratory's machine drives that part by part: per-CPU page sets and zones
//! ([`crate::frame`]), the tree of memcgs ([`crate::memcg`]), file pages, dirty pages and their write-out
//! ([`crate::writeback`]), the swap cache ([`crate::swap`]), reclaim by the tasks themselves
//! ([`crate::reclaim::direct`]).
//!
//! Invariants:
//! * ENGINE-1: there is one loop over priorities, that of kswapd's run: a pass has the priority it was given, takes pages at that
//!   priority, and is over when it has looked at as many as that priority allows.
//! * ENGINE-2: a pass that is begun ends, by its target, by its share, or by [`Engine::end_pass`].
//!
//! The [front page](crate) of the crate has a driver in some sixty lines.

mod loads;
mod pass;

pub use loads::{FAR_COST, Loads, NEAR_COST};

use crate::observe::vmstat::VmStat;
use crate::reclaim::{Asked, Desk, Kswapd, Policy, Step};
use crate::resident::{Cooling, Place, Pressure, Resident, Space, Split};
use crate::tunables::Tunables;
use crate::types::{PAGE_SIZE, Pfn, Vpn};
use pass::{Found, Pass, Stage};

/// Pages taken, stored or dropped at a time: what an agent moves in one batch.
pub const BATCH: usize = 64;

/// So many runs may find nothing before there is nothing: where all is young the first only ages.
const RUNS_EMPTY_MAX: u32 = 1;

/// How it becomes known that pages are used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// Bits in the page tables, set by who touches.
    AccessedBits,
    /// Pages that are to leave are taken out of sight and watched.
    Cooling,
}

impl Evidence {
    /// The LRU's default switches by it.
    #[must_use]
    pub fn tunables(self) -> Tunables {
        match self {
            Self::AccessedBits => Tunables::default(),
            Self::Cooling => Tunables::cooling(),
        }
    }
}

/// What to do next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Do {
    /// Take up to so many pages ([`Engine::isolate`]) out of the program's sight, and say what became of each:
    /// [`Resident::cool`], [`Resident::put_back`], [`Resident::park`]. Only by [`Evidence::Cooling`].
    Cool(usize),
    /// Store up to so many ([`Engine::coolest`]), and say [`Resident::evict`] of each that is.
    Store(usize),
    /// Let go of the room of what was stored, where at least so many pages wait for that.
    Drop(usize),
    /// Nothing of what was looked at can leave for now. Wait for something to change, or give up.
    Despair,
    /// What is left is the working set of the last `gen.min_ttl_ms`.
    Thrashing,
    /// The pass is over: come back at once.
    Again,
    /// Wait until asked ([`Desk::woken`]), [`NAP_MS`](crate::reclaim::NAP_MS) at most.
    Nap,
    /// Wait until asked.
    Sleep,
}

/// What the driver knows of those who wait.
#[derive(Clone, Copy, Default, Debug)]
pub struct Seen {
    /// Somebody waits for memory.
    pub starving: bool,
    /// Pages would leave if there were room for copies of them first.
    pub crowded: bool,
}

/// What came of an order, in pages.
#[derive(Clone, Copy, Default, Debug)]
pub struct Did {
    /// Cooled, stored or dropped.
    pub pages: u64,
    /// Looked at for it.
    pub scanned: u64,
    /// Of those stored, the ones that free memory now or soon: all, as a rule, and not one of many copies.
    pub progress: u64,
}

/// The engine of one budget.
#[derive(Debug)]
pub struct Engine {
    /// What is in memory, and in what order it would leave.
    pub set: Resident,
    evidence: Evidence,
    policy: Policy,
    kswapd: Kswapd,
    stat: VmStat,
    pass: Option<Pass>,
    /// Looked at since something could last be stored.
    fruitless: u64,
    /// Runs in a row that found nothing under the greatest pressure.
    empty: u32,
    split: Option<Split>,
    loads: Loads,
}

impl Engine {
    /// A budget of `limit_pages`, with reclaim aiming at `high_pages`.
    #[must_use]
    pub fn new(limit_pages: u64, high_pages: u64, tunables: Tunables, evidence: Evidence) -> Self {
        let policy = Policy::of(&tunables);
        Self {
            set: Resident::with(limit_pages, high_pages, u32::MAX, tunables),
            evidence,
            policy,
            kswapd: Kswapd::new(policy, 1),
            stat: VmStat::default(),
            pass: None,
            fruitless: 0,
            empty: 0,
            split: None,
            loads: Loads::default(),
        }
    }

    /// Keeps at most `permille` of what can leave out of sight.
    #[must_use]
    pub fn with_cool_most(mut self, permille: u32) -> Self {
        self.set.cooling = Cooling::new(permille);
        self
    }

    /// Divides the budget with compressed memory.
    #[must_use]
    pub fn with_split(mut self, split: Option<Split>) -> Self {
        self.split = split;
        self
    }

    /// Another budget from here on: `limit_pages`, with reclaim aiming at `high_pages`, and of `compressed` bytes at most
    /// for compressed memory where the budget is divided with that. What is in use may be more: reclaim goes to work when
    /// it is asked next.
    pub fn resize(&mut self, limit_pages: u64, high_pages: u64, compressed: u64) {
        self.set.resize(limit_pages, high_pages);
        if let Some(split) = &mut self.split {
            *split = Split::new(limit_pages * PAGE_SIZE as u64, compressed);
        }
    }

    /// How it learns of use.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        self.evidence
    }

    /// An address space of anonymous memory from page 0 to `end`, as the evidence wants it. Where use shows by
    /// cooling [`Space::new`] makes one, too.
    #[must_use]
    pub fn create_space(&mut self, end: Vpn) -> Space {
        self.set.create_space(end, self.evidence == Evidence::AccessedBits)
    }

    /// Somebody found too little memory. What to do about kswapd.
    pub fn ask(&self, desk: &Desk) -> Asked {
        desk.ask(&self.set.zone, self.policy, crate::frame::Order::ZERO, 0)
    }

    /// What kswapd's protocol has counted.
    #[must_use]
    pub fn stat(&self) -> &VmStat {
        &self.stat
    }

    /// What kswapd is to do next. An order to [`Do::Cool`], [`Do::Store`] or [`Do::Drop`] is to be answered by
    /// [`Engine::did`].
    pub fn next(&mut self, desk: &Desk, seen: Seen) -> Do {
        loop {
            let Some(pass) = &mut self.pass else {
                let step = self.kswapd.step(desk, &self.set.zone, &self.stat);
                if self.kswapd.ended() {
                    self.set.end_reclaim();
                }
                match step {
                    Step::Pass(pass) => self.pass = Some(Pass::begin(&pass, self.set.evictable())),
                    // Pages count as freed when they are: there is no end of a write to wait for.
                    Step::Again | Step::AwaitWrites | Step::Throttle => return Do::Again,
                    Step::Nap => return Do::Nap,
                    Step::Sleep => return Do::Sleep,
                }
                continue;
            };
            if pass.in_vain {
                (self.fruitless, self.empty) = (0, 0);
                self.end_pass(desk);
                return Do::Despair;
            }
            if pass.stage == Stage::Begin && (pass.is_over() || self.set.zone.is_balanced()) {
                self.end_pass(desk);
                continue;
            }
            if pass.stage == Stage::Begin && self.set.is_thrashing() {
                self.end_pass(desk);
                return Do::Thrashing;
            }
            let (cool, target) = (self.set.count(Place::Cool), self.set.cool_target());
            if let Some(order) = pass.order(self.evidence, cool, target, seen) {
                return order;
            }
            let barren = self.fruitless > self.set.evictable() + self.set.count(Place::Parked);
            match pass.end_round() {
                Found::Progress => self.empty = 0,
                Found::Pages => pass.in_vain = barren,
                Found::Nothing => {
                    self.empty += u32::from(pass.last);
                    pass.in_vain = barren || self.empty > RUNS_EMPTY_MAX;
                }
            }
        }
    }

    /// What came of the last order.
    pub fn did(&mut self, did: Did) {
        let Some(pass) = &mut self.pass else { return };
        let progress = pass.did(did);
        self.fruitless = if progress > 0 { 0 } else { self.fruitless + did.scanned };
    }

    /// Ends the pass under way, if there is one (ENGINE-2).
    pub fn end_pass(&mut self, desk: &Desk) {
        if let Some(pass) = self.pass.take() {
            if self.set.zone.is_balanced() {
                self.fruitless = 0;
            }
            self.kswapd.passed(desk, &pass.passed());
        }
    }

    /// Takes up to `max` pages that should leave first, at the priority of the pass.
    pub fn isolate(&mut self, max: usize, into: &mut Vec<Pfn>) {
        let pressure = self.pass.as_ref().map_or(Pressure::UTMOST, |pass| pass.pressure);
        self.set.isolate(max, pressure, into);
    }

    /// Up to `max` pages that are to be stored next: by [`Evidence::Cooling`] those that are out of sight longest, which
    /// stay where they are until [`Resident::evict`]; else those that the LRU hands out.
    pub fn coolest(&mut self, max: usize, into: &mut Vec<Pfn>) {
        match self.evidence {
            Evidence::Cooling => self.set.coolest(max, into),
            Evidence::AccessedBits => self.isolate(max, into),
        }
    }

    /// Where pages came from since the last call. How much of the budget compressed memory is to have, in bytes, if that
    /// changes.
    pub fn weigh(&mut self, loads: Loads) -> Option<u64> {
        let since = loads.since(&std::mem::replace(&mut self.loads, loads));
        if let Some(cost) = since.cost_permille() {
            self.set.cooling.set_load_cost(cost);
        }
        self.split.as_mut().and_then(|split| split.look(since.edges()))
    }

    /// Threads wait, and nothing can leave. How much of the budget compressed memory, which takes `used` bytes, is to have,
    /// in bytes, if it gives way.
    pub fn give_way(&mut self, used: u64) -> Option<u64> {
        self.split.as_mut().and_then(|split| split.give_way(used))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
