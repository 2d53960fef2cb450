//! userfaultfd: page faults and mapping changes of another process, delivered as messages.
//!
//! The bindings are written by hand because no maintained binding has MOVE, POISON and COPY's
//! write-protect mode. Each operation on memory is one ioctl on the descriptor. The ioctl acts on
//! the address space that created the descriptor, whichever process makes the call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const TYPE: u32 = 0xAA;
const API: u64 = 0xAA;
/// Bit of UFFDIO_ZEROPAGE among the ioctls that a registered range supports.
const OFFERS_ZEROPAGE: u64 = 1 << 4;

/// `UFFDIO_COPY_MODE_DONTWAKE`.
const COPY_DONT_WAKE: u64 = 1;
/// `UFFDIO_WRITEPROTECT_MODE_DONTWAKE`.
const PROTECT_DONT_WAKE: u64 = 1 << 1;

/// Returns the request number of an ioctl that reads and writes `size` bytes.
const fn iowr(kind: u32, number: u32, size: usize) -> libc::c_ulong {
    ((3 << 30) | ((size as u32) << 16) | (kind << 8) | number) as libc::c_ulong
}

/// Returns the request number of an ioctl that reads `size` bytes from the kernel.
const fn ior(kind: u32, number: u32, size: usize) -> libc::c_ulong {
    ((2 << 30) | ((size as u32) << 16) | (kind << 8) | number) as libc::c_ulong
}

#[repr(C)]
struct ApiArg {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Range {
    start: u64,
    len: u64,
}

#[repr(C)]
struct RegisterArg {
    range: Range,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct CopyArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    copied: i64,
}

#[repr(C)]
struct ProtectArg {
    range: Range,
    mode: u64,
}

#[repr(C)]
struct PoisonArg {
    range: Range,
    mode: u64,
    updated: i64,
}

#[repr(C)]
struct MoveArg {
    dst: u64,
    src: u64,
    len: u64,
    mode: u64,
    moved: i64,
}

/// Features of the API, as bits.
pub mod feature {
    /// Fault messages distinguish write-protect faults.
    pub const FLAG_WP: u64 = 1 << 0;
    /// At a fork the reader receives the new address space's descriptor (needs CAP_SYS_PTRACE).
    pub const EVENT_FORK: u64 = 1 << 1;
    /// The kernel reports `mremap`.
    pub const EVENT_REMAP: u64 = 1 << 2;
    /// The kernel reports `madvise(DONTNEED, FREE, REMOVE)` before it takes effect.
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// The kernel reports `munmap`.
    pub const EVENT_UNMAP: u64 = 1 << 6;
    /// Fault messages carry the faulting thread.
    pub const THREAD_ID: u64 = 1 << 8;
    /// Pages without a page-table entry can be write-protected.
    pub const WP_UNPOPULATED: u64 = 1 << 13;
    /// Pages can be poisoned.
    pub const POISON: u64 = 1 << 14;
    /// Pages can be moved.
    pub const MOVE: u64 = 1 << 16;
}

/// Kind of registration of a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Reports faults on missing pages, and writes to write-protected pages.
    Managed,
    /// Reports nothing. The range is registered for write protection, which is never used. The
    /// registration makes the range a legal destination of MOVE.
    Quiet,
}

/// Reason why a page could not be put in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlaceError {
    /// A mapping change is in progress (EAGAIN): the caller must read the events and look the page
    /// up again.
    #[error("the address space is changing")]
    Changing,
    /// A page is already there (EEXIST).
    #[error("a page is there already")]
    Exists,
    /// No registered mapping is there any more (ENOENT, EINVAL).
    #[error("nothing is mapped there")]
    Gone,
    /// The address space has ended (ESRCH).
    #[error("the address space has ended")]
    Dead,
    /// The machine is out of memory (ENOMEM).
    #[error("the machine is out of memory")]
    NoMemory,
    /// Any other error, by errno.
    #[error("errno {0}")]
    Other(i32),
}

impl PlaceError {
    fn from_errno(errno: i32) -> Self {
        match errno {
            libc::EAGAIN => Self::Changing,
            libc::EEXIST => Self::Exists,
            libc::ENOENT | libc::EINVAL => Self::Gone,
            libc::ESRCH => Self::Dead,
            libc::ENOMEM => Self::NoMemory,
            other => Self::Other(other),
        }
    }
}

/// One message of the kernel.
#[derive(Debug)]
pub enum Event {
    /// Page fault: a thread accessed a missing or write-protected page, and waits.
    Fault {
        /// Address of the fault.
        address: u64,
        /// Whether the access was a write.
        write: bool,
        /// Whether the page is present, but write-protected.
        protected: bool,
        /// Waiting thread, by its number in its own pid namespace.
        thread: u32,
    },
    /// A fork copied the address space. The value is the userfaultfd of the copy.
    Fork(Uffd),
    /// An `mremap` moved memory.
    Remap {
        /// Old address.
        from: u64,
        /// New address.
        to: u64,
        /// Length in bytes.
        len: u64,
    },
    /// The kernel is about to drop the range's pages.
    Remove {
        /// First address.
        start: u64,
        /// Address behind the last one.
        end: u64,
    },
    /// The range was unmapped.
    Unmap {
        /// First address.
        start: u64,
        /// Address behind the last one.
        end: u64,
    },
}

/// Userfaultfd of some address space.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
}

/// Size of one message in bytes.
const MESSAGE_BYTES: usize = 32;
/// Largest number of messages in one read.
pub const MESSAGES_MAX: usize = 32;

impl Uffd {
    /// Takes over a descriptor.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Makes a userfaultfd for this process, by the system call or by `/dev/userfaultfd`.
    /// `user_mode_only` needs fewer rights.
    pub fn create(user_mode_only: bool) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | i32::from(user_mode_only);
        // SAFETY: the system call takes a flag word and returns a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd >= 0 {
            // SAFETY: the kernel has just returned this descriptor, and no other value owns it.
            return Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd as RawFd) } });
        }
        let refused = io::Error::last_os_error();
        let Ok(device) =
            std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd")
        else {
            return Err(refused);
        };
        // SAFETY: USERFAULTFD_IOC_NEW takes a flag word by value and returns a new descriptor.
        let fd = unsafe { libc::ioctl(device.as_raw_fd(), 0xAA00, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and no other value owns it.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Agrees on the API with `features`. Returns every feature that the kernel has.
    pub fn handshake(&self, features: u64) -> io::Result<u64> {
        let mut arg = ApiArg { api: API, features, ioctls: 0 };
        self.ioctl(iowr(TYPE, 0x3F, size_of::<ApiArg>()), &mut arg)?;
        Ok(arg.features)
    }

    /// Registers a range. Refuses a range of huge pages (hugetlb), because the kernel places no
    /// small page there. A fault there would wait for ever.
    pub fn register(&self, start: u64, len: u64, mode: Mode) -> io::Result<()> {
        let mode = match mode {
            Mode::Managed => 3,
            Mode::Quiet => 2,
        };
        let mut arg = RegisterArg { range: Range { start, len }, mode, ioctls: 0 };
        self.ioctl(iowr(TYPE, 0x00, size_of::<RegisterArg>()), &mut arg)?;
        // The kernel offers fewer ioctls for a range with huge pages.
        if arg.ioctls & OFFERS_ZEROPAGE == 0 {
            self.unregister(start, len)?;
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(())
    }

    /// Unregisters a range and wakes the threads that wait in it.
    pub fn unregister(&self, start: u64, len: u64) -> io::Result<()> {
        self.ioctl(ior(TYPE, 0x01, size_of::<Range>()), &mut Range { start, len })
    }

    /// Puts a copy of `pages` (whole pages) at `address`. On failure returns the number of bytes
    /// placed before the error. Only [`Uffd::wake`] wakes threads that wait there.
    pub fn copy(&self, address: u64, pages: &[u8]) -> Result<(), (u64, PlaceError)> {
        let mut arg = CopyArg {
            dst: address,
            src: pages.as_ptr() as u64,
            len: pages.len() as u64,
            mode: COPY_DONT_WAKE,
            copied: 0,
        };
        match self.ioctl(iowr(TYPE, 0x03, size_of::<CopyArg>()), &mut arg) {
            Ok(()) => Ok(()),
            Err(error) => {
                // `copied` is the number of bytes placed, or a negated errno if there were none.
                let placed = u64::try_from(arg.copied).unwrap_or(0);
                Err((placed, PlaceError::from_errno(error.raw_os_error().unwrap_or(0))))
            }
        }
    }

    /// Write-protects the present pages of a range: writes to them arrive as faults.
    pub fn protect(&self, start: u64, len: u64) -> Result<(), PlaceError> {
        self.set_protection(start, len, 1)
    }

    /// Removes the write protection. Only [`Uffd::wake`] wakes threads that wait to write.
    pub fn unprotect(&self, start: u64, len: u64) -> Result<(), PlaceError> {
        self.set_protection(start, len, PROTECT_DONT_WAKE)
    }

    fn set_protection(&self, start: u64, len: u64, mode: u64) -> Result<(), PlaceError> {
        let mut arg = ProtectArg { range: Range { start, len }, mode };
        self.ioctl(iowr(TYPE, 0x06, size_of::<ProtectArg>()), &mut arg)
            .map_err(|error| PlaceError::from_errno(error.raw_os_error().unwrap_or(0)))
    }

    /// Poisons `len` bytes of pages at `address`, so that an access raises SIGBUS, and wakes the
    /// threads that wait there.
    pub fn poison(&self, address: u64, len: u64) -> Result<(), PlaceError> {
        let mut arg = PoisonArg { range: Range { start: address, len }, mode: 0, updated: 0 };
        self.ioctl(iowr(TYPE, 0x08, size_of::<PoisonArg>()), &mut arg)
            .map_err(|error| PlaceError::from_errno(error.raw_os_error().unwrap_or(0)))
    }

    /// Moves pages of this process itself (the kernel refuses the call for another process).
    ///
    /// # Safety
    /// No code may rely on the contents at `from`, which are zero afterwards, or at `to`.
    pub unsafe fn move_here(&self, to: u64, from: u64, len: u64) -> io::Result<()> {
        let mut arg = MoveArg { dst: to, src: from, len, mode: 0, moved: 0 };
        self.ioctl(iowr(TYPE, 0x05, size_of::<MoveArg>()), &mut arg)
    }

    /// Wakes the threads that wait in the range, so that they retry their access.
    pub fn wake(&self, start: u64, len: u64) -> io::Result<()> {
        self.ioctl(ior(TYPE, 0x02, size_of::<Range>()), &mut Range { start, len })
    }

    /// Reads the pending messages, up to [`MESSAGES_MAX`], without waiting, and calls `each` with
    /// every one. Returns their number.
    pub fn read(&self, mut each: impl FnMut(Event)) -> io::Result<usize> {
        let mut buffer = [0u64; MESSAGES_MAX * MESSAGE_BYTES / 8];
        // SAFETY: the buffer has the given length, and any bit pattern is a valid u64.
        let got = unsafe {
            libc::read(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), size_of_val(&buffer))
        };
        if got < 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EINTR) => Ok(0),
                _ => Err(error),
            };
        }
        let count = got as usize / MESSAGE_BYTES;
        for message in buffer.chunks_exact(MESSAGE_BYTES / 8).take(count) {
            let [head, a, b, c] = [message[0], message[1], message[2], message[3]];
            each(match (head & 0xFF) as u8 {
                0x12 => Event::Fault {
                    address: b,
                    write: a & 1 != 0,
                    protected: a & 2 != 0,
                    thread: c as u32,
                },
                // SAFETY: a fork message carries a descriptor that the kernel has just installed in
                // this process.
                0x13 => Event::Fork(Uffd::new(unsafe { OwnedFd::from_raw_fd(a as u32 as RawFd) })),
                0x14 => Event::Remap { from: a, to: b, len: c },
                0x15 => Event::Remove { start: a, end: b },
                0x16 => Event::Unmap { start: a, end: b },
                other => {
                    let what = format!("unknown message {other:#x}");
                    return Err(io::Error::other(what));
                }
            });
        }
        Ok(count)
    }

    /// Returns whether the address space still exists. `registered` is the address of a registered
    /// page without write protection, so that removing the protection changes nothing.
    #[must_use]
    pub fn is_alive(&self, registered: u64) -> bool {
        !matches!(self.unprotect(registered, 4096), Err(PlaceError::Dead))
    }

    fn ioctl<T>(&self, request: libc::c_ulong, arg: &mut T) -> io::Result<()> {
        // SAFETY: each caller pairs a request number with the structure whose size it encodes.
        // Pointers inside the structure name memory that outlives the call.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, std::ptr::from_mut(arg)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
