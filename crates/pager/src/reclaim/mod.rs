//! The kswapd thread: cools the oldest pages, stores the coolest, drops what is of no more use.
//!
//! It alone posts batches to agents and it alone stores pages, so nothing here races with itself. What
//! it looked up may change while it waits; each commit looks again under the lock.

mod command;
mod cool;
mod evict;
mod harvest;
mod oom;

use crate::link::Outcome;
use crate::mm::Mm;
use crate::server::Pager;
use cool::Fate;
use ebb_agent::protocol::BATCH_MAX;
use ebb_core::resident::Place;
use ebb_core::types::{MmId, PAGE_SIZE, Pfn};
use ebb_store::Page;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How long nothing may be reclaimed, with threads waiting for memory, before the run is given up.
const HOPELESS: Duration = Duration::from_secs(2);
/// The same while an agent does not answer: the machine may be busy, or the process stopped.
const SILENCE: Duration = Duration::from_secs(10);
/// Pages lent beyond the limit while a process that does not answer holds all the others, and how long
/// nothing may be reclaimed before that: enough for the others to go on with, far less than is allowed.
const LENT_PAGES: u64 = 256;
const LEND_AFTER: Duration = Duration::from_millis(400);
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
    Drop(Vec<(u32, u32)>),
    Unshare(Vec<Pfn>),
}

struct Reclaim<'a> {
    pager: &'a Arc<Pager>,
    pages: Box<[Page; BATCH_MAX]>,
    stalled: Vec<Stalled>,
    /// Frames whose pages were made the process's own and are worth another try.
    unshared: HashSet<u32>,
    /// Frames of the cool ones whose pages were shared with a relative before that.
    separated: HashSet<u32>,
    unparked: Instant,
    hopeless_since: Option<Instant>,
    store_error: Option<String>,
    /// Shared pages wait for room for copies of them.
    crowded: bool,
    /// Pages are lent beyond the limit.
    lending: bool,
    /// Pages looked at.
    scanned: u64,
    /// How many there were at the last harvest.
    harvested_at: u64,
    /// Pages that could not be moved since something last could: locked or not writable, and busy.
    fixed: u64,
    busy: u64,
}

/// The thread.
pub fn run(pager: &Arc<Pager>) {
    pager.solo.begin_kswapd();
    let mut reclaim = Reclaim {
        pager,
        pages: Box::new([[0; PAGE_SIZE]; BATCH_MAX]),
        stalled: Vec::new(),
        unshared: HashSet::new(),
        separated: HashSet::new(),
        unparked: Instant::now(),
        hopeless_since: None,
        store_error: None,
        crowded: false,
        lending: false,
        scanned: 0,
        harvested_at: 0,
        fixed: 0,
        busy: 0,
    };
    loop {
        pager.kswapd.wait(Duration::from_millis(100));
        reclaim.finish_stalled();
        reclaim.tell_time();
        reclaim.serve_requests();
        reclaim.balance();
        reclaim.end_lending();
        reclaim.drop_retired(1);
    }
}

impl Reclaim<'_> {
    /// Works until the zone is balanced or nothing can be had.
    fn balance(&mut self) {
        while !self.pager.resident().zone.is_balanced() {
            if self.pager.ending.load(Relaxed) {
                return;
            }
            let before = self.scanned;
            self.tell_time();
            if self.pager.resident().is_thrashing() {
                return self.prevent_thrashing();
            }
            if self.pass() > 0 {
                self.hopeless_since = None;
                self.pager.wake_if_starving();
                continue;
            }
            if self.scanned > before {
                // Nothing of this batch could leave; there are others.
                continue;
            }
            self.finish_stalled();
            if self.pager.starving.load(Relaxed) + self.pager.held.load(Relaxed) == 0 {
                self.hopeless_since = None;
                return;
            }
            let since = *self.hopeless_since.get_or_insert_with(Instant::now);
            // A forked child that has yet to greet will have pages to give back.
            let growing_up = || self.pager.mms().iter().any(|mm| mm.is_infant());
            // An agent that was not heard of lately may only have been kept from running.
            let unheard =
                self.pager.mms().iter().any(|mm| mm.link.get().is_some() && mm.is_silent());
            let patience = if unheard { SILENCE } else { HOPELESS };
            if unheard && since.elapsed() > LEND_AFTER && !self.lending {
                self.lending = true;
                self.pager.resident().zone.lend(LENT_PAGES);
                self.pager.wake_if_starving();
            }
            if since.elapsed() > patience && self.stalled.is_empty() && !growing_up() {
                self.give_up();
                return;
            }
            self.unpark();
            // What nobody told of may be found.
            self.harvest_now();
            std::thread::sleep(Duration::from_millis(1));
        }
        self.hopeless_since = None;
        self.pager.wake_if_starving();
    }

    /// The ages of generations are counted from the start of the run.
    fn tell_time(&self) {
        self.pager.resident().set_now_ms(self.pager.started.elapsed().as_millis() as u64);
    }

    /// What was lent is asked back as soon as everybody answers.
    fn end_lending(&mut self) {
        if self.lending && !self.pager.mms().iter().any(|mm| mm.is_silent()) {
            self.lending = false;
            self.pager.resident().zone.lend(0);
        }
    }

    /// One round; returns how many pages were cooled, stored or dropped.
    fn pass(&mut self) -> usize {
        let (cool, evictable, parked) = {
            let resident = self.pager.resident();
            let parked = resident.count(Place::Parked);
            (resident.count(Place::Cool), resident.evictable(), parked)
        };
        if parked > 0 && self.unparked.elapsed() > UNPARK {
            self.unpark();
        }
        self.harvest_if_due(evictable);
        let target = evictable * u64::from(self.pager.config.cool_permille) / 1000;
        let mut progress = 0;
        if cool < target.max(BATCH_MAX as u64) {
            progress += self.cool(BATCH_MAX);
        }
        let crowded = std::mem::take(&mut self.crowded);
        if cool >= target / 2 || crowded || self.pager.starving.load(Relaxed) > 0 {
            progress += self.evict(BATCH_MAX);
        }
        progress + self.drop_retired(BATCH_MAX / 2)
    }

    fn unpark(&mut self) {
        self.unparked = Instant::now();
        (self.fixed, self.busy) = (0, 0);
        let mut resident = self.pager.resident();
        let parked = resident.count(Place::Parked) as usize;
        resident.unpark(parked);
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

fn group_by_mm(frames: &[Pfn], mm: impl Fn(Pfn) -> MmId) -> Vec<(MmId, Vec<Pfn>)> {
    let mut groups: Vec<(MmId, Vec<Pfn>)> = Vec::new();
    for &pfn in frames {
        let id = mm(pfn);
        match groups.iter_mut().find(|(other, _)| *other == id) {
            Some((_, group)) => group.push(pfn),
            None => groups.push((id, vec![pfn])),
        }
    }
    groups
}
