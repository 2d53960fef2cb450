//! The threads that read from a remote tier. Each takes several reads at a time and asks for all of them before it
//! receives the first, so that nodes work side by side.
//!
//! Invariants:
//! * READERS-1: every job pushed comes out in `ready` once, with its outcome: the page, or that it is lost.
//! * READERS-2: a read whose node does not answer goes back into the queue; the threads go on with others.

use super::client::{Client, Outcome, Request};
use super::{Remote, VALUE_MAX};
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

/// Reads a server sees at once are these times [`TAKEN_MAX`] at most.
const THREADS: usize = 4;
/// Reads one thread takes at once, if there are so many.
const TAKEN_MAX: usize = 8;
/// When a read is tried again.
const RETRY: Duration = Duration::from_millis(20);

#[derive(Default)]
struct State {
    jobs: VecDeque<Box<Job>>,
    /// To be tried again, and when.
    later: Vec<(Instant, Box<Job>)>,
    ending: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
}

/// Where reads that have ended go.
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
        // Should one fail to start, the others are told to end.
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
                // As many for each thread.
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
        }
    }
}

/// What a server has given for each key of an MGET.
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

/// Pages of one job in one group: which of the job's.
struct Part {
    job: usize,
    pages: Vec<u8>,
}

/// Tries reads once: those that have ended, and those to be tried again.
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
            requests.push(remote.on_keys("MGET", &numbers, VALUE_MAX));
            parts.push(Part { job: at, pages: group.to_vec() });
        }
    }
    client.attempt(&mut requests);
    let mut again = vec![false; jobs.len()];
    for (part, Request { outcome, .. }) in parts.iter().zip(requests) {
        let job = &mut jobs[part.job];
        let waited = job.began.is_some_and(|began| began.elapsed() > remote.server.spec.wait);
        let ends = waited || remote.server.closing.load(Ordering::Relaxed);
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

/// Puts what came into the job.
fn take(remote: &Remote, job: &mut Job, part: &Part, answer: &Value) {
    let mut values = values(answer);
    for &page in &part.pages {
        let number = job.from.page + u32::from(page);
        let (into, fate) = job.page_mut(usize::from(page));
        *fate = remote.unpack(number, values.next().flatten(), into);
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        lock(&self.queue.state).ending = true;
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so; there is nothing to add.
            let _ = thread.join();
        }
    }
}
