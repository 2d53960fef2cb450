//! Reserve: keeps tasks from direct reclaim when the reserve is nearly gone and kswapd must free
//! memory first.
//!
//! Below half of a node's min watermarks, the remaining pages are for reclaiming tasks and for
//! kswapd. A task that would reclaim waits instead ([`may_reclaim`]). It checks again
//! when kswapd has done a pass or goes to sleep. The check wakes kswapd, without regard to the
//! balance. kswapd is woken for the highest zone that counts here, or a lower one that some task
//! has asked for.
//!
//! In the kernel until 2017 "no request" was the lowest zone, and the lower of the two zones was
//! taken. kswapd woke up, found the lowest zone in balance and went back to sleep. Its sleep check
//! made all waiting tasks check again, which woke it again. No task went on until another
//! allocation asked for a higher zone. (See `throttle_direct_reclaim` and `allow_direct_reclaim` in
//! `mm/vmscan.c`. The minimum of two indices is in it from 2012 to 2020.)

use ebb_mm::reclaim::{Node, Policy, RequestResult, WakeRequests};
use ebb_mm::tunables::{IdleIndex, SleepCheck};

/// Longest wait in milliseconds of a task that may not enter file systems, because other tasks may
/// wait for it there.
pub const HELD_MS_MAX: u64 = 1000;

/// Decides whether a task may reclaim. The zones up to class `normal` count.
///
/// # Errors
/// Half of the reserve is gone, so the task waits. The error is the result of the request to kswapd
/// that goes with the check.
pub fn may_reclaim(
    requests: &WakeRequests,
    node: &dyn Node,
    policy: Policy,
    normal: usize,
) -> Result<(), RequestResult> {
    // Only with `SleepCheck::Any` does the check know that a node is hopeless.
    let hopeless = requests.hopeless() && policy.sleep == SleepCheck::Any;
    if hopeless || node.reserve_left() {
        return Ok(());
    }
    Err(requests.request_lower(|asked| match (policy.idle, asked) {
        (IdleIndex::Zero, None) => None,
        (_, asked) => Some(asked.map_or(normal, |a| a.min(normal))),
    }))
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::frame::Order;
    use ebb_mm::observe::vmstat::VmStat;
    use ebb_mm::reclaim::{Kswapd, Passed, Step};
    use ebb_mm::tunables::FlagClear;

    /// Two zones, or the upper one alone. The lower one is in balance for its own requests only.
    struct Low {
        free: Cell<u64>,
        has_low: bool,
    }

    const NORMAL: usize = 1;
    const HIGH: u64 = 400;
    const MIN: u64 = 200;

    impl Node for Low {
        fn classes(&self) -> usize {
            2
        }
        fn balanced(&self, _: Order, highest: usize) -> bool {
            highest == 0 || self.free.get() > HIGH
        }
        fn has_zone(&self, highest: usize) -> bool {
            self.has_low || highest >= NORMAL
        }
        fn all_balanced(&self, order: Order, highest: usize) -> bool {
            self.balanced(order, highest)
        }
        fn target(&self, _: usize) -> u64 {
            HIGH
        }
        fn reserve_left(&self) -> bool {
            self.free.get() > MIN / 2
        }
    }

    const fn policy(idle: IdleIndex, sleep: SleepCheck) -> Policy {
        Policy { idle, sleep, clear: FlagClear::Sleep, trim_again: true }
    }

    struct Rig {
        node: Low,
        wake_requests: WakeRequests,
        kswapd: Kswapd,
        policy: Policy,
        passes: [u64; 2],
    }

    /// Creates a node whose kswapd sleeps and whose free memory is gone without any request.
    fn asleep(policy: Policy, has_low: bool) -> Rig {
        let node = Low { free: Cell::new(1000), has_low };
        let mut rig = Rig {
            node,
            wake_requests: WakeRequests::new(),
            kswapd: Kswapd::new(policy, 2),
            policy,
            passes: [0; 2],
        };
        for _ in 0..10 {
            rig.turn();
        }
        assert!(rig.kswapd.deep());
        rig.node.free.set(MIN / 4);
        rig
    }

    impl Rig {
        fn may(&self) -> Result<(), RequestResult> {
            may_reclaim(&self.wake_requests, &self.node, self.policy, NORMAL)
        }

        /// Does a step of kswapd; a pass for the upper zone frees some pages.
        fn turn(&mut self) {
            let step = self.kswapd.step(&self.wake_requests, &self.node, &VmStat::default());
            let Step::Pass(pass) = step else { return };
            self.passes[pass.highest] += 1;
            let reclaimed = if pass.highest == NORMAL { 64 } else { 0 };
            self.node.free.set(self.node.free.get() + reclaimed);
            let passed = Passed { scanned: reclaimed, reclaimed, ..Passed::default() };
            self.kswapd.passed(&self.wake_requests, &passed);
        }

        /// Returns the number of turns until a waiting task may go on.
        fn turns(&mut self, most: u32) -> Option<u32> {
            (0..most).find(|_| {
                let may = self.may().is_ok();
                self.turn();
                may
            })
        }
    }

    #[test]
    fn kswapd_woken_for_the_lower_zone_does_nothing_for_the_waiting_task() {
        let mut rig = asleep(policy(IdleIndex::Zero, SleepCheck::All), true);
        assert_eq!(rig.may(), Err(RequestResult::Wake), "it is asked, again and again");
        assert_eq!(rig.turns(10_000), None);
        assert_eq!((rig.passes, rig.kswapd.stats().naps > 1000), ([0, 0], true));
        // Another allocation asks for the zone that the task needs.
        rig.wake_requests.request(&rig.node, rig.policy, Order::ZERO, NORMAL);
        assert!(rig.turns(100).is_some());
    }

    #[test]
    fn if_no_request_means_no_zone_kswapd_releases_the_waiting_task() {
        for idle in [IdleIndex::Sentinel, IdleIndex::Previous] {
            let mut rig = asleep(policy(idle, SleepCheck::Any), true);
            assert_eq!(rig.may(), Err(RequestResult::Wake));
            assert_eq!(rig.may(), Err(RequestResult::Recorded), "it is on its way");
            assert!(rig.turns(10).is_some(), "{idle:?}");
            assert_eq!(rig.passes[0], 0);
        }
    }

    #[test]
    fn on_a_node_without_the_lower_zone_kswapd_goes_round_for_nothing() {
        let mut rig = asleep(policy(IdleIndex::Zero, SleepCheck::All), false);
        assert_eq!(rig.turns(1000), None);
        // Twelve passes of growing pressure, and twelve more without the preference for files.
        assert!(rig.passes[0] >= 24 && rig.passes[1] == 0, "{:?}", rig.passes);
    }

    #[test]
    fn a_task_reclaims_above_half_of_the_reserve_or_on_a_hopeless_node() {
        let rig = asleep(policy(IdleIndex::Previous, SleepCheck::Any), true);
        rig.node.free.set(MIN / 2 + 1);
        assert_eq!(rig.may(), Ok(()));
        rig.node.free.set(MIN / 2);
        assert!(rig.may().is_err());
        (0..ebb_mm::reclaim::FAILURES_MAX).for_each(|_| rig.wake_requests.failed());
        assert_eq!(rig.may(), Ok(()), "kswapd has given up");
    }
}
