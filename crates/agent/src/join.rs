//! Joins a process to the pager: starts the agent's thread, which does the rest ([`crate::hello`]).
//!
//! The functions run on the program's own threads, before the program's code or in between,
//! wherever `fork` may be called. They use no library function, no allocation and no lock. They
//! leave the signal mask as it was and open no descriptor, not even for a moment. The agent's
//! thread has its own descriptor table for that.
//!
//! * JOIN-1: a forked child has its own agent or none. If it cannot have one, it reports that to
//!   the pager. If the pager does not even receive the report, the pager is dead, and nothing would
//!   bring the child's pages back. The child then ends (AGENT-3).
//! * JOIN-2: all memory that the agent's thread maps for itself lies in one area ([`AREA_BYTES`]),
//!   which exists before the program's code goes on. So no mapping appears where the program has
//!   just seen a gap.

use crate::calls::ask;
use crate::hello::make_pool;
use crate::protocol::{ASK_ALONE, DISCARD_AREA_BYTES, HELLO_FORKED, HELLO_START, Shared};
use crate::state::{AGENT, die};
use crate::syscall::{self, Timespec, call, spawn};
use crate::worker;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64};

/// State of the agent's thread: it is starting.
const STARTING: u32 = 0;
/// State of the agent's thread: it serves.
const SERVING: u32 = 1;
/// State of the agent's thread: it has ended, or is about to end.
const FAILED: u32 = 2;
/// State of the agent's thread: it is apart from the program's descriptors and working directory,
/// and starts on.
const APART: u32 = 3;
/// State of the agent's thread: it is starting in place of one that has stepped aside.
const AGAIN: u32 = 4;

const MADV_DONTDUMP: usize = 16;
/// Interval at which the joining thread checks that the agent's thread still lives.
const LOOK: Timespec = Timespec { seconds: 0, nanoseconds: 100_000_000 };

/// Time that a process runs before its agent joins, if it need not wait for the agent.
const NAP: Timespec = Timespec { seconds: 0, nanoseconds: 5_000_000 };

/// Bytes of an [`AgentStack`].
pub const AGENT_STACK_BYTES: usize = 40 << 10;
/// Offset in an [`AgentStack`] of the stack that a thread of the program uses ([`crate::aside`]).
const ASIDE_TOP: usize = 16 << 10;
/// Offset in an [`AgentStack`] of the stack of a thread that only shows that there can be one.
const TRIAL_TOP: usize = 4 << 10;
const _: () = assert!(size_of::<AgentStack>() < TRIAL_TOP / 2);
/// Bytes of the memory shared with the pager, in whole pages.
pub const TABLE_BYTES: usize = size_of::<Shared>().next_multiple_of(4096);
/// Bytes of the area of an agent: its stack, the memory shared with the pager, and the discard area
/// (JOIN-2).
pub const AREA_BYTES: usize = AGENT_STACK_BYTES + TABLE_BYTES + DISCARD_AREA_BYTES as usize;

/// Stack and thread block of the agent's thread, at the start of the agent's area. The pager never
/// moves this memory out, because the mapping is shared. A forked child shares its parent's mapping
/// until it has an agent of its own, and then unmaps it.
#[repr(C)]
pub struct AgentStack {
    /// Thread block of zeros: a stack protector would read offset 0x28 of it.
    block: [u64; 64],
    state: AtomicU32,
    /// Reason of a failure: an errno.
    reason: AtomicU32,
    /// 1 until the thread has ended. The kernel clears this word itself, so no filter of system
    /// calls can prevent it.
    alive: AtomicU32,
    /// 1 once a thread of the program waits for the agent, which then ends its nap.
    hurry: AtomicU32,
    shared: AtomicPtr<Shared>,
    /// Thread block of the thread that did not wait for the agent; 0 if it waits.
    pub starter: AtomicU64,
    /// Kind of hello that the thread sends: for a new program or for a forked child.
    pub kind: u32,
    /// Descriptors of the agent's thread in its own table, once it serves.
    pub own: Descriptors,
    /// Descriptors of the program's table that the thread keeps when it starts again
    /// ([`crate::aside`]).
    pub kept: Descriptors,
}

/// Descriptors of the agent's thread, where threads share them.
pub struct Descriptors([AtomicU32; 3]);

impl Descriptors {
    /// Stores the descriptors.
    pub fn set(&self, kept: Kept) {
        for (place, value) in self.0.iter().zip(kept.0) {
            place.store(value as u32, Relaxed);
        }
    }

    /// Returns the descriptors.
    pub fn get(&self) -> Kept {
        Kept([0, 1, 2].map(|at| self.0[at].load(Relaxed) as usize))
    }
}

/// Descriptors of the agent's thread: the line, the userfaultfd, and the one that ties the process
/// to the pager's life ([`NONE`] where there is none).
#[derive(Clone, Copy)]
pub struct Kept(pub [usize; 3]);

/// Number that stands for no descriptor.
pub const NONE: usize = u32::MAX as usize;

impl Kept {
    /// Passes each descriptor to `to`.
    pub fn each(&self, to: impl FnMut(usize)) {
        self.0.into_iter().filter(|&descriptor| descriptor != NONE).for_each(to);
    }

    /// Returns what `get` returns for each descriptor. If it returns None for one, returns the
    /// others as an error.
    pub fn try_map(&self, get: impl Fn(usize) -> Option<usize>) -> Result<Self, Self> {
        let mut all = true;
        let got = self.0.map(|descriptor| match descriptor {
            NONE => NONE,
            descriptor => get(descriptor).unwrap_or_else(|| {
                all = false;
                NONE
            }),
        });
        if all { Ok(Self(got)) } else { Err(Self(got)) }
    }
}

impl AgentStack {
    fn make(kind: u32) -> Option<*mut Self> {
        // READ | WRITE, SHARED | ANONYMOUS | NORESERVE
        // SAFETY: a fresh mapping of zeros at an address of the kernel's choice; the advice changes
        // no content.
        unsafe {
            let at = call(syscall::MMAP, [0, AREA_BYTES, 3, 0x4021, usize::MAX, 0]);
            if at < 0 {
                return None;
            }
            call(syscall::MADVISE, [at as usize, AREA_BYTES, MADV_DONTDUMP, 0, 0, 0]);
            let stack = at as *mut Self;
            (*stack).kind = kind;
            (*stack).alive = AtomicU32::new(1);
            Some(stack)
        }
    }

    /// Returns the place of the memory shared with the pager, in the agent's area.
    pub fn table_place(&self) -> usize {
        core::ptr::from_ref(self) as usize + AGENT_STACK_BYTES
    }

    /// Returns the place of the discard area, in the agent's area.
    pub fn discard_place(&self) -> usize {
        self.table_place() + TABLE_BYTES
    }

    /// Unmaps the whole area.
    ///
    /// # Safety
    /// Nothing may use the area any more, and no thread may run on it.
    unsafe fn unmap(this: *mut Self) {
        // SAFETY: as promised.
        unsafe { call(syscall::MUNMAP, [this as usize, AREA_BYTES, 0, 0, 0, 0]) };
    }

    /// Returns whether the thread that started this agent did not wait for it.
    pub fn is_later(&self) -> bool {
        self.starter.load(Relaxed) != 0
    }

    /// Lets the thread that does not wait for this agent go on. Then waits a moment, for a process
    /// that ends soon, or until a thread of the program waits.
    pub fn nap(&self) {
        if self.is_later() {
            self.settle(APART);
            if self.hurry.load(Acquire) == 0 {
                syscall::wait(&self.hurry, 0, &NAP);
            }
        }
    }

    /// Ends the agent's nap.
    pub fn end_nap(&self) {
        if self.hurry.swap(1, Release) == 0 {
            syscall::wake(&self.hurry);
        }
    }

    /// Waits until the state is another than `state`. Returns false if the agent's thread has ended
    /// instead.
    fn leaves_state(&self, state: u32) -> bool {
        while self.state.load(Acquire) == state {
            if self.has_ended() {
                return self.state.load(Acquire) != state;
            }
            syscall::wait(&self.state, state, &LOOK);
        }
        true
    }

    /// Returns whether the agent's thread has ended.
    pub fn has_ended(&self) -> bool {
        self.alive.load(Acquire) == 0
    }

    /// Reports that the thread serves from now on.
    pub fn serves(&self, shared: &Shared) {
        self.shared.store(core::ptr::from_ref(shared).cast_mut(), Relaxed);
        self.settle(SERVING);
    }

    /// Reports a failure and ends the thread. The waiting thread unmaps this memory once the
    /// agent's thread has ended.
    pub fn fails(&self, reason: u32) -> ! {
        self.reason.store(reason, Relaxed);
        self.settle(FAILED);
        loop {
            // SAFETY: ends this thread.
            unsafe { call(syscall::EXIT, [0; 6]) };
        }
    }

    /// Returns the top of the part of the agent's stack on which a thread of the program runs while
    /// the agent's thread has stepped aside. The agent's thread never reaches down there.
    pub fn aside_top(&self) -> usize {
        core::ptr::from_ref(self) as usize + ASIDE_TOP
    }

    /// Returns the top of the part of the agent's stack for a thread that ends at once.
    pub fn trial_top(&self) -> usize {
        core::ptr::from_ref(self) as usize + TRIAL_TOP
    }

    /// Waits until the agent's thread has ended.
    pub fn wait_for_end(&self, look: &Timespec) {
        while !self.has_ended() {
            syscall::wait(&self.alive, 1, look);
        }
    }

    /// Starts an agent's thread again, with the descriptors [`Self::kept`], and waits until it
    /// serves. Returns false if there can be no thread now.
    pub fn start_again(&self) -> bool {
        self.starter.store(0, Relaxed);
        self.alive.store(1, Relaxed);
        self.state.store(AGAIN, Release);
        if start(core::ptr::from_ref(self).cast_mut()) < 0 {
            self.alive.store(0, Relaxed);
            return false;
        }
        self.leaves_state(AGAIN)
    }

    /// Returns the memory shared with the pager, if this thread starts again after another.
    pub fn starts_again(&self) -> Option<&'static Shared> {
        // SAFETY: the mapping lives as long as the process.
        (self.state.load(Acquire) == AGAIN).then(|| unsafe { &*self.shared.load(Relaxed) })
    }

    fn settle(&self, state: u32) {
        // Pairs with the Acquire load of the waiting thread.
        self.state.store(state, Release);
        syscall::wake(&self.state);
    }
}

/// Failure to join: an errno, and whether the agent's thread has already reported the failure to
/// the pager.
struct Failure {
    reason: u32,
    told: bool,
}

/// Result of a successful join.
struct Joined {
    shared: &'static Shared,
    stack: *mut AgentStack,
}

/// Joins a new program. Returns the memory shared with the pager, or an errno.
pub fn join_new() -> Result<&'static Shared, u32> {
    make_pool()?;
    let joined = join(HELLO_START).map_err(|failure| failure.reason)?;
    AGENT.table.store(core::ptr::from_ref(joined.shared).cast_mut(), Release);
    AGENT.stack.store(joined.stack, Release);
    Ok(joined.shared)
}

/// Joins a forked child. Returns the memory shared with the pager, or None if the child has no
/// agent.
pub fn join_forked() -> Option<&'static Shared> {
    let table = AGENT.table.load(Acquire);
    if table.is_null() {
        return None;
    }
    match join(HELLO_FORKED) {
        Ok(joined) => {
            replace_ancestor(joined.shared, joined.stack);
            Some(joined.shared)
        }
        Err(Failure { reason, told }) => {
            if !told {
                stay_alone(reason);
            }
            None
        }
    }
}

/// Reports to the pager that this process, a forked child, has no agent (JOIN-1).
pub fn stay_alone(reason: u32) {
    let table = AGENT.table.load(Acquire);
    // SAFETY: the ancestor's table stays mapped until this process has its own.
    if ask(unsafe { &*table }, ASK_ALONE, [u64::from(reason), 0]).is_none() {
        die();
    }
}

/// Records the agent of this process in place of the ancestor's, and unmaps the ancestor's memory,
/// which this process no longer uses.
pub fn replace_ancestor(shared: &Shared, stack: *mut AgentStack) {
    // The table is stored first, because a child forked by another thread in between must find its
    // ancestor's table mapped.
    AGENT.table.store(core::ptr::from_ref(shared).cast_mut(), Release);
    let ancestor = AGENT.stack.swap(stack, Release);
    if !ancestor.is_null() {
        // SAFETY: the ancestor's thread does not run in this process.
        unsafe { AgentStack::unmap(ancestor) };
    }
}

/// Starts the agent's thread, and waits only until it has left the program's descriptors and
/// working directory (AGENT-5). No process may find these in use because of it. `prepare` gets the
/// agent's stack before the thread starts. Returns false if there can be no thread. The area stays
/// then, because another thread may look at it.
pub fn join_later(kind: u32, starter: u64, prepare: impl FnOnce(*mut AgentStack)) -> bool {
    let Some(stack) = AgentStack::make(kind) else { return false };
    // SAFETY: the mapping just made.
    let place = unsafe { &*stack };
    place.starter.store(starter, Relaxed);
    prepare(stack);
    start(stack) >= 0 && place.leaves_state(STARTING)
}

/// Starts the agent's thread and waits until it serves.
fn join(kind: u32) -> Result<Joined, Failure> {
    const ENOMEM: u32 = 12;
    const ECANCELED: u32 = 125;
    let stack = AgentStack::make(kind).ok_or(Failure { reason: ENOMEM, told: false })?;
    let failed = |reason, told| {
        // SAFETY: the mapping just made, in which no thread runs.
        unsafe { AgentStack::unmap(stack) };
        Err(Failure { reason, told })
    };
    let thread = start(stack);
    if thread < 0 {
        return failed(thread.unsigned_abs() as u32, false);
    }
    // SAFETY: the memory is mapped, and both threads access it only through atomics.
    let place = unsafe { &*stack };
    place.leaves_state(STARTING);
    if place.state.load(Acquire) != SERVING {
        // The area can be unmapped only after the thread's end.
        place.wait_for_end(&LOOK);
        // If the thread ended without a reason, something else ended it, for example a seccomp
        // filter.
        let told = place.state.load(Acquire) == FAILED;
        let reason = if told { place.reason.load(Relaxed) } else { ECANCELED };
        return failed(reason, told);
    }
    // SAFETY: the mapping lives as long as the process.
    Ok(Joined { shared: unsafe { &*place.shared.load(Relaxed) }, stack })
}

/// Starts the agent's thread with every signal blocked. Returns its thread id, or a negated errno.
fn start(stack: *mut AgentStack) -> isize {
    let before = syscall::block_signals();
    let top = (stack as usize + AGENT_STACK_BYTES) & !63;
    // SAFETY: only the new thread uses the agent's stack.
    let thread = unsafe {
        let alive = &raw const (*stack).alive;
        spawn(worker::run, stack as usize, top, stack as usize, syscall::AGENTS, alive)
    };
    syscall::set_signals(&before, None);
    thread
}
