//! The agent's thread. See the rules in the crate's head.

use crate::areas::Area;
use crate::greet::greet;
use crate::join::{BERTH_BYTES, Berth, stay_alone};
use crate::lock::unlock;
use crate::protocol::{
    BIN_BYTES, DONE, GREET_FORKED, OP_DROP, OP_MOVE, OP_UNSHARE, POSTED, RUNNING, Shared,
    TELL_DETACH, TELL_LEAVE, TELL_SMALL,
};
use crate::state::die;
use crate::syscall::{self, call, wake};
use core::sync::atomic::Ordering::{AcqRel, Relaxed, Release, SeqCst};

const EINTR: isize = -4;
const EINVAL: i32 = 22;
const MADV_DONTNEED: usize = 4;
const MADV_POPULATE_WRITE: usize = 23;
/// `UFFDIO_MOVE`, and its flag "wake nobody".
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

/// The thread's life.
pub extern "C" fn run(argument: usize) -> ! {
    // SAFETY: the berth that this thread was started in, which is its own for as long as it lives.
    let berth = unsafe { &*(argument as *const Berth) };
    // AGENT-4 before all else.
    let line = match close_all().and_then(|()| greet(berth.kind)) {
        Ok(line) => line,
        Err(reason) => {
            if berth.kind == GREET_FORKED {
                stay_alone(reason);
            }
            berth.fails(reason)
        }
    };
    drop_rights();
    leave_folder();
    let shared = line.shared;
    // SAFETY: GETTID takes nothing.
    shared.thread.store(unsafe { call(syscall::GETTID, [0; 6]) } as u32, Relaxed);
    let mut bin = Bin::new();
    shared.bin.store(bin.start, Relaxed);
    shared.berth[0].store(argument as u64, Relaxed);
    shared.berth[1].store(BERTH_BYTES as u64, Relaxed);
    let mut made_small = false;
    // Who finds it ready tells it; who said so before is heard here.
    shared.ready.store(1, SeqCst);
    if shared.small.load(SeqCst) != 0 {
        made_small |= make_no_huge_pages();
    }
    berth.serves(shared);
    loop {
        let mut word = [0u8; 2];
        // SAFETY: two bytes of our own stack.
        let got =
            unsafe { call(syscall::READ, [line.socket, word.as_mut_ptr() as usize, 2, 0, 0, 0]) };
        match got {
            2 if word[0] == TELL_LEAVE => leave(word[1]),
            1 if word[0] == TELL_SMALL => made_small |= make_no_huge_pages(),
            1 if word[0] == TELL_DETACH => detach(made_small),
            1 => run_batch(shared, line.uffd, &mut bin),
            EINTR => {}
            _ => die(),
        }
    }
}

fn run_batch(shared: &Shared, uffd: usize, bin: &mut Bin) {
    // Partners: the pager's Release store of POSTED, its Acquire load of DONE.
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
            OP_DROP => bin.drop_pages(a, len),
            OP_UNSHARE => advise(a, len, MADV_POPULATE_WRITE),
            _ => -EINVAL,
        };
        entry.result.store(result, Relaxed);
    }
    bin.empty();
    shared.state.store(DONE, Release);
    wake(&shared.state);
}

/// Where pages of the pool go on their way out: an area of a userfaultfd of its own, which reports
/// nothing to anyone. To discard them in the pool would have the pager woken for every run of them,
/// and this thread wait for it.
struct Bin {
    uffd: usize,
    /// 0 if there is none: then pages are discarded where they are.
    start: u64,
    used: u64,
}

impl Bin {
    /// From here on one report costs less than the moves.
    const RUN_MAX: u64 = BIN_BYTES / 2;

    fn new() -> Self {
        let nothing = Self { uffd: 0, start: 0, used: 0 };
        let Some(uffd) = make_quiet_uffd() else { return nothing };
        // READ | WRITE, PRIVATE | ANONYMOUS | NORESERVE
        let len = BIN_BYTES as usize;
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { call(syscall::MMAP, [0, len, 3, 0x4022, usize::MAX, 0]) };
        if start < 0 {
            return nothing;
        }
        if !register_quietly(uffd, start as u64, BIN_BYTES) {
            // SAFETY: the mapping just made.
            unsafe { call(syscall::MUNMAP, [start as usize, len, 0, 0, 0, 0]) };
            return nothing;
        }
        Self { uffd, start: start as u64, used: 0 }
    }

    /// Drops the pages of `[start, start + len)`.
    fn drop_pages(&mut self, start: u64, len: u64) -> i32 {
        if self.start == 0 || len > Self::RUN_MAX {
            return discard(start, len);
        }
        if self.used + len > BIN_BYTES {
            self.empty();
        }
        let to = self.start + self.used;
        self.used += len;
        match move_pages(self.uffd, to, start, len) {
            0 => 0,
            // Shared with a relative, or not there in part, or something came to lie in the bin.
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

/// A userfaultfd that reports nothing.
pub fn make_quiet_uffd() -> Option<usize> {
    #[repr(C)]
    struct ApiArg {
        api: u64,
        features: u64,
        ioctls: u64,
    }
    // CLOEXEC | NONBLOCK | UFFD_USER_MODE_ONLY, which everyone may use.
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

/// Gives a range to it, unless the range has another: for write protection, which is never used. A program
/// that looks at all of its memory, or locks it, must find nothing to wait for there.
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

/// Discards pages, also where the program locked all of its memory by a call that the agent does not see.
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

/// Closes every descriptor in this thread's own table.
fn close_all() -> Result<(), u32> {
    // SAFETY: affects only this thread's descriptor table.
    let closed = unsafe { call(syscall::CLOSE_RANGE, [0, u32::MAX as usize, 0, 0, 0, 0]) };
    if closed < 0 { Err(closed.unsigned_abs() as u32) } else { Ok(()) }
}

/// Gives up every capability: the thread needs none, and its stack is memory that the program can
/// write to even after it has given up its own.
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

/// What the program's folder lies on can be unmounted when the program has left it.
fn leave_folder() {
    // SAFETY: a constant path; concerns this thread only.
    unsafe { call(syscall::CHDIR, [c"/".as_ptr() as usize, 0, 0, 0, 0, 0]) };
}

/// The kernel makes no huge pages for this process, or for what it starts, from here on. Those there are stay, each until
/// one of its pages is moved. Where a filter refuses it a page more or less comes at once: the brake sees to that. Whether
/// it made any before.
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

/// The process goes on without this thread. What was mapped for it is taken away from outside.
fn detach(made_small: bool) -> ! {
    if made_small {
        disable_huge_pages(false);
    }
    // With it goes its descriptor table.
    leave(0)
}

/// Every thread of the program has ended without ending the process: this one must not keep it, and
/// leaves the status that the last of them would have.
fn leave(code: u8) -> ! {
    loop {
        // SAFETY: ends this thread.
        unsafe { call(syscall::EXIT, [code as usize, 0, 0, 0, 0, 0]) };
    }
}
