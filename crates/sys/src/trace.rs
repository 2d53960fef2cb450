//! Freezes a thread of another process by ptrace, unseen by its parent and by itself.
//!
//! All calls for a traced thread must come from one thread of this process. If the tracing thread
//! ends, the kernel releases every thread that it traced.
//!
//! * PTRACE-1: freezing may make a system call of the thread give up. [`release`] repairs such a
//!   call (`cut_short.rs`). If a signal is pending for the thread, [`release`] leaves the call as
//!   it is. The signal would have made the call give up as well.

use crate::cut_short::{self, Remedy};
use crate::proc;
use libc::user_regs_struct as Registers;
use std::io;

fn ptrace(request: libc::c_uint, thread: u32, data: usize) -> io::Result<()> {
    let none = std::ptr::null_mut::<libc::c_void>();
    // SAFETY: each caller passes what its request reads or fills, which outlives the call.
    let result = unsafe { libc::ptrace(request, thread as libc::pid_t, none, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

fn registers(thread: u32) -> io::Result<Registers> {
    // SAFETY: a plain structure, for which all zeros is valid.
    let mut registers: Registers = unsafe { std::mem::zeroed() };
    ptrace(libc::PTRACE_GETREGS, thread, &raw mut registers as usize)?;
    Ok(registers)
}

fn set_registers(thread: u32, registers: &Registers) -> io::Result<()> {
    ptrace(libc::PTRACE_SETREGS, thread, &raw const *registers as usize)
}

/// Has thread `thread` stop as soon as it would run in user mode. Fails if the thread is already
/// traced.
///
/// If the thread starts another with `CLONE_PTRACE` before it stops, the kernel traces that one,
/// too. [`next`] reports it.
pub fn seize(thread: u32) -> io::Result<()> {
    ptrace(libc::PTRACE_SEIZE, thread, libc::PTRACE_O_TRACESYSGOOD as usize)?;
    // The thread may have ended in between: `next` finds out.
    let _ = ptrace(libc::PTRACE_INTERRUPT, thread, 0);
    Ok(())
}

/// Kind of stop of a traced thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "it stands until it is let go"]
pub enum Stop {
    /// The thread stopped as requested.
    Asked,
    /// The thread's whole process is stopped (group stop) until SIGCONT.
    Group,
    /// The thread stopped at the entry or the exit of a system call.
    Call,
    /// The thread stopped before the delivery of a signal, which must not get lost.
    Signal(i32),
}

impl Stop {
    fn of(status: i32) -> Self {
        const CALL: i32 = libc::SIGTRAP | 0x80;
        match (status >> 16, libc::WSTOPSIG(status)) {
            (0, CALL) => Self::Call,
            (0, signal) => Self::Signal(signal),
            (_, libc::SIGTRAP) => Self::Asked,
            _ => Self::Group,
        }
    }

    fn signal(self) -> usize {
        if let Self::Signal(signal) = self { signal as usize } else { 0 }
    }
}

/// Change of a thread that this thread traces.
#[derive(Debug, PartialEq, Eq)]
pub enum TraceeChange {
    /// This thread has stopped.
    Stopped(u32, Stop),
    /// This thread has ended.
    Ended(u32),
    /// There is no change at the moment.
    NoneYet,
    /// This thread traces no thread and has no child.
    NoTracees,
}

/// Returns the next change of a traced thread, each once. Also reports children of this thread that
/// end, and takes their status.
pub fn next() -> TraceeChange {
    let mut status = 0;
    let flags = libc::__WALL | libc::__WNOTHREAD | libc::WNOHANG;
    // SAFETY: the status outlives the call, which does not wait.
    let got = unsafe { libc::waitpid(-1, &raw mut status, flags) };
    match u32::try_from(got) {
        Err(_) => TraceeChange::NoTracees,
        Ok(0) => TraceeChange::NoneYet,
        Ok(thread) if libc::WIFSTOPPED(status) => TraceeChange::Stopped(thread, Stop::of(status)),
        Ok(thread) => TraceeChange::Ended(thread),
    }
}

/// Returns whether this thread still traces `thread`. A thread other than the first that calls
/// execve takes the first one's number. The kernel then reports nothing for the old number.
#[must_use]
pub fn is_tracee(thread: u32) -> bool {
    let flags = libc::__WALL | libc::WNOHANG | libc::WNOWAIT | libc::WSTOPPED | libc::WEXITED;
    // SAFETY: a plain structure, for which all zeros is valid.
    let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
    // SAFETY: the structure outlives the call. The call does not wait and takes no status.
    unsafe { libc::waitid(libc::P_PID, thread, &raw mut found, flags) == 0 }
}

/// Released thread that does the rest of a system call. The kernel stops it once more at the end of
/// the call, for a moment.
#[derive(Debug)]
#[must_use = "it stands when it has done the rest"]
pub struct Rest {
    thread: u32,
    rest: cut_short::Rest,
    has_begun: bool,
}

/// Releases a stopped thread. Returns the rest of its system call, if the thread must do that
/// before the final release.
pub fn release(thread: u32, stop: Stop) -> Option<Rest> {
    let remedy = match stop {
        Stop::Asked => registers(thread).map_or(Remedy::None, |found| cut_short::remedy(&found)),
        _ => Remedy::None,
    };
    // PTRACE-1. A request fails here only if the thread has been killed meanwhile, and then there
    // is nothing to release.
    let is_to_be_put_right = !matches!(remedy, Remedy::None) && !proc::has_signals(thread);
    match remedy {
        Remedy::Again(registers) if is_to_be_put_right => {
            let _ = set_registers(thread, &registers);
        }
        Remedy::Rest(rest) if is_to_be_put_right => {
            set_registers(thread, &rest.registers()).ok()?;
            ptrace(libc::PTRACE_SYSCALL, thread, 0).ok()?;
            return Some(Rest { thread, rest, has_begun: false });
        }
        _ => {}
    }
    let _ = ptrace(libc::PTRACE_DETACH, thread, stop.signal());
    None
}

impl Rest {
    /// Returns the thread that does the rest.
    #[must_use]
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// Resumes the thread, which has stopped again. Returns `self` if the thread still has to do
    /// the rest.
    pub fn go_on(mut self, stop: Stop) -> Option<Self> {
        if stop == Stop::Call && !self.has_begun {
            self.has_begun = true;
            return ptrace(libc::PTRACE_SYSCALL, self.thread, 0).is_ok().then_some(self);
        }
        // The rest of the call is done, or a signal came before it. In the second case the program
        // sees the partial result, and its handler runs.
        let more = match (stop, registers(self.thread)) {
            (Stop::Call, Ok(registers)) => registers.rax.cast_signed(),
            _ => 0,
        };
        let _ = set_registers(self.thread, &self.rest.sum(more));
        let _ = ptrace(libc::PTRACE_DETACH, self.thread, stop.signal());
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_testing::{eventually_is, eventually_some};
    use std::io::{Read, Write};
    use std::process::{Child, ChildStdout, Command, Stdio};

    #[test]
    fn a_frozen_process_does_nothing_and_then_goes_on() {
        let script = "while :; do echo; done";
        let mut child =
            Command::new("sh").args(["-c", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let mut bytes = [0; 4096];
        output.read_exact(&mut bytes).unwrap();
        seize(child.id()).unwrap();
        assert!(seize(child.id()).is_err(), "held already");
        let state = || crate::proc::state(child.id());
        eventually_is("its state", Some('t'), state);
        assert!(is_tracee(child.id()));
        let TraceeChange::Stopped(thread, stop) = next() else { panic!("it stands") };
        assert_eq!((thread, stop), (child.id(), Stop::Asked));
        assert_eq!(next(), TraceeChange::NoneYet, "told once");
        assert!(release(thread, stop).is_none());
        for _ in 0..100 {
            output.read_exact(&mut bytes).unwrap();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(seize(child.id()).is_err());
        assert!(!is_tracee(child.id()));
        assert_eq!(next(), TraceeChange::NoTracees);
    }

    /// Freezes a waiting thread and releases it. Returns whether it had the rest of a call to do.
    /// `stands` runs when the thread is first stopped, `goes_on` when it does the rest.
    fn disturb(thread: u32, stands: impl FnOnce(), goes_on: impl FnOnce()) -> bool {
        let held = || {
            eventually_some("the thread to stand", || match next() {
                TraceeChange::Stopped(_, stop) => Some(stop),
                TraceeChange::NoneYet => None,
                news => panic!("{news:?}"),
            })
        };
        // If a stop signal or SIGCONT meanwhile hits the thread, it stops for that first.
        let stop = eventually_some("it to stand as asked", || {
            seize(thread).unwrap();
            let stop = held();
            if stop == Stop::Asked {
                return Some(stop);
            }
            assert!(release(thread, stop).is_none());
            None
        });
        stands();
        let Some(rest) = release(thread, stop) else { return false };
        // The thread is at the entry of the call.
        let mut rest = rest.go_on(held());
        goes_on();
        while let Some(left) = rest {
            rest = left.go_on(held());
        }
        true
    }

    /// Waits until a thread sleeps in a call.
    fn waits(thread: u32) {
        eventually_is("its state", Some('S'), || crate::proc::state(thread));
    }

    /// Starts a script that writes "ready" to its standard output just before its call. The script
    /// is in that call when this returns.
    fn perl(script: &str) -> (Child, ChildStdout) {
        if !std::path::Path::new("/usr/bin/perl").exists() {
            ebb_testing::skip("/usr/bin/perl is missing");
        }
        let script = format!("sub ready {{ syswrite(STDOUT, 'ready') }} {script}");
        let mut command = Command::new("/usr/bin/perl");
        let command = command.args(["-e", &script]).stdin(Stdio::piped());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut output = child.stdout.take().unwrap();
        let mut word = [0; 5];
        output.read_exact(&mut word).unwrap();
        assert_eq!(&word, b"ready");
        waits(child.id());
        (child, output)
    }

    fn all_of(mut output: impl Read) -> String {
        let mut text = String::new();
        output.read_to_string(&mut text).unwrap();
        text
    }

    /// Without the repair the read fails with EINTR, and the program believes that no answer will
    /// come.
    #[test]
    fn a_process_frozen_in_a_wait_with_a_time_limit_waits_on() {
        let (mut child, output) = perl(
            r#"use Socket; socketpair(my $here, my $there, AF_UNIX, SOCK_STREAM, PF_UNSPEC);
            setsockopt($here, SOL_SOCKET, SO_RCVTIMEO, pack("qq", 3600, 0));
            if (!fork) { sysread(STDIN, my $word, 1); syswrite($there, "x"); exit }
            ready; print sysread($here, my $got, 1) // "failed: $!";"#,
        );
        for _ in 0..2 {
            waits(child.id());
            assert!(!disturb(child.id(), || {}, || {}));
        }
        child.stdin.take().unwrap().write_all(b"x").unwrap();
        assert_eq!(all_of(output), "1");
        child.wait().unwrap();
    }

    /// Without the repair the write returns a part, which a program without signals need not
    /// expect.
    #[test]
    fn a_process_frozen_in_a_write_writes_everything() {
        let (child, mut output) = perl("ready; print STDERR syswrite(STDOUT, 'x' x 1000000)");
        let (go, gone) = std::sync::mpsc::channel();
        let reader = std::thread::spawn(move || {
            gone.recv().unwrap();
            let mut all = Vec::new();
            output.read_to_end(&mut all).map(|_| all.len())
        });
        let is_read = || go.send(()).unwrap();
        assert!(disturb(child.id(), is_read, || {}), "a pipe has not room for all");
        assert_eq!(child.wait_with_output().unwrap().stderr, b"1000000");
        assert_eq!(reader.join().unwrap().unwrap(), 1_000_000);
    }

    const HANDLER: &str = r#"
        use POSIX; POSIX::sigaction(SIGUSR1, POSIX::SigAction->new(sub { print "handled " }));
        ready; my $got = syswrite(STDERR, "x" x 1000000);
        print $got < 1000000 ? "a part" : "all";"#;

    fn signal(child: u32) {
        // SAFETY: a signal to a child of this process.
        unsafe { libc::kill(child as libc::pid_t, libc::SIGUSR1) };
    }

    /// A handler that is meant to end a call still does.
    #[test]
    fn a_signal_that_arrives_during_a_freeze_still_ends_the_call() {
        let (mut child, output) = perl(HANDLER);
        let pid = child.id();
        assert!(!disturb(pid, || signal(pid), || {}), "the signal has ended the call");
        assert_eq!(all_of(output), "handled a part");
        child.wait().unwrap();
    }

    /// While the rest of a call waits, a signal interrupts it as any other call.
    #[test]
    fn the_rest_of_an_interrupted_call_takes_signals() {
        let (mut child, output) = perl(HANDLER);
        let pid = child.id();
        let goes_on = || {
            waits(pid);
            signal(pid);
        };
        assert!(disturb(pid, || {}, goes_on), "nobody reads, so there is a rest");
        assert_eq!(all_of(output), "handled a part");
        child.wait().unwrap();
    }
}
