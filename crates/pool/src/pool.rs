//! The pool: loads pages, evicts them, and makes changes durable.
//!
//! A thread that needs a frame takes a free one. If few are left, the thread has the engine choose
//! a batch of victims, unless another thread is doing that. So no thread waits for a sleeping
//! reclaimer. The thread evicts clean pages of the batch at once. It first writes dirty ones to the
//! journal, as one batch.
//!
//! Invariants:
//! * POOL-1: a page that is in no frame is in the journal, at its recorded position. Without a
//!   recorded position it is in the file.
//! * POOL-2: under the journal's lock a thread writes pages there, records their positions and
//!   marks them clean. No other thread can write to those pages then, because they are latched or
//!   no change is under way. A dirty page stays in its frame.
//! * POOL-3: a page known to the engine is in a frame. A thread reports a page to the engine after
//!   it has published the page's word. Only the engine's victims are evicted.
//! * POOL-4: when the journal begins anew, no page is dirty and no position is recorded. No load is
//!   under way that looked up an earlier position.
//!
//! Lock order: `last_commit`, `gate`, latches of pages, `policy`, `journal`. Reclaim, which has
//! `policy`, and commits, which have `journal`, only try latches. `journaled`, `loaded`, `dirty`
//! and the free frames are leaves.

use crate::ahead::Ahead;
use crate::error::{PageId, PoolError};
use crate::frames::{Bytes, Frames};
use crate::guards::{self, Change, Shared};
use crate::journal::{Aligned, BATCH_MAX, Journal, Recovered};
use crate::medium::{Disk, Medium};
use crate::policy::{Loaded, Policy, Victim};
use crate::table::Table;
use crate::word::{Found, Latch};
use parking_lot::{Mutex, RwLock};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::time::Duration;

/// Smallest number of frames. Fewer could not hold the latched pages of one thread and the pages
/// being loaded.
const FRAMES_MIN: u32 = 16;
/// Smallest time in seconds to wait for a frame if all are latched. It is counted in sleeps, so a
/// suspended host counts as one sleep.
const PATIENCE_S: u64 = if cfg!(test) { 1 } else { 10 };
const SLEEP: Duration = Duration::from_millis(1);

/// Options of a pool.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Largest number of pages in memory; 16 or more.
    pub frames: u32,
    /// Largest number of pages of the file. Each used page takes about 30 bytes of memory.
    pub pages_max: u64,
    /// Whether to bypass the page cache, if the file system supports it.
    pub direct: bool,
    /// Number of pages in the journal above which a commit moves them to the file.
    pub journal_pages: u64,
}

impl Options {
    /// Returns the defaults: `frames` frames, a terabyte of pages, direct I/O, a journal as large
    /// as the pool.
    #[must_use]
    pub fn frames(frames: u32) -> Self {
        Self { frames, pages_max: 1 << 28, direct: true, journal_pages: u64::from(frames) }
    }

    fn check(&self) -> Result<(), PoolError> {
        let wrong = |option, given, wanted| Err(PoolError::Option { option, given, wanted });
        if self.frames < FRAMES_MIN {
            return wrong("frames", self.frames.into(), "16 or more");
        }
        if !(1..=1 << 36).contains(&self.pages_max) {
            return wrong("pages_max", self.pages_max, "between 1 and 2^36");
        }
        Ok(())
    }
}

/// Counters of a pool since it was opened, in pages.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// Pages read because they were not in memory, prefetches included.
    pub reads: u64,
    /// Pages among `reads` that were prefetched.
    pub reads_ahead: u64,
    /// Pages evicted.
    pub evictions: u64,
    /// Pages written to the journal.
    pub journal_writes: u64,
    /// Pages written to the file.
    pub file_writes: u64,
    /// Number of free frames.
    pub free_frames: u64,
    /// Number of pages of the pool.
    pub pages: u64,
}

#[derive(Default)]
struct Counts {
    reads: AtomicU64,
    reads_ahead: AtomicU64,
    evictions: AtomicU64,
    journal_writes: AtomicU64,
    file_writes: AtomicU64,
}

/// State shared by the threads of a pool.
pub(crate) struct Inner {
    pub frames: Frames,
    pub table: Table,
    /// Changes hold this lock for reading, commits for writing.
    pub gate: RwLock<()>,
    file: Box<dyn Medium>,
    path: PathBuf,
    options: Options,
    pages: AtomicU64,
    commits_begun: AtomicU64,
    /// Commits hold this lock. The value is the number of the last successful commit.
    last_commit: Mutex<u64>,
    policy: Mutex<Policy>,
    journal: Mutex<Journal>,
    /// The journal's medium, to read from without the journal's lock.
    journal_file: Arc<dyn Medium>,
    /// Pages that have a position in the journal.
    journaled: Mutex<Vec<PageId>>,
    loaded: Mutex<Vec<Loaded>>,
    /// Pages that became dirty; some have been written since.
    dirty: Mutex<Vec<PageId>>,
    /// Number of free frames below which reclaim works.
    low: usize,
    counts: Counts,
}

impl Inner {
    fn error(&self, what: &'static str, source: io::Error) -> PoolError {
        PoolError::Io { what, path: self.path.clone(), source }
    }

    fn check(&self, page: PageId) -> Result<(), PoolError> {
        let pages = self.pages.load(Acquire);
        if page.0 >= pages {
            return Err(PoolError::NoSuchPage { page, pages });
        }
        Ok(())
    }

    /// Returns whether a page exists.
    pub fn has(&self, page: PageId) -> bool {
        page.0 < self.pages.load(Acquire)
    }

    /// Latches a page, and loads it first if it is not in memory. Returns its frame.
    #[inline]
    pub fn fix(&self, page: PageId, how: Latch, once: bool) -> Result<u32, PoolError> {
        self.check(page)?;
        match self.table.word(page).latch(how) {
            Found::Here(frame) => {
                if !once {
                    self.frames.touch(frame);
                }
                Ok(frame)
            }
            Found::Missing => self.load(page, Some(how), once, &self.counts.reads),
        }
    }

    /// Loads a page that is in no frame and is latched exclusively. Then changes the latch to
    /// `how`.
    fn load(
        &self,
        page: PageId,
        how: Option<Latch>,
        once: bool,
        count: &AtomicU64,
    ) -> Result<u32, PoolError> {
        let filled = self.take_frame().and_then(|frame| {
            // SAFETY: only this thread, which took the frame, knows it.
            let bytes = unsafe { self.frames.bytes_mut(frame) };
            // POOL-1
            let read = match self.table.place(page) {
                Some(place) => self.journal_file.read(place.into(), bytes),
                None => self.file.read(page.0, bytes),
            };
            match read {
                Ok(()) => Ok(frame),
                Err(source) => {
                    self.frames.give(frame);
                    Err(self.error("read", source))
                }
            }
        });
        match filled {
            Ok(frame) => {
                count.fetch_add(1, Relaxed);
                self.arrive(page, frame, how, once);
                Ok(frame)
            }
            Err(error) => {
                self.table.word(page).unlatch_exclusive();
                Err(error)
            }
        }
    }

    /// Prefetches a page. No thread waits for it, and an error appears again when a thread needs
    /// the page.
    pub fn load_ahead(&self, page: PageId) {
        let _ = self.load(page, None, false, &self.counts.reads_ahead);
    }

    fn arrive(&self, page: PageId, frame: u32, how: Option<Latch>, once: bool) {
        self.frames.own(frame, page);
        self.table.word(page).publish(frame, how);
        // Only now the engine may know the page, because a page known to the engine is in a frame
        // (POOL-3). Until now the engine cannot evict the page.
        self.loaded.lock().push(Loaded { page, once });
    }

    /// Returns the number of free frames and of pages known to the engine. Only while no other
    /// thread uses the pool.
    #[cfg(test)]
    pub fn accounted(&self) -> (u64, u64) {
        let mut policy = self.policy.lock();
        policy.note(&std::mem::take(&mut *self.loaded.lock()), &self.frames);
        (self.frames.free() as u64, policy.resident())
    }

    /// Adds a page, latched exclusively.
    pub fn allocate(&self) -> Result<(PageId, u32), PoolError> {
        let frame = self.take_frame()?;
        let most = self.options.pages_max;
        let taken =
            self.pages.fetch_update(SeqCst, SeqCst, |pages| (pages < most).then_some(pages + 1));
        let Ok(page) = taken.map(PageId) else {
            self.frames.give(frame);
            return Err(PoolError::Full { pages: most });
        };
        let frame = match self.table.word(page).latch(Latch::Exclusive) {
            Found::Missing => {
                // SAFETY: only this thread, which took the frame, knows it.
                unsafe { self.frames.bytes_mut(frame) }.fill(0);
                self.arrive(page, frame, Some(Latch::Exclusive), false);
                frame
            }
            // Another thread guessed the page's number and loaded it first, from beyond the end of
            // the file.
            Found::Here(other) => {
                self.frames.give(frame);
                other
            }
        };
        self.dirtied(page);
        Ok((page, frame))
    }

    /// Records a write to a page that is latched exclusively.
    #[inline]
    pub fn dirtied(&self, page: PageId) {
        let word = self.table.word(page);
        if !word.state().is_dirty() && word.set_dirty() {
            self.dirty.lock().push(page);
        }
    }

    /// Takes a free frame.
    fn take_frame(&self) -> Result<u32, PoolError> {
        let mut sleeps = 0;
        loop {
            if let Some((frame, left)) = self.frames.take() {
                if left < self.low
                    && let Some(mut policy) = self.policy.try_lock()
                {
                    // This thread has its frame, so an error does not concern it. A thread that
                    // finds no frame reclaims again, and gets the error.
                    let _ = self.reclaim(&mut policy, false);
                }
                return Ok(frame);
            }
            let mut policy = self.policy.lock();
            if self.frames.free() > 0 || self.reclaim(&mut policy, true)? > 0 {
                continue;
            }
            drop(policy);
            if SLEEP * sleeps >= Duration::from_secs(PATIENCE_S) {
                let (frames, seconds) = (self.frames.count(), PATIENCE_S);
                return Err(PoolError::AllLatched { frames, seconds });
            }
            sleeps += 1;
            std::thread::sleep(SLEEP);
        }
    }

    /// Evicts a batch of pages. Returns how many.
    fn reclaim(&self, policy: &mut Policy, starving: bool) -> Result<usize, PoolError> {
        let loaded = std::mem::take(&mut *self.loaded.lock());
        policy.note(&loaded, &self.frames);
        let victims = policy.victims(starving);
        let (mut freed, mut dirty) = (Vec::new(), Vec::new());
        for &victim in &victims {
            let word = self.table.word(victim.page);
            let state = word.state();
            let frame = state.frame().expect("POOL-3: what the engine has is in a frame");
            if word.evict(state) {
                freed.push(frame);
                policy.left(victim);
            } else if state.is_dirty() && word.try_latch(Latch::Shared).is_some() {
                dirty.push((victim, frame));
            } else {
                policy.in_use(victim);
            }
        }
        self.frames.give_all(&freed);
        let written = self.spill(policy, &dirty);
        let left = freed.len() + written.as_ref().map_or(0, |left| *left);
        policy.did(victims.len(), left);
        self.counts.evictions.fetch_add(left as u64, Relaxed);
        if left == 0 { written } else { Ok(left) }
    }

    /// Writes victims that are dirty and latched, and evicts them. Returns how many.
    fn spill(&self, policy: &mut Policy, victims: &[(Victim, u32)]) -> Result<usize, PoolError> {
        let written = if victims.is_empty() {
            Ok(())
        } else {
            let pages: Vec<_> =
                victims.iter().map(|&(victim, frame)| (victim.page, frame)).collect();
            self.write_out(&mut self.journal.lock(), &pages, None)
        };
        let mut freed = Vec::new();
        for &(victim, frame) in victims {
            let word = self.table.word(victim.page);
            word.unlatch_shared();
            if written.is_ok() && word.evict(word.state()) {
                freed.push(frame);
                policy.left(victim);
            } else {
                policy.stays(victim);
            }
        }
        self.frames.give_all(&freed);
        written.map(|()| freed.len())
    }

    /// Writes the pages that are still dirty to the journal, as one batch (POOL-2).
    fn write_out(
        &self,
        journal: &mut Journal,
        pages: &[(PageId, u32)],
        commits: Option<u64>,
    ) -> Result<(), PoolError> {
        let is_dirty = |&&(page, _): &&(PageId, u32)| self.table.word(page).state().is_dirty();
        let pages: Vec<_> = pages.iter().filter(is_dirty).collect();
        if pages.is_empty() && commits.is_none() {
            return Ok(());
        }
        // SAFETY: no thread writes to the pages: each is latched, or no change is under way. Dirty
        // pages stay in their frames (POOL-2).
        let of = |&&(page, frame): &&(PageId, u32)| (page, unsafe { self.frames.bytes(frame) });
        let first = journal.append(&pages.iter().map(of).collect::<Vec<_>>(), commits)?;
        let mut journaled = self.journaled.lock();
        for (&&(page, _), place) in pages.iter().zip(first..) {
            if self.table.set_place(page, Some(place)) {
                journaled.push(page);
            }
            self.table.word(page).set_clean();
        }
        self.counts.journal_writes.fetch_add(pages.len() as u64, Relaxed);
        Ok(())
    }

    /// Makes all ended changes durable. With `move_all`, also moves them to the file.
    fn commit(&self, move_all: bool) -> Result<(), PoolError> {
        if guards::changes(self) {
            return Err(PoolError::CommitInChange);
        }
        let arrived = self.commits_begun.load(SeqCst);
        let mut done = self.last_commit.lock();
        if *done > arrived && !move_all {
            // A commit that began after this call has made the changes durable as well.
            return Ok(());
        }
        let number = self.commits_begun.fetch_add(1, SeqCst) + 1;
        let gate = self.gate.write();
        let mut journal = self.journal.lock();
        self.write_all(&mut journal)?;
        let full = move_all || journal.len() > self.options.journal_pages;
        drop(journal);
        // Reads and evictions go on during the sync. Changes do, too, unless pages are to be moved
        // to the file. The next commit makes such changes durable.
        let gate = Some(gate).filter(|_| full);
        self.sync_journal()?;
        *done = number;
        if gate.is_none() {
            return Ok(());
        }
        let moved = self.move_to_file();
        // The committed pages are durable in the journal, so the next commit tries again to move
        // them.
        if move_all { moved } else { Ok(()) }
    }

    fn sync_journal(&self) -> Result<(), PoolError> {
        self.journal.lock().check()?;
        self.journal_file.sync().map_err(|source| {
            let mut journal = self.journal.lock();
            journal.break_off();
            journal.error("sync", source)
        })
    }

    /// Writes all dirty pages to the journal, and a commit after them. No change is under way.
    fn write_all(&self, journal: &mut Journal) -> Result<(), PoolError> {
        let mut listed = std::mem::take(&mut *self.dirty.lock());
        listed.sort_unstable();
        listed.dedup();
        let in_frame = |&page: &PageId| {
            let state = self.table.word(page).state();
            state.frame().filter(|_| state.is_dirty()).map(|frame| (page, frame))
        };
        let pages: Vec<_> = listed.iter().filter_map(in_frame).collect();
        if pages.is_empty() && !journal.is_pending() {
            return Ok(());
        }
        let count = self.pages.load(SeqCst);
        let batches: Vec<_> = pages.chunks(BATCH_MAX).collect();
        let (last, first) =
            batches.split_last().map_or((&[][..], &[][..]), |(last, first)| (*last, first));
        let written = first.iter().try_for_each(|batch| self.write_out(journal, batch, None));
        let written = written.and_then(|()| self.write_out(journal, last, Some(count)));
        if written.is_err() {
            self.dirty.lock().append(&mut listed);
        }
        written
    }

    /// Moves the pages in the journal to the file, and begins the journal anew (POOL-4). No change
    /// is under way, and no page is dirty.
    fn move_to_file(&self) -> Result<(), PoolError> {
        let mut pages = std::mem::take(&mut *self.journaled.lock());
        pages.sort_unstable();
        let moved = self.copy_to_file(&pages);
        if let Err(error) = moved {
            self.journaled.lock().append(&mut pages);
            return Err(error);
        }
        for &page in &pages {
            self.table.set_place(page, None);
            while self.table.word(page).state().is_loading() {
                std::thread::yield_now();
            }
        }
        self.journal.lock().reset(self.options.journal_pages)
    }

    fn copy_to_file(&self, pages: &[PageId]) -> Result<(), PoolError> {
        let mut writer = FileWriter::new(&*self.file);
        for &page in pages {
            let place = self.table.place(page).expect("what is listed has a place");
            writer
                .push(page, |bytes| self.newest(page, place, bytes))
                .map_err(|(what, source)| self.error(what, source))?;
        }
        let count = self.pages.load(SeqCst);
        writer.end(count).map_err(|(what, source)| {
            if what == "sync" {
                self.journal.lock().break_off();
            }
            self.error(what, source)
        })?;
        self.counts.file_writes.fetch_add(pages.len() as u64, Relaxed);
        Ok(())
    }

    /// Reads a clean page, from memory if it is there.
    fn newest(&self, page: PageId, place: u32, into: &mut Bytes) -> io::Result<()> {
        let word = self.table.word(page);
        match word.state().frame().and_then(|_| word.try_latch(Latch::Shared)) {
            Some(Found::Here(frame)) => {
                // SAFETY: the page is latched.
                into.copy_from_slice(unsafe { self.frames.bytes(frame) });
                word.unlatch_shared();
                return Ok(());
            }
            Some(Found::Missing) => word.unlatch_exclusive(),
            None => {}
        }
        self.journal_file.read(place.into(), into)
    }
}

/// Writes pages to the file, consecutive ones in one call.
struct FileWriter<'file> {
    file: &'file dyn Medium,
    first: u64,
    filled: usize,
    run: Vec<Box<Aligned>>,
}

/// The operation that failed, and its error.
type Failed = (&'static str, io::Error);

impl<'file> FileWriter<'file> {
    const RUN: usize = 64;

    fn new(file: &'file dyn Medium) -> Self {
        let run = std::iter::repeat_with(Aligned::new).take(Self::RUN).collect();
        Self { file, first: 0, filled: 0, run }
    }

    fn push(
        &mut self,
        page: PageId,
        fill: impl FnOnce(&mut Bytes) -> io::Result<()>,
    ) -> Result<(), Failed> {
        if self.filled == Self::RUN || page.0 != self.first + self.filled as u64 {
            self.write()?;
            self.first = page.0;
        }
        fill(&mut self.run[self.filled].0).map_err(|source| ("read", source))?;
        self.filled += 1;
        Ok(())
    }

    fn write(&mut self) -> Result<(), Failed> {
        let pages: Vec<&Bytes> = self.run[..self.filled].iter().map(|page| &page.0).collect();
        self.filled = 0;
        if pages.is_empty() {
            return Ok(());
        }
        self.file.write(self.first, &pages).map_err(|source| ("write", source))
    }

    /// Makes the file at least `count` pages long, and syncs it.
    fn end(mut self, count: u64) -> Result<(), Failed> {
        self.write()?;
        if self.file.pages().map_err(|source| ("read", source))? < count {
            self.file.set_pages(count).map_err(|source| ("lengthen", source))?;
        }
        self.file.sync().map_err(|source| ("sync", source))
    }
}

/// Repeats work that a crash interrupted: moves the committed pages of the journal to the file.
fn recover(
    file: &dyn Medium,
    journal: &mut Journal,
    Recovered { pages, count }: Recovered,
    keep: u64,
) -> Result<(), PoolError> {
    if journal.len() == 0 {
        return Ok(());
    }
    if let Some(count) = count {
        // A valid journal has no pages beyond the count. A forged one must not write beyond the
        // end.
        let there = pages.into_iter().filter(|(page, _)| page.0 < count);
        let newest: std::collections::BTreeMap<PageId, u32> = there.collect();
        let mut writer = FileWriter::new(file);
        let moved = newest.into_iter().try_for_each(|(page, place)| {
            writer.push(page, |bytes| journal.read_place(place, bytes))
        });
        moved
            .and_then(|()| writer.end(count))
            .map_err(|(what, source)| journal.error(what, source))?;
    }
    journal.reset(keep)
}

/// A pool of pages by number, in memory while they are used, in a file when they are not. See the
/// [front page](crate).
pub struct Pool {
    inner: Arc<Inner>,
    ahead: Ahead,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("path", &self.inner.path).finish_non_exhaustive()
    }
}

impl Pool {
    /// Opens the pool in a file, or creates one. The journal lies beside the file, with `-journal`
    /// added to the name. The two files must stay together. If a crash has interrupted the work,
    /// committed pages in the journal are first moved to the file.
    ///
    /// # Errors
    /// An option is invalid, another pool has the file open, or the file beside it is no journal.
    /// Or a file cannot be opened, read or written.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, PoolError> {
        options.check()?;
        let path = path.as_ref();
        let error = |path: &Path, source| PoolError::Io { what: "open", path: path.into(), source };
        let file = Disk::open(path, options.direct).map_err(|source| error(path, source))?;
        file.lock(path)?;
        let mut journal = path.as_os_str().to_owned();
        journal.push("-journal");
        let journal = PathBuf::from(journal);
        let journal_file =
            Disk::open(&journal, options.direct).map_err(|source| error(&journal, source))?;
        // Syncs the folder, so that the files' names are durable, too.
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        let folder = folder.unwrap_or(Path::new("."));
        let synced = std::fs::File::open(folder).and_then(|folder| folder.sync_all());
        synced.map_err(|source| error(folder, source))?;
        Self::with_media(Box::new(file), Arc::new(journal_file), path, options)
    }

    /// Opens a pool on other media.
    ///
    /// # Errors
    /// As [`Pool::open`].
    pub fn with_media(
        file: Box<dyn Medium>,
        journal_file: Arc<dyn Medium>,
        path: impl Into<PathBuf>,
        options: Options,
    ) -> Result<Self, PoolError> {
        options.check()?;
        let path = path.into();
        let mut name = path.clone().into_os_string();
        name.push("-journal");
        let (mut journal, recovered) = Journal::open(journal_file.clone(), name.into())?;
        let error = |what, source| PoolError::Io { what, path: path.clone(), source };
        let pages = file.pages().map_err(|source| error("read", source))?;
        let pages = pages.max(recovered.count.unwrap_or(0));
        if pages > options.pages_max {
            let wanted = "as many as the pool has, or more";
            return Err(PoolError::Option {
                option: "pages_max",
                given: options.pages_max,
                wanted,
            });
        }
        recover(&*file, &mut journal, recovered, options.journal_pages)?;
        let frames =
            Frames::new(options.frames).map_err(|source| error("find memory for", source))?;
        let policy = Policy::new(options.frames, options.pages_max);
        let inner = Arc::new(Inner {
            frames,
            table: Table::new(options.pages_max),
            gate: RwLock::new(()),
            file,
            path,
            options,
            pages: AtomicU64::new(pages),
            commits_begun: AtomicU64::new(0),
            last_commit: Mutex::new(0),
            low: policy.low(),
            policy: Mutex::new(policy),
            journal: Mutex::new(journal),
            journal_file,
            journaled: Mutex::default(),
            loaded: Mutex::default(),
            dirty: Mutex::default(),
            counts: Counts::default(),
        });
        let ahead = Ahead::new(inner.clone());
        Ok(Self { inner, ahead })
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.inner
    }

    /// Returns the number of pages; they are numbered from 0.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.inner.pages.load(Acquire)
    }

    /// Latches a page for reading. A thread must not latch a page twice. It could wait for a writer
    /// that waits for the first latch.
    ///
    /// # Errors
    /// There is no such page, or it cannot be loaded.
    pub fn shared(&self, page: PageId) -> Result<Shared<'_>, PoolError> {
        Shared::new(&self.inner, page, false)
    }

    /// Latches a page for reading that the program will not use again soon, as in a scan or a
    /// backup. The page does not displace pages in use.
    ///
    /// # Errors
    /// As [`Pool::shared`].
    pub fn shared_once(&self, page: PageId) -> Result<Shared<'_>, PoolError> {
        Shared::new(&self.inner, page, true)
    }

    /// Starts to load pages, and does not wait for them. Returns how many this call has queued.
    /// Pages in memory, pages being loaded, and pages beyond the limit of the queue do not count.
    pub fn prefetch(&self, pages: &[PageId]) -> usize {
        self.ahead.ask(pages)
    }

    /// Begins a change. Waits until a commit under way has written its pages.
    ///
    /// # Panics
    /// This thread is within a change of this pool.
    pub fn change(&self) -> Change<'_> {
        Change::new(self)
    }

    /// Makes all ended changes durable: once this returns, a crash cannot undo them. Waits for
    /// changes under way.
    ///
    /// # Errors
    /// This thread is within a change, or the journal cannot be written. The changes are still in
    /// memory, and the next successful commit makes them durable. After an error of a sync every
    /// later commit fails ([`PoolError::Broken`]).
    pub fn commit(&self) -> Result<(), PoolError> {
        self.inner.commit(false)
    }

    /// Commits, and moves all pages of the journal to the file.
    ///
    /// # Errors
    /// As [`Pool::commit`], and the file cannot be written.
    pub fn checkpoint(&self) -> Result<(), PoolError> {
        self.inner.commit(true)
    }

    /// Returns the counters of the pool.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let counts = &self.inner.counts;
        Stats {
            reads: counts.reads.load(Relaxed),
            reads_ahead: counts.reads_ahead.load(Relaxed),
            evictions: counts.evictions.load(Relaxed),
            journal_writes: counts.journal_writes.load(Relaxed),
            file_writes: counts.file_writes.load(Relaxed),
            free_frames: self.inner.frames.free() as u64,
            pages: self.pages(),
        }
    }
}
