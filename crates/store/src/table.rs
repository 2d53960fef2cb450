//! The slot table: the location and hash of each slot's page. It includes a queue of the pages in
//! the RAM tier, oldest first.
//!
//! A slot takes 16 bytes, in chunks that never move: growth adds a chunk and copies nothing. The
//! queue's links take 8 bytes more. A run of slots has links only while the page of one of them is
//! in RAM.
//!
//! Invariants:
//! * TABLE-1: the queue holds exactly the slots whose location is in RAM, in the order in which
//!   they were stored or renewed.
//! * TABLE-2: the lowest bits of an entry's word are its kind; an empty entry is all zeros.
//! * TABLE-3: the entries marked as newest are the last ones of the queue, and `edge` is the oldest
//!   of them. After an addition they are at most 1/[`EDGE_SHARE`] of the queue, rounded up.
//! * TABLE-4: a run of slots has links exactly while one of them is in RAM.

use crate::arena::Object;
use crate::page::hash_of_same;
use ebb_mm::driver::EDGE_SHARE;
use ebb_mm::types::SlotId;

const CHUNK: usize = 1024;
/// Number of slots whose links are allocated together.
const RUN: usize = 64;
/// Number of unused link blocks that are kept for the next run.
const SPARE_MAX: usize = 32;
/// Marks the end of the queue.
const END: u32 = u32::MAX;
/// Slot numbers are below this.
pub(crate) const SLOTS_MAX: u32 = END - 3;

/// Location of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Location {
    /// In the table itself: the page repeats this word.
    Same(u64),
    /// In the arena, `length` bytes long; 4096 means not compressed.
    Ram { object: Object, length: u16 },
    /// In a file or a server.
    Far(FarLocation),
}

/// A page of a file tier or a remote one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct FarLocation {
    pub tier: u8,
    pub page: u32,
}

/// The entry of a slot. From the lowest bit of the word:
///
/// ```text
/// nothing   0: 2                               hash: 0
/// one word  1: 2                               hash: the word (the page's hash follows from it)
/// in RAM    2: 2, newest: 1, length: 13, index: 16, span: 32
/// far       3: 2, demoted: 1, number: 21, tier: 8, page: 32
/// ```
/// The number of a demoted page counts the demotions before it. It wraps around after 2 million.
#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
    word: u64,
}

const EMPTY: Entry = Entry { hash: 0, word: ABSENT };
const KIND: u64 = 3;
const ABSENT: u64 = 0;
const SAME: u64 = 1;
const RAM: u64 = 2;
const FAR: u64 = 3;
/// Flag of an entry in RAM: it is one of the newest.
const NEWEST: u64 = 1 << 2;
/// Flag of a far entry: it was in RAM before.
const DEMOTED: u64 = 1 << 2;
const LENGTH_AT: u32 = 3;
const LENGTH_MASK: u64 = (1 << 13) - 1;
const NUMBER_AT: u32 = 3;
const NUMBER_MASK: u32 = (1 << 21) - 1;
const _: () = assert!(size_of::<Entry>() == 16);

/// Neighbours in the queue.
#[derive(Clone, Copy)]
struct Link {
    prev: u32,
    next: u32,
}

/// The links of a run of slots.
struct Links {
    in_ram: u32,
    of: [Link; RUN],
}

/// The table.
pub(crate) struct Table {
    chunks: Vec<Option<Box<[Entry; CHUNK]>>>,
    links: Vec<Option<Box<Links>>>,
    #[expect(clippy::vec_box, reason = "they come and go as they are")]
    spare: Vec<Box<Links>>,
    oldest: u32,
    newest: u32,
    /// The oldest entry that is marked as newest, the number of marked entries, and the number of
    /// entries in RAM.
    edge: u32,
    edge_len: u32,
    ram_len: u32,
    /// Number of pages demoted from RAM to a file.
    demotions: u32,
}

impl Entry {
    fn new(hash: u64, place: Location) -> Self {
        match place {
            Location::Same(word) => Self { hash: word, word: SAME },
            Location::Ram { object, length } => {
                let length = u64::from(length) << LENGTH_AT;
                let object = u64::from(object.span) << 32 | u64::from(object.index) << 16;
                Self { hash, word: object | length | RAM }
            }
            Location::Far(FarLocation { tier, page }) => {
                Self { hash, word: u64::from(page) << 32 | u64::from(tier) << 24 | FAR }
            }
        }
    }

    fn location(&self) -> Option<Location> {
        let high = (self.word >> 32) as u32;
        Some(match self.word & KIND {
            SAME => Location::Same(self.hash),
            RAM => {
                let object = Object { span: high, index: (self.word >> 16) as u16 };
                Location::Ram { object, length: (self.word >> LENGTH_AT & LENGTH_MASK) as u16 }
            }
            FAR => Location::Far(FarLocation { tier: (self.word >> 24) as u8, page: high }),
            _ => return None,
        })
    }

    fn hash(&self) -> u64 {
        if self.word & KIND == SAME { hash_of_same(self.hash) } else { self.hash }
    }

    /// Returns the number of the page's demotion from RAM to a file, if it was demoted.
    fn demoted(&self) -> Option<u32> {
        let is_so = self.word & (KIND | DEMOTED) == FAR | DEMOTED;
        is_so.then_some((self.word >> NUMBER_AT) as u32 & NUMBER_MASK)
    }
}

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            links: Vec::new(),
            spare: Vec::with_capacity(SPARE_MAX),
            oldest: END,
            newest: END,
            edge: END,
            edge_len: 0,
            ram_len: 0,
            demotions: 0,
        }
    }

    /// Returns the bytes that the table occupies.
    pub(crate) fn bytes(&self) -> u64 {
        let chunks = self.chunks.iter().flatten().count() * size_of::<[Entry; CHUNK]>();
        let links = self.links.iter().flatten().chain(&self.spare).count() * size_of::<Links>();
        let lists = self.chunks.capacity() + self.links.capacity() + self.spare.capacity();
        (chunks + links + lists * size_of::<usize>()) as u64
    }

    fn entry(&self, slot: u32) -> Option<&Entry> {
        let chunk = self.chunks.get(slot as usize / CHUNK)?.as_ref()?;
        Some(&chunk[slot as usize % CHUNK])
    }

    fn entry_mut(&mut self, slot: u32) -> &mut Entry {
        let index = slot as usize / CHUNK;
        if index >= self.chunks.len() {
            self.chunks.resize_with(index + 1, || None);
        }
        let chunk = self.chunks[index].get_or_insert_with(|| Box::new([EMPTY; CHUNK]));
        &mut chunk[slot as usize % CHUNK]
    }

    fn link(&self, slot: u32) -> Link {
        let links = self.links[slot as usize / RUN].as_ref().expect("TABLE-4");
        links.of[slot as usize % RUN]
    }

    fn link_mut(&mut self, slot: u32) -> &mut Link {
        let links = self.links[slot as usize / RUN].as_mut().expect("TABLE-4");
        &mut links.of[slot as usize % RUN]
    }

    /// Adds a slot to the queue as the newest (TABLE-1, TABLE-4).
    fn enqueue(&mut self, slot: u32) {
        let run = slot as usize / RUN;
        if run >= self.links.len() {
            self.links.resize_with(run + 1, || None);
        }
        let spare = &mut self.spare;
        let links = self.links[run].get_or_insert_with(|| {
            let new = || Box::new(Links { in_ram: 0, of: [Link { prev: END, next: END }; RUN] });
            spare.pop().unwrap_or_else(new)
        });
        links.in_ram += 1;
        links.of[slot as usize % RUN] = Link { prev: self.newest, next: END };
        match self.newest {
            END => self.oldest = slot,
            newest => self.link_mut(newest).next = slot,
        }
        self.newest = slot;
    }

    /// Removes a slot from the queue (TABLE-1, TABLE-4). Returns the next slot.
    fn dequeue(&mut self, slot: u32) -> u32 {
        let Link { prev, next } = self.link(slot);
        match prev {
            END => self.oldest = next,
            prev => self.link_mut(prev).next = next,
        }
        match next {
            END => self.newest = prev,
            next => self.link_mut(next).prev = prev,
        }
        let run = &mut self.links[slot as usize / RUN];
        let links = run.as_mut().expect("TABLE-4");
        links.in_ram -= 1;
        if links.in_ram == 0
            && let Some(links) = run.take()
            && self.spare.len() < SPARE_MAX
        {
            self.spare.push(links);
        }
        next
    }

    /// Returns the hash and location of a slot's page.
    pub(crate) fn get(&self, slot: SlotId) -> Option<(u64, Location)> {
        let entry = self.entry(slot.0)?;
        entry.location().map(|place| (entry.hash(), place))
    }

    /// Records a slot's page, as the newest if it is in RAM. Returns the old location.
    pub(crate) fn set(&mut self, slot: SlotId, hash: u64, place: Location) -> Option<Location> {
        assert!(slot.0 < SLOTS_MAX, "slot {} is a reserved number", slot.0);
        debug_assert!(!matches!(place, Location::Same(word) if hash != hash_of_same(word)));
        let before = self.clear(slot);
        *self.entry_mut(slot.0) = Entry::new(hash, place);
        if matches!(place, Location::Ram { .. }) {
            self.enqueue(slot.0);
            self.entry_mut(slot.0).word |= NEWEST;
            self.edge = if self.edge == END { slot.0 } else { self.edge };
            (self.edge_len, self.ram_len) = (self.edge_len + 1, self.ram_len + 1);
            self.settle_edge();
        }
        before
    }

    /// Restores TABLE-3 after an addition.
    fn settle_edge(&mut self) {
        while self.edge_len > self.ram_len.div_ceil(EDGE_SHARE) {
            self.entry_mut(self.edge).word &= !NEWEST;
            (self.edge, self.edge_len) = (self.link(self.edge).next, self.edge_len - 1);
        }
    }

    /// Returns whether the page of a slot is near a border of the RAM tier. `Some(false)`: the page
    /// is among the newest in RAM, and would still be uncompressed if memory were larger.
    /// `Some(true)`: the page left RAM recently, and would be in RAM if the tier were larger.
    pub(crate) fn beyond_edge(&self, slot: SlotId) -> Option<bool> {
        let entry = self.entry(slot.0)?;
        if entry.word & KIND == RAM {
            return (entry.word & NEWEST != 0).then_some(false);
        }
        let since = self.demotions.wrapping_sub(entry.demoted()?) & NUMBER_MASK;
        (since <= self.ram_len.div_ceil(EDGE_SHARE)).then_some(true)
    }

    /// Returns the largest number of pages at the edge.
    pub(crate) fn edge_len(&self) -> u32 {
        self.ram_len.div_ceil(EDGE_SHARE)
    }

    /// Makes the page of a slot the newest, if it is in RAM.
    pub(crate) fn renew(&mut self, slot: SlotId) {
        if let Some((hash, place @ Location::Ram { .. })) = self.get(slot) {
            self.set(slot, hash, place);
        }
    }

    /// Notes that the page of a slot, which is in a file, was in RAM before.
    pub(crate) fn mark_demoted(&mut self, slot: SlotId) {
        let number = self.demotions & NUMBER_MASK;
        let entry = self.entry_mut(slot.0);
        debug_assert_eq!(entry.word & (KIND | DEMOTED), FAR);
        entry.word |= u64::from(number) << NUMBER_AT | DEMOTED;
        self.demotions = self.demotions.wrapping_add(1);
    }

    /// Returns whether the page of a slot, which is in a file, was in RAM before.
    pub(crate) fn is_demoted(&self, slot: SlotId) -> bool {
        self.entry(slot.0).is_some_and(|entry| entry.demoted().is_some())
    }

    /// Records the new location of an arena object. The page's age stays.
    pub(crate) fn moved(&mut self, slot: SlotId, to: Object) {
        let entry = self.entry_mut(slot.0);
        let Some(Location::Ram { length, .. }) = entry.location() else {
            panic!("slot {} owns an object but is not in RAM", slot.0)
        };
        let newest = entry.word & NEWEST;
        *entry = Entry::new(entry.hash, Location::Ram { object: to, length });
        entry.word |= newest;
    }

    /// Forgets a slot's page and returns its location.
    pub(crate) fn clear(&mut self, slot: SlotId) -> Option<Location> {
        let entry = *self.entry(slot.0)?;
        let place = entry.location()?;
        if matches!(place, Location::Ram { .. }) {
            let next = self.dequeue(slot.0);
            self.ram_len -= 1;
            if entry.word & NEWEST != 0 {
                self.edge_len -= 1;
                self.edge = if self.edge == slot.0 { next } else { self.edge };
            }
        }
        *self.entry_mut(slot.0) = EMPTY;
        Some(place)
    }

    /// Returns the page that has been in RAM longest.
    pub(crate) fn oldest(&self) -> Option<SlotId> {
        (self.oldest != END).then_some(SlotId(self.oldest))
    }

    /// Returns the page in RAM stored next after this one.
    pub(crate) fn younger(&self, slot: SlotId) -> Option<SlotId> {
        let entry = self.entry(slot.0)?;
        let next = if entry.word & KIND == RAM { self.link(slot.0).next } else { END };
        (next != END).then_some(SlotId(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ram(span: u32) -> Location {
        Location::Ram { object: Object { span, index: 1023 }, length: 4096 }
    }

    fn queue(table: &Table) -> Vec<u32> {
        let first = table.oldest();
        std::iter::successors(first, |slot| table.younger(*slot)).map(|slot| slot.0).collect()
    }

    #[test]
    fn the_newest_and_those_that_left_lately_are_at_the_edge() {
        let mut table = Table::new();
        let edge = |table: &Table| {
            let all = (0..100).filter_map(|slot| Some((slot, table.beyond_edge(SlotId(slot))?)));
            all.partition::<Vec<_>, _>(|&(_, left)| !left)
        };
        (0..64).for_each(|slot| assert_eq!(table.set(SlotId(slot), 0, ram(slot)), None));
        let newest = |range: std::ops::Range<u32>| range.map(|slot| (slot, false)).collect();
        assert_eq!(edge(&table), (newest(56..64), vec![]));
        table.clear(SlotId(63));
        table.moved(SlotId(60), Object { span: 9, index: 9 });
        assert_eq!(edge(&table), (newest(56..63), vec![]));
        (64..72).for_each(|slot| assert_eq!(table.set(SlotId(slot), 0, ram(slot)), None));
        assert_eq!(table.edge_len(), 9);
        let (near, _) = edge(&table);
        assert_eq!(near, newest(62..63).into_iter().chain(newest(64..72)).collect::<Vec<_>>());
        for slot in 0..20 {
            table.set(SlotId(slot), 0, Location::Far(FarLocation { tier: 0, page: slot }));
            table.mark_demoted(SlotId(slot));
        }
        let (_, far) = edge(&table);
        assert_eq!(far.first(), Some(&(13, true)), "51 are left, 7 make the edge");
        for slot in 20..72 {
            table.clear(SlotId(slot));
        }
        assert_eq!((table.ram_len, table.edge_len, table.edge), (0, 0, END));
    }

    #[test]
    fn locations_survive_packing() {
        let mut table = Table::new();
        let file = |tier, page| Location::Far(FarLocation { tier, page });
        let places = [
            ram(0),
            ram(u32::MAX),
            Location::Same(u64::MAX),
            Location::Same(0),
            file(255, u32::MAX),
        ];
        for (slot, place) in places.into_iter().enumerate() {
            let slot = SlotId(slot as u32 * 5000);
            assert_eq!(table.get(slot), None);
            let hash = if let Location::Same(word) = place { hash_of_same(word) } else { 42 };
            assert_eq!(table.set(slot, hash, place), None);
            assert_eq!(table.get(slot), Some((hash, place)));
            assert_eq!(table.clear(slot), Some(place));
            assert_eq!(table.get(slot), None);
            assert_eq!(table.clear(slot), None);
        }
    }

    #[test]
    fn a_demotion_is_known_until_the_page_is_stored_anew() {
        let mut table = Table::new();
        let file = Location::Far(FarLocation { tier: 0, page: 9 });
        table.set(SlotId(4), 1, file);
        assert!(!table.is_demoted(SlotId(4)));
        table.mark_demoted(SlotId(4));
        assert!(table.is_demoted(SlotId(4)));
        assert_eq!(table.get(SlotId(4)), Some((1, file)));
        table.set(SlotId(4), 1, file);
        assert!(!table.is_demoted(SlotId(4)));
        table.set(SlotId(0), 1, ram(0));
        assert!(!table.is_demoted(SlotId(0)));
    }

    #[test]
    fn only_pages_in_ram_need_links() {
        let mut table = Table::new();
        let runs = |table: &Table| table.links.iter().flatten().count();
        for slot in 0..RUN as u32 * 3 {
            table.set(SlotId(slot), 1, ram(slot));
        }
        assert_eq!(runs(&table), 3);
        let far = |page| Location::Far(FarLocation { tier: 0, page });
        for slot in 1..RUN as u32 * 2 {
            table.set(SlotId(slot), 1, far(slot));
        }
        assert_eq!((runs(&table), table.spare.len()), (2, 1));
        table.clear(SlotId(0));
        assert_eq!(table.oldest(), Some(SlotId(RUN as u32 * 2)));
        let bytes = table.bytes();
        table.set(SlotId(3), 1, ram(3));
        assert_eq!((runs(&table), table.bytes()), (2, bytes), "a spare one is taken");
        assert_eq!(queue(&table).last(), Some(&3));
    }

    /// Shows that the numbers of demotions wrap around after two million, and pages demoted
    /// recently are still recognised.
    #[test]
    fn the_edge_is_known_when_numbers_of_demotions_wrap_around() {
        let mut table = Table::new();
        for slot in 0..64 {
            table.set(SlotId(slot), 0, ram(slot));
        }
        table.demotions = NUMBER_MASK - 1;
        for slot in 100..110 {
            table.set(SlotId(slot), 0, Location::Far(FarLocation { tier: 1, page: slot }));
            table.mark_demoted(SlotId(slot));
        }
        let beyond = (100..110).filter(|&slot| table.beyond_edge(SlotId(slot)) == Some(true));
        assert_eq!(beyond.collect::<Vec<_>>(), (102..110).collect::<Vec<_>>());
        assert_eq!(
            table.get(SlotId(109)),
            Some((0, Location::Far(FarLocation { tier: 1, page: 109 })))
        );
    }

    #[test]
    fn the_queue_is_in_order_of_storing() {
        let mut table = Table::new();
        for slot in [5, 3, 9000, 1, 7] {
            table.set(SlotId(slot), 0, ram(slot));
        }
        table.set(SlotId(2), hash_of_same(0), Location::Same(0));
        assert_eq!(queue(&table), [5, 3, 9000, 1, 7]);
        table.set(SlotId(3), 0, ram(3));
        assert_eq!(queue(&table), [5, 9000, 1, 7, 3]);
        table.clear(SlotId(5));
        table.clear(SlotId(3));
        table.set(SlotId(1), 0, Location::Far(FarLocation { tier: 0, page: 0 }));
        assert_eq!(queue(&table), [9000, 7]);
        table.moved(SlotId(7), Object { span: 1, index: 2 });
        assert_eq!(queue(&table), [9000, 7]);
        table.renew(SlotId(9000));
        assert_eq!(queue(&table), [7, 9000]);
        assert_eq!(table.get(SlotId(9000)), Some((0, ram(9000))));
        table.clear(SlotId(9000));
        table.clear(SlotId(7));
        assert_eq!(queue(&table), [0; 0]);
    }
}
