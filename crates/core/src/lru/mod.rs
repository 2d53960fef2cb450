//! The LRU: the multi-gen and the classic lists behind one trait.
//!
//! Owns the lruvec (the reclaim state of one memcg on one node), its lists and its lru lock. The
//! two implementations are [`gen`](mod@self::gen) and [`classic`]. A lruvec uses one at a time and
//! can be switched at run time, in bounded slices ([`Lruvec::switch`]).
//!
//! No code here knows a page's content or where it is stored. Eviction hands each folio to a
//! [`Pageout`], which takes it out of memory or returns the reason why not.
//!
//! Invariants
//! * LRU-1: a folio is on at most one list, and `LRU` is set exactly while it is on one.
//! * LRU-2: the size counters equal the sums over the lists at quiescence.
//! * LRU-3: only one of the two sets of lists is in use, except while [`Lruvec::switch`] is between
//!   two slices. Then each folio is still on exactly one list.
//!
//! Lock order: memcg LRU < space areas < lru lock. The lru lock is a leaf: no callback runs under
//! it, and no list operation waits.

pub mod classic;
pub mod r#gen;
pub mod list;
pub mod memory;
mod pagevec;
pub mod scan;
mod shrink;
mod switch;

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use pagevec::Pagevec;
pub use scan::{
    Aged, Evicted, Isolation, Pageout, Protection, ReclaimStat, Reclaimer, Scan, ScanEvent, Shadow,
    ShortShadow, ShrinkReport,
};

use self::classic::ClassicState;
use self::r#gen::GenState;
use self::list::List;
use crate::folio::{Folios, LruType, MemcgId, SLOTS, Word};
use crate::observe::vmstat::VmStat;
use crate::space::Spaces;
use crate::tunables::{LruKind, Tunables};
use crate::types::Pfn;

/// Number of zones that a node can have lists for.
pub const ZONES: usize = 4;

/// The context of every operation: the tables it works on and the time.
#[derive(Clone, Copy, Debug)]
pub struct Ctx<'a> {
    /// Frame descriptors of all folios.
    pub folios: &'a Folios,
    /// Address spaces that may map the folios.
    pub spaces: &'a Spaces,
    /// Switches in force.
    pub tun: &'a Tunables,
    /// Counters of events.
    pub stat: &'a VmStat,
    /// Time now, in milliseconds of the driver's clock.
    pub now_ms: u64,
}

/// All lists of a lruvec, protected by the lru lock.
#[derive(Debug, Default)]
pub struct Lists {
    /// Lists of the multi-gen LRU by slot. The last two slots are the halves of the probation list.
    pub(crate) r#gen: [[[List; ZONES]; 2]; SLOTS],
    /// Classic lists: inactive anonymous, active anonymous, inactive file, active file.
    pub(crate) classic: [List; 4],
    pub(crate) unevictable: List,
}

/// One implementation of the LRU lists.
pub trait Lru: Sync {
    /// Puts a folio on the list that its state determines.
    fn add(&self, v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, how: Add);
    /// Removes a folio from its list. With `keep_age` a young folio stays marked young.
    fn del(&self, v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, keep_age: bool);
    /// Records an access through a file descriptor. Returns true if [`Lruvec::activate`] should
    /// move the folio (callers may batch that).
    fn mark_accessed(&self, v: &Lruvec, cx: &Ctx, pfn: Pfn) -> bool;
    /// Returns the shadow of a folio that is leaving memory.
    fn eviction_shadow(&self, v: &Lruvec, cx: &Ctx, pfn: Pfn) -> Shadow;
    /// Returns the present value of the clock from which `token` was made, shifted as in a token.
    fn clock(&self, v: &Lruvec, cx: &Ctx, token: u64) -> u64;
    /// Counts that a folio with word `w` left memory.
    fn note_evicted(&self, v: &Lruvec, cx: &Ctx, w: Word);
    /// Handles a refault: restores the folio's flags from the shadow. Returns true if the refault
    /// is recent.
    fn refault(&self, v: Came, cx: &Ctx, pfn: Pfn, shadow: Shadow, in_fault: bool) -> bool;
    /// Reclaims at one priority. Returns true if the memcg LRU should rotate this lruvec.
    fn shrink(&self, v: &Lruvec, cx: &Ctx, sc: &mut Scan, out: &mut dyn Pageout) -> bool;
    /// Marks a new folio that a page fault brought in, before it goes on the lists.
    fn note_fault(&self, v: &Lruvec, cx: &Ctx, pfn: Pfn);
}

/// The lruvec of a refaulted folio now, and the lruvec that it left.
pub(crate) type Came<'a> = (&'a Lruvec, &'a Lruvec);

/// The way a folio is put on a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Add {
    /// By its state.
    Normal,
    /// At the old end, because the folio's writeback ended: reclaim takes it next.
    Rotate,
}

const KIND_GEN: u8 = 0;
const KIND_CLASSIC: u8 = 1;

/// The reclaim state of one memcg on one node.
#[derive(Debug)]
pub struct Lruvec {
    memcg: MemcgId,
    node: u8,
    lists: Mutex<Lists>,
    pub(crate) r#gen: GenState,
    pub(crate) classic: ClassicState,
    /// Pages in memory that a `Pageout` took ([`Evicted::Taken`]) and has yet to put back or free.
    taken: AtomicU64,
    /// Pages: inactive and active anonymous, inactive and active file, unevictable.
    sizes: [AtomicI64; 5],
    kind: AtomicU8,
    switching: AtomicBool,
    online: AtomicBool,
}

impl Lruvec {
    /// Creates an empty lruvec on the first node.
    #[must_use]
    pub fn new(memcg: MemcgId, kind: LruKind, now_ms: u64) -> Self {
        Self::on_node(memcg, 0, kind, now_ms)
    }

    /// Creates an empty lruvec on `node`.
    #[must_use]
    pub fn on_node(memcg: MemcgId, node: u8, kind: LruKind, now_ms: u64) -> Self {
        let kind = match kind {
            LruKind::Gen => KIND_GEN,
            LruKind::Classic => KIND_CLASSIC,
        };
        Self {
            memcg,
            node,
            lists: Mutex::new(Lists::default()),
            r#gen: GenState::new(now_ms),
            classic: ClassicState::default(),
            taken: AtomicU64::new(0),
            sizes: Default::default(),
            kind: AtomicU8::new(kind),
            switching: AtomicBool::new(false),
            online: AtomicBool::new(true),
        }
    }

    /// Returns the memcg of this lruvec.
    #[must_use]
    pub fn memcg(&self) -> MemcgId {
        self.memcg
    }

    /// Returns the node of this lruvec.
    #[must_use]
    pub fn node(&self) -> u8 {
        self.node
    }

    /// Whether a folio belongs to this lruvec, by its memcg and its node.
    pub(crate) fn is_of(&self, cx: &Ctx, pfn: Pfn) -> bool {
        cx.folios.memcg(pfn) == self.memcg && cx.folios.node(pfn) == self.node
    }

    /// Whether a folio with this shadow left this lruvec.
    pub(crate) fn is_left_by(&self, shadow: Shadow) -> bool {
        (shadow.memcg(), shadow.node()) == (self.memcg.0, self.node)
    }

    /// Whether the memcg still exists for its users.
    #[must_use]
    pub fn online(&self) -> bool {
        self.online.load(Relaxed)
    }

    /// Records that the memcg was removed. Reclaim then takes all its memory.
    pub fn set_offline(&self) {
        self.online.store(false, Relaxed);
    }

    /// Returns the LRU in use.
    #[must_use]
    pub fn kind(&self) -> LruKind {
        if self.kind.load(Relaxed) == KIND_GEN { LruKind::Gen } else { LruKind::Classic }
    }

    pub(crate) fn policy(&self) -> &'static dyn Lru {
        match self.kind() {
            LruKind::Gen => &r#gen::Gen,
            LruKind::Classic => &classic::Classic,
        }
    }

    /// Takes the lru lock. Poison is ignored, because the checks report lists that a panic under
    /// the lock left broken.
    pub fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn resize(&self, list: usize, pages: i64) {
        self.sizes[list].fetch_add(pages, Relaxed);
    }

    /// Returns the pages on the inactive or active side of a type.
    #[must_use]
    pub fn size(&self, ty: LruType, active: bool) -> u64 {
        self.sizes[ty.index() * 2 + usize::from(active)].load(Relaxed).max(0) as u64
    }

    /// Returns the pages of both types in zones up to `zone`.
    #[must_use]
    pub fn eligible(&self, zone: usize) -> u64 {
        match self.kind() {
            LruKind::Gen => self.r#gen.eligible(zone),
            LruKind::Classic => (0..4).map(|list| self.classic.eligible(list, zone)).sum(),
        }
    }

    /// Returns the pages on the unevictable list.
    #[must_use]
    pub fn unevictable(&self) -> u64 {
        self.sizes[4].load(Relaxed).max(0) as u64
    }

    /// Returns the pages of a type.
    #[must_use]
    pub fn total(&self, ty: LruType) -> u64 {
        self.size(ty, false) + self.size(ty, true)
    }

    /// Sets the number of pages that are off the lists but still in memory. These pages count as
    /// memory when the LRU judges a refault's distance.
    pub fn set_taken(&self, pages: u64) {
        self.taken.store(pages, Relaxed);
    }

    /// Returns the pages of both types that could be reclaimed, including those isolated for
    /// reclaim.
    #[must_use]
    pub fn memory(&self) -> u64 {
        LruType::ALL.iter().map(|&ty| self.total(ty)).sum::<u64>() + self.taken.load(Relaxed)
    }

    /// Returns the state of the generations.
    #[must_use]
    pub fn generations(&self) -> &GenState {
        &self.r#gen
    }

    /// Puts a folio on the list that its state determines.
    pub fn add(&self, cx: &Ctx, pfn: Pfn) {
        let mut lists = self.lock();
        self.add_locked(cx, &mut lists, pfn, Add::Normal);
    }

    pub(crate) fn add_locked(&self, cx: &Ctx, lists: &mut Lists, pfn: Pfn, how: Add) {
        let w = cx.folios.word(pfn);
        if w.has(Word::UNEVICTABLE) {
            cx.folios.update(pfn, |w| w.with(Word::LRU.or(Word::CULLED)).without(Word::ACTIVE));
            lists.unevictable.push_head(cx.folios, pfn);
            self.resize(4, w.pages() as i64);
        } else {
            self.policy().add(self, cx, lists, pfn, how);
        }
    }

    /// Removes a folio from its list because it is being freed or moved. Returns false if it was on
    /// no list.
    pub fn remove(&self, cx: &Ctx, pfn: Pfn) -> bool {
        let mut lists = self.lock();
        self.remove_locked(cx, &mut lists, pfn, false)
    }

    /// Isolates a folio for a move within memory. A young folio is young again when it is put back.
    pub fn isolate(&self, cx: &Ctx, pfn: Pfn) -> bool {
        let mut lists = self.lock();
        self.remove_locked(cx, &mut lists, pfn, true)
    }

    pub(crate) fn remove_locked(
        &self,
        cx: &Ctx,
        lists: &mut Lists,
        pfn: Pfn,
        keep_age: bool,
    ) -> bool {
        if !cx.folios.clear(pfn, Word::LRU).has(Word::LRU) {
            return false;
        }
        let w = cx.folios.word(pfn);
        if w.has(Word::CULLED) {
            cx.folios.clear(pfn, Word::CULLED);
            lists.unevictable.remove(cx.folios, pfn);
            self.resize(4, -(w.pages() as i64));
        } else if w.slot().is_some() {
            r#gen::Gen.del(self, cx, lists, pfn, keep_age);
        } else {
            classic::Classic.del(self, cx, lists, pfn, keep_age);
        }
        true
    }

    /// Records an access through a file descriptor. Moves the folio at once if necessary.
    pub fn mark_accessed(&self, cx: &Ctx, pfn: Pfn) {
        if self.note_access_lazily(cx, pfn) {
            self.activate(cx, pfn);
        }
    }

    /// Records an access through a file descriptor. Returns true if the folio is to be activated.
    pub fn note_access_lazily(&self, cx: &Ctx, pfn: Pfn) -> bool {
        let w = cx.folios.word(pfn);
        if w.has(Word::DROPBEHIND.or(Word::UNEVICTABLE)) {
            return false;
        }
        self.policy().mark_accessed(self, cx, pfn)
    }

    /// Records accesses through page tables that a walk by the driver found.
    pub fn accessed(&self, cx: &Ctx, pfns: &[Pfn]) {
        match self.kind() {
            LruKind::Gen => r#gen::accessed(self, cx, pfns),
            LruKind::Classic => pfns.iter().for_each(|&pfn| self.mark_accessed(cx, pfn)),
        }
    }

    /// Moves a folio to the young generations or the active list.
    pub fn activate(&self, cx: &Ctx, pfn: Pfn) {
        let mut lists = self.lock();
        self.activate_locked(cx, &mut lists, pfn);
    }

    pub(crate) fn activate_locked(&self, cx: &Ctx, lists: &mut Lists, pfn: Pfn) {
        let w = cx.folios.word(pfn);
        if w.has(Word::ACTIVE.or(Word::UNEVICTABLE)) {
            return;
        }
        if self.remove_locked(cx, lists, pfn, false) {
            cx.folios.set(pfn, Word::ACTIVE);
            self.add_locked(cx, lists, pfn, Add::Normal);
            cx.stat.add(crate::observe::vmstat::Event::PgActivate, w.pages());
        }
    }

    /// Applies the advice that a folio will not be needed soon.
    pub fn deactivate(&self, cx: &Ctx, pfn: Pfn) {
        let mut lists = self.lock();
        let clear = Word::REFERENCED.or(Word::WORKINGSET);
        let (old, _) = cx.folios.update(pfn, |w| w.without_refs().without(clear));
        if let Some(slot) = old.slot() {
            let oldest = self.r#gen.min_seq(old.ty()) % 4;
            if slot as u64 == oldest {
                return;
            }
        }
        if self.remove_locked(cx, &mut lists, pfn, false) {
            cx.folios.clear(pfn, Word::ACTIVE);
            self.add_locked(cx, &mut lists, pfn, Add::Normal);
            cx.stat.add(crate::observe::vmstat::Event::PgDeactivate, old.pages());
        }
    }

    /// Applies the advice that a folio's content is not needed. The folio becomes a clean file
    /// folio.
    pub fn lazyfree(&self, cx: &Ctx, pfn: Pfn) {
        let mut lists = self.lock();
        if self.remove_locked(cx, &mut lists, pfn, false) {
            let clear = Word::ACTIVE.or(Word::SWAPBACKED).or(Word::WORKINGSET);
            let (old, _) = cx.folios.update(pfn, |w| w.without_refs().without(clear));
            self.add_locked(cx, &mut lists, pfn, Add::Normal);
            cx.stat.add(crate::observe::vmstat::Event::PgLazyFree, old.pages());
        }
    }

    /// Ends a writeback. A folio marked for reclaim goes to the old end.
    pub fn end_writeback(&self, cx: &Ctx, pfn: Pfn) {
        let old = cx.folios.clear(pfn, Word::WRITEBACK);
        if !old.has(Word::RECLAIM) {
            return;
        }
        cx.folios.clear(pfn, Word::RECLAIM);
        if old.has(Word::LOCKED.or(Word::DIRTY).or(Word::UNEVICTABLE)) {
            return;
        }
        let mut lists = self.lock();
        if self.remove_locked(cx, &mut lists, pfn, false) {
            cx.folios.clear(pfn, Word::ACTIVE);
            self.add_locked(cx, &mut lists, pfn, Add::Rotate);
            cx.stat.add(crate::observe::vmstat::Event::PgRotated, old.pages());
        }
    }

    /// Returns the shadow of a folio that is leaving memory.
    #[must_use]
    pub fn eviction_shadow(&self, cx: &Ctx, pfn: Pfn) -> Shadow {
        self.policy().eviction_shadow(self, cx, pfn)
    }

    /// Restores the full shadow of a folio that left this lruvec.
    #[must_use]
    pub fn recall(&self, cx: &Ctx, short: ShortShadow) -> Shadow {
        short.recall(self.policy().clock(self, cx, short.token()), (self.memcg.0, self.node))
    }

    /// Counts that a folio with word `w` left memory.
    pub fn note_evicted(&self, cx: &Ctx, w: Word) {
        self.policy().note_evicted(self, cx, w);
    }

    /// Handles a refault of a folio that left this lruvec. Returns true if it left recently.
    pub fn refault(&self, cx: &Ctx, pfn: Pfn, shadow: Shadow, in_fault: bool) -> bool {
        self.policy().refault((self, self), cx, pfn, shadow, in_fault)
    }

    /// Handles a refault of a folio that left `left`, which may be another node's lruvec of this
    /// memcg.
    pub fn refault_from(
        &self,
        left: &Self,
        cx: &Ctx,
        pfn: Pfn,
        shadow: Shadow,
        in_fault: bool,
    ) -> bool {
        self.policy().refault((self, left), cx, pfn, shadow, in_fault)
    }

    /// Marks a new folio that a page fault brought in, before it goes on the lists.
    pub fn note_fault(&self, cx: &Ctx, pfn: Pfn) {
        self.policy().note_fault(self, cx, pfn);
    }

    /// Reclaims at the priority in `sc`. Returns true if the memcg LRU should rotate this lruvec.
    pub fn shrink(&self, cx: &Ctx, sc: &mut Scan, out: &mut dyn Pageout) -> bool {
        self.policy().shrink(self, cx, sc, out)
    }

    /// Carries out the `+` command of `lru_gen`: opens a new generation, if `seq` is not beyond the
    /// youngest.
    ///
    /// # Errors
    /// The generation does not exist yet, or another task aged first.
    pub fn age(
        &self,
        cx: &Ctx,
        seq: u64,
        swappiness: u32,
        force: bool,
    ) -> Result<(), r#gen::RunError> {
        let mut sc = Scan::new(Reclaimer::Proactive, false, 0, swappiness);
        r#gen::run_aging(self, cx, &mut sc, seq, swappiness, force)
    }

    /// Carries out the `-` command of `lru_gen`: evicts generations up to `seq`, at most
    /// `sc.target` pages. The swappiness is that of `sc`. Returns the pages freed.
    ///
    /// # Errors
    /// The generation is one of the two youngest, or does not exist yet.
    pub fn evict_gens(
        &self,
        cx: &Ctx,
        sc: &mut Scan,
        out: &mut dyn Pageout,
        seq: u64,
    ) -> Result<u64, r#gen::RunError> {
        r#gen::run_eviction(self, cx, sc, out, seq)
    }

    /// Ends a reclaim run over this lruvec, at whatever priority.
    pub fn end_reclaim(&self) {
        self.classic.snapshot();
    }

    /// Checks every invariant that can be checked from the lists.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check_invariants(&self, cx: &Ctx) {
        let lists = self.lock();
        self.r#gen.check(self, cx, &lists);
        classic::check(self, cx, &lists);
    }
}
