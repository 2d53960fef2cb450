//! userfaultfd: faults and mapping changes of another process, delivered as messages.
//!
//! Written by hand because no maintained binding has MOVE, POISON and COPY's write-protect
//! mode. Every call is one ioctl on the descriptor; the address space it acts on is the one that
//! created the descriptor, whichever process makes the call.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

const TYPE: u32 = 0xAA;
const API: u64 = 0xAA;
/// Bit of UFFDIO_ZEROPAGE among the calls that a registered range takes.
const OFFERS_ZEROPAGE: u64 = 1 << 4;

/// `UFFDIO_COPY_MODE_DONTWAKE`.
const COPY_DONT_WAKE: u64 = 1;
/// `UFFDIO_WRITEPROTECT_MODE_DONTWAKE`.
const PROTECT_DONT_WAKE: u64 = 1 << 1;

/// Request number of an ioctl that reads and writes `size` bytes.
const fn iowr(kind: u32, number: u32, size: usize) -> libc::c_ulong {
    ((3 << 30) | ((size as u32) << 16) | (kind << 8) | number) as libc::c_ulong
}

/// Request number of an ioctl that reads `size` bytes from the kernel.
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
    /// Write-protect faults are told from others.
    pub const FLAG_WP: u64 = 1 << 0;
    /// Fork hands the new address space's descriptor to the reader (needs CAP_SYS_PTRACE).
    pub const EVENT_FORK: u64 = 1 << 1;
    /// `mremap` is reported.
    pub const EVENT_REMAP: u64 = 1 << 2;
    /// `madvise(DONTNEED, FREE, REMOVE)` is reported before it takes effect.
    pub const EVENT_REMOVE: u64 = 1 << 3;
    /// `munmap` is reported.
    pub const EVENT_UNMAP: u64 = 1 << 6;
    /// Fault messages carry the faulting thread.
    pub const THREAD_ID: u64 = 1 << 8;
    /// Write protection of pages not yet populated.
    pub const WP_UNPOPULATED: u64 = 1 << 13;
    /// Pages can be poisoned.
    pub const POISON: u64 = 1 << 14;
    /// Pages can be moved.
    pub const MOVE: u64 = 1 << 16;
}

/// What to be told of in a registered range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mode {
    /// Touches of pages that are not there, and writes to pages that are protected.
    Managed,
    /// Nothing (write protection is available but never switched on): makes the range a legal
    /// destination of MOVE.
    Quiet,
}

/// Why a page could not be put in place.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PlaceError {
    /// A mapping change is in flight (EAGAIN): read the events, look the page up again.
    #[error("the address space is changing")]
    Changing,
    /// A page is there already (EEXIST).
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
    /// Anything else, by errno.
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

/// One message.
#[derive(Debug)]
pub enum Event {
    /// A thread touched a page that is not there and waits.
    Fault {
        /// The address touched.
        address: u64,
        /// It was a store.
        write: bool,
        /// The page is there, but protected from writing.
        protected: bool,
        /// The thread that waits (as it sees itself).
        thread: u32,
    },
    /// The address space was copied by fork; the copy's descriptor.
    Fork(Uffd),
    /// Memory was moved (mremap).
    Remap {
        /// Its address before.
        from: u64,
        /// Its address now.
        to: u64,
        /// In bytes.
        len: u64,
    },
    /// The range's pages are about to be dropped.
    Remove {
        /// Its first address.
        start: u64,
        /// The address behind its last.
        end: u64,
    },
    /// The range was unmapped.
    Unmap {
        /// Its first address.
        start: u64,
        /// The address behind its last.
        end: u64,
    },
}

/// A userfaultfd of some address space.
#[derive(Debug)]
pub struct Uffd {
    fd: OwnedFd,
}

/// Bytes of one message.
const MESSAGE_BYTES: usize = 32;
/// Messages read at once.
pub const MESSAGES_MAX: usize = 32;

impl Uffd {
    /// Takes over a descriptor.
    #[must_use]
    pub fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Makes one for this process, by whichever way is permitted; `user_mode_only` asks for less.
    pub fn create(user_mode_only: bool) -> io::Result<Self> {
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | i32::from(user_mode_only);
        // SAFETY: the system call takes a flag word and returns a new descriptor or an error.
        let fd = unsafe { libc::syscall(libc::SYS_userfaultfd, flags) };
        if fd >= 0 {
            // SAFETY: the kernel just returned this descriptor; nobody else owns it.
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
        // SAFETY: as above, a descriptor the kernel just made.
        Ok(Self { fd: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Agrees on the API with `features`; returns every feature the kernel has.
    pub fn handshake(&self, features: u64) -> io::Result<u64> {
        let mut arg = ApiArg { api: API, features, ioctls: 0 };
        self.ioctl(iowr(TYPE, 0x3F, size_of::<ApiArg>()), &mut arg)?;
        Ok(arg.features)
    }

    /// Registers a range, of small pages only: the kernel takes no single small page in the place of a
    /// huge one, and whoever touched it would wait for ever.
    pub fn register(&self, start: u64, len: u64, mode: Mode) -> io::Result<()> {
        let mode = match mode {
            Mode::Managed => 3,
            Mode::Quiet => 2,
        };
        let mut arg = RegisterArg { range: Range { start, len }, mode, ioctls: 0 };
        self.ioctl(iowr(TYPE, 0x00, size_of::<RegisterArg>()), &mut arg)?;
        // Where there are huge pages the kernel offers less.
        if arg.ioctls & OFFERS_ZEROPAGE == 0 {
            self.unregister(start, len)?;
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        Ok(())
    }

    /// Forgets a range; whoever waits in it is woken.
    pub fn unregister(&self, start: u64, len: u64) -> io::Result<()> {
        self.ioctl(ior(TYPE, 0x01, size_of::<Range>()), &mut Range { start, len })
    }

    /// Puts a copy of `pages` (whole pages) at `address`. On failure the count says how many bytes were placed
    /// before it. Who waits there is woken by nobody but [`Uffd::wake`].
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
                // `copied` holds the bytes placed, or the negated errno when there were none.
                let placed = u64::try_from(arg.copied).unwrap_or(0);
                Err((placed, PlaceError::from_errno(error.raw_os_error().unwrap_or(0))))
            }
        }
    }

    /// Protects the pages of a range that are there: writes to them arrive as faults.
    pub fn protect(&self, start: u64, len: u64) -> Result<(), PlaceError> {
        self.set_protection(start, len, 1)
    }

    /// Lifts the protection. Who waits to write is woken by nobody but [`Uffd::wake`].
    pub fn unprotect(&self, start: u64, len: u64) -> Result<(), PlaceError> {
        self.set_protection(start, len, PROTECT_DONT_WAKE)
    }

    fn set_protection(&self, start: u64, len: u64, mode: u64) -> Result<(), PlaceError> {
        let mut arg = ProtectArg { range: Range { start, len }, mode };
        self.ioctl(iowr(TYPE, 0x06, size_of::<ProtectArg>()), &mut arg)
            .map_err(|error| PlaceError::from_errno(error.raw_os_error().unwrap_or(0)))
    }

    /// Makes the page at `address` deadly to touch (SIGBUS) and wakes those who wait there.
    pub fn poison(&self, address: u64, len: u64) -> Result<(), PlaceError> {
        let mut arg = PoisonArg { range: Range { start: address, len }, mode: 0, updated: 0 };
        self.ioctl(iowr(TYPE, 0x08, size_of::<PoisonArg>()), &mut arg)
            .map_err(|error| PlaceError::from_errno(error.raw_os_error().unwrap_or(0)))
    }

    /// Moves pages of this very process (the kernel refuses it for another one's).
    ///
    /// # Safety
    /// Nothing may rely on what is at `from`, which is zero afterwards, nor on what is at `to`.
    pub unsafe fn move_here(&self, to: u64, from: u64, len: u64) -> io::Result<()> {
        let mut arg = MoveArg { dst: to, src: from, len, mode: 0, moved: 0 };
        self.ioctl(iowr(TYPE, 0x05, size_of::<MoveArg>()), &mut arg)
    }

    /// Wakes those who wait in the range, so that they touch again.
    pub fn wake(&self, start: u64, len: u64) -> io::Result<()> {
        self.ioctl(ior(TYPE, 0x02, size_of::<Range>()), &mut Range { start, len })
    }

    /// Reads what is there, up to [`MESSAGES_MAX`] messages, without waiting; none if nothing is. Calls `each`
    /// with every one.
    pub fn read(&self, mut each: impl FnMut(Event)) -> io::Result<usize> {
        let mut buffer = [0u64; MESSAGES_MAX * MESSAGE_BYTES / 8];
        // SAFETY: the buffer is as long as said and any bit pattern is a valid u64.
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
                // SAFETY: a fork message carries a descriptor the kernel just installed here.
                0x13 => Event::Fork(Uffd::new(unsafe { OwnedFd::from_raw_fd(a as u32 as RawFd) })),
                0x14 => Event::Remap { from: a, to: b, len: c },
                0x15 => Event::Remove { start: a, end: b },
                0x16 => Event::Unmap { start: a, end: b },
                other => return Err(io::Error::other(format!("userfaultfd message {other:#x}"))),
            });
        }
        Ok(count)
    }

    /// Whether the address space still exists. `registered` is the address of a registered page that
    /// is not protected: lifting its protection changes nothing.
    #[must_use]
    pub fn is_alive(&self, registered: u64) -> bool {
        !matches!(self.unprotect(registered, 4096), Err(PlaceError::Dead))
    }

    fn ioctl<T>(&self, request: libc::c_ulong, arg: &mut T) -> io::Result<()> {
        // SAFETY: each caller pairs a request number with the structure whose size it encodes, and
        // any pointers inside name memory that outlives the call.
        let result = unsafe { libc::ioctl(self.fd.as_raw_fd(), request, std::ptr::from_mut(arg)) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

impl AsFd for Uffd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
