//! Which agent is this process's own.
//!
//! A child of `fork`, however it was made, begins with a copy of all that its parent knew, the parent's agent
//! included, which serves the parent and not the child. So what says "mine" is kept in a page that the
//! kernel wipes in the child (`MADV_WIPEONFORK`). Children that share their parent's memory (`vfork`,
//! `posix_spawn`, threads) share the page, and rightly so.
//!
//! * OWN-1: nothing outside that page says whether this process has an agent; what is there is how to reach
//!   the agent of this process, or that of the ancestor it was forked from.
//! * OWN-2: whoever finds the page wiped joins ([`crate::join`]), if no other thread is at it: so a child joins at
//!   the first hook that it passes, whichever it is.

use crate::filter;
use crate::join;
use crate::lost;
use crate::passing::Passing;
use crate::protocol::Shared;
use crate::syscall::{self, call};
use crate::threads::{own_thread_block, pin_thread};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

/// Wiped: a child of a fork that has not asked yet.
const WIPED: u32 = 0;
/// A thread is at it.
const JOINING: u32 = 1;
/// There is an agent.
const JOINED: u32 = 2;
/// There is none and will be none.
const ALONE: u32 = 3;

/// Bytes of the page.
const LEN: usize = 4096;
const MADV_WIPEONFORK: usize = 18;

/// The page.
pub struct Own {
    state: AtomicU32,
    /// The process that has joined, by its number for itself.
    process: AtomicU32,
    shared: AtomicPtr<Shared>,
    passing: Passing,
}

/// Null in a process that never had an agent, nor any it was forked from.
static OWN: AtomicPtr<Own> = AtomicPtr::new(core::ptr::null_mut());

/// Makes the page, for the first process of a program. It does not count yet: see [`Page::joined`].
pub fn make() -> Option<Page> {
    // READ | WRITE, PRIVATE | ANONYMOUS
    // SAFETY: a fresh mapping, of zeros, at an address of the kernel's choice.
    let page = unsafe { call(syscall::MMAP, [0, LEN, 3, 0x22, usize::MAX, 0]) };
    if page < 0 {
        return None;
    }
    // SAFETY: the mapping just made.
    let advised = unsafe { call(syscall::MADVISE, [page as usize, LEN, MADV_WIPEONFORK, 0, 0, 0]) };
    if advised < 0 {
        // SAFETY: as above.
        unsafe { call(syscall::MUNMAP, [page as usize, LEN, 0, 0, 0, 0]) };
        return None;
    }
    Some(Page(page as *mut Own))
}

/// A page that does not count yet.
pub struct Page(*mut Own);

impl Page {
    /// The process has joined, with this memory.
    pub fn joined(self, shared: &'static Shared) {
        // SAFETY: made by `make` and given up by nobody.
        unsafe { &*self.0 }.set_joined(shared);
        OWN.store(self.0, Release);
    }

    /// It has not.
    pub fn give_up(self) {
        // SAFETY: made by `make`; nobody else knows it.
        unsafe { call(syscall::MUNMAP, [self.0 as usize, LEN, 0, 0, 0, 0]) };
    }

    /// Where it and its address lie. They must stay in memory: a forked child that finds nothing there, because the
    /// pager has just died, would go on without.
    pub fn places(&self) -> [u64; 2] {
        [self.0 as u64, (&raw const OWN) as u64]
    }
}

impl Own {
    fn set_joined(&self, shared: &'static Shared) {
        self.process.store(this_process(), Relaxed);
        self.shared.store(core::ptr::from_ref(shared).cast_mut(), Relaxed);
        self.state.store(JOINED, Release);
    }
}

fn this_process() -> u32 {
    // SAFETY: takes nothing.
    unsafe { call(syscall::GETPID, [0; 6]) as u32 }
}

/// Whether this is a process that has joined, and no child that borrows the memory of one (`vfork`).
pub fn is_own_process() -> bool {
    let page = OWN.load(Acquire);
    // SAFETY: null, or made by `make`, and there for as long as the process.
    let page = unsafe { page.as_ref() };
    page.is_some_and(|page| page.process.load(Relaxed) == this_process())
}

/// Who changes what forks pass on, and who forks.
pub fn own_passing() -> Option<&'static Passing> {
    let page = OWN.load(Acquire);
    // SAFETY: null, or made by `make`, and there for as long as the process.
    unsafe { page.as_ref() }.map(|page| &page.passing)
}

/// The memory shared with the pager, if this process has an agent. A child that has not asked for one does so
/// now. Whoever comes while another thread is at that goes on without.
pub fn own() -> Option<&'static Shared> {
    let page = OWN.load(Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: made by `make`, and there for as long as the process.
    let page = unsafe { &*page };
    let swap = || page.state.compare_exchange(WIPED, JOINING, Acquire, Relaxed);
    if page.state.load(Acquire) == WIPED && !filter::is_strict() && swap().is_ok() {
        let began = lost::now();
        match join::join_forked() {
            Some(shared) => {
                lost::note(shared, began);
                page.set_joined(shared);
                pin_thread(own_thread_block());
            }
            None => page.state.store(ALONE, Release),
        }
    }
    if page.state.load(Acquire) != JOINED {
        return None;
    }
    // SAFETY: the mapping lives as long as the process.
    Some(unsafe { &*page.shared.load(Relaxed) })
}
