//! Costs of a run beside the waiting for pages. They are CPU time of Ebb's own threads, and time
//! that the program's threads lose. Threads lose time to mapping changes, to calls of their agent,
//! and to the freezer.

use crate::pager::Pager;
use ebb_sys::sched;
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

/// CPU time of Ebb, in microseconds: its two processes, the pager's threads by task, and its agents
/// as last looked at.
#[derive(Debug, Default, Serialize)]
pub struct Cpu {
    pub supervisor_us: u64,
    pub pager_us: u64,
    /// The next five are parts of the pager's time. `rest_us` is for threads of the store, and for
    /// threads that start and end.
    pub faults_us: u64,
    pub kswapd_us: u64,
    pub monitor_us: u64,
    pub listener_us: u64,
    pub rest_us: u64,
    pub agents_us: u64,
}

impl Cpu {
    /// Returns the CPU time of this run until now.
    pub fn of(pager: &Pager) -> Self {
        let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let there: u64 = pager.mms().iter().map(|mm| mm.agent.cpu_ns.load(Relaxed)).sum();
        let mut cpu = Self {
            supervisor_us: sched::run_times(pager.processes.supervisor)
                .map_or(0, |times| times.ran_ns / 1000),
            pager_us: own.tv_sec as u64 * 1_000_000 + own.tv_nsec as u64 / 1000,
            agents_us: (there + pager.telemetry.counters.agents_ns.load(Relaxed)) / 1000,
            ..Self::default()
        };
        cpu.divide(&sched::own_threads());
        cpu
    }

    /// Divides the pager's time among its threads by name.
    fn divide(&mut self, threads: &[(String, u64)]) {
        for (name, ns) in threads {
            let us = match name.as_str() {
                "faults" => &mut self.faults_us,
                "kswapd" => &mut self.kswapd_us,
                "monitor" => &mut self.monitor_us,
                "listener" => &mut self.listener_us,
                _ => continue,
            };
            *us += ns / 1000;
        }
        let known = self.faults_us + self.kswapd_us + self.monitor_us + self.listener_us;
        self.rest_us = self.pager_us.saturating_sub(known);
    }
}

/// Time of the program's threads that was lost to other causes than pages.
#[derive(Debug, Serialize)]
pub struct Lost {
    /// Mapping changes whose threads waited until the pager had read the message. Next, their
    /// estimated total time in microseconds.
    pub changes: u64,
    pub changes_us: u64,
    /// Calls to the pager where the program maps or moves memory. Next, their total time in
    /// microseconds.
    pub calls: u64,
    pub calls_us: u64,
    /// Time for which threads were frozen because they outran the limit, in microseconds.
    pub freezer_us: u64,
}

impl Lost {
    /// Returns the lost time in this run until now.
    pub fn of(pager: &Pager) -> Self {
        let changes = pager.telemetry.counters.changes.load(Relaxed);
        let counters = &pager.telemetry.counters;
        let (mut calls, mut ticks) =
            (counters.lost_calls.load(Relaxed), counters.lost_ticks.load(Relaxed));
        for (more, longer) in pager.mms().iter().filter_map(|mm| Some(mm.agent.link()?.lost())) {
            calls += more;
            ticks += longer;
        }
        Self {
            changes,
            changes_us: pager.telemetry.account.unanswered_ns(changes) / 1000,
            calls,
            calls_us: pager.telemetry.account.ns(ticks) / 1000,
            freezer_us: counters.freezer_us.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_is_divided_by_the_names_of_threads() {
        let mut cpu = Cpu { pager_us: 100, ..Cpu::default() };
        let threads =
            [("faults", 10_000), ("faults", 20_000), ("listener", 5_000), ("iou-wrk-7", 9_000)];
        cpu.divide(&threads.map(|(name, ns)| (name.to_owned(), ns)));
        assert_eq!((cpu.faults_us, cpu.listener_us, cpu.kswapd_us, cpu.rest_us), (30, 5, 0, 65));
    }
}
