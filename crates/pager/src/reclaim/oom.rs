//! Out of memory: nothing more can be had, and the run ends with a message that says why.
//!
//! * OOM-1: A thread waits in vain while memory is refused to it (or the brake holds it) and nothing is stored. Progress is a
//!   page that is stored, or memory in balance; what is cooled, dropped or copied may be what threads have taken back,
//!   again and again. Once the store takes no more it is a page that it had no copy of, or that no relative has another
//!   of: of one that hundreds share each can let go without a byte of memory to be had. A page now and then is no
//!   progress either: each makes up for [`PAGE_TIME`]. A touch that waits for something else does not wait for memory,
//!   and none waits for longer than since it was made; nor does a thread for longer than since the brake holds.
//! * OOM-2: Two seconds after that began the run ends ([`Patience::Memory`]), of the time that the host grants: a host that
//!   stops, or runs this process late, makes that longer.
//! * OOM-3: Children that have yet to join, and agents that do not answer, may have pages to give back. They are waited for
//!   half a second longer ([`Patience::MemoryOwed`]), however many they are and others are born meanwhile. Where an agent
//!   has just brought what it owed, a round looks at that first. And while children that were born before that time join
//!   one after another the end is put off: what they share with the others cannot leave before the last of them has joined.
//! * OOM-4: A machine that is busy is no reason to end a run. While one of those could run and no CPU is given to it, its time
//!   does not count; and a thread of the pager that is not run has seen nothing ([`ROUNDS_MIN`]). Children that were
//!   born since are not waited for: where children are born all the time one of them always wants a CPU, and it
//!   is the program itself that keeps it from the others.
//! * OOM-5: Who is stopped, by a signal or by a debugger, is not killed for it. What it holds is lent to the others beyond
//!   the limit (`Reclaim::lend`), and they store pages of their own: who still waits in vain waits for the store, as
//!   beside one that runs. And its own threads wait for nothing as long as it is stopped: the signal has taken
//!   them out of their touches. If only those are left the time begins anew. A tracer that shares their memory waits as
//!   anybody does, once the machine has no more to lend.
//! * OOM-6: Where somebody waits in vain nobody waits for one that is stopped: it is looked at first (`Reclaim::is_deaf`).
//!   A hundred milliseconds for each of many was longer than all that time.
//! * OOM-7: What was attached to is not killed for a limit that came later: it is given back ([`crate::detach`]). Only if that
//!   cannot be does it end as others do.
//! * OOM-8: Of an address space whose fork, or change of mappings, is followed nothing leaves. Where that is so much that it
//!   takes longer than [`LARGE`], the end is put off while slices of it are followed. What takes less puts off nothing: there
//!   may be forks all the time.

use super::{Reclaim, Stalled, Work};
use crate::events::{Event, Why};
use crate::inject;
use crate::mm::Mm;
use crate::patience::{Moment, Patience, Watch};
use crate::seam::Process;
use crate::server::Pager;
use ebb_mm::types::{MmId, PAGE_SIZE};
use ebb_swap::StoreError;
use ebb_sys::proc;
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// The CPU time by which an agent that does not answer has shown that it will not (OOM-4).
const PROOF: Duration = Duration::from_secs(1);
/// The time after which what is followed is much (OOM-8).
const LARGE: Duration = Duration::from_millis(500);
/// How often it must be seen in that time that there is nothing (OOM-4).
const ROUNDS_MIN: u32 = 16;
/// How much of the time in vain a page that is stored makes up for (OOM-1): far less than any device takes that pages go to.
const PAGE_TIME: Duration = Duration::from_millis(20);
/// How many processes are listed when memory runs out.
const LISTED_MAX: usize = 16;

/// What was counted last of something that gets on or does not, and when it last got on.
#[derive(Clone, Copy, Debug)]
struct Progress {
    count: u64,
    when: Moment,
}

impl Progress {
    /// It is `count` now, and gets on if that `is_progress` from the last count. For how long it has not.
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

/// For how long threads have waited in vain (OOM-1).
#[derive(Debug, Default)]
pub struct Vain {
    since: Option<Moment>,
    /// Rounds that stored nothing in that time.
    rounds: u32,
    /// The agents that are waited for, from the first look in that time on.
    watches: HashMap<MmId, Watch>,
    /// Slices that were followed of much (OOM-8).
    followed: Option<Progress>,
    /// Children born before that time that are yet to join (OOM-3).
    infants: Option<Progress>,
    /// How much of that time does not count, for want of a CPU (OOM-4).
    uncounted: Duration,
}

impl Vain {
    /// A round has stored nothing, and threads wait.
    pub fn round(&mut self, now: Moment) {
        self.since.get_or_insert(now);
        self.rounds += 1;
    }

    /// So many pages were stored.
    pub fn progress(&mut self, now: Moment, pages: u64) {
        let made_up = PAGE_TIME * u32::try_from(pages).unwrap_or(u32::MAX);
        match self.since.as_mut() {
            Some(since) if since.after(made_up) < now => *since = since.after(made_up),
            _ => self.end(),
        }
    }

    /// Nobody waits any more, or there is memory again.
    pub fn end(&mut self) {
        *self = Self::default();
    }

    /// How long the one that has waited longest does so in vain.
    fn time(&self, pager: &Pager) -> Duration {
        let Some(since) = self.since else { return Duration::ZERO };
        let starved = pager.starved_since_ms.load(Relaxed);
        let held = if pager.held.load(Relaxed) > 0 { pager.held_since_ms.load(Relaxed) } else { 0 };
        let began = [starved, held].into_iter().filter(|&ms| ms > 0).min();
        let began = began.map_or(since, |ms| since.max(Moment::of_ms(ms)));
        pager.clock.moment().since(began)
    }

    /// Whether it is so for longer than `time`.
    pub fn lasts(&self, pager: &Pager, time: Duration) -> bool {
        self.since.is_some() && self.time(pager) > time
    }

    /// Whether it is so for longer than `patience`.
    pub fn is_over(&self, pager: &Pager, patience: Patience) -> bool {
        self.since.is_some() && patience.is_over(self.time(pager))
    }

    /// Whether it is time to ask whether the run is over.
    pub fn is_long(&self, pager: &Pager) -> bool {
        self.is_over(pager, Patience::Memory)
    }

    /// Whether much is followed, and gets on (OOM-8).
    fn is_followed(&mut self, now: Moment, mms: &[Arc<Mm>]) -> bool {
        let much =
            mms.iter().filter_map(|mm| mm.followed_beyond(LARGE)).reduce(|one, other| one + other);
        let Some(slices) = much else {
            self.followed = None;
            return false;
        };
        let moves = |before| slices != before;
        !Patience::Memory.is_over(Progress::look(&mut self.followed, now, slices, moves))
    }

    /// Whether children join, of whom `infants` are yet to (OOM-3).
    fn is_joined(&mut self, now: Moment, infants: u64) -> bool {
        let joins = |before| infants < before;
        let since = Progress::look(&mut self.infants, now, infants, joins);
        infants > 0 && !Patience::Memory.is_over(since)
    }

    /// How long an agent, or the thread that is to start it, was given no CPU in that time. None if it wants one now.
    fn kept_from_running(&mut self, mm: &Mm) -> Option<Duration> {
        let Some(process) = mm.process() else { return Some(Duration::ZERO) };
        let runnable = || process.threads().into_iter().find(|&(_, state)| state == 'R');
        let thread = process.agent().or_else(|| runnable().map(|(thread, _)| thread));
        let Some(thread) = thread else { return Some(Duration::ZERO) };
        let watch = self.watches.entry(mm.id).or_insert_with(|| Watch::new(thread));
        if !watch.is_of(thread) {
            *watch = Watch::new(thread);
        }
        watch.waited(PROOF)
    }
}

impl Reclaim {
    /// Threads have waited in vain for long: judges whether that is the end of the run (OOM-2 to OOM-5).
    pub fn judge_end(&mut self) -> bool {
        let pager = self.pager.clone();
        let mms = pager.mms();
        if self.vain.rounds < ROUNDS_MIN {
            return false;
        }
        if self.vain.is_followed(pager.clock.moment(), &mms) {
            return false;
        }
        let waits = |mm: &Arc<Mm>| mm.is_hungry() && (!mm.is_stopped() || mm.is_traced());
        if pager.held.load(Relaxed) == 0 && !mms.iter().any(waits) {
            // Those that wait have been stopped, or a fault thread is late (OOM-4, OOM-5).
            if mms.iter().any(|mm| mm.is_hungry()) {
                self.vain.end();
            }
            return self.vain.is_over(&pager, Patience::MemoryUnseen);
        }
        // What takes memory to join, and gets no CPU for that, can give none back.
        let mut kept = (!inject::is_kept_waiting()).then_some(Duration::ZERO);
        let mut owed = false;
        let so_long = self.vain.time(&pager);
        for mm in &mms {
            let silent = self.owes_an_answer(mm);
            owed |= silent || mm.is_infant();
            if mm.age() >= so_long && (silent || mm.is_late()) {
                kept = kept.zip(self.vain.kept_from_running(mm)).map(|(one, other)| one.max(other));
            }
        }
        let infants = mms.iter().filter(|mm| mm.age() >= so_long && mm.is_infant()).count() as u64;
        let joining = self.vain.is_joined(pager.clock.moment(), infants);
        let patience = if owed { Patience::MemoryOwed } else { Patience::Memory };
        let over = kept.is_some_and(|kept| patience.is_over_but(so_long, kept));
        if !over {
            self.vain.uncounted = patience.beyond(so_long);
        }
        over && !joining
    }

    /// The agents that do not answer are watched from here on (OOM-4).
    pub fn watch_silent(&mut self) {
        for mm in self.pager.mms() {
            if !self.vain.watches.contains_key(&mm.id) && self.owes_an_answer(&mm) {
                self.vain.kept_from_running(&mm);
            }
        }
    }

    /// Nothing can be reclaimed and threads wait: the run ends as by the OOM killer.
    pub fn give_up(&mut self) {
        let (limit, used) = {
            let resident = self.pager.resident();
            (resident.zone.limit(), resident.zone.used())
        };
        let waited = self.vain.time(&self.pager);
        let mib = |pages: u64| pages as f64 / 256.0;
        let store_is_full = self.store_error.is_some();
        let why = match self.store_error.take() {
            Some(error) => format!("the store takes no more: {}", self.explain_store(&error)),
            None => format!(
                "{:.1} MiB are in areas that are locked or not writable, {:.1} MiB are pinned or \
                 shared, {:.1} MiB are compressed, the rest is not under management",
                mib(self.immovable.fixed.max(self.immovable_before.fixed)),
                mib(self.immovable.busy.max(self.immovable_before.busy)),
                mib(self.pager.store.ram_bytes() / PAGE_SIZE as u64)
            ),
        };
        let uncounted = match self.vain.uncounted {
            Duration::ZERO => String::new(),
            time => {
                format!(" ({:.1} s of that for processes that got no CPU)", time.as_secs_f64())
            }
        };
        let demand = used + u64::from(self.pager.starving.load(Relaxed));
        self.pager.note_run(&Event::Full {
            memory_max_bytes: limit * PAGE_SIZE as u64,
            demand_bytes: demand * PAGE_SIZE as u64,
            waited_us: waited.as_micros() as u64,
            why: why.clone(),
        });
        let outcome = if self.pager.detach.is_way_out(&self.pager) {
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
        if self.pager.detach.try_way_out(&self.pager) {
            return self.vain.end();
        }
        for kind in self.pager.unmanaged.list() {
            self.pager.say(&format!("not managed: {}", kind.text()));
        }
        let processes = self.processes();
        // Of one process whose pages the store does not take all is said.
        if processes.len() > 1 || !store_is_full {
            processes.iter().for_each(|line| self.pager.say(line));
        }
        self.pager.kill_tree(Why::OutOfMemory);
    }

    /// What the store said, with the path of the tier that said it.
    fn explain_store(&self, error: &StoreError) -> String {
        let tiers = self.pager.store.stats().tiers;
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

    /// Pages in use would have to go for others in use, and the user said (`gen.min_ttl_ms`) that the run
    /// is better ended than slowed down by that.
    pub fn prevent_thrashing(&self) {
        let (limit, ttl) = (self.pager.memory_max_bytes(), self.pager.config.tunables());
        let ttl = ttl.map_or(0, |tunables| tunables.mglru.min_ttl_ms);
        self.pager.say(&format!(
            "thrashing: what the program used in the last {ttl} ms does not fit in {:.1} MiB. Raise \
             --memory-max, or leave gen.min_ttl_ms out to have it run slowly. The program is killed.",
            limit as f64 / 1048576.0
        ));
        self.pager.kill_tree(Why::Thrashing);
    }

    /// What an agent waits for that has not ended its batch, and what the threads beside it do.
    fn doing(&self, mm: &Mm) -> String {
        let Some(process) = mm.process() else { return String::new() };
        let agent = process.agent().map_or("not found".to_owned(), proc::waits_for);
        let states: String = process.threads().iter().map(|&(_, state)| state).collect();
        let [starving, waiting, held] =
            [&self.pager.starving, &self.pager.waiting, &self.pager.held]
                .map(|count| count.load(Relaxed));
        let moves = match self.stalled.iter().find(|stalled| stalled.mm.id == mm.id) {
            Some(Stalled { work: Work::Cool(moving), .. }) => format!("{} moves", moving.len()),
            Some(Stalled { work: Work::Unshare(frames), .. }) => format!("{} copies", frames.len()),
            Some(Stalled { work: Work::Drop(runs), .. }) => format!("{} drops", runs.len()),
            Some(Stalled { work: Work::Decided, .. }) => "moves that were decided".to_owned(),
            None => "nothing".to_owned(),
        };
        format!(
            " of {moves} ({agent}; threads {states}; {starving} touches wait for memory, {} for else, {held} threads are held)",
            waiting.saturating_sub(starving)
        )
    }

    /// Who holds the memory, a line each, as the kernel's OOM killer lists it.
    fn processes(&self) -> Vec<String> {
        let mib = |pages: u64| pages as f64 / 256.0;
        let mut lines: Vec<(u64, String)> = (self.pager.mms().iter())
            .map(|mm| {
                let pid = mm.pid();
                let resident = mm.process().and_then(|process| process.anonymous_pages().ok());
                let resident = resident.unwrap_or(0);
                let managed = u64::try_from(mm.known.load(Relaxed)).unwrap_or(0);
                let agent = match mm.link.get() {
                    None if mm.is_infant() => "has not joined yet",
                    None => "never joined",
                    Some(link) if !link.is_ready() => "does not run yet",
                    Some(_) if self.is_stalled(mm.id) => "is in the middle of a batch",
                    Some(_) if mm.check_silent() => "does not answer",
                    Some(_) => "answers",
                };
                let doing = if agent.starts_with('i') { self.doing(mm) } else { String::new() };
                let text = format!(
                    "process {pid} ({}): {:.1} MiB resident, {:.1} MiB of it managed, {:.1} MiB \
                     shared with relatives; its agent {agent}{doing}",
                    mm.process().map_or_else(|| "?".to_owned(), Process::name),
                    mib(resident),
                    mib(managed),
                    mib(mm.relatives_share(resident)),
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
    use crate::mm::{Areas, State};
    use crate::pool::Pool;
    use crate::quiet::{Quiet, pager_by};
    use crate::seam::{Clock, Known};
    use ebb_mm::resident::Space;
    use std::process::{Child, Command};

    fn quiet(pager: &Pager, id: u32) -> Arc<Mm> {
        let pool = Pool::new(1 << 30, 64 * PAGE_SIZE as u64, 0);
        let state = State::new(Space::new(MmId(id)), Areas::default(), pool, 8);
        Arc::new(Mm::new(Box::new(Quiet::default()), state, pager.clock.clone()))
    }

    /// A child of the pager's program that has asked for an agent, which does not come though it wants a CPU.
    fn late(pager: &Pager, id: u32, process: &Child) {
        let mm = quiet(pager, id);
        mm.set_process(Box::new(Known::open(process.id()).expect("a process")));
        mm.note_asked();
        pager.add_mm(&mm).expect("no descriptor to add");
    }

    /// Where children are born all the time one of them always wants a CPU: the end was put off for that.
    #[test]
    fn late_children_put_off_the_end_unless_they_were_born_since_it_drew_near() {
        let clock = Clock::simulated();
        let pager = Arc::new(pager_by(clock.clone()));
        let spins = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn().expect("sh");
        let mut children = [spins(), spins()];
        clock.advance(Duration::from_secs(1));
        let mut reclaim = Reclaim::new(&pager);
        pager.held.store(1, Relaxed);
        for round in 0..2 * ROUNDS_MIN {
            reclaim.vain.round(clock.moment());
            clock.advance(Duration::from_millis(100));
            if round == 0 {
                late(&pager, 2, &children[0]);
            }
        }
        assert!(reclaim.judge_end(), "born when somebody waited already");
        reclaim.vain.end();
        late(&pager, 3, &children[1]);
        for _ in 0..2 * ROUNDS_MIN {
            reclaim.vain.round(clock.moment());
            clock.advance(Duration::from_millis(100));
        }
        let wants = |child: &Child| proc::state(child.id()) == Some('R');
        assert!(children.iter().all(wants));
        assert!(!reclaim.judge_end(), "born before anybody waited");
        assert!(reclaim.vain.uncounted > Duration::from_millis(500), "{:?}", reclaim.vain);
        ebb_testing::eventually("its CPU time, which proves that it does not come", || {
            clock.advance(Duration::from_secs(1));
            reclaim.judge_end()
        });
        for child in &mut children {
            child.kill().expect("it runs");
            child.wait().expect("it was a child");
        }
    }

    /// While the fork of a large address space was followed, of which nothing could leave, the run ended after two seconds.
    #[test]
    fn a_large_fork_that_is_followed_puts_off_the_end_as_long_as_it_gets_on() {
        let clock = Clock::simulated();
        let pager = Arc::new(pager_by(clock.clone()));
        let mut reclaim = Reclaim::new(&pager);
        let parent = quiet(&pager, 2);
        pager.add_mm(&parent).expect("no descriptor to add");
        pager.held.store(1, Relaxed);
        clock.advance(Duration::from_secs(1));
        parent.note_still(true);
        for _ in 0..4 * ROUNDS_MIN {
            reclaim.vain.round(clock.moment());
            clock.advance(Duration::from_millis(100));
            parent.note_followed();
            assert!(!reclaim.judge_end() || !reclaim.vain.is_long(&pager));
        }
        assert!(reclaim.vain.is_long(&pager));
        clock.advance(Duration::from_millis(2100));
        assert!(reclaim.judge_end(), "it is stuck");
        // Small ones, one after the other.
        parent.note_still(false);
        clock.advance(Duration::from_millis(100));
        parent.note_still(true);
        parent.note_followed();
        assert!(reclaim.judge_end());
    }

    /// A hundred and fifty forked children near the limit took longer to join than half a second, and the run was ended.
    #[test]
    fn children_that_join_one_after_another_put_off_the_end() {
        let clock = Clock::simulated();
        let pager = Arc::new(pager_by(clock.clone()));
        let mut reclaim = Reclaim::new(&pager);
        pager.held.store(1, Relaxed);
        let children = [2, 3, 4].map(|id| quiet(&pager, id));
        for child in &children {
            child.note_asked();
            pager.add_mm(child).expect("no descriptor to add");
        }
        clock.advance(Duration::from_secs(1));
        let mut wait = |ms: u64| {
            for _ in 0..ms / 100 {
                reclaim.vain.round(clock.moment());
                clock.advance(Duration::from_millis(100));
            }
            reclaim.judge_end()
        };
        assert!(!wait(3000), "all of them are yet to join");
        for child in &children[1..] {
            child.alone.store(true, Relaxed);
            assert!(!wait(1900));
        }
        assert!(wait(2100), "the last of them does not");
    }

    /// The brake's hold of now was told to have lasted since nothing was stored, and ended runs in which nobody had
    /// waited for two seconds.
    #[test]
    fn who_is_held_now_has_not_waited_since_others_did() {
        let clock = Clock::simulated();
        let pager = pager_by(clock.clone());
        let mut vain = Vain::default();
        vain.round(clock.moment());
        pager.starved_since_ms.store(clock.moment().ms(), Relaxed);
        clock.advance(Duration::from_secs(5));
        assert!(vain.is_long(&pager), "a touch that waits since then");
        pager.starved_since_ms.store(0, Relaxed);
        pager.held.store(1, Relaxed);
        pager.held_since_ms.store(clock.moment().ms(), Relaxed);
        clock.advance(Duration::from_secs(1));
        assert!(vain.lasts(&pager, Duration::from_millis(900)) && !vain.is_long(&pager));
        pager.starved_since_ms.store(clock.moment().ms(), Relaxed);
        clock.advance(Duration::from_millis(1100));
        assert!(vain.is_long(&pager), "the one that has waited longest");
    }

    /// A run ended as out of memory after two seconds in which the host had run nobody.
    #[test]
    fn a_host_that_stops_ends_no_run() {
        let clock = Clock::simulated();
        let pager = Arc::new(pager_by(clock.clone()));
        let mut reclaim = Reclaim::new(&pager);
        pager.held.store(1, Relaxed);
        for _ in 0..2 * ROUNDS_MIN {
            reclaim.vain.round(clock.moment());
            clock.stall(Duration::from_secs(10));
        }
        assert!(!reclaim.vain.is_long(&pager) && !reclaim.judge_end());
        clock.advance(Duration::from_secs(2));
        assert!(reclaim.vain.is_long(&pager) && reclaim.judge_end());
    }

    #[test]
    fn a_page_now_and_then_is_no_progress_and_a_batch_is() {
        let at = |ms: u64| Moment::of_ms(1000 + ms);
        let began = at(0);
        let mut vain = Vain::default();
        vain.progress(began, 1);
        assert_eq!(vain.since, None, "nobody waits");
        vain.round(began);
        for ms in (500..=2000).step_by(500) {
            vain.round(at(ms));
            vain.progress(at(ms), 1);
        }
        assert_eq!(vain.since, Some(at(80)), "four pages made up for this");
        vain.progress(at(2000), 64);
        assert_eq!(vain.since, Some(at(80 + 64 * 20)));
        vain.progress(at(2000), 64);
        assert_eq!((vain.since, vain.rounds), (None, 0), "more than it has lasted");
    }
}
