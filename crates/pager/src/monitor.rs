//! The monitor thread: measures what the tree holds, brings new areas under management, notices ends.
//!
//! New areas announce themselves to nobody, so it looks: often when the limit is near, seldom when it
//! is far. While it is far nothing is registered at all and memory costs what it costs without Ebb.

use crate::adopt;
use crate::brake::Brake;
use crate::guard;
use crate::mm::Mm;
use crate::pressure::COUNT_EVERY;
use crate::resize::Resize;
use crate::seam::Process;
use crate::server::Pager;
use crate::shared_memory::SharedMemory;
use crate::sharing::{self, Sharing};
use crate::solo::Watch;
use crate::strangers::Strangers;
use crate::thrashing;
use crate::unmanaged::Kind;
use ebb_mm::types::{MmId, PAGE_SIZE};
use ebb_sys::proc;
use ebb_sys::sched;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Faster than any two threads touch memory.
const GROWTH_BYTES_PER_SECOND: u64 = 8 << 30;
/// The same as long as the kernel may fill it by huge pages.
const HUGE_GROWTH_BYTES_PER_SECOND: u64 = 40 << 30;
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// How long the fault thread may be kept from running by others on its CPU.
const PAUSE_SOLO: Duration = Duration::from_millis(4);
/// How often the whole tree is looked through for processes without an agent.
pub const CENSUS: Duration = Duration::from_millis(100);
/// How often it is while it is being killed: who dies needs the CPU, too.
const KILL_AGAIN: Duration = Duration::from_millis(20);
/// Pages beyond the known ones that make it worth reading the areas again. Of many processes that is a lot: while
/// touches wait for memory, one is.
const UNKNOWN_PAGES_MAX: u64 = 64;
/// Pages beyond the known ones that make it worth holding the program while its areas are read.
const HELD_PAGES_MIN: u64 = 512;

/// Room for what a program fills while it is let go for a moment, its areas being taken on.
const BREATH_PAGES: u64 = (32 << 20) / PAGE_SIZE as u64;

pub struct Monitor {
    pager: Arc<Pager>,
    strangers: Strangers,
    shared: SharedMemory,
    thrashing: thrashing::Watch,
    census: Instant,
    /// The youngest address space that it was about.
    youngest: MmId,
    running_counted: Instant,
    sharing: Sharing,
    solo: Watch,
    resize: Resize,
    brake: Brake,
}

/// The thread.
pub fn run(pager: &Arc<Pager>) {
    if sched::run_first().is_err() {
        // The next best.
        let _ = sched::run_soon(0);
    }
    let mut monitor = Monitor::new(pager);
    loop {
        let began = pager.clock.now();
        let free_bytes = monitor.tick() * PAGE_SIZE as u64;
        // With hundreds of processes a look takes milliseconds, of a CPU that they need themselves.
        let took = pager.clock.since(began).min(PAUSE_MAX);
        let small = pager.small.load(Relaxed);
        let growth = if small { GROWTH_BYTES_PER_SECOND } else { HUGE_GROWTH_BYTES_PER_SECOND };
        let pause = Duration::from_secs_f64(free_bytes as f64 / growth as f64);
        let most = if monitor.brake.is_at_work() {
            PAUSE_MIN
        } else if pager.solo.is_everywhere() {
            PAUSE_SOLO / 2
        } else if pager.solo.is_on() {
            PAUSE_SOLO
        } else {
            PAUSE_MAX
        };
        pager.host.wait(&pager.monitor, pause.clamp(PAUSE_MIN, most).max(took));
    }
}

/// What is filled before the next look, should this thread not be run for some milliseconds.
const LATE_PAGES: u64 = (64 << 20) / PAGE_SIZE as u64;

/// Below so many pages nothing is registered, where reclaim aims at `goal`.
pub fn threshold(goal: u64) -> u64 {
    goal.saturating_sub(LATE_PAGES.max(goal / 8))
}

/// From so many pages on there are to be no huge ones, so that none fills what is left in so little time: a monitor that
/// was not run for 6 ms found 127 MiB of 72.
pub fn small_from(goal: u64) -> u64 {
    threshold(goal).saturating_sub(LATE_PAGES)
}

/// How many of a process's resident pages nobody knows.
fn unknown_pages(mm: &Mm, resident: u64) -> u64 {
    resident.saturating_sub(u64::try_from(mm.known.load(Relaxed)).unwrap_or(0))
}

/// Holds who maps more and more shared memory, if that may be too much by now: before each thing that waits for locks that
/// those have who fill it.
fn look_ahead(pager: &Pager, shared: &mut SharedMemory, brake: &mut Brake, mms: &[Arc<Mm>]) {
    if shared.is_old(pager) {
        // Which has each of them looked at.
        for mm in mms {
            mm.resident_pages();
        }
    }
    if pager.managing.load(Relaxed) && shared.is_stale(mms) {
        let tree = pager.host.tree(pager);
        shared.count(pager, &tree, mms);
    }
    shared.presume(pager, mms);
    if shared.presumed() == 0 {
        return;
    }
    let (used, ceiling) = {
        let resident = pager.resident();
        (resident.zone.used() + shared.presumed(), resident.zone.ceiling())
    };
    if used > ceiling {
        brake.look(pager, used, ceiling, mms);
    }
}

/// The same between waits, if the last was some time ago.
fn look_ahead_again(pager: &Pager, shared: &mut SharedMemory, brake: &mut Brake, mms: &[Arc<Mm>]) {
    if shared.is_old(pager) {
        look_ahead(pager, shared, brake, mms);
    }
}

impl Monitor {
    /// Ready to look.
    pub fn new(pager: &Arc<Pager>) -> Self {
        let now = pager.clock.now();
        Self {
            pager: pager.clone(),
            strangers: Strangers::new(now),
            shared: SharedMemory::new(now),
            thrashing: thrashing::Watch::default(),
            census: now,
            youngest: MmId(0),
            running_counted: now,
            sharing: Sharing::new(now),
            solo: Watch::new(now),
            resize: Resize::new(pager),
            brake: Brake::default(),
        }
    }

    /// One look. Returns how many pages may come before the next is due.
    pub fn tick(&mut self) -> u64 {
        self.solo.look(&self.pager.solo, self.pager.clock.now(), || self.pager.has_messages());
        let mms = self.pager.mms();
        self.place_agents(&mms);
        let killing = self.pager.killing.load(Relaxed);
        let pause = if killing { KILL_AGAIN } else { CENSUS };
        let due = self.pager.clock.since(self.census) > pause || self.is_child_unmet(&mms);
        self.reap(&mms, due);
        if due {
            self.take_census(&mms);
        }
        let Self { pager, shared, brake, sharing, .. } = self;
        look_ahead(pager, shared, brake, &mms);
        shared.walk(pager, brake.is_settled());
        sharing.count(pager, &mms, || look_ahead_again(pager, shared, brake, &mms));
        self.guard(&mms);
        let mut growing = Vec::new();
        for mm in &mms {
            let resident = mm.resident_pages();
            // The kernel copies what relatives share, and tells nobody.
            let grows = unknown_pages(mm, resident) > UNKNOWN_PAGES_MAX || mm.related.load(Relaxed);
            if self.pager.small.load(Relaxed)
                && let Some(link) = mm.link.get()
            {
                link.small();
            }
            look_ahead_again(&self.pager, &mut self.shared, &mut self.brake, &mms);
            // Who moves areas gets on first, and then they are taken on.
            let moves = self.pager.managing.load(Relaxed) && !self.manage(mm, resident);
            if grows && !moves {
                growing.push(mm.clone());
            }
        }
        // Measured last: what was taken on took its time, in which the program went on.
        let held = sharing::held(&mms);
        let strangers = self.strangers.pages(&self.pager, &mms, &held);
        let total = held.told + strangers + self.shared.pages();
        self.shared.presume(&self.pager, &mms);
        let room = self.account(total, &growing);
        // What is over a step is seen at the next look.
        if self.resize.look(&self.pager) { 0 } else { room }
    }

    /// Whether memory is short, and a child that does not join by itself was forked since the last census (FOREIGN-4 in
    /// `strangers.rs`): what it fills before it has an agent, and is held for, cannot leave.
    fn is_child_unmet(&self, mms: &[Arc<Mm>]) -> bool {
        let unmet = |mm: &Mm| mm.is_bare() && mm.link.get().is_none() && mm.id > self.youngest;
        self.pager.managing.load(Relaxed) && mms.iter().any(|mm| unmet(mm))
    }

    /// Agents keep off the CPU that the fault thread shares with the program.
    fn place_agents(&self, mms: &[Arc<Mm>]) {
        let solo = &self.pager.solo;
        let reserved = solo.reserved();
        for mm in mms.iter().filter(|mm| mm.agent_off.load(Relaxed) != reserved) {
            if let Some(agent) = mm.process().and_then(Process::agent) {
                mm.agent_off.store(reserved, Relaxed);
                solo.keep_off(agent, reserved);
            }
        }
    }

    fn account(&mut self, tree_pages: u64, growing: &[Arc<Mm>]) -> u64 {
        let store = self.pager.store.ram_bytes().div_ceil(PAGE_SIZE as u64);
        let counters = &self.pager.counters;
        counters.peak_resident.fetch_max(tree_pages * PAGE_SIZE as u64, Relaxed);
        let (used, free, low, ceiling, goal) = {
            let mut resident = self.pager.resident();
            let zone = &mut resident.zone;
            zone.measured(tree_pages + store);
            (zone.used(), zone.free(), zone.is_low(), zone.ceiling(), zone.high())
        };
        counters.peak_managed.fetch_max(used * PAGE_SIZE as u64, Relaxed);
        self.brake.look(&self.pager, used + self.shared.presumed(), ceiling, growing);
        self.pager
            .resident_history
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .record(self.pager.clock.since(self.pager.started), tree_pages * PAGE_SIZE as u64);
        if low {
            self.pager.wake_kswapd();
        }
        if free > 0 {
            self.pager.wake_if_waiting();
        }
        if !self.pager.managing.load(Relaxed) {
            let (small_from, threshold) = (small_from(goal), threshold(goal));
            let is_new = used >= small_from && !self.pager.small.swap(true, Relaxed);
            if used >= threshold {
                self.pager.managing.store(true, Relaxed);
            }
            // Again at once: who is to be told is.
            if is_new || used >= threshold {
                return 0;
            }
            return if used < small_from { small_from } else { threshold } - used;
        }
        free
    }

    /// Drops what has ended. Of those that have no agent that is seen by looking, now and then.
    fn reap(&self, mms: &[Arc<Mm>], look: bool) {
        for mm in mms {
            let orphan = mm.link.get().is_none() && look;
            // A child may still be to inherit from it.
            if (mm.closing.load(Relaxed) || orphan) && !mm.is_alive() && !mm.lock().copying {
                self.pager.drop_mm(mm);
            }
        }
    }

    fn take_census(&mut self, mms: &[Arc<Mm>]) {
        self.census = self.pager.clock.now();
        self.youngest = mms.iter().map(|mm| mm.id).max().unwrap_or(self.youngest);
        if self.pager.killing.load(Relaxed) {
            mms.iter().for_each(|mm| mm.tell_end());
            self.pager.host.kill_tree(&self.pager);
        }
        for mm in mms {
            if let Some(link) = mm.link.get()
                && let Some(code) = mm.process().and_then(Process::deserted)
            {
                link.leave(code);
            }
        }
        for mm in mms {
            if let Some(times) = mm.process().and_then(Process::agent).and_then(sched::run_times) {
                mm.agent_ns.store(times.ran_ns, Relaxed);
            }
        }
        let tree = self.pager.host.tree(&self.pager);
        self.count_running(&tree);
        self.strangers.count(&self.pager, &tree, mms);
        self.shared.count(&self.pager, &tree, mms);
        self.thrashing.look(&self.pager);
        let held = |which: &AtomicBool, mm: &Mm| which.load(Relaxed).then(|| mm.resident_pages());
        let alone = mms.iter().filter_map(|mm| held(&mm.alone, mm)).sum();
        self.pager.unmanaged.hold(Kind::CannotJoin, alone);
        let stuck = mms.iter().filter_map(|mm| held(&mm.told_stuck, mm)).sum();
        self.pager.unmanaged.hold(Kind::Pinned, stuck);
    }

    /// Counts the threads that do something: pressure is full while nobody does.
    fn count_running(&mut self, tree: &[u32]) {
        if self.pager.clock.since(self.running_counted) < COUNT_EVERY {
            return;
        }
        self.running_counted = self.pager.clock.now();
        let agents: Vec<u32> =
            (self.pager.mms().iter()).filter_map(|mm| mm.process()?.agent()).collect();
        let runs = |&(thread, state): &(u32, char)| state == 'R' && !agents.contains(&thread);
        let running = |&pid: &u32| proc::threads(pid).iter().filter(|thread| runs(thread)).count();
        self.pager.pressure.found_running(tree.iter().map(running).sum::<usize>() as u32);
    }

    /// Guards what relatives share, as soon as there would be no room for all copies of it.
    fn guard(&self, mms: &[Arc<Mm>]) {
        let bare = |mm: &&Arc<Mm>| mm.related.load(Relaxed) && !mm.guarded.load(Relaxed);
        let copies: i64 = mms.iter().filter(bare).map(|mm| mm.discount.load(Relaxed).max(0)).sum();
        let copies = copies.cast_unsigned();
        if copies > 0 && guard::is_needed(&self.pager, copies) {
            mms.iter().filter(bare).for_each(|mm| guard::raise_all(mm));
        }
    }

    /// Registers the areas that appeared since the last look, if memory says that there are any. False if a thread of the
    /// program is in the way, which moves areas: it is not to be held.
    fn manage(&mut self, mm: &Arc<Mm>, resident: u64) -> bool {
        let Some(link) = mm.link.get() else { return true };
        link.managing();
        if link.pins_everything() && !mm.told_stuck.swap(true, Relaxed) {
            let name = mm.process().map_or_else(|| "?".to_owned(), Process::name);
            self.pager.unmanaged.met(&self.pager, Kind::Pinned, mm.pid(), &name);
        }
        let unknown = unknown_pages(mm, resident);
        let starving = self.pager.starving.load(Relaxed) > 0;
        let few = if starving { 0 } else { UNKNOWN_PAGES_MAX };
        let enough = mm.unknown.load(Relaxed) + few;
        let more = unknown > enough;
        if !more {
            mm.unknown.fetch_min(unknown, Relaxed);
        }
        // What was in no area to be taken on may have been where nobody looked.
        let wanted =
            (starving || self.brake.is_on()) && unknown > UNKNOWN_PAGES_MAX && mm.are_strays_due();
        if !more && !wanted {
            return true;
        }
        let Some(process) = mm.process().filter(|_| !mm.closing.load(Relaxed)) else { return true };
        // It is done before long, unless it is held.
        if !link.try_map() {
            self.brake.let_go(&self.pager);
            return false;
        }
        // It would go on at the kernel's speed while it is being registered.
        let room = self.pager.resident().zone.free().saturating_sub(self.shared.presumed());
        let is_roomy = |now: u64| room.saturating_sub(now.saturating_sub(resident)) > BREATH_PAGES;
        let (brake, pager) = (&mut self.brake, &self.pager);
        let mut before = || {
            let now = mm.resident_pages();
            let room = is_roomy(now);
            if unknown_pages(mm, now) > if room { HELD_PAGES_MIN } else { UNKNOWN_PAGES_MAX } {
                brake.hold_in_turns(pager, mm, room);
            }
        };
        // To read its areas waits for who changes them, too, and others fill theirs meanwhile.
        let (mut learnt, mut is_all) = (Some(0), true);
        if more {
            before();
            learnt = adopt::beside(pager, mm, process, &mut before);
            is_all = learnt.is_none_or(|found| unknown > found + enough);
            if is_all {
                let rest = |found| Some(found + adopt::areas(pager, mm, process, &mut before)?);
                learnt = learnt.and_then(rest);
            }
        }
        if learnt == Some(0) && unknown > UNKNOWN_PAGES_MAX && mm.are_strays_due() {
            let began = pager.clock.now();
            learnt = adopt::strays(pager, mm, process, &mut before);
            mm.sought_strays(pager.clock.since(began));
        }
        if is_roomy(mm.resident_pages()) {
            brake.let_go(pager);
        }
        link.mapped();
        if let Some(learnt) = learnt {
            // Of those that were there before its areas were read. What has been filled since may lie in areas that were made
            // since: taken for pages that cannot be managed it was never looked at again, and a program that was held for
            // it was killed as out of memory.
            mm.sought_areas(unknown.saturating_sub(learnt), is_all);
        }
        true
    }
}
