//! The Bloom filter of page tables that are worth walking.
//!
//! Owns 32768 bits and sets two of them for each table. An absent filter answers "present" for
//! every table, so the first walk visits all. Two filters alternate. The walk of one generation
//! tests one filter and fills the other.
//!
//! * BLOOM-1: no false negative between two resets.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

const SHIFT: u32 = 15;
const WORDS: usize = (1 << SHIFT) / 64;

/// One Bloom filter.
#[derive(Debug)]
pub struct Bloom {
    present: AtomicBool,
    bits: Box<[AtomicU64]>,
}

impl Default for Bloom {
    fn default() -> Self {
        let bits = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        Self { present: AtomicBool::new(false), bits }
    }
}

impl Bloom {
    fn keys(item: u64) -> (usize, usize) {
        let hash = item.wrapping_mul(0x61c8_8646_80b5_83eb) >> 34;
        let mask = (1 << SHIFT) - 1;
        ((hash & mask) as usize, (hash >> SHIFT) as usize)
    }

    /// Empties the filter and makes it present.
    pub fn reset(&self) {
        for w in &self.bits {
            w.store(0, Relaxed);
        }
        self.present.store(true, Relaxed);
    }

    /// Whether the filter is present.
    #[must_use]
    pub fn is_present(&self) -> bool {
        self.present.load(Relaxed)
    }

    /// Adds an item. An absent filter stays absent.
    pub fn insert(&self, item: u64) {
        if !self.is_present() {
            return;
        }
        let (a, b) = Self::keys(item);
        for k in [a, b] {
            if self.bits[k / 64].load(Relaxed) & (1 << (k % 64)) == 0 {
                self.bits[k / 64].fetch_or(1 << (k % 64), Relaxed);
            }
        }
    }

    /// Whether the item may have been added.
    #[must_use]
    pub fn may_hold(&self, item: u64) -> bool {
        if !self.is_present() {
            return true;
        }
        let (a, b) = Self::keys(item);
        [a, b].iter().all(|k| self.bits[k / 64].load(Relaxed) & (1 << (k % 64)) != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_filter_says_yes_and_keeps_nothing() {
        let f = Bloom::default();
        assert!(f.may_hold(7));
        f.insert(8);
        f.reset();
        assert!(!f.may_hold(7) && !f.may_hold(8));
    }

    #[test]
    fn no_false_negative_and_the_documented_rate_of_false_positives() {
        let f = Bloom::default();
        f.reset();
        let items = if cfg!(miri) { 100 } else { 10_000u64 };
        for i in 0..items {
            f.insert(i * 64);
        }
        assert!((0..items).all(|i| f.may_hold(i * 64)));
        let wrong = (items..3 * items).filter(|i| f.may_hold(i * 64)).count();
        assert!(cfg!(miri) || (2_000..6_000).contains(&wrong), "a fifth of 20,000: {wrong}");
    }
}
