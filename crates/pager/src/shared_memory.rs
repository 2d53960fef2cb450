//! Shared memory of the tree (shm_open, memfd_create, MAP_SHARED, files on tmpfs that are mapped): it counts and
//! cannot be stored.
//!
//! * C1: a page counts once, however many processes map it, and however often. How many pages each maps is had for
//!   nothing; how many they are together takes a walk of the page tables, which is made at most a quarter of the
//!   time. In between what was found then counts, less as less is mapped; of what is mapped more nobody knows
//!   whether it is other memory or the same again, so only what one process alone maps counts until the next walk.
//! * C2: what processes outside the tree map, too, counts by the share of the tree.
//! * C3: a process that may not be looked into counts as if others of its kind mapped the same.
//! * C4: a walk looks at one process after the other. What a page counts for changes while others begin to map it, or
//!   end: a walk beside such processes may find too much. It counts only if as much was mapped after it as before.

use crate::server::Pager;
use crate::unmanaged::Kind;
use ebb_core::types::PAGE_SIZE;
use ebb_sys::{proc, process};
use std::collections::HashSet;
use std::time::Instant;

/// Pages that are worth a word and a walk. An agent has a few of its own.
const FEW: u64 = (1 << 20) / PAGE_SIZE as u64;

/// What may be mapped more or less after a walk than before (C4): one page of so many.
const STILL: u64 = 32;

/// What is known of it.
#[derive(Debug)]
pub struct SharedMemory {
    pages: u64,
    /// By the last walk: pages mapped, each as often as it is, and how many those were.
    walked: (u64, u64),
    due: Instant,
    told: HashSet<u32>,
}

impl SharedMemory {
    /// None yet.
    pub fn new(now: Instant) -> Self {
        Self { pages: 0, walked: (0, 0), due: now, told: HashSet::new() }
    }

    /// Pages of it by the last count.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Counts what the processes of the tree have.
    pub fn count(&mut self, pager: &Pager, tree: &[u32]) {
        let holders = holders(pager, tree);
        let mapped = mapped_by(&holders);
        if mapped <= FEW {
            self.pages = mapped;
            return;
        }
        if pager.clock.now() >= self.due {
            let began = pager.clock.now();
            let found = walk(&holders);
            let after = mapped_by(&self::holders(pager, tree));
            let believed = if is_still(mapped, after) { found } else { found.min(most(&holders)) };
            self.walked = (mapped, believed);
            self.due = pager.clock.now() + pager.clock.since(began) * 3;
        }
        self.pages = since(self.walked, mapped).max(most(&holders));
        for &(pid, _) in holders.iter().filter(|&&(_, pages)| pages > FEW) {
            if self.told.insert(pid) {
                pager.unmanaged.met(pager, Kind::SharedMemory, pid, &proc::name(pid));
            }
        }
        pager.unmanaged.hold(Kind::SharedMemory, self.pages);
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

/// Whether what was found between two counts is to be believed (C4).
fn is_still(before: u64, after: u64) -> bool {
    after.abs_diff(before) <= before / STILL
}

/// How many pages they are together.
fn walk(holders: &[(u32, u64)]) -> u64 {
    let (mut seen, mut unseen) = (0, 0);
    for &(pid, mapped) in holders {
        match proc::proportional_shared_pages(pid) {
            Ok(pages) => seen += pages,
            Err(_) => unseen = mapped.max(unseen),
        }
    }
    seen + unseen
}

/// What is left of what was found then.
fn since((mapped_then, pages_then): (u64, u64), mapped: u64) -> u64 {
    (pages_then * mapped.min(mapped_then)).checked_div(mapped_then).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::{is_still, since};

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
