//! A line that ends processes when this one does, whatever they wait for.
//!
//! A thread that waits for this process inside the kernel (for a message of a userfaultfd to be read) cannot look whether
//! there is still somebody to read it. A signal reaches it: the kernel sends one about a pipe that breaks to whom the
//! descriptor of its other end is said to belong.
//!
//! * LIFELINE-1: nothing is ever written, and the end to write to closes with this process, not before.
//! * LIFELINE-2: each descriptor given out is a file of its own. While somebody has it open its process is tied; the process is meant
//!   by what it is and not by its number, which was its own when that was told to the kernel.

use crate::handle::Handle;
use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// The line.
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
    /// To which nobody is tied.
    pub fn new() -> io::Result<Self> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(Self { read, _write: write })
    }

    /// Has the process killed (SIGKILL) if the line breaks while somebody has the descriptor open.
    pub fn tie(&self, process: &Handle) -> io::Result<OwnedFd> {
        const PROCESS: libc::c_int = 1;
        let path = format!("/proc/self/fd/{}", self.read.as_raw_fd());
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = rustix::fs::open(path, flags, Mode::empty())?;
        let owner = Owner { kind: PROCESS, pid: process.pid() as libc::pid_t };
        let status = libc::O_NONBLOCK | libc::O_ASYNC;
        // SAFETY: a descriptor of our own; the structure outlives its call.
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
        // LIFELINE-2: as it is there now, the number was its own.
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
    fn who_is_tied_ends_with_the_line_and_nobody_else_does() {
        let line = Lifeline::new().expect("a pipe");
        let (mut tied, mut also, mut let_go) = (sleeper(), sleeper(), sleeper());
        let tie = |child: &Child| line.tie(&Handle::open(child.id()).expect("it runs"));
        let held = [tie(&tied).expect("it is there"), tie(&also).expect("it is there")];
        drop(tie(&let_go).expect("it is there"));
        assert!(tied.try_wait().expect("a child").is_none(), "before the line breaks");
        drop(line);
        for child in [&mut tied, &mut also] {
            assert_eq!(child.wait().expect("a child").signal(), Some(libc::SIGKILL));
        }
        ebb_testing::give_time(std::time::Duration::from_millis(50));
        assert!(let_go.try_wait().expect("a child").is_none());
        let_go.kill().expect("it runs");
        let_go.wait().expect("it ends");
        drop(held);
    }

    #[test]
    fn one_that_has_ended_cannot_be_tied() {
        let line = Lifeline::new().expect("a pipe");
        let mut child = sleeper();
        let handle = Handle::open(child.id()).expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("it ends");
        assert!(line.tie(&handle).is_err());
    }
}
