//! The frame descriptor table: one 32-byte record for every page frame.
//!
//! Owns what the memory manager remembers about a resident folio. One atomic word holds the flags,
//! generation, access count, order, zone and a time stamp. Further fields are two intrusive list
//! links, the memcg, the pins and a store slot. The owner is the address space and virtual page
//! that map the folio first.
//!
//! A folio is `1 << order` frames; only the record of its first frame is used.
//!
//! Invariants
//! * FOLIO-1: the generation field is non-zero exactly while the folio is on a multi-gen list.
//! * FOLIO-2: `ACTIVE` is never set on a folio on a multi-gen list.
//! * FOLIO-3: a thread reads and writes links only under the lru lock of the folio's lruvec. The
//!   only owner of an isolated folio needs no lock. Links are atomics only because the crate has no
//!   unsafe code.
//! * FOLIO-4: the word of a visible folio changes only by compare-exchange, or by atomic setting or
//!   clearing of flags. A page-table walk may promote the folio while eviction holds the lru lock.

use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::types::{MmId, Pfn, Vpn};

/// Most generations that a type can have at once.
pub const MAX_NR_GENS: u64 = 4;
/// Fewest generations that a type has at any time.
pub const MIN_NR_GENS: u64 = 2;
/// Number of access tiers within a generation.
pub const MAX_NR_TIERS: usize = 4;
/// Slot of the first half of the probation list, which is no generation.
pub const FRESH: usize = 4;
/// Slot of the second half of the probation list, in which accesses begin to count.
pub const TRIED: usize = 5;
/// Number of list slots: the generations and the two halves of probation.
pub const SLOTS: usize = 6;
/// Link value that marks the end of a list.
pub const NO_FRAME: u32 = u32::MAX;

const GEN_SHIFT: u32 = 0;
const GEN_MASK: u64 = 7 << GEN_SHIFT;
const REFS_SHIFT: u32 = 3;
const REFS_MASK: u64 = 3 << REFS_SHIFT;
const ORDER_SHIFT: u32 = 24;
const ZONE_SHIFT: u32 = 28;
const LIST_SLOT_SHIFT: u32 = 32;
const STAMP_SHIFT: u32 = 38;
/// Number of bits in the stamp of a word.
pub const STAMP_BITS: u32 = 64 - STAMP_SHIFT;

/// The two kinds of memory that reclaim treats separately.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum LruType {
    /// Anonymous memory, backed by swap.
    Anon = 0,
    /// Memory backed by a file (and lazily freed anonymous memory).
    File = 1,
}

impl LruType {
    /// Both types, in index order.
    pub const ALL: [Self; 2] = [Self::Anon, Self::File];

    /// Returns the index that every `[_; 2]` table uses for this type.
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Returns the other type.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Anon => Self::File,
            Self::File => Self::Anon,
        }
    }
}

/// The number of a memory control group.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct MemcgId(pub u16);

/// The value of a folio's atomic word.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Word(pub u64);

impl Word {
    /// Accessed once since the flag was last cleared.
    pub const REFERENCED: Self = Self(1 << 5);
    /// Part of the working set: its accesses have shown that.
    pub const WORKINGSET: Self = Self(1 << 6);
    /// Joins the young generations when it is next put on a list. Classic LRU: belongs on the
    /// active list.
    pub const ACTIVE: Self = Self(1 << 7);
    /// To be freed as soon as its writeback ends.
    pub const RECLAIM: Self = Self(1 << 8);
    /// Dirty: newer than its stored copy.
    pub const DIRTY: Self = Self(1 << 9);
    /// Under writeback.
    pub const WRITEBACK: Self = Self(1 << 10);
    /// Anonymous type: backed by swap.
    pub const SWAPBACKED: Self = Self(1 << 11);
    /// Holds a swap slot.
    pub const SWAPCACHE: Self = Self(1 << 12);
    /// Must not be reclaimed.
    pub const UNEVICTABLE: Self = Self(1 << 13);
    /// On a list, neither isolated nor in an add batch.
    pub const LRU: Self = Self(1 << 14);
    /// Locked by a task that works on it.
    pub const LOCKED: Self = Self(1 << 15);
    /// Locked in memory by its owner (mlock).
    pub const MLOCKED: Self = Self(1 << 16);
    /// To be dropped after use, so accesses do not count.
    pub const DROPBEHIND: Self = Self(1 << 17);
    /// Mapped by more than one page-table entry. The reverse map's side table has the others.
    pub const SHARED: Self = Self(1 << 18);
    /// Mapped in at least one page table.
    pub const MAPPED: Self = Self(1 << 19);
    /// Program text: an executable mapping of a file.
    pub const EXEC: Self = Self(1 << 20);
    /// Brought in by readahead, before any access.
    pub const PREFETCHED: Self = Self(1 << 21);
    /// Refaulted soon enough to skip probation.
    pub const RETURNED: Self = Self(1 << 22);

    /// Not the first frame of its folio.
    pub const TAIL: Self = Self(1 << 23);

    /// Readahead mark: a read of this page starts readahead of the next pages of its file.
    pub const AHEAD: Self = Self(1 << 35);
    /// Has been on a list before, so it is put back rather than added.
    pub const SEEN: Self = Self(1 << 37);
    /// On the unevictable list.
    pub const CULLED: Self = Self(1 << 36);

    const REFS_FLAGS: Self = Self(REFS_MASK | Self::REFERENCED.0);

    /// Returns the word of a new folio that is on no list.
    #[must_use]
    pub const fn new(ty: LruType, order: u8, zone: u8) -> Self {
        let swap = match ty {
            LruType::Anon => Self::SWAPBACKED.0,
            LruType::File => 0,
        };
        Self(swap | ((order as u64) << ORDER_SHIFT) | ((zone as u64) << ZONE_SHIFT))
    }

    /// Whether any flag of `f` is set.
    #[must_use]
    pub const fn has(self, f: Self) -> bool {
        self.0 & f.0 != 0
    }

    /// Returns the word with the flags of `f` set.
    #[must_use]
    pub const fn with(self, f: Self) -> Self {
        Self(self.0 | f.0)
    }

    /// Returns the word with the flags of `f` cleared.
    #[must_use]
    pub const fn without(self, f: Self) -> Self {
        Self(self.0 & !f.0)
    }

    /// Returns the union of two sets of flags.
    #[must_use]
    pub const fn or(self, f: Self) -> Self {
        self.with(f)
    }

    /// Returns the generation's slot (sequence number modulo four, or a half of probation). None if
    /// the folio is on no multi-gen list.
    #[must_use]
    pub const fn slot(self) -> Option<usize> {
        match self.0 & GEN_MASK {
            0 => None,
            g => Some(g as usize - 1),
        }
    }

    /// Returns the word with the slot set, or cleared for None.
    #[must_use]
    pub const fn with_slot(self, slot: Option<usize>) -> Self {
        let g = match slot {
            None => 0,
            Some(s) => s as u64 + 1,
        };
        Self((self.0 & !GEN_MASK) | g)
    }

    /// Returns the slot of the list that the folio is linked on. A promotion by a walk changes
    /// [`slot`](Self::slot) but not this.
    #[must_use]
    pub const fn list_slot(self) -> usize {
        ((self.0 >> LIST_SLOT_SHIFT) & 7) as usize
    }

    /// Returns the word with generation slot and list slot both set to `slot`.
    #[must_use]
    pub const fn at_list_slot(self, slot: usize) -> Self {
        let w = self.with_slot(Some(slot));
        Self((w.0 & !(7 << LIST_SLOT_SHIFT)) | ((slot as u64 & 7) << LIST_SLOT_SHIFT))
    }

    /// Whether the folio is linked on a probation list.
    #[must_use]
    pub const fn on_probation(self) -> bool {
        self.list_slot() >= FRESH
    }

    /// Returns the time at which the folio was last added to the lists or joined the young
    /// generations. A folio that is put back on probation keeps its stamp. The clock is the
    /// lruvec's, truncated to [`STAMP_BITS`] bits.
    #[must_use]
    pub const fn stamp(self) -> u64 {
        self.0 >> STAMP_SHIFT
    }

    /// Returns the word with the stamp set to the low bits of `at`.
    #[must_use]
    pub const fn stamped(self, at: u64) -> Self {
        Self((self.0 & ((1 << STAMP_SHIFT) - 1)) | (at << STAMP_SHIFT))
    }

    /// Returns the raw access count field (0..=3), which has a meaning only together with
    /// `REFERENCED`.
    #[must_use]
    pub const fn refs_field(self) -> u64 {
        (self.0 & REFS_MASK) >> REFS_SHIFT
    }

    /// Returns the word with the raw access count field set to `n`.
    #[must_use]
    pub const fn with_refs_field(self, n: u64) -> Self {
        Self((self.0 & !REFS_MASK) | ((n & 3) << REFS_SHIFT))
    }

    /// Returns the access count, 0..=4: accesses through file descriptors. With `gen.history`, for
    /// a mapped folio: rounds in which page tables showed an access.
    #[must_use]
    pub const fn refs(self) -> u64 {
        if self.has(Self::REFERENCED) { self.refs_field() + 1 } else { 0 }
    }

    /// Returns the access tier.
    #[must_use]
    pub const fn tier(self) -> usize {
        tier_of(self.refs(), self.has(Self::WORKINGSET))
    }

    /// Whether the access count is full and one more access came. Eviction promotes such a folio
    /// whatever the tiers say.
    #[must_use]
    pub const fn lazily_promoted(self) -> bool {
        self.refs() + self.has(Self::WORKINGSET) as u64 == 5
    }

    /// Returns the word with `n` recorded accesses (0..=4).
    #[must_use]
    pub const fn with_refs(self, n: u64) -> Self {
        match n {
            0 => self.without_refs(),
            n => self.with(Self::REFERENCED).with_refs_field(n - 1),
        }
    }

    /// Returns the word without any recorded access (`WORKINGSET` stays).
    #[must_use]
    pub const fn without_refs(self) -> Self {
        self.without(Self::REFS_FLAGS)
    }

    /// Returns log2 of the number of frames in the folio.
    #[must_use]
    pub const fn order(self) -> u8 {
        ((self.0 >> ORDER_SHIFT) & 0xf) as u8
    }

    /// Returns the number of base pages in the folio.
    #[must_use]
    pub const fn pages(self) -> u64 {
        1 << self.order()
    }

    /// Returns the zone of the folio's frames.
    #[must_use]
    pub const fn zone(self) -> usize {
        ((self.0 >> ZONE_SHIFT) & 0xf) as usize
    }

    /// Returns the type that reclaim counts the folio as.
    #[must_use]
    pub const fn ty(self) -> LruType {
        if self.has(Self::SWAPBACKED) { LruType::Anon } else { LruType::File }
    }
}

/// Returns the tier of a folio with `refs` recorded accesses.
#[must_use]
pub const fn tier_of(refs: u64, workingset: bool) -> usize {
    if workingset {
        return 3;
    }
    match refs {
        0 | 1 => 0,
        2 => 1,
        _ => 2,
    }
}

impl std::fmt::Debug for Word {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Word({:#x} slot={:?} refs={})", self.0, self.slot(), self.refs())
    }
}

/// The record of one frame.
#[derive(Debug)]
pub struct Folio {
    word: AtomicU64,
    /// Address space in the high 24 bits, virtual page number in the low 40.
    owner: AtomicU64,
    pub(crate) prev: AtomicU32,
    pub(crate) next: AtomicU32,
    store_slot: AtomicU32,
    pins: AtomicU16,
    memcg: AtomicU16,
}

const _: () = assert!(size_of::<Folio>() == 32);
const VPN_BITS: u32 = 40;
/// The first page number that does not fit a folio's record.
pub const VPN_END: u64 = 1 << VPN_BITS;
/// The first address-space number that does not fit a folio's record.
pub const MM_END: u32 = 1 << (64 - VPN_BITS);

impl Folio {
    const fn unused() -> Self {
        Self {
            word: AtomicU64::new(0),
            owner: AtomicU64::new(0),
            prev: AtomicU32::new(NO_FRAME),
            next: AtomicU32::new(NO_FRAME),
            store_slot: AtomicU32::new(NO_FRAME),
            pins: AtomicU16::new(0),
            memcg: AtomicU16::new(0),
        }
    }
}

/// The table of all frame descriptors.
#[derive(Debug)]
pub struct Folios {
    table: Vec<Folio>,
    /// For each frame, a frame that joined its list some positions later. Only a hint for
    /// prefetching. Kept apart so that a record stays half a cache line. Empty if the table has no
    /// hints.
    ahead: Vec<AtomicU32>,
    hints: bool,
    /// First frame number after each node, for all nodes but the last.
    node_ends: Vec<u32>,
}

impl Folios {
    /// Creates a table for `frames` frames, none in use.
    #[must_use]
    pub fn new(frames: u32) -> Self {
        let mut folios = Self { hints: true, ..Self::with_capacity(0) };
        folios.grow(frames);
        folios
    }

    /// Creates an empty table with room for `frames` frames. The table does not move until it grows
    /// beyond that. It has no prefetch hints, which would take 4 bytes a frame.
    #[must_use]
    pub fn with_capacity(frames: usize) -> Self {
        Self {
            table: Vec::with_capacity(frames),
            ahead: Vec::new(),
            hints: false,
            node_ends: Vec::new(),
        }
    }

    /// Grows the table to at least `frames` records.
    pub fn grow(&mut self, frames: u32) {
        if frames as usize > self.table.len() {
            self.table.resize_with(frames as usize, Folio::unused);
            if self.hints {
                self.ahead.resize_with(frames as usize, || AtomicU32::new(NO_FRAME));
            }
        }
    }

    /// Sets where the frames of each node but the last end, in ascending order. Without this call
    /// there is one node.
    #[must_use]
    pub fn with_node_ends(mut self, ends: Vec<u32>) -> Self {
        debug_assert!(ends.is_sorted(), "nodes follow each other: {ends:?}");
        self.node_ends = ends;
        self
    }

    /// Returns the node of a frame.
    #[inline]
    #[must_use]
    pub fn node(&self, pfn: Pfn) -> u8 {
        self.node_ends.iter().filter(|&&end| end <= pfn.0).count() as u8
    }

    /// Returns the number of frames in the table.
    #[must_use]
    pub fn frames(&self) -> u32 {
        self.table.len() as u32
    }

    #[inline]
    pub(crate) fn at(&self, pfn: u32) -> &Folio {
        &self.table[pfn as usize]
    }

    /// Returns a folio that a walk of the list of `pfn` may meet soon. That folio may have left the
    /// list meanwhile.
    #[inline]
    pub(crate) fn ahead(&self, pfn: Pfn) -> Option<Pfn> {
        let hint = self.ahead.get(pfn.0 as usize)?.load(Relaxed);
        (hint != NO_FRAME).then_some(Pfn(hint))
    }

    /// Sets the prefetch hint of `pfn` to `ahead`.
    #[inline]
    pub(crate) fn set_ahead(&self, pfn: u32, ahead: u32) {
        if let Some(hint) = self.ahead.get(pfn as usize) {
            hint.store(ahead, Relaxed);
        }
    }

    /// Returns the folio's word. The load is Relaxed because the word orders no other access.
    #[inline]
    #[must_use]
    pub fn word(&self, pfn: Pfn) -> Word {
        Word(self.at(pfn.0).word.load(Relaxed))
    }

    /// Makes `pfn` a folio of `memcg` owned by `(mm, vpn)` with one pin.
    pub fn init(&self, pfn: Pfn, word: Word, memcg: MemcgId, mm: MmId, vpn: Vpn) {
        let f = self.at(pfn.0);
        f.word.store(word.0, Relaxed);
        self.set_owner(pfn, mm, vpn);
        f.store_slot.store(NO_FRAME, Relaxed);
        f.pins.store(1, Relaxed);
        f.memcg.store(memcg.0, Relaxed);
        debug_assert!(u64::from(pfn.0) % word.pages() == 0, "folios are naturally aligned");
        for i in 1..word.pages() as u32 {
            let tail = Word::new(word.ty(), word.order(), word.zone() as u8).with(Word::TAIL);
            self.at(pfn.0 + i).word.store(tail.0, Relaxed);
        }
    }

    /// Returns the first frame of the folio that contains `pfn`.
    #[inline]
    #[must_use]
    pub fn head(&self, pfn: Pfn) -> Pfn {
        let w = self.word(pfn);
        if w.has(Word::TAIL) { Pfn(pfn.0 & !((1 << w.order()) - 1)) } else { pfn }
    }

    /// Sets the word of a folio that no other thread can see.
    pub fn store(&self, pfn: Pfn, word: Word) {
        self.at(pfn.0).word.store(word.0, Relaxed);
    }

    /// Changes the word atomically. `f` may run more than once. Returns the word before and after.
    #[inline]
    pub fn update(&self, pfn: Pfn, f: impl Fn(Word) -> Word) -> (Word, Word) {
        let cell = &self.at(pfn.0).word;
        let mut old = cell.load(Relaxed);
        loop {
            let new = f(Word(old)).0;
            if new == old {
                return (Word(old), Word(old));
            }
            match cell.compare_exchange_weak(old, new, Relaxed, Relaxed) {
                Ok(_) => return (Word(old), Word(new)),
                Err(now) => old = now,
            }
        }
    }

    /// Makes one compare-exchange of the word. The error is the word found if it was not `old`.
    #[inline]
    pub(crate) fn exchange(&self, pfn: Pfn, old: Word, new: Word) -> Result<(), Word> {
        self.at(pfn.0)
            .word
            .compare_exchange(old.0, new.0, Relaxed, Relaxed)
            .map(|_| ())
            .map_err(Word)
    }

    /// Sets flags. Returns the word before.
    pub fn set(&self, pfn: Pfn, f: Word) -> Word {
        Word(self.at(pfn.0).word.fetch_or(f.0, Relaxed))
    }

    /// Clears flags. Returns the word before.
    pub fn clear(&self, pfn: Pfn, f: Word) -> Word {
        Word(self.at(pfn.0).word.fetch_and(!f.0, Relaxed))
    }

    /// Returns the address space and page that map the folio first.
    #[must_use]
    pub fn owner(&self, pfn: Pfn) -> (MmId, Vpn) {
        let o = self.at(pfn.0).owner.load(Relaxed);
        (MmId((o >> VPN_BITS) as u32), Vpn(o & ((1 << VPN_BITS) - 1)))
    }

    /// Sets the address space and page that map the folio first.
    ///
    /// # Panics
    /// If `mm` is at or beyond [`MM_END`] or `vpn` at or beyond [`VPN_END`].
    pub fn set_owner(&self, pfn: Pfn, mm: MmId, vpn: Vpn) {
        assert!(vpn.0 < VPN_END && mm.0 < MM_END, "{mm:?} {vpn:?} does not fit a folio");
        self.at(pfn.0).owner.store((u64::from(mm.0) << VPN_BITS) | vpn.0, Relaxed);
    }

    /// Returns the memcg that the folio is charged to.
    #[must_use]
    pub fn memcg(&self, pfn: Pfn) -> MemcgId {
        MemcgId(self.at(pfn.0).memcg.load(Relaxed))
    }

    /// Returns the number of pins on the folio.
    #[must_use]
    pub fn pins(&self, pfn: Pfn) -> u16 {
        self.at(pfn.0).pins.load(Relaxed)
    }

    /// Takes a pin unless the folio is being freed.
    pub fn try_pin(&self, pfn: Pfn) -> bool {
        self.at(pfn.0)
            .pins
            .fetch_update(Relaxed, Relaxed, |p| if p == 0 { None } else { p.checked_add(1) })
            .is_ok()
    }

    /// Drops a pin. Returns true if it was the last.
    pub fn unpin(&self, pfn: Pfn) -> bool {
        let before = self.at(pfn.0).pins.fetch_sub(1, Relaxed);
        debug_assert!(before > 0);
        before == 1
    }

    /// Returns the folio's slot number in the store, if one was set.
    #[must_use]
    pub fn store_slot(&self, pfn: Pfn) -> Option<u32> {
        match self.at(pfn.0).store_slot.load(Relaxed) {
            NO_FRAME => None,
            s => Some(s),
        }
    }

    /// Sets or clears the folio's slot number in the store.
    pub fn set_store_slot(&self, pfn: Pfn, slot: Option<u32>) {
        self.at(pfn.0).store_slot.store(slot.unwrap_or(NO_FRAME), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_belongs_to_the_node_that_ends_after_it() {
        let folios = Folios::new(64).with_node_ends(vec![16, 48]);
        let nodes = [0, 15, 16, 47, 48, 63].map(|pfn| folios.node(Pfn(pfn)));
        assert_eq!(nodes, [0, 0, 1, 1, 2, 2]);
        assert_eq!(Folios::new(64).node(Pfn(63)), 0, "one node unless said");
    }

    #[test]
    fn tiers_follow_the_table() {
        let tiers: Vec<usize> = (0..=4).map(|r| tier_of(r, false)).collect();
        assert_eq!(tiers, [0, 0, 1, 2, 2]);
        assert!((0..=4).all(|r| tier_of(r, true) == 3));
    }

    #[test]
    fn a_word_keeps_its_fields_apart() {
        let w = Word::new(LruType::Anon, 9, 3).with_slot(Some(3)).with_refs_field(2);
        assert_eq!((w.order(), w.zone(), w.slot(), w.refs_field()), (9, 3, Some(3), 2));
        assert_eq!(w.refs(), 0, "the field counts only behind REFERENCED");
        assert_eq!(w.with(Word::REFERENCED).refs(), 3);
        assert_eq!(w.with_slot(None).slot(), None);
        assert_eq!(w.pages(), 512);
    }

    #[test]
    fn five_accesses_promote_lazily() {
        let full = Word::new(LruType::File, 0, 0).with(Word::REFERENCED).with_refs_field(3);
        assert!(!full.lazily_promoted());
        assert!(full.with(Word::WORKINGSET).lazily_promoted());
        assert!(!full.with(Word::WORKINGSET).without_refs().lazily_promoted());
    }

    #[test]
    fn a_freed_folio_cannot_be_pinned() {
        let t = Folios::new(1);
        assert!(!t.try_pin(Pfn(0)));
        t.init(Pfn(0), Word::default(), MemcgId(1), MmId(2), Vpn(77));
        assert!(t.try_pin(Pfn(0)));
        assert!(!t.unpin(Pfn(0)));
        assert!(t.unpin(Pfn(0)));
        assert_eq!(t.owner(Pfn(0)), (MmId(2), Vpn(77)));
    }
}
