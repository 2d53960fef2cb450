//! Foreign processes: processes of the tree without an agent. These are static or setuid programs,
//! and starting children. Their pages count towards the budget, and cannot be stored.
//!
//! * FOREIGN-1: Pages that a foreign process shares count at its parent while the parent is in the
//!   tree. The process may be a child whose fork message is not read yet, which takes long on a
//!   busy machine. Censuses measure anew. Orphans count by their share.
//! * FOREIGN-2: A process that has joined since the last census is not foreign. Others may be
//!   unidentified forked children. The pager does not know which process is which child. It
//!   compares the known pages of all these children with the pages of all those processes. The
//!   larger number counts, once.
//! * FOREIGN-3: A process is reported as soon as it is clear that it will never join. A program
//!   without a loader that could bring the agent is reported at once. Any other is reported when it
//!   has had time to join. A process that is stopped, or waits for memory or a disk, has had no
//!   such time.
//! * FOREIGN-4: A program without a loader that can still take the agent gets it as soon as a
//!   census finds it, before any report. If too many attempts are under way, it gets the agent when
//!   others have it. There is another attempt before the report, because the process may have
//!   executed another program, or was about to. A forked child of such a program gets the agent,
//!   too, because no hook makes it join. A stopped or traced process gets it when it is neither any
//!   more.

use crate::mm::Mm;
use crate::monitor::sharing::Holdings;
use crate::pager::Pager;
use crate::processes::inject::{self, Attempt};
use crate::seam::{self, MapLock};
use crate::telemetry::Telemetry;
use crate::telemetry::unmanaged::Kind;
use crate::wait::clock::Clock;
use crate::wait::patience::{Moment, Watch};
use ebb_sys::proc::{self, Area, Statm};
use ebb_sys::process;
use std::collections::{BTreeMap, HashMap};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Interval at which the monitor searches the whole tree for processes without an agent.
pub const CENSUS: Duration = Duration::from_millis(100);
/// Censuses that must find a process without an agent before it counts as one that will never join.
/// Only censuses at the usual pace count. Where memory is short there are more within milliseconds,
/// which leave no time to join.
const SIGHTINGS: u32 = 25;
/// Censuses needed for a static program: the first may have found the process in the middle of an
/// exec.
const SIGHTINGS_STATIC: u32 = 1;
/// Censuses needed while a candidate waits for the pager. On a busy machine the pager serves a
/// dozen forked children a second.
const SIGHTINGS_OWED: u32 = 300;
/// CPU time after which a thread that always runs has had its chance to join.
const CHANCE: Duration = Duration::from_millis(50);
/// Limit of the attempts to put the agent into a process.
const ATTEMPTS: u32 = 2;
/// Time limit of one round of measuring foreign processes. The last of them may exceed it.
const MEASURED_FOR: Duration = Duration::from_millis(20);
/// Number of pages counted elsewhere up to which another walk of the page tables is not worth its
/// cost.
const FEW: u64 = 64;

/// All foreign processes.
pub struct ForeignProcesses {
    /// The processes, by process number.
    known: HashMap<u32, ForeignProcess>,
    /// Time of the next round of measuring. Rounds take at most a quarter of the time.
    due: Instant,
}

struct ForeignProcess {
    statm: Statm,
    /// Censuses that counted, after the first, and the time from which the next one counts.
    sightings: u32,
    next: Moment,
    /// Censuses in which the process could make progress towards joining, and its CPU time since
    /// the last.
    chances: u32,
    watch: Watch,
    /// Number of ended attempts to give the agent to any process, at the last look.
    ended: u64,
    /// Pages of this process that count elsewhere, at the last look.
    elsewhere: u64,
    /// Whether those pages could not be measured.
    unseen: bool,
    /// Reason why the process will never join, if known.
    kind: Option<Kind>,
    /// Progress of putting the agent into the process (FOREIGN-4).
    injection: Attempt,
    attempts: u32,
    /// Time of the last measurement.
    looked: Instant,
    map_lock: MapLock,
}

impl ForeignProcess {
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
            map_lock: MapLock::of(pid),
        })
    }

    /// Measures how many pages of the process count elsewhere.
    fn look(&mut self, clock: &Clock, pid: u32, has_parent: bool) {
        let own = seam::own_pages(pid, &self.map_lock, has_parent);
        self.unseen = own.is_err();
        // If they may not be seen, all pages are taken for its own.
        let own = own.unwrap_or(u64::MAX);
        self.elsewhere = self.statm.anonymous_pages().unwrap_or(0).saturating_sub(own);
        self.looked = clock.now();
    }

    /// Records that a census finds the process again, and returns whether that counts. It does not
    /// while processes that are given the agent wait for a CPU.
    fn is_seen(&mut self, now: Moment, kept_waiting: bool) -> bool {
        let counts = now >= self.next && !kept_waiting;
        if counts {
            self.sightings += 1;
            self.next = now.after(CENSUS);
        }
        counts
    }

    /// Finds out whether the process will never join. `counts` says whether this census counts.
    fn judge(&mut self, pager: &Pager, pid: u32, counts: bool) {
        let has_ended =
            matches!(&self.injection, Attempt::Begun(injection) if injection.is_finished());
        if has_ended
            && let Attempt::Begun(injection) = std::mem::replace(&mut self.injection, Attempt::No)
        {
            match injection.join() {
                Ok(Ok(())) => return,
                // The freezer traced the process first.
                Ok(Err(error)) if error.kind() == ErrorKind::PermissionDenied => {
                    self.injection = Attempt::Later;
                }
                _ => {}
            }
        }
        if matches!(self.injection, Attempt::Later) {
            if std::mem::replace(&mut self.ended, inject::ended()) != self.ended {
                // The turn of this process comes nearer.
                self.sightings = 0;
            }
            self.inject(pager, pid);
        }
        // To join takes memory, and no process is to join while the run is given back.
        let waits = pager.budget.memory_stalled.load(Relaxed) > 0 || pager.run.detach.is_on();
        // The pager learns which process a candidate is only when it serves the candidate.
        let owed = pager.processes.candidates.has_unserved() && self.sightings < SIGHTINGS_OWED;
        let stands = || matches!(proc::state(pid), Some('T' | 't' | 'D'));
        if !counts || waits || owed || self.comes() || stands() {
            return;
        }
        // A process that waits for a CPU has had no chance either.
        if self.watch.wants_cpu(CHANCE) {
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
        self.kind = match self.map_lock.read(move || proc::areas(pid)) {
            Ok(areas) => kind(&areas, folder, self.chances),
            // The process is another user's.
            Err(_) => (self.chances >= SIGHTINGS).then_some(Kind::NoAgent),
        };
        if let Some(kind) = self.kind {
            pager.note_unmanaged(kind, pid, &proc::name(pid));
        }
    }

    /// Returns whether an agent may still come.
    fn comes(&self) -> bool {
        match self.injection {
            Attempt::Begun(_) => true,
            // The processes under way now may never stop.
            Attempt::Later => self.sightings < SIGHTINGS,
            Attempt::No => false,
        }
    }

    fn inject(&mut self, pager: &Pager, pid: u32) {
        if pager.run.detach.is_on() {
            return;
        }
        self.injection = pager.host.inject(&pager.config, pid, &self.map_lock);
        self.attempts += u32::from(matches!(self.injection, Attempt::Begun(_)));
    }

    fn pages(&self) -> u64 {
        self.statm.anonymous_pages().unwrap_or(0).saturating_sub(self.elsewhere)
    }
}

impl ForeignProcesses {
    /// Creates an empty list.
    pub fn new(now: Instant) -> Self {
        Self { known: HashMap::new(), due: now }
    }

    /// Takes a census: lists the processes of the tree that are not among `mms`.
    pub fn update(&mut self, pager: &Pager, tree: &[u32], mms: &[Arc<Mm>]) {
        if pager.is_attaching() {
            // Only the thread that puts the agent into the attached process may trace it.
            return;
        }
        let kept_waiting = inject::is_kept_waiting();
        // Without hooks a forked child does not join by itself (FOREIGN-4).
        let joins = |mm: &Mm| !mm.needs_injection();
        let is = |mm: &Mm, pid| !mm.agent.is_closing() && mm.owner.pid() == pid && joins(mm);
        let known = |pid: &u32| mms.iter().any(|mm| is(mm, *pid));
        let there: Vec<u32> = tree.iter().copied().filter(|pid| !known(pid)).collect();
        self.known.retain(|pid, _| there.contains(pid));
        let mut old = Vec::new();
        for &pid in &there {
            let lenders = || mms.iter().map(|mm| mm.owner.pid()).filter(|&other| other != pid);
            let parent = proc::parent(pid).unwrap_or(0);
            let has_parent = there.contains(&parent) || known(&parent);
            if let Some(process) = self.known.get_mut(&pid) {
                if process.elsewhere > FEW {
                    old.push((process.looked, pid, has_parent));
                }
                let counts = process.is_seen(pager.clock.moment(), kept_waiting);
                process.judge(pager, pid, counts);
            } else if lenders().any(|lender| process::shares_memory(lender, pid)) {
                // A process between vfork and exec counts where it borrows its memory.
            } else if let Some(mut process) = ForeignProcess::open(pid, &pager.clock) {
                process.look(&pager.clock, pid, has_parent);
                process.inject(pager, pid);
                self.known.insert(pid, process);
            }
        }
        self.measure(&pager.clock, old);
    }

    /// Measures processes again if a round is due, the one measured longest ago first.
    fn measure(&mut self, clock: &Clock, mut old: Vec<(Instant, u32, bool)>) {
        let began = clock.now();
        if began < self.due {
            return;
        }
        old.sort_unstable();
        for (_, pid, has_parent) in old {
            if let Some(process) = self.known.get_mut(&pid) {
                process.look(clock, pid, has_parent);
            }
            if clock.now() - began > MEASURED_FOR {
                break;
            }
        }
        let took = clock.now() - began;
        self.due = began + took * 4;
    }

    /// Returns the number of pages of foreign processes and of unidentified forked children.
    /// `fork_groups` knows the latter (FOREIGN-2).
    pub fn pages(&self, telemetry: &Telemetry, mms: &[Arc<Mm>], fork_groups: &Holdings) -> u64 {
        let starting = mms.iter().any(|mm| mm.agent.is_starting());
        let joined = |pid: &u32| mms.iter().any(|mm| mm.owner.pid() == *pid);
        let mut held = ForeignPages::default();
        for (_, process) in self.known.iter().filter(|(pid, _)| !joined(pid)) {
            // A child with all of its parent's pages may have none of its own.
            if starting && process.unseen && process.sightings < SIGHTINGS {
                held.passed_over = true;
                continue;
            }
            held.add(process.kind, process.pages());
        }
        held.of_kind.iter().for_each(|(&kind, &pages)| telemetry.unmanaged.hold(kind, pages));
        held.with(fork_groups.unidentified, fork_groups.bound)
    }
}

/// Memory of foreign processes, in pages.
#[derive(Default)]
struct ForeignPages {
    of_kind: BTreeMap<Kind, u64>,
    /// Pages of processes that may be forked children.
    of_children: u64,
    of_others: u64,
    /// Whether a process that may be a forked child is left out.
    passed_over: bool,
}

impl ForeignPages {
    fn add(&mut self, kind: Option<Kind>, pages: u64) {
        match kind {
            Some(Kind::StaticProgram) => self.of_others += pages,
            _ => self.of_children += pages,
        }
        if let Some(kind) = kind {
            *self.of_kind.entry(kind).or_default() += pages;
        }
    }

    /// Returns the sum. `known` are the pages known of unidentified children, and `bound` the pages
    /// that the bound adds to them.
    fn with(&self, known: u64, bound: u64) -> u64 {
        let of_children = match self.passed_over {
            // The process left out may be the child with those pages.
            true => self.of_children.max(known) + bound,
            false => self.of_children.max(known + bound),
        };
        self.of_others + of_children
    }
}

/// Returns why a process with these areas will never join, or None. `folder` is the agent's folder.
fn kind(areas: &[Area], folder: Option<&Path>, chances: u32) -> Option<Kind> {
    let files = || areas.iter().filter(|area| area.inode != 0).map(|area| Path::new(&area.name));
    // The loader of musl is its C library.
    let is_loader = |file: &Path| {
        let name = file.file_name().unwrap_or_default().as_encoded_bytes();
        name.starts_with(b"ld") || name == b"libc.so"
    };
    // A folder in that one has what other loaders find in place of the agent.
    let is_agent = |file: &Path| folder.is_some() && file.parent() == folder;
    // A process with the agent is about to join.
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
            executable: false,
            shared: false,
            inode: u64::from(name.starts_with('/')),
            name: (*name).to_owned(),
        };
        names.iter().map(area).collect()
    }

    /// INJECT-5 of `processes/inject.rs`: if the processes under way never finish, a process that
    /// waits for its turn is reported nevertheless.
    #[test]
    fn a_foreign_process_that_never_gets_its_turn_is_reported() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let mut process =
            ForeignProcess::open(child.id(), &Clock::simulated()).expect("it is there");
        assert!(!process.comes());
        process.injection = Attempt::Later;
        assert!(process.comes());
        process.sightings = SIGHTINGS;
        assert!(!process.comes());
        child.kill().expect("it runs");
        child.wait().expect("it was a child");
    }

    /// The monitor leaves the process of `ebb attach` alone. On a busy machine it found that
    /// process first and traced it, and `ebb attach` failed with EPERM.
    #[test]
    fn a_process_that_is_being_attached_is_no_foreign_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let mut pager = crate::quiet::pager();
        pager.config.attached = true;
        let mut foreign = ForeignProcesses::new(pager.clock.now());
        foreign.update(&pager, &[child.id()], &[]);
        assert!(foreign.known.is_empty());
        pager.processes.program.store(child.id(), Relaxed);
        foreign.update(&pager, &[child.id()], &[]);
        assert!(foreign.known.contains_key(&child.id()));
        child.kill().expect("it runs");
        child.wait().expect("it was a child");
    }

    /// Shows that a process counts as foreign until it has joined, and not twice from then on.
    #[test]
    fn a_process_that_has_joined_is_no_foreign_process() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let pager = crate::quiet::pager();
        let mut foreign = ForeignProcesses::new(pager.clock.now());
        foreign.update(&pager, &[child.id()], &[]);
        let pages = |mms: &[Arc<Mm>]| foreign.pages(&pager.telemetry, mms, &Holdings::default());
        let mm = Arc::new(crate::quiet::with_pool(crate::quiet::Quiet::default()));
        let other = Arc::new(crate::quiet::with_pool(crate::quiet::Quiet::default()));
        mm.owner.identify(Box::new(seam::Known::open(child.id()).expect("it is there")));
        assert!(pages(&[other]) > 0);
        assert_eq!(pages(&[mm]), 0);
        child.kill().expect("it runs");
        child.wait().expect("it was a child");
    }

    /// Censuses in quick succession count once. On a busy machine forty shells that forked at once
    /// were reported as taking no agent within thirty milliseconds.
    #[test]
    fn censuses_in_quick_succession_count_once() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("sleep");
        let clock = Clock::simulated();
        let began = clock.moment();
        let mut process = ForeignProcess::open(child.id(), &clock).expect("it is there");
        let at = |ms: u32| began.after(CENSUS * ms / 100);
        let seen = (0..1000u32).filter(|&ms| process.is_seen(at(ms), false));
        assert_eq!(seen.count(), 9);
        assert_eq!(process.sightings, 9);
        assert!(!process.is_seen(at(2000), true), "others want a CPU");
        child.kill().expect("it runs");
        child.wait().expect("it was a child");
    }

    /// An unidentified child counts either as an address space or as a process, not as both.
    #[test]
    fn an_unidentified_child_counts_once() {
        let mut held = ForeignPages::default();
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
    fn a_program_without_a_loader_is_reported_at_once_and_others_have_time_to_join() {
        let folder = Some(Path::new("/run/ebb-1"));
        let kind = |names: &[&str], chances| kind(&areas(names), folder, chances);
        let fixed = ["/bin/busybox", "[heap]", "/usr/share/data"];
        assert_eq!(kind(&fixed, 1), Some(Kind::StaticProgram));
        let setuid = ["/bin/su", "/lib/ld-linux-x86-64.so.2", "/lib/libc.so.6"];
        assert_eq!(kind(&setuid, 1), None, "the agent may be next");
        assert_eq!(kind(&setuid, SIGHTINGS), Some(Kind::NoAgent));
        let musl = ["/bin/sh", "/usr/lib/x86_64-linux-musl/libc.so"];
        assert_eq!([kind(&musl, 1), kind(&musl, SIGHTINGS)], [None, Some(Kind::NoAgent)]);
        let of_32_bits = ["/bin/sh", "/lib/ld-linux.so.2", "/run/ebb-1/i686/agent.so"];
        assert_eq!(kind(&of_32_bits, SIGHTINGS), Some(Kind::NoAgent));
        let slow = ["/bin/sh", "/lib/ld-linux-x86-64.so.2", "/run/ebb-1/agent.so"];
        assert_eq!(kind(&slow, SIGHTINGS - 1), None);
        assert_eq!(kind(&slow, SIGHTINGS), Some(Kind::CannotJoin));
        let injected = ["/bin/go", "/run/ebb-1/agent.image"];
        assert_eq!(kind(&injected, 1), None, "it is on its way in");
        assert_eq!(kind(&injected, SIGHTINGS), Some(Kind::CannotJoin));
        assert_eq!(kind(&["[heap]"], SIGHTINGS_STATIC), None, "in the middle of an exec");
    }
}
