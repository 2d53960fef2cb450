//! Locks and atomics: those of the standard library, or loom's when a model is checked.
//!
//! The crate accesses memory shared between threads only through this file. So building with
//! `--cfg loom` turns every such access into a scheduling point.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicI32, AtomicI64, AtomicU16, AtomicU32, AtomicU64};
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU16, AtomicU32, AtomicU64};
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Takes a lock, even if a holder panicked. Walkers check the allocator's state, and a poisoned
/// lock would only turn one failure into many.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}

/// A full fence.
#[inline]
pub(crate) fn full_fence() {
    #[cfg(loom)]
    loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(not(loom))]
    std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
}

/// Keeps the compiler, but not the processor, from moving accesses across it. Loom has no such
/// fence, so it is a full fence there. On real hardware the other side's barrier has that effect.
#[inline(always)]
pub(crate) fn compiler_only_fence() {
    #[cfg(loom)]
    loom::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    #[cfg(not(loom))]
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Makes one turn of a wait for another thread. Spins first, then yields, because a holder may need
/// this CPU.
pub(crate) fn relax(turn: u32) {
    #[cfg(loom)]
    {
        let _ = turn;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    if turn < SPINS_MAX {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}

#[cfg(not(loom))]
const SPINS_MAX: u32 = 64;

/// Memory that one lock holder at a time reads and writes. As cheap as a plain field, and shareable
/// in safe code. `Relaxed` suffices because the lock that guards it orders the holders.
#[derive(Debug, Default)]
pub(crate) struct Owned32(AtomicU32);

impl Owned32 {
    pub(crate) fn new(value: u32) -> Self {
        Self(AtomicU32::new(value))
    }

    #[inline(always)]
    pub(crate) fn get(&self) -> u32 {
        self.0.load(Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set(&self, value: u32) {
        self.0.store(value, Relaxed);
    }
}
