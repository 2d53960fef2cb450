//! What this process got from who started it, so that a program started by it gets the same.
//!
//! The language's runtime changes some of it before `main`: it ignores SIGPIPE and opens closed standard
//! streams. So it is noted before that, by a constructor. Ebb's own processes then change more of it for
//! themselves (see `keep_going`).
//!
//! * INHERITED-1: what was noted never changes: it is written once, before there is a second thread.
//! * INHERITED-2: `restore` is safe between `fork` and `exec`: it only calls the kernel and reads what was noted.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Signals that the runtime or Ebb treats in a way of its own.
const CHANGED: [libc::c_int; 5] =
    [libc::SIGPIPE, libc::SIGCHLD, libc::SIGXFSZ, libc::SIGXCPU, libc::SIGTTOU];

/// Standard streams that were closed, a bit each.
static CLOSED: AtomicU64 = AtomicU64::new(0);
/// Signals of `CHANGED` that were ignored, a bit each.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Signals that were blocked, as the kernel has them.
static BLOCKED: AtomicU64 = AtomicU64::new(0);

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = note;

extern "C" fn note() {
    // SAFETY: asks for flags, dispositions and the mask, into storage that outlives the calls.
    unsafe {
        for fd in 0..3 {
            if libc::fcntl(fd, libc::F_GETFD) < 0 {
                CLOSED.fetch_or(1 << fd, Relaxed);
            }
        }
        for (bit, &signal) in CHANGED.iter().enumerate() {
            let mut now: libc::sigaction = std::mem::zeroed();
            libc::sigaction(signal, std::ptr::null(), &raw mut now);
            if now.sa_sigaction == libc::SIG_IGN {
                IGNORED.fetch_or(1 << bit, Relaxed);
            }
        }
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        let blocked = (1..=64).filter(|&signal| libc::sigismember(&raw const mask, signal) == 1);
        BLOCKED.store(blocked.fold(0, |set, signal| set | 1 << (signal - 1)), Relaxed);
    }
}

/// From now on a limit of file sizes or CPU time that Ebb exceeds is an error and not its end, the end of a child is told
/// even if who started this process did not care for its own, and a terminal takes what is written to it from the background
/// (`stty tostop`).
pub fn keep_going() {
    // SAFETY: sets signals to what needs no handler.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::signal(libc::SIGXCPU, libc::SIG_IGN);
        libc::signal(libc::SIGTTOU, libc::SIG_IGN);
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

/// Gives the calling process, a child about to become a program, what was noted.
pub(crate) fn restore() {
    let ignored = IGNORED.load(Relaxed);
    let closed = CLOSED.load(Relaxed);
    let blocked = BLOCKED.load(Relaxed);
    // SAFETY: as above; the streams closed here are those that the runtime opened in place of none.
    unsafe {
        for (bit, &signal) in CHANGED.iter().enumerate() {
            let ignored = ignored >> bit & 1 == 1;
            libc::signal(signal, if ignored { libc::SIG_IGN } else { libc::SIG_DFL });
        }
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut mask);
        for signal in (1..=64).filter(|signal| blocked >> (signal - 1) & 1 == 1) {
            libc::sigaddset(&raw mut mask, signal);
        }
        libc::sigprocmask(libc::SIG_SETMASK, &raw const mask, std::ptr::null_mut());
        for fd in (0..3).filter(|fd| closed >> fd & 1 == 1) {
            libc::close(fd);
        }
    }
}

/// Takes over all descriptors beyond the standard streams that were passed on to this process, before it
/// has opened any that it would pass on itself: none without `/proc`. Programs started while these are
/// held inherit them.
#[must_use]
pub fn descriptors() -> Vec<OwnedFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers: Vec<RawFd> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let passed_on = |&fd: &RawFd| {
        // SAFETY: asks for flags. What this process opened itself closes on exec.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        fd > 2 && flags >= 0 && flags & libc::FD_CLOEXEC == 0
    };
    // SAFETY: they are open, and as they came from outside nobody in here has them.
    numbers.into_iter().filter(passed_on).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect()
}

/// Puts `fd` in the place of standard input and output: whoever is at their other ends no longer waits
/// for this process.
pub fn leave_streams(fd: &impl AsRawFd) {
    // SAFETY: replaces standard streams, which belong to nobody, by copies of an open descriptor.
    unsafe {
        libc::dup2(fd.as_raw_fd(), 0);
        libc::dup2(fd.as_raw_fd(), 1);
    }
}
