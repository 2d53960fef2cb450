//! Direct reclaim: a task that found no free memory reclaims some itself.
//!
//! A run goes from the lowest pressure to the highest and stops as soon as it has freed its target.
//! A run that frees nothing is repeated over every memcg. If that frees nothing either, the last
//! repetition also takes spared pages: from active lists and memcgs with soft protection.

use super::throttle::Reason;
use crate::frame::{COSTLY_ORDER, Order};
use ebb_mm::lru::scan::DEF_PRIORITY;
use ebb_mm::lru::{Reclaimer, Scan};

/// How hard a run tries.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Effort {
    /// Visits some memcgs and keeps protections.
    First,
    /// Visits every memcg.
    FullWalk,
    /// Also takes spared pages: soft protection, active lists.
    Forced,
}

/// One pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DirectPass {
    /// Scan priority: lists are scanned by `size >> priority`.
    pub priority: u8,
    /// Number of pages still wanted.
    pub target: u64,
    /// Whether every memcg is visited.
    pub full_walk: bool,
    /// Whether active lists are shrunk and soft protection is ignored.
    pub forced: bool,
}

impl DirectPass {
    /// Returns the pass as a request to the lists.
    #[must_use]
    pub fn scan(&self, root: bool, order: Order, swappiness: u32) -> Scan {
        let mut sc = Scan::new(Reclaimer::Direct, root, self.target, swappiness);
        sc.priority = self.priority;
        sc.order = order.get();
        sc.force_deactivate = self.forced;
        sc
    }
}

/// Result of a pass.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct DirectPassed {
    /// Number of pages freed.
    pub reclaimed: u64,
    /// Number of pages whose write was begun. These pages become free when the write ends.
    pub begun: u64,
    /// Number of pages scanned.
    pub scanned: u64,
    /// Whether the pass spared pages that a forced run would take.
    pub spared: bool,
    /// Whether compaction can now make a block of a costly order.
    pub compactable: bool,
}

/// A run under way.
#[derive(Clone, Debug)]
pub struct Direct {
    target: u64,
    order: Order,
    effort: Effort,
    priority: Option<u8>,
    reclaimed: u64,
    begun: u64,
    scanned: u64,
    spared: bool,
    stopped: bool,
}

impl Direct {
    /// Creates a run for `target` pages, on behalf of a request of `order`.
    #[must_use]
    pub fn new(target: u64, order: Order) -> Self {
        Self {
            target,
            order,
            effort: Effort::First,
            priority: Some(DEF_PRIORITY),
            reclaimed: 0,
            begun: 0,
            scanned: 0,
            spared: false,
            stopped: false,
        }
    }

    /// Returns the next pass, or `None` when the run is over.
    #[must_use]
    pub fn next(&self) -> Option<DirectPass> {
        if self.stopped {
            return None;
        }
        self.priority.map(|priority| DirectPass {
            priority,
            target: self.target - (self.reclaimed + self.begun).min(self.target - 1),
            full_walk: self.effort >= Effort::FullWalk,
            forced: self.effort >= Effort::Forced,
        })
    }

    /// Records the result of the pass that [`next`](Self::next) asked for.
    pub fn passed(&mut self, p: &DirectPassed) {
        self.reclaimed += p.reclaimed;
        self.begun += p.begun;
        self.scanned += p.scanned;
        self.spared |= p.spared;
        let costly = self.order.get() > COSTLY_ORDER;
        if self.reclaimed + self.begun >= self.target || (costly && p.compactable) {
            self.stopped = true;
            return;
        }
        self.priority = match self.priority {
            Some(0) | None => self.again(),
            Some(n) => Some(n - 1),
        };
    }

    /// Steps to the next effort, if this one freed nothing and there is a harder one.
    fn again(&mut self) -> Option<u8> {
        if self.reclaimed + self.begun > 0 {
            return None;
        }
        self.effort = match self.effort {
            Effort::First => Effort::FullWalk,
            Effort::FullWalk if self.spared => Effort::Forced,
            Effort::FullWalk | Effort::Forced => return None,
        };
        Some(DEF_PRIORITY)
    }

    /// Returns the number of pages freed.
    #[must_use]
    pub fn reclaimed(&self) -> u64 {
        self.reclaimed
    }

    /// Returns the number of pages whose write was begun.
    #[must_use]
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Returns whether the run freed more than an eighth of the pages it scanned. Then other
    /// waiting tasks may expect progress, too.
    #[must_use]
    pub fn efficient(&self) -> bool {
        self.reclaimed > self.scanned / 8
    }

    /// Returns the reason for which the task waits afterwards, if any.
    #[must_use]
    pub fn waits_for(&self) -> Option<Reason> {
        (self.next().is_none() && self.reclaimed == 0 && self.begun == 0)
            .then_some(Reason::NoProgress)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn run(d: &mut Direct, mut f: impl FnMut(&DirectPass) -> DirectPassed) -> Vec<DirectPass> {
        let mut passes = Vec::new();
        while let Some(pass) = d.next() {
            d.passed(&f(&pass));
            passes.push(pass);
        }
        passes
    }

    #[test]
    fn direct_reclaim_stops_when_it_has_reached_its_target() {
        let mut d = Direct::new(32, Order::ZERO);
        let freed = |n| DirectPassed { reclaimed: n, scanned: 4 * n, ..DirectPassed::default() };
        let passes = run(&mut d, |p| freed(if p.priority == 12 { 20 } else { 12 }));
        assert_eq!(
            passes.iter().map(|p| (p.priority, p.target)).collect::<Vec<_>>(),
            [(12, 32), (11, 12)]
        );
        assert_eq!((d.reclaimed(), d.efficient(), d.waits_for()), (32, true, None));
    }

    #[test]
    fn direct_reclaim_without_a_page_tries_harder_and_then_waits() {
        let mut d = Direct::new(32, Order::ZERO);
        let none = DirectPassed { scanned: 100, spared: true, ..DirectPassed::default() };
        let passes = run(&mut d, |_| none);
        assert_eq!(passes.len(), 3 * 13);
        assert!(!passes[12].full_walk && passes[13].full_walk && !passes[13].forced);
        assert!(passes[26].forced && passes[38].priority == 0);
        assert_eq!((d.efficient(), d.waits_for()), (false, Some(Reason::NoProgress)));
        let mut d = Direct::new(32, Order::ZERO);
        let passes = run(&mut d, |_| DirectPassed { spared: false, ..none });
        assert_eq!(passes.len(), 2 * 13, "there is nothing to force");
    }

    #[test]
    fn one_reclaimed_page_is_enough_not_to_try_harder() {
        let mut d = Direct::new(32, Order::ZERO);
        let one = |p: &DirectPass| DirectPassed {
            reclaimed: u64::from(p.priority == 3),
            ..DirectPassed::default()
        };
        assert_eq!(run(&mut d, one).len(), 13);
        assert_eq!((d.reclaimed(), d.waits_for()), (1, None));
    }

    #[test]
    fn writes_begun_are_progress() {
        let mut d = Direct::new(32, Order::ZERO);
        let begun = DirectPassed { begun: 16, ..DirectPassed::default() };
        assert_eq!(run(&mut d, |_| begun).len(), 2);
        assert_eq!((d.reclaimed(), d.begun(), d.waits_for()), (0, 32, None));
    }

    #[test]
    fn a_costly_order_stops_when_compaction_can_serve_it() {
        let ready = DirectPassed { compactable: true, ..DirectPassed::default() };
        let mut costly = Direct::new(32, Order::HUGE);
        assert_eq!(run(&mut costly, |_| ready).len(), 1);
        let mut cheap = Direct::new(32, Order::ZERO);
        assert_eq!(run(&mut cheap, |_| ready).len(), 26);
    }
}
