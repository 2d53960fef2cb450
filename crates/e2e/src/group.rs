//! Control groups (version 1) that a test makes for a run of its own.

use crate::launch::Running;
use std::fs;
use std::path::PathBuf;
use std::process::Command;

/// A control group, removed on drop.
pub struct Group {
    path: PathBuf,
}

impl Group {
    /// Creates a group of this controller and sets its file `file` to `value`. Skips the test if no
    /// group can be created.
    #[must_use]
    pub fn new(controller: &str, file: &str, value: &str) -> Self {
        let name = format!("/sys/fs/cgroup/{controller}/ebb-test-{}", std::process::id());
        let group = Self { path: PathBuf::from(name) };
        let mut trial = Command::new("sleep").arg("600").spawn().expect("sleep");
        let tried = fs::create_dir(&group.path)
            .and_then(|()| fs::write(group.path.join("cgroup.procs"), trial.id().to_string()))
            .and_then(|()| fs::write(group.path.join(file), value));
        trial.kill().and_then(|()| trial.wait()).expect("it was a child");
        if let Err(error) = tried {
            let path = group.path.display().to_string();
            drop(group);
            ebb_testing::skip(&format!("no control group {path}: {error}"));
        }
        group
    }

    /// Writes to a file of the group.
    ///
    /// # Panics
    /// If the write fails.
    pub fn set(&self, file: &str, value: &str) {
        fs::write(self.path.join(file), value).expect("a file of a control group");
    }

    fn processes(&self) -> String {
        fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default()
    }

    /// Moves the whole tree of a run into the group. Later children then start in the group.
    pub fn take_in(&self, run: &Running) {
        ebb_testing::eventually("the whole tree in the group", || {
            let inside = self.processes();
            let inside: Vec<i32> = inside.lines().filter_map(|line| line.parse().ok()).collect();
            let tree = run.root().find();
            let outside: Vec<i32> = tree.all().filter(|pid| !inside.contains(pid)).collect();
            for pid in &outside {
                // A failed write means that the process has ended.
                let _ = fs::write(self.path.join("cgroup.procs"), pid.to_string());
            }
            outside.is_empty()
        });
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The remaining processes of the run move to the parent group first.
        let parent = self.path.with_file_name("cgroup.procs");
        self.processes().lines().for_each(|pid| drop(fs::write(&parent, pid)));
        let _ = fs::remove_dir(&self.path);
    }
}
