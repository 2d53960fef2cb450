//! What is known of every page: its word, and where in the journal its newest copy is.
//!
//! Segments of 65,536 pages are made when the first of their pages is asked for: 12 bytes a page.

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

/// See the head of the file.
pub struct Table(Box<[OnceLock<Segment>]>);

impl Table {
    /// For up to so many pages.
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

    /// Its word.
    #[inline]
    pub fn word(&self, page: PageId) -> &Word {
        let (segment, within) = self.segment(page);
        &segment.words[within]
    }

    /// Where in the journal it is, in pages; None: it is in the file.
    pub fn place(&self, page: PageId) -> Option<u32> {
        let (segment, within) = self.segment(page);
        Some(segment.places[within].load(SeqCst)).filter(|&place| place != 0)
    }

    /// Its newest copy is there from now on. Returns whether it was in the file before.
    pub fn set_place(&self, page: PageId, place: Option<u32>) -> bool {
        let (segment, within) = self.segment(page);
        segment.places[within].swap(place.unwrap_or(0), SeqCst) == 0
    }
}
