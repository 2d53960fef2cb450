//! Sleeping until a word changes: by its address, so that a word needs no room for it.

#[cfg(not(loom))]
mod by_address {
    use parking_lot_core::{DEFAULT_PARK_TOKEN, DEFAULT_UNPARK_TOKEN, park, unpark_all};

    /// What a word has of it: nothing.
    #[derive(Default, Debug)]
    pub struct Place;

    impl Place {
        /// Sleeps until woken, unless `sleeps` says otherwise. It is asked while nobody can wake. `key` is the address of
        /// something that outlives the sleep.
        pub fn sleep<T>(&self, key: &T, sleeps: impl Fn() -> bool) {
            let key = std::ptr::from_ref(key).addr();
            // SAFETY: the key is an address within what sleeps here, and so nobody else's; no closure panics or parks.
            unsafe { park(key, sleeps, || {}, |_, _| {}, DEFAULT_PARK_TOKEN, None) };
        }

        /// Wakes all who sleep by that key.
        pub fn wake<T>(&self, key: &T) {
            // SAFETY: as above.
            unsafe { unpark_all(std::ptr::from_ref(key).addr(), DEFAULT_UNPARK_TOKEN) };
        }
    }
}

/// The same for loom, which has to see it: asked under the lock that waking takes, as the queue of the real one has.
#[cfg(loom)]
mod for_loom {
    use loom::sync::{Condvar, Mutex};

    #[derive(Default, Debug)]
    pub struct Place {
        queue: Mutex<()>,
        woken: Condvar,
    }

    impl Place {
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
pub use by_address::Place;
#[cfg(loom)]
pub use for_loom::Place;
