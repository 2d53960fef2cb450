//! Raw system calls: no libc, no errno, no thread-local data. Results are as the kernel gives them
//! (a negated errno on failure).

use core::arch::asm;
use core::sync::atomic::AtomicU32;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the agent speaks x86-64 only");

pub const READ: usize = 0;
pub const WRITE: usize = 1;
pub const CLOSE: usize = 3;
pub const MMAP: usize = 9;
pub const MUNMAP: usize = 11;
pub const RT_SIGPROCMASK: usize = 14;
pub const IOCTL: usize = 16;
pub const MREMAP: usize = 25;
pub const MADVISE: usize = 28;
pub const GETPID: usize = 39;
pub const SOCKETPAIR: usize = 53;
pub const SETSOCKOPT: usize = 54;
pub const GETSOCKOPT: usize = 55;
pub const GETUID: usize = 102;
pub const SOCKET: usize = 41;
pub const CONNECT: usize = 42;
pub const CHDIR: usize = 80;
pub const SENDMSG: usize = 46;
pub const RECVMSG: usize = 47;
pub const CLONE: usize = 56;
pub const FORK: usize = 57;
pub const EXECVE: usize = 59;
pub const EXIT: usize = 60;
pub const KILL: usize = 62;
pub const CAPSET: usize = 126;
pub const MLOCK: usize = 149;
pub const MUNLOCK: usize = 150;
pub const MLOCKALL: usize = 151;
pub const PRCTL: usize = 157;
pub const GETTID: usize = 186;
pub const FUTEX: usize = 202;
pub const CLOCK_GETTIME: usize = 228;
pub const EXIT_GROUP: usize = 231;
pub const OPENAT: usize = 257;
pub const USERFAULTFD: usize = 323;
pub const UNSHARE: usize = 272;
pub const CLONE3: usize = 435;
pub const CLOSE_RANGE: usize = 436;
pub const FACCESSAT2: usize = 439;
pub const PROCESS_MADVISE: usize = 440;
pub const SECCOMP: usize = 317;
pub const STATX: usize = 332;

/// Makes system call `number`.
///
/// # Safety
/// The arguments must be what that call expects.
pub unsafe fn call(number: usize, args: [usize; 6]) -> isize {
    let result: isize;
    // SAFETY: the kernel preserves every register but rax, rcx and r11; the caller vouches for the
    // arguments.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number as isize => result,
            in("rdi") args[0],
            in("rsi") args[1],
            in("rdx") args[2],
            in("r10") args[3],
            in("r8") args[4],
            in("r9") args[5],
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// A length of time, as the kernel wants it.
#[repr(C)]
pub struct Timespec {
    pub seconds: i64,
    pub nanoseconds: i64,
}

/// Seconds since the machine was started.
pub fn seconds() -> u32 {
    const MONOTONIC: usize = 1;
    let mut now = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the time outlives the call.
    unsafe { call(CLOCK_GETTIME, [MONOTONIC, &raw mut now as usize, 0, 0, 0, 0]) };
    now.seconds as u32
}

/// Signals, as the kernel wants a set of them.
pub type Signals = [u64; 1];

const SIG_SETMASK: usize = 2;

/// Blocks every signal of this thread; the set that was blocked before.
pub fn block_signals() -> Signals {
    let mut before = [0; 1];
    set_signals(&[u64::MAX], Some(&mut before));
    before
}

/// Blocks these signals of this thread, and no other.
pub fn set_signals(signals: &Signals, before: Option<&mut Signals>) {
    let before = before.map_or(0, |before| before.as_mut_ptr() as usize);
    // SAFETY: sets of signals that outlive the call.
    unsafe { call(RT_SIGPROCMASK, [SIG_SETMASK, signals.as_ptr() as usize, before, 8, 0, 0]) };
}

const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;

/// Waits until somebody wakes `word`, while it is `seen`, for `limit` at most. Returns early for any reason.
pub fn wait(word: &AtomicU32, seen: u32, limit: &Timespec) -> isize {
    let limit = core::ptr::from_ref(limit) as usize;
    // SAFETY: the word and the limit outlive the call; the kernel only compares the word.
    unsafe { call(FUTEX, [word.as_ptr() as usize, FUTEX_WAIT, seen as usize, limit, 0, 0]) }
}

/// Whether a wait that returned so counts as a look: its time is over, or a filter of system calls refuses waits, which must
/// not make a loop of them endless. It does not where the word had changed or a signal came.
pub fn is_look(returned: isize) -> bool {
    const EINTR: isize = -4;
    const EAGAIN: isize = -11;
    returned < 0 && returned != EINTR && returned != EAGAIN
}

/// Wakes all who wait on `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address as a key only.
    unsafe { call(FUTEX, [word.as_ptr() as usize, FUTEX_WAKE, i32::MAX as usize, 0, 0, 0]) };
}

/// What every thread shares: VM | SIGHAND | THREAD | SYSVSEM | SETTLS.
pub const THREAD: usize = 0x100 | 0x800 | 0x1_0000 | 0x4_0000 | 0x8_0000;
/// The agent: without FILES and FS, so that descriptors, root and working folder are copies. Who shares those enters no other
/// mount namespace. With CHILD_CLEARTID: its end is told in memory.
pub const AGENTS: usize = 0x20_0000;
/// A thread that is waited for: FS | FILES | VFORK.
pub const BRIEF: usize = 0x200 | 0x400 | 0x4000;

/// Starts a thread that shares memory and handlers of signals with this one, and what `more` says. It runs `entry(argument)` on
/// `stack_top` with its thread pointer at `thread_block`. `entry` must not return. Of a [`BRIEF`] one this returns when it has
/// ended. The kernel clears `alive`, and wakes who waits there, at the end of one of the [`AGENTS`].
///
/// # Safety
/// The stack and the block must be memory that nobody else uses for as long as the thread lives, and `alive` mapped.
pub unsafe fn spawn(
    entry: extern "C" fn(usize) -> !,
    argument: usize,
    stack_top: usize,
    thread_block: usize,
    more: usize,
    alive: *const AtomicU32,
) -> isize {
    let flags: usize = THREAD | more;
    let result: isize;
    // SAFETY: in the new thread rax is 0 and the stack is the one given; it calls `entry` and never
    // comes back to this frame. In the old one this is an ordinary system call.
    unsafe {
        asm!(
            "syscall",
            "test rax, rax",
            "jnz 2f",
            "xor ebp, ebp",
            "mov rdi, r12",
            "call r13",
            "ud2",
            "2:",
            inlateout("rax") CLONE as isize => result,
            in("rdi") flags,
            in("rsi") stack_top,
            in("rdx") 0,
            in("r10") alive,
            in("r8") thread_block,
            in("r12") argument,
            in("r13") entry,
            lateout("rcx") _,
            lateout("r11") _,
        );
    }
    result
}
