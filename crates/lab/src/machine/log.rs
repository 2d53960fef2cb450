//! A log with one writer at a time, which writes for all threads whose records are in the log by
//! then.
//!
//! It works as in PostgreSQL (`XLogFlush`). A thread that needs its records on the device takes the
//! lock of the log's writer if it is free. It writes all records in the log through the page cache,
//! and waits for the device. A thread that comes meanwhile waits until the lock is free. Then it
//! looks whether its own records are on the device. A delay of the writer, such as reclaim for a
//! page of the log, delays every thread that ends a transaction.
//!
//! Invariant
//! * LOG-1: a log has waiters only while it has a writer.

use super::Access;
use super::pressure::Doing;
use super::sched::{Event, Machine};
use crate::workload::{LogSpec, Step};

/// Pages written that are synced before more are: `wal_writer_flush_after`, 1 MB.
const FLUSH_AFTER: u32 = 256;

/// State of a log.
#[derive(Debug)]
pub(super) struct Log {
    spec: LogSpec,
    /// Number of transactions whose records are in the log. `flushed` of them are on the device.
    here: u64,
    flushed: u64,
    /// Page of the file that is written next.
    at: u32,
    writer: Option<usize>,
    /// Time at which the writer began.
    since_ns: u64,
    waiters: Vec<usize>,
}

impl Log {
    /// Creates an empty log.
    pub fn new(spec: LogSpec) -> Self {
        Self { spec, here: 0, flushed: 0, at: 0, writer: None, since_ns: 0, waiters: Vec::new() }
    }

    /// Adds the steps of a writer for all records in the log.
    fn writing(&mut self, log: u16, steps: &mut Vec<Step>) {
        let (spec, upto) = (self.spec, self.here);
        let mut unsynced = 0;
        for _ in self.flushed..upto {
            unsynced += spec.pages;
            if unsynced > FLUSH_AFTER {
                steps.push(Step::Sync { space: spec.space });
                unsynced = spec.pages;
            }
            for _ in 0..spec.pages {
                let (page, access) = (self.at, Access::FdWrite);
                steps.push(Step::Touch { page, space: spec.space, access });
                self.at = (self.at + 1) % spec.size.max(1);
            }
            steps.push(Step::Cpu(spec.ns));
        }
        steps.extend([Step::Sync { space: spec.space }, Step::Logged { log, upto }]);
    }
}

impl Machine {
    /// Adds a log. The first has index 0.
    pub fn add_log(&mut self, spec: LogSpec) {
        self.logs.push(Log::new(spec));
    }

    /// Ends the thread's transaction, or looks again whether the thread may end it. Returns none if
    /// it has to wait.
    pub(super) fn commit(&mut self, cpu: usize, id: usize, t: u64, log: u16) -> Option<u64> {
        let thread = &mut self.threads[id];
        let l = &mut self.logs[usize::from(log)];
        if thread.record == 0 {
            l.here += 1;
            thread.record = l.here;
        }
        if thread.record <= l.flushed {
            thread.record = 0;
            return Some(t);
        }
        if l.writer.is_some() {
            // The thread looks again when it is woken.
            thread.at -= 1;
            thread.waits_for = "for the log";
            l.waiters.push(id);
            self.does(id, Doing::Nothing);
            self.release(cpu, t);
            return None;
        }
        (l.writer, l.since_ns) = (Some(id), t);
        thread.record = 0;
        let rest = thread.steps.split_off(thread.at);
        l.writing(log, &mut thread.steps);
        thread.steps.extend(rest);
        Some(t)
    }

    /// Notes that the log is on the device up to `upto`, and frees its lock.
    pub(super) fn logged(&mut self, t: u64, log: u16, upto: u64) {
        let l = &mut self.logs[usize::from(log)];
        self.mem.spent.log_ns += t - l.since_ns;
        self.mem.spent.log_writes += 1;
        self.mem.spent.log_records += upto.saturating_sub(l.flushed);
        l.flushed = l.flushed.max(upto);
        l.writer = None;
        // The thread that came last is woken first (`LWLockQueueSelf` puts it at the head). So the
        // next writer does not queue for a processor behind threads that are done.
        for waiter in std::mem::take(&mut l.waiters).into_iter().rev() {
            self.schedule(t, Event::Wake(waiter));
        }
    }

    /// Releases the logs of which an ended thread was the writer. Other threads write its records.
    pub(super) fn leave_logs(&mut self, id: usize, t: u64) {
        for log in 0..self.logs.len() {
            if self.logs[log].writer == Some(id) {
                self.logged(t, log as u16, 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ebb_mm::space::Backing;

    use super::super::mem::Region;
    use super::super::testing::{Scripted, machine};
    use super::*;

    /// Lets so many threads end a transaction each, on two processors. Returns the writes, the
    /// records, and the time at the end.
    fn committed(threads: usize, spec: LogSpec) -> (u64, u64, u64) {
        let mut m = machine();
        let backing = Backing::File;
        let file = Region { pages: 64, backing, recency: true, exec: false, processes: 1 };
        assert_eq!(m.mem.add_space(0, &[file]), usize::from(spec.space));
        m.add_log(spec);
        for _ in 0..threads {
            m.add_thread(
                Box::new(Scripted(vec![vec![Step::Commit { log: 0 }, Step::Done(0)]])),
                0,
                true,
            );
        }
        let (_, mem, now) = m.run().unwrap();
        (mem.spent.log_writes, mem.spent.log_records, now)
    }

    const SPEC: LogSpec = LogSpec { space: 1, size: 64, pages: 1, ns: 100_000 };

    #[test]
    fn one_thread_writes_the_log_for_all_waiters_and_each_record_costs_time() {
        // The first thread writes for itself alone. The records of the threads that have come by
        // then are written together.
        let (writes, records, now) = committed(8, SPEC);
        assert_eq!((writes, records), (2, 8));
        assert!(
            now > 8 * u64::from(SPEC.ns),
            "{now}: one at a time, though there are two processors"
        );
        let (_, _, alone) = committed(1, SPEC);
        assert!(now < 8 * alone, "{now}: synced twice and not eight times ({alone})");
    }

    #[test]
    fn the_file_is_used_in_turn_and_synced_before_too_much_is_written() {
        let mut log = Log::new(LogSpec { size: 100, pages: FLUSH_AFTER / 2, ..SPEC });
        log.here = 5;
        let mut steps = Vec::new();
        log.writing(0, &mut steps);
        let syncs = steps.iter().filter(|s| matches!(s, Step::Sync { .. })).count();
        assert_eq!(syncs, 3, "two records at a time");
        assert_eq!(steps.last(), Some(&Step::Logged { log: 0, upto: 5 }));
        assert_eq!(log.at, 5 * FLUSH_AFTER / 2 % 100);
    }

    #[test]
    fn a_writer_that_ends_leaves_the_log_to_the_next() {
        let mut m = machine();
        m.mem.add_space(0, &[]);
        m.add_log(SPEC);
        for _ in 0..2 {
            m.add_thread(Box::new(Scripted(vec![vec![Step::Commit { log: 0 }]])), 0, true);
        }
        for id in 0..2 {
            let thread = &mut m.threads[id];
            thread.program.fill(&mut thread.steps);
            thread.at = 1;
            m.commit(id, id, 0, 0);
        }
        assert_eq!((m.logs[0].writer, m.logs[0].waiters.len()), (Some(0), 1));
        m.end_thread(0, 10);
        assert_eq!((m.logs[0].writer, m.logs[0].waiters.len()), (None, 0));
        assert_eq!(m.logs[0].flushed, 0, "nothing was written");
    }
}
