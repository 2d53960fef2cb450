//! What can go wrong in the store, told so that the reader knows which tier, slot and byte.

use ebb_mm::types::SlotId;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// Names a tier in messages.
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

/// Why the store could not do what was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nothing is stored under the slot (any more).
    #[error("slot {} holds no page", .slot.0)]
    NotStored {
        /// The slot asked for.
        slot: SlotId,
    },
    /// No tier has room for the page.
    #[error("every swap tier is full")]
    Full,
    /// The page does not get smaller, and there is no other tier for it.
    #[error("the pages left do not compress, and there is no other tier")]
    NotSmaller,
    /// A tier failed to give a page back.
    #[error("tier {tier}: cannot read slot {} at byte {offset}: {source}", .slot.0)]
    Read {
        /// The tier that holds the page.
        tier: TierName,
        /// The slot asked for.
        slot: SlotId,
        /// Where in the tier, in bytes.
        offset: u64,
        /// What the tier said.
        source: io::Error,
    },
    /// A tier gave back something else than what was stored.
    #[error(
        "tier {tier}: slot {} at byte {offset} is damaged: hash {found:016x}, not {expected:016x}",
        .slot.0
    )]
    Corrupt {
        /// The tier that holds the page.
        tier: TierName,
        /// The slot asked for.
        slot: SlotId,
        /// Where in the tier, in bytes.
        offset: u64,
        /// The hash of the page when it was stored.
        expected: u64,
        /// The hash of what came back.
        found: u64,
    },
    /// A tier failed to take a page.
    #[error("tier {tier}: cannot write slot {} at byte {offset}: {source}", .slot.0)]
    Write {
        /// The tier that was tried last.
        tier: TierName,
        /// The slot to be stored.
        slot: SlotId,
        /// Where in the tier, in bytes.
        offset: u64,
        /// What the tier said.
        source: io::Error,
    },
    /// A swap file cannot be had.
    #[error("swap file {}: {source}; {advice}", .path.display())]
    OpenFile {
        /// The file or folder tried.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
        /// What to do about it.
        advice: &'static str,
    },
    /// A server cannot be used.
    #[error("tier {name}: {why}")]
    OpenRemote {
        /// The tier.
        name: TierName,
        /// Where and why, and what to do about it.
        why: String,
    },
    /// The store needs a kernel object it cannot get.
    #[error("cannot create {what}: {source}")]
    Setup {
        /// The object.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The list of tiers makes no sense.
    #[error("{0}")]
    Tiers(&'static str),
}
