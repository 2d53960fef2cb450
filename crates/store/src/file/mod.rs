//! A file tier: pages of 4096 bytes in an unlinked file.
//!
//! The space map has its own lock, held for a few hundred nanoseconds and never across I/O. Reads
//! and writes of different pages run in parallel. No thread reads a page being written, because the
//! slot table names a page only after the write has ended.

pub(crate) mod open;
pub(crate) mod space;

use crate::crypt::{Key, Seal};
use crate::error::{StoreError, TierName};
use crate::inject::Injector;
use crate::lock;
use crate::remote::PageResult;
use ebb_mm::types::PAGE_SIZE;
use ebb_sys::anon::AnonBuffer;
use open::SwapFile;
use rustix::fs::Advice;
use rustix::io::Errno;
use space::Space;
use std::io;
use std::num::NonZeroU64;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Number of pages by which the file grows at a time: 16 MiB.
const GROWTH_PAGES: u64 = 4096;
/// How often a transfer that makes no progress is tried: first at once, then after a [`PAUSE`]. So
/// no page is lost if a device is busy for seconds. A suspended host counts as one pause.
pub(crate) const TRIES_MAX: u32 = AT_ONCE + 500;
const AT_ONCE: u32 = 16;
const PAUSE: Duration = Duration::from_micros(if cfg!(test) { 1 } else { 10_000 });

/// State of an encrypted file: the seals of the pages, and a buffer for sealed pages to write. The
/// seals stay in memory.
struct Crypt {
    key: Arc<Key>,
    /// Seals by page, in chunks that never move. The writer sets a page's seal before it writes the
    /// page; a table entry names the page only later.
    seals: Mutex<Vec<Box<[Seal; SEALS]>>>,
    sealed: Mutex<AnonBuffer>,
}

/// Number of seals in a chunk: as many as the pages by which a file grows.
const SEALS: usize = GROWTH_PAGES as usize;

impl Crypt {
    fn new(key: Arc<Key>) -> Result<Self, StoreError> {
        let sealed = AnonBuffer::new(space::RUN_MAX * PAGE_SIZE)
            .map_err(|source| StoreError::Setup { what: "a write buffer", source })?;
        Ok(Self { key, seals: Mutex::default(), sealed: Mutex::new(sealed) })
    }

    fn set(&self, page: u32, seal: Seal) {
        let mut seals = lock(&self.seals);
        let (chunk, within) = (page as usize / SEALS, page as usize % SEALS);
        while seals.len() <= chunk {
            seals.push(Box::new([Seal::default(); SEALS]));
        }
        seals[chunk][within] = seal;
    }

    fn get(&self, page: u32) -> Option<Seal> {
        let seals = lock(&self.seals);
        Some(seals.get(page as usize / SEALS)?[page as usize % SEALS])
    }
}

/// One file tier.
pub(crate) struct FileTier {
    pub index: u8,
    pub name: TierName,
    crypt: Option<Crypt>,
    pub fd: Arc<OwnedFd>,
    pub path: PathBuf,
    pub direct: bool,
    pub in_ram: bool,
    pub injector: Arc<Injector>,
    space: Mutex<Space>,
    /// Number of pages for which the file has blocks. Only the one thread that writes changes the
    /// number.
    reserved: AtomicU64,
    /// Whether the last write found no room. If blocks cannot be reserved, that is the only way to
    /// know.
    refused: AtomicBool,
    /// Whether the disk had no room for the file to grow.
    disk_full: AtomicBool,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
}

impl FileTier {
    pub(crate) fn open(
        index: u8,
        name: TierName,
        path: Option<&Path>,
        limit: Option<u64>,
        key: Option<Arc<Key>>,
        injector: Arc<Injector>,
    ) -> Result<Self, StoreError> {
        let pages = limit.map(|bytes| bytes / PAGE_SIZE as u64);
        let SwapFile { file, path, direct, in_ram } = open::open(path)?;
        Ok(Self {
            index,
            name,
            crypt: key.map(Crypt::new).transpose()?,
            fd: Arc::new(file),
            path,
            direct,
            in_ram,
            injector,
            space: Mutex::new(Space::new(pages)),
            reserved: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            disk_full: AtomicBool::new(false),
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
        })
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.crypt.is_some()
    }

    /// Decrypts the pages read, if they are encrypted, and sets the result of each. A page that was
    /// never written has no seal.
    pub(crate) fn unseal(&self, first: u32, pages: &mut [u8], page_results: &mut [PageResult]) {
        let Some(crypt) = &self.crypt else { return };
        let (pages, _) = pages.as_chunks_mut();
        for ((page, content), result) in (first..).zip(pages).zip(page_results) {
            let seal = crypt.get(page);
            let opened =
                seal.is_some_and(|seal| crypt.key.open(self.index, page, &seal, content).is_ok());
            *result = if opened { PageResult::Good } else { PageResult::NotAuthentic };
        }
    }

    /// Returns the number of taken pages and the limit.
    pub(crate) fn fill(&self) -> (u64, u64) {
        let space = lock(&self.space);
        (space.taken(), space.limit())
    }

    /// Returns the largest number of pages taken at a time.
    pub(crate) fn peak(&self) -> u64 {
        lock(&self.space).peak()
    }

    /// Returns whether the file could not grow to its planned size because its disk had no room.
    pub(crate) fn found_disk_full(&self) -> bool {
        self.disk_full.load(Ordering::Relaxed)
    }

    /// Returns whether there is no room, as far as is known. Freeing pages may make room again.
    pub(crate) fn is_full(&self) -> bool {
        // Relaxed, because it is a hint; a write finds out for certain.
        self.refused.load(Ordering::Relaxed) || lock(&self.space).is_full()
    }

    /// Takes up to `wanted` adjacent pages for which the file has blocks.
    pub(crate) fn allocate(&self, wanted: usize) -> Option<(u32, usize)> {
        loop {
            let (first, count) = lock(&self.space).allocate(wanted)?;
            // Relaxed, because only this thread, the writer, reads and changes it.
            let reserved = self.reserved.load(Ordering::Relaxed);
            let end = u64::from(first) + count as u64;
            if end <= reserved {
                return Some((first, count));
            }
            let limit = lock(&self.space).limit();
            let target = end.next_multiple_of(GROWTH_PAGES).min(limit);
            let bytes = PAGE_SIZE as u64;
            let grown = open::reserve(&self.fd, reserved * bytes, target * bytes)
                .map(|()| target)
                .or_else(|_| open::reserve(&self.fd, reserved * bytes, end * bytes).map(|()| end));
            if let Ok(grown) = grown {
                self.reserved.store(grown, Ordering::Relaxed);
                return Some((first, count));
            }
            // The disk is full, so the file does not grow any more.
            let mut space = lock(&self.space);
            space.free(first, count);
            space.stop_growing(reserved);
            self.disk_full.store(true, Ordering::Relaxed);
        }
    }

    /// Frees adjacent pages that one `allocate` gave, or part of them.
    pub(crate) fn free(&self, first: u32, count: usize) {
        lock(&self.space).free(first, count);
        self.refused.store(false, Ordering::Relaxed);
    }

    /// Reads whole pages. With a direct file, `buffer` must be page-aligned.
    pub(crate) fn read(
        &self,
        first: u32,
        buffer: &mut [u8],
        page_results: &mut [PageResult],
    ) -> io::Result<()> {
        self.count_read(buffer.len() / PAGE_SIZE);
        if let Some(delay) = self.injector.delay(true) {
            std::thread::sleep(delay);
        }
        self.injector.read()?;
        let offset = u64::from(first) * PAGE_SIZE as u64;
        transfer(buffer.len(), |done| {
            let end = done + self.injector.shorten(true, buffer.len() - done);
            Ok(rustix::io::pread(&*self.fd, &mut buffer[done..end], offset + done as u64)?)
        })?;
        self.forget_cached(first, buffer.len());
        self.injector.flip(buffer);
        self.unseal(first, buffer, page_results);
        Ok(())
    }

    /// Counts pages read.
    pub(crate) fn count_read(&self, pages: usize) {
        // Relaxed, because it is a statistic.
        self.reads.fetch_add(pages as u64, Ordering::Relaxed);
    }

    /// Writes whole pages. With a direct file, `pages` must be page-aligned. `Ok(false)` means that
    /// there is no room.
    pub(crate) fn write(&self, first: u32, pages: &[u8]) -> io::Result<bool> {
        let written = match &self.crypt {
            None => self.try_write(first, pages),
            Some(crypt) => {
                let mut sealed = lock(&crypt.sealed);
                let sealed = &mut sealed[..pages.len()];
                sealed.copy_from_slice(pages);
                let (all, _) = sealed.as_chunks_mut();
                for (page, content) in (first..).zip(all) {
                    crypt.set(page, crypt.key.seal(self.index, page, content));
                }
                self.try_write(first, sealed)
            }
        };
        match written {
            Ok(()) => Ok(true),
            Err(error) if is_full(&error) => {
                self.disk_full.store(true, Ordering::Relaxed);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// Notes that the last write found no room.
    pub(crate) fn refuse(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    fn try_write(&self, first: u32, pages: &[u8]) -> io::Result<()> {
        self.writes.fetch_add((pages.len() / PAGE_SIZE) as u64, Ordering::Relaxed);
        if let Some(delay) = self.injector.delay(false) {
            std::thread::sleep(delay);
        }
        self.injector.write()?;
        let offset = u64::from(first) * PAGE_SIZE as u64;
        transfer(pages.len(), |done| {
            let end = done + self.injector.shorten(false, pages.len() - done);
            Ok(rustix::io::pwrite(&*self.fd, &pages[done..end], offset + done as u64)?)
        })?;
        self.forget_cached(first, pages.len());
        Ok(())
    }

    /// Keeps the page cache small if transfers cannot bypass it. The kernel starts the write-back
    /// of dirty pages in the range, and drops the clean ones. It also drops pages just before the
    /// range whose write-back has ended.
    pub(crate) fn forget_cached(&self, first: u32, length: usize) {
        const BEHIND: u64 = 4 << 20;
        if !self.direct {
            let end = u64::from(first) * PAGE_SIZE as u64 + length as u64;
            let start = end.saturating_sub(length as u64 + BEHIND);
            let length = NonZeroU64::new(end - start);
            let _ = rustix::fs::fadvise(&*self.fd, start, length, Advice::DontNeed);
        }
    }
}

/// Repeats a transfer until `length` bytes are done. Continues short transfers where they stopped,
/// and retries interrupted or temporarily refused ones.
fn transfer(length: usize, mut step: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    let (mut done, mut tries) = (0, 0);
    while done < length {
        match step(done) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                done += count;
                tries = 0;
            }
            Err(error) if is_passing(&error) && tries < TRIES_MAX => {
                tries += 1;
                pause_before(tries);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Waits before the retry with the number `tries`.
pub(crate) fn pause_before(tries: u32) {
    if tries > AT_ONCE {
        std::thread::sleep(PAUSE);
    }
}

/// Returns whether an error is temporary, so that a retry may succeed. A read through io_uring is
/// cancelled when the thread that started it ends.
pub(crate) fn is_passing(error: &io::Error) -> bool {
    is_any(error, &[Errno::INTR, Errno::AGAIN, Errno::CANCELED])
}

/// Returns whether an error means that there is no room.
fn is_full(error: &io::Error) -> bool {
    is_any(error, &[Errno::NOSPC, Errno::DQUOT])
}

fn is_any(error: &io::Error, errnos: &[Errno]) -> bool {
    errnos.iter().any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::inject::Plan;
    use ebb_sys::anon::AnonBuffer;
    use rustix::fs::OFlags;

    fn tier(plan: &str, limit: Option<u64>) -> FileTier {
        let plan = Plan::parse(plan).expect("plan");
        let injector = Arc::new(Injector::new(Some(&plan)));
        FileTier::open(0, TierName::File(0), None, limit, None, injector).expect("open")
    }

    fn pages(count: usize, seed: u8) -> AnonBuffer {
        let mut buffer = AnonBuffer::new(count * PAGE_SIZE).expect("map");
        for (at, byte) in buffer.iter_mut().enumerate() {
            *byte = (at as u8) ^ (at >> 8) as u8 ^ seed;
        }
        buffer
    }

    #[test]
    fn written_pages_are_read_back_even_in_pieces() {
        for plan in ["", "short-read@n2,short-write@n2"] {
            let tier = tier(plan, None);
            let (first, count) = tier.allocate(64).expect("room");
            assert_eq!(count, 64);
            assert!(tier.write(first, &pages(64, 3)).expect("write"));
            let mut back = AnonBuffer::new(64 * PAGE_SIZE).expect("map");
            tier.read(first, &mut back, &mut []).expect("read");
            assert!(back[..] == pages(64, 3)[..], "plan {plan}");
        }
    }

    #[test]
    fn a_file_behind_the_page_cache_works_too() {
        let mut tier = tier("", None);
        let flags = rustix::fs::fcntl_getfl(&*tier.fd).expect("flags");
        rustix::fs::fcntl_setfl(&*tier.fd, flags - OFlags::DIRECT).expect("flags");
        tier.direct = false;
        for seed in 0..32 {
            let (first, count) = tier.allocate(64).expect("room");
            assert_eq!((first, count), (u32::from(seed) * 64, 64));
            assert!(tier.write(first, &pages(64, seed)).expect("write"));
        }
        let mut back = AnonBuffer::new(64 * PAGE_SIZE).expect("map");
        for seed in 0..32 {
            tier.read(u32::from(seed) * 64, &mut back, &mut []).expect("read");
            assert!(back[..] == pages(64, seed)[..]);
        }
    }

    #[test]
    fn no_room_is_no_failure() {
        let tier = tier("full@once1", None);
        let (first, _) = tier.allocate(1).expect("room");
        assert!(!tier.write(first, &pages(1, 0)).expect("no error"));
        tier.refuse();
        assert!(tier.is_full());
        tier.free(first, 1);
        assert!(!tier.is_full(), "what is freed may make room");
    }

    #[test]
    fn a_transfer_that_is_interrupted_goes_on_and_an_error_ends_it() {
        let mut script = vec![
            Ok(100),
            Err(Errno::INTR.into()),
            Err(Errno::AGAIN.into()),
            Ok(150),
            Err(io::Error::from(Errno::IO)),
        ];
        script.reverse();
        let mut seen = Vec::new();
        let error = transfer(300, |done| {
            seen.push(done);
            script.pop().expect("no call after the error")
        })
        .expect_err("the error comes through");
        assert_eq!(error.raw_os_error(), Some(Errno::IO.raw_os_error()));
        assert_eq!(seen, [0, 100, 100, 100, 250]);
        let end = transfer(10, |_| Ok(0)).expect_err("nothing is there");
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        let stuck = transfer(10, |_| Err(Errno::AGAIN.into())).expect_err("gives up");
        assert!(is_passing(&stuck));
    }

    /// Shows that a device that is busy for more than sixteen immediate tries loses no page.
    #[test]
    fn a_device_that_is_busy_for_long_loses_nothing() {
        let mut answers = 0;
        let end = transfer(10, |_| {
            answers += 1;
            if answers > 300 { Ok(10) } else { Err(Errno::AGAIN.into()) }
        });
        end.expect("it is read at last");
    }

    #[test]
    fn a_full_disk_ends_growth_and_nothing_else() {
        // /dev/full cannot be grown (fallocate fails), like a disk without free blocks.
        let mut tier = tier("", None);
        assert!(tier.allocate(64).is_some());
        let reserved = tier.reserved.load(Ordering::Relaxed);
        let full = std::fs::File::options().write(true).open("/dev/full").expect("open");
        tier.fd = Arc::new(full.into());
        let mut pages = 64;
        while let Some((_, count)) = tier.allocate(64) {
            pages += count as u64;
        }
        assert_eq!(pages, reserved);
        assert!(tier.is_full());
        tier.free(0, 1);
        assert_eq!(tier.allocate(1), Some((0, 1)));
    }
}
