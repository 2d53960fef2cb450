//! Descriptors that wake the fault threads, and the state of these threads that other threads read.
//!
//! The first fault thread waits for every descriptor: userfaultfds, links to agents, completions of
//! the store, and an eventfd for all other events. An additional fault thread waits for
//! userfaultfds only. `faults/mod.rs` has the work of these threads, and `faults/pending.rs` the
//! work that they hand to each other.
//!
//! * WAITING-1: every userfaultfd is in all epoll sets. Any other descriptor is in the first set
//!   alone.
//! * WAITING-2: an address space leaves all sets before it is dropped. A key that was read before
//!   that finds no address space.
//! * WAITING-3: a thread that makes room first changes the state for which faults wait. Then it
//!   calls [`FaultThreads::wake_if_deferred`]. The first fault thread retries every millisecond in
//!   any case, so a missed count costs no more.
//! * WAITING-4: `deferred` changes under the lock of `Pending`, with the list that it counts.
//!
//! Lock order: this state has no lock. [`CpuFollow`] takes its own for single operations. No
//! function here waits, so a caller may hold any lock.

pub mod cpu_follow;

use crate::config::Config;
use crate::mm::Mm;
use cpu_follow::{CPUS_MAX, CpuFollow};
use ebb_mm::types::MmId;
use ebb_sys::sched::CpuSet;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

/// Epoll key of the wakeup eventfd.
pub const EPOLL_KEY_WAKE: u64 = 0;
/// Epoll key of the store's completions.
pub const EPOLL_KEY_STORE: u64 = 4;

/// Returns the epoll key of an address space's userfaultfd.
pub fn epoll_key_uffd(mm: MmId) -> u64 {
    (u64::from(mm.0) << 2) | 1
}

/// Returns the epoll key of an agent's connection.
pub fn epoll_key_link(mm: MmId) -> u64 {
    (u64::from(mm.0) << 2) | 2
}

/// State that other threads share with the fault threads.
pub struct FaultThreads {
    pub epoll: OwnedFd,
    /// Epoll sets of the additional fault threads, one for each CPU. These sets have userfaultfds
    /// only.
    pub epoll_beside: Vec<OwnedFd>,
    wake: OwnedFd,
    /// Number of deferred faults. Each waits for memory, the end of a batch or the end of a mapping
    /// change.
    pub deferred: AtomicU32,
    pub cpu_follow: CpuFollow,
}

impl FaultThreads {
    /// Creates the epoll sets. The first one has the wakeup eventfd.
    pub fn new(config: &Config) -> std::io::Result<Self> {
        let new_epoll = || epoll::create(epoll::CreateFlags::CLOEXEC);
        let cpus = CpuSet::of_this_thread().map_or(0, |cpus| cpus.count() as usize);
        let beside = if config.cpu_follow && cpus > 1 && cpus <= CPUS_MAX { cpus } else { 0 };
        let threads = Self {
            epoll: new_epoll()?,
            epoll_beside: (0..beside).map(|_| new_epoll()).collect::<Result<_, _>>()?,
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            deferred: AtomicU32::new(0),
            cpu_follow: CpuFollow::default(),
        };
        threads.watch(&threads.wake, EPOLL_KEY_WAKE)?;
        Ok(threads)
    }

    /// Adds `fd` to the first fault thread's epoll set.
    pub fn watch(&self, fd: impl AsFd, token: u64) -> std::io::Result<()> {
        let data = epoll::EventData::new_u64(token);
        Ok(epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN)?)
    }

    /// Adds the userfaultfd of an address space to all epoll sets.
    pub fn watch_uffd(&self, mm: &Mm) -> std::io::Result<()> {
        let Some(fd) = mm.uffd.descriptor() else { return Ok(()) };
        let token = epoll_key_uffd(mm.id);
        for epoll in &self.epoll_beside {
            epoll::add(epoll, fd, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?;
        }
        self.watch(fd, token)
    }

    /// Removes `fd` from all epoll sets.
    pub fn unwatch(&self, fd: Option<BorrowedFd<'_>>) {
        if let Some(fd) = fd {
            for epoll in self.epoll_beside.iter().chain([&self.epoll]) {
                // The descriptor may be closed or removed already, or may not be in this set.
                let _ = epoll::delete(epoll, fd);
            }
        }
    }

    /// Whether the first fault thread has something to read.
    pub fn has_messages(&self) -> bool {
        let mut epoll = [PollFd::new(&self.epoll, PollFlags::IN)];
        matches!(poll(&mut epoll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(1))
    }

    /// Wakes the first fault thread, because memory is free or another awaited event has occurred.
    pub fn wake(&self) {
        // If the counter is full, the eventfd is readable already.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Wakes the first fault thread if faults are deferred, because an event for which they wait
    /// may have occurred.
    pub fn wake_if_deferred(&self) {
        if self.deferred.load(Relaxed) > 0 {
            self.wake();
        }
    }

    /// Clears the wakeup eventfd.
    pub fn clear_wake(&self) {
        let mut counter = [0; 8];
        let _ = rustix::io::read(&self.wake, &mut counter);
    }
}
