//! Checks the seccomp filters that the program gives itself: whether they let a forked child join.
//!
//! A filter may answer a call with the end of the process. It may also answer with a signal that
//! the program takes for a fault of its own. The hooks therefore run each filter on the calls that
//! a join makes ([`crate::bpf`]). A join copes with an answer that is an error. A filter with a
//! worse answer is strict.
//!
//! * FILTER-1: behind a strict filter a child makes no calls to join, and a started program gets no
//!   agent. The pager counts and reports their memory. One thread with such a filter is enough to
//!   make its whole process strict.
//! * FILTER-2: a child that borrows its parent's memory (`vfork`) changes nothing of it.

use crate::bpf::{Instruction, lets_join};
use crate::exec;
use crate::own::{self, is_own_process};
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::Relaxed;

/// 1 once there is a strict filter, which joining would not survive.
static STRICT: AtomicU32 = AtomicU32::new(0);

/// Returns whether this process, or the one that it was forked from, has a strict filter.
pub fn is_strict() -> bool {
    STRICT.load(Relaxed) != 0
}

/// Returns whether the filter that this process is about to install must be examined. Hooks ask
/// before the filter is installed. An agent that is still joining joins first (OWN-3). Behind a
/// filter that is already strict, this function makes no system call.
pub fn is_to_be_looked_at() -> bool {
    if is_strict() {
        return false;
    }
    own::settle();
    is_own_process()
}

/// `struct sock_fprog`.
#[repr(C)]
pub struct Program {
    len: u16,
    first: *const Instruction,
}

/// `PR_SET_SECCOMP` and its modes; the operations of `seccomp` that set the same modes.
pub const SET_SECCOMP: usize = 22;
const STRICT_MODE: usize = 1;
const FILTER_MODE: usize = 2;
const SET_MODE_STRICT: usize = 0;
const SET_MODE_FILTER: usize = 1;

/// Examines the filter after `prctl(PR_SET_SECCOMP, mode, program)` has succeeded.
///
/// # Safety
/// `program` is the address that the kernel has just read.
pub unsafe fn set_by_prctl(mode: usize, program: usize) {
    match mode {
        STRICT_MODE => become_strict(),
        // SAFETY: as promised.
        FILTER_MODE => unsafe { look(program) },
        _ => {}
    }
}

/// Examines the filter after `seccomp(operation, _, program)` has succeeded.
///
/// # Safety
/// `program` is the address that the kernel has just read.
pub unsafe fn set_by_seccomp(operation: usize, program: usize) {
    // The kernel reads only the low 32 bits.
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

/// Marks the process as strict if the filter does not let it join.
///
/// # Safety
/// `program` describes a filter that the kernel has accepted.
unsafe fn look(program: usize) {
    // SAFETY: as promised; the kernel has just read that many instructions there.
    let instructions = unsafe {
        let program = &*(program as *const Program);
        core::slice::from_raw_parts(program.first, usize::from(program.len))
    };
    if !lets_join(instructions) {
        become_strict();
    }
}
