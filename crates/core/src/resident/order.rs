//! The order in which pages leave memory: the engine's LRU.
//!
//! Where page tables show accessed bits ([`Space::touch`]), the engine reads them. No process
//! outside the kernel can read those of a running program, so standby replaces them. Reclaim moves
//! a page to standby, and the fault that reactivates it counts as an accessed bit. In both cases a
//! pass of the LRU hands out its victims ([`Evicted::Taken`]). The driver then reports the result
//! for each: [`Order::add_reactivated`] or [`Order::note_evicted`].

use super::frames::{FrameState, Frames, MEMCG};
use super::space::Space;
use crate::folio::{LruType, Word};
use crate::lru::scan::MIN_LRU_BATCH;
use crate::lru::{Ctx, Evicted, Lruvec, Pageout, Reclaimer, Scan, Shadow, ShortShadow};
use crate::observe::lru_gen::{self, Action, Command, CommandError, Enabled};
use crate::observe::vmstat::VmStat;
use crate::space::Spaces;
use crate::tunables::{LruKind, Tunables};
use crate::types::{Pfn, Vpn};

/// Swappiness at which only anonymous memory is reclaimed, because there is no other here.
const SWAPPINESS: u32 = 201;

/// The lists of the one memcg, with all data that they need.
#[derive(Debug)]
pub struct Order {
    lruvec: Lruvec,
    /// Address spaces whose accesses show in page tables. Empty in `ebb run`.
    spaces: Spaces,
    tun: Tunables,
    stat: VmStat,
    now_ms: u64,
}

/// The pressure of reclaim on the lists.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Pressure {
    /// Scan priority: `size >> priority` pages of a list are scanned.
    pub priority: u8,
    /// The lists count as `2^lift` times as long ([`Scan::lift`]).
    pub lift: u8,
}

impl Pressure {
    /// The highest pressure, which scans all pages.
    pub const UTMOST: Self = Self { priority: 0, lift: 0 };
}

/// Takes the pages that a pass has found to be the oldest.
struct Victims<'a>(&'a mut Vec<Pfn>);

impl Pageout for Victims<'_> {
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, _: LruType, _: Shadow) -> Evicted {
        cx.folios.unpin(pfn);
        self.0.push(pfn);
        Evicted::Taken
    }
}

impl Order {
    pub fn new(tun: Tunables) -> Self {
        Self {
            lruvec: Lruvec::new(MEMCG, tun.lru, 0),
            spaces: Spaces::new(),
            stat: VmStat::default(),
            now_ms: 0,
            tun,
        }
    }

    fn cx<'a>(&'a self, frames: &'a Frames) -> Ctx<'a> {
        Ctx {
            folios: frames.folios(),
            spaces: &self.spaces,
            tun: &self.tun,
            stat: &self.stat,
            now_ms: self.now_ms,
        }
    }

    /// Sets the time in milliseconds, for the ages of generations.
    pub fn set_now_ms(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Returns the number of pages on the lists.
    pub fn pages(&self) -> u64 {
        self.lruvec.total(LruType::Anon) + self.lruvec.unevictable()
    }

    /// Adds a page that a fault brought in. The shadow is the one it left when it was evicted.
    pub fn add_touched(&self, frames: &Frames, pfn: Pfn, shadow: Option<ShortShadow>) {
        let cx = self.cx(frames);
        if let Some(short) = shadow {
            self.lruvec
                .set_taken(frames.len(FrameState::Standby) + frames.len(FrameState::Unstorable));
            self.lruvec.refault(&cx, pfn, self.lruvec.recall(&cx, short), true);
        }
        self.lruvec.note_fault(&cx, pfn);
        self.lruvec.add(&cx, pfn);
    }

    /// Adds a page that was not accessed yet, or puts an isolated page back.
    pub fn add(&self, frames: &Frames, pfn: Pfn) {
        self.lruvec.add(&self.cx(frames), pfn);
    }

    /// Adds a reactivated page to the young pages.
    pub fn add_reactivated(&self, frames: &Frames, pfn: Pfn) {
        frames.folios().set(pfn, Word::ACTIVE);
        self.lruvec.add(&self.cx(frames), pfn);
    }

    /// Records accesses to pages that are on the lists.
    pub fn note_accessed(&self, frames: &Frames, pfns: &[Pfn]) {
        self.lruvec.accessed(&self.cx(frames), pfns);
    }

    /// Counts that an isolated page has left memory. Returns its shadow.
    pub fn note_evicted(&self, frames: &Frames, pfn: Pfn) -> ShortShadow {
        let cx = self.cx(frames);
        let shadow = self.lruvec.eviction_shadow(&cx, pfn);
        self.lruvec.note_evicted(&cx, frames.folios().word(pfn));
        shadow.shorten()
    }

    /// Removes a page from the lists.
    pub fn remove(&self, frames: &Frames, pfn: Pfn) {
        self.lruvec.remove(&self.cx(frames), pfn);
    }

    /// Isolates up to `max` pages that should leave first, as far as the pressure allows.
    pub fn isolate(&self, frames: &Frames, max: usize, pressure: Pressure, into: &mut Vec<Pfn>) {
        let cx = self.cx(frames);
        self.lruvec.fold();
        let mut sc = Scan::new(Reclaimer::Kswapd, true, max as u64, SWAPPINESS);
        (sc.priority, sc.lift) = (pressure.priority, pressure.lift);
        self.lruvec.shrink(&cx, &mut sc, &mut Victims(into));
    }

    /// Ends a reclaim run.
    pub fn end_reclaim(&self) {
        self.lruvec.end_reclaim();
    }

    /// Creates an address space whose accesses show in its page table.
    pub fn create_space(&self, end: Vpn) -> Space {
        let space = Space::watched(&self.spaces, end);
        self.lruvec.generations().spaces().join(space.mm());
        space
    }

    /// Returns the text of `lru_gen`, or of `lru_gen_full`.
    pub fn text(&self, frames: &Frames, full: bool) -> String {
        lru_gen::text(&self.cx(frames), &self.lruvec, Some("/"), 0, full)
    }

    /// Returns which parts of the LRU are in use, as the file `enabled` shows them.
    pub fn enabled(&self) -> Enabled {
        let bit = |on: bool, bit| if on { bit } else { 0 };
        Enabled(
            bit(self.lruvec.kind() == LruKind::Gen, Enabled::CORE)
                | bit(self.tun.mglru.walk, Enabled::WALK)
                | bit(self.tun.mglru.non_leaf, Enabled::NON_LEAF),
        )
    }

    /// Enables other parts of the LRU.
    pub fn enable(&mut self, frames: &Frames, enabled: Enabled) {
        let has = |bit| enabled.0 & bit != 0;
        self.tun.mglru.walk = has(Enabled::WALK);
        self.tun.mglru.non_leaf = has(Enabled::NON_LEAF);
        self.tun.lru = if has(Enabled::CORE) { LruKind::Gen } else { LruKind::Classic };
        self.lruvec.switch(&self.cx(frames), self.tun.lru);
    }

    /// Carries out a command of `lru_gen`, once. An eviction takes 64 pages at most.
    pub fn command(
        &self,
        frames: &Frames,
        command: &Command,
        into: &mut Vec<Pfn>,
    ) -> Result<(), CommandError> {
        if command.memcg != u64::from(MEMCG.0) || command.node != 0 {
            return Err(CommandError::Invalid);
        }
        let cx = self.cx(frames);
        let swappiness = command.swappiness.unwrap_or(SWAPPINESS);
        match command.action {
            Action::Age { force } => self.lruvec.age(&cx, command.seq, swappiness, force)?,
            Action::Evict { pages } => {
                let most = pages.min(MIN_LRU_BATCH);
                let mut sc = Scan::new(Reclaimer::Proactive, false, most, swappiness);
                self.lruvec.evict_gens(&cx, &mut sc, &mut Victims(into), command.seq)?;
            }
        }
        Ok(())
    }

    /// Whether the oldest generation began within the last `gen.min_ttl_ms`. Then an eviction would
    /// take the working set of that time.
    pub fn is_working_set(&self) -> bool {
        let g = self.lruvec.generations();
        let born = g.born_ms(g.evictable_min_seq(SWAPPINESS));
        self.tun.mglru.min_ttl_ms > 0
            && self.now_ms <= born.saturating_add(self.tun.mglru.min_ttl_ms)
    }

    /// Returns the counters of the LRU.
    pub fn stat(&self) -> &VmStat {
        &self.stat
    }

    /// Checks that the lists agree with their counters.
    pub fn check(&self, frames: &Frames) {
        self.lruvec.check_invariants(&self.cx(frames));
    }
}
