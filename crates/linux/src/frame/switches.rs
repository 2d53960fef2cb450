//! The switches that can change while the allocator runs: when frames are checked, how free CMA
//! frames are counted.
//!
//! A refill of a set reads the switches once, at its start. A change in the middle of a refill
//! takes effect with the next one. So no frame is counted twice or not at all.

use std::fmt;

use super::frames::Frames;
use super::kinds::{Checks, CmaCount};
use super::sync::{AtomicU32, Relaxed};

/// The switches in force.
#[derive(Debug)]
pub(super) struct Switches {
    checks: AtomicU32,
    cma_count: AtomicU32,
}

/// Error: frames cannot be checked because there is no frame table (see `Config::checkable`).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct NoTable;

impl fmt::Display for NoTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("frames cannot be checked: the allocator was built without a frame table")
    }
}

impl std::error::Error for NoTable {}

impl Switches {
    pub(super) fn new(checks: Checks, cma_count: CmaCount) -> Self {
        Self { checks: AtomicU32::new(checks as u32), cma_count: AtomicU32::new(cma_count as u32) }
    }

    #[inline]
    pub(super) fn checks(&self) -> Checks {
        Checks::ALL[self.checks.load(Relaxed) as usize & 3]
    }

    #[inline]
    pub(super) fn cma_count(&self) -> CmaCount {
        match self.cma_count.load(Relaxed) {
            0 => CmaCount::PerPage,
            1 => CmaCount::InLock,
            _ => CmaCount::AfterUnlock,
        }
    }
}

impl Frames {
    /// Returns when frames are checked.
    #[must_use]
    pub fn checks(&self) -> Checks {
        self.switches.checks()
    }

    /// Changes when frames are checked, while other threads allocate and free. With a frame table,
    /// the allocator records each frame's state even while checks are off. It has one if it was
    /// built with checks, or to be checkable.
    pub fn set_checks(&self, checks: Checks) -> Result<(), NoTable> {
        if self.table.is_none() && checks != Checks::Off {
            return Err(NoTable);
        }
        self.switches.checks.store(checks as u32, Relaxed);
        Ok(())
    }

    /// Returns how free CMA frames are counted.
    #[must_use]
    pub fn cma_count(&self) -> CmaCount {
        self.switches.cma_count()
    }

    /// Changes how free CMA frames are counted, while other threads allocate and free.
    pub fn set_cma_count(&self, how: CmaCount) {
        self.switches.cma_count.store(how as u32, Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::frame::Config;

    #[test]
    fn every_choice_is_read_back() {
        let switches = Switches::new(Checks::Off, CmaCount::default());
        for checks in Checks::ALL {
            switches.checks.store(checks as u32, Relaxed);
            assert_eq!(switches.checks(), checks);
        }
        for how in CmaCount::ALL {
            switches.cma_count.store(how as u32, Relaxed);
            assert_eq!(switches.cma_count(), how);
        }
    }

    #[test]
    fn checks_need_a_frame_table() {
        let plain = Config::flat(2048, 1).build().unwrap();
        assert_eq!(plain.set_checks(Checks::OnPop), Err(NoTable));
        assert_eq!(plain.set_checks(Checks::Off), Ok(()));
        let mut config = Config::flat(2048, 1);
        config.checkable = true;
        let frames = config.build().unwrap();
        assert_eq!((frames.checks(), frames.set_checks(Checks::OnPop)), (Checks::Off, Ok(())));
        assert_eq!(frames.checks(), Checks::OnPop);
    }
}
