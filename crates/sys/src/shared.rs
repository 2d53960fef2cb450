//! Memory shared with another process through a descriptor.

use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsRawFd, BorrowedFd};

/// A type that may live in memory which another process writes at any time: only atomics, no padding
/// that matters, every bit pattern valid.
///
/// # Safety
/// The implementor consists of atomics only.
pub unsafe trait Shareable {}

/// A mapping of `T` in shared memory.
#[derive(Debug)]
pub struct SharedMap<T: Shareable> {
    address: *mut libc::c_void,
    of: PhantomData<T>,
}

// SAFETY: T is made of atomics only (see `Shareable`), and the mapping lives as long as the value.
unsafe impl<T: Shareable> Send for SharedMap<T> {}
// SAFETY: as above.
unsafe impl<T: Shareable> Sync for SharedMap<T> {}

impl<T: Shareable> SharedMap<T> {
    /// Maps the descriptor, which must hold at least `size_of::<T>()` bytes (checked; a shorter file
    /// would make a touch deadly).
    pub fn new(fd: BorrowedFd<'_>) -> io::Result<Self> {
        // SAFETY: an all-zero stat is a valid value of the plain structure that fstat fills in.
        let mut stat: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: the structure outlives the call.
        if unsafe { libc::fstat(fd.as_raw_fd(), &raw mut stat) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if (stat.st_size as u64) < size_of::<T>() as u64 {
            return Err(io::Error::other("the shared memory is shorter than the protocol"));
        }
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                size_of::<T>(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { address, of: PhantomData })
    }
}

impl<T: Shareable> std::ops::Deref for SharedMap<T> {
    type Target = T;
    fn deref(&self) -> &T {
        // SAFETY: the mapping is as long as T, page-aligned, and T tolerates concurrent writes.
        unsafe { &*self.address.cast::<T>() }
    }
}

impl<T: Shareable> Drop for SharedMap<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping made in `new`, unmapped once.
        unsafe {
            libc::munmap(self.address, size_of::<T>());
        }
    }
}

// SAFETY: the protocol's memory is made of atomics only.
unsafe impl Shareable for ebb_agent::protocol::Shared {}
