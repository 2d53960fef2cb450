//! Memory shared with another process through a descriptor.

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};
use std::io;
use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

/// Type that may live in memory which another process writes at any time: only atomics, no padding
/// that matters, every bit pattern valid.
///
/// # Safety
/// The implementor consists of atomics only.
pub unsafe trait Shareable {}

/// Mapping of `T` in shared memory.
#[derive(Debug)]
pub struct SharedMap<T: Shareable> {
    address: *mut libc::c_void,
    of: PhantomData<T>,
}

// SAFETY: T is made of atomics only (see `Shareable`), and the mapping lives as long as the value.
unsafe impl<T: Shareable> Send for SharedMap<T> {}
// SAFETY: T is made of atomics only (see `Shareable`), and the mapping lives as long as the value.
unsafe impl<T: Shareable> Sync for SharedMap<T> {}

impl<T: Shareable> SharedMap<T> {
    /// Creates shared memory of zeros, and the descriptor by which another process maps it. Seals
    /// keep other processes from shrinking it, because an access beyond the end would raise SIGBUS.
    pub fn create(name: &str) -> io::Result<(Self, OwnedFd)> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        // Some systems require memfds to be sealed against execution.
        let fd = memfd_create(name, flags | MemfdFlags::NOEXEC_SEAL)
            .or_else(|_| memfd_create(name, flags))?;
        rustix::fs::ftruncate(&fd, size_of::<T>().next_multiple_of(4096) as u64)?;
        fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Ok((Self::map(fd.as_fd())?, fd))
    }

    fn map(fd: BorrowedFd<'_>) -> io::Result<Self> {
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
        // SAFETY: the mapping is as long as T and page aligned, and T tolerates concurrent writes.
        unsafe { &*self.address.cast::<T>() }
    }
}

impl<T: Shareable> Drop for SharedMap<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping is from `map`, and is unmapped once.
        unsafe {
            libc::munmap(self.address, size_of::<T>());
        }
    }
}

// SAFETY: the protocol's memory is made of atomics only.
unsafe impl Shareable for ebb_agent::protocol::Shared {}
