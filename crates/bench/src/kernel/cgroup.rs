//! A memory cgroup for one run, of version 1 or 2. It is removed on drop.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use super::undo::{Undo, quote_path};
use super::{KernelError, set};

const V1: &str = "/sys/fs/cgroup/memory";
const V2: &str = "/sys/fs/cgroup";

/// The memory cgroup of one run.
#[derive(Debug)]
pub struct Cgroup {
    /// Folder of the cgroup. A program enters by writing its PID to `cgroup.procs`.
    pub folder: PathBuf,
    files: &'static Files,
    _undo: Undo,
}

/// File names for which the two versions differ.
#[derive(Debug)]
struct Files {
    limit: &'static str,
    peak: &'static str,
    events: &'static str,
}

const FILES_V1: Files = Files {
    limit: "memory.limit_in_bytes",
    peak: "memory.max_usage_in_bytes",
    events: "memory.oom_control",
};
const FILES_V2: Files = Files { limit: "memory.max", peak: "memory.peak", events: "memory.events" };

impl Cgroup {
    /// Creates a cgroup with or without a limit.
    pub fn new(limit_bytes: Option<u64>) -> Result<Self, KernelError> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let (root, files) = root()?;
        // The count only makes the name unique.
        let count = COUNT.fetch_add(1, Relaxed);
        let folder = root.join(format!("ebb-bench-{}-{count}", std::process::id()));
        let mut undo = Undo::new()?;
        // A killed program takes a moment to leave the cgroup. Processes that a killed benchmark
        // left are killed here.
        let quoted = quote_path(&folder);
        undo.later(&format!(
            "for n in 1 2 3 4 5 6 7 8 9; do \
             [ -d {quoted} ] || break; \
             for p in $(cat {quoted}/cgroup.procs); do kill -9 $p; done; \
             rmdir {quoted} 2>/dev/null && break; sleep 0.1; done"
        ))?;
        fs::create_dir(&folder).map_err(KernelError::Cgroup)?;
        if let Some(limit_bytes) = limit_bytes {
            set(&folder.join(files.limit), &limit_bytes.to_string())?;
        }
        Ok(Self { folder, files, _undo: undo })
    }

    /// Returns the peak of the memory charged to the cgroup, in bytes.
    #[must_use]
    pub fn peak_bytes(&self) -> Option<u64> {
        fs::read_to_string(self.folder.join(self.files.peak)).ok()?.trim().parse().ok()
    }

    /// Returns the number of processes that the OOM killer ended.
    #[must_use]
    pub fn killed(&self) -> u64 {
        let text = fs::read_to_string(self.folder.join(self.files.events)).unwrap_or_default();
        oom_kills(&text)
    }
}

fn oom_kills(text: &str) -> u64 {
    let value = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    value.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

fn root() -> Result<(&'static Path, &'static Files), KernelError> {
    let (one, two) = (Path::new(V1), Path::new(V2));
    if one.join(FILES_V1.limit).exists() {
        return Ok((one, &FILES_V1));
    }
    let given = fs::read_to_string(two.join("cgroup.controllers")).unwrap_or_default();
    if !given.split_whitespace().any(|controller| controller == "memory") {
        return Err(KernelError::NoCgroup);
    }
    // The controller is usually on already. If not, the caller's next step reports the error.
    let _ = set(&two.join("cgroup.subtree_control"), "+memory");
    Ok((two, &FILES_V2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oom_kills_are_read_from_both_cgroup_versions() {
        assert_eq!(oom_kills("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n"), 3);
        assert_eq!(oom_kills("low 0\nmax 12\noom 1\noom_kill 1\noom_group_kill 0\n"), 1);
        assert_eq!(oom_kills(""), 0);
    }
}
