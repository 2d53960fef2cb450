//! Handing faults over on one CPU.
//!
//! A fault is a hand-over: the thread that touches sleeps, the fault thread wakes and answers, and
//! back. From CPU to CPU each of the two wake-ups costs an interrupt, and one to a CPU that has gone to
//! sleep tens of microseconds in a virtual machine; on one CPU both are plain switches. So where a
//! single thread of the program faults, the fault thread follows it to its CPU and runs there in the
//! idle class: to the scheduler such a CPU is idle, so it wakes the program's thread there and nowhere
//! else, and lets it run at once.
//!
//! Where several threads fault on a machine of two CPUs there is a fault thread on each, in the idle class, and both listen: the
//! kernel tells every listener of a touch, and one that is on a busy CPU costs nothing by that, since it does not go before
//! anybody. Who touches sleeps, so the one on that CPU is the first to run.
//!
//! The price is that every other thread on such a CPU goes first. Hence:
//! * FOLLOW-1: a second thread that faults ends the one and begins the other (the fault thread sees that itself); the way back is
//!   when for some time only one has faulted;
//! * FOLLOW-2: touches that wait while no fault thread gets anywhere end both, and others that keep the CPU of a single fault
//!   thread busy end that: it waits for longer than the program's thread runs (the monitor sees both);
//! * FOLLOW-3: after either it is not tried again for a while, for longer each time that it did not last;
//! * FOLLOW-4: kswapd and the agents keep off the CPU of a single fault thread: what they do in turns costs least on one, and
//!   the fault thread would wait for them;
//! * FOLLOW-5: whoever is called off is put into the normal class at once: it may hold a lock;
//! * FOLLOW-6: what such a thread reads is read as if it were of the normal class: a scheduler of disks (mq-deadline) gives the idle
//!   class its turn when nobody else's request is under way, and forgets about it for up to 10 ms then.

use ebb_sys::sched::{self, CpuSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// No CPU.
pub const NOWHERE: u32 = u32::MAX;
/// Beside all CPUs.
const EVERYWHERE: u32 = u32::MAX - 1;
/// Most CPUs that have a fault thread each: all of them are told of every touch, and ask for the same lock. Beside four
/// threads of a program on eight CPUs each waited 57 us for it, and a single fault thread 6: 259 thousand accesses a second by
/// eight, 403 by one, on sixteen CPUs 187 and 404 (`docs/results.md`). On two CPUs two are better.
pub const CPUS_MAX: usize = 2;
/// Looks in a row that found one thread to fault alone, before it has the fault threads for itself.
const CALM_LOOKS: u32 = 10;
/// Faults between two looks that make it worth while.
const FAULTS_MIN: u64 = 8;
/// Looks without progress that the fault thread is given: less is a batch of moves on its CPU.
const STARVED_MAX: u32 = 3;
/// The same where each CPU has one: on none of them did it run.
const STARVED_EVERYWHERE_MAX: u32 = 2;
/// How often to see whether others use the CPU, and the share of the time they may take, in permille.
const GAUGE: Duration = Duration::from_millis(30);
const OTHERS_MAX: u64 = 400;
/// How long to wait after the first failure.
const HOLD_MIN: Duration = Duration::from_millis(20);
const HOLD_MAX: Duration = Duration::from_secs(5);
/// A wait that this many times longer of going well have followed was long enough.
const GOOD_TIMES: u32 = 3;

/// What fault thread and monitor share.
#[derive(Debug)]
pub struct Solo {
    /// The CPUs there are; absent if it cannot be done here.
    all: OnceLock<CpuSet>,
    faults_thread: AtomicU32,
    kswapd_thread: AtomicU32,
    /// The CPU the fault thread stays on, or [`EVERYWHERE`].
    beside: AtomicU32,
    /// The threads of the CPUs, and which of them are called.
    others: [AtomicU32; CPUS_MAX],
    called: Mutex<[bool; CPUS_MAX]>,
    calls: Condvar,
    /// Who faulted last; how often that changed since the last look; how many faults there were.
    last: AtomicU32,
    changes: AtomicU32,
    faults: AtomicU64,
}

impl Default for Solo {
    fn default() -> Self {
        Self {
            all: OnceLock::new(),
            faults_thread: AtomicU32::new(0),
            kswapd_thread: AtomicU32::new(0),
            beside: AtomicU32::new(NOWHERE),
            others: Default::default(),
            called: Mutex::default(),
            calls: Condvar::new(),
            last: AtomicU32::new(0),
            changes: AtomicU32::new(0),
            faults: AtomicU64::new(0),
        }
    }
}

impl Solo {
    /// The fault thread begins. `wanted` says whether it may ever follow.
    pub fn begin(&self, wanted: bool) {
        self.faults_thread.store(sched::this_thread(), Relaxed);
        // A kernel or rights without classes: then all stays as it is.
        let _ = sched::keep_io_priority();
        let _ = sched::run_soon(0);
        if !wanted {
            return;
        }
        // Who may not leave the idle class again must not enter it: tried by a thread of its own.
        let attempt = std::thread::Builder::new()
            .spawn(|| sched::run_when_idle(0).is_ok() && sched::run_soon(0).is_ok());
        let can_return = attempt.is_ok_and(|attempt| attempt.join().unwrap_or(false));
        let all = CpuSet::of_this_thread();
        if let (true, Ok(all)) = (can_return, all)
            && all.count() > 1
        {
            let _ = self.all.set(all);
        }
    }

    /// The thread of the `place`th CPU begins.
    pub fn begin_beside(&self, place: usize) {
        let _ = sched::keep_io_priority();
        // It does no work before it is called, which it is only where both can be done.
        if let Ok(all) = CpuSet::of_this_thread()
            && let Some(cpu) = all.iter().nth(place)
        {
            let _ = CpuSet::only(cpu).confine(0);
            self.others[place].store(sched::this_thread(), Relaxed);
        }
    }

    /// Waits until the thread of the `place`th CPU is called.
    pub fn await_call(&self, place: usize) {
        let called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        // Nothing else is done with what the wait returns.
        drop(self.calls.wait_while(called, |called| !called[place]));
    }

    fn call(&self, called: [bool; CPUS_MAX]) {
        *self.called.lock().unwrap_or_else(PoisonError::into_inner) = called;
        self.calls.notify_all();
    }

    /// kswapd begins.
    pub fn begin_kswapd(&self) {
        self.kswapd_thread.store(sched::this_thread(), Relaxed);
    }

    /// The fault thread stays beside the program's.
    pub fn is_on(&self) -> bool {
        self.beside.load(Relaxed) != NOWHERE
    }

    /// The CPU that others keep off; [`NOWHERE`] if there is none.
    pub fn reserved(&self) -> u32 {
        match self.beside.load(Relaxed) {
            EVERYWHERE => NOWHERE,
            cpu => cpu,
        }
    }

    /// Each CPU has a fault thread.
    pub fn is_everywhere(&self) -> bool {
        self.beside.load(Relaxed) == EVERYWHERE
    }

    /// Has a thread keep off a CPU, or off none (FOLLOW-4).
    pub fn keep_off(&self, thread: u32, cpu: u32) {
        let Some(all) = self.all.get() else { return };
        let rest = if cpu == NOWHERE { *all } else { all.without(cpu) };
        // Somebody else's by now, or gone: it stays where it is.
        let _ = rest.confine(thread);
    }

    /// Thread `thread` of the program faulted (FOLLOW-1).
    pub fn note(&self, thread: u32) {
        self.faults.fetch_add(1, Relaxed);
        if self.last.load(Relaxed) != thread {
            self.last.store(thread, Relaxed);
            self.changes.fetch_add(1, Relaxed);
            if self.is_on() && !self.is_everywhere() {
                self.spread();
            }
        }
    }

    fn enter(&self, cpu: u32) {
        let Some(all) = self.all.get() else { return };
        self.call([false; CPUS_MAX]);
        let faults = self.faults_thread.load(Relaxed);
        let beside = CpuSet::only(cpu).confine(faults).and_then(|()| sched::run_when_idle(faults));
        if beside.is_err() {
            self.leave();
            return;
        }
        // FOLLOW-4. It has run there until now; at worst it does once more.
        let _ = all.without(cpu).confine(self.kswapd_thread.load(Relaxed));
        self.beside.store(cpu, Relaxed);
    }

    /// Has a fault thread listen on each CPU; the first is that of the CPU it is on, or of the first.
    fn spread(&self) {
        let Some(all) = self.all.get().filter(|all| all.count() as usize <= CPUS_MAX) else {
            return self.leave();
        };
        let faults = self.faults_thread.load(Relaxed);
        let here = self.beside.load(Relaxed);
        let Some(here) = all.iter().find(|&cpu| cpu == here).or_else(|| all.iter().next()) else {
            return;
        };
        let mut called = [false; CPUS_MAX];
        for (place, _) in all.iter().enumerate().filter(|&(_, cpu)| cpu != here) {
            let thread = self.others[place].load(Relaxed);
            called[place] = thread != 0 && sched::run_when_idle(thread).is_ok();
        }
        let beside = CpuSet::only(here).confine(faults).and_then(|()| sched::run_when_idle(faults));
        if beside.is_err() || !called.contains(&true) {
            return self.leave();
        }
        let _ = all.confine(self.kswapd_thread.load(Relaxed));
        self.beside.store(EVERYWHERE, Relaxed);
        self.call(called);
    }

    fn leave(&self) {
        self.beside.store(NOWHERE, Relaxed);
        self.call([false; CPUS_MAX]);
        let Some(all) = self.all.get() else { return };
        let faults = self.faults_thread.load(Relaxed);
        // Both were possible a moment ago; a thread that is gone needs neither (FOLLOW-5).
        let _ = sched::run_soon(faults);
        let _ = all.confine(faults);
        for thread in self.others.iter().map(|thread| thread.load(Relaxed)).filter(|&t| t != 0) {
            let _ = sched::run_soon(thread);
        }
        let _ = all.confine(self.kswapd_thread.load(Relaxed));
    }
}

/// How long the program's thread has run and the fault thread has waited, at some time.
#[derive(Clone, Copy, Debug)]
struct Gauge {
    at: Instant,
    program: u32,
    ran_ns: u64,
    waited_ns: u64,
}

impl Gauge {
    /// The share of the time until `next` in which the fault thread waited for its CPU without the
    /// program's thread running there, at least.
    fn taken_permille(&self, next: &Self) -> u64 {
        let waited = next.waited_ns.saturating_sub(self.waited_ns);
        let others = waited.saturating_sub(next.ran_ns.saturating_sub(self.ran_ns));
        let time = next.at.duration_since(self.at).as_nanos() as u64;
        others.saturating_mul(1000) / time.max(1)
    }
}

/// The monitor's part.
#[derive(Debug)]
pub struct Watch {
    faults: u64,
    /// Looks in a row that found touches waiting and none answered.
    starved: u32,
    /// Looks in a row that found one thread to fault, with a fault thread on each CPU.
    calm: u32,
    gauge: Option<Gauge>,
    was_on: bool,
    since: Instant,
    hold_until: Instant,
    hold: Duration,
}

impl Watch {
    pub fn new(now: Instant) -> Self {
        Self {
            faults: 0,
            starved: 0,
            calm: 0,
            gauge: None,
            was_on: false,
            since: now,
            hold_until: now,
            hold: HOLD_MIN / 2,
        }
    }

    /// One look. `waiting` says whether touches wait to be read.
    pub fn look(&mut self, solo: &Solo, now: Instant, waiting: impl FnOnce() -> bool) {
        let Some(all) = solo.all.get() else { return };
        let faults = solo.faults.load(Relaxed);
        let new = faults - std::mem::replace(&mut self.faults, faults);
        let changes = solo.changes.swap(0, Relaxed);
        let on = solo.is_on();
        self.starved = if on && new == 0 && waiting() { self.starved + 1 } else { 0 };
        let everywhere = solo.is_everywhere();
        let starved_max = if everywhere { STARVED_EVERYWHERE_MAX } else { STARVED_MAX };
        if self.starved == starved_max || on && !everywhere && self.gauge_others(solo, now) {
            solo.leave();
        }
        if self.was_on && !solo.is_on() {
            // FOLLOW-3. What disturbs now and then, as other programs that start do, costs no more than that.
            let went_well = now.duration_since(self.since) > self.hold * GOOD_TIMES;
            let hold = if went_well { self.hold / 2 } else { self.hold * 2 };
            self.hold = hold.clamp(HOLD_MIN, HOLD_MAX);
            self.hold_until = now + self.hold;
            (self.was_on, self.gauge) = (false, None);
            return;
        }
        if on {
            self.was_on = true;
            self.calm = if changes > 0 || !everywhere { 0 } else { self.calm + u32::from(new > 0) };
            if !everywhere || self.calm > CALM_LOOKS {
                self.follow(solo, all, new);
            }
            return;
        }
        if new < FAULTS_MIN || now < self.hold_until {
            return;
        }
        // One that took over from another faults alone, as far as is known: that is seen at the next look.
        if changes == 1 {
            return;
        }
        if changes > 1 {
            solo.spread();
            (self.was_on, self.since) = (solo.is_on(), now);
            return;
        }
        if let Some(cpu) = sched::cpu_of(solo.last.load(Relaxed)).filter(|&cpu| all.contains(cpu)) {
            solo.enter(cpu);
            (self.was_on, self.since) = (solo.is_on(), now);
        }
    }

    /// Reads the gauge, once in its time: whether others use the CPU of the two threads (FOLLOW-2).
    fn gauge_others(&mut self, solo: &Solo, now: Instant) -> bool {
        if self.gauge.is_some_and(|gauge| now.duration_since(gauge.at) < GAUGE) {
            return false;
        }
        let program = solo.last.load(Relaxed);
        let server = sched::run_times(solo.faults_thread.load(Relaxed));
        let (Some(server), Some(ran)) = (server, sched::run_times(program)) else { return false };
        let next = Gauge { at: now, program, ran_ns: ran.ran_ns, waited_ns: server.waited_ns };
        let last = self.gauge.replace(next);
        last.is_some_and(|last| last.program == program && last.taken_permille(&next) > OTHERS_MAX)
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
    use crate::seam::Clock;
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Arc, Barrier};

    /// A fault thread that lives as long as the test.
    fn solo() -> (Solo, bool) {
        let solo = Solo::default();
        solo.begin(true);
        solo.begin_kswapd();
        let possible = solo.all.get().is_some();
        (solo, possible)
    }

    /// It was written without regard to others, went back, and the monitor ended at a difference below nothing.
    #[test]
    fn faults_that_several_fault_threads_note_are_all_counted() {
        const EACH: u64 = 1_000_000;
        let (solo, both) = (Solo::default(), Barrier::new(2));
        std::thread::scope(|scope| {
            for thread in 1..=2 {
                let (solo, both) = (&solo, &both);
                scope.spawn(move || {
                    both.wait();
                    (0..EACH).for_each(|_| solo.note(thread));
                });
            }
        });
        assert_eq!(solo.faults.load(Relaxed), 2 * EACH);
    }

    #[test]
    fn one_faulting_thread_is_followed_and_a_second_ends_it() {
        let (solo, possible) = solo();
        let now = Clock::simulated().now();
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

    /// One with a thread for each CPU, which say when they are called, and live as long as the test.
    fn everywhere() -> Option<(Arc<Solo>, Receiver<usize>, usize)> {
        let (solo, _) = solo();
        let cpus = solo.all.get()?.count() as usize;
        if cpus > CPUS_MAX {
            return None;
        }
        let solo = Arc::new(solo);
        let (called, calls) = channel();
        let begun = Arc::new(Barrier::new(cpus + 1));
        for place in 0..cpus {
            let (solo, called, begun) = (solo.clone(), called.clone(), begun.clone());
            std::thread::spawn(move || {
                solo.begin_beside(place);
                begun.wait();
                solo.await_call(place);
                let _ = called.send(place);
                std::thread::park();
            });
        }
        begun.wait();
        Some((solo, calls, cpus))
    }

    #[test]
    fn a_second_faulting_thread_calls_one_on_each_cpu_and_starving_calls_them_off() {
        let Some((solo, calls, cpus)) = everywhere() else {
            println!("not possible with these CPUs and rights");
            return;
        };
        let now = Clock::simulated().now();
        let mut watch = Watch::new(now);
        let me = sched::this_thread();
        for _ in 0..2 {
            (0..100).for_each(|_| solo.note(me));
            watch.look(&solo, now, || false);
        }
        assert!(solo.is_on() && !solo.is_everywhere());
        solo.note(me + 1);
        assert!(solo.is_everywhere(), "FOLLOW-1");
        assert_eq!(solo.reserved(), NOWHERE, "nobody keeps off all CPUs");
        let called: Vec<usize> = (1..cpus).map(|_| calls.recv().expect("it is called")).collect();
        assert_eq!(called.len(), cpus - 1, "the first stays where it was");
        (0..STARVED_EVERYWHERE_MAX + 1).for_each(|_| watch.look(&solo, now, || true));
        assert!(!solo.is_on(), "FOLLOW-2");
        assert_eq!(*solo.called.lock().expect("nobody panicked"), [false; CPUS_MAX], "FOLLOW-5");
        // Both fault again when the hold is over; then one of them stops.
        let later = now + 2 * HOLD_MIN;
        (0..100).for_each(|fault| solo.note(me + fault % 2));
        watch.look(&solo, later, || false);
        assert!(solo.is_everywhere(), "FOLLOW-3");
        for _ in 0..CALM_LOOKS + 3 {
            assert!(solo.is_on());
            (0..100).for_each(|_| solo.note(me));
            watch.look(&solo, later, || false);
        }
        assert!(solo.is_on() && !solo.is_everywhere(), "it has the CPU to itself again");
        solo.leave();
    }

    #[test]
    fn waiting_counts_as_far_as_the_program_did_not_run() {
        let at = Clock::simulated().now();
        let gauge = |ms, ran_ns, waited_ns| {
            let at = at + Duration::from_millis(ms);
            Gauge { at, program: 1, ran_ns, waited_ns }
        };
        let begin = gauge(0, 500, 700);
        assert_eq!(begin.taken_permille(&gauge(10, 6_000_500, 5_000_700)), 0);
        assert_eq!(begin.taken_permille(&gauge(10, 2_000_500, 5_000_700)), 300);
        assert_eq!(begin.taken_permille(&begin), 0);
    }

    #[test]
    fn touches_that_nobody_reads_end_it() {
        let (solo, possible) = solo();
        let now = Clock::simulated().now();
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
