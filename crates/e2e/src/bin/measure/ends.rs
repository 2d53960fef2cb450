//! Measures how soon a program is gone after Ebb is killed, and after the program itself is killed.

use std::time::{Duration, Instant};

use ebb_e2e::MIB;
use ebb_e2e::busy::Busy;
use ebb_e2e::client::Random;
use ebb_e2e::launch::{Launch, send};
use ebb_e2e::tree::is_alive;
use ebb_testing::give_time;
use rustix::process::Signal;

use super::figure;

const ROUNDS: u64 = 10;

/// Returns the longest time from a kill until no process is left, in milliseconds. A round kills
/// the pager if `whose` returns true, or else the supervisor.
fn longest_ms(launch: &Launch, whose: impl Fn(u64) -> bool) -> f64 {
    let mut random = Random::new(9);
    let times = (0..ROUNDS).map(|round| {
        let mut run = launch.start();
        run.wait_until("its program", |run| !run.root().find().program.is_empty());
        give_time(Duration::from_millis(100 + random.below(900)));
        let tree = run.root().find();
        let others = tree.ebb.iter().copied().filter(|pid| *pid != run.pid());
        let victims: Vec<i32> = if whose(round) { others.collect() } else { vec![run.pid()] };
        let killed = Instant::now();
        victims.into_iter().for_each(|pid| send(pid, Signal::KILL));
        while tree.all().any(is_alive) {
            give_time(Duration::from_millis(1));
        }
        killed.elapsed().as_secs_f64() * 1000.0
    });
    times.fold(0.0, f64::max)
}

/// Measures the end after the supervisor and after the pager is killed.
pub fn with_ebb() {
    let torture = Launch::program("torture", "0 1").limit(24 * MIB);
    figure("after the supervisor", longest_ms(&torture, |_| false), "ms", "1000");
    figure("after the pager", longest_ms(&torture, |_| true), "ms", "1000");
    let _busy = Busy::start(6);
    let verify = Launch::program("verify", "48 0 5 1").limit(16 * MIB);
    let what = "after the pager, of one thread beside six busy processes";
    figure(what, longest_ms(&verify, |_| true), "ms", "1000 for each thread that wants a CPU");
}

/// Measures the end after the program is killed.
pub fn by_itself() {
    let mut run = Launch::program("torture", "0 1").limit(32 * MIB).start();
    run.wait_until("work of it", |run| run.root().find().anonymous() > 20 * MIB);
    let program = run.root().find().first().expect("a program");
    let killed = Instant::now();
    send(program, Signal::KILL);
    run.finish().expect_code(128 + 9);
    figure("until the run ends", killed.elapsed().as_secs_f64() * 1000.0, "ms", "2000");
}
