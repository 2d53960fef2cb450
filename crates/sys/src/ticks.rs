//! The processor's time-stamp counter: the cheapest clock, in ticks whose length only a comparison
//! with another clock shows.
//!
//! The counter runs at one rate on all CPUs of every x86-64 processor of the last fifteen years. If
//! the counters of a virtual machine's CPUs disagree, differences between CPUs are wrong, but never
//! negative ([`since`]).

use std::time::Instant;

/// Returns the counter's present value.
#[must_use]
pub fn now() -> u64 {
    // SAFETY: every x86-64 processor has the counter, and Linux lets a program read it unless the
    // program forbids that (`PR_SET_TSC`).
    unsafe { std::arch::x86_64::_rdtsc() }
}

/// Returns the ticks from `then` to `now`, or 0 if the difference is negative.
#[must_use]
pub fn since(then: u64, now: u64) -> u64 {
    now.saturating_sub(then)
}

/// Start of a measurement, by the counter and by the system's clock.
#[derive(Clone, Copy, Debug)]
pub struct Began {
    ticks: u64,
    at: Instant,
}

impl Began {
    /// Starts a measurement now.
    #[must_use]
    pub fn now() -> Self {
        Self { ticks: now(), at: Instant::now() }
    }

    /// Returns the length of a tick in nanoseconds, measured over the time since the start.
    #[must_use]
    pub fn ns_per_tick(&self) -> f64 {
        // A measurement of less than a millisecond is too imprecise.
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
