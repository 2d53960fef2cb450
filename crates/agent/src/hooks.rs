//! Hooks before the C library's memory functions, so that the pager learns of new mappings before
//! these functions return.
//!
//! The hooks run on the program's own threads. Without an agent each hook makes the plain system
//! call.

use crate::advice::{advise, advise_process};
use crate::areas::Area;
use crate::aside;
use crate::filter::{self, SET_SECCOMP};
use crate::lock::lock_all;
use crate::map::map;
use crate::own::{own_or_join, settle};
use crate::preload::set_errno;
use crate::protocol::DISCARD_AREA_BYTES;
use crate::remap::{Request, remap};
use crate::state::AGENT;
use crate::syscall::{self, call};
use core::ffi::{c_int, c_uint, c_void};
use core::sync::atomic::Ordering::Relaxed;

/// Hook before glibc's `madvise`.
///
/// # Safety
/// As `madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn madvise(address: *mut c_void, len: usize, advice: c_int) -> c_int {
    // SAFETY: the caller vouches for the arguments.
    let result = unsafe { advise(address as usize, len, advice as usize) };
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    0
}

/// Hook before glibc's `process_madvise`.
///
/// # Safety
/// As `process_madvise`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn process_madvise(
    pidfd: c_int,
    ranges: *const c_void,
    count: usize,
    advice: c_int,
    flags: c_uint,
) -> isize {
    let args = [pidfd as usize, ranges as usize, count, advice as usize, flags as usize, 0];
    // SAFETY: the caller vouches for the arguments.
    let result = unsafe { advise_process(args) };
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    result
}

/// Hook before glibc's `mmap`.
///
/// # Safety
/// As `mmap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap(
    address: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: usize,
) -> *mut c_void {
    let args = [address, len, prot as usize, flags as usize, fd as usize, offset];
    let result = map(own_or_join(), args);
    if (-4095..0).contains(&result) {
        set_errno(-result as c_int);
        return usize::MAX as *mut c_void;
    }
    result as *mut c_void
}

/// Hook before glibc's `mmap64`, which equals `mmap`.
///
/// # Safety
/// As `mmap64`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mmap64(
    address: usize,
    len: usize,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: usize,
) -> *mut c_void {
    // SAFETY: the caller vouches for the call.
    unsafe { mmap(address, len, prot, flags, fd, offset) }
}

/// Hook before glibc's `mremap`, which takes its fifth argument only with some flags.
///
/// # Safety
/// As `mremap`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mremap(
    old: usize,
    old_len: usize,
    new_len: usize,
    flags: c_int,
    new: usize,
) -> *mut c_void {
    let request = Request { old, old_len, new_len, flags: flags as usize, new };
    let result = match own_or_join() {
        // SAFETY: the caller vouches for the call.
        None => unsafe { call(syscall::MREMAP, [old, old_len, new_len, flags as usize, new, 0]) },
        Some(shared) => remap(shared, &request),
    };
    if (-4095..0).contains(&result) {
        set_errno(-result as c_int);
        return usize::MAX as *mut c_void;
    }
    result as *mut c_void
}

/// `PR_SET_DUMPABLE`.
const SET_DUMPABLE: usize = 4;

/// Joins a forked child that has not joined yet before it makes itself undumpable by `prctl`. The
/// pager cannot look into an undumpable process. So it could not tell the child from the other
/// processes of its fork group.
pub fn before_prctl(option: usize, value: usize) {
    if option == SET_DUMPABLE && value == 0 {
        own_or_join();
    }
}

/// Hook before glibc's `prctl`. A variadic call passes these arguments in the same registers as
/// this function.
///
/// # Safety
/// As `prctl`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prctl(option: c_int, a: usize, b: usize, c: usize, d: usize) -> c_int {
    before_prctl(option as usize, a);
    let is_filter = option as usize == SET_SECCOMP && filter::is_to_be_looked_at();
    // SAFETY: the caller vouches for the call.
    let result = unsafe { call(syscall::PRCTL, [option as usize, a, b, c, d, 0]) };
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    if is_filter {
        // SAFETY: the kernel has just read the filter at this address.
        unsafe { filter::set_by_prctl(a, b) };
    }
    result as c_int
}

/// Hook before glibc's `unshare`.
///
/// # Safety
/// As `unshare`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn unshare(flags: c_int) -> c_int {
    let result = aside::unshare(flags as usize);
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    0
}

/// Hook before glibc's `setns`.
///
/// # Safety
/// As `setns`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setns(descriptor: c_int, flags: c_int) -> c_int {
    let result = aside::setns(descriptor as usize, flags as usize);
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    0
}

/// Hook before glibc's `mlockall`. The kernel must not fill the agent's own areas or lock pages
/// there.
///
/// # Safety
/// As `mlockall`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn mlockall(flags: c_int) -> c_int {
    let result = match own_or_join() {
        // SAFETY: the caller vouches for the call.
        None => unsafe { call(syscall::MLOCKALL, [flags as usize, 0, 0, 0, 0, 0]) },
        Some(shared) => {
            let (start, len) = (AGENT.pool_start.load(Relaxed), AGENT.pool_len.load(Relaxed));
            let pool = Area { start: start as usize, len: len as usize };
            let discard_area = shared.discard_area.load(Relaxed) as usize;
            let discard_area = Area {
                start: discard_area,
                len: if discard_area == 0 { 0 } else { DISCARD_AREA_BYTES as usize },
            };
            lock_all(flags as usize, &[pool, discard_area])
        }
    };
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    0
}

/// Calls `prlimit` after the agent has joined (OWN-3). The agent needs a few descriptors, and
/// limits are those of the process.
fn limit([process, resource, new, old]: [usize; 4]) -> c_int {
    settle();
    // SAFETY: the caller of the hook vouches for the call.
    let result = unsafe { call(syscall::PRLIMIT64, [process, resource, new, old, 0, 0]) };
    if result < 0 {
        set_errno(-result as c_int);
        return -1;
    }
    0
}

/// Hook before glibc's `setrlimit`.
///
/// # Safety
/// As `setrlimit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit(resource: c_int, new: *const c_void) -> c_int {
    limit([0, resource as usize, new as usize, 0])
}

/// Hook before glibc's `setrlimit64`, which equals `setrlimit`.
///
/// # Safety
/// As `setrlimit64`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn setrlimit64(resource: c_int, new: *const c_void) -> c_int {
    limit([0, resource as usize, new as usize, 0])
}

/// Hook before glibc's `prlimit`.
///
/// # Safety
/// As `prlimit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit(
    process: c_int,
    resource: c_int,
    new: *const c_void,
    old: *mut c_void,
) -> c_int {
    limit([process as usize, resource as usize, new as usize, old as usize])
}

/// Hook before glibc's `prlimit64`, which equals `prlimit`.
///
/// # Safety
/// As `prlimit64`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn prlimit64(
    process: c_int,
    resource: c_int,
    new: *const c_void,
    old: *mut c_void,
) -> c_int {
    // SAFETY: the caller vouches for the call.
    unsafe { prlimit(process, resource, new, old) }
}
