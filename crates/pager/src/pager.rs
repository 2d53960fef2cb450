//! State of a run that all threads of the pager share, and the changes that concern several of its
//! parts.
//!
//! Each part has a file of its own, with its rules and its lock order:
//! * [`Budget`] (`budget/mod.rs`): reclaim, faults and changes of the limit.
//! * [`FaultThreads`] (`fault_threads/mod.rs`): the descriptors that wake a fault thread.
//! * [`Processes`] (`processes/mod.rs`): address spaces, and the tree of the run.
//! * [`RunState`] (`run.rs`): how far the run is.
//! * [`Telemetry`] (`telemetry/mod.rs`): figures, messages and files for people.
//!
//! No part knows another. A function that needs one part takes that part, and a function that needs
//! several takes the [`Pager`]. `lib.rs` has the lock order across parts.

use crate::budget::{Budget, Set};
use crate::config::Config;
use crate::fault_threads::{EPOLL_KEY_STORE, FaultThreads, epoll_key_link};
use crate::mm::Mm;
use crate::mm::link::Link;
use crate::processes::host::Host;
use crate::processes::{Processes, identify};
use crate::run::RunState;
use crate::seam::Storage;
use crate::telemetry::events::{Event, Why};
use crate::telemetry::unmanaged::Kind;
use crate::telemetry::{Telemetry, counters};
use crate::wait::clock::Clock;
use crate::wait::limits::SLICE_PAGES;
use ebb_mm::engine::Engine;
use ebb_mm::resident::Dropped;
use ebb_mm::types::MmId;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, MutexGuard};
use std::time::Instant;

/// Environment of a pager: real or simulated.
pub struct World {
    pub clock: Clock,
    pub host: Box<dyn Host>,
    pub store: Box<dyn Storage>,
}

/// State shared by all threads of the pager.
pub struct Pager {
    pub config: Config,
    pub clock: Clock,
    pub host: Box<dyn Host>,
    pub started: Instant,
    pub budget: Budget,
    pub faults: FaultThreads,
    pub processes: Processes,
    pub run: RunState,
    pub telemetry: Telemetry,
}

impl Pager {
    pub fn new(config: Config, world: World, supervisor: u32) -> std::io::Result<Self> {
        let World { clock, host, store } = world;
        let budget = Budget::new(&config, store)?;
        let goal = budget.resident().zone.high();
        let pager = Self {
            started: clock.now(),
            run: RunState::new(&config, goal),
            budget,
            faults: FaultThreads::new(&config)?,
            processes: Processes::new(&config, supervisor)?,
            telemetry: Telemetry::new(&config, &clock)?,
            clock,
            host,
            config,
        };
        if let Some(completions) = pager.budget.store.completion_fd() {
            pager.faults.watch(completions, EPOLL_KEY_STORE)?;
        }
        Ok(pager)
    }

    /// Whether the run attaches to a running process and has not finished that.
    pub fn is_attaching(&self) -> bool {
        self.config.attached && self.processes.program.load(Relaxed) == 0
    }

    /// Locks the engine of the run.
    pub fn engine(&self) -> MutexGuard<'_, Engine> {
        self.budget.engine()
    }

    /// Locks the engine and gives access to its resident set.
    pub fn resident(&self) -> Set<'_> {
        self.budget.resident()
    }

    /// Returns all address spaces.
    pub fn mms(&self) -> Vec<Arc<Mm>> {
        self.processes.mms()
    }

    /// Returns the address space with this number.
    pub fn mm(&self, id: MmId) -> Option<Arc<Mm>> {
        self.processes.mm(id)
    }

    /// Looks for the process of a starting child ([`identify::find_process`]).
    pub fn find_process(&self, mm: &Mm, thread: Option<u32>) -> Option<bool> {
        identify::find_process(&*self.host, &self.budget, &self.processes, mm, thread)
    }

    /// Adds an address space.
    pub fn add_mm(&self, mm: &Arc<Mm>) -> std::io::Result<()> {
        self.processes.insert(mm);
        self.faults.watch_uffd(mm)
    }

    /// Sets the link to the agent of an address space.
    pub fn set_link(&self, mm: &Arc<Mm>, link: Link) -> std::io::Result<()> {
        let link = mm.agent.join(link);
        if self.run.killing.load(SeqCst) {
            link.end();
        }
        link.descriptor().map_or(Ok(()), |fd| self.faults.watch(fd, epoll_key_link(mm.id)))
    }

    /// Removes an address space that has ended or that a detach gives back.
    pub fn drop_mm(&self, mm: &Arc<Mm>) {
        self.faults.unwatch(mm.uffd.descriptor());
        self.faults.unwatch(mm.agent.link().and_then(Link::descriptor));
        let mut dropped = Dropped::default();
        {
            let mut state = mm.lock();
            state.ended = true;
            mm.state.end_batch(&mut state);
        }
        // No thread notes a call any more.
        mm.calls.free();
        // One slice at a time, because faults of other address spaces need the lock of the resident
        // set.
        loop {
            let mut state = mm.lock().timed();
            let Some((start, end)) = state.space.front(SLICE_PAGES) else { break };
            self.resident().forget_range(&mut state.space, start, end, &mut dropped);
        }
        // Takes all pages of the address space off the counts (CHARGES-2).
        let known = mm.pages.known();
        mm.note_gone(&mut self.resident().zone, known);
        let counters = &self.telemetry.counters;
        counters.longest_hold.fetch_max(mm.state.longest_hold_ns(), Relaxed);
        counters.longest_run.fetch_max(mm.state.longest_run_ns(), Relaxed);
        counters::add(&counters.agents_ns, mm.agent.cpu_ns.load(Relaxed));
        let (calls, ticks) = mm.agent.link().map_or((0, 0), Link::lost);
        counters::add(&counters.lost_calls, calls);
        counters::add(&counters.lost_ticks, ticks);
        self.processes.remove(mm);
        self.budget.discard(&dropped);
        self.run.wake_monitor();
        self.faults.wake();
    }

    /// Writes a message for the user to standard error. Does not wait for a reader.
    pub fn say(&self, text: &str) {
        self.host.say(text);
    }

    /// Writes a message for the user, unless twenty have come this way before. A note replaces the
    /// twenty-first, and later messages are left out.
    pub fn complain(&self, text: &str) {
        match self.telemetry.complained.fetch_add(1, Relaxed) {
            0..20 => self.say(text),
            20 => self.say("more messages of this kind are left out"),
            _ => {}
        }
    }

    /// Records an event of a process, or of the whole run (by the program's process).
    pub fn note(&self, pid: u32, event: &Event) {
        if let Some(events) = &self.telemetry.events {
            events.add(self.processes.supervisor, pid, event);
        }
    }

    /// Records an event of the whole run.
    pub fn note_run(&self, event: &Event) {
        self.note(self.processes.program.load(Relaxed), event);
    }

    /// Records a process with unmanaged memory of this kind. Reports the first one to the user;
    /// with `--strict` ends the run.
    pub fn note_unmanaged(&self, kind: Kind, pid: u32, name: &str) {
        let unmanaged = &self.telemetry.unmanaged;
        if !unmanaged.note(kind, name) {
            return;
        }
        self.note(pid, &Event::Unmanaged { name: name.to_owned(), why: kind });
        let text = kind.tell(pid, name);
        if !self.config.strict {
            self.say(&format!("{text}."));
        } else if unmanaged.end_run() {
            self.say(&format!("{text}. Ebb kills the program; leave --strict out to let it run."));
            self.kill_tree(Why::Unmanaged);
        }
    }

    /// Returns [`crate::telemetry::account::Account::waited`], or zeros where time is simulated.
    pub fn waited(&self) -> (u64, u64) {
        if self.clock.is_simulated() { (0, 0) } else { self.telemetry.account.waited() }
    }

    /// Kills every process of the tree. The monitor kills processes that were born meanwhile.
    pub fn kill_tree(&self, why: Why) {
        self.run.ending.store(true, SeqCst);
        if !self.run.killing.swap(true, SeqCst) {
            self.note_run(&Event::Killed { why });
        }
        // A thread of a process that the kill has missed ends the process instead of forking.
        self.mms().iter().for_each(|mm| mm.lines().for_each(Link::end));
        self.host.kill_tree(&self.processes);
    }
}
