//! Signals as messages, and changes of children.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Set of blocked signals that are read one by one (signalfd) instead of delivered.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

/// One received signal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signal {
    /// Signal number, as in `signal(7)`.
    pub number: i32,
    /// Whether the kernel sent the signal (a key at the terminal), so that the whole process group
    /// received it.
    pub from_terminal: bool,
}

/// Change of a child's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// The child ended by itself.
    Exited {
        /// Process id of the child.
        pid: u32,
        /// Exit status of the child, 0 to 255.
        code: i32,
    },
    /// A signal ended the child.
    Killed {
        /// Process id of the child.
        pid: u32,
        /// Number of the signal.
        signal: i32,
    },
    /// A signal stopped the child.
    Stopped {
        /// Process id of the child.
        pid: u32,
        /// Number of the signal.
        signal: i32,
    },
    /// SIGCONT resumed the child.
    Continued {
        /// Process id of the child.
        pid: u32,
    },
}

impl Signals {
    /// Blocks `numbers` in this thread and in threads that it starts later, and receives them as
    /// messages.
    pub fn take(numbers: &[i32]) -> io::Result<Self> {
        // SAFETY: a zeroed set is valid storage for sigemptyset; the set outlives every call.
        unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::sigemptyset(&raw mut set);
            for &number in numbers {
                libc::sigaddset(&raw mut set, number);
            }
            libc::sigprocmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut());
            let fd = libc::signalfd(-1, &raw const set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
            if fd < 0 {
                return Err(io::Error::last_os_error());
            }
            Ok(Self { fd: OwnedFd::from_raw_fd(fd) })
        }
    }

    /// Returns the next received signal, if any.
    #[must_use]
    pub fn next(&self) -> Option<Signal> {
        // SAFETY: a zeroed structure is valid storage; read fills at most its size.
        unsafe {
            let mut info: libc::signalfd_siginfo = std::mem::zeroed();
            let size = size_of::<libc::signalfd_siginfo>();
            let got = libc::read(self.fd.as_raw_fd(), (&raw mut info).cast(), size);
            (got == size as isize).then_some(Signal {
                number: info.ssi_signo as i32,
                from_terminal: info.ssi_code > 0,
            })
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Returns the next change of any child, without waiting.
#[must_use]
pub fn next_change() -> Option<Change> {
    let mut status = 0;
    let options = libc::WNOHANG | libc::WUNTRACED | libc::WCONTINUED;
    // SAFETY: the status outlives the call.
    let pid = unsafe { libc::waitpid(-1, &raw mut status, options) };
    if pid <= 0 {
        return None;
    }
    let pid = pid as u32;
    Some(if libc::WIFEXITED(status) {
        Change::Exited { pid, code: libc::WEXITSTATUS(status) }
    } else if libc::WIFSIGNALED(status) {
        Change::Killed { pid, signal: libc::WTERMSIG(status) }
    } else if libc::WIFSTOPPED(status) {
        Change::Stopped { pid, signal: libc::WSTOPSIG(status) }
    } else {
        Change::Continued { pid }
    })
}

/// Converts a status of wait(2) to the number that a shell shows: the exit code, or 128 plus the
/// number of the signal.
#[must_use]
pub fn shown(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// Sends `signal` to process `pid`.
pub fn send(pid: u32, signal: i32) {
    // SAFETY: the arguments are integers. If the process has ended, the signal is lost.
    unsafe {
        libc::kill(pid as libc::pid_t, signal);
    }
}

/// Makes SIGPIPE end this process quietly once no process reads its output, as other commands end.
pub fn end_on_closed_pipe() {
    // SAFETY: sets a signal to its default; no code of this process handles it.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// Blocks all signals of the calling thread, so that other threads take the signals sent to the
/// process.
pub fn leave_to_other_threads() {
    // SAFETY: a local set, which the call fills; the mask belongs to this thread alone.
    unsafe {
        let mut all = std::mem::zeroed::<libc::sigset_t>();
        libc::sigfillset(&raw mut all);
        libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, std::ptr::null_mut());
    }
}

/// Stops this process, as Ctrl-Z would.
pub fn stop_self() {
    // SAFETY: integers only.
    unsafe {
        libc::raise(libc::SIGSTOP);
    }
}

pub use libc::{
    SIGALRM, SIGCHLD, SIGCONT, SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGTERM, SIGTSTP, SIGTTIN,
    SIGTTOU, SIGUSR1, SIGUSR2, SIGWINCH,
};
