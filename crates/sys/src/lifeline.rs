//! Lifeline: kills tied processes when this process ends, even while they wait inside the kernel.
//!
//! A thread may wait inside the kernel for this process, for example until this process reads a
//! userfaultfd event. Such a thread cannot check whether this process still exists, but a signal
//! reaches it. When a pipe breaks, the kernel sends a signal to the recorded owner of a descriptor
//! of its other end.
//!
//! * LIFELINE-1: this process writes nothing to the pipe. The write end closes when this process
//!   ends, and not before.
//! * LIFELINE-2: each descriptor given out is a separate open file. Its process is tied while the
//!   descriptor is open anywhere. The kernel records the process itself and not its number. The
//!   number still belonged to the process when the owner was set.

use crate::handle::Handle;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Pipe whose write end stays open as long as this process lives.
#[derive(Debug)]
pub struct Lifeline {
    read: OwnedFd,
    _write: OwnedFd,
}

/// `F_SETSIG` and `F_SETOWN_EX` of fcntl(2).
const SET_SIGNAL: libc::c_int = 10;
const SET_OWNER: libc::c_int = 15;

#[repr(C)]
struct Owner {
    kind: libc::c_int,
    pid: libc::pid_t,
}

impl Lifeline {
    /// Creates a lifeline without tied processes.
    pub fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { read, _write: write })
    }

    /// Ties a process: the kernel kills the process (SIGKILL) if the pipe breaks while the returned
    /// descriptor is open anywhere.
    pub fn tie(&self, process: &Handle) -> io::Result<OwnedFd> {
        const PROCESS: libc::c_int = 1;
        let path = format!("/proc/self/fd/{}", self.read.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        let owner = Owner { kind: PROCESS, pid: process.pid() as libc::pid_t };
        let status = libc::O_NONBLOCK | libc::O_ASYNC;
        // SAFETY: this process owns the descriptor; the structure outlives the call.
        let results = unsafe {
            [
                libc::fcntl(file.as_raw_fd(), SET_OWNER, &raw const owner),
                libc::fcntl(file.as_raw_fd(), SET_SIGNAL, libc::SIGKILL),
                libc::fcntl(file.as_raw_fd(), libc::F_SETFL, status),
            ]
        };
        if results.iter().any(|&result| result < 0) {
            return Err(io::Error::last_os_error());
        }
        // LIFELINE-2: the process still exists, so the number belonged to it.
        process.signal(0)?;
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;
    use std::process::{Child, Command};

    fn sleeper() -> Child {
        Command::new("sleep").arg("3600").spawn().expect("it starts")
    }

    #[test]
    fn only_tied_processes_end_with_the_lifeline() {
        let line = Lifeline::new().expect("a pipe");
        let (mut tied, mut also, mut released) = (sleeper(), sleeper(), sleeper());
        let tie = |child: &Child| line.tie(&Handle::open(child.id()).expect("it runs"));
        let held = [tie(&tied).expect("it is there"), tie(&also).expect("it is there")];
        drop(tie(&released).expect("it is there"));
        assert!(tied.try_wait().expect("a child").is_none(), "before the line breaks");
        drop(line);
        for child in [&mut tied, &mut also] {
            assert_eq!(child.wait().expect("a child").signal(), Some(libc::SIGKILL));
        }
        ebb_testing::give_time(std::time::Duration::from_millis(50));
        assert!(released.try_wait().expect("a child").is_none());
        released.kill().expect("it runs");
        released.wait().expect("it ends");
        drop(held);
    }

    #[test]
    fn an_ended_process_cannot_be_tied() {
        let line = Lifeline::new().expect("a pipe");
        let mut child = sleeper();
        let handle = Handle::open(child.id()).expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert!(line.tie(&handle).is_err());
    }
}
