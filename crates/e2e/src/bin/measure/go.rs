//! Measures how many of a tree's static Go programs get the agent.

use std::process::{Child, Command};

use ebb_e2e::build::go_program;
use ebb_e2e::launch::Launch;

use crate::figure;

/// Starts forty programs at once, each for half a second. The pager puts the agent into sixteen at
/// a time.
pub fn forty_at_once() {
    let work = go_program("go-work", ".", &[]);
    let script = format!("{} wait", "\"$0\" waits 4 & ".repeat(40));
    let launch = Launch::new("sh").args(["-c", &script]).arg(&work).limit(64 << 20);
    let launch = launch.options("--report json");
    let run = |what: &str| {
        let outcome = launch.run();
        // The count includes the shell and its forked children before their exec.
        figure(&format!("met with an agent, {what}"), outcome.figure("processes") as f64, "", "40");
        let strict = launch.clone().options("--strict").run();
        let ended = f64::from(u8::from(strict.code() != 0));
        figure(&format!("ended by --strict, {what}"), ended, "", "0");
    };
    run("alone");
    let _busy = Busy::new(8);
    run("beside eight busy processes");
}

/// Processes that want a CPU as long as this value lives.
struct Busy(Vec<Child>);

impl Busy {
    fn new(count: usize) -> Self {
        let start = || Command::new("sh").args(["-c", "while :; do :; done"]).spawn();
        Self((0..count).map(|_| start().expect("it starts")).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // An error means that the process has ended already.
        self.0.iter_mut().for_each(|child| drop(child.kill().and_then(|()| child.wait())));
    }
}
