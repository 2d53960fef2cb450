//! What a run costs beside the waiting for pages: processor time of Ebb's own threads, and time that the program's
//! threads lose to mapping changes, to calls of their agent, and to the brake.

use crate::server::Pager;
use ebb_sys::sched;
use serde::Serialize;
use std::sync::atomic::Ordering::Relaxed;

/// What Ebb took of the processors, beside the program: its two processes, the pager's threads by what they do, and its
/// agents as last looked at.
#[derive(Debug, Default, Serialize)]
pub struct Cpu {
    pub front_us: u64,
    pub pager_us: u64,
    /// Of the pager: `rest` are threads of the store, and those that start and end.
    pub faults_us: u64,
    pub kswapd_us: u64,
    pub monitor_us: u64,
    pub door_us: u64,
    pub rest_us: u64,
    pub agents_us: u64,
}

impl Cpu {
    /// Of this run, so far.
    pub fn of(pager: &Pager) -> Self {
        let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
        let there: u64 = pager.mms().iter().map(|mm| mm.agent_ns.load(Relaxed)).sum();
        let mut cpu = Self {
            front_us: sched::run_times(pager.front).map_or(0, |times| times.ran_ns / 1000),
            pager_us: own.tv_sec as u64 * 1_000_000 + own.tv_nsec as u64 / 1000,
            agents_us: (there + pager.counters.agents_ns.load(Relaxed)) / 1000,
            ..Self::default()
        };
        cpu.divide(&sched::own_threads());
        cpu
    }

    /// Among the threads of these names.
    fn divide(&mut self, threads: &[(String, u64)]) {
        for (name, ns) in threads {
            let us = match name.as_str() {
                "faults" => &mut self.faults_us,
                "kswapd" => &mut self.kswapd_us,
                "monitor" => &mut self.monitor_us,
                "door" => &mut self.door_us,
                _ => continue,
            };
            *us += ns / 1000;
        }
        let known = self.faults_us + self.kswapd_us + self.monitor_us + self.door_us;
        self.rest_us = self.pager_us.saturating_sub(known);
    }
}

/// Time of the program's threads that was lost to other things than pages.
#[derive(Debug, Serialize)]
pub struct Lost {
    /// Mapping changes that waited until the pager had read of them, and how long all of them waited: an estimate.
    pub changes: u64,
    pub changes_us: u64,
    /// Calls to the pager, made where the program maps or moves memory, and how long they took.
    pub calls: u64,
    pub calls_us: u64,
    /// How long threads were held because they outran the limit.
    pub brake_us: u64,
}

impl Lost {
    /// In this run, so far.
    pub fn of(pager: &Pager) -> Self {
        let changes = pager.counters.changes.load(Relaxed);
        let counters = &pager.counters;
        let (mut calls, mut ticks) =
            (counters.lost_calls.load(Relaxed), counters.lost_ticks.load(Relaxed));
        for (more, longer) in pager.mms().iter().filter_map(|mm| Some(mm.link.get()?.lost())) {
            calls += more;
            ticks += longer;
        }
        Self {
            changes,
            changes_us: pager.account.unanswered_ns(changes) / 1000,
            calls,
            calls_us: pager.account.ns(ticks) / 1000,
            brake_us: counters.brake_us.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_are_told_by_what_they_do() {
        let mut cpu = Cpu { pager_us: 100, ..Cpu::default() };
        let threads =
            [("faults", 10_000), ("faults", 20_000), ("door", 5_000), ("iou-wrk-7", 9_000)];
        cpu.divide(&threads.map(|(name, ns)| (name.to_owned(), ns)));
        assert_eq!((cpu.faults_us, cpu.door_us, cpu.kswapd_us, cpu.rest_us), (30, 5, 0, 65));
    }
}
