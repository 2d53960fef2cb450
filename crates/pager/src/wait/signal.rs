//! Wakeup that is never lost: any thread sets it, one waiter takes it.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// A flag, and the threads that wait for it.
#[derive(Debug, Default)]
pub struct Signal {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Signal {
    /// Sets the flag.
    pub fn raise(&self) {
        let mut set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        if !*set {
            *set = true;
            self.changed.notify_one();
        }
    }

    /// Waits for the flag, at most `limit`, and clears it. Returns true if it was set.
    pub fn wait(&self, limit: Duration) -> bool {
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        let (mut set, _) = self
            .changed
            .wait_timeout_while(set, limit, |set| !*set)
            .unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *set)
    }
}
