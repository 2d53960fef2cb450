//! The fault threads: answer touches and follow mapping changes.
//!
//! They never wait for a device, an agent or memory: a touch that needs one of these is set aside and
//! taken up again, by the first of them, when the store or kswapd says so. Most of the time there is only that first one;
//! while several threads of the program fault there is one on each of two CPUs (`solo.rs`). Any may read any message: the lock
//! of the address space, under which messages are read and acted upon (ORD-1), keeps their order.

use crate::arrivals::Arrived;
use crate::children::{Candidate, Wish};
use crate::counters;
use crate::errand::Errand;
use crate::events::Why;
use crate::following::Following;
use crate::fork;
use crate::guard;
use crate::limits::{BATCH_PATIENCE, BATCH_WATCH, SERVED_PAGES};
use crate::linger::Linger;
use crate::link::{Ask, Link};
use crate::look_around::BESIDE_MAX;
use crate::mm::{Held, Mm, State};
use crate::patience::{Moment, Patience};
use crate::pending::Pending;
use crate::pressure::Stall;
use crate::seam::Event;
use crate::server::{Pager, TOKEN_STORE, TOKEN_WAKE, token_link, token_uffd};
use crate::stages::{Kind, Ledger, Served};
use crate::vacant;
use ebb_mm::readahead::Window;
use ebb_mm::resident::{Arrival, Charge, Entry};
use ebb_mm::types::{MmId, PAGE_SIZE, Vpn};
use ebb_sys::anon::PageBuffer;
use ebb_sys::ticks;
use ebb_sys::uffd::PlaceError;
use rustix::event::epoll;
use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// How long a thread that is no longer called for may listen.
const LISTEN: Duration = Duration::from_millis(5);
/// How soon to look again at touches set aside for a reason that raises no event.
const RETRY: Duration = Duration::from_millis(1);
/// Pauses are not worth the while below, and cruel above.
const PAUSE_MIN_US: u64 = 10_000;
const PAUSE_MAX_US: u64 = 2_000_000;

/// Pages beyond the budget that all infants together may have.
const FED_MAX: u32 = 512;

const UNREADABLE_TEXT: &str = "the process cannot be looked into, and has no agent";

/// Most pages of zeros placed beside a touched one: memory that the program may never use.
const FRESH_AHEAD_MAX: usize = 15;

static ZEROS: [u8; (1 + FRESH_AHEAD_MAX) * PAGE_SIZE] = [0; (1 + FRESH_AHEAD_MAX) * PAGE_SIZE];

/// A touch that waits.
pub struct Touch {
    pub mm: Arc<Mm>,
    pub address: u64,
    /// A write to a protected page, which is there.
    pub protected: bool,
    pub thread: u32,
    pub since: Instant,
    pub moment: Moment,
    pub asked: Asked,
    /// Its page began to be fetched, and was there (ticks).
    pub begun: Cell<u64>,
    pub got: Cell<u64>,
    /// What to fetch beside it.
    pub window: Window,
    /// It was not served at once. Goes on to the load that the touch begins or joins.
    pub stall: Cell<Option<Stall>>,
    /// There was no memory for it when it was last looked at.
    pub refused: Cell<bool>,
}

impl Touch {
    /// That of a message.
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
            moment: mm.moment(),
            asked,
            begun: Cell::new(0),
            got: Cell::new(0),
            window: Window::NONE,
            stall: Cell::default(),
            refused: Cell::default(),
        }
    }
}

/// No thread: it was not touched, but is fetched ahead.
pub const NOBODY: u32 = 0;

/// When a message was read, and how long it took to get the lock for that (ticks).
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    pub read: u64,
    pub lock: u64,
}

/// When a message was read.
type When = (Instant, Asked);

/// What became of a touch.
pub enum Answer {
    /// The thread runs on, or will when its load completes.
    Given,
    /// No memory, or the mapping is changing: again later.
    Later,
}

/// One fault thread.
pub struct Server {
    pub pager: Arc<Pager>,
    pub pending: Arc<Pending>,
    /// It goes on with what others have set aside.
    first: bool,
    /// Touches that have waited are being answered, in their order, and whether one of them found no memory.
    retrying: Option<bool>,
    /// A page, and those beside it.
    pub buffer: PageBuffer,
    pub beside: PageBuffer,
    pub arrived: Arrived,
    events: Vec<Event>,
    /// What was served in this hold of a lock: it counts when the threads are woken.
    served: RefCell<Vec<Served>>,
    ledger: Arc<Ledger>,
}

/// What was read of an address space, and when, and is not followed yet.
pub struct Unheard {
    events: Vec<Event>,
    when: When,
}

/// The first thread.
pub fn run(pager: &Arc<Pager>, pending: &Arc<Pending>) {
    pager.solo.begin(pager.config.solo);
    let mut server = Server::new(pager, pending, true);
    let mut ready = Vec::with_capacity(64);
    let mut linger = Linger::default();
    loop {
        let timeout = server.patience();
        // What is followed goes on meanwhile.
        let waits = timeout != Some(Duration::ZERO);
        let found = waits && pager.solo.is_on() && server.has_loads() && {
            let found = look(pager, &mut ready, linger.time());
            linger.ended(found);
            found
        };
        if !found {
            wait(&pager.epoll, &mut ready, timeout);
        }
        server.turn(&ready);
    }
}

/// Looks whether anything is ready, for `limit` at most.
fn look(pager: &Pager, ready: &mut Vec<u64>, limit: Duration) -> bool {
    let began = Instant::now();
    loop {
        wait(&pager.epoll, ready, Some(Duration::ZERO));
        if !ready.is_empty() {
            return true;
        }
        if began.elapsed() > limit {
            return false;
        }
    }
}

/// The thread of the CPU that is the `place`th of those there are.
pub fn run_beside(pager: &Arc<Pager>, pending: &Arc<Pending>, place: usize) {
    pager.solo.begin_beside(place);
    let mut server = Server::new(pager, pending, false);
    let mut ready = Vec::with_capacity(64);
    loop {
        pager.solo.await_call(place);
        wait(&pager.epoll_beside[place], &mut ready, Some(LISTEN));
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
    /// Ready to serve.
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
            ledger: pager.account.begin(),
        }
    }

    /// Whether pages are on their way.
    fn has_loads(&self) -> bool {
        !self.pending.books().loads.is_empty()
    }

    /// How long the next event may be waited for.
    fn patience(&self) -> Option<Duration> {
        let books = self.pending.books();
        if !books.following.is_empty() {
            return Some(Duration::ZERO);
        }
        (!books.waiting.is_empty() || !books.pausing.is_empty()).then_some(RETRY)
    }

    /// One turn: what is ready is served, and who waits is looked at again.
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

    /// Pages that are to come back, though nobody touches them, are fetched as if somebody did.
    fn fetch_wanted(&self) {
        if !self.pager.detach.is_on() {
            return;
        }
        let asked = Asked { read: ticks::now(), lock: 0 };
        let now = self.pager.clock.now();
        let touch = |(mm, vpn): (Arc<Mm>, Vpn)| {
            let event = Event::Fault {
                address: vpn.address(),
                write: false,
                protected: false,
                thread: NOBODY,
            };
            Touch::of(&mm, event, (now, asked))
        };
        let wanted = self.pager.detach.take_wanted();
        self.pending.books().waiting.extend(wanted.into_iter().map(touch));
    }

    /// The first thread has something to go on with (PENDING-1).
    fn hand_on(&self) {
        if !self.first {
            self.pager.wake_faults();
        }
    }

    fn serve(&mut self, token: u64) {
        match token {
            TOKEN_WAKE => self.pager.clear_wake(),
            TOKEN_STORE => self.take_completions(),
            _ => {
                let Some(mm) = self.pager.mm(MmId((token >> 2) as u32)) else { return };
                if token == token_uffd(mm.id) {
                    self.drain(&mm);
                } else if token == token_link(mm.id) {
                    // The process ends or becomes another program. Its pages are served until the
                    // address space is really gone: no thread may ever see a hole.
                    mm.closing.store(true, SeqCst);
                    self.pager.unwatch(mm.link.get().and_then(Link::descriptor));
                    self.pager.monitor.raise();
                }
            }
        }
    }

    /// Reads and handles everything an address space has to say.
    fn drain(&mut self, mm: &Arc<Mm>) {
        loop {
            if self.pending.books().is_followed(mm) {
                return;
            }
            let began = ticks::now();
            if self.pager.solo.is_on() {
                mm.watch_batch(BATCH_WATCH);
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
            self.hear_all(mm, state, &mut events, (now, asked), false);
            self.events = events;
            match read {
                Ok(_) if count == 0 => return,
                Ok(_) => {}
                Err(error) => {
                    if mm.is_alive() {
                        // Nobody would answer its touches any more.
                        self.pager.complain(&format!(
                            "cannot read a userfaultfd ({error}); the program is killed"
                        ));
                        self.pager.kill_tree(Why::NotServed);
                    }
                    self.pager.unwatch(mm.uffd.descriptor());
                    mm.closing.store(true, SeqCst);
                    self.pager.monitor.raise();
                    return;
                }
            }
        }
    }

    /// Follows what an address space says, changes first, up to what takes longer; what was said after that is put off
    /// with it. `late`: it was read some time ago.
    fn hear_all<'a>(
        &mut self,
        mm: &'a Arc<Mm>,
        mut state: Held<'a>,
        events: &mut Vec<Event>,
        when: When,
        mut late: bool,
    ) {
        events.reverse();
        while !self.hear(mm, &mut state, events, when, late) {
            // Who got a page in this hold runs on. The rest are touches: they are as good as any that had to wait.
            self.let_go(mm, state);
            late = true;
            match mm.lock_quiet(BATCH_PATIENCE) {
                Some(held) if held.ended => return events.clear(),
                Some(held) => state = held,
                None => {
                    for event in events.drain(..).rev() {
                        self.set_aside(Touch::of(mm, event, when));
                    }
                    return;
                }
            }
        }
        self.let_go(mm, state);
    }

    /// The same for a slice of it; `events` are in reverse order. False if some are left.
    fn hear(
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
            if following.has_errand() || !following.go_on(&self.pager, state) {
                self.put_off(following, Unheard { events: events.drain(..).rev().collect(), when });
                return true;
            }
            following.end(&self.pager, state);
        }
        true
    }

    /// What takes longer is gone on with in another turn, or when its errand is done.
    fn put_off(&self, following: Following, unheard: Unheard) {
        if following.has_errand() {
            self.pending.send(Errand::Follow(following, unheard));
            return;
        }
        self.pending.books().following.push_back((following, unheard));
        self.hand_on();
    }

    /// Follows a slice of what takes longer.
    fn follow(&mut self) {
        let next = self.pending.books().following.pop_front();
        let Some((mut following, unheard)) = next else { return };
        let mm = following.mm().clone();
        let mut state = mm.lock().timed();
        if !following.go_on(&self.pager, &mut state) {
            drop(state);
            self.put_off(following, unheard);
            return;
        }
        following.end(&self.pager, &mut state);
        let Unheard { mut events, when } = unheard;
        self.hear_all(&mm, state, &mut events, when, true);
    }

    /// Lets go of the lock: who is to be woken is, and what was served is counted.
    pub fn let_go(&mut self, mm: &Mm, state: Held<'_>) {
        let _waking = state.unlock();
        let served = self.served.get_mut();
        if served.is_empty() {
            return;
        }
        // Before anybody is woken: on this CPU this thread goes on when the program waits again.
        let woken = ticks::now();
        for served in served.drain(..) {
            self.ledger.note(&served, woken);
            mm.note_served(served.kind, ticks::since(served.read, woken));
            self.pager.account.look(mm, &served, woken);
        }
    }

    /// A touch has been answered: its thread is woken as soon as the lock is let go of.
    pub fn note_served(&self, touch: &Touch, kind: Kind) {
        if touch.thread == NOBODY {
            return;
        }
        let Asked { read, lock } = touch.asked;
        let placed = ticks::now();
        // Not fetched, but found.
        let at = |mark: &Cell<u64>, or: u64| if mark.get() == 0 { or } else { mark.get() };
        let got = at(&touch.got, placed);
        let begun = at(&touch.begun, got);
        let (thread, since) = (touch.thread, touch.since);
        let served = Served { kind, thread, since, lock, read, begun, got, placed };
        self.served.borrow_mut().push(served);
    }

    /// Follows a message that takes no time; for how many pages at most.
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
                self.pager.solo.note(thread);
                fork::learn_process(&self.pager, mm, state, thread);
                let vpn = Vpn::of_address(address);
                if let Some(recorder) = &self.pager.recorder {
                    recorder.note(mm.id, [vpn], write || protected);
                }
                if let Some(sampling) = &self.pager.sampling {
                    let fresh = state.space.get(vpn) == Entry::None;
                    sampling.note(mm.id, vpn, fresh, self.pager.clock.now());
                }
                let window = match state.space.get(vpn) {
                    Entry::None | Entry::Cool(_) | Entry::Stored { loading: false, .. }
                        // What will have no agent gives nothing back, and gets what it asks for.
                        if self.pager.config.readahead_pages > 0
                            && (mm.has_agent() || mm.is_infant()) =>
                    {
                        state.space.miss(vpn)
                    }
                    _ => Window::NONE,
                };
                let touch = Touch { window, ..Touch::of(mm, event, when) };
                if let Some(until) = self.pause(mm, &touch) {
                    touch.stall.set(Some(self.pager.pressure.stall()));
                    self.pending.books().pausing.push((until, touch));
                    self.hand_on();
                    return 1;
                }
                let answer = match late {
                    true => self.answer_late(mm, state, &touch),
                    false => self.answer(mm, state, &touch),
                };
                if let Answer::Later = answer {
                    self.set_aside(touch);
                }
                1 + window.count
            }
            Event::Remove { start, .. } => {
                let bell = state.pool.bell(start).expect("all others are followed");
                self.heard(mm, state, bell);
                0
            }
            Event::Fork(_) | Event::Unmap { .. } | Event::Remap { .. } => unreachable!("followed"),
        }
    }

    /// Until when a touch must pause because its process took pages above `--memory-high`. Reclaim goes on
    /// meanwhile. Who must run for others to get on pauses never: agents, and children yet to greet.
    fn pause(&self, mm: &Mm, touch: &Touch) -> Option<Instant> {
        let us = self.pager.resident().zone.penalty_us();
        // Who was told to touch again has paused before, or would do nothing else.
        let exempt = mm.is_infant()
            || mm.has_recalled()
            || mm.link.get().is_some_and(|link| link.thread() == touch.thread);
        if us == 0 || exempt {
            return None;
        }
        let owed = mm.owed_us.fetch_add(us, Relaxed) + us;
        if owed < PAUSE_MIN_US {
            return None;
        }
        mm.owed_us.store(0, Relaxed);
        let pause = owed.min(PAUSE_MAX_US);
        counters::add(&self.pager.counters.throttled_us, pause);
        Some(touch.since + Duration::from_micros(pause))
    }

    /// Touches that have paused long enough are answered.
    fn end_pauses(&mut self) {
        let now = self.pager.clock.now();
        let mut books = self.pending.books();
        let books = &mut *books;
        let over = books.pausing.extract_if(.., |(until, _)| *until <= now);
        books.waiting.extend(over.map(|(_, touch)| touch));
    }

    pub fn set_aside(&self, touch: Touch) {
        touch.stall.set(Some(self.stall(&touch)));
        {
            let mut books = self.pending.books();
            if touch.refused.get() {
                // Of others that wait one has waited longer.
                if self.pager.starving.fetch_add(1, Relaxed) == 0 {
                    self.pager.starved_since_ms.store(touch.moment.ms(), Relaxed);
                }
            }
            books.waiting.push_back(touch);
            self.pager.waiting.store(books.waiting.len() as u32, Relaxed);
        }
        self.hand_on();
    }

    /// Who waits for memory, and since when; others wait for something else (`reclaim/oom.rs`).
    fn note_starving(&self) {
        let books = self.pending.books();
        let (mut count, mut oldest) = (0, None);
        for touch in books.waiting.iter().filter(|touch| touch.refused.get()) {
            count += 1;
            oldest = oldest.into_iter().chain([touch.moment]).min();
            touch.mm.note_refused();
        }
        let oldest = oldest.map_or(0, Moment::ms);
        self.pager.starved_since_ms.store(oldest, Relaxed);
        self.pager.starving.store(count, Relaxed);
        self.pager.waiting.store(books.waiting.len() as u32, Relaxed);
    }

    /// The stall that the touch has begun, or a new one: a thread stalls once.
    pub fn stall(&self, touch: &Touch) -> Stall {
        touch.stall.take().unwrap_or_else(|| self.pager.pressure.stall())
    }

    fn retry(&mut self) {
        let count = self.pending.books().waiting.len();
        if count == 0 {
            return;
        }
        self.retrying = Some(false);
        for _ in 0..count {
            let Some(touch) = self.pending.books().waiting.pop_front() else { break };
            let mm = touch.mm.clone();
            let answer = match mm.lock_quiet(Duration::ZERO) {
                Some(state) if state.ended => Answer::Given,
                Some(mut state) => {
                    let answer = self.answer_late(&mm, &mut state, &touch);
                    self.let_go(&mm, state);
                    answer
                }
                None => Answer::Later,
            };
            if let Answer::Later = answer {
                self.pending.books().waiting.push_back(touch);
            }
        }
        self.pending.bar(self.retrying.take() == Some(true));
        self.note_starving();
    }

    /// Answers a touch that was not answered when it was read.
    fn answer_late(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch) -> Answer {
        touch.refused.set(false);
        let vpn = Vpn::of_address(touch.address);
        let still = if touch.protected { Some(true) } else { vacant::still(mm, vpn) };
        match (still, state.space.get(vpn)) {
            (Some(false), _) => self.not_placed(mm, state, touch, PlaceError::Exists),
            (None, Entry::None | Entry::Resident(_)) => self.recall(mm, state, touch),
            _ => self.answer(mm, state, touch),
        }
    }

    /// Has a thread touch again that has waited, as soon as it would be answered: nobody can see what lies in the place of
    /// its page by now (UNMAPPED-3 in `vacant.rs`). Its next touch needs no room, since this one has found some.
    fn recall(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch) -> Answer {
        let Some(charge) = self.find_room(mm, touch) else { return Answer::Later };
        self.give_back(charge);
        mm.recalled();
        self.not_placed(mm, state, touch, PlaceError::Exists)
    }

    /// Answers one touch (ORD-3).
    fn answer(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch) -> Answer {
        let vpn = Vpn::of_address(touch.address);
        match state.space.get(vpn) {
            _ if touch.protected => self.unprotect(mm, state, touch, vpn),
            Entry::None => self.fresh(mm, state, touch, vpn),
            Entry::Resident(_) => self.stale(mm, state, touch),
            Entry::Cool(pfn) => {
                let pool = self.pager.resident().frame(pfn).pool;
                let answer = self.rescue(mm, state, touch, pool);
                self.look_around(mm, state, touch);
                self.load_beside(mm, state, touch);
                answer
            }
            Entry::Stored { loading: true, .. } => self.join_load(touch),
            Entry::Stored { slot, loading: false, .. } => self.load(mm, state, touch, vpn, slot),
        }
    }

    /// Takes a page of the budget.
    pub fn charge(&mut self, mm: &Mm, touch: &Touch) -> Option<Charge> {
        if mm.take_recalled() {
            return Some(self.pager.resident().zone.charge(1));
        }
        self.find_room(mm, touch)
    }

    /// The same for a touch that nobody has found room for. Those whose touch keeps others from giving pages back
    /// need none to be left: a child that has yet to greet, and an agent at its work.
    fn find_room(&mut self, mm: &Mm, touch: &Touch) -> Option<Charge> {
        let (mut charge, low) = {
            let mut resident = self.pager.resident();
            let charge = if !self.is_barred() { resident.zone.try_charge(1, 0) } else { None };
            (charge, resident.zone.is_low())
        };
        if charge.is_none()
            && (self.may_feed() && mm.take_extra_page()
                || mm.link.get().is_some_and(|link| link.thread() == touch.thread))
        {
            charge = Some(self.pager.resident().zone.charge(1));
        }
        if low || charge.is_none() {
            self.pager.wake_kswapd();
        }
        if charge.is_none() {
            touch.refused.set(true);
            match &mut self.retrying {
                Some(failed) => *failed = true,
                None => self.pending.bar(true),
            }
        }
        charge
    }

    /// Whether somebody who has waited for longer found no memory.
    fn is_barred(&self) -> bool {
        self.retrying.unwrap_or_else(|| self.pending.is_barred())
    }

    /// Whether there are pages beyond the budget for infants: enough for several to grow up at once.
    fn may_feed(&self) -> bool {
        self.pager.mms().iter().map(|mm| mm.fed()).sum::<u32>() < FED_MAX
    }

    pub fn give_back(&self, charge: Charge) {
        self.pager.resident().zone.give_back(charge);
    }

    /// Takes pages of the budget for up to `wanted` pages nobody has asked for. The reserve is left to those
    /// who have.
    pub fn charge_ahead(&self, wanted: usize) -> Charge {
        let wanted = if self.is_barred() { 0 } else { wanted as u64 };
        self.pager.resident().zone.charge_spare(wanted)
    }

    /// A page nobody has stored: zeros. In a pass over fresh memory the next few come along.
    fn fresh(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch, vpn: Vpn) -> Answer {
        let Some(charge) = self.charge(mm, touch) else { return Answer::Later };
        let beside = vacant::run(mm, Vpn(vpn.0 + 1), fresh_beside(state, touch));
        let mut charge = charge.and(self.charge_ahead(beside));
        let ahead = charge.pages() as usize - 1;
        touch.begun.set(ticks::now());
        self.end_wait(touch);
        let mut placed = mm.uffd.copy(touch.address, &ZEROS[..(1 + ahead) * PAGE_SIZE]);
        if ahead > 0 && matches!(placed, Err((0, _))) {
            // The next pages may belong to another area, or to none.
            placed = match mm.uffd.copy(touch.address, &ZEROS[..PAGE_SIZE]) {
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
        if let Some(sampling) = &self.pager.sampling {
            let now = self.pager.clock.now();
            (1..pages).for_each(|page| sampling.note(mm.id, Vpn(vpn.0 + page), true, now));
        }
        match placed {
            Err((0, error)) => self.not_placed(mm, state, touch, error),
            _ => {
                state.wake_after(touch.address, pages * PAGE_SIZE as u64);
                counters::count(&self.pager.counters.faults_fresh);
                counters::add(&self.pager.counters.zeros_ahead, pages - 1);
                self.note_served(touch, Kind::Zero);
                Answer::Given
            }
        }
    }

    /// The first write to a page that was only read before its area was registered, or to one that
    /// was shared with a relative.
    fn unprotect(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch, vpn: Vpn) -> Answer {
        let known = matches!(state.space.get(vpn), Entry::Resident(_));
        if known && let Some(pages) = guard::own_run(mm, state, vpn) {
            let bytes = pages * PAGE_SIZE as u64;
            return match mm.uffd.unprotect(touch.address, bytes) {
                Ok(()) => {
                    state.wake_after(touch.address, bytes);
                    self.note_served(touch, Kind::Protected);
                    Answer::Given
                }
                Err(error) => self.not_placed(mm, state, touch, error),
            };
        }
        let Some(charge) = self.charge(mm, touch) else { return Answer::Later };
        self.end_wait(touch);
        match mm.uffd.unprotect(touch.address, PAGE_SIZE as u64) {
            Ok(()) => {
                state.wake_after(touch.address, PAGE_SIZE as u64);
                let mut resident = self.pager.resident();
                if state.space.get(vpn) == Entry::None {
                    mm.place(&mut resident.zone, charge);
                    resident.map(&mut state.space, vpn, Arrival::Fresh, None);
                    counters::count(&self.pager.counters.faults_fresh);
                } else if known && mm.related.load(Relaxed) {
                    mm.copied(&mut resident.zone, charge);
                    counters::count(&self.pager.counters.faults_copied);
                } else {
                    resident.zone.give_back(charge);
                }
                drop(resident);
                self.note_served(touch, Kind::Protected);
                Answer::Given
            }
            Err(error) => {
                self.give_back(charge);
                self.not_placed(mm, state, touch, error)
            }
        }
    }

    /// The page is there as far as we know: two threads touched it at once, or the kernel dropped it.
    fn stale(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch) -> Answer {
        counters::count(&self.pager.counters.faults_stale);
        match mm.uffd.copy(touch.address, &[0; PAGE_SIZE]) {
            // It was gone indeed: what the kernel may drop unasked (MADV_FREE) reads as zeros.
            Ok(()) => {
                state.wake_after(touch.address, PAGE_SIZE as u64);
                self.note_served(touch, Kind::There);
                Answer::Given
            }
            Err((_, error)) => self.not_placed(mm, state, touch, error),
        }
    }

    /// What to do when a page could not be put in place.
    pub fn not_placed(
        &self,
        mm: &Arc<Mm>,
        state: &mut State,
        touch: &Touch,
        error: PlaceError,
    ) -> Answer {
        match error {
            PlaceError::Changing | PlaceError::NoMemory => Answer::Later,
            PlaceError::Exists | PlaceError::Gone => {
                // Whoever waits touches again and finds the page, or the hole in the mapping.
                state.wake_after(touch.address, PAGE_SIZE as u64);
                self.note_served(touch, Kind::There);
                Answer::Given
            }
            PlaceError::Dead => {
                mm.closing.store(true, SeqCst);
                self.pager.monitor.raise();
                Answer::Given
            }
            PlaceError::Other(errno) => {
                self.pager.complain(&format!("cannot place a page: errno {errno}"));
                Answer::Later
            }
        }
    }

    /// The touch's page is there, and about to be put in place: its thread stalls no longer.
    pub fn end_wait(&self, touch: &Touch) {
        drop(touch.stall.take());
        touch.got.set(ticks::now());
    }

    /// A cool page: its content comes from the pool, which nobody but us can change.
    fn rescue(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch, place: u32) -> Answer {
        let Some(charge) = self.charge(mm, touch) else { return Answer::Later };
        let from = state.pool.address(place);
        touch.begun.set(ticks::now());
        let page = &mut self.buffer[..];
        // A child that has not asked for an agent is not known yet.
        if mm.process().is_none() && mm.begin_search(touch.moment) {
            self.pending.send(Errand::Seek(mm.clone()));
        }
        if !matches!(mm.read_pages(&[from], page), Ok(1)) {
            self.give_back(charge);
            if !mm.is_alive() {
                return Answer::Given;
            }
            // Which process it is will be known when it greets, or at its next own touch. Or never: it has hidden
            // itself.
            let waited = self.pager.clock.moment().since(touch.moment);
            let hopeless =
                Patience::Unreadable.is_over(waited) && mm.is_unknown_since(touch.moment);
            return if hopeless {
                self.lost(mm, state, touch, UNREADABLE_TEXT)
            } else {
                Answer::Later
            };
        }
        self.end_wait(touch);
        match mm.uffd.copy(touch.address, &self.buffer[0]) {
            Ok(()) => {
                state.wake_after(touch.address, PAGE_SIZE as u64);
                let vpn = Vpn::of_address(touch.address);
                let Entry::Cool(pfn) = state.space.get(vpn) else { unreachable!("held the lock") };
                let mut resident = self.pager.resident();
                mm.place(&mut resident.zone, charge);
                state.pool.retire(resident.rescue(&mut state.space, pfn));
                drop(resident);
                counters::count(&self.pager.counters.faults_rescued);
                self.note_served(touch, Kind::Rescue);
                Answer::Given
            }
            Err((_, error)) => {
                self.give_back(charge);
                self.not_placed(mm, state, touch, error)
            }
        }
    }

    /// A thread has called, and waits. A child that has no agent calls through those of its ancestors.
    fn heard(&self, mm: &Arc<Mm>, state: &mut State, bell: usize) {
        let certain = mm.calls(bell).take(2).count() == 1;
        for (line, caller, ask) in mm.calls(bell) {
            if certain && mm.link.get().is_none() {
                mm.note_line(line);
            }
            match ask {
                Ask::Manage { start, end } => {
                    // Where that cannot be now the monitor finds it later.
                    for (start, end) in state.areas.missing(start, end) {
                        if mm.manage(start, end) {
                            state.areas.add(start, end);
                        }
                    }
                    line.answer(caller, 0);
                }
                // Perhaps another's. Nobody loses by an answer: who is alone only waits to be heard.
                Ask::Wish(Wish::Alone { .. }) if !certain => line.answer(caller, 0),
                Ask::Wish(wish) => {
                    match wish {
                        Wish::Join { .. } => mm.note_asked(),
                        Wish::Alone { .. } => mm.alone.store(true, SeqCst),
                    }
                    let (mm, line) = (mm.clone(), line.clone());
                    self.pager.candidates.add(Candidate { mm, wish, line, caller, certain });
                }
            }
        }
    }
}

/// How many pages after a touched one, never touched either, its window covers within its area.
fn fresh_beside(state: &State, touch: &Touch) -> usize {
    if touch.window.down || touch.window.count == 0 {
        return 0;
    }
    let end = state.areas.end_of(touch.address).unwrap_or(0);
    touch
        .window
        .pages(Vpn::of_address(touch.address))
        .take(FRESH_AHEAD_MAX)
        .take_while(|&vpn| vpn.address() < end && state.space.get(vpn) == Entry::None)
        .count()
}

/// The kernel hands out touches before changes, and lets the thread that made a change go on as soon
/// as its message is read. A touch answered by the state before such a change would be answered
/// wrongly: the page placed after a fork copied the page tables, or zeros where a page moved to. Any
/// order of a touch and a change made at the same time is legal, so the changes go first.
fn put_changes_first(events: &mut [Event]) {
    events.sort_by_key(|event| matches!(event, Event::Fault { .. }));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_followed_before_touches_are_answered_and_in_their_own_order() {
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
