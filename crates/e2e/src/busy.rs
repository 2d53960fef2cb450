//! Processes that want a CPU all the time, beside a test.

use std::process::{Child, Command};

/// Busy processes. They end when this value is dropped, or soon after the process that started
/// them.
#[derive(Debug)]
pub struct Busy(Vec<Child>);

impl Busy {
    /// Starts `count` processes.
    pub fn start(count: usize) -> Self {
        let one = || {
            let mut shell = Command::new("sh");
            // A shell whose parent is killed ends, too.
            shell.args(["-c", "while kill -0 $PPID 2>/dev/null; do :; done"]);
            shell.spawn().expect("a shell")
        };
        Self((0..count).map(|_| one()).collect())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
