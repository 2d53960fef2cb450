//! The frame table: one descriptor for each page in memory, and the lists of those the LRU does not have.
//!
//! A frame's number is the allocator's ([`Stock`]); the table is as long as the highest one given out.
//! Descriptor and links are the engine's ([`Folios`]). What the LRU knows nothing of is here: the place
//! in the owner's pool, and where a frame is that was taken off its lists.

use super::stock::{Stock, ZONE_MAX};
use crate::folio::{Folios, LruType, MemcgId, Word};
use crate::frame::watermark::Marks;
use crate::lru::list::List;
use crate::types::{MmId, Pfn, SlotId, Vpn};

/// Not in the pool. A pool has less than 2 TiB.
pub const NO_POOL: u32 = (1 << Beside::POOL_BITS) - 1;

/// The memcg of all of them.
pub const MEMCG: MemcgId = MemcgId(1);

/// Where a frame is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Place {
    /// Nowhere: it is free.
    Free,
    /// On the LRU's lists.
    Lru,
    /// Off them, to be taken before all that are on them.
    First,
    /// Taken for cooling.
    Isolated,
    /// Out of the program's sight.
    Cool,
    /// The same, and as it is the store takes no copy of it: it stays until it is touched.
    Barren,
    /// Cannot leave memory for now.
    Parked,
}

/// What is known of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The address space whose page it holds.
    pub mm: MmId,
    /// Which page of that.
    pub vpn: Vpn,
    /// The list it is on.
    pub place: Place,
    /// Where it lies in the owner's pool while cool.
    pub pool: u32,
    slot: Option<SlotId>,
}

impl Frame {
    /// The stored copy that was true when the page was brought in.
    #[must_use]
    pub fn slot(&self) -> Option<SlotId> {
        self.slot
    }
}

/// What the engine's descriptor does not say of a frame: where it is, and its place in the owner's pool.
#[derive(Clone, Copy, Debug)]
struct Beside(u32);

impl Beside {
    const POOL_BITS: u32 = 29;
    /// By their numbers.
    const PLACES: [Place; 8] = [
        Place::Free,
        Place::Lru,
        Place::First,
        Place::Isolated,
        Place::Cool,
        Place::Barren,
        Place::Parked,
        Place::Free,
    ];

    const _NUMBERED: () = {
        let mut number = 0;
        while number < Self::PLACES.len() - 1 {
            assert!(Self::PLACES[number] as usize == number, "a place under another's number");
            number += 1;
        }
    };

    const fn new(place: Place, pool: u32) -> Self {
        const { Self::_NUMBERED };
        assert!(pool <= NO_POOL, "a place beyond the largest pool");
        Self((place as u32) << Self::POOL_BITS | pool)
    }

    const fn place(self) -> Place {
        Self::PLACES[(self.0 >> Self::POOL_BITS) as usize]
    }

    const fn pool(self) -> u32 {
        self.0 & NO_POOL
    }
}

/// The table. What the engine's descriptor does not say is beside it.
///
/// 36 bytes a page: Ebb may use 40 in all.
#[derive(Debug)]
pub struct Frames {
    folios: Folios,
    beside: Vec<Beside>,
    used: usize,
    isolated: u64,
    stock: Stock,
    first: List,
    cool: List,
    barren: List,
    parked: List,
}

impl Frames {
    /// Frames for a budget of `limit` pages.
    pub fn new(limit: u64) -> Self {
        // Memory that is never used costs nothing, and tables that move leave holes behind.
        let frames = limit.min(ZONE_MAX) as usize;
        Self {
            folios: Folios::with_capacity(frames),
            beside: Vec::with_capacity(frames),
            used: 0,
            isolated: 0,
            stock: Stock::new(limit),
            first: List::default(),
            cool: List::default(),
            barren: List::default(),
            parked: List::default(),
        }
    }

    /// The watermarks of the budget's zone.
    pub fn marks(&self) -> Marks {
        self.stock.marks()
    }

    /// The descriptors, for the LRU.
    pub fn folios(&self) -> &Folios {
        &self.folios
    }

    pub fn get(&self, pfn: Pfn) -> Frame {
        let beside = self.beside[pfn.0 as usize];
        let (place, pool) = (beside.place(), beside.pool());
        assert!(place != Place::Free, "frame {} looked at while free", pfn.0);
        let (mm, vpn) = self.folios.owner(pfn);
        Frame { mm, vpn, place, pool, slot: self.folios.store_slot(pfn).map(SlotId) }
    }

    pub fn place(&self, pfn: Pfn) -> Place {
        self.beside.get(pfn.0 as usize).map_or(Place::Free, |beside| beside.place())
    }

    pub fn in_use(&self) -> usize {
        self.used
    }

    /// Frames in a place that is not the LRU's.
    pub fn len(&self, place: Place) -> u64 {
        match place {
            Place::First => self.first.len().into(),
            Place::Cool => self.cool.len().into(),
            Place::Barren => self.barren.len().into(),
            Place::Parked => self.parked.len().into(),
            Place::Isolated => self.isolated,
            Place::Lru | Place::Free => unreachable!("counted elsewhere"),
        }
    }

    /// A frame for a page, isolated.
    pub fn allocate(&mut self, mm: MmId, vpn: Vpn, slot: Option<SlotId>) -> Pfn {
        let pfn = self.stock.take();
        let at = pfn.0 as usize;
        if at >= self.beside.len() {
            self.folios.grow(pfn.0 + 1);
            self.beside.resize(at + 1, Beside::new(Place::Free, NO_POOL));
        }
        self.folios.init(pfn, Word::new(LruType::Anon, 0, 0), MEMCG, mm, vpn);
        self.set_slot(pfn, slot);
        self.beside[at] = Beside::new(Place::Isolated, NO_POOL);
        self.isolated += 1;
        self.used += 1;
        pfn
    }

    /// Gives an isolated frame back.
    pub fn free(&mut self, pfn: Pfn) {
        self.leave(pfn, Place::Isolated);
        self.set_place(pfn, Place::Free);
        self.used -= 1;
        self.stock.give(pfn);
    }

    /// Moves a frame from one place to another, to the young end. Who moves one to or from the LRU's
    /// lists has put it on them or taken it off.
    pub fn put(&mut self, pfn: Pfn, from: Place, to: Place) {
        self.leave(pfn, from);
        self.set_place(pfn, to);
        match to {
            Place::First => self.first.push_head(&self.folios, pfn),
            Place::Cool => self.cool.push_head(&self.folios, pfn),
            Place::Barren => self.barren.push_head(&self.folios, pfn),
            Place::Parked => self.parked.push_head(&self.folios, pfn),
            Place::Isolated => self.isolated += 1,
            Place::Lru => {}
            Place::Free => unreachable!("frames are freed by name"),
        }
    }

    /// An isolated frame becomes the next to be taken.
    pub fn put_first(&mut self, pfn: Pfn) {
        self.leave(pfn, Place::Isolated);
        self.set_place(pfn, Place::First);
        self.first.push_tail(&self.folios, pfn);
    }

    fn set_place(&mut self, pfn: Pfn, place: Place) {
        let beside = &mut self.beside[pfn.0 as usize];
        *beside = Beside::new(place, beside.pool());
    }

    fn leave(&mut self, pfn: Pfn, from: Place) {
        let place = self.place(pfn);
        assert!(place == from, "frame {} is {place:?}, not {from:?}", pfn.0);
        match from {
            Place::First => self.first.remove(&self.folios, pfn),
            Place::Cool => self.cool.remove(&self.folios, pfn),
            Place::Barren => self.barren.remove(&self.folios, pfn),
            Place::Parked => self.parked.remove(&self.folios, pfn),
            Place::Isolated => self.isolated -= 1,
            Place::Lru => {}
            Place::Free => unreachable!("a free frame is on no list"),
        }
    }

    /// The oldest frame of a place.
    pub fn last(&self, place: Place) -> Option<Pfn> {
        self.list(place).tail()
    }

    /// The oldest frames of a place, up to `max`, oldest first.
    pub fn tail_of(&self, place: Place, max: usize, into: &mut Vec<Pfn>) {
        let mut at = self.list(place).tail();
        for _ in 0..max {
            let Some(pfn) = at else { break };
            into.push(pfn);
            at = List::newer(&self.folios, pfn);
        }
    }

    fn list(&self, place: Place) -> &List {
        match place {
            Place::First => &self.first,
            Place::Cool => &self.cool,
            Place::Barren => &self.barren,
            Place::Parked => &self.parked,
            Place::Lru | Place::Isolated | Place::Free => unreachable!("no list of its own"),
        }
    }

    pub fn set_pool(&mut self, pfn: Pfn, pool: u32) -> u32 {
        let beside = &mut self.beside[pfn.0 as usize];
        let old = beside.pool();
        *beside = Beside::new(beside.place(), pool);
        old
    }

    pub fn set_vpn(&mut self, pfn: Pfn, vpn: Vpn) {
        let (mm, _) = self.folios.owner(pfn);
        self.folios.set_owner(pfn, mm, vpn);
    }

    pub fn set_slot(&mut self, pfn: Pfn, slot: Option<SlotId>) -> Option<SlotId> {
        let old = self.folios.store_slot(pfn).map(SlotId);
        self.folios.set_store_slot(pfn, slot.map(|slot| slot.0));
        match slot {
            Some(_) => self.folios.set(pfn, Word::SWAPCACHE),
            None => self.folios.clear(pfn, Word::SWAPCACHE),
        };
        old
    }

    /// RESIDENT-2 and RESIDENT-5, with so many frames on the LRU's lists.
    pub fn check(&self, on_lru: u64) {
        for place in [Place::First, Place::Cool, Place::Barren, Place::Parked] {
            let list = self.list(place);
            list.check(&self.folios);
            for pfn in list.order(&self.folios) {
                assert_eq!(self.place(pfn), place, "RESIDENT-2: frame {} on a foreign list", pfn.0);
                assert!(
                    !self.folios.word(pfn).has(Word::LRU),
                    "RESIDENT-2: frame {} on two lists",
                    pfn.0
                );
            }
        }
        let places = || self.beside.iter().map(|beside| beside.place());
        let count = |wanted| places().filter(|&place| place == wanted).count() as u64;
        let others = [Place::First, Place::Cool, Place::Barren, Place::Parked, Place::Isolated];
        for place in others {
            assert_eq!(count(place), self.len(place), "RESIDENT-2: frames {place:?}");
        }
        assert_eq!(count(Place::Lru), on_lru, "RESIDENT-2: frames on the LRU's lists");
        assert_eq!(
            self.beside.len() as u64 - count(Place::Free),
            self.used as u64,
            "RESIDENT-2: in use"
        );
        let (zone, beyond) = self.stock.in_use();
        assert_eq!((zone + beyond) as usize, self.in_use(), "RESIDENT-5: frames given out");
        assert_eq!(self.stock.check(), Ok(()), "RESIDENT-5");
    }
}
