//! Futexes: waiting on a word of memory that several processes share.

use std::sync::atomic::AtomicU32;
use std::time::Duration;

/// Waits until the word is woken, while it holds `expected`, for at most `limit`. May return early
/// for any reason, so the caller must check the word again.
pub fn wait(word: &AtomicU32, expected: u32, limit: Duration) {
    let timeout = libc::timespec {
        tv_sec: limit.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(limit.subsec_nanos()),
    };
    // SAFETY: the word and the timeout outlive the call; the kernel only compares the word.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT,
            expected,
            std::ptr::from_ref(&timeout),
        );
    }
}

/// Wakes all threads that wait on the word.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address as a key only.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}
