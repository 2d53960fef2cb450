//! Where virtual time went.

/// Time spent by kind, and things counted that vmstat has no name for.
#[derive(Clone, Copy, Default, Debug)]
pub struct Spent {
    /// Faults, without reclaim and device.
    pub fault_ns: u64,
    /// Reclaim by tasks, waiting for locks included.
    pub direct_ns: u64,
    /// Of that, waits for a congested disk.
    pub congested_ns: u64,
    /// Tasks' processor time in the kernel (`sys` of `time`): faults with the reclaim they do, reads and writes
    /// through descriptors, giving memory back. kswapd, the flusher and changes of the running task are left out.
    pub system_ns: u64,
    /// Reclaim by kswapd.
    pub kswapd_ns: u64,
    /// Waiting for lru locks.
    pub lock_wait_ns: u64,
    /// Holding lru locks.
    pub lock_hold_ns: u64,
    /// Tasks' waits for room: for writes that reclaim began, or for others.
    pub room_ns: u64,
    /// Reads that met the mark of a window, or what passes for one.
    pub marks_met: u64,
    /// Of these, marks that are none: the page is to be freed once it is written.
    pub false_marks: u64,
    /// Pages read because of those.
    pub false_ahead: u64,
    /// Time that tasks were held for a memcg above its `high`.
    pub high_ns: u64,
    /// Direct reclaim runs.
    pub direct_runs: u64,
    /// Of these, those after which the task waited for progress.
    pub progress_waits: u64,
    /// Tasks' time for adding up the counters of memcgs.
    pub flush_ns: u64,
    /// Pages mapped around a fault.
    pub around: u64,
    /// Time that a log had a writer.
    pub log_ns: u64,
    /// How often it was written.
    pub log_writes: u64,
    /// For how many records that was.
    pub log_records: u64,
}

impl Spent {
    /// What was spent after `before`.
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
