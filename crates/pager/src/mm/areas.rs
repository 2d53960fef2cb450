//! Areas: the ranges of an address space that count as registered.
//!
//! `State::areas` is under `Mm::state`. The pager also keeps the executable ranges so.
//!
//! * RANGES-1: ranges are disjoint and sorted. No two of them touch, because [`Areas::add`] merges
//!   neighbours.
//! * RANGES-2: `recent` may name addresses that no range has any more. Readers look each of them
//!   up again.
//!
//! Lock order: no lock here.

use std::collections::BTreeMap;

/// Ranges that count as registered, disjoint and sorted: those whose pages were adopted. The kernel
/// may have registered more (ADOPT-6 in `monitor/adopt.rs`).
#[derive(Clone, Debug, Default)]
pub struct Areas {
    ranges: BTreeMap<u64, u64>,
    /// Addresses in the ranges that grew last; `oldest` is the index for the next.
    recent: [u64; RECENT],
    oldest: usize,
}

/// Number of ranges remembered as grown lately: as many threads may each fill areas of their own.
const RECENT: usize = 8;

impl Areas {
    /// Adds `[start, end)`, which must not overlap existing ranges. Merges neighbours.
    pub fn add(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if let Some((&before, &stop)) = self.ranges.range(..=start).next_back()
            && stop >= start
        {
            self.ranges.remove(&before);
            start = before;
            end = end.max(stop);
        }
        if let Some(stop) = self.ranges.remove(&end) {
            end = stop;
        }
        self.ranges.insert(start, end);
        if !self.recent.iter().any(|address| (start..end).contains(address)) {
            self.recent[self.oldest] = start;
            self.oldest = (self.oldest + 1) % RECENT;
        }
    }

    /// Returns the ranges that grew lately.
    #[must_use]
    pub fn recent(&self) -> Vec<(u64, u64)> {
        let range = |address: &u64| self.ranges.range(..=address).next_back();
        let holding = self.recent.iter().filter_map(|at| range(at).filter(|&(_, end)| end > at));
        holding.map(|(&start, &end)| (start, end)).collect()
    }

    /// Removes `[start, end)`.
    pub fn remove(&mut self, start: u64, end: u64) {
        let touched: Vec<(u64, u64)> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|&(_, &stop)| stop > start)
            .map(|(&from, &stop)| (from, stop))
            .collect();
        for (from, stop) in touched {
            self.ranges.remove(&from);
            if from < start {
                self.ranges.insert(from, start);
            }
            if stop > end {
                self.ranges.insert(end, stop);
            }
        }
    }

    /// Moves the ranges in `[from, from + len)` to `[to, to + len)`. They replace the ranges there.
    pub fn shift(&mut self, from: u64, to: u64, len: u64) {
        let mut moved = Self::default();
        moved.add(to, to + len);
        for (start, end) in self.missing(from, from + len) {
            moved.remove(to + (start - from), to + (end - from));
        }
        self.remove(from, from + len);
        self.remove(to, to + len);
        moved.iter().for_each(|(start, end)| self.add(start, end));
    }

    /// Returns the end of the range that contains `address`.
    #[must_use]
    pub fn end_of(&self, address: u64) -> Option<u64> {
        let (_, &stop) = self.ranges.range(..=address).next_back()?;
        (stop > address).then_some(stop)
    }

    /// Returns the parts of `[start, end)` that are not registered.
    #[must_use]
    pub fn missing(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        let mut at = start;
        let first = self.ranges.range(..=start).next_back().map_or(start, |(&from, _)| from);
        for (&from, &stop) in self.ranges.range(first..end) {
            if stop <= at {
                continue;
            }
            if from > at {
                missing.push((at, from.min(end)));
            }
            at = at.max(stop);
        }
        if at < end {
            missing.push((at, end));
        }
        missing
    }

    /// Returns the first address of `[start, end)` that is not registered.
    #[must_use]
    pub fn next_missing(&self, start: u64, end: u64) -> Option<u64> {
        let mut at = start;
        // Adjacent ranges are always merged.
        while at < end
            && let Some(stop) = self.end_of(at)
        {
            at = stop;
        }
        (at < end).then_some(at)
    }

    /// Whether there is no range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the ranges in order, as `(start, end)`.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&start, &end)| (start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::Areas;

    #[test]
    fn neighbours_join_and_holes_are_found() {
        let mut areas = Areas::default();
        areas.add(10, 20);
        areas.add(30, 40);
        assert_eq!(areas.missing(0, 50), [(0, 10), (20, 30), (40, 50)]);
        assert_eq!(areas.missing(12, 18), []);
        assert_eq!(areas.missing(15, 35), [(20, 30)]);
        assert_eq!(
            [(0, 5), (10, 40), (12, 20), (30, 50)].map(|(from, to)| areas.next_missing(from, to)),
            [Some(0), Some(20), None, Some(40)]
        );
        areas.add(20, 30);
        assert_eq!(areas.iter().collect::<Vec<_>>(), [(10, 40)]);
        areas.remove(15, 25);
        assert_eq!(areas.iter().collect::<Vec<_>>(), [(10, 15), (25, 40)]);
        areas.remove(0, 100);
        assert_eq!(areas.iter().count(), 0);
    }

    /// Shows that a REMAP moves only the registered parts of an area. The rest can still be
    /// registered later.
    #[test]
    fn a_remap_moves_only_the_registered_parts_of_an_area() {
        let mut areas = Areas::default();
        areas.add(10, 15);
        areas.add(25, 40);
        areas.shift(12, 32, 18);
        assert_eq!(areas.iter().collect::<Vec<_>>(), [(10, 12), (30, 35), (45, 50)]);
    }
}
