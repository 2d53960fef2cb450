//! The contenders that are not Ebb.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use buddy_system_allocator::FrameAllocator;
use ebb_bench::alloc::{Contender, Worker};

/// An array of frames per thread, without lock, zone or count: a bound that no allocator can beat.
/// As with every allocator, a thread uses the array through a shared reference and its number. The
/// length of the array is in memory.
#[derive(Debug)]
pub struct Arrays {
    stacks: Vec<Stack>,
}

#[derive(Debug)]
#[repr(align(128))]
struct Stack {
    len: AtomicU32,
    slots: Vec<AtomicU32>,
}

impl Arrays {
    /// Creates `frames` frames in blocks of `order`, divided among `threads`.
    pub fn new(frames: u32, threads: usize, order: u8) -> Self {
        let blocks = frames >> order;
        let stack = |i: usize| {
            let mine = (i as u32..blocks).step_by(threads).map(|b| AtomicU32::new(b << order));
            let slots: Vec<AtomicU32> = mine.collect();
            Stack { len: AtomicU32::new(slots.len() as u32), slots }
        };
        Self { stacks: (0..threads).map(stack).collect() }
    }
}

impl Contender for Arrays {
    type Worker<'a> = OneArray<'a>;

    fn worker(&self, i: usize, _threads: usize) -> OneArray<'_> {
        OneArray(self, i)
    }
}

/// Handle of one thread for its array.
#[derive(Debug)]
pub struct OneArray<'a>(&'a Arrays, usize);

impl Worker for OneArray<'_> {
    #[inline(always)]
    fn get(&mut self, _order: u8) -> Option<u32> {
        let stack = self.0.stacks.get(self.1)?;
        let len = stack.len.load(Relaxed).checked_sub(1)?;
        stack.len.store(len, Relaxed);
        stack.slots.get(len as usize).map(|slot| slot.load(Relaxed))
    }

    #[inline(always)]
    fn put(&mut self, pfn: u32, _order: u8) {
        let Some(stack) = self.0.stacks.get(self.1) else { return };
        let len = stack.len.load(Relaxed);
        if let Some(slot) = stack.slots.get(len as usize) {
            slot.store(pfn, Relaxed);
            stack.len.store(len + 1, Relaxed);
        }
    }
}

/// `buddy_system_allocator` 0.13 behind a mutex.
pub struct MutexBuddy(Mutex<FrameAllocator<11>>);

impl MutexBuddy {
    /// Creates one range of `frames` frames.
    pub fn new(frames: u32) -> Self {
        let mut buddy = FrameAllocator::new();
        buddy.add_frame(0, frames as usize);
        Self(Mutex::new(buddy))
    }
}

impl Contender for MutexBuddy {
    type Worker<'a> = &'a MutexBuddy;

    fn worker(&self, _: usize, _: usize) -> &MutexBuddy {
        self
    }
}

impl Worker for &MutexBuddy {
    fn get(&mut self, order: u8) -> Option<u32> {
        let pfn = self.0.lock().expect("no worker panicked").alloc(1 << order)?;
        Some(pfn as u32)
    }

    fn put(&mut self, pfn: u32, order: u8) {
        self.0.lock().expect("no worker panicked").dealloc(pfn as usize, 1 << order);
    }
}
