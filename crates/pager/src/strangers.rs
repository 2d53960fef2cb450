//! Processes of the tree without an agent: static or setuid programs, and forked children that have yet
//! to greet. What they hold counts, and cannot be stored.
//!
//! * N1: what a stranger shares counts at its parent, as long as that one is of the tree: it may be a child
//!   whose fork is still to be read, which takes long on a busy machine. Censuses look anew. Orphans
//!   count by their share.
//! * N2: one that has joined since the last census is none.

use crate::mm::Mm;
use crate::seam::Clock;
use crate::server::Pager;
use ebb_sys::proc::{self, Statm};
use ebb_sys::process;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// How many censuses must find a process without an agent before that is said.
const SIGHTINGS: u32 = 25;
/// How many pages that count elsewhere are not worth another walk of the page tables.
const FEW: u64 = 64;

/// All of them, by process number.
#[derive(Default)]
pub struct Strangers(HashMap<u32, Stranger>);

struct Stranger {
    statm: Statm,
    /// Censuses that found it, after the first.
    sightings: u32,
    /// Pages of it that count elsewhere, by the last look.
    elsewhere: u64,
    /// When that may be measured again: at most a quarter of the time goes into it.
    due: Instant,
}

impl Stranger {
    fn open(pid: u32, now: Instant) -> Option<Self> {
        Some(Self { statm: Statm::open(pid).ok()?, sightings: 0, elsewhere: 0, due: now })
    }

    fn look(&mut self, clock: &Clock, pid: u32, has_parent: bool) {
        let began = clock.now();
        let own =
            if has_parent { proc::private_dirty_pages } else { proc::proportional_anonymous_pages };
        // Where that may not be seen, all of it.
        let own = own(pid).unwrap_or(u64::MAX);
        self.elsewhere = self.statm.anonymous_pages().unwrap_or(0).saturating_sub(own);
        self.due = clock.now() + clock.since(began) * 3;
    }

    fn pages(&self) -> u64 {
        self.statm.anonymous_pages().unwrap_or(0).saturating_sub(self.elsewhere)
    }
}

impl Strangers {
    /// Takes note of the processes of the tree that are not `mms`.
    pub fn count(&mut self, pager: &Pager, tree: &[u32], mms: &[Arc<Mm>]) {
        let now = pager.clock.now();
        let known = |pid: &u32| mms.iter().any(|mm| !mm.closing.load(Relaxed) && mm.pid() == *pid);
        let there: Vec<u32> = tree.iter().copied().filter(|pid| !known(pid)).collect();
        self.0.retain(|pid, _| there.contains(pid));
        for &pid in &there {
            let parent = proc::parent(pid).unwrap_or(0);
            let has_parent = there.contains(&parent) || known(&parent);
            if let Some(stranger) = self.0.get_mut(&pid) {
                stranger.sightings += 1;
                if stranger.elsewhere > FEW && now >= stranger.due {
                    stranger.look(&pager.clock, pid, has_parent);
                }
                if stranger.sightings == SIGHTINGS {
                    pager.complain(&format!(
                        "process {pid} ({}) has no agent: its memory counts and cannot be stored",
                        proc::name(pid)
                    ));
                }
            } else if mms.iter().any(|mm| process::shares_memory(mm.pid(), pid)) {
                // Between vfork and exec: it is counted where it borrows.
            } else if let Some(mut stranger) = Stranger::open(pid, now) {
                stranger.look(&pager.clock, pid, has_parent);
                self.0.insert(pid, stranger);
            }
        }
    }

    /// Pages they hold.
    pub fn pages(&self, mms: &[Arc<Mm>]) -> u64 {
        // A child that has not greeted is a stranger too, and its pages are counted already.
        let infants = mms.iter().any(|mm| mm.is_infant());
        let joined = |pid: &u32| mms.iter().any(|mm| mm.pid() == *pid);
        (self.0.iter())
            .filter(|(pid, of)| (!infants || of.sightings >= SIGHTINGS) && !joined(pid))
            .map(|(_, stranger)| stranger.pages())
            .sum()
    }
}
