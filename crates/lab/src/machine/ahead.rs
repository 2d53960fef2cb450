//! What is read together with a page that is missing: the kernel's rules of reading ahead.
//!
//! * Anonymous pages: `swapin`.
//! * Files through a mapping: a whole window around the page (`filemap_fault`), unless nearly every
//!   fault misses.
//! * Files through a descriptor (`ondemand_readahead`): a growing window where a thread goes on in
//!   order; what was asked for where it does not, and more if so many pages before it are in memory that
//!   somebody seems to read in order there. A page of such a window is marked: who reads it has the
//!   next window fetched, and nobody waits for that.
//!
//! The kernel keeps one reading position for each open file; here each thread has [`STREAMS`].

use ebb_core::types::Vpn;

use super::mem::{Mem, Region};

/// The reading position of a thread in one file or area.
#[derive(Clone, Copy, Default, Debug)]
pub struct Stream {
    space: usize,
    next: u64,
    window: u64,
    /// Pages of one request that begins at `next`; 0: a position and no request.
    asked: u64,
}

impl Stream {
    /// A request for so many pages: what is missing of them is read at once, as far as a window goes.
    #[must_use]
    pub fn request(space: usize, page: u64, pages: u32) -> Self {
        Self { space, next: page, window: 0, asked: u64::from(pages) }
    }
}

/// Reading positions a thread has at once.
pub const STREAMS: usize = 4;
/// Pages of files read ahead at most: 128 KiB, the kernel's default.
pub const WINDOW_FILE: u64 = 32;
/// Faults that missed, less those that did not, from which nothing is read around them any more.
const MISSES_MAX: u32 = 100;

/// Pages that are read together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window {
    /// The first.
    pub first: u64,
    /// How many.
    pub pages: u64,
    /// The page that is marked.
    pub mark: Option<u64>,
}

impl Window {
    /// One page.
    pub(super) const fn one(page: u64) -> Self {
        Self { first: page, pages: 1, mark: None }
    }

    /// As much of it as there is room for, `page` included.
    pub(super) fn within(self, page: u64, room: u64) -> Self {
        if self.pages <= room { self } else { Self { first: page, pages: room, mark: None } }
    }

    /// Its pages but `page`.
    pub(super) fn others(self, space: usize, page: u64) -> Vec<(usize, u64)> {
        let pages = (self.first..self.first + self.pages).filter(|&at| at != page);
        pages.map(|at| (space, at)).collect()
    }
}

impl Mem {
    /// What is read for a missing page of a file, in a region that ends at `end`.
    pub(super) fn window(
        &mut self,
        streams: &mut [Stream; STREAMS],
        (space, page): (usize, u64),
        (end, region): (u64, Region),
        mapped: bool,
    ) -> Window {
        let max = self.read_ahead;
        if max == 1 {
            return Window::one(page);
        }
        if mapped {
            return self.around(space, page, (end - region.pages, end), max);
        }
        let found = streams.iter().position(|s| s.space == space && s.next == page);
        let (i, stream) = found.map_or((STREAMS - 1, None), |i| (i, Some(streams[i])));
        let mark;
        let pages = match stream {
            Some(s) if s.asked == 0 => {
                mark = Some(page);
                (s.window * 2).clamp(2.min(max), max)
            }
            other => {
                let asked = other.map_or(1, |s| s.asked).min(max);
                let history = self.history(space, page, end - region.pages, max);
                let seems_in_order = history > asked;
                let pages = if seems_in_order { (history + asked).min(max) } else { asked };
                mark = seems_in_order.then_some(page + pages - 1);
                pages
            }
        };
        streams.copy_within(0..i, 1);
        let pages = pages.min(end - page);
        streams[0] = Stream { space, next: page + pages, window: pages, asked: 0 };
        Window { first: page, pages, mark }
    }

    /// A fault of a mapped file: the window has the page in its middle.
    fn around(&mut self, space: usize, page: u64, (from, end): (u64, u64), max: u64) -> Window {
        let misses = self.misses_of(space);
        *misses = (*misses + 1).min(10 * MISSES_MAX);
        if *misses > MISSES_MAX {
            return Window::one(page);
        }
        let first = page.saturating_sub(max / 2).max(from);
        Window { first, pages: max.min(end - first), mark: None }
    }

    /// A fault of a mapped file that found its page in memory.
    pub(super) fn not_missed(&mut self, space: usize) {
        let misses = self.misses_of(space);
        *misses = misses.saturating_sub(1);
    }

    fn misses_of(&mut self, space: usize) -> &mut u32 {
        if self.misses.len() <= space {
            self.misses.resize(space + 1, 0);
        }
        &mut self.misses[space]
    }

    /// Pages in memory just before `page`, `max` at most.
    fn history(&self, space: usize, page: u64, from: u64, max: u64) -> u64 {
        let tree = self.list[space].tree();
        let here = |vpn| tree.find(Vpn(vpn)).is_some_and(|p| p.get().present());
        (1..=max.min(page - from)).take_while(|back| here(page - back)).count() as u64
    }

    /// What is read on because a marked page was reached; none if enough is there already.
    pub(super) fn next_window(&self, space: usize, page: u64, end: u64) -> Option<Window> {
        let max = self.read_ahead;
        let tree = self.list[space].tree();
        let here = |vpn| tree.find(Vpn(vpn)).is_some_and(|p| p.get().present());
        let first = (page + 1..end.min(page + 1 + max)).find(|&vpn| !here(vpn))?;
        let size = first - page + 1;
        let pages = if size < max / 16 { 4 * size } else { (2 * size).min(max) };
        Some(Window { first, pages: pages.min(end - first), mark: Some(first) })
    }
}
