//! Shared memory of the tree (shm_open, memfd_create, MAP_SHARED, files on tmpfs that are mapped): it counts and
//! cannot be stored.
//!
//! * SHARED-1: a page counts once, however many processes map it, and however often. How many pages each maps is had for
//!   nothing; how many they are together takes a walk of the page tables, which is made at most a quarter of the
//!   time. In between what was found then counts, less as less is mapped; of what is mapped more nobody knows
//!   whether it is other memory or the same again, so only what one process alone maps counts until the next walk.
//! * SHARED-2: what processes outside the tree map, too, counts by the share of the tree.
//! * SHARED-3: a process that may not be looked into counts as if others of its kind mapped the same.
//! * SHARED-4: a walk looks at one process after the other. What a page counts for changes while others begin to map it, or
//!   end: a walk beside such processes may find too much. It counts only if as much was mapped after it as before. If
//!   more was, what one process alone maps counts for each: nobody else's look can have found it, too.
//! * SHARED-5: what is mapped more since the last walk is presumed to be new by the same share as what that found was one
//!   process's alone. That is enough to hold who fills it until the next walk, and is counted nowhere.
//! * SHARED-6: who fills it is held before anything waits for a lock that they have: on a busy machine one that has it may not
//!   run for long.

use crate::mm::Mm;
use crate::server::Pager;
use crate::unmanaged::Kind;
use ebb_agent::protocol::Shared;
use ebb_mm::types::{MmId, PAGE_SIZE};
use ebb_sys::proc::{self, SharedPages};
use ebb_sys::process;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Pages that are worth a word and a walk, beside what each agent shares with the pager.
const FEW: u64 = (1 << 20) / PAGE_SIZE as u64;
const OF_AGENT: u64 = size_of::<Shared>().div_ceil(PAGE_SIZE) as u64;

/// Pages that are mapped more, upon which they are counted at once.
const SUDDEN: u64 = (16 << 20) / PAGE_SIZE as u64;
/// What took longer was a wait.
const WAIT: Duration = Duration::from_millis(3);
/// How long a walk waits for those to stand who are being held.
const UNSETTLED: Duration = Duration::from_millis(200);

/// What may be mapped more or less after a walk than before (SHARED-4): one page of so many.
const STILL: u64 = 32;

/// What the last walk found: pages mapped, each as often as it is, how many those were, and of how many one process alone
/// maps each.
#[derive(Clone, Copy, Default, Debug)]
struct Walk {
    mapped: u64,
    pages: u64,
    alone: u64,
}

impl Walk {
    /// What of so many pages that are mapped since is presumed to be new; without a walk all of it.
    fn new_of(&self, more: u64) -> u64 {
        (more * self.alone).checked_div(self.mapped).unwrap_or(more)
    }
}

/// What is known of it.
#[derive(Debug)]
pub struct SharedMemory {
    pages: u64,
    presumed: u64,
    looked: Instant,
    /// Mapped at the last count, each as often as it is.
    mapped: u64,
    /// Who does, and how much.
    holders: Vec<(u32, u64)>,
    walked: Walk,
    /// Pages of files and of shared memory that each address space had at the last count (SHARED-5).
    backed: HashMap<MmId, u64>,
    due: Instant,
    told: HashSet<u32>,
}

impl SharedMemory {
    /// None yet.
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
            told: HashSet::new(),
        }
    }

    /// Pages of it by the last count.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Pages there may be beyond those, by what has been mapped since the last walk (SHARED-5).
    pub fn presumed(&self) -> u64 {
        self.presumed
    }

    /// Whether what is presumed is from before what could be a wait.
    pub fn is_old(&self, pager: &Pager) -> bool {
        pager.clock.since(self.looked) > WAIT
    }

    /// So much is not worth a walk.
    fn few(&self) -> u64 {
        FEW + self.holders.len() as u64 * OF_AGENT
    }

    /// Presumes anew.
    pub fn presume(&mut self, pager: &Pager, mms: &[Arc<Mm>]) {
        self.looked = pager.clock.now();
        self.presumed = 0;
        if self.mapped > self.few() {
            let more = self.mapped.saturating_sub(self.walked.mapped) + self.grown(mms);
            let all = self.walked.pages + self.walked.new_of(more);
            self.presumed = all.saturating_sub(self.pages);
        }
    }

    /// Whether so much more is mapped, of files or shared memory, that it is to be counted again.
    pub fn is_stale(&self, mms: &[Arc<Mm>]) -> bool {
        self.grown(mms) > SUDDEN
    }

    /// What address spaces have more than at the last count, of files and of shared memory.
    fn grown(&self, mms: &[Arc<Mm>]) -> u64 {
        let then = |mm: &Arc<Mm>| self.backed.get(&mm.id).copied().unwrap_or(0);
        mms.iter().map(|mm| mm.backed_pages().saturating_sub(then(mm))).sum()
    }

    /// Counts what the processes of the tree map. Waits for nobody.
    pub fn count(&mut self, pager: &Pager, tree: &[u32], mms: &[Arc<Mm>]) {
        self.holders = holders(pager, tree);
        self.mapped = mapped_by(&self.holders);
        self.backed = mms.iter().map(|mm| (mm.id, mm.backed_pages())).collect();
        if self.mapped <= self.few() {
            (self.pages, self.walked) = (self.mapped, Walk::default());
            return;
        }
        self.settle();
        for &(pid, _) in self.holders.iter().filter(|&&(_, pages)| pages > FEW) {
            if self.told.insert(pid) {
                pager.unmanaged.met(pager, Kind::SharedMemory, pid, &proc::name(pid));
            }
        }
        pager.unmanaged.hold(Kind::SharedMemory, self.pages);
    }

    /// Finds out how many pages they are together, if that is due. That waits for the locks of address spaces: where those
    /// are being held who fill them, `settled` says that they stand.
    pub fn walk(&mut self, pager: &Pager, settled: bool) {
        let now = pager.clock.now();
        if self.mapped <= self.few() || now < self.due || (!settled && now < self.due + UNSETTLED) {
            return;
        }
        let found = walk(&self.holders);
        let tree: Vec<u32> = self.holders.iter().map(|&(pid, _)| pid).collect();
        let after = mapped_by(&holders(pager, &tree));
        let pages = believed(found, (self.mapped, after), most(&self.holders));
        self.walked = Walk { mapped: self.mapped, pages, alone: found.alone.min(self.mapped) };
        self.due = pager.clock.now() + pager.clock.since(now) * 3;
        self.settle();
        pager.unmanaged.hold(Kind::SharedMemory, self.pages);
    }

    fn settle(&mut self) {
        let known = since((self.walked.mapped, self.walked.pages), self.mapped);
        self.pages = known.max(most(&self.holders));
    }
}

/// Who maps such pages, and how many each. Between vfork and exec both are one.
fn holders(pager: &Pager, tree: &[u32]) -> Vec<(u32, u64)> {
    let mut holders: Vec<(u32, u64)> = Vec::new();
    for &pid in tree {
        let pages = pager.host.shared_memory_pages(pid);
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

/// What one of them alone maps: at least so many pages there are.
fn most(holders: &[(u32, u64)]) -> u64 {
    holders.iter().map(|&(_, pages)| pages).max().unwrap_or(0)
}

/// Whether what was found between two counts is to be believed (SHARED-4).
fn is_still(before: u64, after: u64) -> bool {
    after.abs_diff(before) <= before / STILL
}

/// What of a walk counts, beside processes of which one maps `most`, and which mapped so much before it and after it (SHARED-4).
fn believed(found: SharedPages, (before, after): (u64, u64), most: u64) -> u64 {
    if is_still(before, after) {
        found.proportional
    } else if after > before {
        found.proportional.min(most.max(found.alone))
    } else {
        found.proportional.min(most)
    }
}

/// How many pages they are together, and how many at least of which one alone maps each.
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

/// What is left of what was found then.
fn since((mapped_then, pages_then): (u64, u64), mapped: u64) -> u64 {
    (pages_then * mapped.min(mapped_then)).checked_div(mapped_then).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{SharedPages, Walk, believed, is_still, since};

    /// Thirty-two processes filled 240 MiB each at once, and only the largest of them counted: the limit was passed by
    /// gigabytes before anybody was held.
    #[test]
    fn what_many_map_that_fill_at_once_counts_as_far_as_it_is_each_ones_own() {
        let found = SharedPages { proportional: 9_000, alone: 8_000 };
        assert_eq!(believed(found, (10_000, 10_000), 500), 9_000, "nobody maps more meanwhile");
        assert_eq!(believed(found, (10_000, 12_000), 500), 8_000);
        assert_eq!(believed(found, (10_000, 12_000), 8_500), 8_500, "one alone has more");
        assert_eq!(believed(found, (10_000, 6_000), 500), 500, "some have ended");
    }

    #[test]
    fn what_is_mapped_since_a_walk_is_new_as_far_as_that_found_it_to_be() {
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
    fn what_was_found_counts_less_as_less_is_mapped_and_never_more() {
        assert_eq!(since((800, 200), 800), 200, "four processes map the same");
        assert_eq!(since((800, 200), 400), 100);
        assert_eq!(since((800, 200), 1200), 200, "perhaps two more map the same");
        assert_eq!(since((0, 0), 500), 0, "no walk yet");
    }
}
