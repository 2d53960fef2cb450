//! Pseudorandom numbers from a seed. A seed gives one sequence of numbers, on every machine and in
//! every version.
//!
//! SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014): a
//! counter whose bits are mixed. Good enough to draw pages and to fill them; not for secrets.

const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// A sequence of numbers. The field is the counter; its first value is the seed.
#[derive(Clone, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Returns the next 64 bits.
    pub fn word(&mut self) -> u64 {
        let word = mix(self.0);
        self.0 = self.0.wrapping_add(STEP);
        word
    }

    /// Returns a number of `0..limit`, or 0 if `limit` is 0.
    pub fn below(&mut self, limit: u32) -> u32 {
        (((self.word() >> 32) * u64::from(limit)) >> 32) as u32
    }
}

/// Returns the first number of the sequence of `seed`. Spreads the bits of a counter over all 64.
#[must_use]
pub const fn mix(seed: u64) -> u64 {
    let x = seed.wrapping_add(STEP);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the published sequence of seed 1234567.
    #[test]
    fn the_random_numbers_are_those_of_splitmix64() {
        let mut random = Random(1_234_567);
        let published =
            [6_457_827_717_110_365_317, 3_203_168_211_198_807_973, 9_817_491_932_198_370_423];
        assert_eq!(published.map(|_| random.word()), published);
    }

    #[test]
    fn drawn_numbers_are_below_their_limit() {
        let mut random = Random(1);
        assert!((0..1_000).all(|_| random.below(7) < 7));
        assert_eq!(random.below(0), 0);
    }
}
