//! Random numbers for the examples.

/// xorshift64. Only a fixed sequence matters, not its quality.
pub struct Random(pub u64);

impl Random {
    /// Returns the next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Returns a number of `0..n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
