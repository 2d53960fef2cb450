//! What passes of a fault before its message is read, and after its thread is woken: estimated.
//!
//! No message says when its thread touched the page. But the kernel says of any thread how long it has run, how long it
//! has waited for a CPU, and how often it has begun to run. So one thread at a time is followed: looked at just before it
//! is woken, and again just before it is woken some faults later. If it has gone to sleep once for each of these
//! faults it has slept for nothing else: the time from the one wake-up to the last message, less the time in which it
//! ran and the time in which its faults were served, is what passed before messages and after wake-ups.
//!
//! * UNSEEN-1: a look costs microseconds, so there are two in some hundred faults. Nearly all faults of a thread that faults
//!   alone are covered all the same: waits have long tails where CPUs are busy, and samples of single ones would tell
//!   little of their sum.
//! * UNSEEN-2: every other window is one fault long. These tell how waits are distributed; and where windows of several
//!   faults are of no use, since the thread sleeps for other reasons, too, they are all there is.
//! * UNSEEN-3: which part of a window was before and which after is known only as far as the thread waited for a CPU after it
//!   was woken; of the rest a thread on the fault thread's own CPU has lost all before (a wake-up there is a switch), one
//!   on another CPU half on either side (each is an interrupt).
//! * UNSEEN-4: a thread that has begun to run more often than it has slept was driven off its CPU meanwhile. What it waited
//!   for the CPU then beyond what windows without that say of the wait after a wake-up is a fault's only as far as it
//!   ran in one: in proportion.
//! * UNSEEN-5: what the kernel does in the thread itself, on its way to sleep and back, counts as running in all of this. It
//!   is measured apart ([`crate::own_cost`]).

use crate::stages::{Served, Times};
use ebb_sys::percpu::cpu_hint;
use ebb_sys::sched::{self, RunTimes};
use ebb_sys::ticks;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// The longest window, in faults.
const WINDOW_MAX: u32 = 512;
/// Faults of others in a row after which a thread is given up that does not fault again.
const PATIENCE: u32 = 256;
/// Faults of a rest.
const REST: u32 = 1024;
/// Windows of one fault before there are rests.
const RESTLESS: u64 = 16;

/// What the windows say, in nanoseconds. An estimate.
#[derive(Clone, Debug, Default)]
pub struct Samples {
    /// Faults in all windows, and what passed before and after them.
    pub faults: u64,
    before_ns: u64,
    after_ns: u64,
    /// How long threads ran in all windows, and were kept from running when they were driven off their CPU.
    ran_ns: u64,
    driven_off_ns: u64,
    /// Of single ones.
    pub before: Times,
    pub after: Times,
    /// Faults in windows whose thread was not driven off its CPU, and what it waited for that.
    calm: u64,
    queued_ns: u64,
    /// Windows that told nothing: their thread did something else in between.
    pub unclear: u64,
    /// Looks at which CPU a thread was on, and how many found it on the fault thread's.
    looks: u64,
    beside: u64,
}

impl Samples {
    /// What passes before a message is read, on average.
    #[must_use]
    pub fn before_ns(&self) -> u64 {
        self.before_ns.checked_div(self.faults).unwrap_or(0)
    }

    /// What passes from a wake-up until the thread runs, on average.
    #[must_use]
    pub fn after_ns(&self) -> u64 {
        self.after_ns.checked_div(self.faults).unwrap_or(0)
    }

    /// What a thread that runs for `in_thread_ns` in a fault is kept from running there, and from one to the next, on
    /// average.
    #[must_use]
    pub fn driven_off_ns(&self, in_thread_ns: u64) -> (u64, u64) {
        let in_faults = (in_thread_ns * self.faults).min(self.ran_ns) as f64;
        let share = in_faults / self.ran_ns.max(1) as f64;
        let each = self.driven_off_ns as f64 / self.faults.max(1) as f64;
        ((each * share) as u64, (each * (1.0 - share)) as u64)
    }

    /// The share of faults served on the CPU of the program's thread; None if there was no look.
    #[must_use]
    pub fn beside_permille(&self) -> Option<u64> {
        (self.beside * 1000).checked_div(self.looks)
    }

    /// A window has ended. Whether it told something.
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

/// Some faults of a thread in a row, from one wake-up to another.
#[derive(Clone, Copy, Debug)]
struct Window {
    /// From its first wake-up to the reading of its last message.
    passed_ns: u64,
    /// How long the faults between them were served.
    served_ns: u64,
    faults: u32,
    /// What the thread did meanwhile.
    did: RunTimes,
    /// How often it has gone to sleep.
    slept: u64,
    beside: bool,
}

struct Lost {
    before: u64,
    after: u64,
    /// Driven off its CPU.
    driven_off: u64,
}

impl Window {
    fn was_driven_off(&self) -> bool {
        self.did.arrivals > self.slept
    }

    /// What was lost and not seen; None if the thread did something else, too.
    fn lost(&self, queued_ns: u64) -> Option<Lost> {
        let faults = u64::from(self.faults);
        let driven_off = self.was_driven_off();
        // One that was served before its thread was asleep is none.
        let slept = faults - faults / 8..=faults;
        if !slept.contains(&self.slept) || driven_off && self.faults == 1 {
            return None;
        }
        let lost = self.passed_ns.checked_sub(self.did.ran_ns + self.served_ns)?;
        let waited = self.did.waited_ns.min(lost);
        // UNSEEN-4
        let queued = if driven_off { waited.min(faults * queued_ns) } else { waited };
        let driven_off = waited - queued;
        let lost = lost - driven_off;
        // UNSEEN-3
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
struct Books {
    follow: Option<Follow>,
    samples: Samples,
    /// How long the next window of several faults is.
    window: u32,
    /// The one under way is of one fault.
    single: bool,
    beside: bool,
    /// Nobody is followed for some faults.
    resting: bool,
}

impl Books {
    /// Begins or ends a rest. Short windows are of use where there is nothing else, and dear: there is a rest before
    /// each (UNSEEN-1), but before the first.
    fn take_rest(&mut self) -> bool {
        let short = self.single && self.window <= PATIENCE / 2 && self.samples.looks > RESTLESS;
        self.resting = short && !self.resting;
        self.resting
    }
}

/// What the fault threads share. One word that all of them read, and what the followed thread's faults change.
#[derive(Debug)]
pub struct Unseen {
    /// Who is followed; 0: nobody.
    followed: Alone<AtomicU32>,
    tally: Alone<Tally>,
    books: Mutex<Books>,
}

/// On cache lines of its own.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Alone<T>(T);

#[derive(Debug, Default)]
struct Tally {
    /// Faults of the followed thread until the window ends.
    left: AtomicU32,
    /// How long those before the last were served, in ticks.
    served: AtomicU64,
    /// Faults of others, in a row, until it is given up; any, until the rest is over.
    patience: AtomicU32,
}

impl Default for Unseen {
    fn default() -> Self {
        Self {
            followed: Alone::default(),
            tally: Alone::default(),
            books: Mutex::new(Books {
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
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the windows say so far.
    #[must_use]
    pub fn samples(&self) -> Samples {
        self.books().samples.clone()
    }

    /// Counts a fault whose thread is woken next, at `woken`. Whether a look at that thread is due.
    pub fn count_served(&self, served: &Served, woken: u64) -> bool {
        let followed = self.followed.0.load(Relaxed);
        if followed != served.thread {
            return self.tally.0.patience.fetch_sub(1, Relaxed) <= 1;
        }
        self.tally.0.patience.store(PATIENCE, Relaxed);
        // The last one is served after its message was read: it belongs to the next window.
        let last = self.tally.0.left.fetch_sub(1, Relaxed) <= 1;
        if !last {
            self.tally.0.served.fetch_add(ticks::since(served.read, woken), Relaxed);
        }
        last
    }

    /// A window ends, and the next begins.
    #[cold]
    pub fn turn(&self, pid: u32, served: &Served, ns_per_tick: f64) {
        let mut books = self.books();
        let did = sched::run_times_in(pid, served.thread)
            .and_then(|times| Some((times, sched::sleeps_in(pid, served.thread)?)));
        self.end(&mut books, served, did, ns_per_tick);
        // As it sees itself: in a process namespace of its own it cannot be found.
        let Some((times, slept)) = did else { return };
        if books.take_rest() {
            self.tally.0.patience.store(REST, Relaxed);
            return;
        }
        books.single = !books.single;
        if books.single {
            let on = sched::cpu_of(served.thread);
            books.beside = on.is_some_and(|cpu| cpu as usize == cpu_hint());
            books.samples.looks += 1;
            books.samples.beside += u64::from(books.beside);
        }
        let (thread, beside) = (served.thread, books.beside);
        let window = if books.single { 1 } else { books.window };
        self.tally.0.left.store(window, Relaxed);
        self.tally.0.served.store(0, Relaxed);
        books.follow = Some(Follow { thread, woken: Instant::now(), times, slept, beside });
        self.followed.0.store(thread, Relaxed);
    }

    fn end(
        &self,
        books: &mut Books,
        served: &Served,
        did: Option<(RunTimes, u64)>,
        ns_per_tick: f64,
    ) {
        self.followed.0.store(0, Relaxed);
        self.tally.0.patience.store(PATIENCE, Relaxed);
        let Some(follow) = books.follow.take() else { return };
        let faults = if books.single { 1 } else { books.window };
        let good = match did {
            Some((times, slept)) if follow.thread == served.thread => {
                let passed = served.since.saturating_duration_since(follow.woken);
                books.samples.add(&Window {
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
        if !books.single {
            let next = if good { books.window * 2 } else { books.window / 2 };
            books.window = next.clamp(1, WINDOW_MAX);
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
    fn what_a_thread_neither_ran_nor_was_served_is_lost() {
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
    fn a_thread_that_slept_for_something_else_or_was_not_asleep_yet_tells_nothing() {
        let mut samples = Samples::default();
        assert!(!samples.add(&window(4, 5, true)));
        assert!(!samples.add(&Window { served_ns: 60_000, ..window(4, 4, true) }));
        assert!(!samples.add(&window(16, 13, true)));
        assert_eq!((samples.faults, samples.unclear, samples.before_ns()), (0, 3, 0));
        assert_eq!(samples.beside_permille(), None);
    }

    #[test]
    fn what_a_thread_waited_that_was_driven_off_its_cpu_is_no_fault_s() {
        let mut samples = Samples::default();
        assert!(samples.add(&window(4, 4, true)));
        let mut disturbed = window(8, 8, true);
        (disturbed.did.arrivals, disturbed.did.waited_ns) = (9, 20_000);
        assert!(samples.add(&disturbed));
        // A wait of 1 us after each wake-up is what the calm window says; of the 20 us 12 are not after one.
        assert_eq!(samples.after_ns(), (4_000 + 8_000) / 12);
        assert_eq!(samples.before_ns(), (36_000 + 20_000) / 12, "UNSEEN-4");
        // It ran for 120 us, in each of the 12 faults for 5: half of the time.
        assert_eq!(samples.driven_off_ns(5_000), (12_000 / 2 / 12, 12_000 / 2 / 12));
        assert_eq!(samples.driven_off_ns(50_000), (12_000 / 12, 0), "no more than all");
        disturbed.faults = 1;
        assert!(!samples.add(&Window { slept: 1, ..disturbed }));
    }
}
