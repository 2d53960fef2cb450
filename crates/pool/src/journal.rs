//! The journal: changed pages are written to it before they are written to the file.
//!
//! ```text
//! page 0, 1   headers: magic, generation, salt, hash. The valid one with the greater generation
//!             counts.
//! page 2 ..   batches, one after the other:
//!               one page      magic, salt, sequence, number of pages, whether it commits, number
//!                             of pages of the pool, own hash; number and hash of each page
//!               the pages
//! ```
//! Numbers are little-endian; hashes are XXH3 with the salt as seed.
//!
//! Invariants:
//! * JOURNAL-1: a batch counts if it has the header's salt and the next sequence number, and every
//!   hash in it is right. The first batch that fails this ends the journal.
//! * JOURNAL-2: after a crash the pool has all batches up to the last one that commits. It has
//!   nothing of the later batches.
//! * JOURNAL-3: a generation begins only after all pages of the generation before are in the file,
//!   and the file is synced. The new header overwrites the older of the two, so a crash leaves one
//!   valid header.
//! * JOURNAL-4: once a sync has failed, nothing is written any more. The system may have dropped
//!   the data that it did not write.

use crate::error::{PageId, PoolError};
use crate::frames::Bytes;
use crate::medium::Medium;
use ebb_mm::PAGE_SIZE;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use twox_hash::XxHash3_64;

const HEADER_MAGIC: &[u8; 8] = b"EBBPOOLJ";
const BATCH_MAGIC: &[u8; 8] = b"EBBBATCH";
/// Number of the first page of batches.
const START: u32 = 2;
const COMMITS: u32 = 1;
/// Offsets in a batch's first page.
const BATCH_HASH: usize = 40;
const ENTRIES: usize = 48;
/// Largest number of pages in a batch.
pub const BATCH_MAX: usize = (PAGE_SIZE - ENTRIES) / 16;

/// A page with an alignment for direct I/O.
#[repr(align(4096))]
pub struct Aligned(pub Bytes);

impl Aligned {
    /// Creates a page of zeros.
    pub fn new() -> Box<Self> {
        Box::new(Self([0; PAGE_SIZE]))
    }

    fn put(&mut self, at: usize, value: u64) {
        self.0[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }

    fn get(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("eight bytes"))
    }
}

fn hash(salt: u64, bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(salt, bytes)
}

/// The first page of a batch.
struct Batch {
    pages: Vec<(PageId, u64)>,
    commits: Option<u64>,
}

impl Batch {
    /// Parses and checks the first page of a batch: JOURNAL-1 without the pages.
    fn parse(page: &mut Aligned, salt: u64, sequence: u64) -> Option<Self> {
        let told = page.get(BATCH_HASH);
        page.put(BATCH_HASH, 0);
        let right = page.0[..8] == BATCH_MAGIC[..] && hash(salt, &page.0) == told;
        if !right || page.get(8) != salt || page.get(16) != sequence {
            return None;
        }
        let (count, flags) = ((page.get(24) & 0xffff_ffff) as usize, (page.get(24) >> 32) as u32);
        let entry = |n| (PageId(page.get(ENTRIES + 16 * n)), page.get(ENTRIES + 16 * n + 8));
        (count <= BATCH_MAX).then(|| Self {
            pages: (0..count).map(entry).collect(),
            commits: (flags & COMMITS != 0).then(|| page.get(32)),
        })
    }
}

/// The contents of a journal when it was opened.
#[derive(Default, Debug)]
pub struct Recovered {
    /// Position of each committed page in the journal. The last position of a page counts.
    pub pages: Vec<(PageId, u32)>,
    /// Number of pages of the pool after the last commit.
    pub count: Option<u64>,
}

/// The journal. See the head of the file.
pub struct Journal {
    medium: Arc<dyn Medium>,
    path: PathBuf,
    generation: u64,
    salt: u64,
    sequence: u64,
    next: u32,
    /// Whether there are batches without a commit.
    pending: bool,
    broken: bool,
    head: Box<Aligned>,
}

impl Journal {
    /// Opens a journal, and reads its contents. An empty medium becomes a journal.
    pub fn open(medium: Arc<dyn Medium>, path: PathBuf) -> Result<(Self, Recovered), PoolError> {
        let mut journal = Self {
            medium,
            path,
            generation: 0,
            salt: 0,
            sequence: 0,
            next: START,
            pending: false,
            broken: false,
            head: Aligned::new(),
        };
        let mut strange = false;
        for slot in 0..2 {
            journal.read(slot)?;
            let page = &journal.head;
            let (generation, salt) = (page.get(8), page.get(16));
            let right =
                page.0[..8] == HEADER_MAGIC[..] && page.get(24) == hash(salt, &page.0[..24]);
            if right && generation > journal.generation {
                (journal.generation, journal.salt) = (generation, salt);
            }
            strange |= !right && page.0.iter().any(|&byte| byte != 0);
        }
        if journal.generation == 0 {
            if strange {
                return Err(PoolError::NotAJournal { path: journal.path });
            }
            journal.reset(0)?;
            return Ok((journal, Recovered::default()));
        }
        let recovered = journal.recover()?;
        Ok((journal, recovered))
    }

    /// Creates an error of the journal's medium.
    pub fn error(&self, what: &'static str, source: io::Error) -> PoolError {
        PoolError::Io { what, path: self.path.clone(), source }
    }

    fn read(&mut self, page: u32) -> Result<(), PoolError> {
        let done = self.medium.read(page.into(), &mut self.head.0);
        done.map_err(|source| self.error("read", source))
    }

    /// Reads every batch that counts (JOURNAL-1), and sets the position after the last.
    fn recover(&mut self) -> Result<Recovered, PoolError> {
        let end = self.medium.pages().map_err(|source| self.error("read", source))?;
        let (mut recovered, mut open) = (Recovered::default(), Vec::new());
        'batches: while u64::from(self.next) < end {
            self.read(self.next)?;
            let Some(batch) = Batch::parse(&mut self.head, self.salt, self.sequence) else { break };
            let first = self.next + 1;
            for (&(page, told), place) in batch.pages.iter().zip(first..) {
                self.read(place)?;
                if hash(self.salt, &self.head.0) != told {
                    break 'batches;
                }
                open.push((page, place));
            }
            self.next = first + batch.pages.len() as u32;
            self.sequence += 1;
            if let Some(count) = batch.commits {
                // JOURNAL-2
                recovered.pages.append(&mut open);
                recovered.count = Some(count);
            }
        }
        Ok(recovered)
    }

    /// Reads the page at a position in the journal.
    pub fn read_place(&self, place: u32, into: &mut Bytes) -> io::Result<()> {
        self.medium.read(place.into(), into)
    }

    /// Writes at most [`BATCH_MAX`] pages. Returns the position of the first; the others follow.
    /// `commits` makes the batch a commit, of a pool of that many pages. A sync then makes it and
    /// all batches before it durable.
    pub fn append(
        &mut self,
        pages: &[(PageId, &Bytes)],
        commits: Option<u64>,
    ) -> Result<u32, PoolError> {
        assert!(pages.len() <= BATCH_MAX, "a batch of {} pages", pages.len());
        self.check()?;
        let first = self.next + 1;
        let Some(next) = first.checked_add(pages.len() as u32) else {
            return Err(self.error("write", io::ErrorKind::FileTooLarge.into()));
        };
        let head = &mut *self.head;
        head.0.fill(0);
        head.0[..8].copy_from_slice(BATCH_MAGIC);
        head.put(8, self.salt);
        head.put(16, self.sequence);
        let flags = if commits.is_some() { COMMITS } else { 0 };
        head.put(24, pages.len() as u64 | u64::from(flags) << 32);
        head.put(32, commits.unwrap_or(0));
        for (n, &(page, bytes)) in pages.iter().enumerate() {
            head.put(ENTRIES + 16 * n, page.0);
            head.put(ENTRIES + 16 * n + 8, hash(self.salt, bytes));
        }
        head.put(BATCH_HASH, hash(self.salt, &head.0));
        let all: Vec<&Bytes> =
            std::iter::once(&self.head.0).chain(pages.iter().map(|page| page.1)).collect();
        // A batch that failed is overwritten by the next one.
        let done = self.medium.write(self.next.into(), &all);
        done.map_err(|source| self.error("write", source))?;
        self.next = next;
        self.sequence += 1;
        self.pending = commits.is_none();
        Ok(first)
    }

    /// Returns whether there are batches without a commit.
    pub fn is_pending(&self) -> bool {
        self.pending
    }

    /// Returns the number of pages written since the journal was empty.
    pub fn len(&self) -> u64 {
        u64::from(self.next - START)
    }

    /// Returns an error if a sync has failed before (JOURNAL-4).
    pub fn check(&self) -> Result<(), PoolError> {
        if self.broken {
            return Err(PoolError::Broken { path: self.path.clone() });
        }
        Ok(())
    }

    /// Records that a sync of the journal or of the file failed. Nothing is written from now on
    /// (JOURNAL-4).
    pub fn break_off(&mut self) {
        self.broken = true;
    }

    /// Begins a new generation, after everything is in the file and synced (JOURNAL-3). Keeps room
    /// for `keep` pages.
    pub fn reset(&mut self, keep: u64) -> Result<(), PoolError> {
        self.check()?;
        let mut salt = [0; 8];
        rustix::rand::getrandom(&mut salt, rustix::rand::GetRandomFlags::empty())
            .map_err(|error| self.error("find random numbers for", error.into()))?;
        let (generation, salt) = (self.generation + 1, u64::from_le_bytes(salt));
        let head = &mut *self.head;
        head.0.fill(0);
        head.0[..8].copy_from_slice(HEADER_MAGIC);
        head.put(8, generation);
        head.put(16, salt);
        head.put(24, hash(salt, &head.0[..24]));
        let done =
            self.medium.write(generation % 2, &[&self.head.0]).and_then(|()| self.medium.sync());
        done.map_err(|source| {
            // The new header may be on the disk, and then the generation before does not count any
            // more.
            self.broken = true;
            self.error("begin", source)
        })?;
        (self.generation, self.salt, self.sequence, self.next) = (generation, salt, 0, START);
        self.pending = false;
        let keep = keep + u64::from(START);
        if self.medium.pages().is_ok_and(|pages| pages > keep) {
            // A failure to shrink the medium only costs room, so it is no error.
            let _ = self.medium.set_pages(keep);
        }
        Ok(())
    }
}
