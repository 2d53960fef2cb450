//! Decides when the pager stops waiting.
//!
//! This file alone decides the waits that have consequences: a run ends, a page is lost, a process
//! is refused, or an agent counts as silent. A slow host is no reason for any of these.
//!
//! * PATIENCE-1: Waits are measured in granted time ([`Moment`]), not in the machine's time. A
//!   thread of the pager sleeps for one [`BEAT`] again and again. A beat that ends late counts as
//!   one beat. A second in which the host ran no thread does not count as a second.
//! * PATIENCE-2: The machine may run the threads of Ebb that go first, and not the others. If the
//!   pager waits for an agent, the agent's waits for a CPU do not count. Nor do kswapd's own waits
//!   for a CPU. A thread that has run for long without the awaited progress is not excused so
//!   ([`Watch`]).
//! * PATIENCE-3: This file has one row for each kind of wait, with its limit ([`Patience`]).
//!
//! Deadlines towards other machines (the remote tier) are settings, in the machine's time. A client
//! that waits for a pager has `ebb_control::Patience`.

use crate::broken::{Rule, is_broken};
use crate::wait::clock::Clock;
use ebb_mm::driver::NO_PROGRESS_MS;
use ebb_sys::proc;
use ebb_sys::sched::{self, RunTimes};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Time that the beat thread sleeps.
pub const BEAT: Duration = Duration::from_millis(20);

/// A point in granted time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Moment(Duration);

impl Moment {
    /// Returns the milliseconds since the start of the run, at least 1. Fields hold this value and
    /// use 0 for none.
    pub fn ms(self) -> u64 {
        (self.0.as_millis() as u64).max(1)
    }

    /// Returns the moment for a value of [`Moment::ms`].
    pub fn of_ms(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    /// Returns the granted time since `then`.
    pub fn since(self, then: Self) -> Duration {
        self.0.saturating_sub(then.0)
    }

    /// Returns the moment `time` later.
    pub fn after(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

/// Granted time of a run, in nanoseconds.
#[derive(Debug, Default)]
pub struct Granted(AtomicU64);

impl Granted {
    /// Returns the current moment.
    pub fn moment(&self) -> Moment {
        Moment(Duration::from_nanos(self.0.load(Relaxed)))
    }

    /// Counts a beat that ended after `took`. PATIENCE-1.
    pub fn beat(&self, took: Duration) {
        let on_time = took < BEAT * 2 || is_broken(Rule::Patience1);
        let counts = if on_time { took } else { BEAT };
        self.add(counts);
    }

    /// Adds granted time.
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Relaxed);
    }
}

/// Runs the beat thread. It never ends.
pub fn beat(clock: &Clock) {
    loop {
        let began = Instant::now();
        std::thread::sleep(BEAT);
        clock.granted().beat(began.elapsed());
    }
}

/// Kinds of waits. Each entry names the awaited event and the consequence of its absence.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Memory, while threads wait for it and nothing is stored. Then the run ends as out of memory.
    Memory,
    /// Memory, while processes may yet give pages back. Then the run ends as out of memory.
    MemoryOwed,
    /// Memory, while no thread is seen to wait: each is stopped, or its fault is unread. Then the
    /// run ends as out of memory.
    MemoryUnseen,
    /// A page in memory of a process that cannot be read. Then the page is lost.
    Unreadable,
    /// The hello of a forked child that has not asked for an agent. Then the pager assumes that it
    /// never asks.
    AwaitingHello,
    /// The agent of a child that has asked for one. Then the pager assumes that it never comes.
    AwaitingAgent,
    /// The message of a fork whose child has said hello. Then the pager refuses the child.
    Fork,
    /// The memory of a process that has forked and ended. Then the memory of its child is unknown,
    /// and the run ends.
    Passing,
    /// The hello of a process that has connected. Then the pager closes the connection.
    Hello,
    /// The check to which process a userfaultfd belongs, while mappings change. Then the pager
    /// refuses the process.
    Confirming,
    /// The end of a call for which the caller waits. Then the slot of the call is free; a living
    /// caller repeats the call.
    Call,
    /// A batch of moves. Then the agent counts as silent for a while.
    Batch,
    /// A batch of moves, while its agent wants a CPU. Then the agent counts as silent for a while.
    BatchWithoutCpu,
    /// kswapd, or a page that must return, while a process is detached. Then the process stays in
    /// the run.
    Detach,
    /// The last use of a detached address space. Then its mappings for the agent are unmapped all
    /// the same.
    LastUse,
    /// A step of a limit that is being lowered. Then the step is undone.
    Resize,
    /// A step of a limit that could not be reached and is tried again. Then the step is undone.
    ResizeAgain,
    /// The first page under management, for a command that reclaims pages. Then the command goes on
    /// without managed pages.
    Adoption,
    /// Pages that leave, for a command that reclaims pages. Then the command reports how many have
    /// left.
    Reclaim,
    /// Threads frozen by the freezer. Then they are released.
    Freeze,
    /// The end of the time without a freeze that follows a freeze of the longest duration. Then the
    /// freezer may freeze threads again.
    NoFreeze,
    /// The end of killed processes. Then the pager ends and leaves them to their agents.
    Killing,
    /// The files of a process whose memory map is locked. Then the search goes on without it.
    Files,
    /// A call that waits for the lock of a process's memory map, while its thread sleeps. Then the
    /// process counts as stuck until the call returns.
    MapLock,
    /// The last lines of messages or of a file, if their thread cannot write them. Then they are
    /// dropped.
    LastLines,
    /// The loading of glibc into a program that has just started. Then it counts as a program
    /// without glibc.
    Loading,
    /// The status of a process that has ended and has not been reaped. Then it is read from
    /// `/proc`.
    Status,
    /// The end of a run that `ebb fit` ends; then `ebb fit` kills it. Also the end of processes
    /// killed by a supervisor without a pager, which then leaves them.
    Ending,
}

impl Patience {
    /// Returns the limit of the wait, in granted time.
    const fn limit(self) -> Duration {
        match self {
            Self::Batch => Duration::from_millis(100),
            Self::Status | Self::MapLock => Duration::from_millis(200),
            Self::ResizeAgain => Duration::from_millis(250),
            Self::BatchWithoutCpu
            | Self::Resize
            | Self::Reclaim
            | Self::NoFreeze
            | Self::LastLines
            | Self::Files => Duration::from_secs(1),
            Self::Memory => Duration::from_millis(NO_PROGRESS_MS),
            Self::AwaitingHello | Self::Call | Self::Adoption | Self::Killing | Self::Loading => {
                Duration::from_secs(2)
            }
            Self::MemoryOwed => Duration::from_millis(2500),
            Self::Unreadable
            | Self::Fork
            | Self::Passing
            | Self::Confirming
            | Self::LastUse
            | Self::Freeze
            | Self::Ending => Duration::from_secs(5),
            Self::MemoryUnseen | Self::Detach => Duration::from_secs(10),
            Self::AwaitingAgent => Duration::from_secs(20),
            Self::Hello => Duration::from_secs(30),
        }
    }

    /// Whether a wait that has lasted for `time` is over.
    pub fn is_over(self, time: Duration) -> bool {
        time > self.limit()
    }

    /// Calls `look` until it returns true or the wait is over. Each call waits for one beat itself.
    /// For commands, which have no beat thread. A stopped host costs only one call. PATIENCE-1.
    pub fn sees(self, mut look: impl FnMut(Duration) -> bool) -> bool {
        (0..self.looks()).any(|_| look(BEAT))
    }

    /// Calls `look` as [`Patience::sees`] does, while `thread` causes the awaited event. A call
    /// does not count if `thread` is in one of the states `excused`.
    pub fn sees_by(
        self,
        thread: u32,
        excused: &[char],
        mut look: impl FnMut(Duration) -> bool,
    ) -> bool {
        let mut left = self.looks();
        while left > 0 {
            if look(BEAT) {
                return true;
            }
            left -= u32::from(!proc::state(thread).is_some_and(|state| excused.contains(&state)));
        }
        false
    }

    fn looks(self) -> u32 {
        (self.limit().as_millis() / BEAT.as_millis()) as u32
    }
}

/// A wait under way.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    began: Moment,
    patience: Patience,
}

impl Wait {
    /// Begins a wait.
    pub fn new(clock: &Clock, patience: Patience) -> Self {
        Self { began: clock.moment(), patience }
    }

    /// Whether the wait has exceeded its limit.
    pub fn is_over(&self, clock: &Clock) -> bool {
        self.patience.is_over(clock.moment().since(self.began))
    }
}

/// CPU time of a thread for which the pager waits (PATIENCE-2).
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    thread: u32,
    first: Option<RunTimes>,
}

impl Watch {
    /// Begins to watch `thread`.
    pub fn new(thread: u32) -> Self {
        Self { thread, first: sched::run_times(thread) }
    }

    /// Whether the thread has run for `time` since the start of the watch.
    pub fn has_run(&self, time: Duration) -> bool {
        let times = self.first.zip(sched::run_times(self.thread));
        times.is_some_and(|(first, now)| now.since(&first).ran() >= time)
    }

    /// Whether the thread wants a CPU now, so it cannot make progress. A thread that has run for
    /// `proof` since the start of the watch is not excused so.
    pub fn wants_cpu(&self, proof: Duration) -> bool {
        let times = self.first.zip(sched::run_times(self.thread));
        let has_run = |(first, now): (RunTimes, RunTimes)| now.since(&first).ran() >= proof;
        !times.is_none_or(has_run) && proc::state(self.thread) == Some('R')
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_that_stops_grants_one_beat() {
        let granted = Granted::default();
        granted.beat(BEAT + Duration::from_millis(3));
        assert_eq!(granted.moment(), Moment(BEAT + Duration::from_millis(3)));
        granted.beat(Duration::from_secs(3600));
        assert_eq!(granted.moment(), Moment(BEAT * 2 + Duration::from_millis(3)));
    }

    #[test]
    fn a_wait_is_over_when_the_host_has_granted_its_time() {
        let clock = Clock::simulated();
        let wait = Wait::new(&clock, Patience::Memory);
        clock.stall(Duration::from_secs(60));
        assert!(!wait.is_over(&clock), "the host ran nobody");
        clock.advance(Duration::from_millis(1900));
        assert!(!wait.is_over(&clock));
        clock.advance(Duration::from_millis(100));
        assert!(wait.is_over(&clock));
    }

    /// Shows that a spinning thread without a CPU is excused, and that enough CPU time proves its
    /// lack of progress.
    #[test]
    fn a_thread_that_waits_for_a_cpu_is_excused_until_it_has_had_one() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .expect("a shell");
        let (watch, proof) = (Watch::new(child.id()), Duration::from_millis(300));
        ebb_testing::eventually("a wait for a CPU", || watch.wants_cpu(proof));
        ebb_testing::eventually("the proof", || !watch.wants_cpu(proof));
        assert_eq!(proc::state(child.id()), Some('R'));
        child.kill().expect("it runs");
        child.wait().expect("it was a child");
        assert!(!Watch::new(child.id()).wants_cpu(proof), "the thread is gone");
    }
}
