//! Calls for which the kernel wants a process of one thread: `unshare` and `setns` with a user
//! namespace, a time namespace, or memory and signal handlers of the process's own.
//!
//! The agent's thread is a second thread. So it steps aside: it ends before such a call, and a new
//! one goes on after the call.
//!
//! * ASIDE-1: meanwhile the calling thread holds the agent's descriptors in the program's table. So
//!   the pager does not see the end of the line, the program still ends with the pager (AGENT-3),
//!   and no fault reads zeros.
//! * ASIDE-2: the pager lets the agent step aside only if the process has no other thread. Another
//!   thread could see the descriptors.
//! * ASIDE-3: from its request to the pager on, the calling thread runs on the agent's stack, with
//!   all signals blocked. It needs no page of the program. The pager could make no room for one,
//!   because no agent runs. For the same reason the pager does not freeze the thread meanwhile.
//! * ASIDE-4: the agent steps aside only if the process can start a thread now and after the call.
//!   So namespaces that only children enter are left out of the call, and are set after it. The
//!   kernel starts no thread in a process whose children go to another namespace.
//! * ASIDE-5: behind a filter of system calls the agent does not step aside. The filter may have an
//!   answer to its calls that the program does not survive.

use crate::calls::ask;
use crate::filter;
use crate::join::{AgentStack, Kept};
use crate::own::{is_own_process, own_or_join};
use crate::protocol::{ASK_STEP_ASIDE, Shared};
use crate::state::AGENT;
use crate::syscall::{self, Timespec, call};
use core::arch::asm;
use core::sync::atomic::AtomicU32;
use core::sync::atomic::Ordering::{AcqRel, Acquire, Release};

const ESRCH: isize = -3;
const EBUSY: u32 = 16;
const EINVAL: isize = -22;
const EUSERS: isize = -87;

/// Flags of `unshare` and `setns`.
const NEW_TIME: usize = 0x80;
const VM: usize = 0x100;
const SIGHAND: usize = 0x800;
const THREAD: usize = 0x1_0000;
const NEW_USERS: usize = 0x1000_0000;
const NEW_PIDS: usize = 0x2000_0000;

/// Interval at which the calling thread checks that the agent's thread still lives.
const LOOK: Timespec = Timespec { seconds: 0, nanoseconds: 100_000_000 };
const MOMENT: Timespec = Timespec { seconds: 0, nanoseconds: 50_000 };
const PAUSE: Timespec = Timespec { seconds: 0, nanoseconds: 10_000_000 };
/// Largest number of moments for which the calling thread waits for the kernel to forget a thread
/// that has ended. A debugger may keep such a thread.
const MOMENTS_MAX: u32 = 20_000;
/// Number of tries of a call that wants signal handlers or memory of the process's own. The kernel
/// may still count an ended thread as their user.
const TRIES: u32 = 20;

/// Call of `unshare`, or of `setns` with a descriptor.
#[derive(Clone, Copy)]
struct Request {
    descriptor: Option<usize>,
    flags: usize,
}

impl Request {
    fn make(self) -> isize {
        let (number, args) = match self.descriptor {
            Some(descriptor) => (syscall::SETNS, [descriptor, self.flags, 0, 0, 0, 0]),
            None => (syscall::UNSHARE, [self.flags, 0, 0, 0, 0, 0]),
        };
        // SAFETY: the arguments are integers. The call changes what the kernel keeps for the
        // process, and no memory.
        unsafe { call(number, args) }
    }

    fn with(self, flags: usize) -> Self {
        Self { flags, ..self }
    }
}

/// Makes the call `unshare(flags)`. Returns the kernel's result.
pub fn unshare(flags: usize) -> isize {
    let request = Request { descriptor: None, flags };
    match request.make() {
        EINVAL if flags & (NEW_USERS | THREAD | SIGHAND | VM) != 0 => {
            make_alone(request, NEW_PIDS | NEW_TIME, EINVAL)
        }
        result => result,
    }
}

/// Makes the call `setns(descriptor, flags)`. Returns the kernel's result.
pub fn setns(descriptor: usize, flags: usize) -> isize {
    let request = Request { descriptor: Some(descriptor), flags };
    match request.make() {
        refused @ (EINVAL | EUSERS) if flags == 0 || flags & (NEW_USERS | NEW_TIME) != 0 => {
            make_alone(request, NEW_PIDS, refused)
        }
        result => result,
    }
}

/// Makes a call again while the agent's thread has stepped aside, and then the part of the call
/// with the flags `later` (ASIDE-4). Returns `refused`, the result of the first try, if the agent
/// cannot step aside.
fn make_alone(request: Request, later: usize, refused: isize) -> isize {
    let Some(shared) = own_or_join() else { return refused };
    let stack = AGENT.stack.load(Acquire);
    // SAFETY: null, or the area of this process's agent, which stays mapped.
    let Some(stack) = (unsafe { stack.as_ref() }) else { return refused };
    if !is_own_process() {
        return refused;
    }
    let request_now = request.with(request.flags & !later);
    let mut between = Between { shared, request: request_now, result: Err(Refusal::AsPlainly) };
    let signals = syscall::block_signals();
    between.make_on(stack);
    syscall::set_signals(&signals, None);
    match between.result {
        Ok(result) if request.flags & later == 0 || result < 0 => result,
        Ok(_) => request.with(request.flags & later).make(),
        Err(refusal) => {
            if refusal == Refusal::ByEbb {
                explain();
            }
            refused
        }
    }
}

/// Reason why the agent's thread does not step aside.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Refusal {
    /// The kernel would refuse the call to a plain process of several threads, too.
    AsPlainly,
    /// The kernel would take the call from a plain process.
    ByEbb,
}

/// Has the agent's thread end. Returns its number and the descriptors that this thread holds for it
/// (ASIDE-1).
fn step_aside(shared: &Shared, stack: &AgentStack) -> Result<(usize, Kept), Refusal> {
    if filter::is_strict() || has_filter() {
        return Err(Refusal::ByEbb);
    }
    let thread = shared.thread.swap(0, AcqRel);
    // Another thread of the program makes such a call at this moment.
    if thread == 0 {
        return Err(Refusal::AsPlainly);
    }
    let thread_number = thread as usize;
    let refused = match can_start_thread(stack).then(|| take(stack, thread_number)).flatten() {
        None => Refusal::ByEbb,
        Some(kept) => {
            stack.kept.set(kept);
            match ask(shared, ASK_STEP_ASIDE, [0; 2]) {
                Some(0) => return Ok((thread_number, kept)),
                answer => {
                    kept.each(|descriptor| {
                        // SAFETY: a descriptor that `take` has put into this table.
                        unsafe { call(syscall::CLOSE, [descriptor, 0, 0, 0, 0, 0]) };
                    });
                    if answer == Some(EBUSY) { Refusal::AsPlainly } else { Refusal::ByEbb }
                }
            }
        }
    };
    shared.thread.store(thread, Release);
    Err(refused)
}

/// Whether the process has a filter of system calls (ASIDE-5).
fn has_filter() -> bool {
    const GET_SECCOMP: usize = 21;
    // SAFETY: the call takes no further argument.
    unsafe { call(syscall::PRCTL, [GET_SECCOMP, 0, 0, 0, 0, 0]) != 0 }
}

/// Starts a thread that ends at once, and waits for its end. Returns whether that worked.
fn can_start_thread(stack: &AgentStack) -> bool {
    extern "C" fn end(_: usize) -> ! {
        loop {
            // SAFETY: ends this thread.
            unsafe { call(syscall::EXIT, [0; 6]) };
        }
    }
    let block = core::ptr::from_ref(stack) as usize;
    // SAFETY: this thread waits for the new one, which alone uses this part of the agent's stack.
    let thread = unsafe {
        syscall::spawn(end, 0, stack.trial_top(), block, syscall::BRIEF, core::ptr::null())
    };
    if thread < 0 {
        return false;
    }
    wait_until_forgotten(thread as usize);
    true
}

/// Takes the descriptors of the agent's thread `thread` into the program's table.
fn take(stack: &AgentStack, thread: usize) -> Option<Kept> {
    const PIDFD_THREAD: usize = 0x80;
    // SAFETY: the arguments are integers. Only descriptors that this function makes are closed.
    unsafe {
        let pidfd = call(syscall::PIDFD_OPEN, [thread, PIDFD_THREAD, 0, 0, 0, 0]);
        if pidfd < 0 {
            return None;
        }
        let pidfd = pidfd as usize;
        let taken = stack.own.get().try_map(|descriptor| {
            let taken = call(syscall::PIDFD_GETFD, [pidfd, descriptor, 0, 0, 0, 0]);
            usize::try_from(taken).ok()
        });
        call(syscall::CLOSE, [pidfd, 0, 0, 0, 0, 0]);
        match taken {
            Ok(kept) => Some(kept),
            Err(some) => {
                some.each(|descriptor| {
                    call(syscall::CLOSE, [descriptor, 0, 0, 0, 0, 0]);
                });
                None
            }
        }
    }
}

/// Waits until the kernel counts an ended thread no more.
fn wait_until_forgotten(thread: usize) {
    // SAFETY: GETPID takes no argument.
    let process = unsafe { call(syscall::GETPID, [0; 6]) } as usize;
    let nobody_wakes = AtomicU32::new(0);
    for _ in 0..MOMENTS_MAX {
        // SAFETY: signal 0 is never sent; the call only looks for the thread.
        if unsafe { call(syscall::TGKILL, [process, thread, 0, 0, 0, 0]) } == ESRCH {
            return;
        }
        syscall::wait(&nobody_wakes, 0, &MOMENT);
    }
}

/// Call that is made while the agent's thread has stepped aside, and its result.
struct Between {
    shared: &'static Shared,
    request: Request,
    result: Result<isize, Refusal>,
}

impl Between {
    /// Makes the call on the agent's stack (ASIDE-3).
    fn make_on(&mut self, stack: &AgentStack) {
        // SAFETY: nothing else uses this part of the agent's stack. The function called keeps to
        // the C calling convention, and so leaves r12 as it is.
        unsafe {
            asm!(
                "mov r12, rsp",
                "mov rsp, {top}",
                "call {entry}",
                "mov rsp, r12",
                top = in(reg) stack.aside_top(),
                entry = in(reg) Self::make as extern "C" fn(&mut Self, &AgentStack),
                in("rdi") core::ptr::from_mut(self),
                in("rsi") core::ptr::from_ref(stack),
                out("r12") _,
                clobber_abi("C"),
            );
        }
    }

    /// Has the agent's thread end, makes the call, and starts another thread. This value is in
    /// memory of the program, so only the beginning and the end use it.
    extern "C" fn make(&mut self, stack: &AgentStack) {
        let (shared, request) = (self.shared, self.request);
        self.result = step_aside(shared, stack).map(|(thread, kept)| {
            stack.wait_for_end(&LOOK);
            wait_until_forgotten(thread);
            let nobody_wakes = AtomicU32::new(0);
            let mut result = request.make();
            for _ in 1..TRIES {
                if result != EINVAL || request.flags & (SIGHAND | VM) == 0 {
                    break;
                }
                syscall::wait(&nobody_wakes, 0, &MOMENT);
                result = request.make();
            }
            // A limit of processes may refuse the thread for a while.
            while !stack.start_again() {
                syscall::wait(&nobody_wakes, 0, &PAUSE);
            }
            kept.each(|descriptor| {
                // SAFETY: a descriptor that `step_aside` has put into this table.
                unsafe { call(syscall::CLOSE, [descriptor, 0, 0, 0, 0, 0]) };
            });
            result
        });
    }
}

fn explain() {
    const WORD: &[u8] =
        b"ebb: the kernel wants a process of one thread for this namespace, and the agent's thread \
        could not step aside (Linux before 6.9, a filter of system calls, no free descriptor, a \
        spent limit of processes, or another process namespace for children); start ebb run inside \
        the namespace instead\n";
    // A failed write is ignored.
    // SAFETY: a constant of that length.
    unsafe { call(syscall::WRITE, [2, WORD.as_ptr() as usize, WORD.len(), 0, 0, 0]) };
}
