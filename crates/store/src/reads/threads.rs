//! Reads files with a few threads, for kernels and sandboxes without io_uring.

use super::{Job, signal};
use crate::far::FarTier;
use crate::lock;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Number of threads, and so of simultaneous reads of a device.
const THREADS: usize = 4;

/// The threads and their queue.
pub(super) struct Threads {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Box<Job>>,
    ending: bool,
}

impl Threads {
    /// Starts the threads; none without a file to read.
    pub(super) fn new(
        tiers: Arc<[FarTier]>,
        ready: Arc<Mutex<VecDeque<Box<Job>>>>,
        event: Arc<OwnedFd>,
    ) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let count = if tiers.iter().all(FarTier::is_remote) { 0 } else { THREADS };
        // If a thread fails to start, dropping `all` ends the others.
        let mut all = Self { queue: queue.clone(), threads: Vec::new() };
        for _ in 0..count {
            let (queue, tiers) = (queue.clone(), tiers.clone());
            let (ready, event) = (ready.clone(), event.clone());
            let thread = std::thread::Builder::new().spawn(move || {
                while let Some(mut job) = queue.next() {
                    perform(&tiers, &mut job);
                    lock(&ready).push_back(job);
                    signal(&event);
                }
            })?;
            all.threads.push(thread);
        }
        Ok(all)
    }

    pub(super) fn push(&self, job: Box<Job>) {
        lock(&self.queue.state).jobs.push_back(job);
        self.queue.changed.notify_one();
    }
}

impl Queue {
    fn next(&self) -> Option<Box<Job>> {
        let mut state = lock(&self.state);
        loop {
            if state.ending {
                return None;
            }
            if let Some(job) = state.jobs.pop_front() {
                return Some(job);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Does the transfer of a job synchronously.
pub(super) fn perform(tiers: &[FarTier], job: &mut Job) {
    let from = job.from;
    let file = tiers[usize::from(from.tier)].file().expect("others have readers of their own");
    let (bytes, page_results) = job.content();
    job.outcome = file.read(from.page, bytes, page_results);
}

impl Drop for Threads {
    fn drop(&mut self) {
        lock(&self.queue.state).ending = true;
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed its message already.
            let _ = thread.join();
        }
    }
}
