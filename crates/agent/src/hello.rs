//! Connects the agent's thread to the pager before the thread serves: says hello and maps the
//! shared memory.
//!
//! A new program connects to the socket that its environment names. A forked child may be unable to
//! connect: it may already have another user, another root or other namespaces. It therefore makes
//! a pair of sockets, and asks the pager by a call through the memory that it inherited. The pager
//! then takes one end out of this thread's descriptor table.

use crate::calls::ask;
use crate::join::TABLE_BYTES;
use crate::protocol::{ASK_JOIN, Answer, HELLO_FORKED, Hello, MAGIC, Shared, VERSION};
use crate::state::{AGENT, PATH_MAX};
use crate::syscall::{self, Timespec, call};
use core::sync::atomic::Ordering::{Acquire, Relaxed};

const AF_UNIX: usize = 1;
const SEQPACKET_CLOEXEC: usize = 5 | 0x8_0000;
const SOL_SOCKET: usize = 1;
const SCM_RIGHTS: i32 = 1;
const SO_PEERCRED: usize = 17;
const SO_RCVTIMEO: usize = 20;
const SO_SNDTIMEO: usize = 21;
const MADV_DONTDUMP: usize = 16;
const MADV_NOHUGEPAGE: usize = 15;
const EINTR: isize = -4;
const EAGAIN: isize = -11;
const EACCES: u32 = 13;
const ENOMEM: u32 = 12;
const EPIPE: u32 = 32;
const ETIMEDOUT: u32 = 110;

/// Time of one wait for the pager to accept or to answer, and the largest numbers of waits. Time
/// during which the host is suspended counts as one wait. If the pager ends, its connection closes,
/// and the wait ends at once.
const LOOK: Timespec = Timespec { seconds: 1, nanoseconds: 0 };
const LOOKS_TO_ACCEPT: u32 = 30;
const LOOKS_TO_ANSWER: u32 = 300;
const FOR_EVER: Timespec = Timespec { seconds: 0, nanoseconds: 0 };

/// Everything that a serving agent's thread needs.
pub struct Line {
    pub shared: &'static Shared,
    pub socket: usize,
    pub uffd: usize,
    /// Descriptor that ties the process to the pager's life, if there is one.
    pub tie: Option<usize>,
}

/// Joins the pager: a new program with its userfaultfd `own`, a forked child without. The memory
/// shared with the pager comes to lie at `table_place`. Returns an errno on failure.
pub fn hello(kind: u32, table_place: usize, own: Option<usize>) -> Result<Line, u32> {
    let forked = kind == HELLO_FORKED;
    let socket = if forked { connect_by_call().or_else(|_| connect())? } else { connect()? };
    let hello = Hello {
        magic: MAGIC,
        version: VERSION,
        kind,
        bare: u32::from(cfg!(ebb_injected)),
        pool_start: AGENT.pool_start.load(Relaxed),
        pool_len: AGENT.pool_len.load(Relaxed),
    };
    set_timeout(socket, SO_RCVTIMEO, &LOOK);
    send(socket, &hello, own)?;
    // From here on this process ends with the pager, for as long as this thread keeps the
    // descriptors open.
    let [memory, first, second] = receive(socket)?;
    set_timeout(socket, SO_RCVTIMEO, &FOR_EVER);
    let shared = map_shared(memory.ok_or(EPIPE)?, table_place)?;
    let (uffd, tie) = if own.is_some() { (own, first) } else { (first, second) };
    Ok(Line { shared, socket, uffd: uffd.ok_or(EPIPE)?, tie })
}

/// Makes a pair of sockets and has the pager take one end by a call. Returns the other end.
fn connect_by_call() -> Result<usize, u32> {
    let mut ends = [0i32; 2];
    let at = ends.as_mut_ptr() as usize;
    // SAFETY: room for two descriptors.
    check(unsafe { call(syscall::SOCKETPAIR, [AF_UNIX, SEQPACKET_CLOEXEC, 0, at, 0, 0]) })?;
    let [own, theirs] = ends.map(|end| end as usize);
    // SAFETY: GETTID takes no argument.
    let thread = unsafe { call(syscall::GETTID, [0; 6]) } as u64;
    let table = AGENT.table.load(Acquire);
    // SAFETY: the ancestor's table stays mapped until this process has its own.
    match ask(unsafe { &*table }, ASK_JOIN, [thread, theirs as u64]) {
        Some(0) => {
            close(theirs);
            Ok(own)
        }
        Some(reason) => {
            close(theirs);
            close(own);
            Err(reason)
        }
        // The other end stays open, because the pager may still fetch it and must not find another
        // connection under that number.
        None => {
            close(own);
            Err(ETIMEDOUT)
        }
    }
}

/// Connects to the socket path of the environment, and checks that the pager listens there.
fn connect() -> Result<usize, u32> {
    let mut address = [0u8; 2 + PATH_MAX + 8];
    address[0] = AF_UNIX as u8;
    for (i, word) in AGENT.path.iter().enumerate() {
        let word = word.load(Relaxed).to_ne_bytes();
        let at = 2 + i * 8;
        let end = (at + 8).min(address.len());
        address[at..end].copy_from_slice(&word[..end - at]);
    }
    // SAFETY: integers only.
    let socket = check(unsafe { call(syscall::SOCKET, [AF_UNIX, SEQPACKET_CLOEXEC, 0, 0, 0, 0]) })?;
    // A full queue of a foreign listener must not block the program.
    set_timeout(socket, SO_SNDTIMEO, &LOOK);
    let len = 2 + AGENT.path_len.load(Relaxed) + 1;
    // SAFETY: the address outlives the call, and the length is within it.
    let connect =
        || unsafe { call(syscall::CONNECT, [socket, address.as_ptr() as usize, len, 0, 0, 0]) };
    let mut looks = 1..LOOKS_TO_ACCEPT;
    let connected = loop {
        let connected = connect();
        let again = connected == EINTR || connected == EAGAIN && looks.next().is_some();
        if !again {
            break connected;
        }
    };
    match check(connected).and_then(|_| check_peer(socket)) {
        Ok(()) => Ok(socket),
        Err(reason) => {
            close(socket);
            Err(reason)
        }
    }
}

/// Checks that the listener is root or this process's user, because the listener gets access to
/// this process's memory.
fn check_peer(socket: usize) -> Result<(), u32> {
    let mut peer = [0u32; 3];
    let mut len = size_of_val(&peer) as u32;
    let (at, len) = (peer.as_mut_ptr() as usize, &raw mut len as usize);
    // SAFETY: room for the three words of a ucred, and for their length.
    check(unsafe { call(syscall::GETSOCKOPT, [socket, SOL_SOCKET, SO_PEERCRED, at, len, 0]) })?;
    // SAFETY: GETUID takes no argument.
    let own = unsafe { call(syscall::GETUID, [0; 6]) } as u32;
    let [_, user, _] = peer;
    if user == 0 || user == own { Ok(()) } else { Err(EACCES) }
}

fn set_timeout(socket: usize, which: usize, limit: &Timespec) {
    let (at, len) = (core::ptr::from_ref(limit) as usize, size_of::<Timespec>());
    // A zero or whole-second `timespec` has the bytes of the equal `timeval`.
    // SAFETY: the value outlives the call.
    unsafe { call(syscall::SETSOCKOPT, [socket, SOL_SOCKET, which, at, len, 0]) };
}

fn map_shared(memory: usize, place: usize) -> Result<&'static Shared, u32> {
    // READ | WRITE, SHARED | FIXED
    // SAFETY: the place is a part of the agent's area that nothing uses yet. The pager's descriptor
    // is sealed and as long as the protocol says.
    let address = unsafe { call(syscall::MMAP, [place, TABLE_BYTES, 3, 0x11, memory, 0]) };
    close(memory);
    let address = check(address)?;
    // SAFETY: the mapping just made, which stays mapped as long as it is in use.
    unsafe {
        call(syscall::MADVISE, [address, TABLE_BYTES, MADV_DONTDUMP, 0, 0, 0]);
        Ok(&*(address as *const Shared))
    }
}

/// Makes the userfaultfd of a new program.
pub fn make_uffd() -> Result<usize, u32> {
    const CLOEXEC_NONBLOCK: usize = 0x8_0000 | 0x800;
    // SAFETY: integers and one constant path.
    unsafe {
        let uffd = call(syscall::USERFAULTFD, [CLOEXEC_NONBLOCK, 0, 0, 0, 0, 0]);
        if uffd >= 0 {
            return Ok(uffd as usize);
        }
        let path = c"/dev/userfaultfd";
        // AT_FDCWD, O_RDWR | O_CLOEXEC
        let device = call(
            syscall::OPENAT,
            [-100isize as usize, path.as_ptr() as usize, 2 | 0x8_0000, 0, 0, 0],
        );
        let device = check(device)?;
        let uffd = call(syscall::IOCTL, [device, 0xAA00, CLOEXEC_NONBLOCK, 0, 0, 0]);
        close(device);
        check(uffd)
    }
}

/// Maps the pool of a new program, unless that is done.
pub fn make_pool() -> Result<(), u32> {
    if AGENT.pool_start.load(Relaxed) != 0 {
        return Ok(());
    }
    let mut len = AGENT.pool_len.load(Relaxed) as usize & !4095;
    while len >= 64 * 4096 {
        // READ | WRITE, PRIVATE | ANONYMOUS | NORESERVE
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let address = unsafe { call(syscall::MMAP, [0, len, 3, 0x4022, usize::MAX, 0]) };
        if address >= 0 {
            // The pool's pages are the program's, but not at their addresses, so a core dump leaves
            // them out. A read of an empty pool slot must map one zero page. A huge zero page would
            // fill the neighbouring slots, too.
            for advice in [MADV_DONTDUMP, MADV_NOHUGEPAGE] {
                // SAFETY: the mapping just made.
                unsafe { call(syscall::MADVISE, [address as usize, len, advice, 0, 0, 0]) };
            }
            AGENT.pool_start.store(address as u64, Relaxed);
            AGENT.pool_len.store(len as u64, Relaxed);
            return Ok(());
        }
        len = (len / 2) & !4095;
    }
    Err(ENOMEM)
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
    fds: [i32; 3],
}

fn send(socket: usize, hello: &Hello, uffd: Option<usize>) -> Result<(), u32> {
    let data = Iovec { base: core::ptr::from_ref(hello) as usize, len: size_of::<Hello>() };
    let control = Control {
        len: 20,
        level: SOL_SOCKET as i32,
        kind: SCM_RIGHTS,
        fds: [uffd.unwrap_or(0) as i32, 0, 0],
    };
    let header = Header {
        name: 0,
        name_len: 0,
        iov: &raw const data as usize,
        iov_len: 1,
        control: if uffd.is_some() { &raw const control as usize } else { 0 },
        control_len: if uffd.is_some() { size_of::<Control>() } else { 0 },
        flags: 0,
    };
    // MSG_NOSIGNAL (0x4000): no signal if the pager is gone.
    // SAFETY: the header names memory that outlives the call.
    let sent =
        unsafe { call(syscall::SENDMSG, [socket, &raw const header as usize, 0x4000, 0, 0, 0]) };
    check(sent).map(|_| ())
}

/// Receives the answer. Returns the descriptors that come with it.
fn receive(socket: usize) -> Result<[Option<usize>; 3], u32> {
    let mut answer = Answer::default();
    let data = Iovec { base: &raw mut answer as usize, len: size_of::<Answer>() };
    let mut control = Control { len: 0, level: 0, kind: 0, fds: [-1; 3] };
    let mut header = Header {
        name: 0,
        name_len: 0,
        iov: &raw const data as usize,
        iov_len: 1,
        control: &raw mut control as usize,
        control_len: size_of::<Control>(),
        flags: 0,
    };
    let mut looks = 1..LOOKS_TO_ANSWER;
    let got = loop {
        // Received descriptors get CLOEXEC.
        // SAFETY: the header names memory that outlives the call.
        let got = unsafe {
            call(syscall::RECVMSG, [socket, &raw mut header as usize, 0x4000_0000, 0, 0, 0])
        };
        if got != EINTR && (got != EAGAIN || looks.next().is_none()) {
            break got;
        }
    };
    if check(got)? < size_of::<Answer>() || answer.magic != MAGIC || answer.refused != 0 {
        return Err(EPIPE);
    }
    let carried = header.control_len >= 20 && control.level == SOL_SOCKET as i32;
    let carried = if carried && control.kind == SCM_RIGHTS { (control.len - 16) / 4 } else { 0 };
    Ok([0, 1, 2].map(|at| (at < carried).then(|| control.fds[at] as usize)))
}

/// Converts the result of a system call to its value or its errno.
fn check(result: isize) -> Result<usize, u32> {
    usize::try_from(result).map_err(|_| result.unsigned_abs() as u32)
}

fn close(fd: usize) {
    // SAFETY: a descriptor of this thread's own table.
    unsafe { call(syscall::CLOSE, [fd, 0, 0, 0, 0, 0]) };
}
