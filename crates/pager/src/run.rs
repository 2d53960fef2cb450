//! How far a run is: far from its limit, near it, at it, or at its end.
//!
//! Far from the limit the program is to notice nothing of Ebb. New processes do not wait for their
//! agents then, the kernel makes huge pages, and no area is registered. The monitor ends one after
//! the other as the tree grows ([`RunState::approach`]). A detach, a kill or the end of all
//! processes ends the run. The steps of a detach are in `control/detach.rs`.
//!
//! * RUN-1: the steps come in one order. First `is_far` ends, then the huge pages end, and then
//!   managing begins. A small budget, `--eager`, sampling and `ebb lru-gen` take all at once.
//! * RUN-2: no step is undone, except that a detach lifts the limit and ends managing
//!   (`control/detach.rs`).
//! * RUN-3: the file that tells new processes of `is_far` exists whenever that is set.
//! * RUN-4: `killing` implies `ending`. The first thread that sets `killing` notes the event of the
//!   kill. The monitor repeats the kill until no process is left.
//!
//! Lock order: a fault thread takes `last_words` under `Mm::state`. All other locks here are held
//! for single operations, and no lock is taken under them.

use crate::config::Config;
use crate::mm::Mm;
use crate::seam::{Connection, answer};
use crate::wait::signal::Signal;
use ebb_agent::protocol::FAR_SUFFIX;
use ebb_mm::driver::{LATE_PAGES, managed_from};
use ebb_mm::types::Vpn;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// Returns the number of pages from which the kernel is to make no more huge pages. By huge pages a
/// program fills the remaining memory too fast: 127 MiB in 6 ms in which the monitor did not run.
pub fn no_huge_pages_from(goal: u64) -> u64 {
    managed_from(goal).saturating_sub(LATE_PAGES)
}

/// Returns the number of pages from which new processes wait for their agents. What a process fills
/// before it has an agent does not count at once.
fn far_below(goal: u64) -> u64 {
    no_huge_pages_from(goal) / 2
}

/// Course of a run.
pub struct RunState {
    pub monitor: Signal,
    /// Whether areas are brought under management.
    pub managing: AtomicBool,
    /// Whether the kernel is to make no more huge pages. Set a little before `managing`.
    pub no_huge_pages: AtomicBool,
    /// Whether new processes need not wait for their agents, because the limit is far.
    pub is_far: AtomicBool,
    /// File that exists while that is so.
    far_file: Mutex<Option<FarFile>>,
    pub detach: Detach,
    pub ending: AtomicBool,
    /// Whether the pager is ending the run by killing its processes.
    pub killing: AtomicBool,
    /// Locked while a lost page kills the program and the message about it is written.
    pub last_words: Mutex<()>,
}

impl RunState {
    /// Returns the state at the start of a run in which reclaim aims at `goal` pages.
    pub fn new(config: &Config, goal: u64) -> Self {
        // A small budget is near its limit from the start. Then areas are managed from the
        // program's first page on, whenever the monitor starts.
        let at_once = config.eager || config.sample;
        Self {
            monitor: Signal::default(),
            managing: AtomicBool::new(at_once || managed_from(goal) == 0),
            no_huge_pages: AtomicBool::new(at_once || no_huge_pages_from(goal) == 0),
            is_far: AtomicBool::new(false),
            far_file: Mutex::default(),
            detach: Detach::default(),
            ending: AtomicBool::new(false),
            killing: AtomicBool::new(false),
            last_words: Mutex::default(),
        }
    }

    /// Takes the steps that are due with `used` pages. Returns how many more pages may be used
    /// before the next step; None if areas are managed already.
    pub fn approach(&self, used: u64, goal: u64) -> Option<u64> {
        if self.managing.load(Relaxed) {
            return None;
        }
        let (no_huge_pages_from, threshold) = (no_huge_pages_from(goal), managed_from(goal));
        if used >= far_below(goal) {
            self.end_far();
        }
        let is_new = used >= no_huge_pages_from && self.forbid_huge_pages();
        if used >= threshold {
            self.managing.store(true, Relaxed);
        }
        // Returns 0 so that the next tick tells the agents at once.
        if is_new || used >= threshold {
            return Some(0);
        }
        Some(if used < no_huge_pages_from { no_huge_pages_from } else { threshold } - used)
    }

    /// Has the kernel make no more huge pages. Returns whether that is new.
    pub fn forbid_huge_pages(&self) -> bool {
        self.end_far();
        !self.no_huge_pages.swap(true, SeqCst)
    }

    /// Begins managing at once, after the steps before it (RUN-1). Returns whether that is new.
    pub fn begin_managing(&self) -> bool {
        self.forbid_huge_pages();
        !self.managing.swap(true, SeqCst)
    }

    /// Lets new processes start without waiting for their agents, unless the limit is near already.
    pub fn begin_far(&self, socket: &Path) {
        if !self.no_huge_pages.load(Relaxed)
            && let Ok(file) = FarFile::create(socket)
        {
            *self.far_file.lock().unwrap_or_else(PoisonError::into_inner) = Some(file);
            self.is_far.store(true, SeqCst);
        }
    }

    /// Has new processes wait for their agents from now on.
    fn end_far(&self) {
        if self.is_far.swap(false, SeqCst) {
            drop(self.far_file.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }

    /// Wakes the monitor after a process has come or gone. Far from the limit the monitor does not
    /// need to know before its next tick.
    pub fn wake_monitor(&self) {
        if self.no_huge_pages.load(Relaxed) || self.managing.load(Relaxed) {
            self.monitor.raise();
        }
    }
}

/// State of a detach.
#[derive(Default)]
pub struct Detach {
    /// Whether a detach is under way: no page leaves.
    pub on: AtomicBool,
    /// Whether kswapd has seen that.
    pub rests: AtomicBool,
    /// Pages that must come back, for the fault thread.
    pub wanted: Mutex<VecDeque<(Arc<Mm>, Vpn)>>,
    /// Whether a detach was tried because nothing more could be stored.
    tried: AtomicBool,
    /// Connections of the commands that asked for the detach.
    pub lines: Mutex<Vec<Box<dyn Connection>>>,
}

impl Detach {
    /// Returns whether a detach is under way, so that no page may leave.
    pub fn is_on(&self) -> bool {
        self.on.load(SeqCst)
    }

    /// Records that kswapd has nothing under way.
    pub fn rest(&self) {
        self.rests.store(true, SeqCst);
    }

    /// Takes the list of pages that must come back.
    pub fn take_wanted(&self) -> VecDeque<(Arc<Mm>, Vpn)> {
        std::mem::take(&mut self.wanted.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Returns whether a run in which nothing more can be stored may end by a detach.
    pub fn is_way_out(&self, config: &Config) -> bool {
        config.attached && !self.tried.load(SeqCst)
    }

    /// Takes the way out if it is open. Returns whether it is. The caller then signals the
    /// supervisor.
    pub fn try_way_out(&self, config: &Config) -> bool {
        let may = self.is_way_out(config);
        if may {
            self.tried.store(true, SeqCst);
        }
        may
    }

    /// Answers the commands that asked for the detach.
    pub fn answer(&self, result: &Result<(), String>) {
        let lines = std::mem::take(&mut *self.lines.lock().unwrap_or_else(PoisonError::into_inner));
        lines.iter().for_each(|line| answer::done(&**line, result.clone()));
    }
}

/// File beside the socket that tells new processes that the run is far from its limit.
struct FarFile(PathBuf);

impl FarFile {
    fn create(socket: &Path) -> std::io::Result<Self> {
        let path = far_file(socket);
        std::fs::File::create_new(&path)?;
        Ok(Self(path))
    }
}

impl Drop for FarFile {
    fn drop(&mut self) {
        // The folder may be gone.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Returns the path of the file that exists while the run of this socket is far from its limit.
#[must_use]
pub fn far_file(socket: &Path) -> PathBuf {
    let mut path = socket.as_os_str().to_owned();
    path.push(FAR_SUFFIX);
    path.into()
}
