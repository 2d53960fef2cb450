//! Decides which simulated thread runs next.
//!
//! * DRIVER-1: programs and agents may run during every call into the world. Threads of the pager
//!   may run there only while no lock of the pager is held. Only pager threads that are not in the
//!   middle of an operation may run.
//! * DRIVER-2: a waiting thread lets others run until the clock says that the wait is over. The
//!   clock advances with each of their steps.

use super::fakes::{FakeConnection, FakeHost, FakeStorage, Nobody, Shelf};
use super::program::Mix;
use super::world::{Id, World};
use crate::broken::Rule;
use crate::config::Config;
use crate::control::listener::AgentListener;
use crate::fault_threads::{EPOLL_KEY_STORE, EPOLL_KEY_WAKE, epoll_key_link, epoll_key_uffd};
use crate::faults::pending::Pending;
use crate::faults::{Server, slow_work};
use crate::monitor::{Monitor, sharing};
use crate::pager::{self, Pager};
use crate::quiet::config;
use crate::reclaim::Reclaim;
use crate::wait::clock::Clock;
use crate::wait::patience::Moment;
use ebb_mm::types::MmId;
use ebb_swap::{Options, Store, parse_tiers};
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

thread_local! {
    static CURRENT: RefCell<Option<Rc<Driver>>> = const { RefCell::new(None) };
}

/// Maximum nesting of threads that wait for one another.
const DEPTH_MAX: u32 = 3;
/// Steps between two checks when no new operations begin.
const CHECK_EVERY: u64 = 16;
/// Turns and granted time after which a run that should have come to rest counts as hanging. The
/// steps that others take while a thread waits belong to its turn: one wait of seconds may take
/// millions. The time is longer than any [`crate::wait::patience::Patience`].
const PATIENCE: u64 = 100_000;
const PATIENCE_TIME: Duration = Duration::from_secs(40);

/// All simulated threads.
pub struct Driver {
    pub pager: Arc<Pager>,
    pub world: Shelf,
    pub storage: Arc<FakeStorage>,
    pub pending: Arc<Pending>,
    /// The fault threads.
    pub servers: [RefCell<Server>; 2],
    reclaim: RefCell<Reclaim>,
    monitor: RefCell<Monitor>,
    listener: RefCell<AgentListener>,
    /// Whether the slow-work thread is at work.
    in_slow_work: Cell<bool>,
    depth: Cell<u32>,
    /// Whether programs begin new operations.
    active: Cell<bool>,
    pub mix: Mix,
    /// Weights of programs, agents, the fault threads, kswapd, the monitor, the listener, the
    /// passing of time, slow work, and requests for another limit.
    weights: [u64; 9],
    /// Whether the host stops now and then, for seconds.
    pub stalls: bool,
    /// Whether an agent gets no CPU now and then, for seconds, and until when.
    pub starves: bool,
    starved_until: Cell<Moment>,
    /// Whether a thread holds the lock of its memory map now and then, for seconds.
    pub locks: bool,
    /// Initial limit, in pages.
    limit: u64,
    pub steps: Cell<u64>,
    /// Number of ticks of the monitor.
    pub looks: Cell<u64>,
    /// State at the last check ([`super::check`], CHECK-8).
    pub balance: RefCell<super::check::Balance>,
}

/// Lets other threads run.
pub fn point() {
    let driver = CURRENT.with(|current| current.borrow().clone());
    if let Some(driver) = driver {
        driver.give_up_if_over();
        driver.others();
    }
}

/// Lets other threads run until `done`, or for `limit`.
pub fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) {
    let Some(driver) = CURRENT.with(|current| current.borrow().clone()) else { return };
    let clock = driver.pager.clock.clone();
    let over = clock.now() + limit;
    while !done() && clock.now() < over {
        driver.give_up_if_over();
        driver.nested(|driver| driver.act());
        clock.advance((limit / 64).max(Duration::from_nanos(500)));
    }
}

impl Driver {
    /// Creates a run from a seed. The seed also draws the kind of run.
    pub fn new(seed: u64, log: bool) -> Rc<Self> {
        let mut world = World::new(seed);
        world.log = log.then(Vec::new);
        let rng = &mut world.rng;
        let limit = rng.between(150, 400);
        let rare = |rng: &mut super::rng::Rng, most: u64| {
            if rng.once_in(3) { 0 } else { rng.below(most) }
        };
        let footprint = limit * rng.between(80, 300) / 100;
        // A generator of its own, so that old seeds keep their meaning.
        let mut of_tracers = super::rng::Rng::new(seed ^ 0x7ace);
        let traces = of_tracers.once_in(4);
        let starves = super::rng::Rng::new(seed ^ 0x57a4e).once_in(4);
        let locks = !starves && super::rng::Rng::new(seed ^ 0x10c4).once_in(4);
        // Some programs do little else than map and unmap.
        let mapper = rng.once_in(4);
        let mix = Mix {
            touch: if mapper { 300 } else { 1000 + rng.below(3000) },
            pass: if mapper { 300 } else { rng.below(3000) },
            discard: rare(rng, 600),
            map: 5 + rare(rng, 150),
            unmap: rare(rng, 150),
            replace: rare(rng, if mapper { 150 } else { 40 }),
            remap: rare(rng, 60),
            fork: rare(rng, 12) + if locks { 8 } else { 0 },
            exit: rare(rng, 12),
            thread: rng.below(10),
            pin: rare(rng, 20),
            stop: rare(rng, 4),
            free: rare(rng, 80),
            hide: rare(rng, 40),
            raw: rare(rng, 60),
            trace: if traces { 1 + of_tracers.below(20) } else { 0 },
            footprint,
            footprint_max: footprint * 2,
        };
        let weights = [
            10 + rng.below(80),
            5 + rng.below(40),
            5 + rng.below(40),
            1 + rng.below(10),
            1 + rng.below(6),
            1 + rng.below(6),
            1 + rng.below(4),
            1 + rng.below(20),
            // A generator of its own, as for the tracers.
            if super::rng::Rng::new(seed ^ 0x5e7).once_in(4) { 1 } else { 0 },
        ];
        let (slow, keeps, fails) = (rng.below(100), rng.once_in(2), rare(rng, 60));
        let trouble = rare(rng, 20);
        let standby = rng.between(1, 900) as u32;
        let high = rng.once_in(5).then(|| limit * rng.between(70, 95) / 100 * 4096);
        world.trouble = trouble;
        world.splits = traces;
        // A generator of its own, as for the tracers.
        let mut of_rights = super::rng::Rng::new(seed ^ 0x5a8);
        world.executables = of_rights.once_in(4).then(|| !of_rights.once_in(4));
        world.begin(limit, &mix);
        let world = Shelf::new(world);
        let store = Store::open(&parse_tiers("ram").expect("tiers"), &Options::default());
        let storage = FakeStorage::new(world.clone(), store.expect("a store"), slow, keeps, fails);
        let storage = Arc::new(storage);
        let parts = pager::World {
            clock: Clock::simulated(),
            host: Box::new(FakeHost { world: world.clone() }),
            store: Box::new(storage.clone()),
        };
        // A generator of its own, as for the ninth weight.
        let sample = super::rng::Rng::new(seed ^ 0x5a3).once_in(5);
        let config = Config {
            standby_permille: standby,
            memory_high_bytes: high,
            sample,
            ..config(limit * 4096)
        };
        let pager = Arc::new(Pager::new(config, parts, 0).expect("a pager"));
        let pending = Arc::new(Pending::default());
        Rc::new(Self {
            servers: [true, false].map(|first| RefCell::new(Server::new(&pager, &pending, first))),
            pending,
            reclaim: RefCell::new(Reclaim::new(&pager)),
            monitor: RefCell::new(Monitor::new(&pager)),
            listener: RefCell::new(AgentListener::new(&pager)),
            pager,
            world,
            storage,
            in_slow_work: Cell::new(false),
            depth: Cell::new(0),
            active: Cell::new(true),
            mix,
            weights,
            // A generator of its own, as well.
            stalls: super::rng::Rng::new(seed ^ 0x57a11).once_in(4),
            starves,
            locks,
            starved_until: Cell::default(),
            limit,
            steps: Cell::new(0),
            looks: Cell::new(0),
            balance: RefCell::default(),
        })
    }

    /// Runs the simulation: `steps` steps, and then until no thread waits. Returns the failure.
    pub fn run(self: &Rc<Self>, steps: u64) -> Option<String> {
        CURRENT.with(|current| *current.borrow_mut() = Some(self.clone()));
        let _forget = Forget;
        self.world.lock().locks = self.locks;
        while self.steps.get() < steps && !self.is_over() {
            self.act();
            self.check();
        }
        self.active.set(false);
        self.world.lock().spaces.iter_mut().for_each(|space| space.stopped = false);
        let (mut turns, began) = (0, self.pager.clock.moment());
        while !self.is_over() && !self.is_at_rest() {
            self.act();
            turns += 1;
            // Waits for an event that never comes take tens of thousands of steps.
            if self.steps.get().is_multiple_of(CHECK_EVERY) {
                self.check();
            }
            let time = self.pager.clock.moment().since(began);
            if turns > PATIENCE && time > PATIENCE_TIME {
                let stuck = self.stuck();
                self.world.lock().fail(format!("hangs: {stuck}"));
            }
        }
        self.check();
        self.end()
    }

    /// Whether breaking a rule is likely to show in this run. Trying the others takes time for
    /// nothing.
    pub fn suits(&self, rule: Rule) -> bool {
        match rule {
            Rule::Ord3 => self.storage.slow > 60 && self.mix.discard > 200,
            Rule::Ord4 => self.mix.replace + self.mix.unmap > 100 && self.mix.map > 50,
            Rule::Ord1 | Rule::Ord2 | Rule::Ord5 | Rule::Wake1 => true,
            Rule::Identity1 | Rule::Ord6 => self.mix.fork > 6,
            Rule::Ord7 => self.mix.trace > 0,
            Rule::Patience1 => self.stalls,
            Rule::Patience2 => self.starves,
        }
    }

    /// Returns the failure, now that the run is over.
    pub fn end(&self) -> Option<String> {
        let limit = self.pager.budget.memory_max_bytes() / 4096;
        let mut world = self.world.lock();
        if world.killed && world.failure.is_none() && !world.is_stuck_full(self.limit.min(limit)) {
            let said = world.said.join("; ");
            let held = world.held();
            world.fail(format!("the run was ended: {said}; {held}"));
        }
        world.failure.clone()
    }

    /// Unwinds the current operation once a failure has been found.
    fn give_up_if_over(&self) {
        if self.is_over() && !std::thread::panicking() {
            std::panic::panic_any(Over);
        }
    }

    fn is_over(&self) -> bool {
        let world = self.world.lock();
        world.failure.is_some() || world.killed
    }

    fn is_at_rest(&self) -> bool {
        use super::world::{Doing, Joining};
        let rest = |doing: &Doing| *doing == Doing::Nothing;
        let world = self.world.lock();
        world.spaces.iter().filter(|space| space.alive).all(|space| {
            space.threads.iter().all(|thread| rest(&thread.doing))
                && rest(&space.agent_doing)
                && matches!(space.joining, Joining::Never | Joining::Done)
        })
    }

    fn stuck(&self) -> String {
        let world = self.world.lock();
        let mut text = String::new();
        for (id, space) in world.spaces.iter().enumerate().filter(|(_, space)| space.alive) {
            let doing: Vec<_> = space.threads.iter().map(|thread| thread.doing).collect();
            text += &format!(
                "{id}: {doing:?}, {:?}, agent {:?} {:?}, {} touches, {:?} unread; ",
                space.joining,
                space.agent,
                space.agent_doing,
                space.touches.len(),
                space.changes
            );
        }
        text
    }

    /// Whether kswapd is not in the middle of an operation.
    pub fn is_kswapd_idle(&self) -> bool {
        self.reclaim.try_borrow().is_ok_and(|reclaim| reclaim.is_idle())
    }

    /// Checks the invariants while no thread is in the middle of an operation.
    fn check(&self) {
        if self.is_over() {
            return;
        }
        let held = super::check::check(self);
        if let Err(broken) = held {
            self.world.lock().fail(broken);
        }
    }

    fn nested(&self, run: impl FnOnce(&Self)) {
        if self.depth.get() < DEPTH_MAX {
            self.depth.set(self.depth.get() + 1);
            run(self);
            self.depth.set(self.depth.get() - 1);
        }
    }

    /// Lets others run for a few steps.
    fn others(&self) {
        while !self.is_over() && self.world.lock().rng.once_in(3) {
            self.nested(Self::act);
            if self.depth.get() >= DEPTH_MAX {
                return;
            }
        }
    }

    /// Whether threads of the pager may run: the locks that they need are free.
    fn is_free(&self) -> bool {
        self.pager.budget.engine.try_lock().is_ok()
            && self.pager.processes.mms.try_write().is_ok()
            && self.pager.processes.forked.try_lock().is_ok()
            && self.pager.mms().iter().all(|mm| mm.state.is_free())
    }

    /// Runs one step of a random thread.
    pub fn act(&self) {
        self.steps.set(self.steps.get() + 1);
        self.pager.clock.advance(Duration::from_nanos(300));
        let free = self.is_free();
        let who = self.world.lock().rng.weighted(&self.weights);
        match who {
            0 => self.step_program(),
            1 => self.step_agent(),
            2 if free => self.step_server(),
            3 if free => {
                if let Ok(mut reclaim) = self.reclaim.try_borrow_mut() {
                    reclaim.turn();
                }
            }
            4 if free => {
                if let Ok(mut monitor) = self.monitor.try_borrow_mut() {
                    self.looks.set(self.looks.get() + 1);
                    sharing::count(&self.pager, &self.pager.mms());
                    monitor.tick();
                }
            }
            5 if free => self.step_listener(),
            6 => {
                let us = self.world.lock().rng.below(3000);
                self.pager.clock.advance(Duration::from_micros(us));
                if self.stalls && self.world.lock().rng.once_in(10) {
                    let ms = self.world.lock().rng.between(40, 10_000);
                    self.pager.clock.stall(Duration::from_millis(ms));
                }
                if self.starves {
                    self.starve();
                }
                if self.locks {
                    self.hold_map_lock();
                }
            }
            // The wait for a locked memory map takes time in which others must run.
            7 if self.locks && self.depth.get() == DEPTH_MAX => {}
            7 if free && !self.in_slow_work.replace(true) => {
                slow_work::go(&self.pager, &self.pending);
                self.in_slow_work.set(false);
            }
            // Changes of the limit are rare beside ticks.
            8 if free && self.active.get() && self.world.lock().rng.once_in(10) => {
                let percent = self.world.lock().rng.between(20, 150);
                let keep = percent.is_multiple_of(2);
                self.pager.budget.limit_requests.add_pages(
                    self.limit * percent / 100,
                    keep,
                    Box::new(Nobody),
                );
            }
            _ => {}
        }
    }

    /// Takes the CPU from an agent now and then. The pager's time goes on meanwhile.
    fn starve(&self) {
        let mut world = self.world.lock();
        let world = &mut *world;
        if self.pager.clock.moment() < self.starved_until.get() {
            let ms = world.rng.between(1, 60);
            return self.pager.clock.advance(Duration::from_millis(ms));
        }
        world.spaces.iter_mut().for_each(|space| space.lacks_cpu = false);
        if world.rng.once_in(20) && self.active.get() {
            let id = world.rng.below(world.spaces.len() as u64) as usize;
            world.spaces[id].lacks_cpu = world.spaces[id].alive;
            let time = Duration::from_millis(world.rng.between(1000, 15_000));
            self.starved_until.set(self.pager.clock.moment().after(time));
        }
    }

    /// Lets a thread hold the lock of its memory map now and then. The pager's time goes on
    /// meanwhile.
    fn hold_map_lock(&self) {
        let mut world = self.world.lock();
        let world = &mut *world;
        let now = self.pager.clock.moment();
        for id in 0..world.spaces.len() {
            let lock = &mut world.spaces[id].map_lock;
            match lock.until {
                _ if !lock.held => {}
                None => {
                    let time = Duration::from_millis(world.rng.between(100, 15_000));
                    lock.until = Some(now.after(time));
                }
                Some(until) if now >= until => world.release(id),
                Some(_) => {}
            }
        }
        if world.spaces.iter().any(|space| space.map_lock.held) {
            // The threads of the pager get no turn in this time.
            let time = Duration::from_millis(world.rng.between(1, 60));
            world.waited_ns += time.as_nanos() as u64;
            self.pager.clock.advance(time);
        } else if world.rng.once_in(20) && self.active.get() {
            let id = world.rng.below(world.spaces.len() as u64) as usize;
            world.spaces[id].map_lock.held = world.spaces[id].alive;
        }
    }

    fn step_program(&self) {
        let mut world = self.world.lock();
        world.calm = self.depth.get() == 0;
        let runnable = world.runnable();
        if let Some(thread) = world.rng.pick(&runnable) {
            world.step_thread(thread, &self.mix, self.active.get());
        }
    }

    fn step_agent(&self) {
        let mut world = self.world.lock();
        let joiners = world.joiners();
        if world.rng.once_in(2)
            && let Some(joiner) = world.rng.pick(&joiners)
        {
            return world.step_joining(joiner);
        }
        let agents = world.agents();
        if let Some(agent) = world.rng.pick(&agents) {
            for _ in 0..=world.rng.below(8) {
                if world.agents().contains(&agent) {
                    world.step_agent(agent);
                }
            }
        }
    }

    fn step_server(&self) {
        let first = !self.world.lock().rng.once_in(3);
        let server = &self.servers[usize::from(!first)];
        let Ok(mut server) = server.try_borrow_mut() else { return };
        let mut ready = if first { vec![EPOLL_KEY_WAKE] } else { Vec::new() };
        // Devices take their time.
        if first && self.storage.under_way() > 0 && self.world.lock().rng.once_in(6) {
            ready.push(EPOLL_KEY_STORE);
        }
        {
            let mut world = self.world.lock();
            for space in &mut world.spaces {
                let Some(mm) = space.mm.map(MmId) else { continue };
                if !space.touches.is_empty() || !space.changes.is_empty() {
                    ready.push(epoll_key_uffd(mm));
                }
                if first && !space.alive && !space.hung_up && space.shared.is_some() {
                    space.hung_up = true;
                    ready.push(epoll_key_link(mm));
                }
            }
            let at = world.rng.below(ready.len().max(1) as u64) as usize;
            ready.rotate_left(at);
        }
        server.turn(&ready);
        drop(server);
        self.learn_numbers();
    }

    /// Records which address space of the pager is which of the world.
    pub fn learn_numbers(&self) {
        let mut world = self.world.lock();
        for mm in self.pager.mms() {
            let id: Id = number_in(&format!("{:?}", &*mm.uffd));
            world.spaces[id].mm = Some(mm.id.0);
        }
    }

    /// Runs a step of the listener: accepts a connection, fetches one, or reads a hello.
    pub fn step_listener(&self) {
        let Ok(mut listener) = self.listener.try_borrow_mut() else { return };
        let what = self.world.lock().rng.below(3);
        match what {
            0 => {
                let index = self.world.lock().knocking.pop();
                if let Some(index) = index {
                    self.world.lock().connections[index].held = true;
                    listener
                        .add_caller(Box::new(FakeConnection { world: self.world.clone(), index }));
                }
            }
            1 => listener.fetch(),
            _ => {
                let names = listener.connections().map(|one| format!("{one:?}"));
                let indices = names.map(|name| number_in(&name)).collect::<Vec<_>>();
                let mut world = self.world.lock();
                // The sender may have taken the hello back in the meantime.
                let heard = |&index: &usize| {
                    FakeConnection::is_readable(&world, index) || world.rng.once_in(20)
                };
                let readable: Vec<bool> = indices.iter().map(heard).collect();
                drop(world);
                listener.read_hellos(&readable);
            }
        }
        listener.forget();
        drop(listener);
        self.learn_numbers();
    }

    /// Lets the first process join.
    pub fn begin(&self) {
        while self.world.lock().spaces[0].shared.is_none() {
            self.world.lock().step_joining(0);
            self.step_listener();
        }
    }
}

/// Returns the number in the name of a simulated object.
pub fn number_in(name: &str) -> usize {
    let digits = |c: char| !c.is_ascii_digit();
    name.trim_start_matches(digits).trim_end_matches(digits).parse().expect("a number")
}

/// Panic payload of a run that has failed.
pub struct Over;

/// Clears the current driver at the end of a run, on every path.
struct Forget;

impl Drop for Forget {
    fn drop(&mut self) {
        CURRENT.with(|current| *current.borrow_mut() = None);
    }
}
