//! A run that is looked at while it goes on.

use std::thread;
use std::time::{Duration, Instant};

use ebb_e2e::launch::{Launch, Outcome};

/// How often. A look takes milliseconds of a CPU that the run could use.
const EVERY: Duration = Duration::from_millis(50);

/// A run that has ended, and the most bytes of anonymous memory that were seen.
pub struct Watched {
    pub outcome: Outcome,
    /// Of the program's processes. They are read one after another: what goes from one to the next meanwhile counts twice.
    pub peak_bytes: u64,
    /// Of Ebb's own.
    pub own_bytes: u64,
}

/// Runs it to its end.
pub fn watched(launch: &Launch) -> Watched {
    let mut run = launch.start();
    let (mut peak_bytes, mut own_bytes) = (0, 0);
    while !run.ended() {
        let tree = run.root().descendants();
        peak_bytes = tree.anonymous().max(peak_bytes);
        own_bytes = tree.own().max(own_bytes);
        thread::sleep(EVERY);
    }
    Watched { outcome: run.finish(), peak_bytes, own_bytes }
}

/// The same, without a look: the seconds that it takes.
pub fn timed(launch: &Launch) -> (f64, Outcome) {
    let begun = Instant::now();
    let outcome = launch.run();
    (begun.elapsed().as_secs_f64(), outcome)
}
