//! Anonymous pages outside memory: where they lie, how they get there, what comes back with them.
//!
//! * [`slots`]: slots that forked address spaces share.
//! * [`clusters`]: a device's slots, given out so that what leaves together lies together.
//! * [`cache`]: which anonymous pages have a stored copy, in memory or not.
//! * [`ahead`]: what is read with a page that is missing, learned from hits.
//!
//! Write-out itself is [`Writes`](crate::writeback::Writes), the same for files and anonymous pages.

pub mod ahead;
pub mod cache;
pub mod clusters;
#[cfg(all(test, not(loom)))]
mod model;
pub mod slots;

pub use ahead::SwapAhead;
pub use cache::SwapCache;
pub use clusters::Clusters;
pub use slots::{NoSlot, SlotTable};
