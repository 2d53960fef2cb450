//! The frame table: one descriptor for each page in memory, and the lists of frames that are not on
//! the LRU.
//!
//! Frame numbers come from the allocator ([`FrameIds`]). The table is as long as the highest number
//! allocated. The engine's descriptors ([`Folios`]) hold the links. This file adds the data that
//! the LRU does not need: the owner's pool slot, and the state of a frame that is off the LRU's
//! lists.

use super::frame_ids::FrameIds;
use super::zone::ZONE_MAX;
use crate::folio::{Folios, LruType, MemcgId, Word};
use crate::lru::list::List;
use crate::types::{MmId, Pfn, SlotId, Vpn};

/// Pool slot value for "not in the pool". A pool has less than 2 TiB.
pub const NO_POOL: u32 = (1 << Beside::POOL_BITS) - 1;

/// The memcg of all frames.
pub const MEMCG: MemcgId = MemcgId(1);

/// The state of a frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum FrameState {
    /// Free.
    Free,
    /// On the lists of the LRU.
    Lru,
    /// Off the LRU's lists, and reclaimed before all frames on them.
    First,
    /// Isolated: off the LRU's lists, to be moved to standby.
    Isolated,
    /// On standby: unmapped from the program.
    Standby,
    /// On standby, but the store refuses its present content. It stays until a fault reactivates
    /// it.
    Unstorable,
    /// Unevictable: cannot leave memory for now.
    Unevictable,
}

/// The data about a frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// Address space that owns the page.
    pub mm: MmId,
    /// Page number in that address space.
    pub vpn: Vpn,
    /// State of the frame, which says the list it is on.
    pub state: FrameState,
    /// Slot in the owner's pool while the page is on standby.
    pub pool: u32,
    slot: Option<SlotId>,
}

impl Frame {
    /// Returns the slot of the stored copy that was valid when the page was loaded.
    #[must_use]
    pub fn slot(&self) -> Option<SlotId> {
        self.slot
    }
}

/// The data of a frame beside the engine's descriptor: its state, and its slot in the owner's pool.
#[derive(Clone, Copy, Debug)]
struct Beside(u32);

impl Beside {
    const POOL_BITS: u32 = 29;
    /// The states by their numbers.
    const STATES: [FrameState; 8] = [
        FrameState::Free,
        FrameState::Lru,
        FrameState::First,
        FrameState::Isolated,
        FrameState::Standby,
        FrameState::Unstorable,
        FrameState::Unevictable,
        FrameState::Free,
    ];

    const _NUMBERED: () = {
        let mut number = 0;
        while number < Self::STATES.len() - 1 {
            assert!(Self::STATES[number] as usize == number, "a place under another's number");
            number += 1;
        }
    };

    const fn new(state: FrameState, pool: u32) -> Self {
        const { Self::_NUMBERED };
        assert!(pool <= NO_POOL, "a place beyond the largest pool");
        Self((state as u32) << Self::POOL_BITS | pool)
    }

    const fn state(self) -> FrameState {
        Self::STATES[(self.0 >> Self::POOL_BITS) as usize]
    }

    const fn pool(self) -> u32 {
        self.0 & NO_POOL
    }
}

/// The frame table: the engine's descriptors and the data beside them.
///
/// It takes 36 bytes a page. Ebb may use 40 in all.
#[derive(Debug)]
pub struct Frames {
    folios: Folios,
    beside: Vec<Beside>,
    used: usize,
    isolated: u64,
    frame_ids: FrameIds,
    first: List,
    standby: List,
    unstorable: List,
    unevictable: List,
}

impl Frames {
    /// Creates a table for a budget of `limit` pages.
    pub fn new(limit: u64) -> Self {
        // Reserve the memory now. Reserved memory that is never used costs nothing, and tables that
        // move leave holes.
        let frames = limit.min(ZONE_MAX) as usize;
        Self {
            folios: Folios::with_capacity(frames),
            beside: Vec::with_capacity(frames),
            used: 0,
            isolated: 0,
            frame_ids: FrameIds::default(),
            first: List::default(),
            standby: List::default(),
            unstorable: List::default(),
            unevictable: List::default(),
        }
    }

    /// Returns the engine's descriptors, for the LRU.
    pub fn folios(&self) -> &Folios {
        &self.folios
    }

    pub fn get(&self, pfn: Pfn) -> Frame {
        let beside = self.beside[pfn.0 as usize];
        let (state, pool) = (beside.state(), beside.pool());
        assert!(state != FrameState::Free, "frame {} looked at while free", pfn.0);
        let (mm, vpn) = self.folios.owner(pfn);
        Frame { mm, vpn, state, pool, slot: self.folios.store_slot(pfn).map(SlotId) }
    }

    pub fn state(&self, pfn: Pfn) -> FrameState {
        self.beside.get(pfn.0 as usize).map_or(FrameState::Free, |beside| beside.state())
    }

    pub fn in_use(&self) -> usize {
        self.used
    }

    /// Returns the number of frames in a state that is not the LRU's.
    pub fn len(&self, state: FrameState) -> u64 {
        match state {
            FrameState::First => self.first.len().into(),
            FrameState::Standby => self.standby.len().into(),
            FrameState::Unstorable => self.unstorable.len().into(),
            FrameState::Unevictable => self.unevictable.len().into(),
            FrameState::Isolated => self.isolated,
            FrameState::Lru | FrameState::Free => unreachable!("counted elsewhere"),
        }
    }

    /// Allocates a frame for a page; its state is isolated.
    pub fn allocate(&mut self, mm: MmId, vpn: Vpn, slot: Option<SlotId>) -> Pfn {
        let pfn = self.frame_ids.take();
        let at = pfn.0 as usize;
        if at >= self.beside.len() {
            self.folios.grow(pfn.0 + 1);
            self.beside.resize(at + 1, Beside::new(FrameState::Free, NO_POOL));
        }
        self.folios.init(pfn, Word::new(LruType::Anon, 0, 0), MEMCG, mm, vpn);
        self.set_slot(pfn, slot);
        self.beside[at] = Beside::new(FrameState::Isolated, NO_POOL);
        self.isolated += 1;
        self.used += 1;
        pfn
    }

    /// Frees an isolated frame.
    pub fn free(&mut self, pfn: Pfn) {
        self.leave(pfn, FrameState::Isolated);
        self.set_state(pfn, FrameState::Free);
        self.used -= 1;
        self.frame_ids.give(pfn);
    }

    /// Moves a frame from one state to another, to the young end of a list. If one of them is the
    /// LRU's, the caller has put the frame on the LRU's lists or removed it.
    pub fn put(&mut self, pfn: Pfn, from: FrameState, to: FrameState) {
        self.leave(pfn, from);
        self.set_state(pfn, to);
        match to {
            FrameState::First => self.first.push_head(&self.folios, pfn),
            FrameState::Standby => self.standby.push_head(&self.folios, pfn),
            FrameState::Unstorable => self.unstorable.push_head(&self.folios, pfn),
            FrameState::Unevictable => self.unevictable.push_head(&self.folios, pfn),
            FrameState::Isolated => self.isolated += 1,
            FrameState::Lru => {}
            FrameState::Free => unreachable!("frames are freed by name"),
        }
    }

    /// Makes an isolated frame the next one to be reclaimed.
    pub fn put_first(&mut self, pfn: Pfn) {
        self.leave(pfn, FrameState::Isolated);
        self.set_state(pfn, FrameState::First);
        self.first.push_tail(&self.folios, pfn);
    }

    fn set_state(&mut self, pfn: Pfn, state: FrameState) {
        let beside = &mut self.beside[pfn.0 as usize];
        *beside = Beside::new(state, beside.pool());
    }

    fn leave(&mut self, pfn: Pfn, from: FrameState) {
        let state = self.state(pfn);
        assert!(state == from, "frame {} is {state:?}, not {from:?}", pfn.0);
        match from {
            FrameState::First => self.first.remove(&self.folios, pfn),
            FrameState::Standby => self.standby.remove(&self.folios, pfn),
            FrameState::Unstorable => self.unstorable.remove(&self.folios, pfn),
            FrameState::Unevictable => self.unevictable.remove(&self.folios, pfn),
            FrameState::Isolated => self.isolated -= 1,
            FrameState::Lru => {}
            FrameState::Free => unreachable!("a free frame is on no list"),
        }
    }

    /// Returns the oldest frame in a state.
    pub fn last(&self, state: FrameState) -> Option<Pfn> {
        self.list(state).tail()
    }

    /// Returns up to `max` of the oldest frames in a state, oldest first.
    pub fn tail_of(&self, state: FrameState, max: usize, into: &mut Vec<Pfn>) {
        let mut at = self.list(state).tail();
        for _ in 0..max {
            let Some(pfn) = at else { break };
            into.push(pfn);
            at = List::newer(&self.folios, pfn);
        }
    }

    fn list(&self, state: FrameState) -> &List {
        match state {
            FrameState::First => &self.first,
            FrameState::Standby => &self.standby,
            FrameState::Unstorable => &self.unstorable,
            FrameState::Unevictable => &self.unevictable,
            FrameState::Lru | FrameState::Isolated | FrameState::Free => {
                unreachable!("no list of its own")
            }
        }
    }

    pub fn set_pool(&mut self, pfn: Pfn, pool: u32) -> u32 {
        let beside = &mut self.beside[pfn.0 as usize];
        let old = beside.pool();
        *beside = Beside::new(beside.state(), pool);
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

    /// Checks RESIDENT-2 and RESIDENT-5, with `on_lru` frames on the LRU's lists.
    pub fn check(&self, on_lru: u64) {
        for state in [
            FrameState::First,
            FrameState::Standby,
            FrameState::Unstorable,
            FrameState::Unevictable,
        ] {
            let list = self.list(state);
            list.check(&self.folios);
            for pfn in list.order(&self.folios) {
                assert_eq!(self.state(pfn), state, "RESIDENT-2: frame {} on a foreign list", pfn.0);
                assert!(
                    !self.folios.word(pfn).has(Word::LRU),
                    "RESIDENT-2: frame {} on two lists",
                    pfn.0
                );
            }
        }
        let state = || self.beside.iter().map(|beside| beside.state());
        let count = |wanted| state().filter(|&state| state == wanted).count() as u64;
        let others = [
            FrameState::First,
            FrameState::Standby,
            FrameState::Unstorable,
            FrameState::Unevictable,
            FrameState::Isolated,
        ];
        for state in others {
            assert_eq!(count(state), self.len(state), "RESIDENT-2: frames {state:?}");
        }
        assert_eq!(count(FrameState::Lru), on_lru, "RESIDENT-2: frames on the LRU's lists");
        assert_eq!(
            self.beside.len() as u64 - count(FrameState::Free),
            self.used as u64,
            "RESIDENT-2: in use"
        );
        assert_eq!(self.frame_ids.check(self.in_use()), Ok(()), "RESIDENT-5: frames given out");
    }
}
