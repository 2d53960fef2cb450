//! One address space: its page table, and the passes over it that are followed.
//!
//! The table is the engine's ([`crate::space`]); an entry says what [`Entry`] has. Where the engine is told of accesses by
//! accessed bits, the space is one of its [`Spaces`], which the LRU's walks and looks around find; else nobody else has
//! it, and tables that hold nothing any more are let go.
//!
//! * SPACE-1: no table of an unshared space stays empty once a range that covers all it held was taken out.

use super::entry::Entry;
use super::frames::MEMCG;
use crate::readahead::{Streams, Window};
use crate::space::{self, Area, Backing, Place, Pte, Spaces, TABLE_ENTRIES};
use crate::types::{MmId, Vpn};
use std::sync::Arc;

const ENTRIES: u64 = TABLE_ENTRIES as u64;
/// The most pages fetched ahead at once unless a driver says otherwise.
const WINDOW_MAX: u32 = 64;

/// The pages of one address space.
#[derive(Debug)]
pub struct Space {
    pages: Arc<space::Space>,
    streams: Streams,
    watched: bool,
}

impl Space {
    /// An empty address space.
    #[must_use]
    pub fn new(mm: MmId) -> Self {
        Self::of(Arc::new(space::Space::new(mm, MEMCG)), false)
    }

    /// One whose accesses are seen in its page table, anonymous memory from page 0 to `end`.
    pub(super) fn watched(spaces: &Spaces, end: Vpn) -> Self {
        let pages = spaces.create(MEMCG);
        pages.add_area(Area::new(Vpn(0), end, Backing::Anon));
        Self::of(pages, true)
    }

    fn of(pages: Arc<space::Space>, watched: bool) -> Self {
        Self { pages, streams: Streams::new(WINDOW_MAX), watched }
    }

    /// Whether accesses are seen in its page table.
    pub(super) fn is_watched(&self) -> bool {
        self.watched
    }

    /// Fetches at most `pages` ahead at once.
    pub fn set_window(&mut self, pages: u32) {
        self.streams = Streams::new(pages);
    }

    /// A thread needs the page at `vpn`, which is not there: what else to fetch.
    pub fn miss(&mut self, vpn: Vpn) -> Window {
        self.streams.miss(vpn)
    }

    /// The first page of the window of a miss that was not fetched.
    pub fn cut(&mut self, miss: Vpn, window: Window, left: Vpn) {
        self.streams.cut(miss, window, left);
    }

    /// The page at `vpn` is used where it is: sets its accessed bit. False if it is not there.
    pub fn touch(&self, vpn: Vpn) -> bool {
        let here = |place: &Place| place.get().all(Pte::PRESENT | Pte::MAPPED);
        let found = self.pages.tree().find(vpn).filter(here);
        // Its program runs, or walks would pass it by.
        self.pages.note_scheduled();
        found.inspect(|place| place.touch(place.get(), Pte::ACCESSED)).is_some()
    }

    /// Whose it is.
    #[must_use]
    pub fn mm(&self) -> MmId {
        self.pages.id()
    }

    /// What is known of `vpn`.
    #[must_use]
    pub fn get(&self, vpn: Vpn) -> Entry {
        self.pages.tree().find(vpn).map_or(Entry::None, |place| Entry::unpack(place.get()))
    }

    /// Replaces what is known of `vpn`.
    pub fn set(&mut self, vpn: Vpn, entry: Entry) {
        let tree = self.pages.tree();
        let place = if entry == Entry::None { tree.find(vpn) } else { Some(tree.place(vpn)) };
        if let Some(place) = place {
            place.table.set(place.index, entry.pack());
        }
    }

    /// The range of the first entries that say something: some `pages`, and no more than that and a table.
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

    /// Takes every entry of `[start, end)` out, in address order.
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

    /// Visits up to `max` entries that say something, from `start` on, in address order. Returns where the next is to
    /// be looked for; None if there is none.
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

    /// Visits every entry that says something, in address order.
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
    fn tables_that_hold_nothing_any_more_are_let_go() {
        let mut space = Space::new(MmId(1));
        for vpn in [3, 600, 601, 5000] {
            space.set(Vpn(vpn), Entry::Cool(Pfn(vpn as u32)));
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
