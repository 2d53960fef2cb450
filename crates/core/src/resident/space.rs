//! One address space: its page table, and the streams of misses for readahead.
//!
//! The table is the engine's ([`crate::space`]); each entry holds an [`Entry`]. Where accesses show
//! as accessed bits, the space is one of the engine's [`Spaces`], so that the LRU's walks and
//! look-arounds find it. Otherwise the space has no other user, and empty tables are freed.
//!
//! * SPACE-1: no table of an unshared space stays empty after a range that covers all its entries
//!   was taken out.

use super::entry::Entry;
use super::frames::MEMCG;
use crate::readahead::{Streams, Window};
use crate::space::{self, Area, Backing, Pte, PteRef, Spaces, TABLE_ENTRIES};
use crate::types::{MmId, Vpn};
use std::sync::Arc;

const ENTRIES: u64 = TABLE_ENTRIES as u64;
/// Most pages fetched ahead at once unless a driver sets another limit.
const WINDOW_MAX: u32 = 64;

/// The pages of one address space.
#[derive(Debug)]
pub struct Space {
    pages: Arc<space::Space>,
    streams: Streams,
    watched: bool,
}

impl Space {
    /// Creates an empty address space.
    #[must_use]
    pub fn new(mm: MmId) -> Self {
        Self::of(Arc::new(space::Space::new(mm, MEMCG)), false)
    }

    /// Creates an address space whose accesses show in its page table. It has anonymous memory from
    /// page 0 to `end`.
    pub(super) fn watched(spaces: &Spaces, end: Vpn) -> Self {
        let pages = spaces.create(MEMCG);
        pages.add_area(Area::new(Vpn(0), end, Backing::Anon));
        Self::of(pages, true)
    }

    fn of(pages: Arc<space::Space>, watched: bool) -> Self {
        Self { pages, streams: Streams::new(WINDOW_MAX), watched }
    }

    /// Whether accesses show in the page table.
    pub(super) fn is_watched(&self) -> bool {
        self.watched
    }

    /// Sets the most pages to fetch ahead at once.
    pub fn set_window(&mut self, pages: u32) {
        self.streams = Streams::new(pages);
    }

    /// Records a miss on the page at `vpn`. Returns the pages to fetch beside it.
    pub fn miss(&mut self, vpn: Vpn) -> Window {
        self.streams.miss(vpn)
    }

    /// Records that the window beside `miss` was fetched only up to the page before `left`.
    pub fn cut(&mut self, miss: Vpn, window: Window, left: Vpn) {
        self.streams.cut(miss, window, left);
    }

    /// Records an access to the page at `vpn`: sets its accessed bit. Returns false if the page is
    /// not mapped.
    pub fn touch(&self, vpn: Vpn) -> bool {
        let here = |place: &PteRef| place.get().all(Pte::PRESENT | Pte::MAPPED);
        let found = self.pages.tree().find(vpn).filter(here);
        // Mark that the program of this space runs, because walks skip spaces that did not run.
        self.pages.note_scheduled();
        found.inspect(|place| place.touch(place.get(), Pte::ACCESSED)).is_some()
    }

    /// Returns the number of this address space.
    #[must_use]
    pub fn mm(&self) -> MmId {
        self.pages.id()
    }

    /// Returns the entry of `vpn`.
    #[must_use]
    pub fn get(&self, vpn: Vpn) -> Entry {
        self.pages.tree().find(vpn).map_or(Entry::None, |place| Entry::unpack(place.get()))
    }

    /// Replaces the entry of `vpn`.
    pub fn set(&mut self, vpn: Vpn, entry: Entry) {
        let tree = self.pages.tree();
        let place = if entry == Entry::None { tree.find(vpn) } else { Some(tree.place(vpn)) };
        if let Some(place) = place {
            place.table.set(place.index, entry.pack());
        }
    }

    /// Returns the address range of the first entries in use: at least `pages` of them if there are
    /// as many, and less than a table more.
    #[must_use]
    pub fn front(&self, pages: u64) -> Option<(Vpn, Vpn)> {
        let mut range = None;
        let mut count = 0;
        for (first, table) in self.pages.tree().tables(Vpn(0)) {
            let used = (0..TABLE_ENTRIES).filter(|&at| table.get(at) != Pte(0)).count() as u64;
            if used > 0 {
                let (start, _) = range.unwrap_or((first, first));
                range = Some((start, Vpn(first.0 + ENTRIES)));
                count += used;
            }
            if count >= pages {
                break;
            }
        }
        range
    }

    /// Removes every entry of `[start, end)`, in address order, and passes it to `taken`.
    pub fn take_range(&mut self, start: Vpn, end: Vpn, mut taken: impl FnMut(Vpn, Entry)) {
        if start >= end {
            return;
        }
        let mut empty = Vec::new();
        for (first, table) in self.pages.tree().tables(start) {
            if first >= end {
                break;
            }
            let begin = start.0.saturating_sub(first.0) as usize;
            let last = (end.0 - first.0).min(ENTRIES) as usize;
            for at in begin..last {
                let pte = table.get(at);
                if pte != Pte(0) {
                    taken(Vpn(first.0 + at as u64), Entry::unpack(pte));
                    table.set(at, Pte(0));
                }
            }
            if (0..TABLE_ENTRIES).all(|at| table.get(at) == Pte(0)) {
                empty.push(first);
            }
        }
        // SPACE-1
        if let Some(pages) = Arc::get_mut(&mut self.pages) {
            empty.into_iter().for_each(|first| pages.tree_mut().prune(first));
        }
    }

    /// Visits up to `max` entries in use, from `start` on, in address order. Returns the page of
    /// the next entry; None if there is none.
    pub fn visit(&self, start: Vpn, max: u64, mut visit: impl FnMut(Vpn, Entry)) -> Option<Vpn> {
        let mut left = max;
        for (vpn, pte) in self.entries(start) {
            if left == 0 {
                return Some(vpn);
            }
            left -= 1;
            visit(vpn, Entry::unpack(pte));
        }
        None
    }

    /// Visits every entry in use, in address order.
    pub fn for_each(&self, mut visit: impl FnMut(Vpn, Entry)) {
        self.entries(Vpn(0)).for_each(|(vpn, pte)| visit(vpn, Entry::unpack(pte)));
    }

    fn entries(&self, start: Vpn) -> impl Iterator<Item = (Vpn, Pte)> {
        let says = move |&(vpn, pte): &(Vpn, Pte)| pte != Pte(0) && vpn >= start;
        self.pages.tree().tables(start).flat_map(move |(first, table)| {
            let all = (0..TABLE_ENTRIES).map(move |at| (Vpn(first.0 + at as u64), table.get(at)));
            all.filter(says)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Pfn;

    #[test]
    fn empty_tables_are_freed() {
        let mut space = Space::new(MmId(1));
        for vpn in [3, 600, 601, 5000] {
            space.set(Vpn(vpn), Entry::Standby(Pfn(vpn as u32)));
        }
        let tables = |space: &Space| space.pages.tree().tables(Vpn(0)).count();
        assert_eq!((tables(&space), space.front(2)), (3, Some((Vpn(0), Vpn(1024)))));
        let mut taken = Vec::new();
        space.take_range(Vpn(3), Vpn(601), |vpn, _| taken.push(vpn.0));
        assert_eq!((taken, tables(&space)), (vec![3, 600], 2), "one page of the second is left");
        space.take_range(Vpn(0), Vpn(1 << 36), |_, _| {});
        assert_eq!((tables(&space), space.front(1)), (0, None));
    }
}
