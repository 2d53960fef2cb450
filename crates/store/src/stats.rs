//! Statistics of the store, for reports.

use crate::Store;
use crate::error::TierName;
use crate::far::FarTier;
use crate::file::FileTier;
use crate::lock;
use crate::remote::{ReadTimes, RemoteTier};
use ebb_mm::types::PAGE_SIZE;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

/// Statistics of the whole store.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct StoreStats {
    /// Each tier, fastest first.
    pub tiers: Vec<TierStats>,
    /// Number of pages that repeat one word. They occupy only their entry in the slot table.
    pub same_filled_pages: u64,
    /// Largest value of `same_filled_pages`.
    pub same_filled_peak: u64,
    /// Bytes of the slot table.
    pub index_bytes: u64,
    /// Whether asynchronous reads go through io_uring.
    pub io_uring: bool,
}

/// Statistics of one tier.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct TierStats {
    /// Name of the tier.
    pub name: TierName,
    /// Path at which a file tier was created.
    pub path: Option<PathBuf>,
    /// Address of a remote tier.
    pub address: Option<String>,
    /// Whether the pages of the tier are encrypted.
    pub encrypted: bool,
    /// Number of missing answers and refusals of a remote tier.
    pub errors: u64,
    /// Durations of the reads of a remote tier.
    pub read_times: Option<ReadTimes>,
    /// Whether a file tier bypasses the page cache.
    pub direct: bool,
    /// Whether the tier lies in RAM; a file tier does on tmpfs, which saves no memory.
    pub in_ram: bool,
    /// Number of pages stored.
    pub pages: u64,
    /// Bytes of the pages as stored: compressed in RAM, whole in a file.
    pub stored_bytes: u64,
    /// Bytes that the tier occupies for its pages, waste included.
    pub occupied_bytes: u64,
    /// Largest number of pages stored, at one time.
    pub peak_pages: u64,
    /// Bytes that the tier occupied for `peak_pages`.
    pub peak_occupied_bytes: u64,
    /// Whether the tier's disk or server, and not its limit, kept it from taking more.
    pub disk_full: bool,
    /// Largest number of bytes that the tier may occupy.
    pub limit_bytes: u64,
    /// Number of pages read.
    pub reads: u64,
    /// Number of pages written.
    pub writes: u64,
    /// Number of pages demoted to the next tier because newer ones needed the room.
    pub demoted: u64,
}

impl TierStats {
    /// Returns the bytes of pages per byte occupied: the real compression ratio, waste included.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        let pages = self.pages * PAGE_SIZE as u64;
        (self.occupied_bytes > 0).then(|| pages as f64 / self.occupied_bytes as f64)
    }
}

/// Numbers of pages read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StoreReads {
    /// Pages read from memory.
    pub compressed: u64,
    /// Pages read from files and servers.
    pub far: u64,
    /// Pages among `compressed` that were among the newest in memory.
    pub compressed_edge: u64,
    /// Pages among `far` that were in memory recently.
    pub far_edge: u64,
    /// Number of pages that count as newest in memory. Equally many count as recently in memory.
    pub edge_pages: u64,
    /// Pages stored in one page of compressed memory, in thousandths.
    pub ratio_permille: u64,
}

impl Store {
    /// Returns the numbers of pages read.
    #[must_use]
    pub fn reads(&self) -> StoreReads {
        let index = lock(&self.index);
        let held = index.ram_pages * PAGE_SIZE as u64 * 1000;
        StoreReads {
            compressed_edge: index.edge_reads.0,
            far_edge: index.edge_reads.1,
            edge_pages: index.table.edge_len().into(),
            ratio_permille: held / index.arena.occupied().max(1),
            compressed: self.ram_reads.load(Ordering::Relaxed),
            far: self.far.iter().map(FarTier::reads).sum(),
        }
    }

    /// Returns the statistics of the store.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        // Relaxed throughout, because these are statistics, each true at some recent moment.
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
