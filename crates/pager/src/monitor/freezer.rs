//! The freezer: stops programs that outrun the limit.
//!
//! Memory in areas under management cannot outrun the limit, because each new page is a fault, and
//! faults wait. Areas that the monitor has not found yet fill at the speed of the kernel. Their
//! pages over the limit must be stored at the speed of a disk. So the freezer acts while the tree
//! exceeds the limit and its overcommit by more than a mark. It freezes the running threads of
//! processes that grow in such areas, until reclaim has brought the tree back.
//!
//! * FREEZER-1: Agents are never frozen, because reclaim needs them. Processes whose agent does not
//!   run yet are not frozen either. If the agent of a frozen process has just stepped aside, the
//!   process is released. Its frozen thread would be the one that starts the next agent.
//! * FREEZER-2: Only running threads are frozen. A thread that waits in a system call grows
//!   nothing, and some calls would notice. Without room, the freezer also freezes threads that wait
//!   for a kernel lock, or for a page after a fault. Threads that map and fill memory wait for each
//!   other, so many would escape otherwise.
//! * FREEZER-3: A freeze lasts for [`Patience::Freeze`] at most. Then there is none for
//!   [`Patience::NoFreeze`], because a longer wait would hardly bring back more memory. A frozen
//!   thread counts as waiting for memory. So a run in which nothing can be stored ends as it would
//!   without the freezer.
//! * FREEZER-4: A program that fills areas while they are being adopted is frozen, too. It is
//!   frozen for [`FREEZE_SLICE`] at a time, and runs for [`RUN_SLICE`] in between. That holds as
//!   long as there is room for the pages that it fills then. To adopt 4 GiB takes a hundred
//!   milliseconds.
//! * FREEZER-5: A stopped thread that is not meant to be frozen is released at once. It may be a
//!   child that was started with `CLONE_PTRACE` by a thread that was about to stop. Or the process
//!   may have executed another program.
//! * FREEZER-6: No thread of a process is frozen while one of its threads moves areas. That thread
//!   has the right to change them, and nothing could be adopted.
//! * FREEZER-7: A system call may give up because its thread is frozen. The freezer repairs the
//!   call at the release, so the thread does not notice (`ebb_sys::trace`, PTRACE-1). A thread that
//!   had done a part of a call does the rest of it. The freezer follows that thread until the call
//!   is complete.
//! * FREEZER-8: A process may map more and more shared memory. It is frozen by an upper bound of
//!   that memory, until the true size is known (SHARED-5 in `shared_memory.rs`).
//! * FREEZER-9: No thread is frozen where a thread may use up all the CPU time of its control group
//!   ([`ebb_sys::cgroup`]). The stop of a thread in a system call is pending until the end of the
//!   call. A fault in that call repeats again and again meanwhile. A spared thread counts as
//!   waiting all the same (FREEZER-3). A process that fills shared memory waits for nothing by
//!   itself, so its run would never end.

use crate::mm::Mm;
use crate::pager::Pager;
use crate::telemetry::counters;
use crate::wait::clock::Clock;
use crate::wait::patience::{Moment, Patience, Wait};
use ebb_sys::proc;
use ebb_sys::trace::{self, Rest, Stop, TraceeChange};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Time for which a program is frozen at a time while its areas are adopted. `RUN_SLICE` is the
/// time for which it runs in between (FREEZER-4).
const FREEZE_SLICE: Duration = Duration::from_millis(3);
const RUN_SLICE: Duration = Duration::from_millis(1);
/// Time for which the answer is kept whether a control group limits CPU time (FREEZER-9).
const SPARES_FOR: Duration = Duration::from_secs(1);
/// Minimum number of pages beyond the limit and its overcommit from which the freezer acts.
const MARK_MIN: u64 = 512;

/// Decision of a look.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    Freeze,
    Release,
    /// Frozen threads stay frozen, and no more are added.
    Wait,
}

/// A thread that is frozen or about to stop.
#[derive(Debug)]
struct FrozenThread {
    thread: u32,
    mm: Arc<Mm>,
    /// How the thread has stopped, and since when; None until it stops. A thread without a CPU
    /// stops only when it gets one, and loses nothing until then.
    stopped: Option<(Stop, Instant, Moment)>,
}

impl FrozenThread {
    /// Returns whether the thread will never stop. It has ended, it is a zombie thread group
    /// leader, or its number belongs to another thread.
    fn is_over(&self) -> bool {
        !trace::is_tracee(self.thread) || proc::state(self.thread) == Some('Z')
    }
}

/// The freezer. It belongs to the monitor thread, because ptrace ties a tracee to one thread.
#[derive(Debug, Default)]
pub struct Freezer {
    frozen: Vec<FrozenThread>,
    /// Calls that released threads must still complete (FREEZER-7).
    rests: Vec<Rest>,
    /// Whether any thread may be traced.
    traces: bool,
    freeze_wait: Option<Wait>,
    /// The pause after the longest freeze (FREEZER-3).
    no_freeze_wait: Option<Wait>,
    /// Begin of the current turn, or of the time after it (FREEZER-4).
    turn: Option<Instant>,
    /// Whether threads are spared, and when that was determined (FREEZER-9).
    spares: Option<(bool, Instant)>,
    /// Time from which threads that would be frozen are spared.
    spared: Option<Moment>,
}

impl Freezer {
    /// Returns whether any thread is frozen or about to stop.
    pub fn is_on(&self) -> bool {
        !self.frozen.is_empty()
    }

    /// Returns whether a thread is frozen, or is followed after its release.
    pub fn is_at_work(&self) -> bool {
        self.is_on() || !self.rests.is_empty()
    }

    /// Returns whether all threads to be frozen have stopped.
    pub fn is_settled(&self) -> bool {
        self.frozen.iter().all(|frozen| frozen.stopped.is_some())
    }

    /// Looks at the tree, which has `used` pages of the `ceiling`, and freezes or releases threads.
    /// `growing` are the processes with pages in areas that are not found yet.
    pub fn look(&mut self, pager: &Pager, used: u64, ceiling: u64, growing: &[Arc<Mm>]) {
        self.release(pager, |mm| mm.agent.is_aside());
        match self.decide(&pager.clock, used, ceiling) {
            Act::Freeze => growing.iter().for_each(|mm| self.freeze(pager, mm, false)),
            Act::Release => {
                self.spared = None;
                self.release_all(pager);
            }
            Act::Wait => {}
        }
        if self.frozen.is_empty() && self.spared.is_none() {
            self.freeze_wait = None;
        } else {
            self.freeze_wait.get_or_insert_with(|| Wait::new(&pager.clock, Patience::Freeze));
        }
        let (count, oldest) = self.waiting();
        pager.budget.frozen_since_ms.store(oldest.map_or(0, Moment::ms), Relaxed);
        pager.budget.frozen.store(count, Relaxed);
    }

    /// Returns how many threads are frozen or spared, and since when the first of them is
    /// (FREEZER-3).
    fn waiting(&self) -> (u32, Option<Moment>) {
        let standing = self.frozen.iter().filter_map(|frozen| Some(frozen.stopped.as_ref()?.2));
        let all = standing.chain(self.spared);
        (all.clone().count() as u32, all.min())
    }

    fn decide(&mut self, clock: &Clock, used: u64, ceiling: u64) -> Act {
        if self.freeze_wait.is_some_and(|wait| wait.is_over(clock)) {
            self.no_freeze_wait = Some(Wait::new(clock, Patience::NoFreeze));
        }
        if used <= ceiling || self.no_freeze_wait.is_some_and(|wait| !wait.is_over(clock)) {
            Act::Release
        } else if used > ceiling + MARK_MIN.max(ceiling / 128) {
            Act::Freeze
        } else {
            Act::Wait
        }
    }

    /// Freezes a process in turns (FREEZER-4) while its areas are adopted; the next slice follows.
    /// Without room for the pages that it fills in between, freezes it like [`Freezer::freeze`].
    pub fn freeze_in_turns(&mut self, pager: &Pager, mm: &Arc<Mm>, room: bool) {
        let now = pager.clock.now();
        self.release(pager, |mm| mm.agent.is_aside());
        let length = if self.is_on() { FREEZE_SLICE } else { RUN_SLICE };
        let over = self.turn.is_none_or(|began| now - began > length);
        if self.is_on() && room {
            if over {
                self.release_all(pager);
                // A thread that has not stopped yet is released when it stops.
                self.turn = self.turn.filter(|_| self.is_on()).or(Some(now));
            }
        } else if over || !room {
            self.freeze(pager, mm, room);
            self.turn = Some(now);
        }
    }

    /// Records which threads have stopped, and releases those that should not be frozen
    /// (FREEZER-5).
    fn see(&mut self, clock: &Clock) {
        while self.traces {
            match trace::next() {
                TraceeChange::Stopped(thread, stop) => {
                    let rest = self.rests.iter().position(|rest| rest.thread() == thread);
                    if let Some(rest) = rest {
                        let rest = self.rests.swap_remove(rest);
                        self.rests.extend(rest.go_on(stop));
                        continue;
                    }
                    match self.frozen.iter_mut().find(|frozen| frozen.thread == thread) {
                        Some(frozen) => frozen.stopped = Some((stop, clock.now(), clock.moment())),
                        None => self.rests.extend(trace::release(thread, stop)),
                    }
                }
                TraceeChange::Ended(thread) => {
                    self.frozen.retain(|frozen| frozen.thread != thread);
                    self.rests.retain(|rest| rest.thread() != thread);
                }
                TraceeChange::NoneYet => break,
                TraceeChange::NoTracees => {
                    self.frozen.clear();
                    self.rests.clear();
                    self.traces = false;
                }
            }
        }
    }

    /// Releases all frozen threads. A thread that has not stopped yet is released when it stops.
    pub fn release_all(&mut self, pager: &Pager) {
        self.release(pager, |_| true);
    }

    /// Releases the frozen threads of the processes for which `which` is true.
    fn release(&mut self, pager: &Pager, which: impl Fn(&Mm) -> bool) {
        let now = pager.clock.now();
        self.see(&pager.clock);
        let ends = |frozen: &mut FrozenThread| {
            which(&frozen.mm) && (frozen.stopped.is_some() || frozen.is_over())
        };
        for frozen in self.frozen.extract_if(.., ends) {
            let Some((stop, since, _)) = frozen.stopped else { continue };
            self.rests.extend(trace::release(frozen.thread, stop));
            let us = (now - since).as_micros() as u64;
            counters::add(&pager.telemetry.counters.freezer_us, us);
            pager.telemetry.counters.longest_freeze_us.fetch_max(us, Relaxed);
        }
    }

    /// Freezes the running threads of a process until a later look finds the tree within its limit.
    /// Without `room`, this includes threads that are about to run (FREEZER-2).
    fn freeze(&mut self, pager: &Pager, mm: &Arc<Mm>, room: bool) {
        let Some(process) = mm.process().filter(|_| !mm.agent.is_aside()) else { return };
        let threads = process.threads();
        let asleep: Vec<u32> =
            threads.iter().filter(|&&(_, state)| state == 'S').map(|&(thread, _)| thread).collect();
        let touching = if room { Vec::new() } else { process.touching(&asleep) };
        let runs = |thread, state| is_to_be_frozen(state, touching.contains(&thread), room);
        let meant = self.meant(threads, process.agent(), runs);
        if meant.is_empty() {
            return;
        }
        if self.spares(pager) {
            self.spared.get_or_insert(pager.clock.moment());
            return;
        }
        self.traces = true;
        // A thread that another process traces already stays with that process.
        let frozen = process.freeze(&meant).into_iter();
        let frozen = frozen.map(|thread| FrozenThread { thread, mm: mm.clone(), stopped: None });
        self.frozen.extend(frozen);
    }

    /// Returns whether all threads are spared (FREEZER-9).
    fn spares(&mut self, pager: &Pager) -> bool {
        let now = pager.clock.now();
        match self.spares {
            Some((spares, when)) if now - when < SPARES_FOR => spares,
            _ => self.spares.insert((pager.host.may_be_used_up(), now)).0,
        }
    }

    /// Returns the threads of a process for which `runs` is true, without its agent and frozen
    /// threads. Returns none if the agent does not run yet, because one of the threads will start
    /// it.
    fn meant(
        &self,
        threads: Vec<(u32, char)>,
        agent: Option<u32>,
        runs: impl Fn(u32, char) -> bool,
    ) -> Vec<u32> {
        let Some(agent) = agent else { return Vec::new() };
        let is_meant = |&(thread, state): &(u32, char)| {
            let ours = thread == agent || self.frozen.iter().any(|frozen| frozen.thread == thread);
            !ours && runs(thread, state)
        };
        threads.into_iter().filter(is_meant).map(|(thread, _)| thread).collect()
    }
}

/// Returns whether to freeze a thread in this state; `faults` says whether it may wait for a page
/// on which it has faulted (FREEZER-2).
const fn is_to_be_frozen(state: char, faults: bool, room: bool) -> bool {
    match state {
        'R' => true,
        'D' => !room,
        _ => faults,
    }
}

#[cfg(test)]
mod tests {
    use super::{Act, Freezer, FrozenThread};
    use crate::mm::pool::Pool;
    use crate::mm::{Areas, Mm, State};
    use crate::quiet::{self, Quiet};
    use crate::seam::{Known, Process as _};
    use crate::wait::clock::Clock;
    use crate::wait::patience::{Patience, Wait};
    use ebb_mm::resident::Space;
    use ebb_mm::types::MmId;
    use ebb_sys::{proc, trace};
    use ebb_testing::eventually;
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    /// Shows that a freeze ends after its limit, and that threads run for a while. Otherwise,
    /// beside a stopped process with more memory than the limit, other processes run for a
    /// millisecond in 5 s.
    #[test]
    fn a_freeze_ends_after_its_limit_and_threads_run_for_a_while() {
        let (mut freezer, clock) = (Freezer::default(), Clock::simulated());
        assert_eq!(freezer.decide(&clock, 20_000, 10_000), Act::Freeze);
        freezer.freeze_wait = Some(Wait::new(&clock, Patience::Freeze));
        clock.stall(Duration::from_secs(60));
        assert_eq!(freezer.decide(&clock, 20_000, 10_000), Act::Freeze, "the host ran nobody");
        clock.advance(Duration::from_millis(4900));
        assert_eq!(freezer.decide(&clock, 20_000, 10_000), Act::Freeze);
        clock.advance(Duration::from_millis(200));
        assert_eq!(freezer.decide(&clock, 20_000, 10_000), Act::Release);
        freezer.freeze_wait = None;
        clock.advance(Duration::from_millis(500));
        assert_eq!(freezer.decide(&clock, 20_000, 10_000), Act::Release);
        clock.advance(Duration::from_millis(600));
        assert_eq!(freezer.decide(&clock, 20_000, 10_000), Act::Freeze);
        assert_eq!(freezer.decide(&clock, 10_100, 10_000), Act::Wait, "beyond, but little");
        assert_eq!(freezer.decide(&clock, 10_000, 10_000), Act::Release);
    }

    /// Shows that threads are spared where they may use up all CPU time. Otherwise a frozen thread
    /// that waits for a page in `process_vm_readv` uses up the CPU time that the pager needs.
    /// Spared threads count as waiting. Otherwise a process that fills more shared memory than the
    /// limit runs on for ever.
    #[test]
    fn threads_that_may_use_up_the_cpu_time_are_not_frozen_and_count_as_waiting() {
        let pager = quiet::pager_by(Clock::simulated());
        let pool = Pool::new(1 << 30, 64 * 4096, 0);
        let state = State::new(Space::new(MmId(2)), Areas::default(), pool, 8);
        let mm = Arc::new(Mm::new(Box::new(Quiet::default()), state, pager.clock.clone()));
        // This thread runs. The first thread of the process stands for its agent.
        let process = Known::open(std::process::id()).unwrap();
        process.note_thread(std::process::id());
        mm.owner.identify(Box::new(process));
        let mut freezer = Freezer { spares: Some((true, pager.clock.now())), ..Freezer::default() };
        pager.clock.advance(Duration::from_millis(100));
        let waiting =
            || (pager.budget.frozen.load(Relaxed), pager.budget.frozen_since_ms.load(Relaxed));
        freezer.look(&pager, 20_000, 10_000, &[mm]);
        assert!(!freezer.is_on());
        let since = pager.clock.moment().ms();
        assert_eq!(waiting(), (1, since));
        pager.clock.advance(Duration::from_millis(100));
        freezer.look(&pager, 20_000, 10_000, &[]);
        assert_eq!(waiting(), (1, since), "it is still too much");
        freezer.look(&pager, 10_000, 10_000, &[]);
        assert_eq!(waiting(), (0, 0));
    }

    /// Shows that a forked child is not frozen between its hello and the start of its agent.
    /// Nothing of a frozen child can be reclaimed. So it would never be released, and the run would
    /// end as out of memory.
    #[test]
    fn a_child_that_has_yet_to_start_its_agent_is_not_frozen() {
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let runs = |_, state| state == 'R';
        let mut freezer = Freezer::default();
        assert!(freezer.meant(proc::threads(child.id()), None, runs).is_empty());
        eventually("a thread that runs", || {
            let meant = freezer.meant(proc::threads(child.id()), Some(u32::MAX), runs);
            let frozen = meant.into_iter().filter(|&thread| trace::seize(thread).is_ok());
            let mm = Arc::new(quiet::with_pool(Quiet::default()));
            let frozen =
                frozen.map(|thread| FrozenThread { thread, mm: mm.clone(), stopped: None });
            freezer.frozen.extend(frozen);
            freezer.is_on()
        });
        freezer.traces = true;
        let clock = Clock::simulated();
        eventually("its stop", || {
            freezer.see(&clock);
            freezer.frozen.iter().all(|frozen| frozen.stopped.is_some())
        });
        // FREEZER-5: the thread now counts as one that is not meant to be frozen.
        let frozen = freezer.frozen.pop().unwrap();
        let (stop, ..) = frozen.stopped.expect("it stands");
        assert!(trace::release(frozen.thread, stop).is_none(), "it is in no call");
        trace::seize(child.id()).unwrap();
        eventually("the end of a hold, after which another is possible", || {
            freezer.see(&clock);
            trace::seize(child.id()).is_ok()
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Shows that a thread which starts the next agent does not stay frozen. Otherwise none of its
    /// pages could be reclaimed, and the run would end as out of memory. The freezer may have
    /// chosen the thread just before the agent stepped aside.
    #[test]
    fn a_thread_is_released_when_its_agent_steps_aside() {
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let pager = quiet::pager_by(Clock::simulated());
        let (mm, (link, shared)) = (Arc::new(quiet::with_pool(Quiet::default())), quiet::line());
        mm.agent.join(link);
        shared.0.thread.store(7, Relaxed);
        trace::seize(child.id()).unwrap();
        let frozen = FrozenThread { thread: child.id(), mm: mm.clone(), stopped: None };
        let mut freezer = Freezer { frozen: vec![frozen], traces: true, ..Freezer::default() };
        let mut look = || {
            freezer.look(&pager, 20_000, 10_000, &[]);
            freezer.waiting().0
        };
        eventually("its stop", || look() == 1);
        assert_eq!(look(), 1, "there is still too much");
        shared.0.thread.store(0, Relaxed);
        mm.agent.note_aside(&Known::open(child.id()).unwrap());
        assert_eq!(look(), 0);
        assert!(trace::seize(child.id()).is_ok(), "it runs, and no other thread traces it");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
