//! The table of all pages: the word of each, and the position of its newest copy in the journal.
//!
//! A segment of 65,536 pages is created when the first of its pages is requested: 12 bytes a page.

use crate::error::PageId;
use crate::word::Word;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::SeqCst;

const SEGMENT: usize = 1 << 16;

struct Segment {
    words: Box<[Word]>,
    places: Box<[AtomicU32]>,
}

/// The table of a pool. See the head of the file.
pub struct Table(Box<[OnceLock<Segment>]>);

impl Table {
    /// Creates the table of up to `pages_max` pages.
    pub fn new(pages_max: u64) -> Self {
        let segments = pages_max.div_ceil(SEGMENT as u64);
        Self((0..segments).map(|_| OnceLock::new()).collect())
    }

    #[inline]
    fn segment(&self, page: PageId) -> (&Segment, usize) {
        let (segment, within) = (page.0 as usize / SEGMENT, page.0 as usize % SEGMENT);
        let make = || Segment {
            words: std::iter::repeat_with(Word::default).take(SEGMENT).collect(),
            places: std::iter::repeat_with(AtomicU32::default).take(SEGMENT).collect(),
        };
        (self.0[segment].get_or_init(make), within)
    }

    /// Returns the state word of `page`.
    #[inline]
    pub fn word(&self, page: PageId) -> &Word {
        let (segment, within) = self.segment(page);
        &segment.words[within]
    }

    /// Returns the position of a page in the journal, in pages; `None` if it is in the file.
    pub fn place(&self, page: PageId) -> Option<u32> {
        let (segment, within) = self.segment(page);
        Some(segment.places[within].load(SeqCst)).filter(|&place| place != 0)
    }

    /// Records the position of a page's newest copy. Returns whether the page was in the file
    /// before.
    pub fn set_place(&self, page: PageId, place: Option<u32>) -> bool {
        let (segment, within) = self.segment(page);
        segment.places[within].swap(place.unwrap_or(0), SeqCst) == 0
    }
}
