//! The kswapd thread: cools the oldest pages, stores the coolest, drops what is of no more use.
//!
//! It alone posts batches to agents and it alone stores pages, so nothing here races with itself. What
//! it looked up may change while it waits; each commit looks again under the lock.

mod command;
mod cool;
mod evict;
mod harvest;
mod oom;

use crate::budget::Budget;
use crate::link::Outcome;
use crate::mm::Mm;
use crate::server::Pager;
use cool::Fate;
use ebb_agent::protocol::BATCH_MAX;
use ebb_core::reclaim::{Kswapd, NAP_MS, Pass, Passed, Step};
use ebb_core::resident::{Edges, Place, Resident, Split};
use ebb_core::types::{MmId, PAGE_SIZE, Pfn};
use ebb_store::{Page, StoreError, StoreReads};
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
/// After so long in vain processes that are stopped are not given batches to see whether they answer (O6).
const LOOK_AFTER: Duration = Duration::from_millis(100);
/// How often is looked at where pages come from, and what a load from compressed memory and one from a file cost, in
/// thousandths of a rescue.
const WEIGH: Duration = Duration::from_millis(100);
const NEAR_COST: u64 = 1300;
const FAR_COST: u64 = 8000;
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
}

/// What a round came to, in pages.
#[derive(Clone, Copy, Default)]
struct Round {
    /// Moved out of sight.
    cooled: u64,
    /// Of which the store has a copy now, and the program none.
    stored: u64,
    /// Those of them that count as progress (`oom.rs`, O1).
    progress: u64,
    /// Dropped: memory again.
    dropped: u64,
}

impl Round {
    fn sum(self) -> u64 {
        self.cooled + self.stored + self.dropped
    }
}

pub struct Reclaim {
    pager: Arc<Pager>,
    kswapd: Kswapd,
    pages: Box<[Page; BATCH_MAX]>,
    stalled: Vec<Stalled>,
    /// Frames whose pages were made the process's own and are worth another try.
    unshared: HashSet<u32>,
    /// Frames of cool pages that relatives have, too, or had before they were copied: what is stored of one is
    /// offered to them.
    offered: HashSet<u32>,
    unparked: Instant,
    /// When barren pages were last given another chance.
    retried: Instant,
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
    /// When it was last looked at where pages come from, and how many did until then.
    weighed: Instant,
    reads: StoreReads,
    /// How memory is divided; None where there is nothing to divide.
    split: Option<Split>,
    /// Pages looked at.
    scanned: u64,
    /// Pages stored, as in [`Round::progress`].
    progress: u64,
    /// Copies of shared pages made since memory was last in balance, as many as have not left again: their leaving frees
    /// what was taken for them.
    copies: u64,
    /// How many there were at the last harvest.
    harvested_at: u64,
    /// Pages that could not be moved since something last could: locked or not writable, and busy.
    fixed: u64,
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
            kswapd: Kswapd::new(pager.policy, 1),
            pages: Box::new([[0; PAGE_SIZE]; BATCH_MAX]),
            stalled: Vec::new(),
            unshared: HashSet::new(),
            offered: HashSet::new(),
            unparked: pager.clock.now(),
            retried: pager.clock.now(),
            vain: Vain::default(),
            store_error: None,
            refused: false,
            crowded: false,
            lending: false,
            despaired: 0,
            weighed: pager.clock.now(),
            reads: StoreReads::default(),
            split: pager.config.split(),
            scanned: 0,
            progress: 0,
            copies: 0,
            harvested_at: 0,
            fixed: 0,
            busy: 0,
        }
    }

    /// What the protocol says is next (`core::reclaim::kswapd`).
    pub fn turn(&mut self) {
        let pager = self.pager.clone();
        let desk = &pager.desk;
        match self.kswapd.step(desk, &Budget(&pager), &self.pager.kswapd_stat) {
            Step::Pass(pass) => {
                let passed = self.work(&pass);
                self.kswapd.passed(desk, &passed);
            }
            // Here a page is written before it counts as freed: no end of a write is waited for.
            Step::Again | Step::AwaitWrites | Step::Throttle => self.tidy(),
            Step::Nap | Step::Sleep => {
                self.pager.host.wait(&self.pager.kswapd, Duration::from_millis(NAP_MS));
                self.tidy();
            }
        }
    }

    /// Between runs: what was left over, and what others want done.
    fn tidy(&mut self) {
        self.finish_stalled();
        self.tell_time();
        self.serve_requests();
        self.end_lending();
        self.drop_retired(1);
    }

    /// One pass of the protocol: rounds until its target is met, memory is in balance or nothing can be had.
    fn work(&mut self, pass: &Pass) -> Passed {
        let mut passed = Passed::default();
        let scanned = self.scanned;
        // Pages looked at since one could last leave.
        let mut fruitless = 0;
        while passed.reclaimed < pass.target && !self.pager.resident().zone.is_balanced() {
            if self.pager.ending.load(Relaxed) {
                // All of it is given back in a moment.
                self.pager.host.wait(&self.pager.kswapd, Duration::from_millis(NAP_MS));
                break;
            }
            let before = self.scanned;
            self.tell_time();
            if self.pager.resident().is_thrashing() {
                self.prevent_thrashing();
                break;
            }
            let round = self.round();
            passed.reclaimed += round.sum();
            fruitless += self.scanned - before;
            if round.stored + round.dropped > 0 {
                self.pager.wake_if_starving();
            }
            if round.progress > 0 {
                fruitless = 0;
                self.vain.progress(self.pager.clock.now(), round.progress);
                continue;
            }
            let vain = self.is_in_vain();
            if vain || round.sum() == 0 && self.scanned == before || fruitless > self.scannable() {
                // Of what was scanned nothing could leave, and there are no others.
                self.despair();
                break;
            }
        }
        if self.pager.resident().zone.is_balanced() {
            self.vain.end();
            self.copies = 0;
            self.pager.wake_if_starving();
        }
        passed.scanned = self.scanned - scanned;
        passed
    }

    /// A round has stored nothing. Whether that is so for long, while threads wait (O1).
    fn is_in_vain(&mut self) -> bool {
        self.does_anybody_wait() && {
            self.vain.round(self.pager.clock.now());
            self.vain.is_long(&self.pager)
        }
    }

    /// Whether threads wait for memory.
    fn does_anybody_wait(&self) -> bool {
        self.pager.starving.load(Relaxed) + self.pager.held.load(Relaxed) > 0
    }

    /// Pages that a search for some that can leave may come across.
    fn scannable(&self) -> u64 {
        let resident = self.pager.resident();
        resident.evictable() + resident.count(Place::Parked)
    }

    /// Nothing can be had just now. If threads wait for it, they do so as long as there is hope.
    fn despair(&mut self) {
        // After so many failures the kernel's kswapd leaves it to those who allocate. Here nobody else can.
        self.pager.desk.progress();
        self.finish_stalled();
        if !self.does_anybody_wait() {
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
        if self.vain.is_long(&self.pager) && self.is_over() {
            return self.give_up();
        }
        self.unpark();
        if self.pager.clock.since(self.retried) > UNPARK {
            self.retried = self.pager.clock.now();
            self.pager.resident().retry_barren();
        }
        // What nobody told of may be found.
        self.harvest_now();
        self.pager.host.sleep(Duration::from_millis(1));
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

    /// Whether this one's does not.
    fn owes_an_answer(&self, mm: &Mm) -> bool {
        mm.link.get().is_some() && (self.is_stalled(mm.id) || mm.is_silent())
    }

    /// Whether batches are of no use to it now. Where threads wait in vain who is stopped is seen to be (O6).
    fn is_deaf(&self, mm: &Mm) -> bool {
        let stopped = || self.vain.lasts(&self.pager, LOOK_AFTER) && mm.is_stopped();
        mm.is_silent()
            || stopped() && {
                mm.fell_silent();
                true
            }
    }

    /// Lends the others pages: on top of what is in use beyond the limit when that begins, and of what
    /// those that are stopped hold beyond it by then or later. They give nothing back, and cannot take
    /// what is lent.
    fn lend(&mut self) {
        let mms = self.pager.mms();
        let held_fast: u64 =
            mms.iter().filter(|mm| mm.is_stopped()).map(|mm| mm.resident_pages()).sum();
        let mut resident = self.pager.resident();
        let zone = &mut resident.zone;
        let excess = |pages: u64| pages.saturating_sub(zone.limit());
        let beyond = if self.lending { 0 } else { excess(zone.used()) };
        // Relatives hold some of it together.
        let loan = beyond.max(excess(held_fast.min(zone.used()))) + LENT_PAGES;
        if loan > zone.lent() {
            zone.lend(loan);
            drop(resident);
            self.lending = true;
            self.pager.wake_if_starving();
        }
    }

    /// What was lent is asked back as soon as everybody answers.
    fn end_lending(&mut self) {
        if self.lending && !self.is_unheard() {
            self.lending = false;
            self.pager.resident().zone.lend(0);
        }
    }

    /// One round.
    fn round(&mut self) -> Round {
        self.weigh_loads();
        let (cool, evictable, target, parked) = {
            let resident = self.pager.resident();
            let parked = resident.count(Place::Parked);
            (resident.count(Place::Cool), resident.evictable(), resident.cool_target(), parked)
        };
        if parked > 0 && self.pager.clock.since(self.unparked) > UNPARK {
            self.unpark();
        }
        self.harvest_if_due(evictable);
        let scanned = self.scanned;
        let mut round = Round::default();
        if cool < target.max(BATCH_MAX as u64) {
            round.cooled = self.cool(BATCH_MAX) as u64;
        }
        let crowded = std::mem::take(&mut self.crowded);
        if cool >= target / 2 || crowded || self.pager.starving.load(Relaxed) > 0 {
            let before = self.progress;
            round.stored = self.evict(BATCH_MAX) as u64;
            round.progress = self.progress - before;
        }
        if round.sum() == 0 && self.scanned == scanned {
            // What is cool cannot go, because its process is stopped: it is no stock.
            round.cooled = self.cool(BATCH_MAX) as u64;
        }
        // Whoever waits waits for the few there are, if no more are to come.
        let few = self.pager.starving.load(Relaxed) > 0 && round.stored < BATCH_MAX as u64 / 2;
        round.dropped = self.drop_retired(if few { 1 } else { BATCH_MAX / 2 }) as u64;
        round
    }

    /// Looks now and then where pages come from: what a load costs, and which share of memory is to be compressed.
    fn weigh_loads(&mut self) {
        if self.pager.clock.since(self.weighed) < WEIGH {
            return;
        }
        self.weighed = self.pager.clock.now();
        let reads = self.pager.store.reads();
        let before = std::mem::replace(&mut self.reads, reads);
        let (near, far) = (reads.near - before.near, reads.far - before.far);
        let edges = Edges {
            near: reads.near_edge - before.near_edge,
            far: reads.far_edge - before.far_edge,
            ratio_permille: reads.ratio_permille,
            near_cost: NEAR_COST,
            far_cost: FAR_COST,
        };
        if let Some(limit) = self.split.as_mut().and_then(|split| split.look(edges)) {
            self.pager.store.set_ram_limit(limit);
        }
        if let Some(cost) = (near * NEAR_COST + far * FAR_COST).checked_div(near + far) {
            self.pager.resident().cooling.set_load_cost(cost);
        }
    }

    fn unpark(&mut self) {
        self.unparked = self.pager.clock.now();
        (self.fixed, self.busy) = (0, 0);
        let mut resident = self.pager.resident();
        let parked = resident.count(Place::Parked) as usize;
        resident.unpark(parked);
    }

    /// Whether every batch that was posted is over.
    #[cfg(test)]
    pub fn is_idle(&self) -> bool {
        self.stalled.is_empty()
    }

    fn is_stalled(&self, id: MmId) -> bool {
        self.stalled.iter().any(|stalled| stalled.mm.id == id)
    }

    /// Looks after batches whose processes were stopped in the middle.
    fn finish_stalled(&mut self) {
        for Stalled { mm, work } in std::mem::take(&mut self.stalled) {
            if mm.lock().ended {
                continue;
            }
            let link = mm.link.get().expect("it began a batch");
            if link.wait(Duration::ZERO) != Outcome::Done {
                self.stalled.push(Stalled { mm, work });
                continue;
            }
            match work {
                Work::Cool(moving) => {
                    self.commit_cool(&mm, &moving);
                }
                Work::Drop(runs) => {
                    self.commit_drop(&mm, &runs);
                }
                Work::Unshare(frames) => self.settle(&mm, &frames, Fate::Retry),
            }
        }
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
    use ebb_core::resident::{Arrival, Dropped, Space};
    use ebb_core::types::Vpn;

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
        set.isolate(8, &mut victims);
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
