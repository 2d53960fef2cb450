//! An address space as its userfaultfd shows it.
//!
//! The trait is the kernel's interface, call by call, with the kernel's errors: whoever stands in for it must
//! answer as it does.

use ebb_sys::rights;
use ebb_sys::uffd::{self, Mode, PlaceError, Uffd};
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};

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
    /// The address space was copied by fork: the copy.
    Fork(Box<dyn AddressSpace>),
    /// `len` bytes moved from `from` to `to`.
    Remap { from: u64, to: u64, len: u64 },
    /// The range's pages are about to be dropped.
    Remove { start: u64, end: u64 },
    /// The range was unmapped.
    Unmap { start: u64, end: u64 },
}

/// The calls. See [`Uffd`] for what each does.
pub trait AddressSpace: Debug + Send + Sync {
    /// Reads what is there without waiting; how many messages.
    fn read(&self, events: &mut Vec<Event>) -> io::Result<usize>;
    /// Agrees on features, before anything else.
    fn handshake(&self, features: u64) -> io::Result<()>;
    /// Registers a range.
    fn register(&self, start: u64, len: u64, mode: Mode) -> io::Result<()>;
    /// Puts a copy of whole pages in place, and wakes nobody.
    fn copy(&self, address: u64, pages: &[u8]) -> Result<(), (u64, PlaceError)>;
    /// Protects the pages of a range that are there from writing.
    fn protect(&self, start: u64, len: u64) -> Result<(), PlaceError>;
    /// Lifts the protection, and wakes nobody.
    fn unprotect(&self, start: u64, len: u64) -> Result<(), PlaceError>;
    /// Makes pages deadly to touch and wakes those who wait there.
    fn poison(&self, address: u64, len: u64) -> Result<(), PlaceError>;
    /// Wakes those who wait in a range, so that they touch again.
    fn wake(&self, start: u64, len: u64) -> io::Result<()>;
    /// Whether it still exists; `registered` is a registered page that is not protected.
    fn is_alive(&self, registered: u64) -> bool;
    /// What to wait on for messages, and what an agent is given; a simulated one has none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

impl AddressSpace for Uffd {
    fn read(&self, events: &mut Vec<Event>) -> io::Result<usize> {
        Self::read(self, |message| events.push(message.into()))
    }

    fn handshake(&self, features: u64) -> io::Result<()> {
        // Made here and not in the program, whose rights may be less than Ebb's.
        let _tracing = rights::tracing();
        Self::handshake(self, features).map(drop)
    }

    fn register(&self, start: u64, len: u64, mode: Mode) -> io::Result<()> {
        Self::register(self, start, len, mode)
    }

    fn copy(&self, address: u64, pages: &[u8]) -> Result<(), (u64, PlaceError)> {
        Self::copy(self, address, pages)
    }

    fn protect(&self, start: u64, len: u64) -> Result<(), PlaceError> {
        Self::protect(self, start, len)
    }

    fn unprotect(&self, start: u64, len: u64) -> Result<(), PlaceError> {
        Self::unprotect(self, start, len)
    }

    fn poison(&self, address: u64, len: u64) -> Result<(), PlaceError> {
        Self::poison(self, address, len)
    }

    fn wake(&self, start: u64, len: u64) -> io::Result<()> {
        Self::wake(self, start, len)
    }

    fn is_alive(&self, registered: u64) -> bool {
        Self::is_alive(self, registered)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.as_fd())
    }
}

impl From<uffd::Event> for Event {
    fn from(event: uffd::Event) -> Self {
        match event {
            uffd::Event::Fault { address, write, protected, thread } => {
                Self::Fault { address, write, protected, thread }
            }
            uffd::Event::Fork(uffd) => Self::Fork(Box::new(uffd)),
            uffd::Event::Remap { from, to, len } => Self::Remap { from, to, len },
            uffd::Event::Remove { start, end } => Self::Remove { start, end },
            uffd::Event::Unmap { start, end } => Self::Unmap { start, end },
        }
    }
}
