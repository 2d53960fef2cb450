//! Counting sketch: estimates how often a page was seen recently, with a few counters shared by all
//! pages.
//!
//! Each page has `HASHES` counters. Adding raises all of them, and the estimate is the lowest.
//! Halving all counters makes old counts fade.

/// Number of counters of a page.
const HASHES: u32 = 10;
/// Number of counters per page of capacity: 0.1 % of the estimates of absent pages exceed 0.
const COUNTERS_PER_ENTRY: f64 = 14.377_587_573_7;

/// Seeds of the two hashes, from libCacheSim.
const SEEDS: [u64; 2] = [0x1234_5678, 0x1234_4321];

/// Counters and hashes of the sketch.
#[derive(Debug)]
pub struct Sketch {
    counters: Vec<u16>,
    /// `2^64 / counters`, rounded up: replaces remainders by multiplications.
    inverse: u64,
    /// Two 32-bit hashes of each page.
    hashes: Vec<[u32; 2]>,
}

/// XXH64 of one 64-bit number.
fn xxh64(number: u64, seed: u64) -> u64 {
    const P1: u64 = 0x9e37_79b1_85eb_ca87;
    const P2: u64 = 0xc2b2_ae3d_27d4_eb4f;
    const P3: u64 = 0x1656_67b1_9e37_79f9;
    const P4: u64 = 0x85eb_ca77_c2b2_ae63;
    const P5: u64 = 0x27d4_eb2f_1656_67c5;
    let round = number.wrapping_mul(P2).rotate_left(31).wrapping_mul(P1);
    let mut x = seed.wrapping_add(P5).wrapping_add(8) ^ round;
    x = x.rotate_left(27).wrapping_mul(P1).wrapping_add(P4);
    x = (x ^ x >> 33).wrapping_mul(P2);
    x = (x ^ x >> 29).wrapping_mul(P3);
    x ^ x >> 32
}

impl Sketch {
    /// Creates a sketch for `entries` pages out of `0..pages`.
    #[must_use]
    pub fn new(pages: u32, entries: u32) -> Self {
        let counters = (f64::from(entries) * COUNTERS_PER_ENTRY).ceil() as usize;
        let counters = vec![0; counters.max(2 * HASHES as usize)];
        // The reference measurements number objects from 1.
        let hash = |page: u32| SEEDS.map(|seed| xxh64(u64::from(page) + 1, seed) as u32);
        Self {
            inverse: u64::MAX / counters.len() as u64 + 1,
            counters,
            hashes: (0..pages).map(hash).collect(),
        }
    }

    #[inline]
    fn slots(&self, page: u32) -> impl Iterator<Item = usize> + use<> {
        let [start, step] = self.hashes[page as usize];
        let (inverse, len) = (self.inverse, self.counters.len() as u128);
        (0..HASHES).map(move |i| {
            let hash = start.wrapping_add(i.wrapping_mul(step));
            // Remainder of hash / len (Lemire, Kaser and Kurz 2019).
            ((u128::from(inverse.wrapping_mul(u64::from(hash))) * len) >> 64) as usize
        })
    }

    /// Counts one access to `page`.
    #[inline]
    pub fn add(&mut self, page: u32) {
        for slot in self.slots(page) {
            self.counters[slot] = self.counters[slot].saturating_add(1);
        }
    }

    /// Returns the estimated number of accesses to `page`. The estimate is never too low, apart
    /// from halvings.
    #[must_use]
    #[inline]
    pub fn estimate(&self, page: u32) -> u16 {
        self.slots(page).map(|slot| self.counters[slot]).min().unwrap_or(0)
    }

    /// Halves all counts.
    pub fn halve(&mut self) {
        for counter in &mut self.counters {
            *counter >>= 1;
        }
    }

    /// Returns the number of bytes on the heap.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.counters.capacity() * 2 + self.hashes.capacity() * 8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_counts_and_halving_halves_them() {
        let mut sketch = Sketch::new(1000, 1000);
        for page in 0..1000 {
            for _ in 0..page % 8 {
                sketch.add(page);
            }
        }
        let wrong = (0..1000).filter(|&p| u32::from(sketch.estimate(p)) != p % 8).count();
        assert!(wrong < 20, "{wrong} of 1000 estimates are wrong");
        assert!((0..1000).all(|p| u32::from(sketch.estimate(p)) >= p % 8));
        sketch.halve();
        assert!((0..1000).all(|p| u32::from(sketch.estimate(p)) >= (p % 8) / 2));
    }
}
