//! Processes of the run: their address spaces, the children that have yet to join, and the data by
//! which all processes of the tree are found.
//!
//! Every thread looks up address spaces here. The listener adds the one of a new program, and a
//! fault thread that of a forked child (`faults/fork.rs`). The monitor removes those that have
//! ended, and a detach those that it gives back. `Mm` has the state of each.
//!
//! * PROCESSES-1: `mms` has every address space under management, each under its own number. No two
//!   have one number. A number may return when its address space is removed.
//! * PROCESSES-2: a look-up returns a counted reference. The address space may be removed while the
//!   caller uses it. `State::ended` shows that under its lock.
//! * PROCESSES-3: a forked child is in `mms` before it is in `forked`. It leaves `forked` when it
//!   says hello, and when it is removed.
//! * PROCESSES-4: `program` is 0 until the program runs. Then it stays.
//!
//! Lock order: the locks here are held for single look-ups and changes. No thread takes another
//! lock meanwhile. So a caller may hold `Mm::state`, as a fault thread that follows a fork does.

pub mod candidates;
pub mod host;
pub mod identify;
pub mod inject;
pub mod lineage;

use crate::config::Config;
use crate::mm::Mm;
use crate::wait::signal::Signal;
use candidates::Candidates;
use ebb_mm::folio::MM_END;
use ebb_mm::types::MmId;
use ebb_sys::lifeline::Lifeline;
use ebb_sys::signals;
use lineage::Lineage;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

/// Smallest number of an address space. The epoll keys of the wakeup eventfd and of the store take
/// the numbers 0 and 1.
const MM_FIRST: u32 = 2;

/// Processes of the run.
pub struct Processes {
    pub mms: RwLock<BTreeMap<u32, Arc<Mm>>>,
    next_mm: AtomicU32,
    /// Children of forks that have not said hello yet.
    pub forked: Mutex<Vec<Arc<Mm>>>,
    pub fork_seen: Signal,
    /// Forked children that ask for an agent, or report that they will have none.
    pub candidates: Candidates,
    /// Raised when a process begins to share pages ([`crate::monitor::sharing`]).
    pub sharing_begins: Signal,
    pub program: AtomicU32,
    /// Process number of the supervisor.
    pub supervisor: u32,
    pub lineage: Lineage,
    /// Kills the tied processes when the pager ends, even a process that waits for the pager in the
    /// kernel.
    pub lifeline: Lifeline,
}

impl Processes {
    /// Creates the state of a run whose program does not run yet.
    pub fn new(config: &Config, supervisor: u32) -> std::io::Result<Self> {
        Ok(Self {
            mms: RwLock::default(),
            next_mm: AtomicU32::new(MM_FIRST),
            forked: Mutex::default(),
            fork_seen: Signal::default(),
            candidates: Candidates::new()?,
            sharing_begins: Signal::default(),
            program: AtomicU32::new(0),
            supervisor,
            lineage: Lineage::new(config.root, config.tree)?,
            lifeline: Lifeline::new()?,
        })
    }

    /// Returns a number that no address space has.
    pub fn new_mm_id(&self) -> MmId {
        loop {
            let id = MmId(self.next_mm.fetch_add(1, Relaxed) % MM_END);
            if id.0 >= MM_FIRST && self.mm(id).is_none() {
                return id;
            }
        }
    }

    /// Returns all address spaces.
    pub fn mms(&self) -> Vec<Arc<Mm>> {
        self.mms.read().unwrap_or_else(PoisonError::into_inner).values().cloned().collect()
    }

    /// Returns the address space with this number.
    pub fn mm(&self, id: MmId) -> Option<Arc<Mm>> {
        self.mms.read().unwrap_or_else(PoisonError::into_inner).get(&id.0).cloned()
    }

    /// Adds an address space.
    pub fn insert(&self, mm: &Arc<Mm>) {
        self.mms.write().unwrap_or_else(PoisonError::into_inner).insert(mm.id.0, mm.clone());
    }

    /// Removes an address space.
    pub fn remove(&self, mm: &Arc<Mm>) {
        self.mms.write().unwrap_or_else(PoisonError::into_inner).remove(&mm.id.0);
        self.no_longer_waits(mm);
    }

    /// Records that a forked child has said hello or has ended.
    pub fn no_longer_waits(&self, mm: &Arc<Mm>) {
        let mut forked = self.forked.lock().unwrap_or_else(PoisonError::into_inner);
        forked.retain(|waiting| !Arc::ptr_eq(waiting, mm));
    }

    /// Signals the supervisor to request the detach. Without a supervisor a detach is under way
    /// already.
    pub fn request_detach(&self) {
        // The supervisor's number may be another process's by now.
        if std::os::unix::process::parent_id() == self.supervisor {
            signals::send(self.supervisor, signals::SIGTERM);
        }
    }
}
