//! A program that stands, at its first instruction or wherever it is, and is made to do something before it goes on (ptrace).
//!
//! * TRACEE-1: whatever goes wrong, it is let go as it was found: same registers, same signals to come, nothing of its memory
//!   changed but what was asked for. A system call that it was in goes on, or is begun again, as after a signal.
//! * TRACEE-2: all calls come from the thread that started the program, or interrupted it.
//! * TRACEE-3: if it dies its status is left for whoever waits for it.
//! * TRACEE-4: what others send meanwhile (SIGSTOP, SIGCONT, SIGTRAP) is not taken for the end of what it was made to do.

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

/// Has the program to be started by `command` stand before its first instruction, where this process finds it by
/// [`Tracee::of`]. To start it fails where that is not allowed.
pub fn stand_at_start(command: &mut Command) {
    // SAFETY: the hook only calls the kernel.
    unsafe {
        command.pre_exec(|| match libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) {
            0 => Ok(()),
            _ => Err(Error::last_os_error()),
        });
    }
}

/// The program.
#[derive(Debug)]
pub struct Tracee {
    thread: Thread,
    memory: File,
    /// As it was found.
    registers: libc::user_regs_struct,
    floats: libc::user_fpregs_struct,
    signals: u64,
    /// An instruction that enters the kernel, in its memory.
    syscall: u64,
}

/// Its thread.
#[derive(Debug)]
struct Thread {
    pid: libc::pid_t,
    /// Came in between, and is to reach it when it goes on.
    held_back: Option<libc::c_int>,
}

/// It is not to outlive this process half-way.
const OPTIONS: usize = libc::PTRACE_O_EXITKILL as usize;
/// Bytes below the stack pointer that code may use without saying so, and as much again.
const RED_ZONE: u64 = 256;
const PTRACE_GETSIGMASK: libc::c_uint = 0x420A;
const PTRACE_SETSIGMASK: libc::c_uint = 0x420B;

impl Tracee {
    /// Process `pid`, which stands at its start or is about to.
    ///
    /// # Errors
    /// It has ended, or cannot be traced.
    pub fn of(pid: u32) -> Result<Self> {
        let mut thread = Thread { pid: pid as libc::pid_t, held_back: None };
        // The kernel sends this one as the program would itself.
        thread.wait_for_trap(libc::PTRACE_CONT, |_| Ok(true))?;
        thread.request(libc::PTRACE_SETOPTIONS, 0, OPTIONS)?;
        Self::standing(thread)
    }

    /// Process `pid`, by its first thread, wherever that is. Other threads go on. A call that gives up because of this is
    /// begun again, one that has done a part is not: it ends with that.
    ///
    /// # Errors
    /// It has ended or is stopped, is traced already, or may not be traced.
    pub fn interrupt(pid: u32) -> Result<Self> {
        request(pid as libc::pid_t, libc::PTRACE_SEIZE, 0, OPTIONS)?;
        // Not before: whoever drops it lets the process go, and one that is traced already is not ours to let go.
        let mut thread = Thread { pid: pid as libc::pid_t, held_back: None };
        thread.request(libc::PTRACE_INTERRUPT, 0, 0)?;
        loop {
            let (signal, event) = thread.wait_for_stop()?;
            match (signal, event) {
                (libc::SIGTRAP, libc::PTRACE_EVENT_STOP) => break,
                (_, libc::PTRACE_EVENT_STOP) => return Err(Error::other("it is stopped")),
                // On its way in when the thread was interrupted: it reaches it first.
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
        // Nothing of the program's is to run meanwhile, but a trap must get through.
        tracee.thread.set_signals(!(1u64 << (libc::SIGTRAP - 1)))?;
        Ok(tracee)
    }

    /// Its stack pointer: at the start, where the kernel put the count of its arguments.
    #[must_use]
    pub fn stack(&self) -> u64 {
        self.registers.rsp
    }

    /// A place for `len` bytes on its stack, below what it may use without saying so.
    #[must_use]
    pub fn below_stack(&self, len: u64) -> u64 {
        (self.registers.rsp - RED_ZONE - len) & !15
    }

    /// Maps the first `len` bytes of a file into it, its own copy, to be read and written: where they are. `place` is memory
    /// of its own that has room for the file's name.
    ///
    /// # Errors
    /// It cannot open or map the file.
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

    /// Fresh memory for it, of zeros, to be read and written: where it is.
    ///
    /// # Errors
    /// There is none.
    pub fn allocate(&mut self, len: u64) -> Result<u64> {
        let access = (libc::PROT_READ | libc::PROT_WRITE) as u64;
        let kind = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        self.call(libc::SYS_mmap, [0, len, access, kind, u64::MAX, 0])
    }

    /// Sets what may be done to a part of its memory (`PROT_READ` and so on).
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn protect(&mut self, start: u64, len: u64, access: u64) -> Result<()> {
        self.call(libc::SYS_mprotect, [start, len, access, 0, 0, 0]).map(drop)
    }

    /// Takes a mapping away again.
    ///
    /// # Errors
    /// There is none.
    pub fn unmap(&mut self, start: u64, len: u64) -> Result<()> {
        self.call(libc::SYS_munmap, [start, len, 0, 0, 0, 0]).map(drop)
    }

    fn call(&mut self, number: libc::c_long, args: [u64; 6]) -> Result<u64> {
        let [rdi, rsi, rdx, r10, r8, r9] = args;
        self.thread.set_registers(&libc::user_regs_struct {
            rip: self.syscall,
            rax: number as u64,
            // It is in no system call that could be begun again.
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

    /// Has it run from `address` on with one argument, on a stack that ends at `stack`, until a trap: what rax is then.
    ///
    /// # Errors
    /// The program has ended, or what it ran did.
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

    /// Writes to its memory, wherever it is.
    ///
    /// # Errors
    /// There is none at that address.
    pub fn write(&self, address: u64, bytes: &[u8]) -> Result<()> {
        self.memory.write_all_at(bytes, address)
    }
}

/// Its memory, and where the kernel's own code in there enters the kernel.
fn open(pid: u32) -> Result<(File, u64)> {
    const AT_SYSINFO_EHDR: u64 = 33;
    const VDSO_BYTES_MAX: usize = 4 * 4096;
    let memory = File::options().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let words = std::fs::read(format!("/proc/{pid}/auxv"))?;
    let word = |bytes: &[u8]| u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
    let start = (words.chunks_exact(16))
        .find(|pair| word(&pair[..8]) == AT_SYSINFO_EHDR)
        .map(|pair| word(&pair[8..]));
    let none = || Error::other("the kernel gives it no code of its own (vdso)");
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

    /// Blocks these, and no others.
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

    /// Waits until it traps, by a trap that `is_it`; other signals are held back, and it goes on by `how`. TRACEE-4.
    fn wait_for_trap(
        &mut self,
        how: libc::c_uint,
        is_it: impl Fn(&Self) -> Result<bool>,
    ) -> Result<()> {
        loop {
            match self.wait_for_stop()? {
                // SIGCONT came, and takes back a stop that has yet to reach it.
                (libc::SIGTRAP, libc::PTRACE_EVENT_STOP) => {
                    self.held_back = self.held_back.filter(|&signal| signal != libc::SIGSTOP);
                }
                (_, libc::PTRACE_EVENT_STOP) => {}
                (libc::SIGTRAP, _) if is_it(self)? => return Ok(()),
                (signal @ (libc::SIGSEGV | libc::SIGBUS | libc::SIGILL | libc::SIGFPE), _) => {
                    return Err(Error::other(format!(
                        "what was to join failed by signal {signal}"
                    )));
                }
                (signal, _) => self.held_back = Some(signal),
            }
            self.request(how, 0, 0)?;
        }
    }

    /// Whether the kernel raised the signal by which it stands: a step or a breakpoint, not a call of kill(2).
    fn is_kernels(&self) -> Result<bool> {
        // SAFETY: a plain structure, for which all zeros is valid.
        let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
        self.request(libc::PTRACE_GETSIGINFO, 0, &raw mut info as usize)?;
        Ok(info.si_code > 0)
    }

    /// By which signal it stands, and by which event of tracing.
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
        // TRACEE-3: looked at first.
        let found = wait(libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT)?;
        if !matches!(found.si_code, libc::CLD_TRAPPED | libc::CLD_STOPPED) {
            return Err(Error::other("it has ended"));
        }
        let found = wait(libc::WSTOPPED)?;
        // SAFETY: what was found is a child that stopped.
        let status = unsafe { found.si_status() };
        Ok((status & 0xff, status >> 8))
    }
}

impl Drop for Thread {
    fn drop(&mut self) {
        let signal = self.held_back.unwrap_or(0);
        // It may have ended.
        let _ = self.request(libc::PTRACE_DETACH, 0, signal as usize);
    }
}

impl Drop for Tracee {
    fn drop(&mut self) {
        // It may have ended: then there is nothing to put back.
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
        stand_at_start(&mut command);
        command.spawn().expect("it may be traced")
    }

    #[test]
    fn it_makes_calls_and_goes_on_as_if_nothing_had_been() {
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
        // Meanwhile, and not lost: it would end the program, were it not ignored.
        // SAFETY: a signal to a child of this process.
        unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGCONT) };
        drop(program);
        let output = child.wait_with_output().expect("it ends");
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).expect("text");
        assert!(text.ends_with("TracerPid:\t0\n"), "{text}");
    }

    #[test]
    fn a_signal_that_comes_meanwhile_reaches_it_afterwards() {
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
        // It may be seen to stand once more.
        let calls = (0..100).map(|_| program.call(libc::SYS_getpid, [0; 6]));
        assert!(calls.into_iter().any(|call| call.is_err()));
        drop(program);
        assert_eq!(child.wait().expect("its status").signal(), Some(libc::SIGKILL));
    }

    #[test]
    fn what_fails_in_it_is_an_error_and_it_goes_on() {
        let mut child = standing("exit 3");
        let mut program = Tracee::of(child.id()).expect("it stands");
        let error = program.run(8, 0, program.stack()).expect_err("nothing lies there");
        assert!(error.to_string().contains("signal 11"), "{error}");
        drop(program);
        assert_eq!(child.wait().expect("its status").code(), Some(3));
    }

    /// Calls that it is in, with a limit of time and without, are in no way shortened by it.
    #[test]
    fn one_that_sleeps_is_interrupted_and_sleeps_on() {
        // It says of itself whether all of its time went by, and waits for its end until nobody
        // interrupts it.
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

    /// Once it is not stopped, as all that a terminal has started may be.
    fn interrupt(child: &Child) -> Tracee {
        eventually_some("it to run", || match Tracee::interrupt(child.id()) {
            Err(error) if error.to_string() == "it is stopped" => None,
            tracee => Some(tracee.expect("it runs")),
        })
    }

    /// The end of a stop counted as the end of a call, which had yet to be made (TRACEE-4).
    #[test]
    fn calls_of_one_that_others_stop_and_have_go_on_are_whole() {
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
            // Also when a call is not whole.
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
    fn a_trap_that_somebody_sends_is_not_the_end_of_a_call_and_reaches_it_afterwards() {
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

    /// A program with its script, and pipes to and from it.
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

    /// It was told EINTR, and believed that nobody would answer.
    #[test]
    fn one_that_waits_for_some_time_waits_on() {
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
