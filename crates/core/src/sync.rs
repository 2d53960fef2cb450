//! Locks and atomics: those of the standard library, or loom's when a model is checked.
//!
//! Reclaim control accesses what threads share only through this file. So building with
//! `--cfg loom` turns every such access into a scheduling point.

#[cfg(loom)]
pub(crate) use loom::sync::atomic::AtomicU32;
#[cfg(loom)]
pub(crate) use loom::sync::{Mutex, MutexGuard};
#[cfg(not(loom))]
pub(crate) use std::sync::atomic::AtomicU32;
#[cfg(not(loom))]
pub(crate) use std::sync::{Mutex, MutexGuard};

pub(crate) use std::sync::atomic::Ordering::Relaxed;

/// Takes a lock, even if a holder panicked. Walkers check the state, and a poisoned lock would only
/// turn one failure into many.
#[inline]
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(poisoned) => poisoned.into_inner(),
    }
}
