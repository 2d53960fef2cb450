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
//!   The pager treats it as a stopped process (OOM-5 in `reclaim/oom.rs`).
//! * MAPLOCK-3: a caller of MAPLOCK-1 takes each error for "not now". A call that was left behind
//!   may still take effect. So a range may be registered that the pager does not list. An `mremap`
//!   of the program does that, too.
//! * MAPLOCK-4: calls come in bursts, and a helper takes longer than most of them. So the caller
//!   makes calls itself for [`BURST`] after the helper's last. A lock that gets stuck in this time
//!   holds the caller. A call that takes the lock as a writer also waits for readers. So it begins
//!   a burst of both kinds, and a reading call begins one of reading calls.
//! * MAPLOCK-5: fault threads make the calls themselves ([`make_own_calls`]). A helper takes half
//!   as long as the answer to a fault. Fault threads answer no fault of a stuck process.
//! * MAPLOCK-6: a process with a stuck lock that is opened again is known to be stuck
//!   ([`MapLock::of`]). Otherwise each search for a process would leave another helper behind.
//!
//! Each other thread that makes such calls has a helper of its own, with its priority and on its
//! CPUs. Lock order: the lock of `STUCK` comes last.

use crate::wait::patience::Patience;
use ebb_sys::proc;
use ebb_sys::sched::{self, CpuSet};
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time in which calls count as one burst (MAPLOCK-4).
const BURST: Duration = Duration::from_micros(500);

type Call = Box<dyn FnOnce() + Send>;

/// Processes with a stuck lock, by number and start time (MAPLOCK-6).
static STUCK: Mutex<BTreeMap<(u32, u64), MapLock>> = Mutex::new(BTreeMap::new());

/// Start of the times in [`MapLock`].
static START: LazyLock<Instant> = LazyLock::new(Instant::now);

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

/// Lets the calling thread make its calls itself (MAPLOCK-5).
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

    /// Keeps the helper on the CPUs of its caller (`fault_threads/cpu_follow.rs`).
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
    /// Ends of the present bursts of reading and of writing calls, in nanoseconds after [`START`].
    bursts: Arc<[AtomicU64; 2]>,
    /// Process number; 0 if the lock is known by a userfaultfd alone.
    pid: u32,
}

impl MapLock {
    /// Returns the lock of a process. The value shows that the lock is stuck, if an earlier value
    /// does (MAPLOCK-6).
    pub fn of(pid: u32) -> Self {
        let mut stuck = STUCK.lock().unwrap_or_else(PoisonError::into_inner);
        stuck.retain(|_, lock| lock.is_stuck());
        let known = match stuck.is_empty() {
            true => None,
            false => proc::started(pid).and_then(|started| stuck.get(&(pid, started))).cloned(),
        };
        known.unwrap_or_else(|| Self { pid, ..Self::default() })
    }

    /// Lets [`MapLock::of`] find the stuck lock.
    fn note_stuck(&self) {
        if let Some(started) = (self.pid > 0).then(|| proc::started(self.pid)).flatten() {
            let mut stuck = STUCK.lock().unwrap_or_else(PoisonError::into_inner);
            stuck.insert((self.pid, started), self.clone());
        }
    }

    /// Whether a call waits for the lock in vain (MAPLOCK-2).
    pub fn is_stuck(&self) -> bool {
        self.stuck.load(SeqCst) > 0
    }

    /// Makes a call that takes the lock as a reader (MAPLOCK-4).
    ///
    /// # Errors
    ///
    /// The error of the call; `WouldBlock` if the lock is stuck.
    pub fn read<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.call(1, call)
    }

    /// Makes a call that takes the lock as a writer (MAPLOCK-4).
    ///
    /// # Errors
    ///
    /// The error of the call; `WouldBlock` if the lock is stuck.
    pub fn write<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        self.call(2, call)
    }

    /// Makes a call of the first `kinds` kinds of bursts, directly in a burst of the last of these.
    fn call<T: Send + 'static>(
        &self,
        kinds: usize,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        if self.is_stuck() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let now = || START.elapsed().as_nanos() as u64;
        if makes_own_calls() || now() < self.bursts[kinds - 1].load(SeqCst) {
            return call();
        }
        let result = self.call_by_helper(call);
        if !self.is_stuck() {
            let end = now() + BURST.as_nanos() as u64;
            self.bursts[..kinds].iter().for_each(|burst| burst.store(end, SeqCst));
        }
        result
    }

    /// Lets a helper make a call (MAPLOCK-1).
    fn call_by_helper<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
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
                self.note_stuck();
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
        assert_eq!(lock.call_by_helper(|| Ok(1)).expect("a call that returns"), 1);
        let (release, stuck) = mpsc::channel::<()>();
        let left = lock.write(move || stuck.recv().map_err(io::Error::other));
        assert_eq!(left.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
        assert!(lock.is_stuck());
        let other = lock.write(|| -> io::Result<()> { panic!("no call is made") });
        assert_eq!(other.map_err(|error| error.kind()), Err(io::ErrorKind::WouldBlock));
        assert_eq!(MapLock::default().write(|| Ok(2)).expect("another process"), 2);
        release.send(()).expect("it waits");
        ebb_testing::eventually("the end of the call", || !lock.is_stuck());
        assert_eq!(lock.write(|| Ok(3)).expect("it is free again"), 3);
    }

    /// Shows that a process with a stuck lock costs one helper, however often it is opened.
    #[test]
    fn a_stuck_process_that_is_opened_again_is_known_to_be_stuck() {
        let mut child = std::process::Command::new("cat")
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("a process");
        let pid = child.id();
        let lock = MapLock::of(pid);
        let (release, stuck) = mpsc::channel::<()>();
        assert!(lock.write(move || stuck.recv().map_err(io::Error::other)).is_err());
        assert!(MapLock::of(pid).is_stuck() && !MapLock::of(1).is_stuck());
        release.send(()).expect("it waits");
        ebb_testing::eventually("the end of the call", || !MapLock::of(pid).is_stuck());
        assert_eq!(MapLock::of(pid).write(|| Ok(1)).expect("it is free again"), 1);
        drop(child.stdin.take());
        child.wait().expect("it ends");
    }

    /// Shows that a burst ends, so that a stuck lock is noticed, and that readers begin no burst of
    /// writers.
    #[test]
    fn calls_of_a_burst_need_no_helper() {
        let lock = MapLock::default();
        let thread = sched::this_thread();
        let reads = || lock.read(move || Ok(sched::this_thread() == thread)).expect("a call");
        let writes = || lock.write(move || Ok(sched::this_thread() == thread)).expect("a call");
        assert!(!reads() && !writes(), "the first calls of their bursts");
        ebb_testing::eventually("a burst of readers", || reads() || reads());
        ebb_testing::eventually("a burst of both", || writes() || writes() && reads());
        ebb_testing::eventually("the end of a burst", || !reads());
        ebb_testing::eventually("the end of a burst", || !writes());
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
        assert_eq!(lock.write(runs_for_long).expect("its result"), 4);
    }

    #[test]
    fn a_thread_that_makes_its_own_calls_has_no_helper() {
        let own = std::thread::spawn(|| {
            make_own_calls();
            let thread = sched::this_thread();
            MapLock::default().write(move || Ok(sched::this_thread() == thread)).expect("a call")
        });
        assert!(own.join().expect("it did not panic"));
        let thread = sched::this_thread();
        let is_own = MapLock::default().write(move || Ok(sched::this_thread() == thread));
        assert!(!is_own.expect("a call"));
    }
}
