//! The kswapds of the simulated machine, one for each node: the engine's protocol, driven by
//! events.
//!
//! [`ebb_mm::reclaim::Kswapd`] decides for which order and zones kswapd works, and when it naps,
//! sleeps and gives up. This file does only the work of a thread. It carries out a step, lets the
//! time of the step pass, and asks for the next step.

use ebb_linux::frame::Order;
use ebb_linux::reclaim::throttle::Wait;
use ebb_linux::reclaim::{NodeState, Reason};
use ebb_mm::reclaim::{
    Flags, Kswapd as Protocol, KswapdStats as Counts, NAP_MS, Node, Pass, Passed, Policy,
    RequestResult, Step,
};
use ebb_mm::tunables::LruKind;

use super::live::Next;
use super::sched::{Event, Machine};
use super::task::PassState;
use super::tracepoints::Doer;

/// Totals of kswapd's work.
#[derive(Clone, Copy, Default, Debug)]
pub struct KswapdStats {
    /// The engine's counts.
    pub counts: Counts,
    /// Nanoseconds that kswapd worked, or looked round for work.
    pub awake_ns: u64,
    /// Number of times that kswapd cleared a flag of its node.
    pub flag_clears: u64,
}

/// State of one node's kswapd.
#[derive(Debug, Default)]
pub struct Kswapd {
    protocol: Option<Protocol>,
    turn: u64,
    awake_since: Option<u64>,
    awake_ns: u64,
    /// Pages freed in the run under way.
    freed: u64,
    /// The pass under way.
    pass: Option<(Pass, PassState)>,
    /// Time at which kswapd was woken, until it takes a step.
    woken_ns: Option<u64>,
    /// Number of steps in a row that began with the node in balance.
    idle: u64,
    /// The wait for writes that kswapd is in, and its latest end. Without a [`Wait`] nothing ends
    /// it early.
    wait: Option<(Option<Wait>, u64)>,
}

/// Nanoseconds of one turn of kswapd's loop that finds nothing to do.
const LOOP_NS: u64 = 10_000;
/// Nanoseconds between two looks whether writes have ended.
const WRITES_NS: u64 = 1_000_000;

impl Machine {
    fn kswapd_after(&mut self, node: usize, ns: u64) {
        let turn = &mut self.kswapds[node].turn;
        *turn += 1;
        let turn = *turn;
        self.schedule(self.now + ns, Event::Kswapd(node, turn));
    }

    /// Asks kswapd for pages of a node's zones up to `index`, for the allocator.
    pub(super) fn wake_kswapd(&mut self, id: usize, index: usize) {
        if self.mem.live.is_some() {
            let asleep = self.kswapds[id].awake_since.is_none();
            return if asleep {
                self.kswapd_after(id, self.mem.costs.switch_ns)
            };
        }
        let node = self.mem.frames_of(id);
        let policy = Policy::of(&self.mem.tun);
        let highest = index.min(node.classes() - 1);
        let asked = self.mem.nodes[id].wake_requests.request(&node, policy, Order::ZERO, highest);
        // The first request finds kswapd awake because its thread was just made.
        let protocol = &mut self.kswapds[id].protocol;
        let first = protocol.is_none();
        protocol.get_or_insert_with(|| Protocol::new(policy, node.classes()));
        if asked == RequestResult::Wake
            && let Some(tracepoints) = &mut self.mem.out.tracepoints
        {
            let doer = Doer::Task(self.mem.out.task, self.mem.out.cpu);
            tracepoints.wakes_kswapd(self.now, doer, id);
        }
        if first || asked == RequestResult::Wake {
            self.kswapds[id].woken_ns.get_or_insert(self.now);
            self.kswapd_after(id, self.mem.costs.switch_ns);
        }
    }

    /// Wakes a node's kswapd for a task that waits for the node's reserve.
    pub(super) fn wake_kswapd_for_reserve(&mut self, node: usize) {
        if self.kswapds[node].protocol.is_some() {
            self.kswapds[node].woken_ns.get_or_insert(self.now);
            self.kswapd_after(node, self.mem.costs.switch_ns);
        }
    }

    /// Takes the next step of a node's kswapd, on its event.
    pub(super) fn kswapd(&mut self, id: usize, turn: u64) {
        if turn != self.kswapds[id].turn || self.kswapd_still_waits(id) {
            return;
        }
        if self.mem.live.is_some() {
            return self.live_kswapd(id);
        }
        self.note_woken(id, self.now);
        let Some(mut protocol) = self.kswapds[id].protocol.take() else { return };
        if let Some((pass, pass_state)) = self.kswapds[id].pass.take() {
            let cost = self.kswapd_pass(&mut protocol, pass, pass_state);
            self.kswapd_after(id, cost);
            self.kswapds[id].protocol = Some(protocol);
            return;
        }
        let fine = self.mem.is_fine(id);
        let node = self.mem.frames_of(id);
        let before = *protocol.stats();
        let step = protocol.step(&self.mem.nodes[id].wake_requests, &node, &self.mem.stat);
        self.note_kswapd(id, &protocol.stats().since(&before));
        self.note_step(id, step, fine);
        let kswapd = &mut self.kswapds[id];
        if protocol.ended() {
            let freed = std::mem::take(&mut kswapd.freed);
            self.mem.end_kswapd_run(id, freed);
        }
        match step {
            Step::Nap | Step::Sleep => {
                self.mem.nodes[id].releases += 1;
                if let Some(since) = kswapd.awake_since.take() {
                    kswapd.awake_ns += self.now - since;
                    self.kswapd_works(false);
                }
            }
            _ if kswapd.awake_since.is_none() => {
                kswapd.awake_since = Some(self.now);
                self.kswapd_works(true);
            }
            _ => {}
        }
        match step {
            Step::Pass(pass) => {
                self.mem.begin_reclaim(self.now);
                self.mem.protect(None, false);
                let pass_state =
                    PassState::new(pass.scan(self.mem.tun.swappiness.0), (id, 1), false);
                let cost = self.kswapd_pass(&mut protocol, pass, pass_state);
                self.kswapd_after(id, cost + self.mem.pass_ns());
            }
            Step::Again => self.kswapd_after(id, LOOP_NS),
            Step::AwaitWrites => self.kswapd_after(id, self.mem.timer(WRITES_NS)),
            Step::Throttle => {
                self.kswapd_waits(id, self.now);
                self.kswapd_after(id, self.mem.timer(WRITES_NS));
            }
            Step::Nap => self.kswapd_after(id, self.mem.timer(NAP_MS * 1_000_000)),
            Step::Sleep => {}
        }
        self.kswapds[id].protocol = Some(protocol);
    }

    /// Records in the tracepoints that kswapd went to sleep or began a run.
    fn note_kswapd(&mut self, node: usize, done: &Counts) {
        let Some(tracepoints) = &mut self.mem.out.tracepoints else { return };
        if done.sleeps > 0 {
            tracepoints.kswapd_sleeps(self.now, node);
        }
        if done.runs > 0 {
            tracepoints.kswapd_begins(self.now, node);
        }
    }

    /// Records the time from kswapd's wake-up to `now`. At that time kswapd takes a step, or the
    /// run ends.
    pub(super) fn note_woken(&mut self, id: usize, now: u64) {
        if let Some(woken) = self.kswapds[id].woken_ns.take() {
            self.mem.signs.wake_ns = self.mem.signs.wake_ns.max(now.saturating_sub(woken));
        }
    }

    /// Records signs of trouble in a step. `fine`: before the step a zone of the node was in
    /// balance. `calm`: no zone had a boost to work off.
    fn note_step(&mut self, id: usize, step: Step, (fine, calm): (bool, bool)) {
        let kswapd = &mut self.kswapds[id];
        let sleeps = matches!(step, Step::Nap | Step::Sleep);
        kswapd.idle = if fine && calm && !sleeps { kswapd.idle + 1 } else { 0 };
        self.mem.signs.idle = self.mem.signs.idle.max(kswapd.idle);
        let given_up = self.mem.nodes[id].wake_requests.hopeless();
        self.mem.signs.early += u64::from(sleeps && !fine && !given_up);
    }

    /// Takes the next step of kswapd under Ebb: the next order of the engine.
    fn live_kswapd(&mut self, id: usize) {
        let next = self.mem.live_step(self.now);
        let kswapd = &mut self.kswapds[id];
        let after = match next {
            Ok(Next::Work(ns)) => {
                if kswapd.awake_since.is_none() {
                    kswapd.awake_since = Some(self.now);
                    self.kswapd_works(true);
                }
                self.mem.spent.kswapd_ns += ns;
                Some(ns)
            }
            other => {
                if let Some(since) = kswapd.awake_since.take() {
                    kswapd.awake_ns += self.now - since;
                    self.kswapd_works(false);
                }
                (other == Ok(Next::Nap)).then(|| self.mem.timer(NAP_MS * 1_000_000))
            }
        };
        after.into_iter().for_each(|ns| self.kswapd_after(id, ns));
        // `ebb run` also ends such a run.
        if let Err(why) = next {
            self.failed = Some(why);
        }
    }

    /// Begins kswapd's wait for writes. The wait ends when enough of them have ended, or when its
    /// time is over. With `congestion_wait`, as until 2021, only its time ends it.
    fn kswapd_waits(&mut self, node: usize, from: u64) {
        let (mem, ms) = (&self.mem, self.mem.tun.reclaim.congested_ms);
        let (wait, ms) = if ms > Reason::Congested.limit_ms() {
            (None, ms)
        } else {
            let seen = NodeState { written: mem.pages_written(), ..NodeState::default() };
            (mem.nodes[node].throttle.begin(Reason::Writeback, &seen), Reason::Writeback.limit_ms())
        };
        self.kswapds[node].wait = Some((wait, from + mem.timer(ms * 1_000_000)));
    }

    /// Returns whether kswapd waits for writes and has to go on doing so.
    fn kswapd_still_waits(&mut self, node: usize) -> bool {
        let Some((wait, until)) = self.kswapds[node].wait else { return false };
        let throttle = &self.mem.nodes[node].throttle;
        let over = wait.is_some_and(|w| throttle.over(&w, self.mem.pages_written()));
        if self.now < until && !over {
            self.kswapd_after(node, self.mem.timer(WRITES_NS).min(until - self.now));
            return true;
        }
        wait.into_iter().for_each(|w| throttle.end(w));
        self.kswapds[node].wait = None;
        false
    }

    /// Carries out a batch of a pass. Returns the cost in nanoseconds.
    fn kswapd_pass(
        &mut self,
        protocol: &mut Protocol,
        pass: Pass,
        mut pass_state: PassState,
    ) -> u64 {
        let (mem, node) = (&mut self.mem, pass_state.node.0);
        mem.out.watch_zone = Some((node, pass.highest));
        mem.clock_ns = self.now;
        let by_batch = mem.notes_by_batch();
        let before = pass_state.sc.met;
        if by_batch {
            pass_state.sc.node_dirty = mem.nodes[node].wake_requests.has_flag(Flags::DIRTY);
            pass_state.sc.node_writeback = mem.nodes[node].wake_requests.has_flag(Flags::WRITEBACK);
        }
        let scanned = pass_state.sc.scanned;
        let cost = mem.pass_on(self.now, None, &mut pass_state, true);
        mem.note_isolated(self.now, node, self.now + cost, pass_state.sc.scanned - scanned);
        mem.out.watch_zone = None;
        mem.spent.kswapd_ns += cost;
        let met = pass_state.sc.met;
        if by_batch {
            let met = met.since(&before);
            mem.nodes[node].wake_requests.note(&met);
            if met.immediate > 0 {
                self.kswapd_waits(node, self.now + cost);
            }
        }
        let mem = &mut self.mem;
        if !pass_state.is_over() {
            self.kswapds[node].pass = Some((pass, pass_state));
            return cost;
        }
        self.kswapds[node].freed += pass_state.freed;
        mem.note_freed(pass_state.freed, pass.target, mem.memcgs.len());
        let passed = Passed {
            scanned: pass_state.sc.scanned,
            reclaimed: pass_state.freed,
            writing: mem.out.writes.pending() > 0,
            met: (mem.tun.lru == LruKind::Classic && !by_batch).then_some(met),
        };
        protocol.passed(&mem.nodes[node].wake_requests, &passed);
        mem.release_if_enough(node);
        cost
    }

    /// Returns the totals of the kswapds of all nodes until now, with the stretches of work under
    /// way.
    pub(super) fn kswapd_stats(&self) -> KswapdStats {
        let mut all = KswapdStats::default();
        for k in &self.kswapds {
            let running = k.awake_since.map_or(0, |since| self.now.saturating_sub(since));
            all.counts =
                all.counts.plus(&k.protocol.as_ref().map(|p| *p.stats()).unwrap_or_default());
            all.awake_ns += k.awake_ns + running;
        }
        all.flag_clears =
            self.mem.nodes.iter().map(|n| u64::from(n.wake_requests.flag_clears())).sum();
        all
    }
}

impl KswapdStats {
    /// Returns the difference from `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            counts: self.counts.since(&before.counts),
            awake_ns: self.awake_ns - before.awake_ns,
            flag_clears: self.flag_clears - before.flag_clears,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::machine;
    use super::*;

    #[test]
    fn as_many_kswapd_runs_as_the_time_scale_count_as_one() {
        let mut mem = machine().mem;
        mem.time_scale = 3;
        let seen = [9, 9, 9, 9, 0, 9, 9].map(|freed| {
            mem.end_kswapd_run(0, freed);
            mem.nodes[0].runs
        });
        // A run that freed nothing counts as one on both machines.
        assert_eq!(seen, [1, 2, 0, 1, 0, 1, 2]);
    }
    /// kswapd does not go on after a millisecond, whether pages were written or not.
    /// [`Throttle`](ebb_linux::reclaim::Throttle) has the test of an early end.
    #[test]
    fn kswapd_waits_for_writes_until_its_time_is_over() {
        let mut m = machine();
        let waits = |m: &mut Machine, now| {
            m.now = now;
            m.kswapd_still_waits(0)
        };
        assert!(!waits(&mut m, 0));
        m.kswapd_waits(0, 0);
        assert!(waits(&mut m, 1_000_000) && waits(&mut m, 99_999_999));
        assert!(!waits(&mut m, 100_000_000) && !waits(&mut m, 0));
        m.mem.time_scale = 10;
        m.kswapd_waits(0, 0);
        assert!(waits(&mut m, 9_999_999) && !waits(&mut m, 10_000_000));
    }

    /// A task that waits for the reserve does not look every millisecond, because such tasks
    /// allocate in step.
    #[test]
    fn a_task_that_waits_for_the_reserve_goes_on_when_there_is_enough() {
        let mem = &mut machine().mem;
        mem.release_if_enough(0);
        assert_eq!(mem.nodes[0].releases, 1, "all is free");
        mem.out.pin_lowest(0);
        mem.release_if_enough(0);
        assert_eq!(mem.nodes[0].releases, 1, "nothing is");
        while let Some(pfn) = mem.out.pinned.pop() {
            mem.out.release(pfn);
        }
        mem.release_if_enough(0);
        assert_eq!(mem.nodes[0].releases, 2);
    }
}
