//! Shared memory of the tree (shm_open, memfd_create, MAP_SHARED, files on tmpfs that are mapped): it counts and
//! cannot be stored.
//!
//! * C1: a page counts once, however many processes map it, and however often. How many pages each maps is had for
//!   nothing; how many they are together takes a walk of the page tables, which is made at most a quarter of the
//!   time. In between what was found then is scaled by what is mapped now.
//! * C2: what processes outside the tree map, too, counts by the share of the tree.
//! * C3: a process that may not be looked into counts as if others of its kind mapped the same.

use crate::server::Pager;
use crate::unmanaged::Kind;
use ebb_core::types::PAGE_SIZE;
use ebb_sys::{proc, process};
use std::collections::HashSet;
use std::time::Instant;

/// Pages that are worth a word and a walk. An agent has a few of its own.
const FEW: u64 = (1 << 20) / PAGE_SIZE as u64;

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
        let mapped = holders.iter().map(|&(_, pages)| pages).sum();
        if mapped <= FEW {
            self.pages = mapped;
            return;
        }
        if pager.clock.now() >= self.due {
            let began = pager.clock.now();
            self.walked = (mapped, walk(&holders));
            self.due = pager.clock.now() + pager.clock.since(began) * 3;
        }
        self.pages = scaled(self.walked, mapped);
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

fn scaled((mapped_then, pages_then): (u64, u64), mapped: u64) -> u64 {
    (pages_then * mapped).checked_div(mapped_then).unwrap_or(mapped)
}

#[cfg(test)]
mod tests {
    use super::scaled;

    #[test]
    fn what_was_found_is_scaled_by_what_is_mapped_now() {
        assert_eq!(scaled((800, 200), 800), 200, "four processes map the same");
        assert_eq!(scaled((800, 200), 1200), 300);
        assert_eq!(scaled((0, 0), 500), 500, "no walk yet");
    }
}
