//! Candidates: children that ask the pager, and at which the listener has yet to look
//! (`control/children.rs`).
//!
//! Lock order: the lock is held for a single operation, and no lock is taken under it.

use crate::mm::Mm;
use crate::mm::link::{Caller, JoinRequest, Link};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};

/// A child that asks.
#[derive(Debug)]
pub struct Candidate {
    pub mm: Arc<Mm>,
    pub request: JoinRequest,
    /// Link through which the answer goes.
    pub line: Link,
    pub caller: Caller,
    /// Whether the call is surely this child's. Children with a common ancestor may call in the
    /// same memory.
    pub certain: bool,
}

/// Children at which the listener has yet to look.
#[derive(Debug)]
pub struct Candidates {
    waiting: Mutex<Vec<Candidate>>,
    /// Number of children that are not served yet, including the one being served.
    owed: AtomicUsize,
    come: OwnedFd,
}

impl Candidates {
    /// Creates an empty list.
    pub fn new() -> io::Result<Self> {
        let come = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { waiting: Mutex::default(), owed: AtomicUsize::new(0), come })
    }

    /// Adds a child and wakes the listener.
    pub fn add(&self, candidate: Candidate) {
        self.owe();
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(candidate);
        // If the counter is full, the listener wakes, too.
        let _ = rustix::io::write(&self.come, &1u64.to_ne_bytes());
    }

    /// Counts one more child that must be served.
    pub fn owe(&self) {
        self.owed.fetch_add(1, Relaxed);
    }

    /// Records that a child has been served.
    pub fn served(&self) {
        self.owed.fetch_sub(1, Relaxed);
    }

    /// Returns whether a child waits for the pager.
    pub fn has_unserved(&self) -> bool {
        // Relaxed, because the value is read now and then, and orders nothing else.
        self.owed.load(Relaxed) > 0
    }

    /// Takes all waiting children. The caller must call [`Self::served`] for each.
    pub fn take(&self) -> Vec<Candidate> {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.come, &mut counter);
        std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for Candidates {
    /// Returns the descriptor that is readable when a child has asked.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.come.as_fd()
    }
}
