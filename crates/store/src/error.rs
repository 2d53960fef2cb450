//! Errors of the store, with the tier, slot and byte concerned.

use crate::RemoteError;
use ebb_mm::types::SlotId;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// A thread, for [`StoreError::Setup`], with the limits that may forbid it.
pub(crate) const A_THREAD: &str = "a thread (limits: ulimit -u, pids.max)";

/// Name of a tier in messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TierName {
    /// The compressed tier in RAM.
    Ram,
    /// The n-th file tier, counted from 0.
    File(u8),
    /// The n-th remote tier, counted from 0.
    Redis(u8),
}

impl fmt::Display for TierName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ram => f.write_str("ram"),
            Self::File(0) => f.write_str("file"),
            Self::File(index) => write!(f, "file #{}", index + 1),
            Self::Redis(0) => f.write_str("redis"),
            Self::Redis(index) => write!(f, "redis #{}", index + 1),
        }
    }
}

/// Why an operation of the store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No page is stored under the slot (any more).
    #[error("slot {} holds no page", .slot.0)]
    NotStored {
        /// The requested slot.
        slot: SlotId,
    },
    /// No tier has room for the page.
    #[error("every swap tier is full")]
    Full,
    /// The page does not compress, and there is no other tier for it.
    #[error("the remaining pages do not compress, and there is no other tier")]
    NotSmaller,
    /// A tier failed to read a page.
    #[error("tier {tier}: cannot read slot {} at byte {offset}: {source}", .slot.0)]
    Read {
        /// The tier that holds the page.
        tier: TierName,
        /// The requested slot.
        slot: SlotId,
        /// Byte offset in the tier.
        offset: u64,
        /// Error of the tier.
        source: io::Error,
    },
    /// A tier returned other data than the stored page.
    #[error(
        "tier {tier}: slot {} at byte {offset} is damaged: hash {found:016x}, not {expected:016x}",
        .slot.0
    )]
    Corrupt {
        /// The tier that holds the page.
        tier: TierName,
        /// The requested slot.
        slot: SlotId,
        /// Byte offset in the tier.
        offset: u64,
        /// Hash of the page when it was stored.
        expected: u64,
        /// Hash of the data returned.
        found: u64,
    },
    /// A tier failed to store a page.
    #[error("tier {tier}: cannot write slot {} at byte {offset}: {source}", .slot.0)]
    Write {
        /// The tier that was tried last.
        tier: TierName,
        /// The slot to be stored.
        slot: SlotId,
        /// Byte offset in the tier.
        offset: u64,
        /// Error of the tier.
        source: io::Error,
    },
    /// A swap file cannot be created.
    #[error("swap file {}: {source}; {advice}", .path.display())]
    OpenFile {
        /// The file or folder tried.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
        /// Advice for the user.
        advice: &'static str,
    },
    /// A server cannot be used.
    #[error("tier {name}: {why}")]
    OpenRemote {
        /// The tier.
        name: TierName,
        /// The reason.
        why: RemoteError,
    },
    /// The store cannot create a kernel object.
    #[error("cannot create {what}: {source}")]
    Setup {
        /// The object.
        what: &'static str,
        /// Error of the system.
        source: io::Error,
    },
    /// The list of tiers is not valid.
    #[error("{0}")]
    Tiers(&'static str),
}
