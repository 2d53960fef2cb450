//! An address space, accessed through its userfaultfd.
//!
//! The trait is the kernel's interface, call by call, with the kernel's errors. A replacement must
//! answer as the kernel does.

use crate::seam::MapLock;
use ebb_sys::rights;
use ebb_sys::uffd::{self, Mode, PlaceError, Uffd};
use std::fmt::Debug;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

/// A message of the userfaultfd.
#[derive(Debug)]
pub enum Event {
    /// A thread faulted on a missing page and waits.
    Fault {
        /// Faulting address.
        address: u64,
        /// Whether the access was a store.
        write: bool,
        /// Whether the page is present but write-protected.
        protected: bool,
        /// Faulting thread (by the process's own number).
        thread: u32,
    },
    /// Fork copied the address space; this is the copy.
    Fork(Box<dyn AddressSpace>),
    /// `len` bytes moved from `from` to `to`.
    Remap { from: u64, to: u64, len: u64 },
    /// The kernel is about to drop the pages of the range.
    Remove { start: u64, end: u64 },
    /// The range was unmapped.
    Unmap { start: u64, end: u64 },
}

/// Calls of a userfaultfd; [`Uffd`] documents each. [`PlaceError::Changing`] also stands for a
/// stuck lock of the memory map.
pub trait AddressSpace: Debug + Send + Sync {
    /// Reads the available messages without waiting. Returns their number.
    fn read(&self, events: &mut Vec<Event>) -> io::Result<usize>;
    /// Negotiates the features, before any other call.
    fn handshake(&self, features: u64) -> io::Result<()>;
    /// Registers a range.
    fn register(&self, start: u64, len: u64, mode: Mode) -> io::Result<()>;
    /// Places copies of whole pages, and wakes no thread.
    fn copy(&self, address: u64, pages: &[u8]) -> Result<(), (u64, PlaceError)>;
    /// Write-protects the present pages of a range.
    fn protect(&self, start: u64, len: u64) -> Result<(), PlaceError>;
    /// Lifts the write protection, and wakes no thread.
    fn unprotect(&self, start: u64, len: u64) -> Result<(), PlaceError>;
    /// Poisons pages, so that an access kills, and wakes the threads that wait there.
    fn poison(&self, address: u64, len: u64) -> Result<(), PlaceError>;
    /// Wakes the threads that wait in a range, so that they repeat their accesses.
    fn wake(&self, start: u64, len: u64) -> io::Result<()>;
    /// Whether the address space still exists; `registered` is a registered page without write
    /// protection.
    fn is_alive(&self, registered: u64) -> bool;
    /// Whether a call waits in vain for the lock of the memory map (`map_lock.rs`).
    fn is_stuck(&self) -> bool;
    /// Returns the descriptor to poll for messages, which agents also get; a simulated one has
    /// none.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// The userfaultfd of a process of the machine.
#[derive(Debug)]
pub struct KnownSpace {
    uffd: Arc<Uffd>,
    map_lock: MapLock,
}

impl From<Uffd> for KnownSpace {
    fn from(uffd: Uffd) -> Self {
        Self { uffd: Arc::new(uffd), map_lock: MapLock::default() }
    }
}

impl KnownSpace {
    /// Makes a call that takes the lock of the memory map as a reader.
    fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Uffd) -> T + Send + 'static,
    ) -> io::Result<T> {
        let uffd = self.uffd.clone();
        self.map_lock.read(move || Ok(call(&uffd)))
    }
}

/// A stuck lock counts as a mapping that is changing: the caller tries again.
fn or_changing(result: io::Result<Result<(), PlaceError>>) -> Result<(), PlaceError> {
    result.unwrap_or(Err(PlaceError::Changing))
}

impl AddressSpace for KnownSpace {
    fn read(&self, events: &mut Vec<Event>) -> io::Result<usize> {
        self.uffd.read(|message| events.push(message.into()))
    }

    fn handshake(&self, features: u64) -> io::Result<()> {
        // Called here because the program may have fewer rights than Ebb.
        let _tracing = rights::tracing();
        self.uffd.handshake(features).map(drop)
    }

    fn register(&self, start: u64, len: u64, mode: Mode) -> io::Result<()> {
        let uffd = self.uffd.clone();
        self.map_lock.write(move || uffd.register(start, len, mode))
    }

    fn copy(&self, address: u64, pages: &[u8]) -> Result<(), (u64, PlaceError)> {
        // The kernel takes the lock of the area alone, since Linux 6.8.
        self.uffd.copy(address, pages)
    }

    fn protect(&self, start: u64, len: u64) -> Result<(), PlaceError> {
        or_changing(self.call(move |uffd| uffd.protect(start, len)))
    }

    fn unprotect(&self, start: u64, len: u64) -> Result<(), PlaceError> {
        or_changing(self.call(move |uffd| uffd.unprotect(start, len)))
    }

    fn poison(&self, address: u64, len: u64) -> Result<(), PlaceError> {
        or_changing(self.call(move |uffd| uffd.poison(address, len)))
    }

    fn wake(&self, start: u64, len: u64) -> io::Result<()> {
        self.uffd.wake(start, len)
    }

    fn is_alive(&self, registered: u64) -> bool {
        self.call(move |uffd| uffd.is_alive(registered)).unwrap_or(true)
    }

    fn is_stuck(&self) -> bool {
        self.map_lock.is_stuck()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.uffd.as_fd())
    }
}

impl From<uffd::Event> for Event {
    fn from(event: uffd::Event) -> Self {
        match event {
            uffd::Event::Fault { address, write, protected, thread } => {
                Self::Fault { address, write, protected, thread }
            }
            uffd::Event::Fork(uffd) => Self::Fork(Box::new(KnownSpace::from(uffd))),
            uffd::Event::Remap { from, to, len } => Self::Remap { from, to, len },
            uffd::Event::Remove { start, end } => Self::Remove { start, end },
            uffd::Event::Unmap { start, end } => Self::Unmap { start, end },
        }
    }
}
