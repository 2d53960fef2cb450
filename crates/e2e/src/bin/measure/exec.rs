//! Measures the time after the end of a program that has replaced `ebb`.

use std::thread;
use std::time::{Duration, Instant};

use ebb_e2e::SMALL;
use ebb_e2e::launch::Launch;
use ebb_e2e::tree::is_alive;
use rustix::process::Signal;

use crate::figure;

/// Measures how long Ebb's own processes outlive the program.
pub fn outliving() {
    let mut longest = Duration::ZERO;
    for _ in 0..10 {
        let launch = Launch::program("process", "wait-for-signal 24").limit(SMALL);
        let mut run = launch.options("--exec").start();
        run.wait_for("ready");
        run.signal(Signal::KILL);
        run.wait_until("its end", |run| !is_alive(run.pid()));
        let ended = Instant::now();
        while run.root().find().all().next().is_some() {
            thread::sleep(Duration::from_millis(1));
        }
        longest = longest.max(ended.elapsed());
    }
    figure("Ebb's processes outlive the program", longest.as_secs_f64(), "s", "5 s");
}
