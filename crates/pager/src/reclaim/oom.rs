//! Handles out of memory: no more memory can be reclaimed, and the run ends with a message that
//! gives the reason.
//!
//! * OOM-1: a thread waits without progress while it is refused memory (or is frozen) and nothing
//!   is stored. Progress is a stored page, or memory in balance. Pages moved to standby, dropped or
//!   copied do not count, because threads may take them back again and again. The store may take no
//!   more. Then a page with a stored copy counts only if no other member of the fork group has it.
//!   Hundreds of processes may each release their mapping of a shared page without freeing memory.
//!   A page now and then is no progress either: each shortens the time without progress by
//!   [`PAGE_TIME`] only. A fault that waits for another reason does not wait for memory. A wait
//!   begins no earlier than its fault, or than its freeze.
//! * OOM-2: the run ends after two seconds without progress ([`Patience::Memory`]), in the time
//!   that the host grants. A host that stops, or runs this process late, makes that longer.
//! * OOM-3: children that have yet to join, and agents that do not answer, may give pages back. The
//!   run ends half a second later for them ([`Patience::MemoryOwed`]). Neither their number nor
//!   later births make that longer. If an agent has just delivered, the next round evaluates that
//!   first. Children that were born before the wait may join one after another. That also puts off
//!   the end, because pages that they share cannot leave before the last of them has joined.
//! * OOM-4: a busy machine is no reason to end a run (PATIENCE-2). A round does not count while a
//!   child or agent of OOM-3 wants a CPU. Nor does a round count in which kswapd passes over an
//!   agent that got no CPU for its last batch. kswapd's own waits for a CPU do not count either,
//!   until it has run for [`PROOF`] without progress. It must have seen enough rounds
//!   ([`ROUNDS_MIN`]). Children that were born during the wait do not put off the end. If children
//!   are born all the time, one of them always wants a CPU. Then the program keeps the CPUs busy
//!   itself.
//! * OOM-5: a process stopped by a signal or a debugger is no reason to end the run. The pages that
//!   it occupies are overcommitted to the others (`Reclaim::set_overcommit`), and these store pages
//!   of their own. A thread that still waits without progress waits for the store, as beside a
//!   running process. The threads of the stopped process itself wait for nothing, because the
//!   signal has interrupted their faults. If only such threads are left, the time starts again. A
//!   tracer that shares their memory waits like any process, once the machine has no more to
//!   overcommit.
//! * OOM-6: while threads wait without progress, kswapd does not wait for a stopped process. It
//!   checks whether a process is stopped before it posts a batch (`Reclaim::is_unresponsive`). A
//!   batch to a stopped process takes a hundred milliseconds. Many such batches would take longer
//!   than the two seconds.
//! * OOM-7: an attached program had no limit at its start. So its run does not end by a kill, but
//!   by a detach ([`crate::control::detach`]). If the detach fails, the run ends as others do.
//! * OOM-8: no page leaves an address space while the pager follows its fork or mapping change. If
//!   that takes longer than [`LARGE`], the end is put off while slices of the message are followed.
//!   A shorter message puts off nothing, because there may be forks all the time.

use super::{Reclaim, Stalled, Work};
use crate::broken::{Rule, is_broken};
use crate::budget::Budget;
use crate::mm::Mm;
use crate::pager::Pager;
use crate::processes::inject;
use crate::seam::{AgentRuns, Process};
use crate::telemetry::events::{Event, Why};
use crate::wait::patience::{BEAT, Moment, Patience};
use ebb_mm::types::{MmId, PAGE_SIZE};
use ebb_swap::StoreError;
use ebb_sys::proc;
use ebb_sys::sched::RunTimes;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// CPU time after which an agent without an answer has proven that it will not answer, and kswapd
/// that it finds nothing to store (OOM-4).
const PROOF: Duration = Duration::from_secs(1);
/// Time after which a followed message counts as large (OOM-8).
const LARGE: Duration = Duration::from_millis(500);
/// Minimum number of rounds without progress before the run ends (OOM-4).
const ROUNDS_MIN: u32 = 16;
/// Time without progress that a stored page makes up for (OOM-1). One page in this time is far less
/// than any device can store.
const PAGE_TIME: Duration = Duration::from_millis(20);
/// Maximum number of processes listed when memory runs out.
const LISTED_MAX: usize = 16;

/// Last count of something that may make progress, and the time of its last progress.
#[derive(Clone, Copy, Debug)]
struct Progress {
    count: u64,
    when: Moment,
}

impl Progress {
    /// Records that the count is `count` now. It made progress if `is_progress` holds for the last
    /// count. Returns the time since the last progress.
    fn look(
        last: &mut Option<Self>,
        now: Moment,
        count: u64,
        is_progress: impl FnOnce(u64) -> bool,
    ) -> Duration {
        let when = last.filter(|last| !is_progress(last.count)).map_or(now, |last| last.when);
        *last = Some(Self { count, when });
        now.since(when)
    }
}

/// An agent for which the pager waits.
#[derive(Clone, Copy, Debug)]
struct Watched {
    /// Run times at the first check.
    first: AgentRuns,
    /// Whether the agent has left a batch unanswered for lack of a CPU.
    owes: bool,
}

/// Time for which threads have waited without progress (OOM-1).
#[derive(Debug, Default)]
pub struct NoProgress {
    since: Option<Moment>,
    /// Number of rounds that stored nothing in that time, and that count.
    rounds: u32,
    /// Moment of the last round, and the run times of kswapd by then.
    last: Option<(Moment, RunTimes)>,
    /// CPU time of kswapd in that time.
    ran: Duration,
    /// Parts of that time that do not count for lack of a CPU (OOM-4), each with its end.
    uncounted: Vec<(Moment, Duration)>,
    /// Agents for which the pager waits.
    watched: HashMap<MmId, Watched>,
    /// Last check of these agents, and whether one of them lacked a CPU.
    checked: Option<(Moment, bool)>,
    /// Slices followed of large messages (OOM-8).
    followed: Option<Progress>,
    /// Number of children born before that time that have yet to join (OOM-3).
    starting: Option<Progress>,
}

impl NoProgress {
    /// Counts a round that stored nothing while threads wait. `lacks_cpu` says that a thread lacked
    /// a CPU that could have made progress. `own` are the run times of kswapd.
    pub fn round(&mut self, now: Moment, lacks_cpu: bool, own: RunTimes) {
        self.since.get_or_insert(now);
        self.rounds += u32::from(!lacks_cpu);
        let (last, own_then) = self.last.replace((now, own)).unwrap_or((now, own));
        let (time, own) = (now.since(last), own.since(&own_then));
        self.ran += own.ran();
        let part = match lacks_cpu {
            true => time,
            false if self.ran >= PROOF => Duration::ZERO,
            false => time.min(own.waited()),
        };
        match self.uncounted.last_mut() {
            _ if part.is_zero() => {}
            // Few parts are enough.
            Some((end, sum)) if now.since(*end) < BEAT => *sum += part,
            _ => self.uncounted.push((now, part)),
        }
    }

    /// Notes that `pages` pages were stored.
    pub fn progress(&mut self, now: Moment, pages: u64) {
        let made_up = PAGE_TIME * u32::try_from(pages).unwrap_or(u32::MAX);
        match self.since.as_mut() {
            Some(since) if since.after(made_up) < now => {
                *since = since.after(made_up);
                self.ran = self.ran.saturating_sub(made_up);
            }
            _ => self.end(),
        }
    }

    /// Ends the time without progress, because no thread waits, or memory is in balance.
    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// Returns when the wait without progress of the longest waiting thread began.
    fn began(&self, budget: &Budget) -> Option<Moment> {
        let since = self.since?;
        let starved = budget.memory_stalled_since_ms.load(Relaxed);
        let frozen =
            if budget.frozen.load(Relaxed) > 0 { budget.frozen_since_ms.load(Relaxed) } else { 0 };
        let began = [starved, frozen].into_iter().filter(|&ms| ms > 0).min();
        Some(began.map_or(since, |ms| since.max(Moment::of_ms(ms))))
    }

    /// Returns how long the longest waiting thread has waited without progress, with all that does
    /// not count.
    fn elapsed(&self, pager: &Pager) -> Duration {
        self.began(&pager.budget).map_or(Duration::ZERO, |began| pager.clock.moment().since(began))
    }

    /// Returns the part of that time that does not count (OOM-4).
    fn uncounted(&self, budget: &Budget) -> Duration {
        let Some(began) = self.began(budget) else { return Duration::ZERO };
        let parts = self.uncounted.iter().rev().take_while(|&&(end, _)| end > began);
        parts.map(|&(_, part)| part).sum()
    }

    /// Returns how long the longest waiting thread has waited without progress.
    fn time(&self, pager: &Pager) -> Duration {
        self.elapsed(pager).saturating_sub(self.uncounted(&pager.budget))
    }

    /// Whether threads have waited without progress for longer than `time`, with all that does not
    /// count for the end.
    pub fn lasts(&self, pager: &Pager, time: Duration) -> bool {
        self.since.is_some() && self.elapsed(pager) > time
    }

    /// Whether threads have waited without progress for longer than `patience`.
    pub fn is_over(&self, pager: &Pager, patience: Patience) -> bool {
        self.since.is_some() && patience.is_over(self.time(pager))
    }

    /// Whether threads have waited so long that the run may be over.
    pub fn is_long(&self, pager: &Pager) -> bool {
        self.is_over(pager, Patience::Memory)
    }

    /// Whether a large message is being followed and makes progress (OOM-8).
    fn is_followed(&mut self, now: Moment, mms: &[Arc<Mm>]) -> bool {
        let much = mms
            .iter()
            .filter_map(|mm| mm.stillness.followed_beyond(LARGE))
            .reduce(|one, other| one + other);
        let Some(slices) = much else {
            self.followed = None;
            return false;
        };
        let moves = |before| slices != before;
        !Patience::Memory.is_over(Progress::look(&mut self.followed, now, slices, moves))
    }

    /// Whether children keep joining; `starting` is the number that have yet to (OOM-3).
    fn is_joined(&mut self, now: Moment, starting: u64) -> bool {
        let joins = |before| starting < before;
        let since = Progress::look(&mut self.starting, now, starting, joins);
        starting > 0 && !Patience::Memory.is_over(since)
    }

    /// Notes that the agent has left a batch unanswered, for lack of a CPU or not.
    pub fn note_unanswered(&mut self, mm: &Mm, lacks_cpu: bool) {
        let runs = mm.process().and_then(Process::agent_runs);
        match self.watched.get_mut(&mm.id) {
            Some(watched) => watched.owes |= lacks_cpu,
            None => drop(
                runs.map(|first| self.watched.insert(mm.id, Watched { first, owes: lacks_cpu })),
            ),
        }
    }

    /// Notes that the agent has answered a batch.
    pub fn note_answered(&mut self, id: MmId) {
        self.watched.remove(&id);
    }

    /// Whether the agent of this process lacks a CPU. If the agent has not started, the thread that
    /// is to start it counts.
    fn lacks_cpu(&mut self, mm: &Mm) -> bool {
        let Some(now) = mm.process().and_then(Process::agent_runs) else { return false };
        let new = Watched { first: now, owes: false };
        let watched = self.watched.entry(mm.id).or_insert(new);
        if watched.first.thread != now.thread {
            *watched = new;
        }
        let proven = now.ran.saturating_sub(watched.first.ran) >= PROOF;
        // When the silence is over, the agent gets another batch, if it has pages that can leave.
        let is_passed_over = watched.owes && mm.update_silence();
        (now.wants_cpu() || now.sleeps() && is_passed_over) && !proven
    }
}

impl Reclaim {
    /// Decides whether the run is over, after threads have waited long without progress (OOM-2 to
    /// OOM-5).
    pub fn is_out_of_memory(&mut self) -> bool {
        let pager = self.pager.clone();
        let mms = pager.mms();
        if self.no_progress.rounds < ROUNDS_MIN {
            return false;
        }
        if self.no_progress.is_followed(pager.clock.moment(), &mms) {
            return false;
        }
        let waits =
            |mm: &Arc<Mm>| mm.stall.is_memory_stalled() && (!mm.is_stopped() || mm.is_traced());
        if pager.budget.frozen.load(Relaxed) == 0 && !mms.iter().any(waits) {
            // The waiting threads have been stopped, or a fault thread is late (OOM-4, OOM-5).
            if mms.iter().any(|mm| mm.stall.is_memory_stalled()) {
                self.no_progress.end();
            }
            return self.no_progress.is_over(&pager, Patience::MemoryUnseen);
        }
        let elapsed = self.no_progress.elapsed(&pager);
        let is_early = |mm: &&Arc<Mm>| mm.age.time() >= elapsed && mm.agent.is_starting();
        let starting = mms.iter().filter(is_early).count() as u64;
        let joining = self.no_progress.is_joined(pager.clock.moment(), starting);
        let owed = mms.iter().any(|mm| mm.agent.is_starting() || self.awaits_answer(mm));
        let patience = if owed { Patience::MemoryOwed } else { Patience::Memory };
        self.no_progress.is_over(&pager, patience) && !joining
    }

    /// Whether a thread that could make progress lacks a CPU (OOM-4). The answer holds for a beat.
    pub fn lacks_cpu(&mut self) -> bool {
        let now = self.pager.clock.moment();
        match self.no_progress.checked {
            Some((then, lacked)) if now.since(then) < BEAT => return lacked,
            _ if is_broken(Rule::Patience2) => return false,
            _ => {}
        }
        // A process into which the pager puts the agent needs a CPU for that. Without one it cannot
        // give any memory back.
        let mut lacks = inject::is_kept_waiting();
        let elapsed = self.no_progress.elapsed(&self.pager);
        for mm in self.pager.mms().iter().filter(|mm| mm.age.time() >= elapsed) {
            let owes = self.no_progress.watched.get(&mm.id).is_some_and(|watched| watched.owes);
            let is_awaited = owes || mm.agent.is_late() || self.awaits_answer(mm);
            lacks = lacks || is_awaited && self.no_progress.lacks_cpu(mm);
        }
        self.no_progress.checked = Some((now, lacks));
        lacks
    }

    /// Ends the run as the OOM killer does, because nothing can be reclaimed while threads wait.
    pub fn end_run(&mut self) {
        let (limit, used) = {
            let resident = self.pager.resident();
            (resident.zone.limit(), resident.zone.used())
        };
        let waited = self.no_progress.time(&self.pager);
        let mib = |pages: u64| pages as f64 / 256.0;
        let store_is_full = self.store_error.is_some();
        let why = match self.store_error.take() {
            Some(error) => format!("the store takes no more: {}", self.explain_store(&error)),
            None => format!(
                "{:.1} MiB are in areas that are locked or not writable, {:.1} MiB are pinned or \
                 shared, {:.1} MiB are compressed, the rest is not under management",
                mib(self.immovable.fixed.max(self.immovable_before.fixed)),
                mib(self.immovable.busy.max(self.immovable_before.busy)),
                mib(self.pager.budget.store.ram_bytes() / PAGE_SIZE as u64)
            ),
        };
        let uncounted = match self.no_progress.uncounted(&self.pager.budget).as_secs_f64() {
            ..0.1 => String::new(),
            time => format!(" ({time:.1} s more do not count, because Ebb got no CPU)"),
        };
        let demand = used + u64::from(self.pager.budget.memory_stalled.load(Relaxed));
        self.pager.note_run(&Event::Full {
            memory_max_bytes: limit * PAGE_SIZE as u64,
            demand_bytes: demand * PAGE_SIZE as u64,
            waited_us: waited.as_micros() as u64,
            why: why.clone(),
        });
        let outcome = if self.pager.run.detach.is_way_out(&self.pager.config) {
            "is given back: it has no limit any more"
        } else {
            "is killed"
        };
        self.pager.say(&format!(
            "out of memory: the limit is {:.1} MiB, the demand {:.1} MiB, and nothing more can be \
             stored ({why}). Raise --memory-max, or give --swap more room (for example --swap \
             ram,file:4G). The program, which has waited {:.1} s in vain{uncounted}, {outcome}.",
            mib(limit),
            mib(demand),
            waited.as_secs_f64(),
        ));
        if self.pager.run.detach.try_way_out(&self.pager.config) {
            self.pager.processes.request_detach();
            return self.no_progress.end();
        }
        for kind in self.pager.telemetry.unmanaged.list() {
            self.pager.say(&format!("not managed: {}", kind.text()));
        }
        let processes = self.processes();
        // For a single process and a full store the message above is complete.
        if processes.len() > 1 || !store_is_full {
            processes.iter().for_each(|line| self.pager.say(line));
        }
        self.pager.kill_tree(Why::OutOfMemory);
    }

    /// Describes the store's error, with the path or address of the tier.
    fn explain_store(&self, error: &StoreError) -> String {
        let tiers = self.pager.budget.store.stats().tiers;
        let of_path = |path: Option<PathBuf>| path.unwrap_or_default().display().to_string();
        let at = match error {
            StoreError::Write { tier, source, .. } => {
                let of = tiers.into_iter().find(|of| of.name == *tier);
                of.and_then(|of| match (of.path, of.address) {
                    (path @ Some(_), _) => Some(format!(
                        "writing to tier {tier} in {} failed: {source}",
                        of_path(path)
                    )),
                    (None, Some(at)) => {
                        Some(format!("writing to tier {tier} at {at} failed: {source}"))
                    }
                    (None, None) => None,
                })
            }
            StoreError::Full => {
                let of = tiers.into_iter().find(|of| of.disk_full);
                of.map(|of| {
                    let name = of.name;
                    match of.address {
                        Some(at) => format!("tier {name}: the server at {at} takes no more"),
                        None => {
                            let path = of_path(of.path);
                            format!("tier {name}: no space left on the file system of {path}")
                        }
                    }
                })
            }
            _ => None,
        };
        at.unwrap_or_else(|| error.to_string())
    }

    /// Ends the run to prevent thrashing: reclaim would have to take pages in use. The user has
    /// chosen (`gen.min_ttl_ms`) to end the run rather than slow it down.
    pub fn prevent_thrashing(&self) {
        let (limit, ttl) = (self.pager.budget.memory_max_bytes(), self.pager.config.tunables());
        let ttl = ttl.map_or(0, |tunables| tunables.mglru.min_ttl_ms);
        self.pager.say(&format!(
            "thrashing: the pages that the program used in the last {ttl} ms do not fit in {:.1} MiB. \
             Raise --memory-max, or leave gen.min_ttl_ms out to let it run slowly. The program is killed.",
            limit as f64 / 1048576.0
        ));
        self.pager.kill_tree(Why::Thrashing);
    }

    /// Describes what an agent in the middle of a batch waits for, and what the threads beside it
    /// do.
    fn doing(&self, mm: &Mm) -> String {
        let Some(process) = mm.process() else { return String::new() };
        let agent = process.agent().map_or("not found".to_owned(), proc::waits_for);
        let states: String = process.threads().iter().map(|&(_, state)| state).collect();
        let Pager { budget, faults, .. } = &*self.pager;
        let [memory_stalled, deferred, frozen] =
            [&budget.memory_stalled, &faults.deferred, &budget.frozen]
                .map(|count| count.load(Relaxed));
        let moves = match self.stalled.iter().find(|stalled| stalled.mm.id == mm.id) {
            Some(Stalled { work: Work::ToStandby(moving), .. }) => {
                format!("{} moves", moving.len())
            }
            Some(Stalled { work: Work::Unshare(frames), .. }) => format!("{} copies", frames.len()),
            Some(Stalled { work: Work::SetRights(_), .. }) => "a change of rights".to_owned(),
            Some(Stalled { work: Work::Drop(runs), .. }) => format!("{} drops", runs.len()),
            Some(Stalled { work: Work::Decided, .. }) => "moves that the pager decided".to_owned(),
            None => "nothing".to_owned(),
        };
        format!(
            " of {moves} ({agent}; threads {states}; {memory_stalled} faults wait for memory, {} for other reasons, {frozen} threads are frozen)",
            deferred.saturating_sub(memory_stalled)
        )
    }

    /// Lists the processes with most memory, a line each, as the kernel's OOM killer does.
    fn processes(&self) -> Vec<String> {
        let mib = |pages: u64| pages as f64 / 256.0;
        let mut lines: Vec<(u64, String)> = (self.pager.mms().iter())
            .map(|mm| {
                let pid = mm.owner.pid();
                let resident = mm.process().and_then(|process| process.anonymous_pages().ok());
                let resident = resident.unwrap_or(0);
                let managed = mm.pages.known();
                let agent = match mm.agent.link() {
                    None if mm.agent.is_starting() => "has not joined yet",
                    None => "never joined",
                    Some(link) if !link.is_ready() => "does not run yet",
                    Some(_) if self.is_stalled(mm.id) => "is in the middle of a batch",
                    Some(_) if mm.update_silence() => "does not answer",
                    Some(_) => "answers",
                };
                let doing = if agent.starts_with('i') { self.doing(mm) } else { String::new() };
                let text = format!(
                    "process {pid} ({}): {:.1} MiB resident, {:.1} MiB of it managed, {:.1} MiB \
                     shared in its fork group; its agent {agent}{doing}",
                    mm.process().map_or_else(|| "?".to_owned(), Process::name),
                    mib(resident),
                    mib(managed),
                    mib(mm.fork_group.share_of_others(resident)),
                );
                (resident, text)
            })
            .collect();
        lines.sort_by(|a, b| b.cmp(a));
        lines.into_iter().map(|(_, text)| text).take(LISTED_MAX).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mm::pool::Pool;
    use crate::mm::{Areas, State};
    use crate::quiet::{Quiet, pager_by};
    use crate::seam::{Known, Process};
    use crate::wait::clock::Clock;
    use ebb_mm::resident::Space;
    use std::process::{Child, Command};

    fn quiet(pager: &Pager, id: u32) -> Arc<Mm> {
        let pool = Pool::new(1 << 30, 64 * PAGE_SIZE as u64, 0);
        let state = State::new(Space::new(MmId(id)), Areas::default(), pool, 8);
        Arc::new(Mm::new(Box::new(Quiet::default()), state, pager.clock.clone()))
    }

    /// Adds a child of the pager's program that has asked for an agent. The agent does not come
    /// though it wants a CPU.
    fn late(pager: &Pager, id: u32, process: &Child) {
        let mm = quiet(pager, id);
        mm.owner.identify(Box::new(Known::open(process.id()).expect("a process")));
        mm.agent.ask();
        pager.add_mm(&mm).expect("no descriptor to add");
    }

    /// Shows that children born after the wait began do not put off the end. Otherwise the end
    /// never comes if children are born all the time.
    #[test]
    fn late_children_put_off_the_end_unless_they_were_forked_during_the_wait() {
        let clock = Clock::simulated();
        let pager = Arc::new(pager_by(clock.clone()));
        let spins = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh");
        let mut children = [spins(), spins()];
        clock.advance(Duration::from_secs(1));
        let mut reclaim = Reclaim::new(&pager);
        pager.budget.frozen.store(1, Relaxed);
        for round in 0..2 * ROUNDS_MIN {
            reclaim.count_round_without_progress();
            clock.advance(Duration::from_millis(100));
            if round == 0 {
                late(&pager, 2, &children[0]);
            }
        }
        assert!(reclaim.is_out_of_memory(), "born when somebody waited already");
        reclaim.no_progress.end();
        late(&pager, 3, &children[1]);
        for _ in 0..2 * ROUNDS_MIN {
            reclaim.count_round_without_progress();
            clock.advance(Duration::from_millis(100));
        }
        let wants = |child: &Child| proc::state(child.id()) == Some('R');
        assert!(children.iter().all(wants));
        assert!(!reclaim.is_out_of_memory(), "born before anybody waited");
        let uncounted = reclaim.no_progress.uncounted(&pager.budget);
        assert!(uncounted > Duration::from_secs(2), "{:?}", reclaim.no_progress);
        children[0].kill().expect("it runs");
        ebb_testing::eventually("its CPU time, which proves that it does not come", || {
            clock.advance(Duration::from_millis(100));
            reclaim.count_round_without_progress() && reclaim.is_out_of_memory()
        });
        children[1].kill().expect("it runs");
        for child in &mut children {
            child.wait().expect("it was a child");
        }
    }

    /// Shows that following the fork of a large address space puts off the end as long as slices
    /// are followed. No page can leave that address space meanwhile.
    #[test]
    fn a_large_fork_that_is_followed_puts_off_the_end_as_long_as_it_gets_on() {
        let clock = Clock::simulated();
        let pager = Arc::new(pager_by(clock.clone()));
        let mut reclaim = Reclaim::new(&pager);
        let parent = quiet(&pager, 2);
        pager.add_mm(&parent).expect("no descriptor to add");
        pager.budget.frozen.store(1, Relaxed);
        clock.advance(Duration::from_secs(1));
        parent.stillness.note(true);
        for _ in 0..4 * ROUNDS_MIN {
            reclaim.count_round_without_progress();
            clock.advance(Duration::from_millis(100));
            parent.stillness.note_followed();
            assert!(!reclaim.is_out_of_memory() || !reclaim.no_progress.is_long(&pager));
        }
        assert!(reclaim.no_progress.is_long(&pager));
        clock.advance(Duration::from_millis(2100));
        assert!(reclaim.is_out_of_memory(), "it is stuck");
        // Small messages, one after the other.
        parent.stillness.note(false);
        clock.advance(Duration::from_millis(100));
        parent.stillness.note(true);
        parent.stillness.note_followed();
        assert!(reclaim.is_out_of_memory());
    }

    /// Shows that children joining one after another put off the end. A hundred and fifty forked
    /// children near the limit take longer than half a second.
    #[test]
    fn children_that_join_one_after_another_put_off_the_end() {
        let clock = Clock::simulated();
        let pager = Arc::new(pager_by(clock.clone()));
        let mut reclaim = Reclaim::new(&pager);
        pager.budget.frozen.store(1, Relaxed);
        let children = [2, 3, 4].map(|id| quiet(&pager, id));
        for child in &children {
            child.agent.ask();
            pager.add_mm(child).expect("no descriptor to add");
        }
        clock.advance(Duration::from_secs(1));
        let mut wait = |ms: u64| {
            for _ in 0..ms / 100 {
                reclaim.count_round_without_progress();
                clock.advance(Duration::from_millis(100));
            }
            reclaim.is_out_of_memory()
        };
        assert!(!wait(3000), "all of them are yet to join");
        for child in &children[1..] {
            child.agent.decline();
            assert!(!wait(1900));
        }
        assert!(wait(2100), "the last of them does not");
    }

    /// Shows that a freeze counts from its own start, and not from the time since which nothing was
    /// stored. Otherwise a run could end without a thread that has waited for two seconds.
    #[test]
    fn a_freeze_counts_from_its_own_start() {
        let clock = Clock::simulated();
        let pager = pager_by(clock.clone());
        let mut no_progress = NoProgress::default();
        no_progress.round(clock.moment(), false, RunTimes::default());
        pager.budget.memory_stalled_since_ms.store(clock.moment().ms(), Relaxed);
        clock.advance(Duration::from_secs(5));
        assert!(no_progress.is_long(&pager), "a touch that waits since then");
        pager.budget.memory_stalled_since_ms.store(0, Relaxed);
        pager.budget.frozen.store(1, Relaxed);
        pager.budget.frozen_since_ms.store(clock.moment().ms(), Relaxed);
        clock.advance(Duration::from_secs(1));
        assert!(
            no_progress.lasts(&pager, Duration::from_millis(900)) && !no_progress.is_long(&pager)
        );
        pager.budget.memory_stalled_since_ms.store(clock.moment().ms(), Relaxed);
        clock.advance(Duration::from_millis(1100));
        assert!(no_progress.is_long(&pager), "the one that has waited longest");
    }

    /// Shows that time in which the host ran no thread does not end a run as out of memory.
    #[test]
    fn a_host_that_stops_ends_no_run() {
        let clock = Clock::simulated();
        let pager = Arc::new(pager_by(clock.clone()));
        let mut reclaim = Reclaim::new(&pager);
        pager.budget.frozen.store(1, Relaxed);
        for _ in 0..2 * ROUNDS_MIN {
            reclaim.count_round_without_progress();
            clock.stall(Duration::from_secs(10));
        }
        assert!(!reclaim.no_progress.is_long(&pager) && !reclaim.is_out_of_memory());
        clock.advance(Duration::from_secs(2));
        assert!(reclaim.no_progress.is_long(&pager) && reclaim.is_out_of_memory());
    }

    /// Shows that an agent without a CPU puts off the end as long as it leaves batches unanswered.
    /// The pager takes such an agent for silent only for a moment after each batch. Between two
    /// batches the agent counted as one that answers, and the run was ended. An agent that gets no
    /// further batch has no page that can leave, and puts off nothing.
    #[test]
    fn an_agent_that_gets_no_cpu_for_its_batches_puts_off_the_end() {
        let clock = Clock::simulated();
        let pager = Arc::new(pager_by(clock.clone()));
        let mut reclaim = Reclaim::new(&pager);
        let mut child = Command::new("sleep").arg("600").spawn().expect("sleep");
        ebb_testing::eventually("a thread that sleeps", || proc::state(child.id()) == Some('S'));
        let mm = quiet(&pager, 2);
        let known = Known::open(child.id()).expect("a process");
        known.note_thread(child.id());
        mm.owner.identify(Box::new(known));
        pager.add_mm(&mm).expect("no descriptor to add");
        pager.budget.frozen.store(1, Relaxed);
        clock.advance(Duration::from_secs(1));
        // A batch lasts a second. The round after it finds the agent silent.
        let wait = |reclaim: &mut Reclaim, lacks_cpu: Option<bool>| {
            for round in 0..4 * ROUNDS_MIN {
                if let Some(lacks_cpu) = lacks_cpu.filter(|_| round.is_multiple_of(2)) {
                    clock.advance(Duration::from_secs(1));
                    mm.agent.note_unanswered();
                    reclaim.no_progress.note_unanswered(&mm, lacks_cpu);
                }
                reclaim.count_round_without_progress();
                clock.advance(Duration::from_millis(100));
            }
            let over = reclaim.is_out_of_memory();
            reclaim.no_progress.end();
            over
        };
        assert!(!wait(&mut reclaim, Some(true)));
        assert!(wait(&mut reclaim, Some(false)), "the agent lacks no CPU");
        assert!(wait(&mut reclaim, None), "the agent has nothing to do");
        child.kill().expect("it runs");
        child.wait().expect("it was a child");
    }

    /// Shows that a round that kswapd spent waiting for a CPU does not count, until kswapd has run
    /// for long. In a fifth of a CPU kswapd waits all the time, and no run without memory ended.
    #[test]
    fn a_kswapd_that_waits_for_a_cpu_has_seen_nothing() {
        let clock = Clock::simulated();
        let pager = pager_by(clock.clone());
        let mut no_progress = NoProgress::default();
        pager.budget.frozen.store(1, Relaxed);
        clock.advance(Duration::from_secs(1));
        let second = Duration::from_secs(1);
        let mut wait = |rounds: std::ops::Range<u64>| {
            for round in rounds {
                let (ran_ns, waited_ns) = (100_000_000 * round, 900_000_000 * round);
                let own = RunTimes { ran_ns, waited_ns, arrivals: round };
                no_progress.round(clock.moment(), false, own);
                clock.advance(second);
            }
            (no_progress.uncounted(&pager.budget), no_progress.time(&pager))
        };
        let late = Duration::from_millis(900 * 9);
        assert_eq!(wait(0..10), (late, 10 * second - late));
        assert_eq!(wait(10..15), (late, 15 * second - late), "kswapd has run for a second");
    }

    #[test]
    fn a_page_now_and_then_is_no_progress_and_a_batch_is() {
        let at = |ms: u64| Moment::of_ms(1000 + ms);
        let began = at(0);
        let mut no_progress = NoProgress::default();
        no_progress.progress(began, 1);
        assert_eq!(no_progress.since, None, "nobody waits");
        no_progress.round(began, false, RunTimes::default());
        for ms in (500..=2000).step_by(500) {
            no_progress.round(at(ms), false, RunTimes::default());
            no_progress.progress(at(ms), 1);
        }
        assert_eq!(no_progress.since, Some(at(80)), "four pages made up for this");
        no_progress.progress(at(2000), 64);
        assert_eq!(no_progress.since, Some(at(80 + 64 * 20)));
        no_progress.progress(at(2000), 64);
        assert_eq!((no_progress.since, no_progress.rounds), (None, 0), "more than it has lasted");
    }
}
