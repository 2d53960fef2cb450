//! The lock of a CPU's page sets. It costs its regular owner no locked instruction.
//!
//! ```text
//! owner   busy=1; light fence; stop==0? work; busy=0      only while claimed, one owner at a time
//! remote  stop 0->1; heavy fence; wait for busy==0; work; stop=0
//! shared  stop 0->1; not claimed? work; stop=0            callers without a claim
//! ```
//! Invariants:
//! * CPULOCK-1: at most one of owner, remote, shared is at work.
//! * CPULOCK-2: `claimed` changes only while `stop` is held.
//!
//! The owner's store of `busy` must be visible before its load of `stop`, or a remote could miss
//! it. With a [`RemoteFence`] (membarrier) the remote's heavy fence orders the owner's accesses.
//! The light fence then only restrains the compiler. Without a remote fence both fences are full.

use std::fmt;

use super::sync::{Acquire, AtomicU32, Relaxed, Release, compiler_only_fence, full_fence, relax};

/// A fence on behalf of every other thread of the process. When `heavy` returns, each of them has
/// passed a full fence since the call began.
pub trait RemoteFence: Send + Sync + fmt::Debug {
    /// Makes every running thread pass a full fence.
    fn heavy(&self);
}

/// The lock of one CPU's sets, with the states `busy`, `stop` and `claimed`.
#[derive(Debug)]
pub(super) struct CpuLock {
    busy: AtomicU32,
    stop: AtomicU32,
    claimed: AtomicU32,
}

impl CpuLock {
    pub(super) fn new() -> Self {
        Self { busy: AtomicU32::new(0), stop: AtomicU32::new(0), claimed: AtomicU32::new(0) }
    }

    /// Enters as the owner. Returns false while another caller holds the lock. `light`: a remote
    /// fence exists.
    #[inline(always)]
    pub(super) fn enter_owner(&self, light: bool) -> bool {
        if light {
            return self.enter_light(0);
        }
        self.busy.store(1, Relaxed);
        full_fence();
        self.not_stopped(0)
    }

    /// Enters as the owner where a remote fence exists. Returns false too if any bit in
    /// `closed_bits` is set.
    #[inline(always)]
    pub(super) fn enter_light(&self, closed_bits: u32) -> bool {
        self.busy.store(1, Relaxed);
        compiler_only_fence();
        self.not_stopped(closed_bits)
    }

    #[inline(always)]
    fn not_stopped(&self, closed_bits: u32) -> bool {
        // Acquire pairs with the Release of `leave_stopped`, so the changes that caller made to the
        // sets are visible.
        if self.stop.load(Acquire) | closed_bits == 0 {
            return true;
        }
        self.busy.store(0, Release);
        false
    }

    #[inline(always)]
    pub(super) fn leave_owner(&self) {
        // Pairs with the Acquire load in `enter_remote`.
        self.busy.store(0, Release);
    }

    fn try_stop(&self) -> bool {
        self.stop.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    fn stop(&self) {
        let mut turn = 0;
        while !self.try_stop() {
            relax(turn);
            turn += 1;
        }
    }

    /// Enters without a claim. Returns false if the lock is held or another caller has the claim.
    #[inline]
    pub(super) fn try_enter_shared(&self) -> bool {
        if !self.try_stop() {
            return false;
        }
        if self.claimed.load(Relaxed) == 0 {
            return true;
        }
        self.leave_stopped();
        false
    }

    /// Enters as a remote caller. Waits until no other caller holds the lock.
    pub(super) fn enter_remote(&self, fence: Option<&dyn RemoteFence>) {
        self.stop();
        if self.claimed.load(Relaxed) == 0 {
            return;
        }
        match fence {
            Some(fence) => fence.heavy(),
            None => full_fence(),
        }
        let mut turn = 0;
        while self.busy.load(Acquire) != 0 {
            relax(turn);
            turn += 1;
        }
    }

    /// Ends `enter_remote` and `try_enter_shared`.
    #[inline]
    pub(super) fn leave_stopped(&self) {
        self.stop.store(0, Release);
    }

    /// Makes the caller the owner. Returns false if there is an owner.
    pub(super) fn claim(&self) -> bool {
        self.stop();
        let free = self.claimed.load(Relaxed) == 0;
        if free {
            self.claimed.store(1, Relaxed);
        }
        self.leave_stopped();
        free
    }

    /// Ends the owner's claim.
    pub(super) fn unclaim(&self) {
        self.stop();
        self.claimed.store(0, Relaxed);
        self.leave_stopped();
    }
}

#[cfg(all(test, loom))]
mod models {
    use super::*;
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU32 as Plain;
    use loom::thread;

    /// Reads and writes `cell`. Two callers lose an update unless they exclude each other.
    fn bump(cell: &Plain) {
        let seen = cell.load(Relaxed);
        cell.store(seen + 1, Relaxed);
    }

    fn model(body: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(body);
    }

    #[test]
    fn an_owner_and_a_drainer_exclude_each_other() {
        model(|| {
            let state = Arc::new((CpuLock::new(), Plain::new(0)));
            assert!(state.0.claim());
            let drainer = {
                let state = state.clone();
                thread::spawn(move || {
                    state.0.enter_remote(None);
                    bump(&state.1);
                    state.0.leave_stopped();
                })
            };
            let mut done = 1;
            for _ in 0..2 {
                if state.0.enter_owner(true) {
                    bump(&state.1);
                    state.0.leave_owner();
                    done += 1;
                }
            }
            drainer.join().unwrap();
            assert_eq!(state.1.load(Relaxed), done);
        });
    }

    #[test]
    fn a_claim_shuts_out_callers_without_one() {
        model(|| {
            let state = Arc::new((CpuLock::new(), Plain::new(0), Plain::new(0)));
            let guest = {
                let state = state.clone();
                thread::spawn(move || {
                    if state.0.try_enter_shared() {
                        bump(&state.1);
                        state.2.fetch_add(1, Relaxed);
                        state.0.leave_stopped();
                    }
                })
            };
            assert!(state.0.claim());
            if state.0.enter_owner(true) {
                bump(&state.1);
                state.2.fetch_add(1, Relaxed);
                state.0.leave_owner();
            }
            guest.join().unwrap();
            assert_eq!(state.1.load(Relaxed), state.2.load(Relaxed));
            state.0.unclaim();
        });
    }
}
