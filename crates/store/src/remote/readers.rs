//! Reader threads of a remote tier. Each thread takes several reads at a time. It sends all
//! requests before it receives the first answer, so that nodes work in parallel.
//!
//! Invariants:
//! * READERS-1: every job pushed comes out in `ready` once, with its outcome: the page, or the
//!   error.
//! * READERS-2: a read whose node does not answer goes back into the queue; the threads go on with
//!   others.

use super::Remote;
use super::client::{Client, Outcome, Request};
use crate::file::space::RUN_MAX;
use crate::lock;
use crate::reads::{Job, Jobs, signal};
use redis::Value;
use std::collections::VecDeque;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Number of threads. A server sees at most this many times [`TAKEN_MAX`] reads at once.
const THREADS: usize = 4;
/// Largest number of reads that one thread takes at once.
const TAKEN_MAX: usize = 8;
/// Delay before a read is tried again.
const RETRY: Duration = Duration::from_millis(20);

#[derive(Default)]
struct State {
    jobs: VecDeque<Box<Job>>,
    /// Reads to be tried again, each with its time.
    later: Vec<(Instant, Box<Job>)>,
    ending: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

/// Destination of reads that have ended.
#[derive(Clone)]
pub(crate) struct Done {
    pub ready: Arc<Mutex<VecDeque<Box<Job>>>>,
    pub event: Arc<OwnedFd>,
}

/// The threads and their queue.
pub(crate) struct Readers {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    pub(crate) fn start(remote: &Arc<Remote>, done: &Done) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        // If a thread fails to start, dropping `all` ends the others.
        let mut all = Self { queue: queue.clone(), threads: Vec::new() };
        for _ in 0..THREADS {
            let (queue, remote, done) = (queue.clone(), remote.clone(), done.clone());
            let thread =
                std::thread::Builder::new().name("redis-read".into()).spawn(move || {
                    let mut client = Client::new(remote.server.clone());
                    while let Some(jobs) = queue.next() {
                        let (ended, again) = perform(&remote, &mut client, jobs);
                        if !ended.is_empty() {
                            lock(&done.ready).extend(ended);
                            signal(&done.event);
                        }
                        queue.put_off(again);
                    }
                })?;
            all.threads.push(thread);
        }
        Ok(all)
    }

    pub(crate) fn push(&self, mut job: Box<Job>) {
        job.began = Some(Instant::now());
        lock(&self.queue.state).jobs.push_back(job);
        self.queue.changed.notify_one();
    }
}

impl Queue {
    fn next(&self) -> Option<Jobs> {
        let mut state = lock(&self.state);
        loop {
            if state.ending {
                return None;
            }
            let now = Instant::now();
            while let Some(at) = state.later.iter().position(|(due, _)| *due <= now) {
                let (_, job) = state.later.swap_remove(at);
                state.jobs.push_back(job);
            }
            if !state.jobs.is_empty() {
                // The jobs are divided equally among the threads.
                let count = state.jobs.len().div_ceil(THREADS).min(TAKEN_MAX);
                let taken = state.jobs.drain(..count).collect();
                if !state.jobs.is_empty() {
                    self.changed.notify_one();
                }
                return Some(taken);
            }
            let due = state.later.iter().map(|(due, _)| *due).min();
            state = match due {
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(due) => {
                    let rest = due.saturating_duration_since(now);
                    let waited = self.changed.wait_timeout(state, rest);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn put_off(&self, jobs: Jobs) {
        if !jobs.is_empty() {
            let due = Instant::now() + RETRY;
            lock(&self.state).later.extend(jobs.into_iter().map(|job| (due, job)));
            // This thread may take other reads next, which take long.
            self.changed.notify_one();
        }
    }
}

/// Returns the values of an MGET's answer, one for each key.
pub(super) fn values(answer: &Value) -> impl Iterator<Item = Option<&[u8]>> {
    let all = match answer {
        Value::Array(all) => &all[..],
        _ => &[],
    };
    all.iter().map(|value| match value {
        Value::BulkString(bytes) => Some(&bytes[..]),
        _ => None,
    })
}

/// The pages of one job in one group, by their index in the job.
struct Part {
    job: usize,
    pages: Vec<u8>,
}

/// Tries reads once. Returns those that have ended, and those to be tried again.
fn perform(remote: &Remote, client: &mut Client, mut jobs: Jobs) -> (Jobs, Jobs) {
    if let Some(delay) = remote.injector.delay(true) {
        std::thread::sleep(delay);
    }
    let (mut parts, mut requests) = (Vec::new(), Vec::new());
    for (at, job) in jobs.iter().enumerate() {
        let mut pages: Vec<u8> = job.wanted().iter().map(|wanted| wanted.page).collect();
        pages.sort_unstable();
        pages.dedup();
        let number = |page: u8| job.from.page + u32::from(page);
        let same = |a: &u8, b: &u8| number(*a) as usize / RUN_MAX == number(*b) as usize / RUN_MAX;
        for group in pages.chunk_by(same) {
            let numbers: Vec<u32> = group.iter().map(|&page| number(page)).collect();
            requests.push(remote.get(&numbers).with_own_time());
            parts.push(Part { job: at, pages: group.to_vec() });
        }
    }
    // The last attempt begins after the time limit, because the first may have met a dead
    // connection.
    let waited = |job: &Job| job.began.is_some_and(|at| at.elapsed() > remote.server.spec.wait);
    let waited: Vec<bool> = jobs.iter().map(|job| waited(job)).collect();
    client.attempt(&mut requests);
    let mut again = vec![false; jobs.len()];
    for (part, Request { outcome, .. }) in parts.iter().zip(requests) {
        let job = &mut jobs[part.job];
        let ends = waited[part.job] || remote.server.closing.load(Ordering::Relaxed);
        match outcome {
            Outcome::Done(answer) => take(remote, job, part, &answer),
            Outcome::Pending(_) if !ends => again[part.job] = true,
            Outcome::Pending(why) | Outcome::Lost(why) | Outcome::Full(why) => {
                job.outcome = Err(io::Error::new(io::ErrorKind::TimedOut, why));
            }
        }
    }
    let (mut ended, mut later) = (Vec::new(), Vec::new());
    for (mut job, again) in jobs.into_iter().zip(again) {
        if again && job.outcome.is_ok() {
            later.push(job);
            continue;
        }
        if let Some(began) = job.began {
            remote.note_read(job.wanted().len(), began);
        }
        if let Err(error) = remote.injector.read() {
            job.outcome = Err(error);
        }
        if remote.injector.is_active() {
            remote.injector.flip(job.bytes());
        }
        ended.push(job);
    }
    (ended, later)
}

/// Puts the received values into the job.
fn take(remote: &Remote, job: &mut Job, part: &Part, answer: &Value) {
    let mut values = values(answer);
    for &page in &part.pages {
        let number = job.from.page + u32::from(page);
        let (into, result) = job.page_mut(usize::from(page));
        *result = remote.unpack(number, values.next().flatten(), into);
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        lock(&self.queue.state).ending = true;
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has printed its message already.
            let _ = thread.join();
        }
    }
}
