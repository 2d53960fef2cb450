//! Processes of the tree without an agent: static or setuid programs, and forked children that have yet
//! to greet. What they hold counts, and cannot be stored.
//!
//! * N1: until the next census, a stranger counts without what it shared when it was found: it may be a
//!   child whose fork is still to be read, and all of that its parent's.
//! * N2: one that has joined since the last census is none.

use crate::mm::Mm;
use crate::server::Pager;
use ebb_sys::proc::{self, Statm};
use ebb_sys::process;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// How many censuses must find a process without an agent before that is said.
const SIGHTINGS: u32 = 25;

/// All of them, by process number.
#[derive(Default)]
pub struct Strangers(HashMap<u32, Stranger>);

struct Stranger {
    statm: Statm,
    /// Censuses that found it, after the first.
    sightings: u32,
    /// Pages it had in common with others when it was found.
    shared: u64,
}

impl Stranger {
    fn open(pid: u32) -> Option<Self> {
        let statm = Statm::open(pid).ok()?;
        // Where that may not be seen, all of it.
        let own = proc::private_dirty_pages(pid).unwrap_or(u64::MAX);
        let shared = statm.anonymous_pages().ok()?.saturating_sub(own);
        Some(Self { statm, sightings: 0, shared })
    }

    fn pages(&self) -> u64 {
        let resident = self.statm.anonymous_pages().unwrap_or(0);
        if self.sightings == 0 { resident.saturating_sub(self.shared) } else { resident }
    }
}

impl Strangers {
    /// Takes note of the processes of the tree that are not `mms`.
    pub fn count(&mut self, pager: &Pager, tree: &[u32], mms: &[Arc<Mm>]) {
        let known = |pid: &u32| {
            mms.iter().any(|mm| !mm.closing.load(Relaxed) && mm.pid.load(Relaxed) == *pid)
        };
        let there: Vec<u32> = tree.iter().copied().filter(|pid| !known(pid)).collect();
        self.0.retain(|pid, _| there.contains(pid));
        for pid in there {
            if let Some(stranger) = self.0.get_mut(&pid) {
                stranger.sightings += 1;
                if stranger.sightings == SIGHTINGS {
                    pager.complain(&format!(
                        "process {pid} ({}) has no agent: its memory counts and cannot be stored",
                        proc::name(pid)
                    ));
                }
            } else if mms.iter().any(|mm| process::shares_memory(mm.pid.load(Relaxed), pid)) {
                // Between vfork and exec: it is counted where it borrows.
            } else if let Some(stranger) = Stranger::open(pid) {
                self.0.insert(pid, stranger);
            }
        }
    }

    /// Pages they hold.
    pub fn pages(&self, mms: &[Arc<Mm>]) -> u64 {
        // A child that has not greeted is a stranger too, and its pages are counted already.
        let infants = mms.iter().any(|mm| mm.is_infant());
        let joined = |pid: &u32| mms.iter().any(|mm| mm.pid.load(Relaxed) == *pid);
        (self.0.iter())
            .filter(|(pid, of)| (!infants || of.sightings >= SIGHTINGS) && !joined(pid))
            .map(|(_, stranger)| stranger.pages())
            .sum()
    }
}
