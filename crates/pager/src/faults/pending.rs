//! State shared by the fault threads: waiting faults, loads under way, messages being followed.
//!
//! Lock order: `Mm::state`, then this state, then `Budget::resident`. Threads hold the lock of this
//! state for moments, never across a system call.
//!
//! * PENDING-1: any fault thread may defer a fault or begin to follow a message. Only the first
//!   fault thread goes on with it, and is woken for that.
//! * PENDING-2: a load is recorded before its read begins, so that the thread that takes the
//!   completion finds it.

use crate::faults::following::Following;
use crate::faults::loads::Load;
use crate::faults::{PageFault, UnfollowedMessages};
use crate::mm::Mm;
use crate::wait::signal::Signal;
use crate::wait::spin;
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

/// An item of slow work.
pub enum SlowWork {
    /// The slow part of following a message.
    Follow(Following, UnfollowedMessages),
    /// The search for the process of an address space.
    Seek(Arc<Mm>),
}

/// Pending work of the fault threads.
#[derive(Default)]
pub struct PendingState {
    pub deferred: VecDeque<PageFault>,
    /// Faults that pause (`--memory-high`), and the end of each pause.
    pub pausing: Vec<(Instant, PageFault)>,
    pub loads: HashMap<u64, Load>,
    /// Messages that take several steps, and the messages read after them.
    pub following: VecDeque<(Following, UnfollowedMessages)>,
    /// Slow work for these messages, and other slow work (`slow_work.rs`).
    pub slow_work: VecDeque<SlowWork>,
    /// Address space for which the slow-work thread is at work.
    pub away: Option<Arc<Mm>>,
}

impl PendingState {
    /// Returns the messages being followed, except one that the slow-work thread has taken.
    #[cfg(test)]
    pub fn followed(&self) -> impl Iterator<Item = &Following> {
        let sent = self.slow_work.iter().filter_map(|slow_work| match slow_work {
            SlowWork::Follow(following, _) => Some(following),
            SlowWork::Seek(_) => None,
        });
        self.following.iter().map(|(following, _)| following).chain(sent)
    }

    /// Whether a message of this address space is being followed.
    pub fn is_followed(&self, mm: &Arc<Mm>) -> bool {
        let sent = |slow_work: &SlowWork| match slow_work {
            SlowWork::Follow(following, _) => Arc::ptr_eq(following.mm(), mm),
            SlowWork::Seek(_) => false,
        };
        self.following.iter().any(|(following, _)| Arc::ptr_eq(following.mm(), mm))
            || self.slow_work.iter().any(sent)
            || self.away.as_ref().is_some_and(|away| Arc::ptr_eq(away, mm))
    }
}

/// Pending state shared between threads.
#[derive(Default)]
pub struct Pending {
    state: Mutex<PendingState>,
    /// Raised when there is slow work.
    pub slow_work: Signal,
    /// Whether a waiting fault found no memory. Later faults are then not served before it.
    fifo_blocked: AtomicBool,
    next_token: AtomicU64,
}

impl Pending {
    /// Locks the pending state.
    pub fn lock(&self) -> MutexGuard<'_, PendingState> {
        spin::lock(&self.state)
    }

    /// Passes slow work to its thread.
    pub fn send(&self, slow_work: SlowWork) {
        self.lock().slow_work.push_back(slow_work);
        self.slow_work.raise();
    }

    /// Whether later faults have to wait.
    pub fn is_fifo_blocked(&self) -> bool {
        self.fifo_blocked.load(Relaxed)
    }

    /// Sets whether later faults have to wait.
    pub fn set_fifo_blocked(&self, fifo_blocked: bool) {
        self.fifo_blocked.store(fifo_blocked, Relaxed);
    }

    /// Returns a number that no other load has.
    pub fn token(&self) -> u64 {
        self.next_token.fetch_add(1, Relaxed)
    }
}
