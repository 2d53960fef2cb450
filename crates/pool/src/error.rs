//! Errors of a pool, with messages for the operator of the storage engine.

use std::io;
use std::path::PathBuf;

/// Number of a page: its position in the file, in pages.
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
    /// An option has an invalid value.
    #[error("{option} is {given}, and must be {wanted}")]
    Option {
        /// Name of the option.
        option: &'static str,
        /// The given value.
        given: u64,
        /// Description of the valid values.
        wanted: &'static str,
    },
    /// A file could not be opened, read, written or synced.
    #[error("cannot {what} {}: {source}", path.display())]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// Path of the file.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Another pool has the file open.
    #[error("{} is in use by another pool", path.display())]
    InUse {
        /// Path of the file.
        path: PathBuf,
    },
    /// The file beside the pool's file is no journal. Nothing was changed.
    #[error("{} is not a journal of a pool: move it away, or name another file", path.display())]
    NotAJournal {
        /// Path of the file.
        path: PathBuf,
    },
    /// There is no such page.
    #[error("{page} is beyond the end: there are {pages} pages")]
    NoSuchPage {
        /// The requested page.
        page: PageId,
        /// Number of pages of the pool.
        pages: u64,
    },
    /// The pool already has the largest number of pages for which it was opened.
    #[error("the pool has {pages} pages, the most it was opened for (`Options::pages_max`)")]
    Full {
        /// Number of pages.
        pages: u64,
    },
    /// Every frame was latched, or taken for a load, for the whole time limit.
    #[error(
        "all {frames} frames were latched for {seconds} s: hold fewer latches at a time, or give \
         the pool more frames"
    )]
    AllLatched {
        /// Number of frames.
        frames: u32,
        /// Time limit in seconds.
        seconds: u64,
    },
    /// A thread asked for a commit within its own change. The commit would wait for that change for
    /// ever.
    #[error(
        "a commit within a change waits for itself: end the change first, or use `Change::commit`"
    )]
    CommitInChange,
    /// A sync failed before, so it is unknown how much of the journal is on the disk. Nothing is
    /// written from then on.
    #[error("a sync of {} failed before: open the pool anew", path.display())]
    Broken {
        /// Path of the file.
        path: PathBuf,
    },
}
