//! Waits of reclaimers before or after reclaim: for what, how long, what ends them early.
//!
//! The waits are the engine's ([`ebb_linux::reclaim::throttle`], [`ebb_linux::reclaim::reserve`]).
//! Here a task is put into one and looks now and then whether it is over. There are five reasons to
//! wait:
//! * writes are under way;
//! * other tasks have too many pages off the lists;
//! * reclaim makes no progress;
//! * a disk has more than it can take;
//! * half of a reserve is gone.
//!
//! Pages are off the lists while a batch looks at them. A machine that is smaller than the one it
//! stands for has as many tasks with as large batches. Its lists are hundreds of times shorter. So
//! its tasks would wait for each other where those of the large machine do not. Therefore no task
//! waits for that unless `reclaim.isolated` is on.

use ebb_linux::reclaim::reserve::{HELD_MS_MAX, may_reclaim};
use ebb_linux::reclaim::throttle::{TICK_MS, too_many_isolated};
use ebb_linux::reclaim::{NodeState, Reason};
use ebb_mm::folio::LruType;
use ebb_mm::observe::vmstat::Event;
use ebb_mm::reclaim::{Flags, Node, Policy, RequestResult};
use ebb_mm::tunables::{LruKind, OomRule};

use super::mem::Mem;
use super::task::{Held, Run};

/// Nanoseconds between two looks of a task that waits for kswapd.
const HELD_LOOK_NS: u64 = 20_000;
/// Nanoseconds between two looks of a task that waits for writes.
const WRITE_WAIT_NS: u64 = 1_000_000;

impl Mem {
    /// Returns whether the running task may not reclaim yet, because half of the reserve is gone
    /// and kswapd has to make room. The task looks again when kswapd lets waiting tasks go.
    pub(super) fn hold_back(&mut self, now: u64, fs: bool) -> bool {
        if !self.tun.reclaim.hold {
            return false;
        }
        let before = self.task().held;
        let id = before.map_or_else(|| self.here(), |h| h.node);
        let releases = self.nodes[id].releases;
        if let Some(held) = before
            && held.releases == releases
            && now < held.until
        {
            self.out.patience = Some(held.until.min(now + HELD_LOOK_NS));
            return true;
        }
        let node = self.frames_of(id);
        let (policy, normal) = (Policy::of(&self.tun), node.classes() - 1);
        let Err(asked) = may_reclaim(&self.nodes[id].wake_requests, &node, policy, normal) else {
            self.task().held = None;
            return false;
        };
        self.nodes[id].woken |= asked == RequestResult::Wake;
        if before.is_none() {
            self.stat.add(Event::PgScanDirectThrottle, 1);
        }
        let limit = now + self.timer(HELD_MS_MAX * 1_000_000);
        let until = before.map_or(if fs { u64::MAX } else { limit }, |h| h.until);
        self.task().held = Some(Held { node: id, until, releases });
        if now >= until {
            self.task().held = None;
            return false;
        }
        self.out.patience = Some(until.min(now + HELD_LOOK_NS));
        true
    }

    /// Lets waiting tasks look again after a pass of a node's kswapd, if there is enough in
    /// reserve.
    pub(super) fn release_if_enough(&mut self, node: usize) {
        let enough = self.frames_of(node).reserve_left();
        self.nodes[node].releases += u64::from(enough);
    }

    /// Returns whether this task waits and has to go on doing so.
    pub(super) fn still_waits(&mut self, now: u64) -> bool {
        let Some((wait, node, until)) = self.task().wait else { return false };
        if now < until && !self.nodes[node].throttle.over(&wait, self.pages_written()) {
            self.out.patience = Some(until.min(now + self.timer(WRITE_WAIT_NS)));
            return true;
        }
        self.nodes[node].throttle.end(wait);
        self.task().wait = None;
        false
    }

    pub(super) fn begin_wait(&mut self, now: u64, ms: u64) {
        let seen = NodeState { written: self.pages_written(), ..NodeState::default() };
        let (node, until) = (self.here(), now + self.timer(ms * 1_000_000));
        if self.tun.reclaim.oom == OomRule::Progress {
            // The end of any write may be enough, so the task does not wait for a number of them.
        } else if let Some(wait) = self.nodes[node].throttle.begin(Reason::Writeback, &seen) {
            self.task().wait = Some((wait, node, until));
        }
        self.out.patience = Some(until.min(now + self.timer(WRITE_WAIT_NS)));
    }

    pub(super) fn pages_written(&self) -> u64 {
        self.out.writes.succeeded()
    }

    /// Returns the state of a node on which a task decides to wait.
    fn node_state(&self, node: usize) -> NodeState {
        let lists = self.lists(Some(node)).map(|l| &l.lruvec);
        NodeState {
            hopeless: self.nodes[node].wake_requests.hopeless(),
            write_pending: self.out.cache.dirty() + self.out.writes.pending(),
            reclaimable: lists.map(|v| v.size(LruType::File, false)).sum(),
            written: self.pages_written(),
        }
    }

    /// Puts the running task into a wait for `reason`, unless there is no point in one. Returns
    /// whether it waits.
    fn wait_for(&mut self, now: u64, node: usize, reason: Reason) -> bool {
        let seen = self.node_state(node);
        let Some(wait) = self.nodes[node].throttle.begin(reason, &seen) else { return false };
        let until = now + self.timer(reason.limit_ms() * 1_000_000);
        self.task().wait = Some((wait, node, until));
        self.out.patience = Some(until.min(now + self.timer(TICK_MS * 1_000_000)));
        true
    }

    /// Ends the waits for progress if a task's run of reclaim made progress.
    pub(super) fn tell_of_progress(&self, run: &Run) {
        if run.direct.efficient() {
            self.nodes[self.here()].throttle.progress();
        }
    }

    /// Returns whether a task waits for progress, because its run of reclaim from all memcgs made
    /// none.
    pub(super) fn waits_for_progress(&mut self, now: u64, run: &Run) -> bool {
        let node = self.here();
        let reason =
            run.direct.waits_for().filter(|_| run.from.is_none() && self.tun.reclaim.no_progress);
        let waits = reason.is_some_and(|reason| self.wait_for(now, node, reason));
        self.spent.progress_waits += u64::from(waits);
        waits
    }

    /// Records that so many pages are off the lists of a node until a batch is over.
    pub(super) fn note_isolated(&mut self, now: u64, node: usize, until: u64, pages: u64) {
        if self.tun.reclaim.isolated {
            let isolated = &mut self.nodes[node].isolated;
            isolated.retain(|&(until, _)| until > now);
            isolated.push((until, pages));
        }
    }

    /// Returns whether the running task has to wait before a batch, because others have too many
    /// pages of the node off its lists. It waits once, then it goes on (`shrink_inactive_list`).
    /// The multi-gen LRU never waits for this.
    pub(super) fn waits_for_others(&mut self, now: u64, run: &mut Run) -> bool {
        if !self.tun.reclaim.isolated || self.tun.lru != LruKind::Classic || run.stalled {
            run.stalled = false;
            return false;
        }
        let node = run.pass.as_ref().map_or_else(|| self.here(), |under| under.node.0);
        let off = self.nodes[node].isolated.iter().filter(|&&(until, _)| until > now);
        let off: u64 = off.map(|&(_, pages)| pages).sum();
        let inactive = |ty| self.lists(Some(node)).map(|l| l.lruvec.size(ty, false)).sum::<u64>();
        let inactive: u64 = LruType::ALL.into_iter().map(inactive).sum();
        let may_wait = !self.task().no_fs;
        run.stalled = too_many_isolated(off, inactive, may_wait)
            && self.wait_for(now, node, Reason::Isolated);
        run.stalled
    }

    /// Returns how long a task waits after reclaim, from all or from one memcg, while the disk has
    /// more than it can take.
    pub(super) fn wait_if_congested(&mut self, from: Option<usize>, node: usize) -> u64 {
        let wait = self.congested_ns(from, node);
        self.spent.congested_ns += wait;
        wait
    }

    fn congested_ns(&self, from: Option<usize>, node: usize) -> u64 {
        let of = &self.nodes[node];
        if from.is_some() || !of.wake_requests.has_flag(Flags::CONGESTED) {
            return 0;
        }
        let seen = self.node_state(node);
        let limit = self.timer(self.tun.reclaim.congested_ms * 1_000_000);
        if self.tun.reclaim.congested_ms > Reason::Congested.limit_ms() {
            // `wait_iff_congested`: a disk that has anything to write has more than its queue
            // takes.
            return if self.out.writes.pending() > 0 { limit } else { 0 };
        }
        of.throttle.begin(Reason::Congested, &seen).map_or(0, |_| limit)
    }
}

#[cfg(test)]
mod tests {
    use ebb_linux::reclaim::DirectPassed;
    use ebb_mm::space::Backing;
    use ebb_mm::tunables::Tunables;

    use super::super::ahead::Descriptors;
    use super::super::mem::{Access, Region};
    use super::super::testing::machine;
    use super::*;

    /// Creates 4096 frames with so many dirty pages of a file.
    fn dirty(pages: u64) -> Mem {
        let mut mem = machine().mem;
        let region =
            Region { pages, backing: Backing::File, recency: true, exec: false, processes: 1 };
        let space = mem.add_space(0, &[region]);
        for page in 0..pages {
            mem.fault(0, space, page, Access::FdWrite, &mut Descriptors::default());
        }
        mem.begin_reclaim(0);
        mem
    }

    /// Creates a run in which each pass looks at a hundred pages and frees `freed`.
    fn run(from: Option<usize>, freed: u64) -> Run {
        let mut run = Run::new(from, 32);
        while run.direct.next().is_some() {
            let passed = DirectPassed { reclaimed: freed, scanned: 100, ..DirectPassed::default() };
            run.direct.passed(&passed);
        }
        run
    }

    #[test]
    fn a_task_without_progress_waits_a_tick_or_until_another_makes_progress() {
        let tick = TICK_MS * 1_000_000;
        let mem = &mut dirty(1000);
        assert!(mem.waits_for_progress(0, &run(None, 0)));
        assert!(mem.still_waits(1) && mem.still_waits(tick - 1));
        assert!(!mem.still_waits(tick), "its time is over");
        assert!(mem.waits_for_progress(0, &run(None, 0)));
        mem.tell_of_progress(&run(None, 0));
        assert!(mem.still_waits(1));
        mem.tell_of_progress(&run(None, 32));
        assert!(!mem.still_waits(1), "and lets others go on");
        assert!(!mem.waits_for_progress(0, &run(None, 32)), "it got what it wanted");
        assert!(!mem.waits_for_progress(0, &run(Some(0), 0)), "its memcg is not the node");
        mem.tun.reclaim.no_progress = false;
        assert!(!mem.waits_for_progress(0, &run(None, 0)));
        assert!(!machine().mem.waits_for_progress(0, &run(None, 0)), "there is nothing to write");
    }

    #[test]
    fn a_task_that_finds_an_eighth_of_the_pages_isolated_waits_once_for_others() {
        let mem = &mut dirty(800);
        let ready = |mem: &mut Mem, run: &mut Run, now| !mem.waits_for_others(now, run);
        let run = &mut run(None, 0);
        mem.note_isolated(0, 0, 50_000, 500);
        assert!(ready(mem, run, 0), "not unless told to");
        mem.tun = Tunables::preset("classic").unwrap();
        mem.tun.reclaim.isolated = true;
        let inactive = LruType::ALL.map(|ty| mem.memcgs[0].on[0].lruvec.size(ty, false));
        let eighth = inactive.iter().sum::<u64>() / 8;
        mem.note_isolated(0, 0, 50_000, eighth);
        assert!(eighth > 0 && ready(mem, run, 0));
        mem.note_isolated(0, 0, 50_000, 1);
        assert!(!ready(mem, run, 0));
        assert!(mem.still_waits(19_999_999) && !mem.still_waits(20_000_000));
        assert!(ready(mem, run, 1), "once");
        assert!(!ready(mem, run, 1) && !mem.still_waits(1 << 40));
        assert!(ready(mem, run, 1) && ready(mem, run, 50_000), "they are back");
    }
}
