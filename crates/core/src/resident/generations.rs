//! The window of generations: sequence numbers from the oldest to the youngest, four at most.

const SLOTS: u64 = 4;

/// The window. Generation `seq` lives on list `seq % 4`.
#[derive(Debug)]
pub struct Generations {
    min_seq: u64,
    max_seq: u64,
}

impl Generations {
    pub fn new() -> Self {
        Self { min_seq: 0, max_seq: 3 }
    }

    /// List of the oldest generation.
    pub fn oldest(&self) -> u8 {
        (self.min_seq % SLOTS) as u8
    }

    /// List of the generation `back` steps older than the youngest (the oldest at most).
    pub fn index_back(&self, back: u8) -> u8 {
        (self.max_seq.saturating_sub(u64::from(back)).max(self.min_seq) % SLOTS) as u8
    }

    /// The oldest generation is empty: moves the window on. With two generations left the youngest
    /// ages first, so that there is always one to insert into and one to take from. False if there is
    /// nothing left in any of them.
    pub fn advance(&mut self, len: impl Fn(u8) -> u64) -> bool {
        if (0..SLOTS as u8).all(|index| len(index) == 0) {
            return false;
        }
        debug_assert_eq!(len(self.oldest()), 0);
        self.min_seq += 1;
        if self.max_seq < self.min_seq + 1 {
            self.max_seq = self.min_seq + 1;
        }
        // A young generation that has grown past a third of all is closed, so that ages stay apart.
        let total: u64 = (0..SLOTS as u8).map(&len).sum();
        if self.max_seq < self.min_seq + 3 && len((self.max_seq % SLOTS) as u8) * 3 > total {
            self.max_seq += 1;
        }
        true
    }

    /// I4.
    pub fn check(&self) {
        assert!(self.min_seq < self.max_seq && self.max_seq <= self.min_seq + 3, "I4: {self:?}");
    }
}
