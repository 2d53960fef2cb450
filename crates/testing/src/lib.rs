//! Waiting in tests: for an event, on any host that makes progress.
//!
//! A test never compares a time. This file has the only clock of the tests. The clock ends a test
//! that waits longer than [`HANG`] for one event. Within that time a host may be arbitrarily slow.
//! `./test quick` refuses `sleep`, `Instant` and `elapsed` in tests anywhere else.

use std::fmt::Debug;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

/// Duration after which a wait for one event counts as a hang.
pub const HANG: Duration = Duration::from_secs(600);
/// Shortest and longest time between two checks.
const LOOK: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// The clock of one wait.
#[derive(Clone, Copy, Debug)]
pub struct Guard(Instant);

impl Guard {
    /// Begins the wait.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it begins something")]
    pub fn new() -> Self {
        Self(Instant::now())
    }

    /// Returns whether the wait is longer than [`HANG`].
    #[must_use]
    pub fn hangs(&self) -> bool {
        self.0.elapsed() > HANG
    }

    /// Sleeps before the next check, for as long as the wait has lasted, within the limits.
    ///
    /// # Panics
    ///
    /// The test hangs: `what` did not happen.
    #[track_caller]
    pub fn pause(&self, what: &str) {
        assert!(!self.hangs(), "hangs: waited {HANG:?} for {what}");
        thread::sleep(self.0.elapsed().clamp(LOOK[0], LOOK[1]));
    }
}

/// Waits until `done` returns true.
///
/// # Panics
///
/// The test hangs: `what` did not happen.
#[track_caller]
pub fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    let guard = Guard::new();
    while !done() {
        guard.pause(what);
    }
}

/// Waits until `find` finds something.
///
/// # Panics
///
/// The test hangs: `what` did not come.
#[track_caller]
pub fn eventually_some<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let guard = Guard::new();
    loop {
        if let Some(found) = find() {
            return found;
        }
        guard.pause(what);
    }
}

/// Waits until `look` sees `wanted`.
///
/// # Panics
///
/// The test hangs: `look` never saw that. The message has the last value seen.
#[track_caller]
pub fn eventually_is<T: PartialEq + Debug>(what: &str, wanted: T, mut look: impl FnMut() -> T) {
    let guard = Guard::new();
    loop {
        let seen = look();
        if seen == wanted {
            return;
        }
        guard.pause(&format!("{what} to be {wanted:?}; it is {seen:?}"));
    }
}

/// Gives other threads time to do something forbidden. A test that needs this cannot fail on a slow
/// host. It can only miss a fault there.
pub fn give_time(time: Duration) {
    thread::sleep(time);
}

/// Exit status of a test process that cannot run here, as in automake.
pub const SKIPPED: i32 = 77;

/// Ends a test that cannot run here, with the reason `why`. `./test` counts it as skipped.
///
/// # Panics
///
/// In a process shared with other tests, as under `cargo test`.
#[track_caller]
pub fn skip(why: &str) -> ! {
    if std::env::var_os("EBB_TEST_RUNNER").is_some() {
        // Does not use `println`, because the test harness would capture it.
        let _ = writeln!(std::io::stdout(), "skipped: {why}");
        std::process::exit(SKIPPED);
    }
    panic!("skipped: {why}");
}

#[cfg(test)]
mod tests {
    use super::{eventually, eventually_is, eventually_some};

    #[test]
    fn a_wait_ends_with_the_event() {
        let mut looks = 0;
        eventually("the third look", || {
            looks += 1;
            looks == 3
        });
        assert_eq!(eventually_some("something", || Some(looks)), 3);
        eventually_is("the count", 5, || {
            looks += 1;
            looks
        });
    }
}
