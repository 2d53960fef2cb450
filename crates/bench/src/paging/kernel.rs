//! The kernel's side: a memory cgroup (v1) and a swap file, undone when dropped.
//!
//! The disk is told to be no rotating one, and swap-in to read single pages, while the swap file
//! is in use: the kernel's best on this load. Both settings are put back.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const MEMORY: &str = "/sys/fs/cgroup/memory";
const CLUSTER: &str = "/proc/sys/vm/page-cluster";

/// The cgroup and the swap file of one benchmark.
#[derive(Debug)]
pub struct Kernel {
    /// What programs enter.
    pub cgroup: PathBuf,
    file: PathBuf,
    /// Settings to put back, with what they held.
    settings: Vec<(PathBuf, String)>,
}

impl Kernel {
    /// Sets both up, or says in a line why that cannot be.
    pub fn new(limit_bytes: u64, swap_bytes: u64, folder: &Path) -> Result<Self, String> {
        if !Path::new(MEMORY).join("memory.limit_in_bytes").exists() {
            return Err("no memory cgroup (v1) at /sys/fs/cgroup/memory".into());
        }
        let name = format!("ebb-bench-{}", std::process::id());
        let mut kernel = Self {
            cgroup: Path::new(MEMORY).join(&name),
            file: folder.join(format!("{name}.swap")),
            settings: Vec::new(),
        };
        let cannot = |what: &str, error| format!("cannot {what}: {error} (are you root?)");
        fs::create_dir(&kernel.cgroup).map_err(|e| cannot("make a memory cgroup", e))?;
        fs::write(kernel.cgroup.join("memory.limit_in_bytes"), limit_bytes.to_string())
            .map_err(|e| cannot("limit a memory cgroup", e))?;
        let file = kernel.file.to_string_lossy().into_owned();
        command("fallocate", &["-l", &swap_bytes.to_string(), &file])?;
        command("chmod", &["600", &file])?;
        command("mkswap", &[&file])?;
        let rotational = disk_of(folder).map(|disk| disk.join("queue/rotational"));
        if let Some(rotational) = &rotational {
            kernel.set(rotational, "0")?;
        }
        kernel.set(Path::new(CLUSTER), "0")?;
        let result = command("swapon", &[&file]);
        if rotational.is_some() {
            kernel.restore(0);
        }
        result.map(|()| kernel)
    }

    fn set(&mut self, path: &Path, value: &str) -> Result<(), String> {
        let cannot = |error| format!("cannot set {}: {error}", path.display());
        let before = fs::read_to_string(path).map_err(cannot)?;
        self.settings.push((path.to_owned(), before.trim().to_owned()));
        fs::write(path, value).map_err(cannot)
    }

    fn restore(&mut self, n: usize) {
        let (path, value) = self.settings.remove(n);
        if let Err(error) = fs::write(&path, &value) {
            eprintln!("ebb bench: {} was {value} and could not be reset: {error}", path.display());
        }
    }
}

impl Drop for Kernel {
    fn drop(&mut self) {
        let file = self.file.to_string_lossy().into_owned();
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        if swaps.contains(&file)
            && let Err(error) = command("swapoff", &[&file])
        {
            eprintln!("ebb bench: {error}");
        }
        while !self.settings.is_empty() {
            self.restore(0);
        }
        // Not there when setting up failed before it was made.
        let _ = fs::remove_file(&self.file);
        // A killed program may take a moment to leave the cgroup.
        for _ in 0..100 {
            if fs::remove_dir(&self.cgroup).is_ok() || !self.cgroup.exists() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

fn command(program: &str, arguments: &[&str]) -> Result<(), String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.map_err(|error| format!("cannot run {program}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{program} failed: {}", said.trim()))
}

/// The `/sys/block` entry of the disk that holds `folder`, if it is a plain one.
fn disk_of(folder: &Path) -> Option<PathBuf> {
    use std::os::unix::fs::MetadataExt;
    let device = fs::metadata(folder).ok()?.dev();
    let (major, minor) = ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00));
    let disk = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}")).ok()?;
    let found = [disk.clone(), disk.parent()?.to_owned()];
    found.into_iter().find(|disk| disk.join("queue/rotational").exists())
}
