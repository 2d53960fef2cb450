//! Traced program (ptrace). It stops at its first instruction or anywhere else, and makes calls for
//! this process before it goes on.
//!
//! * TRACEE-1: whatever goes wrong, the program is released as it was found, except for requested
//!   changes. It has the registers, pending signals and memory that it had. An interrupted system
//!   call goes on or is restarted, as after a signal.
//! * TRACEE-2: all calls come from the thread that started or interrupted the program.
//! * TRACEE-3: if the program dies, its status is left for its parent to collect.
//! * TRACEE-4: signals of others (SIGSTOP, SIGCONT, SIGTRAP) that come meanwhile are not taken for
//!   the end of a requested run.

use crate::cut_short::{self, Remedy};
use crate::proc;
use std::ffi::CString;
use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Has the program started by `command` stop before its first instruction, where [`Tracee::of`]
/// takes it over. The start fails if tracing is not permitted.
pub fn stop_at_start(command: &mut Command) {
    // SAFETY: the hook only calls the kernel.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        });
    }
}

/// Traced and stopped program.
#[derive(Debug)]
pub struct Tracee {
    thread: Thread,
    memory: File,
    /// Registers as found, restored at the release.
    registers: libc::user_regs_struct,
    floats: libc::user_fpregs_struct,
    signals: u64,
    /// Address of a syscall instruction in the program's memory.
    syscall: u64,
}

/// Thread of the program that this process traces.
#[derive(Debug)]
struct Thread {
    pid: libc::pid_t,
    /// Signal that came meanwhile and is delivered at the release.
    held_back: Option<libc::c_int>,
}

/// Ptrace option: the kernel kills the program if this process ends before the release.
const OPTIONS: usize = libc::PTRACE_O_EXITKILL as usize;
/// Bytes below the stack pointer that code may use without moving it (the red zone), twice.
const RED_ZONE: u64 = 256;
const PTRACE_GETSIGMASK: libc::c_uint = 0x420A;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420B;

impl Tracee {
    /// Takes over process `pid`, which has stopped at its start or is about to stop there.
    ///
    /// # Errors
    /// The process has ended, or cannot be traced.
    pub fn of(pid: u32) -> Result<Self> {
        let mut thread = Thread { pid: pid as libc::pid_t, held_back: None };
        // The trap of an exec looks as if the program had sent it, so every trap is accepted here.
        thread.wait_for_trap(libc::PTRACE_CONT, |_| Ok(true))?;
        thread.request(libc::PTRACE_SETOPTIONS, 0, OPTIONS)?;
        Self::standing(thread)
    }

    /// Stops process `pid` in its first thread, wherever that is. Other threads go on. A system
    /// call that gives up because of the stop is restarted. A call that has done a part is not, and
    /// returns the partial result.
    ///
    /// # Errors
    /// The process has ended or is stopped, is already traced, or may not be traced.
    pub fn interrupt(pid: u32) -> Result<Self> {
        request(pid as libc::pid_t, libc::PTRACE_SEIZE, 0, OPTIONS)?;
        // The value is created only after the request has succeeded, because its drop releases the
        // process. A process of another tracer must not be released.
        let mut thread = Thread { pid: pid as libc::pid_t, held_back: None };
        thread.request(libc::PTRACE_INTERRUPT, 0, 0)?;
        loop {
            let (signal, event) = thread.wait_for_stop()?;
            match (signal, event) {
                (libc::SIGTRAP, libc::PTRACE_EVENT_STOP) => break,
                (_, libc::PTRACE_EVENT_STOP) => {
                    return Err(Error::other(format!("it is stopped: kill -CONT {pid}")));
                }
                // The signal was sent before the interruption, so the thread gets it first.
                _ => thread.request(libc::PTRACE_CONT, 0, signal as usize)?,
            }
        }
        thread.held_back = None;
        let would_give_up = proc::has_signals(pid);
        let mut tracee = Self::standing(thread)?;
        if !would_give_up && let Remedy::Again(again) = cut_short::remedy(&tracee.registers) {
            tracee.registers = again;
        }
        Ok(tracee)
    }

    fn standing(thread: Thread) -> Result<Self> {
        let pid = thread.pid as u32;
        let (registers, floats) = (thread.registers()?, thread.floats()?);
        let (memory, syscall) = open(pid)?;
        let tracee =
            Self { signals: thread.signals()?, thread, memory, registers, floats, syscall };
        // No signal handler of the program may run meanwhile, but a trap must get through.
        tracee.thread.set_signals(!(1u64 << (libc::SIGTRAP - 1)))?;
        Ok(tracee)
    }

    /// Returns the stack pointer. At the start, the kernel's count of the arguments is there.
    #[must_use]
    pub fn stack(&self) -> u64 {
        self.registers.rsp
    }

    /// Returns an address on the stack with room for `len` bytes, below the red zone.
    #[must_use]
    pub fn below_stack(&self, len: u64) -> u64 {
        (self.registers.rsp - RED_ZONE - len) & !15
    }

    /// Maps the first `len` bytes of a file into the program, as a private copy to read and write.
    /// Returns the address. `place` is memory of the program with room for the file's name.
    ///
    /// # Errors
    /// The program cannot open or map the file.
    pub fn map(&mut self, file: &Path, len: u64, place: u64) -> Result<u64> {
        let name = CString::new(file.as_os_str().as_bytes())?;
        self.write(place, name.as_bytes_with_nul())?;
        let flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
        let file = self.call(libc::SYS_openat, [libc::AT_FDCWD as u64, place, flags, 0, 0, 0])?;
        let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let mapped = self.call(libc::SYS_mmap, [0, len, access, libc::MAP_PRIVATE as u64, file, 0]);
        self.call(libc::SYS_close, [file, 0, 0, 0, 0, 0])?;
        mapped
    }

    /// Allocates memory of zeros in the program, to read and write. Returns the address.
    ///
    /// # Errors
    /// There is no memory.
    pub fn allocate(&mut self, len: u64) -> Result<u64> {
        let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        self.call(libc::SYS_mmap, [0, len, access, kind, u64::MAX, 0])
    }

    /// Sets the access rights of a part of the program's memory (`PROT_READ` and so on).
    ///
    /// # Errors
    /// The kernel refuses the call.
    pub fn protect(&mut self, start: u64, len: u64, access: u64) -> Result<()> {
        self.call(libc::SYS_mprotect, [start, len, access, 0, 0, 0]).map(drop)
    }

    /// Removes a mapping from the program.
    ///
    /// # Errors
    /// There is no such mapping.
    pub fn unmap(&mut self, start: u64, len: u64) -> Result<()> {
        self.call(libc::SYS_munmap, [start, len, 0, 0, 0, 0]).map(drop)
    }

    fn call(&mut self, number: libc::c_long, args: [u64; 6]) -> Result<u64> {
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        self.thread.set_registers(&libc::user_regs_struct {
            rip: self.syscall,
            rax: number as u64,
            // The thread is in no system call that the kernel could restart.
            orig_rax: u64::MAX,
            rdi,
            rsi,
            rdx,
            r10,
            r8,
            r9,
            ..self.registers
        })?;
        self.thread.go_until_trap(libc::PTRACE_SINGLESTEP)?;
        let result = self.thread.registers()?.rax as i64;
        match result {
            -4095..0 => Err(Error::from_raw_os_error(-result as i32)),
            _ => Ok(result as u64),
        }
    }

    /// Runs the program from `address` on with one argument, on a stack that ends at `stack`, until
    /// a trap. Returns rax at the trap.
    ///
    /// # Errors
    /// The program has ended, or the code that it ran has failed.
    pub fn run(&mut self, address: u64, argument: u64, stack: u64) -> Result<u64> {
        self.thread.set_registers(&libc::user_regs_struct {
            rip: address,
            rdi: argument,
            rsp: stack & !15,
            orig_rax: u64::MAX,
            ..self.registers
        })?;
        self.thread.go_until_trap(libc::PTRACE_CONT)?;
        Ok(self.thread.registers()?.rax)
    }

    /// Writes to the program's memory, whatever its access rights.
    ///
    /// # Errors
    /// There is no memory at that address.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.memory.write_all_at(bytes, address)
    }
}

/// Opens the program's memory and finds a syscall instruction in the vdso, the kernel's code in the
/// program.
fn open(pid: u32) -> Result<(File, u64)> {
    const AT_SYSINFO_EHDR: u64 = 33;
    const VDSO_BYTES_MAX: usize = 4 * 4096;
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let words = std::fs::read(format!("/proc/{pid}/auxv"))?;
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    let start = (words.chunks_exact(16))
        .find(|pair| word(&pair[..8]) == AT_SYSINFO_EHDR)
        .map(|pair| word(&pair[8..]));
    let none = || Error::other("it has no vdso with a syscall instruction");
    let start = start.ok_or_else(none)?;
    let mut code = vec![0; VDSO_BYTES_MAX];
    let got = memory.read_at(&mut code, start)?;
    let at = code[..got].windows(2).position(|word| word == [0x0f, 0x05]);
    Ok((memory, at.map(|at| start + at as u64).ok_or_else(none)?))
}

fn request(pid: libc::pid_t, what: libc::c_uint, address: usize, data: usize) -> Result<()> {
    // SAFETY: each caller passes what its request reads or fills, which outlives the call.
    let result = unsafe { libc::ptrace(what, pid, address, data) };
    if result < 0 { Err(Error::last_os_error()) } else { Ok(()) }
}

impl Thread {
    fn request(&self, what: libc::c_uint, address: usize, data: usize) -> Result<()> {
        request(self.pid, what, address, data)
    }

    fn registers(&self) -> Result<libc::user_regs_struct> {
        // SAFETY: a plain structure, for which all zeros is valid.
        let mut registers: libc::user_regs_struct = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETREGS, 0, &raw mut registers as usize)?;
        Ok(registers)
    }

    fn floats(&self) -> Result<libc::user_fpregs_struct> {
        // SAFETY: a plain structure, for which all zeros is valid.
        let mut floats: libc::user_fpregs_struct = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETFPREGS, 0, &raw mut floats as usize)?;
        Ok(floats)
    }

    fn signals(&self) -> Result<u64> {
        let mut signals = 0u64;
        self.request(PTRACE_GETSIGMASK, size_of::<u64>(), &raw mut signals as usize)?;
        Ok(signals)
    }

    /// Blocks exactly these signals.
    fn set_signals(&self, signals: u64) -> Result<()> {
        self.request(PTRACE_SETSIGMASK, size_of::<u64>(), &raw const signals as usize)
    }

    fn set_registers(&self, registers: &libc::user_regs_struct) -> Result<()> {
        self.request(libc::PTRACE_SETREGS, 0, &raw const *registers as usize)
    }

    fn go_until_trap(&mut self, how: libc::c_uint) -> Result<()> {
        self.request(how, 0, 0)?;
        self.wait_for_trap(how, Self::is_kernels)
    }

    /// Waits until the thread stops by a trap that `is_it` accepts. Holds other signals back and
    /// resumes the thread by `how` (TRACEE-4).
    fn wait_for_trap(
        &mut self,
        how: libc::c_uint,
        is_it: impl Fn(&Self) -> Result<bool>,
    ) -> Result<()> {
        loop {
            match self.wait_for_stop()? {
                // SIGCONT came; it cancels a SIGSTOP that is not delivered yet.
                (libc::SIGTRAP, libc::PTRACE_EVENT_STOP) => {
                    self.held_back = self.held_back.filter(|&signal| signal != libc::SIGSTOP);
                }
                (_, libc::PTRACE_EVENT_STOP) => {}
                (libc::SIGTRAP, _) if is_it(self)? => return Ok(()),
                (signal @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE), _) => {
                    return Err(Error::other(format!(
                        "code that Ebb ran in it failed by signal {signal}"
                    )));
                }
                (signal, _) => self.held_back = Some(signal),
            }
            self.request(how, 0, 0)?;
        }
    }

    /// Returns whether the kernel itself raised the signal that stopped the thread (a step or a
    /// breakpoint), and not a call of kill(2).
    fn is_kernels(&self) -> Result<bool> {
        // SAFETY: a plain structure, for which all zeros is valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETSIGINFO, 0, &raw mut info as usize)?;
        Ok(info.si_code > 0)
    }

    /// Returns the signal and the ptrace event by which the thread has stopped.
    fn wait_for_stop(&self) -> Result<(libc::c_int, libc::c_int)> {
        let wait = |flags| {
            // SAFETY: a plain structure, for which all zeros is valid.
            let mut found: libc::siginfo_t = unsafe { std::mem::zeroed() };
            loop {
                // SAFETY: the structure outlives the call.
                let result = unsafe {
                    libc::waitid(
                        libc::P_PID,
                        self.pid as libc::id_t,
                        &raw mut found,
                        flags | libc::__WALL,
                    )
                };
                let error = Error::last_os_error();
                if result == 0 {
                    return Ok(found);
                }
                if error.kind() != ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        };
        // TRACEE-3: the first wait leaves the status in place.
        let found = wait(libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT)?;
        if !matches!(found.si_code, libc::CLD_TRAPPED | libc::CLD_STOPPED) {
            return Err(Error::other("it has ended"));
        }
        let found = wait(libc::WSTOPPED)?;
        // SAFETY: the status is of a child that has stopped.
        let status = unsafe { found.si_status() };
        Ok((status & 0xff, status >> 8))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let signal = self.held_back.unwrap_or(0);
        // The program may have ended.
        let _ = self.request(libc::PTRACE_DETACH, 0, signal as usize);
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // If the program has ended, nothing needs restoring.
        let _ = self.thread.set_registers(&self.registers);
        let floats = &raw const self.floats as usize;
        let _ = self.thread.request(libc::PTRACE_SETFPREGS, 0, floats);
        let _ = self.thread.set_signals(self.signals);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_testing::{eventually_is, eventually_some};
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Stdio};
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    fn standing(script: &str) -> std::process::Child {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdout(Stdio::piped());
        stop_at_start(&mut command);
        command.spawn().expect("it may be traced")
    }

    #[test]
    fn a_tracee_makes_calls_and_then_goes_on_unchanged() {
        let child = standing("grep -c '' /proc/self/status; grep TracerPid /proc/$$/status");
        let mut program = Tracee::of(child.id()).expect("it stands");
        assert_eq!(program.call(libc::SYS_getpid, [0; 6]).expect("a call"), u64::from(child.id()));
        let bad = program.call(libc::SYS_close, [999, 0, 0, 0, 0, 0]).expect_err("no such one");
        assert_eq!(bad.raw_os_error(), Some(libc::EBADF));
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("code");
        // mov rax, [rdi]; int3
        std::fs::write(&file, [0x48, 0x8b, 0x07, 0xcc]).expect("a file");
        let place = program.below_stack(256);
        let start = program.map(&file, 4096, place).expect("a mapping");
        program.protect(start, 4096, (libc::PROT_READ | libc::PROT_EXEC) as u64).expect("code");
        let stack = program.stack();
        assert_eq!(
            program.run(start, stack, place).expect("it runs"),
            3,
            "the count of its arguments"
        );
        program.unmap(start, 4096).expect("there");
        // This signal comes meanwhile and does not get lost; the program ignores it by default.
        // SAFETY: a signal to a child of this process.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGCONT) };
        drop(program);
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.ends_with("TracerPid:\t0\n"), "{text}");
    }

    #[test]
    fn a_signal_during_calls_reaches_the_tracee_afterwards() {
        use std::os::unix::process::ExitStatusExt;
        let mut child = standing("while :; do :; done");
        let mut program = Tracee::of(child.id()).expect("it stands");
        // SAFETY: a signal to a child of this process.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
        program.call(libc::SYS_getpid, [0; 6]).expect("the signal waits");
        drop(program);
        assert_eq!(child.wait().expect("it ends").signal(), Some(libc::SIGTERM));
    }

    #[test]
    fn a_program_that_dies_at_its_start_is_an_error_and_its_status_is_left() {
        use std::os::unix::process::ExitStatusExt;
        let mut child = standing("exit 3");
        let mut program = Tracee::of(child.id()).expect("it stands");
        child.kill().expect("a signal");
        // The dying program may be seen as stopped once more.
        let calls = (0..100).map(|_| program.call(libc::SYS_getpid, [0; 6]));
        assert!(calls.into_iter().any(|call| call.is_err()));
        drop(program);
        assert_eq!(child.wait().expect("its status").signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn a_failure_in_a_tracee_is_an_error_and_the_tracee_goes_on() {
        let mut child = standing("exit 3");
        let mut program = Tracee::of(child.id()).expect("it stands");
        let error = program.run(8, 0, program.stack()).expect_err("nothing lies there");
        assert!(error.to_string().contains("signal 11"), "{error}");
        drop(program);
        assert_eq!(child.wait().expect("its status").code(), Some(3));
    }

    /// Interruptions do not shorten the program's system calls, with a time limit or without.
    #[test]
    fn a_sleeping_tracee_is_interrupted_and_sleeps_on() {
        // The program reports whether it has slept its full time. It then waits for its end, while
        // nothing interrupts it.
        let mut child = script(
            "/usr/bin/python3",
            "import select, sys, time; t = time.monotonic(); print('ready', flush=True)\n\
             time.sleep(1); select.select([], [], [], 1); whole = time.monotonic() - t >= 2\n\
             print('slept' if whole else 'cut short', flush=True); sys.stdin.read()",
        );
        let (mut lines, said) = (lines_of(&mut child), std::sync::mpsc::channel());
        assert_eq!(lines.next().expect("a line").expect("text"), "ready");
        let reader = std::thread::spawn(move || lines.try_for_each(|line| said.0.send(line)));
        let line = eventually_some("it to have slept", || {
            let mut program = interrupt(&child);
            assert!(Tracee::interrupt(child.id()).is_err(), "traced already");
            let memory = program.allocate(4096).expect("memory");
            program.write(memory, b"here").expect("it can be written");
            program.unmap(memory, 4096).expect("there");
            drop(program);
            said.1.try_recv().ok()
        });
        assert_eq!(line.expect("text"), "slept");
        drop(child.stdin.take());
        assert!(child.wait().expect("it ends").success());
        reader.join().expect("a thread").expect("somebody listens");
    }

    /// Interrupts the child as soon as it is not stopped. A terminal may stop all the programs that
    /// it has started.
    fn interrupt(child: &Child) -> Tracee {
        eventually_some("it to run", || match Tracee::interrupt(child.id()) {
            Err(error) if error.to_string().starts_with("it is stopped") => None,
            tracee => Some(tracee.expect("it runs")),
        })
    }

    /// Without TRACEE-4 the end of a stop counted as the end of a call that was not yet made.
    #[test]
    fn calls_in_a_tracee_that_others_stop_and_continue_are_whole() {
        let mut child = script("/bin/sh", "echo ready; read word; exit 3");
        let (mut lines, id) = (lines_of(&mut child), child.id());
        assert_eq!(lines.next().expect("a line").expect("text"), "ready");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    crate::signals::send(id, libc::SIGSTOP);
                    crate::signals::send(id, libc::SIGCONT);
                }
            });
            // The flag is also set if a call fails the test.
            let _over = SetOnDrop(&is_over);
            for _ in 0..50 {
                let mut program = interrupt(&child);
                for _ in 0..20 {
                    let result = program.call(libc::SYS_getpid, [0; 6]);
                    assert_eq!(result.expect("a call"), u64::from(id));
                }
            }
        });
        crate::signals::send(id, libc::SIGCONT);
        child.stdin.take().expect("a pipe").write_all(b"word\n").expect("it reads");
        assert_eq!(child.wait().expect("it ends").code(), Some(3));
    }

    #[test]
    fn a_sigtrap_from_outside_is_not_the_end_of_a_call_and_arrives_afterwards() {
        use std::os::unix::process::ExitStatusExt;
        let mut child = script("/bin/sh", "echo ready; read word");
        assert_eq!(lines_of(&mut child).next().expect("a line").expect("text"), "ready");
        let mut program = interrupt(&child);
        crate::signals::send(child.id(), libc::SIGTRAP);
        for _ in 0..3 {
            let result = program.call(libc::SYS_getpid, [0; 6]);
            assert_eq!(result.expect("a call"), u64::from(child.id()));
        }
        drop(program);
        assert_eq!(child.wait().expect("it ends").signal(), Some(libc::SIGTRAP));
    }

    struct SetOnDrop<'a>(&'a AtomicBool);

    impl Drop for SetOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Relaxed);
        }
    }

    /// Starts a program with its script, and with pipes to and from it.
    fn script(program: &str, script: &str) -> Child {
        if !std::path::Path::new(program).exists() {
            ebb_testing::skip(&format!("{program} is missing"));
        }
        let option = if program.ends_with("perl") { "-e" } else { "-c" };
        let mut command = Command::new(program);
        command.args([option, script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().expect("it runs")
    }

    fn lines_of(child: &mut Child) -> impl Iterator<Item = std::io::Result<String>> + use<> {
        BufReader::new(child.stdout.take().expect("a pipe")).lines()
    }

    /// Without the restart the read fails with EINTR, and the program believes that no answer will
    /// come.
    #[test]
    fn a_tracee_in_a_wait_with_a_time_limit_waits_on() {
        let mut child = script(
            "/usr/bin/perl",
            r#"use Socket; socketpair(my $here, my $there, AF_UNIX, SOCK_STREAM, PF_UNSPEC);
            setsockopt($here, SOL_SOCKET, SO_RCVTIMEO, pack("qq", 3600, 0));
            if (!fork) { sysread(STDIN, my $word, 1); syswrite($there, "x"); exit }
            syswrite(STDOUT, "ready\n"); print sysread($here, my $got, 1) // "failed: $!";"#,
        );
        let mut lines = lines_of(&mut child);
        assert_eq!(lines.next().expect("a line").expect("text"), "ready");
        for _ in 0..3 {
            eventually_is("its state", Some('S'), || crate::proc::state(child.id()));
            let mut program = interrupt(&child);
            program.call(libc::SYS_getpid, [0; 6]).expect("a call");
        }
        child.stdin.take().expect("a pipe").write_all(b"x").expect("it reads");
        assert_eq!(lines.next().expect("a line").expect("text"), "1");
        assert!(child.wait().expect("it ends").success());
    }
}
