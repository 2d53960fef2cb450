//! The sources of loaded pages, and the costs of loads.

use crate::resident::Edges;

/// Cost of a load from compressed memory, in thousandths of the cost of a reactivation
/// (`docs/results.md`, "Cost of a page fault").
pub const COMPRESSED_COST: u64 = 1300;
/// Cost of a load from a file, in thousandths of the cost of a reactivation.
pub const FAR_COST: u64 = 8000;

/// Numbers of loads since the start.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Loads {
    /// Loads from compressed memory.
    pub compressed: u64,
    /// Loads from a file or server.
    pub far: u64,
    /// Loads among `compressed` of the pages that were compressed last.
    pub compressed_edge: u64,
    /// Loads among `far` of the pages that left compressed memory last. Both edges have the same
    /// number of pages.
    pub far_edge: u64,
    /// Pages that a page of compressed memory holds now, in thousandths.
    pub ratio_permille: u64,
}

impl Loads {
    /// Returns the loads after `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            compressed: self.compressed - before.compressed,
            far: self.far - before.far,
            compressed_edge: self.compressed_edge - before.compressed_edge,
            far_edge: self.far_edge - before.far_edge,
            ratio_permille: self.ratio_permille,
        }
    }

    /// Returns the average cost of a load, in thousandths of the cost of a reactivation. None
    /// without loads.
    pub(super) fn cost_permille(&self) -> Option<u64> {
        (self.compressed * COMPRESSED_COST + self.far * FAR_COST)
            .checked_div(self.compressed + self.far)
    }

    pub(super) fn edges(&self) -> Edges {
        Edges {
            compressed: self.compressed_edge,
            far: self.far_edge,
            ratio_permille: self.ratio_permille,
            compressed_cost: COMPRESSED_COST,
            far_cost: FAR_COST,
        }
    }
}
