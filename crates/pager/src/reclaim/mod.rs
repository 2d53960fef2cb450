//! kswapd thread: moves the oldest pages to standby, stores pages from the standby list, and drops
//! useless pages.
//!
//! kswapd alone posts batches to agents. Beside kswapd, only the slow-work thread stores pages:
//! those of hidden children that the pager does not serve yet (`faults/hidden.rs`). So nothing here
//! races with itself. While kswapd waits, pages that it has looked up may change. So each commit
//! looks them up again under the lock.

mod command;
mod evict;
mod oom;
mod sample;
mod standby;

use crate::broken::{Rule, is_broken};
use crate::mm::Mm;
use crate::mm::link::{Operation, Outcome};
use crate::mm::thread_words::ThreadWords;
use crate::pager::Pager;
use crate::seam::Process;
use crate::wait::limits::SLICE_PAGES;
use crate::wait::patience::Patience;
use ebb_agent::protocol::BATCH_MAX;
use ebb_mm::driver::WEIGH_MS;
use ebb_mm::engine::{Did, Do, Loads, Seen};
use ebb_mm::reclaim::NAP_MS;
use ebb_mm::resident::{FrameState, Resident};
use ebb_mm::types::{MmId, PAGE_SIZE, Pfn};
use ebb_swap::StoreError;
use ebb_sys::anon::PageBuffer;
use ebb_sys::proc;
use oom::NoProgress;
use standby::Fate;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Number of pages overcommitted beyond the present excess over the limit, while an unresponsive
/// process occupies the memory. `OVERCOMMIT_AFTER` is the time without progress before that. So
/// many pages let the others go on, and are far fewer than the limit.
const OVERCOMMIT_PAGES: u64 = 256;
const OVERCOMMIT_AFTER: Duration = Duration::from_millis(400);
/// Number of passes without memory after which kswapd overcommits, even before `OVERCOMMIT_AFTER`.
/// A page may become free now and then, but with so little room the processes hinder each other.
const OVERCOMMIT_AFTER_TIMES: u32 = 64;
/// Time without progress after which kswapd checks whether a process is stopped before it posts a
/// batch (OOM-6).
const LOOK_AFTER: Duration = Duration::from_millis(100);
/// Time without progress after which compressed memory gives way, and pause between two steps.
const GIVE_WAY_AFTER: Duration = Duration::from_millis(100);
const GIVE_WAY_PAUSE: Duration = Duration::from_millis(10);
/// Interval at which kswapd retries unevictable pages.
const UNEVICTABLE_RETRY: Duration = Duration::from_millis(500);

/// A batch that its agent has begun and not finished.
struct Stalled {
    mm: Arc<Mm>,
    work: Work,
}

/// Purpose of a batch.
enum Work {
    ToStandby(Vec<(Pfn, u32)>),
    Drop(Vec<evict::Run>),
    Unshare(Vec<Pfn>),
    /// The rights of the pool change; then the frames move.
    SetRights(Vec<Pfn>),
    /// Moves that the pager has decided without the agent
    /// ([`Reclaim::end_batch_by_reading_slots`]).
    Decided,
}

pub struct Reclaim {
    pager: Arc<Pager>,
    pages: PageBuffer,
    stalled: Vec<Stalled>,
    /// Frames whose pages the agent has made the process's own, and that kswapd tries once more.
    unshared: HashSet<u32>,
    /// Frames of standby pages that other members of the fork group have, too, or had before the
    /// copy. The stored copy of such a page is offered to these members.
    offered: HashSet<u32>,
    unevictable_retried: Instant,
    /// Time of the last retry of unstorable pages.
    retried: Instant,
    /// Whether compressed memory gives way until no thread waits; `gave_way` is the time of its
    /// last step.
    shrinks_compressed: bool,
    gave_way: Instant,
    no_progress: NoProgress,
    store_error: Option<StoreError>,
    /// Whether the store took no page of the last batch.
    refused: bool,
    /// Whether shared pages wait for room for copies.
    lacks_copy_room: bool,
    /// Whether pages are overcommitted beyond the limit.
    overcommitting: bool,
    /// Number of times without memory for waiting threads since all agents last answered.
    ran_out_of_memory: u32,
    /// Time of the last evaluation of load costs.
    weighed: Instant,
    /// Number of pages scanned.
    scanned: u64,
    /// Number of stored pages that count as progress (`oom.rs`, OOM-1), in total; `round_progress`
    /// counts the current round.
    progress: u64,
    round_progress: u64,
    /// Result of the last order, not yet reported to the engine.
    did: Option<Did>,
    /// Copies of shared pages made since memory was last in balance, minus copies that have left
    /// again. A copy that leaves frees only the memory that it took.
    copies: u64,
    /// Pages that could not be moved since unevictable pages were last retried; `immovable_before`
    /// holds the counts before.
    immovable: Immovable,
    immovable_before: Immovable,
    thread_words: ThreadWords,
}

/// Pages that could not be moved, by reason.
#[derive(Clone, Copy, Default)]
struct Immovable {
    /// Locked, or not writable.
    fixed: u64,
    /// Pinned, or shared with a process that makes no copies.
    busy: u64,
}

/// Runs the kswapd thread.
pub fn run(pager: &Arc<Pager>) {
    pager.faults.cpu_follow.begin_kswapd();
    let mut reclaim = Reclaim::new(pager);
    loop {
        reclaim.turn();
    }
}

impl Reclaim {
    /// Creates the state of kswapd.
    pub fn new(pager: &Arc<Pager>) -> Self {
        Self {
            pager: pager.clone(),
            pages: PageBuffer::new(BATCH_MAX),
            stalled: Vec::new(),
            unshared: HashSet::new(),
            offered: HashSet::new(),
            unevictable_retried: pager.clock.now(),
            retried: pager.clock.now(),
            shrinks_compressed: false,
            gave_way: pager.clock.now(),
            no_progress: NoProgress::default(),
            store_error: None,
            refused: false,
            lacks_copy_room: false,
            overcommitting: false,
            ran_out_of_memory: 0,
            weighed: pager.clock.now(),
            scanned: 0,
            progress: 0,
            round_progress: 0,
            did: None,
            copies: 0,
            immovable: Immovable::default(),
            immovable_before: Immovable::default(),
            thread_words: ThreadWords::default(),
        }
    }

    /// Carries out the next order of the engine (`core::engine`).
    pub fn turn(&mut self) {
        if self.pager.run.ending.load(Relaxed) {
            // The run ends and gives back all memory soon.
            self.end_pass();
            self.pager.host.wait(&self.pager.budget.kswapd, Duration::from_millis(NAP_MS));
            return self.tidy();
        }
        if self.pager.run.detach.is_on() {
            self.end_pass();
            self.tidy();
            if self.stalled.is_empty() {
                self.pager.run.detach.rest();
            }
            self.pager.host.wait(&self.pager.budget.kswapd, Duration::from_millis(NAP_MS));
            return;
        }
        self.sample_if_due();
        let order = self.next();
        let (before, progress) = (self.scanned, self.progress);
        let pages = match order {
            Do::ToStandby(max) => self.deactivate(max),
            Do::Store(max) => self.evict(max),
            Do::Drop(least) => self.discard_pending(least),
            Do::OutOfMemory => return self.out_of_memory(),
            Do::Thrashing => return self.prevent_thrashing(),
            Do::Again => return self.rest(),
            Do::Nap | Do::Sleep => {
                self.pager.host.wait(&self.pager.budget.kswapd, self.nap());
                return self.tidy();
            }
        };
        let progress = self.progress - progress;
        let did = Did { pages: pages as u64, scanned: self.scanned - before, progress };
        self.did = Some(did);
        self.tell(order, did);
    }

    /// Reports the result of the last order and fetches the next, in one hold. Also does periodic
    /// work.
    fn next(&mut self) -> Do {
        self.weigh_loads();
        let memory_stalled = self.pager.budget.memory_stalled.load(Relaxed) > 0;
        let seen =
            Seen { memory_stalled, lacks_copy_room: std::mem::take(&mut self.lacks_copy_room) };
        let now_ms = self.pager.clock.since(self.pager.started).as_millis() as u64;
        let did = self.did.take();
        let (order, unevictable) = {
            let mut engine = self.pager.engine();
            engine.set.set_now_ms(now_ms);
            did.into_iter().for_each(|did| engine.did(did));
            let order = engine.next(&self.pager.budget.wake_requests, seen);
            (order, engine.set.count(FrameState::Unevictable))
        };
        if unevictable > 0 && self.pager.clock.since(self.unevictable_retried) > UNEVICTABLE_RETRY {
            self.retry_unevictable();
        }
        order
    }

    /// Ends the pass under way.
    fn end_pass(&mut self) {
        let did = self.did.take();
        let mut engine = self.pager.engine();
        did.into_iter().for_each(|did| engine.did(did));
        engine.end_pass(&self.pager.budget.wake_requests);
    }

    /// Notifies waiting threads after pages were moved, stored or dropped. Also checks whether
    /// threads wait without progress.
    fn tell(&mut self, order: Do, did: Did) {
        if did.pages > 0 && !matches!(order, Do::ToStandby(_)) {
            self.pager.faults.wake_if_deferred();
        }
        self.round_progress += did.progress;
        if !matches!(order, Do::Drop(_)) {
            return;
        }
        // A round ends here.
        let progress = std::mem::take(&mut self.round_progress);
        if progress > 0 {
            self.no_progress.progress(self.pager.clock.moment(), progress);
        } else if self.count_round_without_progress() {
            self.end_pass();
            self.out_of_memory();
        }
    }

    /// Handles the end of a pass. The next turn asks the engine at once.
    fn rest(&mut self) {
        if self.pager.resident().zone.is_balanced() {
            self.shrinks_compressed = false;
            self.no_progress.end();
            self.copies = 0;
            self.pager.faults.wake_if_deferred();
        }
        self.tidy();
    }

    /// Does the work between passes: stalled batches, commands of `ebb lru-gen`, and useless pages.
    fn tidy(&mut self) {
        self.finish_stalled();
        self.set_engine_time();
        self.serve_requests();
        self.end_overcommit();
        self.discard_pending(1);
        let pager = &self.pager;
        self.thread_words.retain(|id| pager.mm(id).is_some());
    }

    /// Counts a round that stored nothing, if threads wait, and overcommits pages for them beside
    /// a stopped process (OOM-5). Returns whether they have waited for long (OOM-1).
    fn count_round_without_progress(&mut self) -> bool {
        self.does_anybody_wait() && {
            let (lacks_cpu, own) = (self.lacks_cpu(), self.pager.host.own_runs());
            self.no_progress.round(self.pager.clock.moment(), lacks_cpu, own);
            if self.no_progress.lasts(&self.pager, OVERCOMMIT_AFTER) && self.awaits_stopped() {
                self.set_overcommit();
            }
            self.no_progress.is_long(&self.pager)
        }
    }

    /// Whether threads wait for memory.
    fn does_anybody_wait(&self) -> bool {
        self.pager.budget.memory_stalled.load(Relaxed) + self.pager.budget.frozen.load(Relaxed) > 0
    }

    /// Handles a pass that found no memory. Waiting threads go on waiting as long as memory may
    /// become free.
    fn out_of_memory(&mut self) {
        // The kernel's kswapd leaves reclaim to the allocating tasks after many failures. Here only
        // kswapd reclaims.
        self.pager.budget.wake_requests.progress();
        let brought = self.finish_stalled();
        if !self.does_anybody_wait() {
            self.shrinks_compressed = false;
            self.no_progress.end();
            self.pager.host.wait(&self.pager.budget.kswapd, Duration::from_millis(NAP_MS));
            return;
        }
        let unheard = self.has_unresponsive_agent();
        self.ran_out_of_memory = if unheard { self.ran_out_of_memory + 1 } else { 0 };
        let long = self.no_progress.lasts(&self.pager, OVERCOMMIT_AFTER);
        if unheard && (long || self.ran_out_of_memory > OVERCOMMIT_AFTER_TIMES) {
            self.set_overcommit();
        }
        // While a process does not answer, pages are overcommitted instead.
        if !unheard
            && (self.shrinks_compressed || self.no_progress.lasts(&self.pager, GIVE_WAY_AFTER))
        {
            self.shrink_compressed();
        }
        if brought && !self.no_progress.is_over(&self.pager, Patience::MemoryUnseen) {
            return;
        }
        if self.no_progress.is_long(&self.pager) && self.is_out_of_memory() {
            return self.end_run();
        }
        self.retry_unevictable();
        if self.pager.clock.since(self.retried) > UNEVICTABLE_RETRY {
            self.retried = self.pager.clock.now();
            self.identify_children_without_hooks();
            while self.pager.resident().retry_unstorable(SLICE_PAGES) {}
        }
        self.pager.host.sleep(Duration::from_millis(1));
    }

    /// Shrinks compressed memory in favour of pages that cannot be compressed or moved, while a
    /// tier behind it takes pages.
    fn shrink_compressed(&mut self) {
        self.shrinks_compressed = self.pager.budget.store.can_demote();
        if !self.shrinks_compressed {
            return;
        }
        let before = self.pager.budget.store.ram_bytes();
        // The monitor measures the effect between two steps.
        if self.pager.clock.since(self.gave_way) >= GIVE_WAY_PAUSE {
            self.gave_way = self.pager.clock.now();
            if let Some(limit) = self.pager.engine().shrink_compressed(before) {
                self.pager.budget.store.set_ram_limit(limit);
            }
        }
        // Each batch moves some of the pages above the limit to the next tier.
        self.pager.budget.store.put_batch(&[], &mut Vec::new());
        let freed = before.saturating_sub(self.pager.budget.store.ram_bytes());
        if freed > 0 {
            self.no_progress.progress(self.pager.clock.moment(), freed / PAGE_SIZE as u64);
        }
    }

    /// Sets the engine's time, because ages of generations count from the start of the run.
    fn set_engine_time(&self) {
        self.pager
            .resident()
            .set_now_ms(self.pager.clock.since(self.pager.started).as_millis() as u64);
    }

    /// Whether some process does not answer, or was stopped in the middle of a batch.
    fn has_unresponsive_agent(&self) -> bool {
        self.pager.mms().iter().any(|mm| self.awaits_answer(mm))
    }

    /// Whether a stopped process does not answer.
    fn awaits_stopped(&self) -> bool {
        self.pager.mms().iter().any(|mm| self.awaits_answer(mm) && mm.is_stopped())
    }

    /// Looks for the processes of children that request no agent because they have no hooks. The
    /// pager sees that such a child is stopped only when its process is identified (OOM-5).
    fn identify_children_without_hooks(&self) {
        let unidentified = |mm: &Arc<Mm>| mm.needs_injection() && mm.process().is_none();
        for mm in self.pager.mms().into_iter().filter(unidentified) {
            // A later attempt may find a process that cannot be found now.
            let _ = self.pager.find_process(&mm, None);
        }
    }

    /// Posts a batch to the agent of a process and waits for it (PATIENCE-2).
    fn execute(&mut self, mm: &Mm, operations: &[Operation]) -> Outcome {
        let link = mm.agent.link().expect("the process has an agent");
        let wants_cpu = || {
            let runs = mm.process().and_then(Process::agent_runs);
            runs.is_some_and(|runs| runs.wants_cpu()) && !is_broken(Rule::Patience2)
        };
        let outcome = link.execute(operations, wants_cpu);
        match outcome {
            Outcome::Done => self.no_progress.note_answered(mm.id),
            Outcome::Cancelled => {
                mm.agent.note_unanswered();
                self.no_progress.note_unanswered(mm, wants_cpu());
            }
            Outcome::Stalled => {}
        }
        outcome
    }

    /// Whether the agent of this process owes an answer.
    fn awaits_answer(&self, mm: &Mm) -> bool {
        match mm.agent.link() {
            Some(_) => self.is_stalled(mm.id) || mm.update_silence(),
            // The process gets an agent when it goes on.
            None => mm.agent.lacks_hooks && mm.is_stopped(),
        }
    }

    /// Whether batches to this agent are of no use now. Checks for a stop first if threads wait
    /// without progress (OOM-6).
    fn is_unresponsive(&self, mm: &Mm) -> bool {
        let stopped = || self.no_progress.lasts(&self.pager, LOOK_AFTER) && mm.is_stopped();
        mm.update_silence()
            || stopped() && {
                mm.agent.note_unanswered();
                true
            }
    }

    /// Overcommits pages to the other processes. The amount is [`OVERCOMMIT_PAGES`] beyond the
    /// larger of two excesses over the limit. One is the excess of all used pages at the start. The
    /// other is that of the stopped processes at any time. Stopped processes give nothing back, and
    /// cannot take the overcommitted pages. A tracer that shares their memory does take them, and
    /// gives nothing back before it lets them go on. For it the overcommit doubles each time. A
    /// step is at most half of the machine's available memory.
    fn set_overcommit(&mut self) {
        let mms = self.pager.mms();
        let traced = mms.iter().any(|mm| mm.stall.is_memory_stalled() && mm.is_traced());
        let room = proc::memory_available().map_or(0, |bytes| bytes / 2 / PAGE_SIZE as u64);
        let stopped_pages: u64 =
            mms.iter().filter(|mm| mm.is_stopped()).map(|mm| mm.resident_pages()).sum();
        let mut resident = self.pager.resident();
        let zone = &mut resident.zone;
        let excess = |pages: u64| pages.saturating_sub(zone.limit());
        let beyond = if self.overcommitting { 0 } else { excess(zone.used()) };
        // Members of a fork group share some of these pages, so the sum may exceed the used pages.
        let loan = beyond.max(excess(stopped_pages.min(zone.used()))) + OVERCOMMIT_PAGES;
        let more = if traced { zone.overcommit().min(room) } else { 0 };
        let loan = loan.max(zone.overcommit() + more);
        if loan > zone.overcommit() {
            zone.set_overcommit(loan);
            drop(resident);
            self.overcommitting = true;
            self.pager.faults.wake_if_deferred();
        }
    }

    /// Ends the overcommit as soon as all agents answer.
    fn end_overcommit(&mut self) {
        if self.overcommitting && !self.has_unresponsive_agent() {
            self.overcommitting = false;
            self.pager.resident().zone.set_overcommit(0);
        }
    }

    /// Evaluates now and then the costs of loads, and sets the share of compressed memory.
    fn weigh_loads(&mut self) {
        if self.pager.clock.since(self.weighed) < Duration::from_millis(WEIGH_MS) {
            return;
        }
        self.weighed = self.pager.clock.now();
        let reads = self.pager.budget.store.reads();
        let limit = self.pager.engine().note_loads(Loads {
            compressed: reads.compressed,
            far: reads.far,
            compressed_edge: reads.compressed_edge,
            far_edge: reads.far_edge,
            ratio_permille: reads.ratio_permille,
        });
        if let Some(limit) = limit {
            self.pager.budget.store.set_ram_limit(limit);
        }
    }

    fn retry_unevictable(&mut self) {
        self.unevictable_retried = self.pager.clock.now();
        // A pass examines a part of the pages. While threads wait, the largest counts of several
        // passes are reported.
        let found = std::mem::take(&mut self.immovable);
        let before = if self.does_anybody_wait() { self.immovable_before } else { found };
        self.immovable_before =
            Immovable { fixed: found.fixed.max(before.fixed), busy: found.busy.max(before.busy) };
        let mut left = self.pager.resident().count(FrameState::Unevictable);
        while left > 0 {
            let slice = left.min(SLICE_PAGES);
            self.pager.resident().retry_unevictable(slice as usize);
            left -= slice;
        }
    }

    /// Whether every posted batch is over.
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.stalled.is_empty()
    }

    fn is_stalled(&self, id: MmId) -> bool {
        self.stalled.iter().any(|stalled| stalled.mm.id == id)
    }

    /// Checks batches whose processes were stopped in the middle. Returns whether that brought
    /// memory.
    fn finish_stalled(&mut self) -> bool {
        let mut brought = false;
        for Stalled { mm, work } in std::mem::take(&mut self.stalled) {
            if mm.lock().ended {
                continue;
            }
            let link = mm.agent.link().expect("it began a batch");
            // An agent that has ended in the middle will not go on. Another process may still have
            // the memory.
            let done = link.take_back() == Outcome::Done;
            if !done && !mm.agent.is_closing() {
                let decided = match &work {
                    Work::ToStandby(moving) => self.end_batch_by_reading_slots(&mm, moving),
                    _ => None,
                };
                brought |= decided.is_some_and(|moved| moved > 0);
                let work = decided.map_or(work, |_| Work::Decided);
                self.stalled.push(Stalled { mm, work });
                continue;
            }
            brought |= match work {
                Work::ToStandby(moving) => self.commit_standby(&mm, &moving) > 0,
                Work::Drop(runs) => self.commit_drop(&mm, &runs) > 0,
                Work::Unshare(frames) => {
                    self.put_back_frames(&mm, &frames, Fate::Retry);
                    true
                }
                Work::SetRights(frames) => {
                    if done {
                        standby::record_rights(&mm);
                    }
                    self.put_back_frames(&mm, &frames, Fate::Retry);
                    done
                }
                Work::Decided => true,
            };
        }
        brought
    }
}

/// Groups frames by address space. Leaves out free frames, because a page may have gone since
/// kswapd isolated it.
fn group_by_mm(frames: &[Pfn], resident: &Resident) -> Vec<(MmId, Vec<Pfn>)> {
    let mut groups: Vec<(MmId, Vec<Pfn>)> = Vec::new();
    for &pfn in frames.iter().filter(|&&pfn| resident.is_used(pfn)) {
        let id = resident.frame(pfn).mm;
        match groups.iter_mut().find(|(other, _)| *other == id) {
            Some((_, group)) => group.push(pfn),
            None => groups.push((id, vec![pfn])),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_mm::resident::{Arrival, Dropped, Space};
    use ebb_mm::types::Vpn;

    /// Shows that grouping skips a frame whose page the program has unmapped between two holds of
    /// kswapd.
    #[test]
    fn a_frame_that_was_freed_after_it_was_isolated_is_passed_over() {
        let mut set = Resident::new(1000, 1000);
        let mut spaces = [Space::new(MmId(2)), Space::new(MmId(3))];
        for page in 0..200 {
            for space in &mut spaces {
                set.map(space, Vpn(page), Arrival::Fresh, None);
            }
        }
        let mut victims = Vec::new();
        set.isolate_hard(8, &mut victims);
        let of_first = |set: &Resident, pfn: Pfn| set.frame(pfn).mm == MmId(2);
        let all: usize = group_by_mm(&victims, &set).iter().map(|(_, of)| of.len()).sum();
        assert_eq!(all, 8);
        let gone = *victims.iter().find(|&&pfn| of_first(&set, pfn)).expect("they take turns");
        let vpn = set.frame(gone).vpn;
        set.forget(&mut spaces[0], vpn, &mut Dropped::default());
        let left: Vec<Pfn> =
            group_by_mm(&victims, &set).into_iter().flat_map(|(_, of)| of).collect();
        assert_eq!(left.len(), 7);
        assert!(!left.contains(&gone));
    }
}
