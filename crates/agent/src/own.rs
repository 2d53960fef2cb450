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
//! * OWN-3: while the agent's thread joins by itself (AGENT-5), it alone changes the record. Each
//!   thread of the program that needs the agent waits for that: before a hook's call, a fork, a
//!   new thread, a filter of system calls and a lower limit of resources.

use crate::filter;
use crate::join::{self, AgentStack};
use crate::lost;
use crate::passing::Passing;
use crate::pins::{keep, pin_early};
use crate::protocol::{HELLO_FORKED, HELLO_START, Shared};
use crate::state::{ABSENT, AGENT, Agent, COMING, PRESENT};
use crate::syscall::{self, Timespec, call};
use crate::threads::{keep_thread, own_thread_block, pin_thread};
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
/// State: the agent's thread joins by itself (OWN-3).
const LATER: u32 = 4;

/// Interval at which a thread that waits for the agent checks that the agent's thread still lives.
const LOOK: Timespec = Timespec { seconds: 0, nanoseconds: 100_000_000 };

/// Size of the page in bytes.
const LEN: usize = 4096;
const MADV_WIPEONFORK: usize = 18;

/// Record in the page that the kernel wipes in a child.
pub struct Own {
    state: AtomicU32,
    /// Process id of the process that has joined, in its own namespace.
    process: AtomicU32,
    shared: AtomicPtr<Shared>,
    /// Stack of the agent's thread that joins by itself (OWN-3).
    joining: AtomicPtr<AgentStack>,
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
        AGENT.stage.store(PRESENT, Release);
        pin_first(shared, own_thread_block());
    }

    /// Puts the page into effect and lets the agent's thread join by itself (OWN-3). Returns the
    /// page if there can be no thread.
    pub fn joins_later(self) -> Result<(), Self> {
        // SAFETY: `make` made the page, and it stays mapped.
        let own = unsafe { &*self.0 };
        let publish = || {
            OWN.store(self.0, Release);
            AGENT.stage.store(PRESENT, Release);
        };
        if own.join_later(HELLO_START, publish) {
            return Ok(());
        }
        AGENT.stage.store(COMING, Release);
        OWN.store(core::ptr::null_mut(), Release);
        Err(self)
    }

    /// Unmaps the page, because the process has not joined.
    pub fn give_up(self) {
        // SAFETY: `make` made the page, and nothing else refers to it.
        unsafe { call(syscall::MUNMAP, [self.0 as usize, LEN, 0, 0, 0, 0]) };
    }
}

/// Pins what a new program needs in memory, for its first thread with this block. No page of the
/// program has left memory yet.
fn pin_first(shared: &Shared, thread_block: u64) {
    pin_early(shared);
    // Without the page or its pointer, a forked child would find nothing there if the pager has
    // just died. It would then go on without an agent.
    keep(shared, OWN.load(Relaxed) as u64, 8);
    keep(shared, (&raw const OWN) as u64, 8);
    keep(shared, (&raw const AGENT) as u64, size_of::<Agent>() as u64);
    keep_thread(shared, thread_block);
}

impl Own {
    fn set_joined(&self, shared: &'static Shared) {
        self.process.store(this_process(), Relaxed);
        self.shared.store(core::ptr::from_ref(shared).cast_mut(), Relaxed);
        self.state.store(JOINED, Release);
    }

    /// Starts an agent's thread that joins by itself. Calls `publish` once the record says so and
    /// before the thread starts. Returns false if there can be no thread; the page is as before.
    /// A signal handler must not find the record without the thread, because it would wait.
    fn join_later(&self, kind: u32, publish: impl FnOnce()) -> bool {
        let signals = syscall::block_signals();
        let swap = self.state.compare_exchange(WIPED, LATER, Acquire, Relaxed);
        let joins = swap.is_ok() && {
            self.process.store(this_process(), Relaxed);
            publish();
            let prepare = |stack| self.joining.store(stack, Release);
            (kind == HELLO_START || is_far_child())
                && join::join_later(kind, own_thread_block(), prepare)
        };
        if swap.is_ok() && !joins {
            self.joining.store(core::ptr::null_mut(), Release);
            self.state.store(WIPED, Release);
            syscall::wake(&self.state);
        }
        syscall::set_signals(&signals, None);
        joins
    }

    /// Waits for the agent's thread that joins by itself.
    fn wait_for_agent(&self) {
        let began = lost::now();
        while self.state.load(Acquire) == LATER {
            // SAFETY: null before the thread starts; the area stays mapped after that.
            if let Some(stack) = unsafe { self.joining.load(Acquire).as_ref() } {
                stack.end_nap();
                if stack.has_ended() {
                    self.is_left(stack.kind);
                    return;
                }
            }
            syscall::wait(&self.state, LATER, &LOOK);
        }
        if self.state.load(Acquire) == JOINED {
            // SAFETY: the mapping lives as long as the process.
            lost::note(unsafe { &*self.shared.load(Relaxed) }, began);
        }
    }

    /// Records that something else has ended the agent's thread while it joined, for example a
    /// filter of system calls.
    fn is_left(&self, kind: u32) {
        const ECANCELED: u32 = 125;
        if self.state.compare_exchange(LATER, JOINING, Acquire, Relaxed).is_err() {
            return;
        }
        if kind == HELLO_FORKED {
            join::stay_alone(ECANCELED);
        }
        self.set_alone(kind);
    }

    /// Records that this process has no agent. Its children wait for theirs, because this process
    /// is not told how far the limit is.
    fn set_alone(&self, kind: u32) {
        AGENT.alone.store(1, Relaxed);
        if kind == HELLO_START {
            AGENT.stage.store(ABSENT, Release);
        }
        self.state.store(ALONE, Release);
        syscall::wake(&self.state);
    }
}

/// Pins what the process needs in memory, before its agent moves pages. Runs in the agent's thread,
/// which joins by itself.
pub fn pin_before_service(stack: &AgentStack, shared: &Shared) {
    let starter = stack.starter.load(Relaxed);
    if stack.kind == HELLO_START {
        pin_first(shared, starter);
    } else {
        keep_thread(shared, starter);
    }
}

/// Records that the agent's thread of this stack has joined by itself. Runs in that thread.
pub fn joined_later(stack: &AgentStack, shared: &'static Shared) {
    // SAFETY: made by `make`, and mapped for as long as the process lives.
    let own = unsafe { &*OWN.load(Acquire) };
    join::replace_ancestor(shared, core::ptr::from_ref(stack).cast_mut());
    own.set_joined(shared);
    syscall::wake(&own.state);
}

/// Records that this process has no agent. Runs in the agent's thread, which could not join.
pub fn stays_alone(stack: &AgentStack) {
    // SAFETY: made by `make`, and mapped for as long as the process lives.
    unsafe { &*OWN.load(Acquire) }.set_alone(stack.kind);
}

/// Whether this forked child need not wait for its agent: the run is far from its limit, as the
/// ancestor's agent knows. Only the joining thread may ask, because a join unmaps the table.
fn is_far_child() -> bool {
    let table = AGENT.table.load(Acquire);
    // SAFETY: the ancestor's table stays mapped until this process has its own.
    let far = unsafe { table.as_ref() }.is_some_and(|table| table.far.load(Acquire) != 0);
    far && AGENT.alone.load(Relaxed) == 0
}

/// Gives a forked child an agent: at once, or a moment later if the run is far from its limit.
pub fn begin_child() {
    let page = OWN.load(Acquire);
    // SAFETY: null, or made by `make` and mapped for as long as the process lives.
    if let Some(page) = unsafe { page.as_ref() }
        && !filter::is_strict()
        && page.join_later(HELLO_FORKED, || ())
    {
        return;
    }
    own_or_join();
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

/// Waits for the agent of this process, if its thread joins by itself (OWN-3).
pub fn settle() {
    let page = OWN.load(Acquire);
    // SAFETY: null, or made by `make` and mapped for as long as the process lives.
    if let Some(page) = unsafe { page.as_ref() }
        && page.state.load(Acquire) == LATER
    {
        page.wait_for_agent();
    }
}

/// Returns the memory shared with the pager, if this process has an agent. A forked child that has
/// not joined yet joins now. If another thread is joining at that moment, the result is None. If
/// the agent's thread joins by itself, this thread waits for it.
pub fn own_or_join() -> Option<&'static Shared> {
    let page = OWN.load(Acquire);
    if page.is_null() {
        return None;
    }
    // SAFETY: made by `make`, and mapped for as long as the process lives.
    let page = unsafe { &*page };
    let swap = || page.state.compare_exchange(WIPED, JOINING, Acquire, Relaxed);
    if page.state.load(Acquire) == LATER {
        page.wait_for_agent();
    }
    // A program whose agent could not start has no ancestor, and joins in its first thread alone.
    let has_ancestor = !AGENT.table.load(Acquire).is_null();
    if page.state.load(Acquire) == WIPED && has_ancestor && !filter::is_strict() && swap().is_ok() {
        let began = lost::now();
        match join::join_forked() {
            Some(shared) => {
                lost::note(shared, began);
                page.set_joined(shared);
                pin_thread(own_thread_block());
            }
            None => page.set_alone(HELLO_FORKED),
        }
    }
    if page.state.load(Acquire) != JOINED {
        return None;
    }
    // SAFETY: the mapping lives as long as the process.
    Some(unsafe { &*page.shared.load(Relaxed) })
}
