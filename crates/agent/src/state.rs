//! The agent's own state, which it reads from the program's environment.
//!
//! A thread of the program reads the environment before the agent's thread starts.

use crate::join::AgentStack;
#[cfg(ebb_preload)]
use crate::protocol::FAR_SUFFIX;
use crate::protocol::{ENV_POOL, ENV_SOCKET, Shared};
use crate::syscall::{self, call};
use core::ffi::{CStr, c_char};
use core::sync::atomic::Ordering::Relaxed;
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: ends the process; the agent has no way to report a panic.
    unsafe { call(syscall::EXIT_GROUP, [125, 0, 0, 0, 0, 0]) };
    loop {}
}

/// Environment variable: libraries that the loader loads before all others, the agent among them.
pub const ENV_PRELOAD: &str = "LD_PRELOAD";
/// Largest length in bytes of a socket path, with its null byte.
pub const PATH_MAX: usize = 108;

/// Stage: it is not known yet whether there will be an agent. Libraries that are loaded before this
/// object run now.
pub const COMING: u32 = 0;
/// Stage: there is no agent.
pub const ABSENT: u32 = 1;
/// Stage: this process, or one it was forked from, has joined.
pub const PRESENT: u32 = 2;

/// Record by which a thread reaches the agent of this process, or of the ancestor it was forked
/// from (OWN-1 in [`crate::own`]). The record lies in the object's data. The agent's thread reads
/// it only before it serves.
pub struct Agent {
    pub stage: AtomicU32,
    pub table: AtomicPtr<Shared>,
    pub stack: AtomicPtr<AgentStack>,
    /// 1 if this process, or one it was forked from, could not join.
    pub alone: AtomicU32,
    pub pool_start: AtomicU64,
    pub pool_len: AtomicU64,
    /// Socket path from the environment, copied because the program may change its environment.
    pub path: [AtomicUsize; PATH_MAX / 8 + 1],
    pub path_len: AtomicUsize,
}

pub static AGENT: Agent = Agent {
    stage: AtomicU32::new(COMING),
    table: AtomicPtr::new(core::ptr::null_mut()),
    stack: AtomicPtr::new(core::ptr::null_mut()),
    alone: AtomicU32::new(0),
    pool_start: AtomicU64::new(0),
    pool_len: AtomicU64::new(0),
    path: [const { AtomicUsize::new(0) }; PATH_MAX / 8 + 1],
    path_len: AtomicUsize::new(0),
};

/// Reads the pager's settings from the environment. Returns None if there is to be no agent.
///
/// # Safety
/// `environment` is a null-ended array of C strings.
pub unsafe fn read_environment(environment: *const *const c_char) -> Option<()> {
    // SAFETY: as promised.
    let (path, pool) =
        unsafe { (variable(environment, ENV_SOCKET)?, variable(environment, ENV_POOL)?) };
    // Under valgrind, which emulates the processor, pages cannot be moved.
    // SAFETY: as promised.
    let preload = unsafe { variable(environment, ENV_PRELOAD) }.unwrap_or_default();
    if preload.windows(9).any(|word| word == b"vgpreload") {
        return None;
    }
    let pool_len = number(pool)?;
    if path.len() >= PATH_MAX {
        return None;
    }
    for (i, chunk) in path.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        AGENT.path[i].store(usize::from_ne_bytes(word), Relaxed);
    }
    AGENT.path_len.store(path.len(), Relaxed);
    AGENT.pool_len.store(pool_len, Relaxed);
    Some(())
}

/// Returns whether the run is far from its limit, as the file beside the pager's socket says. False
/// if this process cannot reach the file.
#[cfg(ebb_preload)]
pub fn is_far() -> bool {
    let mut path = [0u8; PATH_MAX + 16];
    let len = AGENT.path_len.load(Relaxed);
    for (i, word) in AGENT.path.iter().enumerate() {
        path[i * 8..][..8].copy_from_slice(&word.load(Relaxed).to_ne_bytes());
    }
    path[len..][..FAR_SUFFIX.len()].copy_from_slice(FAR_SUFFIX.as_bytes());
    // F_OK
    // SAFETY: the path outlives the call, and ends with a null byte.
    unsafe { call(syscall::ACCESS, [path.as_ptr() as usize, 0, 0, 0, 0, 0]) == 0 }
}

/// Returns the value of an environment variable.
///
/// # Safety
/// `environment` is a null-ended array of C strings.
unsafe fn variable<'a>(environment: *const *const c_char, name: &str) -> Option<&'a [u8]> {
    let mut at = environment;
    // SAFETY: the array ends with a null pointer; each string ends with a null byte.
    unsafe {
        while !(*at).is_null() {
            let text = CStr::from_ptr(*at).to_bytes();
            if let Some(value) =
                text.strip_prefix(name.as_bytes()).and_then(|t| t.strip_prefix(b"="))
            {
                return Some(value);
            }
            at = at.add(1);
        }
    }
    None
}

fn number(text: &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for &digit in text {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    (value > 0).then_some(value)
}

/// Kills the process: the pager is gone, with every page that it stored (AGENT-3), or the run is
/// over.
pub fn die() -> ! {
    const SIGKILL: usize = 9;
    loop {
        // SAFETY: kills this process. If the signal has no effect, the process exits: the first
        // process of a namespace cannot be killed from within.
        unsafe {
            let pid = call(syscall::GETPID, [0; 6]);
            call(syscall::KILL, [pid as usize, SIGKILL, 0, 0, 0, 0]);
            call(syscall::EXIT_GROUP, [128 + SIGKILL, 0, 0, 0, 0, 0]);
        }
    }
}
