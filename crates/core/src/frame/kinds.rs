//! The nouns of the page-frame allocator: orders, migratetypes, zone kinds, request and test flags.

use std::fmt;

/// The largest block is `1 << MAX_ORDER` frames.
pub const MAX_ORDER: u8 = 10;
/// Number of orders.
pub const ORDERS: usize = MAX_ORDER as usize + 1;
/// log2 of the frames in a pageblock, the unit that carries a migratetype; the order of a huge
/// page.
pub const PAGEBLOCK_ORDER: u8 = 9;
/// Frames in a pageblock.
pub const PAGEBLOCK_PAGES: u32 = 1 << PAGEBLOCK_ORDER;
/// Requests above this order are costly: they are not retried for ever.
pub const COSTLY_ORDER: u8 = 3;
/// Frames in a block of the largest order.
pub const MAX_BLOCK_PAGES: u32 = 1 << MAX_ORDER;

/// log2 of a block's frames, at most [`MAX_ORDER`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Order(u8);

impl Order {
    /// One frame.
    pub const ZERO: Self = Self(0);
    /// A huge page.
    pub const HUGE: Self = Self(PAGEBLOCK_ORDER);
    /// The largest block.
    pub const MAX: Self = Self(MAX_ORDER);

    /// `order`, if the allocator has blocks of it.
    #[must_use]
    pub const fn new(order: u8) -> Option<Self> {
        if order <= MAX_ORDER { Some(Self(order)) } else { None }
    }

    /// As a number.
    #[must_use]
    #[inline(always)]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Frames in a block of this order.
    #[must_use]
    #[inline(always)]
    pub const fn pages(self) -> u32 {
        1 << self.0
    }
}

/// What may be done with the frames of a pageblock, and so which requests it serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Migratetype {
    /// Frames that stay where they are.
    Unmovable = 0,
    /// Frames whose contents can be moved.
    Movable = 1,
    /// Frames that can be given back on request.
    Reclaimable = 2,
    /// Kept for high-order requests that cannot wait.
    HighAtomic = 3,
    /// Lent to movable requests until a contiguous range is asked for.
    Cma = 4,
    /// Taken out of use.
    Isolate = 5,
}

impl Migratetype {
    /// All, in the order of the kernel's tables.
    pub const ALL: [Self; 6] = [
        Self::Unmovable,
        Self::Movable,
        Self::Reclaimable,
        Self::HighAtomic,
        Self::Cma,
        Self::Isolate,
    ];

    /// From its number; numbers beyond the last are `Isolate`.
    #[must_use]
    #[inline(always)]
    pub const fn from_bits(bits: u8) -> Self {
        match bits {
            0 => Self::Unmovable,
            1 => Self::Movable,
            2 => Self::Reclaimable,
            3 => Self::HighAtomic,
            4 => Self::Cma,
            _ => Self::Isolate,
        }
    }

    /// Its place in tables.
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Blocks of two mergeable types may merge; the others keep to themselves.
    #[must_use]
    pub const fn mergeable(self) -> bool {
        matches!(self, Self::Unmovable | Self::Movable | Self::Reclaimable)
    }

    /// Whose blocks to take when this type has none left, nearest first.
    #[must_use]
    pub const fn fallbacks(self) -> &'static [Self] {
        match self {
            Self::Unmovable => &[Self::Reclaimable, Self::Movable],
            Self::Movable => &[Self::Reclaimable, Self::Unmovable],
            Self::Reclaimable => &[Self::Unmovable, Self::Movable],
            _ => &[],
        }
    }

    /// The list of a per-CPU set that holds frames of this type; `None` for isolated frames.
    #[must_use]
    #[inline(always)]
    pub const fn pcp_list(self) -> Option<usize> {
        match self {
            Self::Unmovable => Some(0),
            Self::Movable | Self::HighAtomic | Self::Cma => Some(1),
            Self::Reclaimable => Some(2),
            Self::Isolate => None,
        }
    }

    /// The name in pagetypeinfo.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unmovable => "Unmovable",
            Self::Movable => "Movable",
            Self::Reclaimable => "Reclaimable",
            Self::HighAtomic => "HighAtomic",
            Self::Cma => "CMA",
            Self::Isolate => "Isolate",
        }
    }
}

/// The classes of memory, lowest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ZoneKind {
    /// The first 16 MiB.
    Dma,
    /// Below 4 GiB.
    Dma32,
    /// Ordinary memory.
    Normal,
    /// Memory without a permanent mapping.
    HighMem,
    /// Memory for movable frames only.
    Movable,
    /// Memory of devices.
    Device,
}

impl ZoneKind {
    /// The name in zoneinfo.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Dma => "DMA",
            Self::Dma32 => "DMA32",
            Self::Normal => "Normal",
            Self::HighMem => "HighMem",
            Self::Movable => "Movable",
            Self::Device => "Device",
        }
    }

    /// High zones are left out of the low-memory sums that watermarks are shared out by.
    #[must_use]
    pub const fn is_high(self) -> bool {
        matches!(self, Self::HighMem | Self::Movable)
    }

    /// The default divisor of the memory that higher classes may not take from this zone.
    #[must_use]
    pub const fn reserve_ratio(self) -> u64 {
        match self {
            Self::Dma | Self::Dma32 => 256,
            Self::Normal => 32,
            _ => 0,
        }
    }
}

macro_rules! flag_set {
    ($(#[$doc:meta])* $name:ident { $($(#[$fdoc:meta])* $flag:ident = $bit:expr;)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $name(u32);

        impl $name {
            /// No flag.
            pub const NONE: Self = Self(0);
            $($(#[$fdoc])* pub const $flag: Self = Self(1 << $bit);)*

            /// Whether all of `flags` are set.
            #[must_use]
            #[inline(always)]
            pub const fn has(self, flags: Self) -> bool {
                self.0 & flags.0 == flags.0
            }

            /// Whether any of `flags` is set.
            #[must_use]
            #[inline(always)]
            pub const fn any(self, flags: Self) -> bool {
                self.0 & flags.0 != 0
            }

            /// With `flags`.
            #[must_use]
            #[inline(always)]
            pub const fn with(self, flags: Self) -> Self {
                Self(self.0 | flags.0)
            }

            /// With `flags` if `on`.
            #[must_use]
            pub const fn with_if(self, flags: Self, on: bool) -> Self {
                if on { self.with(flags) } else { self }
            }

            /// Without `flags`.
            #[must_use]
            #[inline(always)]
            pub const fn without(self, flags: Self) -> Self {
                Self(self.0 & !flags.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut first = true;
                $(if self.has(Self::$flag) {
                    if !first { f.write_str("|")?; }
                    first = false;
                    f.write_str(stringify!($flag))?;
                })*
                if first { f.write_str("NONE")?; }
                Ok(())
            }
        }
    };
}

flag_set! {
    /// How one attempt tests watermarks and chooses blocks.
    AllocFlags {
        /// The caller cannot wait.
        NON_BLOCK = 0;
        /// May use half of the minimum reserve.
        MIN_RESERVE = 1;
        /// May use blocks kept for high-order requests that cannot wait.
        HIGHATOMIC = 2;
        /// An OOM victim on its way out.
        OOM = 3;
        /// May use CMA blocks.
        CMA = 4;
        /// Rather another zone than mixed pageblocks.
        NOFRAGMENT = 5;
        /// May wake kswapd.
        KSWAPD = 6;
        /// Watermarks do not apply.
        NO_WATERMARKS = 7;
    }
}

flag_set! {
    /// What a request allows and where it may be served.
    Gfp {
        /// From the DMA zone.
        DMA = 0;
        /// From DMA32 or below.
        DMA32 = 1;
        /// May use high memory.
        HIGHMEM = 2;
        /// The contents can be moved.
        MOVABLE = 3;
        /// The contents can be given back.
        RECLAIMABLE = 4;
        /// Important: may use reserves.
        HIGH = 5;
        /// May start storage I/O.
        IO = 6;
        /// May call into file systems.
        FS = 7;
        /// May reclaim on its own time.
        DIRECT = 8;
        /// May wake kswapd.
        KSWAPD = 9;
        /// The frame is about to be written: mind dirty limits.
        WRITE = 10;
        /// Try hard, but do not kill for it.
        RETRY_MAYFAIL = 11;
        /// Must not fail.
        NOFAIL = 12;
        /// Give up after one round.
        NORETRY = 13;
        /// The caller frees memory: watermarks do not apply.
        MEMALLOC = 14;
        /// Reserves are off limits whatever else is said.
        NOMEMALLOC = 15;
        /// Only from the given node.
        THISNODE = 16;
        /// Keep to the cpuset.
        HARDWALL = 17;
        /// A compound page.
        COMP = 18;
        /// No warning on failure.
        NOWARN = 19;
    }
}

impl Gfp {
    /// May reclaim and may wake kswapd.
    pub const RECLAIM: Self = Self::DIRECT.with(Self::KSWAPD);
    /// Cannot wait, may use reserves.
    pub const ATOMIC: Self = Self::HIGH.with(Self::KSWAPD);
    /// Cannot wait.
    pub const NOWAIT: Self = Self::KSWAPD.with(Self::NOWARN);
    /// May reclaim without I/O.
    pub const NOIO: Self = Self::RECLAIM;
    /// May reclaim without file systems.
    pub const NOFS: Self = Self::RECLAIM.with(Self::IO);
    /// An ordinary request of the memory manager itself.
    pub const KERNEL: Self = Self::NOFS.with(Self::FS);
    /// An ordinary page of a program.
    pub const HIGHUSER_MOVABLE: Self =
        Self::KERNEL.with(Self::HARDWALL).with(Self::HIGHMEM).with(Self::MOVABLE);
    /// A huge page if one is at hand.
    pub const TRANSHUGE_LIGHT: Self = Self::HIGHUSER_MOVABLE
        .with(Self::COMP)
        .with(Self::NOMEMALLOC)
        .with(Self::NOWARN)
        .without(Self::RECLAIM);

    /// The migratetype asked for.
    #[must_use]
    #[inline(always)]
    pub const fn migratetype(self) -> Migratetype {
        if self.has(Self::MOVABLE) {
            Migratetype::Movable
        } else if self.has(Self::RECLAIMABLE) {
            Migratetype::Reclaimable
        } else {
            Migratetype::Unmovable
        }
    }

    /// The highest class of memory that may serve it.
    #[must_use]
    pub const fn zone_kind(self) -> ZoneKind {
        if self.has(Self::DMA) {
            ZoneKind::Dma
        } else if self.has(Self::DMA32) {
            ZoneKind::Dma32
        } else if self.has(Self::HIGHMEM.with(Self::MOVABLE)) {
            ZoneKind::Movable
        } else if self.has(Self::HIGHMEM) {
            ZoneKind::HighMem
        } else {
            ZoneKind::Normal
        }
    }
}

/// When the sanity of a frame on its way out is checked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Checks {
    /// Every frame of a refill, while the zone lock is held.
    UnderLock,
    /// Every frame of a refill, after the zone lock is dropped.
    AfterLock,
    /// Every frame as it leaves the allocator and as it comes back.
    OnPop,
    /// Never; frames carry no state.
    #[default]
    Off,
}

impl Checks {
    /// All alternatives.
    pub const ALL: [Self; 4] = [Self::UnderLock, Self::AfterLock, Self::OnPop, Self::Off];

    /// The name on command lines and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::UnderLock => "under_lock",
            Self::AfterLock => "after_lock",
            Self::OnPop => "on_pop",
            Self::Off => "off",
        }
    }
}

/// How the count of free CMA frames follows a refill.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CmaCount {
    /// One update per block, under the lock.
    PerPage,
    /// One update per refill, under the lock.
    #[default]
    InLock,
    /// One update per refill, after the lock is dropped: wrong in between.
    AfterUnlock,
}

impl CmaCount {
    /// All alternatives.
    pub const ALL: [Self; 3] = [Self::PerPage, Self::InLock, Self::AfterUnlock];

    /// The name on command lines and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PerPage => "per_page",
            Self::InLock => "in_lock",
            Self::AfterUnlock => "after_unlock",
        }
    }
}
