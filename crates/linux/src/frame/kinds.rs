//! The basic types of the page-frame allocator: orders, migratetypes, zone kinds, request and test
//! flags.

use std::fmt;

pub use ebb_mm::order::{
    MAX_BLOCK_PAGES, MAX_ORDER, ORDERS, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES,
};

/// Requests above this order are costly: the allocator does not retry them for ever.
pub const COSTLY_ORDER: u8 = 3;

/// The type of a pageblock: how its frames may be used, and so which requests it serves.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Migratetype {
    /// Frames whose contents cannot be moved.
    Unmovable = 0,
    /// Frames whose contents can be moved.
    Movable = 1,
    /// Frames whose contents can be reclaimed on request.
    Reclaimable = 2,
    /// Reserved for high-order requests that cannot wait.
    HighAtomic = 3,
    /// CMA: serves movable requests until a contiguous range is allocated.
    Cma = 4,
    /// Isolated: serves no request.
    Isolate = 5,
}

impl Migratetype {
    /// All types, in the order of the kernel's tables.
    pub const ALL: [Self; 6] = [
        Self::Unmovable,
        Self::Movable,
        Self::Reclaimable,
        Self::HighAtomic,
        Self::Cma,
        Self::Isolate,
    ];

    /// Returns the type of a number; numbers beyond the last type are `Isolate`.
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

    /// Returns the index of the type in tables.
    #[must_use]
    #[inline(always)]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// Whether blocks of this type may merge with blocks of other mergeable types.
    #[must_use]
    pub const fn mergeable(self) -> bool {
        matches!(self, Self::Unmovable | Self::Movable | Self::Reclaimable)
    }

    /// Returns the types whose blocks serve when this type has none left, in order of preference.
    #[must_use]
    pub const fn fallbacks(self) -> &'static [Self] {
        match self {
            Self::Unmovable => &[Self::Reclaimable, Self::Movable],
            Self::Movable => &[Self::Reclaimable, Self::Unmovable],
            Self::Reclaimable => &[Self::Unmovable, Self::Movable],
            _ => &[],
        }
    }

    /// Returns the list of a per-CPU set that holds frames of this type; `None` for isolated
    /// frames.
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

    /// Returns the name in pagetypeinfo.
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

/// The kinds of zone (classes of memory), lowest first.
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
    /// Returns the name in zoneinfo.
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

    /// Whether the zone is high memory, which the low-memory sum behind the watermarks leaves out.
    #[must_use]
    pub const fn is_high(self) -> bool {
        matches!(self, Self::HighMem | Self::Movable)
    }

    /// Returns the default divisor of the memory that higher classes may not take from this zone.
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

            /// Returns the set with `flags` added.
            #[must_use]
            #[inline(always)]
            pub const fn with(self, flags: Self) -> Self {
                Self(self.0 | flags.0)
            }

            /// Returns the set with `flags` added if `on`.
            #[must_use]
            pub const fn with_if(self, flags: Self, on: bool) -> Self {
                if on { self.with(flags) } else { self }
            }

            /// Returns the set with `flags` removed.
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
    /// Flags for one attempt: how it tests watermarks and chooses blocks.
    AllocFlags {
        /// The caller cannot wait.
        NON_BLOCK = 0;
        /// May use half of the minimum reserve.
        MIN_RESERVE = 1;
        /// May use blocks kept for high-order requests that cannot wait.
        HIGHATOMIC = 2;
        /// The caller is an OOM victim that is exiting.
        OOM = 3;
        /// May use CMA blocks.
        CMA = 4;
        /// Prefers another zone to mixing pageblocks.
        NOFRAGMENT = 5;
        /// May wake kswapd.
        KSWAPD = 6;
        /// Watermarks do not apply.
        NO_WATERMARKS = 7;
    }
}

flag_set! {
    /// Flags of a request: what the allocator may do for it, and where it may be served.
    Gfp {
        /// The memory comes from the DMA zone.
        DMA = 0;
        /// The memory comes from DMA32 or below.
        DMA32 = 1;
        /// May use high memory.
        HIGHMEM = 2;
        /// The contents can be moved.
        MOVABLE = 3;
        /// The contents can be reclaimed.
        RECLAIMABLE = 4;
        /// Important: may use reserves.
        HIGH = 5;
        /// May start storage I/O.
        IO = 6;
        /// May call into file systems.
        FS = 7;
        /// May reclaim directly, in the caller's own time.
        DIRECT = 8;
        /// May wake kswapd.
        KSWAPD = 9;
        /// The frame is about to be written, so dirty limits apply.
        WRITE = 10;
        /// Tries hard, but does not kill.
        RETRY_MAYFAIL = 11;
        /// Must not fail.
        NOFAIL = 12;
        /// Gives up after one round.
        NORETRY = 13;
        /// The caller frees memory: watermarks do not apply.
        MEMALLOC = 14;
        /// Reserves may not be used, whatever the other flags say.
        NOMEMALLOC = 15;
        /// The memory comes only from the given node.
        THISNODE = 16;
        /// The cpuset applies.
        HARDWALL = 17;
        /// The block is a compound page.
        COMP = 18;
        /// A failure prints no warning.
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
    /// A huge page if one is free.
    pub const TRANSHUGE_LIGHT: Self = Self::HIGHUSER_MOVABLE
        .with(Self::COMP)
        .with(Self::NOMEMALLOC)
        .with(Self::NOWARN)
        .without(Self::RECLAIM);

    /// Returns the migratetype of the request.
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

    /// Returns the highest kind of zone that may serve the request.
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

/// When the allocator checks the sanity of a frame that it hands out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Checks {
    /// Every frame of a refill, while the zone lock is held.
    UnderLock,
    /// Every frame of a refill, after the zone lock is dropped.
    AfterLock,
    /// Every frame as it leaves the allocator and as it comes back.
    OnPop,
    /// No frame is checked; frames carry no state.
    #[default]
    Off,
}

impl Checks {
    /// All alternatives.
    pub const ALL: [Self; 4] = [Self::UnderLock, Self::AfterLock, Self::OnPop, Self::Off];

    /// Returns the name on command lines and in reports.
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

/// When a refill updates the count of free CMA frames.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum CmaCount {
    /// One update per block, under the lock.
    PerPage,
    /// One update per refill, under the lock.
    #[default]
    InLock,
    /// One update per refill, after the lock is dropped; the count is wrong in between.
    AfterUnlock,
}

impl CmaCount {
    /// All alternatives.
    pub const ALL: [Self; 3] = [Self::PerPage, Self::InLock, Self::AfterUnlock];

    /// Returns the name on command lines and in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PerPage => "per_page",
            Self::InLock => "in_lock",
            Self::AfterUnlock => "after_unlock",
        }
    }
}
