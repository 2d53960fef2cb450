//! Dirty pages: who makes them so, who writes them, who waits.
//!
//! * [`cache`]: which pages of which files are in memory, dirty, being written; reading, writing,
//!   mapping, truncating, syncing.
//! * [`ahead`]: what is read together with a page that is missing.
//! * [`flush`]: choosing what to write and taking note of how it ended.
//! * [`writes`]: write-out under way, of anonymous pages, too: begun, handed out, ended.
//! * [`limits`]: how much may be dirty; [`pace`]: how fast those who write may go on.
//!
//! Contents and devices are the driver's: the cache says "read this run", "write that run", and is
//! told how it went. One owner calls it; it holds no lock while it calls the lists.

pub mod ahead;
pub mod cache;
pub mod flush;
pub mod limits;
#[cfg(all(test, not(loom)))]
mod model;
pub mod pace;
pub mod writes;

pub use ahead::{FileAhead, View, WINDOW_MAX, Window};
pub use cache::{FileId, Found, PageCache, Truncated};
pub use flush::{Run, Why};
pub use limits::{Limits, Thresholds};
pub use pace::Pace;
pub use writes::{Request, To, Writes};
