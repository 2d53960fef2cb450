//! How the agent gets into the program: at its start and after each fork.
//!
//! Runs on the program's own threads, before or between its own code. It leaves no descriptor, no
//! signal mask and no allocation behind: only the pool, the shared memory and the agent's thread.

use crate::protocol::{
    Answer, ENV_POOL, ENV_SOCKET, GREET_FORKED, GREET_START, Greeting, MAGIC, STACK_WORDS, Shared,
    VERSION,
};
use crate::syscall::{self, call, spawn};
use crate::threads::{own_thread_block, pin_thread};
use crate::worker::{BIN_BYTES, Start, run};
use core::ffi::{CStr, c_char, c_int, c_void};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize};

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

/// Longest socket path, with its end.
const PATH_MAX: usize = 108;
const SIG_SETMASK: usize = 2;
const ENV_MISSING: usize = usize::MAX;

/// The agent of this process. Lives in the object's data: touched only by the program's threads.
pub struct Agent {
    pub shared: AtomicPtr<Shared>,
    pub pool_start: AtomicU64,
    pub pool_len: AtomicU64,
    process: AtomicU32,
    /// The environment's socket path, copied because the program may change its environment.
    path: [AtomicUsize; PATH_MAX / 8 + 1],
    path_len: AtomicUsize,
    pub present: AtomicBool,
}

pub static AGENT: Agent = Agent {
    shared: AtomicPtr::new(core::ptr::null_mut()),
    pool_start: AtomicU64::new(0),
    pool_len: AtomicU64::new(0),
    process: AtomicU32::new(0),
    path: [const { AtomicUsize::new(0) }; PATH_MAX / 8 + 1],
    path_len: AtomicUsize::new(ENV_MISSING),
    present: AtomicBool::new(false),
};

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn(c_int, *const *const c_char, *const *const c_char) = construct;

extern "C" fn construct(_: c_int, _: *const *const c_char, environment: *const *const c_char) {
    // SAFETY: the dynamic linker passes the environment as main would get it.
    let (Some(path), Some(pool)) =
        (unsafe { (variable(environment, ENV_SOCKET), variable(environment, ENV_POOL)) })
    else {
        return;
    };
    let Some(pool_len) = number(pool) else { return };
    if path.len() >= PATH_MAX {
        return;
    }
    for (i, chunk) in path.chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        AGENT.path[i].store(usize::from_ne_bytes(word), Relaxed);
    }
    AGENT.path_len.store(path.len(), Relaxed);
    AGENT.pool_len.store(pool_len, Relaxed);
    // SAFETY: GETPID takes nothing.
    AGENT.process.store(unsafe { call(syscall::GETPID, [0; 6]) } as u32, Relaxed);
    if join(GREET_START).is_ok() {
        AGENT.present.store(true, Release);
        pin_thread(own_thread_block());
        // SAFETY: the handler lives as long as the process: the object is never unloaded.
        unsafe { __register_atfork(None, None, Some(after_fork_child), core::ptr::null()) };
    }
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

#[repr(C)]
struct Iovec {
    base: usize,
    len: usize,
}

#[repr(C)]
struct Header {
    name: usize,
    name_len: u32,
    iov: usize,
    iov_len: usize,
    control: usize,
    control_len: usize,
    flags: i32,
}

#[repr(C)]
struct Control {
    len: usize,
    level: i32,
    kind: i32,
    fds: [i32; 2],
}

/// Why there is no agent.
enum Failure {
    /// The pager is gone.
    Gone,
    /// The pager does not want this process, or there is no room for an agent in it.
    Declined,
}

/// Joins the pager: greeting, answer, thread.
fn join(kind: u32) -> Result<(), Failure> {
    let socket = connect()?;
    let joined = join_over(kind, socket);
    close(socket);
    joined
}

fn join_over(kind: u32, socket: usize) -> Result<(), Failure> {
    let (memory, shared) = make_shared().ok_or(Failure::Declined)?;
    let forked = kind == GREET_FORKED;
    let uffd = if forked { None } else { make_uffd() };
    if !forked && (uffd.is_none() || !make_pool()) {
        close(memory);
        return Err(Failure::Declined);
    }
    if forked {
        copy_pins(shared);
    }
    let greeting = Greeting {
        magic: MAGIC,
        version: VERSION,
        kind,
        parent: AGENT.process.load(Relaxed),
        pool_start: AGENT.pool_start.load(Relaxed),
        pool_len: AGENT.pool_len.load(Relaxed),
    };
    let sent = send(socket, &greeting, memory, uffd);
    close(memory);
    let answered = if sent { receive(socket) } else { Err(Failure::Gone) };
    let uffd = match (answered, uffd) {
        (Ok(given), own) => own.or(given).ok_or(Failure::Declined)?,
        (Err(failure), own) => {
            if let Some(fd) = own {
                close(fd);
            }
            return Err(failure);
        }
    };
    let started = start_worker(shared, socket, uffd);
    close(uffd);
    if started {
        AGENT.shared.store(shared.cast_mut(), Release);
        // SAFETY: GETPID takes nothing.
        AGENT.process.store(unsafe { call(syscall::GETPID, [0; 6]) } as u32, Relaxed);
        return Ok(());
    }
    Err(Failure::Declined)
}

fn connect() -> Result<usize, Failure> {
    let len = AGENT.path_len.load(Relaxed);
    if len == ENV_MISSING {
        return Err(Failure::Declined);
    }
    let mut address = [0u8; 2 + PATH_MAX + 8];
    address[0] = 1; // AF_UNIX
    for (i, word) in AGENT.path.iter().enumerate() {
        let word = word.load(Relaxed).to_ne_bytes();
        let at = 2 + i * 8;
        let end = (at + 8).min(address.len());
        address[at..end].copy_from_slice(&word[..end - at]);
    }
    // SOCK_SEQPACKET | SOCK_CLOEXEC
    // SAFETY: integers only.
    let socket = unsafe { call(syscall::SOCKET, [1, 5 | 0x8_0000, 0, 0, 0, 0]) };
    if socket < 0 {
        return Err(Failure::Declined);
    }
    // SAFETY: the address outlives the call, its length is within it.
    let connected = unsafe {
        call(syscall::CONNECT, [socket as usize, address.as_ptr() as usize, 2 + len + 1, 0, 0, 0])
    };
    if connected < 0 {
        close(socket as usize);
        return Err(Failure::Gone);
    }
    Ok(socket as usize)
}

fn make_shared() -> Option<(usize, *const Shared)> {
    let len = size_of::<Shared>().next_multiple_of(4096);
    // SAFETY: a fresh descriptor, a fresh mapping; every argument as the calls want it.
    unsafe {
        let memory = call(syscall::MEMFD_CREATE, [c"ebb-agent".as_ptr() as usize, 1, 0, 0, 0, 0]);
        if memory < 0 {
            return None;
        }
        let memory = memory as usize;
        call(syscall::FTRUNCATE, [memory, len, 0, 0, 0, 0]);
        // READ | WRITE, SHARED
        let address = call(syscall::MMAP, [0, len, 3, 1, memory, 0]);
        if address < 0 {
            close(memory);
            return None;
        }
        let shared = address as *const Shared;
        (*shared).magic.store(MAGIC, Relaxed);
        Some((memory, shared))
    }
}

fn make_uffd() -> Option<usize> {
    const CLOEXEC_NONBLOCK: usize = 0x8_0000 | 0x800;
    // SAFETY: integers and one constant path.
    unsafe {
        let uffd = call(syscall::USERFAULTFD, [CLOEXEC_NONBLOCK, 0, 0, 0, 0, 0]);
        if uffd >= 0 {
            return Some(uffd as usize);
        }
        let path = c"/dev/userfaultfd";
        // AT_FDCWD, O_RDWR | O_CLOEXEC
        let device = call(
            syscall::OPENAT,
            [-100isize as usize, path.as_ptr() as usize, 2 | 0x8_0000, 0, 0, 0],
        );
        if device < 0 {
            return None;
        }
        let uffd = call(syscall::IOCTL, [device as usize, 0xAA00, CLOEXEC_NONBLOCK, 0, 0, 0]);
        close(device as usize);
        (uffd >= 0).then_some(uffd as usize)
    }
}

fn make_pool() -> bool {
    let mut len = AGENT.pool_len.load(Relaxed) as usize & !4095;
    while len >= 64 * 4096 {
        // READ | WRITE, PRIVATE | ANONYMOUS | NORESERVE
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let address = unsafe { call(syscall::MMAP, [0, len, 3, 0x4022, usize::MAX, 0]) };
        if address >= 0 {
            AGENT.pool_start.store(address as u64, Relaxed);
            AGENT.pool_len.store(len as u64, Relaxed);
            return true;
        }
        len = (len / 2) & !4095;
    }
    false
}

fn send(socket: usize, greeting: &Greeting, memory: usize, uffd: Option<usize>) -> bool {
    let data = Iovec { base: core::ptr::from_ref(greeting) as usize, len: size_of::<Greeting>() };
    let fds = if uffd.is_some() { 2 } else { 1 };
    let control = Control {
        len: 16 + 4 * fds,
        level: 1, // SOL_SOCKET
        kind: 1,  // SCM_RIGHTS
        fds: [memory as i32, uffd.unwrap_or(0) as i32],
    };
    let header = Header {
        name: 0,
        name_len: 0,
        iov: &raw const data as usize,
        iov_len: 1,
        control: &raw const control as usize,
        control_len: size_of::<Control>(),
        flags: 0,
    };
    // SAFETY: the header names memory that outlives the call. 0x4000: no signal if the pager is gone.
    unsafe { call(syscall::SENDMSG, [socket, &raw const header as usize, 0x4000, 0, 0, 0]) > 0 }
}

/// The answer: the descriptor that came with it, if any.
fn receive(socket: usize) -> Result<Option<usize>, Failure> {
    let mut answer = Answer::default();
    let data = Iovec { base: &raw mut answer as usize, len: size_of::<Answer>() };
    let mut control = Control { len: 0, level: 0, kind: 0, fds: [-1, -1] };
    let mut header = Header {
        name: 0,
        name_len: 0,
        iov: &raw const data as usize,
        iov_len: 1,
        control: &raw mut control as usize,
        control_len: size_of::<Control>(),
        flags: 0,
    };
    let got = loop {
        // CLOEXEC on what comes.
        // SAFETY: the header names memory that outlives the call.
        let got = unsafe {
            call(syscall::RECVMSG, [socket, &raw mut header as usize, 0x4000_0000, 0, 0, 0])
        };
        if got != -4 {
            break got;
        }
    };
    if got < size_of::<Answer>() as isize || answer.magic != MAGIC {
        return Err(Failure::Gone);
    }
    if answer.refused != 0 {
        return Err(Failure::Declined);
    }
    let carried = header.control_len >= 20 && control.level == 1 && control.kind == 1;
    Ok(carried.then_some(control.fds[0] as usize))
}

/// Starts the agent's thread and waits until it has let go of the program's descriptors.
fn start_worker(shared: *const Shared, socket: usize, uffd: usize) -> bool {
    // SAFETY: the mapping was made by `make_shared` and nobody else uses its stack.
    unsafe {
        let base = (&raw const (*shared).stack) as usize;
        let thread_block = base; // zeroes, 512 bytes: a stack protector would look at offset 0x28
        let top = (base + STACK_WORDS * 8 - 256) & !63;
        let start = (top + 64) as *mut Start;
        start.write(Start { shared, socket: socket as u32, uffd: uffd as u32 });
        let all = [u64::MAX; 1];
        let mut before = [0u64; 1];
        let mask = |how: &[u64; 1], old: usize| {
            call(syscall::RT_SIGPROCMASK, [SIG_SETMASK, how.as_ptr() as usize, old, 8, 0, 0])
        };
        mask(&all, before.as_mut_ptr() as usize);
        let thread = spawn(run, start as usize, top, thread_block);
        mask(&before, 0);
        if thread < 0 {
            return false;
        }
        while (*shared).ready.load(Acquire) == 0 {
            call(syscall::FUTEX, [(*shared).ready.as_ptr() as usize, 0, 0, 0, 0, 0]);
        }
    }
    true
}

fn close(fd: usize) {
    // SAFETY: a descriptor this module opened.
    unsafe { call(syscall::CLOSE, [fd, 0, 0, 0, 0, 0]) };
}

/// The first thing a forked child does.
pub extern "C" fn after_fork_child() {
    let inherited = AGENT.shared.swap(core::ptr::null_mut(), Relaxed);
    if inherited.is_null() || !AGENT.present.load(Relaxed) {
        return;
    }
    INHERITED.store(inherited, Relaxed);
    match join(GREET_FORKED) {
        Ok(()) => {}
        // Nothing of this process can be stored away, but all of it can be loaded.
        Err(Failure::Declined) => AGENT.present.store(false, Relaxed),
        Err(Failure::Gone) => {
            // Nobody would bring its pages back.
            // SAFETY: ends this process.
            unsafe {
                let pid = call(syscall::GETPID, [0; 6]);
                call(syscall::KILL, [pid as usize, 9, 0, 0, 0, 0]);
            }
        }
    }
    let len = size_of::<Shared>().next_multiple_of(4096);
    // SAFETY: the parent's shared memory and bin; this process has its own now and uses these no more.
    unsafe {
        let bin = (*inherited).bin.load(Relaxed) as usize;
        if bin != 0 {
            call(syscall::MUNMAP, [bin, BIN_BYTES as usize, 0, 0, 0, 0]);
        }
        call(syscall::MUNMAP, [inherited as usize, len, 0, 0, 0, 0]);
    }
}

/// The parent's shared memory, between fork and joining.
static INHERITED: AtomicPtr<Shared> = AtomicPtr::new(core::ptr::null_mut());

fn copy_pins(to: *const Shared) {
    let from = INHERITED.load(Relaxed);
    if from.is_null() {
        return;
    }
    // SAFETY: both mappings are alive and made of atomics.
    unsafe {
        for (to, from) in (*to).pinned.iter().zip((*from).pinned.iter()) {
            to.store(from.load(Relaxed), Relaxed);
        }
    }
}
