//! Totals of virtual time by purpose.

/// Time spent by purpose, and counts for which vmstat has no name.
#[derive(Clone, Copy, Default, Debug)]
pub struct Spent {
    /// Nanoseconds in faults, without reclaim and device.
    pub fault_ns: u64,
    /// Nanoseconds of reclaim by tasks, with waits for locks.
    pub direct_ns: u64,
    /// The part of `direct_ns` that is waits for a congested disk.
    pub congested_ns: u64,
    /// Tasks' processor time in the kernel, in nanoseconds (`sys` of `time`): faults with their
    /// reclaim, reads and writes through descriptors, freeing memory. kswapd, the flusher and
    /// context switches are left out.
    pub system_ns: u64,
    /// Nanoseconds of reclaim by kswapd.
    pub kswapd_ns: u64,
    /// Nanoseconds of waits for lru locks.
    pub lock_wait_ns: u64,
    /// Nanoseconds for which lru locks were held.
    pub lock_hold_ns: u64,
    /// Nanoseconds of tasks' waits for room: for writes that reclaim began, or for others.
    pub room_ns: u64,
    /// Number of reads that met the mark of a window, or a page that passes for marked.
    pub marks_met: u64,
    /// Number of `marks_met` that are no marks: the page is to be freed once it is written.
    pub false_marks: u64,
    /// Number of pages read because of `false_marks`.
    pub false_ahead: u64,
    /// Nanoseconds for which tasks were delayed because a memcg was above its `high`.
    pub high_ns: u64,
    /// Number of direct reclaim runs.
    pub direct_runs: u64,
    /// Number of direct reclaim runs after which the task waited for progress.
    pub progress_waits: u64,
    /// Tasks' time for adding up the counters of memcgs, in nanoseconds.
    pub flush_ns: u64,
    /// Number of pages mapped around a fault.
    pub around: u64,
    /// Nanoseconds for which a log had a writer.
    pub log_ns: u64,
    /// Number of writes of a log.
    pub log_writes: u64,
    /// Number of records in the writes of logs.
    pub log_records: u64,
}

impl Spent {
    /// Returns the difference from `before`.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        Self {
            fault_ns: self.fault_ns - before.fault_ns,
            direct_ns: self.direct_ns - before.direct_ns,
            congested_ns: self.congested_ns - before.congested_ns,
            system_ns: self.system_ns - before.system_ns,
            kswapd_ns: self.kswapd_ns - before.kswapd_ns,
            lock_wait_ns: self.lock_wait_ns - before.lock_wait_ns,
            lock_hold_ns: self.lock_hold_ns - before.lock_hold_ns,
            room_ns: self.room_ns - before.room_ns,
            marks_met: self.marks_met - before.marks_met,
            false_marks: self.false_marks - before.false_marks,
            false_ahead: self.false_ahead - before.false_ahead,
            high_ns: self.high_ns - before.high_ns,
            direct_runs: self.direct_runs - before.direct_runs,
            progress_waits: self.progress_waits - before.progress_waits,
            flush_ns: self.flush_ns - before.flush_ns,
            around: self.around - before.around,
            log_ns: self.log_ns - before.log_ns,
            log_writes: self.log_writes - before.log_writes,
            log_records: self.log_records - before.log_records,
        }
    }
}
