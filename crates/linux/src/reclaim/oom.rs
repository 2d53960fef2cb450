//! Out of memory: decides when to give up, by the progress of reclaim.
//!
//! There are two rules. `rounds` is the kernel's: it gives up after sixteen rounds that freed
//! nothing, even if other tasks have freed pages meanwhile (`try_charge_memcg`). `progress` looks
//! at the whole machine. As long as any task frees pages or writes end, waiting helps, and no task
//! gives up. It gives up only after a while without either, although everything was tried. With a
//! disk that writes nothing at all the while ends too, so there is no livelock.
//!
//! The age of pages plays no part.

use super::throttle::TICK_MS;
use ebb_mm::tunables::OomRule;

/// Number of rounds without progress after which a task gives up.
pub const ROUNDS_MAX: u32 = 16;
/// Time without any page written, although writes are pending, after which the disk counts as dead.
pub const STALL_MS_MAX: u64 = 2000;

/// The progress of the machine since its start, and its pending writes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Progress {
    /// Number of pages freed, by any task.
    pub freed: u64,
    /// Number of pages written.
    pub written: u64,
    /// Number of pages being written or still to be written whose end would free memory.
    pub pending: u64,
}

/// The decision after a round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Try again at once.
    Retry,
    /// Wait until a write ends, at most this many milliseconds, and try again.
    Wait(u64),
    /// Give up: no wait can help.
    GiveUp,
}

/// The progress seen by the tasks that reclaim from one memcg, or from the node.
#[derive(Clone, Debug, Default)]
pub struct OomJudge {
    rounds: u32,
    best: Progress,
    stalled_since_ms: Option<u64>,
}

impl OomJudge {
    /// Judges a round that freed `reclaimed` pages. `waits` tells whether the rule of rounds waits
    /// for write-out; the treatments of dirty pages differ in that.
    pub fn judge(
        &mut self,
        rule: OomRule,
        now_ms: u64,
        reclaimed: u64,
        seen: &Progress,
        waits: bool,
    ) -> Verdict {
        let by_others = seen.freed > self.best.freed;
        let written = seen.written > self.best.written;
        self.best = *seen;
        if reclaimed > 0 || (by_others && rule == OomRule::Progress) {
            self.rounds = 0;
            self.stalled_since_ms = None;
            return Verdict::Retry;
        }
        match rule {
            OomRule::Rounds => self.by_rounds(seen, waits),
            OomRule::Progress => self.by_progress(now_ms, seen, written),
        }
    }

    fn by_rounds(&mut self, seen: &Progress, waits: bool) -> Verdict {
        self.rounds += 1;
        if self.rounds > ROUNDS_MAX {
            self.rounds = 0;
            return Verdict::GiveUp;
        }
        if waits && seen.pending > 0 {
            return Verdict::Wait(super::throttle::Reason::Writeback.limit_ms());
        }
        Verdict::Retry
    }

    fn by_progress(&mut self, now_ms: u64, seen: &Progress, written: bool) -> Verdict {
        if written {
            self.rounds = 0;
            self.stalled_since_ms = None;
        }
        if seen.pending > 0 {
            let since = *self.stalled_since_ms.get_or_insert(now_ms);
            if now_ms < since + STALL_MS_MAX {
                return Verdict::Wait(super::throttle::Reason::Writeback.limit_ms());
            }
        } else {
            self.rounds += 1;
            if self.rounds <= ROUNDS_MAX {
                return Verdict::Wait(TICK_MS);
            }
        }
        *self = Self { best: self.best, ..Self::default() };
        Verdict::GiveUp
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const WAIT: Verdict = Verdict::Wait(100);

    #[test]
    fn no_task_gives_up_while_writes_end() {
        let mut judge = OomJudge::default();
        let mut seen = Progress { pending: 1000, ..Progress::default() };
        for round in 0..1000 {
            // One page a second is very slow, but is progress.
            seen.written = round / 10;
            let verdict = judge.judge(OomRule::Progress, round * 100, 0, &seen, false);
            assert_eq!(verdict, WAIT, "round {round}");
        }
    }

    #[test]
    fn a_disk_that_writes_nothing_does_not_put_off_the_end_for_ever() {
        let mut judge = OomJudge::default();
        let seen = Progress { pending: 1000, ..Progress::default() };
        let mut now = 0;
        let mut rounds = 0;
        while judge.judge(OomRule::Progress, now, 0, &seen, false) == WAIT {
            now += 100;
            rounds += 1;
            assert!(rounds <= 20, "the scan rate is bounded");
        }
        assert_eq!(now, STALL_MS_MAX);
    }

    #[test]
    fn with_nothing_to_write_a_task_gives_up_after_sixteen_rounds() {
        let mut judge = OomJudge::default();
        let none = Progress::default();
        for _ in 0..ROUNDS_MAX {
            let verdict = judge.judge(OomRule::Progress, 0, 0, &none, false);
            assert_eq!(verdict, Verdict::Wait(TICK_MS));
        }
        assert_eq!(judge.judge(OomRule::Progress, 0, 0, &none, false), Verdict::GiveUp);
    }

    #[test]
    fn pages_that_any_task_frees_are_progress_for_all() {
        let mut judge = OomJudge::default();
        for round in 0..100u64 {
            let seen = Progress { freed: round / 10, ..Progress::default() };
            let verdict = judge.judge(OomRule::Progress, 0, 0, &seen, false);
            assert_ne!(verdict, Verdict::GiveUp, "round {round}");
        }
        assert_eq!(
            judge.judge(OomRule::Progress, 0, 1, &Progress::default(), false),
            Verdict::Retry
        );
    }

    #[test]
    fn by_the_rule_of_rounds_pages_that_other_tasks_free_are_no_progress() {
        let mut judge = OomJudge::default();
        for round in 0..u64::from(ROUNDS_MAX) {
            let seen = Progress { freed: 100 * round, ..Progress::default() };
            assert_eq!(judge.judge(OomRule::Rounds, 0, 0, &seen, false), Verdict::Retry);
        }
        let seen = Progress { freed: 1_000_000, ..Progress::default() };
        assert_eq!(judge.judge(OomRule::Rounds, 0, 0, &seen, false), Verdict::GiveUp);
        // Progress of the task itself restarts the count of rounds.
        assert_eq!(judge.judge(OomRule::Rounds, 0, 1, &seen, false), Verdict::Retry);
        assert_eq!(judge.judge(OomRule::Rounds, 0, 0, &seen, false), Verdict::Retry);
    }

    #[test]
    fn the_rule_of_rounds_gives_up_over_writes_that_end_too_late() {
        for (waits, expect) in [(false, Verdict::Retry), (true, WAIT)] {
            let mut judge = OomJudge::default();
            for round in 0..u64::from(ROUNDS_MAX) {
                let seen = Progress { written: round, pending: 10, ..Progress::default() };
                assert_eq!(judge.judge(OomRule::Rounds, 0, 0, &seen, waits), expect);
            }
            let seen = Progress { written: 99, pending: 10, ..Progress::default() };
            assert_eq!(judge.judge(OomRule::Rounds, 0, 0, &seen, waits), Verdict::GiveUp);
        }
    }
}
