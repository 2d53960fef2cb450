//! The engine as one piece: a budget of memory, its pages, the order in which pages leave, and
//! readahead.
//!
//! [`Engine`] owns the resident set with its LRU ([`Resident`], over [`crate::lru`]), and the
//! budget with its watermarks ([`Zone`](crate::resident::Zone)). It owns [`Kswapd`] and the steps
//! of a pass. It also sets the share of pages on standby, and the share of compressed memory in the
//! budget. Each [`Space`] has readahead of its own. `ebb run` drives the engine with the memory of
//! real programs; the laboratory's `live` machine drives it with simulated memory. The engine tells
//! its driver what to do next ([`Engine::next`]), and the driver reports the result
//! ([`Engine::did`]).
//!
//! The engine does not find out by itself whether a page is used. [`Evidence`] says how the driver
//! reports it:
//! * *Accessed bits*, as hardware keeps them: an access sets the page's bit ([`Space::touch`]). The
//!   LRU's passes and walks read the bit, and the pages that the LRU hands out leave at once.
//! * *Standby*, where no process may read accessed bits: a page that the LRU hands out moves to
//!   standby. A fault brings the page back, and proves its use ([`Resident::reactivate`]). A
//!   standby page without a fault is stored.
//!
//! The crate `ebb-linux` has the parts that only a kernel has. The laboratory's machine drives them
//! one by one.
//!
//! Invariants:
//! * ENGINE-1: only kswapd's run loops over priorities. A pass keeps the priority that the run gave
//!   it. The priority sets the pass's share of pages to look at. The pass ends at the latest after
//!   the round in which it has looked at that share.
//! * ENGINE-2: each pass that begins also ends, in [`Engine::next`] or by [`Engine::end_pass`].
//!
//! The [front page](crate) of the crate shows a driver. It handles one event at a time by
//! [`Engine::fault`], [`Engine::complete`] and [`Engine::work`]. A driver with several threads,
//! such as the pager, calls the steps behind these one by one.

mod loads;
mod paging;
mod pass;

pub use loads::{COMPRESSED_COST, FAR_COST, Loads};
pub use paging::{Fault, Work};

use crate::observe::vmstat::VmStat;
use crate::reclaim::{Kswapd, Policy, RequestResult, Step, WakeRequests};
use crate::resident::{FrameState, Pressure, Resident, Space, Split, StandbyShare};
use crate::tunables::Tunables;
use crate::types::{PAGE_SIZE, Pfn, Vpn};
use pass::{Found, Pass, Stage};

/// Most pages that one order moves to standby or stores: the size of an agent's batch of moves.
pub const BATCH: usize = 64;

/// Runs since the last progress that may find no page to reclaim. After one more the engine reports
/// out of memory. One such run is allowed, because the first run only ages if all pages are young.
const RUNS_EMPTY_MAX: u32 = 1;

/// The way in which the engine learns that a page is used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Evidence {
    /// Accessed bits in the page tables, set by accesses.
    AccessedBits,
    /// Standby: a page that is to leave is first unmapped, and a fault on it proves its use.
    Standby,
}

impl Evidence {
    /// Returns the default switches of the LRU for this evidence.
    #[must_use]
    pub fn tunables(self) -> Tunables {
        match self {
            Self::AccessedBits => Tunables::default(),
            Self::Standby => Tunables::standby(),
        }
    }
}

/// The engine's order to its driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Do {
    /// Move up to so many pages ([`Engine::isolate`]) to standby, and report the result for each:
    /// [`Resident::deactivate`], [`Resident::put_back`], [`Resident::make_unevictable`]. Only with
    /// [`Evidence::Standby`].
    ToStandby(usize),
    /// Store up to so many pages ([`Engine::oldest_standby`]), and report [`Resident::evict`] for
    /// each that is stored.
    Store(usize),
    /// Drop the memory of stored pages, if at least so many wait for that.
    Drop(usize),
    /// No page that was looked at can leave for now. Wait for a change, or give up.
    OutOfMemory,
    /// Only the working set of the last `gen.min_ttl_ms` is left to reclaim.
    Thrashing,
    /// The pass is over; call again at once.
    Again,
    /// Wait for a wake request ([`WakeRequests::woken`]), [`NAP_MS`](crate::reclaim::NAP_MS) at
    /// most.
    Nap,
    /// Wait for a wake request.
    Sleep,
}

/// The driver's knowledge about threads that wait.
#[derive(Clone, Copy, Default, Debug)]
pub struct Seen {
    /// Whether a thread waits for memory.
    pub memory_stalled: bool,
    /// Whether some pages can leave only after each is copied, and memory has no room for copies.
    /// The engine then stores standby pages first.
    pub lacks_copy_room: bool,
}

/// The result of an order, in pages.
#[derive(Clone, Copy, Default, Debug)]
pub struct Did {
    /// Pages moved to standby, stored or dropped.
    pub pages: u64,
    /// Pages looked at for the order.
    pub scanned: u64,
    /// Stored pages that free memory now or soon. Usually all, but not a page with other copies in
    /// memory.
    pub progress: u64,
}

/// The engine of one budget.
#[derive(Debug)]
pub struct Engine {
    /// The pages in memory, and the order in which they would leave.
    pub set: Resident,
    evidence: Evidence,
    policy: Policy,
    kswapd: Kswapd,
    stat: VmStat,
    pass: Option<Pass>,
    /// Pages looked at since a stored page last counted as progress.
    fruitless: u64,
    /// Runs since the last progress that found no page under the highest pressure.
    empty: u32,
    split: Option<Split>,
    loads: Loads,
    /// Result so far of the work under way ([`Engine::work`]).
    under_way: Option<Did>,
}

impl Engine {
    /// Creates an engine for a budget of `limit_pages`, with reclaim aiming at `high_pages`.
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
            under_way: None,
        }
    }

    /// Limits the standby pages to `permille` thousandths of the evictable pages.
    #[must_use]
    pub fn with_standby_most(mut self, permille: u32) -> Self {
        self.set.standby_share = StandbyShare::new(permille);
        self
    }

    /// Sets the split of the budget with compressed memory.
    #[must_use]
    pub fn with_split(mut self, split: Option<Split>) -> Self {
        self.split = split;
        self
    }

    /// Changes the budget to `limit_pages`, with reclaim aiming at `high_pages`. If the budget is
    /// split, compressed memory gets `compressed` bytes at most. More pages than the budget may be
    /// in use; reclaim starts at the next wake request.
    pub fn resize(&mut self, limit_pages: u64, high_pages: u64, compressed: u64) {
        self.set.resize(limit_pages, high_pages);
        if let Some(split) = &mut self.split {
            *split = Split::new(limit_pages * PAGE_SIZE as u64, compressed);
        }
    }

    /// Returns how the engine learns of use.
    #[must_use]
    pub fn evidence(&self) -> Evidence {
        self.evidence
    }

    /// Creates an address space of anonymous memory from page 0 to `end`, as the evidence needs it.
    /// With [`Evidence::Standby`], [`Space::new`] may be used too.
    #[must_use]
    pub fn create_space(&mut self, end: Vpn) -> Space {
        self.set.create_space(end, self.evidence == Evidence::AccessedBits)
    }

    /// Requests reclaim, because a thread found too little memory. Returns what to do about kswapd.
    pub fn request_wake(&self, wake_requests: &WakeRequests) -> RequestResult {
        wake_requests.request(&self.set.zone, self.policy, crate::order::Order::ZERO, 0)
    }

    /// Returns the counters of kswapd's protocol.
    #[must_use]
    pub fn stat(&self) -> &VmStat {
        &self.stat
    }

    /// Returns the next step of kswapd. The driver answers an order of [`Do::ToStandby`],
    /// [`Do::Store`] or [`Do::Drop`] with [`Engine::did`].
    pub fn next(&mut self, wake_requests: &WakeRequests, seen: Seen) -> Do {
        loop {
            let Some(pass) = &mut self.pass else {
                let step = self.kswapd.step(wake_requests, &self.set.zone, &self.stat);
                if self.kswapd.ended() {
                    self.set.end_reclaim();
                }
                match step {
                    Step::Pass(pass) => self.pass = Some(Pass::begin(&pass, self.set.evictable())),
                    // A pass here reports no write under way, so kswapd has none to wait for.
                    Step::Again | Step::AwaitWrites | Step::Throttle => return Do::Again,
                    Step::Nap => return Do::Nap,
                    Step::Sleep => return Do::Sleep,
                }
                continue;
            };
            if pass.no_progress {
                (self.fruitless, self.empty) = (0, 0);
                self.end_pass(wake_requests);
                return Do::OutOfMemory;
            }
            if pass.stage == Stage::Begin && (pass.is_over() || self.set.zone.is_balanced()) {
                self.end_pass(wake_requests);
                continue;
            }
            if pass.stage == Stage::Begin && self.set.is_thrashing() {
                self.end_pass(wake_requests);
                return Do::Thrashing;
            }
            let (standby, target) =
                (self.set.count(FrameState::Standby), self.set.standby_target());
            if let Some(order) = pass.order(self.evidence, standby, target, seen) {
                return order;
            }
            let unstorable =
                self.fruitless > self.set.evictable() + self.set.count(FrameState::Unevictable);
            match pass.end_round() {
                Found::Progress => self.empty = 0,
                Found::Pages => pass.no_progress = unstorable,
                Found::Nothing => {
                    self.empty += u32::from(pass.last);
                    pass.no_progress = unstorable || self.empty > RUNS_EMPTY_MAX;
                }
            }
        }
    }

    /// Reports the result of the last order.
    pub fn did(&mut self, did: Did) {
        let Some(pass) = &mut self.pass else { return };
        let progress = pass.did(did);
        self.fruitless = if progress > 0 { 0 } else { self.fruitless + did.scanned };
    }

    /// Ends the pass in progress, if there is one (ENGINE-2).
    pub fn end_pass(&mut self, wake_requests: &WakeRequests) {
        if let Some(pass) = self.pass.take() {
            if self.set.zone.is_balanced() {
                self.fruitless = 0;
            }
            self.kswapd.passed(wake_requests, &pass.passed());
        }
    }

    /// Isolates up to `max` pages that should leave first, at the priority of the pass.
    pub fn isolate(&mut self, max: usize, into: &mut Vec<Pfn>) {
        let pressure = self.pass.as_ref().map_or(Pressure::UTMOST, |pass| pass.pressure);
        self.set.isolate(max, pressure, into);
    }

    /// Returns up to `max` pages to be stored next. With [`Evidence::Standby`] these are the oldest
    /// standby pages, which stay there until [`Resident::evict`]. With [`Evidence::AccessedBits`]
    /// the LRU hands them out.
    pub fn oldest_standby(&mut self, max: usize, into: &mut Vec<Pfn>) {
        match self.evidence {
            Evidence::Standby => self.set.oldest_standby(max, into),
            Evidence::AccessedBits => self.isolate(max, into),
        }
    }

    /// Records the sources of loaded pages since the last call. Returns the new share of compressed
    /// memory in the budget, in bytes, if that share changes.
    pub fn note_loads(&mut self, loads: Loads) -> Option<u64> {
        let since = loads.since(&std::mem::replace(&mut self.loads, loads));
        if let Some(cost) = since.cost_permille() {
            self.set.standby_share.set_load_cost(cost);
        }
        self.split.as_mut().and_then(|split| split.look(since.edges()))
    }

    /// Takes room from compressed memory, because threads wait and no page can leave. Compressed
    /// memory uses `used` bytes now. Returns its new share of the budget, in bytes. None if that
    /// share stays.
    pub fn shrink_compressed(&mut self, used: u64) -> Option<u64> {
        self.split.as_mut().and_then(|split| split.shrink_compressed(used))
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
