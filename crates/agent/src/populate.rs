//! Memory that a program has the kernel fill before it is touched, in slices.
//!
//! The kernel fills what `MAP_POPULATE` or `madvise(MADV_POPULATE_…)` names in one call, and a thread within it stands for no
//! signal but the last: shared memory, which Ebb counts and cannot store, went past any limit that way. Between slices the
//! brake can hold who fills it. What is filled, and how, stays what it was; filling was never promised.

use crate::syscall::{self, call};

pub const MAP_POPULATE: usize = 0x8000;
/// Takes the meaning from `MAP_POPULATE`.
const MAP_NONBLOCK: usize = 0x1_0000;
const MAP_TYPE: usize = 0x0f;
const MAP_SHARED: usize = 0x01;
const MAP_SHARED_VALIDATE: usize = 0x03;
pub const MADV_POPULATE_READ: usize = 22;
pub const MADV_POPULATE_WRITE: usize = 23;
/// Filled in a good half of a millisecond.
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
        // For reading: the kernel makes no page of a shared mapping dirty that nobody has written to. As with the flag,
        // failing to is no error.
        // SAFETY: the area just made.
        unsafe { advise(at as usize, len, MADV_POPULATE_READ) };
    }
    at
}

/// Makes the call `madvise` with one of the two, slice by slice, until one fails.
///
/// # Safety
/// As `madvise`.
pub unsafe fn advise(start: usize, len: usize, advice: usize) -> isize {
    // What wraps around is refused whole.
    let slice = if start.checked_add(len).is_some() { SLICE } else { len };
    let mut done = 0;
    loop {
        let part = (len - done).min(slice);
        // SAFETY: part of what the caller vouches for.
        let result =
            unsafe { call(syscall::MADVISE, [start.wrapping_add(done), part, advice, 0, 0, 0]) };
        done += part;
        if result < 0 || done >= len {
            return result;
        }
    }
}
