//! kswapd on the simulated machine: the engine's protocol, driven by events.
//!
//! Which order and zones it works for, when it naps, sleeps and gives up is
//! [`ebb_core::reclaim::Kswapd`]; here is only what a thread would do: carry out a step, let time
//! pass for it, come back.

use ebb_core::frame::Order;
use ebb_core::reclaim::{
    Asked, FramesNode, Kswapd as Protocol, KswapdStats as Counts, NAP_MS, Node, Pass, Passed,
    Policy, Step,
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
        if turn != self.kswapd.turn {
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
            Step::Nap => self.kswapd_after(self.mem.timer(NAP_MS * 1_000_000)),
            Step::Sleep => {}
        }
        self.kswapd.protocol = Some(protocol);
    }

    /// Carries out a batch of a pass. Returns what it cost.
    fn kswapd_pass(&mut self, protocol: &mut Protocol, pass: Pass, mut under: Under) -> u64 {
        let mem = &mut self.mem;
        mem.out.watch_zone = Some(pass.highest);
        mem.clock_ns = self.now;
        let cost = mem.pass_on(self.now, None, &mut under, true);
        mem.out.watch_zone = None;
        mem.spent.kswapd_ns += cost;
        if under.sc.is_paused() {
            self.kswapd.pass = Some((pass, under));
            return cost;
        }
        self.kswapd.freed += under.freed;
        let passed = Passed {
            scanned: under.sc.scanned,
            reclaimed: under.freed,
            writing: mem.out.writes.pending() > 0,
            met: (mem.tun.lru == LruKind::Classic).then_some(under.sc.met),
        };
        protocol.passed(&mem.out.desk, &passed);
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
}
