//! Counts the pages that fork groups share, and so how much memory address spaces use.
//!
//! A page shared in a fork group is resident in each member and exists once. The kernel reports the
//! share of each process (PSS), by a walk over its memory. So a thread reads it now and then. In
//! between an address space has a **discount**: the difference between its mapped pages and its
//! share.
//!
//! * SHARING-1: if one member releases a page that others keep, the memory in use does not change.
//!   So the discount of that member falls by one, below zero if need be. The share that it no
//!   longer has belongs to the others, whose discounts are older.
//! * SHARING-2: a fork group uses at least what its largest member maps. A process that ends, or
//!   unmaps shared pages, leaves the discounts of the others too large until the next count. The
//!   bound limits that error. It does not apply if another process goes on with the memory of an
//!   ended one. That process counts in full as a foreign process. The pages that the bound adds
//!   belong to the largest member. If that is an unidentified child, they are compared with the
//!   pages of the foreign processes. The child may be one of these, and would count twice.
//! * SHARING-3: a thread of ordinary priority counts, for at most a quarter of the time. A walk
//!   over gigabytes takes long, and waits for a thread that holds the lock of the memory map. The
//!   monitor goes first on its CPU, so its walks would keep other programs from running.
//!
//! Takes no lock but that of the list of address spaces.

use crate::mm::Mm;
use crate::pager::Pager;
use ebb_mm::types::MmId;
use ebb_sys::sched;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Duration;

/// Pause between two counts of a small fork group.
const PAUSE_MIN: Duration = Duration::from_millis(4);
/// Pause while no address space shares pages.
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// Pages that address spaces use, each counted once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Holdings {
    /// Pages of address spaces whose process is identified.
    pub identified: u64,
    /// Pages of address spaces whose process is unidentified.
    pub unidentified: u64,
    /// Pages that the bound adds if an unidentified member is the largest of its fork group
    /// (SHARING-2).
    pub bound: u64,
}

/// Figures of one address space.
#[derive(Debug, Clone, Copy)]
struct Member {
    fork_group: MmId,
    identified: bool,
    /// Whether its process has ended and another process goes on with its memory.
    taken_over: bool,
    resident: u64,
    discount: i64,
}

/// Whether other address spaces may share pages with this one.
fn shares_fork_group(mm: &Mm, among: &[Arc<Mm>]) -> bool {
    among.iter().any(|other| other.id != mm.id && other.fork_group.id == mm.fork_group.id)
}

/// Runs the thread.
pub fn run(pager: &Pager) {
    // A count of small processes is short, and others wait for it.
    let _ = sched::run_soon(0);
    loop {
        let began = pager.clock.now();
        let is_shared = count(pager, &pager.mms());
        pager.host.sleep((pager.clock.since(began) * 3).max(PAUSE_MIN));
        if !is_shared {
            pager.host.wait(&pager.processes.sharing_begins, PAUSE_MAX);
        }
    }
}

/// Counts the shares. Returns false if no address space shares pages.
pub fn count(pager: &Pager, mms: &[Arc<Mm>]) -> bool {
    let related: Vec<&Arc<Mm>> = mms.iter().filter(|mm| mm.fork_group.is_related()).collect();
    for mm in &related {
        if !shares_fork_group(mm, mms) {
            // The other members have ended or executed other programs.
            mm.fork_group.discount.store(0, Relaxed);
            mm.fork_group.related.store(false, SeqCst);
            // It may have forked just now: a child is in the list before its parent is marked.
            if shares_fork_group(mm, &pager.mms()) {
                mm.fork_group.related.store(true, SeqCst);
            }
            continue;
        }
        let Some(process) = mm.process() else { continue };
        let whole = mm.resident_pages();
        if let Ok(share) = process.proportional_anonymous_pages() {
            mm.fork_group.discount.store(whole.saturating_sub(share).cast_signed(), Relaxed);
        }
    }
    !related.is_empty()
}

/// Returns the pages that these address spaces use together.
pub fn held(mms: &[Arc<Mm>]) -> Holdings {
    let member = |mm: &Arc<Mm>| {
        let (related, identified) = (mm.fork_group.is_related(), mm.process().is_some());
        let resident = mm.resident_pages();
        Member {
            fork_group: mm.fork_group.id,
            identified,
            taken_over: related && identified && resident == 0 && mm.uffd.is_alive(),
            resident,
            discount: if related { mm.fork_group.discount.load(Relaxed) } else { 0 },
        }
    };
    held_by(mms.iter().map(member).collect())
}

fn held_by(mut members: Vec<Member>) -> Holdings {
    members.sort_unstable_by_key(|member| member.fork_group);
    let mut held = Holdings::default();
    for fork_group in members.chunk_by(|one, other| one.fork_group == other.fork_group) {
        let of = |identified: bool| {
            let own = |member: &Member| {
                member.resident.cast_signed() - member.discount.min(member.resident.cast_signed())
            };
            let sum: i64 =
                fork_group.iter().filter(|member| member.identified == identified).map(own).sum();
            sum.max(0).cast_unsigned()
        };
        let (identified, unidentified) = (of(true), of(false));
        let taken_over = fork_group.iter().any(|member| member.taken_over);
        let largest = |identified: bool| {
            let those =
                fork_group.iter().filter(|member| !taken_over && member.identified == identified);
            those.map(|member| member.resident).max().unwrap_or(0)
        };
        let (largest_identified, largest_unidentified) = (largest(true), largest(false));
        let hidden =
            largest_identified.max(largest_unidentified).saturating_sub(identified + unidentified);
        let is_unidentified =
            largest_unidentified > 0 && largest_unidentified >= largest_identified;
        held.identified += identified + if is_unidentified { 0 } else { hidden };
        held.unidentified += unidentified;
        held.bound += if is_unidentified { hidden } else { 0 };
    }
    held
}

#[cfg(test)]
mod tests {
    use super::{Holdings, Member, held_by};
    use ebb_mm::types::MmId;

    fn member(fork_group: u32, resident: u64, discount: i64) -> Member {
        Member {
            fork_group: MmId(fork_group),
            identified: true,
            taken_over: false,
            resident,
            discount,
        }
    }

    fn identified(members: &[Member]) -> u64 {
        let held = held_by(members.to_vec());
        assert_eq!((held.unidentified, held.bound), (0, 0));
        held.identified
    }

    #[test]
    fn pages_that_a_fork_group_shares_count_once() {
        let members = [member(1, 100, 50), member(2, 30, 0), member(1, 100, 50)];
        assert_eq!(identified(&members), 130);
    }

    /// Shows that pages belong to their last user after seven others have released them. With its
    /// old discount six of seven parts would be hidden.
    #[test]
    fn pages_that_the_others_release_belong_to_their_last_user() {
        let shared = 7000;
        let mut members = vec![member(1, shared, 6000); 7];
        assert_eq!(identified(&members), shared);
        for member in &mut members[1..] {
            // SHARING-1: each releases all of it while others keep it.
            (member.resident, member.discount) = (0, member.discount - shared.cast_signed());
        }
        assert_eq!(identified(&members), shared);
        members[0].resident += 500;
        assert_eq!(identified(&members), shared + 500);
    }

    /// SHARING-2: shows that the end of a process before the next count hides no pages of the
    /// others.
    #[test]
    fn the_end_of_a_process_hides_no_pages_of_the_others() {
        let members = [member(1, 100, 50), member(1, 0, 50)];
        assert_eq!(identified(&members), 100);
        assert_eq!(identified(&members[..1]), 100, "reaped");
    }

    /// Shows that pages with which a foreign process goes on do not count twice.
    #[test]
    fn pages_that_a_foreign_process_takes_over_count_once() {
        let ended = Member { taken_over: true, ..member(1, 0, 50) };
        assert_eq!(identified(&[member(1, 100, 50), ended]), 50);
    }

    #[test]
    fn an_unidentified_child_counts_with_its_fork_group() {
        let starting = Member { identified: false, ..member(1, 100, 90) };
        let held = held_by(vec![member(1, 100, 40), starting]);
        assert_eq!(
            held,
            Holdings { identified: 60, unidentified: 10, bound: 30 },
            "the bound holds for both together"
        );
    }

    /// Shows that pages of an unidentified child that its parent has released count once. They
    /// could count for the parent and for the foreign process that is the child.
    #[test]
    fn pages_of_an_unidentified_child_that_its_parent_released_count_once() {
        let child = Member { identified: false, ..member(1, 100, 100) };
        let held = |parent| held_by(vec![parent, child]);
        assert_eq!(held(member(1, 0, 0)), Holdings { identified: 0, unidentified: 0, bound: 100 });
        assert_eq!(
            held(member(1, 120, 60)),
            Holdings { identified: 120, unidentified: 0, bound: 0 }
        );
    }
}
