//! Contiguous ranges: frees a stretch of frames from its users and allocates it as a whole.
//!
//! ```text
//! isolate the pageblocks -> drain all sets -> move users out -> take the range -> end isolation
//! ```
//! While blocks are isolated, their free frames serve no request and are not counted. Frames freed
//! meanwhile bypass the sets and go to the store. If a user cannot be moved, everything is as
//! before.

use std::fmt;
use std::ops::Range;

use super::frames::{Frames, Zone};
use super::kinds::{Migratetype, Order, PAGEBLOCK_PAGES};
use ebb_mm::types::Pfn;

/// Rounds of moving users out before the allocation fails.
const ROUNDS_MAX: u32 = 5;

/// The reason why a range could not be allocated.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ContigError {
    /// The range is empty or not within one zone.
    Range,
    /// Another caller has isolated a pageblock of the range.
    Isolated(Pfn),
    /// The user of this frame could not be moved.
    Busy(Pfn),
    /// No CMA range is large enough.
    NoRange,
}

impl fmt::Display for ContigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Range => write!(f, "the range is empty or not within one zone"),
            Self::Isolated(pfn) => write!(f, "frame {:#x} is isolated already", pfn.0),
            Self::Busy(pfn) => write!(f, "the user of frame {:#x} could not be moved", pfn.0),
            Self::NoRange => write!(f, "no contiguous range is large enough"),
        }
    }
}

impl std::error::Error for ContigError {}

impl Frames {
    /// Allocates exactly `range`. `migrate` is called for frames in use. It moves the contents
    /// elsewhere, frees the frame through this allocator, and returns whether it could.
    ///
    /// The frames are allocated one by one, so the caller frees them at order 0.
    pub fn alloc_contig(
        &self,
        range: Range<u32>,
        migrate: &mut dyn FnMut(Pfn) -> bool,
    ) -> Result<(), ContigError> {
        let zone = self.zone_of(&range).ok_or(ContigError::Range)?;
        let blocks = blocks_of(&range);
        let mut isolated = Vec::new();
        for block in blocks {
            let was = self.blocks.get(Pfn(block));
            if was.migratetype() == Migratetype::Isolate {
                self.release(zone, &isolated);
                return Err(ContigError::Isolated(Pfn(block)));
            }
            zone.store.set_migratetype(&zone.state, block, Migratetype::Isolate);
            isolated.push((block, was.kept_type()));
        }
        let result = self.clear(zone, &range, migrate);
        self.release(zone, &isolated);
        if result.is_ok()
            && let Some(table) = &self.table
        {
            for pfn in range {
                let marked = table.mark_used(pfn, Order::ZERO);
                debug_assert!(marked, "a frame of the range was not free");
            }
        }
        result
    }

    fn clear(
        &self,
        zone: &Zone,
        range: &Range<u32>,
        migrate: &mut dyn FnMut(Pfn) -> bool,
    ) -> Result<(), ContigError> {
        let mut busy = Pfn(range.start);
        for _ in 0..ROUNDS_MAX {
            self.drain_all();
            if zone.store.take_range(&zone.state, range.clone()) {
                return Ok(());
            }
            for pfn in range.clone() {
                if !zone.store.is_free(pfn) && !migrate(Pfn(pfn)) {
                    busy = Pfn(pfn);
                }
            }
        }
        Err(ContigError::Busy(busy))
    }

    fn release(&self, zone: &Zone, isolated: &[(u32, Migratetype)]) {
        for &(block, kept) in isolated {
            zone.store.set_migratetype(&zone.state, block, kept);
        }
    }

    fn zone_of(&self, range: &Range<u32>) -> Option<&Zone> {
        let zone = self.blocks.get(Pfn(range.start)).zone().map(|z| &self.zones[z])?;
        let span = &zone.state.span;
        (!range.is_empty() && range.start >= span.start && range.end <= span.end).then_some(zone)
    }

    /// Allocates `pages` contiguous frames, aligned to `align`, from the CMA ranges of `zone`.
    /// Takes the first range whose users can be moved.
    pub fn alloc_cma(
        &self,
        zone: usize,
        pages: u32,
        align: Order,
        migrate: &mut dyn FnMut(Pfn) -> bool,
    ) -> Result<Pfn, ContigError> {
        let span = self.zones[zone].state.span.clone();
        let mut at = span.start.next_multiple_of(align.pages());
        let mut failure = ContigError::NoRange;
        while pages > 0 && at.checked_add(pages).is_some_and(|end| end <= span.end) {
            let foreign = (at..at + pages).find(|&pfn| {
                let info = self.blocks.get(Pfn(pfn));
                info.kept_type() != Migratetype::Cma || info.migratetype() == Migratetype::Isolate
            });
            let next = match foreign {
                Some(pfn) => (pfn & !(PAGEBLOCK_PAGES - 1)) + PAGEBLOCK_PAGES,
                None => match self.alloc_contig(at..at + pages, migrate) {
                    Ok(()) => return Ok(Pfn(at)),
                    Err(ContigError::Busy(pfn)) => {
                        failure = ContigError::Busy(pfn);
                        pfn.0 + 1
                    }
                    Err(other) => return Err(other),
                },
            };
            at = next.next_multiple_of(align.pages());
        }
        Err(failure)
    }

    /// Frees a range allocated by [`alloc_contig`](Self::alloc_contig) or
    /// [`alloc_cma`](Self::alloc_cma).
    pub fn free_contig(&self, cpu: usize, range: Range<u32>) -> Result<(), super::checks::BadFree> {
        range.into_iter().try_for_each(|pfn| self.free_on(cpu, Pfn(pfn), Order::ZERO))
    }
}

fn blocks_of(range: &Range<u32>) -> impl Iterator<Item = u32> + use<> {
    let first = range.start & !(PAGEBLOCK_PAGES - 1);
    (first..range.end).step_by(PAGEBLOCK_PAGES as usize)
}
