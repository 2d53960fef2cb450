//! How the agent gets into the program: at its start and after each fork.
//!
//! Runs on the program's own threads, before or between its own code.

use crate::births;
use crate::join::{Berth, join_new};
use crate::lost;
use crate::own::{self, own};
use crate::passing;
use crate::pins::{pin, pin_early};
use crate::protocol::{ENV_POOL, ENV_SOCKET, Shared};
use crate::syscall::{self, call};
use crate::threads::{own_thread_block, pin_thread};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering::{Relaxed, Release};
use core::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

#[link(name = "c")]
unsafe extern "C" {
    fn __register_atfork(
        prepare: Option<extern "C" fn()>,
        parent: Option<extern "C" fn()>,
        child: Option<extern "C" fn()>,
        object: *const c_void,
    ) -> c_int;
    fn __errno_location() -> *mut c_int;
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    // SAFETY: leaves the process; there is nothing to be told from in here.
    unsafe { call(syscall::EXIT_GROUP, [125, 0, 0, 0, 0, 0]) };
    loop {}
}

/// Sets glibc's errno.
pub fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's own.
    unsafe { *__errno_location() = errno };
}

/// What is loaded before all other libraries, the agent among it.
pub const ENV_PRELOAD: &str = "LD_PRELOAD";
/// Longest socket path, with its end.
pub const PATH_MAX: usize = 108;

/// It is not known yet whether there will be an agent: libraries that are loaded before this object run.
pub const COMING: u32 = 0;
/// There is none.
pub const ABSENT: u32 = 1;
/// This process, or one it was forked from, has joined.
pub const PRESENT: u32 = 2;

/// How to reach the agent of this process, or of the one it was forked from (see [`crate::own`], O1). Lives in
/// the object's data: the agent's thread looks at it only before it serves.
pub struct Agent {
    pub stage: AtomicU32,
    pub table: AtomicPtr<Shared>,
    pub berth: AtomicPtr<Berth>,
    pub pool_start: AtomicU64,
    pub pool_len: AtomicU64,
    /// The environment's socket path, copied because the program may change its environment.
    pub path: [AtomicUsize; PATH_MAX / 8 + 1],
    pub path_len: AtomicUsize,
}

pub static AGENT: Agent = Agent {
    stage: AtomicU32::new(COMING),
    table: AtomicPtr::new(core::ptr::null_mut()),
    berth: AtomicPtr::new(core::ptr::null_mut()),
    pool_start: AtomicU64::new(0),
    pool_len: AtomicU64::new(0),
    path: [const { AtomicUsize::new(0) }; PATH_MAX / 8 + 1],
    path_len: AtomicUsize::new(0),
};

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = construct;

extern "C" fn construct(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // SAFETY: the dynamic linker passes the environment as main would get it.
    if unsafe { read_environment(environment) }.is_none() || begin().is_none() {
        AGENT.stage.store(ABSENT, Release);
    }
}

/// Joins the pager.
fn begin() -> Option<()> {
    let began = lost::now();
    let page = own::make()?;
    let Some(shared) = join_new() else {
        page.give_up();
        return None;
    };
    let places = page.places();
    lost::note(shared, began);
    page.joined(shared);
    AGENT.stage.store(PRESENT, Release);
    pin_early(shared);
    places.iter().for_each(|&place| pin(place, 8));
    pin((&raw const AGENT) as u64, size_of::<Agent>() as u64);
    pin_thread(own_thread_block());
    // SAFETY: the handler lives as long as the process: the object is never unloaded.
    unsafe {
        __register_atfork(
            Some(before_fork),
            Some(after_fork),
            Some(after_fork_child),
            core::ptr::null(),
        );
    }
    Some(())
}

/// Takes note of what the agent is told through the environment.
///
/// # Safety
/// `environment` is a null-ended array of C strings.
unsafe fn read_environment(environment: *const *const c_char) -> Option<()> {
    // SAFETY: as promised.
    let (path, pool) =
        unsafe { (variable(environment, ENV_SOCKET)?, variable(environment, ENV_POOL)?) };
    // Under valgrind, which plays the processor, there is nothing that pages could be moved under.
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

/// The value of a variable.
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

/// Around a fork, where the C library forks; nothing that the program registered runs in between.
extern "C" fn before_fork() {
    passing::fork_begins();
}

extern "C" fn after_fork() {
    passing::fork_ends();
}

/// The first thing a forked child does, where the C library forks.
extern "C" fn after_fork_child() {
    births::forget_parents();
    own();
}

/// A3: the pager is gone, and so is every page it kept.
pub fn die() -> ! {
    const SIGKILL: usize = 9;
    loop {
        // SAFETY: signals this process, then leaves it: the first of a namespace cannot be killed from within.
        unsafe {
            let pid = call(syscall::GETPID, [0; 6]);
            call(syscall::KILL, [pid as usize, SIGKILL, 0, 0, 0, 0]);
            call(syscall::EXIT_GROUP, [128 + SIGKILL, 0, 0, 0, 0, 0]);
        }
    }
}
