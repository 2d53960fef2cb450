//! Stores a numbered trace during a replay, in memory while small, otherwise in an unlinked
//! temporary file. Computes the next access of every access, for Belady's optimum.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Access, Kind, Lack, Numbering, Reader, Record, TraceError};
use crate::policy::{Footprint, NEVER};

/// Number of accesses read at a time.
pub const CHUNK: usize = 64 * 1024;
/// Number of accesses above which the spool uses a file: 4 MiB.
const RESIDENT_MAX: usize = 1 << 20;
/// Largest number of accesses for which the next accesses can be computed.
pub const ACCESSES_MAX: u64 = NEVER as u64 - 1;

/// An array of words, in memory or in an unlinked file.
#[derive(Debug)]
enum Words {
    Memory(Vec<u32>),
    File(File),
}

impl Words {
    /// Writes words at an index. In memory they must be the next words or replace others.
    fn write(&mut self, index: u64, words: &[u32]) -> io::Result<()> {
        match self {
            Self::Memory(held) => {
                let start = index as usize;
                let end = start + words.len();
                if held.len() < end {
                    held.resize(end, 0);
                }
                held[start..end].copy_from_slice(words);
                Ok(())
            }
            Self::File(file) => {
                let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                file.write_all_at(&bytes, index * 4)
            }
        }
    }

    /// Reads `count` words from an index into `words`, through `bytes`.
    fn read(
        &self,
        index: u64,
        count: usize,
        words: &mut Vec<u32>,
        bytes: &mut Vec<u8>,
    ) -> io::Result<()> {
        words.clear();
        match self {
            Self::Memory(held) => {
                words.extend_from_slice(&held[index as usize..index as usize + count]);
            }
            Self::File(file) => {
                bytes.resize(count * 4, 0);
                file.read_exact_at(bytes, index * 4)?;
                words.extend(bytes.as_chunks::<4>().0.iter().map(|&word| u32::from_le_bytes(word)));
            }
        }
        Ok(())
    }
}

/// Creates a file without a name; the system frees its blocks when it is closed.
fn unlinked_file() -> io::Result<File> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    // Relaxed: the number only has to be unused in this process.
    let number = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = std::env::temp_dir().join(format!("{}-{number}.ebb-tmp", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(&path)?;
    Ok(file)
}

/// A numbered trace.
#[derive(Debug)]
pub struct Spool {
    words: Words,
    len: u64,
    kinds: Vec<Kind>,
    names: Vec<u64>,
    lacks: Option<Lack>,
}

/// Next access of each access of a [`Spool`].
#[derive(Debug)]
pub struct Future {
    words: Words,
}

impl Spool {
    /// Creates an empty trace.
    #[must_use]
    pub fn new() -> Self {
        Self {
            words: Words::Memory(Vec::new()),
            len: 0,
            kinds: Vec::new(),
            names: Vec::new(),
            lacks: None,
        }
    }

    /// Appends accesses. Their pages are numbered in order of appearance.
    pub fn push(&mut self, accesses: &[Access]) -> io::Result<()> {
        if let Words::Memory(held) = &mut self.words
            && held.len() + accesses.len() > RESIDENT_MAX
        {
            let held = std::mem::take(held);
            self.words = Words::File(unlinked_file()?);
            self.words.write(0, &held)?;
        }
        let words: Vec<u32> = accesses.iter().map(|access| access.0).collect();
        self.words.write(self.len, &words)?;
        self.len += accesses.len() as u64;
        for access in accesses {
            let page = access.page() as usize;
            debug_assert!(page <= self.kinds.len(), "pages are numbered in order of appearance");
            if page == self.kinds.len() {
                self.kinds.push(access.kind());
            }
        }
        Ok(())
    }

    /// Returns the number of accesses.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Returns whether there are no accesses.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the information that the trace lacks.
    #[must_use]
    pub fn lacks(&self) -> Option<Lack> {
        self.lacks
    }

    /// Returns the number of distinct pages; the page numbers are `0..pages`.
    #[must_use]
    pub fn pages(&self) -> u32 {
        self.kinds.len() as u32
    }

    /// Returns the pages, for a policy.
    #[must_use]
    pub fn footprint(&self) -> Footprint<'_> {
        Footprint { pages: self.pages(), kinds: &self.kinds, names: &self.names }
    }

    /// Returns the pages' names in the trace file, by number. Empty for a synthetic trace, whose
    /// numbers are the names.
    #[must_use]
    pub fn names(&self) -> &[u64] {
        &self.names
    }

    /// Starts reading from the first access.
    #[must_use]
    pub fn cursor(&self) -> Cursor<'_> {
        Cursor { spool: self, at: 0, words: Vec::new(), bytes: Vec::new(), chunk: Vec::new() }
    }

    /// Computes the next access of every access, from the last backwards.
    pub fn future(&self) -> io::Result<Future> {
        assert!(self.len <= ACCESSES_MAX, "access numbers must fit in 32 bits");
        let mut words = if self.len as usize <= RESIDENT_MAX {
            Words::Memory(vec![0; self.len as usize])
        } else {
            Words::File(unlinked_file()?)
        };
        let mut next_of_page = vec![NEVER; self.kinds.len()];
        let mut cursor = self.cursor();
        let mut next = Vec::with_capacity(CHUNK);
        for number in (0..self.len.div_ceil(CHUNK as u64)).rev() {
            let start = number * CHUNK as u64;
            let chunk = cursor.at(start)?;
            next.clear();
            next.resize(chunk.len(), NEVER);
            for (i, access) in chunk.iter().enumerate().rev() {
                let number = (start + i as u64) as u32;
                next[i] = std::mem::replace(&mut next_of_page[access.page() as usize], number);
            }
            words.write(start, &next)?;
        }
        Ok(Future { words })
    }
}

impl Default for Spool {
    fn default() -> Self {
        Self::new()
    }
}

/// Reader of a [`Spool`], chunk by chunk.
#[derive(Debug)]
pub struct Cursor<'a> {
    spool: &'a Spool,
    at: u64,
    words: Vec<u32>,
    bytes: Vec<u8>,
    chunk: Vec<Access>,
}

impl Cursor<'_> {
    /// Returns the next chunk; empty at the end.
    pub fn next_chunk(&mut self) -> io::Result<&[Access]> {
        let start = self.at;
        self.at = (start + CHUNK as u64).min(self.spool.len);
        self.at(start)
    }

    /// Returns the chunk that starts with access number `start`.
    pub fn at(&mut self, start: u64) -> io::Result<&[Access]> {
        let count = (self.spool.len - start).min(CHUNK as u64) as usize;
        self.spool.words.read(start, count, &mut self.words, &mut self.bytes)?;
        self.chunk.clear();
        self.chunk.extend(self.words.iter().map(|&word| Access(word)));
        Ok(&self.chunk)
    }
}

impl Future {
    /// Reads the next accesses of `count` accesses, beginning with number `start`.
    pub fn read(&self, start: u64, count: usize, next: &mut Vec<u32>) -> io::Result<()> {
        let mut bytes = Vec::new();
        self.words.read(start, count, next, &mut bytes)
    }
}

/// Reads a whole trace, or its first `limit` accesses, and keeps the pages that `keep` accepts.
pub fn load(
    path: &Path,
    reader: &mut Reader,
    limit: u64,
    keep: impl Fn(u64) -> bool,
) -> Result<(Spool, u64), TraceError> {
    let spool_error = |error| TraceError::Spool { dir: std::env::temp_dir(), error };
    let mut spool = Spool::new();
    let mut numbering = Numbering::default();
    let mut records: Vec<Record> = Vec::new();
    let mut accesses = Vec::new();
    let mut seen = 0;
    while seen < limit && reader.read(&mut records)? {
        let room = (limit - seen).min(records.len() as u64) as usize;
        seen += room as u64;
        accesses.clear();
        for record in records[..room].iter().filter(|record| keep(record.page)) {
            let number = numbering.number(record.page);
            if number >= Access::PAGES_MAX {
                let limit = u64::from(Access::PAGES_MAX);
                return Err(TraceError::TooLarge { path: path.to_owned(), limit, what: "pages" });
            }
            accesses.push(Access::new(number, record.op, record.kind));
        }
        spool.push(&accesses).map_err(spool_error)?;
    }
    if seen == 0 {
        return Err(TraceError::Empty { path: path.to_owned() });
    }
    spool.names = numbering.into_pages();
    spool.lacks = reader.lacks();
    Ok((spool, seen))
}
