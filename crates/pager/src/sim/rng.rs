//! Numbers from a seed, drawn in the ways that the simulation needs.

use ebb_mm::random::Random;

/// The source.
#[derive(Debug, Clone)]
pub struct Rng(Random);

impl Rng {
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self(Random(seed.wrapping_mul(0xd134_2543_de82_ef95) ^ 0x9e37_79b9_7f4a_7c15))
    }

    pub fn next(&mut self) -> u64 {
        self.0.word()
    }

    /// One of `0..limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    /// One of `from..to`.
    pub fn between(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from)
    }

    /// True once in `times`.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of `items`.
    pub fn pick<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        (!items.is_empty()).then(|| items[self.below(items.len() as u64) as usize])
    }

    /// An index, each as likely as its weight says.
    pub fn weighted(&mut self, weights: &[u64]) -> usize {
        let mut at = self.below(weights.iter().sum());
        for (index, &weight) in weights.iter().enumerate() {
            if at < weight {
                return index;
            }
            at -= weight;
        }
        0
    }
}
