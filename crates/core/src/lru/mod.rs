//! Which pages to keep: the multi-gen and the classic LRU behind one trait.
//!
//! Owns the lruvec (the reclaim state of one memcg on one node), its lists and its lru lock. The two
//! implementations are [`gen`](mod@self::gen) and [`classic`]; a lruvec uses one at a time and can be
//! switched at run time, in bounded slices ([`Lruvec::switch`]).
//!
//! Nothing here knows what a page's content is or where it is stored: eviction hands each folio to a
//! [`Pageout`], which takes it out of memory or says why not.
//!
//! Invariants
//! * LRU-1: a folio is on at most one list, and `LRU` is set exactly while it is on one.
//! * LRU-2: the size counters equal the sums over the lists at quiescence.
//! * LRU-3: only one of the two sets of lists is in use, except while [`Lruvec::switch`] is between
//!   two slices; then each folio is still on exactly one list.
//!
//! Lock order: memcg LRU < space areas < lru lock. The lru lock is a leaf: nothing is called back
//! under it, and no list operation waits.

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
    Aged, Evicted, Isolation, Met, Pageout, Protection, Scan, Shadow, ShortShadow, Told, Who, Yield,
};

use self::classic::ClassicState;
use self::r#gen::GenState;
use self::list::List;
use crate::folio::{Folios, LruType, MemcgId, SLOTS, Word};
use crate::observe::vmstat::VmStat;
use crate::space::Spaces;
use crate::tunables::{LruKind, Tunables};
use crate::types::Pfn;

/// Zones a node can have lists for.
pub const ZONES: usize = 4;

/// What every operation is handed: the tables it works on and the time.
#[derive(Clone, Copy, Debug)]
pub struct Ctx<'a> {
    /// Frame descriptors.
    pub folios: &'a Folios,
    /// Address spaces.
    pub spaces: &'a Spaces,
    /// Switches.
    pub tun: &'a Tunables,
    /// Counters.
    pub stat: &'a VmStat,
    /// Now, in milliseconds of the driver's clock.
    pub now_ms: u64,
}

/// Every list of a lruvec; under the lru lock.
#[derive(Debug, Default)]
pub struct Lists {
    /// By slot; the last two are the probation list's halves.
    pub(crate) r#gen: [[[List; ZONES]; 2]; SLOTS],
    /// Inactive anonymous, active anonymous, inactive file, active file.
    pub(crate) classic: [List; 4],
    pub(crate) unevictable: List,
}

/// One implementation of the lists.
pub trait Lru: Sync {
    /// Puts a folio on the list its state asks for.
    fn add(&self, v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, how: Add);
    /// Takes a folio off its list; `keep_age` leaves it marked young if it was.
    fn del(&self, v: &Lruvec, cx: &Ctx, lists: &mut Lists, pfn: Pfn, keep_age: bool);
    /// An access through a file descriptor. True if the folio should be moved by
    /// [`Lruvec::activate`] (which callers may batch).
    fn mark_accessed(&self, v: &Lruvec, cx: &Ctx, pfn: Pfn) -> bool;
    /// What to remember of a folio that is leaving memory.
    fn eviction_shadow(&self, v: &Lruvec, cx: &Ctx, pfn: Pfn) -> Shadow;
    /// What the clock that made `token` shows now, as it stands in a token.
    fn clock(&self, v: &Lruvec, cx: &Ctx, token: u64) -> u64;
    /// A folio whose word was `w` left memory.
    fn note_evicted(&self, v: &Lruvec, cx: &Ctx, w: Word);
    /// A folio came back; its flags take up what the shadow says. True if it was recent.
    fn refault(&self, v: Came, cx: &Ctx, pfn: Pfn, shadow: Shadow, in_fault: bool) -> bool;
    /// Reclaims at one priority. True if the memcg LRU should rotate this lruvec.
    fn shrink(&self, v: &Lruvec, cx: &Ctx, sc: &mut Scan, out: &mut dyn Pageout) -> bool;
    /// Whether the folios of a batch being put on the lists are told that they were faulted in.
    fn note_fault(&self, v: &Lruvec, cx: &Ctx, pfn: Pfn);
}

/// Where a folio that came back is now, and where it left.
pub(crate) type Came<'a> = (&'a Lruvec, &'a Lruvec);

/// How a folio is put on a list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Add {
    /// By its state.
    Normal,
    /// Its write-out ended: next to be reclaimed.
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
    /// Pages in memory that whoever took them ([`Evicted::Taken`]) has yet to put back or let go.
    taken: AtomicU64,
    /// Pages: inactive and active anonymous, inactive and active file, unevictable.
    sizes: [AtomicI64; 5],
    kind: AtomicU8,
    switching: AtomicBool,
    online: AtomicBool,
}

impl Lruvec {
    /// An empty one, on the first node.
    #[must_use]
    pub fn new(memcg: MemcgId, kind: LruKind, now_ms: u64) -> Self {
        Self::on_node(memcg, 0, kind, now_ms)
    }

    /// An empty one.
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

    /// Its memcg.
    #[must_use]
    pub fn memcg(&self) -> MemcgId {
        self.memcg
    }

    /// Its node.
    #[must_use]
    pub fn node(&self) -> u8 {
        self.node
    }

    /// Whether it is the one that a folio belongs to, by its memcg and its node.
    pub(crate) fn is_of(&self, cx: &Ctx, pfn: Pfn) -> bool {
        cx.folios.memcg(pfn) == self.memcg && cx.folios.node(pfn) == self.node
    }

    /// Whether it is the one that a folio left.
    pub(crate) fn is_left_by(&self, shadow: Shadow) -> bool {
        (shadow.memcg(), shadow.node()) == (self.memcg.0, self.node)
    }

    /// Whether its memcg still exists for its users.
    #[must_use]
    pub fn online(&self) -> bool {
        self.online.load(Relaxed)
    }

    /// Notes that the memcg was removed: what is left is reclaimed whole.
    pub fn set_offline(&self) {
        self.online.store(false, Relaxed);
    }

    /// The implementation in use.
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

    /// Takes the lru lock. A panic under it leaves lists that checks will report, so poison is
    /// ignored.
    pub fn lock(&self) -> MutexGuard<'_, Lists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn resize(&self, list: usize, pages: i64) {
        self.sizes[list].fetch_add(pages, Relaxed);
    }

    /// Pages on the inactive or active side of a type.
    #[must_use]
    pub fn size(&self, ty: LruType, active: bool) -> u64 {
        self.sizes[ty.index() * 2 + usize::from(active)].load(Relaxed).max(0) as u64
    }

    /// Pages of both types that lie in zones up to one.
    #[must_use]
    pub fn eligible(&self, zone: usize) -> u64 {
        match self.kind() {
            LruKind::Gen => self.r#gen.eligible(zone),
            LruKind::Classic => (0..4).map(|list| self.classic.eligible(list, zone)).sum(),
        }
    }

    /// Pages on the unevictable list.
    #[must_use]
    pub fn unevictable(&self) -> u64 {
        self.sizes[4].load(Relaxed).max(0) as u64
    }

    /// Pages of a type.
    #[must_use]
    pub fn total(&self, ty: LruType) -> u64 {
        self.size(ty, false) + self.size(ty, true)
    }

    /// So many pages are off the lists, in memory still: they count when a refault's distance is judged.
    pub fn set_taken(&self, pages: u64) {
        self.taken.store(pages, Relaxed);
    }

    /// Pages of both types that could be reclaimed, those taken off the lists for it included.
    #[must_use]
    pub fn memory(&self) -> u64 {
        LruType::ALL.iter().map(|&ty| self.total(ty)).sum::<u64>() + self.taken.load(Relaxed)
    }

    /// The generations.
    #[must_use]
    pub fn generations(&self) -> &GenState {
        &self.r#gen
    }

    /// Puts a folio on the lists.
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

    /// Takes a folio off its list because it is being freed or moved. False if it was on none.
    pub fn remove(&self, cx: &Ctx, pfn: Pfn) -> bool {
        let mut lists = self.lock();
        self.remove_locked(cx, &mut lists, pfn, false)
    }

    /// Takes a folio off for a move within memory: it will be as young when put back.
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

    /// An access through a file descriptor; the folio is moved at once if it has to be.
    pub fn mark_accessed(&self, cx: &Ctx, pfn: Pfn) {
        if self.mark_accessed_lazily(cx, pfn) {
            self.activate(cx, pfn);
        }
    }

    /// An access through a file descriptor. True if the folio is to be activated.
    pub fn mark_accessed_lazily(&self, cx: &Ctx, pfn: Pfn) -> bool {
        let w = cx.folios.word(pfn);
        if w.has(Word::DROPBEHIND.or(Word::UNEVICTABLE)) {
            return false;
        }
        self.policy().mark_accessed(self, cx, pfn)
    }

    /// Accesses through page tables, found by a walk that was made elsewhere.
    pub fn accessed(&self, cx: &Ctx, pfns: &[Pfn]) {
        match self.kind() {
            LruKind::Gen => r#gen::accessed(self, cx, pfns),
            LruKind::Classic => pfns.iter().for_each(|&pfn| self.mark_accessed(cx, pfn)),
        }
    }

    /// Moves a folio among the young.
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

    /// Advice that a folio will not be needed soon.
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

    /// Advice that a folio's content is not needed: it becomes a clean file folio.
    pub fn lazyfree(&self, cx: &Ctx, pfn: Pfn) {
        let mut lists = self.lock();
        if self.remove_locked(cx, &mut lists, pfn, false) {
            let clear = Word::ACTIVE.or(Word::SWAPBACKED).or(Word::WORKINGSET);
            let (old, _) = cx.folios.update(pfn, |w| w.without_refs().without(clear));
            self.add_locked(cx, &mut lists, pfn, Add::Normal);
            cx.stat.add(crate::observe::vmstat::Event::PgLazyFree, old.pages());
        }
    }

    /// A write-out ended. A folio meant for reclaim goes to the old end.
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

    /// What to remember of a folio that is leaving memory.
    #[must_use]
    pub fn eviction_shadow(&self, cx: &Ctx, pfn: Pfn) -> Shadow {
        self.policy().eviction_shadow(self, cx, pfn)
    }

    /// The shadow that was cut short.
    #[must_use]
    pub fn recall(&self, cx: &Ctx, short: ShortShadow) -> Shadow {
        short.recall(self.policy().clock(self, cx, short.token()), (self.memcg.0, self.node))
    }

    /// A folio whose word was `w` left memory.
    pub fn note_evicted(&self, cx: &Ctx, w: Word) {
        self.policy().note_evicted(self, cx, w);
    }

    /// A folio came back from outside memory. True if it had left recently.
    pub fn refault(&self, cx: &Ctx, pfn: Pfn, shadow: Shadow, in_fault: bool) -> bool {
        self.policy().refault((self, self), cx, pfn, shadow, in_fault)
    }

    /// The same, of one that may have left another node of its memcg: `left`.
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

    /// Tells a new folio that a page fault brought it, before it goes on the lists.
    pub fn note_fault(&self, cx: &Ctx, pfn: Pfn) {
        self.policy().note_fault(self, cx, pfn);
    }

    /// Reclaims at the priority in `sc`. True if the memcg LRU should rotate this lruvec.
    pub fn shrink(&self, cx: &Ctx, sc: &mut Scan, out: &mut dyn Pageout) -> bool {
        self.policy().shrink(self, cx, sc, out)
    }

    /// The `+` command of `lru_gen`: opens a new generation, if `seq` is not beyond the youngest.
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
        let mut sc = Scan::new(Who::Proactive, false, 0, swappiness);
        r#gen::run_aging(self, cx, &mut sc, seq, swappiness, force)
    }

    /// The `-` command of `lru_gen`: evicts generations up to `seq`, at most `sc.target` pages, at
    /// the swappiness in `sc`. Returns pages freed.
    ///
    /// # Errors
    /// The generation is one of the two youngest.
    pub fn evict_gens(
        &self,
        cx: &Ctx,
        sc: &mut Scan,
        out: &mut dyn Pageout,
        seq: u64,
    ) -> Result<u64, r#gen::RunError> {
        r#gen::run_eviction(self, cx, sc, out, seq)
    }

    /// A reclaim run over this lruvec ended, at whatever priority.
    pub fn end_reclaim(&self) {
        self.classic.snapshot();
    }

    /// Checks every invariant that can be checked from the lists.
    ///
    /// # Panics
    /// If one does not hold.
    pub fn check_invariants(&self, cx: &Ctx) {
        let lists = self.lock();
        self.r#gen.check(self, cx, &lists);
        classic::check(self, cx, &lists);
    }
}
