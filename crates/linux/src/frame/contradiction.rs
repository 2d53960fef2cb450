//! Contradictions in a store of free frames, or between a store and its zone's counters.

use super::bitmap::Meta;
use super::counter::ZoneItem;
use super::kinds::Migratetype;
use super::state::Totals;
use std::fmt;

/// A contradiction that [`Frames::check`](super::Frames::check) found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Contradiction {
    /// The pageblock of a frame breaks a rule of its shard: SHARD-1, 3, 4 or 5.
    Pageblock(&'static str, u32, Meta),
    /// SHARD-2: a list of pageblocks by type and class, and its bit, differ.
    ListBit(Migratetype, usize),
    /// SHARD-2: a pageblock does not belong on its list, which has this class and type.
    Listed(u32, usize, Migratetype, Meta),
    /// SHARD-2: fewer or more pageblocks than expected (the second number) are on lists.
    ListedCount(usize, usize),
    /// SHARD-4: the bits and the totals of a shard, in this order, differ.
    ShardTotals(Totals, Totals),
    /// LISTS-4: the lists and their totals, in this order, differ.
    ListTotals(Totals, Totals),
    /// LISTS-1: the numbers of heads and of listed blocks differ.
    Heads(u64, u64),
    /// LISTS-1: a frame on the list of an order heads no free block of that order.
    NoHead(u32, u8),
    /// LISTS-2: a frame is on the list of another type.
    OtherType(u32, Migratetype),
    /// LISTS-3: a frame at an order has a free buddy.
    FreeBuddy(u32, u8),
    /// LISTS-4: a list has not as many blocks as it counts.
    Length(u8, Migratetype, u64),
    /// FRAME-1: a counter differs from the contents of the store, which follow it.
    Counter(ZoneItem, u64, u64),
    /// FRAME-1: the count of free high-atomic frames differs from the contents of the store.
    HighAtomic(i64),
}

impl fmt::Display for Contradiction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Pageblock(rule, pfn, meta) => write!(f, "{rule}: block {pfn:#x}: {meta:?}"),
            Self::ListBit(kind, class) => {
                write!(f, "SHARD-2: {kind:?} class {class} and its bit differ")
            }
            Self::Listed(block, class, kind, meta) => {
                write!(f, "SHARD-2: block {block} on list {class} of {kind:?}: {meta:?}")
            }
            Self::ListedCount(found, of) => write!(f, "SHARD-2: {found} of {of} on lists"),
            Self::ShardTotals(held, totals) => {
                write!(f, "SHARD-4: bits hold {held:?}, totals say {totals:?}")
            }
            Self::ListTotals(held, totals) => {
                write!(f, "LISTS-4: lists hold {held:?}, totals say {totals:?}")
            }
            Self::Heads(heads, listed) => write!(f, "LISTS-1: {heads} heads, {listed} listed"),
            Self::NoHead(pfn, order) => {
                write!(f, "LISTS-1: {pfn:#x} on list {order} is not such a head")
            }
            Self::OtherType(pfn, t) => write!(f, "LISTS-2: {pfn:#x} on the list of {t:?}"),
            Self::FreeBuddy(pfn, order) => {
                write!(f, "LISTS-3: {pfn:#x} at order {order} has a free buddy")
            }
            Self::Length(order, t, len) => {
                write!(f, "LISTS-4: list {order} {t:?} is not {len} long")
            }
            Self::Counter(item, counted, pages) => {
                write!(f, "{} is {counted}, should be {pages}", item.name())
            }
            Self::HighAtomic(reserve) => write!(f, "free_highatomic is {reserve}"),
        }
    }
}

impl std::error::Error for Contradiction {}
