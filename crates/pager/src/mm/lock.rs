//! Lock of an address space: its state, the holds of the lock, and the batches that a hold begins.
//!
//! Rules ORD-1, ORD-2 and ORD-6 in `lib.rs` say what needs the lock.
//!
//! * LOCK-1: `batch` changes under the lock, with `State::reads_blocked`. A thread that watches it
//!   without the lock looks again under the lock.
//! * LOCK-2: a thread that clears `reads_blocked` or `following_message` calls
//!   [`StateLock::end_batch`] in the same hold. So no thread waits for what has ended.
//! * LOCK-3: a hold begins with no range to wake. Its release takes all ranges, and wakes their
//!   threads when the lock is free (WAKE-1).
//!
//! Lock order: this is `Mm::state`, the first lock of the order in `lib.rs`.

use super::Mm;
use super::areas::Areas;
use super::uffd::Userfaultfd;
use crate::broken::{Rule, is_broken};
use crate::mm::pool::Pool;
use crate::wait::clock::Clock;
use crate::wait::limits::HOLDS_TIMED;
use crate::wait::spin;
use ebb_mm::resident::Space;
use ebb_sys::percpu::thread_time_ns;
use smallvec::SmallVec;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// State of an address space, and its lock.
#[derive(Debug)]
pub struct StateLock {
    state: Mutex<State>,
    quiet: Condvar,
    /// Whether a batch is under way, for readers without the lock.
    batch: AtomicBool,
    /// Longest hold of the lock, in nanoseconds.
    longest_hold: AtomicU64,
    /// Longest CPU time of a thread in one hold, as far as measured, in nanoseconds.
    longest_run: AtomicU64,
    clock: Clock,
}

/// Data that the lock `Mm::state` protects.
#[derive(Debug)]
pub struct State {
    /// A batch of moves is under way. No thread may read a message (ORD-1).
    pub reads_blocked: bool,
    /// The pager follows a message that takes several holds, for example a fork. Nothing else of
    /// the address space may change (`faults/following.rs`, ORD-6).
    pub following_message: bool,
    /// The pager has dropped the address space or is about to (`Pager::drop_mm`).
    pub ended: bool,
    pub space: Space,
    pub areas: Areas,
    /// Areas that were writable and executable when a page of theirs did not move. The kernel does
    /// not report a change of rights, so this may be stale in both directions.
    pub executable: Areas,
    pub pool: Pool,
    /// Ranges whose waiting threads are woken when the lock is released.
    wakes: Wakes,
    /// Number of times the lock has been taken.
    holds: u32,
}

/// Ranges of pages: first address, length in bytes.
type Wakes = SmallVec<[(u64, u64); 8]>;

impl State {
    /// Creates the state of an address space with the pages of `space`. A readahead window has
    /// `window` pages at most.
    #[must_use]
    pub fn new(mut space: Space, areas: Areas, pool: Pool, window: u32) -> Self {
        space.set_window(window);
        Self {
            reads_blocked: false,
            following_message: false,
            ended: false,
            space,
            areas,
            executable: Areas::default(),
            pool,
            wakes: Wakes::new(),
            holds: 0,
        }
    }

    /// Notes pages that are in place, or whose access is to be repeated. The release of the lock
    /// wakes the threads that wait for these pages. A woken thread may run at once on the fault
    /// thread's CPU. The fault thread then continues only when the woken thread waits again.
    pub fn wake_after(&mut self, start: u64, len: u64) {
        match self.wakes.last_mut() {
            Some((first, bytes)) if *first + *bytes == start => *bytes += len,
            _ => self.wakes.push((start, len)),
        }
    }
}

impl StateLock {
    /// Creates the lock of `state`.
    pub fn new(state: State, clock: Clock) -> Self {
        Self {
            state: Mutex::new(state),
            quiet: Condvar::new(),
            batch: AtomicBool::new(false),
            longest_hold: AtomicU64::new(0),
            longest_run: AtomicU64::new(0),
            clock,
        }
    }

    /// Returns the longest hold of the lock, in nanoseconds.
    pub fn longest_hold_ns(&self) -> u64 {
        self.longest_hold.load(Relaxed)
    }

    /// Returns the longest CPU time of a thread in one hold, as far as measured, in nanoseconds.
    pub fn longest_run_ns(&self) -> u64 {
        self.longest_run.load(Relaxed)
    }

    /// Whether no thread holds the lock.
    #[cfg(test)]
    pub fn is_free(&self) -> bool {
        self.state.try_lock().is_ok()
    }

    /// Takes the lock, and waits until `blocks` no longer holds, `patience` at most.
    fn lock_unless(
        &self,
        patience: Duration,
        blocks: impl Fn(&State) -> bool,
    ) -> MutexGuard<'_, State> {
        let state = spin::lock(&self.state);
        let patience = self.clock.patience(patience);
        let waited = self.quiet.wait_timeout_while(state, patience, |state| blocks(state));
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// Begins a batch. No thread reads a message until the batch is over (ORD-2).
    pub fn begin_batch(&self, state: &mut State) {
        state.reads_blocked = !is_broken(Rule::Ord2);
        self.batch.store(true, Relaxed);
    }

    /// Ends the batch (LOCK-2).
    pub fn end_batch(&self, state: &mut State) {
        state.reads_blocked = false;
        self.batch.store(false, Relaxed);
        self.quiet.notify_all();
    }

    /// Polls for at most `limit` for the end of a batch, before [`Mm::lock_quiet`] would sleep for
    /// it. For a thread that has a CPU to itself.
    pub fn watch_batch(&self, limit: Duration) {
        spin::look(limit, || (!self.batch.load(Relaxed)).then_some(()));
    }
}

impl Mm {
    /// Locks the state, whether or not a batch is under way. For callers that read no messages and
    /// do not rely on pages staying in place.
    pub fn lock(&self) -> MmGuard<'_> {
        MmGuard::new(spin::lock(&self.state.state), self)
    }

    /// Locks the state while the address space is not still (ORD-6). Returns None if the stillness
    /// does not end within `patience`.
    pub fn lock_settled(&self, patience: Duration) -> Option<MmGuard<'_>> {
        let state = self.state.lock_unless(patience, |state| state.following_message);
        (!state.following_message).then(|| MmGuard::new(state, self))
    }

    /// Locks the state with no batch under way. Returns None if a batch does not end within
    /// `patience`.
    pub fn lock_quiet(&self, patience: Duration) -> Option<MmGuard<'_>> {
        let blocks = |state: &State| state.reads_blocked && !is_broken(Rule::Ord1);
        let state = self.state.lock_unless(patience, blocks);
        (!blocks(&state)).then(|| MmGuard::new(state, self))
    }

    /// Begins or ends the time in which nothing else of the address space changes (ORD-6).
    pub fn keep_still(&self, state: &mut State, still: bool) {
        state.following_message = still && !is_broken(Rule::Ord6);
        self.stillness.note(still);
        if still {
            state.reads_blocked = !is_broken(Rule::Ord6);
        } else {
            self.state.end_batch(state);
        }
    }
}

/// Access to the state of an address space while its lock is held. Measures the hold. A thread that
/// places pages notes them by [`State::wake_after`]. The release of the lock wakes the threads that
/// wait for them, on every path (WAKE-1).
#[derive(Debug)]
pub struct MmGuard<'a> {
    /// The lock; None after its release.
    state: Option<MutexGuard<'a, State>>,
    lock: &'a StateLock,
    uffd: &'a Userfaultfd,
    since: Instant,
    /// CPU time of the thread at the start of the hold, if it is measured.
    ran: Option<u64>,
}

impl<'a> MmGuard<'a> {
    fn new(mut state: MutexGuard<'a, State>, mm: &'a Mm) -> Self {
        let Mm { state: lock, uffd, .. } = mm;
        debug_assert!(state.wakes.is_empty(), "WAKE-1");
        state.holds = state.holds.wrapping_add(1);
        let ran = state.holds.is_multiple_of(HOLDS_TIMED).then(thread_time_ns);
        Self { state: Some(state), lock, uffd, since: lock.clock.now(), ran }
    }

    /// Measures the CPU time of this hold, because it is for a slice of work.
    #[must_use]
    pub fn timed(mut self) -> Self {
        self.ran = self.ran.or_else(|| Some(thread_time_ns()));
        self
    }
}

impl Deref for MmGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("held")
    }
}

impl DerefMut for MmGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("held")
    }
}

impl<'a> MmGuard<'a> {
    /// Releases the lock. The waiting threads are woken when the returned value is dropped.
    pub fn unlock(mut self) -> Waking<'a> {
        self.release_lock()
    }

    fn release_lock(&mut self) -> Waking<'a> {
        let wakes = self.state.take().map(|mut state| std::mem::take(&mut state.wakes));
        let held = self.lock.clock.since(self.since).as_nanos() as u64;
        self.lock.longest_hold.fetch_max(held, Relaxed);
        if let Some(before) = self.ran {
            let ran = thread_time_ns() - before;
            self.lock.longest_run.fetch_max(ran, Relaxed);
        }
        Waking { wakes: wakes.unwrap_or_default(), uffd: self.uffd }
    }
}

impl Drop for MmGuard<'_> {
    fn drop(&mut self) {
        if self.state.is_some() {
            drop(self.release_lock());
        }
    }
}

/// Threads to be woken when this value is dropped (WAKE-1).
#[derive(Debug)]
pub struct Waking<'a> {
    wakes: Wakes,
    uffd: &'a Userfaultfd,
}

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        for &(start, len) in self.wakes.iter().skip(usize::from(is_broken(Rule::Wake1))) {
            // No thread waits in an address space that has ended.
            let _ = self.uffd.wake(start, len);
        }
    }
}
