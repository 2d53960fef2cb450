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
///
/// What it starts with `CLONE_PTRACE` before it stops is held as well, by the kernel: [`next`] tells of it.
pub fn hold(thread: u32) -> io::Result<()> {
    ptrace(PTRACE_SEIZE, thread, 0)?;
    // It may have ended in between: `next` finds out.
    let _ = ptrace(PTRACE_INTERRUPT, thread, 0);
    Ok(())
}

/// How a held thread stands: by us, or with a signal in hand, which it must not lose.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "it stands until it is let go"]
pub struct Stop {
    signal: usize,
}

/// What is to be known of the threads that this thread holds.
#[derive(Debug, PartialEq, Eq)]
pub enum News {
    /// This one stands now.
    Stands(u32, Stop),
    /// This one has ended.
    Ended(u32),
    /// Nothing more by now.
    NoneYet,
    /// None is held.
    NoneHeld,
}

/// What has become of a thread that is held since this was last asked; of each once. Tells of children of this thread's
/// own that end, too, and takes their status away.
pub fn next() -> News {
    let mut status = 0;
    let flags = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
    // SAFETY: the status outlives the call, which does not wait.
    let got = unsafe { libc::waitpid(-1, &raw mut status, flags) };
    match u32::try_from(got) {
        Err(_) => News::NoneHeld,
        Ok(0) => News::NoneYet,
        Ok(thread) if libc::WIFSTOPPED(status) => {
            let signal = if status >> 16 == 0 { libc::WSTOPSIG(status) as usize } else { 0 };
            News::Stands(thread, Stop { signal })
        }
        Ok(thread) => News::Ended(thread),
    }
}

/// Whether this thread still holds that one: one that becomes another program in a thread beside the first has the
/// first one's number from then on, and nothing is told of its own.
#[must_use]
pub fn is_held(thread: u32) -> bool {
    let flags = libc::__WALL | libc::WNOHANG | libc::WNOWAIT | libc::WSTOPPED | libc::WEXITED;
    // SAFETY: a plain structure, for which all zeros is valid.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call, which does not wait, and takes nothing away.
    unsafe { libc::waitid(libc::P_PID, thread, &raw mut found, flags) == 0 }
}

/// Lets a thread go on that stands.
pub fn let_go(thread: u32, stop: Stop) {
    // Killed in the meantime: nothing to let go.
    let _ = ptrace(PTRACE_DETACH, thread, stop.signal);
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
        assert!(is_held(child.id()));
        let News::Stands(thread, stop) = next() else { panic!("it stands") };
        assert_eq!((thread, next()), (child.id(), News::NoneYet), "told once");
        let_go(thread, stop);
        for _ in 0..100 {
            output.read_exact(&mut bytes).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(hold(child.id()).is_err());
        assert!(!is_held(child.id()));
        assert_eq!(next(), News::NoneHeld);
    }
}
