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

use crate::calls::ask;
use crate::protocol::{ASK_ALONE, DISCARD_AREA_BYTES, HELLO_FORKED, HELLO_START, Shared};
use crate::state::{AGENT, die};
use crate::syscall::{self, Timespec, call, spawn};
use crate::worker;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

/// State of the agent's thread: it is starting.
const STARTING: u32 = 0;
/// State of the agent's thread: it serves.
const SERVING: u32 = 1;
/// State of the agent's thread: it has ended, or is about to end.
const FAILED: u32 = 2;

const MADV_DONTDUMP: usize = 16;
/// Interval at which the joining thread checks that the agent's thread still lives.
const LOOK: Timespec = Timespec { seconds: 0, nanoseconds: 100_000_000 };

/// Bytes of an [`AgentStack`].
pub const AGENT_STACK_BYTES: usize = 40 << 10;

/// Stack and thread block of the agent's thread. The pager never moves this memory out, because the
/// mapping is shared. A forked child shares its parent's mapping until it has an agent of its own,
/// and then unmaps it.
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
    shared: AtomicPtr<Shared>,
    /// Kind of hello that the thread sends: for a new program or for a forked child.
    pub kind: u32,
}

impl AgentStack {
    fn make(kind: u32) -> Option<*mut Self> {
        // READ | WRITE, SHARED | ANONYMOUS
        // SAFETY: a fresh mapping of zeros at an address of the kernel's choice; the advice changes
        // no content.
        unsafe {
            let at = call(syscall::MMAP, [0, AGENT_STACK_BYTES, 3, 0x21, usize::MAX, 0]);
            if at < 0 {
                return None;
            }
            call(syscall::MADVISE, [at as usize, AGENT_STACK_BYTES, MADV_DONTDUMP, 0, 0, 0]);
            let stack = at as *mut Self;
            (*stack).kind = kind;
            (*stack).alive = AtomicU32::new(1);
            Some(stack)
        }
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
            // The table is stored first, because a child forked by another thread in between must
            // find its ancestor's table mapped.
            AGENT.table.store(core::ptr::from_ref(joined.shared).cast_mut(), Release);
            let stack = AGENT.stack.swap(joined.stack, Release);
            // SAFETY: both are the ancestor's, and this process no longer uses them.
            unsafe { let_go(table, stack) };
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

/// Unmaps the memory of an ancestor's agent.
///
/// # Safety
/// Both must be mapped, and unused.
unsafe fn let_go(table: *mut Shared, stack: *mut AgentStack) {
    // SAFETY: as promised.
    unsafe {
        let discard_area = (*table).discard_area.load(Relaxed) as usize;
        if discard_area != 0 {
            call(syscall::MUNMAP, [discard_area, DISCARD_AREA_BYTES as usize, 0, 0, 0, 0]);
        }
        let len = size_of::<Shared>().next_multiple_of(4096);
        call(syscall::MUNMAP, [table as usize, len, 0, 0, 0, 0]);
        call(syscall::MUNMAP, [stack as usize, AGENT_STACK_BYTES, 0, 0, 0, 0]);
    }
}

/// Starts the agent's thread and waits until it serves.
fn join(kind: u32) -> Result<Joined, Failure> {
    const ENOMEM: u32 = 12;
    const ECANCELED: u32 = 125;
    let stack = AgentStack::make(kind).ok_or(Failure { reason: ENOMEM, told: false })?;
    let failed = |reason, told| {
        // SAFETY: the mapping just made, in which no thread runs.
        unsafe { call(syscall::MUNMAP, [stack as usize, AGENT_STACK_BYTES, 0, 0, 0, 0]) };
        Err(Failure { reason, told })
    };
    let thread = start(stack);
    if thread < 0 {
        return failed(thread.unsigned_abs() as u32, false);
    }
    // SAFETY: the memory is mapped, and both threads access it only through atomics.
    let place = unsafe { &*stack };
    let served = || place.state.load(Acquire) == SERVING;
    while !served() && place.alive.load(Acquire) != 0 {
        syscall::wait(&place.state, STARTING, &LOOK);
    }
    if !served() {
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
