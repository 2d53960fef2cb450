//! Cost of finding the page-table entries of folios. It depends on how many processes map a folio,
//! if any. It also depends on whether its entries lie beside others that were just read.
//!
//! The engine reports how many folios it looked up, not which. This file sees each folio that the
//! engine takes out. The mean cost of finding those stands for all of their type.
//!
//! Invariant
//! * MAPPINGS-1: the mean of a type is that of the last pass in which a folio of it was taken out.
//!   If there is none, the mean is that of the dearest region.

use ebb_mm::folio::LruType;
use ebb_mm::space::Backing;

use super::costs::Costs;
use super::mem::Region;

/// Number of lines of entries that a processor's cache keeps.
const LINES: usize = 64;
/// Number of entries in one line: 64 bytes.
const LINE_ENTRIES: u64 = 8;

/// Number of folios of a type that were taken out, and the cost of finding them.
#[derive(Clone, Copy, Default, Debug)]
struct Taken {
    folios: u64,
    walk_ns: u64,
}

/// Processes that map each folio, and the cost of finding its entries.
#[derive(Debug)]
pub struct Mappings {
    /// Regions by space: end, number of processes that map it, whether it is shared memory.
    spaces: Vec<Vec<(u64, u32, bool)>>,
    now: [Taken; 2],
    mean_ns: [u64; 2],
    lines: [(u32, u64); LINES],
    next: usize,
    near_ns: u64,
    one_ns: u64,
    more_ns: u64,
}

impl Mappings {
    /// Creates a record without spaces.
    #[must_use]
    pub fn new(costs: &Costs) -> Self {
        Self {
            spaces: Vec::new(),
            now: [Taken::default(); 2],
            mean_ns: [0; 2],
            lines: [(u32::MAX, 0); LINES],
            next: 0,
            near_ns: costs.rmap_near_ns,
            one_ns: costs.rmap_ns,
            more_ns: costs.rmap_more_ns,
        }
    }

    /// Adds the next space, with these regions.
    pub fn add_space(&mut self, regions: &[Region]) {
        let mut end = 0;
        let mut ends = Vec::new();
        for r in regions.iter().filter(|r| r.pages > 0) {
            end += r.pages;
            ends.push((end, r.processes, r.backing == Backing::Shmem));
            let ty = usize::from(r.backing == Backing::File);
            let ns = self.one_ns + self.further_ns(r.processes);
            self.mean_ns[ty] = self.mean_ns[ty].max(ns);
        }
        self.spaces.push(ends);
    }

    fn further_ns(&self, processes: u32) -> u64 {
        u64::from(processes.saturating_sub(1)) * self.more_ns
    }

    fn region(&self, space: u32, page: u64) -> (u64, u32, bool) {
        let regions = &self.spaces[space as usize];
        regions[regions.partition_point(|r| r.0 <= page).min(regions.len() - 1)]
    }

    /// Returns whether a page belongs to shared memory.
    pub fn is_shared(&self, space: u32, page: u64) -> bool {
        self.region(space, page).2
    }

    /// Counts a folio that is taken out. Returns the cost of finding its entries beyond the first
    /// process's.
    pub fn taken(&mut self, ty: LruType, mapped: bool, space: u32, page: u64) -> u64 {
        self.now[ty.index()].folios += 1;
        if !mapped {
            return 0;
        }
        let further = self.further_ns(self.region(space, page).1);
        let line = (space, page / LINE_ENTRIES);
        let first = if self.lines.contains(&line) {
            self.near_ns
        } else {
            self.lines[self.next] = line;
            self.next = (self.next + 1) % LINES;
            self.one_ns
        };
        self.now[ty.index()].walk_ns += first + further;
        further
    }

    /// Returns the mean cost of finding one folio of each type.
    pub fn mean_ns(&mut self) -> [u64; 2] {
        for (mean, now) in self.mean_ns.iter_mut().zip(&mut self.now) {
            if let Some(ns) = now.walk_ns.checked_div(now.folios) {
                *mean = ns;
            }
            *now = Taken::default();
        }
        self.mean_ns
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn two_regions() -> (Mappings, Costs) {
        let costs = Costs::default();
        let mut m = Mappings::new(&costs);
        let region = |pages, processes| Region {
            pages,
            backing: Backing::Shmem,
            recency: true,
            exec: false,
            processes,
        };
        m.add_space(&[region(100, 10), region(100, 1)]);
        (m, costs)
    }

    #[test]
    fn every_process_that_maps_a_folio_is_a_walk() {
        let (mut m, c) = two_regions();
        assert_eq!(m.mean_ns()[0], c.rmap_ns + 9 * c.rmap_more_ns, "the dearest, to begin with");
        assert_eq!(m.taken(LruType::Anon, true, 0, 5), 9 * c.rmap_more_ns);
        assert_eq!(m.mean_ns()[0], c.rmap_ns + 9 * c.rmap_more_ns);
        assert_eq!(m.taken(LruType::Anon, true, 0, 150), 0);
        assert_eq!(m.mean_ns()[0], c.rmap_ns);
        assert_eq!(m.mean_ns()[0], c.rmap_ns, "nothing new is known");
    }

    #[test]
    fn entries_in_a_line_that_was_read_are_near_and_unmapped_folios_have_none() {
        let (mut m, c) = two_regions();
        (104..112).for_each(|page| {
            m.taken(LruType::Anon, true, 0, page);
        });
        assert_eq!(m.mean_ns()[0], (c.rmap_ns + 7 * c.rmap_near_ns) / 8);
        m.taken(LruType::File, false, 0, 120);
        assert_eq!(m.mean_ns()[1], 0);
    }
}
