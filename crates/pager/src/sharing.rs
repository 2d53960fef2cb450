//! What relatives share, and what families so hold.
//!
//! A page that relatives share is resident in each of them and there once. The kernel says which share of its pages
//! is a process's (PSS), by a walk over its memory, so that is asked now and then; in between an address space has a
//! **discount**: by how much what it maps exceeds its share.
//!
//! * SHARING-1: what one lets go of that others keep changes nothing of what is held, so its discount falls by as much, below
//!   zero if need be: the share it no longer has is the others' now, whose own discounts are from before.
//! * SHARING-2: a family holds at least what the largest of it maps. A process that ends, or unmaps what it shared, leaves
//!   its relatives' discounts too large until the next count; that is the bound of what they hide. Not where another
//!   process goes on with the memory of one that has ended: it is counted as a stranger, whole. What the bound adds is
//!   the largest's: a child whose process is not known is compared with the strangers, of which it may be one, and would
//!   be there twice.
//! * SHARING-3: counting is done at most a quarter of the time, and at once when one of a family has ended.
//!
//! Belongs to the monitor; takes no lock but the list of address spaces.

use crate::mm::Mm;
use crate::server::Pager;
use ebb_mm::types::MmId;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// When the sharing was counted, and for how long that will do.
#[derive(Debug)]
pub struct Sharing {
    counted: Instant,
    pause: Duration,
}

/// What address spaces hold, each page once.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Those whose process is known.
    pub told: u64,
    /// Those whose process is not.
    pub untold: u64,
    /// What the bound adds, where one of the latter is the largest of its family (SHARING-2).
    pub bound: u64,
}

/// What one address space says of itself.
#[derive(Debug, Clone, Copy)]
struct Member {
    family: MmId,
    told: bool,
    /// Its process has ended, and another goes on with its memory.
    taken_over: bool,
    resident: u64,
    discount: i64,
}

/// Whether others may share pages with it.
fn has_relatives(mm: &Mm, among: &[Arc<Mm>]) -> bool {
    among.iter().any(|other| other.id != mm.id && other.family == mm.family)
}

impl Sharing {
    /// Nothing is counted yet.
    pub fn new(now: Instant) -> Self {
        Self { counted: now, pause: Duration::ZERO }
    }

    /// Counts, if it is time to (SHARING-3). Each walk waits for a lock of its address space: `before` each.
    pub fn count(&mut self, pager: &Pager, mms: &[Arc<Mm>], mut before: impl FnMut()) {
        let related: Vec<&Arc<Mm>> = mms.iter().filter(|mm| mm.related.load(Relaxed)).collect();
        let due = pager.clock.since(self.counted) >= self.pause
            || pager.sharing_changed.swap(false, Relaxed);
        if related.is_empty() || !due {
            return;
        }
        let began = pager.clock.now();
        for mm in &related {
            if !has_relatives(mm, mms) {
                // Alone again: the others have ended or become other programs.
                mm.discount.store(0, Relaxed);
                mm.related.store(false, SeqCst);
                // Unless it has forked just now: a child is in the list before its parent is marked.
                if has_relatives(mm, &pager.mms()) {
                    mm.related.store(true, SeqCst);
                }
                continue;
            }
            let Some(process) = mm.process() else { continue };
            before();
            let whole = mm.resident_pages();
            if let Ok(share) = process.proportional_anonymous_pages() {
                mm.discount.store(whole.saturating_sub(share).cast_signed(), Relaxed);
            }
        }
        self.counted = pager.clock.now();
        self.pause = pager.clock.since(began) * 3;
    }
}

/// What these hold together.
pub fn held(mms: &[Arc<Mm>]) -> Held {
    let member = |mm: &Arc<Mm>| {
        let (related, told) = (mm.related.load(Relaxed), mm.process().is_some());
        let resident = mm.resident_pages();
        Member {
            family: mm.family,
            told,
            taken_over: related && told && resident == 0 && mm.is_alive(),
            resident,
            discount: if related { mm.discount.load(Relaxed) } else { 0 },
        }
    };
    held_by(mms.iter().map(member).collect())
}

fn held_by(mut members: Vec<Member>) -> Held {
    members.sort_unstable_by_key(|member| member.family);
    let mut held = Held::default();
    for family in members.chunk_by(|one, other| one.family == other.family) {
        let of = |told: bool| {
            let own = |member: &Member| {
                member.resident.cast_signed() - member.discount.min(member.resident.cast_signed())
            };
            let sum: i64 = family.iter().filter(|member| member.told == told).map(own).sum();
            sum.max(0).cast_unsigned()
        };
        let (told, untold) = (of(true), of(false));
        let taken_over = family.iter().any(|member| member.taken_over);
        let largest = |told: bool| {
            let those = family.iter().filter(|member| !taken_over && member.told == told);
            those.map(|member| member.resident).max().unwrap_or(0)
        };
        let (largest_told, largest_untold) = (largest(true), largest(false));
        let hidden = largest_told.max(largest_untold).saturating_sub(told + untold);
        let is_untold = largest_untold > 0 && largest_untold >= largest_told;
        held.told += told + if is_untold { 0 } else { hidden };
        held.untold += untold;
        held.bound += if is_untold { hidden } else { 0 };
    }
    held
}

#[cfg(test)]
mod tests {
    use super::{Held, Member, held_by};
    use ebb_mm::types::MmId;

    fn member(family: u32, resident: u64, discount: i64) -> Member {
        Member { family: MmId(family), told: true, taken_over: false, resident, discount }
    }

    fn told(members: &[Member]) -> u64 {
        let held = held_by(members.to_vec());
        assert_eq!((held.untold, held.bound), (0, 0));
        held.told
    }

    #[test]
    fn what_relatives_share_is_there_once() {
        let members = [member(1, 100, 50), member(2, 30, 0), member(1, 100, 50)];
        assert_eq!(told(&members), 130);
    }

    /// A child held 30 MiB of 16: seven relatives had let go of what they shared with it, and its own discount, from when
    /// they had not, hid six parts of seven.
    #[test]
    fn what_relatives_let_go_of_is_its_last_holders() {
        let shared = 7000;
        let mut members = vec![member(1, shared, 6000); 7];
        assert_eq!(told(&members), shared);
        for member in &mut members[1..] {
            // SHARING-1: all of it, and others had it still.
            (member.resident, member.discount) = (0, member.discount - shared.cast_signed());
        }
        assert_eq!(told(&members), shared);
        members[0].resident += 500;
        assert_eq!(told(&members), shared + 500);
    }

    /// SHARING-2: between the end of a process and the next count.
    #[test]
    fn who_ends_takes_nothing_along_that_others_have() {
        let members = [member(1, 100, 50), member(1, 0, 50)];
        assert_eq!(told(&members), 100);
        assert_eq!(told(&members[..1]), 100, "reaped");
    }

    /// Half of it was counted twice, with the stranger, and the run ended as out of memory.
    #[test]
    fn what_a_stranger_goes_on_with_is_counted_with_that() {
        let ended = Member { taken_over: true, ..member(1, 0, 50) };
        assert_eq!(told(&[member(1, 100, 50), ended]), 50);
    }

    #[test]
    fn a_child_that_nobody_can_tell_yet_is_part_of_its_family() {
        let infant = Member { told: false, ..member(1, 100, 90) };
        let held = held_by(vec![member(1, 100, 40), infant]);
        assert_eq!(
            held,
            Held { told: 60, untold: 10, bound: 30 },
            "the bound holds for both together"
        );
    }

    /// It held 14 MiB, which its parent had let go of: they counted at the parent's, and at the stranger that it was, and the
    /// run ended as out of memory at twice that.
    #[test]
    fn a_child_that_nobody_can_look_into_is_not_there_twice() {
        let child = Member { told: false, ..member(1, 100, 100) };
        let held = |parent| held_by(vec![parent, child]);
        assert_eq!(held(member(1, 0, 0)), Held { told: 0, untold: 0, bound: 100 });
        assert_eq!(held(member(1, 120, 60)), Held { told: 120, untold: 0, bound: 0 });
    }
}
