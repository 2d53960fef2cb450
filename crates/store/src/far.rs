//! The far tiers, behind compressed memory: files and remote servers. All of them store pages by
//! number.

use crate::error::TierName;
use crate::file::FileTier;
use crate::remote::RemoteTier;
use std::io;

/// A far tier. The enum is large, but there are few values and they never move.
#[allow(clippy::large_enum_variant, reason = "they lie in one list, made once")]
pub(crate) enum FarTier {
    File(FileTier),
    Remote(RemoteTier),
}

impl FarTier {
    /// Returns the number of the tier in the list.
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

    /// Returns the file of a file tier.
    pub(crate) fn file(&self) -> Option<&FileTier> {
        match self {
            Self::File(file) => Some(file),
            Self::Remote(_) => None,
        }
    }

    /// Returns whether there is no room, as far as is known. Freeing pages may make room again.
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

    /// Frees adjacent pages that one `allocate` gave, or part of them.
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

    /// Returns the number of pages read.
    pub(crate) fn reads(&self) -> u64 {
        let reads = match self {
            Self::File(file) => &file.reads,
            Self::Remote(remote) => &remote.shared.reads,
        };
        // Relaxed, because it is a statistic.
        reads.load(std::sync::atomic::Ordering::Relaxed)
    }
}
