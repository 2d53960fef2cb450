//! Lets threads sleep until a word changes. The queue is found by the word's address, so a word
//! needs no room for it.

#[cfg(not(loom))]
mod by_address {
    use parking_lot_core::{DEFAULT_PARK_TOKEN, DEFAULT_UNPARK_TOKEN, park, unpark_all};

    /// The part of the queue in a word: nothing.
    #[derive(Default, Debug)]
    pub struct WaitQueue;

    impl WaitQueue {
        /// Sleeps until woken, if `sleeps` returns true. `sleeps` runs while no thread can wake
        /// this one. `key` is the address of something that outlives the sleep.
        pub fn sleep<T>(&self, key: &T, sleeps: impl Fn() -> bool) {
            let key = std::ptr::from_ref(key).addr();
            // SAFETY: the key is the address of the word on which threads sleep, so no other code
            // parks on it. No closure panics or parks.
            unsafe { park(key, sleeps, || {}, |_, _| {}, DEFAULT_PARK_TOKEN, None) };
        }

        /// Wakes all threads that sleep on `key`.
        pub fn wake<T>(&self, key: &T) {
            // SAFETY: the key is the address of the word on which threads sleep, so no other code
            // parks on it. No closure panics or parks.
            unsafe { unpark_all(std::ptr::from_ref(key).addr(), DEFAULT_UNPARK_TOKEN) };
        }
    }
}

/// A wait queue that loom can observe. It calls `sleeps` under the lock that waking takes, like the
/// queue of `parking_lot_core`.
#[cfg(loom)]
mod for_loom {
    use loom::sync::{Condvar, Mutex};

    #[derive(Default, Debug)]
    pub struct WaitQueue {
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl WaitQueue {
        pub fn sleep<T>(&self, _: &T, sleeps: impl Fn() -> bool) {
            let queue = self.queue.lock().unwrap();
            if sleeps() {
                drop(self.woken.wait(queue).unwrap());
            }
        }

        pub fn wake<T>(&self, _: &T) {
            let _queue = self.queue.lock().unwrap();
            self.woken.notify_all();
        }
    }
}

#[cfg(not(loom))]
pub use by_address::WaitQueue;
#[cfg(loom)]
pub use for_loom::WaitQueue;
