//! Where loaded pages came from, and what that costs.

use crate::resident::Edges;

/// What a load from compressed memory costs, in thousandths of what bringing back a cool page does
/// (`docs/results.md`, "Cost of a page fault").
pub const NEAR_COST: u64 = 1300;
/// The same for a load from a file.
pub const FAR_COST: u64 = 8000;

/// Loads since the beginning.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Loads {
    /// From compressed memory.
    pub near: u64,
    /// From a file.
    pub far: u64,
    /// Of the pages that were compressed last.
    pub near_edge: u64,
    /// Of as many pages that left compressed memory last.
    pub far_edge: u64,
    /// Pages in a page of compressed memory, in thousandths, as it is now.
    pub ratio_permille: u64,
}

impl Loads {
    /// Those after `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            near: self.near - before.near,
            far: self.far - before.far,
            near_edge: self.near_edge - before.near_edge,
            far_edge: self.far_edge - before.far_edge,
            ratio_permille: self.ratio_permille,
        }
    }

    /// What one of them cost on average, in thousandths of bringing back a cool page.
    pub(super) fn cost_permille(&self) -> Option<u64> {
        (self.near * NEAR_COST + self.far * FAR_COST).checked_div(self.near + self.far)
    }

    pub(super) fn edges(&self) -> Edges {
        Edges {
            near: self.near_edge,
            far: self.far_edge,
            ratio_permille: self.ratio_permille,
            near_cost: NEAR_COST,
            far_cost: FAR_COST,
        }
    }
}
