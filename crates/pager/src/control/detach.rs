//! Gives an attached process back whole (`ebb detach`), so that it runs on without Ebb.
//!
//! * DETACH-1: Only an attached process is given back, because other programs have the agent's
//!   hooks in them.
//! * DETACH-2: Once kswapd rests, no page leaves, and no process is given an agent. The limit is
//!   lifted, so pages that come back wait for no room. A child that stays without an agent then is
//!   not reported, because it has its memory.
//! * DETACH-3: An agent is told to end only when every page of every process is in place. Then the
//!   kernel has all pages that the pager has records of, and the userfaultfd may be closed. A
//!   thread that faults on a new page meanwhile waits for that, and gets the page from the kernel.
//! * DETACH-4: If a page cannot be brought back, or a process is stopped, no process is given back.
//!   The run goes on within its limit, and the caller gets the reason.
//! * DETACH-5: The process itself unmaps the memory that was mapped for the agent, when the agent's
//!   thread has ended ([`crate::processes::inject`]).

use crate::mm::link::Link;
use crate::mm::{Mm, unmapped};
use crate::pager::Pager;
use crate::processes::{Processes, inject};
use crate::seam::{Connection, Process, answer};
use crate::wait::limits::SLICE_PAGES;
use crate::wait::patience::{Patience, Wait};
use ebb_mm::resident::Entry;
use ebb_mm::types::{PAGE_SIZE, Vpn};
use ebb_sys::proc;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Time without a page coming back after which the pager looks at what lies in place of the pages.
const LOOK_AFTER: Duration = Duration::from_millis(100);
/// Interval at which missing pages are requested until they are in place.
const ASK_AGAIN: Duration = Duration::from_millis(50);
const PAUSE: Duration = Duration::from_millis(1);
/// Limit of the pages requested at once.
const ASKED_MAX: usize = 256;
/// Number of passes over all processes, because they may fork meanwhile.
const ROUNDS_MAX: u32 = 100;

/// Why no process can be given back (DETACH-4).
#[derive(Debug, thiserror::Error)]
pub enum DetachError {
    /// The process with this number cannot release its agent.
    #[error("process {0} is stopped: kill -CONT {0}")]
    Stopped(u32),
    /// The machine has no room for the stored pages.
    #[error(
        "the stored pages need {needed_mib} MiB, and the machine has room for {room_mib} MiB; free \
         some memory first"
    )]
    NoRoom {
        /// Size of the stored pages.
        needed_mib: u64,
        /// Available memory.
        room_mib: u64,
    },
    /// Reclaim does not come to rest.
    #[error("a process does not answer: it gets no CPU")]
    NoCpu,
    /// A page does not come back.
    #[error("the pager cannot bring back the page at {address:#x} of process {pid}")]
    PageAway {
        /// Address of the page.
        address: u64,
        /// Number of the process.
        pid: u32,
    },
}

/// Handles a command's request to detach. The supervisor has to know, so it gets a signal and then
/// makes the request to this pager.
pub fn asked(pager: &Pager, line: Box<dyn Connection>) {
    if !pager.config.attached {
        let why = "ebb run started the process, and Ebb's hooks cannot leave it; ebb set PID memory.max=SIZE gives it more memory";
        return answer::done(&*line, Err(why.into()));
    }
    pager.run.detach.lines.lock().unwrap_or_else(PoisonError::into_inner).push(line);
    pager.processes.request_detach();
}

/// Gives all processes back.
///
/// # Errors
/// Fails if a process cannot be given back (DETACH-4).
pub fn run(pager: &Arc<Pager>) -> Result<(), DetachError> {
    let result = try_run(pager);
    let told = result.as_ref().copied().map_err(ToString::to_string);
    pager.run.detach.answer(&told);
    result
}

fn try_run(pager: &Arc<Pager>) -> Result<(), DetachError> {
    all_run(&pager.processes)?;
    has_room(&pager.processes)?;
    let (limit, high) = lift(pager)?;
    let pages = |bytes: u64| bytes / PAGE_SIZE as u64;
    let whole = (0..ROUNDS_MAX).try_for_each(|_| {
        for mm in pager.mms() {
            bring_back(pager, &mm)?;
        }
        Ok(())
    });
    if let Err(reason) = whole.and_then(|()| all_run(&pager.processes)) {
        pager.engine().resize(pages(limit), pages(high), limit / 2);
        pager.run.detach.on.store(false, SeqCst);
        pager.budget.wake_kswapd();
        return Err(reason);
    }
    // From now on a newly forked child has all its pages, too, and no agent.
    while let Some(mm) = pager.mms().into_iter().next() {
        release_process(pager, mm);
    }
    // The report needs the limits.
    pager.engine().resize(pages(limit), pages(high), limit / 2);
    Ok(())
}

/// Fails if a process is stopped, because it cannot release its agent.
fn all_run(processes: &Processes) -> Result<(), DetachError> {
    match processes.mms().into_iter().find(|mm| mm.is_stopped()) {
        Some(mm) => Err(DetachError::Stopped(mm.owner.pid())),
        None => Ok(()),
    }
}

/// Fails if the machine has no room for the stored pages.
fn has_room(processes: &Processes) -> Result<(), DetachError> {
    let mut stored = 0;
    for mm in processes.mms() {
        let mut next = Some(Vpn(0));
        while let Some(start) = next {
            let mut count = |entry| stored += u64::from(matches!(entry, Entry::Stored { .. }));
            next = mm.lock().space.visit(start, SLICE_PAGES, |_, entry| count(entry));
        }
    }
    let (needed, available) = (stored * PAGE_SIZE as u64, proc::memory_available());
    let mib = |bytes: u64| bytes >> 20;
    match available {
        Some(available) if needed > available => {
            Err(DetachError::NoRoom { needed_mib: mib(needed), room_mib: mib(available) })
        }
        _ => Ok(()),
    }
}

/// Stops reclaim and lifts the limit (DETACH-2). Returns limit and aim as they were, in bytes.
fn lift(pager: &Pager) -> Result<(u64, u64), DetachError> {
    pager.run.detach.rests.store(false, SeqCst);
    pager.run.detach.on.store(true, SeqCst);
    let wait = Wait::new(&pager.clock, Patience::Detach);
    while !pager.run.detach.rests.load(SeqCst) || inject::is_under_way() {
        if wait.is_over(&pager.clock) {
            pager.run.detach.on.store(false, SeqCst);
            all_run(&pager.processes)?;
            return Err(DetachError::NoCpu);
        }
        pager.budget.kswapd.raise();
        pager.host.sleep(PAUSE);
    }
    let plenty = (u64::MAX >> 20) / PAGE_SIZE as u64;
    // Any other change of the limit first checks for a detach, under this lock.
    let before = pager.budget.limits();
    pager.engine().resize(plenty, plenty, before.0 / 2);
    pager.run.managing.store(false, SeqCst);
    pager.faults.wake_if_deferred();
    pager.run.monitor.raise();
    Ok(before)
}

/// Brings back every page of an address space, unless that ends before.
fn bring_back(pager: &Pager, mm: &Arc<Mm>) -> Result<(), DetachError> {
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

/// Returns pages from `start` on that are not in place, and where to go on.
fn away(mm: &Mm, start: Vpn) -> (Vec<Vpn>, Option<Vpn>) {
    let (mut away, mut next) = (Vec::new(), Some(start));
    while let Some(start) = next.filter(|_| away.len() < ASKED_MAX) {
        let mut note = |vpn, entry| {
            if matches!(entry, Entry::Standby(_) | Entry::Stored { .. }) {
                away.push(vpn);
            }
        };
        next = mm.lock().space.visit(start, ASKED_MAX as u64, &mut note);
    }
    (away, next)
}

/// Fetches the pages `away` and waits for them. A page that no thread waits for is given up if its
/// area is changing. Hence it is requested again.
fn await_all(pager: &Pager, mm: &Arc<Mm>, mut away: Vec<Vpn>) -> Result<(), DetachError> {
    let (mut since, mut asked) = (pager.clock.now(), None);
    let mut wait = Wait::new(&pager.clock, Patience::Detach);
    loop {
        if asked.is_none_or(|asked| pager.clock.since(asked) > ASK_AGAIN) {
            asked = Some(pager.clock.now());
            let mut wanted = pager.run.detach.wanted.lock().unwrap_or_else(PoisonError::into_inner);
            wanted.extend(away.iter().map(|&vpn| (mm.clone(), vpn)));
        }
        let before = away.len();
        {
            let state = mm.lock();
            let is_away = |vpn: &Vpn| {
                matches!(state.space.get(*vpn), Entry::Standby(_) | Entry::Stored { .. })
            };
            away.retain(is_away);
        }
        if away.is_empty() || !mm.uffd.is_alive() {
            return Ok(());
        }
        if away.len() < before {
            since = pager.clock.now();
            wait = Wait::new(&pager.clock, Patience::Detach);
        } else if pager.clock.since(since) > LOOK_AFTER && forget_others(mm, &mut away) {
            continue;
        } else if wait.is_over(&pager.clock) {
            let (pid, address) = (mm.owner.pid(), away[0].address());
            return Err(DetachError::PageAway { address, pid });
        }
        pager.faults.wake();
        pager.host.sleep(PAUSE);
    }
}

/// Removes pages in whose place something else lies by now (such as a guard), or nothing can lie.
/// No thread will see the recorded content of these pages again. Returns whether there were any.
fn forget_others(mm: &Mm, away: &mut Vec<Vpn>) -> bool {
    let Some(areas) = mm.process().and_then(|process| process.areas().ok()) else { return false };
    let is_mapped = |vpn: Vpn| {
        let at = areas.partition_point(|area| area.end <= vpn.address());
        areas.get(at).is_some_and(|area| area.start <= vpn.address() && area.is_pageable())
    };
    let before = away.len();
    away.retain(|&vpn| is_mapped(vpn) && unmapped::still(mm, vpn) != Some(false));
    away.len() < before
}

/// Releases an address space whose pages are all in place, and its agent.
fn release_process(pager: &Arc<Pager>, mm: Arc<Mm>) {
    let (pid, agent) = (mm.owner.pid(), mm.process().and_then(Process::agent));
    let is_there = |agent| mm.process().is_some_and(|process| process.has_thread(agent));
    mm.process().into_iter().for_each(Process::forget_thread);
    if let Some(link) = mm.agent.link() {
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
    let others = mm.agent.link().or(mm.calls.inherited.last()).map(Link::mapped_for_it);
    let mapped: Vec<_> = [pool].into_iter().chain(others.into_iter().flatten()).collect();
    pager.drop_mm(&mm);
    // The userfaultfd is closed with its last use. Until then, unmapping would wait for a reader of
    // the message.
    let wait = Wait::new(&pager.clock, Patience::LastUse);
    while Arc::strong_count(&mm) > 1 && !wait.is_over(&pager.clock) {
        pager.host.sleep(PAUSE);
    }
    drop(mm);
    if pid != 0
        && let Err(error) = inject::clean(pid, &pager.config.socket, &mapped)
    {
        // The kernel refuses to trace a process that ends.
        if !proc::is_ending(pid) {
            pager.say(&format!(
                "process {pid} has its memory back, but Ebb's mappings stay in it: {error}"
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mm::link::JoinRequest;
    use crate::processes::candidates::Candidate;
    use crate::quiet::{Quiet, line, pager, with_pool};
    use ebb_agent::protocol::{ASK_ALONE, CALL_MADE};

    /// Shows that a child that gets no agent because of a detach is not reported. It said that it
    /// has none, and a run that gave all memory back complained of memory that it cannot manage.
    #[test]
    fn a_child_that_a_detach_leaves_without_an_agent_is_not_reported() {
        let (pager, (link, shared)) = (pager(), line());
        let call = &shared.0.calls[0];
        call.what.store(ASK_ALONE, SeqCst);
        call.state.store(CALL_MADE, SeqCst);
        let (caller, _) = link.call(0).expect("a call");
        let (mm, request) =
            (Arc::new(with_pool(Quiet::default())), JoinRequest::CannotJoin { reason: 32 });
        pager.run.detach.on.store(true, SeqCst);
        let child = Candidate { mm, request, line: link, caller, certain: true };
        assert!(child.serve(&pager).is_none());
        assert_ne!(call.state.load(SeqCst), CALL_MADE, "it is answered");
        assert!(pager.telemetry.unmanaged.list().is_empty());
    }
}
