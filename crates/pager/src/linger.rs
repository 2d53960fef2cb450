//! Waiting for a read without going to sleep.
//!
//! A page from a file takes about as long to come as a CPU that has gone to sleep takes to wake, and the program's thread
//! waits for both. So a fault thread that has its CPU to itself (`solo.rs`) looks for a while whether the read has completed
//! before it sleeps for it. How long is adapted as the kernel's haltpoll governor adapts it (drivers/cpuidle/governors/haltpoll.c): a
//! look that found something makes the next one longer, one that found nothing shorter.
//!
//! * BUSYPOLL-1: never longer than [`MOST`]: nothing else on that CPU waits for it, since a thread of the idle class goes after all
//!   others, but it burns what a sleeping CPU would save.

use std::time::Duration;

/// The longest look: a good disk has answered by then.
const MOST: Duration = Duration::from_micros(200);
const LEAST: Duration = Duration::from_micros(20);

/// How long to look.
#[derive(Clone, Copy, Debug)]
pub struct Linger {
    time: Duration,
}

impl Default for Linger {
    fn default() -> Self {
        Self { time: MOST }
    }
}

impl Linger {
    /// How long the next look may take.
    #[must_use]
    pub fn time(self) -> Duration {
        self.time
    }

    /// What became of one.
    pub fn ended(&mut self, found: bool) {
        // A disk that has become fast is noticed all the same: the least look finds some.
        let next = if found { self.time * 2 } else { self.time / 2 };
        self.time = next.clamp(LEAST, MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_are_as_long_as_they_are_of_use() {
        let mut linger = Linger::default();
        (0..10).for_each(|_| linger.ended(false));
        assert_eq!(linger.time(), LEAST);
        linger.ended(true);
        assert_eq!(linger.time(), LEAST * 2);
        (0..10).for_each(|_| linger.ended(true));
        assert_eq!(linger.time(), MOST, "BUSYPOLL-1");
    }
}
