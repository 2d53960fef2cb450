//! In what order pages leave memory: the engine's LRU.
//!
//! The engine reads accessed bits from page tables, where there are any ([`Space::touch`]); nobody outside the kernel can
//! read those of a running program. Cooling stands in for them: a page that reclaim takes is moved out of sight, and the
//! touch that brings it back is the accessed bit that was found set. Either way a pass of the LRU hands its victims out
//! ([`Evicted::Taken`]), and hears of each what became of it: [`Order::rescued`] or [`Order::evicted`].

use super::frames::{Frames, MEMCG, Place};
use super::space::Space;
use crate::folio::{LruType, Word};
use crate::lru::scan::MIN_LRU_BATCH;
use crate::lru::{Ctx, Evicted, Lruvec, Pageout, Scan, Shadow, ShortShadow, Who};
use crate::observe::lru_gen::{self, Action, Command, CommandError, Enabled};
use crate::observe::vmstat::VmStat;
use crate::space::Spaces;
use crate::tunables::{LruKind, Tunables};
use crate::types::{Pfn, Vpn};

/// Only anonymous memory is there to be taken.
const SWAPPINESS: u32 = 201;

/// The lists of the one memcg, with all they need.
#[derive(Debug)]
pub struct Order {
    lruvec: Lruvec,
    /// Those whose accesses are seen in page tables. None in a run of `ebb run`.
    spaces: Spaces,
    tun: Tunables,
    stat: VmStat,
    now_ms: u64,
}

/// How hard the lists are pressed.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Pressure {
    /// Lists are scanned by `size >> priority`.
    pub priority: u8,
    /// ... as if they were `2^lift` times as long ([`Scan::lift`]).
    pub lift: u8,
}

impl Pressure {
    /// Whatever there is.
    pub const UTMOST: Self = Self { priority: 0, lift: 0 };
}

/// Takes what a pass has found to be oldest.
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

    /// The time in milliseconds, for the ages of generations.
    pub fn set_now_ms(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Pages on the lists.
    pub fn pages(&self) -> u64 {
        self.lruvec.total(LruType::Anon) + self.lruvec.unevictable()
    }

    /// A page that a touch brought in; the shadow is what it left when it went.
    pub fn add_touched(&self, frames: &Frames, pfn: Pfn, shadow: Option<ShortShadow>) {
        let cx = self.cx(frames);
        if let Some(short) = shadow {
            self.lruvec.set_taken(frames.len(Place::Cool) + frames.len(Place::Barren));
            self.lruvec.refault(&cx, pfn, self.lruvec.recall(&cx, short), true);
        }
        self.lruvec.note_fault(&cx, pfn);
        self.lruvec.add(&cx, pfn);
    }

    /// A page that nobody has touched yet, or one that goes back to where it was.
    pub fn add(&self, frames: &Frames, pfn: Pfn) {
        self.lruvec.add(&self.cx(frames), pfn);
    }

    /// A page that was taken has been touched: among the young.
    pub fn rescued(&self, frames: &Frames, pfn: Pfn) {
        frames.folios().set(pfn, Word::ACTIVE);
        self.lruvec.add(&self.cx(frames), pfn);
    }

    /// Pages on the lists that were found accessed where they lie.
    pub fn accessed(&self, frames: &Frames, pfns: &[Pfn]) {
        self.lruvec.accessed(&self.cx(frames), pfns);
    }

    /// A page that was taken has left memory. What to remember of it.
    pub fn evicted(&self, frames: &Frames, pfn: Pfn) -> ShortShadow {
        let cx = self.cx(frames);
        let shadow = self.lruvec.eviction_shadow(&cx, pfn);
        self.lruvec.note_evicted(&cx, frames.folios().word(pfn));
        shadow.shorten()
    }

    /// Takes a page off the lists.
    pub fn remove(&self, frames: &Frames, pfn: Pfn) {
        self.lruvec.remove(&self.cx(frames), pfn);
    }

    /// Takes up to `max` pages off the lists, those that should leave first, as far as the pressure finds them.
    pub fn take(&self, frames: &Frames, max: usize, pressure: Pressure, into: &mut Vec<Pfn>) {
        let cx = self.cx(frames);
        self.lruvec.fold();
        let mut sc = Scan::new(Who::Kswapd, true, max as u64, SWAPPINESS);
        (sc.priority, sc.lift) = (pressure.priority, pressure.lift);
        self.lruvec.shrink(&cx, &mut sc, &mut Victims(into));
    }

    /// A run of reclaim is over.
    pub fn end_reclaim(&self) {
        self.lruvec.end_reclaim();
    }

    /// An address space whose accesses are seen in its page table.
    pub fn create_space(&self, end: Vpn) -> Space {
        let space = Space::watched(&self.spaces, end);
        self.lruvec.generations().spaces().join(space.mm());
        space
    }

    /// The text of `lru_gen`, or of `lru_gen_full`.
    pub fn text(&self, frames: &Frames, full: bool) -> String {
        lru_gen::text(&self.cx(frames), &self.lruvec, Some("/"), 0, full)
    }

    /// Which parts are in use, as `enabled` has them.
    pub fn enabled(&self) -> Enabled {
        let bit = |on: bool, bit| if on { bit } else { 0 };
        Enabled(
            bit(self.lruvec.kind() == LruKind::Gen, Enabled::CORE)
                | bit(self.tun.mglru.walk, Enabled::WALK)
                | bit(self.tun.mglru.non_leaf, Enabled::NON_LEAF),
        )
    }

    /// Has other parts in use from now on.
    pub fn enable(&mut self, frames: &Frames, enabled: Enabled) {
        let has = |bit| enabled.0 & bit != 0;
        self.tun.mglru.walk = has(Enabled::WALK);
        self.tun.mglru.non_leaf = has(Enabled::NON_LEAF);
        self.tun.lru = if has(Enabled::CORE) { LruKind::Gen } else { LruKind::Classic };
        self.lruvec.switch(&self.cx(frames), self.tun.lru);
    }

    /// Carries out a command of `lru_gen`, once: evicting takes 64 pages at most.
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
                let mut sc = Scan::new(Who::Proactive, false, most, swappiness);
                self.lruvec.evict_gens(&cx, &mut sc, &mut Victims(into), command.seq)?;
            }
        }
        Ok(())
    }

    /// Whether the oldest generation began within the last `gen.min_ttl_ms`: what would be evicted is the
    /// working set of that time.
    pub fn is_working_set(&self) -> bool {
        let g = self.lruvec.generations();
        let born = g.born_ms(g.evictable_min_seq(SWAPPINESS));
        self.tun.mglru.min_ttl_ms > 0
            && self.now_ms <= born.saturating_add(self.tun.mglru.min_ttl_ms)
    }

    /// What it has counted.
    pub fn stat(&self) -> &VmStat {
        &self.stat
    }

    /// The lists agree with their counters.
    pub fn check(&self, frames: &Frames) {
        self.lruvec.check_invariants(&self.cx(frames));
    }
}
