//! The brake: stops programs that outrun the limit.
//!
//! Memory in areas under management cannot outrun it: each new page is a fault, and faults wait. Areas
//! the monitor has not found yet are filled at the speed of the kernel, and what they hold over the
//! limit must be stored at the speed of a disk. So while the tree is by more than a mark over the limit
//! and what is lent beyond it, the running threads of processes that grow in such areas are held, until
//! reclaim has brought it back.
//!
//! * FREEZER-1: agents are never held: reclaim needs them. Nor are processes whose agent does not run
//!   yet.
//! * FREEZER-2: only threads that run are held: one that waits in a system call grows nothing, and some
//!   calls would notice. Where there is no room those are, too, that wait for locks of the kernel's or for a page that they
//!   have touched: threads that map and fill wait for each other, and many were passed over for that.
//! * FREEZER-3: held for [`Patience::Hold`] at most at a time, and then not again for [`Patience::Rest`]: what reclaim could not
//!   bring back in so long is not had by waiting. Who stands counts as
//!   waiting for memory, so that a run in which nothing can be stored ends as it would without.
//! * FREEZER-4: who fills what is being brought under management is held, too, and for [`TURN`] at a time as long as there is
//!   room for what comes in the [`BREATH`] between: to take on 4 GiB takes a hundred milliseconds.
//! * FREEZER-5: whoever stands and is not meant to be held is let go at once: a child that was started with `CLONE_PTRACE` by one
//!   that was about to stand, or who by now is another program.
//! * FREEZER-6: nobody of a process is held while one of its threads moves areas: it has the right to change them, and nothing
//!   could be taken on.
//! * FREEZER-7: system calls that give up because their thread is held are put right as it is let go, so that it does not notice
//!   (`ebb_sys::trace`, PTRACE-1): who had done a part of one does the rest of it, and is followed until it has.
//! * FREEZER-8: who maps more and more shared memory is held by what that may be, until it is known (SHARED-5 in `shared_memory.rs`).
//! * FREEZER-9: nobody is held where a thread may use up all the CPU time there is ([`ebb_sys::cgroup`]): it may be in a system call,
//!   or about to make one, and what is to hold it is pending until the end of that. Who would be held counts as waiting all
//!   the same (FREEZER-3): a process that fills shared memory waits for nothing by itself, and its run would never end.

use crate::counters;
use crate::mm::Mm;
use crate::patience::{Moment, Patience, Wait};
use crate::seam::Clock;
use crate::server::Pager;
use ebb_sys::proc;
use ebb_sys::trace::{self, News, Rest, Stop};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long a program is held at a time while its areas are taken on, and let go in between (FREEZER-4).
const TURN: Duration = Duration::from_millis(3);
const BREATH: Duration = Duration::from_millis(1);
/// How long it counts that a control group limits CPU time, or that none does (FREEZER-9).
const SPARES_FOR: Duration = Duration::from_secs(1);
/// Pages over the limit before anything is held: far less than is allowed.
const MARK_MIN: u64 = 512;

/// What a look comes to.
#[derive(Debug, PartialEq, Eq)]
enum Act {
    Hold,
    LetGo,
    /// What is held stays so, and no more is.
    Wait,
}

/// A thread that is held.
#[derive(Debug)]
struct Hold {
    thread: u32,
    /// How it stands, and since when. One that has no CPU does so when it gets one, and loses nothing until then.
    stands: Option<(Stop, Instant, Moment)>,
}

impl Hold {
    /// It will never stand: it has ended, the first of a process with others left among them, or has another's number.
    fn is_over(&self) -> bool {
        !trace::is_held(self.thread) || proc::state(self.thread) == Some('Z')
    }
}

/// The brake. Belongs to the monitor thread, as the kernel wants it.
#[derive(Debug, Default)]
pub struct Brake {
    held: Vec<Hold>,
    /// What threads that were let go have still to do of a call (FREEZER-7).
    rests: Vec<Rest>,
    /// Something may be traced.
    traces: bool,
    hold: Option<Wait>,
    /// The longest hold is over (FREEZER-3).
    rest: Option<Wait>,
    /// When a turn began, or the breath after it (FREEZER-4).
    turn: Option<Instant>,
    /// Whether nobody is held, and when that was found out (FREEZER-9).
    spares: Option<(bool, Instant)>,
    /// Since when somebody would be held and is spared.
    spared: Option<Moment>,
}

impl Brake {
    /// Whether anything is held.
    pub fn is_on(&self) -> bool {
        !self.held.is_empty()
    }

    /// Whether somebody is held, or is to be followed for a moment after that.
    pub fn is_at_work(&self) -> bool {
        self.is_on() || !self.rests.is_empty()
    }

    /// Whether all who are held stand.
    pub fn is_settled(&self) -> bool {
        self.held.iter().all(|hold| hold.stands.is_some())
    }

    /// One look: the tree has `used` pages of the `ceiling`; `growing` are the processes with pages in areas
    /// not found yet.
    pub fn look(&mut self, pager: &Pager, used: u64, ceiling: u64, growing: &[Arc<Mm>]) {
        self.see(&pager.clock);
        match self.decide(&pager.clock, used, ceiling) {
            Act::Hold => growing.iter().for_each(|mm| self.hold(pager, mm, false)),
            Act::LetGo => {
                self.spared = None;
                self.let_go(pager);
            }
            Act::Wait => {}
        }
        if self.held.is_empty() && self.spared.is_none() {
            self.hold = None;
        } else {
            self.hold.get_or_insert_with(|| Wait::new(&pager.clock, Patience::Hold));
        }
        let (count, oldest) = self.waiting();
        pager.held_since_ms.store(oldest.map_or(0, Moment::ms), Relaxed);
        pager.held.store(count, Relaxed);
    }

    /// How many stand, or are spared, and since when the first does (FREEZER-3).
    fn waiting(&self) -> (u32, Option<Moment>) {
        let standing = self.held.iter().filter_map(|hold| Some(hold.stands.as_ref()?.2));
        let all = standing.chain(self.spared);
        (all.clone().count() as u32, all.min())
    }

    fn decide(&mut self, clock: &Clock, used: u64, ceiling: u64) -> Act {
        if self.hold.is_some_and(|hold| hold.is_over(clock)) {
            self.rest = Some(Wait::new(clock, Patience::Rest));
        }
        if used <= ceiling || self.rest.is_some_and(|rest| !rest.is_over(clock)) {
            Act::LetGo
        } else if used > ceiling + MARK_MIN.max(ceiling / 128) {
            Act::Hold
        } else {
            Act::Wait
        }
    }

    /// Areas of a process are being taken on, a slice is next: holds it in turns (FREEZER-4), or as [`Brake::hold`] where there is
    /// no room for what it fills in between.
    pub fn hold_in_turns(&mut self, pager: &Pager, mm: &Mm, room: bool) {
        let now = pager.clock.now();
        self.see(&pager.clock);
        let length = if self.is_on() { TURN } else { BREATH };
        let over = self.turn.is_none_or(|began| now - began > length);
        if self.is_on() && room {
            if over {
                self.let_go(pager);
                // Who does not stand yet is let go when it does.
                self.turn = self.turn.filter(|_| self.is_on()).or(Some(now));
            }
        } else if over || !room {
            self.hold(pager, mm, room);
            self.turn = Some(now);
        }
    }

    /// Notes who stands, and lets go who should not (FREEZER-5).
    fn see(&mut self, clock: &Clock) {
        while self.traces {
            match trace::next() {
                News::Stands(thread, stop) => {
                    let rest = self.rests.iter().position(|rest| rest.thread() == thread);
                    if let Some(rest) = rest {
                        let rest = self.rests.swap_remove(rest);
                        self.rests.extend(rest.go_on(stop));
                        continue;
                    }
                    match self.held.iter_mut().find(|hold| hold.thread == thread) {
                        Some(hold) => hold.stands = Some((stop, clock.now(), clock.moment())),
                        None => self.rests.extend(trace::let_go(thread, stop)),
                    }
                }
                News::Ended(thread) => {
                    self.held.retain(|hold| hold.thread != thread);
                    self.rests.retain(|rest| rest.thread() != thread);
                }
                News::NoneYet => break,
                News::NoneHeld => {
                    self.held.clear();
                    self.rests.clear();
                    self.traces = false;
                }
            }
        }
    }

    /// Lets all go on that are held. Who does not stand yet is when it does.
    pub fn let_go(&mut self, pager: &Pager) {
        let now = pager.clock.now();
        self.see(&pager.clock);
        for hold in self.held.extract_if(.., |hold| hold.stands.is_some() || hold.is_over()) {
            let Some((stop, since, _)) = hold.stands else { continue };
            self.rests.extend(trace::let_go(hold.thread, stop));
            let us = (now - since).as_micros() as u64;
            counters::add(&pager.counters.brake_us, us);
            pager.counters.longest_brake_us.fetch_max(us, Relaxed);
        }
    }

    /// Holds the running threads of a process until the next look that finds the tree within its limit; if there is no
    /// `room`, those that are about to run (FREEZER-2).
    fn hold(&mut self, pager: &Pager, mm: &Mm, room: bool) {
        let Some(process) = mm.process() else { return };
        let threads = process.threads();
        let asleep: Vec<u32> =
            threads.iter().filter(|&&(_, state)| state == 'S').map(|&(thread, _)| thread).collect();
        let touching = if room { Vec::new() } else { process.touching(&asleep) };
        let runs = |thread, state| is_to_be_held(state, touching.contains(&thread), room);
        let meant = self.meant(threads, process.agent(), runs);
        if meant.is_empty() {
            return;
        }
        if self.spares(pager) {
            self.spared.get_or_insert(pager.clock.moment());
            return;
        }
        self.traces = true;
        // Another may trace one: then it is that one's.
        let held = process.hold(&meant).into_iter();
        self.held.extend(held.map(|thread| Hold { thread, stands: None }));
    }

    /// Whether nobody is held (FREEZER-9).
    fn spares(&mut self, pager: &Pager) -> bool {
        let now = pager.clock.now();
        match self.spares {
            Some((spares, when)) if now - when < SPARES_FOR => spares,
            _ => self.spares.insert((pager.host.may_be_used_up(), now)).0,
        }
    }

    /// Those of a process's threads that `runs` says run, except its agent's. None if that does not run yet: it
    /// is one of them that will start it.
    fn meant(
        &self,
        threads: Vec<(u32, char)>,
        agent: Option<u32>,
        runs: impl Fn(u32, char) -> bool,
    ) -> Vec<u32> {
        let Some(agent) = agent else { return Vec::new() };
        let is_meant = |&(thread, state): &(u32, char)| {
            let ours = thread == agent || self.held.iter().any(|held| held.thread == thread);
            !ours && runs(thread, state)
        };
        threads.into_iter().filter(is_meant).map(|(thread, _)| thread).collect()
    }
}

/// Whether a thread in this state, which may wait for a page that it has touched, is to be held (FREEZER-2).
const fn is_to_be_held(state: char, touches: bool, room: bool) -> bool {
    match state {
        'R' => true,
        'D' => !room,
        _ => touches,
    }
}

#[cfg(test)]
mod tests {
    use super::{Act, Brake, Hold};
    use crate::mm::{Areas, Mm, State};
    use crate::patience::{Patience, Wait};
    use crate::pool::Pool;
    use crate::quiet::{self, Quiet};
    use crate::seam::{Clock, Known, Process as _};
    use ebb_mm::resident::Space;
    use ebb_mm::types::MmId;
    use ebb_sys::{proc, trace};
    use ebb_testing::eventually;
    use std::process::Command;
    use std::sync::Arc;
    use std::sync::atomic::Ordering::Relaxed;
    use std::time::Duration;

    /// Beside a stopped process that holds more than the limit the others went on for a millisecond in 5 s.
    #[test]
    fn what_is_held_fast_for_too_long_is_let_go_for_a_while() {
        let (mut brake, clock) = (Brake::default(), Clock::simulated());
        assert_eq!(brake.decide(&clock, 20_000, 10_000), Act::Hold);
        brake.hold = Some(Wait::new(&clock, Patience::Hold));
        clock.stall(Duration::from_secs(60));
        assert_eq!(brake.decide(&clock, 20_000, 10_000), Act::Hold, "the host ran nobody");
        clock.advance(Duration::from_millis(4900));
        assert_eq!(brake.decide(&clock, 20_000, 10_000), Act::Hold);
        clock.advance(Duration::from_millis(200));
        assert_eq!(brake.decide(&clock, 20_000, 10_000), Act::LetGo);
        brake.hold = None;
        clock.advance(Duration::from_millis(500));
        assert_eq!(brake.decide(&clock, 20_000, 10_000), Act::LetGo);
        clock.advance(Duration::from_millis(600));
        assert_eq!(brake.decide(&clock, 20_000, 10_000), Act::Hold);
        assert_eq!(brake.decide(&clock, 10_100, 10_000), Act::Wait, "beyond, but little");
        assert_eq!(brake.decide(&clock, 10_000, 10_000), Act::LetGo);
    }

    /// One that waited for a page while it copied from another process's memory (`process_vm_readv`) was, and then took all of the
    /// CPU time that the pager was to run by. But one that had filled more shared memory than the limit then went on for ever.
    #[test]
    fn who_may_use_up_the_cpu_time_is_not_held_and_counts_as_waiting() {
        let pager = quiet::pager_by(Clock::simulated());
        let pool = Pool::new(1 << 30, 64 * 4096, 0);
        let state = State::new(Space::new(MmId(2)), Areas::default(), pool, 8);
        let mm = Arc::new(Mm::new(Box::new(Quiet::default()), state, pager.clock.clone()));
        // This thread runs; the process's first passes for its agent.
        let process = Known::open(std::process::id()).unwrap();
        process.note_thread(std::process::id());
        mm.set_process(Box::new(process));
        let mut brake = Brake { spares: Some((true, pager.clock.now())), ..Brake::default() };
        pager.clock.advance(Duration::from_millis(100));
        let waiting = || (pager.held.load(Relaxed), pager.held_since_ms.load(Relaxed));
        brake.look(&pager, 20_000, 10_000, &[mm]);
        assert!(!brake.is_on());
        let since = pager.clock.moment().ms();
        assert_eq!(waiting(), (1, since));
        pager.clock.advance(Duration::from_millis(100));
        brake.look(&pager, 20_000, 10_000, &[]);
        assert_eq!(waiting(), (1, since), "it is still too much");
        brake.look(&pager, 10_000, 10_000, &[]);
        assert_eq!(waiting(), (0, 0));
    }

    /// A forked child was held between its greeting and the start of its agent; nothing of it could be
    /// reclaimed then, so it was never let go, and the run ended as out of memory.
    #[test]
    fn a_child_that_has_yet_to_start_its_agent_is_not_held() {
        let mut child = Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let runs = |_, state| state == 'R';
        let mut brake = Brake::default();
        assert!(brake.meant(proc::threads(child.id()), None, runs).is_empty());
        eventually("a thread that runs", || {
            let meant = brake.meant(proc::threads(child.id()), Some(u32::MAX), runs);
            let held = meant.into_iter().filter(|&thread| trace::hold(thread).is_ok());
            brake.held.extend(held.map(|thread| Hold { thread, stands: None }));
            brake.is_on()
        });
        brake.traces = true;
        let clock = Clock::simulated();
        eventually("its stop", || {
            brake.see(&clock);
            brake.held.iter().all(|hold| hold.stands.is_some())
        });
        // FREEZER-5: as one that nobody meant to hold.
        let hold = brake.held.pop().unwrap();
        let (stop, ..) = hold.stands.expect("it stands");
        assert!(trace::let_go(hold.thread, stop).is_none(), "it is in no call");
        trace::hold(child.id()).unwrap();
        eventually("the end of a hold, after which another is possible", || {
            brake.see(&clock);
            trace::hold(child.id()).is_ok()
        });
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
