//! Sizes of blocks of page frames: orders, and the pageblock.

/// Order of the largest block, which has `1 << MAX_ORDER` frames.
pub const MAX_ORDER: u8 = 10;
/// Number of orders.
pub const ORDERS: usize = MAX_ORDER as usize + 1;
/// log2 of the frames in a pageblock, the unit that carries a migratetype. Also the order of a huge
/// page.
pub const PAGEBLOCK_ORDER: u8 = 9;
/// Frames in a pageblock.
pub const PAGEBLOCK_PAGES: u32 = 1 << PAGEBLOCK_ORDER;
/// Frames in a block of the largest order.
pub const MAX_BLOCK_PAGES: u32 = 1 << MAX_ORDER;

/// Order of a block: log2 of its frames, at most [`MAX_ORDER`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Order(u8);

impl Order {
    /// The order of one frame.
    pub const ZERO: Self = Self(0);
    /// The order of a huge page.
    pub const HUGE: Self = Self(PAGEBLOCK_ORDER);
    /// The order of the largest block.
    pub const MAX: Self = Self(MAX_ORDER);

    /// Returns `order` if the allocator has blocks of it.
    #[must_use]
    pub const fn new(order: u8) -> Option<Self> {
        if order <= MAX_ORDER { Some(Self(order)) } else { None }
    }

    /// Returns the order as a number.
    #[must_use]
    #[inline(always)]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the number of frames in a block of this order.
    #[must_use]
    #[inline(always)]
    pub const fn pages(self) -> u32 {
        1 << self.0
    }
}
