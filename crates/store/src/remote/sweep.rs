//! Sweeper: the thread that removes the keys of freed pages.

use super::Remote;
use super::client::{Answer, Client, Outcome, Request};
use crate::file::space::RUN_MAX;
use crate::lock;
use std::io;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Number of pages whose keys are removed at once.
pub(super) const BATCH: usize = 4096;
/// Time to wait for more pages after the first, because pages are freed by the thousand.
const GATHER: Duration = Duration::from_millis(5);
/// Time to wait after keys could not be removed.
const REST: Duration = Duration::from_secs(1);

#[derive(Default)]
struct State {
    pages: Vec<u32>,
    /// Number of pages taken from `pages` whose keys are not yet removed.
    under_way: usize,
    /// Number of times that keys were removed.
    removals: u64,
    ending: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    changed: Condvar,
    done: Condvar,
}

/// The thread, and its queue.
pub(super) struct Sweeper {
    queue: Arc<Queue>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Sweeper {
    pub(super) fn start(remote: Arc<Remote>) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let its = queue.clone();
        let thread = std::thread::Builder::new().name("redis-remove".into()).spawn(move || {
            let mut client = Client::new(remote.server.clone());
            while let Some(pages) = its.next() {
                let (removed, left) = remove(&remote, &mut client, &pages, None);
                remote.removed(&removed);
                its.finish(!removed.is_empty(), left);
            }
        })?;
        Ok(Self { queue, thread: Mutex::new(Some(thread)) })
    }

    pub(super) fn push(&self, pages: std::ops::Range<u32>) {
        let mut state = lock(&self.queue.state);
        let was_empty = state.pages.is_empty();
        state.pages.extend(pages);
        if was_empty {
            self.queue.changed.notify_one();
        }
    }

    /// Returns the number of pages whose keys are still to be removed.
    pub(super) fn pending(&self) -> u64 {
        let state = lock(&self.queue.state);
        (state.pages.len() + state.under_way) as u64
    }

    /// Returns the number of times that keys were removed.
    pub(super) fn removals(&self) -> u64 {
        lock(&self.queue.state).removals
    }

    /// Waits until the number of removals exceeds `removals`, at most for `limit`. Returns false if
    /// the time is over, or no keys are left to remove.
    pub(super) fn wait_beyond(&self, removals: u64, limit: Duration) -> bool {
        let state = lock(&self.queue.state);
        let comes = |state: &mut State| {
            state.removals == removals && (!state.pages.is_empty() || state.under_way > 0)
        };
        let waited = self.queue.done.wait_timeout_while(state, limit, comes);
        waited.unwrap_or_else(PoisonError::into_inner).0.removals > removals
    }

    /// Ends the thread. Pages whose keys it has not removed stay taken.
    pub(super) fn end(&self) {
        lock(&self.queue.state).ending = true;
        self.queue.changed.notify_all();
        if let Some(thread) = lock(&self.thread).take() {
            // A thread that panicked has printed its message already.
            let _ = thread.join();
        }
    }
}

impl Queue {
    fn next(&self) -> Option<Vec<u32>> {
        let state = lock(&self.state);
        let idle = |state: &mut State| state.pages.is_empty() && !state.ending;
        let state = self.changed.wait_while(state, idle).unwrap_or_else(PoisonError::into_inner);
        let few = |state: &mut State| state.pages.len() < BATCH && !state.ending;
        let (mut state, _) = (self.changed.wait_timeout_while(state, GATHER, few))
            .unwrap_or_else(PoisonError::into_inner);
        if state.ending {
            return None;
        }
        let at = state.pages.len().saturating_sub(BATCH);
        let pages = state.pages.split_off(at);
        state.under_way = pages.len();
        Some(pages)
    }

    fn finish(&self, removed: bool, left: Vec<u32>) {
        let mut state = lock(&self.state);
        state.under_way = 0;
        state.removals += u64::from(removed);
        self.done.notify_all();
        if left.is_empty() {
            return;
        }
        state.pages.extend(left);
        let waits = |state: &mut State| !state.ending;
        drop(
            self.changed
                .wait_timeout_while(state, REST, waits)
                .unwrap_or_else(PoisonError::into_inner),
        );
    }
}

/// Removes the keys of pages. Returns the pages whose keys are gone, and those whose keys may still
/// exist. `closing` is the time limit when the tier is being closed.
pub(super) fn remove(
    remote: &Remote,
    client: &mut Client,
    pages: &[u32],
    closing: Option<Duration>,
) -> (Vec<u32>, Vec<u32>) {
    let mut pages = pages.to_vec();
    pages.sort_unstable();
    let same = |a: &u32, b: &u32| *a as usize / RUN_MAX == *b as usize / RUN_MAX;
    let groups: Vec<&[u32]> = pages.chunk_by(same).collect();
    let request = |group: &&[u32]| {
        let request = remote.on_keys("UNLINK", group, Answer::Number, 0);
        if closing.is_some() { request.with_own_time() } else { request }
    };
    let mut requests: Vec<Request> = groups.iter().map(request).collect();
    match closing {
        None => client.run(&mut requests),
        Some(limit) => client.run_within(&mut requests, limit, true),
    }
    let (mut removed, mut left) = (Vec::new(), Vec::new());
    for (group, request) in groups.iter().zip(&requests) {
        if request.unsure {
            remote.note_unsure(group.iter().copied());
        }
        let done = matches!(request.outcome, Outcome::Done(_));
        let all = if done { &mut removed } else { &mut left };
        all.extend_from_slice(group);
    }
    (removed, left)
}
