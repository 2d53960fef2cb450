//! The budget as a zone: how many pages there may be, how many there are, when to reclaim.

/// Levels of free pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Watermarks {
    /// Below this only what must go on may take pages.
    pub min: u64,
    /// Below this kswapd wakes.
    pub low: u64,
    /// Up to this kswapd works.
    pub high: u64,
}

/// The budget. `used` is what the driver charges and uncharges, and corrects from time to time by what
/// the kernel says (`resync`): pages come and go behind its back.
#[derive(Debug)]
pub struct Zone {
    limit: u64,
    used: u64,
    marks: Watermarks,
}

impl Zone {
    /// A zone of `limit` pages. The reserve between low and high is kept near 1 %: every page of it
    /// is a page the program does without.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        let step = (limit / 128).clamp(16, 2048);
        let min = (limit / 256).clamp(8, 1024);
        Self { limit, used: 0, marks: Watermarks { min, low: min + step, high: min + 2 * step } }
    }

    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }

    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    #[must_use]
    pub fn watermarks(&self) -> Watermarks {
        self.marks
    }

    /// Pages left.
    #[must_use]
    pub fn free(&self) -> u64 {
        self.limit.saturating_sub(self.used)
    }

    /// Takes `pages` if that leaves at least `mark` free.
    pub fn try_charge(&mut self, pages: u64, mark: u64) -> bool {
        let fits = self.free() >= pages + mark;
        if fits {
            self.used += pages;
        }
        fits
    }

    /// Takes `pages` whatever is left.
    pub fn charge(&mut self, pages: u64) {
        self.used += pages;
    }

    /// Gives `pages` back.
    pub fn uncharge(&mut self, pages: u64) {
        self.used = self.used.saturating_sub(pages);
    }

    /// The truth, as measured.
    pub fn resync(&mut self, used: u64) {
        self.used = used;
    }

    /// kswapd should be at work.
    #[must_use]
    pub fn is_low(&self) -> bool {
        self.free() < self.marks.low
    }

    /// kswapd may rest: strictly more than the high mark is free.
    #[must_use]
    pub fn is_balanced(&self) -> bool {
        self.free() > self.marks.high
    }
}
