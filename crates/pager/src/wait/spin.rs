//! Locks for short critical sections. A thread spins for a moment before it sleeps.
//!
//! A wakeup on another CPU took tens of microseconds in measurements, and most holds take less. A
//! sleeping waiter also makes the holder pay for the wakeup. So a thread that meets a taken lock
//! spins for as long as a wakeup would take, and only then sleeps.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Cost of a wakeup on a machine where it is expensive.
const LOOK_FOR: Duration = Duration::from_micros(50);
/// Number of attempts between two readings of the clock.
const LOOKS: u32 = 32;

/// Spins until `found` returns a value, for `limit` at most.
pub fn look<T>(limit: Duration, mut found: impl FnMut() -> Option<T>) -> Option<T> {
    let first = found();
    if first.is_some() {
        return first;
    }
    let began = Instant::now();
    loop {
        for _ in 0..LOOKS {
            std::hint::spin_loop();
            let next = found();
            if next.is_some() {
                return next;
            }
        }
        if began.elapsed() > limit {
            return None;
        }
    }
}

/// Takes the lock, even if it is poisoned. A panic of another thread ends the process soon.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let try_lock = || match mutex.try_lock() {
        Ok(held) => Some(held),
        Err(TryLockError::Poisoned(held)) => Some(held.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    };
    look(LOOK_FOR, try_lock).unwrap_or_else(|| mutex.lock().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_held_for_longer_than_a_thread_spins_is_taken_in_the_end() {
        let mutex = Mutex::new(1);
        std::thread::scope(|scope| {
            let held = mutex.lock().expect("nobody has it");
            let other = scope.spawn(|| *lock(&mutex));
            ebb_testing::give_time(20 * LOOK_FOR);
            assert!(!other.is_finished());
            drop(held);
            assert_eq!(other.join().expect("it is had"), 1);
        });
    }

    #[test]
    fn a_spin_ends_with_a_value_or_with_its_time() {
        assert_eq!(look(Duration::ZERO, || None::<()>), None);
        let mut left = 100;
        let found = look(Duration::from_secs(10), || {
            left -= 1;
            (left == 0).then_some(7)
        });
        assert_eq!(found, Some(7));
    }
}
