//! File readahead: chooses the pages to read together with a missing page.
//!
//! A [`FileAhead`] belongs to one descriptor. It remembers the last position read and the last
//! *window*: pages fetched in one go, of which one is marked. A read of the marked page starts the
//! fetch of the next window, and no thread waits for that. The rules are the kernel's
//! (`mm/readahead.c`, 6.18):
//!
//! * A missing page brings a first window in three cases. The read is at the start of a file, goes
//!   on where the last read ended, or asks for more than the limit. The size is the requested
//!   number of pages rounded up to a power of two, times four or two, or the limit. The mark is on
//!   the first page that was not requested.
//! * A read that misses behind a run of cached pages longer than its request brings that many pages
//!   plus the request. The last page is marked.
//! * Any other read that misses brings the requested pages, and nothing is remembered.
//! * A read of a marked page brings the next window, twice as large, or four times while it is
//!   small. Its first page is marked. If the mark belongs to another window than the last, the next
//!   one begins with the first missing page behind it.
//! * A fault through a mapping that misses brings the limit, with the page in the middle and the
//!   mark at three quarters. After far more misses than hits it brings the page alone.
//!
//! Invariants
//! * FILEAHEAD-1: a window lies in the requested area and contains the missing page.
//! * FILEAHEAD-2: a window has no more pages than the limit.
//! * FILEAHEAD-3: the mark is a page of the window.

use std::ops::Range;

/// Largest readahead window in pages: 128 KiB, the kernel's default.
pub const WINDOW_MAX: u64 = 32;
/// Number of missed faults minus found ones above which a fault reads its page alone.
const MISSES_MAX: u32 = 100;

/// Pages to read together. The reader leaves out those that are in memory already.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Window {
    /// First page of the window.
    pub first: u64,
    /// Number of pages.
    pub pages: u64,
    /// The page whose use starts the next window.
    pub mark: Option<u64>,
}

impl Window {
    /// Returns a window of one page without a mark.
    #[must_use]
    pub const fn one(page: u64) -> Self {
        Self { first: page, pages: 1, mark: None }
    }

    /// Returns the pages of the window.
    #[must_use]
    pub const fn range(self) -> Range<u64> {
        self.first..self.first + self.pages
    }

    /// Returns the window if it has at most `room` pages, else `room` pages from `page` on.
    #[must_use]
    pub fn within(self, page: u64, room: u64) -> Self {
        if self.pages <= room { self } else { Self { first: page, pages: room, mark: None } }
    }

    /// Returns `pages` pages from `first` on, cut at the end of `area`. The mark is on the page
    /// `behind` pages before the end.
    fn cut(first: u64, pages: u64, behind: u64, area: &Range<u64>) -> Self {
        let pages = pages.min(area.end.saturating_sub(first));
        let mark = (1..=pages).contains(&behind).then(|| first + pages - behind);
        Self { first, pages, mark }
    }
}

/// The state of a file that readahead needs.
pub struct View<'a> {
    /// Pages of the file, or the part of it within which the read stays.
    pub area: Range<u64>,
    /// Largest number of pages of a window; 1 switches readahead off.
    pub max: u64,
    /// Tells whether a page is in memory.
    pub here: &'a dyn Fn(u64) -> bool,
}

/// The readahead state of a descriptor.
#[derive(Clone, Default, Debug)]
pub struct FileAhead {
    /// The last window, and the number of its pages from the marked one on.
    start: u64,
    size: u64,
    behind: u64,
    /// The page read last.
    last: Option<u64>,
    misses: u32,
}

/// Returns the size of the first window of a reader that seems to read in order.
fn first_size(asked: u64, max: u64) -> u64 {
    let size = asked.next_power_of_two();
    if size <= max / 32 {
        size * 4
    } else if size <= max / 4 {
        size * 2
    } else {
        max
    }
}

/// Returns the size of the window after one of `size` pages.
fn next_size(size: u64, max: u64) -> u64 {
    if size < max / 16 {
        size * 4
    } else if size <= max / 2 {
        size * 2
    } else {
        max
    }
}

impl FileAhead {
    /// Records that the read under way ends with `page`.
    pub fn read(&mut self, page: u64) {
        self.last = Some(page);
    }

    /// Returns whether `page` continues a sequential read. That is, it follows the last page read,
    /// or lies in or right behind the last window.
    #[must_use]
    pub fn goes_on_at(&self, page: u64) -> bool {
        let window = self.size > 0 && (self.start..=self.start + self.size).contains(&page);
        window || self.last.is_some_and(|last| page == last + 1)
    }

    /// Returns the window for a read of `asked` pages from `page` on that finds `page` missing.
    pub fn missed(&mut self, page: u64, asked: u64, view: &View<'_>) -> Window {
        if view.max <= 1 {
            return Window::one(page);
        }
        let (asked, area) = (asked.max(1), &view.area);
        let after = self.last.is_some_and(|last| page == last || page == last + 1);
        if page == area.start || asked > view.max || after {
            (self.start, self.size) = (page, first_size(asked, view.max));
            self.behind = if self.size > asked { self.size - asked } else { self.size / 2 };
            return Window::cut(page, self.size, self.behind, area);
        }
        let before = view.max.min(page - area.start);
        let mut history = (1..=before).take_while(|back| (view.here)(page - back)).count() as u64;
        if history <= asked {
            return Window::cut(page, asked, 0, area);
        }
        if history == page - area.start {
            // The run reaches back to the first page: the whole file is being read.
            history *= 2;
        }
        (self.start, self.size, self.behind) = (page, (history + asked).min(view.max), 1);
        Window::cut(page, self.size, 1, area)
    }

    /// Returns the next window for a read of `asked` pages from `page` on that finds `page` in
    /// memory and marked. The mark is gone. Returns `None` if enough pages are in memory already.
    pub fn marked(&mut self, page: u64, asked: u64, view: &View<'_>) -> Option<Window> {
        if view.max <= 1 {
            return None;
        }
        if self.size > 0 && page == self.start + self.size - self.behind {
            self.start += self.size;
            self.size = next_size(self.size, view.max);
        } else {
            let until = view.area.end.min(page + 1 + view.max);
            self.start = (page + 1..until).find(|&at| !(view.here)(at))?;
            self.size = next_size(self.start - page + asked.max(1), view.max);
        }
        self.behind = self.size;
        let window = Window::cut(self.start, self.size, self.behind, &view.area);
        (window.pages > 0).then_some(window)
    }

    /// Returns the window for a fault through a mapping that finds `page` missing.
    pub fn fault_missed(&mut self, page: u64, view: &View<'_>) -> Window {
        if view.max <= 1 {
            return Window::one(page);
        }
        self.misses = (self.misses + 1).min(10 * MISSES_MAX);
        if self.misses > MISSES_MAX {
            return Window::one(page);
        }
        self.start = page.saturating_sub(view.max / 2).max(view.area.start);
        (self.size, self.behind) = (view.max, view.max / 4);
        Window::cut(self.start, self.size, self.behind, &view.area)
    }

    /// Records a fault through a mapping that finds its page in memory.
    pub fn fault_found(&mut self) {
        self.misses = self.misses.saturating_sub(1);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// A simulated file; `here` holds its pages in memory.
    struct File {
        pages: u64,
        here: HashSet<u64>,
        ahead: FileAhead,
        marked: HashSet<u64>,
        max: u64,
    }

    impl File {
        fn new(pages: u64) -> Self {
            let ahead = FileAhead::default();
            let (here, marked) = (HashSet::new(), HashSet::new());
            Self { pages, here, ahead, marked, max: WINDOW_MAX }
        }

        fn ask<T>(&mut self, f: impl FnOnce(&mut FileAhead, &View<'_>) -> T) -> T {
            let here = &self.here;
            let at = |page| here.contains(&page);
            f(&mut self.ahead, &View { area: 0..self.pages, max: self.max, here: &at })
        }

        fn bring(&mut self, w: Window) -> (u64, u64, Option<u64>) {
            assert!(w.range().end <= self.pages && w.pages > 0);
            assert!(w.mark.is_none_or(|m| w.range().contains(&m)));
            let new: Vec<u64> = w.range().filter(|&p| self.here.insert(p)).collect();
            self.marked.extend(w.mark.filter(|m| new.contains(m)));
            (w.first, w.pages, w.mark)
        }

        /// Reads `asked` pages from `page` on. Returns the windows fetched for it, in order.
        fn read(&mut self, page: u64, asked: u64) -> Vec<(u64, u64, Option<u64>)> {
            let mut fetched = Vec::new();
            for at in page..page + asked {
                let left = page + asked - at;
                if !self.here.contains(&at) {
                    let w = self.ask(|a, v| a.missed(at, left, v));
                    assert!(w.range().contains(&at));
                    fetched.push(self.bring(w));
                }
                if self.marked.remove(&at)
                    && let Some(w) = self.ask(|a, v| a.marked(at, left, v))
                {
                    fetched.push(self.bring(w));
                }
            }
            self.ahead.read(page + asked - 1);
            fetched
        }

        fn fault(&mut self, page: u64) -> Option<(u64, u64, Option<u64>)> {
            if !self.here.contains(&page) {
                let w = self.ask(|a, v| a.fault_missed(page, v));
                return Some(self.bring(w));
            }
            self.ahead.fault_found();
            let w = self.marked.remove(&page).then(|| self.ask(|a, v| a.marked(page, 1, v)))??;
            Some(self.bring(w))
        }
    }

    #[test]
    fn a_file_read_from_its_start_has_windows_that_double_up_to_the_limit() {
        let mut f = File::new(1000);
        let mut fetched = Vec::new();
        (0..120).for_each(|page| fetched.extend(f.read(page, 1)));
        let expected = [
            (0, 4, Some(1)),
            (4, 8, Some(4)),
            (12, 16, Some(12)),
            (28, 32, Some(28)),
            (60, 32, Some(60)),
            (92, 32, Some(92)),
            (124, 32, Some(124)),
        ];
        assert_eq!(fetched, expected);
    }

    #[test]
    fn the_first_window_depends_on_the_size_of_the_request() {
        for (asked, size, mark) in [(1, 4, 1), (2, 4, 2), (3, 8, 3), (8, 16, 8), (9, 32, 9)] {
            let mut f = File::new(1000);
            assert_eq!(
                f.ask(|a, v| a.missed(0, asked, v)),
                Window::cut(0, size, size - mark, &(0..1000))
            );
        }
        // A request as large as the window or larger: half of the window is left to read when the
        // next begins.
        let mut f = File::new(1000);
        let whole = f.ask(|a, v| a.missed(0, 32, v));
        assert_eq!((whole.pages, whole.mark), (32, Some(16)));
        let larger = f.ask(|a, v| a.missed(100, 64, v));
        assert_eq!((larger.first, larger.pages), (100, 32));
    }

    #[test]
    fn random_reads_bring_what_they_ask_for_and_leave_no_trace() {
        let mut f = File::new(100_000);
        for i in 1..200u64 {
            let page = i * 7919 % 99_000 + 1;
            assert_eq!(f.ask(|a, v| a.missed(page, 8, v)), Window::cut(page, 8, 0, &(0..100_000)));
        }
        assert_eq!(f.ahead.size, 0);
    }

    #[test]
    fn a_read_after_enough_cached_pages_counts_as_sequential() {
        let mut f = File::new(1000);
        f.here.extend(100..109);
        // Nine cached pages before the request are more than the eight requested.
        assert_eq!(
            f.ask(|a, v| a.missed(109, 8, v)),
            Window { first: 109, pages: 17, mark: Some(125) }
        );
        assert_eq!(f.ask(|a, v| a.missed(109, 9, v)).mark, None);
        // A run that reaches back to the first page counts twice.
        f.here = (0..5).collect();
        assert_eq!(f.ask(|a, v| a.missed(5, 1, v)), Window { first: 5, pages: 11, mark: Some(15) });
        // The limit holds for a run of any length.
        f.here.extend(0..500);
        assert_eq!(f.ask(|a, v| a.missed(500, 8, v)).pages, 32);
    }

    #[test]
    fn two_readers_that_take_turns_on_one_descriptor_both_have_windows() {
        let mut f = File::new(10_000);
        let mut fetched = Vec::new();
        for i in 0..64 {
            fetched.extend(f.read(i, 1));
            fetched.extend(f.read(5000 + i, 1));
        }
        // The second reader is recognised by its run of cached pages. A mark of a forgotten window
        // begins another window.
        let late = fetched.iter().filter(|w| w.0 > 5000);
        assert!(late.clone().any(|w| w.1 >= 4), "{fetched:?}");
        assert!(fetched.len() < 40, "{}", fetched.len());
    }

    #[test]
    fn a_mark_before_cached_pages_reads_nothing() {
        let mut f = File::new(1000);
        f.here.extend(0..200);
        assert_eq!(f.ask(|a, v| a.marked(50, 1, v)), None);
        // The search for a missing page includes the 32nd page behind the mark.
        f.here.remove(&82);
        let w = f.ask(|a, v| a.marked(50, 1, v)).unwrap();
        assert_eq!((w.first, w.pages, w.mark), (82, 32, Some(82)));
    }

    #[test]
    fn a_fault_reads_around_itself_and_its_mark_goes_on() {
        let mut f = File::new(1000);
        assert_eq!(f.fault(100), Some((84, 32, Some(108))));
        assert_eq!(f.fault(5), Some((0, 32, Some(24))));
        assert_eq!(f.fault(101), None);
        assert_eq!(f.fault(24), Some((32, 32, Some(32))));
        assert_eq!(f.fault(995), Some((979, 21, Some(992))));
    }

    #[test]
    fn faults_that_keep_missing_read_single_pages_until_hits_have_made_good() {
        let mut f = File::new(1 << 30);
        let sizes: Vec<u64> = (0..150).map(|i| f.fault(i * 1000 + 500).unwrap().1).collect();
        assert!(sizes[..100].iter().all(|&n| n == 32) && sizes[100..].iter().all(|&n| n == 1));
        (0..50).for_each(|_| f.ahead.fault_found());
        assert_eq!(f.fault(900_500).unwrap().1, 1, "the 101st");
        (0..2).for_each(|_| f.ahead.fault_found());
        assert_eq!(f.fault(901_500).unwrap().1, 32);
        // After any number of misses, a thousand hits are enough.
        (0..5000).for_each(|i| assert!(f.fault(1_000_500 + i * 1000).is_some()));
        (0..1000).for_each(|_| f.ahead.fault_found());
        assert_eq!(f.fault(1 << 29).unwrap().1, 32);
    }

    #[test]
    fn with_a_limit_of_one_nothing_is_read_ahead() {
        let mut f = File::new(1000);
        f.max = 1;
        let fetched: Vec<u64> = (0..50).flat_map(|p| f.read(p, 1)).map(|w| w.1).collect();
        assert_eq!(fetched, vec![1; 50]);
        assert_eq!(f.fault(500), Some((500, 1, None)));
    }

    #[test]
    fn a_descriptor_knows_where_it_goes_on() {
        let mut f = File::new(1000);
        f.read(0, 1);
        assert!(f.ahead.goes_on_at(1) && f.ahead.goes_on_at(4) && !f.ahead.goes_on_at(13));
        f.ahead.read(700);
        assert!(f.ahead.goes_on_at(701) && !f.ahead.goes_on_at(700));
    }
}
