//! Barriers: threads of a group that wait for each other.
//!
//! * A barrier does not wait for a thread that was killed.
//! * A barrier lets all waiting threads go as soon as all others have arrived. Threads can then
//!   wait at it again.

/// The barrier of a group.
#[derive(Debug, Default)]
struct Barrier {
    /// Number of threads that wait for each other, as the last arrival gave it.
    parties: usize,
    /// Number of threads of the group that were killed.
    gone: usize,
    waiting: Vec<usize>,
}

impl Barrier {
    fn release(&mut self) -> Vec<usize> {
        let all = self.waiting.len() + self.gone >= self.parties;
        if all { std::mem::take(&mut self.waiting) } else { Vec::new() }
    }
}

/// All barriers, by group.
#[derive(Debug, Default)]
pub(super) struct Barriers(Vec<Barrier>);

impl Barriers {
    fn of(&mut self, group: u16) -> &mut Barrier {
        let group = usize::from(group);
        if self.0.len() <= group {
            self.0.resize_with(group + 1, Barrier::default);
        }
        &mut self.0[group]
    }

    /// Adds a thread that arrives. Returns the threads that go on, with it among them.
    pub(super) fn arrive(&mut self, group: u16, parties: u16, thread: usize) -> Vec<usize> {
        let barrier = self.of(group);
        barrier.parties = usize::from(parties);
        barrier.waiting.push(thread);
        barrier.release()
    }

    /// Removes a thread of the group that was killed, waiting or not. Returns the threads that go
    /// on.
    pub(super) fn lose(&mut self, group: u16, thread: usize) -> Vec<usize> {
        let barrier = self.of(group);
        barrier.gone += 1;
        barrier.waiting.retain(|&waits| waits != thread);
        barrier.release()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_barrier_does_not_wait_for_a_killed_thread() {
        let mut b = Barriers::default();
        // Threads are lost before any arrives, while others wait, and while waiting themselves.
        assert!(b.lose(1, 7).is_empty());
        assert!(b.arrive(1, 4, 0).is_empty() && b.arrive(1, 4, 1).is_empty());
        assert_eq!(b.arrive(1, 4, 2), [0, 1, 2]);
        assert!(b.arrive(1, 4, 1).is_empty());
        assert!(b.arrive(1, 4, 0).is_empty());
        assert_eq!(b.lose(1, 2), [1, 0]);
        assert!(b.arrive(1, 4, 0).is_empty());
        assert!(b.lose(1, 0).is_empty(), "nobody is left there");
        assert_eq!(b.arrive(1, 4, 1), [1]);
        // Other groups have barriers of their own.
        assert!(b.arrive(0, 2, 8).is_empty());
        assert_eq!(b.arrive(0, 2, 9), [8, 9]);
    }
}
