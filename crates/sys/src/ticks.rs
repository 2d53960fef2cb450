//! The processor's own counter of time: the cheapest there is, in units that only a comparison with a clock tells.
//!
//! It runs at one rate on all CPUs of every x86-64 processor of the last fifteen years. Where a virtual machine's
//! do not agree, differences between CPUs are off, and never negative ([`since`]).

use std::time::Instant;

/// The counter now.
#[must_use]
pub fn now() -> u64 {
    // SAFETY: every x86-64 processor has it, and Linux lets programs read it unless asked not to.
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// From `then` to `now`; nothing if it comes out negative.
#[must_use]
pub fn since(then: u64, now: u64) -> u64 {
    now.saturating_sub(then)
}

/// When counting began, by both.
#[derive(Clone, Copy, Debug)]
pub struct Began {
    ticks: u64,
    at: Instant,
}

impl Began {
    /// Now.
    #[must_use]
    pub fn now() -> Self {
        Self { ticks: now(), at: Instant::now() }
    }

    /// Nanoseconds of a tick, by the time that has gone by since.
    #[must_use]
    pub fn ns_per_tick(&self) -> f64 {
        // Less than a millisecond tells little.
        while self.at.elapsed().as_micros() < 1000 {
            std::hint::spin_loop();
        }
        let ticks = since(self.ticks, now()).max(1);
        self.at.elapsed().as_nanos() as f64 / ticks as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_count_up_and_take_some_time() {
        let began = Began::now();
        let first = now();
        let ns = began.ns_per_tick();
        assert!(ns.is_finite() && ns > 0.0, "{ns}");
        assert!(since(first, now()) > 0);
        assert_eq!((since(9, 10), since(10, 9)), (1, 0));
    }
}
