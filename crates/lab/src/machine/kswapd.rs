//! kswapd on the simulated machine: the engine's protocol, driven by events.
//!
//! Which order and zones it works for, when it naps, sleeps and gives up is
//! [`ebb_core::reclaim::Kswapd`]; here is only what a thread would do: carry out a step, let time
//! pass for it, come back.

use ebb_core::frame::Order;
use ebb_core::reclaim::throttle::Wait;
use ebb_core::reclaim::{
    Asked, Flags, FramesNode, Kswapd as Protocol, KswapdStats as Counts, NAP_MS, Node, Outlook,
    Pass, Passed, Policy, Reason, Step,
};
use ebb_core::tunables::LruKind;

use super::sched::{Event, Machine};
use super::task::Under;

/// What it did.
#[derive(Clone, Copy, Default, Debug)]
pub struct KswapdStats {
    /// The engine's counts.
    pub counts: Counts,
    /// Time it worked, or looked round for work.
    pub awake_ns: u64,
}

/// Its state.
#[derive(Debug, Default)]
pub struct Kswapd {
    protocol: Option<Protocol>,
    turn: u64,
    awake_since: Option<u64>,
    awake_ns: u64,
    /// Pages freed in the run under way.
    freed: u64,
    /// The pass under way.
    pass: Option<(Pass, Under)>,
    /// The wait for writes that it is in, and until when at most; without one to be ended early, for all that time.
    wait: Option<(Option<Wait>, u64)>,
}

/// One look round its loop that finds nothing to do.
const LOOP_NS: u64 = 10_000;
/// How often it looks whether writes have ended.
const WRITES_NS: u64 = 1_000_000;

impl Machine {
    fn kswapd_after(&mut self, ns: u64) {
        self.kswapd.turn += 1;
        let turn = self.kswapd.turn;
        self.ask(self.now + ns, Event::Kswapd(turn));
    }

    /// The allocator asks for pages of zones up to `index`.
    pub(super) fn wake_kswapd(&mut self, index: usize) {
        let node = FramesNode { frames: &self.mem.out.frames, node: 0 };
        let policy = Policy::of(&self.mem.tun);
        let highest = index.min(node.classes() - 1);
        let asked = self.mem.out.desk.ask(&node, policy, Order::ZERO, highest);
        // The first request finds it awake: its thread was just made.
        let first = self.kswapd.protocol.is_none();
        if first {
            self.kswapd.protocol = Some(Protocol::new(policy, node.classes()));
        }
        if first || asked == Asked::Wake {
            self.kswapd_after(self.mem.costs.switch_ns);
        }
    }

    /// Somebody who waits for the reserve has woken it.
    pub(super) fn rouse_kswapd(&mut self) {
        if self.kswapd.protocol.is_some() {
            self.kswapd_after(self.mem.costs.switch_ns);
        }
    }

    /// Its event: the next step.
    pub(super) fn kswapd(&mut self, turn: u64) {
        if turn != self.kswapd.turn || self.kswapd_still_waits() {
            return;
        }
        let Some(mut protocol) = self.kswapd.protocol.take() else { return };
        if let Some((pass, under)) = self.kswapd.pass.take() {
            let cost = self.kswapd_pass(&mut protocol, pass, under);
            self.kswapd_after(cost);
            self.kswapd.protocol = Some(protocol);
            return;
        }
        let node = FramesNode { frames: &self.mem.out.frames, node: 0 };
        let step = protocol.step(&self.mem.out.desk, &node, &self.mem.stat);
        if protocol.ended() {
            let freed = std::mem::take(&mut self.kswapd.freed);
            self.mem.end_kswapd_run(freed);
        }
        match step {
            Step::Nap | Step::Sleep => {
                self.mem.let_go += 1;
                if let Some(since) = self.kswapd.awake_since.take() {
                    self.kswapd.awake_ns += self.now - since;
                    self.kswapd_works(false);
                }
            }
            _ if self.kswapd.awake_since.is_none() => {
                self.kswapd.awake_since = Some(self.now);
                self.kswapd_works(true);
            }
            _ => {}
        }
        match step {
            Step::Pass(pass) => {
                self.mem.begin_reclaim(self.now);
                self.mem.protect(None, false);
                let under = Under::new(pass.scan(self.mem.tun.swappiness.0), false);
                let cost = self.kswapd_pass(&mut protocol, pass, under);
                self.kswapd_after(cost + self.mem.pass_ns());
            }
            Step::Again => self.kswapd_after(LOOP_NS),
            Step::AwaitWrites => self.kswapd_after(self.mem.timer(WRITES_NS)),
            Step::Throttle => {
                self.kswapd_waits(self.now);
                self.kswapd_after(self.mem.timer(WRITES_NS));
            }
            Step::Nap => self.kswapd_after(self.mem.timer(NAP_MS * 1_000_000)),
            Step::Sleep => {}
        }
        self.kswapd.protocol = Some(protocol);
    }

    /// Begins its wait for writes: until enough of them have ended, or as it was until 2021 (`congestion_wait`) for
    /// all of its time.
    fn kswapd_waits(&mut self, from: u64) {
        let (mem, ms) = (&self.mem, self.mem.tun.congested_ms);
        let (wait, ms) = if ms > Reason::Congested.limit_ms() {
            (None, ms)
        } else {
            let seen = Outlook { written: mem.pages_written(), ..Outlook::default() };
            (mem.out.throttle.begin(Reason::Writeback, &seen), Reason::Writeback.limit_ms())
        };
        self.kswapd.wait = Some((wait, from + mem.timer(ms * 1_000_000)));
    }

    /// Whether it waits for writes and has to go on doing so.
    fn kswapd_still_waits(&mut self) -> bool {
        let Some((wait, until)) = self.kswapd.wait else { return false };
        let throttle = &self.mem.out.throttle;
        let over = wait.is_some_and(|w| throttle.over(&w, self.mem.pages_written()));
        if self.now < until && !over {
            self.kswapd_after(self.mem.timer(WRITES_NS).min(until - self.now));
            return true;
        }
        wait.into_iter().for_each(|w| throttle.end(w));
        self.kswapd.wait = None;
        false
    }

    /// Carries out a batch of a pass. Returns what it cost.
    fn kswapd_pass(&mut self, protocol: &mut Protocol, pass: Pass, mut under: Under) -> u64 {
        let mem = &mut self.mem;
        mem.out.watch_zone = Some(pass.highest);
        mem.clock_ns = self.now;
        let by_batch = mem.notes_by_batch();
        let before = under.sc.met;
        if by_batch {
            under.sc.node_dirty = mem.out.desk.has_flag(Flags::DIRTY);
            under.sc.node_writeback = mem.out.desk.has_flag(Flags::WRITEBACK);
        }
        let cost = mem.pass_on(self.now, None, &mut under, true);
        mem.out.watch_zone = None;
        mem.spent.kswapd_ns += cost;
        let met = under.sc.met;
        if by_batch {
            let met = met.since(&before);
            mem.out.desk.note(&met);
            if met.immediate > 0 {
                self.kswapd_waits(self.now + cost);
            }
        }
        let mem = &mut self.mem;
        if under.sc.is_paused() {
            self.kswapd.pass = Some((pass, under));
            return cost;
        }
        self.kswapd.freed += under.freed;
        let passed = Passed {
            scanned: under.sc.scanned,
            reclaimed: under.freed,
            writing: mem.out.writes.pending() > 0,
            met: (mem.tun.lru == LruKind::Classic && !by_batch).then_some(met),
        };
        protocol.passed(&mem.out.desk, &passed);
        mem.let_go_if_enough();
        cost
    }

    /// What it did until now, the running stretch of work included.
    pub(super) fn kswapd_stats(&self) -> KswapdStats {
        let k = &self.kswapd;
        let running = k.awake_since.map_or(0, |since| self.now.saturating_sub(since));
        KswapdStats {
            counts: k.protocol.as_ref().map(|p| *p.stats()).unwrap_or_default(),
            awake_ns: k.awake_ns + running,
        }
    }
}

impl KswapdStats {
    /// What was done after `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            counts: self.counts.since(&before.counts),
            awake_ns: self.awake_ns - before.awake_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::machine;
    use super::*;

    #[test]
    fn as_many_runs_as_this_machine_is_smaller_are_one() {
        let mut mem = machine().mem;
        mem.haste = 3;
        let seen = [9, 9, 9, 9, 0, 9, 9].map(|freed| {
            mem.end_kswapd_run(freed);
            mem.runs
        });
        // One that freed nothing was as long there.
        assert_eq!(seen, [1, 2, 0, 1, 0, 1, 2]);
    }
    /// It once went on after a millisecond, whatever had been written ([`Throttle`](ebb_core::reclaim::Throttle) has the
    /// test of what ends it early).
    #[test]
    fn kswapd_waits_for_writes_until_its_time_is_over() {
        let mut m = machine();
        let waits = |m: &mut Machine, now| {
            m.now = now;
            m.kswapd_still_waits()
        };
        assert!(!waits(&mut m, 0));
        m.kswapd_waits(0);
        assert!(waits(&mut m, 1_000_000) && waits(&mut m, 99_999_999));
        assert!(!waits(&mut m, 100_000_000) && !waits(&mut m, 0));
        m.mem.haste = 10;
        m.kswapd_waits(0);
        assert!(waits(&mut m, 9_999_999) && !waits(&mut m, 10_000_000));
    }

    /// They once looked every millisecond, and allocated in step.
    #[test]
    fn who_waits_for_the_reserve_is_let_go_as_soon_as_there_is_enough() {
        let mem = &mut machine().mem;
        mem.let_go_if_enough();
        assert_eq!(mem.let_go, 1, "all is free");
        mem.out.pin_lowest(0);
        mem.let_go_if_enough();
        assert_eq!(mem.let_go, 1, "nothing is");
        while let Some(pfn) = mem.out.pinned.pop() {
            mem.out.release(pfn);
        }
        mem.let_go_if_enough();
        assert_eq!(mem.let_go, 2);
    }
}
