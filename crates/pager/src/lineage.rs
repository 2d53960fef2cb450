//! Which processes are of the run.
//!
//! Where the front is the program's parent and adopts its orphans, all of them are below the front. With `--exec` it is
//! not: the program is somebody else's child, and its orphans are adopted by somebody else.
//!
//! * LINEAGE-1: there, who was once seen in the tree stays of it, whoever adopts it. It is known by a descriptor, never by its number
//!   alone. Children that the process had before it became the program, or was attached to, are none of it unless that is said.
//! * LINEAGE-2: such a run is over when the program has ended, no address space is left, nobody who was seen is, and no other process
//!   of this user was started with this run's socket (one between its `exec` and its greeting). What another user's says
//!   of itself says nothing.

use crate::server::Pager;
use ebb_agent::protocol::ENV_SOCKET;
use ebb_sys::proc;
use ebb_sys::process::Pidfd;
use ebb_sys::socket::Socket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The first and the longest pause between two looks whether a run is over.
const PAUSE_MIN_NS: i64 = 1_000_000;
const PAUSE_MAX_NS: i64 = 64_000_000;

/// By what a run's processes are found.
#[derive(Debug, Default)]
pub struct Lineage {
    apart: Option<Apart>,
}

/// Of a run whose program is not the front's child.
#[derive(Debug)]
struct Apart {
    root: u32,
    process: Pidfd,
    /// Children that it had before, and that are none of the run.
    before: Vec<(u32, Pidfd)>,
    /// All that were seen, but for the program (LINEAGE-1).
    seen: Mutex<BTreeMap<u32, Pidfd>>,
}

impl Lineage {
    /// Of the run of process `root`, `with_all` that it has started so far or without, or of one that is below its front.
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

    /// Where to begin looking.
    fn roots(&self, front: u32) -> Vec<u32> {
        self.apart.as_ref().map_or_else(|| proc::children(front), Apart::living)
    }

    /// Where not to look.
    fn others(&self) -> impl Iterator<Item = u32> + '_ {
        let before = self.apart.iter().flat_map(|apart| &apart.before);
        before.filter(|(_, process)| !process.has_ended()).map(|&(pid, _)| pid)
    }

    fn note(&self, found: &[u32]) {
        if let Some(apart) = &self.apart {
            apart.note(found);
        }
    }

    /// Kills those that are known by descriptors.
    pub fn kill(&self) {
        let Some(apart) = &self.apart else { return };
        // Each may have ended.
        let _ = apart.process.send(9);
        apart.seen().values().for_each(|process| drop(process.send(9)));
    }

    /// The number by which others know the run: the program's, or while others go on that of the eldest.
    fn number(&self, pager: &Pager) -> Option<u32> {
        let apart = self.apart.as_ref()?;
        if apart.process.has_ended() {
            eldest(&tree(pager), proc::parent, proc::started)
        } else {
            Some(apart.root)
        }
    }
}

/// Of these the one that started first, of those that nobody else of them started.
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

    /// Those that are known and have not ended, the program first.
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
            // Its number could be another's by now.
            if proc::parent(pid).is_some_and(|parent| found.contains(&parent)) {
                seen.insert(pid, process);
            }
        }
    }
}

/// Every process of the tree, the program first, without Ebb's own two.
pub fn tree(pager: &Pager) -> Vec<u32> {
    let mut found = Vec::new();
    let mut seen = HashSet::from([std::process::id(), pager.front]);
    seen.extend(pager.lineage.others());
    let mut add = |mut next: Vec<u32>| {
        while let Some(pid) = next.pop() {
            if seen.insert(pid) {
                found.push(pid);
                next.extend(proc::children(pid));
            }
        }
    };
    add(pager.lineage.roots(pager.front));
    for mm in pager.mms().iter().filter(|mm| mm.pid() != 0) {
        add(vec![mm.pid()]);
    }
    pager.lineage.note(&found);
    found
}

/// Waits until all that the program has left behind has ended, too (LINEAGE-2). False if the front has before.
pub fn has_ended(pager: &Pager, front: &Socket) -> bool {
    let mut pause_ns = PAUSE_MIN_NS;
    loop {
        let left = || !tree(pager).is_empty() || is_awaited(pager);
        if pager.mms().is_empty() && !left() {
            return true;
        }
        // It says nothing more: if it can be read it is gone.
        let mut waiting = [PollFd::new(front, PollFlags::IN)];
        if poll(&mut waiting, Some(&Timespec { tv_sec: 0, tv_nsec: pause_ns })) == Ok(1) {
            return false;
        }
        pause_ns = (pause_ns * 2).min(PAUSE_MAX_NS);
    }
}

/// Whether somebody has yet to greet.
fn is_awaited(pager: &Pager) -> bool {
    let started = proc::started_with(ENV_SOCKET, pager.config.socket.as_os_str());
    started.into_iter().any(|pid| !matches!(proc::state(pid), None | Some('Z' | 'X')))
}

/// Whether a process is of the run, as an answer.
pub fn has_member(pager: &Pager, pid: &str) -> String {
    let member = pid.trim().parse().is_ok_and(|pid| tree(pager).contains(&pid));
    u8::from(member).to_string()
}

/// The number by which others know the run, as an answer: 0 if it is its front's.
pub fn number(pager: &Pager) -> String {
    pager.lineage.number(pager).unwrap_or(0).to_string()
}

#[cfg(test)]
mod tests {
    use super::eldest;

    /// A daemon that asked for its own run was given the number of who asked, which had ended when it was asked for.
    #[test]
    fn a_run_without_its_program_is_known_by_the_eldest() {
        let parent = |pid| Some(if pid == 70 { 20 } else { 1 });
        let started = |pid| (pid != 90).then_some(if pid == 20 { 5 } else { 9 });
        assert_eq!(eldest(&[90, 70, 30, 20], parent, started), Some(20));
        assert_eq!(eldest(&[90, 70], parent, started), Some(70));
        assert_eq!(eldest(&[90], parent, started), None);
    }
}
