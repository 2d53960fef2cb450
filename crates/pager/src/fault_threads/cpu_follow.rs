//! CPU following: the fault thread stays on the CPU of the program's only faulting thread.
//!
//! A fault is handed over twice. The faulting thread sleeps while the fault thread wakes and
//! answers, and then the reverse. Between CPUs each of the two wake-ups costs an interrupt. In a
//! virtual machine, a wake-up of a sleeping CPU costs tens of microseconds. On one CPU both are
//! plain context switches. So if a single thread of the program faults, the fault thread follows it
//! to its CPU. There it runs in the idle class (`SCHED_IDLE`). The scheduler takes such a CPU for
//! idle, so it wakes the program's thread there and runs it at once.
//!
//! If several threads fault on a machine of two CPUs, each CPU has a fault thread in the idle
//! class, and both listen. The kernel notifies every listener of a fault. A listener on a busy CPU
//! costs nothing by that, because it does not preempt any thread. The faulting thread sleeps, so
//! the fault thread on its CPU is the first to run.
//!
//! In return, every other thread on such a CPU goes first. Hence:
//! * FOLLOW-1: A second faulting thread ends following, and a fault thread on each CPU begins (the
//!   fault thread sees that itself). Following returns when for some time only one thread has
//!   faulted.
//! * FOLLOW-2: Faults that wait while no fault thread makes progress end both modes. Other threads
//!   that keep the CPU of a single fault thread busy end following. The fault thread then waits for
//!   longer than the program's thread runs. The monitor sees both.
//! * FOLLOW-3: After either end it is not tried again for a while. Each time that it did not last,
//!   this while is longer.
//! * FOLLOW-4: kswapd and the agents keep off the CPU of a single fault thread. Their work in turns
//!   costs least on one CPU, and the fault thread would wait for them.
//! * FOLLOW-5: A thread that is no longer needed returns to the normal class at once, because it
//!   may hold a lock.
//! * FOLLOW-6: Such a thread reads with the I/O priority of the normal class. A disk scheduler
//!   (mq-deadline) serves the idle class when no other request is under way. Then it forgets the
//!   idle class for up to 10 ms.

use crate::mm::NOWHERE;
use ebb_sys::sched::{self, CpuSet};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// All CPUs: each has a fault thread.
const EVERYWHERE: u32 = u32::MAX - 1;
/// Most CPUs that have a fault thread each. All fault threads are notified of every fault, and need
/// the same lock. With four threads of a program on eight CPUs, each of eight fault threads waited
/// 57 us for the lock. A single fault thread waited 6 us. Eight served 259 thousand accesses a
/// second, one served 403. On sixteen CPUs it was 187 and 404 (`docs/results.md`). On two CPUs two
/// are better.
pub const CPUS_MAX: usize = 2;
/// Looks in a row that must find a single faulting thread. Then the mode with a fault thread on
/// each CPU ends.
const CALM_LOOKS: u32 = 10;
/// Faults between two looks that make following worth its cost.
const FAULTS_MIN: u64 = 8;
/// Looks without progress of the fault thread after which following ends. Fewer are explained by a
/// batch of moves on its CPU.
const STARVED_MAX: u32 = 3;
/// Looks without progress after which the mode with a fault thread on each CPU ends: none of them
/// ran.
const STARVED_EVERYWHERE_MAX: u32 = 2;
/// Time between two checks whether other threads use the CPU. Next, the share of time that they may
/// take, in permille.
const GAUGE: Duration = Duration::from_millis(30);
const OTHERS_MAX: u64 = 400;
/// Limits of the pause before another attempt. The first failure makes it the smaller one.
const HOLD_MIN: Duration = Duration::from_millis(20);
const HOLD_MAX: Duration = Duration::from_secs(5);
/// Factor by which success must outlast the previous pause. Then the next pause is halved, not
/// doubled.
const GOOD_TIMES: u32 = 3;

/// State that the fault threads and the monitor share.
#[derive(Debug)]
pub struct CpuFollow {
    /// CPUs of the machine; absent if following is impossible here.
    all: OnceLock<CpuSet>,
    faults_thread: AtomicU32,
    kswapd_thread: AtomicU32,
    /// CPU of the fault thread, or [`EVERYWHERE`], or [`NOWHERE`].
    beside: AtomicU32,
    /// Thread numbers of the additional fault threads by CPU index, and whether each is called.
    others: [AtomicU32; CPUS_MAX],
    called: Mutex<[bool; CPUS_MAX]>,
    calls: Condvar,
    /// Last faulting thread, number of changes of it since the last look, and number of faults.
    last: AtomicU32,
    changes: AtomicU32,
    faults: AtomicU64,
}

impl Default for CpuFollow {
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

impl CpuFollow {
    /// Prepares the fault thread. `wanted` says whether it may ever follow.
    pub fn begin(&self, wanted: bool) {
        self.faults_thread.store(sched::this_thread(), Relaxed);
        // If the kernel or missing rights forbid scheduling classes, all stays as it is.
        let _ = sched::keep_io_priority();
        let _ = sched::run_soon(0);
        if !wanted {
            return;
        }
        // A thread that cannot leave the idle class must not enter it. A thread of its own tries
        // that.
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

    /// Prepares the additional fault thread of the CPU with index `place`.
    pub fn begin_beside(&self, place: usize) {
        let _ = sched::keep_io_priority();
        // The thread works only when called. It is called only where both calls below succeed.
        if let Ok(all) = CpuSet::of_this_thread()
            && let Some(cpu) = all.iter().nth(place)
        {
            let _ = CpuSet::only(cpu).confine(0);
            self.others[place].store(sched::this_thread(), Relaxed);
        }
    }

    /// Waits until the additional fault thread of the CPU with index `place` is called.
    pub fn await_call(&self, place: usize) {
        let called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        // The caller does not need the guard that the wait returns.
        drop(self.calls.wait_while(called, |called| !called[place]));
    }

    fn call(&self, called: [bool; CPUS_MAX]) {
        *self.called.lock().unwrap_or_else(PoisonError::into_inner) = called;
        self.calls.notify_all();
    }

    /// Records kswapd's thread.
    pub fn begin_kswapd(&self) {
        self.kswapd_thread.store(sched::this_thread(), Relaxed);
    }

    /// Returns whether the fault threads follow the program's threads.
    pub fn is_on(&self) -> bool {
        self.beside.load(Relaxed) != NOWHERE
    }

    /// Returns the CPU that other threads of Ebb keep off; [`NOWHERE`] if there is none.
    pub fn reserved(&self) -> u32 {
        match self.beside.load(Relaxed) {
            EVERYWHERE => NOWHERE,
            cpu => cpu,
        }
    }

    /// Returns whether each CPU has a fault thread.
    pub fn is_everywhere(&self) -> bool {
        self.beside.load(Relaxed) == EVERYWHERE
    }

    /// Makes a thread keep off a CPU, or off none (FOLLOW-4).
    pub fn keep_off(&self, thread: u32, cpu: u32) {
        let Some(all) = self.all.get() else { return };
        let rest = if cpu == NOWHERE { *all } else { all.without(cpu) };
        // The thread may be gone, or another process's by now. In that case it stays where it is.
        let _ = rest.confine(thread);
    }

    /// Records that thread `thread` of the program faulted (FOLLOW-1).
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
        // FOLLOW-4. At worst kswapd runs on this CPU once more.
        let _ = all.without(cpu).confine(self.kswapd_thread.load(Relaxed));
        self.beside.store(cpu, Relaxed);
    }

    /// Makes a fault thread listen on each CPU. The first fault thread keeps its CPU, or takes the
    /// first CPU.
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
        // Both calls succeeded a moment ago, or the thread is gone (FOLLOW-5).
        let _ = sched::run_soon(faults);
        let _ = all.confine(faults);
        for thread in self.others.iter().map(|thread| thread.load(Relaxed)).filter(|&t| t != 0) {
            let _ = sched::run_soon(thread);
        }
        let _ = all.confine(self.kswapd_thread.load(Relaxed));
    }
}

/// A sample: how long the program's thread has run and the fault thread has waited.
#[derive(Clone, Copy, Debug)]
struct Gauge {
    at: Instant,
    program: u32,
    ran_ns: u64,
    waited_ns: u64,
}

impl Gauge {
    /// Returns the least share of the time until `next` in which other threads kept the fault
    /// thread from its CPU, in permille. The fault thread waited and the program's thread did not
    /// run.
    fn taken_permille(&self, next: &Self) -> u64 {
        let waited = next.waited_ns.saturating_sub(self.waited_ns);
        let others = waited.saturating_sub(next.ran_ns.saturating_sub(self.ran_ns));
        let time = next.at.duration_since(self.at).as_nanos() as u64;
        others.saturating_mul(1000) / time.max(1)
    }
}

/// The monitor's state for CPU following.
#[derive(Debug)]
pub struct Watch {
    faults: u64,
    /// Looks in a row that found faults waiting and none answered.
    starved: u32,
    /// Looks in a row that found a single faulting thread, while each CPU had a fault thread.
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

    /// Looks at the faults since the last look, and begins, ends or moves following. `waiting` says
    /// whether faults wait to be read.
    pub fn look(&mut self, cpu_follow: &CpuFollow, now: Instant, waiting: impl FnOnce() -> bool) {
        let Some(all) = cpu_follow.all.get() else { return };
        let faults = cpu_follow.faults.load(Relaxed);
        let new = faults - std::mem::replace(&mut self.faults, faults);
        let changes = cpu_follow.changes.swap(0, Relaxed);
        let on = cpu_follow.is_on();
        self.starved = if on && new == 0 && waiting() { self.starved + 1 } else { 0 };
        let everywhere = cpu_follow.is_everywhere();
        let starved_max = if everywhere { STARVED_EVERYWHERE_MAX } else { STARVED_MAX };
        if self.starved == starved_max || on && !everywhere && self.gauge_others(cpu_follow, now) {
            cpu_follow.leave();
        }
        if self.was_on && !cpu_follow.is_on() {
            // FOLLOW-3. An occasional disturbance, such as the start of other programs, costs no
            // more than that.
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
                self.follow(cpu_follow, all, new);
            }
            return;
        }
        if new < FAULTS_MIN || now < self.hold_until {
            return;
        }
        // A thread that took over from another may fault alone. The next look shows that.
        if changes == 1 {
            return;
        }
        if changes > 1 {
            cpu_follow.spread();
            (self.was_on, self.since) = (cpu_follow.is_on(), now);
            return;
        }
        if let Some(cpu) =
            sched::cpu_of(cpu_follow.last.load(Relaxed)).filter(|&cpu| all.contains(cpu))
        {
            cpu_follow.enter(cpu);
            (self.was_on, self.since) = (cpu_follow.is_on(), now);
        }
    }

    /// Takes a sample once every [`GAUGE`]. Returns whether other threads use the CPU of the two
    /// threads (FOLLOW-2).
    fn gauge_others(&mut self, cpu_follow: &CpuFollow, now: Instant) -> bool {
        if self.gauge.is_some_and(|gauge| now.duration_since(gauge.at) < GAUGE) {
            return false;
        }
        let program = cpu_follow.last.load(Relaxed);
        let server = sched::run_times(cpu_follow.faults_thread.load(Relaxed));
        let (Some(server), Some(ran)) = (server, sched::run_times(program)) else { return false };
        let next = Gauge { at: now, program, ran_ns: ran.ran_ns, waited_ns: server.waited_ns };
        let last = self.gauge.replace(next);
        last.is_some_and(|last| last.program == program && last.taken_permille(&next) > OTHERS_MAX)
    }

    /// Follows the program's thread to its current CPU, because the scheduler may have moved it.
    fn follow(&self, cpu_follow: &CpuFollow, all: &CpuSet, new: u64) {
        if new < FAULTS_MIN {
            return;
        }
        let Some(cpu) = sched::cpu_of(cpu_follow.last.load(Relaxed)) else { return };
        if cpu != cpu_follow.beside.load(Relaxed) && all.contains(cpu) {
            cpu_follow.enter(cpu);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::clock::Clock;
    use std::sync::mpsc::{Receiver, channel};
    use std::sync::{Arc, Barrier};

    /// Makes the calling thread the fault thread for the time of the test.
    fn cpu_follow() -> (CpuFollow, bool) {
        let cpu_follow = CpuFollow::default();
        cpu_follow.begin(true);
        cpu_follow.begin_kswapd();
        let possible = cpu_follow.all.get().is_some();
        (cpu_follow, possible)
    }

    /// No count is lost. A lost count made the number go back, and the monitor ended at a
    /// difference below zero.
    #[test]
    fn faults_that_several_fault_threads_note_are_all_counted() {
        const EACH: u64 = 1_000_000;
        let (cpu_follow, both) = (CpuFollow::default(), Barrier::new(2));
        std::thread::scope(|scope| {
            for thread in 1..=2 {
                let (cpu_follow, both) = (&cpu_follow, &both);
                scope.spawn(move || {
                    both.wait();
                    (0..EACH).for_each(|_| cpu_follow.note(thread));
                });
            }
        });
        assert_eq!(cpu_follow.faults.load(Relaxed), 2 * EACH);
    }

    #[test]
    fn one_faulting_thread_is_followed_and_a_second_ends_it() {
        let (cpu_follow, possible) = cpu_follow();
        let now = Clock::simulated().now();
        let mut watch = Watch::new(now);
        let me = sched::this_thread();
        (0..100).for_each(|_| cpu_follow.note(me));
        watch.look(&cpu_follow, now, || false);
        assert!(!cpu_follow.is_on(), "the first fault came from a new thread");
        (0..100).for_each(|_| cpu_follow.note(me));
        watch.look(&cpu_follow, now, || false);
        assert_eq!(cpu_follow.is_on(), possible);
        cpu_follow.note(me + 1);
        assert!(!cpu_follow.is_on());
        // Following does not begin again before the pause is over.
        (0..100).for_each(|_| cpu_follow.note(me));
        watch.look(&cpu_follow, now, || false);
        (0..100).for_each(|_| cpu_follow.note(me));
        watch.look(&cpu_follow, now, || false);
        assert!(!cpu_follow.is_on());
        (0..100).for_each(|_| cpu_follow.note(me));
        watch.look(&cpu_follow, now + 2 * HOLD_MIN, || false);
        assert_eq!(cpu_follow.is_on(), possible);
    }

    /// Starts an additional fault thread for each CPU. Each reports when it is called, and lives as
    /// long as the test.
    fn everywhere() -> Option<(Arc<CpuFollow>, Receiver<usize>, usize)> {
        let (cpu_follow, _) = cpu_follow();
        let cpus = cpu_follow.all.get()?.count() as usize;
        if cpus > CPUS_MAX {
            return None;
        }
        let cpu_follow = Arc::new(cpu_follow);
        let (called, calls) = channel();
        let begun = Arc::new(Barrier::new(cpus + 1));
        for place in 0..cpus {
            let (cpu_follow, called, begun) = (cpu_follow.clone(), called.clone(), begun.clone());
            std::thread::spawn(move || {
                cpu_follow.begin_beside(place);
                begun.wait();
                cpu_follow.await_call(place);
                let _ = called.send(place);
                std::thread::park();
            });
        }
        begun.wait();
        Some((cpu_follow, calls, cpus))
    }

    #[test]
    fn a_second_faulting_thread_extends_following_to_each_cpu_and_starvation_ends_it() {
        let Some((cpu_follow, calls, cpus)) = everywhere() else {
            println!("not possible with these CPUs and rights");
            return;
        };
        let now = Clock::simulated().now();
        let mut watch = Watch::new(now);
        let me = sched::this_thread();
        for _ in 0..2 {
            (0..100).for_each(|_| cpu_follow.note(me));
            watch.look(&cpu_follow, now, || false);
        }
        assert!(cpu_follow.is_on() && !cpu_follow.is_everywhere());
        cpu_follow.note(me + 1);
        assert!(cpu_follow.is_everywhere(), "FOLLOW-1");
        assert_eq!(cpu_follow.reserved(), NOWHERE, "nobody keeps off all CPUs");
        let called: Vec<usize> = (1..cpus).map(|_| calls.recv().expect("it is called")).collect();
        assert_eq!(called.len(), cpus - 1, "the first stays where it was");
        (0..STARVED_EVERYWHERE_MAX + 1).for_each(|_| watch.look(&cpu_follow, now, || true));
        assert!(!cpu_follow.is_on(), "FOLLOW-2");
        assert_eq!(
            *cpu_follow.called.lock().expect("nobody panicked"),
            [false; CPUS_MAX],
            "FOLLOW-5"
        );
        // Both threads fault again when the pause is over. Then one of them stops.
        let later = now + 2 * HOLD_MIN;
        (0..100).for_each(|fault| cpu_follow.note(me + fault % 2));
        watch.look(&cpu_follow, later, || false);
        assert!(cpu_follow.is_everywhere(), "FOLLOW-3");
        for _ in 0..CALM_LOOKS + 3 {
            assert!(cpu_follow.is_on());
            (0..100).for_each(|_| cpu_follow.note(me));
            watch.look(&cpu_follow, later, || false);
        }
        assert!(
            cpu_follow.is_on() && !cpu_follow.is_everywhere(),
            "it has the CPU to itself again"
        );
        cpu_follow.leave();
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
    fn unread_faults_end_cpu_following() {
        let (cpu_follow, possible) = cpu_follow();
        let now = Clock::simulated().now();
        let mut watch = Watch::new(now);
        let me = sched::this_thread();
        for _ in 0..2 {
            (0..100).for_each(|_| cpu_follow.note(me));
            watch.look(&cpu_follow, now, || false);
        }
        assert_eq!(cpu_follow.is_on(), possible);
        watch.look(&cpu_follow, now, || false);
        assert_eq!(cpu_follow.is_on(), possible, "an idle program starves nobody");
        (1..STARVED_MAX).for_each(|_| watch.look(&cpu_follow, now, || true));
        assert_eq!(cpu_follow.is_on(), possible, "a moment is no starvation");
        watch.look(&cpu_follow, now, || true);
        assert!(!cpu_follow.is_on());
    }
}
