//! The frame table: one descriptor for each page in memory, and the lists that order them.
//!
//! A frame's number is the allocator's ([`Stock`]); the table is as long as the highest one given out.

use super::stock::Stock;
use crate::frame::watermark::Marks;
use crate::types::{MmId, Pfn, SlotId, Vpn};

const NIL: u32 = u32::MAX;
/// Not in the pool.
pub const NO_POOL: u32 = u32::MAX;
const LISTS: usize = 7;

/// Which list a frame is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// Generation of this index (sequence number modulo 4).
    Generation(u8),
    /// Taken off for cooling.
    Isolated,
    /// Out of the program's sight.
    Cool,
    /// Cannot leave memory for now.
    Parked,
}

impl Place {
    const fn index(self) -> usize {
        match self {
            Self::Generation(index) => index as usize,
            Self::Isolated => 4,
            Self::Cool => 5,
            Self::Parked => 6,
        }
    }
}

/// The descriptor of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    pub mm: MmId,
    pub vpn: Vpn,
    pub place: Place,
    /// Where it lies in the owner's pool while cool.
    pub pool: u32,
    used: bool,
    slot: u32,
    prev: u32,
    next: u32,
}

const _: () = assert!(size_of::<Frame>() <= 64);

impl Frame {
    const UNUSED: Self = Self {
        mm: MmId(0),
        vpn: Vpn(0),
        place: Place::Isolated,
        pool: NO_POOL,
        used: false,
        slot: NIL,
        prev: NIL,
        next: NIL,
    };

    /// The stored copy that was true when the page was brought in.
    #[must_use]
    pub fn slot(&self) -> Option<SlotId> {
        (self.slot != NIL).then_some(SlotId(self.slot))
    }
}

#[derive(Clone, Copy, Debug)]
struct List {
    head: u32,
    tail: u32,
    len: u64,
}

/// The table. Lists are linked through the descriptors; newest at the head.
#[derive(Debug)]
pub struct Frames {
    table: Vec<Frame>,
    used: usize,
    stock: Stock,
    lists: [List; LISTS],
}

impl Frames {
    /// Frames for a budget of `limit` pages.
    pub fn new(limit: u64) -> Self {
        Self {
            table: Vec::new(),
            used: 0,
            stock: Stock::new(limit),
            lists: [List { head: NIL, tail: NIL, len: 0 }; LISTS],
        }
    }

    /// The watermarks of the budget's zone.
    pub fn marks(&self) -> Marks {
        self.stock.marks()
    }

    pub fn get(&self, pfn: Pfn) -> &Frame {
        let frame = &self.table[pfn.0 as usize];
        assert!(frame.used, "frame {} looked at while free", pfn.0);
        frame
    }

    pub fn is_used(&self, pfn: Pfn) -> bool {
        self.table.get(pfn.0 as usize).is_some_and(|frame| frame.used)
    }

    pub fn in_use(&self) -> usize {
        self.used
    }

    pub fn len(&self, place: Place) -> u64 {
        self.lists[place.index()].len
    }

    pub fn allocate(&mut self, mm: MmId, vpn: Vpn, slot: Option<SlotId>, place: Place) -> Pfn {
        let slot = slot.map_or(NIL, |slot| slot.0);
        let frame = Frame { mm, vpn, place, pool: NO_POOL, used: true, slot, prev: NIL, next: NIL };
        let pfn = self.stock.take();
        if pfn.0 as usize >= self.table.len() {
            self.table.resize(pfn.0 as usize + 1, Frame::UNUSED);
        }
        self.table[pfn.0 as usize] = frame;
        self.used += 1;
        self.link(pfn.0, place);
        pfn
    }

    pub fn free(&mut self, pfn: Pfn) {
        assert!(self.table[pfn.0 as usize].used, "frame {} freed while free", pfn.0);
        self.unlink(pfn.0);
        self.table[pfn.0 as usize].used = false;
        self.used -= 1;
        self.stock.give(pfn);
    }

    /// Moves the frame to the head of another list.
    pub fn put(&mut self, pfn: Pfn, place: Place) {
        self.unlink(pfn.0);
        self.table[pfn.0 as usize].place = place;
        self.link(pfn.0, place);
    }

    /// Moves the frame to the tail of another list.
    pub fn put_last(&mut self, pfn: Pfn, place: Place) {
        self.unlink(pfn.0);
        let list = &mut self.lists[place.index()];
        let old = list.tail;
        list.tail = pfn.0;
        list.len += 1;
        if old == NIL {
            list.head = pfn.0;
        } else {
            self.table[old as usize].next = pfn.0;
        }
        let frame = &mut self.table[pfn.0 as usize];
        (frame.place, frame.prev, frame.next) = (place, old, NIL);
    }

    /// The oldest of a list.
    pub fn last(&self, place: Place) -> Option<Pfn> {
        let tail = self.lists[place.index()].tail;
        (tail != NIL).then_some(Pfn(tail))
    }

    /// The oldest of a list, up to `max`, oldest first.
    pub fn tail_of(&self, place: Place, max: usize, into: &mut Vec<Pfn>) {
        let mut at = self.lists[place.index()].tail;
        for _ in 0..max {
            if at == NIL {
                break;
            }
            into.push(Pfn(at));
            at = self.table[at as usize].prev;
        }
    }

    pub fn set_pool(&mut self, pfn: Pfn, pool: u32) -> u32 {
        std::mem::replace(&mut self.table[pfn.0 as usize].pool, pool)
    }

    pub fn set_vpn(&mut self, pfn: Pfn, vpn: Vpn) {
        self.table[pfn.0 as usize].vpn = vpn;
    }

    pub fn set_slot(&mut self, pfn: Pfn, slot: Option<SlotId>) -> Option<SlotId> {
        let frame = &mut self.table[pfn.0 as usize];
        let old = frame.slot();
        frame.slot = slot.map_or(NIL, |slot| slot.0);
        old
    }

    fn link(&mut self, index: u32, place: Place) {
        let list = &mut self.lists[place.index()];
        let frame = &mut self.table[index as usize];
        frame.prev = NIL;
        frame.next = list.head;
        let old = list.head;
        list.head = index;
        list.len += 1;
        if old == NIL {
            list.tail = index;
        } else {
            self.table[old as usize].prev = index;
        }
    }

    fn unlink(&mut self, index: u32) {
        let Frame { prev, next, place, .. } = self.table[index as usize];
        let list = &mut self.lists[place.index()];
        list.len -= 1;
        if prev == NIL {
            list.head = next;
        }
        if next == NIL {
            list.tail = prev;
        }
        if prev != NIL {
            self.table[prev as usize].next = next;
        }
        if next != NIL {
            self.table[next as usize].prev = prev;
        }
    }

    /// I2 and I5.
    pub fn check(&self) {
        let mut total = 0;
        for (number, list) in self.lists.iter().enumerate() {
            let (mut at, mut before, mut len) = (list.head, NIL, 0);
            while at != NIL {
                let frame = &self.table[at as usize];
                assert!(frame.used, "I2: free frame {at} on list {number}");
                assert_eq!(frame.place.index(), number, "I2: frame {at} on a foreign list");
                assert_eq!(frame.prev, before, "I2: back link of frame {at}");
                (before, at, len) = (at, frame.next, len + 1);
            }
            assert_eq!((list.tail, list.len), (before, len), "I2: end and length of list {number}");
            total += len;
        }
        assert_eq!(total as usize, self.in_use(), "I2: frames on no list");
        let (zone, beyond) = self.stock.in_use();
        assert_eq!((zone + beyond) as usize, self.in_use(), "I5: frames given out");
        assert_eq!(self.stock.check(), Ok(()), "I5");
    }
}
