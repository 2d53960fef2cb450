//! Address spaces: areas, page tables, and the reverse map from a folio to its entries.
//!
//! An area tells which pages belong together, and whether an access predicts later ones (recency).
//! For each page the space has the table entry that the hardware would have. A page cache is an
//! address space whose pages are present but not mapped.
//!
//! Lock order: the area list of a space is taken before any lru lock; table entries have no lock.

mod rmap;
mod table;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

pub use rmap::{Mappings, References};
pub use table::{Directory, Pte, PteRef, TABLE_ENTRIES, Table, Tree};

use crate::folio::MemcgId;
use crate::types::{MmId, Vpn};

/// Backing of an area.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// Private anonymous memory.
    Anon,
    /// Shared memory: swap-backed.
    Shmem,
    /// A file.
    File,
}

/// A range of pages with the same properties.
#[derive(Clone, Debug)]
pub struct Area {
    /// First page.
    pub start: Vpn,
    /// One past the last page.
    pub end: Vpn,
    /// Backing of the area.
    pub backing: Backing,
    /// Whether an access predicts the next one (no sequential or random advice).
    pub recency: bool,
    /// Whether the area is locked in memory.
    pub locked: bool,
    /// Whether walks skip the area (device memory and the like).
    pub special: bool,
    /// Whether the area is program text.
    pub exec: bool,
}

impl Area {
    /// Returns an ordinary area.
    #[must_use]
    pub const fn new(start: Vpn, end: Vpn, backing: Backing) -> Self {
        Self { start, end, backing, recency: true, locked: false, special: false, exec: false }
    }

    /// Returns whether `vpn` lies in the area.
    #[must_use]
    pub const fn holds(&self, vpn: Vpn) -> bool {
        self.start.0 <= vpn.0 && vpn.0 < self.end.0
    }
}

/// An address space.
#[derive(Debug)]
pub struct Space {
    id: MmId,
    memcg: MemcgId,
    tree: Tree,
    areas: RwLock<Vec<Area>>,
    /// One bit a node: the program ran there since aging last looked.
    scheduled: AtomicU64,
    dead: AtomicBool,
}

impl Space {
    /// Creates a space that is in no list of spaces, so no walk visits it.
    #[must_use]
    pub(crate) fn new(id: MmId, memcg: MemcgId) -> Self {
        Self {
            id,
            memcg,
            tree: Tree::new(),
            areas: RwLock::new(Vec::new()),
            scheduled: AtomicU64::new(u64::MAX),
            dead: AtomicBool::new(false),
        }
    }

    /// Returns the page tables, for an exclusive owner of the space.
    pub(crate) fn tree_mut(&mut self) -> &mut Tree {
        &mut self.tree
    }

    /// Returns the number of the space.
    #[must_use]
    pub fn id(&self) -> MmId {
        self.id
    }

    /// Returns the memcg to which the pages of the space are charged.
    #[must_use]
    pub fn memcg(&self) -> MemcgId {
        self.memcg
    }

    /// Returns the page tables of the space.
    #[inline]
    #[must_use]
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Adds an area; areas do not overlap.
    pub fn add_area(&self, area: Area) {
        let mut areas = self.areas.write().unwrap_or_else(PoisonError::into_inner);
        let at = areas.partition_point(|a| a.start < area.start);
        debug_assert!(at == 0 || areas[at - 1].end <= area.start);
        debug_assert!(areas.get(at).is_none_or(|next| area.end <= next.start));
        areas.insert(at, area);
    }

    /// Removes the areas that start in `start..end`.
    pub fn remove_areas(&self, start: Vpn, end: Vpn) {
        let mut areas = self.areas.write().unwrap_or_else(PoisonError::into_inner);
        areas.retain(|a| a.start < start || a.start >= end);
    }

    /// Returns the areas. They do not change while the guard lives.
    pub fn areas(&self) -> RwLockReadGuard<'_, Vec<Area>> {
        self.areas.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the areas, or `None` while another thread changes them.
    pub fn try_areas(&self) -> Option<RwLockReadGuard<'_, Vec<Area>>> {
        self.areas.try_read().ok()
    }

    /// Returns the area of `vpn`.
    #[must_use]
    pub fn area_of(&self, vpn: Vpn) -> Option<Area> {
        let areas = self.areas();
        let at = areas.partition_point(|a| a.end <= vpn);
        areas.get(at).filter(|a| a.holds(vpn)).cloned()
    }

    /// Notes that the program ran.
    pub fn note_scheduled(&self) {
        if self.scheduled.load(Relaxed) != u64::MAX {
            self.scheduled.store(u64::MAX, Relaxed);
        }
    }

    /// Returns whether the program ran on `node` since the last call.
    #[must_use]
    pub fn take_scheduled(&self, node: u32) -> bool {
        let bit = 1 << (node % 64);
        self.scheduled.fetch_and(!bit, Relaxed) & bit != 0
    }

    /// Ends the space: walks skip it from now on.
    pub fn kill(&self) {
        self.dead.store(true, Relaxed);
    }

    /// Returns whether the space has ended.
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.dead.load(Relaxed)
    }
}

/// All address spaces of a node.
#[derive(Debug, Default)]
pub struct Spaces {
    list: RwLock<Vec<Arc<Space>>>,
    pub(crate) mappings: Mappings,
}

impl Spaces {
    /// Creates an empty list of spaces.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Creates a space; it counts as scheduled.
    pub fn create(&self, memcg: MemcgId) -> Arc<Space> {
        let mut list = self.list.write().unwrap_or_else(PoisonError::into_inner);
        let space = Arc::new(Space::new(MmId(list.len() as u32), memcg));
        list.push(Arc::clone(&space));
        space
    }

    /// Returns the space with the number `id`.
    #[must_use]
    pub fn get(&self, id: MmId) -> Option<Arc<Space>> {
        self.read().get(id.0 as usize).cloned()
    }

    /// Returns the list itself, for a batch of look-ups under one lock.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<Space>>> {
        self.list.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_are_found_by_their_pages() {
        let spaces = Spaces::new();
        let s = spaces.create(MemcgId(1));
        s.add_area(Area::new(Vpn(100), Vpn(200), Backing::File));
        s.add_area(Area::new(Vpn(0), Vpn(10), Backing::Anon));
        assert_eq!(s.area_of(Vpn(9)).unwrap().backing, Backing::Anon);
        assert!(s.area_of(Vpn(10)).is_none() && s.area_of(Vpn(99)).is_none());
        assert_eq!(s.area_of(Vpn(100)).unwrap().backing, Backing::File);
        s.remove_areas(Vpn(100), Vpn(101));
        assert!(s.area_of(Vpn(100)).is_none());
    }

    #[test]
    fn the_scheduled_bit_is_taken_once_a_node() {
        let s = Spaces::new().create(MemcgId(0));
        assert!(s.take_scheduled(3) && !s.take_scheduled(3) && s.take_scheduled(4));
        s.note_scheduled();
        assert!(s.take_scheduled(3));
    }
}
