//! What the agent's thread does before it serves: it reaches the pager, greets, and gets the memory that both
//! share.
//!
//! A new program connects to the socket that its environment names. A forked child may not be able to: it may have
//! another user by then, another root, other namespaces. It needs none of that: it makes a pair of sockets, and
//! the pager, told by a call through the memory that the child was forked with, takes one end out of this
//! thread's descriptor table.

use crate::calls::ask;
use crate::protocol::{ASK_JOIN, Answer, GREET_FORKED, Greeting, MAGIC, Shared, VERSION};
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

/// How often it is looked whether the pager accepts, and whether it answers, and how long each time. A host that stops makes
/// one look of it. A pager that ends closes the connection, which is no matter of time.
const LOOK: Timespec = Timespec { seconds: 1, nanoseconds: 0 };
const LOOKS_TO_ACCEPT: u32 = 30;
const LOOKS_TO_ANSWER: u32 = 300;
const FOR_EVER: Timespec = Timespec { seconds: 0, nanoseconds: 0 };

/// What a thread that serves needs.
pub struct Line {
    pub shared: &'static Shared,
    pub socket: usize,
    pub uffd: usize,
}

/// Joins the pager; an errno if that cannot be.
pub fn greet(kind: u32) -> Result<Line, u32> {
    let forked = kind == GREET_FORKED;
    let socket = if forked { be_fetched().or_else(|_| connect())? } else { connect()? };
    let own = if forked {
        None
    } else {
        make_pool()?;
        Some(make_uffd()?)
    };
    let greeting = Greeting {
        magic: MAGIC,
        version: VERSION,
        kind,
        bare: u32::from(cfg!(ebb_injected)),
        pool_start: AGENT.pool_start.load(Relaxed),
        pool_len: AGENT.pool_len.load(Relaxed),
    };
    set_patience(socket, SO_RCVTIMEO, &LOOK);
    send(socket, &greeting, own)?;
    // What comes after those ends this process with the pager, for as long as this thread has it open.
    let [memory, given] = receive(socket)?;
    set_patience(socket, SO_RCVTIMEO, &FOR_EVER);
    let shared = map_shared(memory.ok_or(EPIPE)?)?;
    let uffd = own.or(given).ok_or(EPIPE)?;
    Ok(Line { shared, socket, uffd })
}

/// A socket whose other end the pager has taken.
fn be_fetched() -> Result<usize, u32> {
    let mut ends = [0i32; 2];
    let at = ends.as_mut_ptr() as usize;
    // SAFETY: room for two descriptors.
    check(unsafe { call(syscall::SOCKETPAIR, [AF_UNIX, SEQPACKET_CLOEXEC, 0, at, 0, 0]) })?;
    let [own, theirs] = ends.map(|end| end as usize);
    // SAFETY: takes nothing.
    let thread = unsafe { call(syscall::GETTID, [0; 6]) } as u64;
    let table = AGENT.table.load(Acquire);
    // SAFETY: the ancestor's table, mapped until this process has its own.
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
        // The pager may come for it yet, and must not find another connection under that number.
        None => {
            close(own);
            Err(ETIMEDOUT)
        }
    }
}

/// A connection to who listens at the path of the environment, if that is the pager.
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
    // Somebody else's full queue must not hold up the program.
    set_patience(socket, SO_SNDTIMEO, &LOOK);
    let len = 2 + AGENT.path_len.load(Relaxed) + 1;
    // SAFETY: the address outlives the call, its length is within it.
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

/// Who listens gets this process's memory into his hands: root may, and the user it belongs to.
fn check_peer(socket: usize) -> Result<(), u32> {
    let mut peer = [0u32; 3];
    let mut len = size_of_val(&peer) as u32;
    let (at, len) = (peer.as_mut_ptr() as usize, &raw mut len as usize);
    // SAFETY: room for the three words of a ucred, and for their length.
    check(unsafe { call(syscall::GETSOCKOPT, [socket, SOL_SOCKET, SO_PEERCRED, at, len, 0]) })?;
    // SAFETY: takes nothing.
    let own = unsafe { call(syscall::GETUID, [0; 6]) } as u32;
    let [_, user, _] = peer;
    if user == 0 || user == own { Ok(()) } else { Err(EACCES) }
}

fn set_patience(socket: usize, which: usize, limit: &Timespec) {
    let (at, len) = (core::ptr::from_ref(limit) as usize, size_of::<Timespec>());
    // A `timeval` is a `timespec` with a thousandth of the nanoseconds, which are none.
    // SAFETY: the value outlives the call.
    unsafe { call(syscall::SETSOCKOPT, [socket, SOL_SOCKET, which, at, len, 0]) };
}

fn map_shared(memory: usize) -> Result<&'static Shared, u32> {
    let len = size_of::<Shared>().next_multiple_of(4096);
    // READ | WRITE, SHARED
    // SAFETY: a fresh mapping of what the pager sent, which is as long as the protocol says and sealed.
    let address = unsafe { call(syscall::MMAP, [0, len, 3, 1, memory, 0]) };
    close(memory);
    let address = check(address)?;
    // SAFETY: the mapping just made, which is never taken away from who uses it.
    unsafe {
        call(syscall::MADVISE, [address, len, MADV_DONTDUMP, 0, 0, 0]);
        Ok(&*(address as *const Shared))
    }
}

fn make_uffd() -> Result<usize, u32> {
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

fn make_pool() -> Result<(), u32> {
    let mut len = AGENT.pool_len.load(Relaxed) as usize & !4095;
    while len >= 64 * 4096 {
        // READ | WRITE, PRIVATE | ANONYMOUS | NORESERVE
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let address = unsafe { call(syscall::MMAP, [0, len, 3, 0x4022, usize::MAX, 0]) };
        if address >= 0 {
            // Its pages are the program's, but not where it has them. And a place that is read holds one zero page and not
            // a huge one, which would be in its neighbours' places, too.
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

fn send(socket: usize, greeting: &Greeting, uffd: Option<usize>) -> Result<(), u32> {
    let data = Iovec { base: core::ptr::from_ref(greeting) as usize, len: size_of::<Greeting>() };
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
    // SAFETY: the header names memory that outlives the call. 0x4000: no signal if the pager is gone.
    let sent =
        unsafe { call(syscall::SENDMSG, [socket, &raw const header as usize, 0x4000, 0, 0, 0]) };
    check(sent).map(|_| ())
}

/// The descriptors that come with the answer.
fn receive(socket: usize) -> Result<[Option<usize>; 2], u32> {
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
        // CLOEXEC on what comes.
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
    Ok([0, 1].map(|at| (at < carried).then(|| control.fds[at] as usize)))
}

/// What a call gives, or its errno.
fn check(result: isize) -> Result<usize, u32> {
    usize::try_from(result).map_err(|_| result.unsigned_abs() as u32)
}

fn close(fd: usize) {
    // SAFETY: a descriptor of this thread's own table.
    unsafe { call(syscall::CLOSE, [fd, 0, 0, 0, 0, 0]) };
}
