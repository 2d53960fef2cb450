//! The figures of `ebb top`: each process, its faults and where its pages are, and the areas of one
//! process.

use crate::{FaultKind, MemoryPressure};
use serde::{Deserialize, Serialize};

/// Number of pages by location.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Pages {
    /// In memory and mapped in the program.
    pub visible: u64,
    /// In memory on the standby list.
    pub standby: u64,
    /// In compressed memory only.
    pub ram: u64,
    /// In a file or on another machine only.
    pub file: u64,
    /// Stored as one repeated word, without a location.
    pub same: u64,
}

impl Pages {
    /// Adds the pages of `other`.
    pub fn join(&mut self, other: &Self) {
        self.visible += other.visible;
        self.standby += other.standby;
        self.ram += other.ram;
        self.file += other.file;
        self.same += other.same;
    }

    /// Returns the number of pages in memory.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.visible + self.standby
    }

    /// Returns the number of pages that are no longer in memory.
    #[must_use]
    pub fn stored(&self) -> u64 {
        self.ram + self.file + self.same
    }

    /// Returns the number of all known pages.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.resident() + self.stored()
    }
}

/// A tier, by the counts of the store.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Tier {
    /// Name of the tier, cut if it is long.
    pub name: String,
    /// Number of pages in the tier.
    pub pages: u64,
    /// Stored size of its pages, in bytes.
    pub stored_bytes: u64,
    /// Bytes that the tier occupies for them.
    pub occupied_bytes: u64,
    /// Limit of the tier, in bytes.
    pub limit_bytes: u64,
    /// Pages read since the start.
    pub reads: u64,
    /// Pages written since the start.
    pub writes: u64,
}

/// Refaults by the LRU's counts: pages that came back after they were reclaimed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Refaults {
    /// Number of refaulted pages.
    pub refault: u64,
    /// Number of these that were used soon enough to be active again.
    pub activate: u64,
    /// Number of these that were active when they left.
    pub restore: u64,
}

/// A process.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ProcessView {
    /// Process number.
    pub pid: u32,
    /// Name of the process, cut if it is long.
    pub name: String,
    /// Resident bytes by the kernel's count, without the share of other members of its fork group.
    pub resident_bytes: u64,
    /// Locations of its pages.
    pub pages: Pages,
    /// Number of faults in the order of [`FaultKind::ALL`].
    pub faults: [u64; FaultKind::COUNT],
    /// Estimated time from faults until the threads run again, in microseconds.
    pub waited_us: u64,
    /// Whether its pages can be moved out.
    pub managed: bool,
}

/// An area, or all areas with one name.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct AreaView {
    /// Name of the area, cut if it is long.
    pub name: String,
    /// Number of areas.
    pub areas: u64,
    /// Start address of a single area.
    pub start: Option<u64>,
    /// Size in bytes.
    pub bytes: u64,
    /// Locations of its pages.
    pub pages: Pages,
    /// Most frequent location in each part of a single area: V visible, B standby, R ram, F file, S
    /// same word, . none.
    pub cells: String,
}

/// Everything that `ebb top` shows.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct View {
    /// Time since the run began, in microseconds.
    pub at_us: u64,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Goal of reclaim in bytes.
    pub high_bytes: u64,
    /// Resident memory in bytes, including compressed memory.
    pub used_bytes: u64,
    /// Whether areas are managed. While memory is plentiful none is.
    pub managing: bool,
    /// Time lost waiting for memory.
    pub pressure: MemoryPressure,
    /// Estimated waiting time of all threads together, in microseconds.
    pub waited_us: u64,
    /// Number of faults in the order of [`FaultKind::ALL`].
    pub faults: [u64; FaultKind::COUNT],
    /// The tiers, fastest first.
    pub tiers: Vec<Tier>,
    /// Pages that repeat one word and are in no tier.
    pub same_filled_pages: u64,
    /// Pages that came back after they were reclaimed.
    pub refaults: Refaults,
    /// Whether the multi-gen LRU is in use rather than the classic lists.
    pub multi_gen: bool,
    /// Generations, in the format of `lru_gen_full`.
    pub lru_gen: String,
    /// The processes with most pages.
    pub processes: Vec<ProcessView>,
    /// Number of further processes.
    pub processes_left_out: u64,
    /// Memory that is not managed, a line each.
    pub unmanaged: Vec<String>,
    /// The process of `areas`.
    pub areas_of: u32,
    /// Areas of the requested process.
    pub areas: Vec<AreaView>,
}
