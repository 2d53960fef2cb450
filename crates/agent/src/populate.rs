//! Splits a call that populates memory into slices.
//!
//! The kernel fills the range of `MAP_POPULATE` or `madvise(MADV_POPULATE_…)` in one call. A thread
//! in that call stops for no signal but SIGKILL. In such a call shared memory, which Ebb counts and
//! cannot store, could exceed any limit. Between slices the freezer can stop the thread. The result
//! stays the same, and the kernel never promises to fill memory.

use crate::syscall::{self, call};

pub const MAP_POPULATE: usize = 0x8000;
/// Cancels the effect of `MAP_POPULATE`.
const MAP_NONBLOCK: usize = 0x1_0000;
const MAP_TYPE: usize = 0x0f;
const MAP_SHARED: usize = 0x01;
const MAP_SHARED_VALIDATE: usize = 0x03;
pub const MADV_POPULATE_READ: usize = 22;
pub const MADV_POPULATE_WRITE: usize = 23;
/// Bytes of a slice. The kernel fills a slice in a good half of a millisecond.
const SLICE: usize = 2 << 20;

/// Makes the call `mmap`.
///
/// # Safety
/// As `mmap`.
pub unsafe fn map(mut args: [usize; 6]) -> isize {
    let [_, len, _, flags, ..] = args;
    let shared = matches!(flags & MAP_TYPE, MAP_SHARED | MAP_SHARED_VALIDATE);
    let fills = flags & (MAP_POPULATE | MAP_NONBLOCK) == MAP_POPULATE;
    let sliced = shared && fills && len > SLICE;
    if sliced {
        args[3] &= !MAP_POPULATE;
    }
    // SAFETY: the caller vouches for the call.
    let at = unsafe { call(syscall::MMAP, args) };
    if sliced && at >= 0 {
        // As the kernel does, this populates a shared mapping by read faults, which make no page
        // dirty. A failure is no error, as with the flag.
        // SAFETY: the area just made.
        unsafe { advise(at as usize, len, MADV_POPULATE_READ) };
    }
    at
}

/// Makes the call `madvise` with `MADV_POPULATE_READ` or `MADV_POPULATE_WRITE`, slice by slice,
/// until one fails.
///
/// # Safety
/// As `madvise`.
pub unsafe fn advise(start: usize, len: usize, advice: usize) -> isize {
    // The kernel must refuse a range that wraps around as a whole.
    let slice = if start.checked_add(len).is_some() { SLICE } else { len };
    let mut done = 0;
    loop {
        let part = (len - done).min(slice);
        // SAFETY: the caller vouches for the whole range, of which this is a part.
        let result =
            unsafe { call(syscall::MADVISE, [start.wrapping_add(done), part, advice, 0, 0, 0]) };
        done += part;
        if result < 0 || done >= len {
            return result;
        }
    }
}
