//! Estimates the time of a fault before its message is read, and after its thread is woken.
//!
//! No message says when its thread faulted. But the kernel reports some figures of any thread: how
//! long it has run, how long it has waited for a CPU, and how often it has started to run. So the
//! pager follows one thread at a time. It samples the thread just before a wakeup, and again just
//! before a wakeup some faults later. If the thread has slept once per fault in between, it has
//! slept for nothing else. The time from the first wakeup to the last message is then known. Minus
//! the time in which the thread ran and its faults were served, it is the time before messages and
//! after wakeups.
//!
//! * UNSEEN-1: a sample costs microseconds, so there are two in some hundred faults. The windows
//!   still cover nearly all faults of a thread that faults alone. Waits have long tails on busy
//!   CPUs, and samples of single faults would say little about their sum.
//! * UNSEEN-2: every other window is one fault long. These windows show the distribution of waits.
//!   If a thread also sleeps for other reasons, longer windows are of no use, and only the short
//!   ones remain.
//! * UNSEEN-3: the division of a window into before and after is known only for the wait for a CPU
//!   after the wakeup. For a thread on the fault thread's own CPU, all the rest counts as before,
//!   because a wakeup there is a switch. For a thread on another CPU, half of it counts on either
//!   side, because each is an interrupt.
//! * UNSEEN-4: a thread that started to run more often than it slept was preempted meanwhile.
//!   Windows without preemption show the usual wait after a wakeup. Only the part of the longer
//!   wait that fell into faults counts for them: in proportion to the time that it ran in faults.
//! * UNSEEN-5: kernel work in the thread itself, on its way to sleep and back, counts as running in
//!   all of this. It is measured separately ([`crate::telemetry::own_cost`]).

use crate::telemetry::stages::{Served, Times};
use ebb_sys::percpu::cpu_hint;
use ebb_sys::sched::{self, RunTimes};
use ebb_sys::ticks;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// Length of the longest window, in faults.
const WINDOW_MAX: u32 = 512;
/// Number of faults of other threads in a row after which the pager stops following a thread.
const PATIENCE: u32 = 256;
/// Length of a rest, in faults.
const REST: u32 = 1024;
/// Number of windows of one fault before rests begin.
const RESTLESS: u64 = 16;

/// Results of the windows, in nanoseconds. An estimate.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Faults in all windows; time before and after them.
    pub faults: u64,
    before_ns: u64,
    after_ns: u64,
    /// Time that threads ran in all windows, and time that they waited after preemption.
    ran_ns: u64,
    driven_off_ns: u64,
    /// Times before single faults; `after` holds the times after them.
    pub before: Times,
    pub after: Times,
    /// Faults in windows without preemption, and the time that their threads waited for a CPU.
    calm: u64,
    queued_ns: u64,
    /// Windows without a result, because their thread did something else in between.
    pub unclear: u64,
    /// Number of checks on which CPU a thread was, and how many found it on the fault thread's CPU.
    looks: u64,
    beside: u64,
}

impl Samples {
    /// Returns the mean time before a message is read.
    #[must_use]
    pub fn before_ns(&self) -> u64 {
        self.before_ns.checked_div(self.faults).unwrap_or(0)
    }

    /// Returns the mean time from a wakeup until the thread runs.
    #[must_use]
    pub fn after_ns(&self) -> u64 {
        self.after_ns.checked_div(self.faults).unwrap_or(0)
    }

    /// Returns the mean waits after preemption of a thread that runs for `in_thread_ns` in a fault:
    /// within a fault, and between two faults.
    #[must_use]
    pub fn driven_off_ns(&self, in_thread_ns: u64) -> (u64, u64) {
        let in_faults = (in_thread_ns * self.faults).min(self.ran_ns) as f64;
        let share = in_faults / self.ran_ns.max(1) as f64;
        let each = self.driven_off_ns as f64 / self.faults.max(1) as f64;
        ((each * share) as u64, (each * (1.0 - share)) as u64)
    }

    /// Returns the share of faults served on the CPU of the program's thread; None if there was no
    /// check.
    #[must_use]
    pub fn beside_permille(&self) -> Option<u64> {
        (self.beside * 1000).checked_div(self.looks)
    }

    /// Adds a window that has ended. Returns whether it gave a result.
    fn add(&mut self, window: &Window) -> bool {
        let queued_ns = self.queued_ns.checked_div(self.calm).unwrap_or(0);
        let Some(Lost { before, after, driven_off }) = window.lost(queued_ns) else {
            self.unclear += 1;
            return false;
        };
        if !window.was_driven_off() {
            self.calm += u64::from(window.faults);
            self.queued_ns += window.did.waited_ns;
        }
        self.faults += u64::from(window.faults);
        self.before_ns += before;
        self.after_ns += after;
        self.ran_ns += window.did.ran_ns;
        self.driven_off_ns += driven_off;
        if window.faults == 1 {
            self.before.record(before, 1);
            self.after.record(after, 1);
        }
        true
    }
}

/// Some consecutive faults of a thread, from one wakeup to another.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// Time from its first wakeup to the reading of its last message.
    passed_ns: u64,
    /// Time in which the faults between them were served.
    served_ns: u64,
    faults: u32,
    /// Activity of the thread meanwhile.
    did: RunTimes,
    /// Number of times that the thread has gone to sleep.
    slept: u64,
    beside: bool,
}

struct Lost {
    before: u64,
    after: u64,
    /// Wait after preemption.
    driven_off: u64,
}

impl Window {
    fn was_driven_off(&self) -> bool {
        self.did.arrivals > self.slept
    }

    /// Returns the unseen time; None if the thread did something else, too.
    fn lost(&self, queued_ns: u64) -> Option<Lost> {
        let faults = u64::from(self.faults);
        let driven_off = self.was_driven_off();
        // A fault served before its thread was asleep has no sleep.
        let slept = faults - faults / 8..=faults;
        if !slept.contains(&self.slept) || driven_off && self.faults == 1 {
            return None;
        }
        let lost = self.passed_ns.checked_sub(self.did.ran_ns + self.served_ns)?;
        let waited = self.did.waited_ns.min(lost);
        // UNSEEN-4.
        let queued = if driven_off { waited.min(faults * queued_ns) } else { waited };
        let driven_off = waited - queued;
        let lost = lost - driven_off;
        // UNSEEN-3.
        let woke = if self.beside { 0 } else { (lost - queued) / 2 };
        let after = queued + woke;
        Some(Lost { before: lost - after, after, driven_off })
    }
}

/// A window under way.
#[derive(Clone, Copy, Debug)]
struct Follow {
    thread: u32,
    woken: Instant,
    times: RunTimes,
    slept: u64,
    beside: bool,
}

#[derive(Debug)]
struct WindowState {
    follow: Option<Follow>,
    samples: Samples,
    /// Length of the next window of several faults.
    window: u32,
    /// Whether the window under way is of one fault.
    single: bool,
    beside: bool,
    /// Whether no thread is followed for some faults.
    resting: bool,
}

impl WindowState {
    /// Begins or ends a rest. Short windows are useful only if longer ones fail, and they are
    /// expensive. So a rest comes before each but the first (UNSEEN-1).
    fn take_rest(&mut self) -> bool {
        let short = self.single && self.window <= PATIENCE / 2 && self.samples.looks > RESTLESS;
        self.resting = short && !self.resting;
        self.resting
    }
}

/// State shared by the fault threads: one word that all of them read, and data that faults of the
/// followed thread change.
#[derive(Debug)]
pub struct Unseen {
    /// The followed thread; 0 if there is none.
    followed: Alone<AtomicU32>,
    tally: Alone<Tally>,
    state: Mutex<WindowState>,
}

/// A value on cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Alone<T>(T);

#[derive(Debug, Default)]
struct Tally {
    /// Number of faults of the followed thread until the window ends.
    left: AtomicU32,
    /// Service time of those before the last, in ticks.
    served: AtomicU64,
    /// Number of faults of other threads in a row until the thread is given up. During a rest,
    /// number of any faults until its end.
    patience: AtomicU32,
}

impl Default for Unseen {
    fn default() -> Self {
        Self {
            followed: Alone::default(),
            tally: Alone::default(),
            state: Mutex::new(WindowState {
                follow: None,
                samples: Samples::default(),
                window: 8,
                single: false,
                beside: false,
                resting: false,
            }),
        }
    }
}

impl Unseen {
    fn lock(&self) -> MutexGuard<'_, WindowState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the results of the windows.
    #[must_use]
    pub fn samples(&self) -> Samples {
        self.lock().samples.clone()
    }

    /// Counts a fault whose thread is woken next, at `woken`. Returns whether a sample of that
    /// thread is due.
    pub fn count_served(&self, served: &Served, woken: u64) -> bool {
        let followed = self.followed.0.load(Relaxed);
        if followed != served.thread {
            return self.tally.0.patience.fetch_sub(1, Relaxed) <= 1;
        }
        self.tally.0.patience.store(PATIENCE, Relaxed);
        // The last fault is served after its message was read, so it belongs to the next window.
        let last = self.tally.0.left.fetch_sub(1, Relaxed) <= 1;
        if !last {
            self.tally.0.served.fetch_add(ticks::since(served.read, woken), Relaxed);
        }
        last
    }

    /// Ends a window and begins the next.
    #[cold]
    pub fn turn(&self, pid: u32, served: &Served, ns_per_tick: f64) {
        let mut state = self.lock();
        let did = sched::run_times_in(pid, served.thread)
            .and_then(|times| Some((times, sched::sleeps_in(pid, served.thread)?)));
        self.end(&mut state, served, did, ns_per_tick);
        // The thread number is the program's own. In another process namespace the thread cannot be
        // found.
        let Some((times, slept)) = did else { return };
        if state.take_rest() {
            self.tally.0.patience.store(REST, Relaxed);
            return;
        }
        state.single = !state.single;
        if state.single {
            let on = sched::cpu_of(served.thread);
            state.beside = on.is_some_and(|cpu| cpu as usize == cpu_hint());
            state.samples.looks += 1;
            state.samples.beside += u64::from(state.beside);
        }
        let (thread, beside) = (served.thread, state.beside);
        let window = if state.single { 1 } else { state.window };
        self.tally.0.left.store(window, Relaxed);
        self.tally.0.served.store(0, Relaxed);
        state.follow = Some(Follow { thread, woken: Instant::now(), times, slept, beside });
        self.followed.0.store(thread, Relaxed);
    }

    fn end(
        &self,
        state: &mut WindowState,
        served: &Served,
        did: Option<(RunTimes, u64)>,
        ns_per_tick: f64,
    ) {
        self.followed.0.store(0, Relaxed);
        self.tally.0.patience.store(PATIENCE, Relaxed);
        let Some(follow) = state.follow.take() else { return };
        let faults = if state.single { 1 } else { state.window };
        let good = match did {
            Some((times, slept)) if follow.thread == served.thread => {
                let passed = served.since.saturating_duration_since(follow.woken);
                state.samples.add(&Window {
                    passed_ns: passed.as_nanos() as u64,
                    served_ns: (self.tally.0.served.load(Relaxed) as f64 * ns_per_tick) as u64,
                    faults,
                    did: times.since(&follow.times),
                    slept: slept.saturating_sub(follow.slept),
                    beside: follow.beside,
                })
            }
            _ => false,
        };
        if !state.single {
            let next = if good { state.window * 2 } else { state.window / 2 };
            state.window = next.clamp(1, WINDOW_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(faults: u32, slept: u64, beside: bool) -> Window {
        let did = RunTimes { ran_ns: 60_000, waited_ns: 4_000, arrivals: slept };
        Window { passed_ns: 110_000, served_ns: 10_000, faults, did, slept, beside }
    }

    #[test]
    fn time_in_which_a_thread_neither_ran_nor_was_served_is_lost() {
        let mut samples = Samples::default();
        assert!(samples.add(&window(4, 4, true)));
        assert_eq!((samples.before_ns(), samples.after_ns()), (36_000 / 4, 4_000 / 4));
        let mut samples = Samples::default();
        assert!(samples.add(&window(4, 4, false)));
        assert_eq!((samples.before_ns(), samples.after_ns()), (18_000 / 4, 22_000 / 4), "UNSEEN-3");
        assert_eq!(samples.before.count, 0);
        assert!(samples.add(&window(1, 1, true)));
        assert_eq!((samples.before.total, samples.after.total), (36_000, 4_000), "UNSEEN-2");
        assert_eq!(samples.before_ns(), 54_000 / 5);
    }

    #[test]
    fn a_thread_that_slept_for_another_reason_or_not_yet_gives_no_sample() {
        let mut samples = Samples::default();
        assert!(!samples.add(&window(4, 5, true)));
        assert!(!samples.add(&Window { served_ns: 60_000, ..window(4, 4, true) }));
        assert!(!samples.add(&window(16, 13, true)));
        assert_eq!((samples.faults, samples.unclear, samples.before_ns()), (0, 3, 0));
        assert_eq!(samples.beside_permille(), None);
    }

    #[test]
    fn the_wait_of_a_preempted_thread_counts_for_no_fault() {
        let mut samples = Samples::default();
        assert!(samples.add(&window(4, 4, true)));
        let mut disturbed = window(8, 8, true);
        (disturbed.did.arrivals, disturbed.did.waited_ns) = (9, 20_000);
        assert!(samples.add(&disturbed));
        // The calm window shows a wait of 1 us after each wakeup. So 12 of the 20 us are from
        // preemption.
        assert_eq!(samples.after_ns(), (4_000 + 8_000) / 12);
        assert_eq!(samples.before_ns(), (36_000 + 20_000) / 12, "UNSEEN-4");
        // It ran for 120 us, in each of the 12 faults for 5 us: half of the time.
        assert_eq!(samples.driven_off_ns(5_000), (12_000 / 2 / 12, 12_000 / 2 / 12));
        assert_eq!(samples.driven_off_ns(50_000), (12_000 / 12, 0), "no more than all");
        disturbed.faults = 1;
        assert!(!samples.add(&Window { slept: 1, ..disturbed }));
    }
}
