//! Filters of system calls (seccomp) that the program gives itself: whether they let a forked child join.
//!
//! A filter may answer a call that it does not like by ending the process, or by a signal that the program takes for a fault of
//! its own. So each filter that passes a hook is asked what it would do with the calls that joining takes ([`crate::bpf`]). An
//! error is an answer that joining can cope with.
//!
//! * FILTER-1: behind a filter that would do worse a child asks for nothing, and a program that is started has no agent. The
//!   pager counts their memory, and reports it. That one thread has such a filter is enough, for all of its process.
//! * FILTER-2: a child that borrows its parent's memory (`vfork`) changes nothing of it.

use crate::bpf::{Instruction, lets_join};
use crate::exec;
use crate::own::is_own_process;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// 1 once there is a filter that joining would not survive.
static STRICT: AtomicU32 = AtomicU32::new(0);

/// Whether this process, or the one that it was forked from, has such a filter.
pub fn is_strict() -> bool {
    STRICT.load(Relaxed) != 0
}

/// Whether the filter that this process is about to give itself is one to look at. Asked before it is there: behind one that
/// is strict already not even this is asked of the kernel.
pub fn is_to_be_looked_at() -> bool {
    !is_strict() && is_own_process()
}

/// `struct sock_fprog`.
#[repr(C)]
pub struct Program {
    len: u16,
    first: *const Instruction,
}

/// `PR_SET_SECCOMP`, and its modes; the operations of `seccomp` that set the same.
pub const SET_SECCOMP: usize = 22;
const STRICT_MODE: usize = 1;
const FILTER_MODE: usize = 2;
const SET_MODE_STRICT: usize = 0;
const SET_MODE_FILTER: usize = 1;

/// `prctl(PR_SET_SECCOMP, mode, program)` has succeeded.
///
/// # Safety
/// `program` is what the kernel has just read.
pub unsafe fn set_by_prctl(mode: usize, program: usize) {
    match mode {
        STRICT_MODE => become_strict(),
        // SAFETY: as promised.
        FILTER_MODE => unsafe { look(program) },
        _ => {}
    }
}

/// `seccomp(operation, _, program)` has succeeded.
///
/// # Safety
/// `program` is what the kernel has just read.
pub unsafe fn set_by_seccomp(operation: usize, program: usize) {
    // The kernel looks at so much of it.
    match operation as u32 as usize {
        SET_MODE_STRICT => become_strict(),
        // SAFETY: as promised.
        SET_MODE_FILTER => unsafe { look(program) },
        _ => {}
    }
}

fn become_strict() {
    STRICT.store(1, Relaxed);
    exec::leave_out();
}

/// # Safety
/// `program` is that of a filter that the kernel has accepted.
unsafe fn look(program: usize) {
    // SAFETY: as promised; so many instructions lie there.
    let instructions = unsafe {
        let program = &*(program as *const Program);
        core::slice::from_raw_parts(program.first, usize::from(program.len))
    };
    if !lets_join(instructions) {
        become_strict();
    }
}
