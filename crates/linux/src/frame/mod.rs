//! The page-frame allocator: zones and watermarks, free blocks, per-CPU sets, CMA, counters.
//!
//! ```text
//! a request -> hit: a block of the CPU's own set               claim, gate, list, pcp, cpulock
//!           -> fast path: zones in order, watermarks, refill from the store     alloc, watermark
//!           -> slow path: kswapd, compaction, reclaim, killing, by callback     slow
//! a store keeps free blocks: lists (the kernel's placement) | bitmap (the fast one)
//! ```
//! `frames` has the zones and the per-CPU sets. `layout` describes a machine and chooses every
//! mechanism. `checks` is the frame table of checked mode, `contig` allocates contiguous ranges,
//! `text` writes the kernel's text formats. `contradiction` names what [`Frames::check`] finds.

mod alloc;
mod alone;
mod bitmap;
mod blocks;
mod checks;
mod claim;
mod contig;
mod contradiction;
mod counter;
mod cpulock;
mod frames;
mod gate;
mod kinds;
mod layout;
mod list;
mod lists;
#[cfg(all(test, loom))]
mod models;
mod pcp;
mod slow;
mod state;
mod switches;
pub(crate) mod sync;
mod text;
mod upkeep;
pub mod watermark;

pub use alloc::{Compaction, Host, NoHost, Request};
pub use blocks::{BlockInfo, BlockMap};
pub use checks::{BadFree, BadUse, FrameTable};
pub use claim::Cpu;
pub use contig::ContigError;
pub use contradiction::Contradiction;
pub use counter::{Counters, ZoneItem};
pub use cpulock::RemoteFence;
pub use frames::{Frames, Zone};
pub use kinds::{
    AllocFlags, COSTLY_ORDER, Checks, CmaCount, Gfp, MAX_BLOCK_PAGES, MAX_ORDER, Migratetype,
    ORDERS, Order, PAGEBLOCK_ORDER, PAGEBLOCK_PAGES, ZoneKind,
};
pub use layout::{Backend, Config, LayoutError, ZoneSpec};
pub use pcp::PcpRule;
pub use slow::{RECLAIM_RETRIES_MAX, SWAP_CLUSTER};
pub use state::{Census, FreeStore, Meter, NoCensus, Want, ZoneState};
pub use switches::NoTable;
pub use text::NodeText;
