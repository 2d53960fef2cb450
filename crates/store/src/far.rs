//! The tiers behind compressed memory, which all keep pages by number: files, and servers elsewhere.

use crate::error::TierName;
use crate::file::FileTier;
use crate::remote::RemoteTier;
use std::io;

/// One of them. A large enum of a few values that never move.
#[allow(clippy::large_enum_variant, reason = "they lie in one list, made once")]
pub(crate) enum FarTier {
    File(FileTier),
    Remote(RemoteTier),
}

impl FarTier {
    /// Its number in the list.
    pub(crate) fn index(&self) -> u8 {
        match self {
            Self::File(file) => file.index,
            Self::Remote(remote) => remote.shared.index,
        }
    }

    pub(crate) fn name(&self) -> TierName {
        match self {
            Self::File(file) => file.name,
            Self::Remote(remote) => remote.name(),
        }
    }

    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    /// The file, of a tier that is one.
    pub(crate) fn file(&self) -> Option<&FileTier> {
        match self {
            Self::File(file) => Some(file),
            Self::Remote(_) => None,
        }
    }

    /// Whether there is no room, as far as is known. Room may come when pages are freed.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Self::File(file) => file.is_full(),
            Self::Remote(remote) => remote.is_full(),
        }
    }

    /// Takes up to `wanted` adjacent pages.
    pub(crate) fn allocate(&self, wanted: usize) -> Option<(u32, usize)> {
        match self {
            Self::File(file) => file.allocate(wanted),
            Self::Remote(remote) => remote.allocate(wanted),
        }
    }

    /// Gives back adjacent pages that one `allocate` gave, or part of them.
    pub(crate) fn free(&self, first: u32, count: usize) {
        match self {
            Self::File(file) => file.free(first, count),
            Self::Remote(remote) => remote.free(first, count),
        }
    }

    /// Writes whole pages. `Ok(false)` means that there is no room.
    pub(crate) fn write(&self, first: u32, pages: &[u8]) -> io::Result<bool> {
        match self {
            Self::File(file) => file.write(first, pages),
            Self::Remote(remote) => remote.write(first, pages),
        }
    }

    /// Notes that the last write found no room.
    pub(crate) fn refuse(&self) {
        match self {
            Self::File(file) => file.refuse(),
            Self::Remote(remote) => remote.refuse(),
        }
    }

    /// Pages read so far.
    pub(crate) fn reads(&self) -> u64 {
        let reads = match self {
            Self::File(file) => &file.reads,
            Self::Remote(remote) => &remote.shared.reads,
        };
        // Relaxed: a statistic.
        reads.load(std::sync::atomic::Ordering::Relaxed)
    }
}
