//! The fault threads: answer page faults and follow mapping changes.
//!
//! A fault thread waits for no device and for no memory. It waits for a batch of an agent for
//! [`BATCH_PATIENCE`] at most. A fault on a page in a file or on a server begins a load
//! (`loads.rs`). Any other fault that cannot be answered at once is deferred. The first fault
//! thread retries deferred faults when kswapd wakes it, and every millisecond. Usually the first
//! fault thread is the only active one. On a machine of two CPUs, each CPU has a fault thread while
//! several threads of the program fault (`fault_threads/cpu_follow.rs`). Any fault thread may read
//! any message. The messages of an address space keep their order, because threads read and handle
//! them under its lock (ORD-1).

pub mod arrivals;
pub mod busy_poll;
pub mod following;
pub mod fork;
pub mod hidden;
pub mod loads;
pub mod look_around;
pub mod pending;
pub mod slow_work;

use crate::fault_threads::{
    EPOLL_KEY_STORE, EPOLL_KEY_WAKE, FaultThreads, epoll_key_link, epoll_key_uffd,
};
use crate::mm::link::{Ask, JoinRequest, Link};
use crate::mm::{Mm, MmGuard, State, cow_protect, unmapped};
use crate::pager::Pager;
use crate::processes::candidates::Candidate;
use crate::processes::identify;
use crate::seam::{Event, make_own_calls};
use crate::telemetry::counters;
use crate::telemetry::events::Why;
use crate::telemetry::pressure::Stall;
use crate::telemetry::stages::{Kind, Ledger, Served};
use crate::wait::limits::{BATCH_PATIENCE, BATCH_WATCH, SERVED_PAGES};
use crate::wait::patience::{Moment, Patience};
use arrivals::Arrived;
use busy_poll::BusyPoll;
use ebb_mm::driver::{BESIDE_MAX, FRESH_AHEAD_MAX};
use ebb_mm::readahead::Window;
use ebb_mm::resident::{Arrival, Charge, Entry};
use ebb_mm::types::{MmId, PAGE_SIZE, Vpn};
use ebb_sys::anon::PageBuffer;
use ebb_sys::ticks;
use ebb_sys::uffd::PlaceError;
use following::Following;
use pending::{Pending, SlowWork};
use rustix::event::epoll;
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Time for which an additional fault thread still listens after it is no longer needed.
const LISTEN: Duration = Duration::from_millis(5);
/// Time until deferred faults are retried if no event announces that they can be answered.
const RETRY: Duration = Duration::from_millis(1);
/// Limits of a throttling pause, in microseconds. Shorter pauses add up until one is long enough. A
/// longer pause would block the thread for too long.
const PAUSE_MIN_US: u64 = 10_000;
const PAUSE_MAX_US: u64 = 2_000_000;

/// Limit of the pages beyond the budget for all children without an agent together.
const EXTRA_PAGES_MAX: u32 = 512;

const UNREADABLE_TEXT: &str = "the pager cannot read the process, and the process has no agent";

static ZEROS: [u8; (1 + FRESH_AHEAD_MAX) * PAGE_SIZE] = [0; (1 + FRESH_AHEAD_MAX) * PAGE_SIZE];

/// A page fault.
pub struct PageFault {
    pub mm: Arc<Mm>,
    pub address: u64,
    /// Whether the fault is a write to a present write-protected page.
    pub protected: bool,
    pub thread: u32,
    pub since: Instant,
    pub moment: Moment,
    pub asked: Asked,
    /// Times at which the fetch of the page began and at which the page was available, in ticks; 0
    /// if not set.
    pub begun: Cell<u64>,
    pub got: Cell<u64>,
    /// Pages to fetch beside the faulting page.
    pub window: Window,
    /// Stall in the pressure record, if the fault was not served at once. The load that the fault
    /// begins or joins takes the stall over.
    pub stall: Cell<Option<Stall>>,
    /// Whether the last attempt to answer found no memory.
    pub refused: Cell<bool>,
}

impl PageFault {
    /// Creates the fault of a message.
    fn of(mm: &Arc<Mm>, event: Event, (since, asked): When) -> Self {
        let Event::Fault { address, protected, thread, .. } = event else {
            unreachable!("changes are followed first");
        };
        Self {
            mm: mm.clone(),
            address: address & !(PAGE_SIZE as u64 - 1),
            protected,
            thread,
            since,
            moment: mm.age.moment(),
            asked,
            begun: Cell::new(0),
            got: Cell::new(0),
            window: Window::NONE,
            stall: Cell::default(),
            refused: Cell::default(),
        }
    }
}

/// Thread number of a fault that no thread has caused: readahead or a detach wants the page.
pub const NO_THREAD: u32 = 0;

/// Time at which a message was read, and time needed to get the lock for that, both in ticks.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub read: u64,
    pub lock: u64,
}

/// Time at which a message was read, as an instant and in ticks.
type When = (Instant, Asked);

/// Result of the attempt to answer a page fault.
pub enum Answer {
    /// The thread runs on, now or when its load completes.
    Given,
    /// The fault must be retried, for example because there is no memory or the mapping is
    /// changing.
    Later,
}

/// One fault thread.
pub struct Server {
    pub pager: Arc<Pager>,
    pub pending: Arc<Pending>,
    /// Whether this is the first fault thread, which retries the faults that any fault thread has
    /// deferred.
    first: bool,
    /// Set while deferred faults are retried in their order: whether one of them found no memory.
    retrying: Option<bool>,
    /// Buffers for the faulting page and for the pages beside it.
    pub buffer: PageBuffer,
    pub beside: PageBuffer,
    pub arrived: Arrived,
    events: Vec<Event>,
    /// Faults served in this hold of a lock. [`Self::unlock_and_wake`] counts them when it wakes
    /// the threads.
    served: RefCell<Vec<Served>>,
    ledger: Arc<Ledger>,
}

/// Messages of an address space that are read but not followed yet, and the time of reading.
pub struct UnfollowedMessages {
    events: Vec<Event>,
    when: When,
}

/// Runs the first fault thread.
pub fn run(pager: &Arc<Pager>, pending: &Arc<Pending>) {
    make_own_calls();
    pager.faults.cpu_follow.begin(pager.config.cpu_follow);
    let mut server = Server::new(pager, pending, true);
    let mut ready = Vec::with_capacity(64);
    let mut busy_poll = BusyPoll::default();
    loop {
        let timeout = server.patience();
        // With a timeout of zero a message is being followed, so the thread does not wait.
        let waits = timeout != Some(Duration::ZERO);
        let found = waits && pager.faults.cpu_follow.is_on() && server.has_loads() && {
            let found = look(&pager.faults, &mut ready, busy_poll.time());
            busy_poll.ended(found);
            found
        };
        if !found {
            wait(&pager.faults.epoll, &mut ready, timeout);
        }
        server.turn(&ready);
    }
}

/// Polls for ready descriptors for at most `limit`. Returns whether it found any.
fn look(threads: &FaultThreads, ready: &mut Vec<u64>, limit: Duration) -> bool {
    let began = Instant::now();
    loop {
        wait(&threads.epoll, ready, Some(Duration::ZERO));
        if !ready.is_empty() {
            return true;
        }
        if began.elapsed() > limit {
            return false;
        }
    }
}

/// Runs the additional fault thread of the CPU with index `place` among the available CPUs.
pub fn run_beside(pager: &Arc<Pager>, pending: &Arc<Pending>, place: usize) {
    make_own_calls();
    pager.faults.cpu_follow.begin_beside(place);
    let mut server = Server::new(pager, pending, false);
    let mut ready = Vec::with_capacity(64);
    loop {
        pager.faults.cpu_follow.await_call(place);
        wait(&pager.faults.epoll_beside[place], &mut ready, Some(LISTEN));
        server.turn(&ready);
    }
}

fn wait(epoll: &OwnedFd, ready: &mut Vec<u64>, timeout: Option<Duration>) {
    ready.clear();
    let timeout = timeout.map(|limit| rustix::event::Timespec {
        tv_sec: limit.as_secs() as i64,
        tv_nsec: i64::from(limit.subsec_nanos()),
    });
    let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
    match epoll::wait(epoll, &mut events, timeout.as_ref()) {
        Ok((events, _)) => ready.extend(events.iter().map(|event| event.data.u64())),
        Err(rustix::io::Errno::INTR) => {}
        Err(error) => panic!("epoll: {error}"),
    }
}

impl Server {
    /// Creates a fault thread's state.
    pub fn new(pager: &Arc<Pager>, pending: &Arc<Pending>, first: bool) -> Self {
        Self {
            pager: pager.clone(),
            pending: pending.clone(),
            first,
            retrying: None,
            buffer: PageBuffer::new(1),
            beside: PageBuffer::new(BESIDE_MAX),
            arrived: Arrived::default(),
            events: Vec::new(),
            served: RefCell::default(),
            ledger: pager.telemetry.account.begin(),
        }
    }

    /// Returns whether loads are under way.
    fn has_loads(&self) -> bool {
        !self.pending.lock().loads.is_empty()
    }

    /// Returns how long the thread may wait for the next event.
    fn patience(&self) -> Option<Duration> {
        let pending_state = self.pending.lock();
        if !pending_state.following.is_empty() {
            return Some(Duration::ZERO);
        }
        (!pending_state.deferred.is_empty() || !pending_state.pausing.is_empty()).then_some(RETRY)
    }

    /// Serves the ready descriptors. The first fault thread also follows long messages and retries
    /// deferred faults.
    pub fn turn(&mut self, ready: &[u64]) {
        for &token in ready {
            self.serve(token);
        }
        if self.first {
            self.fetch_wanted();
            self.follow();
            self.end_pauses();
            self.retry();
        }
    }

    /// Queues the pages that a detach wants back as if a thread had faulted on each.
    fn fetch_wanted(&self) {
        if !self.pager.run.detach.is_on() {
            return;
        }
        let asked = Asked { read: ticks::now(), lock: 0 };
        let now = self.pager.clock.now();
        let fault = |(mm, vpn): (Arc<Mm>, Vpn)| {
            let event = Event::Fault {
                address: vpn.address(),
                write: false,
                protected: false,
                thread: NO_THREAD,
            };
            PageFault::of(&mm, event, (now, asked))
        };
        let wanted = self.pager.run.detach.take_wanted();
        self.pending.lock().deferred.extend(wanted.into_iter().map(fault));
    }

    /// Wakes the first fault thread, because there is work that it must go on with (PENDING-1).
    fn hand_on(&self) {
        if !self.first {
            self.pager.faults.wake();
        }
    }

    fn serve(&mut self, token: u64) {
        match token {
            EPOLL_KEY_WAKE => self.pager.faults.clear_wake(),
            EPOLL_KEY_STORE => self.take_completions(),
            _ => {
                let Some(mm) = self.pager.mm(MmId((token >> 2) as u32)) else { return };
                if token == epoll_key_uffd(mm.id) {
                    self.drain(&mm);
                } else if token == epoll_key_link(mm.id) {
                    // The process ends or executes another program. The pager serves its pages
                    // until the address space is gone, because no thread may ever see a hole.
                    mm.agent.close();
                    self.pager.faults.unwatch(mm.agent.link().and_then(Link::descriptor));
                    self.pager.run.wake_monitor();
                }
            }
        }
    }

    /// Reads and handles all messages of an address space.
    fn drain(&mut self, mm: &Arc<Mm>) {
        loop {
            if self.pending.lock().is_followed(mm) {
                return;
            }
            let began = ticks::now();
            if self.pager.faults.cpu_follow.is_on() {
                mm.state.watch_batch(BATCH_WATCH);
            }
            let Some(state) = mm.lock_quiet(BATCH_PATIENCE) else { return };
            if state.ended {
                return;
            }
            let mut events = std::mem::take(&mut self.events);
            events.clear();
            let lock = ticks::since(began, ticks::now());
            let read = mm.uffd.read(&mut events);
            let now = self.pager.clock.now();
            let asked = Asked { read: ticks::now(), lock };
            let count = events.len();
            put_changes_first(&mut events);
            self.follow_messages(mm, state, &mut events, (now, asked), false);
            self.events = events;
            match read {
                Ok(_) if count == 0 => return,
                Ok(_) => {}
                Err(error) => {
                    if mm.uffd.is_alive() {
                        // No thread would answer the faults of this address space any more.
                        self.pager.complain(&format!(
                            "cannot read a userfaultfd ({error}); the program is killed"
                        ));
                        self.pager.kill_tree(Why::NotServed);
                    }
                    self.pager.faults.unwatch(mm.uffd.descriptor());
                    mm.agent.close();
                    self.pager.run.monitor.raise();
                    return;
                }
            }
        }
    }

    /// Follows the messages of an address space, changes first. A message that takes several holds
    /// is deferred, and the messages after it are deferred with it. `late` says that the messages
    /// were read some time ago.
    fn follow_messages<'a>(
        &mut self,
        mm: &'a Arc<Mm>,
        mut state: MmGuard<'a>,
        events: &mut Vec<Event>,
        when: When,
        mut late: bool,
    ) {
        events.reverse();
        while !self.follow_in_hold(mm, &mut state, events, when, late) {
            // The threads whose pages are placed run on. The remaining messages are faults, which
            // now count as deferred.
            self.unlock_and_wake(mm, state);
            late = true;
            match mm.lock_quiet(BATCH_PATIENCE) {
                Some(held) if held.ended => return events.clear(),
                Some(held) => state = held,
                None => {
                    for event in events.drain(..).rev() {
                        self.defer_fault(PageFault::of(mm, event, when));
                    }
                    return;
                }
            }
        }
        self.unlock_and_wake(mm, state);
    }

    /// Follows messages for one hold of the lock; `events` are in reverse order. Returns false if
    /// some are left.
    fn follow_in_hold(
        &mut self,
        mm: &Arc<Mm>,
        state: &mut State,
        events: &mut Vec<Event>,
        when: When,
        late: bool,
    ) -> bool {
        let mut pages = 0;
        while let Some(event) = events.pop() {
            let mut following = match Following::begin(&self.pager, mm, state, event) {
                Ok(following) => following,
                Err(event) => {
                    pages += self.handle(mm, state, event, when, late);
                    if pages >= SERVED_PAGES && !events.is_empty() {
                        return false;
                    }
                    continue;
                }
            };
            if following.has_slow_work() || !following.go_on(&self.pager, state) {
                self.defer_message(
                    following,
                    UnfollowedMessages { events: events.drain(..).rev().collect(), when },
                );
                return true;
            }
            following.end(&self.pager, state);
        }
        true
    }

    /// Defers a message that takes longer, to another turn or until its slow work is done.
    fn defer_message(&self, following: Following, unfollowed: UnfollowedMessages) {
        if following.has_slow_work() {
            self.pending.send(SlowWork::Follow(following, unfollowed));
            return;
        }
        self.pending.lock().following.push_back((following, unfollowed));
        self.hand_on();
    }

    /// Follows a slice of the oldest deferred message.
    fn follow(&mut self) {
        let next = self.pending.lock().following.pop_front();
        let Some((mut following, unfollowed)) = next else { return };
        let mm = following.mm().clone();
        let mut state = mm.lock().timed();
        if !following.go_on(&self.pager, &mut state) {
            drop(state);
            self.defer_message(following, unfollowed);
            return;
        }
        following.end(&self.pager, &mut state);
        let UnfollowedMessages { mut events, when } = unfollowed;
        self.follow_messages(&mm, state, &mut events, when, true);
    }

    /// Releases the lock, counts the served faults and wakes their threads.
    pub fn unlock_and_wake(&mut self, mm: &Mm, state: MmGuard<'_>) {
        let _waking = state.unlock();
        let served = self.served.get_mut();
        if served.is_empty() {
            return;
        }
        // The fault thread counts before it wakes the others. On a shared CPU it runs again only
        // when the program waits.
        let woken = ticks::now();
        for served in served.drain(..) {
            self.ledger.note(&served, woken);
            mm.served.note(served.kind, ticks::since(served.read, woken));
            self.pager.telemetry.account.look(mm, &served, woken);
        }
    }

    /// Records that a fault is answered. Its thread is woken when the lock is released.
    pub fn note_served(&self, fault: &PageFault, kind: Kind) {
        if fault.thread == NO_THREAD {
            return;
        }
        let Asked { read, lock } = fault.asked;
        let placed = ticks::now();
        // An unset time means that the page was found, not fetched.
        let at = |mark: &Cell<u64>, or: u64| if mark.get() == 0 { or } else { mark.get() };
        let got = at(&fault.got, placed);
        let begun = at(&fault.begun, got);
        let (thread, since) = (fault.thread, fault.since);
        let served = Served { kind, thread, since, lock, read, begun, got, placed };
        self.served.borrow_mut().push(served);
    }

    /// Handles a message that takes one hold only. Returns an upper bound of the pages that it
    /// placed.
    fn handle(
        &mut self,
        mm: &Arc<Mm>,
        state: &mut State,
        event: Event,
        when: When,
        late: bool,
    ) -> u32 {
        match event {
            Event::Fault { address, write, protected, thread } => {
                let address = address & !(PAGE_SIZE as u64 - 1);
                self.pager.faults.cpu_follow.note(thread);
                identify::learn_process(&*self.pager.host, &self.pager.budget, mm, state, thread);
                let vpn = Vpn::of_address(address);
                if let Some(recorder) = &self.pager.telemetry.recorder {
                    recorder.note(mm.id, [vpn], write || protected);
                }
                if let Some(sampling) = &self.pager.telemetry.sampling {
                    let fresh = state.space.get(vpn) == Entry::None;
                    sampling.note(mm.id, vpn, fresh, self.pager.clock.now());
                }
                let window = match state.space.get(vpn) {
                    Entry::None | Entry::Standby(_) | Entry::Stored { loading: false, .. }
                        // A process that will have no agent gives nothing back, so it gets only the
                        // pages on which it faults.
                        if self.pager.config.readahead_pages > 0
                            && (mm.agent.is_there() || mm.agent.is_starting()) =>
                    {
                        state.space.miss(vpn)
                    }
                    _ => Window::NONE,
                };
                let fault = PageFault { window, ..PageFault::of(mm, event, when) };
                if let Some(until) = self.pause(mm, &fault) {
                    fault.stall.set(Some(self.pager.telemetry.pressure.stall()));
                    self.pending.lock().pausing.push((until, fault));
                    self.hand_on();
                    return 1;
                }
                let answer = match late {
                    true => self.answer_late(mm, state, &fault),
                    false => self.answer(mm, state, &fault),
                };
                if let Answer::Later = answer {
                    self.defer_fault(fault);
                }
                1 + window.count
            }
            Event::Remove { start, .. } => {
                let doorbell = state.pool.doorbell(start).expect("all others are followed");
                self.answer_call(mm, state, doorbell);
                0
            }
            Event::Fork(_) | Event::Unmap { .. } | Event::Remap { .. } => unreachable!("followed"),
        }
    }

    /// Returns the end of the pause that a fault owes, because its process took pages above
    /// `--memory-high`. Reclaim goes on meanwhile. Agents and starting children never pause,
    /// because other threads need them to make progress.
    fn pause(&self, mm: &Mm, fault: &PageFault) -> Option<Instant> {
        let us = self.pager.resident().zone.penalty_us();
        // A recalled thread has paused before. A second pause could keep it from ever making
        // progress.
        let exempt =
            mm.agent.is_starting() || mm.stall.has_recalled() || mm.agent.is_thread(fault.thread);
        if us == 0 || exempt {
            return None;
        }
        let owed = mm.stall.owed_us.fetch_add(us, Relaxed) + us;
        if owed < PAUSE_MIN_US {
            return None;
        }
        mm.stall.owed_us.store(0, Relaxed);
        let pause = owed.min(PAUSE_MAX_US);
        counters::add(&self.pager.telemetry.counters.throttled_us, pause);
        Some(fault.since + Duration::from_micros(pause))
    }

    /// Moves the faults whose pause is over to the deferred faults.
    fn end_pauses(&mut self) {
        let now = self.pager.clock.now();
        let mut pending_state = self.pending.lock();
        let pending_state = &mut *pending_state;
        let over = pending_state.pausing.extract_if(.., |(until, _)| *until <= now);
        pending_state.deferred.extend(over.map(|(_, fault)| fault));
    }

    pub fn defer_fault(&self, fault: PageFault) {
        fault.stall.set(Some(self.stall(&fault)));
        {
            let mut pending_state = self.pending.lock();
            if fault.refused.get() {
                let budget = &self.pager.budget;
                // If other faults wait already, one of them has waited for longer.
                if budget.memory_stalled.load(Relaxed) == 0 {
                    budget.memory_stalled_since_ms.store(fault.moment.ms(), Relaxed);
                }
                budget.memory_stalled.fetch_add(1, Relaxed);
            }
            pending_state.deferred.push_back(fault);
            self.pager.faults.deferred.store(pending_state.deferred.len() as u32, Relaxed);
        }
        self.hand_on();
    }

    /// Records how many faults wait for memory and since when. Other deferred faults wait for
    /// something else (`reclaim/oom.rs`).
    fn note_memory_stalled(&self) {
        let pending_state = self.pending.lock();
        let (mut count, mut oldest) = (0, None);
        for fault in pending_state.deferred.iter().filter(|fault| fault.refused.get()) {
            count += 1;
            oldest = oldest.into_iter().chain([fault.moment]).min();
            fault.mm.stall.note_refused();
        }
        let oldest = oldest.map_or(0, Moment::ms);
        self.pager.budget.memory_stalled_since_ms.store(oldest, Relaxed);
        self.pager.budget.memory_stalled.store(count, Relaxed);
        self.pager.faults.deferred.store(pending_state.deferred.len() as u32, Relaxed);
    }

    /// Returns the stall that the fault has begun, or a new one: a thread stalls once.
    pub fn stall(&self, fault: &PageFault) -> Stall {
        fault.stall.take().unwrap_or_else(|| self.pager.telemetry.pressure.stall())
    }

    fn retry(&mut self) {
        let count = self.pending.lock().deferred.len();
        if count == 0 {
            return;
        }
        self.retrying = Some(false);
        for _ in 0..count {
            let Some(fault) = self.pending.lock().deferred.pop_front() else { break };
            let mm = fault.mm.clone();
            let answer = match mm.lock_quiet(Duration::ZERO) {
                Some(state) if state.ended => Answer::Given,
                Some(mut state) => {
                    let answer = self.answer_late(&mm, &mut state, &fault);
                    self.unlock_and_wake(&mm, state);
                    answer
                }
                None => Answer::Later,
            };
            if let Answer::Later = answer {
                self.pending.lock().deferred.push_back(fault);
            }
        }
        self.pending.set_fifo_blocked(self.retrying.take() == Some(true));
        self.note_memory_stalled();
    }

    /// Answers a fault that was not answered when it was read.
    fn answer_late(&mut self, mm: &Arc<Mm>, state: &mut State, fault: &PageFault) -> Answer {
        fault.refused.set(false);
        let vpn = Vpn::of_address(fault.address);
        let still = if fault.protected { Some(true) } else { unmapped::still(mm, vpn) };
        match (still, state.space.get(vpn)) {
            (Some(false), _) => self.not_placed(mm, state, fault, PlaceError::Exists),
            (None, Entry::None | Entry::Resident(_)) => self.recall(mm, state, fault),
            _ => self.answer(mm, state, fault),
        }
    }

    /// Makes a thread repeat its access, as soon as there is room for a page. The pager cannot see
    /// by now whether the address is still unmapped (UNMAPPED-3 in `mm/unmapped.rs`). The next
    /// fault of the process needs no room, because this one has found some.
    fn recall(&mut self, mm: &Arc<Mm>, state: &mut State, fault: &PageFault) -> Answer {
        let Some(charge) = self.try_charge_fault(mm, fault) else { return Answer::Later };
        self.give_back(charge);
        mm.stall.add_recalled();
        self.not_placed(mm, state, fault, PlaceError::Exists)
    }

    /// Answers one fault (ORD-3).
    fn answer(&mut self, mm: &Arc<Mm>, state: &mut State, fault: &PageFault) -> Answer {
        if mm.is_stuck() {
            // MAPLOCK-5: an answer could wait for the lock, too.
            return Answer::Later;
        }
        let vpn = Vpn::of_address(fault.address);
        match state.space.get(vpn) {
            _ if fault.protected => self.unprotect(mm, state, fault, vpn),
            Entry::None => self.fresh(mm, state, fault, vpn),
            Entry::Resident(_) => self.stale(mm, state, fault),
            Entry::Standby(pfn) => {
                let pool = self.pager.resident().frame(pfn).pool;
                let answer = self.reactivate(mm, state, fault, pool);
                self.look_around(mm, state, fault);
                self.load_beside(mm, state, fault);
                answer
            }
            Entry::Stored { loading: true, .. } => self.join_load(fault),
            Entry::Stored { slot, loading: false, .. } => self.load(mm, state, fault, vpn, slot),
        }
    }

    /// Charges one page to the budget. A recalled thread has found room before, and needs none now.
    pub fn charge(&mut self, mm: &Mm, fault: &PageFault) -> Option<Charge> {
        if mm.stall.take_recalled() {
            return Some(self.pager.resident().zone.charge(1));
        }
        self.try_charge_fault(mm, fault)
    }

    /// Charges one page for a fault, if there is room and no earlier fault waits for room. Some
    /// threads get a page even if none is left, because others cannot give pages back without them.
    /// These are the threads of a starting child or of a child without an agent, and an agent at
    /// work.
    fn try_charge_fault(&mut self, mm: &Mm, fault: &PageFault) -> Option<Charge> {
        let (mut charge, low) = {
            let mut resident = self.pager.resident();
            let charge =
                if !self.is_fifo_blocked() { resident.zone.try_charge(1, 0) } else { None };
            (charge, resident.zone.is_low())
        };
        if charge.is_none()
            && (self.may_take_extra_page() && mm.take_extra_page()
                || mm.agent.is_thread(fault.thread))
        {
            charge = Some(self.pager.resident().zone.charge(1));
        }
        if low || charge.is_none() {
            self.pager.budget.wake_kswapd();
        }
        if charge.is_none() {
            fault.refused.set(true);
            match &mut self.retrying {
                Some(failed) => *failed = true,
                None => self.pending.set_fifo_blocked(true),
            }
        }
        charge
    }

    /// Returns whether a fault that has waited for longer found no memory.
    fn is_fifo_blocked(&self) -> bool {
        self.retrying.unwrap_or_else(|| self.pending.is_fifo_blocked())
    }

    /// Returns whether children without an agent may get another page beyond the budget. The limit
    /// is enough for several of them at once.
    fn may_take_extra_page(&self) -> bool {
        self.pager.mms().iter().map(|mm| mm.extra_pages()).sum::<u32>() < EXTRA_PAGES_MAX
    }

    pub fn give_back(&self, charge: Charge) {
        self.pager.resident().zone.give_back(charge);
    }

    /// Charges up to `wanted` pages that are fetched ahead. The reserve stays for pages on which a
    /// thread has faulted.
    pub fn charge_ahead(&self, wanted: usize) -> Charge {
        let wanted = if self.is_fifo_blocked() { 0 } else { wanted as u64 };
        self.pager.resident().zone.charge_spare(wanted)
    }

    /// Places zeros for a page that was never stored. In a sequential pass over fresh memory the
    /// next few pages are placed with it.
    fn fresh(&mut self, mm: &Arc<Mm>, state: &mut State, fault: &PageFault, vpn: Vpn) -> Answer {
        let Some(charge) = self.charge(mm, fault) else { return Answer::Later };
        let beside = unmapped::run(mm, Vpn(vpn.0 + 1), fresh_beside(state, fault));
        let mut charge = charge.and(self.charge_ahead(beside));
        let ahead = charge.pages() as usize - 1;
        fault.begun.set(ticks::now());
        self.end_wait(fault);
        let mut placed = mm.uffd.copy(fault.address, &ZEROS[..(1 + ahead) * PAGE_SIZE]);
        if ahead > 0 && matches!(placed, Err((0, _))) {
            // The next pages may belong to another area or to none.
            placed = match mm.uffd.copy(fault.address, &ZEROS[..PAGE_SIZE]) {
                Ok(()) => Err((PAGE_SIZE as u64, PlaceError::Exists)),
                failed => failed,
            };
        }
        let pages = match placed {
            Ok(()) => 1 + ahead as u64,
            Err((bytes, _)) => bytes / PAGE_SIZE as u64,
        };
        {
            let mut resident = self.pager.resident();
            mm.place(&mut resident.zone, charge.split(pages));
            resident.zone.give_back(charge);
            for page in 0..pages {
                let how = if page == 0 { Arrival::Fresh } else { Arrival::Ahead };
                resident.map(&mut state.space, Vpn(vpn.0 + page), how, None);
            }
        }
        if let Some(sampling) = &self.pager.telemetry.sampling {
            let now = self.pager.clock.now();
            (1..pages).for_each(|page| sampling.note(mm.id, Vpn(vpn.0 + page), true, now));
        }
        match placed {
            Err((0, error)) => self.not_placed(mm, state, fault, error),
            _ => {
                state.wake_after(fault.address, pages * PAGE_SIZE as u64);
                counters::count(&self.pager.telemetry.counters.faults_fresh);
                counters::add(&self.pager.telemetry.counters.zeros_ahead, pages - 1);
                self.note_served(fault, Kind::Zero);
                Answer::Given
            }
        }
    }

    /// Answers the first write to a write-protected page. Either the page is the kernel's zero
    /// page, mapped before its area was registered. Or the page is shared in the fork group.
    fn unprotect(
        &mut self,
        mm: &Arc<Mm>,
        state: &mut State,
        fault: &PageFault,
        vpn: Vpn,
    ) -> Answer {
        let known = matches!(state.space.get(vpn), Entry::Resident(_));
        if known && let Some(pages) = cow_protect::own_run(mm, state, vpn) {
            let bytes = pages * PAGE_SIZE as u64;
            return match mm.uffd.unprotect(fault.address, bytes) {
                Ok(()) => {
                    state.wake_after(fault.address, bytes);
                    self.note_served(fault, Kind::Protected);
                    Answer::Given
                }
                Err(error) => self.not_placed(mm, state, fault, error),
            };
        }
        let Some(charge) = self.charge(mm, fault) else { return Answer::Later };
        self.end_wait(fault);
        match mm.uffd.unprotect(fault.address, PAGE_SIZE as u64) {
            Ok(()) => {
                state.wake_after(fault.address, PAGE_SIZE as u64);
                let mut resident = self.pager.resident();
                if state.space.get(vpn) == Entry::None {
                    mm.place(&mut resident.zone, charge);
                    resident.map(&mut state.space, vpn, Arrival::Fresh, None);
                    counters::count(&self.pager.telemetry.counters.faults_fresh);
                } else if known && mm.fork_group.is_related() {
                    mm.note_copied(&mut resident.zone, charge);
                    counters::count(&self.pager.telemetry.counters.faults_copied);
                } else {
                    resident.zone.give_back(charge);
                }
                drop(resident);
                self.note_served(fault, Kind::Protected);
                Answer::Given
            }
            Err(error) => {
                self.give_back(charge);
                self.not_placed(mm, state, fault, error)
            }
        }
    }

    /// Answers a fault on a page that is present in the pager's table. Either two threads faulted
    /// on it at once, or the kernel dropped it.
    fn stale(&mut self, mm: &Arc<Mm>, state: &mut State, fault: &PageFault) -> Answer {
        counters::count(&self.pager.telemetry.counters.faults_stale);
        match mm.uffd.copy(fault.address, &[0; PAGE_SIZE]) {
            // The page is gone: the kernel may drop it on its own (MADV_FREE), and then it reads as
            // zeros.
            Ok(()) => {
                state.wake_after(fault.address, PAGE_SIZE as u64);
                self.note_served(fault, Kind::There);
                Answer::Given
            }
            Err((_, error)) => self.not_placed(mm, state, fault, error),
        }
    }

    /// Decides what to do when a page could not be placed.
    pub fn not_placed(
        &self,
        mm: &Arc<Mm>,
        state: &mut State,
        fault: &PageFault,
        error: PlaceError,
    ) -> Answer {
        match error {
            PlaceError::Changing | PlaceError::NoMemory => Answer::Later,
            PlaceError::Exists | PlaceError::Gone => {
                // The waiting thread faults again and finds the page, or the hole in the mapping.
                state.wake_after(fault.address, PAGE_SIZE as u64);
                self.note_served(fault, Kind::There);
                Answer::Given
            }
            PlaceError::Dead => {
                mm.agent.close();
                self.pager.run.monitor.raise();
                Answer::Given
            }
            PlaceError::Other(errno) => {
                self.pager.complain(&format!("cannot place a page: errno {errno}"));
                Answer::Later
            }
        }
    }

    /// Ends the stall of a fault whose page is available and about to be placed.
    pub fn end_wait(&self, fault: &PageFault) {
        drop(fault.stall.take());
        fault.got.set(ticks::now());
    }

    /// Reactivates a standby page: copies its content from the pool, where no thread can change it.
    fn reactivate(
        &mut self,
        mm: &Arc<Mm>,
        state: &mut State,
        fault: &PageFault,
        place: u32,
    ) -> Answer {
        let Some(charge) = self.charge(mm, fault) else { return Answer::Later };
        let from = state.pool.address(place);
        fault.begun.set(ticks::now());
        let page = &mut self.buffer[..];
        // The process of a child that has not asked for an agent is not identified yet.
        if mm.process().is_none() && mm.owner.begin_search(fault.moment) {
            self.pending.send(SlowWork::Seek(mm.clone()));
        }
        if !matches!(mm.read_pages(&[from], page), Ok(1)) {
            self.give_back(charge);
            if !mm.uffd.is_alive() {
                return Answer::Given;
            }
            // The process is identified when it says hello, or at the next fault of one of its own
            // threads. It stays unidentified if it has hidden itself.
            let waited = self.pager.clock.moment().since(fault.moment);
            let hopeless =
                Patience::Unreadable.is_over(waited) && mm.owner.is_unknown_since(fault.moment);
            return if hopeless {
                self.lost(mm, state, fault, UNREADABLE_TEXT)
            } else {
                Answer::Later
            };
        }
        self.end_wait(fault);
        match mm.uffd.copy(fault.address, &self.buffer[0]) {
            Ok(()) => {
                state.wake_after(fault.address, PAGE_SIZE as u64);
                let vpn = Vpn::of_address(fault.address);
                let Entry::Standby(pfn) = state.space.get(vpn) else {
                    unreachable!("held the lock")
                };
                let mut resident = self.pager.resident();
                mm.place(&mut resident.zone, charge);
                state.pool.discard_later(resident.reactivate(&mut state.space, pfn));
                drop(resident);
                counters::count(&self.pager.telemetry.counters.faults_reactivated);
                self.note_served(fault, Kind::Reactivate);
                Answer::Given
            }
            Err((_, error)) => {
                self.give_back(charge);
                self.not_placed(mm, state, fault, error)
            }
        }
    }

    /// Handles a call by a thread, which waits for the answer. A child without an agent calls
    /// through the link of an ancestor.
    fn answer_call(&self, mm: &Arc<Mm>, state: &mut State, doorbell: usize) {
        let certain = mm.calls.made(mm.agent.link(), doorbell).take(2).count() == 1;
        for (line, caller, ask) in mm.calls.made(mm.agent.link(), doorbell) {
            if certain && mm.agent.link().is_none() {
                mm.calls.note_line(line);
            }
            match ask {
                Ask::Manage { start, end } => {
                    // If the area cannot be registered now, the monitor finds it later.
                    for (start, end) in state.areas.missing(start, end) {
                        if mm.uffd.manage(start, end) {
                            state.areas.add(start, end);
                        }
                    }
                    line.answer(caller, 0);
                }
                // The call may be another child's. An answer does no harm, because a child that
                // reports this waits only for an answer.
                Ask::Join(JoinRequest::CannotJoin { .. }) if !certain => line.answer(caller, 0),
                Ask::Join(request) => {
                    mm.calls.note(line, caller);
                    match request {
                        JoinRequest::Join { .. } => mm.agent.ask(),
                        JoinRequest::CannotJoin { .. } => mm.agent.decline(),
                        JoinRequest::StepAside => {}
                    }
                    let (mm, line) = (mm.clone(), line.clone());
                    let candidate = Candidate { mm, request, line, caller, certain };
                    self.pager.processes.candidates.add(candidate);
                }
            }
        }
    }
}

/// Returns how many pages right after the faulting page were never accessed. Counts only pages in
/// the fault's window and area, [`FRESH_AHEAD_MAX`] at most.
fn fresh_beside(state: &State, fault: &PageFault) -> usize {
    if fault.window.down || fault.window.count == 0 {
        return 0;
    }
    let end = state.areas.end_of(fault.address).unwrap_or(0);
    fault
        .window
        .pages(Vpn::of_address(fault.address))
        .take(FRESH_AHEAD_MAX)
        .take_while(|&vpn| vpn.address() < end && state.space.get(vpn) == Entry::None)
        .count()
}

/// Sorts mapping changes before faults. The kernel delivers faults before changes. It lets the
/// thread that made a change run on once the change is read. An answer from the state before such a
/// change would be wrong. It would place a page after a fork copied the page tables, or zeros where
/// a page moved to. Any order of a simultaneous fault and change is legal, so the changes go first.
fn put_changes_first(events: &mut [Event]) {
    events.sort_by_key(|event| matches!(event, Event::Fault { .. }));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::quiet;
    use crate::wait::clock::Clock;

    /// Shows that a fault above `--memory-high` owes a pause. One below it owes none, nor does one
    /// of a starting child.
    #[test]
    fn a_fault_above_memory_high_owes_a_pause() {
        let config = Config { memory_high_bytes: Some(8 << 20), ..quiet::config(16 << 20) };
        let pager = Arc::new(quiet::pager_of(config, Clock::simulated()));
        let mm = Arc::new(quiet::with_pool(quiet::Quiet::default()));
        let server = Server::new(&pager, &Arc::default(), true);
        let event = Event::Fault { address: 1 << 20, write: true, protected: false, thread: 1 };
        let fault = PageFault::of(&mm, event, (pager.clock.now(), Asked { read: 0, lock: 0 }));
        pager.resident().zone.set_resident(4 << 10);
        assert_eq!(server.pause(&mm, &fault), None, "it is starting");
        mm.agent.decline();
        pager.resident().zone.set_resident(1 << 10);
        assert_eq!(server.pause(&mm, &fault), None);
        pager.resident().zone.set_resident(4 << 10);
        assert!(server.pause(&mm, &fault) > Some(fault.since));
        assert!(pager.telemetry.counters.throttled_us.load(Relaxed) > 0);
    }

    #[test]
    fn changes_are_followed_in_order_before_faults_are_answered() {
        let fault = |address| Event::Fault { address, write: false, protected: false, thread: 1 };
        let mut events = vec![
            fault(1),
            Event::Remap { from: 1, to: 2, len: 3 },
            fault(2),
            Event::Unmap { start: 4, end: 5 },
            Event::Remove { start: 6, end: 7 },
        ];
        put_changes_first(&mut events);
        let order: Vec<String> = events.iter().map(|event| format!("{event:?}")).collect();
        let heads: Vec<&str> = order.iter().map(|text| &text[..5]).collect();
        assert_eq!(heads, ["Remap", "Unmap", "Remov", "Fault", "Fault"]);
        assert!(order[3].contains("address: 1") && order[4].contains("address: 2"));
    }
}
