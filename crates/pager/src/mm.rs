//! An address space under management: its userfaultfd, its page table, its agent.

use crate::broken::{Rule, is_broken};
use crate::cpu_follow::NOWHERE;
use crate::limits::HOLDS_TIMED;
use crate::link::{Ask, Caller, Link};
use crate::patience::{Moment, Patience};
use crate::pool::Pool;
use crate::seam::{AddressSpace, Clock, Process};
use crate::search::Search;
use crate::spin;
use crate::stages::Kind;
use ebb_mm::folio::VPN_END;
use ebb_mm::resident::Space;
use ebb_mm::types::{MmId, PAGE_SIZE};
use ebb_sys::percpu::thread_time_ns;
use ebb_sys::uffd::Mode;
use smallvec::SmallVec;
use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Number of pages that a child gets beyond the budget until its agent runs.
const STARTING_PAGES: u32 = 64;

/// End of the addresses that a frame can hold.
const ADDRESS_END: u64 = VPN_END * PAGE_SIZE as u64;

/// Time for which a process counts as memory-stalled after a refused charge, in milliseconds. The
/// fault thread retries waiting faults every millisecond, but may have to wait for a CPU.
const MEMORY_STALL_MS: u64 = 100;

/// Maximum time until a child's agent runs if it has a CPU, in milliseconds.
const LATE_MS: u64 = 1000;
/// Minimum time between two searches for stray pages, in milliseconds.
const STRAYS_PAUSE_MS: u64 = 5;

/// Maximum number of inherited links of a child. So many generations in a row may fork before their
/// agents start, and still be identified by their calls.
const LINES_MAX: usize = 8;

/// Time for which kswapd posts no batch to an agent that did not answer, in milliseconds.
const SILENCE_MS: u64 = 200;

/// An address space under management.
#[derive(Debug)]
pub struct Mm {
    pub id: MmId,
    /// Number of the fork group: the id of its first address space, from which forks made the
    /// others.
    pub fork_group: MmId,
    pub uffd: Box<dyn AddressSpace>,
    /// The process; absent until the child of a fork has identified itself.
    process: OnceLock<Box<dyn Process>>,
    /// Whether `process` knows the agent's thread.
    reached: AtomicBool,
    /// Whether the program has no hooks in front of the C library's functions
    /// ([`crate::thread_words`]).
    lacks_hooks: bool,
    /// Address that is always registered. It serves to check whether the address space still
    /// exists.
    probe: u64,
    state: Mutex<State>,
    quiet: Condvar,
    /// Copy of `State::reads_blocked` for readers without the lock.
    batch: AtomicBool,
    longest_hold: AtomicU64,
    longest_run: AtomicU64,
    /// Link to the agent. A forked child has none before its hello, and pages of a child without a
    /// link cannot be moved out.
    pub link: OnceLock<Link>,
    /// Links to the agents of the ancestors, the nearest last. A child without an agent of its own
    /// calls by one of them. The pager does not know by which: the parent may have had no shared
    /// memory of its own at the fork.
    pub inherited: Vec<Link>,
    /// The inherited link by which this child calls, once a call has shown it.
    calls_by: OnceLock<Link>,
    /// Calls for an agent that may be this process's: their links and slots.
    called: Mutex<Vec<(Link, Caller)>>,
    /// Pages that had to stay in the parent at the fork; None means all.
    pub inherited_pins: Option<Vec<u64>>,
    /// Time at which the process asked for an agent, in milliseconds since `born`; 0 if it does not
    /// ask.
    asked: AtomicU64,
    /// Whether the process will never have an agent.
    pub without_agent: AtomicBool,
    /// Whether the user knows that none of its pages can leave.
    pub reported_stuck: AtomicBool,
    /// State of the search for its process.
    search: Search,
    /// Number of resident pages by the page table, the pool included.
    pub known: AtomicI64,
    /// Number of pages of files and of shared memory, by the last measurement.
    backed: AtomicU64,
    /// Number of resident pages that were unknown when the monitor last read the areas, and still
    /// are.
    pub unknown: AtomicU64,
    /// Earliest time of the next search for stray pages, in milliseconds since `born` (`adopt.rs`,
    /// ADOPT-4).
    strays_due: AtomicU64,
    /// Time since which the address space is still, because the pager follows a long message
    /// (ORD-6), in milliseconds since `born`; 0 if it is not still.
    still_since: AtomicU64,
    /// Number of slices of messages followed.
    followed: AtomicU64,
    /// Discount: mapped pages minus the share of the process (PSS), by the last count. Each page
    /// that the process has released since, and that others keep, reduces the discount. It may be
    /// below zero ([`crate::sharing`], SHARING-1).
    pub discount: AtomicI64,
    /// Whether the address space may share pages with another member of its fork group.
    pub related: AtomicBool,
    /// Whether the pages shared in its fork group have copy-on-write protection.
    pub cow_protected: AtomicBool,
    /// Whether the agent has hung up, or the userfaultfd has failed. The monitor drops this record
    /// as soon as the address space is gone.
    pub closing: AtomicBool,
    /// Time of the last unanswered batch, or of the last check that found the process stopped, in
    /// milliseconds since `born`; 0 if the agent does not count as silent.
    silent: AtomicU64,
    /// Time of the last refused charge, in milliseconds since `born`; 0 if there was none.
    refused: AtomicU64,
    /// Number of pages given beyond the budget.
    fed: AtomicU32,
    /// Number of threads that are to repeat their access, and whose next page needs no room.
    recalled: AtomicU32,
    /// Pause that its threads owe for pages taken above `--memory-high`, in microseconds.
    pub owed_us: AtomicU64,
    /// CPU time of its agent at the last measurement, in nanoseconds.
    pub agent_ns: AtomicU64,
    /// CPU that its agent keeps off (`cpu_follow.rs`, FOLLOW-4).
    pub agent_off: AtomicU32,
    /// Number of faults served, by kind; `served_ticks` is their total time in ticks.
    served: [AtomicU64; Kind::COUNT],
    served_ticks: AtomicU64,
    /// Whether the user knows that a page of this address space is lost.
    pub reported_lost: AtomicBool,
    clock: Clock,
    born: Moment,
}

/// Data that the lock `Mm::state` protects.
#[derive(Debug)]
pub struct State {
    /// A batch of moves is under way. No thread may read a message (ORD-1).
    pub reads_blocked: bool,
    /// The pager follows a message that takes several holds, for example a fork. Nothing else of
    /// the address space may change (`following.rs`, ORD-6).
    pub following_message: bool,
    /// The pager has dropped the address space or is about to (`Pager::drop_mm`).
    pub ended: bool,
    pub space: Space,
    pub areas: Areas,
    /// Areas that were writable and executable when a page of theirs did not move. The kernel does
    /// not report a change of rights, so this may be stale in both directions.
    pub executable: Areas,
    pub pool: Pool,
    /// Ranges whose waiting threads are woken when the lock is released.
    wakes: Wakes,
    /// Number of times the lock has been taken.
    holds: u32,
}

/// Ranges of pages: first address, length in bytes.
type Wakes = SmallVec<[(u64, u64); 8]>;

impl State {
    /// Creates the state of an address space with the pages of `space`. A readahead window has
    /// `window` pages at most.
    #[must_use]
    pub fn new(mut space: Space, areas: Areas, pool: Pool, window: u32) -> Self {
        space.set_window(window);
        Self {
            reads_blocked: false,
            following_message: false,
            ended: false,
            space,
            areas,
            executable: Areas::default(),
            pool,
            wakes: Wakes::new(),
            holds: 0,
        }
    }

    /// Notes pages that are in place, or whose access is to be repeated. The release of the lock
    /// wakes the threads that wait for these pages. A woken thread may run at once on the fault
    /// thread's CPU. The fault thread then continues only when the woken thread waits again.
    pub fn wake_after(&mut self, start: u64, len: u64) {
        match self.wakes.last_mut() {
            Some((first, bytes)) if *first + *bytes == start => *bytes += len,
            _ => self.wakes.push((start, len)),
        }
    }
}

impl Mm {
    /// Brings an area under management. Returns false if that fails.
    pub fn manage(&self, start: u64, end: u64) -> bool {
        // A frame has no room for a page number beyond `ADDRESS_END`. No kernel hands out such an
        // address yet.
        end <= ADDRESS_END && self.uffd.register(start, end - start, Mode::Managed).is_ok()
    }

    /// Creates an address space served through `uffd`.
    #[must_use]
    pub fn new(uffd: Box<dyn AddressSpace>, state: State, clock: Clock) -> Self {
        let id = state.space.mm();
        Self {
            id,
            fork_group: id,
            uffd,
            process: OnceLock::new(),
            reached: AtomicBool::new(false),
            lacks_hooks: false,
            probe: state.pool.start(),
            state: Mutex::new(state),
            quiet: Condvar::new(),
            batch: AtomicBool::new(false),
            longest_hold: AtomicU64::new(0),
            longest_run: AtomicU64::new(0),
            link: OnceLock::new(),
            inherited: Vec::new(),
            calls_by: OnceLock::new(),
            called: Mutex::default(),
            inherited_pins: Some(Vec::new()),
            asked: AtomicU64::new(0),
            without_agent: AtomicBool::new(false),
            reported_stuck: AtomicBool::new(false),
            search: Search::default(),
            known: AtomicI64::new(0),
            backed: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            strays_due: AtomicU64::new(0),
            still_since: AtomicU64::new(0),
            followed: AtomicU64::new(0),
            discount: AtomicI64::new(0),
            related: AtomicBool::new(false),
            cow_protected: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            silent: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            fed: AtomicU32::new(0),
            recalled: AtomicU32::new(0),
            owed_us: AtomicU64::new(0),
            agent_ns: AtomicU64::new(0),
            agent_off: AtomicU32::new(NOWHERE),
            served: Default::default(),
            served_ticks: AtomicU64::new(0),
            reported_lost: AtomicBool::new(false),
            born: clock.moment(),
            clock,
        }
    }

    /// Sets whether the program lacks the agent's hooks.
    #[must_use]
    pub fn without_hooks(self, lacks_hooks: bool) -> Self {
        Self { lacks_hooks, ..self }
    }

    /// Whether the program lacks the agent's hooks.
    pub fn lacks_hooks(&self) -> bool {
        self.lacks_hooks
    }

    /// Whether this is a forked child without an agent, of a program without hooks. The pager must
    /// start the agent in such a child. A new program without hooks is joining already when the
    /// pager learns of it.
    pub fn needs_injection(&self) -> bool {
        self.lacks_hooks && self.link.get().is_none() && !self.inherited.is_empty()
    }

    /// Makes this address space a forked child of `parent`, in its fork group.
    #[must_use]
    pub fn related_to(mut self, parent: &Self) -> Self {
        self.fork_group = parent.fork_group;
        self.lacks_hooks = parent.lacks_hooks;
        self.related.store(true, Ordering::Relaxed);
        self.inherited_pins = parent.pins_of_child();
        let elder = parent.calls_by.get().map_or(&parent.inherited[..], std::slice::from_ref);
        self.inherited = elder.iter().chain(parent.link.get()).cloned().collect();
        let too_many = self.inherited.len().saturating_sub(LINES_MAX);
        self.inherited.drain(..too_many);
        self
    }

    /// Returns the calls that a ring of `doorbell` may announce. If there are several, only one is
    /// this process's own: children that call by an ancestor's link use the same call slots.
    pub fn calls(&self, doorbell: usize) -> impl Iterator<Item = (&Link, Caller, Ask)> {
        let own = self.link.get();
        let inherited = self.inherited.iter().rev().filter(move |_| own.is_none());
        let made = move |line| Link::call(line, doorbell).map(|(caller, ask)| (line, caller, ask));
        own.into_iter().chain(inherited).filter_map(made)
    }

    /// Marks the run as over in all shared memory that its process may read.
    pub fn mark_ended(&self) {
        self.link.get().into_iter().chain(&self.inherited).for_each(Link::end);
    }

    /// Notes the inherited link by which the child calls.
    pub fn note_line(&self, line: &Link) {
        // The value is set already only if another thread has learnt the same.
        let _ = self.calls_by.set(line.clone());
    }

    /// Notes a call for an agent that is this child's or a relative's.
    pub fn note_call(&self, link: &Link, caller: Caller) {
        let mut called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        if called.iter().all(|&(_, noted)| noted != caller) {
            called.push((link.clone(), caller));
        }
    }

    /// Frees the slots of the child's calls. A child that has ended could not do so, and its
    /// relatives have few slots. A living relative repeats its call.
    pub fn free_calls(&self) {
        let mut called = self.called.lock().unwrap_or_else(PoisonError::into_inner);
        called.drain(..).for_each(|(link, caller)| link.free_slot(caller));
    }

    /// Frees the slots of calls that have not ended for long, in all memory by which this process
    /// or its children call.
    pub fn sweep_slots(&self) {
        self.link.get().into_iter().chain(&self.inherited).for_each(Link::sweep_slots);
    }

    /// Returns the pages that must stay in a child forked now, in order; None means all.
    #[must_use]
    pub fn pins_of_child(&self) -> Option<Vec<u64>> {
        self.link.get().map_or_else(|| self.inherited_pins.clone(), Link::pins)
    }

    /// Notes that the process has asked for an agent.
    pub fn note_asked(&self) {
        self.asked.store(self.age_ms(), Ordering::Relaxed);
    }

    /// Notes that the process has closed its connection before its hello. A process that still gets
    /// an agent asks again, or connects by itself.
    pub fn note_hung_up(&self) {
        self.asked.store(0, Ordering::Relaxed);
    }

    /// Returns the current moment in the time that the host grants.
    pub fn moment(&self) -> Moment {
        self.clock.moment()
    }

    /// Returns the time since the pager learnt of the address space. This time, and every time
    /// since `born`, is time that the host grants (PATIENCE-1).
    pub fn age(&self) -> Duration {
        self.moment().since(self.born)
    }

    /// Returns the age in milliseconds, at least 1.
    fn age_ms(&self) -> u64 {
        self.age_ms_at(self.moment())
    }

    fn age_ms_at(&self, moment: Moment) -> u64 {
        (moment.since(self.born).as_millis() as u64).max(1)
    }

    /// Begins a search for the process if one is due, for a thread that waits since `touched`.
    /// Returns whether one was due.
    pub fn begin_search(&self, touched: Moment) -> bool {
        self.search.begin(self.age_ms(), self.age_ms_at(touched))
    }

    /// Notes that the monitor has searched for new areas, and that `unknown` pages remain unknown.
    /// It has read all areas if `all`, otherwise only those beside areas registered lately
    /// (`adopt.rs`, ADOPT-5). In the latter case the unknown pages elsewhere add up until the
    /// monitor searches there.
    pub fn note_area_search(&self, unknown: u64, all: bool) {
        if all {
            self.unknown.store(unknown, Ordering::Relaxed);
        } else {
            self.unknown.fetch_min(unknown, Ordering::Relaxed);
        }
    }

    /// Runs a search that returns whether it found the process, or None if it could not be carried
    /// out.
    pub fn search(&self, search: impl FnOnce() -> Option<bool>) {
        let began = self.age_ms();
        if search() == Some(false) {
            self.search.fail(began);
        }
    }

    /// Whether the process is unidentified and a search that began after `touched` has failed.
    pub fn is_unknown_since(&self, touched: Moment) -> bool {
        self.process().is_none() && self.search.has_failed_since(self.age_ms_at(touched))
    }

    /// Notes that the address space becomes still, or changes again (ORD-6).
    pub fn note_still(&self, still: bool) {
        self.still_since.store(if still { self.age_ms() } else { 0 }, Ordering::Relaxed);
    }

    /// Counts a followed slice of the message for which the address space is still.
    pub fn note_followed(&self) {
        self.followed.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of slices followed if the address space is still for longer than `time`.
    pub fn followed_beyond(&self, time: Duration) -> Option<u64> {
        let since = self.still_since.load(Ordering::Relaxed);
        let long = since > 0 && Duration::from_millis(self.age_ms().saturating_sub(since)) > time;
        long.then(|| self.followed.load(Ordering::Relaxed))
    }

    /// Whether a search for stray pages is due.
    pub fn are_strays_due(&self) -> bool {
        self.age_ms() >= self.strays_due.load(Ordering::Relaxed)
    }

    /// Notes that a search for stray pages took `took`. Searches take at most a fiftieth of the
    /// time.
    pub fn note_stray_search(&self, took: Duration) {
        let pause = (took * 50).as_millis() as u64;
        self.strays_due.store(self.age_ms() + pause.max(STRAYS_PAUSE_MS), Ordering::Relaxed);
    }

    /// Whether this is a starting child: a forked child that may still say hello, or whose agent
    /// has yet to start.
    pub fn is_starting(&self) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        let waited = || Duration::from_millis(self.age_ms().saturating_sub(asked));
        let may_still_start = || !Patience::AwaitingAgent.is_over(waited());
        match self.link.get() {
            _ if self.without_agent.load(Ordering::Relaxed) => false,
            None if asked > 0 => may_still_start(),
            None => !Patience::AwaitingHello.is_over(self.age()),
            Some(link) => !link.is_ready() && may_still_start(),
        }
    }

    /// Whether there is an agent that can move pages out. The agent may have ended before the
    /// address space, if another process goes on using it.
    pub fn has_agent(&self) -> bool {
        self.link.get().is_some() && !self.closing.load(Ordering::Relaxed)
    }

    /// Whether this is a starting child that asked for an agent and has waited long for it.
    pub fn is_late(&self) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        asked > 0 && self.age_ms().saturating_sub(asked) > LATE_MS && self.is_starting()
    }

    /// Counts a served fault that took `ticks` ticks.
    pub fn note_served(&self, kind: Kind, ticks: u64) {
        self.served[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.served_ticks.fetch_add(ticks, Ordering::Relaxed);
    }

    /// Returns the number of faults served, by kind, and their total time in ticks.
    #[must_use]
    pub fn served(&self) -> ([u64; Kind::COUNT], u64) {
        let counts = Kind::ALL.map(|kind| self.served[kind as usize].load(Ordering::Relaxed));
        (counts, self.served_ticks.load(Ordering::Relaxed))
    }

    /// Notes a fault that found no memory.
    pub fn note_refused(&self) {
        self.refused.store(self.age_ms(), Ordering::Relaxed);
    }

    /// Whether faults of this address space wait for memory.
    pub fn is_memory_stalled(&self) -> bool {
        let refused = self.refused.load(Ordering::Relaxed);
        refused > 0 && self.age_ms() <= refused + MEMORY_STALL_MS
    }

    /// Notes that its agent did not answer a batch.
    pub fn note_unanswered(&self) {
        let now = self.age().as_millis() as u64;
        self.silent.store(now.max(1), Ordering::Relaxed);
    }

    /// Returns the number of anonymous pages by the kernel's count; for an unidentified process by
    /// the pager's count.
    pub fn resident_pages(&self) -> u64 {
        match self.process() {
            Some(process) => {
                let (anonymous, backed) = process.sizes().unwrap_or((0, 0));
                self.backed.store(backed, Ordering::Relaxed);
                anonymous
            }
            None => u64::try_from(self.known.load(Ordering::Relaxed)).unwrap_or(0),
        }
    }

    /// Returns the number of resident pages of files and of shared memory at the last call of
    /// [`Mm::resident_pages`].
    pub fn backed_pages(&self) -> u64 {
        self.backed.load(Ordering::Relaxed)
    }

    /// Whether batches are of no use for now. This holds while the agent does not run yet, and for
    /// [`SILENCE_MS`] after an unanswered batch. The next call checks whether the process is
    /// stopped. If so, this holds for as long again.
    pub fn update_silence(&self) -> bool {
        if self.link.get().is_some_and(|link| !link.is_ready()) {
            return true;
        }
        let since = self.silent.load(Ordering::Relaxed);
        if since == 0 {
            return false;
        }
        let now = self.age().as_millis() as u64;
        if now < since + SILENCE_MS {
            return true;
        }
        // A stopped process is checked again after [`SILENCE_MS`].
        let stopped = self.is_stopped();
        self.silent.store(if stopped { now } else { 0 }, Ordering::Relaxed);
        stopped
    }

    /// Whether a signal or a debugger has stopped the process; the freezer does not count.
    pub fn is_stopped(&self) -> bool {
        self.process().is_some_and(Process::is_stopped)
    }

    /// Whether a tracer has stopped every thread of the process. A fault then comes from another
    /// process that shares the memory.
    pub fn is_traced(&self) -> bool {
        let threads = self.process().map_or_else(Vec::new, Process::threads);
        let mut alive = threads.iter().filter(|(_, state)| !matches!(state, 'Z' | 'X')).peekable();
        alive.peek().is_some() && alive.all(|&(_, state)| state == 't')
    }

    /// Whether the process may get a few pages beyond the budget. A starting child needs them until
    /// it can give some back. A child that gets no agent needs them until it ends. The pages that
    /// it shares may leave memory only then.
    fn may_get_extra_pages(&self) -> bool {
        self.without_agent.load(Ordering::Relaxed) || self.is_starting()
    }

    /// Returns the number of pages that it got beyond the budget; 0 if it may get no more.
    pub fn extra_pages(&self) -> u32 {
        let pages = self.fed.load(Ordering::Relaxed).min(STARTING_PAGES);
        if self.may_get_extra_pages() { pages } else { 0 }
    }

    /// Takes one more page beyond the budget, if allowed.
    pub fn take_extra_page(&self) -> bool {
        self.may_get_extra_pages() && self.fed.fetch_add(1, Ordering::Relaxed) < STARTING_PAGES
    }

    /// Counts a thread that is to repeat its access, and whose next page needs no room.
    pub fn add_recalled(&self) {
        self.recalled.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether a thread counted by [`Mm::add_recalled`] has yet to fault again.
    pub fn has_recalled(&self) -> bool {
        self.recalled.load(Ordering::Relaxed) > 0
    }

    /// Takes a thread counted by [`Mm::add_recalled`] off the count. Returns whether there was one.
    /// The current fault is then taken for that thread's. The caller holds the lock of the state.
    pub fn take_recalled(&self) -> bool {
        let recalled = self.recalled.load(Ordering::Relaxed);
        self.recalled.store(recalled.saturating_sub(1), Ordering::Relaxed);
        recalled > 0
    }

    /// Notes that `pages` pages shared in the fork group are now this process's own, or the others'
    /// alone ([`crate::sharing`], SHARING-1).
    pub fn shares_less(&self, pages: u64) {
        self.discount.fetch_sub(pages.cast_signed(), Ordering::Relaxed);
    }

    /// Returns how many of `resident` pages are the share of other members of its fork group, as
    /// far as known.
    pub fn fork_group_share(&self, resident: u64) -> u64 {
        self.discount.load(Ordering::Relaxed).max(0).cast_unsigned().min(resident)
    }

    /// Whether the address space still exists.
    pub fn is_alive(&self) -> bool {
        self.uffd.is_alive(self.probe)
    }

    /// Sets the process of the address space.
    pub fn set_process(&self, process: Box<dyn Process>) {
        // The value is set already only if another thread has learnt the same.
        let _ = self.process.set(process);
    }

    /// Returns the process, if it is identified.
    pub fn process(&self) -> Option<&dyn Process> {
        let process = self.process.get()?;
        if !self.reached.load(Ordering::Relaxed)
            && let Some(thread) = self.link.get().map(Link::thread)
            && thread != 0
        {
            process.note_thread(thread);
            self.reached.store(true, Ordering::Relaxed);
        }
        Some(&**process)
    }

    /// Returns the process number; 0 if the process is unidentified.
    pub fn pid(&self) -> u32 {
        self.process.get().map_or(0, |process| process.pid())
    }

    /// Reads pages of the process from outside. Returns how many pages it has read from the start
    /// of `addresses`.
    pub fn read_pages(
        &self,
        addresses: &[u64],
        pages: &mut [[u8; PAGE_SIZE]],
    ) -> io::Result<usize> {
        let unknown = || io::Error::other("the pager has not identified it yet");
        self.process().ok_or_else(unknown)?.read_pages(addresses, pages)
    }

    /// Locks the state, whether or not a batch is under way. For callers that read no messages and
    /// do not rely on pages staying in place.
    pub fn lock(&self) -> MmGuard<'_> {
        let state = spin::lock(&self.state);
        MmGuard::new(state, self)
    }

    /// Returns the longest hold of this lock, in nanoseconds.
    pub fn longest_hold_ns(&self) -> u64 {
        self.longest_hold.load(Ordering::Relaxed)
    }

    /// Returns the longest CPU time of a thread in one hold of this lock, as far as measured, in
    /// nanoseconds.
    pub fn longest_run_ns(&self) -> u64 {
        self.longest_run.load(Ordering::Relaxed)
    }

    /// Locks the state while the address space is not still (ORD-6). Returns None if the stillness
    /// does not end within `patience`.
    pub fn lock_settled(&self, patience: Duration) -> Option<MmGuard<'_>> {
        let state = spin::lock(&self.state);
        let (state, _) = self
            .quiet
            .wait_timeout_while(state, self.clock.patience(patience), |state| {
                state.following_message
            })
            .unwrap_or_else(PoisonError::into_inner);
        (!state.following_message).then(|| MmGuard::new(state, self))
    }

    /// Whether no thread holds the lock of the state.
    #[cfg(test)]
    pub fn is_free(&self) -> bool {
        self.state.try_lock().is_ok()
    }

    /// Locks the state with no batch under way. Returns None if a batch does not end within
    /// `patience`.
    pub fn lock_quiet(&self, patience: Duration) -> Option<MmGuard<'_>> {
        let state = spin::lock(&self.state);
        let (state, timeout) = self
            .quiet
            .wait_timeout_while(state, self.clock.patience(patience), |state| {
                state.reads_blocked && !is_broken(Rule::Ord1)
            })
            .unwrap_or_else(PoisonError::into_inner);
        let held = !timeout.timed_out() || !state.reads_blocked;
        held.then(|| MmGuard::new(state, self))
    }

    /// Begins a batch. No thread reads a message until the batch is over (ORD-2).
    pub fn begin_batch(&self, state: &mut State) {
        state.reads_blocked = !is_broken(Rule::Ord2);
        self.batch.store(true, Ordering::Relaxed);
    }

    /// Ends the batch.
    pub fn end_batch(&self, state: &mut State) {
        state.reads_blocked = false;
        self.batch.store(false, Ordering::Relaxed);
        self.quiet.notify_all();
    }

    /// Polls for at most `limit` for the end of a batch, before [`Self::lock_quiet`] would sleep
    /// for it. For a thread that has a CPU to itself.
    pub fn watch_batch(&self, limit: Duration) {
        spin::look(limit, || (!self.batch.load(Ordering::Relaxed)).then_some(()));
    }
}

/// Access to the state of an address space while its lock is held. Measures the hold. A thread that
/// places pages notes them by [`State::wake_after`]. The release of the lock wakes the threads that
/// wait for them, on every path (WAKE-1).
#[derive(Debug)]
pub struct MmGuard<'a> {
    /// The lock; None after its release.
    state: Option<MutexGuard<'a, State>>,
    mm: &'a Mm,
    since: Instant,
    /// CPU time of the thread at the start of the hold, if it is measured.
    ran: Option<u64>,
}

impl<'a> MmGuard<'a> {
    fn new(mut state: MutexGuard<'a, State>, mm: &'a Mm) -> Self {
        debug_assert!(state.wakes.is_empty(), "WAKE-1");
        state.holds = state.holds.wrapping_add(1);
        let ran = state.holds.is_multiple_of(HOLDS_TIMED).then(thread_time_ns);
        Self { state: Some(state), mm, since: mm.clock.now(), ran }
    }

    /// Measures the CPU time of this hold, because it is for a slice of work.
    #[must_use]
    pub fn timed(mut self) -> Self {
        self.ran = self.ran.or_else(|| Some(thread_time_ns()));
        self
    }
}

impl Deref for MmGuard<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("held")
    }
}

impl DerefMut for MmGuard<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("held")
    }
}

impl<'a> MmGuard<'a> {
    /// Releases the lock. The waiting threads are woken when the returned value is dropped.
    pub fn unlock(mut self) -> Waking<'a> {
        self.release_lock()
    }

    fn release_lock(&mut self) -> Waking<'a> {
        let wakes = self.state.take().map(|mut state| std::mem::take(&mut state.wakes));
        let held = self.mm.clock.since(self.since).as_nanos() as u64;
        self.mm.longest_hold.fetch_max(held, Ordering::Relaxed);
        if let Some(before) = self.ran {
            let ran = thread_time_ns() - before;
            self.mm.longest_run.fetch_max(ran, Ordering::Relaxed);
        }
        Waking { wakes: wakes.unwrap_or_default(), mm: self.mm }
    }
}

impl Drop for MmGuard<'_> {
    fn drop(&mut self) {
        if self.state.is_some() {
            drop(self.release_lock());
        }
    }
}

/// Threads to be woken when this value is dropped (WAKE-1).
#[derive(Debug)]
pub struct Waking<'a> {
    wakes: Wakes,
    mm: &'a Mm,
}

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        for &(start, len) in self.wakes.iter().skip(usize::from(is_broken(Rule::Wake1))) {
            // No thread waits in an address space that has ended.
            let _ = self.mm.uffd.wake(start, len);
        }
    }
}

/// Page whose content no other address space has.
#[derive(Debug)]
pub struct IdentityPage {
    address: u64,
    page: Box<[u8; PAGE_SIZE]>,
}

impl IdentityPage {
    /// Describes the page with this content at `address`.
    pub fn new(address: u64, page: Box<[u8; PAGE_SIZE]>) -> Self {
        Self { address, page }
    }

    /// Whether `process` has this page at its address.
    pub fn is_seen_by(&self, process: &dyn Process) -> bool {
        if is_broken(Rule::Identity1) {
            return true;
        }
        let mut seen = [[0; PAGE_SIZE]];
        matches!(process.read_pages(&[self.address], &mut seen), Ok(1)) && seen[0] == *self.page
    }
}

/// Ranges that count as registered, disjoint and sorted: those whose pages were adopted. The kernel
/// may have registered more (ADOPT-6 in `adopt.rs`).
#[derive(Clone, Debug, Default)]
pub struct Areas {
    ranges: std::collections::BTreeMap<u64, u64>,
    /// Addresses in the ranges that grew last; `oldest` is the index for the next.
    recent: [u64; RECENT],
    oldest: usize,
}

/// Number of ranges remembered as grown lately: as many threads may each fill areas of their own.
const RECENT: usize = 8;

impl Areas {
    /// Adds `[start, end)`, which must not overlap existing ranges. Merges neighbours.
    pub fn add(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if let Some((&before, &stop)) = self.ranges.range(..=start).next_back()
            && stop >= start
        {
            self.ranges.remove(&before);
            start = before;
            end = end.max(stop);
        }
        if let Some(stop) = self.ranges.remove(&end) {
            end = stop;
        }
        self.ranges.insert(start, end);
        if !self.recent.iter().any(|address| (start..end).contains(address)) {
            self.recent[self.oldest] = start;
            self.oldest = (self.oldest + 1) % RECENT;
        }
    }

    /// Returns the ranges that grew lately.
    #[must_use]
    pub fn recent(&self) -> Vec<(u64, u64)> {
        let range = |address: &u64| self.ranges.range(..=address).next_back();
        let holding = self.recent.iter().filter_map(|at| range(at).filter(|&(_, end)| end > at));
        holding.map(|(&start, &end)| (start, end)).collect()
    }

    /// Removes `[start, end)`.
    pub fn remove(&mut self, start: u64, end: u64) {
        let touched: Vec<(u64, u64)> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|&(_, &stop)| stop > start)
            .map(|(&from, &stop)| (from, stop))
            .collect();
        for (from, stop) in touched {
            self.ranges.remove(&from);
            if from < start {
                self.ranges.insert(from, start);
            }
            if stop > end {
                self.ranges.insert(end, stop);
            }
        }
    }

    /// Moves the ranges in `[from, from + len)` to `[to, to + len)`. They replace the ranges there.
    pub fn shift(&mut self, from: u64, to: u64, len: u64) {
        let mut moved = Self::default();
        moved.add(to, to + len);
        for (start, end) in self.missing(from, from + len) {
            moved.remove(to + (start - from), to + (end - from));
        }
        self.remove(from, from + len);
        self.remove(to, to + len);
        moved.iter().for_each(|(start, end)| self.add(start, end));
    }

    /// Returns the end of the range that contains `address`.
    #[must_use]
    pub fn end_of(&self, address: u64) -> Option<u64> {
        let (_, &stop) = self.ranges.range(..=address).next_back()?;
        (stop > address).then_some(stop)
    }

    /// Returns the parts of `[start, end)` that are not registered.
    #[must_use]
    pub fn missing(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        let mut at = start;
        let first = self.ranges.range(..=start).next_back().map_or(start, |(&from, _)| from);
        for (&from, &stop) in self.ranges.range(first..end) {
            if stop <= at {
                continue;
            }
            if from > at {
                missing.push((at, from.min(end)));
            }
            at = at.max(stop);
        }
        if at < end {
            missing.push((at, end));
        }
        missing
    }

    /// Returns the first address of `[start, end)` that is not registered.
    #[must_use]
    pub fn next_missing(&self, start: u64, end: u64) -> Option<u64> {
        let mut at = start;
        // Adjacent ranges are always merged.
        while at < end
            && let Some(stop) = self.end_of(at)
        {
            at = stop;
        }
        (at < end).then_some(at)
    }

    /// Whether there is no range.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Returns the ranges in order, as `(start, end)`.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&start, &end)| (start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::{Areas, Mm};
    use crate::children::JoinRequest;
    use crate::fork::show_identity;
    use crate::link::Ask;
    use crate::quiet::{Mute, Quiet, line, pager, with_pool};
    use ebb_agent::protocol::{ASK_JOIN, CALL_MADE};
    use ebb_sys::uffd::PlaceError;
    use std::sync::atomic::Ordering;

    /// Shows that a child without an agent gets a few pages beyond the budget. All memory may be in
    /// pages that only such a child still has, while the child waits for one more. Without extra
    /// pages the run then ends as out of memory.
    #[test]
    fn a_child_without_an_agent_gets_a_few_pages_beyond_the_budget() {
        let mm = with_pool(Quiet::default());
        mm.without_agent.store(true, Ordering::Relaxed);
        assert!(!mm.is_starting() && mm.extra_pages() == 0);
        let taken = (0..1000).filter(|_| mm.take_extra_page()).count();
        assert_eq!((taken, mm.extra_pages()), (64, 64));
    }

    /// Makes the call by which an agent asks for its own link.
    fn call(by: &Mute, doorbell: usize, thread: u64) {
        by.0.calls[doorbell].what.store(ASK_JOIN, Ordering::Relaxed);
        by.0.calls[doorbell].a.store(thread, Ordering::Relaxed);
        by.0.calls[doorbell].state.store(CALL_MADE, Ordering::Relaxed);
    }

    /// Returns the threads whose calls are found.
    fn askers(mm: &Mm, doorbell: usize) -> Vec<u32> {
        let thread = |ask| match ask {
            Ask::Join(JoinRequest::Join { thread, .. }) => thread,
            other => panic!("{other:?}"),
        };
        mm.calls(doorbell).map(|(_, _, ask)| thread(ask)).collect()
    }

    /// Shows that unknown pages outside the areas read add up until all areas are read. Otherwise
    /// an area with few new pages at a time is never found.
    #[test]
    fn unknown_pages_outside_the_areas_read_add_up() {
        let mm = with_pool(Quiet::default());
        let unknown = |left, all| {
            mm.note_area_search(left, all);
            mm.unknown.load(Ordering::Relaxed)
        };
        assert_eq!(unknown(10, true), 10);
        assert_eq!(unknown(70, false), 10);
        assert_eq!(unknown(4, false), 4);
        assert_eq!(unknown(90, true), 90);
    }

    /// Shows that a child's call is found in the memory of any ancestor. A process may fork before
    /// its agent has memory of its own. Then the third generation calls by the link of the first.
    #[test]
    fn a_call_of_a_child_is_found_in_the_memory_of_any_ancestor() {
        let child_of = |parent: &Mm| with_pool(Quiet::default()).related_to(parent);
        let first = with_pool(Quiet::default());
        let (link, table) = line();
        first.link.set(link).expect("had none");
        let mut child = child_of(&first);
        for generation in 0..6 {
            child.link.set(line().0).expect("had none");
            child = child_of(&child);
            call(&table, 3, generation);
            assert_eq!(askers(&child, 3), [generation as u32]);
        }
        // Once the link of a child's calls is known, a grandchild inherits that link and the
        // child's own.
        let called = child.calls(3).next().expect("it calls").0.clone();
        child.note_line(&called);
        child.link.set(line().0).expect("had none");
        let grandchild = child_of(&child);
        assert_eq!(grandchild.inherited.len(), 2);
        assert_eq!(askers(&grandchild, 3), [5]);
    }

    /// Shows that two callers are told apart if one uses the parent's memory and the other the
    /// grandparent's. Both use the same entry at the same time.
    #[test]
    fn calls_in_the_same_slot_of_two_ancestors_are_both_heard() {
        let child_of = |parent: &Mm| with_pool(Quiet::default()).related_to(parent);
        let (first, parent) = (line(), line());
        let root = with_pool(Quiet::default());
        root.link.set(first.0).expect("had none");
        let mm = child_of(&root);
        mm.link.set(parent.0).expect("had none");
        let child = child_of(&mm);
        call(&first.1, 0, 1);
        call(&parent.1, 0, 2);
        assert_eq!(askers(&child, 0), [2, 1]);
        // A process with a link of its own calls by no other.
        assert_eq!(askers(&mm, 0), [2]);
    }

    /// Shows that the pager does not start the agent in a new static program without a link. It
    /// starts the agent in a child of such a program.
    #[test]
    fn only_a_child_of_a_program_without_hooks_is_made_to_join() {
        let new = with_pool(Quiet::default()).without_hooks(true);
        assert!(!new.needs_injection(), "it is joining");
        new.link.set(line().0).expect("had none");
        let child = with_pool(Quiet::default()).related_to(&new);
        assert!(child.needs_injection());
        let grandchild = with_pool(Quiet::default()).related_to(&child);
        assert!(grandchild.needs_injection());
        child.link.set(line().0).expect("had none");
        assert!(!child.needs_injection());
    }

    /// Shows that the identity page counts as one page, and takes one pool slot, until the agent
    /// has dropped it.
    #[test]
    fn an_identity_page_counts_until_its_pool_slot_is_dropped() {
        let (pager, mm) = (pager(), with_pool(Quiet::default()));
        let mut state = mm.lock();
        for turn in 1..=3 {
            let identity = show_identity(&pager, &mm, &mut state);
            assert!(identity.is_ok(), "turn {turn}");
            assert_eq!((state.pool.used(), state.pool.pending_discards()), (0, 1), "to be dropped");
            assert_eq!(mm.known.load(Ordering::Relaxed), 1);
            assert_eq!(pager.resident().zone.resident(), 1);
            // As `commit_drop` does.
            let runs = state.pool.pending_discard_runs(64);
            assert_eq!(runs.len(), 1);
            runs.into_iter().for_each(|run| state.pool.finish_discard(run));
            mm.note_dropped(&mut pager.resident().zone, 1, 0);
            assert_eq!(
                (state.pool.pending_discards(), state.pool.undropped()),
                (0, 0),
                "free again"
            );
            assert_eq!(
                (mm.known.load(Ordering::Relaxed), pager.resident().zone.resident()),
                (0, 0)
            );
        }
    }

    /// Shows that failed attempts to place an identity page do not use up the pool slots.
    #[test]
    fn an_identity_page_that_cannot_be_placed_gives_its_pool_slot_back() {
        let pager = pager();
        for error in [PlaceError::Changing, PlaceError::Gone, PlaceError::NoMemory] {
            let mm = with_pool(Quiet { fails: Some(error), ..Quiet::default() });
            let mut state = mm.lock();
            for _ in 0..200 {
                assert_eq!(show_identity(&pager, &mm, &mut state).err(), Some(error));
            }
            assert_eq!((state.pool.used(), state.pool.pending_discards()), (0, 0), "{error:?}");
            assert_eq!(
                (mm.known.load(Ordering::Relaxed), pager.resident().zone.resident()),
                (0, 0)
            );
        }
        // If the slot already has an unknown page, the agent drops that before the slot is reused.
        let mm = with_pool(Quiet { fails: Some(PlaceError::Exists), ..Quiet::default() });
        let mut state = mm.lock();
        assert!(show_identity(&pager, &mm, &mut state).is_err());
        assert_eq!((state.pool.used(), state.pool.pending_discards()), (0, 1));
    }

    #[test]
    fn neighbours_join_and_holes_are_found() {
        let mut areas = Areas::default();
        areas.add(10, 20);
        areas.add(30, 40);
        assert_eq!(areas.missing(0, 50), [(0, 10), (20, 30), (40, 50)]);
        assert_eq!(areas.missing(12, 18), []);
        assert_eq!(areas.missing(15, 35), [(20, 30)]);
        assert_eq!(
            [(0, 5), (10, 40), (12, 20), (30, 50)].map(|(from, to)| areas.next_missing(from, to)),
            [Some(0), Some(20), None, Some(40)]
        );
        areas.add(20, 30);
        assert_eq!(areas.iter().collect::<Vec<_>>(), [(10, 40)]);
        areas.remove(15, 25);
        assert_eq!(areas.iter().collect::<Vec<_>>(), [(10, 15), (25, 40)]);
        areas.remove(0, 100);
        assert_eq!(areas.iter().count(), 0);
    }

    /// Shows that a REMAP moves only the registered parts of an area. The rest can still be
    /// registered later.
    #[test]
    fn a_remap_moves_only_the_registered_parts_of_an_area() {
        let mut areas = Areas::default();
        areas.add(10, 15);
        areas.add(25, 40);
        areas.shift(12, 32, 18);
        assert_eq!(areas.iter().collect::<Vec<_>>(), [(10, 12), (30, 35), (45, 50)]);
    }
}
