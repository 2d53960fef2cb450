//! Budget: the pages that the run may keep in memory, and the threads that wait for one.
//!
//! Reclaim, faults and changes of the limit meet here. A fault thread takes a charge from the
//! engine's zone, and asks for memory if there is none. kswapd makes room: it takes the engine's
//! orders, and moves pages to the store. The monitor writes the measured size of the tree into the
//! zone, freezes threads, and moves the limit. The budget owns:
//! * the engine, which has the frames, the LRU lists, the swap slots and the zone with the limit.
//! * the store, which has the contents of the pages that are not in memory.
//! * the signal and the requests that wake kswapd, and the requests of users.
//! * the counts of the threads that wait for memory. They decide when a run is out of memory
//!   (`reclaim/oom.rs`).
//!
//! The rules:
//! * BUDGET-1: `memory_stalled` and its time change under the lock of `Pending`. So they agree with
//!   the list of deferred faults. The monitor alone writes `frozen` and its time.
//! * BUDGET-2: readers of a count and its time take no lock, so for a moment the two may not agree.
//!   A time of 0 does not count.
//! * BUDGET-3: a slot becomes free in the engine only after its page has left the store
//!   ([`Budget::discard`]). Otherwise the next page of that slot could be lost.
//! * BUDGET-4: kswapd alone takes `requests`, and the monitor alone takes `limit_requests`.
//!
//! Lock order: [`Budget::engine`] comes after `Mm::state` and `Pending` (`lib.rs`). The locks in
//! the signal and in the requests come last. Each of them is held for a single operation.

pub mod requests;

use crate::config::Config;
use crate::seam::Storage;
use crate::wait::limits::SLICE_PAGES;
use crate::wait::signal::Signal;
use crate::wait::spin;
use ebb_mm::engine::{Engine, Evidence};
use ebb_mm::reclaim::{RequestResult, WakeRequests};
use ebb_mm::resident::{Dropped, Resident};
use ebb_mm::types::PAGE_SIZE;
use requests::{LimitRequests, Requests};
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Mutex, MutexGuard};

/// State that reclaim, faults and changes of the limit share.
pub struct Budget {
    pub engine: Mutex<Engine>,
    pub store: Box<dyn Storage>,
    pub kswapd: Signal,
    /// Requests for memory to kswapd.
    pub wake_requests: WakeRequests,
    /// Number of faults that wait for memory.
    pub memory_stalled: AtomicU32,
    /// Start of the longest wait for memory ([`crate::wait::patience::Moment::ms`]); 0 if no fault
    /// waits for memory.
    pub memory_stalled_since_ms: AtomicU64,
    /// Number of threads frozen by the freezer.
    pub frozen: AtomicU32,
    /// Start of the longest freeze under way, in the unit of `memory_stalled_since_ms`.
    pub frozen_since_ms: AtomicU64,
    /// Commands of `ebb lru-gen` for kswapd.
    pub requests: Requests,
    /// New limits requested from the monitor.
    pub limit_requests: LimitRequests,
}

/// The engine's resident set, locked while this value lives.
pub struct Set<'a>(MutexGuard<'a, Engine>);

impl Deref for Set<'_> {
    type Target = Resident;

    fn deref(&self) -> &Resident {
        &self.0.set
    }
}

impl DerefMut for Set<'_> {
    fn deref_mut(&mut self) -> &mut Resident {
        &mut self.0.set
    }
}

impl Budget {
    /// Creates the budget of a run with these settings.
    pub fn new(config: &Config, store: Box<dyn Storage>) -> std::io::Result<Self> {
        let pages = config.memory_max_bytes / PAGE_SIZE as u64;
        let high = config.memory_high_bytes.map_or(pages, |high| high / PAGE_SIZE as u64);
        let tunables = config.tunables().map_err(std::io::Error::other)?;
        let engine = Engine::new(pages, high, tunables, Evidence::Standby)
            .with_standby_most(config.standby_permille)
            .with_split(config.split());
        Ok(Self {
            engine: Mutex::new(engine),
            store,
            kswapd: Signal::default(),
            wake_requests: WakeRequests::new(),
            memory_stalled: AtomicU32::new(0),
            memory_stalled_since_ms: AtomicU64::new(0),
            frozen: AtomicU32::new(0),
            frozen_since_ms: AtomicU64::new(0),
            requests: Requests::default(),
            limit_requests: LimitRequests::default(),
        })
    }

    /// Returns the current limit in bytes.
    pub fn memory_max_bytes(&self) -> u64 {
        self.resident().zone.limit() * PAGE_SIZE as u64
    }

    /// Returns the current limit and the goal of reclaim, in bytes.
    pub fn limits(&self) -> (u64, u64) {
        let resident = self.resident();
        let bytes = |pages: u64| pages * PAGE_SIZE as u64;
        (bytes(resident.zone.limit()), bytes(resident.zone.high()))
    }

    /// Locks the engine of the run.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        spin::lock(&self.engine)
    }

    /// Locks the engine and gives access to its resident set.
    pub fn resident(&self) -> Set<'_> {
        Set(self.engine())
    }

    /// Asks kswapd for memory. Wakes it unless there is enough.
    pub fn wake_kswapd(&self) {
        match self.engine().request_wake(&self.wake_requests) {
            // An awake kswapd may be waiting for a page to become reclaimable.
            RequestResult::Wake | RequestResult::Recorded => self.kswapd.raise(),
            RequestResult::LetSleep => {}
        }
    }

    /// Removes stored pages to which no entry refers any more.
    pub fn discard(&self, dropped: &Dropped) {
        if dropped.slots.is_empty() {
            return;
        }
        for &slot in &dropped.slots {
            self.store.remove(slot);
        }
        for slice in dropped.slots.chunks(SLICE_PAGES as usize) {
            let mut resident = self.resident();
            slice.iter().for_each(|&slot| resident.slots.recycle(slot));
        }
    }
}
