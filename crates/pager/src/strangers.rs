//! Processes of the tree without an agent: static or setuid programs, and forked children that have yet
//! to greet. What they hold counts, and cannot be stored.
//!
//! * FOREIGN-1: what a stranger shares counts at its parent, as long as that one is of the tree: it may be a child
//!   whose fork is still to be read, which takes long on a busy machine. Censuses look anew. Orphans
//!   count by their share.
//! * FOREIGN-2: one that has joined since the last census is none. Others may be forked children that nobody could tell:
//!   which is which is not known, so what is known of all these children and what all those processes hold is
//!   compared, and the larger counts, once.
//! * FOREIGN-3: one is told of as soon as it is clear that it will never join: at once if its program has no loader that
//!   could bring the agent, else when it has had time. One that is stopped, or waits for memory or a disk, has none.
//! * FOREIGN-4: a program without a loader that can be given the agent all the same is given it as soon as it is met, before
//!   anything is told, or as soon as others have been given it. And again before it is told of: it may have been another
//!   program when it was met, or about to become one. So is a child that such a program has forked, which no hook has join.
//!   One that is stopped or traced is given it when it is neither any more.

use crate::inject::{self, Attempt};
use crate::mm::Mm;
use crate::monitor::CENSUS;
use crate::patience::{Moment, Watch};
use crate::seam::{self, Clock};
use crate::server::Pager;
use crate::sharing;
use crate::unmanaged::Kind;
use ebb_sys::proc::{self, Area, Statm};
use ebb_sys::process;
use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// How many censuses must find a process without an agent before it counts as one that stays so: those that come at the usual
/// pace. Where memory is short there are more, within milliseconds, which give nobody time to join.
const SIGHTINGS: u32 = 25;
/// The same where its program takes none: one may have met it in the middle of an exec.
const SIGHTINGS_STATIC: u32 = 1;
/// So many where the pager owes somebody an answer: on a busy machine it serves a dozen forked children in a second.
const SIGHTINGS_OWED: u32 = 300;
/// The CPU time by which one that always runs has had its chance.
const CHANCE: Duration = Duration::from_millis(50);
/// How often the agent is tried to be put into one.
const ATTEMPTS: u32 = 2;
/// How long what strangers hold is measured at once, but for the last of them.
const MEASURED_FOR: Duration = Duration::from_millis(20);
/// How many pages that count elsewhere are not worth another walk of the page tables.
const FEW: u64 = 64;

/// All of them.
pub struct Strangers {
    /// By process number.
    known: HashMap<u32, Stranger>,
    /// When what some of them hold is measured again: all of that takes at most a quarter of the time.
    due: Instant,
}

struct Stranger {
    statm: Statm,
    /// Censuses that found it, after the first, and when the next of them counts.
    sightings: u32,
    next: Moment,
    /// Those in which it could have gone on to join, and what the CPUs have given it since the last.
    chances: u32,
    watch: Watch,
    /// How many attempts to give the agent to others had ended when it was last looked at.
    ended: u64,
    /// Pages of it that count elsewhere, by the last look.
    elsewhere: u64,
    /// That could not be measured.
    unseen: bool,
    /// It will never join, for this reason.
    kind: Option<Kind>,
    /// Whether the agent is on its way into it (FOREIGN-4).
    injection: Attempt,
    attempts: u32,
    /// When that was.
    looked: Instant,
}

impl Stranger {
    fn open(pid: u32, clock: &Clock) -> Option<Self> {
        Some(Self {
            statm: Statm::open(pid).ok()?,
            sightings: 0,
            next: clock.moment().after(CENSUS),
            chances: 0,
            watch: Watch::new(pid),
            ended: inject::ended(),
            elsewhere: 0,
            unseen: true,
            kind: None,
            injection: Attempt::No,
            attempts: 0,
            looked: clock.now(),
        })
    }

    /// Measures what of it counts elsewhere.
    fn look(&mut self, clock: &Clock, pid: u32, has_parent: bool) {
        let own = seam::own_pages(pid, has_parent);
        self.unseen = own.is_err();
        // Where that may not be seen, all of it.
        let own = own.unwrap_or(u64::MAX);
        self.elsewhere = self.statm.anonymous_pages().unwrap_or(0).saturating_sub(own);
        self.looked = clock.now();
    }

    /// A census finds it again; whether that counts. It does not while others are given the agent and want a CPU.
    fn is_seen(&mut self, now: Moment, kept_waiting: bool) -> bool {
        let counts = now >= self.next && !kept_waiting;
        if counts {
            self.sightings += 1;
            self.next = now.after(CENSUS);
        }
        counts
    }

    /// Finds out whether it will never join, in a census that counts or not.
    fn judge(&mut self, pager: &Pager, pid: u32, counts: bool) {
        let has_ended =
            matches!(&self.injection, Attempt::Begun(injection) if injection.is_finished());
        if has_ended
            && let Attempt::Begun(injection) = std::mem::replace(&mut self.injection, Attempt::No)
        {
            match injection.join() {
                Ok(Ok(())) => return,
                // The brake has come before it.
                Ok(Err(error)) if error.kind() == ErrorKind::PermissionDenied => {
                    self.injection = Attempt::Later;
                }
                _ => {}
            }
        }
        if matches!(self.injection, Attempt::Later) {
            if std::mem::replace(&mut self.ended, inject::ended()) != self.ended {
                // Its turn comes nearer.
                self.sightings = 0;
            }
            self.inject(pager, pid);
        }
        // To join takes memory, and nobody is to while the run is given back.
        let waits = pager.starving.load(Relaxed) > 0 || pager.detach.is_on();
        // Which of them asks the pager knows when it serves it.
        let owed = pager.candidates.are_owed() && self.sightings < SIGHTINGS_OWED;
        let stands = || matches!(proc::state(pid), Some('T' | 't' | 'D'));
        if !counts || waits || owed || self.comes() || stands() {
            return;
        }
        // So has one that is to get a CPU first.
        if self.watch.waited(CHANCE).is_none() {
            return;
        }
        self.watch = Watch::new(pid);
        self.chances += 1;
        let due = matches!(self.chances, SIGHTINGS_STATIC | SIGHTINGS);
        if !due || self.kind.is_some() || self.statm.anonymous_pages().unwrap_or(0) == 0 {
            return;
        }
        if self.attempts < ATTEMPTS {
            self.inject(pager, pid);
            if self.comes() {
                self.chances -= 1;
                return;
            }
        }
        let folder = pager.config.socket.parent();
        self.kind = match proc::areas(pid) {
            Ok(areas) => kind(&areas, folder, self.chances),
            // Another user's.
            Err(_) => (self.chances >= SIGHTINGS).then_some(Kind::NoAgent),
        };
        if let Some(kind) = self.kind {
            pager.unmanaged.met(pager, kind, pid, &proc::name(pid));
        }
    }

    /// Whether an agent may still come.
    fn comes(&self) -> bool {
        match self.injection {
            Attempt::Begun(_) => true,
            // Those that are given it now may never stand.
            Attempt::Later => self.sightings < SIGHTINGS,
            Attempt::No => false,
        }
    }

    fn inject(&mut self, pager: &Pager, pid: u32) {
        if pager.detach.is_on() {
            return;
        }
        self.injection = pager.host.inject(pager, pid);
        self.attempts += u32::from(matches!(self.injection, Attempt::Begun(_)));
    }

    fn pages(&self) -> u64 {
        self.statm.anonymous_pages().unwrap_or(0).saturating_sub(self.elsewhere)
    }
}

impl Strangers {
    /// None yet.
    pub fn new(now: Instant) -> Self {
        Self { known: HashMap::new(), due: now }
    }

    /// Takes note of the processes of the tree that are not `mms`.
    pub fn count(&mut self, pager: &Pager, tree: &[u32], mms: &[Arc<Mm>]) {
        if pager.is_attaching() {
            // It is traced for that, by who puts the agent into it, and by nobody else.
            return;
        }
        let kept_waiting = inject::is_kept_waiting();
        // Without hooks a forked child does not join by itself (FOREIGN-4).
        let joins = |mm: &Mm| !mm.is_to_be_made_to_join();
        let is = |mm: &Mm, pid| !mm.closing.load(Relaxed) && mm.pid() == pid && joins(mm);
        let known = |pid: &u32| mms.iter().any(|mm| is(mm, *pid));
        let there: Vec<u32> = tree.iter().copied().filter(|pid| !known(pid)).collect();
        self.known.retain(|pid, _| there.contains(pid));
        let mut old = Vec::new();
        for &pid in &there {
            let lenders = || mms.iter().map(|mm| mm.pid()).filter(|&other| other != pid);
            let parent = proc::parent(pid).unwrap_or(0);
            let has_parent = there.contains(&parent) || known(&parent);
            if let Some(stranger) = self.known.get_mut(&pid) {
                if stranger.elsewhere > FEW {
                    old.push((stranger.looked, pid, has_parent));
                }
                let counts = stranger.is_seen(pager.clock.moment(), kept_waiting);
                stranger.judge(pager, pid, counts);
            } else if lenders().any(|lender| process::shares_memory(lender, pid)) {
                // Between vfork and exec: it is counted where it borrows.
            } else if let Some(mut stranger) = Stranger::open(pid, &pager.clock) {
                stranger.look(&pager.clock, pid, has_parent);
                stranger.inject(pager, pid);
                self.known.insert(pid, stranger);
            }
        }
        self.measure(&pager.clock, old);
    }

    /// Measures again what these hold, those first that were measured longest ago, once that is due.
    fn measure(&mut self, clock: &Clock, mut old: Vec<(Instant, u32, bool)>) {
        let began = clock.now();
        if began < self.due {
            return;
        }
        old.sort_unstable();
        for (_, pid, has_parent) in old {
            if let Some(stranger) = self.known.get_mut(&pid) {
                stranger.look(clock, pid, has_parent);
            }
            if clock.now() - began > MEASURED_FOR {
                break;
            }
        }
        let took = clock.now() - began;
        self.due = began + took * 4;
    }

    /// Pages that they hold, and the forked children that nobody could tell, of which `families` know (FOREIGN-2).
    pub fn pages(&self, pager: &Pager, mms: &[Arc<Mm>], families: &sharing::Held) -> u64 {
        let infants = mms.iter().any(|mm| mm.is_infant());
        let joined = |pid: &u32| mms.iter().any(|mm| mm.pid() == *pid);
        let mut held = Held::default();
        for (_, stranger) in self.known.iter().filter(|(pid, _)| !joined(pid)) {
            // Of a child with all of its parent's pages, by now, nothing may be its own.
            if infants && stranger.unseen && stranger.sightings < SIGHTINGS {
                held.passed_over = true;
                continue;
            }
            held.add(stranger.kind, stranger.pages());
        }
        held.of_kind.iter().for_each(|(&kind, &pages)| pager.unmanaged.hold(kind, pages));
        held.with(families.untold, families.bound)
    }
}

/// What strangers hold, in pages.
#[derive(Default)]
struct Held {
    of_kind: BTreeMap<Kind, u64>,
    /// Of those that may be forked children.
    of_children: u64,
    of_others: u64,
    /// One of the former is not among them.
    passed_over: bool,
}

impl Held {
    fn add(&mut self, kind: Option<Kind>, pages: u64) {
        match kind {
            Some(Kind::StaticProgram) => self.of_others += pages,
            _ => self.of_children += pages,
        }
        if let Some(kind) = kind {
            *self.of_kind.entry(kind).or_default() += pages;
        }
    }

    /// All of it, with the children of whom so much is known, and so much more is bound to be.
    fn with(&self, known: u64, bound: u64) -> u64 {
        let of_children = match self.passed_over {
            // It may be the child that has that.
            true => self.of_children.max(known) + bound,
            false => self.of_children.max(known + bound),
        };
        self.of_others + of_children
    }
}

/// Why a process with these areas will never join, if that is so; `folder` is where the agent lies.
fn kind(areas: &[Area], folder: Option<&Path>, chances: u32) -> Option<Kind> {
    let files = || areas.iter().filter(|area| area.inode != 0).map(|area| Path::new(&area.name));
    let is_loader = |file: &Path| {
        file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld"))
    };
    let is_agent = |file: &Path| folder.is_some_and(|folder| file.starts_with(folder));
    // With the agent it is about to join.
    if files().next().is_some() && !files().any(is_loader) && !files().any(is_agent) {
        return Some(Kind::StaticProgram);
    }
    let kind = if files().any(is_agent) { Kind::CannotJoin } else { Kind::NoAgent };
    (chances >= SIGHTINGS).then_some(kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn areas(names: &[&str]) -> Vec<Area> {
        let area = |name: &&str| Area {
            start: 0,
            end: 4096,
            readable: true,
            writable: true,
            shared: false,
            inode: u64::from(name.starts_with('/')),
            name: (*name).to_owned(),
        };
        names.iter().map(area).collect()
    }

    /// INJECT-5 of `inject.rs`: where those that have the places keep them for ever, who waits for one is told of all the same.
    #[test]
    fn who_waits_for_a_place_in_vain_is_told_of() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let mut stranger = Stranger::open(child.id(), &Clock::simulated()).expect("it is there");
        assert!(!stranger.comes());
        stranger.injection = Attempt::Later;
        assert!(stranger.comes());
        stranger.sightings = SIGHTINGS;
        assert!(!stranger.comes());
        child.kill().expect("it runs");
        child.wait().expect("it was a child");
    }

    /// A busy machine's monitor met it before it had been traced, traced it as well, and `ebb attach` failed with EPERM.
    #[test]
    fn who_is_being_attached_to_is_no_stranger() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let mut pager = crate::quiet::pager();
        pager.config.attached = true;
        let mut strangers = Strangers::new(pager.clock.now());
        strangers.count(&pager, &[child.id()], &[]);
        assert!(strangers.known.is_empty());
        pager.program.store(child.id(), Relaxed);
        strangers.count(&pager, &[child.id()], &[]);
        assert!(strangers.known.contains_key(&child.id()));
        child.kill().expect("it runs");
        child.wait().expect("it was a child");
    }

    /// Forty shells that forked at once on a busy machine were told of as taking no agent, within thirty milliseconds.
    #[test]
    fn censuses_in_a_row_are_one() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let clock = Clock::simulated();
        let began = clock.moment();
        let mut stranger = Stranger::open(child.id(), &clock).expect("it is there");
        let at = |ms: u32| began.after(CENSUS * ms / 100);
        let seen = (0..1000u32).filter(|&ms| stranger.is_seen(at(ms), false));
        assert_eq!(seen.count(), 9);
        assert_eq!(stranger.sightings, 9);
        assert!(!stranger.is_seen(at(2000), true), "others want a CPU");
        child.kill().expect("it runs");
        child.wait().expect("it was a child");
    }

    /// A child that nobody could tell was counted as an address space, and again as a process.
    #[test]
    fn a_child_that_nobody_could_tell_counts_once() {
        let mut held = Held::default();
        assert_eq!(held.with(700, 0), 700, "no census has found it yet");
        held.add(None, 690);
        held.add(Some(Kind::StaticProgram), 50);
        assert_eq!(held.with(600, 100), 750);
        held.add(Some(Kind::NoAgent), 200);
        assert_eq!(held.with(700, 0), 940);
        assert_eq!(held.of_kind[&Kind::NoAgent], 200);
        held.passed_over = true;
        assert_eq!(held.with(600, 100), 1040, "those counted are others");
    }

    #[test]
    fn who_has_no_loader_is_told_of_at_once_and_others_have_time_to_join() {
        let folder = Some(Path::new("/run/ebb-1"));
        let kind = |names: &[&str], chances| kind(&areas(names), folder, chances);
        let fixed = ["/bin/busybox", "[heap]", "/usr/share/data"];
        assert_eq!(kind(&fixed, 1), Some(Kind::StaticProgram));
        let setuid = ["/bin/su", "/lib/ld-linux-x86-64.so.2", "/lib/libc.so.6"];
        assert_eq!(kind(&setuid, 1), None, "the agent may be next");
        assert_eq!(kind(&setuid, SIGHTINGS), Some(Kind::NoAgent));
        let slow = ["/bin/sh", "/lib/ld-linux-x86-64.so.2", "/run/ebb-1/agent.so"];
        assert_eq!(kind(&slow, SIGHTINGS - 1), None);
        assert_eq!(kind(&slow, SIGHTINGS), Some(Kind::CannotJoin));
        let injected = ["/bin/go", "/run/ebb-1/agent.image"];
        assert_eq!(kind(&injected, 1), None, "it is on its way in");
        assert_eq!(kind(&injected, SIGHTINGS), Some(Kind::CannotJoin));
        assert_eq!(kind(&["[heap]"], SIGHTINGS_STATIC), None, "in the middle of an exec");
    }
}
