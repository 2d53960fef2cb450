//! Writes the events of reclaim as lines of a kernel's tracepoints (`vmscan:*`, `oom:mark_victim`).
//!
//! The form is that of ftrace's `trace` file, with the fields that Linux 6.12 prints. Times are
//! those of the machine's clock. The record does not change the run.
//!
//! Invariants
//! * TRACEPOINTS-1: lines are in the order of their times. A line ahead of the clock waits until
//!   the clock is there.
//! * TRACEPOINTS-2: events counted before a mark are written before it. So the events between two
//!   marks agree with the counters of the time between them. Their times are the mark's at the
//!   latest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt::{self, Arguments};
use std::io::{self, Write};

use ebb_mm::folio::LruType;
use ebb_mm::lru::{Reclaimer, ScanEvent};

/// Process id of the first thread's task.
const FIRST_TASK: usize = 1000;
/// Process id of the first node's kswapd.
const FIRST_KSWAPD: usize = 71;
/// Process id of the task that reclaims on command.
const COMMANDER: usize = 60;
/// Most characters of a task's name that a kernel keeps.
const NAME_MAX: usize = 15;
/// Bytes of a frame's record (`struct page`).
const RECORD_BYTES: u64 = 64;

/// Flags of a task's request: of one that may enter file systems, and of one that may not.
const GFP: [&str; 2] =
    ["GFP_HIGHUSER_MOVABLE", "GFP_NOFS|__GFP_HIGHMEM|__GFP_HARDWALL|__GFP_MOVABLE"];

/// Task that does something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doer {
    /// A thread, and its CPU.
    Task(usize, usize),
    /// A node's kswapd.
    Kswapd(usize),
    /// The task that reclaims on command.
    Command,
}

/// Address space and memory of a process that is killed, in KiB.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Victim {
    pub total: u64,
    pub anon: u64,
    pub file: u64,
    pub shmem: u64,
}

/// A writer of tracepoint lines.
pub struct Tracepoints {
    sink: Box<dyn Write + Send>,
    /// Lines that wait for the clock: time, number, text.
    waiting: BinaryHeap<Reverse<(u64, u64, String)>>,
    said: u64,
    /// Time up to which everything is written, in nanoseconds.
    written_ns: u64,
    /// Names of the threads.
    names: Vec<String>,
    /// First CPU of each node. kswapd gets this CPU, though it takes none from other tasks on this
    /// machine.
    first_cpus: Vec<usize>,
    /// Task that takes out the batch under way.
    batch: Doer,
    /// First error of `sink`. Nothing is written after it.
    error: Option<io::Error>,
}

impl fmt::Debug for Tracepoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracepoints").field("said", &self.said).finish_non_exhaustive()
    }
}

impl Tracepoints {
    /// Creates a writer into `sink`. `title` names the run.
    #[must_use]
    pub fn new(sink: Box<dyn Write + Send>, title: &str) -> Self {
        let mut new = Self {
            sink,
            waiting: BinaryHeap::new(),
            said: 0,
            written_ns: 0,
            names: Vec::new(),
            first_cpus: Vec::new(),
            batch: Doer::Command,
            error: None,
        };
        new.write(format_args!("# tracer: nop\n#\n# ebb lab: {title}\n#\n"));
        let columns = "TASK-PID     CPU#         TIMESTAMP  FUNCTION";
        new.write(format_args!("#           {columns}\n"));
        new
    }

    /// Sets the names of the threads and the first CPU of each node.
    pub(crate) fn set_names(&mut self, names: Vec<String>, first_cpus: Vec<usize>) {
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '-' };
        let short = |name: String| name.chars().take(NAME_MAX).map(plain).collect();
        self.names = names.into_iter().map(short).collect();
        self.first_cpus = first_cpus;
    }

    fn write(&mut self, line: Arguments<'_>) {
        if self.error.is_none() {
            self.error = self.sink.write_fmt(line).err();
        }
    }

    /// Writes the lines with times before `now_ns`, which the clock shows.
    pub(super) fn until(&mut self, now_ns: u64) {
        self.written_ns = self.written_ns.max(now_ns);
        while let Some(Reverse((at, ..))) = self.waiting.peek()
            && *at < now_ns
        {
            self.write_next(u64::MAX);
        }
    }

    /// Writes the next line, with a time of `latest_ns` at the latest.
    fn write_next(&mut self, latest_ns: u64) {
        let Some(Reverse((at, _, line))) = self.waiting.pop() else { return };
        let us = at.min(latest_ns) / 1000;
        let (task, event) = line.split_at(line.find('|').unwrap_or(0));
        let event = event.trim_start_matches('|');
        let (seconds, micro) = (us / 1_000_000, us % 1_000_000);
        self.write(format_args!("{task} ..... {seconds:5}.{micro:06}: {event}\n"));
    }

    /// Writes all that is left.
    ///
    /// # Errors
    /// Returns the first error of the sink.
    pub fn finish(mut self) -> io::Result<()> {
        self.until(u64::MAX);
        self.error.map_or_else(|| self.sink.flush(), Err)
    }

    fn say(&mut self, at_ns: u64, doer: Doer, event: Arguments<'_>) {
        let (name, number, cpu) = match doer {
            Doer::Task(id, cpu) => {
                let name = self.names.get(id).map_or("task", String::as_str);
                (name.to_owned(), FIRST_TASK + id, cpu)
            }
            Doer::Kswapd(node) => {
                let cpu = self.first_cpus.get(node).copied().unwrap_or(0);
                (format!("kswapd{node}"), FIRST_KSWAPD + node, cpu)
            }
            Doer::Command => ("reclaimer".to_owned(), COMMANDER, 0),
        };
        self.said += 1;
        let line = format!("{name:>16}-{number:<7} [{cpu:03}]|{event}");
        self.waiting.push(Reverse((at_ns.max(self.written_ns), self.said, line)));
    }

    /// Writes a mark after all events that were recorded before it.
    pub(super) fn mark(&mut self, at_ns: u64, doer: Doer, what: &str) {
        while !self.waiting.is_empty() {
            self.write_next(at_ns);
        }
        self.written_ns = self.written_ns.max(at_ns);
        self.say(at_ns, doer, format_args!("tracing_mark_write: {what}"));
        self.write_next(u64::MAX);
    }

    /// Records that a node's kswapd goes to sleep until it is woken.
    pub(super) fn kswapd_sleeps(&mut self, at_ns: u64, node: usize) {
        self.say(at_ns, Doer::Kswapd(node), format_args!("mm_vmscan_kswapd_sleep: nid={node}"));
    }

    /// Records that a node's kswapd begins a run.
    pub(super) fn kswapd_begins(&mut self, at_ns: u64, node: usize) {
        let event = format_args!("mm_vmscan_kswapd_wake: nid={node} order=0");
        self.say(at_ns, Doer::Kswapd(node), event);
    }

    /// Records that `doer` wakes a node's kswapd.
    pub(super) fn wakes_kswapd(&mut self, at_ns: u64, doer: Doer, node: usize) {
        let gfp = GFP[0];
        let event = format_args!("mm_vmscan_wakeup_kswapd: nid={node} order=0 gfp_flags={gfp}");
        self.say(at_ns, doer, event);
    }

    /// Records that `doer` begins to reclaim, from one memcg if `memcg`, otherwise from all.
    pub(super) fn begins(&mut self, at_ns: u64, doer: Doer, memcg: bool, no_fs: bool) {
        let (what, gfp) = (kind(memcg), GFP[usize::from(no_fs)]);
        let event = format_args!("mm_vmscan_{what}_reclaim_begin: order=0 gfp_flags={gfp}");
        self.say(at_ns, doer, event);
    }

    /// Records the end of a reclaim that has freed `freed` pages.
    pub(super) fn ends(&mut self, at_ns: u64, doer: Doer, memcg: bool, freed: u64) {
        let what = kind(memcg);
        self.say(at_ns, doer, format_args!("mm_vmscan_{what}_reclaim_end: nr_reclaimed={freed}"));
    }

    /// Records that a process is killed, on the CPU of the task that lacks memory.
    pub(super) fn kills(&mut self, at_ns: u64, doer: Doer, thread: usize, of: Victim) {
        let Victim { total, anon, file, shmem } = of;
        let name = self.names.get(thread).cloned().unwrap_or_default();
        let pid = FIRST_TASK + thread;
        self.say(
            at_ns,
            doer,
            format_args!(
                "mark_victim: pid={pid} comm={name} total-vm={total}kB anon-rss={anon}kB file-rss:{file}kB \
                 shmem-rss:{shmem}kB uid=0 pgtables=0kB oom_score_adj=0"
            ),
        );
    }

    /// Records that the reclaimer writes a page.
    pub(super) fn writes(&mut self, at_ns: u64, pfn: u32, file: bool) {
        let (page, flags) = (u64::from(pfn) * RECORD_BYTES, flags(file));
        let event =
            format_args!("mm_vmscan_write_folio: page={page:016x} pfn={pfn:#x} flags={flags}");
        self.say(at_ns, self.batch, event);
    }

    /// Records a batch that the engine reports. `task` is the running thread and its CPU.
    pub(super) fn batch(&mut self, at_ns: u64, told: &ScanEvent, task: (usize, usize)) {
        let doer = |reclaimer: Reclaimer, node: u8| match reclaimer {
            Reclaimer::Kswapd => Doer::Kswapd(usize::from(node)),
            Reclaimer::Direct => Doer::Task(task.0, task.1),
            Reclaimer::Proactive => Doer::Command,
        };
        match told {
            ScanEvent::Isolated(i) => {
                self.batch = doer(i.reclaimer, i.node);
                let state = if i.active { "active" } else { "inactive" };
                let ty = if i.ty == LruType::File { "file" } else { "anon" };
                self.say(
                    at_ns,
                    self.batch,
                    format_args!(
                        "mm_vmscan_lru_isolate: classzone={} order={} nr_requested={} nr_scanned={} nr_skipped={} \
                         nr_taken={} lru={state}_{ty}",
                        i.zone, i.order, i.asked, i.looked, i.skipped, i.taken
                    ),
                );
            }
            ScanEvent::Shrunk(y) => {
                let file = y.ty == LruType::File;
                let young = if file { [0, y.activated] } else { [y.activated, 0] };
                self.say(
                    at_ns,
                    doer(y.reclaimer, y.node),
                    format_args!(
                        "mm_vmscan_lru_shrink_inactive: nid={} nr_scanned={} nr_reclaimed={} nr_dirty={} \
                         nr_writeback={} nr_congested={} nr_immediate={} nr_activate_anon={} nr_activate_file={} \
                         nr_ref_keep={} nr_unmap_fail=0 priority={} flags={}",
                        y.node,
                        y.looked,
                        y.freed,
                        y.met.dirty,
                        y.met.writeback,
                        y.met.congested,
                        y.met.immediate,
                        young[0],
                        young[1],
                        y.used,
                        y.priority,
                        flags(file)
                    ),
                );
            }
            ScanEvent::Aged(a) => {
                let down = a.taken - a.rotated;
                self.say(
                    at_ns,
                    doer(a.reclaimer, a.node),
                    format_args!(
                        "mm_vmscan_lru_shrink_active: nid={} nr_taken={} nr_active={} nr_deactivated={down} \
                         nr_referenced={} priority={} flags={}",
                        a.node,
                        a.taken,
                        a.rotated,
                        a.rotated,
                        a.priority,
                        flags(a.ty == LruType::File)
                    ),
                );
            }
        }
    }
}

/// Returns the tracepoints' name for reclaim by a task.
fn kind(memcg: bool) -> &'static str {
    if memcg { "memcg" } else { "direct" }
}

/// Returns the flags of a list of files or of anonymous pages. No reclaimer waits for a write.
fn flags(file: bool) -> &'static str {
    if file { "RECLAIM_WB_FILE|RECLAIM_WB_ASYNC" } else { "RECLAIM_WB_ANON|RECLAIM_WB_ASYNC" }
}
