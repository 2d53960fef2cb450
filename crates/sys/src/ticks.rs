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
    fn ticks_are_told_in_nanoseconds() {
        let (began, at, first) = (Began::now(), Instant::now(), now());
        std::thread::sleep(std::time::Duration::from_millis(50));
        let (ticks, ns) = (since(first, now()), at.elapsed().as_nanos() as f64);
        let got = ticks as f64 * began.ns_per_tick();
        assert!((got / ns - 1.0).abs() < 0.05, "{got} for {ns}");
        assert_eq!(since(10, 9), 0);
    }
}
