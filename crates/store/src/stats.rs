//! What the store holds and has done, for reports.

use crate::Store;
use crate::error::TierName;
use crate::lock;
use ebb_core::types::PAGE_SIZE;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Figures of the whole store.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct StoreStats {
    /// Each tier, fastest first.
    pub tiers: Vec<TierStats>,
    /// Pages that repeat one word: they occupy nothing but their entry in the slot table.
    pub same_filled_pages: u64,
    /// Bytes of the slot table.
    pub index_bytes: u64,
    /// Whether asynchronous reads go through io_uring.
    pub io_uring: bool,
}

/// Figures of one tier.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct TierStats {
    /// Which tier.
    pub name: TierName,
    /// Where a file tier was made.
    pub path: Option<PathBuf>,
    /// Whether a file tier bypasses the page cache.
    pub direct: bool,
    /// Whether the tier lies in RAM; a file tier does on tmpfs, which saves no memory.
    pub in_ram: bool,
    /// Pages held.
    pub pages: u64,
    /// Their bytes as stored: compressed in RAM, whole in a file.
    pub stored_bytes: u64,
    /// What the tier takes for that, waste included.
    pub occupied_bytes: u64,
    /// Its disk, and not its limit, is what kept it from taking more.
    pub disk_full: bool,
    /// The most it may take.
    pub limit_bytes: u64,
    /// Pages read.
    pub reads: u64,
    /// Pages written.
    pub writes: u64,
    /// Pages that left for the next tier because newer ones needed the room.
    pub demoted: u64,
}

impl TierStats {
    /// Bytes of pages per byte occupied: the real compression ratio, waste included.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let pages = self.pages * PAGE_SIZE as u64;
        (self.occupied_bytes > 0).then(|| pages as f64 / self.occupied_bytes as f64)
    }
}

impl Store {
    /// What the store holds and has done.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        // Relaxed throughout: statistics, each true at some recent moment.
        let mut tiers = Vec::with_capacity(self.files.len() + 1);
        let index = lock(&self.index);
        if self.has_ram {
            tiers.push(TierStats {
                name: TierName::Ram,
                path: None,
                direct: false,
                in_ram: true,
                pages: index.ram_pages,
                stored_bytes: index.ram_stored,
                occupied_bytes: index.arena.occupied(),
                disk_full: false,
                limit_bytes: index.arena.limit,
                reads: self.ram_reads.load(Ordering::Relaxed),
                writes: index.ram_writes,
                demoted: index.demoted,
            });
        }
        let (same_filled_pages, index_bytes) = (index.same_pages, index.table.bytes());
        drop(index);
        for file in self.files.iter() {
            let (taken, limit) = file.fill();
            let bytes = taken * PAGE_SIZE as u64;
            tiers.push(TierStats {
                name: file.name(),
                path: Some(file.path.clone()),
                direct: file.direct,
                in_ram: file.in_ram,
                pages: taken,
                stored_bytes: bytes,
                occupied_bytes: bytes,
                disk_full: file.found_disk_full(),
                limit_bytes: limit * PAGE_SIZE as u64,
                reads: file.reads.load(Ordering::Relaxed),
                writes: file.writes.load(Ordering::Relaxed),
                demoted: 0,
            });
        }
        let io_uring = self.reads.uses_io_uring();
        StoreStats { tiers, same_filled_pages, index_bytes, io_uring }
    }
}
