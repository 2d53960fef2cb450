//! Watermarks: the numbers of free pages at which reclaim begins, ends, and leaves a reserve.
//!
//! All divisions round down, and each value is derived from the rounded one before it. The results
//! equal the kernel's to the last page.

/// The level of a watermark.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Level {
    /// Below this watermark only reserves are left.
    Min,
    /// Below this watermark kswapd is woken.
    Low,
    /// The watermark that kswapd aims at.
    High,
    /// The watermark that kswapd aims at where memory has tiers.
    Promo,
}

/// A zone's watermarks in pages, without boost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Marks {
    /// Watermark [`Level::Min`].
    pub min: u64,
    /// Watermark [`Level::Low`].
    pub low: u64,
    /// Watermark [`Level::High`].
    pub high: u64,
    /// Watermark [`Level::Promo`].
    pub promo: u64,
}

impl Marks {
    /// Returns the watermark at `level`.
    #[must_use]
    pub const fn at(&self, level: Level) -> u64 {
        match level {
            Level::Min => self.min,
            Level::Low => self.low,
            Level::High => self.high,
            Level::Promo => self.promo,
        }
    }
}

/// Returns a zone's watermarks. `high_zone`: the zone is high memory or movable-only.
#[must_use]
pub fn marks(
    managed: u64,
    lowmem_pages: u64,
    min_free_kbytes: u64,
    scale_factor: u64,
    high_zone: bool,
) -> Marks {
    let share = (min_free_kbytes / 4 * managed).checked_div(lowmem_pages).unwrap_or(0);
    let min = if high_zone { (managed / 1024).clamp(32, 128) } else { share };
    let delta = (share / 4).max(managed * scale_factor.clamp(1, 3000) / 10_000);
    Marks { min, low: min + delta, high: min + 2 * delta, promo: min + 3 * delta }
}
