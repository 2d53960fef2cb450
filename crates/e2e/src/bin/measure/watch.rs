//! Samples a run while it goes on.

use std::thread;
use std::time::{Duration, Instant};

use ebb_e2e::launch::{Launch, Outcome};

/// Interval between samples. A sample takes milliseconds of a CPU that the run could use.
const EVERY: Duration = Duration::from_millis(50);

/// An ended run with its peaks of anonymous memory.
pub struct Watched {
    pub outcome: Outcome,
    /// Peak of the program's processes, in bytes. This thread reads one process after another. So
    /// memory that moves between two processes meanwhile counts twice.
    pub peak_bytes: u64,
    /// Peak of Ebb's own processes, in bytes.
    pub own_bytes: u64,
}

/// Runs the launch to its end and samples it.
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

/// Runs the launch without sampling. Returns the duration in seconds, and the outcome.
pub fn timed(launch: &Launch) -> (f64, Outcome) {
    let begun = Instant::now();
    let outcome = launch.run();
    (begun.elapsed().as_secs_f64(), outcome)
}
