//! Counts shared memory of the tree (shm_open, memfd_create, MAP_SHARED, mapped files on tmpfs). It
//! counts against the limit and cannot be stored.
//!
//! * SHARED-1: a page counts once, however many processes map it, and however often. The number of
//!   mapped pages per process is cheap to read. The number of distinct pages takes a walk of page
//!   tables, which runs at most a quarter of the time. In between the result of the last walk
//!   counts, reduced in proportion if less is mapped. If more is mapped, it may be other memory or
//!   the same. So until the next walk the count rises only to the largest mapping of a single
//!   process.
//! * SHARED-2: pages that processes outside the tree map, too, count by the share of the tree.
//! * SHARED-3: a process that may not be inspected counts as if other such processes mapped the
//!   same pages.
//! * SHARED-4: a walk reads one process after the other. The share of a page changes while other
//!   processes begin to map it, or end. So a walk beside such processes may find too much. It
//!   counts in full only if as much was mapped after it as before. If more was mapped after it,
//!   pages that only one process maps count, because no other reading can have found them, too.
//! * SHARED-5: of the pages mapped since the last walk, a share is presumed to be new. It is the
//!   share of pages that the walk found in one process alone. That is enough to freeze the
//!   processes that fill them until the next walk. The presumed pages are counted nowhere.
//! * SHARED-6: the processes that fill shared memory are frozen before the monitor waits for their
//!   locks. On a busy machine a thread that holds such a lock may not run for long.

use crate::mm::Mm;
use crate::pager::Pager;
use crate::processes::host::Host;
use crate::telemetry::unmanaged::Kind;
use crate::wait::clock::Clock;
use ebb_agent::protocol::Shared;
use ebb_mm::types::{MmId, PAGE_SIZE};
use ebb_sys::proc::{self, SharedPages};
use ebb_sys::process;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Number of pages from which a report and a walk are worthwhile, beside the pages that each agent
/// shares with the pager.
const FEW: u64 = (1 << 20) / PAGE_SIZE as u64;
const OF_AGENT: u64 = size_of::<Shared>().div_ceil(PAGE_SIZE) as u64;

/// Number of newly mapped pages from which shared memory is counted at once.
const SUDDEN: u64 = (16 << 20) / PAGE_SIZE as u64;
/// Time after which a step counts as a wait.
const WAIT: Duration = Duration::from_millis(3);
/// Time for which a walk waits for threads that are being frozen.
const UNSETTLED: Duration = Duration::from_millis(200);

/// Tolerated difference of mapped pages after a walk (SHARED-4): one page of this many.
const STILL: u64 = 32;

/// Result of the last walk: mapped pages counted once per mapping, distinct pages, and pages that
/// one process alone maps.
#[derive(Clone, Copy, Default, Debug)]
struct Walk {
    mapped: u64,
    pages: u64,
    alone: u64,
}

impl Walk {
    /// Returns how many of `more` newly mapped pages are presumed to be new. Without a walk these
    /// are all.
    fn new_of(&self, more: u64) -> u64 {
        (more * self.alone).checked_div(self.mapped).unwrap_or(more)
    }
}

/// Counts of shared memory.
#[derive(Debug)]
pub struct SharedMemory {
    pages: u64,
    presumed: u64,
    looked: Instant,
    /// Pages mapped at the last count, counted once per mapping.
    mapped: u64,
    /// Processes that map shared memory, with their numbers of pages.
    holders: Vec<(u32, u64)>,
    walked: Walk,
    /// Pages of files and of shared memory that each address space had at the last count
    /// (SHARED-5).
    backed: HashMap<MmId, u64>,
    due: Instant,
    reported: HashSet<u32>,
}

impl SharedMemory {
    /// Creates counts without shared memory.
    pub fn new(now: Instant) -> Self {
        Self {
            pages: 0,
            presumed: 0,
            looked: now,
            mapped: 0,
            holders: Vec::new(),
            walked: Walk::default(),
            backed: HashMap::new(),
            due: now,
            reported: HashSet::new(),
        }
    }

    /// Returns the number of shared pages by the last count.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Returns the number of presumed further pages, by the memory mapped since the last walk
    /// (SHARED-5).
    pub fn presumed(&self) -> u64 {
        self.presumed
    }

    /// Whether the presumption is older than `WAIT`.
    pub fn is_old(&self, clock: &Clock) -> bool {
        clock.since(self.looked) > WAIT
    }

    /// Returns the number of mapped pages up to which no walk is worthwhile.
    fn few(&self) -> u64 {
        FEW + self.holders.len() as u64 * OF_AGENT
    }

    /// Computes the presumed pages again.
    pub fn presume(&mut self, clock: &Clock, mms: &[Arc<Mm>]) {
        self.looked = clock.now();
        self.presumed = 0;
        if self.mapped > self.few() {
            let more = self.mapped.saturating_sub(self.walked.mapped) + self.grown(mms);
            let all = self.walked.pages + self.walked.new_of(more);
            self.presumed = all.saturating_sub(self.pages);
        }
    }

    /// Whether so many pages of files or shared memory were mapped since the last count that a new
    /// count is due.
    pub fn is_stale(&self, mms: &[Arc<Mm>]) -> bool {
        self.grown(mms) > SUDDEN
    }

    /// Returns by how many pages of files and of shared memory the address spaces have grown since
    /// the last count.
    fn grown(&self, mms: &[Arc<Mm>]) -> u64 {
        let then = |mm: &Arc<Mm>| self.backed.get(&mm.id).copied().unwrap_or(0);
        mms.iter().map(|mm| mm.pages.backed().saturating_sub(then(mm))).sum()
    }

    /// Counts the shared pages that the processes of the tree map. Waits for no lock.
    pub fn update(&mut self, pager: &Pager, tree: &[u32], mms: &[Arc<Mm>]) {
        self.holders = holders(&*pager.host, tree);
        self.mapped = mapped_by(&self.holders);
        self.backed = mms.iter().map(|mm| (mm.id, mm.pages.backed())).collect();
        if self.mapped <= self.few() {
            (self.pages, self.walked) = (self.mapped, Walk::default());
            return;
        }
        self.update_pages();
        for &(pid, _) in self.holders.iter().filter(|&&(_, pages)| pages > FEW) {
            if self.reported.insert(pid) {
                pager.note_unmanaged(Kind::SharedMemory, pid, &proc::name(pid));
            }
        }
        pager.telemetry.unmanaged.hold(Kind::SharedMemory, self.pages);
    }

    /// Determines the number of distinct pages, if that is due. This waits for locks of address
    /// spaces. `settled` says that no freeze of processes that fill them is under way.
    pub fn walk(&mut self, pager: &Pager, settled: bool) {
        let now = pager.clock.now();
        if self.mapped <= self.few() || now < self.due || (!settled && now < self.due + UNSETTLED) {
            return;
        }
        let found = walk(&self.holders);
        let tree: Vec<u32> = self.holders.iter().map(|&(pid, _)| pid).collect();
        let after = mapped_by(&holders(&*pager.host, &tree));
        let pages = believed(found, (self.mapped, after), most(&self.holders));
        self.walked = Walk { mapped: self.mapped, pages, alone: found.alone.min(self.mapped) };
        self.due = pager.clock.now() + pager.clock.since(now) * 3;
        self.update_pages();
        pager.telemetry.unmanaged.hold(Kind::SharedMemory, self.pages);
    }

    fn update_pages(&mut self) {
        let known = since((self.walked.mapped, self.walked.pages), self.mapped);
        self.pages = known.max(most(&self.holders));
    }
}

/// Returns the processes that map shared pages, with their numbers. Between vfork and exec parent
/// and child count as one.
fn holders(host: &dyn Host, tree: &[u32]) -> Vec<(u32, u64)> {
    let mut holders: Vec<(u32, u64)> = Vec::new();
    for &pid in tree {
        let pages = host.shared_memory_pages(pid);
        let borrowed = |&(other, of_other): &(u32, u64)| {
            pages > FEW && of_other == pages && process::shares_memory(other, pid)
        };
        if pages > 0 && !holders.iter().any(borrowed) {
            holders.push((pid, pages));
        }
    }
    holders
}

fn mapped_by(holders: &[(u32, u64)]) -> u64 {
    holders.iter().map(|&(_, pages)| pages).sum()
}

/// Returns the largest number of one process. There are at least so many distinct pages.
fn most(holders: &[(u32, u64)]) -> u64 {
    holders.iter().map(|&(_, pages)| pages).max().unwrap_or(0)
}

/// Whether the mapped pages hardly changed between two counts (SHARED-4).
fn is_still(before: u64, after: u64) -> bool {
    after.abs_diff(before) <= before / STILL
}

/// Returns how many pages of a walk count. `before` and `after` are the pages mapped before and
/// after it, `most` the largest number of one process (SHARED-4).
fn believed(found: SharedPages, (before, after): (u64, u64), most: u64) -> u64 {
    if is_still(before, after) {
        found.proportional
    } else if after > before {
        found.proportional.min(most.max(found.alone))
    } else {
        found.proportional.min(most)
    }
}

/// Walks page tables. Returns the number of distinct pages, and at least how many of them only one
/// process maps.
fn walk(holders: &[(u32, u64)]) -> SharedPages {
    let (mut seen, mut unseen) = (SharedPages::default(), 0);
    for &(pid, mapped) in holders {
        match proc::shared_pages(pid, mapped) {
            Ok(pages) => {
                seen.proportional += pages.proportional;
                seen.alone += pages.alone;
            }
            Err(_) => unseen = mapped.max(unseen),
        }
    }
    seen.proportional += unseen;
    seen
}

/// Reduces the result of a walk in proportion if fewer pages are mapped now.
fn since((mapped_then, pages_then): (u64, u64), mapped: u64) -> u64 {
    (pages_then * mapped.min(mapped_then)).checked_div(mapped_then).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{SharedPages, Walk, believed, is_still, since};

    /// Shows that while many processes fill shared memory at once, all pages count that one process
    /// alone maps. If only the largest process counted, 32 processes with 240 MiB each would pass
    /// the limit by gigabytes.
    #[test]
    fn shared_memory_that_many_fill_at_once_counts_as_far_as_one_alone_maps_it() {
        let found = SharedPages { proportional: 9_000, alone: 8_000 };
        assert_eq!(believed(found, (10_000, 10_000), 500), 9_000, "nobody maps more meanwhile");
        assert_eq!(believed(found, (10_000, 12_000), 500), 8_000);
        assert_eq!(believed(found, (10_000, 12_000), 8_500), 8_500, "one alone has more");
        assert_eq!(believed(found, (10_000, 6_000), 500), 500, "some have ended");
    }

    #[test]
    fn pages_mapped_since_a_walk_are_new_in_the_proportion_that_the_walk_found() {
        assert_eq!(Walk::default().new_of(500), 500, "no walk yet");
        assert_eq!(Walk { mapped: 1_000, pages: 900, alone: 800 }.new_of(500), 400);
        assert_eq!(Walk { mapped: 1_000, pages: 100, alone: 0 }.new_of(500), 0, "all map the same");
    }

    #[test]
    fn a_walk_beside_processes_that_begin_to_map_or_end_is_not_believed() {
        assert!(is_still(24_576, 24_576) && is_still(24_576, 24_600));
        assert!(!is_still(6_144, 12_288), "another one has mapped all of it meanwhile");
        assert!(!is_still(24_576, 18_432), "one has ended, and those after it count for more");
    }

    #[test]
    fn found_pages_count_less_as_less_is_mapped_and_never_more() {
        assert_eq!(since((800, 200), 800), 200, "four processes map the same");
        assert_eq!(since((800, 200), 400), 100);
        assert_eq!(since((800, 200), 1200), 200, "perhaps two more map the same");
        assert_eq!(since((0, 0), 500), 0, "no walk yet");
    }
}
