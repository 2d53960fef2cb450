//! Latencies in buckets of at most 1.6 % width, from one nanosecond to hours.

/// Number of buckets per power of two.
const SUB: u64 = 64;
const SUB_BITS: u32 = 6;

/// A histogram of times in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
    sum: u64,
    max: u64,
}

fn bucket(value: u64) -> usize {
    if value < SUB {
        return value as usize;
    }
    let shift = 63 - value.leading_zeros() - SUB_BITS;
    (u64::from(shift + 1) * SUB + (value >> shift) - SUB) as usize
}

/// Returns the middle of a bucket.
fn value(bucket: usize) -> u64 {
    let b = bucket as u64;
    if b < SUB {
        return b;
    }
    let shift = b / SUB - 1;
    ((b % SUB + SUB) << shift) + ((1 << shift) >> 1)
}

impl Histogram {
    /// Counts one value.
    #[inline]
    pub fn add(&mut self, v: u64) {
        let b = bucket(v);
        if b >= self.counts.len() {
            self.counts.resize(b + 1, 0);
        }
        self.counts[b] += 1;
        self.total += 1;
        self.sum += v;
        self.max = self.max.max(v);
    }

    /// Returns the number of values counted.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.total
    }

    /// Returns the mean of the values.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.total.max(1) as f64
    }

    /// Returns the value that a share `q` of all values does not exceed.
    #[must_use]
    pub fn quantile(&self, q: f64) -> u64 {
        if q >= 1.0 {
            return self.max;
        }
        let wanted = ((self.total as f64 * q).ceil() as u64).max(1);
        let mut seen = 0;
        for (b, &n) in self.counts.iter().enumerate() {
            seen += n;
            if seen >= wanted {
                return value(b).min(self.max);
            }
        }
        self.max
    }

    /// Forgets all values.
    pub fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_narrow_and_in_order() {
        for v in [0, 1, 63, 64, 65, 127, 128, 1000, 123_456, 9_876_543_210, u64::MAX / 2] {
            let back = value(bucket(v));
            assert!(back.abs_diff(v) * 60 <= v.max(1), "{v} came back as {back}");
            assert!(bucket(v + 1) >= bucket(v));
        }
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let mut h = Histogram::default();
        (1..=1000).for_each(|v| h.add(v * 100));
        assert!(h.quantile(0.5).abs_diff(50_000) < 1000);
        assert!(h.quantile(0.99).abs_diff(99_000) < 1600);
        assert_eq!(h.quantile(1.0), 100_000);
        assert!((h.mean() - 50_050.0).abs() < 1.0);
    }
}
