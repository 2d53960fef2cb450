//! The slot table: for each slot where its page lies, the page's hash, and its place in the queue
//! of pages in the RAM tier, oldest first.
//!
//! 24 bytes a slot, in chunks that never move: growth adds a chunk and copies nothing.
//!
//! Invariants:
//! * I1: the queue holds exactly the slots whose place is in RAM, in the order they were stored.
//! * I3: the newest [`EDGE_SHARE`]th of the queue, and no other entry, is marked as that; `edge` is the oldest of them.
//! * I2: `prev` says what an entry is: a reserved value names the kind, anything else (or `END`) is
//!   a link of the queue.

use crate::arena::Object;
use ebb_core::types::SlotId;

const CHUNK: usize = 1024;
/// `prev` of an entry that holds nothing. Slots are below all the reserved values.
const ABSENT: u32 = u32::MAX;
const SAME: u32 = u32::MAX - 1;
const FILE: u32 = u32::MAX - 2;
/// Mark in the length of an entry in RAM: it is one of the newest.
const NEWEST: u64 = 1 << 15;
/// The newest of so many parts counts as the edge of the tier: what would not be there yet if memory were larger.
const EDGE_SHARE: u32 = 8;
/// No further entry in the queue.
const END: u32 = u32::MAX - 3;
/// Slots must be below this.
pub(crate) const SLOTS_MAX: u32 = END;

/// Where a page lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Nowhere but here: the page repeats this word.
    Same(u64),
    /// In the arena, `length` bytes long; 4096 means not compressed.
    Ram { object: Object, length: u16 },
    /// In a file or a server.
    Far(FarPlace),
}

/// A page of a file tier or a remote one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct FarPlace {
    pub tier: u8,
    pub page: u32,
}

#[derive(Clone, Copy)]
struct Entry {
    hash: u64,
    word: u64,
    prev: u32,
    next: u32,
}

const EMPTY: Entry = Entry { hash: 0, word: 0, prev: ABSENT, next: END };
const _: () = assert!(size_of::<Entry>() <= 24);

/// The table.
pub(crate) struct Table {
    chunks: Vec<Option<Box<[Entry; CHUNK]>>>,
    oldest: u32,
    newest: u32,
    /// The oldest entry that is marked as one of the newest, how many are, and how many are in RAM.
    edge: u32,
    edge_len: u32,
    ram_len: u32,
    /// Pages that went from RAM to a file. `next` of an entry in a file says which of them it was, the first being 0;
    /// END if it was none.
    demotions: u32,
}

fn pack(place: Place) -> u64 {
    match place {
        Place::Same(word) => word,
        Place::Ram { object, length } => {
            u64::from(object.span) << 32 | u64::from(object.index) << 16 | u64::from(length)
        }
        Place::Far(FarPlace { tier, page }) => u64::from(tier) << 32 | u64::from(page),
    }
}

impl Entry {
    fn place(&self) -> Option<Place> {
        Some(match self.prev {
            ABSENT => return None,
            SAME => Place::Same(self.word),
            FILE => {
                let (tier, page) = ((self.word >> 32) as u8, self.word as u32);
                Place::Far(FarPlace { tier, page })
            }
            _ => {
                let (span, index) = ((self.word >> 32) as u32, (self.word >> 16) as u16);
                let length = (self.word & (NEWEST - 1)) as u16;
                Place::Ram { object: Object { span, index }, length }
            }
        })
    }
}

impl Table {
    pub(crate) fn new() -> Self {
        Self {
            chunks: Vec::new(),
            oldest: END,
            newest: END,
            edge: END,
            edge_len: 0,
            ram_len: 0,
            demotions: 0,
        }
    }

    /// Bytes the table occupies.
    pub(crate) fn bytes(&self) -> u64 {
        let chunks = self.chunks.iter().flatten().count() * size_of::<[Entry; CHUNK]>();
        (chunks + self.chunks.capacity() * size_of::<usize>()) as u64
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

    /// The hash and place of a slot's page.
    pub(crate) fn get(&self, slot: SlotId) -> Option<(u64, Place)> {
        let entry = self.entry(slot.0)?;
        entry.place().map(|place| (entry.hash, place))
    }

    /// Writes down a slot's page, as the newest if it is in RAM. Returns what was there before.
    pub(crate) fn set(&mut self, slot: SlotId, hash: u64, place: Place) -> Option<Place> {
        assert!(slot.0 < SLOTS_MAX, "slot {} is a reserved number", slot.0);
        let before = self.clear(slot);
        let newest = self.newest;
        let prev = match place {
            Place::Same(_) => SAME,
            Place::Far(_) => FILE,
            Place::Ram { .. } => newest,
        };
        *self.entry_mut(slot.0) = Entry { hash, word: pack(place), prev, next: END };
        if matches!(place, Place::Ram { .. }) {
            match newest {
                END => self.oldest = slot.0,
                newest => self.entry_mut(newest).next = slot.0,
            }
            self.newest = slot.0;
            self.entry_mut(slot.0).word |= NEWEST;
            self.edge = if self.edge == END { slot.0 } else { self.edge };
            (self.edge_len, self.ram_len) = (self.edge_len + 1, self.ram_len + 1);
            self.settle_edge();
        }
        before
    }

    /// I3.
    fn settle_edge(&mut self) {
        while self.edge_len > self.ram_len.div_ceil(EDGE_SHARE) {
            let entry = self.entry_mut(self.edge);
            entry.word &= !NEWEST;
            (self.edge, self.edge_len) = (entry.next, self.edge_len - 1);
        }
    }

    /// Whether the page of a slot would be elsewhere if its tier began or ended a little earlier: in memory itself, being
    /// among the newest in RAM (false), or in RAM, having left it lately (true).
    pub(crate) fn beyond_edge(&self, slot: SlotId) -> Option<bool> {
        let entry = self.entry(slot.0)?;
        match entry.prev {
            ABSENT | SAME => None,
            FILE => {
                let since = self.demotions.wrapping_sub(entry.next);
                (entry.next != END && since <= self.ram_len.div_ceil(EDGE_SHARE)).then_some(true)
            }
            _ => (entry.word & NEWEST != 0).then_some(false),
        }
    }

    /// How many pages are at the edge.
    pub(crate) fn edge_len(&self) -> u32 {
        self.ram_len.div_ceil(EDGE_SHARE)
    }

    /// The page of a slot that is in RAM counts as stored just now.
    pub(crate) fn renew(&mut self, slot: SlotId) {
        if let Some((hash, place @ Place::Ram { .. })) = self.get(slot) {
            self.set(slot, hash, place);
        }
    }

    /// Notes that the page of a slot, which is in a file, was in RAM before.
    pub(crate) fn mark_demoted(&mut self, slot: SlotId) {
        let number = self.demotions;
        let entry = self.entry_mut(slot.0);
        debug_assert_eq!(entry.prev, FILE);
        entry.next = number;
        self.demotions = if number + 1 == END { 0 } else { number + 1 };
    }

    /// Whether the page of a slot, which is in a file, was in RAM before.
    pub(crate) fn is_demoted(&self, slot: SlotId) -> bool {
        self.entry(slot.0).is_some_and(|entry| entry.prev == FILE && entry.next != END)
    }

    /// An object of the arena has moved: its age stays.
    pub(crate) fn moved(&mut self, slot: SlotId, to: Object) {
        let entry = self.entry_mut(slot.0);
        let Some(Place::Ram { length, .. }) = entry.place() else {
            panic!("slot {} owns an object but is not in RAM", slot.0)
        };
        entry.word = pack(Place::Ram { object: to, length }) | entry.word & NEWEST;
    }

    /// Forgets a slot's page and returns where it was.
    pub(crate) fn clear(&mut self, slot: SlotId) -> Option<Place> {
        let entry = *self.entry(slot.0)?;
        let place = entry.place()?;
        if matches!(place, Place::Ram { .. }) {
            match entry.prev {
                END => self.oldest = entry.next,
                prev => self.entry_mut(prev).next = entry.next,
            }
            match entry.next {
                END => self.newest = entry.prev,
                next => self.entry_mut(next).prev = entry.prev,
            }
            self.ram_len -= 1;
            if entry.word & NEWEST != 0 {
                self.edge_len -= 1;
                self.edge = if self.edge == slot.0 { entry.next } else { self.edge };
            }
        }
        *self.entry_mut(slot.0) = EMPTY;
        Some(place)
    }

    /// The page that has been in RAM longest.
    pub(crate) fn oldest(&self) -> Option<SlotId> {
        (self.oldest != END).then_some(SlotId(self.oldest))
    }

    /// The page in RAM stored next after this one.
    pub(crate) fn younger(&self, slot: SlotId) -> Option<SlotId> {
        let next = self.entry(slot.0)?.next;
        (next != END).then_some(SlotId(next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ram(span: u32) -> Place {
        Place::Ram { object: Object { span, index: 1023 }, length: 4096 }
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
            table.set(SlotId(slot), 0, Place::Far(FarPlace { tier: 0, page: slot }));
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
    fn places_survive_packing() {
        let mut table = Table::new();
        let file = |tier, page| Place::Far(FarPlace { tier, page });
        let places =
            [ram(0), ram(u32::MAX), Place::Same(u64::MAX), Place::Same(0), file(255, u32::MAX)];
        for (slot, place) in places.into_iter().enumerate() {
            let slot = SlotId(slot as u32 * 5000);
            assert_eq!(table.get(slot), None);
            assert_eq!(table.set(slot, 42, place), None);
            assert_eq!(table.get(slot), Some((42, place)));
            assert_eq!(table.clear(slot), Some(place));
            assert_eq!(table.get(slot), None);
            assert_eq!(table.clear(slot), None);
        }
    }

    #[test]
    fn what_was_in_ram_before_is_known_until_it_is_stored_anew() {
        let mut table = Table::new();
        let file = Place::Far(FarPlace { tier: 0, page: 9 });
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
    fn the_queue_is_in_order_of_storing() {
        let mut table = Table::new();
        for slot in [5, 3, 9000, 1, 7] {
            table.set(SlotId(slot), 0, ram(slot));
        }
        table.set(SlotId(2), 0, Place::Same(0));
        assert_eq!(queue(&table), [5, 3, 9000, 1, 7]);
        table.set(SlotId(3), 0, ram(3));
        assert_eq!(queue(&table), [5, 9000, 1, 7, 3]);
        table.clear(SlotId(5));
        table.clear(SlotId(3));
        table.set(SlotId(1), 0, Place::Far(FarPlace { tier: 0, page: 0 }));
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
