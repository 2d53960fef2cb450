//! Advice that takes pages away without the pager's hearing of it.
//!
//! Runs on the program's own threads. The kernel reports `MADV_DONTNEED`, and makes the caller wait until
//! the report was read; what it does for other advice is made known by that call.
//!
//! * `MADV_FREE`: what the program frees lazily is dropped at once, as the call allows. Left in place it
//!   would be memory that nobody can account for.
//! * `MADV_GUARD_INSTALL`: what lies under a guard is lost, and stored copies of it must go. The guards
//!   are there first, so that nobody can bring pages back in between, and outlast the discarding. One
//!   that the pager was just about to put a page over is then put there once more.
//! * `MADV_DONTFORK`, `MADV_WIPEONFORK`: the pager sees in the process what is not passed on when it forks. Of a
//!   process without an agent it may not know which that is, and what a child inherits from the store would be there
//!   all the same: so it is brought back first, and stays.
//!   Given, or taken back (`MADV_DOFORK`, `MADV_KEEPONFORK`), beside a fork it would be taken for what that fork went by:
//!   it waits for forks, and they for it ([`crate::passing`]).

use crate::own::own;
use crate::passing::between_forks;
use crate::populate::{self, MADV_POPULATE_READ, MADV_POPULATE_WRITE};
use crate::state::{AGENT, PRESENT};
use crate::syscall::{self, call};
use core::sync::atomic::Ordering::Acquire;

const DONTNEED: usize = 4;
const FREE: usize = 8;
const DONTFORK: usize = 10;
const DOFORK: usize = 11;
const WIPEONFORK: usize = 18;
const KEEPONFORK: usize = 19;
const GUARD_INSTALL: usize = 102;

/// `struct iovec`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: usize,
    len: usize,
}

/// Whether the pager is told of changes, which it is even of a child that has no agent.
fn is_heard() -> bool {
    own();
    AGENT.stage.load(Acquire) == PRESENT
}

/// Makes the call `madvise`.
///
/// # Safety
/// As `madvise`.
pub unsafe fn advise(start: usize, len: usize, advice: usize) -> isize {
    if matches!(advice, DONTFORK | WIPEONFORK) && own().is_none() && is_heard() {
        // What cannot be read holds nothing.
        // SAFETY: changes no content.
        unsafe { populate::advise(start, len, MADV_POPULATE_READ) };
    }
    if matches!(advice, DONTFORK | WIPEONFORK | DOFORK | KEEPONFORK) && is_heard() {
        // SAFETY: the caller vouches for the arguments.
        return between_forks(|| unsafe { ask(start, len, advice) });
    }
    if matches!(advice, MADV_POPULATE_READ | MADV_POPULATE_WRITE) {
        // SAFETY: the caller vouches for the arguments.
        return unsafe { populate::advise(start, len, advice) };
    }
    // SAFETY: the caller vouches for the arguments.
    let result = unsafe { ask(start, len, advice) };
    if result == 0 && is_heard() {
        // SAFETY: the kernel has just accepted the advice for this range.
        return unsafe { make_known(start, len, advice) };
    }
    result
}

/// Makes the call `process_madvise`. The kernel takes pages away only from the caller's own process.
///
/// # Safety
/// As `process_madvise`.
pub unsafe fn advise_process(args: [usize; 6]) -> isize {
    let [_, ranges, count, advice, ..] = args;
    // SAFETY: the caller vouches for the arguments.
    let make = || unsafe { call(syscall::PROCESS_MADVISE, args) };
    let passed = matches!(advice, DONTFORK | WIPEONFORK | DOFORK | KEEPONFORK);
    let result = if passed && is_heard() { between_forks(make) } else { make() };
    if result <= 0 || !is_heard() {
        return result;
    }
    let mut left = result as usize;
    for index in 0..count {
        // SAFETY: the kernel has just read as many ranges from there; what it did is made known.
        left -= unsafe {
            let range = *(ranges as *const Range).add(index);
            let len = range.len.min(left);
            make_known(range.start, len, advice);
            len
        };
    }
    result
}

/// # Safety
/// The kernel has accepted `advice` for this range, of this process.
unsafe fn make_known(start: usize, len: usize, advice: usize) -> isize {
    // SAFETY: each takes away what the program has just given up itself.
    unsafe {
        match advice {
            FREE => ask(start, len, DONTNEED),
            GUARD_INSTALL => match ask(start, len, DONTNEED) {
                0 => ask(start, len, GUARD_INSTALL),
                failed => failed,
            },
            _ => 0,
        }
    }
}

/// # Safety
/// As `madvise`.
unsafe fn ask(start: usize, len: usize, advice: usize) -> isize {
    // SAFETY: the caller vouches for the arguments.
    unsafe { call(syscall::MADVISE, [start, len, advice, 0, 0, 0]) }
}
