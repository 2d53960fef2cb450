//! Swap of anonymous pages: a device's slots, stored copies and readahead.
//!
//! * [`clusters`]: allocation of a device's slots, so that pages that leave together lie together.
//! * [`cache`]: which anonymous pages have a stored copy, in memory or not.
//! * [`ahead`]: the pages to read with a missing page, learned from hits.
//!
//! [`Writes`](crate::writeback::Writes) has the writes under way, of file and anonymous pages
//! alike.

pub mod ahead;
pub mod cache;
pub mod clusters;
#[cfg(all(test, not(loom)))]
mod model;

pub use ahead::SwapAhead;
pub use cache::SwapCache;
pub use clusters::Clusters;
