//! Replacement policies over dense page numbers, one file each, and the table of their names.
//!
//! A policy sees one page at a time and answers whether it was resident. Its state is index arrays
//! over `0..pages`; nothing is hashed and nothing is allocated per access once it is warm.

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

/// The pages that a policy will see.
#[derive(Clone, Copy, Debug)]
pub struct Footprint<'a> {
    /// How many: the page numbers are `0..pages`.
    pub pages: u32,
    /// What kind of page each is at its first access; anonymous, where nothing is said.
    pub kinds: &'a [Kind],
    /// The pages as the trace names them; empty, where the numbers are the names.
    pub names: &'a [u64],
}

/// What a policy did apart from hits and misses.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Tally {
    /// Pages looked at in search of a victim.
    pub scanned: u64,
    /// Pages looked at and kept: second chances, promotions, admissions.
    pub protected: u64,
}

/// A replacement policy that needs to know only the past.
pub trait Policy {
    /// Touches `page` and makes it resident. True if it was resident before.
    fn touch(&mut self, page: u32) -> bool;
    /// Whether `page` is in memory.
    fn is_resident(&self, page: u32) -> bool;
    /// What eviction did so far.
    fn tally(&self) -> Tally;
    /// Bytes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// A policy being fed a trace in chunks, so that dispatch costs nothing per access.
pub trait Replay: Send {
    /// Replays a chunk. `next[i]` is the number of the next access to the page of `chunk[i]`, or
    /// [`NEVER`]; it is empty unless [`PolicyInfo::needs_future`] is set. Returns the misses.
    fn feed(&mut self, chunk: &[Access], next: &[u32]) -> u64;
    /// Whether page number `page` is in memory; `None` if the policy does not tell.
    fn is_resident(&self, page: u32) -> Option<bool>;
    /// What eviction did so far.
    fn tally(&self) -> Tally;
    /// Bytes on the heap.
    fn heap_bytes(&self) -> usize;
}

/// Feeds a [`Policy`].
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

/// Feeds [`belady::Belady`].
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
