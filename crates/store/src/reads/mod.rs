//! Asynchronous reads from files and servers: started here, completed on a pollable descriptor.
//!
//! A [`Job`] is one transfer from a file or server. It carries one or more wanted pages, each with
//! its token. Jobs and their buffers are recycled. The backend is io_uring ([`Backend::Uring`]) or,
//! if that is not permitted, a few threads ([`Backend::Threads`]). Each remote tier has readers of
//! its own (`remote::readers`).
//!
//! Invariants:
//! * READS-1: `next` returns every submitted job exactly once, with its outcome.
//! * READS-2: while a job waits to be taken, the event descriptor is readable, or a poll will still
//!   find the job. Such a poll began (`begin_poll`) after the job arrived, and has yet to call
//!   `next`.
//! * READS-3: while a job is in `backlog`, some job is in the ring (its completion moves the
//!   backlog on).
//!
//! Lock order: `backlog`, then the ring's own locks. `ready`, `alone` and `pool` are leaves.

mod threads;

use crate::error::{A_THREAD, StoreError};
use crate::far::FarTier;
use crate::file::{FileTier, TRIES_MAX, is_passing, pause_before};
use crate::inject::Injector;
use crate::lock;
use crate::page::Page;
use crate::remote::PageResult;
use crate::remote::readers::{Done, Readers};
use crate::table::FarLocation;
use ebb_mm::types::{PAGE_SIZE, SlotId};
use ebb_sys::anon::AnonBuffer;
use ebb_sys::uring::{self, Uring};
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex};
use std::time::Instant;
use threads::Threads;

/// Largest number of pages in one transfer.
pub(crate) const PAGES_MAX: usize = 16;
/// Largest number of reads in flight; further ones wait.
const DEPTH: u32 = 128;
/// Number of jobs of each size kept for reuse.
const POOL_MAX: usize = 32;

/// One wanted page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub slot: SlotId,
    /// Hash of the page when the read was started.
    pub hash: u64,
    pub token: u64,
    /// Index of the page in the transfer.
    pub page: u8,
}

impl Wanted {
    /// Fills unused elements of arrays.
    pub(crate) const NONE: Self = Self { slot: SlotId(0), hash: 0, token: 0, page: 0 };
}

/// One transfer.
pub(crate) struct Job {
    pub from: FarLocation,
    /// Number of pages to transfer.
    pub pages: usize,
    wanted: [Wanted; PAGES_MAX],
    wanted_count: usize,
    /// `None` only while the ring owns the buffer.
    buffer: Option<AnonBuffer>,
    done: usize,
    tries: u32,
    /// Time of the request, for a remote tier.
    pub began: Option<Instant>,
    /// Result of each page, if the transfer as a whole succeeded.
    page_results: [PageResult; PAGES_MAX],
    pub outcome: io::Result<()>,
}

impl Job {
    /// Returns the wanted pages.
    pub(crate) fn wanted(&self) -> &[Wanted] {
        &self.wanted[..self.wanted_count]
    }

    /// Adds a page; `page` counts from the start of the transfer.
    pub(crate) fn want(&mut self, wanted: Wanted) {
        self.wanted[self.wanted_count] = wanted;
        self.wanted_count += 1;
        self.pages = self.pages.max(usize::from(wanted.page) + 1);
    }

    /// Returns the bytes of the transfer.
    pub(crate) fn bytes(&mut self) -> &mut [u8] {
        let buffer = self.buffer.as_mut().expect("the buffer is here unless the ring has it");
        &mut buffer[..self.pages * PAGE_SIZE]
    }

    /// Returns the bytes of the transfer, and the result of each page.
    pub(crate) fn content(&mut self) -> (&mut [u8], &mut [PageResult]) {
        let buffer = self.buffer.as_mut().expect("the buffer is here unless the ring has it");
        (&mut buffer[..self.pages * PAGE_SIZE], &mut self.page_results[..self.pages])
    }

    /// Returns one page of the transfer, and its result.
    pub(crate) fn page_mut(&mut self, page: usize) -> (&mut Page, &mut PageResult) {
        let (bytes, page_results) = self.content();
        (&mut bytes.as_chunks_mut().0[page], &mut page_results[page])
    }

    fn capacity(&self) -> usize {
        self.buffer.as_ref().map_or(0, |buffer| buffer.len() / PAGE_SIZE)
    }
}

/// Jobs are boxed, because they are too large to be moved from queue to queue.
pub(crate) type Jobs = Vec<Box<Job>>;

enum Backend {
    Uring(Box<Uring<Box<Job>>>),
    Threads(Threads),
}

/// A set of jobs. The jobs start when the set is dropped, at the latest.
#[must_use = "they begin when it is dropped"]
pub(crate) struct Batch<'a> {
    reads: &'a Reads,
    queued: bool,
}

impl Batch<'_> {
    /// Adds a job.
    pub(crate) fn push(&mut self, job: Box<Job>) {
        self.queued |= self.reads.queue(job);
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        if let (true, Backend::Uring(ring)) = (self.queued, &self.reads.backend) {
            ring.enter();
        }
    }
}

/// The asynchronous reader of all far tiers.
pub(crate) struct Reads {
    tiers: Arc<[FarTier]>,
    injector: Arc<Injector>,
    event: Arc<OwnedFd>,
    backlog: Mutex<VecDeque<Box<Job>>>,
    /// Pages that need no transfer.
    alone: Mutex<VecDeque<Wanted>>,
    ready: Arc<Mutex<VecDeque<Box<Job>>>>,
    pool: [Mutex<Jobs>; 2],
    // Dropped after the fields above. The threads have shares of their own in those fields. The
    // ring keeps the files and buffers of its reads until the reads complete.
    backend: Backend,
    /// Readers of remote tiers, indexed by the tier's number.
    remote: Vec<Option<Readers>>,
}

impl Reads {
    pub(crate) fn new(
        tiers: Arc<[FarTier]>,
        injector: Arc<Injector>,
        use_io_uring: bool,
    ) -> Result<Self, StoreError> {
        let event = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)
            .map_err(|errno| StoreError::Setup { what: "an eventfd", source: errno.into() })?;
        let event = Arc::new(event);
        let ready = Arc::new(Mutex::new(VecDeque::new()));
        let ring = if use_io_uring && !tiers.iter().all(FarTier::is_remote) {
            Uring::new(DEPTH, event.as_fd()).ok()
        } else {
            None
        };
        let backend = match ring {
            Some(ring) => Backend::Uring(Box::new(ring)),
            None => Backend::Threads(
                Threads::new(tiers.clone(), ready.clone(), event.clone())
                    .map_err(|source| StoreError::Setup { what: A_THREAD, source })?,
            ),
        };
        let (backlog, alone) = (Mutex::new(VecDeque::new()), Mutex::new(VecDeque::new()));
        let pool = [Mutex::new(Vec::new()), Mutex::new(Vec::new())];
        let done = Done { ready: ready.clone(), event: event.clone() };
        let start = |tier: &FarTier| match tier {
            FarTier::File(_) => Ok(None),
            FarTier::Remote(remote) => Readers::start(&remote.shared, &done).map(Some),
        };
        let remote = (tiers.iter().map(start).collect::<io::Result<_>>())
            .map_err(|source| StoreError::Setup { what: A_THREAD, source })?;
        Ok(Self { tiers, injector, event, backlog, alone, ready, pool, backend, remote })
    }

    /// Returns the descriptor that is readable when a job may be waiting.
    pub(crate) fn event(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Returns whether reads go through io_uring.
    pub(crate) fn uses_io_uring(&self) -> bool {
        matches!(self.backend, Backend::Uring(_))
    }

    /// Returns a job with room for `pages` pages in a page-aligned buffer.
    pub(crate) fn job(&self, from: FarLocation, pages: usize) -> Result<Box<Job>, StoreError> {
        assert!((1..=PAGES_MAX).contains(&pages), "a transfer of {pages} pages");
        let large = pages > 1;
        let pooled = lock(&self.pool[usize::from(large)]).pop();
        let mut job = match pooled {
            Some(job) => job,
            None => {
                let capacity = if large { PAGES_MAX } else { 1 };
                let buffer = AnonBuffer::new(capacity * PAGE_SIZE)
                    .map_err(|source| StoreError::Setup { what: "a read buffer", source })?;
                Box::new(Job {
                    from,
                    pages: 0,
                    wanted: [Wanted::NONE; PAGES_MAX],
                    wanted_count: 0,
                    buffer: Some(buffer),
                    done: 0,
                    tries: 0,
                    began: None,
                    page_results: [PageResult::Good; PAGES_MAX],
                    outcome: Ok(()),
                })
            }
        };
        (job.from, job.pages, job.wanted_count) = (from, 0, 0);
        (job.done, job.tries, job.outcome) = (0, 0, Ok(()));
        (job.began, job.page_results) = (None, [PageResult::Good; PAGES_MAX]);
        Ok(job)
    }

    /// Takes a job back for reuse.
    pub(crate) fn recycle(&self, job: Box<Job>) {
        let mut pool = lock(&self.pool[usize::from(job.capacity() > 1)]);
        if pool.len() < POOL_MAX {
            pool.push(job);
        }
    }

    /// Starts a job, now or as soon as others have ended.
    pub(crate) fn submit(&self, job: Box<Job>) {
        self.batch().push(job);
    }

    /// Returns a batch for jobs that start together.
    pub(crate) fn batch(&self) -> Batch<'_> {
        Batch { reads: self, queued: false }
    }

    /// Starts a job, or queues it in the ring until the ring is entered. Returns whether it is
    /// queued.
    fn queue(&self, job: Box<Job>) -> bool {
        if let Some(readers) = &self.remote[usize::from(job.from.tier)] {
            readers.push(job);
            return false;
        }
        match &self.backend {
            Backend::Threads(threads) => {
                threads.push(job);
                false
            }
            Backend::Uring(ring) => {
                if let Some(delay) = self.injector.delay(true) {
                    self.submit_slowly(job, delay);
                    return false;
                }
                if let Err(job) = self.start(ring, job) {
                    lock(&self.backlog).push_back(job);
                    // The ring may hold jobs that are queued and not submitted, so this thread
                    // enters the ring. The ring may also have drained since the refusal (READS-3).
                    ring.enter();
                    self.move_backlog(ring);
                    return false;
                }
                true
            }
        }
    }

    /// Delays a read, for fault injection. A separate thread reads the page after the delay, as the
    /// thread backend does.
    fn submit_slowly(&self, mut job: Box<Job>, delay: std::time::Duration) {
        let (tiers, ready, event) = (self.tiers.clone(), self.ready.clone(), self.event.clone());
        std::thread::spawn(move || {
            std::thread::sleep(delay);
            threads::perform(&tiers, &mut job);
            lock(&ready).push_back(job);
            signal(&event);
        });
    }

    /// Returns the file that a job of the ring reads.
    fn file(&self, job: &Job) -> &FileTier {
        self.tiers[usize::from(job.from.tier)].file().expect("others have readers of their own")
    }

    /// Queues a job in the ring until it is entered. Returns the job if the ring is full.
    fn start(&self, ring: &Uring<Box<Job>>, mut job: Box<Job>) -> Result<(), Box<Job>> {
        let tier = self.file(&job);
        let offset = u64::from(job.from.page) * PAGE_SIZE as u64 + job.done as u64;
        let end = job.pages * PAGE_SIZE;
        let range = job.done..job.done + self.injector.shorten(true, end - job.done);
        let buffer = job.buffer.take().expect("the buffer is here unless the ring has it");
        let read = uring::Read { file: tier.fd.clone(), offset, buffer, range, tag: job };
        ring.queue(read).map_err(|refused| {
            let mut job = refused.tag;
            job.buffer = Some(refused.buffer);
            job
        })
    }

    /// Starts waiting jobs while the ring takes them. Holds the lock throughout, so that other
    /// threads see every waiting job while the ring drains.
    fn move_backlog(&self, ring: &Uring<Box<Job>>) {
        let mut backlog = lock(&self.backlog);
        let mut queued = false;
        while let Some(job) = backlog.pop_front() {
            if let Err(job) = self.start(ring, job) {
                backlog.push_front(job);
                break;
            }
            queued = true;
        }
        if queued {
            ring.enter();
        }
    }

    /// Adds pages that need no transfer.
    pub(crate) fn add_single(&self, wanted: impl ExactSizeIterator<Item = Wanted>) {
        if wanted.len() > 0 {
            lock(&self.alone).extend(wanted);
            signal(&self.event);
        }
    }

    /// Returns the next page that needs no transfer.
    pub(crate) fn next_alone(&self) -> Option<Wanted> {
        lock(&self.alone).pop_front()
    }

    /// Resets the event descriptor; call before [`Reads::next`].
    pub(crate) fn begin_poll(&self) {
        let mut count = [0; 8];
        // A failure means that the descriptor is not readable, so nothing has happened; `next`
        // finds out.
        let _ = rustix::io::read(&*self.event, &mut count);
    }

    /// Returns the next job that has ended.
    pub(crate) fn next(&self) -> Option<Box<Job>> {
        if let Some(job) = lock(&self.ready).pop_front() {
            return Some(job);
        }
        let Backend::Uring(ring) = &self.backend else { return None };
        loop {
            let uring::Completed { buffer, tag: mut job, result } = ring.complete()?;
            job.buffer = Some(buffer);
            let job = self.advance(job, result);
            // The ring has a free entry, first for waiting jobs, then for the rest of this job.
            match job {
                Ok(job) => {
                    self.move_backlog(ring);
                    return Some(job);
                }
                Err(job) => {
                    lock(&self.backlog).push_back(job);
                    self.move_backlog(ring);
                }
            }
        }
    }

    /// Records the result of a transfer: `Ok` when the job has ended, `Err` when it must go on.
    fn advance(&self, mut job: Box<Job>, result: io::Result<usize>) -> Result<Box<Job>, Box<Job>> {
        let tier = self.file(&job);
        match result.and_then(|count| self.injector.read().map(|()| count)) {
            Ok(0) => job.outcome = Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                job.done += count;
                if job.done < job.pages * PAGE_SIZE {
                    return Err(job);
                }
                tier.count_read(job.pages);
                tier.forget_cached(job.from.page, job.pages * PAGE_SIZE);
                self.injector.flip(job.bytes());
                let first = job.from.page;
                let (bytes, page_results) = job.content();
                tier.unseal(first, bytes, page_results);
            }
            Err(error) if is_passing(&error) && job.tries < TRIES_MAX => {
                job.tries += 1;
                pause_before(job.tries);
                return Err(job);
            }
            Err(error) => job.outcome = Err(error),
        }
        Ok(job)
    }
}

/// Makes the event descriptor readable.
pub(crate) fn signal(event: &OwnedFd) {
    // The write fails only if the counter is at its maximum, and then the descriptor is readable
    // already.
    let _ = rustix::io::write(event, &1u64.to_ne_bytes());
}
