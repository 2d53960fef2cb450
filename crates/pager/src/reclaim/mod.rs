//! The kswapd thread: cools the oldest pages, stores the coolest, drops what is of no more use.
//!
//! It alone posts batches to agents and it alone stores pages, so nothing here races with itself. What
//! it looked up may change while it waits; each commit looks again under the lock.

mod command;
mod cool;
mod evict;
mod oom;
mod sample;

use crate::fork;
use crate::limits::SLICE_PAGES;
use crate::link::Outcome;
use crate::mm::Mm;
use crate::patience::Patience;
use crate::server::Pager;
use crate::thread_words::ThreadWords;
use cool::Fate;
use ebb_agent::protocol::BATCH_MAX;
use ebb_mm::engine::{Did, Do, Loads, Seen};
use ebb_mm::reclaim::NAP_MS;
use ebb_mm::resident::{Place, Resident};
use ebb_mm::types::{MmId, PAGE_SIZE, Pfn};
use ebb_swap::StoreError;
use ebb_sys::anon::PageBuffer;
use ebb_sys::proc;
use oom::Vain;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Pages lent, on top of what is beyond the limit already (`lend`), while a process that does not answer
/// holds all the others, and how long nothing may be reclaimed before that: enough for the others to go on
/// with, far less than is allowed.
const LENT_PAGES: u64 = 256;
const LEND_AFTER: Duration = Duration::from_millis(400);
/// Or how often, while now and then a page could: with so little room the others only get in each other's
/// way.
const LEND_AFTER_TIMES: u32 = 64;
/// After so long in vain processes that are stopped are not given batches to see whether they answer (OOM-6).
const LOOK_AFTER: Duration = Duration::from_millis(100);
/// After so long in vain compressed memory gives way, and how long it waits between steps.
const GIVE_WAY_AFTER: Duration = Duration::from_millis(100);
const GIVE_WAY_PAUSE: Duration = Duration::from_millis(10);
/// How often is looked at where pages come from.
const WEIGH: Duration = Duration::from_millis(100);
/// How often pages that could not leave memory are tried again.
const UNPARK: Duration = Duration::from_millis(500);

/// A batch that its agent began and did not finish.
struct Stalled {
    mm: Arc<Mm>,
    work: Work,
}

/// What a batch was for.
enum Work {
    Cool(Vec<(Pfn, u32)>),
    Drop(Vec<evict::Run>),
    Unshare(Vec<Pfn>),
    /// Moves, which were decided without it ([`Reclaim::decide`]).
    Decided,
}

pub struct Reclaim {
    pager: Arc<Pager>,
    pages: PageBuffer,
    stalled: Vec<Stalled>,
    /// Frames whose pages were made the process's own and are worth another try.
    unshared: HashSet<u32>,
    /// Frames of cool pages that relatives have, too, or had before they were copied: what is stored of one is
    /// offered to them.
    offered: HashSet<u32>,
    unparked: Instant,
    /// When barren pages were last given another chance.
    retried: Instant,
    /// Compressed memory gives way, until threads wait no longer; and when it made its last step.
    gives_way: bool,
    gave_way: Instant,
    vain: Vain,
    store_error: Option<StoreError>,
    /// The store took none of the pages it was last given.
    refused: bool,
    /// Shared pages wait for room for copies of them.
    crowded: bool,
    /// Pages are lent beyond the limit.
    lending: bool,
    /// How often nothing could be had for those who wait, since all agents answered.
    despaired: u32,
    /// When it was last looked at where pages come from.
    weighed: Instant,
    /// Pages looked at.
    scanned: u64,
    /// Pages stored that count as progress (`oom.rs`, OOM-1), in all and in the round under way.
    progress: u64,
    round_progress: u64,
    /// What came of the last order, not said yet.
    did: Option<Did>,
    /// Copies of shared pages made since memory was last in balance, as many as have not left again: their leaving frees
    /// what was taken for them.
    copies: u64,
    /// What could not be moved, since all that is parked was last let go, and before.
    immovable: Immovable,
    immovable_before: Immovable,
    thread_words: ThreadWords,
}

/// Pages that could not be moved, by why.
#[derive(Clone, Copy, Default)]
struct Immovable {
    /// Locked, or not writable.
    fixed: u64,
    /// Pinned, or shared with one who makes no copies.
    busy: u64,
}

/// The thread.
pub fn run(pager: &Arc<Pager>) {
    pager.solo.begin_kswapd();
    let mut reclaim = Reclaim::new(pager);
    loop {
        reclaim.turn();
    }
}

impl Reclaim {
    /// Ready to begin.
    pub fn new(pager: &Arc<Pager>) -> Self {
        Self {
            pager: pager.clone(),
            pages: PageBuffer::new(BATCH_MAX),
            stalled: Vec::new(),
            unshared: HashSet::new(),
            offered: HashSet::new(),
            unparked: pager.clock.now(),
            retried: pager.clock.now(),
            gives_way: false,
            gave_way: pager.clock.now(),
            vain: Vain::default(),
            store_error: None,
            refused: false,
            crowded: false,
            lending: false,
            despaired: 0,
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

    /// Carries out what the engine wants done next (`core::engine`).
    pub fn turn(&mut self) {
        if self.pager.ending.load(Relaxed) {
            // All of it is given back in a moment.
            self.end_pass();
            self.pager.host.wait(&self.pager.kswapd, Duration::from_millis(NAP_MS));
            return self.tidy();
        }
        if self.pager.detach.is_on() {
            self.end_pass();
            self.tidy();
            if self.stalled.is_empty() {
                self.pager.detach.rest();
            }
            self.pager.host.wait(&self.pager.kswapd, Duration::from_millis(NAP_MS));
            return;
        }
        self.sample_if_due();
        let order = self.next();
        let (before, progress) = (self.scanned, self.progress);
        let pages = match order {
            Do::Cool(max) => self.cool(max),
            Do::Store(max) => self.evict(max),
            Do::Drop(least) => self.drop_retired(least),
            Do::Despair => return self.despair(),
            Do::Thrashing => return self.prevent_thrashing(),
            Do::Again => return self.rest(),
            Do::Nap | Do::Sleep => {
                self.pager.host.wait(&self.pager.kswapd, self.nap());
                return self.tidy();
            }
        };
        let progress = self.progress - progress;
        let did = Did { pages: pages as u64, scanned: self.scanned - before, progress };
        self.did = Some(did);
        self.tell(order, did);
    }

    /// Says what came of the last order, and asks for the next, in one hold; sees to what is due now and then.
    fn next(&mut self) -> Do {
        self.weigh_loads();
        let starving = self.pager.starving.load(Relaxed) > 0;
        let seen = Seen { starving, crowded: std::mem::take(&mut self.crowded) };
        let now_ms = self.pager.clock.since(self.pager.started).as_millis() as u64;
        let did = self.did.take();
        let (order, parked) = {
            let mut engine = self.pager.engine();
            engine.set.set_now_ms(now_ms);
            did.into_iter().for_each(|did| engine.did(did));
            let order = engine.next(&self.pager.desk, seen);
            (order, engine.set.count(Place::Parked))
        };
        if parked > 0 && self.pager.clock.since(self.unparked) > UNPARK {
            self.unpark();
        }
        order
    }

    /// The pass under way is over.
    fn end_pass(&mut self) {
        let did = self.did.take();
        let mut engine = self.pager.engine();
        did.into_iter().for_each(|did| engine.did(did));
        engine.end_pass(&self.pager.desk);
    }

    /// Pages were cooled, stored or dropped: tells those who wait, and sees whether they wait in vain.
    fn tell(&mut self, order: Do, did: Did) {
        if did.pages > 0 && !matches!(order, Do::Cool(_)) {
            self.pager.wake_if_waiting();
        }
        self.round_progress += did.progress;
        if !matches!(order, Do::Drop(_)) {
            return;
        }
        // The end of a round.
        let progress = std::mem::take(&mut self.round_progress);
        if progress > 0 {
            self.vain.progress(self.pager.clock.moment(), progress);
        } else if self.count_vain_round() {
            self.end_pass();
            self.despair();
        }
    }

    /// A pass is over, and nothing is to be done at once.
    fn rest(&mut self) {
        if self.pager.resident().zone.is_balanced() {
            self.gives_way = false;
            self.vain.end();
            self.copies = 0;
            self.pager.wake_if_waiting();
        }
        self.tidy();
    }

    /// Between runs: what was left over, and what others want done.
    fn tidy(&mut self) {
        self.finish_stalled();
        self.tell_time();
        self.serve_requests();
        self.end_lending();
        self.drop_retired(1);
        let pager = &self.pager;
        self.thread_words.retain(|id| pager.mm(id).is_some());
    }

    /// A round has stored nothing: counted where threads wait. Whether that is so for long (OOM-1).
    fn count_vain_round(&mut self) -> bool {
        self.does_anybody_wait() && {
            self.vain.round(self.pager.clock.moment());
            self.vain.is_long(&self.pager)
        }
    }

    /// Whether threads wait for memory.
    fn does_anybody_wait(&self) -> bool {
        self.pager.starving.load(Relaxed) + self.pager.held.load(Relaxed) > 0
    }

    /// Nothing can be had just now. If threads wait for it, they do so as long as there is hope.
    fn despair(&mut self) {
        // After so many failures the kernel's kswapd leaves it to those who allocate. Here nobody else can.
        self.pager.desk.progress();
        let brought = self.finish_stalled();
        if !self.does_anybody_wait() {
            self.gives_way = false;
            self.vain.end();
            self.pager.host.wait(&self.pager.kswapd, Duration::from_millis(NAP_MS));
            return;
        }
        let unheard = self.is_unheard();
        self.despaired = if unheard { self.despaired + 1 } else { 0 };
        let long = self.vain.lasts(&self.pager, LEND_AFTER);
        if unheard && (long || self.despaired > LEND_AFTER_TIMES) {
            self.lend();
        }
        if unheard && long {
            self.watch_silent();
        }
        // Beside a process that does not answer pages are lent.
        if !unheard && (self.gives_way || self.vain.lasts(&self.pager, GIVE_WAY_AFTER)) {
            self.give_way();
        }
        if brought && !self.vain.is_over(&self.pager, Patience::MemoryUnseen) {
            return;
        }
        if self.vain.is_long(&self.pager) && self.judge_end() {
            return self.give_up();
        }
        self.unpark();
        if self.pager.clock.since(self.retried) > UNPARK {
            self.retried = self.pager.clock.now();
            self.find_bare();
            while self.pager.resident().retry_barren(SLICE_PAGES) {}
        }
        self.pager.host.sleep(Duration::from_millis(1));
    }

    /// Compressed memory leaves room to what can neither be compressed nor leave, while a tier after it takes pages.
    fn give_way(&mut self) {
        self.gives_way = self.pager.store.can_demote();
        if !self.gives_way {
            return;
        }
        let before = self.pager.store.ram_bytes();
        // The monitor measures in between what that was good for.
        if self.pager.clock.since(self.gave_way) >= GIVE_WAY_PAUSE {
            self.gave_way = self.pager.clock.now();
            if let Some(limit) = self.pager.engine().give_way(before) {
                self.pager.store.set_ram_limit(limit);
            }
        }
        // Some of what is above the limit moves to the next tier with every batch.
        self.pager.store.put_batch(&[], &mut Vec::new());
        let freed = before.saturating_sub(self.pager.store.ram_bytes());
        if freed > 0 {
            self.vain.progress(self.pager.clock.moment(), freed / PAGE_SIZE as u64);
        }
    }

    /// The ages of generations are counted from the start of the run.
    fn tell_time(&self) {
        self.pager
            .resident()
            .set_now_ms(self.pager.clock.since(self.pager.started).as_millis() as u64);
    }

    /// Whether some agent does not answer, or was stopped in the middle of a batch.
    fn is_unheard(&self) -> bool {
        self.pager.mms().iter().any(|mm| self.owes_an_answer(mm))
    }

    /// Looks which processes those are that ask for no agent, having no hooks: one that was stopped as soon as it was forked is
    /// not seen to be stopped before that (OOM-5).
    fn find_bare(&self) {
        let bare = |mm: &Arc<Mm>| mm.is_to_be_made_to_join() && mm.process().is_none();
        for mm in self.pager.mms().into_iter().filter(bare) {
            // What cannot be found out now may be at the next try.
            let _ = fork::find_process(&self.pager, &mm, None);
        }
    }

    /// Whether this one's does not.
    fn owes_an_answer(&self, mm: &Mm) -> bool {
        match mm.link.get() {
            Some(_) => self.is_stalled(mm.id) || mm.check_silent(),
            // It is given an agent when it goes on.
            None => mm.is_bare() && mm.is_stopped(),
        }
    }

    /// Whether batches are of no use to it now. Where threads wait in vain who is stopped is seen to be (OOM-6).
    fn is_deaf(&self, mm: &Mm) -> bool {
        let stopped = || self.vain.lasts(&self.pager, LOOK_AFTER) && mm.is_stopped();
        mm.check_silent()
            || stopped() && {
                mm.fell_silent();
                true
            }
    }

    /// Lends the others pages: on top of what is in use beyond the limit when that begins, and of what
    /// those that are stopped hold beyond it by then or later. They give nothing back, and cannot take
    /// what is lent. A tracer that shares their memory takes it as theirs, and gives nothing back before it has let them go on:
    /// it is lent as much again each time, and half of what the machine has at most.
    fn lend(&mut self) {
        let mms = self.pager.mms();
        let traced = mms.iter().any(|mm| mm.is_hungry() && mm.is_traced());
        let room = proc::memory_available().map_or(0, |bytes| bytes / 2 / PAGE_SIZE as u64);
        let held_fast: u64 =
            mms.iter().filter(|mm| mm.is_stopped()).map(|mm| mm.resident_pages()).sum();
        let mut resident = self.pager.resident();
        let zone = &mut resident.zone;
        let excess = |pages: u64| pages.saturating_sub(zone.limit());
        let beyond = if self.lending { 0 } else { excess(zone.used()) };
        // Relatives hold some of it together.
        let loan = beyond.max(excess(held_fast.min(zone.used()))) + LENT_PAGES;
        let more = if traced { zone.lent().min(room) } else { 0 };
        let loan = loan.max(zone.lent() + more);
        if loan > zone.lent() {
            zone.lend(loan);
            drop(resident);
            self.lending = true;
            self.pager.wake_if_waiting();
        }
    }

    /// What was lent is asked back as soon as everybody answers.
    fn end_lending(&mut self) {
        if self.lending && !self.is_unheard() {
            self.lending = false;
            self.pager.resident().zone.lend(0);
        }
    }

    /// Looks now and then where pages come from: what a load costs, and which share of memory is to be compressed.
    fn weigh_loads(&mut self) {
        if self.pager.clock.since(self.weighed) < WEIGH {
            return;
        }
        self.weighed = self.pager.clock.now();
        let reads = self.pager.store.reads();
        let limit = self.pager.engine().weigh(Loads {
            near: reads.near,
            far: reads.far,
            near_edge: reads.near_edge,
            far_edge: reads.far_edge,
            ratio_permille: reads.ratio_permille,
        });
        if let Some(limit) = limit {
            self.pager.store.set_ram_limit(limit);
        }
    }

    fn unpark(&mut self) {
        self.unparked = self.pager.clock.now();
        // A pass looks at a part of them: what several have found while somebody waits is told by the one that found most.
        let found = std::mem::take(&mut self.immovable);
        let before = if self.does_anybody_wait() { self.immovable_before } else { found };
        self.immovable_before =
            Immovable { fixed: found.fixed.max(before.fixed), busy: found.busy.max(before.busy) };
        let mut left = self.pager.resident().count(Place::Parked);
        while left > 0 {
            let slice = left.min(SLICE_PAGES);
            self.pager.resident().unpark(slice as usize);
            left -= slice;
        }
    }

    /// Whether every batch that was posted is over.
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.stalled.is_empty()
    }

    fn is_stalled(&self, id: MmId) -> bool {
        self.stalled.iter().any(|stalled| stalled.mm.id == id)
    }

    /// Looks after batches whose processes were stopped in the middle. Whether that has brought anything.
    fn finish_stalled(&mut self) -> bool {
        let mut brought = false;
        for Stalled { mm, work } in std::mem::take(&mut self.stalled) {
            if mm.lock().ended {
                continue;
            }
            let link = mm.link.get().expect("it began a batch");
            // An agent that has ended in the middle of it, while another process has its memory, goes on with nothing.
            if link.wait(None) != Outcome::Done && !mm.closing.load(Relaxed) {
                let decided = match &work {
                    Work::Cool(moving) => self.decide(&mm, moving),
                    _ => None,
                };
                brought |= decided.is_some_and(|cooled| cooled > 0);
                let work = decided.map_or(work, |_| Work::Decided);
                self.stalled.push(Stalled { mm, work });
                continue;
            }
            brought |= match work {
                Work::Cool(moving) => self.commit_cool(&mm, &moving) > 0,
                Work::Drop(runs) => self.commit_drop(&mm, &runs) > 0,
                Work::Unshare(frames) => {
                    self.settle(&mm, &frames, Fate::Retry);
                    true
                }
                Work::Decided => true,
            };
        }
        brought
    }
}

/// Frames by address space. Those that are free are left out: the page may have gone since they were taken.
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

    /// The program unmapped it between the hold in which kswapd took it and the next.
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
