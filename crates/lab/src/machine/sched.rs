//! The clock and the scheduler: which thread runs where and when, and what each thread waits for.
//!
//! Invariants
//! * SCHED-1: a thread is in exactly one of four states. It is on a CPU (an event `Run`). It is in
//!   the queue of runnable threads. It waits (an event `Wake`, a barrier, a log, the start). It has
//!   ended.
//! * SCHED-2: events happen in the order of their times. Of events at one time, the one that was
//!   scheduled first happens first.
//! * SCHED-3: a CPU runs one thread at a time.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;

use ebb_mm::folio::MemcgId;
use ebb_mm::types::Pfn;

use super::Access;
use super::ahead::Descriptors;
use super::barriers::Barriers;
use super::flusher;
use super::kswapd::Kswapd;
use super::live::GivenUp;
use super::log::Log;
use super::measure::Standing;
use super::mem::Mem;
use super::outcome::Outcome;
use super::pressure::{Doing, Pressure};
use super::proactive::Command;
use super::tracepoints::Doer;
use crate::workload::{KINDS, Program, Step};

/// Nanoseconds for which a thread runs ahead of the clock, while it computes or touches pages in
/// memory. Only one long computation goes beyond that.
pub const SLICE_NS: u64 = 50_000;
/// Nanoseconds that a thread keeps a CPU for which others wait.
const QUANTUM_NS: u64 = 1_000_000;
/// Most samples of the machine that are kept.
pub(super) const SAMPLES_MAX: usize = 240;
/// Longest virtual time of a run in nanoseconds. A longer run has gone wrong.
const TIME_MAX_NS: u64 = 3_600_000_000_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    Run {
        cpu: usize,
        thread: usize,
    },
    Wake(usize),
    WriteDone(u32),
    /// A task has finished the reclaim that it began at the given time.
    Reclaimed(usize, u64),
    /// A turn of the kswapd of a node: node, number of the turn.
    Kswapd(usize, u64),
    Flusher(u64),
    Command(usize),
    Sample,
    Stop,
}

pub(super) struct Thread {
    pub(super) program: Box<dyn Program>,
    pub(super) steps: Vec<Step>,
    pub(super) at: usize,
    pub(super) descriptors: Descriptors,
    pub(super) op_start_ns: u64,
    pub(super) ran_ns: u64,
    pub(super) measured: bool,
    /// Number of operations done.
    pub(super) ops: u64,
    pub(super) ended: bool,
    /// Address space of the thread's process. An OOM kill frees it, and ends all threads of the
    /// process.
    pub(super) home: usize,
    /// State or wait of the thread, for error messages.
    pub(super) waits_for: &'static str,
    pub(super) doing: Doing,
    /// Time of the last fault that reclaimed before it ended. A later wait sets it to `u64::MAX`,
    /// so that a pending `Reclaimed` has no effect.
    pub(super) reclaims: u64,
    /// Index of the write step that was last counted ([`Thread::write_pause`]).
    pub(super) counted: usize,
    /// Record in a log for which the thread waits; 0 if it waits for none.
    pub(super) record: u64,
    /// Time since which there is no memory for the page that the thread touches.
    pub(super) short_since: Option<u64>,
}

/// Limits of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Patience {
    /// Virtual time without progress of a measured thread after which the run has failed.
    pub ns: u64,
    /// Number of events without progress of a measured thread after which the run has failed.
    pub events: u64,
    /// Number of events at one moment after which the run has failed.
    pub at_once: u64,
    /// Events and virtual time in all after which the run ends. That is no failure.
    pub all: (u64, u64),
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            ns: 600_000_000_000,
            events: 20_000_000,
            at_once: 1_000_000,
            all: (u64::MAX, u64::MAX),
        }
    }
}

/// Time and events since a measured thread last made progress.
#[derive(Clone, Copy, Default)]
pub(super) struct Quiet {
    pub(super) since_ns: u64,
    pub(super) events: u64,
}

/// Why a run cannot go on. Every variant has the state of the threads and of memory.
#[derive(Debug, thiserror::Error)]
pub enum Stuck {
    /// All threads sleep, and no event is left.
    #[error("nothing will wake anybody: {0}")]
    Asleep(Waits),
    /// No measured thread has made progress for so many seconds.
    #[error("stands still for {0:.3} s: {1}")]
    Still(f64, Waits),
    /// Ebb ends the run.
    #[error("{0}: {1}")]
    GivenUp(GivenUp, Waits),
}

/// The waits of threads, and the state of memory, when a run cannot go on.
#[derive(Debug)]
pub struct Waits {
    threads: BTreeMap<&'static str, u32>,
    free: u64,
    dirty: u64,
    written: u64,
    slots: u64,
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { free, dirty, written, slots, .. } = self;
        let threads: Vec<String> =
            self.threads.iter().map(|(what, n)| format!("{n} {what}")).collect();
        let threads = threads.join(", ");
        write!(f, "threads: {threads}; {free} frames free, {dirty} pages dirty, ")?;
        write!(f, "{written} being written, {slots} slots")
    }
}

/// The simulated machine.
pub struct Machine {
    /// Memory of the machine.
    pub mem: Mem,
    pub(super) heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    pub(super) scheduled: u64,
    pub(super) now: u64,
    pub(super) idle: Vec<(u64, usize)>,
    pub(super) queue: VecDeque<usize>,
    pub(super) threads: Vec<Thread>,
    pub(super) barriers: Barriers,
    pub(super) logs: Vec<Log>,
    pub(super) starting: Vec<usize>,
    pub(super) measured: usize,
    pub(super) ended: usize,
    pub(super) kswapds: Vec<Kswapd>,
    pub(super) begun_ns: Option<u64>,
    pub(super) before: Outcome,
    pub(super) outcome: Outcome,
    pub(super) flush_at: u64,
    pub(super) flush_turn: u64,
    pub(super) sample_ns: u64,
    pub(super) limit_ns: u64,
    pub(super) stopped: bool,
    /// Reason for which the run cannot go on.
    pub(super) failed: Option<GivenUp>,
    pub(super) quiet: Quiet,
    pub(super) events: u64,
    pub(super) moment: u64,
    pub(super) at_once: u64,
    pub(super) patience: Patience,
    pub(super) standing: Standing,
    pub(super) pressure: Pressure,
    pub(super) names: Vec<String>,
    pub(super) commands: Vec<Command>,
}

impl Machine {
    /// Creates a machine with `cpus` CPUs and no threads.
    #[must_use]
    pub fn new(mem: Mem, cpus: usize) -> Self {
        let pressure = Pressure::new(mem.memcgs.len(), mem.time_scale);
        let kswapds = mem.nodes.iter().map(|_| Kswapd::default()).collect();
        Self {
            mem,
            heap: BinaryHeap::new(),
            scheduled: 0,
            now: 0,
            idle: (0..cpus.max(1)).rev().map(|cpu| (0, cpu)).collect(),
            queue: VecDeque::new(),
            threads: Vec::new(),
            barriers: Barriers::default(),
            logs: Vec::new(),
            starting: Vec::new(),
            measured: 0,
            ended: 0,
            kswapds,
            begun_ns: None,
            before: Outcome::default(),
            outcome: Outcome::default(),
            flush_at: 0,
            flush_turn: 0,
            sample_ns: 0,
            limit_ns: 0,
            stopped: false,
            failed: None,
            quiet: Quiet::default(),
            events: 0,
            moment: 0,
            at_once: 0,
            patience: Patience::default(),
            standing: Standing::default(),
            pressure,
            names: Vec::new(),
            commands: Vec::new(),
        }
    }

    /// Sets the names of the memcgs, for reports.
    pub fn set_names(&mut self, names: Vec<String>) {
        self.names = names;
    }

    /// Records for the pressure accounting that a thread does something else from now on.
    pub(super) fn does(&mut self, id: usize, doing: Doing) {
        let was = std::mem::replace(&mut self.threads[id].doing, doing);
        if was != doing {
            let memcg = self.mem.memcg_of(self.threads[id].home);
            let path = self.mem.out.groups.path(MemcgId(memcg as u16 + 1));
            let path: Vec<usize> = path.map(|g| usize::from(g.0) - 1).collect();
            self.pressure.change(self.now, &path, was, doing);
        }
    }

    /// Records for the pressure accounting that kswapd begins to work, or ends.
    pub(super) fn kswapd_works(&mut self, works: bool) {
        let (from, to) = (Doing::Nothing, Doing::Stalls);
        let (from, to) = if works { (from, to) } else { (to, from) };
        self.pressure.change(self.now, &[], from, to);
    }

    /// Sets the time after the start at which the run ends, even if threads still work.
    pub fn set_limit_ns(&mut self, limit_ns: u64) {
        self.limit_ns = limit_ns;
    }

    /// Sets the limits after which the run is given up.
    pub fn set_patience(&mut self, patience: Patience) {
        self.patience = patience;
    }

    /// Sets the interval between samples once measuring has begun.
    pub fn set_sample_ns(&mut self, sample_ns: u64) {
        self.sample_ns = sample_ns;
    }

    /// Adds a thread. The run ends when every measured thread has ended. Other threads run until
    /// then.
    pub fn add_thread(&mut self, program: Box<dyn Program>, home: usize, measured: bool) {
        let thread = self.threads.len();
        self.threads.push(Thread {
            program,
            steps: Vec::new(),
            at: 0,
            descriptors: Descriptors::default(),
            op_start_ns: 0,
            ops: 0,
            ran_ns: 0,
            measured,
            ended: false,
            home,
            waits_for: "to begin",
            doing: Doing::Nothing,
            reclaims: 0,
            counted: usize::MAX,
            record: 0,
            short_since: None,
        });
        self.measured += usize::from(measured);
        self.schedule(0, Event::Wake(thread));
    }

    pub(super) fn schedule(&mut self, time: u64, event: Event) {
        self.scheduled += 1;
        self.heap.push(Reverse((time, self.scheduled, event)));
    }

    /// Marks a moment of the run in the tracepoints, if they are recorded.
    pub(super) fn mark(&mut self, t: u64, what: &str) {
        let doer = Doer::Task(self.mem.out.task, self.mem.out.cpu);
        if let Some(tracepoints) = &mut self.mem.out.tracepoints {
            tracepoints.mark(t, doer, what);
        }
    }

    /// Runs the machine to the end. Returns the outcome, the memory, and the time at the end.
    ///
    /// # Errors
    /// Threads wait for each other for good, the run does not end, or memory under Ebb runs out.
    pub fn run(mut self) -> Result<(Outcome, Mem, u64), Stuck> {
        while self.ended < self.measured && !self.stopped {
            let Some(Reverse((time, _, event))) = self.heap.pop() else {
                return Err(Stuck::Asleep(self.waits()));
            };
            if let Some(why) = self.failed {
                return Err(Stuck::GivenUp(why, self.waits()));
            }
            // A thread runs ahead of the clock, so `now` may be later than the event.
            self.at_once = if time > self.moment { 0 } else { self.at_once + 1 };
            self.moment = time;
            self.now = time;
            if let Some(tracepoints) = &mut self.mem.out.tracepoints {
                tracepoints.until(time);
            }
            self.quiet.events += 1;
            self.events += 1;
            let (events, ns) = self.patience.all;
            self.stopped |= self.events >= events || time >= ns;
            let still = time - self.quiet.since_ns > self.patience.ns;
            let busy =
                self.quiet.events > self.patience.events || self.at_once > self.patience.at_once;
            if time > TIME_MAX_NS || still || busy {
                let seconds = (time - self.quiet.since_ns) as f64 / 1e9;
                return Err(Stuck::Still(seconds, self.waits()));
            }
            match event {
                Event::Run { cpu, thread } => self.run_slice(cpu, thread),
                Event::Wake(thread) => self.wake(thread),
                Event::WriteDone(pfn) => self.mem.end_write(time, Pfn(pfn)),
                Event::Reclaimed(id, begun) => {
                    let thread = &self.threads[id];
                    if thread.reclaims == begun && thread.doing == Doing::Stalls {
                        self.does(id, Doing::Works);
                    }
                }
                Event::Kswapd(node, turn) => self.kswapd(node, turn),
                Event::Flusher(turn) if turn == self.flush_turn => self.flush(),
                // A later request of the flusher has replaced this event.
                Event::Flusher(_) => {}
                Event::Command(i) => self.carry_out(i),
                Event::Sample => self.sample(),
                Event::Stop => self.stopped = true,
            }
            self.after();
        }
        self.mark(self.now, "measuring ends");
        self.finish_writes();
        let now = self.now;
        let outcome = self.close(now);
        Ok((outcome, self.mem, now))
    }

    /// Returns what the threads that have not ended wait for, and the state of memory.
    fn waits(&self) -> Waits {
        let mut threads = BTreeMap::new();
        for t in self.threads.iter().filter(|t| !t.ended) {
            *threads.entry(t.waits_for).or_insert(0) += 1;
        }
        Waits {
            threads,
            free: self.mem.free_pages(),
            dirty: self.mem.out.cache.dirty(),
            written: self.mem.out.writes.pending(),
            slots: self.mem.out.stored.slots(),
        }
    }

    /// Records that a thread made progress.
    pub(super) fn moves(&mut self, id: usize) {
        self.note_short(id, self.now, false);
        let thread = &mut self.threads[id];
        thread.waits_for = "that run";
        if thread.measured {
            self.quiet = Quiet { since_ns: self.now, events: 0 };
        }
    }

    /// Schedules events for the effects of a step on memory: ends of writes, turns of the flusher
    /// and of kswapd.
    pub(super) fn after(&mut self) {
        if !self.mem.out.started.is_empty() {
            for (done, pfn) in std::mem::take(&mut self.mem.out.started) {
                self.schedule(done, Event::WriteDone(pfn.0));
            }
        }
        let flusher = &self.mem.flusher;
        let dirty = self.mem.out.cache.dirty();
        self.standing.note(self.now, [dirty, self.mem.out.cache.writing()]);
        let wait = flusher.busy_ns(self.now);
        let pause = self.mem.timer(flusher::PAUSE_NS);
        let late = !flusher.awake || self.flush_at > self.now + wait + pause;
        if dirty > 0 && late && self.mem.flusher_needed() {
            self.flush_soon(wait);
        } else if dirty > 0 && !flusher.awake {
            self.flush_soon(flusher.interval_ns());
        }
        for node in 0..self.mem.nodes.len() {
            if let Some(index) = self.mem.nodes[node].wanted.take() {
                self.wake_kswapd(node, index);
            }
            if std::mem::take(&mut self.mem.nodes[node].woken) {
                self.wake_kswapd_for_reserve(node);
            }
        }
    }

    /// Ends the writes under way before the counts are checked.
    fn finish_writes(&mut self) {
        while let Some(Reverse((time, _, event))) = self.heap.pop() {
            if let Event::WriteDone(pfn) = event {
                self.mem.end_write(time, Pfn(pfn));
            }
        }
    }

    pub(super) fn wake(&mut self, thread: usize) {
        if self.threads[thread].ended {
            return;
        }
        self.does(thread, Doing::Works);
        // The thread takes the CPU that has been free the longest; of equals, the lowest.
        let best = (0..self.idle.len()).min_by_key(|&i| self.idle[i]);
        match best {
            Some(i) => {
                let (free_at, cpu) = self.idle.swap_remove(i);
                let start = self.now.max(free_at);
                let switch = if start > 0 { self.mem.costs.switch_ns } else { 0 };
                self.schedule(start + switch, Event::Run { cpu, thread });
            }
            None => self.queue.push_back(thread),
        }
    }

    /// Gives a CPU that is free from `at` on to the next runnable thread.
    pub(super) fn release(&mut self, cpu: usize, at: u64) {
        while let Some(thread) = self.queue.pop_front() {
            if !self.threads[thread].ended {
                let switch = self.mem.costs.switch_ns;
                self.threads[thread].ran_ns = 0;
                self.schedule(at + switch, Event::Run { cpu, thread });
                return;
            }
        }
        self.idle.push((at, cpu));
    }

    /// Lets a thread that has worked until `at` wait until `until`.
    pub(super) fn block(&mut self, cpu: usize, thread: usize, at: u64, until: u64) {
        let stalls = std::mem::take(&mut self.mem.stalls);
        self.threads[thread].reclaims = u64::MAX;
        self.does(thread, if stalls { Doing::Stalls } else { Doing::Nothing });
        self.threads[thread].ran_ns = 0;
        self.schedule(until.max(at), Event::Wake(thread));
        self.release(cpu, at);
    }

    fn run_slice(&mut self, cpu: usize, id: usize) {
        let mut t = self.now;
        let mut end = t + SLICE_NS;
        if self.threads[id].ended {
            self.release(cpu, t);
            return;
        }
        if self.threads[id].ran_ns >= QUANTUM_NS && !self.queue.is_empty() {
            // The thread gives way at the start of a slice, because its end is ahead of the clock.
            // A CPU that is free before that end would take the thread back in time.
            self.queue.push_back(id);
            self.release(cpu, t);
            return;
        }
        (self.mem.out.cpu, self.mem.out.task) = (cpu, id);
        let begun = (self.outcome.touches, self.threads[id].at);
        loop {
            let thread = &mut self.threads[id];
            if thread.at == thread.steps.len() {
                thread.steps.clear();
                (thread.at, thread.counted) = (0, usize::MAX);
                thread.program.fill(&mut thread.steps);
                if thread.steps.is_empty() {
                    self.end_thread(id, t);
                    self.release(cpu, t);
                    self.now = t;
                    return;
                }
            }
            match thread.steps[thread.at] {
                Step::Touch { page, space, access } => {
                    let (space, page) = (usize::from(space), u64::from(page));
                    if access == Access::FdWrite {
                        let pause = thread.write_pause(&mut self.mem, id, t);
                        if pause > 0 {
                            self.now = t;
                            self.after();
                            self.threads[id].waits_for = "for dirty pages to be written";
                            self.block(cpu, id, t, t + pause);
                            return;
                        }
                    }
                    if self.mem.touch(space, page, access, t) {
                        self.outcome.trace.note(space, page);
                        let costs = &self.mem.costs;
                        let kernel = if access.mapped() { 0 } else { costs.fd_ns };
                        t += if access.mapped() { costs.hit_ns } else { kernel };
                        self.mem.spent.system_ns += kernel;
                        thread.at += 1;
                        self.outcome.touches += 1;
                    } else if self.ahead(t) {
                        self.schedule(t, Event::Run { cpu, thread: id });
                        return;
                    } else {
                        if (self.outcome.touches, self.threads[id].at) != begun {
                            self.moves(id);
                        }
                        match self.fault(cpu, id, t, space, page, access) {
                            Some(now) => t = now,
                            None => return,
                        }
                        end = end.max(t);
                    }
                }
                Step::Cpu(ns) => {
                    t += u64::from(ns);
                    thread.at += 1;
                }
                Step::Begin => {
                    thread.at += 1;
                    thread.op_start_ns = t;
                }
                Step::Done(kind) => {
                    thread.at += 1;
                    let took = t - thread.op_start_ns;
                    thread.op_start_ns = t;
                    if self.begun_ns.is_some() && thread.measured {
                        self.outcome.ops += 1;
                        thread.ops += 1;
                        self.outcome.latency[usize::from(kind) % KINDS].add(took);
                    }
                }
                step => {
                    if self.ahead(t) {
                        self.schedule(t, Event::Run { cpu, thread: id });
                        return;
                    }
                    self.threads[id].at += 1;
                    self.moves(id);
                    match self.rare(cpu, id, t, step) {
                        Some(now) => t = now,
                        None => return,
                    }
                }
            }
            if t >= end {
                self.moves(id);
                if self.pause(cpu, id, t) {
                    return;
                }
                end = t + SLICE_NS;
            }
        }
    }

    /// Returns whether another event comes before `t`.
    pub(super) fn ahead(&self, t: u64) -> bool {
        self.heap.peek().is_some_and(|Reverse((time, ..))| *time < t)
    }

    /// Ends a slice and lets other events or threads run if there are any. Returns true if the
    /// thread's next slice is an event.
    fn pause(&mut self, cpu: usize, id: usize, t: u64) -> bool {
        let ran = &mut self.threads[id].ran_ns;
        *ran += t.saturating_sub(self.now);
        if self.ahead(t) || !self.queue.is_empty() {
            self.schedule(t, Event::Run { cpu, thread: id });
            return true;
        }
        self.now = t;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Scripted, machine};
    use super::*;

    /// A program that sleeps again and again.
    struct Sleeper;

    impl Program for Sleeper {
        fn fill(&mut self, steps: &mut Vec<Step>) {
            steps.push(Step::Sleep(1_000_000));
        }
    }

    /// A program that works and marks the end of each operation.
    struct Worker(u32);

    impl Program for Worker {
        fn fill(&mut self, steps: &mut Vec<Step>) {
            if self.0 > 0 {
                self.0 -= 1;
                steps.extend([Step::Cpu(7_000), Step::Done(0)]);
            }
        }
    }

    #[test]
    fn a_thread_that_gave_way_ahead_of_the_clock_does_not_go_back_in_time() {
        let mut m = machine();
        for _ in 0..5 {
            m.add_thread(Box::new(Worker(2_000)), 0, true);
        }
        m.begun_ns = Some(0);
        let (outcome, _, now) = m.run().unwrap();
        // The work is five times 14 ms on two CPUs. If time ran back, the latency of an operation
        // would have no bound.
        assert!((35_000_000..37_000_000).contains(&now), "{now}");
        let longest = outcome.latency[0].quantile(1.0);
        assert!((7_000..10_000_000).contains(&longest), "{longest}");
    }

    /// A program that loads for so long, then does so many operations.
    struct Loader(u32, u32);

    impl Program for Loader {
        fn fill(&mut self, steps: &mut Vec<Step>) {
            let (load, work) = (std::mem::take(&mut self.0), self.1);
            if load > 0 {
                steps.extend([Step::Cpu(load), Step::Start]);
            } else if work > 0 {
                self.1 -= 1;
                steps.extend([Step::Cpu(10_000), Step::Done(0)]);
            }
        }
    }

    #[test]
    fn threads_in_the_background_neither_begin_the_measuring_nor_wait_for_it_for_ever() {
        // Two background threads reach the start first, one reaches it last. The measured thread
        // comes between.
        let mut m = machine();
        for (load, measured) in
            [(1_000, false), (1_000, false), (5_000_000, true), (9_000_000, false)]
        {
            m.add_thread(Box::new(Loader(load, 500)), 0, measured);
        }
        let (outcome, _, now) = m.run().unwrap();
        assert!(now > 10_000_000 && outcome.ops == 500, "{} by {now}", outcome.ops);
    }

    #[test]
    fn timers_of_a_scaled_machine_run_as_much_faster() {
        let mut m = machine();
        assert_eq!(m.mem.timer(100_000_000), 100_000_000);
        m.mem.time_scale = 512;
        assert_eq!(m.mem.timer(100_000_000), 195_312);
        // A scaled timer is no shorter than a device takes, and never longer than it was before.
        assert_eq!((m.mem.timer(1_000_000), m.mem.timer(50_000)), (100_000, 50_000));
    }

    #[test]
    fn a_run_that_stands_still_ends_and_names_the_waiting_threads() {
        let wait = || Scripted(vec![vec![Step::Barrier { group: 0, parties: 3 }]]);
        let mut alone = machine();
        alone.add_thread(Box::new(wait()), 0, true);
        let error = alone.run().unwrap_err().to_string();
        assert!(error.starts_with("nothing will wake anybody: threads: 1 at a barrier"), "{error}");
        // Another thread that goes on for ever does not hide the stall.
        let mut both = machine();
        both.add_thread(Box::new(wait()), 0, true);
        both.add_thread(Box::new(wait()), 0, true);
        both.add_thread(Box::new(Sleeper), 0, false);
        let error = both.run().unwrap_err().to_string();
        assert!(error.starts_with("stands still for 600.0"), "{error}");
        assert!(error.contains("1 asleep, 2 at a barrier; 4"), "{error}");
    }
}
