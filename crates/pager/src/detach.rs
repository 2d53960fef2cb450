//! A process that was attached to is given back whole (`ebb detach`), and goes on as if nothing had been.
//!
//! * DETACH-1: only what was attached to is: others have hooks of the agent's in them.
//! * DETACH-2: from when kswapd rests nothing leaves any more, and nobody is given an agent; and the limit is lifted, so that what comes back waits for nobody.
//! * DETACH-3: an agent is told to go only when every page of every process is in its place. Then the kernel has all that the
//!   books have, and the userfaultfd may be closed: who touches something new meanwhile waits for that, and gets it from the
//!   kernel.
//! * DETACH-4: where a page cannot be brought back, or a process is stopped, nobody is let go: the run goes on within its limit, and
//!   who asked is told why.
//! * DETACH-5: what was mapped for the agent is taken away by the process itself ([`crate::inject`]), when its thread has ended.

use crate::inject;
use crate::limits::SLICE_PAGES;
use crate::link::Link;
use crate::lru_gen::{DONE, REFUSED};
use crate::mm::Mm;
use crate::patience::{Patience, Wait};
use crate::seam::{Connection, Process};
use crate::server::Pager;
use crate::vacant;
use ebb_mm::resident::Entry;
use ebb_mm::types::{PAGE_SIZE, Vpn};
use ebb_sys::{proc, signals};
use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// After so long without one it is looked at what lies there.
const LOOK_AFTER: Duration = Duration::from_millis(100);
/// How often pages are asked for until they are there.
const ASK_AGAIN: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(1);
/// Pages that are asked for at once.
const ASKED_MAX: usize = 256;
/// How often all processes are gone through: they may fork meanwhile.
const ROUNDS_MAX: u32 = 100;

/// What concerns it.
#[derive(Default)]
pub struct Detach {
    /// Under way: nothing leaves.
    on: AtomicBool,
    /// kswapd has seen that.
    rests: AtomicBool,
    /// Pages that are to come back, for the fault thread.
    wanted: Mutex<VecDeque<(Arc<Mm>, Vpn)>>,
    /// It was tried because nothing more could be stored.
    tried: AtomicBool,
    /// Who asked for it.
    lines: Mutex<Vec<Box<dyn Connection>>>,
}

impl Detach {
    /// Whether nothing may leave any more.
    pub fn is_on(&self) -> bool {
        self.on.load(SeqCst)
    }

    /// kswapd has nothing under way.
    pub fn rest(&self) {
        self.rests.store(true, SeqCst);
    }

    /// Pages that are to come back.
    pub fn take_wanted(&self) -> VecDeque<(Arc<Mm>, Vpn)> {
        std::mem::take(&mut self.wanted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether a run in which nothing more can be stored may end so.
    pub fn is_way_out(&self, pager: &Pager) -> bool {
        pager.config.attached && !self.tried.load(SeqCst)
    }

    /// Has it end so, if it may.
    pub fn try_way_out(&self, pager: &Pager) -> bool {
        let may = self.is_way_out(pager);
        if may {
            self.tried.store(true, SeqCst);
            tell_front(pager);
        }
        may
    }

    fn answer(&self, text: &str) {
        let lines = std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner));
        // Who asked may have left.
        lines.iter().for_each(|line| drop(line.say(text.as_bytes())));
    }
}

/// Somebody asks for it. The front is told, which says so to this pager: it has to know.
pub fn asked(pager: &Pager, line: Box<dyn Connection>) -> std::io::Result<()> {
    if !pager.config.attached {
        let why = "it was started by ebb run, and hooks of Ebb's are in it; ebb set PID memory.max=SIZE gives it more";
        return line.say(format!("{REFUSED}{why}").as_bytes());
    }
    pager.detach.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    tell_front(pager);
    Ok(())
}

/// Has the front say so. Without one it is under way.
fn tell_front(pager: &Pager) {
    // Its number could be another's by now.
    if std::os::unix::process::parent_id() == pager.front {
        signals::send(pager.front, signals::SIGTERM);
    }
}

/// Gives all processes back.
///
/// # Errors
/// It cannot be (DETACH-4).
pub fn run(pager: &Arc<Pager>) -> Result<(), String> {
    let result = try_run(pager);
    match &result {
        Ok(()) => pager.detach.answer(DONE),
        Err(reason) => pager.detach.answer(&format!("{REFUSED}{reason}")),
    }
    result
}

fn try_run(pager: &Arc<Pager>) -> Result<(), String> {
    all_run(pager)?;
    has_room(pager)?;
    let (limit, high) = lift(pager)?;
    let pages = |bytes: u64| bytes / PAGE_SIZE as u64;
    let whole = (0..ROUNDS_MAX).try_for_each(|_| {
        for mm in pager.mms() {
            bring_back(pager, &mm)?;
        }
        Ok(())
    });
    if let Err(reason) = whole.and_then(|()| all_run(pager)) {
        pager.engine().resize(pages(limit), pages(high), limit / 2);
        pager.detach.on.store(false, SeqCst);
        pager.wake_kswapd();
        return Err(reason);
    }
    // A child that is forked now has all its pages, too, and no agent.
    while let Some(mm) = pager.mms().into_iter().next() {
        let_go(pager, mm);
    }
    // For the report.
    pager.engine().resize(pages(limit), pages(high), limit / 2);
    Ok(())
}

/// Whoever is stopped cannot let go.
fn all_run(pager: &Pager) -> Result<(), String> {
    match pager.mms().into_iter().find(|mm| mm.is_stopped()) {
        Some(mm) => Err(format!("process {} is stopped: kill -CONT {0}", mm.pid())),
        None => Ok(()),
    }
}

/// What was stored has to fit into the machine.
fn has_room(pager: &Pager) -> Result<(), String> {
    let mut stored = 0;
    for mm in pager.mms() {
        let mut next = Some(Vpn(0));
        while let Some(start) = next {
            let mut count = |entry| stored += u64::from(matches!(entry, Entry::Stored { .. }));
            next = mm.lock().space.visit(start, SLICE_PAGES, |_, entry| count(entry));
        }
    }
    let (needed, available) = (stored * PAGE_SIZE as u64, proc::memory_available());
    let mib = |bytes: u64| bytes >> 20;
    match available {
        Some(available) if needed > available => Err(format!(
            "{} MiB are to come back, and the machine has room for {}",
            mib(needed),
            mib(available)
        )),
        _ => Ok(()),
    }
}

/// DETACH-2. Limit and aim, in bytes, as they were.
fn lift(pager: &Pager) -> Result<(u64, u64), String> {
    pager.detach.rests.store(false, SeqCst);
    pager.detach.on.store(true, SeqCst);
    let wait = Wait::new(&pager.clock, Patience::Detach);
    while !pager.detach.rests.load(SeqCst) || inject::is_under_way() {
        if wait.is_over(&pager.clock) {
            pager.detach.on.store(false, SeqCst);
            all_run(pager)?;
            return Err("a process does not answer: it gets no CPU".into());
        }
        pager.kswapd.raise();
        pager.host.sleep(PAUSE);
    }
    let plenty = (u64::MAX >> 20) / PAGE_SIZE as u64;
    // Whoever changes it looks first whether this has begun, under the same lock.
    let before = pager.limits();
    pager.engine().resize(plenty, plenty, before.0 / 2);
    pager.managing.store(false, SeqCst);
    pager.wake_if_waiting();
    pager.monitor.raise();
    Ok(before)
}

/// Has every page of an address space in its place, if it does not end before.
fn bring_back(pager: &Pager, mm: &Arc<Mm>) -> Result<(), String> {
    let mut start = Vpn(0);
    loop {
        let (away, next) = away(mm, start);
        await_all(pager, mm, away)?;
        match next {
            Some(vpn) => start = vpn,
            None => return Ok(()),
        }
    }
}

/// Pages that are not in their places, from `start` on, and where to go on.
fn away(mm: &Mm, start: Vpn) -> (Vec<Vpn>, Option<Vpn>) {
    let (mut away, mut next) = (Vec::new(), Some(start));
    while let Some(start) = next.filter(|_| away.len() < ASKED_MAX) {
        let mut note = |vpn, entry| {
            if matches!(entry, Entry::Cool(_) | Entry::Stored { .. }) {
                away.push(vpn);
            }
        };
        next = mm.lock().space.visit(start, ASKED_MAX as u64, &mut note);
    }
    (away, next)
}

/// Has them fetched. What nobody waits for is given up where its area is changing just then: it is asked for again.
fn await_all(pager: &Pager, mm: &Arc<Mm>, mut away: Vec<Vpn>) -> Result<(), String> {
    let (mut since, mut asked) = (pager.clock.now(), None);
    let mut wait = Wait::new(&pager.clock, Patience::Detach);
    loop {
        if asked.is_none_or(|asked| pager.clock.since(asked) > ASK_AGAIN) {
            asked = Some(pager.clock.now());
            let mut wanted = pager.detach.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.extend(away.iter().map(|&vpn| (mm.clone(), vpn)));
        }
        let before = away.len();
        {
            let state = mm.lock();
            let is_away =
                |vpn: &Vpn| matches!(state.space.get(*vpn), Entry::Cool(_) | Entry::Stored { .. });
            away.retain(is_away);
        }
        if away.is_empty() || !mm.is_alive() {
            return Ok(());
        }
        if away.len() < before {
            since = pager.clock.now();
            wait = Wait::new(&pager.clock, Patience::Detach);
        } else if pager.clock.since(since) > LOOK_AFTER && forget_others(mm, &mut away) {
            continue;
        } else if wait.is_over(&pager.clock) {
            let (pid, address) = (mm.pid(), away[0].address());
            return Err(format!(
                "the page at {address:#x} of process {pid} cannot be brought back"
            ));
        }
        pager.wake_faults();
        pager.host.sleep(PAUSE);
    }
}

/// Takes those out in whose place something else lies by now, a guard for one, or nothing can: what the books have of them
/// nobody will see again. Whether there were any.
fn forget_others(mm: &Mm, away: &mut Vec<Vpn>) -> bool {
    let Some(areas) = mm.process().and_then(|process| process.areas().ok()) else { return false };
    let is_mapped = |vpn: Vpn| {
        let at = areas.partition_point(|area| area.end <= vpn.address());
        areas.get(at).is_some_and(|area| area.start <= vpn.address() && area.is_pageable())
    };
    let before = away.len();
    away.retain(|&vpn| is_mapped(vpn) && vacant::still(mm, vpn) != Some(false));
    away.len() < before
}

/// An address space whose pages are all there goes on by itself.
fn let_go(pager: &Arc<Pager>, mm: Arc<Mm>) {
    let (pid, agent) = (mm.pid(), mm.process().and_then(Process::agent));
    let is_there = |agent| mm.process().is_some_and(|process| process.has_thread(agent));
    mm.process().into_iter().for_each(Process::forget_thread);
    if let Some(link) = mm.link.get() {
        while agent.is_some_and(is_there) && !link.detach() {
            pager.host.sleep(PAUSE);
        }
    }
    while agent.is_some_and(is_there) {
        pager.host.sleep(PAUSE);
    }
    let pool = {
        let state = mm.lock();
        (state.pool.start(), state.pool.end() - state.pool.start())
    };
    let others = mm.link.get().or(mm.inherited.last()).map(Link::mapped_for_it);
    let mapped: Vec<_> = [pool].into_iter().chain(others.into_iter().flatten()).collect();
    pager.drop_mm(&mm);
    // The userfaultfd is closed with the last use of it: until then unmapping would wait for somebody to hear of it.
    let wait = Wait::new(&pager.clock, Patience::LastUse);
    while Arc::strong_count(&mm) > 1 && !wait.is_over(&pager.clock) {
        pager.host.sleep(PAUSE);
    }
    drop(mm);
    if pid != 0
        && let Err(error) = inject::clean(pid, &pager.config.socket, &mapped)
    {
        // It may have ended.
        if proc::state(pid).is_some_and(|state| state != 'Z') {
            pager.say(&format!(
                "process {pid} has its memory back; what Ebb mapped in it stays: {error}"
            ));
        }
    }
}
