//! Handing faults over on one CPU.
//!
//! A fault is a hand-over: the thread that touches sleeps, the fault thread wakes and answers, and
//! back. From CPU to CPU each of the two wake-ups costs an interrupt, and one to a CPU that has gone to
//! sleep tens of microseconds in a virtual machine; on one CPU both are plain switches. So where a
//! single thread of the program faults, the fault thread follows it to its CPU and runs there in the
//! idle class: to the scheduler such a CPU is idle, so it wakes the program's thread there and nowhere
//! else, and lets it run at once. While a page is on its way the fault thread may then spin: it takes
//! nothing from anybody.
//!
//! The price is that every other thread on that CPU goes first. Hence:
//! * S1: a second thread that faults ends it (the fault thread sees that itself);
//! * S2: touches that wait while the fault thread gets nowhere end it (the monitor sees that);
//! * S3: after either it is not tried again for a while, and each time for longer;
//! * S4: kswapd keeps off that CPU.

use ebb_sys::sched::{self, CpuSet};
use std::sync::OnceLock;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};
use std::time::{Duration, Instant};

/// No CPU.
const NOWHERE: u32 = u32::MAX;
/// Faults between two looks that make it worth while.
const FAULTS_MIN: u64 = 8;
/// Looks without progress that the fault thread is given: less is a batch of moves on its CPU.
const STARVED_MAX: u32 = 3;
/// How long to wait after the first failure.
const HOLD_MIN: Duration = Duration::from_millis(50);
const HOLD_MAX: Duration = Duration::from_secs(5);
/// How long it must have gone well for an earlier failure to be forgotten.
const GOOD: Duration = Duration::from_secs(1);

/// What fault thread and monitor share.
#[derive(Debug)]
pub struct Solo {
    /// The CPUs there are; absent if it cannot be done here.
    all: OnceLock<CpuSet>,
    faults_thread: AtomicU32,
    kswapd_thread: AtomicU32,
    /// The CPU the fault thread stays on.
    beside: AtomicU32,
    /// Who faulted last; whether others did since the last look; how many faults there were.
    last: AtomicU32,
    mixed: AtomicBool,
    faults: AtomicU64,
}

impl Default for Solo {
    fn default() -> Self {
        Self {
            all: OnceLock::new(),
            faults_thread: AtomicU32::new(0),
            kswapd_thread: AtomicU32::new(0),
            beside: AtomicU32::new(NOWHERE),
            last: AtomicU32::new(0),
            mixed: AtomicBool::new(false),
            faults: AtomicU64::new(0),
        }
    }
}

impl Solo {
    /// The fault thread begins. `wanted` says whether it may ever follow.
    pub fn begin(&self, wanted: bool) {
        self.faults_thread.store(sched::this_thread(), Relaxed);
        // A kernel or rights without classes: then all stays as it is.
        let _ = sched::run_soon(0);
        if !wanted {
            return;
        }
        // Who may not leave the idle class again must not enter it: tried by a thread of its own.
        let can_return =
            std::thread::spawn(|| sched::run_when_idle(0).is_ok() && sched::run_soon(0).is_ok());
        let all = CpuSet::of_this_thread();
        if let (Ok(true), Ok(all)) = (can_return.join(), all)
            && all.count() > 1
        {
            let _ = self.all.set(all);
        }
    }

    /// kswapd begins.
    pub fn begin_kswapd(&self) {
        self.kswapd_thread.store(sched::this_thread(), Relaxed);
    }

    /// The fault thread stays beside the program's.
    pub fn is_on(&self) -> bool {
        self.beside.load(Relaxed) != NOWHERE
    }

    /// Thread `thread` of the program faulted (S1).
    pub fn note(&self, thread: u32) {
        self.faults.store(self.faults.load(Relaxed) + 1, Relaxed);
        if self.last.load(Relaxed) != thread {
            self.last.store(thread, Relaxed);
            self.mixed.store(true, Relaxed);
            if self.is_on() {
                self.leave();
            }
        }
    }

    fn enter(&self, cpu: u32) {
        let Some(all) = self.all.get() else { return };
        let faults = self.faults_thread.load(Relaxed);
        let beside = CpuSet::only(cpu).confine(faults).and_then(|()| sched::run_when_idle(faults));
        if beside.is_err() {
            self.leave();
            return;
        }
        // S4. It has run there until now; at worst it does once more.
        let _ = all.without(cpu).confine(self.kswapd_thread.load(Relaxed));
        self.beside.store(cpu, Relaxed);
    }

    fn leave(&self) {
        self.beside.store(NOWHERE, Relaxed);
        let Some(all) = self.all.get() else { return };
        let faults = self.faults_thread.load(Relaxed);
        // Both were possible a moment ago; a thread that is gone needs neither.
        let _ = sched::run_soon(faults);
        let _ = all.confine(faults);
        let _ = all.confine(self.kswapd_thread.load(Relaxed));
    }
}

/// The monitor's part.
#[derive(Debug)]
pub struct Watch {
    faults: u64,
    /// Looks in a row that found touches waiting and none answered.
    starved: u32,
    was_on: bool,
    since: Instant,
    hold_until: Instant,
    hold: Duration,
}

impl Watch {
    pub fn new(now: Instant) -> Self {
        Self { faults: 0, starved: 0, was_on: false, since: now, hold_until: now, hold: HOLD_MIN }
    }

    /// One look. `waiting` says whether touches wait to be read.
    pub fn look(&mut self, solo: &Solo, now: Instant, waiting: impl FnOnce() -> bool) {
        let Some(all) = solo.all.get() else { return };
        let faults = solo.faults.load(Relaxed);
        let new = faults - std::mem::replace(&mut self.faults, faults);
        let mixed = solo.mixed.swap(false, Relaxed);
        let on = solo.is_on();
        self.starved = if on && new == 0 && waiting() { self.starved + 1 } else { 0 };
        if self.starved == STARVED_MAX {
            solo.leave();
        }
        if self.was_on && !solo.is_on() {
            // S3.
            self.hold_until = now + self.hold;
            self.hold = (self.hold * 2).min(HOLD_MAX);
            self.was_on = false;
            return;
        }
        if on {
            if now.duration_since(self.since) > GOOD {
                self.hold = HOLD_MIN;
            }
            self.follow(solo, all, new);
            return;
        }
        if mixed || new < FAULTS_MIN || now < self.hold_until {
            return;
        }
        if let Some(cpu) = sched::cpu_of(solo.last.load(Relaxed)).filter(|&cpu| all.contains(cpu)) {
            solo.enter(cpu);
            (self.was_on, self.since) = (solo.is_on(), now);
        }
    }

    /// The program's thread may have been moved to another CPU.
    fn follow(&self, solo: &Solo, all: &CpuSet, new: u64) {
        if new < FAULTS_MIN {
            return;
        }
        let Some(cpu) = sched::cpu_of(solo.last.load(Relaxed)) else { return };
        if cpu != solo.beside.load(Relaxed) && all.contains(cpu) {
            solo.enter(cpu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fault thread that lives as long as the test.
    fn solo() -> (Solo, bool) {
        let solo = Solo::default();
        solo.begin(true);
        solo.begin_kswapd();
        let possible = solo.all.get().is_some();
        (solo, possible)
    }

    #[test]
    fn one_faulting_thread_is_followed_and_a_second_ends_it() {
        let (solo, possible) = solo();
        let now = Instant::now();
        let mut watch = Watch::new(now);
        let me = sched::this_thread();
        (0..100).for_each(|_| solo.note(me));
        watch.look(&solo, now, || false);
        assert!(!solo.is_on(), "the first fault came from a new thread");
        (0..100).for_each(|_| solo.note(me));
        watch.look(&solo, now, || false);
        assert_eq!(solo.is_on(), possible);
        solo.note(me + 1);
        assert!(!solo.is_on());
        // Not again before the hold is over.
        (0..100).for_each(|_| solo.note(me));
        watch.look(&solo, now, || false);
        (0..100).for_each(|_| solo.note(me));
        watch.look(&solo, now, || false);
        assert!(!solo.is_on());
        (0..100).for_each(|_| solo.note(me));
        watch.look(&solo, now + 2 * HOLD_MIN, || false);
        assert_eq!(solo.is_on(), possible);
    }

    #[test]
    fn touches_that_nobody_reads_end_it() {
        let (solo, possible) = solo();
        let now = Instant::now();
        let mut watch = Watch::new(now);
        let me = sched::this_thread();
        for _ in 0..2 {
            (0..100).for_each(|_| solo.note(me));
            watch.look(&solo, now, || false);
        }
        assert_eq!(solo.is_on(), possible);
        watch.look(&solo, now, || false);
        assert_eq!(solo.is_on(), possible, "an idle program starves nobody");
        (1..STARVED_MAX).for_each(|_| watch.look(&solo, now, || true));
        assert_eq!(solo.is_on(), possible, "a moment is no starvation");
        watch.look(&solo, now, || true);
        assert!(!solo.is_on());
    }
}
