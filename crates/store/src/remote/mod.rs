//! A remote tier: pages in a Redis or Valkey server or cluster.
//!
//! A page has a number, as in a file. 64 consecutive pages share a slot of the cluster. So a batch
//! goes to one node in one MSET, and pages read together come in one MGET. The key of a page is
//! `ebb:RUN:{GROUP}:PAGE`. RUN is 16 random digits, so that runs do not collide, and `ebb:RUN:run`
//! identifies the run. Keys do not expire. A key is removed when its page is freed, and all keys
//! when the tier is closed.
//!
//! Invariants:
//! * REMOTE-1: a number is free for another page only after the removal of its key was
//!   acknowledged. A freed page whose key is not removed yet counts as taken.
//! * REMOTE-2: a number whose key was written or removed by a request of unknown outcome (`client`,
//!   CLIENT-1) is never used again. That request could still be carried out, and overwrite a later
//!   write.
//! * REMOTE-3: a write has ended when the server has acknowledged it. In a cluster a replica must
//!   have it, too, if there is one.
//!
//! Threads: `Readers` (four), the sweeper that removes keys, and any writing thread. Lock order:
//! `writer`, then leaves.

mod client;
mod connection;
pub(crate) mod open;
pub(crate) mod readers;
mod server;
mod sweep;
pub(crate) mod tls;
pub(crate) mod url;

use crate::crypt::{Key, Seal};
use crate::error::{A_THREAD, StoreError, TierName};
use crate::file::space::{RUN_MAX, Space};
use crate::inject::Injector;
use crate::page::Page;
use crate::{Notice, lock};
use client::{Answer, Client, Outcome, Request, word, words};
use ebb_mm::types::PAGE_SIZE;
use server::{Server, slot_of};
use std::collections::HashSet;
use std::io::{self, Write as _};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use sweep::Sweeper;
use url::RedisSpec;

/// Bytes of a sealed page beside its content: the number of its seal before it, the tag after it.
const SEAL_BYTES: usize = 24;
/// Largest size of a page as a server sends it: the length of the value, the seal and the page.
const VALUE_MAX: usize = PAGE_SIZE + SEAL_BYTES + 32;
/// Time limit for the removal of all keys at the end of a run, as a multiple of the setting
/// `answer`. So a server that does not answer does not delay the end for long.
const CLOSING_ANSWERS: u32 = 3;

/// Result of reading one page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum PageResult {
    /// The page was read.
    #[default]
    Good,
    /// There is nothing under the page's key.
    Missing,
    /// The value was not sealed by this run for this location.
    NotAuthentic,
}

impl PageResult {
    /// Returns the error, unless the page was read.
    pub(crate) fn error(self) -> Option<io::Error> {
        match self {
            Self::Good => None,
            Self::Missing => Some(io::Error::new(
                io::ErrorKind::NotFound,
                "its key is gone: the server was restarted or flushed, or somebody removed it",
            )),
            Self::NotAuthentic => Some(io::Error::new(
                io::ErrorKind::InvalidData,
                "this run did not store the data there (authentication failed)",
            )),
        }
    }
}

/// State shared by the threads of the tier.
pub(crate) struct Remote {
    pub index: u8,
    server: Arc<Server>,
    /// Start of the run's keys: `ebb:RUN:`
    prefix: String,
    key: Option<Arc<Key>>,
    space: Mutex<Space>,
    /// REMOTE-2: numbers not to be used again, and how many of them are not in use.
    unsure: Mutex<HashSet<u32>>,
    retired: AtomicU64,
    /// Whether the last write found no room.
    refused: AtomicBool,
    full: AtomicBool,
    injector: Arc<Injector>,
    pub reads: AtomicU64,
    pub writes: AtomicU64,
    read_jobs: AtomicU64,
    read_ns: AtomicU64,
    read_ns_max: AtomicU64,
}

/// Durations of the reads of a tier.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReadTimes {
    /// Average time of a transfer from request to completion, in nanoseconds. A transfer may have
    /// several pages.
    pub mean_ns: u64,
    /// Longest time, in nanoseconds.
    pub max_ns: u64,
}

/// One remote tier.
pub(crate) struct RemoteTier {
    pub shared: Arc<Remote>,
    writer: Mutex<Writer>,
    sweeper: Sweeper,
}

struct Writer {
    client: Client,
    packed: Vec<u8>,
}

impl Remote {
    pub(crate) fn name(&self) -> TierName {
        self.server.name
    }

    /// Returns the hash slot of a page's key.
    fn slot(&self, page: u32) -> u16 {
        slot_of(&self.page_key(page))
    }

    fn page_key(&self, page: u32) -> Vec<u8> {
        let mut name = Vec::with_capacity(48);
        let (group, within) = (page as usize / RUN_MAX, page as usize % RUN_MAX);
        let _ = write!(name, "{}{{{group:x}}}:{within:x}", self.prefix);
        name
    }

    /// Turns the value found under a page's key into the page.
    fn unpack(&self, page: u32, value: Option<&[u8]>, into: &mut Page) -> PageResult {
        let Some(value) = value else { return PageResult::Missing };
        let Some(key) = &self.key else {
            // A value of another length is not the page, and the hash check finds that out.
            let length = value.len().min(PAGE_SIZE);
            into[..length].copy_from_slice(&value[..length]);
            into[length..].fill(0);
            return PageResult::Good;
        };
        let Some((number, rest)) = value.split_first_chunk::<8>() else {
            return PageResult::NotAuthentic;
        };
        let Some((content, tag)) = rest.split_first_chunk::<PAGE_SIZE>() else {
            return PageResult::NotAuthentic;
        };
        let Ok(tag) = tag.try_into() else { return PageResult::NotAuthentic };
        into.copy_from_slice(content);
        let seal = Seal { number: u64::from_le_bytes(*number), tag };
        match key.open(self.index, page, &seal, into) {
            Ok(()) => PageResult::Good,
            Err(_) => PageResult::NotAuthentic,
        }
    }

    fn note_unsure(&self, pages: impl Iterator<Item = u32>) {
        lock(&self.unsure).extend(pages);
    }

    /// Frees pages whose keys have been removed.
    fn removed(&self, pages: &[u32]) {
        let unsure = lock(&self.unsure);
        let mut space = lock(&self.space);
        for &page in pages {
            if unsure.contains(&page) {
                // Relaxed, because it is a statistic.
                self.retired.fetch_add(1, Ordering::Relaxed);
            } else {
                space.free(page, 1);
            }
        }
        self.refused.store(false, Ordering::Relaxed);
    }

    /// Creates a request of the pages of one group.
    fn get(&self, pages: &[u32]) -> Request {
        self.on_keys("MGET", pages, Answer::Values(pages.len()), pages.len() * VALUE_MAX)
    }

    /// Creates a command on keys of one group. The answer has at most `bound` bytes.
    fn on_keys(&self, command: &str, pages: &[u32], answer: Answer, bound: usize) -> Request {
        let mut packed = Vec::new();
        words(&mut packed, 1 + pages.len());
        word(&mut packed, &[command.as_bytes()]);
        pages.iter().for_each(|&page| word(&mut packed, &[&self.page_key(page)]));
        Request::new(self.slot(pages[0]), packed, answer, bound)
    }

    fn note_read(&self, pages: usize, began: Instant) {
        let ns = began.elapsed().as_nanos() as u64;
        // Relaxed, because these are statistics.
        self.reads.fetch_add(pages as u64, Ordering::Relaxed);
        self.read_jobs.fetch_add(1, Ordering::Relaxed);
        self.read_ns.fetch_add(ns, Ordering::Relaxed);
        self.read_ns_max.fetch_max(ns, Ordering::Relaxed);
    }
}

impl RemoteTier {
    pub(crate) fn open(
        index: u8,
        name: TierName,
        spec: &RedisSpec,
        key: Option<Arc<Key>>,
        injector: Arc<Injector>,
        notice: Notice,
    ) -> Result<Self, StoreError> {
        let (server, prefix) = open::open(name, spec, notice)?;
        let server = Arc::new(server);
        let pages = spec.limit.map(|bytes| bytes / PAGE_SIZE as u64);
        let shared = Arc::new(Remote {
            index,
            server: server.clone(),
            prefix,
            key,
            space: Mutex::new(Space::new(pages)),
            unsure: Mutex::default(),
            retired: AtomicU64::new(0),
            refused: AtomicBool::new(false),
            full: AtomicBool::new(false),
            injector,
            reads: AtomicU64::new(0),
            writes: AtomicU64::new(0),
            read_jobs: AtomicU64::new(0),
            read_ns: AtomicU64::new(0),
            read_ns_max: AtomicU64::new(0),
        });
        let sweeper = Sweeper::start(shared.clone())
            .map_err(|source| StoreError::Setup { what: A_THREAD, source })?;
        let writer = Mutex::new(Writer { client: Client::new(server), packed: Vec::new() });
        Ok(Self { shared, writer, sweeper })
    }

    pub(crate) fn name(&self) -> TierName {
        self.shared.name()
    }

    /// Returns the address of the server, for messages.
    pub(crate) fn place(&self) -> String {
        self.shared.server.place()
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.shared.key.is_some()
    }

    /// Returns the number of pages stored, the largest such number, and the limit.
    pub(crate) fn fill(&self) -> (u64, u64, u64) {
        let gone = self.sweeper.pending() + self.shared.retired.load(Ordering::Relaxed);
        let space = lock(&self.shared.space);
        (space.taken().saturating_sub(gone), space.peak(), space.limit())
    }

    pub(crate) fn errors(&self) -> u64 {
        self.shared.server.errors.load(Ordering::Relaxed)
    }

    pub(crate) fn read_times(&self) -> Option<ReadTimes> {
        let [jobs, ns, max] =
            [&self.shared.read_jobs, &self.shared.read_ns, &self.shared.read_ns_max]
                .map(|figure| figure.load(Ordering::Relaxed));
        Some(ReadTimes { mean_ns: ns.checked_div(jobs)?, max_ns: max })
    }

    /// Returns whether the server has refused a write because it was full.
    pub(crate) fn found_full(&self) -> bool {
        self.shared.full.load(Ordering::Relaxed)
    }

    pub(crate) fn is_full(&self) -> bool {
        self.shared.refused.load(Ordering::Relaxed) || lock(&self.shared.space).is_full()
    }

    pub(crate) fn refuse(&self) {
        self.shared.refused.store(true, Ordering::Relaxed);
    }

    /// Takes up to `wanted` adjacent numbers.
    pub(crate) fn allocate(&self, wanted: usize) -> Option<(u32, usize)> {
        let began = Instant::now();
        loop {
            let removals = self.sweeper.removals();
            let taken = lock(&self.shared.space).allocate(wanted);
            // REMOTE-1: some numbers may be about to become free.
            let left = self.shared.server.time_left(began.elapsed());
            if taken.is_some() || !self.sweeper.wait_beyond(removals, left) {
                return taken;
            }
        }
    }

    /// Gives back adjacent numbers, and has their keys removed.
    pub(crate) fn free(&self, first: u32, count: usize) {
        self.sweeper.push(first..first + count as u32);
    }

    /// Writes whole pages that one `allocate` gave. `Ok(false)` means that there is no room.
    pub(crate) fn write(&self, first: u32, pages: &[u8]) -> io::Result<bool> {
        let shared = &*self.shared;
        let (pages, _) = pages.as_chunks::<PAGE_SIZE>();
        shared.writes.fetch_add(pages.len() as u64, Ordering::Relaxed);
        if let Some(delay) = shared.injector.delay(false) {
            std::thread::sleep(delay);
        }
        shared.injector.write()?;
        let mut writer = lock(&self.writer);
        if shared.server.closing.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::NotConnected, "the tier is closed"));
        }
        let Writer { client, packed } = &mut *writer;
        let mut packed = std::mem::take(packed);
        packed.clear();
        words(&mut packed, 1 + 2 * pages.len());
        word(&mut packed, &[b"MSET"]);
        for (page, content) in (first..).zip(pages) {
            word(&mut packed, &[&shared.page_key(page)]);
            match &shared.key {
                None => word(&mut packed, &[content]),
                Some(key) => {
                    // Seals the page in the send buffer.
                    let _ = write!(packed, "${}\r\n", PAGE_SIZE + SEAL_BYTES);
                    let at = packed.len();
                    packed.extend_from_slice(&[0; 8]);
                    packed.extend_from_slice(content);
                    let sealed = packed[at + 8..].first_chunk_mut().expect("it was just added");
                    let seal = key.seal(shared.index, page, sealed);
                    packed[at..at + 8].copy_from_slice(&seal.number.to_le_bytes());
                    packed.extend_from_slice(&seal.tag);
                    packed.extend_from_slice(b"\r\n");
                }
            }
        }
        let request = Request::new(shared.slot(first), packed, Answer::Okay, 0).replicated();
        let mut request = [request];
        client.run(&mut request);
        let [request] = request;
        if request.unsure {
            shared.note_unsure(first..first + pages.len() as u32);
        }
        let result = match &request.outcome {
            Outcome::Done(_) => Ok(true),
            Outcome::Full(why) => {
                if !shared.full.swap(true, Ordering::Relaxed) {
                    shared.server.tell(&format!("full: {why}"));
                }
                Ok(false)
            }
            Outcome::Lost(why) | Outcome::Pending(why) => {
                Err(io::Error::new(io::ErrorKind::TimedOut, why.clone()))
            }
        };
        writer.packed = request.into_buffer();
        result
    }

    /// Reads one page, and waits for it.
    pub(crate) fn read(&self, page: u32, into: &mut Page) -> io::Result<()> {
        let began = Instant::now();
        let shared = &*self.shared;
        shared.injector.read()?;
        let mut request = [shared.get(&[page]).with_own_time()];
        let mut client = Client::new(shared.server.clone());
        client.run(&mut request);
        let [Request { outcome, .. }] = request;
        let result = match outcome {
            Outcome::Done(answer) => {
                shared.unpack(page, readers::values(&answer).next().flatten(), into)
            }
            Outcome::Full(why) | Outcome::Lost(why) | Outcome::Pending(why) => {
                return Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        };
        shared.note_read(1, began);
        shared.injector.flip(into);
        result.error().map_or(Ok(()), Err)
    }

    /// Removes all keys at the end of the run. Afterwards nothing can be read or written.
    pub(crate) fn close(&self) {
        let shared = &*self.shared;
        if shared.server.closing.swap(true, Ordering::Relaxed) {
            return;
        }
        self.sweeper.end();
        let mut writer = lock(&self.writer);
        let pages: Vec<u32> = lock(&shared.space).taken_pages().collect();
        let mut left = 0;
        let (began, limit) = (Instant::now(), shared.server.spec.answer * CLOSING_ANSWERS);
        for pages in pages.chunks(sweep::BATCH) {
            let rest = limit.saturating_sub(began.elapsed());
            if rest.is_zero() {
                left += pages.len();
                continue;
            }
            left += sweep::remove(shared, &mut writer.client, pages, Some(rest)).1.len();
        }
        let mut packed = Vec::new();
        words(&mut packed, 2);
        word(&mut packed, &[b"UNLINK"]);
        let run = format!("{}run", shared.prefix);
        word(&mut packed, &[run.as_bytes()]);
        let mut request = [Request::new(slot_of(run.as_bytes()), packed, Answer::Number, 0)];
        writer.client.run_within(&mut request, limit.saturating_sub(began.elapsed()), true);
        left += usize::from(!matches!(request[0].outcome, Outcome::Done(_)));
        if left > 0 {
            let (place, prefix) = (self.place(), &shared.prefix);
            let (each, xargs) = if shared.server.cluster {
                (", on each master", "xargs -n 1 redis-cli -c")
            } else {
                ("", "xargs redis-cli")
            };
            shared.server.tell(&format!(
                "{left} keys remain on {place}; to remove them{each}: redis-cli --scan --pattern '{prefix}*' \
                 | {xargs} UNLINK"
            ));
        }
    }
}

impl Drop for RemoteTier {
    fn drop(&mut self) {
        self.close();
    }
}
