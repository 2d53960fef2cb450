//! Calls that wait for the lock of another process's memory map.
//!
//! A thread may hold that lock for ever, for example a thread that reads the process's memory where
//! a file is mapped whose server does not answer. Every call that takes the lock then waits as
//! long, and only the end of the caller ends the wait.
//!
//! * MAPLOCK-1: a helper makes the call, a thread that owns all that the call needs. The caller
//!   waits for [`Patience::MapLock`]. The time in which the helper runs, or wants a CPU, does not
//!   count. Then the caller leaves the helper behind, which ends with the call.
//! * MAPLOCK-2: the process counts as stuck until the call returns. No further call is made on it.
//!   The pager treats it as a stopped process (OOM-5 in `oom.rs`).
//! * MAPLOCK-3: a caller of MAPLOCK-1 takes each error for "not now". A call that was left behind
//!   may still take effect. So a range may be registered that the pager does not list. An `mremap`
//!   of the program does that, too.
//! * MAPLOCK-4: fault threads make the calls themselves ([`make_own_calls`]). A helper takes half
//!   as long as the answer to a fault. Fault threads answer no fault of a stuck process.
//!
//! Each thread that makes such calls has a helper of its own, with its priority and on its CPUs.
//! Takes no lock.

use crate::patience::Patience;
use ebb_sys::sched::{self, CpuSet};
use std::cell::{Cell, RefCell};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};

type Call = Box<dyn FnOnce() + Send>;

/// A thread that makes calls for another.
struct Helper {
    thread: u32,
    /// CPUs that it may use.
    cpus: Option<CpuSet>,
    calls: Sender<Call>,
}

thread_local! {
    static HELPER: RefCell<Option<Helper>> = const { RefCell::new(None) };
    static MAKES_OWN_CALLS: Cell<bool> = const { Cell::new(false) };
}

/// Lets the calling thread make its calls itself (MAPLOCK-4).
pub fn make_own_calls() {
    MAKES_OWN_CALLS.set(true);
}

/// Whether the calling thread makes its calls itself.
pub fn makes_own_calls() -> bool {
    MAKES_OWN_CALLS.get()
}

impl Helper {
    /// Starts a helper. None if there can be no thread.
    fn start() -> Option<Self> {
        let (calls, made) = mpsc::channel::<Call>();
        let (send, receive) = mpsc::channel();
        let run = move || {
            // The caller has gone only if it has ended.
            let _ = send.send(sched::this_thread());
            made.into_iter().for_each(|call| call());
        };
        std::thread::Builder::new().name("map-lock".to_owned()).spawn(run).ok()?;
        Some(Self { thread: receive.recv().ok()?, cpus: None, calls })
    }

    /// Keeps the helper on the CPUs of its caller (`cpu_follow.rs`).
    fn follow(&mut self) {
        let cpus = CpuSet::of_this_thread().ok();
        if cpus != self.cpus {
            // The call can be made on any CPU.
            let _ = cpus.as_ref().map(|cpus| cpus.confine(self.thread));
            self.cpus = cpus;
        }
    }
}

/// The lock of one process's memory map, seen from outside.
#[derive(Debug, Clone, Default)]
pub struct MapLock {
    /// Number of calls that were left behind.
    stuck: Arc<AtomicU32>,
}

impl MapLock {
    /// Whether a call waits for the lock in vain (MAPLOCK-2).
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(SeqCst) > 0
    }

    /// Makes a call that takes the lock (MAPLOCK-1).
    ///
    /// # Errors
    ///
    /// The error of the call; `WouldBlock` if the lock is stuck.
    pub fn call<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        if self.is_stuck() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if makes_own_calls() {
            return call();
        }
        let Some(mut helper) = HELPER.take().or_else(Helper::start) else { return call() };
        helper.follow();
        let (send, receive) = mpsc::channel();
        let (is_over, stuck) = (Arc::new(AtomicBool::new(false)), self.stuck.clone());
        let its_end = is_over.clone();
        let made = move || {
            let result = call();
            if its_end.swap(true, SeqCst) {
                stuck.fetch_sub(1, SeqCst);
            }
            // The caller may have gone on.
            let _ = send.send(result);
        };
        if helper.calls.send(Box::new(made)).is_err() {
            return Err(io::Error::other("the helper has ended"));
        }
        let mut result = None;
        let sees = Patience::MapLock.sees_by(helper.thread, &['R'], |time| {
            match receive.recv_timeout(time) {
                Ok(its) => {
                    result = Some(its);
                    true
                }
                Err(error) => error == RecvTimeoutError::Disconnected,
            }
        });
        if !sees {
            self.stuck.fetch_add(1, SeqCst);
            if !is_over.swap(true, SeqCst) {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            // The call has just returned.
            self.stuck.fetch_sub(1, SeqCst);
            result = receive.recv().ok();
        }
        HELPER.set(Some(helper));
        result.unwrap_or_else(|| Err(io::Error::other("the helper has ended")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Shows that a call that does not return delays its caller for a limited time only, and that
    /// no other call is made on the process until it returns.
    #[test]
    fn a_call_that_does_not_return_is_left_behind() {
        let lock = MapLock::default();
        assert_eq!(lock.call(|| Ok(1)).expect("a call that returns"), 1);
        let (release, stuck) = mpsc::channel::<()>();
        let left = lock.call(move || stuck.recv().map_err(io::Error::other));
        assert_eq!(left.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
        assert!(lock.is_stuck());
        let other = lock.call(|| -> io::Result<()> { panic!("no call is made") });
        assert_eq!(other.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
        assert_eq!(MapLock::default().call(|| Ok(2)).expect("another process"), 2);
        release.send(()).expect("it waits");
        ebb_testing::eventually("the end of the call", || !lock.is_stuck());
        assert_eq!(lock.call(|| Ok(3)).expect("it is free again"), 3);
    }

    /// Shows that a helper that lacks a CPU does not make a process stuck.
    #[test]
    fn a_helper_that_runs_for_long_has_not_met_a_stuck_lock() {
        let lock = MapLock::default();
        let runs_for_long = || {
            let thread = sched::this_thread();
            let has_run = || sched::run_times(thread).map(|times| times.ran().as_millis() >= 400);
            while has_run() == Some(false) {}
            Ok(4)
        };
        assert_eq!(lock.call(runs_for_long).expect("its result"), 4);
    }

    #[test]
    fn a_thread_that_makes_its_own_calls_has_no_helper() {
        let own = std::thread::spawn(|| {
            make_own_calls();
            let thread = sched::this_thread();
            MapLock::default().call(move || Ok(sched::this_thread() == thread)).expect("a call")
        });
        assert!(own.join().expect("it did not panic"));
        let thread = sched::this_thread();
        let is_own = MapLock::default().call(move || Ok(sched::this_thread() == thread));
        assert!(!is_own.expect("a call"));
    }
}
