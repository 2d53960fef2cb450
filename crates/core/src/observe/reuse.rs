//! Reuse distances of a sample of pages, and the miss-ratio curve computed from them.
//!
//! The reuse distance of a use is the number of other pages used since the last use of the same
//! page. An LRU list of that many pages, or fewer, has evicted the page by then (Mattson et al.
//! 1970). A sample of pages, chosen by a hash of their numbers, has the same distances on a smaller
//! scale. With one page in `n` they are divided by `n` (SHARDS, Waldspurger et al., FAST '15). The
//! sample has a maximal size. If more pages turn up, half of the pages leave the sample.
//!
//! * REUSE-1: `last` holds for each sampled page the position of its last use, and `marks` has
//!   exactly those positions.
//! * REUSE-2: every page in `last` is in the sample ([`Reuse::samples`]).
//! * REUSE-3: a use counts as often as the number of pages that a sampled page represents at that
//!   time.
//!
//! A caller that cannot see every use hides pages, sees their next use, and leaves them visible for
//! a while ([`Reuse::hide`]). The curve corrects for unseen uses of rarely used pages. Say that
//! such pages were hidden for `w` in all before their use, and visible for `d` before that. Then
//! there were `d / w` times as many unseen uses, because the uses come at random. A page counts as
//! rarely used by its previous waiting time. Otherwise pages that are by chance used late would
//! count as such.
//!
//! The sample itself gives the confidence interval. Other bits of the hash divide it into [`PARTS`]
//! parts, each of which is a sample of its own.

use std::collections::HashMap;

/// Number of independent parts of the sample.
pub const PARTS: usize = 8;
/// 97.5 % quantile of Student's t for `PARTS - 1` degrees of freedom.
const T: f64 = 2.365;
/// Resolution of distances: a sixteenth of an octave (4.4 %).
const STEPS: u32 = 16;
/// Positions for each page of the largest sample, before they are renumbered.
const PLACES: usize = 4;

/// Number of misses of a memory of some size.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Point {
    /// Size of the memory, in pages.
    pub pages: u64,
    /// Number of uses that would find their page evicted, first uses left out.
    pub misses: f64,
    /// Half of the 95 % confidence interval of `misses`.
    pub error: f64,
}

/// The last use of a page, in the caller's unit of time.
#[derive(Clone, Copy, Debug)]
struct Seen {
    place: usize,
    used: u64,
    /// Time at which the page was hidden, so that its next use would be seen; and how long it was
    /// hidden before its last use (`u64::MAX` for a first use).
    hidden: u64,
    waited: u64,
}

/// Number of uses of a distance.
#[derive(Clone, Copy, Default, Debug)]
struct Bin {
    /// Weighted uses: of often used pages, and of rarely used ones.
    often: u64,
    seldom: u64,
}

/// The uses of a sample of pages.
#[derive(Debug)]
pub struct Reuse {
    /// One of `1 << shift` pages is in the sample.
    shift: u32,
    most: usize,
    last: HashMap<u64, Seen>,
    marks: Marks,
    /// Uses by distance, for each part.
    bins: [Vec<Bin>; PARTS],
    first: u64,
    again: u64,
    /// Summed time for which rarely used pages were hidden before their use, and visible before
    /// that.
    hidden: u64,
    sight: u64,
    /// Number of all pages, if the caller has reported it; else 0.
    pages: u64,
}

/// A page that is hidden this many times as long as it is visible is rarely used.
const SELDOM: u64 = 4;
/// Largest factor by which the curve corrects a sample that is by chance too large or too small.
const STRETCH_MAX: f64 = 1.25;

impl Reuse {
    /// Creates a sample of at most `most` pages, which begins with one page in `1 << shift`.
    #[must_use]
    pub fn new(most: usize, shift: u32) -> Self {
        let most = most.max(1);
        Self {
            shift,
            most,
            last: HashMap::with_capacity(most + 1),
            marks: Marks::new((most + 1) * PLACES),
            bins: [const { Vec::new() }; PARTS],
            first: 0,
            again: 0,
            hidden: 0,
            sight: 0,
            pages: 0,
        }
    }

    /// Returns whether a page is in the sample. A page may leave the sample, but never enters it
    /// later.
    #[must_use]
    pub fn samples(&self, page: u64) -> bool {
        hash(page) & ((1 << self.shift) - 1) == 0
    }

    /// Returns `n` if one page in `n` is in the sample.
    #[must_use]
    pub fn one_in(&self) -> u64 {
        1 << self.shift
    }

    /// Returns the number of sampled pages that were used.
    #[must_use]
    pub fn len(&self) -> usize {
        self.last.len()
    }

    /// Returns whether no page was used.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// Returns the numbers of first uses and of later ones, scaled to all pages.
    #[must_use]
    pub fn uses(&self) -> (u64, u64) {
        (self.first, self.again)
    }

    /// Records a use of a page at time `now`. With `fresh` the page has no contents yet, so the use
    /// is its first, even if it was used before. Returns false if the page is not in the sample.
    pub fn touch(&mut self, page: u64, fresh: bool, now: u64) -> bool {
        if !self.samples(page) {
            return false;
        }
        let weight = self.one_in();
        if self.marks.is_full() {
            self.number();
        }
        let before = self.last.get(&page).copied();
        let again = before.filter(|_| !fresh);
        let waited = again.map_or(u64::MAX, |seen| now.saturating_sub(seen.hidden));
        let place = self.marks.next();
        self.last.insert(page, Seen { place, used: now, hidden: now, waited });
        let between = before.map(|seen| (seen, self.marks.take(seen.place)));
        self.marks.set();
        match between.filter(|_| !fresh) {
            Some((before, between)) => {
                let at = bin_of(between * weight);
                let bins = &mut self.bins[part_of(page)];
                if bins.len() <= at {
                    bins.resize(at + 1, Bin::default());
                }
                let sight = before.hidden.saturating_sub(before.used);
                if before.waited != u64::MAX && before.waited > sight.saturating_mul(SELDOM) {
                    bins[at].seldom += weight;
                    self.hidden += now.saturating_sub(before.hidden.max(before.used));
                    self.sight += sight;
                } else {
                    bins[at].often += weight;
                }
                self.again += weight;
            }
            None => self.first += weight,
        }
        while self.last.len() > self.most {
            self.thin();
        }
        true
    }

    /// Records that the caller hides these pages of the sample from now on, so that it sees their
    /// next use. It has not seen their uses since the last one recorded. By symmetry such a page
    /// counts as used again until shortly before now: by as much as it was hidden before its last
    /// use. A later seen use counts instead. A page without a record counts as used for the first
    /// time.
    pub fn hide(&mut self, pages: &[u64], now: u64) {
        let mut later: Vec<(u64, u64)> = Vec::new();
        for &page in pages {
            match self.last.get(&page) {
                None => drop(self.touch(page, true, now)),
                Some(seen) if seen.waited < now.saturating_sub(seen.used) => {
                    later.push((seen.waited, page));
                }
                Some(_) => {}
            }
        }
        later.sort_unstable_by(|a, b| b.cmp(a));
        for (_, page) in later {
            if self.marks.is_full() {
                self.number();
            }
            let next = self.marks.next();
            if let Some(seen) = self.last.get_mut(&page) {
                let before = std::mem::replace(&mut seen.place, next);
                self.marks.take(before);
                self.marks.set();
            }
        }
        for page in pages {
            if let Some(seen) = self.last.get_mut(page) {
                seen.hidden = now;
            }
        }
    }

    /// Returns whether it is time to hide a page of the sample again. A page that was hidden for at
    /// least `pause` before its use is rarely used, and due at once. Another is due `pause` after
    /// its last use, because otherwise its uses would dominate the sample.
    #[must_use]
    pub fn is_due(&self, page: u64, pause: u64, now: u64) -> bool {
        let due = |seen: &Seen| seen.waited >= pause || now.saturating_sub(seen.used) >= pause;
        self.last.get(&page).is_none_or(due)
    }

    /// Halves the sample: half of the pages leave it.
    pub fn thin(&mut self) {
        self.shift += 1;
        let mask = (1u64 << self.shift) - 1;
        self.last.retain(|&page, _| hash(page) & mask == 0);
        self.number();
    }

    /// Renumbers the positions, in their order.
    fn number(&mut self) {
        let mut pages: Vec<(usize, u64)> =
            self.last.iter().map(|(&page, seen)| (seen.place, page)).collect();
        pages.sort_unstable();
        self.marks.clear();
        for (_, page) in pages {
            if let Some(seen) = self.last.get_mut(&page) {
                seen.place = self.marks.next();
            }
            self.marks.set();
        }
    }

    /// Sets the number of all pages, in the sample or not. The curve corrects for the random share
    /// of pages in the sample.
    pub fn set_pages(&mut self, pages: u64) {
        self.pages = pages;
    }

    /// Returns the ratio of all pages to the number of pages that the sample represents.
    fn stretch(&self) -> f64 {
        let stands_for = self.last.len() as f64 * self.one_in() as f64;
        let stretch = if self.pages == 0 { 1.0 } else { self.pages as f64 / stands_for.max(1.0) };
        stretch.clamp(1.0 / STRETCH_MAX, STRETCH_MAX)
    }

    /// Returns the number of uses of a distance, with an estimate of the unseen ones.
    fn uses_of(&self, bin: &Bin) -> f64 {
        let unseen = if self.hidden == 0 { 0.0 } else { self.sight as f64 / self.hidden as f64 };
        (bin.often as f64 + bin.seldom as f64 * (1.0 + unseen)) * self.stretch()
    }

    /// Returns the number of misses for memories of each size, smallest first, starting at the
    /// smallest size that some use needs.
    #[must_use]
    pub fn curve(&self) -> Vec<Point> {
        let end = self.bins.iter().map(Vec::len).max().unwrap_or(0);
        let mut missed = [0f64; PARTS];
        let mut points = Vec::new();
        for bin in (0..end).rev() {
            let before = missed;
            for (missed, bins) in missed.iter_mut().zip(&self.bins) {
                *missed += bins.get(bin).map_or(0.0, |bin| self.uses_of(bin));
            }
            if missed != before {
                let (misses, error) = sum_and_error(&before);
                let pages = (end_of(bin) as f64 * self.stretch()) as u64;
                points.push(Point { pages, misses, error });
            }
        }
        points.reverse();
        points
    }

    /// Returns the number of uses that would miss in a memory of `pages` pages, first uses left
    /// out, and half of the 95 % confidence interval.
    #[must_use]
    pub fn misses(&self, pages: u64) -> (f64, f64) {
        let pages = (pages as f64 / self.stretch()).round() as u64;
        let mut missed = [0f64; PARTS];
        for (missed, bins) in missed.iter_mut().zip(&self.bins) {
            let beyond = bins.iter().enumerate().filter(|&(bin, _)| end_of(bin) > pages);
            // Adds from the largest distance on, in the order of the curve.
            *missed = beyond.rev().map(|(_, bin)| self.uses_of(bin)).sum();
        }
        sum_and_error(&missed)
    }
}

fn sum_and_error(parts: &[f64; PARTS]) -> (f64, f64) {
    let count = PARTS as f64;
    let sum = parts.iter().sum::<f64>();
    let mean = sum / count;
    let variance = parts.iter().map(|&part| (part - mean).powi(2)).sum::<f64>() / (count - 1.0);
    (sum, T * (variance * count).sqrt())
}

/// Fibonacci hashing, folded so that the low bits are good.
fn hash(page: u64) -> u64 {
    let mixed = page.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 32).wrapping_mul(0xd6e8_feb8_6659_fd93);
    mixed ^ mixed >> 32
}

/// Returns the part of a page, by bits that do not decide whether it is in the sample.
fn part_of(page: u64) -> usize {
    (hash(page) >> 61) as usize % PARTS
}

/// Returns the bin of a distance.
fn bin_of(distance: u64) -> usize {
    let octave = (distance + 1).ilog2();
    let part = ((distance + 1 - (1 << octave)) * u64::from(STEPS)) >> octave;
    (u64::from(octave * STEPS) + part) as usize
}

/// Returns the smallest memory, in pages, in which uses of this bin do not miss.
fn end_of(bin: usize) -> u64 {
    let (octave, part) = ((bin as u32) / STEPS, bin as u64 % u64::from(STEPS));
    // The smallest distance of the next bin; one page more than the distance must fit.
    let next = (1u64 << octave) + ((part + 1) << octave).div_ceil(u64::from(STEPS));
    next - 1
}

/// A set of marked positions that counts the marks between two: a Fenwick tree.
#[derive(Debug)]
struct Marks {
    tree: Vec<u32>,
    next: usize,
}

impl Marks {
    fn new(places: usize) -> Self {
        Self { tree: vec![0; places + 1], next: 0 }
    }

    fn is_full(&self) -> bool {
        self.next + 1 >= self.tree.len()
    }

    /// Returns the position of the next mark.
    fn next(&self) -> usize {
        self.next
    }

    /// Marks the next position.
    fn set(&mut self) {
        self.add(self.next, 1);
        self.next += 1;
    }

    /// Removes a mark. Returns how many marks come after it.
    fn take(&mut self, place: usize) -> u64 {
        self.add(place, u32::MAX);
        u64::from(self.before(self.next) - self.before(place))
    }

    fn add(&mut self, place: usize, value: u32) {
        let mut at = place + 1;
        while at < self.tree.len() {
            self.tree[at] = self.tree[at].wrapping_add(value);
            at += at & at.wrapping_neg();
        }
    }

    /// Returns the number of marks before a position.
    fn before(&self, place: usize) -> u32 {
        let (mut at, mut sum) = (place, 0u32);
        while at > 0 {
            sum = sum.wrapping_add(self.tree[at]);
            at &= at - 1;
        }
        sum
    }

    fn clear(&mut self) {
        self.tree.fill(0);
        self.next = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Computes the reuse distances directly from the definition.
    fn distances(uses: &[u64]) -> Vec<Option<u64>> {
        let between = |at: usize| {
            let before = uses[..at].iter().rposition(|&page| page == uses[at])?;
            let others: std::collections::HashSet<_> = uses[before + 1..at].iter().collect();
            Some(others.len() as u64)
        };
        (0..uses.len()).map(between).collect()
    }

    #[test]
    fn bins_follow_one_another_and_end_where_the_next_begins() {
        for distance in (0..5000).chain([1 << 20, (1 << 33) + 12_345]) {
            let bin = bin_of(distance);
            assert!(distance < end_of(bin), "{distance} in {bin}, which ends at {}", end_of(bin));
            assert!(bin == 0 || distance >= end_of(bin - 1), "{distance} in {bin}");
        }
    }

    proptest! {
        /// Shows that with all pages in the sample each size misses exactly as the definition says.
        #[test]
        fn all_pages_give_the_exact_curve(uses in prop::collection::vec(0u64..60, 1..400)) {
            let mut reuse = Reuse::new(64, 0);
            uses.iter().for_each(|&page| assert!(reuse.touch(page, false, 0)));
            let distances = distances(&uses);
            let first = distances.iter().filter(|distance| distance.is_none()).count() as u64;
            prop_assert_eq!(reuse.uses(), (first, uses.len() as u64 - first));
            // Up to 16 pages each distance has a bin of its own.
            for pages in 1..16 {
                let missed = distances.iter().flatten().filter(|&&distance| distance >= pages).count();
                prop_assert_eq!(reuse.misses(pages).0, missed as f64, "{} pages", pages);
            }
            for point in reuse.curve() {
                prop_assert_eq!(point.misses, reuse.misses(point.pages).0);
            }
        }
    }

    #[test]
    fn a_fault_on_an_empty_page_counts_as_a_first_use() {
        let mut reuse = Reuse::new(16, 0);
        for (page, fresh) in [(1, true), (2, true), (1, false), (1, true)] {
            reuse.touch(page, fresh, 0);
        }
        assert_eq!((reuse.uses(), reuse.misses(1).0), ((3, 1), 1.0));
    }

    /// Shows that a sample of a twentieth of the pages gives the misses of all pages within its
    /// confidence interval and a tenth.
    #[test]
    fn a_sample_finds_the_curve_of_all() {
        const PAGES: u64 = 40_000;
        let mut seed = 1u64;
        let mut random = || {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as f64 / (1u64 << 31) as f64
        };
        let (mut all, mut some) = (Reuse::new(PAGES as usize, 0), Reuse::new(2000, 0));
        for _ in 0..1_000_000 {
            // Few pages are used often, many rarely.
            let page = (random().powi(3) * PAGES as f64) as u64;
            all.touch(page, false, 0);
            some.touch(page, false, 0);
        }
        assert!(some.one_in() >= 16 && some.len() <= 2000, "{} of {}", some.len(), some.one_in());
        for pages in [4000, 8000, 16_000, 24_000, 32_000] {
            let (exact, (found, error)) = (all.misses(pages).0, some.misses(pages));
            let off = (found - exact).abs();
            assert!(
                off < 0.1 * exact && off < 2.0 * error,
                "{pages}: {found} ± {error}, not {exact}"
            );
        }
    }

    /// Shows that a page used right after it was hidden counts as used until it is hidden again. A
    /// page used late counts as used once.
    #[test]
    fn a_page_used_at_once_counts_as_used_until_it_is_hidden() {
        let mut reuse = Reuse::new(16, 0);
        reuse.hide(&[1, 2, 3, 4, 5], 1000);
        for (page, at) in [(1, 1001), (2, 1800), (3, 1900)] {
            reuse.touch(page, false, at);
        }
        assert_eq!(reuse.misses(4).0, 3.0, "hidden in their order, and touched in it");
        reuse.hide(&[1, 2, 3], 2000);
        reuse.touch(1, false, 2001);
        assert_eq!((reuse.misses(1).0, reuse.uses()), (3.0, (5, 4)), "nothing since it was hidden");
        reuse.touch(2, false, 2002);
        assert_eq!((reuse.misses(2).0, reuse.misses(3).0), (4.0, 3.0), "3 and 1 since it was used");
        reuse.hide(&[1, 2], 2004);
        reuse.touch(6, true, 2005);
        reuse.hide(&[6], 3000);
        reuse.touch(6, false, 3001);
        assert_eq!(
            reuse.misses(1).0,
            4.0,
            "a first use is no use at once, and nothing came after it"
        );
    }

    /// Shows that random uses are counted correctly although some find their page visible.
    #[test]
    fn unseen_uses_of_visible_pages_are_estimated() {
        const PAGES: u64 = 64;
        let mut seed = 7u64;
        let mut reuse = Reuse::new(PAGES as usize, 0);
        (0..PAGES).for_each(|page| assert!(reuse.touch(page, true, 0)));
        let mut hidden = [false; PAGES as usize];
        let mut all = 0;
        for now in 1..200_000u64 {
            if now % 8 == 0 {
                let seen: Vec<u64> = (0..PAGES).filter(|&page| !hidden[page as usize]).collect();
                reuse.hide(&seen, now);
                hidden.fill(true);
            }
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let page = (seed >> 33) % PAGES;
            all += 1;
            if std::mem::take(&mut hidden[page as usize]) {
                reuse.touch(page, false, now);
            }
        }
        let (seen, found) = (reuse.uses().1, reuse.misses(0).0);
        assert!(
            seen < all * 19 / 20 && (found / all as f64 - 1.0).abs() < 0.02,
            "{seen}, {found} of {all}"
        );
    }

    #[test]
    fn a_page_that_is_used_seldom_is_hidden_soon_again() {
        let mut reuse = Reuse::new(16, 0);
        assert!(reuse.is_due(1, 100, 0), "never seen");
        reuse.hide(&[1, 2], 1000);
        reuse.touch(1, false, 1010);
        reuse.touch(2, false, 1500);
        assert!(!reuse.is_due(1, 100, 1100) && reuse.is_due(1, 100, 1110));
        assert!(reuse.is_due(2, 100, 1501));
    }

    /// Shows that the order of uses survives many renumberings of the positions.
    #[test]
    fn the_order_of_uses_survives_renumbering() {
        let mut reuse = Reuse::new(8, 0);
        (0..10_000u64).for_each(|at| assert!(reuse.touch(at % 5, false, at)));
        assert_eq!((reuse.misses(4).0, reuse.misses(5).0), (9995.0, 0.0), "a loop of five");
    }
}
