//! Numbers that all drivers of the engine share. With other numbers the laboratory foretells
//! another run than the pager's.

use crate::types::PAGE_SIZE;

/// Number of pages that a program fills between two measurements, if the second is some
/// milliseconds late: 64 MiB.
pub const LATE_PAGES: u64 = (64 << 20) / PAGE_SIZE as u64;
/// Share of a large budget that a driver keeps in place of [`LATE_PAGES`].
const LATE_SHARE: u64 = 8;

/// Returns the number of used pages below which a driver manages nothing, if reclaim aims at `goal`
/// pages. So memory costs nothing as long as the limit is far.
#[must_use]
pub const fn managed_from(goal: u64) -> u64 {
    let share = goal / LATE_SHARE;
    goal.saturating_sub(if share > LATE_PAGES { share } else { LATE_PAGES })
}

/// Maximum number of pages of zeros that one fault places beside its own page.
pub const FRESH_AHEAD_MAX: usize = 15;
/// Maximum number of standby pages that one fault brings back beside its own page.
pub const BESIDE_MAX: usize = 16;
/// Maximum number of pages in a readahead window, unless the user sets another.
pub const READAHEAD_MAX: u32 = 64;
/// Share of the budget that a readahead window takes at most.
const WINDOW_SHARE: u64 = 128;

/// Returns the maximum number of pages in a readahead window for a budget of `limit` pages. The
/// user allows `most`.
#[must_use]
pub fn window_max(limit: u64, most: u32) -> u32 {
    (limit / WINDOW_SHARE).min(u64::from(most)) as u32
}

/// The pages that entered compressed memory last are its edge, and so are the pages that left it
/// last. An edge is 1 / `EDGE_SHARE` of the pages in compressed memory. With a little more or less
/// compressed memory only loads of these pages change ([`crate::engine::Loads`]).
pub const EDGE_SHARE: u32 = 8;
/// Interval at which a driver reports loads ([`crate::engine::Engine::note_loads`]), in
/// milliseconds.
pub const WEIGH_MS: u64 = 100;
/// Time for which threads wait for memory while nothing is stored, in milliseconds. Then the run
/// ends as out of memory.
pub const NO_PROGRESS_MS: u64 = 2_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_driver_manages_memory_from_64_mib_or_an_eighth_below_the_goal() {
        assert_eq!(managed_from(LATE_PAGES), 0);
        assert_eq!(managed_from(2 * LATE_PAGES), LATE_PAGES);
        assert_eq!(managed_from(80 * LATE_PAGES), 70 * LATE_PAGES);
    }

    #[test]
    fn a_window_is_a_small_share_of_a_small_budget() {
        assert_eq!(
            [0, 127, 1280, 1 << 30].map(|limit| window_max(limit, READAHEAD_MAX)),
            [0, 0, 10, 64]
        );
    }
}
