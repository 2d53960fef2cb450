//! Ebb's own engine as a policy: the multi-gen LRU (`gen`) and the classic LRU (`classic`). The
//! policy drives the replay machine of `ebb_mm`, which is the code that `ebb run` uses.
//!
//! The machine's address space has the anonymous pages first and the file pages after them. Each
//! kind is in order of appearance or in order of the trace's own page numbers. In the first layout
//! real kernels were measured. The order decides which pages share a page table and which are
//! neighbours.

use ebb_mm::folio::Folio;
use ebb_mm::lru::memory::{Access as Touch, Memory, Region};
use ebb_mm::space::Backing;
use ebb_mm::tunables::{LruKind, SetError, Tunables};

use super::{Footprint, Replay, Tally};
use crate::trace::{Access, Kind, Op};

/// Smallest number of pages for the multi-gen LRU. Reclaim takes 32 at a time, and the per-CPU
/// batch may contain as many.
pub const GEN_CAPACITY_MIN: u32 = 64;
/// Smallest number of pages for the classic LRU. With fewer, reclaim may find nothing, because the
/// scan targets of such short lists round to zero.
pub const CLASSIC_CAPACITY_MIN: u32 = 256;

/// Kind of memory that the pages of a trace are taken for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Nature {
    /// The kind that the trace gives for each access; objects of key-value traces are anonymous.
    #[default]
    Trace,
    /// All pages are anonymous.
    Anon,
    /// All pages are file pages, read through system calls.
    FileRead,
    /// All pages are file pages, read through a mapping with `MADV_RANDOM`.
    FileMmap,
    /// Pages are anonymous where the trace says so. The others are file pages, read through a
    /// mapping with `MADV_RANDOM`.
    MixedMmap,
}

/// Order of the pages in the machine's address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Layout {
    /// Order of the first accesses.
    #[default]
    Appearance,
    /// Order of the trace's page numbers, without the gaps.
    Address,
}

/// Switches of one run.
#[derive(Clone, Debug)]
pub struct EngineSettings {
    r#gen: Tunables,
    classic: Tunables,
    /// Kind that the pages count as.
    pub nature: Nature,
    /// Order of the pages in the address space.
    pub layout: Layout,
}

impl Default for EngineSettings {
    fn default() -> Self {
        let classic = Tunables::preset("classic").expect("the classic preset");
        let r#gen = Tunables::default();
        Self { r#gen, classic, nature: Nature::Trace, layout: Layout::Appearance }
    }
}

impl EngineSettings {
    /// Returns whether the engine has a switch of this name. `lru` does not count, because the
    /// policy's name decides it.
    #[must_use]
    pub fn has(key: &str) -> bool {
        key == "preset" || (key != "lru" && Tunables::KEYS.contains(&key))
    }

    /// Returns the names of the switches.
    pub fn keys() -> impl Iterator<Item = &'static str> {
        Tunables::KEYS.iter().copied().filter(|key| *key != "lru").chain(["preset"])
    }

    /// Sets one switch for both LRUs. A preset applies only to the LRU that it names.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), SetError> {
        if key == "preset" {
            let preset = Tunables::preset(value)?;
            match preset.lru {
                LruKind::Gen => self.r#gen = preset,
                LruKind::Classic => self.classic = preset,
            }
            return Ok(());
        }
        self.r#gen.set_pair(key, value)?;
        self.classic.set_pair(key, value)
    }
}

/// Memory of the machine per frame: the record, the prefetch hint, and an entry on the list of free
/// frames.
const FRAME_BYTES: usize = size_of::<Folio>() + 2 * size_of::<u32>();
/// Memory of the machine per page of the address space: a page-table entry.
const ENTRY_BYTES: usize = size_of::<u64>();

/// The replay machine of one run.
#[derive(Debug)]
pub struct Engine {
    memory: Memory,
    /// Position of each page in the address space. `UNTOUCHED` is set until the first access.
    places: Vec<u32>,
    anon: u32,
    capacity: u32,
    nature: Nature,
}

/// Flag in a page's position until its first access.
const UNTOUCHED: u32 = 1 << 31;

impl Engine {
    /// Creates a machine with `capacity` frames for the pages of a footprint.
    #[must_use]
    pub fn new(
        footprint: Footprint<'_>,
        capacity: u32,
        settings: &EngineSettings,
        kind: LruKind,
    ) -> Self {
        let nature = settings.nature;
        let is_anon = |page: u32| match nature {
            Nature::Anon => true,
            Nature::FileRead | Nature::FileMmap => false,
            Nature::Trace | Nature::MixedMmap => {
                let kind = footprint.kinds.get(page as usize).copied().unwrap_or_default();
                matches!(kind, Kind::Anon | Kind::Object)
            }
        };
        let anon = (0..footprint.pages).filter(|&page| is_anon(page)).count() as u32;
        let (mut next_anon, mut next_file) = (0, anon);
        let place = |page| {
            let next = if is_anon(page) { &mut next_anon } else { &mut next_file };
            *next += 1;
            (*next - 1) | UNTOUCHED
        };
        let places = match settings.layout {
            Layout::Appearance => (0..footprint.pages).map(place).collect(),
            Layout::Address => by_address(footprint, place),
        };
        let region = |start: u32, end: u32, backing, recency| Region {
            start: u64::from(start),
            end: u64::from(end),
            backing,
            recency,
        };
        let recency = matches!(nature, Nature::Trace | Nature::Anon | Nature::FileRead);
        let regions = [
            region(0, anon, Backing::Anon, true),
            region(anon, footprint.pages, Backing::File, recency),
        ];
        let tunables = match kind {
            LruKind::Gen => settings.r#gen.clone(),
            LruKind::Classic => settings.classic.clone(),
        };
        let memory = Memory::new(tunables, &regions, capacity);
        Self { memory, places, anon, capacity, nature }
    }

    /// Returns the position of each page in the address space.
    #[cfg(test)]
    pub fn places(&self) -> Vec<u32> {
        self.places.iter().map(|place| place & !UNTOUCHED).collect()
    }

    #[inline]
    fn touch(&mut self, access: Access) {
        let place = &mut self.places[access.page() as usize];
        let is_first = *place & UNTOUCHED != 0;
        *place &= !UNTOUCHED;
        let place = *place;
        let writes = access.op() == Op::Write;
        let touch = if place < self.anon {
            // The first access to anonymous memory fills the page.
            if writes || is_first { Touch::AnonWrite } else { Touch::AnonRead }
        } else {
            // A written file page counts as read. Storage is immediate here, so a flusher would
            // clean the page before reclaim finds it, and the machine has no flusher.
            match (self.nature, access.kind()) {
                (Nature::FileRead, _) | (Nature::Trace, Kind::Buffered) => Touch::FdRead,
                _ => Touch::MmapRead,
            }
        };
        self.memory.touch(u64::from(place), touch);
    }
}

/// Returns positions for pages in the order of their names.
fn by_address(footprint: Footprint<'_>, place: impl FnMut(u32) -> u32) -> Vec<u32> {
    let mut order: Vec<u32> = (0..footprint.pages).collect();
    // Without names the numbers are the names, and in order.
    order.sort_by_key(|&page| footprint.names.get(page as usize).copied().unwrap_or(0));
    let mut places = vec![0; order.len()];
    for (&page, place) in order.iter().zip(order.iter().copied().map(place)) {
        places[page as usize] = place;
    }
    places
}

impl Replay for Engine {
    fn feed(&mut self, chunk: &[Access], _next: &[u32]) -> u64 {
        let before = self.memory.counts().misses;
        for &access in chunk {
            self.touch(access);
        }
        self.memory.counts().misses - before
    }

    fn is_resident(&self, _page: u32) -> Option<bool> {
        None
    }

    fn tally(&self) -> Tally {
        let counts = self.memory.counts();
        Tally { scanned: counts.scanned, protected: counts.protected }
    }

    fn heap_bytes(&self) -> usize {
        let frames = self.capacity as usize * FRAME_BYTES;
        frames + self.places.len() * (ENTRY_BYTES + size_of::<u32>())
    }
}
