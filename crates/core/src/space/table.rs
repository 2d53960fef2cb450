//! Page tables: 8-byte atomic entries in tables of 512, with an accessed bit for each table.
//!
//! Owns the entry encoding and the radix tree above it. Tables are created at first use and live as
//! long as their address space, so readers take no lock. An exclusive owner of the tree may free
//! empty ones ([`Tree::prune`]).
//!
//! Invariants
//! * PTE-1: an entry is present (bit 0, a frame number), or empty (zero), or remembers something
//!   about the page that was here. That is the shadow of the page's folio, shifted left by one.
//! * PTE-2: a thread that sets an entry's accessed bit also makes sure that the table's own bit is
//!   set. So a clear table bit means that no entry was accessed since the bit was cleared.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::types::{Pfn, Vpn};

/// Number of entries in a table.
pub const TABLE_ENTRIES: usize = 512;
const FANOUT_BITS: u32 = 9;

/// The value of a page table entry.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Pte(pub u64);

impl Pte {
    /// A frame holds the page.
    pub const PRESENT: u64 = 1;
    /// The program reaches the page without a fault (a page cache page may be present but not
    /// mapped).
    pub const MAPPED: u64 = 1 << 1;
    /// Accessed since the bit was last cleared.
    pub const ACCESSED: u64 = 1 << 5;
    /// Written since the bit was last cleared.
    pub const DIRTY: u64 = 1 << 6;
    const PFN_SHIFT: u32 = 12;

    /// Returns a present entry with `bits`.
    #[must_use]
    pub const fn of_frame(pfn: Pfn, bits: u64) -> Self {
        Self(((pfn.0 as u64) << Self::PFN_SHIFT) | Self::PRESENT | bits)
    }

    /// Returns an entry that is not present and remembers `shadow` (63 bits).
    #[must_use]
    pub const fn of_shadow(shadow: u64) -> Self {
        Self(shadow << 1)
    }

    /// Returns whether a frame holds the page.
    #[must_use]
    pub const fn present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }

    /// Returns whether all of `bits` are set.
    #[must_use]
    pub const fn all(self, bits: u64) -> bool {
        self.0 & bits == bits
    }

    /// Returns the frame of a present entry.
    #[must_use]
    pub const fn pfn(self) -> Pfn {
        Pfn((self.0 >> Self::PFN_SHIFT) as u32)
    }

    /// Returns the shadow left by the folio that was here.
    #[must_use]
    pub const fn shadow(self) -> Option<u64> {
        if self.present() || self.0 == 0 { None } else { Some(self.0 >> 1) }
    }
}

/// A page table of 512 entries.
#[derive(Debug)]
pub struct Table {
    entries: [AtomicU64; TABLE_ENTRIES],
}

impl Table {
    fn new() -> Box<Self> {
        Box::new(Self { entries: [const { AtomicU64::new(0) }; TABLE_ENTRIES] })
    }

    /// Reads an entry.
    #[inline]
    #[must_use]
    pub fn get(&self, i: usize) -> Pte {
        Pte(self.entries[i & (TABLE_ENTRIES - 1)].load(Relaxed))
    }

    /// Writes an entry.
    #[inline]
    pub fn set(&self, i: usize, pte: Pte) {
        self.entries[i & (TABLE_ENTRIES - 1)].store(pte.0, Relaxed);
    }

    /// Replaces an entry; returns the old one.
    pub fn swap(&self, i: usize, pte: Pte) -> Pte {
        Pte(self.entries[i & (TABLE_ENTRIES - 1)].swap(pte.0, Relaxed))
    }

    /// Sets bits; returns the old entry.
    #[inline]
    pub fn or(&self, i: usize, bits: u64) -> Pte {
        Pte(self.entries[i & (TABLE_ENTRIES - 1)].fetch_or(bits, Relaxed))
    }

    /// Clears bits; returns the old entry.
    #[inline]
    pub fn clear(&self, i: usize, bits: u64) -> Pte {
        Pte(self.entries[i & (TABLE_ENTRIES - 1)].fetch_and(!bits, Relaxed))
    }
}

/// 512 tables and their accessed bits: 1 GiB of addresses.
#[derive(Debug)]
pub struct Directory {
    tables: [OnceLock<Box<Table>>; TABLE_ENTRIES],
    accessed: [AtomicU64; TABLE_ENTRIES / 64],
}

impl Directory {
    fn new() -> Box<Self> {
        Box::new(Self {
            tables: [const { OnceLock::new() }; TABLE_ENTRIES],
            accessed: [const { AtomicU64::new(0) }; TABLE_ENTRIES / 64],
        })
    }

    /// Returns table `i`, if it was ever used.
    #[inline]
    #[must_use]
    pub fn table(&self, i: usize) -> Option<&Table> {
        self.tables[i & (TABLE_ENTRIES - 1)].get().map(|t| &**t)
    }

    fn table_or_new(&self, i: usize) -> &Table {
        self.tables[i & (TABLE_ENTRIES - 1)].get_or_init(Table::new)
    }

    /// Returns whether table `i` was accessed.
    #[inline]
    #[must_use]
    pub fn touched(&self, i: usize) -> bool {
        self.accessed[(i / 64) & 7].load(Relaxed) & (1 << (i % 64)) != 0
    }

    /// Marks table `i` accessed.
    #[inline]
    pub fn touch(&self, i: usize) {
        self.accessed[(i / 64) & 7].fetch_or(1 << (i % 64), Relaxed);
    }

    /// Clears the accessed bit of table `i`.
    pub fn untouch(&self, i: usize) {
        self.accessed[(i / 64) & 7].fetch_and(!(1 << (i % 64)), Relaxed);
    }
}

#[derive(Debug)]
struct Upper {
    below: [OnceLock<Box<Directory>>; TABLE_ENTRIES],
}

/// The tree of page tables: 45 bits of page number are more than any machine has.
#[derive(Debug)]
pub struct Tree {
    top: Box<[OnceLock<Box<Upper>>; TABLE_ENTRIES]>,
}

/// Reference to an entry: its directory, its table and its index in the table.
#[derive(Clone, Copy, Debug)]
pub struct PteRef<'a> {
    /// The directory.
    pub directory: &'a Directory,
    /// The table's index in the directory.
    pub table_index: usize,
    /// The table.
    pub table: &'a Table,
    /// The entry's index in the table.
    pub index: usize,
}

impl PteRef<'_> {
    /// Reads the entry.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Pte {
        self.table.get(self.index)
    }

    /// Sets bits of the entry and the table's own accessed bit, writing only if a bit is not set
    /// yet.
    #[inline]
    pub fn touch(&self, seen: Pte, bits: u64) {
        if !seen.all(bits) {
            self.table.or(self.index, bits);
        }
        if !self.directory.touched(self.table_index) {
            self.directory.touch(self.table_index);
        }
    }
}

impl Tree {
    /// Creates an empty tree.
    #[must_use]
    pub fn new() -> Self {
        Self { top: Box::new([const { OnceLock::new() }; TABLE_ENTRIES]) }
    }

    fn split(vpn: Vpn) -> (usize, usize, usize, usize) {
        let part = |level: u32| ((vpn.0 >> (FANOUT_BITS * level)) & 0x1ff) as usize;
        (part(3), part(2), part(1), part(0))
    }

    /// Returns the directory of a 1 GiB unit, if it was ever used.
    #[must_use]
    pub fn directory(&self, gib: u64) -> Option<&Directory> {
        let upper = self.top[(gib >> FANOUT_BITS) as usize & 0x1ff].get()?;
        upper.below[gib as usize & 0x1ff].get().map(|d| &**d)
    }

    /// Returns the entry of `vpn`, if its table was ever used.
    #[inline]
    #[must_use]
    pub fn find(&self, vpn: Vpn) -> Option<PteRef<'_>> {
        let (a, b, table_index, index) = Self::split(vpn);
        let directory = self.top[a].get()?.below[b].get()?;
        let table = directory.table(table_index)?;
        Some(PteRef { directory, table_index, table, index })
    }

    /// Returns the entry of `vpn`. Creates its table if need be.
    pub fn place(&self, vpn: Vpn) -> PteRef<'_> {
        let (a, b, table_index, index) = Self::split(vpn);
        let upper = self.top[a]
            .get_or_init(|| Box::new(Upper { below: [const { OnceLock::new() }; TABLE_ENTRIES] }));
        let directory = upper.below[b].get_or_init(Directory::new);
        let table = directory.table_or_new(table_index);
        PteRef { directory, table_index, table, index }
    }
}

impl Tree {
    /// Returns the tables that were ever used, from the one of `from` on, in address order, each
    /// with its first page.
    pub fn tables(&self, from: Vpn) -> impl Iterator<Item = (Vpn, &Table)> {
        const LOW: u64 = TABLE_ENTRIES as u64 - 1;
        let first = from.0 >> FANOUT_BITS;
        let (top, upper, directory) =
            (first >> (2 * FANOUT_BITS), (first >> FANOUT_BITS) & LOW, first & LOW);
        // First index to visit at a level. It is `at` inside the unit where `from` lies, and 0
        // elsewhere.
        let begin = move |is_first: bool, at: u64| if is_first { at as usize } else { 0 };
        (top as usize..TABLE_ENTRIES)
            .filter_map(|a| Some((a, self.top[a].get()?)))
            .flat_map(move |(a, below)| {
                let skip = begin(a as u64 == top, upper);
                (skip..TABLE_ENTRIES)
                    .filter_map(move |b| Some((a << FANOUT_BITS | b, below.below[b].get()?)))
            })
            .flat_map(move |(ab, below)| {
                let skip = begin(ab as u64 == first >> FANOUT_BITS, directory);
                (skip..TABLE_ENTRIES).filter_map(move |c| {
                    let number = (ab << FANOUT_BITS | c) as u64;
                    Some((Vpn(number << FANOUT_BITS), below.table(c)?))
                })
            })
    }

    /// Frees the table of `vpn` with its contents.
    pub fn prune(&mut self, vpn: Vpn) {
        let (a, b, c, _) = Self::split(vpn);
        let directory = self.top[a].get_mut().and_then(|upper| upper.below[b].get_mut());
        if let Some(directory) = directory {
            directory.tables[c].take();
        }
    }
}

impl Default for Tree {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_a_frame_or_a_shadow_or_nothing() {
        assert_eq!(Pte(0).shadow(), None);
        let p = Pte::of_frame(Pfn(u32::MAX - 1), Pte::MAPPED | Pte::DIRTY);
        assert!(p.present() && p.all(Pte::DIRTY) && !p.all(Pte::ACCESSED));
        assert_eq!(p.pfn(), Pfn(u32::MAX - 1));
        let shadow = (1 << 63) - 1;
        assert_eq!(Pte::of_shadow(shadow).shadow(), Some(shadow));
        assert!(!Pte::of_shadow(shadow).present());
    }

    #[test]
    fn distant_pages_have_entries_of_their_own() {
        let t = Tree::new();
        for vpn in [0, 511, 512, 1 << 18, (1 << 36) - 1] {
            assert!(t.find(Vpn(vpn)).is_none_or(|p| p.get() == Pte(0)));
            t.place(Vpn(vpn)).table.set((vpn & 511) as usize, Pte::of_frame(Pfn(vpn as u32), 0));
        }
        assert_eq!(t.find(Vpn(1 << 18)).unwrap().get().pfn(), Pfn(1 << 18));
        assert_eq!(t.find(Vpn(1)).unwrap().get(), Pte(0));
    }

    #[test]
    fn tables_come_in_order_from_any_page_on_and_can_be_pruned() {
        let mut t = Tree::new();
        let pages = [5, 700, (1 << 18) + 3, (1 << 27) + (1 << 18), (1 << 36) - 1];
        for vpn in pages {
            t.place(Vpn(vpn)).table.set((vpn & 511) as usize, Pte::of_shadow(vpn + 1));
        }
        let from = |t: &Tree, vpn| t.tables(Vpn(vpn)).map(|(first, _)| first.0).collect::<Vec<_>>();
        let firsts = pages.map(|vpn| vpn & !511);
        for vpn in
            [0, 5, 511, 512, 1024, 1 << 18, (1 << 18) + 512, 1 << 27, 1 << 30, (1 << 36) - 512]
        {
            let expected: Vec<u64> =
                firsts.iter().copied().filter(|&first| first + 512 > vpn).collect();
            assert_eq!(from(&t, vpn), expected, "from {vpn}");
        }
        t.prune(Vpn(700));
        t.prune(Vpn(1 << 30));
        assert_eq!(from(&t, 0).len(), 4);
        assert!(t.find(Vpn(700)).is_none());
    }

    #[test]
    fn an_access_to_an_entry_marks_its_table() {
        let t = Tree::new();
        let p = t.place(Vpn(700));
        assert!(!p.directory.touched(1));
        p.touch(p.get(), Pte::ACCESSED);
        assert!(p.directory.touched(1) && !p.directory.touched(0));
        p.directory.untouch(1);
        p.touch(p.get(), Pte::ACCESSED);
        assert!(p.directory.touched(1), "an entry already accessed still marks its table");
    }
}
