//! Page traces: what a record is, the formats they come in, and how they are held while replayed.
//!
//! A file is read as a stream ([`Reader`]), its pages are numbered densely in order of appearance
//! (`dense`), and the numbered accesses are kept in a [`Spool`], which moves to an unlinked
//! temporary file when it outgrows a few megabytes. Memory therefore grows with the pages of a
//! trace and not with its length.

mod bpftrace;
mod compact;
mod csv;
mod damon;
mod dense;
mod faults;
mod input;
mod oracle;
mod perf;
mod reader;
mod sample;
mod spool;
pub mod synth;
mod text;
mod thin;

pub use compact::CompactWriter;
pub use dense::Numbering;
pub use reader::{Format, Lack, Reader, TraceError};
pub use sample::{Sampler, Samples, load_samples};
pub use spool::{ACCESSES_MAX, CHUNK, Cursor, Future, Spool, load};
pub use thin::Thinner;

/// What an access does to its page.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Op {
    /// A load.
    #[default]
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Exec,
}

/// What kind of page an access touches, and how.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Kind {
    /// An anonymous page, through a page table.
    #[default]
    Anon,
    /// A file page, through a page table.
    Mapped,
    /// A file page, through a system call; or a block of a block trace.
    Buffered,
    /// An object of a key-value trace.
    Object,
}

/// One access, as the file has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// Virtual time since the record before.
    pub dt: u64,
    /// The page, in the file's own numbering.
    pub page: u64,
    /// What was done.
    pub op: Op,
    /// To what.
    pub kind: Kind,
}

/// One access to a densely numbered page, in 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access(u32);

const PAGE_BITS: u32 = 28;

impl Access {
    /// Pages that can be told apart.
    pub const PAGES_MAX: u32 = 1 << PAGE_BITS;

    /// An access to page number `page`, below [`Self::PAGES_MAX`].
    #[must_use]
    #[inline]
    pub fn new(page: u32, op: Op, kind: Kind) -> Self {
        assert!(page < Self::PAGES_MAX, "page number {page} does not fit");
        Self(page | (op as u32) << PAGE_BITS | (kind as u32) << (PAGE_BITS + 2))
    }

    /// The page's number.
    #[must_use]
    #[inline]
    pub fn page(self) -> u32 {
        self.0 & (Self::PAGES_MAX - 1)
    }

    /// What was done.
    #[must_use]
    #[inline]
    pub fn op(self) -> Op {
        match self.0 >> PAGE_BITS & 3 {
            0 => Op::Read,
            1 => Op::Write,
            _ => Op::Exec,
        }
    }

    /// To what kind of page.
    #[must_use]
    #[inline]
    pub fn kind(self) -> Kind {
        match self.0 >> (PAGE_BITS + 2) {
            0 => Kind::Anon,
            1 => Kind::Mapped,
            2 => Kind::Buffered,
            _ => Kind::Object,
        }
    }
}

#[cfg(test)]
mod tests;
