//! Places in the address spaces where pages come in and go out, over time: the rows of a heat map.

/// Number of columns of the map.
pub const COLUMNS: usize = 64;

/// Counts since the last row.
#[derive(Clone, Debug, Default)]
pub struct Heat {
    /// Start of each space on a line of all spaces. `total` is the length of that line.
    bases: Vec<u64>,
    total: u64,
    /// Number of pages brought in and taken out, by column.
    pub row: [Vec<u32>; 2],
}

impl Heat {
    /// Creates empty counts for spaces of these lengths.
    #[must_use]
    pub fn new(lengths: impl Iterator<Item = u64>) -> Self {
        let mut total = 0;
        let bases = lengths
            .map(|length| {
                total += length;
                total - length
            })
            .collect();
        Self { bases, total, row: [vec![0; COLUMNS], vec![0; COLUMNS]] }
    }

    /// Counts a page that came in (0) or went out (1).
    pub fn count(&mut self, way: usize, space: usize, page: u64) {
        let Some(base) = self.bases.get(space) else { return };
        let column = (base + page) * COLUMNS as u64 / self.total.max(1);
        self.row[way][(column as usize).min(COLUMNS - 1)] += 1;
    }

    /// Ends a row and returns it.
    pub fn take(&mut self) -> [Vec<u32>; 2] {
        std::mem::replace(&mut self.row, [vec![0; COLUMNS], vec![0; COLUMNS]])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_fall_into_the_columns_of_their_space() {
        let mut h = Heat::new([100, 300].into_iter());
        h.count(0, 0, 0);
        h.count(0, 1, 0);
        h.count(1, 1, 299);
        h.count(1, 7, 1);
        let [came, went] = h.take();
        assert_eq!((came[0], came[16], went[63]), (1, 1, 1));
        assert_eq!(came.iter().chain(&went).sum::<u32>(), 3);
        assert_eq!(h.take()[0].iter().sum::<u32>(), 0);
    }
}
