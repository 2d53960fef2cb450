//! When the pager stops waiting for somebody.
//!
//! A wait that ends a run, loses a page, turns a process away or calls an agent silent is judged here and nowhere else. A
//! slow host is no reason for any of these.
//!
//! * PATIENCE-1: Waits are measured in granted time ([`Moment`]), not in the machine's. A thread of the pager sleeps for a
//!   [`BEAT`] again and again. A beat that ends late counts as one beat: a second in which the host ran nobody is no second.
//! * PATIENCE-2: Where one thread is waited for, the time in which it could run and had no CPU does not count ([`Watch`]).
//! * PATIENCE-3: What is waited for and for how long is a row of this file ([`Patience`]).
//!
//! Deadlines towards other machines (the remote tier) are settings, in the machine's time.

use crate::broken::{Rule, is_broken};
use crate::seam::Clock;
use ebb_sys::proc;
use ebb_sys::sched::{self, RunTimes};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// The time that the beating thread sleeps.
pub const BEAT: Duration = Duration::from_millis(20);

/// A point in granted time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Debug)]
pub struct Moment(Duration);

impl Moment {
    /// In milliseconds since the start of the run, and never 0: fields hold it in which 0 is for none.
    pub fn ms(self) -> u64 {
        (self.0.as_millis() as u64).max(1)
    }

    /// The moment that [`Moment::ms`] says.
    pub fn of_ms(ms: u64) -> Self {
        Self(Duration::from_millis(ms))
    }

    /// The granted time from `then` on.
    pub fn since(self, then: Self) -> Duration {
        self.0.saturating_sub(then.0)
    }

    /// So much later.
    pub fn after(self, time: Duration) -> Self {
        Self(self.0 + time)
    }
}

/// The granted time of a run.
#[derive(Debug, Default)]
pub struct Granted(AtomicU64);

impl Granted {
    /// Now.
    pub fn moment(&self) -> Moment {
        Moment(Duration::from_nanos(self.0.load(Relaxed)))
    }

    /// A beat has ended after `took`. PATIENCE-1.
    pub fn beat(&self, took: Duration) {
        let on_time = took < BEAT * 2 || is_broken(Rule::Patience1);
        let counts = if on_time { took } else { BEAT };
        self.add(counts);
    }

    /// So much was granted.
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(time.as_nanos() as u64, Relaxed);
    }
}

/// The beating thread: it never ends.
pub fn beat(clock: &Clock) {
    loop {
        let began = Instant::now();
        std::thread::sleep(BEAT);
        clock.granted().beat(began.elapsed());
    }
}

/// What is waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Patience {
    /// Memory: threads wait for it and nothing is stored. Then the run ends as out of memory.
    Memory,
    /// The same, where processes may yet give pages back.
    MemoryOwed,
    /// The same, where no thread is seen to wait: each is stopped, or its fault is not looked at.
    MemoryUnseen,
    /// A page in memory of a process that cannot be looked into. Then the page is lost.
    Unreadable,
    /// The greeting of a forked child that has not asked for an agent. Then it counts as one that never asks.
    Infancy,
    /// The agent of a child that has asked for one. Then it counts as one that never comes.
    Childhood,
    /// The message of a fork whose child has greeted. Then the child is turned away.
    Fork,
    /// The memory of a process that has forked and ended. Then what it passes on is not known, and the run ends.
    Passing,
    /// The greeting of a process that has connected. Then the connection is closed.
    Greeting,
    /// A look at whose address space a userfaultfd is, while its mappings change. Then its process is turned away.
    Confirming,
    /// A batch of moves. Then the agent counts as silent for a while.
    Batch,
    /// kswapd, or a page that is to come back, while a process is given back. Then it stays in the run.
    Detach,
    /// The last use of an address space that was given back. Then what was mapped for it is unmapped all the same.
    LastUse,
    /// A step of a limit that comes down. Then the step is taken back.
    Resize,
    /// The same, where a limit that could not be had is tried again.
    ResizeAgain,
    /// The first page under management, for a command that is to reclaim some.
    Adoption,
    /// Pages that leave, for such a command. Then it says how many have left.
    Reclaim,
    /// Threads that the brake holds. Then they are let go.
    Hold,
    /// The end of the time in which the brake holds nobody after that.
    Rest,
    /// The end of processes that are killed. Then the pager ends and leaves them to their agents.
    Killing,
    /// A run that a command asks something. Then the command says that it does not answer.
    Answer,
    /// The same, for a command that asks all runs, or one again and again.
    Glance,
    /// The last lines of messages or of a file, which their thread does not get written. Then they are not.
    LastLines,
    /// The loading of glibc into a program that has just begun. Then it is a program without.
    Loading,
    /// The status of a process that has ended and that nobody has waited for. Then it is read elsewhere.
    Status,
    /// The end of a run that `ebb fit` ends, which then kills it; or of processes that a front without a pager has killed,
    /// which then leaves them.
    Ending,
}

impl Patience {
    /// For how long it is waited, in granted time.
    const fn limit(self) -> Duration {
        match self {
            Self::Batch => Duration::from_millis(100),
            Self::Status => Duration::from_millis(200),
            Self::ResizeAgain => Duration::from_millis(250),
            Self::Resize | Self::Reclaim | Self::Rest | Self::LastLines => Duration::from_secs(1),
            Self::Memory | Self::Infancy | Self::Adoption | Self::Killing | Self::Loading => {
                Duration::from_secs(2)
            }
            Self::MemoryOwed => Duration::from_millis(2500),
            Self::Glance => Duration::from_secs(3),
            Self::Unreadable
            | Self::Fork
            | Self::Passing
            | Self::Confirming
            | Self::LastUse
            | Self::Hold
            | Self::Ending => Duration::from_secs(5),
            Self::MemoryUnseen | Self::Detach | Self::Answer => Duration::from_secs(10),
            Self::Childhood => Duration::from_secs(20),
            Self::Greeting => Duration::from_secs(30),
        }
    }

    /// Whether a wait that lasts for `time` is over.
    pub fn is_over(self, time: Duration) -> bool {
        time > self.limit()
    }

    /// The same of a wait of which `excused` does not count.
    pub fn is_over_but(self, time: Duration, excused: Duration) -> bool {
        time > self.limit() + excused
    }

    /// Looks, a beat apart, until something happens or the wait is over. For commands, which have no beating thread: a
    /// host that stops makes one look of it. PATIENCE-1.
    pub fn sees(self, mut look: impl FnMut(Duration) -> bool) -> bool {
        (0..self.looks()).any(|_| look(BEAT))
    }

    /// The same, where `thread` is to bring it about: a look does not count that finds it in one of the states `excused`.
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

    /// What of a wait goes beyond the limit.
    pub fn beyond(self, time: Duration) -> Duration {
        time.saturating_sub(self.limit())
    }
}

/// A wait under way.
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    began: Moment,
    patience: Patience,
}

impl Wait {
    /// It begins.
    pub fn new(clock: &Clock, patience: Patience) -> Self {
        Self { began: clock.moment(), patience }
    }

    /// Whether it lasts too long.
    pub fn is_over(&self, clock: &Clock) -> bool {
        self.patience.is_over(clock.moment().since(self.began))
    }
}

/// What the CPUs gave a thread that is waited for (PATIENCE-2).
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    thread: u32,
    first: Option<RunTimes>,
}

impl Watch {
    /// Of `thread`, from now on.
    pub fn new(thread: u32) -> Self {
        Self { thread, first: sched::run_times(thread) }
    }

    /// Whether the thread has run for so long since then.
    pub fn has_run(&self, time: Duration) -> bool {
        let times = self.first.zip(sched::run_times(self.thread));
        times.is_some_and(|(first, now)| now.since(&first).ran_ns >= time.as_nanos() as u64)
    }

    /// Whether it is of this thread.
    pub fn is_of(&self, thread: u32) -> bool {
        self.thread == thread
    }

    /// How long the thread has waited for a CPU since then. None if it waits for one now: it has no chance to make progress,
    /// unless it has run for `proof` and made none.
    pub fn waited(&self, proof: Duration) -> Option<Duration> {
        let (Some(first), Some(now)) = (self.first, sched::run_times(self.thread)) else {
            return Some(Duration::ZERO);
        };
        let times = now.since(&first);
        // The kernel counts a wait when it is over.
        let wants = proc::state(self.thread) == Some('R');
        let proven = Duration::from_nanos(times.ran_ns) >= proof;
        (!wants || proven).then_some(Duration::from_nanos(times.waited_ns))
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

    /// A thread that spins and gets a CPU shows by that that it makes no progress.
    #[test]
    fn a_thread_that_waits_for_a_cpu_is_excused_until_it_has_had_one() {
        let mut child = std::process::Command::new("sh")
            .args(["-c", "while :; do :; done"])
            .spawn()
            .expect("a shell");
        let (watch, proof) = (Watch::new(child.id()), Duration::from_millis(300));
        ebb_testing::eventually("a wait for a CPU", || watch.waited(proof).is_none());
        ebb_testing::eventually("the proof", || watch.waited(proof).is_some());
        child.kill().expect("it runs");
        child.wait().expect("it was a child");
        assert_eq!(watch.waited(proof), Some(Duration::ZERO), "nobody is waited for");
    }
}
