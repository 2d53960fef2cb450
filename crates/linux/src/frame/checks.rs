//! The frame table of checked mode: the state of each frame, and whether a user still has it.
//!
//! The table exists only if checks are on. A block's state is that of its first frame:
//!
//! ```text
//! Hole -- never memory of a zone, or reserved at start
//! Free -> Used(order)     [mark_used, as the block leaves the allocator]
//! Used(order) -> Free     [mark_free, as it comes back; refused if it does not fit]
//! Free -> Bad             [a sanity check failed: the block is leaked, never used again]
//! ```
//! The other frames of a used block stay `Free`, so only the first frame can be freed. Both
//! transitions are compare-and-swap. If two threads free one frame, one of them is refused.

use std::fmt;

use super::kinds::Order;
use super::sync::{AcqRel, Acquire, AtomicU32, AtomicU64, Relaxed, Release};
use ebb_mm::types::Pfn;

const HOLE: u32 = 0;
const FREE: u32 = 1;
const BAD: u32 = 2;
const USED: u32 = 0x100;

/// The state of one frame, and the counts that must be zero for the frame to be free.
#[derive(Debug)]
struct Frame {
    state: AtomicU32,
    pins: AtomicU32,
    maps: AtomicU32,
    group: AtomicU32,
    owner: AtomicU64,
}

/// The reason why a free was refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum BadUse {
    /// No zone has the frame.
    Foreign,
    /// The frame is a hole or was reserved from the start.
    Reserved,
    /// The frame is free already, or inside a larger block.
    NotAllocated,
    /// The block was allocated with another order.
    WrongOrder {
        /// The order it was allocated with.
        allocated: u8,
    },
    /// The frame number is not a multiple of the block's size.
    Misaligned,
    /// A frame of the block is still mapped, pinned or owned.
    InUse {
        /// The frame in use: the freed frame or a later one of the block.
        frame: Pfn,
    },
    /// The block was leaked earlier because a check failed.
    Bad,
}

/// A free that was refused. It changed nothing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct BadFree {
    /// The block's first frame.
    pub pfn: Pfn,
    /// The order it was freed with.
    pub order: u8,
    /// The reason for the refusal.
    pub why: BadUse,
}

impl fmt::Display for BadFree {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bad free of frame {:#x} at order {}: ", self.pfn.0, self.order)?;
        match self.why {
            BadUse::Foreign => write!(f, "no zone has it"),
            BadUse::Reserved => write!(f, "it is a hole or reserved"),
            BadUse::NotAllocated => write!(f, "it is free, or inside a larger block"),
            BadUse::WrongOrder { allocated } => write!(f, "it was allocated at order {allocated}"),
            BadUse::Misaligned => write!(f, "it is not aligned to the order"),
            BadUse::InUse { frame } => write!(f, "frame {:#x} is still in use", frame.0),
            BadUse::Bad => write!(f, "it was leaked after a failed check"),
        }
    }
}

impl std::error::Error for BadFree {}

/// The frame table of checked mode.
#[derive(Debug)]
pub struct FrameTable {
    frames: Box<[Frame]>,
}

impl FrameTable {
    /// Creates a table for frames `0..end`, all holes.
    #[must_use]
    pub fn new(end: u32) -> Self {
        let hole = |_| Frame {
            state: AtomicU32::new(HOLE),
            pins: AtomicU32::new(0),
            maps: AtomicU32::new(0),
            group: AtomicU32::new(0),
            owner: AtomicU64::new(0),
        };
        Self { frames: (0..end).map(hole).collect() }
    }

    /// Returns the bytes that the table takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        std::mem::size_of_val(&*self.frames)
    }

    /// Marks `pfn` as memory that is free.
    pub(super) fn add_memory(&self, pfn: u32) {
        self.frames[pfn as usize].state.store(FREE, Relaxed);
    }

    /// Pins `pfn` for a user (device I/O, a second user). Frees of the frame are refused until it
    /// is unpinned.
    pub fn pin(&self, pfn: Pfn) {
        self.frames[pfn.0 as usize].pins.fetch_add(1, Relaxed);
    }

    /// Ends one [`pin`](Self::pin).
    pub fn unpin(&self, pfn: Pfn) {
        let before = self.frames[pfn.0 as usize].pins.fetch_sub(1, Relaxed);
        assert!(before > 0, "frame {:#x} unpinned more often than pinned", pfn.0);
    }

    /// Records how often `pfn` is mapped and for which owner. All values must be zero before a
    /// free.
    pub fn set_use(&self, pfn: Pfn, maps: u32, group: u32, owner: u64) {
        let frame = &self.frames[pfn.0 as usize];
        frame.maps.store(maps, Relaxed);
        frame.group.store(group, Relaxed);
        frame.owner.store(owner, Relaxed);
    }

    #[inline]
    fn at_rest(frame: &Frame) -> bool {
        let quiet = frame.pins.load(Relaxed) | frame.maps.load(Relaxed) | frame.group.load(Relaxed);
        u64::from(quiet) | frame.owner.load(Relaxed) == 0
    }

    /// Whether every frame of a block that is being allocated is free and unused. If not, the block
    /// is marked so that it is never used again, and the caller must drop it.
    #[must_use]
    pub(super) fn sane(&self, pfn: u32, order: Order) -> bool {
        let block = &self.frames[pfn as usize..(pfn + order.pages()) as usize];
        if block.iter().all(|f| f.state.load(Relaxed) == FREE && Self::at_rest(f)) {
            return true;
        }
        for frame in block {
            let _ = frame.state.compare_exchange(FREE, BAD, Relaxed, Relaxed);
        }
        false
    }

    /// Marks a block as allocated. Returns false if it is not free.
    #[must_use]
    pub(super) fn mark_used(&self, pfn: u32, order: Order) -> bool {
        let used = USED | u32::from(order.get());
        let state = &self.frames[pfn as usize].state;
        // Acquire pairs with the Release of the free that made it Free.
        state.compare_exchange(FREE, used, AcqRel, Relaxed).is_ok()
    }

    /// Marks a block as free. `all`: checks every frame, not only the first.
    pub(super) fn mark_free(&self, pfn: Pfn, order: Order, all: bool) -> Result<(), BadFree> {
        let fail = |why| Err(BadFree { pfn, order: order.get(), why });
        if pfn.0 & (order.pages() - 1) != 0 {
            return fail(BadUse::Misaligned);
        }
        let end = pfn.0 as usize + order.pages() as usize;
        let Some(block) = self.frames.get(pfn.0 as usize..end) else {
            return fail(BadUse::Foreign);
        };
        let used = USED | u32::from(order.get());
        let seen = block[0].state.load(Acquire);
        if seen != used {
            return fail(Self::misuse(seen));
        }
        let looked_at = if all { block } else { &block[..1] };
        if let Some(at) = looked_at.iter().position(|f| !Self::at_rest(f)) {
            return fail(BadUse::InUse { frame: Pfn(pfn.0 + at as u32) });
        }
        match block[0].state.compare_exchange(used, FREE, Release, Relaxed) {
            Ok(_) => Ok(()),
            Err(now) => fail(Self::misuse(now)),
        }
    }

    fn misuse(state: u32) -> BadUse {
        match state {
            HOLE => BadUse::Reserved,
            FREE => BadUse::NotAllocated,
            BAD => BadUse::Bad,
            used => BadUse::WrongOrder { allocated: (used & 0xff) as u8 },
        }
    }
}
