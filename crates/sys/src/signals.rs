//! Signals as messages, and the waiting for children.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// Signals of a set, read one by one instead of delivered.
#[derive(Debug)]
pub struct Signals {
    fd: OwnedFd,
}

/// One signal that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Signal {
    /// As `signal(7)` numbers them.
    pub number: i32,
    /// Sent by the kernel (a key at the terminal), so that the whole process group got it.
    pub from_terminal: bool,
}

/// What became of a child.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Change {
    /// It ended by itself.
    Exited {
        /// The child.
        pid: u32,
        /// Its exit status, 0 to 255.
        code: i32,
    },
    /// A signal ended it.
    Killed {
        /// The child.
        pid: u32,
        /// The signal's number.
        signal: i32,
    },
    /// A signal stopped it.
    Stopped {
        /// The child.
        pid: u32,
        /// The signal's number.
        signal: i32,
    },
    /// SIGCONT has it run again.
    Continued {
        /// The child.
        pid: u32,
    },
}

impl Signals {
    /// Blocks `numbers` in this thread (and those it will start) and takes them as messages.
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

    /// The next one that came, if any.
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

/// The next change of any child, without waiting.
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

/// A status as wait(2) reports it, as a shell shows it: the exit code, or 128 and the number of the signal.
#[must_use]
pub fn shown(status: i32) -> i32 {
    if libc::WIFSIGNALED(status) { 128 + libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
}

/// Sends `signal` to process `pid`.
pub fn send(pid: u32, signal: i32) {
    // SAFETY: integers only. It may have ended: then there is nobody to tell.
    unsafe {
        libc::kill(pid as libc::pid_t, signal);
    }
}

/// From now on this process ends quietly when whoever reads its output is gone, as other commands do.
pub fn end_on_closed_pipe() {
    // SAFETY: sets a signal to its default; nothing of ours handles it.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
}

/// From now on the thread that calls takes no signal of those that come to the process.
pub fn leave_to_other_threads() {
    // SAFETY: a set of its own, which the call fills; a mask of this thread alone.
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
