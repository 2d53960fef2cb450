//! The data that the owner of a CPU's sets reads on a hit, together on cache lines of its own.
//!
//! Two words say whether a hit is possible: the lock's `stop`, and `closed_bits`. `closed_bits`
//! repeats whether the main zone has any flag set. So a hit reads nothing else of the zone.
//!
//! Invariant: once changes of the zone's flags have ended, `closed_bits` agrees with them. Until
//! then a hit may succeed, or fail, against the flags, which are only advice.

use super::cpulock::CpuLock;
use super::pcp::NO_TYPE;
use super::sync::{AtomicU32, AtomicU64, Relaxed};

/// Bit of `closed_bits`: a flag of the main zone is set.
const FLAGS: u32 = 1;
/// Bit of `closed_bits`: owners never hit, because there is no main zone with plain sets, or no
/// remote fence.
const CLOSED: u32 = 2;
const NO_ZONE: u32 = u32::MAX;
/// The word of blocks that no zone has, and a list that holds no block.
const NOTHING: u64 = (NO_TYPE as u64) << 32;

/// The words that a hit of one CPU reads.
#[derive(Debug)]
#[repr(align(128))]
pub(super) struct Gate {
    pub(super) lock: CpuLock,
    closed_bits: AtomicU32,
    /// Low half: the pageblock word of the last refill from the main zone, if a push needs nothing
    /// but room. Most frees are of that kind. High half: the index of its lists.
    usual: AtomicU64,
    /// The zone that ordinary requests try first.
    main: AtomicU32,
}

impl Gate {
    pub(super) fn new() -> Self {
        Self {
            lock: CpuLock::new(),
            closed_bits: AtomicU32::new(CLOSED),
            usual: AtomicU64::new(NOTHING),
            main: AtomicU32::new(NO_ZONE),
        }
    }

    /// Lets owners hit, in zone `main`.
    pub(super) fn open(&self, main: usize) {
        self.main.store(main as u32, Relaxed);
        self.closed_bits.fetch_and(!CLOSED, Relaxed);
    }

    pub(super) fn leads_to(&self, zone: usize) -> bool {
        self.main.load(Relaxed) == zone as u32
    }

    /// Sets `closed_bits` according to whether the main zone has any flag set.
    pub(super) fn set_flags(&self, any: bool) {
        if any {
            self.closed_bits.fetch_or(FLAGS, Relaxed);
        } else {
            self.closed_bits.fetch_and(!FLAGS, Relaxed);
        }
    }

    /// Enters as the owner for a hit. Returns false if another caller holds the lock or a bit of
    /// `closed_bits` is set.
    #[inline(always)]
    pub(super) fn enter(&self) -> bool {
        self.lock.enter_light(self.closed_bits.load(Relaxed))
    }

    #[inline(always)]
    pub(super) fn leave(&self) {
        self.lock.leave_owner();
    }

    pub(super) fn set_usual(&self, word: u16, t: usize) {
        self.usual.store((t as u64) << 32 | u64::from(word), Relaxed);
    }

    /// Returns the index of lists for frames of a pageblock with this word, if it is the usual
    /// word.
    #[inline(always)]
    pub(super) fn usual_type(&self, word: u16) -> Option<usize> {
        let usual = self.usual.load(Relaxed);
        (usual as u16 == word).then_some((usual >> 32) as usize)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_gate_is_closed_until_opened_and_while_there_is_trouble() {
        let gate = Gate::new();
        assert!(!gate.enter() && !gate.leads_to(0));
        gate.open(3);
        assert!(gate.leads_to(3) && gate.enter());
        gate.leave();
        gate.set_flags(true);
        assert!(!gate.enter());
        gate.set_flags(false);
        assert!(gate.enter());
        gate.leave();
    }

    #[test]
    fn only_the_usual_pageblock_word_has_lists() {
        let gate = Gate::new();
        assert!((1..=u16::MAX).all(|word| gate.usual_type(word).is_none()));
        assert_eq!(gate.usual_type(0), Some(NO_TYPE), "a frame of no zone finds no room");
        gate.set_usual(17, 2);
        assert_eq!((gate.usual_type(17), gate.usual_type(16)), (Some(2), None));
    }
}
