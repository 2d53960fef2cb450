//! Finds the processes of one run through /proc and adds up their anonymous memory.
//!
//! A process belongs to a run if it descends from the started process. So does a process with the
//! run's tag in its environment. Ebb's own processes are those that execute the `ebb` binary. The
//! limit does not cover them.
//!
//! Memory is `RssAnon` if there is one process, and the sum of `Pss_Anon` otherwise. So a page
//! shared by fork counts once. Processes in one address space also count once.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use ebb_sys::process::shares_memory;

/// The environment variable that marks every process of a run.
pub const TAG: &str = "EBB_E2E_TAG";

/// Returns the folders of the run whose supervisor is process `supervisor`, in all possible
/// directories (`cli/src/folder.rs`).
pub fn folders_of(supervisor: i32) -> Vec<PathBuf> {
    let user = rustix::process::getuid().as_raw();
    let named = ["XDG_RUNTIME_DIR", "XDG_CACHE_HOME"].map(std::env::var_os).into_iter().flatten();
    let cache = std::env::var_os("HOME").map(|home| Path::new(&home).join(".cache"));
    let session = format!("/run/user/{user}");
    let common = ["/run", &session, "/var/lib", "/tmp", "/dev/shm", "/var/tmp"].map(PathBuf::from);
    let places: BTreeSet<PathBuf> = named.map(PathBuf::from).chain(cache).chain(common).collect();
    let entries = places.into_iter().filter_map(|place| fs::read_dir(place).ok()).flatten();
    let prefix = format!("ebb-{supervisor}-");
    let is_its = |entry: &fs::DirEntry| entry.file_name().to_string_lossy().starts_with(&prefix);
    entries.flatten().filter(is_its).map(|entry| entry.path()).collect()
}

/// Identity of a run: the started process, its tag, and the `ebb` binary.
#[derive(Clone, Debug)]
pub struct Root {
    /// PID of the started process: the program, or `ebb`.
    pub pid: i32,
    /// The value of [`TAG`].
    pub tag: String,
    /// The binary under test, which Ebb's own processes execute.
    pub ebb: PathBuf,
}

/// The processes of a run at one moment.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// PIDs of the program's processes.
    pub program: Vec<i32>,
    /// PIDs of Ebb's own processes.
    pub ebb: Vec<i32>,
}

impl Root {
    /// Finds every process of the run: descendants and processes with the tag.
    pub fn find(&self) -> Tree {
        let mut pids = BTreeSet::new();
        add_descendants(self.pid, &mut pids);
        let entry = format!("{TAG}={}", self.tag).into_bytes();
        for pid in all_pids() {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            if environment.split(|byte| *byte == 0).any(|variable| variable == entry) {
                pids.insert(pid);
            }
        }
        self.sort(pids)
    }

    /// Finds the descendants alone, which costs less.
    pub fn descendants(&self) -> Tree {
        let mut pids = BTreeSet::new();
        add_descendants(self.pid, &mut pids);
        self.sort(pids)
    }

    fn sort(&self, pids: BTreeSet<i32>) -> Tree {
        let mut tree = Tree::default();
        for pid in pids.into_iter().filter(|pid| is_alive(*pid)) {
            let exe = fs::read_link(format!("/proc/{pid}/exe")).unwrap_or_default();
            let own = exe == self.ebb || exe == Path::new(&deleted(&self.ebb));
            if own { tree.ebb.push(pid) } else { tree.program.push(pid) }
        }
        tree
    }
}

impl Tree {
    /// Returns every process, Ebb's too.
    pub fn all(&self) -> impl Iterator<Item = i32> + '_ {
        self.program.iter().chain(&self.ebb).copied()
    }

    /// Returns the program's first process, whose parent is no process of the program.
    pub fn first(&self) -> Option<i32> {
        let parent = |pid: i32| {
            let line = line_of(&format!("/proc/{pid}/status"), "PPid:");
            line.split_whitespace().nth(1).and_then(|word| word.parse::<i32>().ok())
        };
        let is_first = |&pid: &i32| parent(pid).is_some_and(|of| !self.program.contains(&of));
        self.program.iter().copied().find(is_first)
    }

    /// Returns the anonymous memory of the program's processes, in bytes.
    pub fn anonymous(&self) -> u64 {
        match self.program[..] {
            [] => 0,
            [only] => kib_in(&format!("/proc/{only}/status"), "RssAnon:") * 1024,
            _ => self.memories().into_iter().map(proportional).sum(),
        }
    }

    /// Returns one process of each address space, because the child of a vfork shares its parent's.
    fn memories(&self) -> Vec<i32> {
        let mut memories: Vec<i32> = Vec::new();
        for &pid in &self.program {
            let same = |other: &i32| shares_memory(other.unsigned_abs(), pid.unsigned_abs());
            if !memories.iter().any(same) {
                memories.push(pid);
            }
        }
        memories
    }

    /// Returns the anonymous memory of Ebb's own processes, in bytes.
    pub fn own(&self) -> u64 {
        self.ebb.iter().map(|pid| kib_in(&format!("/proc/{pid}/status"), "RssAnon:") * 1024).sum()
    }

    /// Returns the state of every thread, for a run that hangs.
    pub fn dump(&self) -> String {
        let mut text = String::new();
        for pid in self.all() {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            let _ = writeln!(text, "--- process {pid}: {command}");
            for field in ["State:", "PPid:", "RssAnon:", "Threads:", "SigPnd:", "ShdPnd:"] {
                text.push_str(&line_of(&format!("/proc/{pid}/status"), field));
            }
            let tasks = fs::read_dir(format!("/proc/{pid}/task"));
            for task in tasks.into_iter().flatten().flatten().take(40) {
                dump_task(&task.path(), &mut text);
            }
        }
        text
    }
}

fn dump_task(task: &Path, text: &mut String) {
    let read = |name: &str| fs::read_to_string(task.join(name)).unwrap_or_default();
    let state = line_of(&task.join("status").to_string_lossy(), "State:");
    let _ = writeln!(
        text,
        "  task {} {} {} wchan {} syscall {}",
        task.file_name().unwrap_or_default().to_string_lossy(),
        read("comm").trim(),
        state.trim(),
        read("wchan"),
        read("syscall").trim()
    );
    for frame in read("stack").lines() {
        let _ = writeln!(text, "      {frame}");
    }
}

/// Returns the start time of a process, in ticks of the machine's clock. A later process with the
/// same PID has another start time.
pub fn began(pid: i32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit(')').next()?.split_whitespace().nth(19)?.parse().ok()
}

/// Returns whether a process exists and is no zombie.
pub fn is_alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| {
        let state = stat.rsplit(')').next().and_then(|rest| rest.trim().chars().next());
        !matches!(state, None | Some('Z' | 'X'))
    })
}

fn deleted(path: &Path) -> String {
    format!("{} (deleted)", path.display())
}

fn all_pids() -> Vec<i32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

fn add_descendants(pid: i32, pids: &mut BTreeSet<i32>) {
    if !pids.insert(pid) {
        return;
    }
    for task in fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten() {
        let children = fs::read_to_string(task.path().join("children")).unwrap_or_default();
        for child in children.split_whitespace().filter_map(|word| word.parse().ok()) {
            add_descendants(child, pids);
        }
    }
}

fn proportional(pid: i32) -> u64 {
    kib_in(&format!("/proc/{pid}/smaps_rollup"), "Pss_Anon:") * 1024
}

fn line_of(path: &str, field: &str) -> String {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines()
        .find(|line| line.starts_with(field))
        .map_or(String::new(), |line| format!("  {line}\n"))
}

fn kib_in(path: &str, field: &str) -> u64 {
    let line = line_of(path, field);
    line.split_whitespace().nth(1).and_then(|word| word.parse().ok()).unwrap_or(0)
}
