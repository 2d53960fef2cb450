//! Records signal dispositions, blocked signals, closed streams and variables that this process
//! inherited from its parent. A program that this process starts gets the same.
//!
//! Rust's runtime changes some of these before `main`: it ignores SIGPIPE and opens closed standard
//! streams. A constructor therefore records them earlier. Ebb's own processes later change more
//! dispositions for themselves (see [`keep_going`]).
//!
//! A program whose file has capabilities starts in secure mode (`AT_SECURE`, ld.so(8)). Before any
//! constructor, the C library then removes `LD_PRELOAD`, `TMPDIR` and more from the environment. It
//! also opens closed streams. The program that this process starts has no capabilities, so it gets
//! both as they were.
//!
//! * INHERITED-1: the record never changes: it is written once, before there is a second thread.
//! * INHERITED-2: `restore` is safe between `fork` and `exec`, because it only makes system calls
//!   and reads the record.
//! * INHERITED-3: a removed variable never returns to the environment of this process, which may
//!   have a right that its user lacks. By `GCONV_PATH` and others the C library loads code.

use std::ffi::{CStr, OsStr, OsString};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Signals whose disposition the runtime, Ebb or the C library changes. The last two are the C
/// library's own. It handles one in each process with threads, and no call of it changes them.
const CHANGED: [libc::c_int; 7] =
    [libc::SIGPIPE, libc::SIGCHLD, libc::SIGXFSZ, libc::SIGXCPU, libc::SIGTTOU, 32, 33];

/// Standard streams that were closed at the start, a bit each.
static CLOSED: AtomicU64 = AtomicU64::new(0);
/// Signals of `CHANGED` that were ignored at the start, a bit each.
static IGNORED: AtomicU64 = AtomicU64::new(0);
/// Signals that were blocked at the start, in the kernel's format.
static BLOCKED: AtomicU64 = AtomicU64::new(0);

/// A disposition in the kernel's format, of which the first word is the handler.
type Disposition = [usize; 4];
/// Size of a set of signals in the kernel's format.
const SET_BYTES: usize = 8;

/// Returns whether a signal is ignored.
fn is_ignored(signal: libc::c_int) -> bool {
    let mut now = Disposition::default();
    // SAFETY: reads a disposition into storage that outlives the call.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, 0usize, now.as_mut_ptr(), SET_BYTES);
    }
    now[0] == libc::SIG_IGN
}

/// Ignores a signal, or gives it the default disposition.
fn ignore(signal: libc::c_int, ignored: bool) {
    let handler = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    let wanted: Disposition = [handler, 0, 0, 0];
    // SAFETY: sets a disposition that needs no handler.
    unsafe {
        libc::syscall(libc::SYS_rt_sigaction, signal, wanted.as_ptr(), 0usize, SET_BYTES);
    }
}

type Variables = Vec<(OsString, OsString)>;

/// Variables that the C library has removed.
static REMOVED: OnceLock<Variables> = OnceLock::new();

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(libc::c_int, *const *const libc::c_char) = note;

/// Whether the C library opened this stream in secure mode in place of a closed one. It opens each
/// in the direction in which no program uses it.
fn was_opened(fd: RawFd) -> bool {
    const FULL: libc::dev_t = libc::makedev(1, 7);
    const NULL: libc::dev_t = libc::makedev(1, 3);
    let (device, direction) = if fd == 0 { (FULL, libc::O_WRONLY) } else { (NULL, libc::O_RDONLY) };
    // SAFETY: reads flags and the kind of file into storage that outlives the calls.
    unsafe {
        let mut kind: libc::stat = std::mem::zeroed();
        let flags = libc::fcntl(fd, libc::F_GETFL);
        libc::fstat(fd, &raw mut kind) == 0
            && kind.st_rdev == device
            && flags & libc::O_ACCMODE == direction
            && flags & libc::O_NOFOLLOW != 0
    }
}

/// Returns the variables that the C library has removed from this process's environment.
///
/// # Safety
/// The arguments must be those of a constructor, and at least one.
unsafe fn removed(count: libc::c_int, arguments: *const *const libc::c_char) -> Variables {
    let mut removed = Variables::new();
    // SAFETY: the kernel puts the strings of the arguments, of the environment and of the file's
    // name one after another. They stay there as long as the process.
    unsafe {
        let last = *arguments.add(count as usize - 1);
        let end = libc::getauxval(libc::AT_EXECFN) as *const libc::c_char;
        let mut at = last.add(libc::strlen(last) + 1);
        while at < end {
            let entry = CStr::from_ptr(at).to_bytes();
            at = at.add(entry.len() + 1);
            // A name is not empty.
            let Some(sign) = (1..entry.len()).find(|&index| entry[index] == b'=') else { continue };
            let [name, value] = [&entry[..sign], &entry[sign + 1..]].map(OsStr::from_bytes);
            if std::env::var_os(name).is_none() && !removed.iter().any(|(other, _)| other == name) {
                removed.push((name.to_owned(), value.to_owned()));
            }
        }
    }
    removed
}

/// Returns the variables of the user that the C library has removed, for the environment of a
/// program (INHERITED-3).
pub fn removed_variables() -> &'static [(OsString, OsString)] {
    REMOVED.get().map_or(&[], Vec::as_slice)
}

/// Returns a variable as the user has set it.
#[must_use]
pub fn variable(name: &str) -> Option<OsString> {
    let removed = || removed_variables().iter().find(|(other, _)| other == name);
    std::env::var_os(name).or_else(|| removed().map(|(_, value)| value.clone()))
}

extern "C" fn note(count: libc::c_int, arguments: *const *const libc::c_char) {
    // SAFETY: takes a number.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    if is_secure && count > 0 {
        // SAFETY: this is a constructor.
        let _ = REMOVED.set(unsafe { removed(count, arguments) });
    }
    // SAFETY: reads flags, dispositions and the mask into storage that outlives the calls.
    unsafe {
        for fd in 0..3 {
            if libc::fcntl(fd, libc::F_GETFD) < 0 || is_secure && was_opened(fd) {
                CLOSED.fetch_or(1 << fd, Relaxed);
            }
        }
        for (bit, &signal) in CHANGED.iter().enumerate() {
            if is_ignored(signal) {
                IGNORED.fetch_or(1 << bit, Relaxed);
            }
        }
        let mut mask: libc::sigset_t = std::mem::zeroed();
        libc::sigprocmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut mask);
        let blocked = (1..=64).filter(|&signal| libc::sigismember(&raw const mask, signal) == 1);
        BLOCKED.store(blocked.fold(0, |set, signal| set | 1 << (signal - 1)), Relaxed);
    }
}

/// Keeps this process running where the defaults or an inherited disposition would disturb it.
/// Exceeding a limit of file sizes or CPU time becomes an error instead of the end. The kernel
/// reports the end of children, even if the parent of this process ignored its own. A terminal
/// accepts output from the background (`stty tostop`).
pub fn keep_going() {
    // SAFETY: sets dispositions that need no handler.
    unsafe {
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        libc::signal(libc::SIGXCPU, libc::SIG_IGN);
        libc::signal(libc::SIGTTOU, libc::SIG_IGN);
        libc::signal(libc::SIGCHLD, libc::SIG_DFL);
    }
}

/// Restores the recorded state in the calling process, a child about to call `exec`.
pub(crate) fn restore() {
    let ignored = IGNORED.load(Relaxed);
    let closed = CLOSED.load(Relaxed);
    let blocked = BLOCKED.load(Relaxed);
    // SAFETY: only makes system calls; closes only the streams that the runtime has opened in place
    // of closed ones.
    unsafe {
        for (bit, &signal) in CHANGED.iter().enumerate() {
            ignore(signal, ignored >> bit & 1 == 1);
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

/// Takes over all inherited descriptors beyond the standard streams. To be called before this
/// process opens descriptors without close-on-exec. Returns none without `/proc`. Programs that
/// start while the returned descriptors are open inherit them.
#[must_use]
pub fn descriptors() -> Vec<OwnedFd> {
    let Ok(entries) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let numbers: Vec<RawFd> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    let passed_on = |&fd: &RawFd| {
        // SAFETY: reads flags. Descriptors that this process itself opened are close-on-exec.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        fd > 2 && flags >= 0 && flags & libc::FD_CLOEXEC == 0
    };
    // SAFETY: the descriptors are open, and no code of this process owns them, because they are
    // inherited.
    numbers.into_iter().filter(passed_on).map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }).collect()
}

/// Replaces standard input and output by `fd`. Readers and writers at the other ends then no longer
/// wait for this process.
pub fn leave_streams(fd: &impl AsRawFd) {
    // SAFETY: replaces standard streams, which no value owns, by copies of an open descriptor.
    unsafe {
        libc::dup2(fd.as_raw_fd(), 0);
        libc::dup2(fd.as_raw_fd(), 1);
    }
}
