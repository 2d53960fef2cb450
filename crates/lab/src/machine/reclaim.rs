//! Reclaim on the simulated machine: which task reclaims, how long that takes, which tasks wait.
//!
//! A task and kswapd reclaim in batches, as many pages as the kernel takes off a list at a time.
//! Each batch happens at one moment of virtual time. The cost model turns the engine's counters for
//! the batch into time. The next batch follows after that time. Meanwhile other threads touch
//! pages, reclaim and find freed pages, and writes end. The part under the lru lock makes the next
//! batch on that lruvec wait. The waits of reclaimers are in `waits`.

use std::sync::Arc;

use ebb_linux::frame::Order;
use ebb_linux::memcg::Memcgs;
use ebb_linux::reclaim::oom::ROUNDS_MAX as OOM_ROUNDS_MAX;
use ebb_linux::reclaim::{DirectPassed, OomJudge, Progress, Verdict};
use ebb_mm::folio::{LruType, MemcgId, Word};
use ebb_mm::lru::{Ctx, Protection, Scan, scan};
use ebb_mm::observe::vmstat::Event;
use ebb_mm::tunables::{Dirty, LruKind, NodeNotes};
use ebb_mm::types::Pfn;

use super::mem::{Fault, Mem, cx};
use super::task::{PassState, Run, Task};
use super::tracepoints::Doer;

/// Rounds of reclaim in a row after which a task that makes progress gives up its CPU once.
const ROUNDS_MAX: u32 = OOM_ROUNDS_MAX + 1;
/// Frames that one call of [`Mem::recover_slots`] looks at.
const RECOVER_FRAMES: u32 = 1024;

impl Mem {
    /// Returns the lowest memcg without room for `pages` more, of `memcg` and the memcgs above it.
    pub(super) fn full(&self, memcg: usize, pages: u64) -> Option<usize> {
        let full = self.out.groups.full(MemcgId(memcg as u16 + 1), pages)?;
        Some(usize::from(full.0) - 1)
    }

    /// Makes room for `pages` of a memcg. Returns `pages` if there is room, else 0, and the cost in
    /// nanoseconds. Without room the running task waits, or reclaims one batch. With
    /// `retries_at_once` set, the task tries again when that batch is done. Otherwise
    /// `out.patience` is the time to try again, or none if no wait can help. `fs`: the task may
    /// enter file systems.
    pub(super) fn make_room(&mut self, now: u64, memcg: usize, pages: u64, fs: bool) -> (u64, u64) {
        self.out.patience = None;
        if self.still_waits(now) {
            return (0, 0);
        }
        let run = self.task().run.take();
        let mut run = match run {
            Some(run) => run,
            None => {
                let full = self.full(memcg, pages);
                if full.is_none() && self.found_frame() {
                    let task = self.task();
                    (task.oom_judge, task.rounds, task.drained) = (OomJudge::default(), 0, false);
                    return (pages, 0);
                }
                if full.is_none() && self.hold_back(now, fs) {
                    return (0, 0);
                }
                self.begin_run(now, full)
            }
        };
        if self.waits_for_others(now, &mut run) {
            self.task().run = Some(run);
            return (0, 0);
        }
        let (took, over) = self.batch(now, &mut run, true);
        if over {
            self.note_end(now + took, self.out.task, &run);
            self.after_run(now + took, &run, memcg);
        } else {
            self.task().run = Some(run);
            self.retries_at_once = true;
        }
        (0, took)
    }

    /// Makes room in one moment and without a second try, for pages that no thread waits for.
    /// Returns how many fit, and the cost in nanoseconds.
    pub(super) fn make_room_once(&mut self, now: u64, memcg: usize, pages: u64) -> (u64, u64) {
        let full = self.full(memcg, pages);
        if full.is_none() && self.found_frame() {
            return (pages, 0);
        }
        let (_, cost) = self.direct(now, full);
        let fits = self.full(memcg, pages).is_none() && self.found_frame();
        (if fits { pages } else { 0 }, cost)
    }

    /// Takes a frame into `held` for the caller. Returns whether there was one. A frame that is
    /// given back lies in a per-CPU set. There a check of the watermark does not count it.
    fn found_frame(&mut self) -> bool {
        self.held = self.alloc();
        self.held.is_some()
    }

    /// Decides how a task goes on after a run of reclaim.
    fn after_run(&mut self, now: u64, run: &Run, memcg: usize) {
        let task = self.task();
        task.rounds += 1;
        let (rounds, drained) = (task.rounds, task.drained);
        if run.from.is_none() && run.freed > 0 {
            // At a memcg's limit, only room ends the count of rounds without progress
            // (`make_room`).
            task.oom_judge = OomJudge::default();
        }
        if run.freed > 0 || (run.from.is_some() && self.full(memcg, 1).is_none()) {
            if rounds < ROUNDS_MAX {
                self.retries_at_once = true;
                return;
            }
            // Each round freed pages and other tasks took them, so there is hope.
            self.task().rounds = 0;
            self.out.patience = Some(now);
            return;
        }
        if run.from.is_none() && !drained {
            // The sets of other CPUs are drained before any task gives up.
            self.task().drained = true;
            self.out.frames.drain_all();
            self.retries_at_once = true;
            return;
        }
        if let Some(first) = run.first_end {
            // The task has begun writes itself. It looks again when the first of them ends.
            self.out.patience = Some(first.max(now));
            return;
        }
        match self.judge_progress(now) {
            Verdict::Retry => self.retries_at_once = !self.waits_for_progress(now, run),
            Verdict::Wait(ms) => self.begin_wait(now, ms),
            // An OOM kill may have freed memory meanwhile, so the task looks once more, as
            // `__alloc_pages_may_oom` does.
            Verdict::GiveUp => self.retries_at_once = self.has_enough(memcg),
        }
    }

    /// Returns whether there is room after all: the memcg is not full, and some zone is above its
    /// high watermark.
    fn has_enough(&self, memcg: usize) -> bool {
        let fine = |node| self.is_fine(node).0;
        self.full(memcg, 1).is_none() && (0..self.nodes.len()).any(fine)
    }

    /// Returns whether the running task's last fault found no room.
    pub(super) fn lacks_room(&mut self) -> bool {
        self.task().plan.is_some()
    }

    /// Returns the running task.
    pub(super) fn task(&mut self) -> &mut Task {
        let task = self.out.task;
        if self.tasks.len() <= task {
            self.tasks.resize_with(task + 1, Task::default);
        }
        &mut self.tasks[task]
    }

    /// Judges whether a reclaimer that freed nothing retries, waits or gives up, by the rule
    /// `reclaim.oom`. By `rounds`, the multi-gen LRU of 6.18 (`dirty=k618`) does not wait for file
    /// pages to be written. The classic LRU and 7.2's do.
    fn judge_progress(&mut self, now: u64) -> Verdict {
        let files = self.out.cache.writing();
        let count = |e| self.stat.get(e);
        let seen = Progress {
            freed: count(Event::PgStealAnon) + count(Event::PgStealFile),
            written: self.pages_written(),
            pending: self.out.writes.pending() + self.out.cache.dirty(),
        };
        let waits = self.tun.dirty != Dirty::K618 || self.out.writes.pending() > files;
        let (rule, now_ms) = (self.tun.reclaim.oom, now * self.time_scale.max(1) / 1_000_000);
        self.task().oom_judge.judge(rule, now_ms, 0, &seen, waits)
    }

    /// Does direct reclaim in a task, from one memcg or from all, in one moment. Returns the pages
    /// freed, and the cost in nanoseconds.
    pub(super) fn direct(&mut self, now: u64, memcg: Option<usize>) -> (u64, u64) {
        let mut run = self.begin_run(now, memcg);
        let mut cost = 0;
        loop {
            let (took, over) = self.batch(now, &mut run, false);
            cost += took;
            if over {
                self.note_end(now + cost, self.out.task, &run);
                return (run.freed, cost);
            }
        }
    }

    fn begin_run(&mut self, now: u64, from: Option<usize>) -> Run {
        let size = match from {
            Some(id) => self.memcgs[id].limit,
            None => self.memcgs.iter().map(|m| m.limit).min().unwrap_or(0),
        };
        self.stat.add(Event::AllocStall, 1);
        self.spent.direct_runs += 1;
        let no_fs = self.task().no_fs;
        let doer = Doer::Task(self.out.task, self.out.cpu);
        if let Some(tracepoints) = &mut self.out.tracepoints {
            tracepoints.begins(now, doer, from.is_some(), no_fs);
        }
        self.begin_reclaim(now);
        Run::new(from, scan::task_target(size, &self.tun))
    }

    /// Records the end of a task's run in the tracepoints.
    pub(super) fn note_end(&mut self, now: u64, task: usize, run: &Run) {
        let doer = Doer::Task(task, self.out.cpu);
        if let Some(tracepoints) = &mut self.out.tracepoints {
            tracepoints.ends(now, doer, run.from.is_some(), run.freed);
        }
    }

    /// Does one batch of a run. Without `timed` it does the rest of a pass on one node. Returns the
    /// cost, and whether the run is over.
    fn batch(&mut self, now: u64, run: &mut Run, timed: bool) -> (u64, bool) {
        let by_batch = self.notes_by_batch();
        let mut cost = 0;
        while cost == 0 {
            let mut pass_state = match run.pass.take() {
                Some(pass_state) => pass_state,
                None => {
                    let Some(pass) = run.direct.next() else { break };
                    let root = run.from.is_none();
                    cost += if root { self.pass_ns() } else { 0 };
                    let spared = self.protect(run.from, pass.forced);
                    let nodes = (self.here(), self.nodes.len());
                    let sc = pass.scan(root, Order::ZERO, self.tun.swappiness.0);
                    PassState::new(sc, nodes, spared)
                }
            };
            let (freed, before, node) = (pass_state.freed, pass_state.sc.met, pass_state.node.0);
            let scanned = pass_state.sc.scanned;
            self.out.no_fs = self.tun.reclaim.shmem_fs && self.task().no_fs;
            cost += self.pass_on(now, run.from, &mut pass_state, timed);
            self.out.no_fs = false;
            self.note_isolated(now, node, now + cost, pass_state.sc.scanned - scanned);
            if by_batch {
                self.nodes[node].wake_requests.note(&pass_state.sc.met.since(&before));
                cost += self.wait_if_congested(run.from, node);
            }
            run.freed += pass_state.freed - freed;
            let first = self.out.started.iter().map(|&(done, _)| done).min();
            run.first_end = run.first_end.into_iter().chain(first).min();
            if !pass_state.is_over() {
                run.pass = Some(pass_state);
                continue;
            }
            run.direct.passed(&DirectPassed {
                reclaimed: pass_state.freed,
                begun: pass_state.begun,
                scanned: pass_state.sc.scanned,
                spared: pass_state.sc.skipped_deactivate || pass_state.spared,
                compactable: false,
            });
        }
        let over = run.pass.is_none() && run.direct.next().is_none();
        if over {
            self.end_reclaim(None);
            self.note_freed(run.freed, run.target, self.memcgs.len() * self.nodes.len());
            self.tell_of_progress(run);
            if run.direct.reclaimed() > 0 {
                self.nodes.iter().for_each(|n| n.wake_requests.progress());
            }
            if !by_batch {
                cost += self.wait_if_congested(run.from, self.here());
            }
        }
        self.spent.direct_ns += cost;
        (cost, over)
    }

    /// Returns whether each batch sets the node's flags from the pages that it met. Otherwise only
    /// a whole pass of kswapd does.
    pub(super) fn notes_by_batch(&self) -> bool {
        self.tun.lru == LruKind::Classic && self.tun.reclaim.notes == NodeNotes::Batch
    }

    /// Does one pass at the priority in `sc`, in one moment. Returns the cost. `out.freed` is then
    /// the number of pages freed.
    pub fn shrink(&mut self, now: u64, memcg: Option<usize>, sc: &mut Scan) -> u64 {
        self.begin_reclaim(now);
        let mut pass_state = PassState::new(sc.clone(), (self.here(), self.nodes.len()), false);
        let mut cost = self.pass_on(now, memcg, &mut pass_state, false);
        while !pass_state.is_over() {
            cost += self.pass_on(now, memcg, &mut pass_state, false);
        }
        self.end_reclaim(None);
        self.out.freed = pass_state.freed;
        *sc = pass_state.sc;
        cost
    }

    /// Prepares a run of reclaim, or a pass of kswapd: takes slots back and empties the pagevecs.
    pub(super) fn begin_reclaim(&mut self, now: u64) {
        self.recover_slots(now);
        let cx = cx!(self, now);
        for lists in self.memcgs.iter_mut().flat_map(|m| &mut m.on) {
            lists.pagevec.drain(&lists.lruvec, &cx);
        }
        for space in &self.list {
            space.note_scheduled();
        }
    }

    /// Goes on with a pass: a batch of it if `timed`, or to its end on the current node. Returns
    /// the cost.
    pub(super) fn pass_on(
        &mut self,
        now: u64,
        memcg: Option<usize>,
        pass_state: &mut PassState,
        timed: bool,
    ) -> u64 {
        (self.out.now_ns, self.out.spent_ns, self.out.freed) = (now, 0, 0);
        let writing = self.out.writes.pending();
        self.out.batched = timed;
        self.out.for_all = memcg.is_none();
        self.reclaim_pass(now, memcg, pass_state);
        (self.out.batched, self.out.for_all) = (false, false);
        if memcg.is_none() && self.out.freed > 0 {
            self.note_taken(pass_state.node.0, self.out.freed);
        }
        pass_state.freed += self.out.freed;
        pass_state.begun += self.out.writes.pending() - writing;
        let cx = cx!(self, now);
        self.out.submit(&cx, &mut self.disk);
        let (node, left) = pass_state.node;
        let done = !pass_state.sc.is_paused();
        let beside = if memcg.is_none() && done { self.shrink_slab(pass_state) } else { 0 };
        if done {
            pass_state.node = ((node + 1) % self.nodes.len(), left - 1);
            if left > 1 && self.tun.lru == LruKind::Classic {
                // With the classic lists the target holds for each node (`shrink_node`). With
                // generations the pages of all nodes count together.
                pass_state.sc.reclaimed = 0;
            }
        }
        self.charge(now, memcg, node) + beside
    }

    fn reclaim_pass(&mut self, now: u64, memcg: Option<usize>, pass_state: &mut PassState) {
        let (sc, node) = (&mut pass_state.sc, pass_state.node.0);
        // With swap full, pages that have a copy in swap already can still go.
        let room = self.out.stored.has_room() || self.out.found_unmapped_copy;
        sc.may_swap &= room;
        sc.lift = if memcg.is_some() { self.memcg_lift } else { self.lift };
        sc.file_is_tiny = memcg.is_none() && self.files_are_few(node);
        let cx = cx!(self, now);
        let Some(top) = memcg else {
            self.nodes[node].lru.shrink(&cx, sc, &mut self.out);
            return;
        };
        // Each pass begins at the memcg below `top` at which the last one stopped.
        let all = self.memcgs.len();
        let mut seen = sc.is_paused();
        if !seen {
            pass_state.at = (self.turns[top][node], 0);
        }
        for step in pass_state.at.1..all {
            let id = (pass_state.at.0 + step) % all;
            if !sc.is_paused() {
                let group = MemcgId(id as u16 + 1);
                if !self.out.groups.is_within(group, MemcgId(top as u16 + 1)) {
                    continue;
                }
                if seen && sc.reclaimed >= sc.target {
                    self.turns[top][node] = id;
                    return;
                }
                seen = true;
                sc.protection = self.protection[id];
                if sc.protection.below_min || sc.protection.below_low {
                    continue;
                }
            }
            let v = Arc::clone(&self.memcgs[id].on[node].lruvec);
            v.shrink(&cx, sc, &mut self.out);
            if sc.is_paused() {
                pass_state.at.1 = step;
                return;
            }
        }
    }

    /// Computes how much of each memcg is spared in reclaim from `top`. With `forced` soft
    /// protection does not count. Returns whether soft protection spares any memcg.
    pub(super) fn protect(&mut self, top: Option<usize>, forced: bool) -> bool {
        self.protection.resize(self.memcgs.len(), Protection::default());
        if !self.out.groups.any_protected() {
            return false;
        }
        let groups = &mut self.out.groups;
        let top = top.map_or(Memcgs::ROOT, |id| MemcgId(id as u16 + 1));
        groups.protect(top);
        let mut spared = false;
        for (id, protection) in self.protection.iter_mut().enumerate() {
            let group = MemcgId(id as u16 + 1);
            let soft = groups.protection(group, false);
            *protection = if forced { groups.protection(group, true) } else { soft };
            spared |= !forced && soft.below_low;
            if forced && soft.below_low && groups.is_within(group, top) {
                groups.note_low(group);
            }
            if top == Memcgs::ROOT {
                self.nodes.iter().for_each(|n| n.lru.protect(group, *protection));
            }
        }
        spared
    }

    /// Reclaims in a task if its memcg, or one above it, is over `high`. Then delays the task; the
    /// delay grows with the excess. A task without room is not delayed, because it was charged
    /// nothing.
    pub(super) fn hold_above_high(&mut self, now: u64, memcg: usize, fault: Fault) -> Fault {
        let group = MemcgId(memcg as u16 + 1);
        let lacks_room = self.lacks_room() || matches!(fault, Fault::NoMemory(_) | Fault::Again(_));
        let (Some(above), false) = (self.out.groups.above_high(group), lacks_room) else {
            return fault;
        };
        let (at, until) = match fault {
            Fault::Done(cost) | Fault::NoMemory(cost) | Fault::Again(cost) => {
                (now + cost, now + cost)
            }
            Fault::Wait { until_ns, cost_ns } => (now + cost_ns, until_ns),
        };
        let (_, took) = self.direct(at, Some(usize::from(above.0) - 1));
        let pages = self.brought.len().max(1) as u64;
        let delay = self.timer(self.out.groups.high_delay_ms(group, pages) * 1_000_000);
        self.spent.high_ns += delay;
        if delay == 0 {
            return match fault {
                Fault::Wait { until_ns, cost_ns } => {
                    Fault::Wait { until_ns, cost_ns: cost_ns + took }
                }
                other => Fault::Done(other.cost_ns() + took),
            };
        }
        self.stalls = true;
        let cost_ns = at - now + took;
        Fault::Wait { until_ns: until.max(now + cost_ns) + delay, cost_ns }
    }

    /// Returns whether a node's file pages and free frames together are too few to balance it.
    /// Reclaim then leaves files alone.
    fn files_are_few(&self, node: usize) -> bool {
        let files: u64 = self.lists(Some(node)).map(|l| l.lruvec.total(LruType::File)).sum();
        let zones = self.out.frames.zones().iter().map(|z| z.state());
        let high: u64 = zones.filter(|z| z.node() == node).map(|z| z.marks().high).sum();
        files <= high && files + self.free_on(Some(node)) <= high
    }

    /// Ends a run of reclaim, from one node or from all. The classic LRU then counts anew the
    /// refaults that let the next run shrink active lists.
    pub(super) fn end_reclaim(&self, node: Option<usize>) {
        self.lists(node).for_each(|l| l.lruvec.end_reclaim());
    }

    /// Ends a run of the kswapd of a node. A task frees one batch in a run on any machine, but
    /// kswapd frees a share of memory. On the machine that this one stands for, a run of kswapd
    /// frees `time_scale` times as many pages. So `time_scale` runs here count as one run there. A
    /// run that found nothing to free counts as one on both machines.
    pub(super) fn end_kswapd_run(&mut self, node: usize, freed: u64) {
        let runs = &mut self.nodes[node].runs;
        *runs += 1;
        if freed == 0 || *runs >= self.time_scale {
            *runs = 0;
            self.end_reclaim(Some(node));
        }
    }

    /// Takes slots back from resident pages while swap is more than half full. The kernel does so
    /// when it looks for a free slot. Each call begins where the last one ended.
    fn recover_slots(&mut self, now: u64) {
        let full = self.out.swap.is_some() && self.out.stored.is_half_full();
        self.out.found_unmapped_copy = false;
        if !full {
            return;
        }
        let frames = self.folios.frames();
        for looked in 0..frames {
            // If swap has no room, the call looks at up to eight times as many frames. The next
            // call goes on from there.
            let enough = self.out.stored.has_room() || looked >= 8 * RECOVER_FRAMES;
            if looked >= RECOVER_FRAMES && enough {
                break;
            }
            let pfn = Pfn(self.slot_hand);
            self.slot_hand = (self.slot_hand + 1) % frames;
            let w = self.folios.word(pfn);
            let kept = w.has(Word::LRU) && w.has(Word::SWAPBACKED) && w.has(Word::SWAPCACHE);
            if kept && w.has(Word::MAPPED) && !w.has(Word::WRITEBACK) {
                self.out.stored.drop_copy(&cx!(self, now), pfn);
                self.out.settle_pool();
            }
            self.out.found_unmapped_copy |= kept && !w.has(Word::MAPPED);
        }
    }

    pub(super) fn fold(&mut self) {
        // The classic LRU reads memcg counters that are folded only now and then.
        if self.tun.classic.fold > 0 {
            self.next_fold = self.next_fold.saturating_sub(1);
            if self.next_fold == 0 {
                self.next_fold = self.tun.classic.fold;
                self.lists(None).for_each(|l| l.lruvec.fold());
            }
        }
    }

    /// Returns when a task that found nothing to reclaim tries again, or none if waiting changes
    /// nothing.
    pub(super) fn next_try_ns(&self) -> Option<u64> {
        self.out.patience
    }
}
