//! Handles `madvise` advice that takes pages away without an event for the pager.
//!
//! The functions run on the program's own threads. The kernel reports `MADV_DONTNEED`, and blocks
//! the caller until the pager has read the event. The hook uses that call to report the effects of
//! other advice.
//!
//! * `MADV_FREE`: the hook drops lazily freed pages at once, as the call allows. Otherwise they
//!   would stay as memory that no counter covers.
//! * `MADV_GUARD_INSTALL`: the pages under a guard are lost, and their stored copies must go. The
//!   guards come first, so that no fault brings pages back in between, and they outlast the
//!   discarding. The pager may just have put a page in place of a guard, so the hook installs the
//!   guards again.
//! * `MADV_DONTFORK`, `MADV_WIPEONFORK`: at a fork the pager looks in the parent for ranges that
//!   the child does not inherit. If the parent has no agent, the pager may not know which process
//!   the parent is. The child would then inherit stored pages that it must not have. The hook
//!   therefore brings the pages back first, and they stay in memory. The pager would apply advice
//!   that is given or withdrawn (`MADV_DOFORK`, `MADV_KEEPONFORK`) during a fork to that fork.
//!   Advice therefore waits for forks, and forks wait for advice ([`crate::passing`]).

use crate::own::own_or_join;
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

/// Returns whether the pager receives the events of this process. It receives those of a child
/// without an agent, too.
fn reaches_pager() -> bool {
    own_or_join();
    AGENT.stage.load(Acquire) == PRESENT
}

/// Makes the call `madvise`.
///
/// # Safety
/// As `madvise`.
pub unsafe fn advise(start: usize, len: usize, advice: usize) -> isize {
    if matches!(advice, DONTFORK | WIPEONFORK) && own_or_join().is_none() && reaches_pager() {
        // Pages that cannot be read hold nothing.
        // SAFETY: changes no content.
        unsafe { populate::advise(start, len, MADV_POPULATE_READ) };
    }
    if matches!(advice, DONTFORK | WIPEONFORK | DOFORK | KEEPONFORK) && reaches_pager() {
        // SAFETY: the caller vouches for the arguments.
        return between_forks(|| unsafe { ask(start, len, advice) });
    }
    if matches!(advice, MADV_POPULATE_READ | MADV_POPULATE_WRITE) {
        // SAFETY: the caller vouches for the arguments.
        return unsafe { populate::advise(start, len, advice) };
    }
    // SAFETY: the caller vouches for the arguments.
    let result = unsafe { ask(start, len, advice) };
    if result == 0 && reaches_pager() {
        // SAFETY: the kernel has just accepted the advice for this range.
        return unsafe { report_advice(start, len, advice) };
    }
    result
}

/// Makes the call `process_madvise`. The kernel takes pages away only from the caller's own
/// process.
///
/// # Safety
/// As `process_madvise`.
pub unsafe fn advise_process(args: [usize; 6]) -> isize {
    let [_, ranges, count, advice, ..] = args;
    // SAFETY: the caller vouches for the arguments.
    let make = || unsafe { call(syscall::PROCESS_MADVISE, args) };
    let passed = matches!(advice, DONTFORK | WIPEONFORK | DOFORK | KEEPONFORK);
    let result = if passed && reaches_pager() { between_forks(make) } else { make() };
    if result <= 0 || !reaches_pager() {
        return result;
    }
    let mut left = result as usize;
    for index in 0..count {
        // SAFETY: the kernel has just read that many ranges there; only ranges that it has advised
        // are reported.
        left -= unsafe {
            let range = *(ranges as *const Range).add(index);
            let len = range.len.min(left);
            report_advice(range.start, len, advice);
            len
        };
    }
    result
}

/// Reports advice to the pager by discarding the range.
///
/// # Safety
/// The kernel has accepted `advice` for this range, of this process.
unsafe fn report_advice(start: usize, len: usize, advice: usize) -> isize {
    // SAFETY: each call discards only pages that the program has just given up itself.
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

/// Makes the plain system call `madvise`.
///
/// # Safety
/// As `madvise`.
unsafe fn ask(start: usize, len: usize, advice: usize) -> isize {
    // SAFETY: the caller vouches for the arguments.
    unsafe { call(syscall::MADVISE, [start, len, advice, 0, 0, 0]) }
}
