//! One address space under management: its userfaultfd, its page table, its agent.

use crate::broken::{Rule, is_broken};
use crate::limits::HOLDS_TIMED;
use crate::link::{Ask, Caller, Link};
use crate::patience::{Moment, Patience};
use crate::pool::Pool;
use crate::seam::{AddressSpace, Clock, Process};
use crate::search::Search;
use crate::solo::NOWHERE;
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

/// How many pages a child is given beyond the budget until its agent runs.
const INFANT_PAGES: u32 = 64;

/// Where addresses end that a frame can say.
const ADDRESS_END: u64 = VPN_END * PAGE_SIZE as u64;

/// For how long a process counts as short of memory to which some was refused: touches that wait are looked at every
/// millisecond, by a thread that may have to wait for a CPU.
const HUNGER_MS: u64 = 100;

/// How long it takes, at most, until a child's agent runs where there is a CPU for it.
const LATE_MS: u64 = 1000;
/// The least time between two searches for strays.
const STRAYS_PAUSE_MS: u64 = 5;

/// Lines kept for a child: so many generations in a row may fork before their agents have begun, and not be known by their
/// calls.
const LINES_MAX: usize = 8;

/// How long an agent that did not answer is left alone.
const SILENCE_MS: u64 = 200;

/// An address space.
#[derive(Debug)]
pub struct Mm {
    pub id: MmId,
    /// Number of the first of all that forks have made of one program.
    pub family: MmId,
    pub uffd: Box<dyn AddressSpace>,
    /// Absent until the child of a fork has made itself known.
    process: OnceLock<Box<dyn Process>>,
    /// The process has been told of the agent's thread.
    reached: AtomicBool,
    /// Nothing in it stands before the C library's functions ([`crate::thread_words`]).
    bare: bool,
    /// An address that is always registered, to see whether the address space still exists.
    probe: u64,
    state: Mutex<State>,
    quiet: Condvar,
    /// What `State::busy` says of a batch, for who looks without the lock.
    batch: AtomicBool,
    longest_hold: AtomicU64,
    longest_run: AtomicU64,
    /// Absent for children of forks that never greet (nothing of theirs can be moved out).
    pub link: OnceLock<Link>,
    /// Lines to the agents of its ancestors, by one of which a child calls that has none of its own yet, the nearest
    /// last. Which one is not known: the one it was forked from may have had its own memory just then, or not yet.
    pub inherited: Vec<Link>,
    /// Known once it has called: by this one.
    calls_by: OnceLock<Link>,
    /// Pages that had to stay when it was forked; None: all.
    pub inherited_pins: Option<Vec<u64>>,
    /// When it asked for an agent, in milliseconds since `born`; 0: it has not.
    asked: AtomicU64,
    /// It will never have one.
    pub alone: AtomicBool,
    /// It has been said that none of its pages can leave.
    pub told_stuck: AtomicBool,
    /// For its process.
    search: Search,
    /// Pages the page table says are in memory, pool included.
    pub known: AtomicI64,
    /// Pages of files and of shared memory, by the last look.
    backed: AtomicU64,
    /// Resident pages that were beyond the known ones before the areas were last read, and still are.
    pub unknown: AtomicU64,
    /// When strays are next looked for at the earliest, in milliseconds since `born` (`adopt.rs`, ADOPT-4).
    strays_due: AtomicU64,
    /// Since when it stands still for a message that is followed, in milliseconds since `born`; 0: it does not.
    still_since: AtomicU64,
    /// Slices of messages that were followed so far.
    followed: AtomicU64,
    /// By how many pages the whole exceeds its share of what it maps together with relatives, when last counted, less
    /// what it has let go of since that they keep: below zero where that is more ([`crate::sharing`], SHARING-1).
    pub discount: AtomicI64,
    /// It may share pages with a relative.
    pub related: AtomicBool,
    /// Writes to what it shares with relatives are guarded.
    pub guarded: AtomicBool,
    /// Its agent has hung up: dropped as soon as the address space is gone.
    pub closing: AtomicBool,
    /// Its agent did not answer, in milliseconds since `born`; 0: it did.
    silent: AtomicU64,
    /// When memory was last refused to it, in milliseconds since `born`; 0: never.
    refused: AtomicU64,
    /// Pages given beyond the budget.
    fed: AtomicU32,
    /// Threads that were told to touch again, and have a page each.
    recalled: AtomicU32,
    /// Pause its threads owe for pages taken above `--memory-high`, in microseconds.
    pub owed_us: AtomicU64,
    /// How long its agent has run, when last looked at, in nanoseconds.
    pub agent_ns: AtomicU64,
    /// The CPU that its agent keeps off (`solo.rs`, FOLLOW-4).
    pub agent_off: AtomicU32,
    /// Faults served, by kind, and how many ticks they took.
    served: [AtomicU64; Kind::COUNT],
    served_ticks: AtomicU64,
    /// The user has been told that a page of it is lost.
    pub told_lost: AtomicBool,
    clock: Clock,
    born: Moment,
}

/// What `Mm::state` protects.
#[derive(Debug)]
pub struct State {
    /// A batch of moves is under way: no message may be read (ORD-1).
    pub busy: bool,
    /// A message is followed that takes several holds, a fork for one: nothing else of it may change
    /// (`following.rs`, ORD-6).
    pub copying: bool,
    /// The address space has ended; nothing is left here.
    pub ended: bool,
    pub space: Space,
    pub areas: Areas,
    pub pool: Pool,
    /// Who waits for these pages is woken when the lock is let go of.
    wakes: Wakes,
    /// How often it was held.
    holds: u32,
}

/// Stretches of pages: first address, bytes.
type Wakes = SmallVec<[(u64, u64); 8]>;

impl State {
    /// Of an address space whose pages are `space`, with at most `window` fetched ahead at once.
    #[must_use]
    pub fn new(mut space: Space, areas: Areas, pool: Pool, window: u32) -> Self {
        space.set_window(window);
        Self {
            busy: false,
            copying: false,
            ended: false,
            space,
            areas,
            pool,
            wakes: Wakes::new(),
            holds: 0,
        }
    }

    /// Pages are in place, or are to be touched again: wakes who waits for them, and not before the lock is
    /// free. Who is woken may run at once, on this CPU, and this thread not before it waits again.
    pub fn wake_after(&mut self, start: u64, len: u64) {
        match self.wakes.last_mut() {
            Some((first, bytes)) if *first + *bytes == start => *bytes += len,
            _ => self.wakes.push((start, len)),
        }
    }
}

impl Mm {
    /// Brings an area under management. False if that cannot be.
    pub fn manage(&self, start: u64, end: u64) -> bool {
        // Frames have no room for the numbers of pages beyond; no kernel hands those out yet.
        end <= ADDRESS_END && self.uffd.register(start, end - start, Mode::Managed).is_ok()
    }

    /// An address space served through `uffd`.
    #[must_use]
    pub fn new(uffd: Box<dyn AddressSpace>, state: State, clock: Clock) -> Self {
        let id = state.space.mm();
        Self {
            id,
            family: id,
            uffd,
            process: OnceLock::new(),
            reached: AtomicBool::new(false),
            bare: false,
            probe: state.pool.start(),
            state: Mutex::new(state),
            quiet: Condvar::new(),
            batch: AtomicBool::new(false),
            longest_hold: AtomicU64::new(0),
            longest_run: AtomicU64::new(0),
            link: OnceLock::new(),
            inherited: Vec::new(),
            calls_by: OnceLock::new(),
            inherited_pins: Some(Vec::new()),
            asked: AtomicU64::new(0),
            alone: AtomicBool::new(false),
            told_stuck: AtomicBool::new(false),
            search: Search::default(),
            known: AtomicI64::new(0),
            backed: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            strays_due: AtomicU64::new(0),
            still_since: AtomicU64::new(0),
            followed: AtomicU64::new(0),
            discount: AtomicI64::new(0),
            related: AtomicBool::new(false),
            guarded: AtomicBool::new(false),
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
            told_lost: AtomicBool::new(false),
            born: clock.moment(),
            clock,
        }
    }

    /// The same of a program that has no hooks of the agent's, if `bare`.
    #[must_use]
    pub fn bare(self, bare: bool) -> Self {
        Self { bare, ..self }
    }

    /// Whether it has none.
    pub fn is_bare(&self) -> bool {
        self.bare
    }

    /// A forked child of a program that has no hooks: it joins once the agent is made to run in it. A new program is joining
    /// already when it is known.
    pub fn is_to_be_made_to_join(&self) -> bool {
        self.bare && self.link.get().is_none() && !self.inherited.is_empty()
    }

    /// The same as a relative of `parent`.
    #[must_use]
    pub fn related_to(mut self, parent: &Self) -> Self {
        self.family = parent.family;
        self.bare = parent.bare;
        self.related.store(true, Ordering::Relaxed);
        self.inherited_pins = parent.pins_of_child();
        let elder = parent.calls_by.get().map_or(&parent.inherited[..], std::slice::from_ref);
        self.inherited = elder.iter().chain(parent.link.get()).cloned().collect();
        let too_many = self.inherited.len().saturating_sub(LINES_MAX);
        self.inherited.drain(..too_many);
        self
    }

    /// The calls that its ring of a bell may be for. One of several is its own: where it calls by an ancestor's line, others
    /// who do so use the same places.
    pub fn calls(&self, bell: usize) -> impl Iterator<Item = (&Link, Caller, Ask)> {
        let own = self.link.get();
        let inherited = self.inherited.iter().rev().filter(move |_| own.is_none());
        let made = move |line| Link::call(line, bell).map(|(caller, ask)| (line, caller, ask));
        own.into_iter().chain(inherited).filter_map(made)
    }

    /// The run is over: said in all memory that its process may look at.
    pub fn tell_end(&self) {
        self.link.get().into_iter().chain(&self.inherited).for_each(Link::end);
    }

    /// It calls by this line, of those that it has inherited.
    pub fn note_line(&self, line: &Link) {
        // Lost only to another who learnt the same.
        let _ = self.calls_by.set(line.clone());
    }

    /// The pages that must stay in a child that is forked now, in order; None: all.
    #[must_use]
    pub fn pins_of_child(&self) -> Option<Vec<u64>> {
        self.link.get().map_or_else(|| self.inherited_pins.clone(), Link::pins)
    }

    /// It has asked for an agent.
    pub fn note_asked(&self) {
        self.asked.store(self.age_ms(), Ordering::Relaxed);
    }

    /// Now, in the time that the host grants.
    pub fn moment(&self) -> Moment {
        self.clock.moment()
    }

    /// For how long the pager has known of it, in the time that the host grants, as everything here is that counts from then.
    pub fn age(&self) -> Duration {
        self.moment().since(self.born)
    }

    /// In milliseconds, and never 0.
    fn age_ms(&self) -> u64 {
        self.age_ms_at(self.moment())
    }

    fn age_ms_at(&self, moment: Moment) -> u64 {
        (moment.since(self.born).as_millis() as u64).max(1)
    }

    /// Begins a search for its process, if it is time for one, for a thread that waits since `touched`.
    pub fn begin_search(&self, touched: Moment) -> bool {
        self.search.begin(self.age_ms(), self.age_ms_at(touched))
    }

    /// New areas were looked for, `all` of them or only beside those that were registered lately (`adopt.rs`, ADOPT-5), and so many
    /// pages are unknown still. What is elsewhere adds up until it is looked for.
    pub fn sought_areas(&self, unknown: u64, all: bool) {
        if all {
            self.unknown.store(unknown, Ordering::Relaxed);
        } else {
            self.unknown.fetch_min(unknown, Ordering::Relaxed);
        }
    }

    /// Runs a search: None if it could not be found out, else whether it was found.
    pub fn search(&self, search: impl FnOnce() -> Option<bool>) {
        let began = self.age_ms();
        if search() == Some(false) {
            self.search.fail(began);
        }
    }

    /// Whether its process is not known, and was sought since then.
    pub fn is_unknown_since(&self, touched: Moment) -> bool {
        self.process().is_none() && self.search.has_failed_since(self.age_ms_at(touched))
    }

    /// It stands still from now on, or goes on.
    pub fn note_still(&self, still: bool) {
        self.still_since.store(if still { self.age_ms() } else { 0 }, Ordering::Relaxed);
    }

    /// A slice of what it stands still for is followed.
    pub fn note_followed(&self) {
        self.followed.fetch_add(1, Ordering::Relaxed);
    }

    /// Slices that were followed, of one that stands still for longer than `time`.
    pub fn followed_beyond(&self, time: Duration) -> Option<u64> {
        let since = self.still_since.load(Ordering::Relaxed);
        let long = since > 0 && Duration::from_millis(self.age_ms().saturating_sub(since)) > time;
        long.then(|| self.followed.load(Ordering::Relaxed))
    }

    /// Whether it is time to look for strays.
    pub fn are_strays_due(&self) -> bool {
        self.age_ms() >= self.strays_due.load(Ordering::Relaxed)
    }

    /// They were looked for, which took so long: at most a fiftieth of the time goes there.
    pub fn sought_strays(&self, took: Duration) {
        let pause = (took * 50).as_millis() as u64;
        self.strays_due.store(self.age_ms() + pause.max(STRAYS_PAUSE_MS), Ordering::Relaxed);
    }

    /// A forked child that may still greet, or has and is still to start its agent.
    pub fn is_infant(&self) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        let waited = || Duration::from_millis(self.age_ms().saturating_sub(asked));
        let grows_up = || !Patience::Childhood.is_over(waited());
        match self.link.get() {
            _ if self.alone.load(Ordering::Relaxed) => false,
            None if asked > 0 => grows_up(),
            None => !Patience::Infancy.is_over(self.age()),
            Some(link) => !link.is_ready() && grows_up(),
        }
    }

    /// Whether there is an agent by whom pages can leave. It may have ended before the address space does, which another
    /// process goes on using.
    pub fn has_agent(&self) -> bool {
        self.link.get().is_some() && !self.closing.load(Ordering::Relaxed)
    }

    /// A forked child that has asked for an agent, and has long waited for it to run.
    pub fn is_late(&self) -> bool {
        let asked = self.asked.load(Ordering::Relaxed);
        asked > 0 && self.age_ms().saturating_sub(asked) > LATE_MS && self.is_infant()
    }

    /// A fault of it has been served, which took so many ticks.
    pub fn note_served(&self, kind: Kind, ticks: u64) {
        self.served[kind as usize].fetch_add(1, Ordering::Relaxed);
        self.served_ticks.fetch_add(ticks, Ordering::Relaxed);
    }

    /// The faults served, by kind, and how many ticks they took together.
    #[must_use]
    pub fn served(&self) -> ([u64; Kind::COUNT], u64) {
        let counts = Kind::ALL.map(|kind| self.served[kind as usize].load(Ordering::Relaxed));
        (counts, self.served_ticks.load(Ordering::Relaxed))
    }

    /// A touch of it found no memory.
    pub fn note_refused(&self) {
        self.refused.store(self.age_ms(), Ordering::Relaxed);
    }

    /// Whether touches of it wait for memory.
    pub fn is_hungry(&self) -> bool {
        let refused = self.refused.load(Ordering::Relaxed);
        refused > 0 && self.age_ms() <= refused + HUNGER_MS
    }

    /// Its agent did not answer a batch.
    pub fn fell_silent(&self) {
        let now = self.age().as_millis() as u64;
        self.silent.store(now.max(1), Ordering::Relaxed);
    }

    /// Anonymous pages, as the kernel counts; of a forked child that has not greeted yet, as we do.
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

    /// Resident pages of files and of shared memory, when [`Mm::resident_pages`] was last asked for.
    pub fn backed_pages(&self) -> u64 {
        self.backed.load(Ordering::Relaxed)
    }

    /// Whether batches are of no use to it for now: its agent does not run yet, or did not answer the
    /// last one, and since then too little time has passed or the process is stopped. Once that time is over
    /// the process is looked at, and what it shows is kept.
    pub fn check_silent(&self) -> bool {
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
        // Looked at again after as long.
        let stopped = self.is_stopped();
        self.silent.store(if stopped { now } else { 0 }, Ordering::Relaxed);
        stopped
    }

    /// Whether it was stopped by a signal or a debugger; not by the brake.
    pub fn is_stopped(&self) -> bool {
        self.process().is_some_and(Process::is_stopped)
    }

    /// Whether a tracer has stopped every thread of it: a touch of its memory is that one's, which shares it.
    pub fn is_traced(&self) -> bool {
        let threads = self.process().map_or_else(Vec::new, Process::threads);
        let mut alive = threads.iter().filter(|(_, state)| !matches!(state, 'Z' | 'X')).peekable();
        alive.peek().is_some() && alive.all(|&(_, state)| state == 't')
    }

    /// Pages given to it beyond the budget while it is an infant.
    pub fn fed(&self) -> u32 {
        if self.is_infant() { self.fed.load(Ordering::Relaxed) } else { 0 }
    }

    /// Takes one more page beyond the budget, if it may: a few are what it needs to become one that can
    /// give some back, and no more than a few.
    pub fn take_extra_page(&self) -> bool {
        self.is_infant() && self.fed.fetch_add(1, Ordering::Relaxed) < INFANT_PAGES
    }

    /// A thread for whose page there was room is told to touch again.
    pub fn recalled(&self) {
        self.recalled.fetch_add(1, Ordering::Relaxed);
    }

    /// Whether there are such threads.
    pub fn has_recalled(&self) -> bool {
        self.recalled.load(Ordering::Relaxed) > 0
    }

    /// Takes one of them off the count: whether a touch is that of such a thread, as far as can be said. Under
    /// the lock.
    pub fn take_recalled(&self) -> bool {
        let recalled = self.recalled.load(Ordering::Relaxed);
        self.recalled.store(recalled.saturating_sub(1), Ordering::Relaxed);
        recalled > 0
    }

    /// So many pages that it shared with relatives are its own now, or theirs alone ([`crate::sharing`], SHARING-1).
    pub fn shares_less(&self, pages: u64) {
        self.discount.fetch_sub(pages.cast_signed(), Ordering::Relaxed);
    }

    /// How many of so many resident pages are its relatives' share, as far as is known.
    pub fn relatives_share(&self, resident: u64) -> u64 {
        self.discount.load(Ordering::Relaxed).max(0).cast_unsigned().min(resident)
    }

    /// Whether the address space still exists.
    pub fn is_alive(&self) -> bool {
        self.uffd.is_alive(self.probe)
    }

    /// It is this process.
    pub fn set_process(&self, process: Box<dyn Process>) {
        // Lost only to another who learnt the same.
        let _ = self.process.set(process);
    }

    /// The process, if it is known which that is.
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

    /// Its number; 0 if it is not known which process it is.
    pub fn pid(&self) -> u32 {
        self.process.get().map_or(0, |process| process.pid())
    }

    /// Reads pages of it from outside: how many, from the front.
    pub fn read_pages(
        &self,
        addresses: &[u64],
        pages: &mut [[u8; PAGE_SIZE]],
    ) -> io::Result<usize> {
        let unknown = || io::Error::other("it is not known yet which process it is");
        self.process().ok_or_else(unknown)?.read_pages(addresses, pages)
    }

    /// The state, whether or not a batch is under way. For what does not read messages and does not
    /// rely on pages staying where they are.
    pub fn lock(&self) -> Held<'_> {
        let state = spin::lock(&self.state);
        Held::new(state, self)
    }

    /// The longest that this lock was held so far.
    pub fn longest_hold_ns(&self) -> u64 {
        self.longest_hold.load(Ordering::Relaxed)
    }

    /// The longest that a thread ran while it held this lock, as far as that was timed.
    pub fn longest_run_ns(&self) -> u64 {
        self.longest_run.load(Ordering::Relaxed)
    }

    /// The state while it does not stand still (ORD-6); None if that does not end within `patience`.
    pub fn lock_settled(&self, patience: Duration) -> Option<Held<'_>> {
        let state = spin::lock(&self.state);
        let (state, _) = self
            .quiet
            .wait_timeout_while(state, self.clock.patience(patience), |state| state.copying)
            .unwrap_or_else(PoisonError::into_inner);
        (!state.copying).then(|| Held::new(state, self))
    }

    /// Whether nobody holds the state.
    #[cfg(test)]
    pub fn is_free(&self) -> bool {
        self.state.try_lock().is_ok()
    }

    /// The state with no batch under way; None if one does not end within `patience`.
    pub fn lock_quiet(&self, patience: Duration) -> Option<Held<'_>> {
        let state = spin::lock(&self.state);
        let (state, timeout) = self
            .quiet
            .wait_timeout_while(state, self.clock.patience(patience), |state| {
                state.busy && !is_broken(Rule::Ord1)
            })
            .unwrap_or_else(PoisonError::into_inner);
        let held = !timeout.timed_out() || !state.busy;
        held.then(|| Held::new(state, self))
    }

    /// A batch begins: no message is read until it is over (ORD-2).
    pub fn begin_batch(&self, state: &mut State) {
        state.busy = !is_broken(Rule::Ord2);
        self.batch.store(true, Ordering::Relaxed);
    }

    /// The batch is over.
    pub fn end_batch(&self, state: &mut State) {
        state.busy = false;
        self.batch.store(false, Ordering::Relaxed);
        self.quiet.notify_all();
    }

    /// Looks for `limit` at most whether a batch ends, before [`Self::lock_quiet`] would sleep for that. For who has
    /// a CPU to itself.
    pub fn watch_batch(&self, limit: Duration) {
        spin::look(limit, || (!self.batch.load(Ordering::Relaxed)).then_some(()));
    }
}

/// The state of an address space, as long as its lock is held; how long that was is noted. Nobody is woken under
/// the lock (WAKE-1): whoever has pages put in place says so ([`State::wake_after`]), and the threads that wait for them
/// are woken here, on every path.
#[derive(Debug)]
pub struct Held<'a> {
    /// Some until it is dropped.
    state: Option<MutexGuard<'a, State>>,
    mm: &'a Mm,
    since: Instant,
    /// What the thread had run by then, if that is timed.
    ran: Option<u64>,
}

impl<'a> Held<'a> {
    fn new(mut state: MutexGuard<'a, State>, mm: &'a Mm) -> Self {
        debug_assert!(state.wakes.is_empty(), "WAKE-1");
        state.holds = state.holds.wrapping_add(1);
        let ran = state.holds.is_multiple_of(HOLDS_TIMED).then(thread_time_ns);
        Self { state: Some(state), mm, since: mm.clock.now(), ran }
    }

    /// The same, for a slice of something: what the thread runs in it is timed.
    #[must_use]
    pub fn timed(mut self) -> Self {
        self.ran = self.ran.or_else(|| Some(thread_time_ns()));
        self
    }
}

impl Deref for Held<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        self.state.as_ref().expect("held")
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        self.state.as_mut().expect("held")
    }
}

impl<'a> Held<'a> {
    /// Lets go of the lock. Who is to be woken is when the value is dropped.
    pub fn unlock(mut self) -> Waking<'a> {
        self.let_go()
    }

    fn let_go(&mut self) -> Waking<'a> {
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

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.state.is_some() {
            drop(self.let_go());
        }
    }
}

/// The threads that are woken when this is dropped (WAKE-1).
#[derive(Debug)]
pub struct Waking<'a> {
    wakes: Wakes,
    mm: &'a Mm,
}

impl Drop for Waking<'_> {
    fn drop(&mut self) {
        for &(start, len) in self.wakes.iter().skip(usize::from(is_broken(Rule::Wake1))) {
            // An address space that has ended has nobody waiting.
            let _ = self.mm.uffd.wake(start, len);
        }
    }
}

/// A page that one address space has, and no other.
#[derive(Debug)]
pub struct Token {
    address: u64,
    page: Box<[u8; PAGE_SIZE]>,
}

impl Token {
    /// A page with this content, put there.
    pub fn new(address: u64, page: Box<[u8; PAGE_SIZE]>) -> Self {
        Self { address, page }
    }

    /// Whether `process` has it.
    pub fn is_seen_by(&self, process: &dyn Process) -> bool {
        if is_broken(Rule::Identity1) {
            return true;
        }
        let mut seen = [[0; PAGE_SIZE]];
        matches!(process.read_pages(&[self.address], &mut seen), Ok(1)) && seen[0] == *self.page
    }
}

/// The ranges that count as registered, disjoint and sorted: those whose pages were taken on. The kernel may have more (ADOPT-6 in
/// `adopt.rs`).
#[derive(Clone, Debug, Default)]
pub struct Areas {
    ranges: std::collections::BTreeMap<u64, u64>,
    /// Addresses in those that were added to lately, and the place for the next.
    recent: [u64; RECENT],
    oldest: usize,
}

/// How many ranges are remembered as added to lately: as many threads fill areas of their own.
const RECENT: usize = 8;

impl Areas {
    /// Adds `[start, end)`, which must not overlap what is there; joins neighbours.
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

    /// The ranges that were added to lately.
    #[must_use]
    pub fn recent(&self) -> Vec<(u64, u64)> {
        let range = |address: &u64| self.ranges.range(..=address).next_back();
        let holding = self.recent.iter().filter_map(|at| range(at).filter(|&(_, end)| end > at));
        holding.map(|(&start, &end)| (start, end)).collect()
    }

    /// Takes `[start, end)` out.
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

    /// What is in `[from, from + len)` lies in `[to, to + len)` now, in place of what was there.
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

    /// The end of the range that `address` lies in.
    #[must_use]
    pub fn end_of(&self, address: u64) -> Option<u64> {
        let (_, &stop) = self.ranges.range(..=address).next_back()?;
        (stop > address).then_some(stop)
    }

    /// The parts of `[start, end)` that are not registered.
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

    /// The first address of `[start, end)` that is not registered.
    #[must_use]
    pub fn next_missing(&self, start: u64, end: u64) -> Option<u64> {
        let mut at = start;
        // Neighbours are one range.
        while at < end
            && let Some(stop) = self.end_of(at)
        {
            at = stop;
        }
        (at < end).then_some(at)
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The ranges.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&start, &end)| (start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::{Areas, Mm, State};
    use crate::children::Wish;
    use crate::fork::show_token;
    use crate::link::{Ask, Link};
    use crate::pool::Pool;
    use crate::quiet::{Quiet, pager};
    use crate::seam::{Clock, Line};
    use ebb_agent::protocol::{ASK_JOIN, CALL_MADE, Shared};
    use ebb_mm::resident::Space;
    use ebb_mm::types::MmId;
    use ebb_sys::shared::SharedMap;
    use ebb_sys::uffd::PlaceError;
    use std::io;
    use std::os::fd::BorrowedFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::time::Duration;

    /// An address space with a pool of 64 places.
    fn with_pool(uffd: Quiet) -> Mm {
        let pool = Pool::new(1 << 30, 64 * 4096, 0);
        let state = State::new(Space::new(MmId(2)), Areas::default(), pool, 8);
        Mm::new(Box::new(uffd), state, Clock::real())
    }

    /// Memory in common with an agent that does nothing.
    #[derive(Debug)]
    struct Mute(SharedMap<Shared>);

    impl Line for Mute {
        fn shared(&self) -> &Shared {
            &self.0
        }

        fn welcome(&self, _: &[u8], _: &[BorrowedFd<'_>]) -> io::Result<()> {
            Ok(())
        }

        fn send_now(&self, _: &[u8]) -> io::Result<Option<()>> {
            Ok(Some(()))
        }

        fn wait(&self, _: &AtomicU32, _: u32, _: Duration) {}

        fn wake(&self, _: &AtomicU32) {}

        fn descriptor(&self) -> Option<BorrowedFd<'_>> {
            None
        }
    }

    /// A line, and its memory to call by.
    fn line() -> (Link, Arc<Mute>) {
        let mute = Arc::new(Mute(SharedMap::create("mute").expect("a mapping").0));
        (Link::new(mute.clone(), Clock::real()), mute)
    }

    /// What an agent does to ask for one of its own.
    fn call(by: &Mute, bell: usize, thread: u64) {
        by.0.calls[bell].what.store(ASK_JOIN, Ordering::Relaxed);
        by.0.calls[bell].a.store(thread, Ordering::Relaxed);
        by.0.calls[bell].state.store(CALL_MADE, Ordering::Relaxed);
    }

    /// What asks, by its thread.
    fn askers(mm: &Mm, bell: usize) -> Vec<u32> {
        let thread = |ask| match ask {
            Ask::Wish(Wish::Join { thread, .. }) => thread,
            other => panic!("{other:?}"),
        };
        mm.calls(bell).map(|(_, _, ask)| thread(ask)).collect()
    }

    /// As many pages more as are not worth a look came with each, in an area that nobody had found, and none ever was.
    #[test]
    fn what_is_unknown_elsewhere_adds_up() {
        let mm = with_pool(Quiet::default());
        let unknown = |left, all| {
            mm.sought_areas(left, all);
            mm.unknown.load(Ordering::Relaxed)
        };
        assert_eq!(unknown(10, true), 10);
        assert_eq!(unknown(70, false), 10);
        assert_eq!(unknown(4, false), 4);
        assert_eq!(unknown(90, true), 90);
    }

    /// Two generations forked before their agents had their own memory: the third called by that of the first, which
    /// had been forgotten, and was not heard.
    #[test]
    fn a_child_is_heard_by_the_line_of_any_ancestor_that_forked_in_its_start() {
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
        // Not for ever, where it is known by which they call.
        let called = child.calls(3).next().expect("it calls").0.clone();
        child.note_line(&called);
        child.link.set(line().0).expect("had none");
        let grandchild = child_of(&child);
        assert_eq!(grandchild.inherited.len(), 2);
        assert_eq!(askers(&grandchild, 3), [5]);
    }

    /// One who calls by the parent's memory and one who calls by its parent's use the same place at the same time: the call
    /// of the nearer one was taken for both.
    #[test]
    fn calls_at_the_same_place_of_two_ancestors_are_both_heard() {
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
        // Who has a line of its own calls by no other.
        assert_eq!(askers(&mm, 0), [2]);
    }

    /// A static program that was known and had yet to get its line was given the agent again, as a child that had none, and
    /// counted as one that can have none.
    #[test]
    fn only_a_child_of_a_program_without_hooks_is_made_to_join() {
        let new = with_pool(Quiet::default()).bare(true);
        assert!(!new.is_to_be_made_to_join(), "it is joining");
        new.link.set(line().0).expect("had none");
        let child = with_pool(Quiet::default()).related_to(&new);
        assert!(child.is_to_be_made_to_join());
        let grandchild = with_pool(Quiet::default()).related_to(&child);
        assert!(grandchild.is_to_be_made_to_join());
        child.link.set(line().0).expect("had none");
        assert!(!child.is_to_be_made_to_join());
    }

    /// It is a page more until then, and one place of its pool less.
    #[test]
    fn a_token_counts_until_its_place_is_dropped() {
        let (pager, mm) = (pager(), with_pool(Quiet::default()));
        let mut state = mm.lock();
        for turn in 1..=3 {
            let token = show_token(&pager, &mm, &mut state);
            assert!(token.is_ok(), "turn {turn}");
            assert_eq!((state.pool.used(), state.pool.retired()), (0, 1), "to be dropped");
            assert_eq!(mm.known.load(Ordering::Relaxed), 1);
            assert_eq!(pager.resident().zone.held(), 1);
            // As `commit_drop` does.
            let runs = state.pool.retired_runs(64);
            assert_eq!(runs.len(), 1);
            runs.into_iter().for_each(|run| state.pool.dropped(run));
            mm.dropped(&mut pager.resident().zone, 1, 0);
            assert_eq!((state.pool.retired(), state.pool.undropped()), (0, 0), "free again");
            assert_eq!((mm.known.load(Ordering::Relaxed), pager.resident().zone.held()), (0, 0));
        }
    }

    /// A child was told apart by nothing once all of its places had been used up so.
    #[test]
    fn a_token_that_cannot_be_put_there_gives_its_place_back() {
        let pager = pager();
        for error in [PlaceError::Changing, PlaceError::Gone, PlaceError::NoMemory] {
            let mm = with_pool(Quiet { fails: Some(error), ..Quiet::default() });
            let mut state = mm.lock();
            for _ in 0..200 {
                assert_eq!(show_token(&pager, &mm, &mut state).err(), Some(error));
            }
            assert_eq!((state.pool.used(), state.pool.retired()), (0, 0), "{error:?}");
            assert_eq!((mm.known.load(Ordering::Relaxed), pager.resident().zone.held()), (0, 0));
        }
        // Where something is already, nobody knows what: it is dropped before the place is used.
        let mm = with_pool(Quiet { fails: Some(PlaceError::Exists), ..Quiet::default() });
        let mut state = mm.lock();
        assert!(show_token(&pager, &mm, &mut state).is_err());
        assert_eq!((state.pool.used(), state.pool.retired()), (0, 1));
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

    /// A REMAP added all of where it went: of an area that was being taken on the rest never was.
    #[test]
    fn what_moves_counts_as_registered_as_far_as_it_did() {
        let mut areas = Areas::default();
        areas.add(10, 15);
        areas.add(25, 40);
        areas.shift(12, 32, 18);
        assert_eq!(areas.iter().collect::<Vec<_>>(), [(10, 12), (30, 35), (45, 50)]);
    }
}
