//! What can go wrong, in words for whoever runs the storage engine.

use std::io;
use std::path::PathBuf;

/// A page by its number: where it lies in the file, in pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageId(pub u64);

impl std::fmt::Display for PageId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "page {}", self.0)
    }
}

/// An error of a pool.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// An option makes no sense.
    #[error("{option} is {given}, and must be {wanted}")]
    Option {
        /// Its name.
        option: &'static str,
        /// What was given.
        given: u64,
        /// What would do.
        wanted: &'static str,
    },
    /// A file could not be opened, read, written or synced.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// What was tried.
        what: &'static str,
        /// Of which file.
        path: PathBuf,
        /// What the system says.
        source: io::Error,
    },
    /// Somebody has the file open as a pool.
    #[error("{} is in use by another pool", path.display())]
    InUse {
        /// Which file.
        path: PathBuf,
    },
    /// The file beside the pool's is not its journal. Nothing was changed.
    #[error("{} is not a journal of a pool: move it away, or name another file", path.display())]
    NotAJournal {
        /// Which file.
        path: PathBuf,
    },
    /// There is no such page.
    #[error("{page} is beyond the end: there are {pages} pages")]
    NoSuchPage {
        /// What was asked for.
        page: PageId,
        /// How many there are.
        pages: u64,
    },
    /// The most pages that the pool was opened for.
    #[error("the pool has {pages} pages, the most it was opened for (`Options::pages_max`)")]
    Full {
        /// How many.
        pages: u64,
    },
    /// Every frame is latched, or waits to be written, and stayed so.
    #[error(
        "all {frames} frames were latched for {seconds} s: fewer latches at a time, or more frames"
    )]
    AllLatched {
        /// How many frames there are.
        frames: u32,
        /// How long it was tried.
        seconds: u64,
    },
    /// A commit was asked for by a thread whose own change is not over. It would wait for itself.
    #[error(
        "a commit within a change waits for itself: end the change first, or use `Change::commit`"
    )]
    CommitInChange,
    /// A sync failed before, so that nobody knows what of the journal is on the disk. Nothing is written from then on.
    #[error("a sync of {} failed before: the pool must be opened anew", path.display())]
    Broken {
        /// Which file.
        path: PathBuf,
    },
}
