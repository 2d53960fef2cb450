//! The page cache, dirty pages and writeback.
//!
//! * [`cache`]: the state of each file's pages (in memory, dirty, being written); reading, writing,
//!   mapping, truncating, syncing.
//! * [`ahead`]: the pages to read together with a missing page.
//! * [`flush`]: choice of the pages to write, and their state after the write.
//! * [`writes`]: the writes under way, of file and anonymous pages: begun, submitted, ended.
//! * [`limits`]: how many pages may be dirty; [`pace`]: how fast writers may go on.
//!
//! The driver owns contents and devices. The cache tells it which runs to read and write, and the
//! driver reports the results. Only one thread calls the cache at a time. The cache holds no lock
//! while it calls the LRU.

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
