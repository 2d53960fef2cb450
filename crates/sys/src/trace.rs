//! Holding a thread of another process still, unseen by its parent (ptrace).
//!
//! All calls for one thread must come from the same thread of this process. If that one ends, the
//! kernel lets everything it held go.

use std::io;

const PTRACE_SEIZE: libc::c_uint = 0x4206;
const PTRACE_INTERRUPT: libc::c_uint = 0x4207;
const PTRACE_DETACH: libc::c_uint = 17;

fn ptrace(request: libc::c_uint, thread: u32, data: usize) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: none of the requests made here reads or writes memory of this process.
    let result = unsafe { libc::ptrace(request, thread as libc::pid_t, none, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Has thread `thread` stop as soon as it runs in user mode. Fails for one that is traced already.
pub fn hold(thread: u32) -> io::Result<()> {
    ptrace(PTRACE_SEIZE, thread, 0)?;
    // It may have ended in between: `let_go` finds out.
    let _ = ptrace(PTRACE_INTERRUPT, thread, 0);
    Ok(())
}

/// Whether a held thread stands by now: one that waits for a CPU does so only when it gets one.
#[must_use]
pub fn stands(thread: u32) -> bool {
    let flags = libc::__WALL | libc::WNOHANG | libc::WNOWAIT | libc::WSTOPPED;
    // SAFETY: a plain structure, for which all zeros is valid.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call, which does not wait, and takes nothing away.
    let result = unsafe { libc::waitid(libc::P_PID, thread, &raw mut found, flags) };
    result == 0 && found.si_signo != 0
}

/// Lets a held thread go on. False if it has not stopped yet: to be called again.
pub fn let_go(thread: u32) -> bool {
    let mut status = 0;
    // SAFETY: the status outlives the call, which does not wait.
    let got = unsafe {
        libc::waitpid(thread as libc::pid_t, &raw mut status, libc::__WALL | libc::WNOHANG)
    };
    if got == 0 {
        return false;
    }
    if got < 0 || !libc::WIFSTOPPED(status) {
        return true;
    }
    // Stopped by us, or with a signal in hand, which it must not lose.
    let signal = if status >> 16 == 0 { libc::WSTOPSIG(status) as usize } else { 0 };
    // Killed in the meantime: nothing to let go.
    let _ = ptrace(PTRACE_DETACH, thread, signal);
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    #[test]
    fn a_held_process_does_nothing_and_then_goes_on() {
        let script = "while :; do echo; done";
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let mut bytes = [0; 4096];
        output.read_exact(&mut bytes).unwrap();
        hold(child.id()).unwrap();
        assert!(hold(child.id()).is_err(), "held already");
        let state = || crate::proc::state(child.id());
        let deadline = Instant::now() + Duration::from_secs(5);
        while state() != Some('t') && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(state(), Some('t'));
        assert!(stands(child.id()) && stands(child.id()), "to look takes nothing away");
        while !let_go(child.id()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        for _ in 0..100 {
            output.read_exact(&mut bytes).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(hold(child.id()).is_err());
        assert!(let_go(child.id()), "what is gone is let go");
        assert!(!stands(child.id()));
    }
}
