//! The kswapd thread: cools the oldest pages, stores the coolest, drops what is of no more use.
//!
//! It alone posts batches to agents and it alone stores pages, so nothing here races with itself. What
//! it looked up may change while it waits; each commit looks again under the lock.

use crate::counters;
use crate::link::{Operation, Outcome};
use crate::mm::{Mm, State};
use crate::server::Pager;
use ebb_agent::protocol::BATCH_MAX;
use ebb_core::resident::{Dropped, Entry, Place};
use ebb_core::types::{MmId, PAGE_SIZE, Pfn, SlotId, Vpn};
use ebb_store::{Page, page_hash};
use ebb_sys::{proc, process};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

const EBUSY: i32 = 16;
const ENOENT: i32 = 2;
const ESRCH: i32 = 3;
const EAGAIN: i32 = 11;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;

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

/// How many processes are listed when memory runs out.
const LISTED_MAX: usize = 16;

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
        fixed: 0,
        busy: 0,
    };
    loop {
        pager.kswapd.wait(Duration::from_millis(100));
        reclaim.finish_stalled();
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
            std::thread::sleep(Duration::from_millis(1));
        }
        self.hopeless_since = None;
        self.pager.wake_if_starving();
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

    /// Moves up to `max` of the oldest pages out of sight.
    fn cool(&mut self, max: usize) -> usize {
        let mut victims = Vec::with_capacity(max);
        let groups = {
            let mut resident = self.pager.resident();
            resident.isolate(max, &mut victims);
            self.scanned += victims.len() as u64;
            group_by_mm(&victims, |pfn| resident.frame(pfn).mm)
        };
        groups.into_iter().map(|(id, frames)| self.cool_of(id, frames)).sum()
    }

    fn cool_of(&mut self, id: MmId, frames: Vec<Pfn>) -> usize {
        let mm = self.pager.mm(id);
        let movable = mm.as_ref().is_some_and(|mm| {
            mm.link.get().is_some()
                && !mm.closing.load(Relaxed)
                && !self.is_stalled(id)
                && !mm.is_silent()
        });
        let Some(mm) = mm else { return 0 };
        if !movable {
            self.settle(&mm, &frames, Fate::Park);
            return 0;
        }
        let link = mm.link.get().expect("checked above");
        let mut operations = Vec::with_capacity(frames.len());
        let mut moving = Vec::with_capacity(frames.len());
        {
            let mut state = mm.lock();
            let mut resident = self.pager.resident();
            for &pfn in &frames {
                let Some(vpn) = still_isolated(&resident, &state, pfn) else { continue };
                if link.is_pinned(vpn.0) {
                    resident.park(pfn);
                    continue;
                }
                let Some(place) = state.pool.take() else {
                    resident.put_back(pfn);
                    continue;
                };
                let to = state.pool.address(place);
                operations.push(Operation::Move { to, from: vpn.address() });
                moving.push((pfn, place));
            }
            if operations.is_empty() {
                return 0;
            }
            // P2: from here to the commit no message of this address space is read.
            state.busy = true;
        }
        match link.execute(&operations) {
            Outcome::Done => self.commit_cool(&mm, &moving),
            Outcome::Cancelled => {
                mm.fell_silent();
                let mut state = mm.lock();
                for &(_, place) in &moving {
                    state.pool.give_back(place);
                }
                mm.end_batch(&mut state);
                drop(state);
                self.settle(&mm, &frames, Fate::Park);
                0
            }
            Outcome::Stalled => {
                self.stalled.push(Stalled { mm, work: Work::Cool(moving) });
                0
            }
        }
    }

    /// The moves were made, or not, one by one.
    fn commit_cool(&mut self, mm: &Arc<Mm>, moving: &[(Pfn, u32)]) -> usize {
        let link = mm.link.get().expect("it executed a batch");
        let mut cooled = 0;
        let mut shared = Vec::new();
        let mut dropped = Dropped::default();
        // A copy of one's own frees nothing while a relative that cannot give pages back holds the other.
        let unshare = !self.pager.mms().iter().any(|mm| mm.is_infant());
        {
            let mut guard = mm.lock();
            let state = &mut *guard;
            let mut resident = self.pager.resident();
            for (index, &(pfn, place)) in moving.iter().enumerate() {
                let result = link.result(index);
                let Some(vpn) = still_isolated(&resident, state, pfn) else {
                    // Only the end of the address space can have taken it.
                    continue;
                };
                if result == 0 {
                    resident.cool(&mut state.space, pfn, place);
                    cooled += 1;
                    if self.unshared.remove(&pfn.0) {
                        self.separated.insert(pfn.0);
                    }
                    continue;
                }
                if result == EEXIST {
                    // Something filled the hole (mlockall does): it holds nothing and is dropped.
                    state.pool.retire(place);
                    resident.zone.charge(1);
                    mm.known.fetch_add(1, Relaxed);
                    resident.put_back(pfn);
                    continue;
                }
                state.pool.give_back(place);
                match result {
                    EBUSY if unshare && self.unshared.insert(pfn.0) => {
                        shared.push(pfn);
                    }
                    EAGAIN => resident.put_back(pfn),
                    ENOENT => {
                        resident.forget(&mut state.space, vpn, &mut dropped);
                        resident.zone.uncharge(1);
                        mm.known.fetch_sub(1, Relaxed);
                    }
                    errno => {
                        match errno {
                            EINVAL => self.fixed += 1,
                            _ => self.busy += 1,
                        }
                        self.unshared.remove(&pfn.0);
                        counters::count(&self.pager.counters.unmovable);
                        resident.park(pfn);
                    }
                }
            }
            mm.end_batch(state);
        }
        self.pager.discard(&dropped);
        counters::add(&self.pager.counters.cooled, cooled as u64);
        if !shared.is_empty() {
            cooled += self.unshare(mm, shared);
        }
        cooled
    }

    /// Whether a batch of copies of one's own may be made now. They free nothing before the last
    /// relative has let go of what they are copies of, so no stock is laid in of them: what is cool goes
    /// to the store first.
    fn has_room_for_copies(&self) -> bool {
        let resident = self.pager.resident();
        let batch = BATCH_MAX as u64;
        resident.zone.free() > 2 * batch || resident.count(Place::Cool) < batch
    }

    /// Pages also mapped by a relative cannot be moved until the process has its own copies.
    fn unshare(&mut self, mm: &Arc<Mm>, frames: Vec<Pfn>) -> usize {
        if !self.has_room_for_copies() {
            frames.iter().for_each(|pfn| {
                self.unshared.remove(&pfn.0);
            });
            self.settle(mm, &frames, Fate::Retry);
            self.crowded = true;
            return 0;
        }
        let link = mm.link.get().expect("it executed a batch");
        let operations: Vec<Operation> = {
            let state = mm.lock();
            let resident = self.pager.resident();
            frames
                .iter()
                .filter_map(|&pfn| still_isolated(&resident, &state, pfn))
                .map(|vpn| Operation::Unshare { start: vpn.address(), len: PAGE_SIZE as u64 })
                .collect()
        };
        if mm.guarded.load(Relaxed) {
            // The agent would wait for the fault thread at every page.
            for operation in &operations {
                if let Operation::Unshare { start, len } = *operation {
                    // What is gone is not guarded either.
                    let _ = mm.uffd.unprotect(start, len);
                }
            }
        }
        match link.execute(&operations) {
            Outcome::Done => {
                // At worst every one of them is a new page now; counted anew before long.
                let copied = operations.len() as u64;
                self.pager.resident().zone.charge(copied);
                let less = |discount: u64| Some(discount.saturating_sub(copied));
                let _ = mm.discount.fetch_update(Relaxed, Relaxed, less);
                self.settle(mm, &frames, Fate::Retry);
                frames.len()
            }
            Outcome::Cancelled => {
                mm.fell_silent();
                self.settle(mm, &frames, Fate::Park);
                0
            }
            Outcome::Stalled => {
                self.stalled.push(Stalled { mm: mm.clone(), work: Work::Unshare(frames) });
                0
            }
        }
    }

    /// What becomes of isolated frames that were not moved.
    fn settle(&mut self, mm: &Arc<Mm>, frames: &[Pfn], fate: Fate) {
        let state = mm.lock();
        let mut resident = self.pager.resident();
        for &pfn in frames {
            if still_isolated(&resident, &state, pfn).is_some() {
                match fate {
                    Fate::Park => resident.park(pfn),
                    Fate::Retry => resident.put_first(pfn),
                }
            }
        }
    }

    /// Stores up to `max` of the coolest pages.
    fn evict(&mut self, max: usize) -> usize {
        let groups = {
            let resident = self.pager.resident();
            let mut coolest = Vec::with_capacity(max);
            resident.coolest(max, &mut coolest);
            group_by_mm(&coolest, |pfn| resident.frame(pfn).mm)
        };
        groups.into_iter().map(|(id, frames)| self.evict_of(id, &frames)).sum()
    }

    fn evict_of(&mut self, id: MmId, frames: &[Pfn]) -> usize {
        let Some(mm) = self.pager.mm(id) else { return 0 };
        if mm.link.get().is_none() || mm.closing.load(Relaxed) || mm.is_silent() {
            // Without an agent the page could not be dropped: others first.
            self.pass_over(&mm, frames);
            return 0;
        }
        let mut victims = Vec::with_capacity(frames.len());
        {
            let state = mm.lock();
            let resident = self.pager.resident();
            for &pfn in frames {
                if let Some(victim) = still_cool(&resident, &state, id, pfn) {
                    victims.push(victim);
                }
            }
        }
        let pid = mm.pid.load(Relaxed);
        victims.sort_unstable_by_key(|victim| victim.vpn);
        let addresses: Vec<u64> = victims.iter().map(|victim| victim.address).collect();
        // A cool page cannot change and is not dropped while its place is in use: no lock is needed.
        let got = match process::read_pages(mm.task(), &addresses, &mut self.pages[..]) {
            Ok(got) => got,
            Err(error) => {
                // A process on its way out has no number any more, for a moment longer a memory.
                if error.raw_os_error() != Some(ESRCH) && mm.is_alive() {
                    self.pager.complain(&format!("cannot read process {pid}: {error}"));
                }
                0
            }
        };
        if got == 0 {
            self.pass_over(&mm, frames);
        }
        victims.truncate(got);
        self.store(&mut victims);
        self.commit_evict(&mm, &victims)
    }

    /// Cool frames that cannot be stored now make way for others.
    fn pass_over(&self, mm: &Arc<Mm>, frames: &[Pfn]) {
        let state = mm.lock();
        let mut resident = self.pager.resident();
        for &pfn in frames {
            if still_cool(&resident, &state, mm.id, pfn).is_some() {
                resident.pass_over(pfn);
            }
        }
    }

    /// Finds or makes a stored copy of each victim.
    fn store(&mut self, victims: &mut [Victim]) {
        let mut writes: Vec<(SlotId, &Page)> = Vec::with_capacity(victims.len());
        for (victim, page) in victims.iter_mut().zip(self.pages.iter()) {
            let clean =
                victim.copy.is_some_and(|slot| self.pager.store.keep(slot, page_hash(page)));
            if clean {
                victim.stored = victim.copy;
                continue;
            }
            if let Ok(slot) = self.pager.resident().take_slot() {
                victim.stored = Some(slot);
                victim.written = true;
                writes.push((slot, page));
            }
        }
        if writes.is_empty() {
            return;
        }
        let mut results = Vec::with_capacity(writes.len());
        self.pager.store.put_batch(&writes, &mut results);
        let mut failed = Dropped::default();
        for (victim, result) in victims.iter_mut().filter(|victim| victim.written).zip(results) {
            if let Err(error) = result {
                self.store_error = Some(error.to_string());
                if let Some(slot) = victim.stored.take() {
                    self.pager.resident().release_slot(slot, &mut failed);
                }
                victim.written = false;
            }
        }
        self.pager.discard(&failed);
    }

    fn commit_evict(&mut self, mm: &Arc<Mm>, victims: &[Victim]) -> usize {
        let mut evicted = 0;
        let mut dropped = Dropped::default();
        let mut offers = Vec::new();
        {
            let mut guard = mm.lock();
            let state = &mut *guard;
            let mut resident = self.pager.resident();
            for victim in victims {
                let separated = self.separated.remove(&victim.pfn.0);
                let Some(slot) = victim.stored else { continue };
                let there = still_cool(&resident, state, mm.id, victim.pfn);
                if there.is_none_or(|there| there.address != victim.address) {
                    // Rescued, unmapped or moved meanwhile: the copy is of no use.
                    if victim.written {
                        resident.release_slot(slot, &mut dropped);
                    }
                    continue;
                }
                if victim.written {
                    dropped.slots.extend(resident.set_copy(victim.pfn, None));
                    counters::count(&self.pager.counters.written);
                } else {
                    counters::count(&self.pager.counters.clean);
                }
                let place = resident.evict(&mut state.space, victim.pfn, slot);
                state.pool.retire(place);
                evicted += 1;
                if separated {
                    resident.slots.share(slot);
                    offers.push((victim.vpn, slot));
                }
            }
        }
        self.offer(mm, &offers, &mut dropped);
        self.pager.discard(&dropped);
        counters::add(&self.pager.counters.evicted, evicted as u64);
        evicted
    }

    /// Pages that relatives share leave memory when the last of them has let go: they are next, and
    /// what is stored of one serves all, as far as it is still the same when they go.
    fn offer(&self, from: &Arc<Mm>, offers: &[(Vpn, SlotId)], dropped: &mut Dropped) {
        if offers.is_empty() {
            return;
        }
        let others = self.pager.mms();
        let relative = |mm: &&Arc<Mm>| mm.id != from.id && mm.family == from.family;
        for mm in others.iter().filter(relative) {
            let state = mm.lock();
            let mut resident = self.pager.resident();
            for &(vpn, slot) in offers {
                if let Entry::Resident(pfn) | Entry::Cool(pfn) = state.space.get(vpn)
                    && resident.frame(pfn).slot().is_none()
                {
                    resident.slots.share(slot);
                    resident.set_copy(pfn, Some(slot));
                    if matches!(resident.frame(pfn).place, Place::Generation(_)) {
                        resident.put_first(pfn);
                    }
                }
            }
        }
        // What was held for this.
        let mut resident = self.pager.resident();
        offers.iter().for_each(|&(_, slot)| resident.release_slot(slot, dropped));
    }

    /// Has agents drop the pool pages that are of no more use, where there are at least `least`.
    fn drop_retired(&mut self, least: usize) -> usize {
        let mut total = 0;
        for mm in self.pager.mms() {
            let Some(link) = mm.link.get() else { continue };
            if self.is_stalled(mm.id) || mm.closing.load(Relaxed) || mm.is_silent() {
                continue;
            }
            let (runs, operations) = {
                let mut state = mm.lock();
                if state.ended || state.pool.retired() < least {
                    continue;
                }
                let runs = state.pool.retired_runs(BATCH_MAX);
                let operations: Vec<Operation> = runs
                    .iter()
                    .map(|&(first, count)| Operation::Drop {
                        start: state.pool.address(first),
                        len: u64::from(count) * PAGE_SIZE as u64,
                    })
                    .collect();
                (runs, operations)
            };
            match link.execute(&operations) {
                Outcome::Done => total += self.commit_drop(&mm, &runs),
                Outcome::Cancelled => {
                    mm.fell_silent();
                    let mut state = mm.lock();
                    runs.into_iter().for_each(|run| state.pool.not_dropped(run));
                }
                Outcome::Stalled => self.stalled.push(Stalled { mm, work: Work::Drop(runs) }),
            }
        }
        total
    }

    fn commit_drop(&mut self, mm: &Arc<Mm>, runs: &[(u32, u32)]) -> usize {
        let link = mm.link.get().expect("it executed a batch");
        let mut state = mm.lock();
        if state.ended {
            return 0;
        }
        let mut pages = 0;
        for (index, &run) in runs.iter().enumerate() {
            if link.result(index) == 0 {
                state.pool.dropped(run);
                pages += u64::from(run.1);
            } else {
                state.pool.not_dropped(run);
            }
        }
        self.pager.resident().zone.uncharge(pages);
        mm.known.fetch_sub(pages as i64, Relaxed);
        pages as usize
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

    /// Nothing can be reclaimed and threads wait: the run ends as by the OOM killer.
    fn give_up(&mut self) {
        let (limit, used) = {
            let resident = self.pager.resident();
            (resident.zone.limit(), resident.zone.used())
        };
        let mib = |pages: u64| pages as f64 / 256.0;
        let why = match self.store_error.take() {
            Some(error) => format!("the store takes no more: {error}"),
            None => format!(
                "{:.1} MiB are in areas that are locked or not writable, {:.1} MiB are pinned or \
                 shared, the rest is not under management",
                mib(self.fixed),
                mib(self.busy)
            ),
        };
        self.pager.say(&format!(
            "out of memory: the limit is {:.1} MiB, the demand {:.1} MiB, and nothing more can be \
             stored ({why}). Raise --memory-max, or give --swap more room (for example --swap \
             ram,file:4G). The program is killed.",
            mib(limit),
            mib(used + u64::from(self.pager.starving.load(Relaxed))),
        ));
        let processes = self.processes();
        if processes.len() > 1 {
            processes.iter().for_each(|line| self.pager.say(line));
        }
        self.pager.kill_tree();
    }

    /// Who holds the memory, a line each, as the kernel's OOM killer lists it.
    fn processes(&self) -> Vec<String> {
        let mib = |pages: u64| pages as f64 / 256.0;
        let mut lines: Vec<(u64, String)> = (self.pager.mms().iter())
            .map(|mm| {
                let pid = mm.pid.load(Relaxed);
                let resident = mm.statm.get().and_then(|statm| statm.anonymous_pages().ok());
                let resident = resident.unwrap_or(0);
                let managed = u64::try_from(mm.known.load(Relaxed)).unwrap_or(0);
                let agent = match mm.link.get() {
                    None if mm.is_infant() => "has not joined yet",
                    None => "never joined",
                    Some(link) if !link.is_ready() => "does not run yet",
                    Some(_) if self.is_stalled(mm.id) => "is in the middle of a batch",
                    Some(_) if mm.is_silent() => "does not answer",
                    Some(_) => "answers",
                };
                let text = format!(
                    "process {pid} ({}): {:.1} MiB resident, {:.1} MiB of it managed, {:.1} MiB \
                     shared with relatives; its agent {agent}",
                    proc::name(pid),
                    mib(resident),
                    mib(managed),
                    mib(mm.discount.load(Relaxed)),
                );
                (resident, text)
            })
            .collect();
        lines.sort_by(|a, b| b.cmp(a));
        lines.into_iter().map(|(_, text)| text).take(LISTED_MAX).collect()
    }
}

#[derive(Clone, Copy)]
enum Fate {
    Park,
    Retry,
}

/// A cool page on its way to the store.
#[derive(Clone, Copy)]
struct Victim {
    pfn: Pfn,
    vpn: Vpn,
    /// Where it lies in the pool.
    address: u64,
    /// The stored copy it was loaded from.
    copy: Option<SlotId>,
    /// The copy it leaves.
    stored: Option<SlotId>,
    written: bool,
}

/// The page of a frame that kswapd isolated, unless it is no longer that.
fn still_isolated(resident: &ebb_core::resident::Resident, state: &State, pfn: Pfn) -> Option<Vpn> {
    if state.ended || !resident.is_used(pfn) {
        return None;
    }
    let frame = resident.frame(pfn);
    let mine = frame.place == Place::Isolated && frame.mm == state.space.mm();
    (mine && state.space.get(frame.vpn) == Entry::Resident(pfn)).then_some(frame.vpn)
}

fn still_cool(
    resident: &ebb_core::resident::Resident,
    state: &State,
    mm: MmId,
    pfn: Pfn,
) -> Option<Victim> {
    if state.ended || !resident.is_used(pfn) {
        return None;
    }
    let frame = resident.frame(pfn);
    let mine = frame.place == Place::Cool && frame.mm == mm;
    (mine && state.space.get(frame.vpn) == Entry::Cool(pfn)).then(|| Victim {
        pfn,
        vpn: frame.vpn,
        address: state.pool.address(frame.pool),
        copy: frame.slot(),
        stored: None,
        written: false,
    })
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
