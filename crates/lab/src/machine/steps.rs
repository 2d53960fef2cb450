//! Rare actions of a thread: faults, and steps other than touches of pages in memory.

use super::Access;
use super::mem::{Fault, Mem};
use super::pressure::Doing;
use super::sched::{Event, Machine, Thread};
use super::tracepoints::Doer;
use crate::workload::Step;

impl Thread {
    /// Returns how long the thread pauses before the write that is its next step. The write counts
    /// once, however often the thread tries it.
    pub(super) fn write_pause(&mut self, mem: &mut Mem, id: usize, t: u64) -> u64 {
        let (pause, counted) = mem.write_pause(id, t, self.counted != self.at);
        if counted {
            self.counted = self.at;
        }
        pause
    }
}

impl Machine {
    /// Handles a page that is absent. Returns the time after it, or none if the thread has to wait.
    pub(super) fn fault(
        &mut self,
        cpu: usize,
        id: usize,
        t: u64,
        space: usize,
        page: u64,
        access: Access,
    ) -> Option<u64> {
        self.now = t;
        let thread = &mut self.threads[id];
        let before = self.mem.spent;
        let fault = self.mem.fault(t, space, page, access, &mut thread.descriptors);
        let spent = &mut self.mem.spent;
        let reclaimed = spent.direct_ns - before.direct_ns;
        let slept = spent.congested_ns - before.congested_ns;
        spent.system_ns += fault.cost_ns().saturating_sub(slept);
        self.after();
        if let Fault::Again(cost) = fault {
            self.note_short(id, t, true);
            self.threads[id].reclaims = u64::MAX;
            self.does(id, Doing::Stalls);
            self.schedule(t + cost, Event::Run { cpu, thread: id });
            return None;
        }
        let short = matches!(fault, Fault::Wait { .. }) && self.mem.lacks_room();
        self.note_short(id, t, short);
        self.does(id, Doing::Works);
        if reclaimed > 0 && matches!(fault, Fault::Done(_)) {
            self.threads[id].reclaims = t;
            self.does(id, Doing::Stalls);
            self.schedule(t + reclaimed, Event::Reclaimed(id, t));
        }
        match fault {
            Fault::Done(cost) => {
                self.outcome.trace.note(space, page);
                self.threads[id].at += 1;
                self.outcome.touches += 1;
                Some(t + cost)
            }
            Fault::Again(_) => None,
            Fault::Wait { until_ns, cost_ns } => {
                self.threads[id].waits_for = "for a page or for room";
                self.block(cpu, id, t + cost_ns, until_ns);
                None
            }
            Fault::NoMemory(cost) => {
                self.mem.note_kill(self.mem.memcg_of(self.threads[id].home));
                self.kill(id, t + cost);
                self.block(cpu, id, t + cost, t + cost);
                None
            }
        }
    }

    /// Kills the process with the most memory of those that share a memcg with a thread, and frees
    /// its memory.
    pub(super) fn kill(&mut self, id: usize, t: u64) {
        let memcg = self.mem.memcg_of(self.threads[id].home);
        let homes = self.threads.iter().filter(|t| !t.ended).map(|t| t.home);
        let near = homes.filter(|&home| self.mem.memcg_of(home) == memcg);
        // Of equals the first.
        let Some(home) = near.min_by_key(|&h| (std::cmp::Reverse(self.mem.holds(h)), h)) else {
            return;
        };
        self.outcome.kills += 1;
        self.note_victim(t, home);
        for i in 0..self.threads.len() {
            if self.threads[i].home == home && !self.threads[i].ended {
                self.end_thread(i, self.now);
                if let Some(group) = self.threads[i].program.group() {
                    let go = self.barriers.lose(group, i);
                    self.go_on(self.now, go);
                }
            }
        }
        let pages = self.mem.pages_of(home);
        self.mem.free(t, home, 0, pages);
    }

    /// Records the process of this space in the tracepoints before it is killed.
    fn note_victim(&mut self, t: u64, home: usize) {
        if self.mem.out.tracepoints.is_none() {
            return;
        }
        let victim = self.mem.victim(home);
        let first = self.threads.iter().position(|t| t.home == home && !t.ended).unwrap_or(0);
        let doer = Doer::Task(self.mem.out.task, self.mem.out.cpu);
        if let Some(tracepoints) = &mut self.mem.out.tracepoints {
            tracepoints.kills(t, doer, first, victim);
        }
    }

    pub(super) fn end_thread(&mut self, id: usize, t: u64) {
        self.does(id, Doing::Nothing);
        self.leave_logs(id, t);
        let task = self.mem.tasks.get_mut(id).map(std::mem::take).unwrap_or_default();
        if let Some(run) = &task.run {
            self.mem.note_end(t, id, run);
        }
        if let Some((wait, node, _)) = task.wait {
            self.mem.nodes[node].throttle.end(wait);
        }
        let thread = &mut self.threads[id];
        thread.ended = true;
        if let Some(begun) = self.begun_ns.filter(|_| thread.measured && self.outcome.full.1 == 0) {
            self.outcome.full = (self.outcome.touches, t - begun);
        }
        self.ended += usize::from(thread.measured);
        if thread.measured && !self.starting.is_empty() {
            self.begin_if_all_here(self.now);
        }
    }

    /// Wakes threads that a barrier let go. They begin their next operation.
    fn go_on(&mut self, t: u64, threads: Vec<usize>) {
        for thread in threads {
            self.threads[thread].op_start_ns = t;
            self.schedule(t, Event::Wake(thread));
        }
    }

    /// Carries out steps other than touches and computing.
    pub(super) fn rare(&mut self, cpu: usize, id: usize, t: u64, step: Step) -> Option<u64> {
        self.now = t;
        match step {
            Step::Sleep(ns) => {
                self.threads[id].waits_for = "asleep";
                self.block(cpu, id, t, t + ns);
                self.threads[id].op_start_ns = t + ns;
                None
            }
            // Only background threads come late.
            Step::Start if self.begun_ns.is_some() => Some(t),
            Step::Start => {
                self.threads[id].waits_for = "at the start";
                self.does(id, Doing::Nothing);
                self.starting.push(id);
                self.release(cpu, t);
                self.begin_if_all_here(t);
                None
            }
            Step::Barrier { group, parties } => {
                self.threads[id].waits_for = "at a barrier";
                self.does(id, Doing::Nothing);
                let go = self.barriers.arrive(group, parties, id);
                self.release(cpu, t);
                self.go_on(t, go);
                None
            }
            Step::Free { space, page, pages } => {
                let (page, pages) = (u64::from(page), u64::from(pages));
                let cost = self.mem.free(t, usize::from(space), page, pages);
                self.mem.spent.system_ns += cost;
                Some(t + cost)
            }
            Step::Sync { space } => {
                let done = self.mem.flush(t, Some(usize::from(space)));
                self.after();
                if done > t {
                    self.threads[id].waits_for = "for a sync";
                    self.block(cpu, id, t, done);
                    return None;
                }
                Some(t)
            }
            Step::Direct { pages, write } => {
                let place = self.mem.direct_at();
                let done = self.mem.disk.submit(t, write, place, u64::from(pages));
                self.mem.spent.system_ns += self.mem.costs.submit_ns;
                if write || done == t {
                    // The write goes on in the background, and no thread waits for it.
                    return Some(t + self.mem.costs.submit_ns);
                }
                self.threads[id].waits_for = "for a transfer";
                self.block(cpu, id, t + self.mem.costs.submit_ns, done);
                None
            }
            Step::Ahead { page, space, pages } => {
                let descriptors = &mut self.threads[id].descriptors;
                descriptors.begin_request(usize::from(space), u64::from(page), pages);
                Some(t)
            }
            Step::Commit { log } => self.commit(cpu, id, t, log),
            Step::Logged { log, upto } => {
                self.logged(t, log, upto);
                Some(t)
            }
            Step::Touch { .. } | Step::Cpu(_) | Step::Begin | Step::Done(_) => Some(t),
        }
    }
}

#[cfg(test)]
mod tests {
    use ebb_mm::space::Backing;

    use super::super::testing::{Scripted, machine};
    use super::*;

    #[test]
    fn system_time_is_what_tasks_do_in_the_kernel_and_neither_computing_nor_waiting() {
        let touch = |page, access| Step::Touch { page, space: 1, access };
        let run = |steps: Vec<Step>| {
            let mut m = machine();
            let region = |backing| super::super::Region {
                pages: 8,
                backing,
                recency: true,
                exec: false,
                processes: 1,
            };
            m.mem.add_space(0, &[region(Backing::Anon), region(Backing::File)]);
            m.add_thread(Box::new(Scripted(vec![steps])), 1, true);
            m.begun_ns = Some(0);
            let (outcome, mem, _) = m.run().unwrap();
            (outcome.spent.system_ns, mem.costs)
        };
        let (ns, c) = run(vec![Step::Cpu(9_000), Step::Sleep(9_000)]);
        assert_eq!(ns, 0);
        let new = c.fault_ns + c.zero_ns + c.alloc_ns;
        // A new page, touched twice, and then freed.
        let write = touch(0, Access::Write);
        assert_eq!(run(vec![write, write]).0, new);
        let free = Step::Free { space: 1, page: 0, pages: 1 };
        assert_eq!(run(vec![write, free]).0, new + c.free_ns);
        // A read that waits for the disk, and one that finds the page.
        let read = touch(8, Access::FdRead);
        let (first, twice) = (run(vec![read]).0, run(vec![read, read]).0);
        assert!(first < 80_000, "{first}: the disk's time is not the kernel's");
        assert_eq!(twice, first + c.fd_ns);
    }

    #[test]
    fn a_write_that_faults_and_resumes_is_counted_once() {
        let mut m = machine();
        let write = Step::Touch { page: 0, space: 0, access: Access::FdWrite };
        m.add_thread(Box::new(Scripted(vec![vec![write]])), 0, true);
        let thread = &mut m.threads[0];
        thread.program.fill(&mut thread.steps);
        // The write is tried, and again after a fault that had to wait.
        for _ in 0..3 {
            m.threads[0].write_pause(&mut m.mem, 0, 0);
        }
        assert_eq!(m.mem.flusher.made(0), 1);
        m.threads[0].at = 1;
        m.threads[0].write_pause(&mut m.mem, 0, 0);
        assert_eq!(m.mem.flusher.made(0), 2);
    }
}
