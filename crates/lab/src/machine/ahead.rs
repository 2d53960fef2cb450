//! What is read together with a page that is missing.
//!
//! How much, and what is marked, is the engine's: [`FileAhead`] for files, `swapin` for anonymous
//! pages. Here is through which descriptor a thread reads. The kernel keeps a reading position for
//! each open file; a space of the model stands for many files, so a thread has `DESCRIPTORS` and
//! reads through the one that goes on at the page, or opens another in place of the one it has used
//! least lately. Mappings of a space share one.
//!
//! A thread tells a descriptor only of pages that were missing or marked. One that goes on at a
//! page has read all before it.

use ebb_mm::writeback::{FileAhead, View, WINDOW_MAX, Window};

use super::mem::{Mem, Region};

/// Descriptors of a thread.
const DESCRIPTORS: usize = 4;
/// Pages of files read ahead at most.
pub const WINDOW_FILE: u64 = WINDOW_MAX;

/// What a thread reads through.
#[derive(Clone, Debug, Default)]
pub struct Descriptors {
    /// By space; the last used in front.
    open: [(usize, FileAhead); DESCRIPTORS],
    /// The request under way: its space, first page and end.
    asked: (usize, u64, u64),
}

impl Descriptors {
    /// A request for so many pages: what is missing of them is read at once, as far as a window
    /// goes.
    pub fn ask(&mut self, space: usize, page: u64, pages: u32) {
        self.asked = (space, page, page + u64::from(pages));
    }

    /// The descriptor that reads `page`, and how many pages are asked for from there on.
    fn at(&mut self, space: usize, page: u64) -> (&mut FileAhead, u64) {
        let (of, first, end) = self.asked;
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
    /// Asks `what` about reading ahead in a region that ends at `end`.
    fn ask_ahead<T>(
        &self,
        space: usize,
        (end, region): (u64, Region),
        what: impl FnOnce(&View<'_>) -> T,
    ) -> Option<T> {
        let file = self.out.cache.file_of(self.list[space].id())?;
        Some(self.out.cache.ask_ahead(file, end - region.pages..end, self.read_ahead, what))
    }

    /// What is read for a missing page of a file, in a region that ends at `end`.
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

    /// A fault of a mapped file that found its page in memory.
    pub(super) fn not_missed(&mut self, space: usize) {
        self.mapped_ahead(space).fault_found();
    }

    /// What mappings of a space know.
    fn mapped_ahead(&mut self, space: usize) -> &mut FileAhead {
        if self.mapped.len() <= space {
            self.mapped.resize(space + 1, FileAhead::default());
        }
        &mut self.mapped[space]
    }

    /// What is read on because a marked page was reached; none if enough is there already.
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
