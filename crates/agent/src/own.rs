//! Keeps the record of which agent belongs to this process.
//!
//! A child of `fork`, however it is made, begins with a copy of all its parent's memory. That
//! includes the way to the parent's agent, which serves the parent and not the child. The record is
//! therefore in a page that the kernel wipes in the child (`MADV_WIPEONFORK`). Children that share
//! their parent's memory (`vfork`, `posix_spawn`, threads) rightly share the page.
//!
//! * OWN-1: only that page says whether this process has an agent. Data outside the page say how to
//!   reach the agent of this process, or that of the ancestor it was forked from.
//! * OWN-2: a thread that finds the page wiped joins ([`crate::join`]), unless another thread is
//!   already joining. A child thus joins at the first hook that it calls.

use crate::filter;
use crate::join;
use crate::lost;
use crate::passing::Passing;
use crate::protocol::Shared;
use crate::syscall::{self, call};
use crate::threads::{own_thread_block, pin_thread};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

/// State: the page is wiped. This is a forked child that has not joined yet.
const WIPED: u32 = 0;
/// State: a thread is joining.
const JOINING: u32 = 1;
/// State: this process has an agent.
const JOINED: u32 = 2;
/// State: this process has no agent and will have none.
const ALONE: u32 = 3;

/// Size of the page in bytes.
const LEN: usize = 4096;
const MADV_WIPEONFORK: usize = 18;

/// Record in the page that the kernel wipes in a child.
pub struct Own {
    state: AtomicU32,
    /// Process id of the process that has joined, in its own namespace.
    process: AtomicU32,
    shared: AtomicPtr<Shared>,
    passing: Passing,
}

/// Address of the page; null if neither this process nor an ancestor has ever had an agent.
static OWN: AtomicPtr<Own> = AtomicPtr::new(core::ptr::null_mut());

/// Makes the page, for the first process of a program. It takes effect with [`Page::joined`].
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
        // SAFETY: the mapping just made.
        unsafe { call(syscall::MUNMAP, [page as usize, LEN, 0, 0, 0, 0]) };
        return None;
    }
    Some(Page(page as *mut Own))
}

/// Page that is not in effect yet.
pub struct Page(*mut Own);

impl Page {
    /// Puts the page into effect: the process has joined, with this shared memory.
    pub fn joined(self, shared: &'static Shared) {
        // SAFETY: `make` made the page, and it stays mapped.
        unsafe { &*self.0 }.set_joined(shared);
        OWN.store(self.0, Release);
    }

    /// Unmaps the page, because the process has not joined.
    pub fn give_up(self) {
        // SAFETY: `make` made the page, and nothing else refers to it.
        unsafe { call(syscall::MUNMAP, [self.0 as usize, LEN, 0, 0, 0, 0]) };
    }

    /// Returns the addresses of the page and of its pointer. Both must stay in memory. Otherwise a
    /// forked child would find nothing there if the pager has just died. It would then go on
    /// without an agent.
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
    // SAFETY: GETPID takes no argument.
    unsafe { call(syscall::GETPID, [0; 6]) as u32 }
}

/// Returns whether this process has joined. A child that borrows the memory of such a process
/// (`vfork`) has not.
pub fn is_own_process() -> bool {
    let page = OWN.load(Acquire);
    // SAFETY: null, or made by `make` and mapped for as long as the process lives.
    let page = unsafe { page.as_ref() };
    page.is_some_and(|page| page.process.load(Relaxed) == this_process())
}

/// Returns the lock between forks and advice that changes what a fork inherits.
pub fn own_passing() -> Option<&'static Passing> {
    let page = OWN.load(Acquire);
    // SAFETY: null, or made by `make` and mapped for as long as the process lives.
    unsafe { page.as_ref() }.map(|page| &page.passing)
}

/// Returns the memory shared with the pager, if this process has an agent. A forked child that has
/// not joined yet joins now. If another thread is joining at that moment, the result is None.
pub fn own_or_join() -> Option<&'static Shared> {
    let page = OWN.load(Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: made by `make`, and mapped for as long as the process lives.
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
