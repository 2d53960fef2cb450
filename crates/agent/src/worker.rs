//! The agent's thread, which executes batches for the pager. The rules AGENT-1 to AGENT-4 are in
//! `lib.rs`.

use crate::areas::Area;
use crate::hello::{Line, hello, make_uffd};
use crate::join::{AGENT_STACK_BYTES, AREA_BYTES, AgentStack, Kept, NONE, stay_alone};
use crate::lock::unlock;
#[cfg(ebb_preload)]
use crate::own;
use crate::protocol::{
    DISCARD_AREA_BYTES, DONE, HELLO_FORKED, OP_DROP, OP_MOVE, OP_SET_RIGHTS, OP_UNSHARE, POSTED,
    RUNNING, Shared, TELL_DETACH, TELL_LEAVE, TELL_SMALL, TELL_STEP_ASIDE,
};
use crate::state::die;
use crate::syscall::{self, call, wake};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};

const EINTR: isize = -4;
const EINVAL: i32 = 22;
const MADV_DONTNEED: usize = 4;
const MADV_POPULATE_WRITE: usize = 23;
/// `UFFDIO_MOVE`, and its flag `DONTWAKE`.
const MOVE_REQUEST: usize = 0xC028_AA05;
const MOVE_DONT_WAKE: u64 = 1;

#[repr(C)]
struct MoveArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}

/// Runs the agent's thread: it says hello, then serves the pager until it ends.
pub extern "C" fn run(argument: usize) -> ! {
    // SAFETY: the argument is the agent's stack, on which this thread runs. It stays mapped while
    // this thread lives.
    let stack = unsafe { &*(argument as *const AgentStack) };
    let line = match join(stack) {
        Ok(line) => line,
        Err(reason) => {
            if stack.kind == HELLO_FORKED {
                stay_alone(reason);
            }
            #[cfg(ebb_preload)]
            if stack.is_later() {
                own::stays_alone(stack);
            }
            stack.fails(reason)
        }
    };
    drop_rights();
    stack.own.set(Kept([line.socket, line.uffd, line.tie.unwrap_or(NONE)]));
    let shared = line.shared;
    // SAFETY: GETTID takes nothing.
    shared.thread.store(unsafe { call(syscall::GETTID, [0; 6]) } as u32, Relaxed);
    let mut discard_area = DiscardArea::new(stack.discard_place());
    shared.discard_area.store(discard_area.start, Relaxed);
    shared.stack[0].store(argument as u64, Relaxed);
    // A discard area that could not be made is a part of the agent's area that nothing uses.
    let stack_len = if discard_area.start == 0 { AREA_BYTES } else { AGENT_STACK_BYTES };
    shared.stack[1].store(stack_len as u64, Relaxed);
    #[cfg(ebb_preload)]
    if stack.is_later() {
        own::pin_before_service(stack, shared);
    }
    let mut made_small = false;
    // If the pager finds `ready` set, it sends `TELL_SMALL`. If the pager set `small` before that,
    // this thread sees the flag here.
    shared.ready.store(1, SeqCst);
    if shared.small.load(SeqCst) != 0 {
        made_small |= make_no_huge_pages();
    }
    #[cfg(ebb_preload)]
    if stack.is_later() {
        own::joined_later(stack, shared);
    }
    stack.serves(shared);
    loop {
        let mut word = [0u8; 2];
        // SAFETY: two bytes of this thread's own stack.
        let got =
            unsafe { call(syscall::READ, [line.socket, word.as_mut_ptr() as usize, 2, 0, 0, 0]) };
        match got {
            2 if word[0] == TELL_LEAVE => leave(word[1]),
            1 if word[0] == TELL_SMALL => made_small |= make_no_huge_pages(),
            1 if word[0] == TELL_DETACH => detach(made_small),
            1 if word[0] == TELL_STEP_ASIDE => leave(0),
            1 => run_batch(shared, line.uffd, &mut discard_area),
            EINTR => {}
            _ => die(),
        }
    }
}

/// Joins the pager, or goes on with the descriptors of a thread that has stepped aside.
fn join(stack: &AgentStack) -> Result<Line, u32> {
    if let Some(shared) = stack.starts_again() {
        let kept = stack.kept.get();
        // The kernel does not refuse this: no filter of system calls is there (ASIDE-5).
        let _ = close_all_but(kept);
        leave_folder();
        let Kept([socket, uffd, tie]) = kept;
        return Ok(Line { shared, socket, uffd, tie: (tie != NONE).then_some(tie) });
    }
    let uffd = prepare(stack)?;
    stack.nap();
    hello(stack.kind, stack.table_place(), uffd)
}

/// Leaves the program's descriptors and working directory, and makes the userfaultfd of a new
/// program. Gives up all rights before the program goes on.
fn prepare(stack: &AgentStack) -> Result<Option<usize>, u32> {
    // AGENT-4 must hold before anything else.
    close_all_but(Kept([NONE; 3]))?;
    leave_folder();
    let uffd = if stack.kind == HELLO_FORKED { None } else { Some(make_uffd()?) };
    if stack.is_later() {
        drop_rights();
    }
    Ok(uffd)
}

fn run_batch(shared: &Shared, uffd: usize, discard_area: &mut DiscardArea) {
    // Pairs with the pager's Release store of POSTED, and with its Acquire load of DONE.
    if shared.state.compare_exchange(POSTED, RUNNING, AcqRel, Relaxed).is_err() {
        return;
    }
    let count = shared.count.load(Relaxed) as usize;
    for entry in shared.entries.iter().take(count) {
        let a = entry.a.load(Relaxed);
        let b = entry.b.load(Relaxed);
        let len = entry.len.load(Relaxed);
        let result = match entry.op.load(Relaxed) {
            OP_MOVE => move_pages(uffd, a, b, len),
            OP_DROP => discard_area.drop_pages(a, len),
            OP_UNSHARE => advise(a, len, MADV_POPULATE_WRITE),
            OP_SET_RIGHTS => set_rights(a, len, b != 0),
            _ => -EINVAL,
        };
        entry.result.store(result, Relaxed);
    }
    discard_area.empty();
    shared.state.store(DONE, Release);
    wake(&shared.state);
}

/// Discard area: pages of the pool leave through this area. It belongs to a separate userfaultfd,
/// which reports no events. A discard in the pool itself would send the pager a message for every
/// run of pages. This thread would wait until the pager reads it.
struct DiscardArea {
    uffd: usize,
    /// Start of the area; 0 if there is none. Without an area the thread discards pages where they
    /// are.
    start: u64,
    used: u64,
}

impl DiscardArea {
    /// Longest run in bytes that is moved. For a longer run one event costs less than the moves.
    const RUN_MAX: u64 = DISCARD_AREA_BYTES / 2;

    /// Makes the area at `place`, which nothing uses yet.
    fn new(place: usize) -> Self {
        let len = DISCARD_AREA_BYTES as usize;
        let made = make_quiet_uffd().filter(|&uffd| {
            // READ | WRITE, PRIVATE | ANONYMOUS | NORESERVE | FIXED
            // SAFETY: the place is a part of the agent's area.
            let start = unsafe { call(syscall::MMAP, [place, len, 3, 0x4032, usize::MAX, 0]) };
            start >= 0 && register_quietly(uffd, place as u64, DISCARD_AREA_BYTES)
        });
        if let Some(uffd) = made {
            return Self { uffd, start: place as u64, used: 0 };
        }
        // The place stays mapped. A forked child unmaps the whole area, and must not unmap memory
        // that the program has mapped there.
        Self { uffd: 0, start: 0, used: 0 }
    }

    /// Drops the pages of `[start, start + len)`.
    fn drop_pages(&mut self, start: u64, len: u64) -> i32 {
        if self.start == 0 || len > Self::RUN_MAX {
            return discard(start, len);
        }
        if self.used + len > DISCARD_AREA_BYTES {
            self.empty();
        }
        let to = self.start + self.used;
        self.used += len;
        match move_pages(self.uffd, to, start, len) {
            0 => 0,
            // The move fails if a page is shared within the fork group, if a page is missing, or if
            // the discard area is not empty.
            _ => discard(start, len),
        }
    }

    fn empty(&mut self) {
        if self.used > 0 {
            discard(self.start, self.used);
            self.used = 0;
        }
    }
}

/// Creates a userfaultfd that reports no events.
pub fn make_quiet_uffd() -> Option<usize> {
    #[repr(C)]
    struct ApiArg {
        api: u64,
        features: u64,
        ioctls: u64,
    }
    // CLOEXEC | NONBLOCK | UFFD_USER_MODE_ONLY: needs no privilege.
    const FLAGS: usize = 0x8_0000 | 0x800 | 1;
    let mut api = ApiArg { api: 0xAA, features: 0, ioctls: 0 };
    // SAFETY: a fresh descriptor; the argument outlives its call.
    unsafe {
        let uffd = call(syscall::USERFAULTFD, [FLAGS, 0, 0, 0, 0, 0]);
        if uffd < 0 {
            return None;
        }
        let uffd = uffd as usize;
        if call(syscall::IOCTL, [uffd, 0xC018_AA3F, &raw mut api as usize, 0, 0, 0]) < 0 {
            call(syscall::CLOSE, [uffd, 0, 0, 0, 0, 0]);
            return None;
        }
        Some(uffd)
    }
}

/// Registers a range with `uffd`, for write protection that is never used. Fails if the range is
/// registered with another userfaultfd. A missing page there causes no message. So a program that
/// reads or locks all of its memory does not wait there.
pub fn register_quietly(uffd: usize, start: u64, len: u64) -> bool {
    #[repr(C)]
    struct RegisterArg {
        start: u64,
        len: u64,
        mode: u64,
        ioctls: u64,
    }
    let mut register = RegisterArg { start, len, mode: 2, ioctls: 0 };
    // SAFETY: the argument outlives the call.
    unsafe { call(syscall::IOCTL, [uffd, 0xC020_AA00, &raw mut register as usize, 0, 0, 0]) == 0 }
}

fn move_pages(uffd: usize, dst: u64, src: u64, len: u64) -> i32 {
    let mut arg = MoveArg { dst, src, len, mode: MOVE_DONT_WAKE, moved: 0 };
    // SAFETY: the argument lives through the call; the kernel checks the addresses.
    let result =
        unsafe { call(syscall::IOCTL, [uffd, MOVE_REQUEST, &raw mut arg as usize, 0, 0, 0]) };
    result as i32
}

/// Discards pages, even if a call that bypassed the hooks has locked all of the program's memory.
fn discard(start: u64, len: u64) -> i32 {
    match advise(start, len, MADV_DONTNEED) {
        result if result == -EINVAL => {
            unlock(Area { start: start as usize, len: len as usize });
            advise(start, len, MADV_DONTNEED)
        }
        result => result,
    }
}

fn advise(address: u64, len: u64, advice: usize) -> i32 {
    // SAFETY: the pager names pool ranges for DONTNEED, and POPULATE_WRITE changes no content.
    unsafe { call(syscall::MADVISE, [address as usize, len as usize, advice, 0, 0, 0]) as i32 }
}

/// Sets the rights of a range. A kernel with a rule against memory that is writable and executable
/// refuses such rights.
fn set_rights(address: u64, len: u64, executable: bool) -> i32 {
    // READ | WRITE, and EXEC
    let rights = if executable { 7 } else { 3 };
    // SAFETY: the pager names a range of the pool, whose content and place do not change.
    unsafe { call(syscall::MPROTECT, [address as usize, len as usize, rights, 0, 0, 0]) as i32 }
}

/// Closes every descriptor in this thread's own table but these.
fn close_all_but(kept: Kept) -> Result<(), u32> {
    let Kept(mut kept) = kept;
    kept.sort_unstable();
    let mut first = 0;
    for descriptor in kept {
        // NONE stands for the end of the table.
        if first < descriptor {
            // SAFETY: affects only this thread's descriptor table.
            let closed = unsafe { call(syscall::CLOSE_RANGE, [first, descriptor - 1, 0, 0, 0, 0]) };
            if closed < 0 {
                return Err(closed.unsigned_abs() as u32);
            }
        }
        if descriptor == NONE {
            return Ok(());
        }
        first = descriptor + 1;
    }
    // SAFETY: affects only this thread's descriptor table.
    let closed = unsafe { call(syscall::CLOSE_RANGE, [first, NONE, 0, 0, 0, 0]) };
    if closed < 0 { Err(closed.unsigned_abs() as u32) } else { Ok(()) }
}

/// Gives up every capability, because the thread needs none. A program that has dropped its
/// capabilities could otherwise use the thread's, because it can write to the agent's stack.
fn drop_rights() {
    #[repr(C)]
    struct Header {
        version: u32,
        thread: i32,
    }
    let header = Header { version: 0x2008_0522, thread: 0 };
    let none = [0u32; 6];
    // SAFETY: both structures outlive the call, which concerns this thread only.
    unsafe {
        call(syscall::CAPSET, [&raw const header as usize, none.as_ptr() as usize, 0, 0, 0, 0]);
    }
}

/// Leaves the program's working directory, so that its file system can be unmounted once the
/// program has left it.
fn leave_folder() {
    // SAFETY: a constant path; concerns this thread only.
    unsafe { call(syscall::CHDIR, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

/// Disables huge pages for this process and its children. Returns whether they were enabled before.
/// Existing huge pages stay until one of their pages is moved. If a seccomp filter refuses the
/// call, a fault may bring in a whole huge page; the freezer copes with that.
fn make_no_huge_pages() -> bool {
    const GET_THP_DISABLE: usize = 42;
    // SAFETY: a flag of the process; nothing is passed by address.
    let before = unsafe { call(syscall::PRCTL, [GET_THP_DISABLE, 0, 0, 0, 0, 0]) };
    disable_huge_pages(true);
    before == 0
}

fn disable_huge_pages(disable: bool) {
    const SET_THP_DISABLE: usize = 41;
    // SAFETY: a flag of the process; nothing is passed by address.
    unsafe { call(syscall::PRCTL, [SET_THP_DISABLE, usize::from(disable), 0, 0, 0, 0]) };
}

/// Ends the agent's thread; the process goes on without it. The pager unmaps the agent's memory
/// from outside.
fn detach(made_small: bool) -> ! {
    if made_small {
        disable_huge_pages(false);
    }
    // The descriptor table ends with this thread.
    leave(0)
}

/// Ends the agent's thread with exit status `code`, because every thread of the program has ended
/// without ending the process. The agent's thread must neither keep the process alive nor change
/// the exit status of the program.
fn leave(code: u8) -> ! {
    loop {
        // SAFETY: ends this thread.
        unsafe { call(syscall::EXIT, [code as usize, 0, 0, 0, 0, 0]) };
    }
}
