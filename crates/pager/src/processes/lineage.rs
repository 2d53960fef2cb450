//! Determines which processes belong to the run.
//!
//! If the supervisor is the program's parent and adopts its orphans, all processes are below the
//! supervisor. With `--exec` the program is the child of another process, and that process adopts
//! its orphans.
//!
//! * LINEAGE-1: with `--exec`, a process that the pager has seen in the tree stays in the run, no
//!   matter which process adopts it. The pager knows the process by a pidfd, never by its number
//!   alone. Children that the process had before it became the program, or before the attach, do
//!   not belong to the run unless the user asks for that.
//! * LINEAGE-2: such a run is over when the program and all processes seen have ended, and no
//!   address space is left. In addition no other process of this user may have been started with
//!   this run's socket (a process between its `exec` and its hello). What a process of another user
//!   says about itself does not count.

use crate::config::Config;
use crate::processes::Processes;
use crate::wait::patience::Patience;
use ebb_agent::protocol::ENV_SOCKET;
use ebb_sys::proc;
use ebb_sys::process::Pidfd;
use ebb_sys::socket::Socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Shortest and longest pause between two checks whether a run is over.
const PAUSE_MIN_NS: i64 = 1_000_000;
const PAUSE_MAX_NS: i64 = 64_000_000;

/// Data by which the pager finds the processes of a run.
#[derive(Debug, Default)]
pub struct Lineage {
    apart: Option<Apart>,
}

/// Processes of a run whose program is not the supervisor's child.
#[derive(Debug)]
struct Apart {
    root: u32,
    process: Pidfd,
    /// Children that the program had before the run, and that do not belong to it.
    before: Vec<(u32, Pidfd)>,
    /// All processes seen, without the program (LINEAGE-1).
    seen: Mutex<BTreeMap<u32, Pidfd>>,
}

impl Lineage {
    /// Opens the lineage of the run of process `root`, or of a run below its supervisor if `root`
    /// is None. Children that `root` already has belong to the run if `with_all`.
    pub fn new(root: Option<u32>, with_all: bool) -> std::io::Result<Self> {
        let apart = root.map(|root| {
            Ok::<_, std::io::Error>(Apart {
                root,
                process: Pidfd::open(root)?,
                before: if with_all { Vec::new() } else { open_all(&proc::children(root)) },
                seen: Mutex::default(),
            })
        });
        Ok(Self { apart: apart.transpose()? })
    }

    /// Returns the processes at which a walk of the tree begins.
    fn roots(&self, supervisor: u32) -> Vec<u32> {
        self.apart.as_ref().map_or_else(|| proc::children(supervisor), Apart::living)
    }

    /// Returns the processes that a walk of the tree skips.
    fn others(&self) -> impl Iterator<Item = u32> + '_ {
        let before = self.apart.iter().flat_map(|apart| &apart.before);
        before.filter(|(_, process)| !process.has_ended()).map(|&(pid, _)| pid)
    }

    fn note(&self, found: &[u32]) {
        if let Some(apart) = &self.apart {
            apart.note(found);
        }
    }

    /// Sends SIGKILL to all processes that are known by a pidfd.
    pub fn kill(&self) {
        let Some(apart) = &self.apart else { return };
        // Each process may have ended already.
        let _ = apart.process.send(9);
        apart.seen().values().for_each(|process| drop(process.send(9)));
    }

    /// Returns the process number that identifies the run. This is the program's number, or after
    /// its end the number of the eldest process.
    fn number(&self, processes: &Processes) -> Option<u32> {
        let apart = self.apart.as_ref()?;
        if apart.process.has_ended() {
            eldest(&tree(processes), proc::parent, proc::started)
        } else {
            Some(apart.root)
        }
    }
}

/// Returns the process of `tree` that started first, among the processes whose parent is not in
/// `tree`.
fn eldest(
    tree: &[u32],
    parent: impl Fn(u32) -> Option<u32>,
    started: impl Fn(u32) -> Option<u64>,
) -> Option<u32> {
    let is_child = |pid: &u32| parent(*pid).is_some_and(|parent| tree.contains(&parent));
    let aged = |pid: u32| Some((started(pid)?, pid));
    let eldest = tree.iter().copied().filter(|pid| !is_child(pid)).filter_map(aged).min()?;
    Some(eldest.1)
}

fn open_all(pids: &[u32]) -> Vec<(u32, Pidfd)> {
    pids.iter().filter_map(|&pid| Some((pid, Pidfd::open(pid).ok()?))).collect()
}

impl Apart {
    fn seen(&self) -> MutexGuard<'_, BTreeMap<u32, Pidfd>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the known processes that have not ended, the program first.
    fn living(&self) -> Vec<u32> {
        let mut seen = self.seen();
        seen.retain(|_, process| !process.has_ended());
        let program = (!self.process.has_ended()).then_some(self.root);
        program.into_iter().chain(seen.keys().copied()).collect()
    }

    fn note(&self, found: &[u32]) {
        let mut seen = self.seen();
        for &pid in found.iter().filter(|&&pid| pid != self.root) {
            if seen.contains_key(&pid) {
                continue;
            }
            let Ok(process) = Pidfd::open(pid) else { continue };
            // The number may belong to another process by now.
            if proc::parent(pid).is_some_and(|parent| found.contains(&parent)) {
                seen.insert(pid, process);
            }
        }
    }
}

/// Returns every process of the tree, the program first, without Ebb's own two.
pub fn tree(processes: &Processes) -> Vec<u32> {
    let mut found = Vec::new();
    let mut seen = HashSet::from([std::process::id(), processes.supervisor]);
    seen.extend(processes.lineage.others());
    let mut add = |mut next: Vec<u32>| {
        while let Some(pid) = next.pop() {
            if seen.insert(pid) {
                found.push(pid);
                next.extend(proc::children(pid));
            }
        }
    };
    add(processes.lineage.roots(processes.supervisor));
    for mm in processes.mms().iter().filter(|mm| mm.owner.pid() != 0) {
        add(vec![mm.owner.pid()]);
    }
    processes.lineage.note(&found);
    found
}

/// Waits until all descendants of the program have ended, too (LINEAGE-2). Returns false if the
/// supervisor ends first.
pub fn has_ended(processes: &Processes, config: &Config, supervisor: &Socket) -> bool {
    let mut pause_ns = PAUSE_MIN_NS;
    loop {
        let left = || !tree(processes).is_empty() || is_awaited(config);
        if processes.mms().is_empty() && !left() {
            return true;
        }
        // The supervisor sends nothing more, so a readable socket means that it has ended.
        let mut waiting = [PollFd::new(supervisor, PollFlags::IN)];
        if poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: pause_ns })) == Ok(1) {
            return false;
        }
        pause_ns = (pause_ns * 2).min(PAUSE_MAX_NS);
    }
}

/// Whether a process started with this run's socket has yet to say hello.
fn is_awaited(config: &Config) -> bool {
    let socket = config.socket.as_os_str();
    let started = proc::started_with(ENV_SOCKET, socket, |look| Patience::Files.sees(look));
    started.into_iter().any(|pid| !matches!(proc::state(pid), None | Some('Z' | 'X')))
}

/// Returns the process number that identifies the run; None if this is the supervisor's.
pub fn number(processes: &Processes) -> Option<u32> {
    processes.lineage.number(processes)
}

#[cfg(test)]
mod tests {
    use super::eldest;

    /// Shows that a run whose program has ended never reports the number of the ended program, but
    /// that of its eldest process.
    #[test]
    fn a_run_without_its_program_is_known_by_its_eldest_process() {
        let parent = |pid| Some(if pid == 70 { 20 } else { 1 });
        let started = |pid| (pid != 90).then_some(if pid == 20 { 5 } else { 9 });
        assert_eq!(eldest(&[90, 70, 30, 20], parent, started), Some(20));
        assert_eq!(eldest(&[90, 70], parent, started), Some(70));
        assert_eq!(eldest(&[90], parent, started), None);
    }
}
