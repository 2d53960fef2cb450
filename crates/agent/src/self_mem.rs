//! Hooks before glibc's `pread` and `pwrite`, for programs that access their own memory through
//! `/proc/self/mem`. Some just-in-time compilers do.
//!
//! The kernel does not wait for the pager in such a call. The call fails with EIO at a page that is
//! not in memory. The hook then faults the pages in, waits for them, and repeats the call. Any
//! other call stays as it is.

use crate::filter;
use crate::populate::MADV_POPULATE_READ;
use crate::preload::{errno, set_errno};
use crate::state::{AGENT, PRESENT};
use crate::syscall::{self, call};
use crate::threads::behind;
use core::ffi::{c_int, c_void};
use core::sync::atomic::AtomicPtr;
use core::sync::atomic::Ordering::Acquire;

const EIO: c_int = 5;
const PAGE: usize = 4096;
/// Largest number of bytes in a repeated call. A pager that is short of memory must be able to
/// bring in all of their pages at once. A call may transfer less than the program asks for.
const BYTES_MAX: usize = 16 * PAGE;
/// Largest number of repetitions, because pages may leave again before the call reaches them.
const ATTEMPTS: usize = 64;

type Transfer = unsafe extern "C" fn(c_int, *mut c_void, usize, i64) -> isize;

static REAL_PREAD: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());
static REAL_PWRITE: AtomicPtr<c_void> = AtomicPtr::new(core::ptr::null_mut());

/// Looks the functions behind the hooks up. A handler of a signal, or a child of a program with
/// threads, may call them, and must not wait for the loader's lock then.
pub fn look_up() {
    behind(&REAL_PREAD, c"pread");
    behind(&REAL_PWRITE, c"pwrite");
}

/// Hook before glibc's `pread`.
///
/// # Safety
/// As `pread`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread(fd: c_int, to: *mut c_void, len: usize, at: i64) -> isize {
    // SAFETY: the caller vouches for the call.
    unsafe { transfer(behind(&REAL_PREAD, c"pread"), fd, to, len, at) }
}

/// Hook before glibc's `pread64`, which equals `pread`.
///
/// # Safety
/// As `pread64`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pread64(fd: c_int, to: *mut c_void, len: usize, at: i64) -> isize {
    // SAFETY: the caller vouches for the call.
    unsafe { pread(fd, to, len, at) }
}

/// Hook before glibc's `pwrite`.
///
/// # Safety
/// As `pwrite`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite(fd: c_int, from: *const c_void, len: usize, at: i64) -> isize {
    // SAFETY: the caller vouches for the call.
    unsafe { transfer(behind(&REAL_PWRITE, c"pwrite"), fd, from.cast_mut(), len, at) }
}

/// Hook before glibc's `pwrite64`, which equals `pwrite`.
///
/// # Safety
/// As `pwrite64`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pwrite64(fd: c_int, from: *const c_void, len: usize, at: i64) -> isize {
    // SAFETY: the caller vouches for the call.
    unsafe { pwrite(fd, from, len, at) }
}

/// Makes the call `real`, and repeats it while it finds pages of the program missing.
///
/// # Safety
/// `real` is glibc's `pread` or `pwrite`, and the caller vouches for its arguments.
unsafe fn transfer(
    real: *mut c_void,
    fd: c_int,
    buffer: *mut c_void,
    len: usize,
    at: i64,
) -> isize {
    // SAFETY: both functions have this type, but for `const`.
    let real = unsafe { core::mem::transmute::<*mut c_void, Transfer>(real) };
    // SAFETY: the caller vouches for the call.
    let result = unsafe { real(fd, buffer, len, at) };
    if result >= 0 || errno() != EIO || AGENT.stage.load(Acquire) != PRESENT {
        return result;
    }
    // A filter could kill the program for calls that it does not make itself.
    if filter::is_strict() || !is_own_memory(fd) {
        set_errno(EIO);
        return result;
    }
    let len = len.min(BYTES_MAX);
    let (start, end) = (at as usize & !(PAGE - 1), (at as usize).saturating_add(len));
    for _ in 0..ATTEMPTS {
        let there = [start, end.next_multiple_of(PAGE) - start, MADV_POPULATE_READ, 0, 0, 0];
        // SAFETY: reading faults change no content; the kernel checks the range.
        let populated = unsafe { call(syscall::MADVISE, there) };
        // SAFETY: the caller vouches for the call with `len` or more.
        let result = unsafe { real(fd, buffer, len, at) };
        if result >= 0 || errno() != EIO || populated < 0 {
            return result;
        }
    }
    -1
}

/// Returns whether a descriptor is `/proc/PID/mem` of this process.
fn is_own_memory(fd: c_int) -> bool {
    let mut path = Text::<40>::new();
    path.add(b"/proc/self/fd/").add_number(fd as u32 as usize).add(b"\0");
    let mut own = Text::<40>::new();
    // SAFETY: GETPID takes no argument.
    own.add(b"/proc/").add_number(unsafe { call(syscall::GETPID, [0; 6]) } as usize).add(b"/");
    let mut found = [0u8; 64];
    let args = [path.bytes.as_ptr() as usize, found.as_mut_ptr() as usize, found.len(), 0, 0, 0];
    // SAFETY: the path ends with a null byte, and the buffer outlives the call.
    let got = unsafe { call(syscall::READLINK, args) };
    let found = &found[..usize::try_from(got).unwrap_or(0)];
    found.starts_with(&own.bytes[..own.len]) && found.ends_with(b"/mem")
}

/// A short text on the stack.
struct Text<const N: usize> {
    bytes: [u8; N],
    len: usize,
}

impl<const N: usize> Text<N> {
    fn new() -> Self {
        Self { bytes: [0; N], len: 0 }
    }

    fn add(&mut self, text: &[u8]) -> &mut Self {
        for &byte in text {
            if let Some(place) = self.bytes.get_mut(self.len) {
                *place = byte;
                self.len += 1;
            }
        }
        self
    }

    fn add_number(&mut self, number: usize) -> &mut Self {
        if number >= 10 {
            self.add_number(number / 10);
        }
        self.add(&[b'0' + (number % 10) as u8])
    }
}
