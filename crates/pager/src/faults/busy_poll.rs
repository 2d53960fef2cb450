//! Busy polling: waits for a read without going to sleep.
//!
//! To read a page from a file takes about as long as to wake a sleeping CPU. The program's thread
//! waits for both. So a fault thread that has its CPU to itself (`fault_threads/cpu_follow.rs`)
//! polls for a while before it sleeps. The polling time adapts as in the kernel's haltpoll governor
//! (drivers/cpuidle/governors/haltpoll.c). Polling that found a completed read makes the next time
//! longer, any other shorter.
//!
//! * BUSYPOLL-1: Polling never takes longer than [`MOST`]. No other thread on that CPU waits for
//!   it, because a thread of the idle class goes after all others. But polling burns energy that a
//!   sleeping CPU would save.

use std::time::Duration;

/// Longest polling time: a good disk has answered by then.
const MOST: Duration = Duration::from_micros(200);
const LEAST: Duration = Duration::from_micros(20);

/// Adaptive polling time.
#[derive(Clone, Copy, Debug)]
pub struct BusyPoll {
    time: Duration,
}

impl Default for BusyPoll {
    fn default() -> Self {
        Self { time: MOST }
    }
}

impl BusyPoll {
    /// Returns the time limit of the next polling.
    #[must_use]
    pub fn time(self) -> Duration {
        self.time
    }

    /// Adapts the time to the result of polling.
    pub fn ended(&mut self, found: bool) {
        // A disk that becomes fast is still noticed, because the shortest polling finds some reads.
        let next = if found { self.time * 2 } else { self.time / 2 };
        self.time = next.clamp(LEAST, MOST);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_polls_are_as_long_as_they_are_of_use() {
        let mut busy_poll = BusyPoll::default();
        (0..10).for_each(|_| busy_poll.ended(false));
        assert_eq!(busy_poll.time(), LEAST);
        busy_poll.ended(true);
        assert_eq!(busy_poll.time(), LEAST * 2);
        (0..10).for_each(|_| busy_poll.ended(true));
        assert_eq!(busy_poll.time(), MOST, "BUSYPOLL-1");
    }
}
