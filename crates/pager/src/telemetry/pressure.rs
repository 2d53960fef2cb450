//! Measures memory pressure: the time that threads of a run lose waiting for memory, in the
//! kernel's figures (PSI).
//!
//! A stall begins when a fault needs a stored page or free memory, or has to pause above
//! `--memory-high`. It ends with its [`Stall`], however the fault ends. First-touch faults and
//! reactivations that are served at once are no stalls, as in the kernel. Productive threads beside
//! them are not visible from outside. So the monitor counts the running threads now and then
//! ([`Pressure::found_running`]). In between, threads that resume are added.
//!
//! A run is one memcg and also the whole of its node, so one pair of lines describes both.

use crate::wait::clock::Clock;
use ebb_mm::observe::psi::Psi;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Interval at which the running threads are to be counted; the kernel uses the same.
pub const COUNT_EVERY: Duration = Duration::from_secs(2);

/// Memory pressure of a run.
#[derive(Debug)]
pub struct Pressure {
    psi: Mutex<Psi>,
    began: Instant,
    clock: Clock,
}

/// A thread that waits for memory, for the lifetime of this value.
#[derive(Debug)]
pub struct Stall(Arc<Pressure>);

impl Drop for Stall {
    fn drop(&mut self) {
        let now_ns = self.0.now_ns();
        self.0.psi().resume(now_ns);
    }
}

impl Pressure {
    #[must_use]
    pub fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self { psi: Mutex::new(Psi::new(0)), began: clock.now(), clock })
    }

    fn now_ns(&self) -> u64 {
        self.clock.since(self.began).as_nanos() as u64
    }

    fn psi(&self) -> MutexGuard<'_, Psi> {
        self.psi.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Begins the stall of a thread.
    #[must_use]
    pub fn stall(self: &Arc<Self>) -> Stall {
        let now_ns = self.now_ns();
        self.psi().stall(now_ns);
        Stall(self.clone())
    }

    /// Notes that `threads` threads of the tree run now.
    pub fn found_running(&self, threads: u32) {
        let now_ns = self.now_ns();
        self.psi().set_running(now_ns, threads);
    }

    /// Returns the figures as of now.
    #[must_use]
    pub fn now(&self) -> Psi {
        let now_ns = self.now_ns();
        let mut psi = self.psi();
        psi.advance(now_ns);
        psi.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stall_ends_with_its_fault_and_is_full_while_no_thread_runs() {
        let clock = Clock::simulated();
        let pressure = Pressure::new(clock.clone());
        let passes = || clock.advance(Duration::from_millis(20));
        pressure.found_running(2);
        let first = pressure.stall();
        passes();
        let second = pressure.stall();
        passes();
        drop((first, second));
        passes();
        let psi = pressure.now();
        let (some, full) = (psi.some().total_us, psi.full().total_us);
        assert_eq!((some, full), (40_000, 20_000));
        assert_eq!(pressure.now().some().total_us, some, "nobody waits");
    }
}
