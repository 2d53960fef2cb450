//! The page cache: the pages of files that are in memory, and the state of each.
//!
//! ```text
//!              insert                 write, first store through a mapping
//!   absent ------------> clean ---------------------------------> dirty
//!     ^                  ^ |                                       | ^
//!     |  evict, truncate | | made dirty while being written        | | the write failed
//!     +------------------+ +-------------+                 take_batch |
//!                        |               v                         v |
//!                        +---------- writing <---------------------+-+
//!                          end_write
//! ```
//! A file's pages are entries of its own tree ([`Space`]). An entry is mapped while a program can
//! reach the page through it. A page that leaves memory leaves its shadow in its entry.
//!
//! Invariants
//! * PAGECACHE-1: a page is in its file's `dirty` set exactly while its folio is `DIRTY`.
//! * PAGECACHE-2: `WRITEBACK` is set from `take_batch` or `take_one` to `end_write`. Meanwhile the
//!   page stays in memory.
//! * PAGECACHE-3: a dirty page leaves memory only if its content is given up
//!   ([`PageCache::forget`]). A page whose write failed is dirty again. Every descriptor that syncs
//!   the file gets the error once.
//! * PAGECACHE-4: an entry is `DIRTY` only if its folio is. [`PageCache::make_dirty`] reports the
//!   first store through a mapping since the page was last clean.

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use super::ahead::{View, Window};
use ebb_mm::folio::{LruType, Word};
use ebb_mm::lru::{Ctx, Evicted, Lruvec, Shadow};
use ebb_mm::observe::vmstat::Event;
use ebb_mm::space::{Pte, Space};
use ebb_mm::types::{MmId, Pfn, Vpn};

/// Number of a file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId(pub u32);

/// Result of looking up a page of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// The page is in memory.
    Here(Pfn),
    /// The page is not in memory; its shadow, if the page left one.
    Absent(Option<Shadow>),
    /// The page lies beyond the end of the file.
    Beyond,
}

/// How far a truncation got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Truncated {
    /// The truncation is complete; number of pages dropped.
    Done(u64),
    /// Some pages are being written; number of those pages. Call again when some of these writes
    /// have ended.
    Wait(u64),
}

#[derive(Debug)]
pub(super) struct File {
    pub space: Arc<Space>,
    pub pages: u64,
    pub dirty: BTreeSet<u64>,
    /// Time in milliseconds at which the oldest dirty page became dirty, as far as known.
    pub since_ms: u64,
    /// Number of pages still to write of those that were dirty when the file expired.
    pub expired_left: u64,
    pub queued: bool,
    /// Page at which the next batch begins.
    pub cursor: u64,
    pub writing: u64,
    /// Number of failed writes.
    pub failures: u64,
}

/// The pages of all files.
#[derive(Debug, Default)]
pub struct PageCache {
    pub(super) files: Vec<File>,
    /// The file of each address space, indexed by address space.
    by_space: Vec<Option<FileId>>,
    /// Files with dirty pages. The file to write next comes first.
    pub(super) queue: VecDeque<FileId>,
    pub(super) dirty: u64,
    pub(super) writing: u64,
    /// Pages dirty or being written, by node. A page that is both counts twice.
    unclean: Vec<u64>,
    pub(super) written: u64,
    pub(super) dirtied: u64,
    /// Whether reclaim has asked the flusher to work, because it met dirty pages.
    pub(super) flusher_asked: bool,
    /// Number of pages still to write of those that were dirty when reclaim asked the flusher.
    pub(super) asked_left: u64,
    /// Sum of `File::expired_left` over all files that have expired.
    pub(super) expired_left: u64,
    pub(super) wakes: u64,
}

impl PageCache {
    /// Creates a cache without files.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a file of `pages` pages, none in memory. Its folios belong to `space`.
    pub fn add_file(&mut self, space: Arc<Space>, pages: u64) -> FileId {
        let id = FileId(self.files.len() as u32);
        let at = space.id().0 as usize;
        if self.by_space.len() <= at {
            self.by_space.resize(at + 1, None);
        }
        self.by_space[at] = Some(id);
        self.files.push(File {
            space,
            pages,
            dirty: BTreeSet::new(),
            since_ms: 0,
            expired_left: 0,
            queued: false,
            cursor: 0,
            writing: 0,
            failures: 0,
        });
        id
    }

    /// Returns the file whose folios belong to `mm`.
    #[must_use]
    pub fn file_of(&self, mm: MmId) -> Option<FileId> {
        self.by_space.get(mm.0 as usize).copied().flatten()
    }

    fn file(&self, id: FileId) -> &File {
        &self.files[id.0 as usize]
    }

    pub(super) fn file_mut(&mut self, id: FileId) -> &mut File {
        &mut self.files[id.0 as usize]
    }

    /// Returns the length of a file in pages.
    #[must_use]
    pub fn pages(&self, id: FileId) -> u64 {
        self.file(id).pages
    }

    /// Makes a file longer; the new part reads as zeros.
    pub fn extend(&mut self, id: FileId, pages: u64) {
        let file = self.file_mut(id);
        file.pages = file.pages.max(pages);
    }

    /// Returns the number of dirty pages of all files.
    #[must_use]
    pub fn dirty(&self) -> u64 {
        self.dirty
    }

    /// Returns the number of pages being written.
    #[must_use]
    pub fn writing(&self) -> u64 {
        self.writing
    }

    /// Returns the number of pages of a node that are dirty or being written. A page that is both
    /// counts twice.
    #[must_use]
    pub fn unclean_on(&self, node: usize) -> u64 {
        self.unclean.get(node).copied().unwrap_or(0)
    }

    /// Counts a page that became dirty, or whose write began.
    fn count_unclean(&mut self, cx: &Ctx, pfn: Pfn) {
        let node = usize::from(cx.folios.node(pfn));
        if self.unclean.len() <= node {
            self.unclean.resize(node + 1, 0);
        }
        self.unclean[node] += 1;
    }

    /// Discounts a page that is no longer dirty, or whose write ended.
    pub(super) fn count_clean(&mut self, cx: &Ctx, pfn: Pfn) {
        self.unclean[usize::from(cx.folios.node(pfn))] -= 1;
    }

    /// Returns the number of pages written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Returns the number of pages made dirty.
    #[must_use]
    pub fn dirtied(&self) -> u64 {
        self.dirtied
    }

    /// Looks a page up.
    #[must_use]
    pub fn find(&self, id: FileId, page: u64) -> Found {
        let file = self.file(id);
        if page >= file.pages {
            return Found::Beyond;
        }
        match file.space.tree().find(Vpn(page)).map(|place| place.get()) {
            Some(pte) if pte.present() => Found::Here(pte.pfn()),
            Some(pte) => Found::Absent(pte.shadow().map(Shadow)),
            None => Found::Absent(None),
        }
    }

    /// Calls `what` with the readahead view of `area` of a file, with at most `max` pages a window.
    pub fn ask_ahead<T>(
        &self,
        id: FileId,
        area: Range<u64>,
        max: u64,
        what: impl FnOnce(&View<'_>) -> T,
    ) -> T {
        let here = |page| matches!(self.find(id, page), Found::Here(_));
        let area = area.start..area.end.min(self.file(id).pages);
        what(&View { area, max, here: &here })
    }

    /// Returns the pages of a window that have to be read, in order.
    pub fn missing(&self, id: FileId, window: Window) -> impl Iterator<Item = u64> + '_ {
        window.range().filter(move |&page| matches!(self.find(id, page), Found::Absent(_)))
    }

    /// Puts a page into the frame `pfn`. The caller owns the frame and has filled it, or fills it
    /// before any program sees it. The caller also adds the folio to the lists, perhaps in a batch.
    pub fn insert(&mut self, cx: &Ctx, v: &Lruvec, id: FileId, page: u64, pfn: Pfn, flags: Word) {
        let space = &self.file(id).space;
        let place = space.tree().place(Vpn(page));
        let old = place.get();
        debug_assert!(!old.present(), "a page is brought in once");
        cx.folios.init(pfn, flags, v.memcg(), space.id(), Vpn(page));
        if let Some(shadow) = old.shadow() {
            v.refault(cx, pfn, Shadow(shadow), flags.has(Word::MAPPED));
        }
        let bits = if flags.has(Word::MAPPED) { Pte::MAPPED | Pte::ACCESSED } else { 0 };
        place.table.set(place.index, Pte::of_frame(pfn, bits));
    }

    /// Maps a page that is in memory. With `store` it also makes the page dirty, so the program may
    /// store to it at once.
    pub fn map(&mut self, cx: &Ctx, id: FileId, page: u64, store: bool) {
        let space = Arc::clone(&self.file(id).space);
        let place = space.tree().place(Vpn(page));
        let pte = place.get();
        debug_assert!(pte.present());
        cx.folios.set(pte.pfn(), Word::MAPPED);
        if store {
            self.make_dirty(cx, id, page, pte.pfn());
        }
        let dirty = if store { Pte::DIRTY } else { 0 };
        place.touch(pte, Pte::MAPPED | Pte::ACCESSED | dirty);
    }

    /// Marks a page dirty. A write has changed the page, or the first store through a mapping since
    /// the page was clean.
    pub fn make_dirty(&mut self, cx: &Ctx, id: FileId, page: u64, pfn: Pfn) {
        if cx.folios.set(pfn, Word::DIRTY).has(Word::DIRTY) {
            return;
        }
        self.dirty += 1;
        self.dirtied += 1;
        self.count_unclean(cx, pfn);
        cx.stat.add(Event::NrDirtied, 1);
        let file = self.file_mut(id);
        if file.dirty.is_empty() {
            file.since_ms = cx.now_ms;
        }
        file.dirty.insert(page);
        if !file.queued {
            file.queued = true;
            self.queue.push_back(id);
        }
    }

    /// Tries to evict a folio that reclaim found unused. On `Freed` the page is out of the cache
    /// and the caller owns the frame.
    pub fn evict(&mut self, cx: &Ctx, pfn: Pfn, shadow: Shadow) -> Evicted {
        let w = cx.folios.word(pfn);
        debug_assert_eq!(w.ty(), LruType::File);
        if w.has(Word::DIRTY.or(Word::WRITEBACK)) {
            return Evicted::Busy;
        }
        let changed = cx.spaces.unmap(cx.folios, pfn, shadow.0);
        debug_assert!(!changed, "PAGECACHE-4: a store through a mapping is reported");
        Evicted::Freed
    }

    /// Removes a page, even a dirty one, because its file was truncated or its content is given up.
    pub fn forget(&mut self, cx: &Ctx, id: FileId, page: u64, pfn: Pfn) {
        if cx.folios.clear(pfn, Word::DIRTY).has(Word::DIRTY) {
            self.dirty -= 1;
            self.count_clean(cx, pfn);
            self.file_mut(id).dirty.remove(&page);
        }
        let space = &self.file(id).space;
        let place = space.tree().place(Vpn(page));
        place.table.set(place.index, Pte(0));
    }

    /// Cuts a file to `pages`. Removes each dropped page from the lists of `v`, and passes it to
    /// `free`.
    pub fn truncate(
        &mut self,
        cx: &Ctx,
        v: &Lruvec,
        id: FileId,
        pages: u64,
        mut free: impl FnMut(Pfn),
    ) -> Truncated {
        let end = self.file(id).pages;
        let (mut dropped, mut waiting) = (0, 0);
        let space = Arc::clone(&self.file(id).space);
        for page in pages..end {
            let Some(place) = space.tree().find(Vpn(page)) else { continue };
            let pte = place.get();
            if !pte.present() {
                place.table.set(place.index, Pte(0));
                continue;
            }
            let pfn = pte.pfn();
            if cx.folios.word(pfn).has(Word::WRITEBACK) {
                waiting += 1;
                continue;
            }
            v.remove(cx, pfn);
            self.forget(cx, id, page, pfn);
            cx.folios.unpin(pfn);
            free(pfn);
            dropped += 1;
        }
        if waiting > 0 {
            return Truncated::Wait(waiting);
        }
        self.file_mut(id).pages = pages.min(end);
        Truncated::Done(dropped)
    }

    /// Returns whether a file has no dirty page and no page being written.
    #[must_use]
    pub fn is_clean(&self, id: FileId) -> bool {
        let file = self.file(id);
        file.dirty.is_empty() && file.writing == 0
    }

    /// Returns the number of failed writes of a file. The driver keeps the number for each
    /// descriptor, from the opening on.
    #[must_use]
    pub fn failures(&self, id: FileId) -> u64 {
        self.file(id).failures
    }

    /// Returns the result of a sync: an error if the file has more failed writes than `seen`.
    /// Updates `seen`, so each failure is reported once.
    pub fn synced(&self, id: FileId, seen: &mut u64) -> Result<(), WriteFailed> {
        let failures = self.file(id).failures;
        if failures > *seen {
            *seen = failures;
            return Err(WriteFailed);
        }
        Ok(())
    }

    /// Recounts everything.
    ///
    /// # Panics
    /// If an invariant does not hold.
    pub fn check(&self, cx: &Ctx) {
        let (mut dirty, mut writing) = (0, 0);
        for file in &self.files {
            for page in 0..file.pages {
                let Some(place) = file.space.tree().find(Vpn(page)) else { continue };
                let pte = place.get();
                let w = if pte.present() { cx.folios.word(pte.pfn()) } else { Word::default() };
                assert_eq!(
                    w.has(Word::DIRTY),
                    file.dirty.contains(&page),
                    "PAGECACHE-1: page {page}"
                );
                assert!(
                    !pte.present() || !pte.all(Pte::DIRTY) || w.has(Word::DIRTY),
                    "PAGECACHE-4"
                );
                dirty += u64::from(w.has(Word::DIRTY));
                writing += u64::from(w.has(Word::WRITEBACK));
            }
            assert!(file.dirty.is_empty() || file.queued, "the flusher knows of it");
        }
        assert_eq!((dirty, writing), (self.dirty, self.writing), "dirty, being written");
        assert_eq!(dirty + writing, self.unclean.iter().sum(), "both, by node");
        assert_eq!(self.expired_left, self.files.iter().map(|f| f.expired_left).sum::<u64>());
        assert_eq!(writing, self.files.iter().map(|f| f.writing).sum());
    }
}

/// Error of a sync: a page could not be written. It is still dirty.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteFailed;

impl std::fmt::Display for WriteFailed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a page could not be written")
    }
}

impl std::error::Error for WriteFailed {}
