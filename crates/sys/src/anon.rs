//! Anonymous memory directly from the kernel: page aligned, zero at first, and really freed on
//! drop.
//!
//! A heap allocator may keep freed memory. Memory that counts against a budget must not be kept.
//! Page alignment also makes these buffers fit for direct I/O.
//!
//! * ANON-1: `base` is the start of a private mapping of `length` bytes, readable and
//!   writable. Nothing else refers to the mapping, and it lives exactly as long as the value.

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

/// Owned anonymous mapping, used as a slice of bytes.
#[derive(Debug)]
pub struct AnonBuffer {
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: ANON-1: the mapping is owned like a `Box<[u8]>`; nothing in it is bound to a thread.
unsafe impl Send for AnonBuffer {}
// SAFETY: shared references give shared access to plain bytes only.
unsafe impl Sync for AnonBuffer {}

impl AnonBuffer {
    /// Maps `length` bytes, rounded up to whole pages, never as huge pages.
    pub fn new(length: usize) -> io::Result<Self> {
        let length = length.max(1).next_multiple_of(4096);
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice affects no existing memory.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), length, prot, MapFlags::PRIVATE) }?;
        let base = NonNull::new(base.cast()).expect("the kernel never maps page zero unasked");
        let buffer = Self { base, length };
        // SAFETY: ANON-1, and the advice changes no content. A kernel without huge pages refuses
        // the advice.
        let _ = unsafe { madvise(base.as_ptr().cast(), length, Advice::LinuxNoHugepage) };
        Ok(buffer)
    }

    /// Faults in every page now, by one call, instead of one by one at the first access.
    pub fn populate(&mut self) {
        // SAFETY: ANON-1, and populating changes no content. Kernels before 5.14 refuse the call.
        // The result does not matter, because the first access then faults the page in.
        let _ =
            unsafe { madvise(self.base.as_ptr().cast(), self.length, Advice::LinuxPopulateWrite) };
    }

    /// Returns the buffer as words that threads may share.
    pub fn words(&mut self) -> &[AtomicU64] {
        // SAFETY: ANON-1. The start is page aligned, the length is a multiple of 4096, and the
        // bytes are initialised. `&mut self` excludes every other view while this one lives.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().cast(), self.length / 8) }
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.base.as_ptr()
    }
}

impl Deref for AnonBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: ANON-1; the kernel has zeroed the bytes, so they are initialised.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr(), self.length) }
    }
}

impl DerefMut for AnonBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: ANON-1, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr(), self.length) }
    }
}

/// Page-aligned pages of memory.
///
/// Copies of whole pages use these as source and target. On AMD's CPUs a `rep movs` can be 16 times
/// slower (1.9 us a page instead of 0.12). It is slow if the target's offset in its page is a few
/// bytes larger than the source's. Large blocks of the C library's begin 16 bytes into a page. The
/// kernel copies in the same way (`copy_to_user`).
#[derive(Debug)]
pub struct PageBuffer(AnonBuffer);

impl PageBuffer {
    /// Allocates `pages` pages of zeros.
    ///
    /// # Panics
    /// If there is no memory, as a `Vec` would.
    #[must_use]
    pub fn new(pages: usize) -> Self {
        Self(AnonBuffer::new(pages * 4096).expect("memory for a buffer"))
    }
}

impl Deref for PageBuffer {
    type Target = [[u8; 4096]];

    fn deref(&self) -> &Self::Target {
        self.0.as_chunks().0
    }
}

impl DerefMut for PageBuffer {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.0.as_chunks_mut().0
    }
}

impl Drop for AnonBuffer {
    fn drop(&mut self) {
        // SAFETY: ANON-1: the value is being dropped, and no slice of it can be alive.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), self.length) };
        if unmapped.is_err() {
            // Unmapping can need one more mapping than the system allows (vm.max_map_count). The
            // advice frees the memory all the same; only the addresses stay taken.
            // SAFETY: ANON-1: the value is being dropped, and no slice of it can be alive.
            let _ =
                unsafe { madvise(self.base.as_ptr().cast(), self.length, Advice::LinuxDontNeed) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::Ordering;

    #[test]
    fn a_buffer_is_zero_aligned_and_writable() {
        let mut buffer = AnonBuffer::new(5000).expect("map");
        assert_eq!(buffer.len(), 8192);
        assert_eq!(buffer.as_ptr() as usize % 4096, 0);
        assert!(buffer.iter().all(|&byte| byte == 0));
        buffer.populate();
        buffer[8191] = 7;
        assert_eq!(buffer[8191], 7);
        assert_eq!(buffer.words().len(), 1024);
        assert_eq!(buffer.words()[1023].load(Ordering::Relaxed), 7 << 56);
    }
}
