//! The fault thread: answers touches and follows mapping changes.
//!
//! It never waits for a device, an agent or memory: a touch that needs one of these is set aside and
//! taken up again when the store or kswapd says so.

use crate::counters;
use crate::fork;
use crate::mm::{Mm, State};
use crate::server::{Pager, TOKEN_STORE, TOKEN_WAKE, token_link, token_uffd};
use ebb_core::resident::{Arrival, Dropped, Entry};
use ebb_core::types::{MmId, PAGE_SIZE, SlotId, Vpn};
use ebb_store::Page;
use ebb_sys::process;
use ebb_sys::uffd::{Event, PlaceError};
use rustix::event::epoll;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// How long to wait for a batch of moves before turning to other processes.
const BATCH_PATIENCE: Duration = Duration::from_millis(2);
/// How soon to look again at touches set aside for a reason that raises no event.
const RETRY: Duration = Duration::from_millis(1);

/// A touch that waits.
struct Touch {
    mm: Arc<Mm>,
    address: u64,
    /// A write to a protected page, which is there.
    protected: bool,
    thread: u32,
    since: Instant,
}

/// A page on its way from the store. Holds a share of the slot.
struct Load {
    touch: Touch,
    slot: SlotId,
}

/// What became of a touch.
enum Answer {
    /// The thread runs on, or will when its load completes.
    Given,
    /// No memory, or the mapping is changing: again later.
    Later,
}

struct Server<'a> {
    pager: &'a Arc<Pager>,
    waiting: VecDeque<Touch>,
    loads: HashMap<u64, Load>,
    /// Pages that arrived while their address space could not take them.
    arrived: Vec<(u64, Box<Page>)>,
    next_token: u64,
    buffer: Box<Page>,
    events: Vec<Event>,
}

/// The thread.
pub fn run(pager: &Arc<Pager>) {
    process::prefer_latency(false);
    let mut server = Server {
        pager,
        waiting: VecDeque::new(),
        loads: HashMap::new(),
        arrived: Vec::new(),
        next_token: 0,
        buffer: Box::new([0; PAGE_SIZE]),
        events: Vec::new(),
    };
    let mut ready = Vec::with_capacity(64);
    loop {
        let idle = server.waiting.is_empty() && server.arrived.is_empty();
        let timeout = if idle { None } else { Some(RETRY) };
        server.wait(&mut ready, timeout);
        for &token in &ready {
            server.serve(token);
        }
        server.place_arrived();
        server.retry();
    }
}

impl Server<'_> {
    fn wait(&self, ready: &mut Vec<u64>, timeout: Option<Duration>) {
        ready.clear();
        let timeout = timeout.map(|limit| rustix::event::Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        let mut events = [const { std::mem::MaybeUninit::<epoll::Event>::uninit() }; 64];
        match epoll::wait(&self.pager.epoll, &mut events, timeout.as_ref()) {
            Ok((events, _)) => ready.extend(events.iter().map(|event| event.data.u64())),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("epoll: {error}"),
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
                    if let Some(link) = mm.link.get() {
                        self.pager.unwatch(link.socket());
                    }
                    self.pager.monitor.raise();
                }
            }
        }
    }

    /// Reads and handles everything an address space has to say.
    fn drain(&mut self, mm: &Arc<Mm>) {
        loop {
            let Some(mut state) = mm.lock_quiet(BATCH_PATIENCE) else { return };
            if state.ended {
                return;
            }
            let mut events = std::mem::take(&mut self.events);
            events.clear();
            let read = mm.uffd.read(&mut events);
            let now = Instant::now();
            let count = events.len();
            put_changes_first(&mut events);
            for event in events.drain(..) {
                self.handle(mm, &mut state, event, now);
            }
            self.events = events;
            match read {
                Ok(_) if count == 0 => return,
                Ok(_) => {}
                Err(error) => {
                    drop(state);
                    if mm.is_alive() {
                        // Nobody would answer its touches any more.
                        self.pager.complain(&format!(
                            "cannot read a userfaultfd ({error}); the program is killed"
                        ));
                        self.pager.kill_tree();
                    }
                    self.pager.unwatch(&mm.uffd);
                    mm.closing.store(true, SeqCst);
                    self.pager.monitor.raise();
                    return;
                }
            }
        }
    }

    fn handle(&mut self, mm: &Arc<Mm>, state: &mut State, event: Event, now: Instant) {
        match event {
            Event::Fault { address, protected, thread } => {
                let address = address & !(PAGE_SIZE as u64 - 1);
                fork::learn_process(self.pager, mm, state, thread);
                let touch = Touch { mm: mm.clone(), address, protected, thread, since: now };
                if let Answer::Later = self.answer(mm, state, &touch) {
                    self.set_aside(touch);
                }
            }
            Event::Fork(uffd) => fork::forked(self.pager, mm, state, uffd),
            Event::Unmap { start, end } => {
                self.forget(mm, state, start, end);
                state.areas.remove(start, end);
                if let Some(link) = mm.link.get() {
                    link.unpin(start >> 12, end >> 12);
                }
            }
            Event::Remove { start, end } => self.forget(mm, state, start, end),
            Event::Remap { from, to, len } => self.remap(mm, state, from, to, len),
        }
    }

    fn set_aside(&mut self, touch: Touch) {
        self.waiting.push_back(touch);
        self.pager.starving.store(self.waiting.len() as u32, Relaxed);
    }

    fn retry(&mut self) {
        for _ in 0..self.waiting.len() {
            let Some(touch) = self.waiting.pop_front() else { break };
            let mm = touch.mm.clone();
            let answer = match mm.lock_quiet(Duration::ZERO) {
                Some(state) if state.ended => Answer::Given,
                Some(mut state) => self.answer(&mm, &mut state, &touch),
                None => Answer::Later,
            };
            if let Answer::Later = answer {
                self.waiting.push_back(touch);
            }
        }
        self.pager.starving.store(self.waiting.len() as u32, Relaxed);
    }

    /// Answers one touch (P3).
    fn answer(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch) -> Answer {
        let vpn = Vpn::of_address(touch.address);
        match state.space.get(vpn) {
            _ if touch.protected => self.unprotect(mm, state, touch, vpn),
            Entry::None => self.fresh(mm, state, touch, vpn),
            Entry::Resident(_) => self.stale(mm, touch),
            Entry::Cool(pfn) => {
                let pool = self.pager.resident().frame(pfn).pool;
                self.rescue(mm, state, touch, pool)
            }
            // Whoever loads it wakes every thread that waits for it.
            Entry::Stored { loading: true, .. } => Answer::Given,
            Entry::Stored { slot, loading: false } => self.load(mm, state, touch, vpn, slot),
        }
    }

    /// Takes a page of the budget. Those whose touch keeps others from giving pages back need none to
    /// be left: a child that has yet to greet, and an agent at its work.
    fn charge(&self, mm: &Mm, touch: &Touch) -> bool {
        let first = mm.is_infant() || mm.link.get().is_some_and(|l| l.thread() == touch.thread);
        let (charged, low) = {
            let mut resident = self.pager.resident();
            let mut charged = resident.zone.try_charge(1, 0);
            if !charged && first {
                resident.zone.charge(1);
                charged = true;
            }
            (charged, resident.zone.is_low())
        };
        if low || !charged {
            self.pager.kswapd.raise();
        }
        charged
    }

    fn uncharge(&self) {
        self.pager.resident().zone.uncharge(1);
    }

    /// A page nobody has stored: zeros.
    fn fresh(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch, vpn: Vpn) -> Answer {
        if !self.charge(mm, touch) {
            return Answer::Later;
        }
        match mm.uffd.copy(touch.address, &[0; PAGE_SIZE]) {
            Ok(()) => {
                self.pager.resident().map(&mut state.space, vpn, Arrival::Fresh, None);
                mm.known.fetch_add(1, Relaxed);
                counters::count(&self.pager.counters.faults_fresh);
                self.answered(touch);
                Answer::Given
            }
            Err((_, error)) => {
                self.uncharge();
                self.not_placed(mm, touch, error)
            }
        }
    }

    /// The first write to a page that was only read before its area was registered.
    fn unprotect(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch, vpn: Vpn) -> Answer {
        if !self.charge(mm, touch) {
            return Answer::Later;
        }
        match mm.uffd.unprotect(touch.address, PAGE_SIZE as u64) {
            Ok(()) => {
                if state.space.get(vpn) == Entry::None {
                    self.pager.resident().map(&mut state.space, vpn, Arrival::Fresh, None);
                    mm.known.fetch_add(1, Relaxed);
                } else {
                    self.uncharge();
                }
                counters::count(&self.pager.counters.faults_fresh);
                self.answered(touch);
                Answer::Given
            }
            Err(error) => {
                self.uncharge();
                self.not_placed(mm, touch, error)
            }
        }
    }

    /// The page is there as far as we know: two threads touched it at once, or the kernel dropped it.
    fn stale(&mut self, mm: &Arc<Mm>, touch: &Touch) -> Answer {
        counters::count(&self.pager.counters.faults_stale);
        match mm.uffd.copy(touch.address, &[0; PAGE_SIZE]) {
            // It was gone indeed: what the kernel may drop unasked (MADV_FREE) reads as zeros.
            Ok(()) => Answer::Given,
            Err((_, error)) => self.not_placed(mm, touch, error),
        }
    }

    /// What to do when a page could not be put in place.
    fn not_placed(&self, mm: &Arc<Mm>, touch: &Touch, error: PlaceError) -> Answer {
        match error {
            PlaceError::Changing | PlaceError::NoMemory => Answer::Later,
            PlaceError::Exists | PlaceError::Gone => {
                // Whoever waits touches again and finds the page, or the hole in the mapping.
                let _ = mm.uffd.wake(touch.address, PAGE_SIZE as u64);
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

    fn answered(&self, touch: &Touch) {
        self.pager.counters.record_wait(touch.since.elapsed());
    }

    /// A cool page: its content comes from the pool, which nobody but us can change.
    fn rescue(&mut self, mm: &Arc<Mm>, state: &mut State, touch: &Touch, place: u32) -> Answer {
        if !self.charge(mm, touch) {
            return Answer::Later;
        }
        let from = state.pool.address(place);
        let page = std::array::from_mut(&mut *self.buffer);
        if !matches!(process::read_pages(mm.task(), &[from], page), Ok(1)) {
            self.uncharge();
            if mm.is_alive() {
                // Which process it is will be known when it greets, or at its next own touch.
                return Answer::Later;
            }
            return Answer::Given;
        }
        match mm.uffd.copy(touch.address, &*self.buffer) {
            Ok(()) => {
                let vpn = Vpn::of_address(touch.address);
                let Entry::Cool(pfn) = state.space.get(vpn) else { unreachable!("held the lock") };
                let place = self.pager.resident().rescue(&mut state.space, pfn);
                state.pool.retire(place);
                mm.known.fetch_add(1, Relaxed);
                counters::count(&self.pager.counters.faults_rescued);
                self.answered(touch);
                Answer::Given
            }
            Err((_, error)) => {
                self.uncharge();
                self.not_placed(mm, touch, error)
            }
        }
    }

    /// A stored page.
    fn load(
        &mut self,
        mm: &Arc<Mm>,
        state: &mut State,
        touch: &Touch,
        vpn: Vpn,
        slot: SlotId,
    ) -> Answer {
        if !self.charge(mm, touch) {
            return Answer::Later;
        }
        let token = self.next_token;
        self.next_token += 1;
        match self.pager.store.get_or_start(slot, &mut self.buffer, token) {
            Ok(true) => {
                let page = std::mem::replace(&mut self.buffer, Box::new([0; PAGE_SIZE]));
                let answer = self.place_loaded(mm, state, touch, slot, &page);
                self.buffer = page;
                answer
            }
            Ok(false) => {
                self.pager.resident().begin_load(&mut state.space, vpn, slot);
                let touch = Touch { mm: mm.clone(), ..*touch };
                self.loads.insert(token, Load { touch, slot });
                self.pager.loading.fetch_add(1, Relaxed);
                Answer::Given
            }
            Err(error) => {
                self.uncharge();
                self.lost(mm, touch, &error.to_string());
                Answer::Given
            }
        }
    }

    /// The store cannot give a page back: whoever touches it dies of it, and nobody reads a wrong byte.
    fn lost(&self, mm: &Arc<Mm>, touch: &Touch, why: &str) {
        counters::count(&self.pager.counters.poisoned);
        // Several threads may each meet a lost page before the first has died of it: one line tells all.
        if !mm.told_lost.swap(true, Relaxed) {
            self.pager.complain(&format!(
                "a stored page of process {} is lost ({why}); touching it is a bus error (SIGBUS)",
                mm.pid.load(Relaxed)
            ));
        }
        let _ = mm.uffd.poison(touch.address, PAGE_SIZE as u64);
    }

    /// Puts a loaded page in place; the entry still names its slot.
    fn place_loaded(
        &mut self,
        mm: &Arc<Mm>,
        state: &mut State,
        touch: &Touch,
        slot: SlotId,
        page: &Page,
    ) -> Answer {
        match mm.uffd.copy(touch.address, page) {
            Ok(()) => {
                let vpn = Vpn::of_address(touch.address);
                self.pager.resident().map(&mut state.space, vpn, Arrival::Loaded, Some(slot));
                mm.known.fetch_add(1, Relaxed);
                counters::count(&self.pager.counters.faults_loaded);
                self.answered(touch);
                Answer::Given
            }
            Err((_, error)) => {
                self.uncharge();
                self.not_placed(mm, touch, error)
            }
        }
    }

    fn take_completions(&mut self) {
        let arrived = &mut self.arrived;
        let mut failed = Vec::new();
        self.pager.store.poll_completions(&mut |token, result| match result {
            Ok(page) => arrived.push((token, Box::new(*page))),
            Err(error) => failed.push((token, error.to_string())),
        });
        for (token, why) in failed {
            let Some(load) = self.loads.remove(&token) else { continue };
            let mm = load.touch.mm.clone();
            let mut state = mm.lock();
            if self.end_load(&mut state, &load) {
                self.lost(&mm, &load.touch, &why);
            } else {
                self.touch_again(&mm, &load.touch);
            }
            self.uncharge();
        }
    }

    /// The load is over. True if its page is still wanted; the entry is then plainly stored again.
    fn end_load(&self, state: &mut State, load: &Load) -> bool {
        let vpn = Vpn::of_address(load.touch.address);
        let wanted = !state.ended
            && state.space.get(vpn) == Entry::Stored { slot: load.slot, loading: true };
        let mut dropped = Dropped::default();
        self.pager.loading.fetch_sub(1, Relaxed);
        if wanted {
            state.space.set(vpn, Entry::Stored { slot: load.slot, loading: false });
        }
        self.pager.resident().release_slot(load.slot, &mut dropped);
        self.pager.discard(&dropped);
        wanted
    }

    /// The page that threads wait for is not wanted any more (discarded, unmapped, moved): they touch
    /// again and get what is there now.
    fn touch_again(&self, mm: &Mm, touch: &Touch) {
        // An address space that has ended has nobody waiting.
        let _ = mm.uffd.wake(touch.address, PAGE_SIZE as u64);
    }

    /// Puts in place what has arrived from the store.
    fn place_arrived(&mut self) {
        for (token, page) in std::mem::take(&mut self.arrived) {
            let Some(load) = self.loads.remove(&token) else { continue };
            let mm = load.touch.mm.clone();
            let Some(mut state) = mm.lock_quiet(BATCH_PATIENCE) else {
                self.loads.insert(token, load);
                self.arrived.push((token, page));
                continue;
            };
            if !self.end_load(&mut state, &load) {
                self.touch_again(&mm, &load.touch);
                self.uncharge();
                continue;
            }
            let answer = self.place_loaded(&mm, &mut state, &load.touch, load.slot, &page);
            drop(state);
            if let Answer::Later = answer {
                // The mapping is changing: looked up again once that is settled.
                self.set_aside(load.touch);
            }
        }
    }

    /// The program let go of `[start, end)`.
    fn forget(&self, mm: &Arc<Mm>, state: &mut State, start: u64, end: u64) {
        let mut dropped = Dropped::default();
        let range = (Vpn::of_address(start), Vpn::of_address(end));
        self.pager.resident().forget_range(&mut state.space, range.0, range.1, &mut dropped);
        self.let_go(mm, state, &dropped);
    }

    fn remap(&self, mm: &Arc<Mm>, state: &mut State, from: u64, to: u64, len: u64) {
        let mut dropped = Dropped::default();
        let (old, new) = (Vpn::of_address(from), Vpn::of_address(to));
        let pages = len / PAGE_SIZE as u64;
        self.pager.resident().remap(&mut state.space, old, new, pages, &mut dropped);
        self.let_go(mm, state, &dropped);
        state.areas.remove(from, from + len);
        for (start, end) in state.areas.missing(to, to + len) {
            state.areas.add(start, end);
        }
    }

    /// Frames, pool places and slots that nobody holds any more.
    fn let_go(&self, mm: &Arc<Mm>, state: &mut State, dropped: &Dropped) {
        for &place in &dropped.pool {
            state.pool.retire(place);
        }
        // A cool page stays charged until it is dropped from the pool.
        let gone = dropped.frames - dropped.pool.len() as u64;
        // What is shared with a relative was charged once: the next measurement tells.
        if !mm.related.load(Relaxed) {
            self.pager.resident().zone.uncharge(gone);
        }
        mm.known.fetch_sub(gone as i64, Relaxed);
        self.pager.discard(dropped);
    }
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
        let fault = |address| Event::Fault { address, protected: false, thread: 1 };
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
