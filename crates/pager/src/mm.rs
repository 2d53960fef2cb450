//! One address space under management: its userfaultfd, its page table, its agent.

use crate::link::Link;
use crate::pool::Pool;
use ebb_core::resident::Space;
use ebb_core::types::MmId;
use ebb_sys::proc::Statm;
use ebb_sys::process;
use ebb_sys::uffd::Uffd;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How long a forked child may take to greet.
const INFANCY: Duration = Duration::from_secs(2);

/// An address space.
#[derive(Debug)]
pub struct Mm {
    pub id: MmId,
    pub uffd: Uffd,
    /// Process number; 0 until the child of a fork has made itself known.
    pub pid: AtomicU32,
    state: Mutex<State>,
    quiet: Condvar,
    /// Absent for children of forks that never greet (nothing of theirs can be moved out).
    pub link: OnceLock<Link>,
    pub statm: OnceLock<Statm>,
    /// Pages the page table says are in memory, pool included.
    pub known: AtomicI64,
    /// Resident pages beyond the known ones when the areas were last read.
    pub unknown: AtomicU64,
    /// Pages also mapped by a relative, when last counted.
    pub shared: AtomicU64,
    /// It may share pages with a relative.
    pub related: AtomicBool,
    /// Its agent has hung up: dropped as soon as the address space is gone.
    pub closing: AtomicBool,
    pub born: Instant,
}

/// What `Mm::state` protects.
#[derive(Debug)]
pub struct State {
    /// A batch of moves is under way: no message may be read (P1).
    pub busy: bool,
    /// The address space has ended; nothing is left here.
    pub ended: bool,
    pub space: Space,
    pub areas: Areas,
    pub pool: Pool,
}

impl Mm {
    /// An address space served through `uffd`.
    #[must_use]
    pub fn new(id: MmId, uffd: Uffd, space: Space, areas: Areas, pool: Pool) -> Self {
        Self {
            id,
            uffd,
            pid: AtomicU32::new(0),
            state: Mutex::new(State { busy: false, ended: false, space, areas, pool }),
            quiet: Condvar::new(),
            link: OnceLock::new(),
            statm: OnceLock::new(),
            known: AtomicI64::new(0),
            unknown: AtomicU64::new(0),
            shared: AtomicU64::new(0),
            related: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            born: Instant::now(),
        }
    }

    /// A forked child that may still greet. It is given memory whatever the budget says, for a few
    /// pages are what it needs to become one that can give some back.
    pub fn is_infant(&self) -> bool {
        self.link.get().is_none() && self.born.elapsed() < INFANCY
    }

    /// Learns which process it is from one of its threads.
    pub fn learn_process(&self, thread: u32) {
        if self.pid.load(Ordering::Relaxed) == 0
            && let Some(pid) = process::group_of(thread)
            && let Ok(statm) = Statm::open(pid)
        {
            // Lost only to another who learnt the same.
            let _ = self.statm.set(statm);
            self.pid.store(pid, Ordering::Relaxed);
        }
    }

    /// The state, whether or not a batch is under way. For what does not read messages and does not
    /// rely on pages staying where they are.
    pub fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state with no batch under way; None if one does not end within `patience`.
    pub fn lock_quiet(&self, patience: Duration) -> Option<MutexGuard<'_, State>> {
        let (state, timeout) = self
            .quiet
            .wait_timeout_while(self.lock(), patience, |state| state.busy)
            .unwrap_or_else(PoisonError::into_inner);
        (!timeout.timed_out() || !state.busy).then_some(state)
    }

    /// The batch is over.
    pub fn end_batch(&self, state: &mut State) {
        state.busy = false;
        self.quiet.notify_all();
    }
}

/// The registered ranges, disjoint and sorted.
#[derive(Clone, Debug, Default)]
pub struct Areas {
    ranges: std::collections::BTreeMap<u64, u64>,
}

impl Areas {
    /// Adds `[start, end)`, which must not overlap what is there; joins neighbours.
    pub fn add(&mut self, start: u64, end: u64) {
        let (mut start, mut end) = (start, end);
        if let Some((&before, &stop)) = self.ranges.range(..=start).next_back()
            && stop >= start
        {
            self.ranges.remove(&before);
            start = before;
            end = end.max(stop);
        }
        if let Some(stop) = self.ranges.remove(&end) {
            end = stop;
        }
        self.ranges.insert(start, end);
    }

    /// Takes `[start, end)` out.
    pub fn remove(&mut self, start: u64, end: u64) {
        let touched: Vec<(u64, u64)> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|&(_, &stop)| stop > start)
            .map(|(&from, &stop)| (from, stop))
            .collect();
        for (from, stop) in touched {
            self.ranges.remove(&from);
            if from < start {
                self.ranges.insert(from, start);
            }
            if stop > end {
                self.ranges.insert(end, stop);
            }
        }
    }

    /// The parts of `[start, end)` that are not registered.
    #[must_use]
    pub fn missing(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut missing = Vec::new();
        let mut at = start;
        let first = self.ranges.range(..=start).next_back().map_or(start, |(&from, _)| from);
        for (&from, &stop) in self.ranges.range(first..end) {
            if stop <= at {
                continue;
            }
            if from > at {
                missing.push((at, from.min(end)));
            }
            at = at.max(stop);
        }
        if at < end {
            missing.push((at, end));
        }
        missing
    }

    /// The ranges.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        self.ranges.iter().map(|(&start, &end)| (start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::Areas;

    #[test]
    fn neighbours_join_and_holes_are_found() {
        let mut areas = Areas::default();
        areas.add(10, 20);
        areas.add(30, 40);
        assert_eq!(areas.missing(0, 50), [(0, 10), (20, 30), (40, 50)]);
        assert_eq!(areas.missing(12, 18), []);
        assert_eq!(areas.missing(15, 35), [(20, 30)]);
        areas.add(20, 30);
        assert_eq!(areas.iter().collect::<Vec<_>>(), [(10, 40)]);
        areas.remove(15, 25);
        assert_eq!(areas.iter().collect::<Vec<_>>(), [(10, 15), (25, 40)]);
        areas.remove(0, 100);
        assert_eq!(areas.iter().count(), 0);
    }
}
