//! How tests wait: for an event, on any host that makes progress.
//!
//! A test never compares a time. This file has the only clock of the tests, which ends a test that hangs: a host may be as
//! slow as it likes within [`HANG`]. `./test quick` refuses `sleep`, `Instant` and `elapsed` in tests anywhere else.

use std::fmt::Debug;
use std::io::Write;
use std::thread;
use std::time::{Duration, Instant};

/// A test that waits for one event for so long hangs.
pub const HANG: Duration = Duration::from_secs(600);
/// The time between two looks, at least and at most.
const LOOK: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// The guard of one wait.
#[derive(Clone, Copy, Debug)]
pub struct Guard(Instant);

impl Guard {
    /// The wait begins.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "it begins something")]
    pub fn new() -> Self {
        Self(Instant::now())
    }

    /// Whether the wait is longer than any that ends.
    #[must_use]
    pub fn hangs(&self) -> bool {
        self.0.elapsed() > HANG
    }

    /// Lets others run before the next look, for as long as the wait has lasted.
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

/// Waits until `done`.
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
/// The test hangs: it never saw that. The message has what it saw last.
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

/// Gives others time to do what they must not do. A test that needs this cannot fail on a slow host, only miss a fault there.
pub fn give_time(time: Duration) {
    thread::sleep(time);
}

/// The status of a test process that cannot run here, as automake has it.
pub const SKIPPED: i32 = 77;

/// This test cannot run here, for this reason: `./test` counts it as skipped.
///
/// # Panics
///
/// Where the test shares its process with others, as under `cargo test`.
#[track_caller]
pub fn skip(why: &str) -> ! {
    if std::env::var_os("EBB_TEST_RUNNER").is_some() {
        // What `println` writes the test harness would keep for itself.
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
