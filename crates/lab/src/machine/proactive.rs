//! Reclaim on command, as by a program that writes to `memory.reclaim` now and then.

use ebb_linux::reclaim::Proactive;
use ebb_mm::lru::scan::DEF_PRIORITY;
use ebb_mm::types::PAGE_SIZE;

use super::mem::Mem;
use super::sched::{Event, Machine};
use super::tracepoints::Doer;

/// A command to reclaim.
#[derive(Clone, Copy, Debug)]
pub struct Command {
    /// Memcg to reclaim from, with all below it.
    pub memcg: usize,
    /// Number of pages to reclaim each time.
    pub pages: u64,
    /// Interval between two reclaims, in nanoseconds.
    pub every_ns: u64,
}

impl Mem {
    /// Frees `pages` of a memcg, or has them written, as far as that can be done.
    fn reclaim_on_command(&mut self, now: u64, memcg: usize, pages: u64) {
        let mut run = Proactive::new(pages * PAGE_SIZE as u64);
        while let Some(target) = run.next() {
            let (mut freed, mut begun) = (0, 0);
            let writing = self.out.writes.pending();
            if let Some(tracepoints) = &mut self.out.tracepoints {
                tracepoints.begins(now, Doer::Command, true, false);
            }
            for priority in (0..=DEF_PRIORITY).rev() {
                self.protect(Some(memcg), false);
                let left = target - freed - begun;
                let mut sc = Proactive::scan(left, priority, self.tun.swappiness.0);
                self.shrink(now, Some(memcg), &mut sc);
                freed += self.out.freed;
                begun = self.out.writes.pending() - writing;
                if freed + begun >= target {
                    break;
                }
            }
            if let Some(tracepoints) = &mut self.out.tracepoints {
                tracepoints.ends(now, Doer::Command, true, freed);
            }
            // Pages that are being written go when that has ended. A later command finds them at
            // the old end.
            run.passed(freed + begun);
        }
    }
}

impl Machine {
    /// Adds a command that is carried out from the start of measuring on.
    pub fn command(&mut self, command: Command) {
        self.commands.push(command);
    }

    pub(super) fn begin_commands(&mut self, now: u64) {
        for i in 0..self.commands.len() {
            self.schedule(now + self.commands[i].every_ns, Event::Command(i));
        }
    }

    /// Carries out a command, on a CPU of its own.
    pub(super) fn carry_out(&mut self, i: usize) {
        let command = self.commands[i];
        self.mem.reclaim_on_command(self.now, command.memcg, command.pages);
        self.schedule(self.now + command.every_ns, Event::Command(i));
    }
}
