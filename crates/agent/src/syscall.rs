//! Raw system calls, without libc, errno or thread-local data. The results are the kernel's: a
//! negated errno on failure.

use core::arch::asm;
use core::sync::atomic::AtomicU32;

#[cfg(not(target_arch = "x86_64"))]
compile_error!("the agent speaks x86-64 only");

pub const READ: usize = 0;
pub const WRITE: usize = 1;
pub const CLOSE: usize = 3;
pub const MMAP: usize = 9;
pub const MPROTECT: usize = 10;
pub const MUNMAP: usize = 11;
pub const RT_SIGPROCMASK: usize = 14;
pub const IOCTL: usize = 16;
pub const ACCESS: usize = 21;
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
pub const TGKILL: usize = 234;
pub const OPENAT: usize = 257;
pub const USERFAULTFD: usize = 323;
pub const UNSHARE: usize = 272;
pub const SETNS: usize = 308;
pub const READLINK: usize = 89;
pub const PIDFD_OPEN: usize = 434;
pub const CLONE3: usize = 435;
pub const CLOSE_RANGE: usize = 436;
pub const PIDFD_GETFD: usize = 438;
pub const FACCESSAT2: usize = 439;
pub const PROCESS_MADVISE: usize = 440;
pub const SETRLIMIT: usize = 160;
pub const PRLIMIT64: usize = 302;
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

/// Duration in the kernel's format.
#[repr(C)]
pub struct Timespec {
    pub seconds: i64,
    pub nanoseconds: i64,
}

/// Returns the time in seconds since the machine was started.
pub fn seconds() -> u32 {
    const MONOTONIC: usize = 1;
    let mut now = Timespec { seconds: 0, nanoseconds: 0 };
    // SAFETY: the time outlives the call.
    unsafe { call(CLOCK_GETTIME, [MONOTONIC, &raw mut now as usize, 0, 0, 0, 0]) };
    now.seconds as u32
}

/// Signal set in the kernel's format.
pub type Signals = [u64; 1];

const SIG_SETMASK: usize = 2;

/// Blocks every signal of this thread. Returns the previously blocked signals.
pub fn block_signals() -> Signals {
    let mut before = [0; 1];
    set_signals(&[u64::MAX], Some(&mut before));
    before
}

/// Blocks exactly these signals of this thread. Stores the previously blocked signals in `before`.
pub fn set_signals(signals: &Signals, before: Option<&mut Signals>) {
    let before = before.map_or(0, |before| before.as_mut_ptr() as usize);
    // SAFETY: sets of signals that outlive the call.
    unsafe { call(RT_SIGPROCMASK, [SIG_SETMASK, signals.as_ptr() as usize, before, 8, 0, 0]) };
}

const FUTEX_WAIT: usize = 0;
const FUTEX_WAKE: usize = 1;

/// Waits on the futex `word` while it has the value `seen`, for `limit` at most. May return early
/// for any reason.
pub fn wait(word: &AtomicU32, seen: u32, limit: &Timespec) -> isize {
    let limit = core::ptr::from_ref(limit) as usize;
    // SAFETY: the word and the limit outlive the call; the kernel only compares the word.
    unsafe { call(FUTEX, [word.as_ptr() as usize, FUTEX_WAIT, seen as usize, limit, 0, 0]) }
}

/// Returns whether a wait with this result counts in the caller's number of waits. A timeout
/// counts. A filter's refusal counts, too, because the caller's loop would otherwise never end. A
/// changed word or a signal does not count.
pub fn is_counted_wait(returned: isize) -> bool {
    const EINTR: isize = -4;
    const EAGAIN: isize = -11;
    returned < 0 && returned != EINTR && returned != EAGAIN
}

/// Wakes all threads that wait on `word`.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the kernel uses the address as a key only.
    unsafe { call(FUTEX, [word.as_ptr() as usize, FUTEX_WAKE, i32::MAX as usize, 0, 0, 0]) };
}

/// Clone flags of every thread: VM | SIGHAND | THREAD | SYSVSEM | SETTLS.
pub const THREAD: usize = 0x100 | 0x800 | 0x1_0000 | 0x4_0000 | 0x8_0000;
/// Clone flag of the agent's thread: CHILD_CLEARTID, by which the kernel reports the thread's end
/// in memory. FILES and FS are absent, so that descriptors, root and working directory are copies.
/// The kernel refuses another mount namespace to a thread that shares root and working directory.
pub const AGENTS: usize = 0x20_0000;
/// Clone flags of a short-lived thread, for which the caller waits: FS | FILES | VFORK.
pub const BRIEF: usize = 0x200 | 0x400 | 0x4000;

/// Starts a thread that shares memory and signal handlers with this one, and more as the flags
/// `more` say. The thread runs `entry(argument)` on `stack_top` with its thread pointer at
/// `thread_block`. `entry` must not return. With [`BRIEF`] this function returns when the thread
/// has ended. With [`AGENTS`] the kernel clears `alive` at the thread's end and wakes waiters on
/// it.
///
/// # Safety
/// Only the new thread may use the stack and the block while it lives, and `alive` must be mapped.
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
    // SAFETY: in the new thread rax is 0 and the stack is the given one. The new thread calls
    // `entry` and never returns to this frame. In the old thread this is an ordinary system call.
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
