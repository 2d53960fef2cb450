//! A buffer manager: pages of a file by number, in a fixed amount of memory, for programs that can
//! be changed.
//!
//! `ebb run` gives an unchanged program less memory than it wants. A storage engine knows which
//! page it needs, for how long, and whether it will need it again. With that knowledge the
//! multi-gen LRU needs no page fault and no scan of page tables. The design follows vmcache (Leis
//! et al., "Virtual-Memory Assisted Buffer Management", SIGMOD 2023). It has one word for each
//! page, explicit latches, and reads straight into the frame. A thread that needs a frame evicts
//! pages in batches.
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
//! // Readers latch a page together with other readers.
//! assert_eq!(&pool.shared(number)?[..5], b"hello");
//!
//! // The program can tell the pool that some pages are needed next, and one page only once.
//! pool.prefetch(&[number]);
//! let page = pool.shared_once(number)?;
//! # drop(page);
//! # Ok(())
//! # }
//! ```
//!
//! # Guarantees
//!
//! * **Memory.** At most [`Options::frames`] pages are in memory. The pool keeps about 30 bytes for
//!   each page that has been used.
//! * **Latches.** A reader never sees half of a change to a page. The pool prescribes no order of
//!   latches. A program may latch from the root down, or by number. If all its threads follow one
//!   order, they do not deadlock. A latched page stays in its frame. If all frames are latched for
//!   ten seconds, a thread that needs one gets an error.
//! * **Crashes.** After a crash of the program or the machine, the pool has the changes of the last
//!   [`Pool::commit`] that returned. It also has all changes of a later commit that was under way,
//!   or none of them. The pool writes uncommitted pages to the journal, as in SQLite's write-ahead
//!   log, and never over a page in the file. Once a sync has failed, the pool writes nothing any
//!   more. The system may have dropped data that it could not write, and a second successful sync
//!   would prove nothing.
//! * **Errors.** A page that cannot be written stays dirty in memory. A thread that needs the
//!   page's frame, or commits, gets the error.
//!
//! # Limits
//!
//! Pages in the file have no checksum. A program that wants to detect damaged disks puts one into
//! the page. Pages are not freed: a free list is the program's task. There are no transactions: two
//! simultaneous changes see each other's pages.
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
