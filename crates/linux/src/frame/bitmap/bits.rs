//! The free bits of one pageblock: 512 bits in one cache line. A set bit means a free frame.
//!
//! A free block of order k is an aligned run of 2^k set bits. Runs are never stored. Setting and
//! clearing bits has the effect of merging and splitting.

use crate::frame::kinds::MAX_ORDER;

/// Order that stands for "no bit is set".
pub(super) const EMPTY: u8 = u8::MAX;

const WORDS: usize = 8;
/// For each order k, the bits of a word at which an aligned run of 2^k bits can start.
const ALIGNED: [u64; 7] = [
    !0,
    0x5555_5555_5555_5555,
    0x1111_1111_1111_1111,
    0x0101_0101_0101_0101,
    0x0001_0001_0001_0001,
    0x0000_0001_0000_0001,
    1,
];

/// The free bits of one pageblock, on one cache line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(align(64))]
pub(super) struct Bits(pub(super) [u64; WORDS]);

/// Returns the start bits of the aligned free runs of 2^order in `word`; order at most 6.
#[inline]
fn runs(word: u64, order: u8) -> u64 {
    let mut x = word;
    for k in 0..order {
        x &= x >> (1 << k);
    }
    x & ALIGNED[order as usize]
}

/// Returns a mask of 2^order ones from bit `at`; order at most 6, `at` aligned to it.
#[inline(always)]
fn run_mask(at: u32, order: u8) -> u64 {
    (u64::MAX >> (64 - (1u32 << order))) << at
}

impl Bits {
    pub(super) const NONE: Self = Self([0; WORDS]);
    pub(super) const ALL: Self = Self([!0; WORDS]);

    /// Returns a bit for each word that is all ones.
    #[inline]
    fn full_words(&self) -> u32 {
        self.0.iter().enumerate().fold(0, |full, (i, &w)| full | u32::from(w == !0) << i)
    }

    /// Returns the number of set bits.
    pub(super) fn count(&self) -> u32 {
        self.0.iter().map(|w| w.count_ones()).sum()
    }

    /// Returns the order of the largest aligned free run, or [`EMPTY`].
    #[inline]
    pub(super) fn max_order(&self) -> u8 {
        let full = self.full_words();
        if full != 0 {
            let pairs = full & (full >> 1) & 0x55;
            let quads = pairs & (pairs >> 2) & 0x11;
            return 6 + u8::from(pairs != 0) + u8::from(quads != 0) + u8::from(quads == 0x11);
        }
        // Narrow all words at once: a bit that survives k foldings starts a run of 2^k.
        let mut x = self.0;
        if x.iter().all(|&w| w == 0) {
            return EMPTY;
        }
        for order in 1..6u8 {
            let mut any = 0;
            for w in &mut x {
                *w &= (*w >> (1 << (order - 1))) & ALIGNED[order as usize];
                any |= *w;
            }
            if any == 0 {
                return order - 1;
            }
        }
        5
    }

    /// Returns the first aligned free run of an order below 9.
    #[inline]
    pub(super) fn find(&self, order: u8) -> Option<u32> {
        if order <= 6 {
            return self.0.iter().enumerate().find_map(|(i, &w)| {
                let starts = runs(w, order);
                (starts != 0).then(|| i as u32 * 64 + starts.trailing_zeros())
            });
        }
        let span = 1usize << (order - 6);
        (0..WORDS)
            .step_by(span)
            .find(|&i| self.0[i..i + span].iter().all(|&w| w == !0))
            .map(|i| i as u32 * 64)
    }

    /// Whether all bits of an aligned run are set.
    #[inline]
    pub(super) fn all_set(&self, at: u32, order: u8) -> bool {
        let word = (at / 64) as usize;
        if order <= 6 {
            let mask = run_mask(at % 64, order);
            return self.0[word] & mask == mask;
        }
        self.0[word..word + (1 << (order - 6))].iter().all(|&w| w == !0)
    }

    /// Whether any bit of an aligned run is set.
    #[inline]
    pub(super) fn any_set(&self, at: u32, order: u8) -> bool {
        let word = (at / 64) as usize;
        if order <= 6 {
            return self.0[word] & run_mask(at % 64, order) != 0;
        }
        self.0[word..word + (1 << (order - 6))].iter().any(|&w| w != 0)
    }

    /// Sets or clears an aligned run.
    #[inline]
    pub(super) fn put(&mut self, at: u32, order: u8, set: bool) {
        let word = (at / 64) as usize;
        if order <= 6 {
            let mask = run_mask(at % 64, order);
            if set {
                self.0[word] |= mask;
            } else {
                self.0[word] &= !mask;
            }
            return;
        }
        self.0[word..word + (1 << (order - 6))].fill(if set { !0 } else { 0 });
    }

    /// Takes up to `out.len()` single bits, lowest first, as frame numbers from `base`.
    #[inline]
    pub(super) fn drain(&mut self, base: u32, out: &mut [u32]) -> usize {
        let mut n = 0;
        for (i, word) in self.0.iter_mut().enumerate() {
            let base = base + i as u32 * 64;
            if *word == !0 && out.len() - n >= 64 {
                for (k, slot) in out[n..n + 64].iter_mut().enumerate() {
                    *slot = base + k as u32;
                }
                *word = 0;
                n += 64;
                continue;
            }
            while *word != 0 {
                if n == out.len() {
                    return n;
                }
                out[n] = base + word.trailing_zeros();
                *word &= *word - 1;
                n += 1;
            }
        }
        n
    }

    /// Calls `visit(offset, order)` for every maximal free block.
    pub(super) fn for_each(&self, mut visit: impl FnMut(u32, u8)) {
        let mut at = 0u32;
        while at < WORDS as u32 * 64 {
            if self.0[(at / 64) as usize] >> (at % 64) & 1 == 0 {
                at += 1;
                continue;
            }
            let fits = at.trailing_zeros().min(u32::from(MAX_ORDER - 1)) as u8;
            let order = (0..=fits).rev().find(|&order| self.all_set(at, order)).unwrap_or(0);
            visit(at, order);
            at += 1 << order;
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Computes `max_order` one bit at a time, for comparison.
    fn slow_max(bits: &Bits) -> u8 {
        let set = |i: u32| bits.0[(i / 64) as usize] >> (i % 64) & 1 == 1;
        (0..=9u8)
            .rev()
            .find(|&o| (0..512u32).step_by(1 << o).any(|s| (s..s + (1 << o)).all(set)))
            .unwrap_or(EMPTY)
    }

    fn samples() -> Vec<Bits> {
        let mut seed = 0x9e37_79b9_7f4a_7c15u64;
        let mut next = || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let mut all = vec![Bits::NONE, Bits::ALL];
        for round in 0..if cfg!(miri) { 12 } else { 400 } {
            let mut bits = if round % 2 == 0 { Bits::ALL } else { Bits::NONE };
            for _ in 0..round / 4 + 1 {
                let order = (next() % 9) as u8;
                let at = (next() % 512) as u32 & !((1 << order) - 1);
                bits.put(at, order, next() & 1 == 0);
            }
            all.push(bits);
        }
        all
    }

    #[test]
    fn the_largest_run_is_found_whatever_the_pattern() {
        for bits in samples() {
            assert_eq!(bits.max_order(), slow_max(&bits), "{bits:x?}");
        }
    }

    #[test]
    fn find_agrees_with_the_decomposition() {
        for bits in samples() {
            let mut blocks = Vec::new();
            bits.for_each(|at, order| blocks.push((at, order)));
            let pages: u32 = blocks.iter().map(|&(_, o)| 1u32 << o).sum();
            assert_eq!(pages, bits.count());
            let largest = blocks.iter().map(|&(_, order)| order).max();
            assert_eq!(bits.max_order(), largest.unwrap_or(EMPTY));
            for order in 0..9 {
                let found = bits.find(order);
                assert_eq!(found.is_some(), blocks.iter().any(|&(_, o)| o >= order));
                assert!(found.is_none_or(|at| bits.all_set(at, order)));
            }
        }
    }

    #[test]
    fn drain_takes_the_lowest_bits_and_no_others() {
        for mut bits in samples() {
            let before = bits;
            let mut out = [0u32; 70];
            let n = bits.drain(512, &mut out);
            assert!(out[..n].is_sorted());
            assert_eq!(bits.count() + n as u32, before.count());
            for &pfn in &out[..n] {
                assert!(before.all_set(pfn - 512, 0) && !bits.all_set(pfn - 512, 0));
            }
            assert_eq!(n, 70.min(before.count() as usize));
        }
    }
}
