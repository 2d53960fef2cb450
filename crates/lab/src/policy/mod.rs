//! Replacement policies over dense page numbers, one file each, and the table of their names.
//!
//! A policy sees one page at a time and answers whether the page was resident. Its state is index
//! arrays over `0..pages`. After warm-up an access neither hashes nor allocates.

mod arc;
mod belady;
mod car;
mod chain;
mod clock;
mod clock_pro;
mod dclock;
mod engine;
mod fifo;
mod lecar;
mod lirs;
mod lru;
mod registry;
mod s3_fifo;
mod sieve;
mod sketch;
#[cfg(test)]
mod tests;
mod two_q;
mod w_tiny_lfu;

pub use belady::NEVER;
pub use engine::{EngineSettings, Layout, Nature};
pub use registry::{POLICIES, PolicyError, PolicyInfo, Settings, parse_list};

use crate::trace::{Access, Kind};

/// Pages that a policy will see.
#[derive(Clone, Copy, Debug)]
pub struct Footprint<'a> {
    /// Number of pages; the page numbers are `0..pages`.
    pub pages: u32,
    /// Kind of each page at its first access; anonymous if empty.
    pub kinds: &'a [Kind],
    /// Names of the pages in the trace; empty if the numbers are the names.
    pub names: &'a [u64],
}

/// Work of a policy apart from hits and misses.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    /// Number of pages scanned in search of a victim.
    pub scanned: u64,
    /// Number of pages scanned and kept: second chances, promotions, admissions.
    pub protected: u64,
}

/// Replacement policy that needs to know only the past.
pub trait Policy {
    /// Accesses `page` and makes it resident. Returns true if the page was resident before.
    fn touch(&mut self, page: u32) -> bool;
    /// Returns whether `page` is in memory.
    fn is_resident(&self, page: u32) -> bool;
    /// Returns the work of eviction up to now.
    fn tally(&self) -> Tally;
    /// Returns the number of bytes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// A policy during a replay. It takes the trace in chunks, so there is one dynamic call for each
/// chunk and not for each access.
pub trait Replay: Send {
    /// Replays a chunk and returns the number of misses. `next[i]` is the number of the next access
    /// to the page of `chunk[i]`, or [`NEVER`]. `next` is empty unless [`PolicyInfo::needs_future`]
    /// is set.
    fn feed(&mut self, chunk: &[Access], next: &[u32]) -> u64;
    /// Returns whether page number `page` is in memory; `None` if the policy does not tell.
    fn is_resident(&self, page: u32) -> Option<bool>;
    /// Returns the work of eviction up to now.
    fn tally(&self) -> Tally;
    /// Returns the number of bytes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// Replay of a [`Policy`].
struct Online<P>(P);

impl<P: Policy + Send> Replay for Online<P> {
    fn feed(&mut self, chunk: &[Access], _next: &[u32]) -> u64 {
        let hits: u64 = chunk.iter().map(|access| u64::from(self.0.touch(access.page()))).sum();
        chunk.len() as u64 - hits
    }

    fn is_resident(&self, page: u32) -> Option<bool> {
        Some(self.0.is_resident(page))
    }

    fn tally(&self) -> Tally {
        self.0.tally()
    }

    fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}

/// Replay of [`belady::Belady`].
struct Offline(belady::Belady);

impl Replay for Offline {
    fn feed(&mut self, chunk: &[Access], next: &[u32]) -> u64 {
        assert_eq!(chunk.len(), next.len(), "the optimum needs the future");
        let pairs = chunk.iter().zip(next);
        let hits: u64 =
            pairs.map(|(access, &next)| u64::from(self.0.touch(access.page(), next))).sum();
        chunk.len() as u64 - hits
    }

    fn is_resident(&self, page: u32) -> Option<bool> {
        Some(self.0.is_resident(page))
    }

    fn tally(&self) -> Tally {
        self.0.tally()
    }

    fn heap_bytes(&self) -> usize {
        self.0.heap_bytes()
    }
}
