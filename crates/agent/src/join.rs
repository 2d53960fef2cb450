//! How a process joins the pager: a thread is started, and that does the rest ([`crate::greet`]).
//!
//! Runs on the program's own threads, before or between its own code, and may be called wherever `fork` may:
//! it uses no library function, no allocation and no lock. It leaves no signal mask behind and opens no
//! descriptor, not even for a moment: the agent's thread has a table of its own for those.
//!
//! * JOIN-1: a forked child has no agent or its own. If it cannot have one, the pager is told so; a pager that does not
//!   even hear that is dead, and nobody would bring the child's pages back: it ends (AGENT-3).

use crate::calls::ask;
use crate::protocol::{ASK_ALONE, BIN_BYTES, GREET_FORKED, GREET_START, Shared};
use crate::state::{AGENT, die};
use crate::syscall::{self, Timespec, call, spawn};
use crate::worker;
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32};

/// The thread is at it.
const STARTING: u32 = 0;
/// It serves.
const SERVING: u32 = 1;
/// It has ended, or is about to.
const FAILED: u32 = 2;

const MADV_DONTDUMP: usize = 16;
/// How often to look whether the thread still lives.
const LOOK: Timespec = Timespec { seconds: 0, nanoseconds: 100_000_000 };

/// Bytes of a [`Berth`].
pub const BERTH_BYTES: usize = 40 << 10;

/// Where the agent's thread lives: memory that is never moved out, because it is shared (with nobody: the child of a fork
/// takes it for its parent's, and lets go of it).
#[repr(C)]
pub struct Berth {
    /// Zeros: a stack protector would look at offset 0x28 of a thread block.
    block: [u64; 64],
    state: AtomicU32,
    /// Why it failed: an errno.
    reason: AtomicU32,
    /// 1 until the thread has ended: the kernel says so, which no filter of system calls can keep it from.
    alive: AtomicU32,
    shared: AtomicPtr<Shared>,
    /// What its thread is to do: a new program or a forked child.
    pub kind: u32,
}

impl Berth {
    fn make(kind: u32) -> Option<*mut Self> {
        // READ | WRITE, SHARED | ANONYMOUS
        // SAFETY: a fresh mapping of zeros at an address of the kernel's choice; the advice changes no content.
        unsafe {
            let at = call(syscall::MMAP, [0, BERTH_BYTES, 3, 0x21, usize::MAX, 0]);
            if at < 0 {
                return None;
            }
            call(syscall::MADVISE, [at as usize, BERTH_BYTES, MADV_DONTDUMP, 0, 0, 0]);
            let berth = at as *mut Self;
            (*berth).kind = kind;
            (*berth).alive = AtomicU32::new(1);
            Some(berth)
        }
    }

    /// The thread serves from now on.
    pub fn serves(&self, shared: &Shared) {
        self.shared.store(core::ptr::from_ref(shared).cast_mut(), Relaxed);
        self.settle(SERVING);
    }

    /// The thread ends. Who waits lets go of this memory once it has.
    pub fn fails(&self, reason: u32) -> ! {
        self.reason.store(reason, Relaxed);
        self.settle(FAILED);
        loop {
            // SAFETY: ends this thread.
            unsafe { call(syscall::EXIT, [0; 6]) };
        }
    }

    fn settle(&self, state: u32) {
        // Partner: the Acquire load of who waits.
        self.state.store(state, Release);
        syscall::wake(&self.state);
    }
}

/// Why not: an errno, and whether the thread has told the pager already.
struct Failure {
    reason: u32,
    told: bool,
}

/// What came of it.
struct Joined {
    shared: &'static Shared,
    berth: *mut Berth,
}

/// A new program joins. The memory shared with the pager, or an errno.
pub fn join_new() -> Result<&'static Shared, u32> {
    let joined = join(GREET_START).map_err(|failure| failure.reason)?;
    AGENT.table.store(core::ptr::from_ref(joined.shared).cast_mut(), Release);
    AGENT.berth.store(joined.berth, Release);
    Ok(joined.shared)
}

/// A forked child joins.
pub fn join_forked() -> Option<&'static Shared> {
    let table = AGENT.table.load(Acquire);
    if table.is_null() {
        return None;
    }
    match join(GREET_FORKED) {
        Ok(joined) => {
            // In this order: a fork by another thread in between must find what it is told of mapped.
            AGENT.table.store(core::ptr::from_ref(joined.shared).cast_mut(), Release);
            let berth = AGENT.berth.swap(joined.berth, Release);
            // SAFETY: the ancestor's; nobody in this process uses them any more.
            unsafe { let_go(table, berth) };
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

/// JOIN-1: this process, a forked child, has no agent.
pub fn stay_alone(reason: u32) {
    let table = AGENT.table.load(Acquire);
    // SAFETY: the ancestor's, which stays mapped until this process has its own.
    if ask(unsafe { &*table }, ASK_ALONE, [u64::from(reason), 0]).is_none() {
        die();
    }
}

/// Unmaps what an ancestor's agent lives in.
///
/// # Safety
/// Both must be mapped and used by nobody.
unsafe fn let_go(table: *mut Shared, berth: *mut Berth) {
    // SAFETY: as promised.
    unsafe {
        let bin = (*table).bin.load(Relaxed) as usize;
        if bin != 0 {
            call(syscall::MUNMAP, [bin, BIN_BYTES as usize, 0, 0, 0, 0]);
        }
        let len = size_of::<Shared>().next_multiple_of(4096);
        call(syscall::MUNMAP, [table as usize, len, 0, 0, 0, 0]);
        call(syscall::MUNMAP, [berth as usize, BERTH_BYTES, 0, 0, 0, 0]);
    }
}

/// Starts the thread and waits until it serves.
fn join(kind: u32) -> Result<Joined, Failure> {
    const ENOMEM: u32 = 12;
    const ECANCELED: u32 = 125;
    let berth = Berth::make(kind).ok_or(Failure { reason: ENOMEM, told: false })?;
    let failed = |reason, told| {
        // SAFETY: the mapping just made, in which no thread lives.
        unsafe { call(syscall::MUNMAP, [berth as usize, BERTH_BYTES, 0, 0, 0, 0]) };
        Err(Failure { reason, told })
    };
    let thread = start(berth);
    if thread < 0 {
        return failed(thread.unsigned_abs() as u32, false);
    }
    // SAFETY: mapped, and made of atomics as far as both threads use it.
    let place = unsafe { &*berth };
    let served = || place.state.load(Acquire) == SERVING;
    while !served() && place.alive.load(Acquire) != 0 {
        syscall::wait(&place.state, STARTING, &LOOK);
    }
    if !served() {
        // If it could not say why it was ended by somebody else, a seccomp filter for one.
        let told = place.state.load(Acquire) == FAILED;
        let reason = if told { place.reason.load(Relaxed) } else { ECANCELED };
        return failed(reason, told);
    }
    // SAFETY: the mapping lives as long as the process.
    Ok(Joined { shared: unsafe { &*place.shared.load(Relaxed) }, berth })
}

/// The thread, with every signal blocked in it.
fn start(berth: *mut Berth) -> isize {
    let before = syscall::block_signals();
    let top = (berth as usize + BERTH_BYTES) & !63;
    // SAFETY: the berth is the new thread's alone.
    let thread = unsafe {
        let alive = &raw const (*berth).alive;
        spawn(worker::run, berth as usize, top, berth as usize, syscall::AGENTS, alive)
    };
    syscall::set_signals(&before, None);
    thread
}
