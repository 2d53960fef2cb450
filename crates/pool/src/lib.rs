//! A buffer manager: pages of a file by number, in a fixed amount of memory, for programs that can be changed.
//!
//! `ebb run` gives a program that knows nothing of it less memory than it wants. A storage engine knows which page it needs,
//! for how long, and whether it will need it again; told so, the same multi-gen LRU pays no page fault and no scan of page
//! tables. The manner is that of vmcache (Leis et al., "Virtual-Memory Assisted Buffer Management", SIGMOD 2023): one word for
//! each page, explicit latches, reads straight into the frame, eviction in batches by whoever needs a frame.
//!
//! ```
//! use ebb_pool::{Options, PageId, Pool, PoolError};
//!
//! # fn main() -> Result<(), PoolError> {
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("pages");
//! // 1,024 frames: 4 MiB. The file may be any size.
//! let pool = Pool::open(&path, Options::frames(1_024))?;
//!
//! // Pages are written within a change, latched exclusively.
//! let change = pool.change();
//! let mut page = change.allocate()?;
//! page[..5].copy_from_slice(b"hello");
//! let number = page.page();
//! drop(page);
//! // Once this returns, no crash undoes it.
//! change.commit()?;
//!
//! // They are read latched with others who read.
//! assert_eq!(&pool.shared(number)?[..5], b"hello");
//!
//! // What the program knows and the pool cannot: these pages are needed next, and this one only once.
//! pool.prefetch(&[number]);
//! let page = pool.shared_once(number)?;
//! # drop(page);
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//!
//! * **Memory.** Never more than [`Options::frames`] pages are in memory; what the pool knows of a page that was once used
//!   takes some 30 bytes.
//! * **Latches.** Who reads a page sees no half of a change to it. There is no order that the pool asks for: a program latches
//!   from the root down, or by number, as it likes, and as long as all its threads do the same they do not wait for each
//!   other in a circle. A latched page stays in its frame; if all frames are latched for ten seconds, who needs one is told so.
//! * **Crashes.** After a crash, of the program or of the machine, the pool is as the last [`Pool::commit`] left it that
//!   returned, or as one left it that was under way, whole. What is written out before it is committed goes to the journal, as
//!   in SQLite's write-ahead log, and never over a page in its place. Once a sync has failed nothing is written any more: the
//!   system may have dropped what it could not write, and a second sync that goes well would prove nothing.
//! * **Errors.** A page that cannot be written stays in memory, and dirty; whoever needs its frame, or commits, is told.
//!
//! # What does not
//!
//! Pages in their places have no checksum: a program that wants to find rotten disks puts one into the page. Pages are not
//! given back: a free list is the program's. There is no transaction: two changes that go on at the same time see each
//! other's pages.
//!
//! [`btree::BTree`] is an ordered map on a pool, small enough to be read as an example.

mod ahead;
pub mod btree;
mod error;
mod frames;
mod guards;
mod journal;
mod medium;
#[cfg(all(test, loom))]
mod models;
mod park;
mod policy;
mod pool;
mod table;
#[cfg(test)]
mod tests;
mod word;

pub use error::{PageId, PoolError};
pub use frames::Bytes;
pub use guards::{Change, Exclusive, Shared};
pub use medium::{Disk, Medium};
pub use pool::{Options, Pool, Stats};
