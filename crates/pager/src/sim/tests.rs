//! Runs of the simulation.

use super::driver::{Driver, Over};
use super::fakes::{FakeProcess, FakeSpace};
use super::program::Mix;
use super::world::{Area, Change, Doing, OnFork, POOL, Page};
use crate::broken::{Rule, set_broken};
use crate::control::listener;
use crate::fault_threads::epoll_key_uffd;
use crate::faults::slow_work;
use crate::mm::Mm;
use crate::mm::link::UNREPORTED;
use crate::monitor::{Monitor, sharing};
use crate::reclaim::Reclaim;
use crate::telemetry::counters::Counters;
use ebb_mm::resident::{Arrival, Entry, FrameState, Space};
use ebb_mm::types::{MmId, Vpn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

static QUIET: std::sync::Once = std::sync::Once::new();

const RULES: [Rule; 11] = [
    Rule::Ord1,
    Rule::Ord2,
    Rule::Ord3,
    Rule::Ord4,
    Rule::Ord5,
    Rule::Ord6,
    Rule::Ord7,
    Rule::Wake1,
    Rule::Identity1,
    Rule::Patience1,
    Rule::Patience2,
];

/// Result of a run from a seed.
struct Run {
    /// The failure.
    failure: Option<String>,
    steps: u64,
    /// Events that led to it.
    log: Vec<String>,
}

/// Counts of events: a simulation in which nothing happens finds nothing.
#[derive(Debug, Default)]
struct Seen {
    fresh: u64,
    reactivated: u64,
    loaded: u64,
    ahead: u64,
    copied: u64,
    stale: u64,
    to_standby: u64,
    evicted: u64,
    clean: u64,
    unmovable: u64,
    forks: u64,
    joined: u64,
    executable: u64,
}

impl Seen {
    fn add(&mut self, counters: &Counters) {
        let get = |counter: &AtomicU64| counter.load(Relaxed);
        self.fresh += get(&counters.faults_fresh);
        self.reactivated += get(&counters.faults_reactivated);
        self.loaded += get(&counters.faults_loaded);
        self.ahead += get(&counters.pages_ahead)
            + get(&counters.zeros_ahead)
            + get(&counters.reactivated_ahead);
        self.copied += get(&counters.faults_copied);
        self.stale += get(&counters.faults_stale);
        self.to_standby += get(&counters.to_standby);
        self.evicted += get(&counters.evicted);
        self.clean += get(&counters.clean);
        self.unmovable += get(&counters.unmovable);
        self.forks += get(&counters.forks);
    }
}

fn run(seed: u64, steps: u64, log: bool, seen: &mut Seen) -> Run {
    let driver = Driver::new(seed, log);
    QUIET.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // The unwinding of a failed run needs no message.
            if !info.payload().is::<Over>() {
                loud(info);
            }
        }));
    });
    let result = catch_unwind(AssertUnwindSafe(|| driver.run(steps)));
    let failure = result.unwrap_or_else(|panic| {
        if panic.is::<Over>() {
            return driver.end();
        }
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Some(format!("panic: {}", text.unwrap_or_default()))
    });
    let log = driver.world.lock().log.take().unwrap_or_default();
    seen.add(&driver.pager.telemetry.counters);
    let world = driver.world.lock();
    seen.joined += world.connections.iter().filter(|one| one.answer == Some(true)).count() as u64;
    seen.executable += world.executables_moved;
    drop(world);
    Run { failure, steps: driver.steps.get(), log }
}

fn expect_clean(seeds: std::ops::Range<u64>, steps: u64) -> (u64, Seen) {
    let (mut total, mut seen) = (0, Seen::default());
    let mut failures = String::new();
    for seed in seeds {
        let run = run(seed, steps, false, &mut seen);
        total += run.steps;
        if let Some(failure) = run.failure {
            failures += &format!("seed {seed}: {failure}\n");
        }
    }
    assert!(
        failures.is_empty(),
        "{failures}replay: EBB_SIM_SEED=SEED EBB_SIM_STEPS={steps} cargo test --release -p ebb-pager --lib \
         sim::tests::replay -- --ignored --nocapture"
    );
    (total, seen)
}

/// Breaks a rule on purpose. A failure must be noticed within a thousand seeds, and must not occur
/// with the rule kept. Seed `first` comes first; if it notices the failure it saves the others.
fn expect_noticed(rule: Rule, first: u64) {
    set_broken(Some(rule));
    let noticed = (first..1000)
        .chain(0..first)
        .filter(|&seed| Driver::new(seed, false).suits(rule))
        .find_map(|seed| Some((seed, run(seed, 3000, false, &mut Seen::default()).failure?)));
    set_broken(None);
    println!("{rule:?} broken: {noticed:?}");
    let Some((seed, _)) = noticed else {
        panic!("{rule:?} broken is not noticed within 1000 seeds");
    };
    expect_clean(seed..seed + 1, 3000);
}

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

#[test]
fn every_page_is_what_was_written_in_a_hundred_thousand_steps() {
    let (steps, seen) = expect_clean(0..40, 2500);
    println!("{steps} steps: {seen:?}");
    assert!(steps >= 100_000 && seen.executable > 0, "{steps} steps");
}

/// Runs the first seeds of which `suits` holds. No run may fail.
fn expect_clean_where(suits: impl Fn(&Driver) -> bool) {
    let suit = (0..).filter(|&seed| suits(&Driver::new(seed, false)));
    let runs = number("EBB_SIM_SEEDS", 10) as usize;
    let steps: u64 = suit.take(runs).map(|seed| expect_clean(seed..seed + 1, 2500).0).sum();
    assert!(steps >= 2500, "{steps} steps");
}

/// Shows that a host that stops for seconds causes no kill, loss or refusal.
#[test]
fn a_host_that_stops_for_seconds_ends_nothing() {
    expect_clean_where(|driver| driver.stalls);
}

/// Shows that an agent that gets no CPU for seconds causes no kill, loss or refusal.
#[test]
fn an_agent_without_a_cpu_for_seconds_ends_nothing() {
    expect_clean_where(|driver| driver.starves);
}

/// Shows that a memory map that stays locked for seconds causes no kill, loss or refusal.
#[test]
fn a_memory_map_that_stays_locked_for_seconds_ends_nothing() {
    expect_clean_where(|driver| driver.locks);
}

/// Shows that a seed repeats a run exactly, so that a failure can be repeated.
#[test]
fn a_seed_repeats_itself() {
    for seed in [3, 11, 17, 29] {
        let [one, other] = [(); 2].map(|()| run(seed, 1500, true, &mut Seen::default()));
        assert_eq!(one.steps, other.steps, "seed {seed}");
        let differs = one.log.iter().zip(&other.log).position(|(one, other)| one != other);
        assert_eq!((differs, one.log.len()), (None, other.log.len()), "seed {seed}");
    }
}

#[test]
fn messages_read_while_a_batch_runs_are_noticed() {
    expect_noticed(Rule::Ord1, 1);
}

#[test]
fn moves_without_a_batch_are_noticed() {
    expect_noticed(Rule::Ord2, 1);
}

#[test]
fn pages_placed_without_another_look_are_noticed() {
    expect_noticed(Rule::Ord3, 670);
}

#[test]
fn pages_adopted_after_the_hold_that_registered_them_are_noticed() {
    expect_noticed(Rule::Ord4, 0);
}

#[test]
fn pool_slots_reused_too_soon_are_noticed() {
    expect_noticed(Rule::Ord5, 0);
}

#[test]
fn changes_between_the_slices_of_a_fork_are_noticed() {
    expect_noticed(Rule::Ord6, 129);
}

#[test]
fn moves_that_are_decided_and_may_still_be_made_are_noticed() {
    expect_noticed(Rule::Ord7, 81);
}

/// Shows that a tracer that has stopped the agent in the middle of a batch gets its page. Otherwise
/// no message is read and it waits for ever.
#[test]
fn a_tracer_waits_for_no_batch_of_an_agent_that_it_has_stopped() {
    expect_clean(73..74, 3000);
}

#[test]
fn a_thread_whose_page_was_placed_and_that_is_not_woken_is_noticed() {
    expect_noticed(Rule::Wake1, 0);
}

#[test]
fn time_that_counts_though_the_host_stops_is_noticed() {
    expect_noticed(Rule::Patience1, 134);
}

#[test]
fn time_of_agents_without_a_cpu_taken_for_time_without_progress_is_noticed() {
    expect_noticed(Rule::Patience2, 123);
}

#[test]
fn children_that_are_taken_for_one_another_are_noticed() {
    expect_noticed(Rule::Identity1, 211);
}

/// Shows that kswapd keeps such pages on the lists. No agent can move them, and isolated pages
/// would never leave again.
#[test]
fn pages_of_a_child_that_is_still_being_copied_stay_on_the_lists() {
    let driver = Driver::new(1, false);
    let mut child = Space::new(MmId(77));
    for page in 0..3 {
        driver.pager.resident().map(&mut child, Vpn(page), Arrival::Adopted, None);
    }
    assert_eq!(Reclaim::new(&driver.pager).deactivate(3), 0);
    let resident = driver.pager.resident();
    assert_eq!(resident.count(FrameState::Isolated), 0);
    assert!(resident.count(FrameState::Unevictable) > 0);
}

/// Shows that a moved page is kept if the agent was stopped before its report. Another thread has
/// moved the area away, unread, and a third has mapped and filled another area there. The page must
/// not count as never moved and be dropped.
#[test]
fn a_page_that_was_moved_is_kept_though_another_lies_where_it_was() {
    const PAGE: u64 = 0x9003;
    let driver = Driver::new(1, false);
    driver.begin();
    let mm = driver.pager.mms().remove(0);
    let (place, address) = {
        let mut state = mm.lock();
        state.areas.add(PAGE << 12, (PAGE + 1) << 12);
        driver.pager.resident().map(&mut state.space, Vpn(PAGE), Arrival::Adopted, None);
        mm.note_known(1);
        let place = state.pool.take(false).expect("all are free");
        mm.state.begin_batch(&mut state);
        (place, state.pool.address(place))
    };
    let mut frames = Vec::new();
    driver.pager.engine().isolate(1, &mut frames);
    {
        let mut world = driver.world.lock();
        let [moved, other] = [world.new_stamp(), world.new_stamp()].map(Page::new);
        let space = &mut world.spaces[0];
        space.truth.insert(PAGE, moved.stamp);
        space.pages.insert(address >> 12, moved);
        space.pages.insert(PAGE, other);
        let entries = &space.shared.as_ref().expect("it has an agent").get().entries;
        entries[0].result.store(-UNREPORTED, Relaxed);
    }
    assert_eq!(
        Reclaim::new(&driver.pager).end_batch_by_reading_slots(&mm, &[(frames[0], place)]),
        Some(1)
    );
    assert!(matches!(mm.lock().space.get(Vpn(PAGE)), Entry::Standby(_)));
}

/// Creates a child whose process is unidentified.
fn unidentified_child() -> (Rc<Driver>, Arc<Mm>) {
    let driver = Driver::new(1, false);
    driver.begin();
    let all_raw = Mix { raw: 100, ..driver.mix.clone() };
    driver.world.lock().begin_fork(0, 0, &all_raw);
    let id = |id: usize| driver.world.lock().spaces[id].mm;
    let parent = id(0).expect("it is served");
    while id(1).is_none() {
        driver.servers[0].borrow_mut().turn(&[epoll_key_uffd(MmId(parent))]);
        driver.learn_numbers();
        slow_work::go(&driver.pager, &driver.pending);
    }
    let child = driver.pager.mm(MmId(id(1).expect("it is served"))).expect("it is there");
    (driver, child)
}

/// Shows that the monitor leaves walks over memory to another thread. It goes first on its CPU.
/// Seven runs with forks took two CPUs from all other programs.
#[test]
fn the_monitor_walks_no_memory_to_count_shares() {
    let (driver, _) = unidentified_child();
    let mut monitor = Monitor::new(&driver.pager);
    for _ in 0..10 {
        monitor.tick();
    }
    assert_eq!(driver.world.lock().walks, 0);
    assert!(sharing::count(&driver.pager, &driver.pager.mms()));
    assert_eq!(driver.world.lock().walks, 1, "the parent; nobody knows the child");
}

/// Shows that a waiting fault is not answered without a check if the page map cannot be read. One
/// thread of an unidentified child waits for a page while the mapping changes. Another thread puts
/// a guard there.
#[test]
fn a_guard_region_holds_where_a_thread_of_an_unidentified_child_waits() {
    const PAGE: u64 = 0x9003;
    let (driver, child) = unidentified_child();
    let world = || driver.world.lock();
    let serve = |id: usize| {
        let mm = world().spaces[id].mm.expect("it is served");
        driver.servers[0].borrow_mut().turn(&[epoll_key_uffd(MmId(mm))]);
        driver.learn_numbers();
    };
    let step = |id: usize| world().step_thread((id, 0), &driver.mix, false);
    step(0);
    child.lock().areas.add(PAGE << 12, (PAGE + 1) << 12);
    {
        let space = &mut world().spaces[1];
        let area =
            Area { end: PAGE + 1, registered: true, on_fork: OnFork::Copy, executable: false };
        space.areas.insert(PAGE, area);
        space.threads[0].doing = Doing::Touch { page: PAGE, write: true };
        // Another thread changes another part.
        space.changing = 1;
    }
    step(1);
    serve(1);
    assert!(child.process().is_none());
    world().spaces[1].guards.insert(PAGE);
    world().spaces[1].changing = 0;
    serve(1);
    assert_eq!(world().failure, None);
    assert!(matches!(world().spaces[1].threads[0].doing, Doing::Touch { page: PAGE, .. }));
    step(1);
    assert_eq!(world().spaces[1].threads[0].doing, Doing::Nothing, "it has met the guard");
}

/// Shows that a child that reports its thread is found without a search of all processes. Hundreds
/// of children would otherwise wait for minutes, each searched again and again until its mapping is
/// still.
#[test]
fn a_child_that_reports_its_thread_is_found_without_a_search() {
    let (driver, child) = unidentified_child();
    let thread = |id: usize| driver.world.lock().spaces[id].threads[0].id;
    let changing = |count| driver.world.lock().spaces[1].changing = count;
    let find = |said| {
        let before = driver.world.lock().trees_asked;
        let found = driver.pager.find_process(&child, Some(said));
        (found, driver.world.lock().trees_asked - before)
    };
    changing(1);
    assert_eq!(find(thread(1)), (None, 0), "its mapping changes");
    changing(0);
    assert_eq!(find(thread(1)), (Some(true), 0));
    assert_eq!(child.owner.pid(), driver.world.lock().spaces[1].pid);
}

/// Shows that pages of unregistered areas count once for parent and child. Counted in full for each
/// child, 50 children of 24 MiB held 470 MiB in the report.
#[test]
fn pages_of_unregistered_areas_count_once_for_parent_and_child() {
    let (driver, child) = unidentified_child();
    let parent = driver.pager.mms().remove(0);
    let (there, known) = (parent.resident_pages(), parent.pages.known.load(Relaxed));
    assert!(there.cast_signed() > known, "{there} {known}");
    assert_eq!(child.fork_group.discount.load(Relaxed), there.cast_signed());
}

/// Shows that a child is found despite a wrong number. The process with that number is no child of
/// the run, and is not inspected.
#[test]
fn a_child_is_found_despite_a_wrong_process_number() {
    let (driver, child) = unidentified_child();
    let others = driver.world.lock().spaces[0].threads[0].id;
    driver.world.lock().opened.clear();
    assert_eq!(driver.pager.find_process(&child, Some(others)), Some(true));
    let own = driver.world.lock().spaces[1].pid;
    assert_eq!((child.owner.pid(), driver.world.lock().opened.as_slice()), (own, [own].as_slice()));
}

/// Shows that the child gets zeros in such an area, even if a page of it is in the store. Another
/// thread of the parent may unmap the area before the fork is read. The parent may also end before
/// the pager can ask it.
#[test]
fn an_area_that_a_fork_wipes_is_not_inherited_though_the_parent_cannot_be_asked() {
    for on_fork in [OnFork::Copy, OnFork::Wipe, OnFork::Leave] {
        assert_eq!(inherits(on_fork, false), on_fork == OnFork::Copy, "{on_fork:?}, unmapped");
        assert_eq!(inherits(on_fork, true), on_fork == OnFork::Copy, "{on_fork:?}, ended");
    }
}

/// Returns whether the child of a fork has a page of an area that its parent has unmapped since, or
/// whose parent has ended.
fn inherits(on_fork: OnFork, ends: bool) -> bool {
    const PAGE: u64 = 0x9003;
    let driver = Driver::new(1, false);
    let world = || driver.world.lock();
    driver.begin();
    let parent = driver.pager.mms().remove(0);
    {
        let mut state = parent.lock();
        state.areas.add(PAGE << 12, (PAGE + 1) << 12);
        let map = |space: &mut Space| {
            driver.pager.resident().map(space, Vpn(PAGE), Arrival::Adopted, None)
        };
        map(&mut state.space);
        parent.note_known(1);
    }
    let area = Area { end: PAGE + 1, registered: true, on_fork, executable: false };
    world().spaces[0].areas.insert(PAGE, area);
    world().begin_fork(0, 0, &driver.mix);
    if !ends {
        let space = &mut world().spaces[0];
        space.unmap(PAGE, PAGE + 1);
        space.changes.push_back(Change::Unmap { start: PAGE, end: PAGE + 1 });
        space.changing += 1;
    }
    let child = loop {
        driver.servers[0].borrow_mut().turn(&[epoll_key_uffd(parent.id)]);
        if ends && world().spaces[0].alive {
            world().step_thread((0, 0), &driver.mix, false);
            assert!(world().spaces[1].born, "the fork was read, and has returned");
            world().end(0);
        }
        slow_work::go(&driver.pager, &driver.pending);
        if let Some(child) = driver.pager.mms().into_iter().find(|mm| mm.id != parent.id) {
            break child;
        }
    };
    child.lock().space.get(Vpn(PAGE)) != Entry::None
}

/// Shows that the identity page of a refused process leaves the budget at once.
#[test]
fn a_refused_process_leaves_nothing_in_the_budget() {
    let driver = Driver::new(1, false);
    let mix = driver.mix.clone();
    driver.world.lock().begin_fork(0, 0, &mix);
    // The fork has returned, so the identity page can be placed.
    driver.world.lock().spaces[0].changing = 0;
    let held = driver.pager.resident().zone.resident();
    let uffd = Box::new(FakeSpace { world: driver.world.clone(), id: 0 });
    let other = Box::new(FakeProcess { world: driver.world.clone(), id: 1, pid: 0 });
    let pool = (POOL << 12, driver.pager.config.pool_bytes);
    assert!(listener::add_program(&driver.pager, uffd, other, pool, false).is_err());
    assert_eq!(driver.pager.resident().zone.resident(), held);
}

/// Replays one seed and prints its log.
#[test]
#[ignore = "for a seed that failed"]
fn replay() {
    let seed = number("EBB_SIM_SEED", 0);
    let broken = std::env::var("EBB_SIM_BREAK").unwrap_or_default();
    set_broken(RULES.into_iter().find(|rule| format!("{rule:?}") == broken));
    let run = run(seed, number("EBB_SIM_STEPS", 2500), true, &mut Seen::default());
    for line in run.log.iter().rev().take(number("EBB_SIM_LINES", 200) as usize).rev() {
        println!("{line}");
    }
    println!("seed {seed}: {:?}", run.failure);
}

/// A night's run: ten million steps over a thousand seeds by default.
#[test]
#[ignore = "takes its time"]
fn night() {
    let first = number("EBB_SIM_SEED", 1_000_000);
    let seeds = number("EBB_SIM_SEEDS", 1000);
    let (steps, seen) = expect_clean(first..first + seeds, number("EBB_SIM_STEPS", 10_000));
    println!("{steps} steps over {seeds} seeds: {seen:?}");
}
