//! A minimal machine to replay a trace on: one memcg, one address space, a limit.
//!
//! It drives the engine as the kernel drives its own LRU when a task runs into its memcg's limit.
//! Accessed bits are exact. A fault at the limit reclaims 32 pages in the faulting task. New folios
//! reach the lists through a per-CPU batch, and storage is immediate. There is no background
//! reclaim, no readahead and no huge page.
//!
//! ```
//! use ebb_mm::lru::memory::{Access, Memory, Touch};
//! use ebb_mm::tunables::Tunables;
//!
//! let mut m = Memory::anon(Tunables::default(), 1000, 512);
//! for page in 0..1000 {
//!     assert_eq!(m.touch(page, Access::AnonWrite), Touch::First);
//! }
//! assert_eq!(m.touch(999, Access::AnonRead), Touch::Hit);
//! assert_eq!(m.touch(0, Access::AnonRead), Touch::Refault);
//! assert_eq!(m.counts().refaults, 1);
//! assert!(m.resident() <= 512);
//! ```

use std::sync::Arc;

use super::scan::{self, DEF_PRIORITY};
use super::{Ctx, Evicted, Lruvec, Pageout, Pagevec, Reclaimer, Scan, Shadow};
use crate::folio::{Folios, LruType, MemcgId, Word};
use crate::observe::lru_gen::{self, Action, CommandError};
use crate::observe::vmstat::{Event, VmStat};
use crate::space::{Area, Backing, Pte, PteRef, Space, Spaces};
use crate::tunables::Tunables;
use crate::types::{Pfn, Vpn};

/// The kind of an access to a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A read of anonymous memory.
    AnonRead,
    /// A write to anonymous memory.
    AnonWrite,
    /// A read or execution of a mapped file page.
    MmapRead,
    /// A write to a mapped file page.
    MmapWrite,
    /// A `read` of a file page.
    FdRead,
    /// A `write` to a file page.
    FdWrite,
}

impl Access {
    const fn mapped(self) -> bool {
        !matches!(self, Self::FdRead | Self::FdWrite)
    }

    const fn writes(self) -> bool {
        matches!(self, Self::AnonWrite | Self::MmapWrite | Self::FdWrite)
    }

    const fn ty(self) -> LruType {
        match self {
            Self::AnonRead | Self::AnonWrite => LruType::Anon,
            _ => LruType::File,
        }
    }
}

/// The result of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// The page was resident.
    Hit,
    /// The page was accessed for the first time.
    First,
    /// The page had been evicted and was brought in again.
    Refault,
}

impl Touch {
    /// Whether the page had to be brought in.
    #[must_use]
    pub const fn is_miss(self) -> bool {
        !matches!(self, Self::Hit)
    }
}

/// Totals of a replay.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Counts {
    /// Accesses to pages.
    pub accesses: u64,
    /// Pages brought in, first accesses included.
    pub misses: u64,
    /// Pages brought in again.
    pub refaults: u64,
    /// Folios that reclaim scanned.
    pub scanned: u64,
    /// Folios kept because of their tier.
    pub protected: u64,
    /// Pages written out.
    pub written: u64,
    /// Direct reclaim runs.
    pub reclaims: u64,
}

/// A range of pages of one kind.
#[derive(Clone, Copy, Debug)]
pub struct Region {
    /// First page of the region.
    pub start: u64,
    /// First page after the region.
    pub end: u64,
    /// Kind of memory that backs the region.
    pub backing: Backing,
    /// Whether accesses count (not for mappings advised to be random or sequential).
    pub recency: bool,
}

/// A machine that replays accesses in limited memory.
#[derive(Debug)]
pub struct Memory {
    folios: Folios,
    spaces: Spaces,
    space: Arc<Space>,
    lruvec: Lruvec,
    tun: Tunables,
    stat: VmStat,
    pagevec: Pagevec,
    store: Store,
    limit: u32,
    counts: Counts,
    next_fold: u64,
    last_fd: u64,
    now_ms: u64,
    regions: Vec<Region>,
}

/// Frames that are not in use, and the number of pages written.
#[derive(Debug)]
struct Store {
    free: Vec<u32>,
    written: u64,
}

impl Pageout for Store {
    fn evict(&mut self, cx: &Ctx, pfn: Pfn, _: LruType, shadow: Shadow) -> Evicted {
        let w = cx.folios.word(pfn);
        let mapped_dirty = cx.spaces.unmap(cx.folios, pfn, shadow.0);
        if mapped_dirty
            || w.has(Word::DIRTY)
            || (w.has(Word::SWAPBACKED) && !w.has(Word::SWAPCACHE))
        {
            self.written += w.pages();
        }
        cx.folios.unpin(pfn);
        cx.folios.unpin(pfn);
        self.free.push(pfn.0);
        Evicted::Freed
    }
}

impl Memory {
    /// Creates a machine whose pages are all anonymous.
    #[must_use]
    pub fn anon(tun: Tunables, pages: u64, limit: u32) -> Self {
        let all = Region { start: 0, end: pages, backing: Backing::Anon, recency: true };
        Self::new(tun, &[all], limit)
    }

    /// Creates a machine with the pages of `regions`, at most `limit` of them resident.
    ///
    /// # Panics
    /// If the limit is zero.
    #[must_use]
    pub fn new(tun: Tunables, regions: &[Region], limit: u32) -> Self {
        assert!(limit > 0, "memory needs at least one page");
        let (folios, spaces) = (Folios::new(limit), Spaces::new());
        let memcg = MemcgId(1);
        let space = spaces.create(memcg);
        for r in regions.iter().filter(|r| r.start < r.end) {
            let mut area = Area::new(Vpn(r.start), Vpn(r.end), r.backing);
            area.recency = r.recency;
            space.add_area(area);
        }
        let lruvec = Lruvec::new(memcg, tun.lru, 0);
        lruvec.r#gen.mm.join(space.id());
        Self {
            folios,
            spaces,
            space,
            lruvec,
            stat: VmStat::default(),
            pagevec: Pagevec::default(),
            store: Store { free: (0..limit).rev().collect(), written: 0 },
            limit,
            counts: Counts::default(),
            next_fold: tun.classic.fold.max(1),
            last_fd: u64::MAX,
            now_ms: 0,
            regions: regions.to_vec(),
            tun,
        }
    }

    /// Accesses a page.
    ///
    /// # Panics
    /// If nothing at all can be reclaimed.
    #[inline]
    pub fn touch(&mut self, page: u64, access: Access) -> Touch {
        self.counts.accesses += 1;
        if self.counts.accesses >= self.next_fold {
            let step = self.tun.classic.fold;
            self.next_fold += if step == 0 { 1 << 20 } else { step };
            self.lruvec.fold();
        }
        if let Some(place) = self.space.tree().find(Vpn(page)) {
            let pte = place.get();
            if pte.present() {
                if access.mapped() {
                    if pte.all(Pte::MAPPED) && !access.writes() {
                        place.touch(pte, Pte::ACCESSED);
                    } else {
                        touch_mapped(&self.folios, place, pte, access);
                    }
                } else {
                    self.touch_fd(page, pte.pfn(), access);
                }
                return Touch::Hit;
            }
        }
        self.fault(page, access)
    }

    fn touch_fd(&mut self, page: u64, pfn: Pfn, access: Access) {
        if access.writes() {
            self.folios.set(pfn, Word::DIRTY);
        }
        if self.last_fd == page {
            return;
        }
        self.last_fd = page;
        let cx = cx(&self.folios, &self.spaces, &self.tun, &self.stat, self.now_ms);
        if self.lruvec.note_access_lazily(&cx, pfn) {
            self.pagevec.activate(&self.lruvec, &cx, pfn);
        }
    }

    #[inline(never)]
    fn fault(&mut self, page: u64, access: Access) -> Touch {
        self.counts.misses += 1;
        if self.store.free.is_empty() {
            self.reclaim(scan::task_target(self.limit.into(), &self.tun));
        }
        let pfn = Pfn(self.store.free.pop().expect("reclaim made room"));
        let place = self.space.tree().place(Vpn(page));
        let shadow = place.get().shadow();
        let in_fault = access.mapped() && self.recency(page);
        let mut word = Word::new(access.ty(), 0, 0);
        let mut bits = 0;
        if access.mapped() {
            word = word.with(Word::MAPPED);
            bits = Pte::MAPPED | Pte::ACCESSED;
        }
        if access.writes() && access.mapped() {
            bits |= Pte::DIRTY;
        } else if access.writes() {
            word = word.with(Word::DIRTY);
        }
        let keeps_slot = shadow.is_some() && self.tun.swap.keep_slot && !access.writes();
        if keeps_slot && access.ty() == LruType::Anon {
            word = word.with(Word::SWAPCACHE);
        }
        let cx = cx(&self.folios, &self.spaces, &self.tun, &self.stat, self.now_ms);
        self.folios.init(pfn, word, self.lruvec.memcg(), self.space.id(), Vpn(page));
        if let Some(s) = shadow {
            self.lruvec.refault(&cx, pfn, Shadow(s), in_fault);
        }
        if in_fault {
            self.lruvec.note_fault(&cx, pfn);
        }
        place.table.set(place.index, Pte::of_frame(pfn, bits));
        place.touch(place.get(), bits);
        self.pagevec.add(&self.lruvec, &cx, pfn);
        if !access.mapped() {
            self.touch_fd(page, pfn, access);
        }
        if shadow.is_some() {
            self.counts.refaults += 1;
            Touch::Refault
        } else {
            Touch::First
        }
    }

    fn recency(&self, page: u64) -> bool {
        self.regions.iter().any(|r| r.start <= page && page < r.end && r.recency)
    }

    /// Runs direct reclaim at the limit.
    fn reclaim(&mut self, target: u64) {
        let cx = cx(&self.folios, &self.spaces, &self.tun, &self.stat, self.now_ms);
        self.counts.reclaims += 1;
        self.space.note_scheduled();
        let mut force = false;
        for _ in 0..16 {
            let mut sc = Scan::new(Reclaimer::Direct, false, target, self.tun.swappiness.0);
            sc.force_deactivate = force;
            for priority in (0..=DEF_PRIORITY).rev() {
                sc.priority = priority;
                self.pagevec.drain(&self.lruvec, &cx);
                self.lruvec.shrink(&cx, &mut sc, &mut self.store);
                if sc.reclaimed >= sc.target {
                    break;
                }
            }
            self.lruvec.end_reclaim();
            if sc.reclaimed > 0 {
                return;
            }
            // Counters too stale to show that a list has become empty would stall reclaim for good.
            self.lruvec.fold();
            force = sc.skipped_deactivate;
        }
        panic!("nothing can be reclaimed");
    }

    /// Sets the clock, in milliseconds.
    pub fn set_now_ms(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    /// Returns the totals of the replay.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let scans = [Event::EbbScanned, Event::PgScanDirect];
        let scanned = match self.lruvec.kind() {
            crate::tunables::LruKind::Gen => self.stat.get(scans[0]),
            crate::tunables::LruKind::Classic => self.stat.get(scans[1]),
        };
        Counts {
            scanned,
            protected: self.stat.get(Event::EbbProtected),
            written: self.store.written,
            ..self.counts
        }
    }

    /// Returns the number of resident pages.
    #[must_use]
    pub fn resident(&self) -> u32 {
        self.limit - self.store.free.len() as u32
    }

    /// Returns the text of `lru_gen` (or `lru_gen_full`).
    #[must_use]
    pub fn lru_gen(&self, path: &str, full: bool) -> String {
        let cx = cx(&self.folios, &self.spaces, &self.tun, &self.stat, self.now_ms);
        lru_gen::text(&cx, &self.lruvec, Some(path), 0, full)
    }

    /// Carries out commands as written to `lru_gen`.
    ///
    /// # Errors
    /// The error of the first command that fails.
    pub fn command(&mut self, text: &str) -> Result<(), CommandError> {
        let cx = cx(&self.folios, &self.spaces, &self.tun, &self.stat, self.now_ms);
        self.pagevec.drain(&self.lruvec, &cx);
        lru_gen::run_all(text, |c| {
            if c.memcg != u64::from(self.lruvec.memcg().0) || c.node != 0 {
                return Err(CommandError::Invalid);
            }
            let swappiness = c.swappiness.unwrap_or(self.tun.swappiness.0);
            match c.action {
                Action::Age { force } => self.lruvec.age(&cx, c.seq, swappiness, force)?,
                Action::Evict { pages } => {
                    let mut sc = Scan::new(Reclaimer::Proactive, false, pages, swappiness);
                    self.lruvec.evict_gens(&cx, &mut sc, &mut self.store, c.seq)?;
                }
            }
            Ok(())
        })
    }

    /// Returns the counters under their vmstat names.
    #[must_use]
    pub fn vmstat(&self) -> &VmStat {
        &self.stat
    }

    /// Returns the lruvec, for inspection.
    #[must_use]
    pub fn lruvec(&self) -> &Lruvec {
        &self.lruvec
    }

    /// Returns the switches in force.
    #[must_use]
    pub fn tunables(&self) -> &Tunables {
        &self.tun
    }

    /// Puts gathered folios on the lists and checks every invariant.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check_invariants(&mut self) {
        let cx = cx(&self.folios, &self.spaces, &self.tun, &self.stat, self.now_ms);
        self.pagevec.drain(&self.lruvec, &cx);
        self.lruvec.check_invariants(&cx);
    }
}

/// Sets the bits of a mapped page on an access. The page may be in the page cache and not mapped
/// yet.
fn touch_mapped(folios: &Folios, place: PteRef<'_>, pte: Pte, access: Access) {
    let mut bits = Pte::MAPPED | Pte::ACCESSED;
    if access.writes() {
        bits |= Pte::DIRTY;
    }
    if !pte.all(Pte::MAPPED) {
        folios.set(pte.pfn(), Word::MAPPED);
    }
    if access == Access::AnonWrite && !pte.all(Pte::DIRTY) {
        // The stored copy is stale from now on.
        folios.clear(pte.pfn(), Word::SWAPCACHE);
    }
    place.touch(pte, bits);
}

fn cx<'a>(
    folios: &'a Folios,
    spaces: &'a Spaces,
    tun: &'a Tunables,
    stat: &'a VmStat,
    now_ms: u64,
) -> Ctx<'a> {
    Ctx { folios, spaces, tun, stat, now_ms }
}
