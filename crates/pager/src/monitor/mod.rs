//! Monitor thread: measures the memory of the tree, brings new areas under management, notices
//! ended processes.
//!
//! The kernel does not report new areas, so the monitor polls: often near the limit, seldom far
//! from it. Far from the limit nothing is registered, and memory costs as much as without Ebb.

pub mod adopt;
pub mod foreign;
pub mod freezer;
pub mod pressure_target;
pub mod resize;
pub mod shared_memory;
pub mod sharing;
pub mod thrashing;

use crate::fault_threads::cpu_follow::Watch;
use crate::mm::link::Link;
use crate::mm::{Agent, Mm, cow_protect};
use crate::pager::Pager;
use crate::seam::Process;
use crate::telemetry::pressure::COUNT_EVERY;
use crate::telemetry::unmanaged::Kind;
use ebb_mm::types::{MmId, PAGE_SIZE};
use ebb_sys::proc;
use ebb_sys::sched;
use foreign::{CENSUS, ForeignProcesses};
use freezer::Freezer;
use resize::Resize;
use shared_memory::SharedMemory;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Growth that two threads writing to memory do not exceed, in bytes per second.
const GROWTH_BYTES_PER_SECOND: u64 = 8 << 30;
/// Growth that the program does not exceed while the kernel may use huge pages, in bytes per
/// second.
const HUGE_GROWTH_BYTES_PER_SECOND: u64 = 40 << 30;
const PAUSE_MIN: Duration = Duration::from_millis(1);
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Maximum pause with CPU following: time for which other threads may keep the fault thread from
/// its CPU.
const PAUSE_CPU_FOLLOW: Duration = Duration::from_millis(4);
/// Interval of the census while the tree is being killed, because dying processes need the CPU,
/// too.
const KILL_AGAIN: Duration = Duration::from_millis(20);
/// Number of unknown pages from which the monitor reads the areas again. Over many processes this
/// adds up, so one page is enough while faults wait for memory.
const UNKNOWN_PAGES_MAX: u64 = 64;
/// Number of unknown pages from which the monitor freezes the program while it reads the areas.
const HELD_PAGES_MIN: u64 = 512;

/// Number of address spaces without an agent from which the monitor looks at each tick whether they
/// have ended.
const YOUNG_MAX: usize = 32;

/// Pages that a program may fill while it runs between two freezes (FREEZER-4).
const BREATH_PAGES: u64 = (32 << 20) / PAGE_SIZE as u64;

pub struct Monitor {
    pager: Arc<Pager>,
    foreign: ForeignProcesses,
    shared: SharedMemory,
    thrashing: thrashing::Watch,
    census: Instant,
    /// The youngest address space of the last census.
    youngest: MmId,
    running_counted: Instant,
    cpu_follow: Watch,
    resize: Resize,
    freezer: Freezer,
}

/// Runs the monitor thread.
pub fn run(pager: &Arc<Pager>) {
    if sched::run_first().is_err() {
        // Falls back to the second-best priority.
        let _ = sched::run_soon(0);
    }
    let mut monitor = Monitor::new(pager);
    loop {
        let began = pager.clock.now();
        let free_bytes = monitor.tick() * PAGE_SIZE as u64;
        // With hundreds of processes a tick takes milliseconds of a CPU that they need themselves.
        let took = pager.clock.since(began).min(PAUSE_MAX);
        let no_huge_pages = pager.run.no_huge_pages.load(Relaxed);
        let growth =
            if no_huge_pages { GROWTH_BYTES_PER_SECOND } else { HUGE_GROWTH_BYTES_PER_SECOND };
        let pause = Duration::from_secs_f64(free_bytes as f64 / growth as f64);
        let most = if monitor.freezer.is_at_work() {
            PAUSE_MIN
        } else if pager.faults.cpu_follow.is_everywhere() {
            PAUSE_CPU_FOLLOW / 2
        } else if pager.faults.cpu_follow.is_on() {
            PAUSE_CPU_FOLLOW
        } else {
            PAUSE_MAX
        };
        pager.host.wait(&pager.run.monitor, pause.clamp(PAUSE_MIN, most).max(took));
    }
}

/// Freezes the processes that map more and more shared memory, if that may exceed the budget by
/// now. Called before each step that waits for locks of the processes that fill shared memory.
fn look_ahead(pager: &Pager, shared: &mut SharedMemory, freezer: &mut Freezer, mms: &[Arc<Mm>]) {
    if shared.is_old(&pager.clock) {
        // `resident_pages` also measures the pages of files and of shared memory.
        for mm in mms {
            mm.resident_pages();
        }
    }
    if pager.run.managing.load(Relaxed) && shared.is_stale(mms) {
        let tree = pager.host.tree(&pager.processes);
        shared.update(pager, &tree, mms);
    }
    shared.presume(&pager.clock, mms);
    if shared.presumed() == 0 {
        return;
    }
    let (used, ceiling) = {
        let resident = pager.resident();
        (resident.zone.used() + shared.presumed(), resident.zone.ceiling())
    };
    if used > ceiling {
        freezer.look(pager, used, ceiling, mms);
    }
}

/// Calls [`look_ahead`] between waits if the last call is some time ago.
fn look_ahead_again(
    pager: &Pager,
    shared: &mut SharedMemory,
    freezer: &mut Freezer,
    mms: &[Arc<Mm>],
) {
    if shared.is_old(&pager.clock) {
        look_ahead(pager, shared, freezer, mms);
    }
}

impl Monitor {
    /// Creates the monitor.
    pub fn new(pager: &Arc<Pager>) -> Self {
        let now = pager.clock.now();
        Self {
            pager: pager.clone(),
            foreign: ForeignProcesses::new(now),
            shared: SharedMemory::new(now),
            thrashing: thrashing::Watch::default(),
            census: now,
            youngest: MmId(0),
            running_counted: now,
            cpu_follow: Watch::new(now),
            resize: Resize::new(&pager.config),
            freezer: Freezer::default(),
        }
    }

    /// Performs one round of measurements. Returns how many pages may be filled before the next
    /// round is due.
    pub fn tick(&mut self) -> u64 {
        self.cpu_follow.look(&self.pager.faults.cpu_follow, self.pager.clock.now(), || {
            self.pager.faults.has_messages()
        });
        let mms = self.pager.mms();
        self.place_agents(&mms);
        let killing = self.pager.run.killing.load(Relaxed);
        let pause = if killing { KILL_AGAIN } else { CENSUS };
        let due = self.pager.clock.since(self.census) > pause || self.is_child_unmet(&mms);
        // Each address space takes a descriptor and a place among the parent's calls.
        let is_crowded = mms.iter().filter(|mm| mm.agent.link().is_none()).count() > YOUNG_MAX;
        self.reap(&mms, due || is_crowded);
        if due {
            self.take_census(&mms);
        }
        let Self { pager, shared, freezer, .. } = self;
        look_ahead(pager, shared, freezer, &mms);
        shared.walk(pager, freezer.is_settled());
        self.cow_protect(&mms);
        let mut growing = Vec::new();
        for mm in &mms {
            let resident = mm.resident_pages();
            // The kernel copies pages shared in a fork group without a message.
            let grows =
                mm.pages.unknown_of(resident) > UNKNOWN_PAGES_MAX || mm.fork_group.is_related();
            if let Some(link) = mm.agent.link() {
                if !self.pager.run.is_far.load(Relaxed) {
                    link.set_far(false);
                }
                if self.pager.run.no_huge_pages.load(Relaxed) {
                    link.send_no_huge_pages();
                }
            }
            look_ahead_again(&self.pager, &mut self.shared, &mut self.freezer, &mms);
            // A process that moves areas goes on first. The next tick registers them.
            let moves = self.pager.run.managing.load(Relaxed) && !self.manage(mm, resident);
            if grows && !moves {
                growing.push(mm.clone());
            }
        }
        // Measured last, because the program went on while its areas were registered.
        let held = sharing::held(&mms);
        let foreign = self.foreign.pages(&self.pager.telemetry, &mms, &held);
        let total = held.identified + foreign + self.shared.pages();
        self.shared.presume(&self.pager.clock, &mms);
        let room = self.account(total, &growing);
        // The next tick checks the part above this step.
        if self.resize.look(&self.pager) { 0 } else { room }
    }

    /// Whether memory is short and a child without an agent was forked since the last census. Only
    /// children that do not join by themselves count (FOREIGN-4 in `foreign.rs`). Pages that such a
    /// child fills before it has an agent and is frozen cannot leave.
    fn is_child_unmet(&self, mms: &[Arc<Mm>]) -> bool {
        let unmet =
            |mm: &Mm| mm.agent.lacks_hooks && mm.agent.link().is_none() && mm.id > self.youngest;
        self.pager.run.managing.load(Relaxed) && mms.iter().any(|mm| unmet(mm))
    }

    /// Keeps agents off the CPU that the fault thread shares with the program.
    fn place_agents(&self, mms: &[Arc<Mm>]) {
        let cpu_follow = &self.pager.faults.cpu_follow;
        let reserved = cpu_follow.reserved();
        for mm in mms.iter().filter(|mm| mm.agent.kept_off.load(Relaxed) != reserved) {
            if let Some(agent) = mm.process().and_then(Process::agent) {
                mm.agent.kept_off.store(reserved, Relaxed);
                cpu_follow.keep_off(agent, reserved);
            }
        }
    }

    fn account(&mut self, tree_pages: u64, growing: &[Arc<Mm>]) -> u64 {
        let store = self.pager.budget.store.ram_bytes().div_ceil(PAGE_SIZE as u64);
        let counters = &self.pager.telemetry.counters;
        counters.peak_resident.fetch_max(tree_pages * PAGE_SIZE as u64, Relaxed);
        let (used, free, low, ceiling, goal) = {
            let mut resident = self.pager.resident();
            let zone = &mut resident.zone;
            zone.set_resident(tree_pages + store);
            (zone.used(), zone.free(), zone.is_low(), zone.ceiling(), zone.high())
        };
        counters.peak_managed.fetch_max(used * PAGE_SIZE as u64, Relaxed);
        self.freezer.look(&self.pager, used + self.shared.presumed(), ceiling, growing);
        self.pager
            .telemetry
            .resident_history
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .record(self.pager.clock.since(self.pager.started), tree_pages * PAGE_SIZE as u64);
        if low {
            self.pager.budget.wake_kswapd();
        }
        if free > 0 {
            self.pager.faults.wake_if_deferred();
        }
        self.pager.run.approach(used, goal).unwrap_or(free)
    }

    /// Drops address spaces that have ended. For those without an agent, checks this only if
    /// `look`.
    fn reap(&self, mms: &[Arc<Mm>], look: bool) {
        for mm in mms {
            let orphan = mm.agent.link().is_none() && look;
            // A child may still have to inherit from the address space.
            if (mm.agent.is_closing() || orphan)
                && !mm.uffd.is_alive()
                && !mm.lock().following_message
            {
                self.pager.drop_mm(mm);
            }
        }
    }

    fn take_census(&mut self, mms: &[Arc<Mm>]) {
        self.census = self.pager.clock.now();
        self.youngest = mms.iter().map(|mm| mm.id).max().unwrap_or(self.youngest);
        if self.pager.run.killing.load(Relaxed) {
            mms.iter().for_each(|mm| mm.lines().for_each(Link::end));
            self.pager.host.kill_tree(&self.pager.processes);
        }
        mms.iter().for_each(|mm| mm.lines().for_each(Link::sweep_slots));
        for mm in mms {
            if let Some(link) = mm.agent.link()
                && let Some(code) = mm.process().and_then(Process::exit_code_of_leader)
            {
                link.leave(code);
            }
        }
        for mm in mms {
            if let Some(times) = mm.process().and_then(Process::agent).and_then(sched::run_times) {
                mm.agent.cpu_ns.store(times.ran_ns, Relaxed);
            }
        }
        let tree = self.pager.host.tree(&self.pager.processes);
        self.count_running(&tree);
        self.foreign.update(&self.pager, &tree, mms);
        self.shared.update(&self.pager, &tree, mms);
        self.thrashing.look(&self.pager);
        let held = |which: fn(&Agent) -> bool| {
            mms.iter().filter(|mm| which(&mm.agent)).map(|mm| mm.resident_pages()).sum()
        };
        let unmanaged = &self.pager.telemetry.unmanaged;
        unmanaged.hold(Kind::CannotJoin, held(Agent::has_declined));
        unmanaged.hold(Kind::Pinned, held(Agent::is_stuck));
    }

    /// Counts the running threads. Memory pressure is full while no thread runs.
    fn count_running(&mut self, tree: &[u32]) {
        if self.pager.clock.since(self.running_counted) < COUNT_EVERY {
            return;
        }
        self.running_counted = self.pager.clock.now();
        let agents: Vec<u32> =
            (self.pager.mms().iter()).filter_map(|mm| mm.process()?.agent()).collect();
        let runs = |&(thread, state): &(u32, char)| state == 'R' && !agents.contains(&thread);
        let running = |&pid: &u32| proc::threads(pid).iter().filter(|thread| runs(thread)).count();
        self.pager.telemetry.pressure.found_running(tree.iter().map(running).sum::<usize>() as u32);
    }

    /// Write-protects the pages shared in fork groups once there is no room for copies of all of
    /// them.
    fn cow_protect(&self, mms: &[Arc<Mm>]) {
        let unprotected =
            |mm: &&Arc<Mm>| mm.fork_group.is_related() && !mm.fork_group.is_cow_protected();
        let copies: i64 = mms
            .iter()
            .filter(unprotected)
            .map(|mm| mm.fork_group.discount.load(Relaxed).max(0))
            .sum();
        let copies = copies.cast_unsigned();
        if self.pager.run.managing.load(Relaxed)
            && cow_protect::is_needed(&self.pager.budget, copies)
        {
            mms.iter().filter(unprotected).for_each(|mm| cow_protect::raise_all(mm));
        }
    }

    /// Registers the areas that appeared since the last tick, if the page counts indicate new ones.
    /// Returns false if a thread of the program is moving areas; the program must not be frozen
    /// then.
    fn manage(&mut self, mm: &Arc<Mm>, resident: u64) -> bool {
        let Some(link) = mm.agent.link() else { return true };
        link.managing();
        if link.pins_everything() && mm.agent.note_stuck() {
            let name = mm.process().map_or_else(|| "?".to_owned(), Process::name);
            self.pager.note_unmanaged(Kind::Pinned, mm.owner.pid(), &name);
        }
        let unknown = mm.pages.unknown_of(resident);
        let memory_stalled = self.pager.budget.memory_stalled.load(Relaxed) > 0;
        let few = if memory_stalled { 0 } else { UNKNOWN_PAGES_MAX };
        let enough = mm.pages.unknown() + few;
        let more = unknown > enough;
        if !more {
            mm.pages.note_unknown(unknown);
        }
        // Unknown pages that no reading of the areas has found may be strays (ADOPT-4).
        let wanted = (memory_stalled || self.freezer.is_on())
            && unknown > UNKNOWN_PAGES_MAX
            && mm.pages.are_strays_due();
        if !more && !wanted {
            return true;
        }
        let Some(process) = mm.process().filter(|_| !mm.agent.is_closing()) else { return true };
        // A thread that moves areas is done soon, unless it is frozen.
        if !link.try_map() {
            self.freezer.release_all(&self.pager);
            return false;
        }
        // During the registration the program would fill memory at the kernel's speed.
        let room = self.pager.resident().zone.free().saturating_sub(self.shared.presumed());
        let is_roomy = |now: u64| room.saturating_sub(now.saturating_sub(resident)) > BREATH_PAGES;
        let (freezer, pager) = (&mut self.freezer, &self.pager);
        let mut before = || {
            let now = mm.resident_pages();
            let room = is_roomy(now);
            if mm.pages.unknown_of(now) > if room { HELD_PAGES_MIN } else { UNKNOWN_PAGES_MAX } {
                freezer.freeze_in_turns(pager, mm, room);
            }
        };
        // To read the areas, the monitor waits for threads that change them. Other processes fill
        // areas meanwhile.
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
        if learnt == Some(0) && unknown > UNKNOWN_PAGES_MAX && mm.pages.are_strays_due() {
            let began = pager.clock.now();
            learnt = adopt::strays(pager, mm, process, &mut before);
            mm.pages.note_stray_search(pager.clock.since(began));
        }
        if is_roomy(mm.resident_pages()) {
            freezer.release_all(pager);
        }
        link.mapped();
        if let Some(learnt) = learnt {
            // The count covers the pages that existed before the areas were read. Pages filled
            // later may lie in areas mapped later. If they counted as unmanageable, the monitor
            // would never check them again. A frozen program with such pages would then be killed
            // as out of memory.
            mm.pages.note_area_search(unknown.saturating_sub(learnt), is_all);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quiet;

    /// Shows that the report has the most memory that ever counted, not the last.
    #[test]
    fn the_peaks_of_a_run_are_its_largest_counts() {
        let pager = Arc::new(quiet::pager());
        let mut monitor = Monitor::new(&pager);
        for pages in [100, 300, 200] {
            monitor.account(pages, &[]);
        }
        let counters = &pager.telemetry.counters;
        let peaks = [&counters.peak_resident, &counters.peak_managed];
        assert_eq!(peaks.map(|peak| peak.load(Relaxed)), [300 * PAGE_SIZE as u64; 2]);
    }
}
