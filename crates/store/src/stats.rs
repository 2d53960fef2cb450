//! What the store holds and has done, for reports.

use crate::Store;
use crate::error::TierName;
use crate::far::FarTier;
use crate::file::FileTier;
use crate::lock;
use crate::remote::{ReadTimes, RemoteTier};
use ebb_mm::types::PAGE_SIZE;
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
    /// The most there were.
    pub same_filled_peak: u64,
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
    /// Where a remote tier is.
    pub address: Option<String>,
    /// Whether its pages are encrypted.
    pub encrypted: bool,
    /// Answers of a remote tier that did not come, and refusals.
    pub errors: u64,
    /// How long reads of a remote tier took.
    pub read_times: Option<ReadTimes>,
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
    /// The most pages it held, and what it took for them then.
    pub peak_pages: u64,
    /// See `peak_pages`.
    pub peak_occupied_bytes: u64,
    /// Its disk or its server, and not its limit, is what kept it from taking more.
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

/// Pages read so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreReads {
    /// From memory.
    pub near: u64,
    /// From files and servers.
    pub far: u64,
    /// Of `near`, those of pages that were among the newest there.
    pub near_edge: u64,
    /// Of `far`, those of pages that were in memory lately.
    pub far_edge: u64,
    /// How many pages that is of: as many of each.
    pub edge_pages: u64,
    /// Pages in a page of compressed memory, in thousandths.
    pub ratio_permille: u64,
}

impl Store {
    /// Pages read so far.
    #[must_use]
    pub fn reads(&self) -> StoreReads {
        let index = lock(&self.index);
        let held = index.ram_pages * PAGE_SIZE as u64 * 1000;
        StoreReads {
            near_edge: index.edge_reads.0,
            far_edge: index.edge_reads.1,
            edge_pages: index.table.edge_len().into(),
            ratio_permille: held / index.arena.occupied().max(1),
            near: self.ram_reads.load(Ordering::Relaxed),
            far: self.far.iter().map(FarTier::reads).sum(),
        }
    }

    /// What the store holds and has done.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        // Relaxed throughout: statistics, each true at some recent moment.
        let mut tiers = Vec::with_capacity(self.far.len() + 1);
        let index = lock(&self.index);
        if self.has_ram {
            tiers.push(TierStats {
                name: TierName::Ram,
                path: None,
                address: None,
                encrypted: false,
                errors: 0,
                read_times: None,
                direct: false,
                in_ram: true,
                pages: index.ram_pages,
                stored_bytes: index.ram_stored,
                occupied_bytes: index.arena.occupied(),
                peak_pages: index.ram_peak.0,
                peak_occupied_bytes: index.ram_peak.1,
                disk_full: false,
                limit_bytes: index.arena.limit,
                reads: self.ram_reads.load(Ordering::Relaxed),
                writes: index.ram_writes,
                demoted: index.demoted,
            });
        }
        let (same_filled_pages, same_filled_peak) = (index.same_pages, index.same_peak);
        let index_bytes = index.table.bytes();
        drop(index);
        tiers.extend(self.far.iter().map(|tier| match tier {
            FarTier::File(file) => of_file(file),
            FarTier::Remote(remote) => of_remote(remote),
        }));
        let io_uring = self.reads.uses_io_uring();
        StoreStats { tiers, same_filled_pages, same_filled_peak, index_bytes, io_uring }
    }
}

fn of_file(file: &FileTier) -> TierStats {
    let (taken, limit) = file.fill();
    let bytes = taken * PAGE_SIZE as u64;
    TierStats {
        name: file.name,
        path: Some(file.path.clone()),
        address: None,
        encrypted: file.is_encrypted(),
        errors: 0,
        read_times: None,
        direct: file.direct,
        in_ram: file.in_ram,
        pages: taken,
        stored_bytes: bytes,
        occupied_bytes: bytes,
        peak_pages: file.peak(),
        peak_occupied_bytes: file.peak() * PAGE_SIZE as u64,
        disk_full: file.found_disk_full(),
        limit_bytes: limit * PAGE_SIZE as u64,
        reads: file.reads.load(Ordering::Relaxed),
        writes: file.writes.load(Ordering::Relaxed),
        demoted: 0,
    }
}

fn of_remote(remote: &RemoteTier) -> TierStats {
    let (pages, peak, limit) = remote.fill();
    let bytes = pages * PAGE_SIZE as u64;
    TierStats {
        name: remote.name(),
        path: None,
        address: Some(remote.place()),
        encrypted: remote.is_encrypted(),
        errors: remote.errors(),
        read_times: remote.read_times(),
        direct: true,
        in_ram: false,
        pages,
        stored_bytes: bytes,
        occupied_bytes: bytes,
        peak_pages: peak,
        peak_occupied_bytes: peak * PAGE_SIZE as u64,
        disk_full: remote.found_full(),
        limit_bytes: limit * PAGE_SIZE as u64,
        reads: remote.shared.reads.load(Ordering::Relaxed),
        writes: remote.shared.writes.load(Ordering::Relaxed),
        demoted: 0,
    }
}
