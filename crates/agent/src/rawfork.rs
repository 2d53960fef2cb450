//! Forks around the C library: `syscall(SYS_fork)` and its like run no atfork handlers, so the child
//! would have no agent and could give nothing back. The agent stands before glibc's `syscall`, makes
//! every call as asked, and joins the pager where one of them has made a child with a memory of its
//! own. (A program that makes the call with an instruction of its own is not seen.)

use crate::advice::{advise, advise_process};
use crate::preload::{after_fork_child, set_errno};
use crate::syscall::{CLONE, CLONE3, FORK, MADVISE, PROCESS_MADVISE, call};
use core::ffi::c_long;

/// The child shares its parent's memory.
const CLONE_VM: usize = 0x100;

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
    // Looked at before the call: afterwards there may be two of us.
    let forks = match number {
        FORK => true,
        CLONE => a & CLONE_VM == 0,
        // SAFETY: the first member of what the caller passes to clone3 are its flags; a pointer that
        // leads nowhere is for the kernel to refuse.
        CLONE3 => a != 0 && b >= 8 && unsafe { *(a as *const u64) } as usize & CLONE_VM == 0,
        _ => false,
    };
    // SAFETY: the caller vouches for the call.
    let result = unsafe {
        match number {
            MADVISE => advise(a, b, c),
            PROCESS_MADVISE => advise_process([a, b, c, d, e, f]),
            _ => call(number, [a, b, c, d, e, f]),
        }
    };
    if forks && result == 0 {
        after_fork_child();
    }
    if (-4095..0).contains(&result) {
        set_errno(-result as i32);
        return -1;
    }
    result as c_long
}
