//! Forks around the C library: `syscall(SYS_fork)` and its like run no atfork handlers, so the child
//! would have no agent and could give nothing back. The agent stands before glibc's `syscall`, makes
//! every call as asked, and joins the pager where one of them has made a child with a memory of its
//! own. (A child made with an instruction of the program's own joins at the first hook that it passes.)

use crate::advice::{advise, advise_process};
use crate::filter::{self, SET_SECCOMP};
use crate::hooks::before_prctl;
use crate::own::own;
use crate::passing::{fork_begins, fork_ends};
use crate::preload::set_errno;
use crate::syscall::{CLONE, CLONE3, FORK, MADVISE, PRCTL, PROCESS_MADVISE, SECCOMP, call};
use core::ffi::c_long;

/// Stands before glibc's `syscall`.
///
/// # Safety
/// As `syscall`. (On x86-64 a variadic call with integer arguments passes them where this function
/// looks for them; what the caller did not pass the kernel does not look at.)
#[unsafe(no_mangle)]
pub unsafe extern "C" fn syscall(
    number: usize,
    a: usize,
    b: usize,
    c: usize,
    d: usize,
    e: usize,
    f: usize,
) -> c_long {
    if number == PRCTL {
        before_prctl(a, b);
    }
    let is_filter =
        (number == PRCTL && a == SET_SECCOMP || number == SECCOMP) && filter::is_to_be_looked_at();
    let forks = matches!(number, FORK | CLONE | CLONE3);
    if forks {
        fork_begins();
    }
    // SAFETY: the caller vouches for the call.
    let result = unsafe {
        match number {
            MADVISE => advise(a, b, c),
            PROCESS_MADVISE => advise_process([a, b, c, d, e, f]),
            _ => call(number, [a, b, c, d, e, f]),
        }
    };
    match result {
        // Where the child shares its parent's memory it shares the agent too.
        0 if forks => drop(own()),
        _ if forks => fork_ends(),
        _ => {}
    }
    if is_filter && result == 0 {
        // SAFETY: the kernel has just read what lies there.
        unsafe {
            match number {
                PRCTL => filter::set_by_prctl(b, c),
                _ => filter::set_by_seccomp(a, c),
            }
        }
    }
    if (-4095..0).contains(&result) {
        set_errno(-result as i32);
        return -1;
    }
    result as c_long
}
