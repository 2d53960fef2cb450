//! Records memory of the tree that Ebb does not manage: of which processes, its maximum, and the
//! reason. It counts against the limit and cannot be stored.
//!
//! * UNMANAGED-1: each kind is reported once, when it is first met. With `--strict` that ends the
//!   run. The report at the end lists all kinds.
//! * UNMANAGED-2: a caller reports each process once. This file remembers processes only by name.
//!
//! Lock order: the lock is a leaf. The tree is killed without it.

use ebb_mm::types::PAGE_SIZE;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Maximum number of processes named per kind.
const NAMES_MAX: usize = 8;

/// Reasons why memory is not managed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// A static program, into which nothing can be preloaded.
    StaticProgram,
    /// A program without a preloaded agent, for another reason.
    NoAgent,
    /// A process to which the system does not allow an agent.
    CannotJoin,
    /// A process with more pinned pages than can be recorded, so that all its pages are pinned.
    Pinned,
    /// Memory of several processes, or of a file in memory.
    SharedMemory,
}

impl Kind {
    /// Describes the processes, for the report.
    fn whose(self) -> &'static str {
        match self {
            Self::StaticProgram => "statically linked",
            Self::NoAgent => "without an agent",
            Self::CannotJoin => "that can have no agent",
            Self::Pinned => "with too many pinned pages",
            Self::SharedMemory => "with shared memory",
        }
    }

    /// Returns the message about the first process of this kind, with advice.
    pub fn tell(self, pid: u32, name: &str) -> String {
        let (what, instead) = match self {
            Self::StaticProgram => (
                "is statically linked and takes no agent: its memory counts against the limit and cannot be stored",
                "Link it dynamically",
            ),
            Self::NoAgent => (
                "has no agent: its memory counts against the limit and cannot be stored",
                "The cause may be setuid, 32 bits, a C library other than glibc, an empty environment, another \
                 user or another root",
            ),
            Self::CannotJoin => (
                "can have no agent: its memory counts against the limit and cannot be stored",
                "The cause may be another user's rights, a seccomp filter, or a limit on threads or descriptors",
            ),
            Self::Pinned => (
                "has more pinned pages (the kernel writes to them when threads end) than Ebb can record: \
                 its memory counts against the limit and cannot be stored",
                "Use fewer threads or fewer robust mutexes",
            ),
            Self::SharedMemory => (
                "shares memory (shm_open, memfd_create, MAP_SHARED): shared memory counts against the limit \
                 and cannot be stored",
                "Use less of it, or raise --memory-max by as much",
            ),
        };
        format!("process {pid} ({name}) {what}. {instead}")
    }
}

#[derive(Debug, Default)]
struct Met {
    processes: u64,
    peak_pages: u64,
    names: Vec<String>,
}

/// Unmanaged memory of a run.
#[derive(Debug, Default)]
pub struct Unmanaged {
    kinds: Mutex<BTreeMap<Kind, Met>>,
    has_ended_run: AtomicBool,
}

/// Line of the report about one kind.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Line {
    pub why: Kind,
    pub processes: u64,
    pub peak_bytes: u64,
    pub names: Vec<String>,
}

impl Line {
    /// Returns the line for people.
    #[must_use]
    pub fn text(&self) -> String {
        let processes = if self.processes == 1 { "process" } else { "processes" };
        format!(
            "{:.1} MiB at most in {} {processes} {} ({})",
            self.peak_bytes as f64 / 1048576.0,
            self.processes,
            self.why.whose(),
            self.names.join(", ")
        )
    }
}

impl Unmanaged {
    fn kinds(&self) -> MutexGuard<'_, BTreeMap<Kind, Met>> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a process. Returns whether it is the first of its kind.
    pub fn note(&self, kind: Kind, name: &str) -> bool {
        let mut kinds = self.kinds();
        let met = kinds.entry(kind).or_default();
        met.processes += 1;
        if met.names.len() < NAMES_MAX && !met.names.iter().any(|known| known == name) {
            met.names.push(name.to_owned());
        }
        met.processes == 1
    }

    /// Records that `pages` pages are of this kind now.
    pub fn hold(&self, kind: Kind, pages: u64) {
        if let Some(met) = self.kinds().get_mut(&kind) {
            met.peak_pages = met.peak_pages.max(pages);
        }
    }

    /// Records that unmanaged memory ends the run. Returns whether that is new.
    pub fn end_run(&self) -> bool {
        !self.has_ended_run.swap(true, SeqCst)
    }

    /// Whether unmanaged memory ended the run.
    #[must_use]
    pub fn has_ended_run(&self) -> bool {
        self.has_ended_run.load(SeqCst)
    }

    /// Returns a line for each kind met.
    #[must_use]
    pub fn list(&self) -> Vec<Line> {
        let line = |(&why, met): (&Kind, &Met)| Line {
            why,
            processes: met.processes,
            peak_bytes: met.peak_pages * PAGE_SIZE as u64,
            names: met.names.clone(),
        };
        self.kinds().iter().map(line).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_of_a_kind_is_reported_and_all_are_counted() {
        let unmanaged = Unmanaged::default();
        unmanaged.hold(Kind::NoAgent, 7);
        assert_eq!(unmanaged.list(), [], "nobody of that kind was met");
        let first = ["sh", "sh", "ls"].map(|name| unmanaged.note(Kind::NoAgent, name));
        assert_eq!(first, [true, false, false]);
        assert!(unmanaged.note(Kind::SharedMemory, "sh"), "another kind");
        [3, 9, 5].into_iter().for_each(|pages| unmanaged.hold(Kind::NoAgent, pages));
        let names = ["sh", "ls"].map(str::to_owned).to_vec();
        let line = Line { why: Kind::NoAgent, processes: 3, peak_bytes: 9 * 4096, names };
        assert_eq!(unmanaged.list()[0], line);
        assert_eq!(line.text(), "0.0 MiB at most in 3 processes without an agent (sh, ls)");
        for number in 0..20 {
            unmanaged.note(Kind::StaticProgram, &number.to_string());
        }
        let line = &unmanaged.list()[0];
        assert_eq!((line.processes, line.names.len()), (20, NAMES_MAX));
    }
}
