//! Handles forks that bypass the C library's `fork`. `syscall(SYS_fork)` and the like run no atfork
//! handlers. Without a hook the child would have no agent, and the pager could move none of its
//! pages out.
//!
//! The hook stands before glibc's `syscall` and makes every call as requested. If the call has made
//! a child with its own memory, the child joins the pager. A child made by the program's own
//! syscall instruction joins at the first hook that it calls.

use crate::advice::{advise, advise_process};
use crate::aside;
use crate::filter::{self, SET_SECCOMP};
use crate::hooks::before_prctl;
use crate::own::{begin_child, own_or_join, settle};
use crate::passing::{fork_begins, fork_ends};
use crate::preload::set_errno;
use crate::syscall::{
    CLONE, CLONE3, EXIT, FORK, MADVISE, PRCTL, PRLIMIT64, PROCESS_MADVISE, SECCOMP, SETNS,
    SETRLIMIT, UNSHARE, call,
};
use core::ffi::c_long;

/// Hook before glibc's `syscall`.
///
/// # Safety
/// As `syscall`. On x86-64 a variadic call with integer arguments passes them where this function
/// expects them. The kernel ignores arguments that the call does not need.
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
    match number {
        PRCTL => before_prctl(a, b),
        // The pager finds a young process by its first thread.
        SETRLIMIT | PRLIMIT64 | EXIT => settle(),
        _ => {}
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
            UNSHARE => aside::unshare(a as u32 as usize),
            SETNS => aside::setns(a, b as u32 as usize),
            _ => call(number, [a, b, c, d, e, f]),
        }
    };
    match result {
        // A child that shares its parent's memory shares the agent too.
        // A child in a user namespace of its own may hide itself before a late join.
        0 if has_new_users(number, a) => drop(own_or_join()),
        0 if forks => begin_child(),
        _ if forks => fork_ends(),
        _ => {}
    }
    if is_filter && result == 0 {
        // SAFETY: the kernel has just read the filter at this address.
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

/// Whether a call is a clone that makes a user namespace for the child.
fn has_new_users(number: usize, first: usize) -> bool {
    const NEW_USERS: usize = 0x1000_0000;
    let flags = match number {
        CLONE => first,
        // SAFETY: the kernel has just read the structure at this address; its first word has the
        // flags.
        CLONE3 => unsafe { *(first as *const u64) as usize },
        _ => 0,
    };
    flags & NEW_USERS != 0
}
