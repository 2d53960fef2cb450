//! Page traces: records, file formats, and storage during a replay.
//!
//! [`Reader`] reads a file as a stream. `dense` numbers the pages densely in order of appearance. A
//! [`Spool`] stores the numbered accesses, and moves to an unlinked temporary file beyond a few
//! megabytes. So memory grows with the pages of a trace and not with its length.

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

/// Operation of an access on its page.
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

/// Kind of page that an access uses, and the way of access.
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

/// One access, as in the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Record {
    /// Virtual time since the previous record.
    pub dt: u64,
    /// Page number in the file's own numbering.
    pub page: u64,
    /// Operation of the access.
    pub op: Op,
    /// Kind of the page.
    pub kind: Kind,
}

/// One access to a densely numbered page, in 32 bits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Access(u32);

const PAGE_BITS: u32 = 28;

impl Access {
    /// Number of pages that an access can distinguish.
    pub const PAGES_MAX: u32 = 1 << PAGE_BITS;

    /// Creates an access to page number `page`, below [`Self::PAGES_MAX`].
    #[must_use]
    #[inline]
    pub fn new(page: u32, op: Op, kind: Kind) -> Self {
        assert!(page < Self::PAGES_MAX, "page number {page} does not fit");
        Self(page | (op as u32) << PAGE_BITS | (kind as u32) << (PAGE_BITS + 2))
    }

    /// Returns the number of the page.
    #[must_use]
    #[inline]
    pub fn page(self) -> u32 {
        self.0 & (Self::PAGES_MAX - 1)
    }

    /// Returns the operation.
    #[must_use]
    #[inline]
    pub fn op(self) -> Op {
        match self.0 >> PAGE_BITS & 3 {
            0 => Op::Read,
            1 => Op::Write,
            _ => Op::Exec,
        }
    }

    /// Returns the kind of the page.
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
