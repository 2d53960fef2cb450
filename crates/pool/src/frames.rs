//! The frames: memory of fixed size and address that holds the pages in memory.
//!
//! Invariants:
//! * BUFFERS-1: a frame is in `free`, or belongs to exactly one page, whose word names it. Or it
//!   belongs to a thread that took it and has not published it yet.
//! * BUFFERS-2: a thread writes the bytes of a frame only if it latched the page exclusively or
//!   took the frame. A thread reads the bytes under a latch.

use crate::error::PageId;
use ebb_mm::PAGE_SIZE;
use parking_lot::Mutex;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The bytes of a page.
pub type Bytes = [u8; PAGE_SIZE];

/// The frames of a pool. See the head of the file.
pub struct Frames {
    base: NonNull<Bytes>,
    count: u32,
    /// The page in each frame, once it is there.
    owners: Box<[AtomicU64]>,
    /// A bit for each frame: used since the last call of `harvest`.
    touched: Box<[AtomicU64]>,
    free: Mutex<Vec<u32>>,
}

// SAFETY: the mapping is owned, nothing in it is bound to a thread, and its bytes are shared by
// BUFFERS-2 only.
unsafe impl Send for Frames {}
// SAFETY: the mapping is owned, nothing in it is bound to a thread, and its bytes are shared by
// BUFFERS-2 only.
unsafe impl Sync for Frames {}

fn words(count: usize) -> Box<[AtomicU64]> {
    std::iter::repeat_with(AtomicU64::default).take(count).collect()
}

impl Frames {
    /// Creates `count` frames, all free. The system provides their memory page by page, at first
    /// use.
    pub fn new(count: u32) -> io::Result<Self> {
        let bytes = count as usize * PAGE_SIZE;
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, prot, MapFlags::PRIVATE) }?;
        // SAFETY: the advice changes no content. A system without huge pages refuses it, and
        // nothing is lost.
        let _ = unsafe { madvise(base, bytes, Advice::LinuxHugepage) };
        Ok(Self {
            base: NonNull::new(base.cast()).expect("the kernel never maps page zero unasked"),
            count,
            owners: words(count as usize),
            touched: words((count as usize).div_ceil(64)),
            free: Mutex::new((0..count).rev().collect()),
        })
    }

    /// Returns the number of frames.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// Takes a free frame. Returns it and how many are left, or `None` if there is none.
    pub fn take(&self) -> Option<(u32, usize)> {
        let mut free = self.free.lock();
        let frame = free.pop()?;
        Some((frame, free.len()))
    }

    /// Returns the number of free frames.
    pub fn free(&self) -> usize {
        self.free.lock().len()
    }

    /// Frees a frame.
    pub fn give(&self, frame: u32) {
        self.free.lock().push(frame);
    }

    /// Frees many frames at once.
    pub fn give_all(&self, frames: &[u32]) {
        self.free.lock().extend_from_slice(frames);
    }

    /// Records which page is in a frame, and clears the frame's bit of use.
    pub fn own(&self, frame: u32, page: PageId) {
        self.owners[frame as usize].store(page.0, Release);
        self.touched[frame as usize / 64].fetch_and(!(1 << (frame % 64)), Relaxed);
    }

    /// Records that the page in a frame is used.
    #[inline]
    pub fn touch(&self, frame: u32) {
        let (word, bit) = (&self.touched[frame as usize / 64], 1 << (frame % 64));
        // Most frames are used more than once between two scans. A cache line without writes stays
        // in every CPU's cache.
        if word.load(Relaxed) & bit == 0 {
            word.fetch_or(bit, Relaxed);
        }
    }

    /// Calls `used` for every page whose frame was used since the last call.
    pub fn harvest(&self, mut used: impl FnMut(PageId)) {
        for (word, first) in self.touched.iter().zip((0..).step_by(64)) {
            if word.load(Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Relaxed);
            while bits != 0 {
                let frame = first + bits.trailing_zeros() as usize;
                bits &= bits - 1;
                used(PageId(self.owners[frame].load(Acquire)));
            }
        }
    }

    fn at(&self, frame: u32) -> *mut Bytes {
        assert!(frame < self.count, "frame {frame} of {}", self.count);
        // SAFETY: within the mapping.
        unsafe { self.base.as_ptr().add(frame as usize) }
    }

    /// Returns the bytes of a frame.
    ///
    /// # Safety
    /// The caller has the frame's page latched for as long as the reference lives (BUFFERS-2).
    #[inline]
    pub unsafe fn bytes(&self, frame: u32) -> &Bytes {
        // SAFETY: by the caller's contract no thread writes meanwhile; any bytes are a page.
        unsafe { &*self.at(frame) }
    }

    /// Returns the bytes of a frame for writing.
    ///
    /// # Safety
    /// The caller has the frame's page latched exclusively, or took the frame and has not published
    /// it (BUFFERS-2). The caller has no other reference to its bytes.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the latch makes it exclusive, not the borrow")]
    pub unsafe fn bytes_mut(&self, frame: u32) -> &mut Bytes {
        // SAFETY: by the caller's contract no other thread accesses the bytes.
        unsafe { &mut *self.at(frame) }
    }
}

impl Drop for Frames {
    fn drop(&mut self) {
        // SAFETY: `self` owns the mapping, and no reference into it is left, because each borrows
        // from `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.count as usize * PAGE_SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_used_page_is_reported_once() {
        let frames = Frames::new(130).unwrap();
        for (frame, page) in [(0, 9), (64, 8), (129, 7)] {
            frames.own(frame, PageId(page));
            frames.touch(frame);
        }
        frames.own(64, PageId(6));
        let seen = || {
            let mut seen = Vec::new();
            frames.harvest(|page| seen.push(page.0));
            seen
        };
        assert_eq!((seen(), seen()), (vec![9, 7], vec![]));
    }

    #[test]
    fn frames_are_given_out_once() {
        let frames = Frames::new(3).unwrap();
        let taken: Vec<_> = std::iter::from_fn(|| frames.take()).collect();
        assert_eq!(taken, [(0, 2), (1, 1), (2, 0)]);
        frames.give_all(&[2, 0]);
        assert_eq!((frames.free(), frames.take()), (2, Some((0, 1))));
    }
}
