//! Seeded random numbers, and draws of items by their popularity.

pub use ebb_mm::random::Random;

/// Walker's alias table. A draw keeps a column with probability `keep / 2^32`, else it takes the
/// alias of the column.
#[derive(Debug)]
pub struct Alias {
    columns: Vec<(u32, u32)>,
}

impl Alias {
    /// Creates a table of `pages` items with Zipf 0.99 popularity, shuffled by `seed`.
    #[must_use]
    pub fn zipf(pages: usize, seed: u64) -> Self {
        let mut order: Vec<usize> = (0..pages).collect();
        let mut random = Random(seed);
        for n in (1..pages).rev() {
            order.swap(n, random.word() as usize % (n + 1));
        }
        let mut weights = vec![0.0; pages];
        for (rank, &page) in order.iter().enumerate() {
            weights[page] = ((rank + 1) as f64).powf(-0.99);
        }
        Self::new(weights)
    }

    fn new(mut weights: Vec<f64>) -> Self {
        let mean = weights.iter().sum::<f64>() / weights.len() as f64;
        weights.iter_mut().for_each(|weight| *weight /= mean);
        let mut columns: Vec<(u32, u32)> =
            (0..weights.len() as u32).map(|page| (u32::MAX, page)).collect();
        let (mut small, mut large): (Vec<usize>, Vec<usize>) =
            (0..weights.len()).partition(|&page| weights[page] < 1.0);
        while let (Some(&giver), Some(taker)) = (large.last(), small.pop()) {
            columns[taker] = ((weights[taker] * 4_294_967_296.0) as u32, giver as u32);
            weights[giver] -= 1.0 - weights[taker];
            if weights[giver] < 1.0 {
                large.pop();
                small.push(giver);
            }
        }
        Self { columns }
    }

    /// Returns the item that a random number draws.
    #[must_use]
    pub fn draw(&self, random: u64) -> usize {
        let column = ((random >> 32) * self.columns.len() as u64) >> 32;
        let (keep, alias) = self.columns[column as usize];
        if (random as u32) <= keep { column as usize } else { alias as usize }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_draws_by_weight() {
        let table = Alias::new(vec![1.0, 2.0, 5.0]);
        let mut random = Random(1);
        let mut counts = [0_u32; 3];
        (0..80_000).for_each(|_| counts[table.draw(random.word())] += 1);
        for (count, expected) in counts.into_iter().zip([10_000, 20_000, 50_000]) {
            assert!(count.abs_diff(expected) < 1000, "{counts:?}");
        }
    }

    #[test]
    fn half_of_the_draws_go_to_few_pages() {
        let table = Alias::zipf(1 << 12, 1);
        let mut random = Random(2);
        let mut counts = vec![0_u32; 1 << 12];
        (0..100_000).for_each(|_| counts[table.draw(random.word())] += 1);
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let top: u32 = counts[..41].iter().sum();
        assert!((44_000..54_000).contains(&top), "{top}");
    }
}
