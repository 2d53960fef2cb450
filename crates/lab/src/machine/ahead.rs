//! Pages read together with a page that is missing, and the descriptors through which a thread
//! reads.
//!
//! The engine decides how much is read, and which page is marked: [`FileAhead`] for files, `swapin`
//! for anonymous pages. This file chooses the descriptor through which a thread reads. The kernel
//! keeps a reading position for each open file. A space of the model stands for many files, so a
//! thread has `DESCRIPTORS`. It reads through the descriptor that goes on at the page. If there is
//! none, it opens another in place of the one used least lately. All mappings of a space share one
//! state.
//!
//! A descriptor learns only of pages that were missing or marked. A descriptor that goes on at a
//! page has read all before it.

use ebb_linux::writeback::{FileAhead, View, WINDOW_MAX, Window};

use super::mem::{Mem, Region};

/// Number of descriptors of a thread.
const DESCRIPTORS: usize = 4;
/// Most pages of a file in one readahead window.
pub const WINDOW_FILE: u64 = WINDOW_MAX;

/// The descriptors through which a thread reads.
#[derive(Clone, Debug, Default)]
pub struct Descriptors {
    /// Space and state of each descriptor, the last used in front.
    open: [(usize, FileAhead); DESCRIPTORS],
    /// Space, first page and end of the request under way.
    request: (usize, u64, u64),
}

impl Descriptors {
    /// Begins a request for so many pages. The missing ones are read at once, as far as a window
    /// goes.
    pub fn begin_request(&mut self, space: usize, page: u64, pages: u32) {
        self.request = (space, page, page + u64::from(pages));
    }

    /// Returns the descriptor that reads `page`, and how many pages are asked for from there on.
    fn at(&mut self, space: usize, page: u64) -> (&mut FileAhead, u64) {
        let (of, first, end) = self.request;
        let (from, end) = if of == space && (first..end).contains(&page) {
            (first, end)
        } else {
            (page, page + 1)
        };
        let goes_on = |a: &FileAhead| a.goes_on_at(from) || a.goes_on_at(page);
        let found = self.open.iter().position(|(of, a)| *of == space && goes_on(a));
        let i = found.unwrap_or(DESCRIPTORS - 1);
        self.open[..=i].rotate_right(1);
        if found.is_none() {
            self.open[0] = (space, FileAhead::default());
        } else if let Some(before) = from.checked_sub(1) {
            self.open[0].1.read(before);
        }
        (&mut self.open[0].1, end - page)
    }
}

impl Mem {
    /// Asks `what` about readahead in a region that ends at `end`.
    fn ask_ahead<T>(
        &self,
        space: usize,
        (end, region): (u64, Region),
        what: impl FnOnce(&View<'_>) -> T,
    ) -> Option<T> {
        let file = self.out.cache.file_of(self.list[space].id())?;
        Some(self.out.cache.ask_ahead(file, end - region.pages..end, self.read_ahead, what))
    }

    /// Returns the window to read for a missing page of a file. `region` has the end of its region.
    pub(super) fn window(
        &mut self,
        descriptors: &mut Descriptors,
        (space, page): (usize, u64),
        region: (u64, Region),
        mapped: bool,
    ) -> Window {
        let window = if mapped {
            let mut ahead = std::mem::take(self.mapped_ahead(space));
            let window = self.ask_ahead(space, region, |view| ahead.fault_missed(page, view));
            *self.mapped_ahead(space) = ahead;
            window
        } else {
            let (ahead, asked) = descriptors.at(space, page);
            let asked = asked.min(self.read_ahead);
            let window = self.ask_ahead(space, region, |view| ahead.missed(page, asked, view));
            ahead.read(page + asked - 1);
            window
        };
        window.unwrap_or(Window::one(page))
    }

    /// Counts a fault of a mapped file that found its page in memory.
    pub(super) fn not_missed(&mut self, space: usize) {
        self.mapped_ahead(space).fault_found();
    }

    /// Returns the readahead state of the mappings of a space.
    fn mapped_ahead(&mut self, space: usize) -> &mut FileAhead {
        if self.mapped.len() <= space {
            self.mapped.resize(space + 1, FileAhead::default());
        }
        &mut self.mapped[space]
    }

    /// Returns the next window after a marked page was reached; none if enough is in memory
    /// already.
    pub(super) fn next_window(
        &mut self,
        descriptors: &mut Descriptors,
        (space, page): (usize, u64),
        mapped: bool,
    ) -> Option<Window> {
        let region = self.region(space, page);
        if mapped {
            let mut ahead = std::mem::take(self.mapped_ahead(space));
            let max = self.read_ahead;
            let window = self.ask_ahead(space, region, |view| ahead.marked(page, max, view));
            *self.mapped_ahead(space) = ahead;
            return window.flatten();
        }
        let (ahead, asked) = descriptors.at(space, page);
        self.ask_ahead(space, region, |view| ahead.marked(page, asked, view)).flatten()
    }
}
