//! The clock: which thread runs where and when, who waits for what, and kswapd.
//!
//! Invariants
//! * I1: a thread is in exactly one place: on a CPU (an event `Run`), in the queue of those that
//!   could run, waiting (an event `Wake`, a barrier, the start), or ended.
//! * I2: events happen in the order of their times; of equals in the order they were asked for.
//! * I3: a CPU runs one thread at a time.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use ebb_core::folio::MemcgId;
use ebb_core::types::Pfn;

use super::Access;
use super::ahead::{STREAMS, Stream};
use super::kswapd::Kswapd;
use super::mem::{Fault, Mem};
use super::outcome::{Outcome, Sample};
use super::pressure::{Doing, Pressure};
use super::proactive::Command;
use crate::workload::{KINDS, Program, Step};

/// How far a thread runs ahead of the clock through pages that are there.
pub const SLICE_NS: u64 = 50_000;
/// How long a thread keeps a CPU that others wait for.
const QUANTUM_NS: u64 = 1_000_000;
/// Looks at the machine that are kept.
const SAMPLES_MAX: usize = 240;
/// How long the flusher rests between two batches.
const FLUSH_PAUSE_NS: u64 = 1_000_000;
/// A run that takes longer than this in virtual time has gone wrong.
const TIME_MAX_NS: u64 = 3_600_000_000_000;
/// So has one in which no measured thread gets on for so long, or for so many events.
const QUIET_NS_MAX: u64 = 600_000_000_000;
const QUIET_EVENTS_MAX: u64 = 20_000_000;

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Event {
    Run {
        cpu: usize,
        thread: usize,
    },
    Wake(usize),
    WriteDone(u32),
    /// A task is through with reclaim that it began at the time that is told.
    Reclaimed(usize, u64),
    Kswapd(u64),
    Flusher(u64),
    Command(usize),
    Sample,
    Stop,
}

struct Thread {
    program: Box<dyn Program>,
    steps: Vec<Step>,
    at: usize,
    streams: [Stream; STREAMS],
    op_start_ns: u64,
    ran_ns: u64,
    measured: bool,
    ended: bool,
    /// The space that dies with it when memory runs out.
    home: usize,
    /// What it waits for, if it does.
    waits_for: &'static str,
    doing: Doing,
    /// When it last began to reclaim.
    reclaims: u64,
}

/// Since when no measured thread has got on.
#[derive(Clone, Copy, Default)]
struct Quiet {
    since_ns: u64,
    events: u64,
}

/// The machine.
pub struct Machine {
    /// Its memory.
    pub mem: Mem,
    heap: BinaryHeap<Reverse<(u64, u64, Event)>>,
    asked: u64,
    pub(super) now: u64,
    idle: Vec<(u64, usize)>,
    queue: VecDeque<usize>,
    threads: Vec<Thread>,
    barriers: Vec<(u64, Vec<usize>)>,
    starting: Vec<usize>,
    measured: usize,
    ended: usize,
    pub(super) kswapd: Kswapd,
    begun_ns: Option<u64>,
    before: Outcome,
    outcome: Outcome,
    flush_at: u64,
    flush_turn: u64,
    sample_ns: u64,
    limit_ns: u64,
    stopped: bool,
    quiet: Quiet,
    pressure: Pressure,
    names: Vec<String>,
    pub(super) commands: Vec<Command>,
}

impl Machine {
    /// A machine with `cpus` CPUs and no threads.
    #[must_use]
    pub fn new(mem: Mem, cpus: usize) -> Self {
        let pressure = Pressure::new(mem.memcgs.len(), mem.haste);
        Self {
            mem,
            heap: BinaryHeap::new(),
            asked: 0,
            now: 0,
            idle: (0..cpus.max(1)).rev().map(|cpu| (0, cpu)).collect(),
            queue: VecDeque::new(),
            threads: Vec::new(),
            barriers: Vec::new(),
            starting: Vec::new(),
            measured: 0,
            ended: 0,
            kswapd: Kswapd::default(),
            begun_ns: None,
            before: Outcome::default(),
            outcome: Outcome::default(),
            flush_at: 0,
            flush_turn: 0,
            sample_ns: 0,
            limit_ns: 0,
            stopped: false,
            quiet: Quiet::default(),
            pressure,
            names: Vec::new(),
            commands: Vec::new(),
        }
    }

    /// Names the memcgs, for reports.
    pub fn set_names(&mut self, names: Vec<String>) {
        self.names = names;
    }

    /// A thread does something else from now on.
    fn does(&mut self, id: usize, doing: Doing) {
        let was = std::mem::replace(&mut self.threads[id].doing, doing);
        if was != doing {
            let memcg = self.mem.memcg_of(self.threads[id].home);
            let path = self.mem.out.groups.path(MemcgId(memcg as u16 + 1));
            let path: Vec<usize> = path.map(|g| usize::from(g.0) - 1).collect();
            self.pressure.change(self.now, &path, was, doing);
        }
    }

    /// kswapd begins to work, or ends.
    pub(super) fn kswapd_works(&mut self, works: bool) {
        let (from, to) = (Doing::Nothing, Doing::Stalls);
        let (from, to) = if works { (from, to) } else { (to, from) };
        self.pressure.change(self.now, &[], from, to);
    }

    /// Ends the run this long after the start, whoever still works.
    pub fn set_limit_ns(&mut self, limit_ns: u64) {
        self.limit_ns = limit_ns;
    }

    /// Looks at the machine this often once measuring has begun.
    pub fn set_sample_ns(&mut self, sample_ns: u64) {
        self.sample_ns = sample_ns;
    }

    /// Adds a thread. The run ends when every measured one has; others run as long as that.
    pub fn add_thread(&mut self, program: Box<dyn Program>, home: usize, measured: bool) {
        let thread = self.threads.len();
        self.threads.push(Thread {
            program,
            steps: Vec::new(),
            at: 0,
            streams: [Stream::default(); STREAMS],
            op_start_ns: 0,
            ran_ns: 0,
            measured,
            ended: false,
            home,
            waits_for: "to begin",
            doing: Doing::Nothing,
            reclaims: 0,
        });
        self.measured += usize::from(measured);
        self.ask(0, Event::Wake(thread));
    }

    pub(super) fn ask(&mut self, time: u64, event: Event) {
        self.asked += 1;
        self.heap.push(Reverse((time, self.asked, event)));
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// Threads that wait for each other for good, or a run without end.
    pub fn run(mut self) -> Result<(Outcome, Mem, u64), String> {
        while self.ended < self.measured && !self.stopped {
            let Some(Reverse((time, _, event))) = self.heap.pop() else {
                return Err(format!("nothing will wake anybody: {}", self.who_waits()));
            };
            self.now = time;
            self.quiet.events += 1;
            let still = time - self.quiet.since_ns > QUIET_NS_MAX;
            if time > TIME_MAX_NS || still || self.quiet.events > QUIET_EVENTS_MAX {
                let seconds = (time - self.quiet.since_ns) as f64 / 1e9;
                return Err(format!("stands still for {seconds:.3} s: {}", self.who_waits()));
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
                Event::Kswapd(turn) => self.kswapd(turn),
                Event::Flusher(turn) if turn == self.flush_turn => self.flush(),
                // It was asked for earlier, and that was done.
                Event::Flusher(_) => {}
                Event::Command(i) => self.carry_out(i),
                Event::Sample => self.sample(),
                Event::Stop => self.stopped = true,
            }
            self.after();
        }
        self.finish_writes();
        let now = self.now;
        let outcome = self.close(now);
        Ok((outcome, self.mem, now))
    }

    /// What the threads that have not ended wait for, and what memory looks like.
    fn who_waits(&self) -> String {
        let mut counts = std::collections::BTreeMap::new();
        for t in self.threads.iter().filter(|t| !t.ended) {
            *counts.entry(t.waits_for).or_insert(0u32) += 1;
        }
        let threads: Vec<String> = counts.iter().map(|(what, n)| format!("{n} {what}")).collect();
        let cache = &self.mem.out.cache;
        format!(
            "threads: {}; {} frames free, {} pages dirty, {} being written, {} slots",
            threads.join(", "),
            self.mem.free_pages(),
            cache.dirty(),
            self.mem.out.writes.pending(),
            self.mem.out.stored.slots()
        )
    }

    /// A thread got on.
    fn moves(&mut self, id: usize) {
        let thread = &mut self.threads[id];
        thread.waits_for = "that run";
        if thread.measured {
            self.quiet = Quiet { since_ns: self.now, events: 0 };
        }
    }

    /// Turns what memory did into events.
    fn after(&mut self) {
        if !self.mem.out.started.is_empty() {
            for (done, pfn) in std::mem::take(&mut self.mem.out.started) {
                self.ask(done, Event::WriteDone(pfn.0));
            }
        }
        let flusher = &self.mem.flusher;
        let dirty = self.mem.out.cache.dirty();
        let wait = flusher.busy_ns(self.now);
        let pause = self.mem.timer(FLUSH_PAUSE_NS);
        let late = !flusher.awake || self.flush_at > self.now + wait + pause;
        if dirty > 0 && late && self.mem.flusher_needed() {
            self.flush_soon(wait);
        } else if dirty > 0 && !flusher.awake {
            self.flush_soon(flusher.interval_ns());
        }
        if let Some(index) = self.mem.kswapd_wanted.take() {
            self.wake_kswapd(index);
        }
    }

    /// Writes under way end before the last look at the books.
    fn finish_writes(&mut self) {
        while let Some(Reverse((time, _, event))) = self.heap.pop() {
            if let Event::WriteDone(pfn) = event {
                self.mem.end_write(time, Pfn(pfn));
            }
        }
    }

    fn wake(&mut self, thread: usize) {
        if self.threads[thread].ended {
            return;
        }
        self.does(thread, Doing::Works);
        // The CPU that has been free the longest; of equals the lowest.
        let best = (0..self.idle.len()).min_by_key(|&i| self.idle[i]);
        match best {
            Some(i) => {
                let (free_at, cpu) = self.idle.swap_remove(i);
                let start = self.now.max(free_at);
                let switch = if start > 0 { self.mem.costs.switch_ns } else { 0 };
                self.ask(start + switch, Event::Run { cpu, thread });
            }
            None => self.queue.push_back(thread),
        }
    }

    /// A CPU is free from `at` on.
    fn release(&mut self, cpu: usize, at: u64) {
        while let Some(thread) = self.queue.pop_front() {
            if !self.threads[thread].ended {
                let switch = self.mem.costs.switch_ns;
                self.threads[thread].ran_ns = 0;
                self.ask(at + switch, Event::Run { cpu, thread });
                return;
            }
        }
        self.idle.push((at, cpu));
    }

    /// The thread waits until `until`, having worked until `at`.
    fn block(&mut self, cpu: usize, thread: usize, at: u64, until: u64) {
        let stalls = std::mem::take(&mut self.mem.stalls);
        self.threads[thread].reclaims = u64::MAX;
        self.does(thread, if stalls { Doing::Stalls } else { Doing::Nothing });
        self.threads[thread].ran_ns = 0;
        self.ask(until.max(at), Event::Wake(thread));
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
            // Here and not where a slice ends, which is ahead of the clock: a CPU that is free before
            // then would take the thread back in time.
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
                thread.at = 0;
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
                        let pause = self.mem.write_pause(id, t);
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
                        t += if access.mapped() { costs.hit_ns } else { costs.fd_ns };
                        thread.at += 1;
                        self.outcome.touches += 1;
                    } else if self.ahead(t) {
                        self.ask(t, Event::Run { cpu, thread: id });
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
                Step::Done(kind) => {
                    thread.at += 1;
                    let took = t - thread.op_start_ns;
                    thread.op_start_ns = t;
                    if self.begun_ns.is_some() && thread.measured {
                        self.outcome.ops += 1;
                        self.outcome.latency[usize::from(kind) % KINDS].add(took);
                    }
                }
                step => {
                    if self.ahead(t) {
                        self.ask(t, Event::Run { cpu, thread: id });
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

    /// Whether something else comes before `t`.
    fn ahead(&self, t: u64) -> bool {
        self.heap.peek().is_some_and(|Reverse((time, ..))| *time < t)
    }

    /// The end of a slice: lets others run if there are any. True if the thread's next slice is an event.
    fn pause(&mut self, cpu: usize, id: usize, t: u64) -> bool {
        let ran = &mut self.threads[id].ran_ns;
        *ran += t.saturating_sub(self.now);
        if self.ahead(t) || !self.queue.is_empty() {
            self.ask(t, Event::Run { cpu, thread: id });
            return true;
        }
        self.now = t;
        false
    }

    /// Handles a page that is not there. The time after it, or none if the thread has to wait.
    fn fault(
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
        let before = self.mem.spent.direct_ns;
        let fault = self.mem.fault(t, space, page, access, &mut thread.streams);
        let reclaimed = self.mem.spent.direct_ns - before;
        self.after();
        if reclaimed > 0 && matches!(fault, Fault::Done(_)) {
            self.threads[id].reclaims = t;
            self.does(id, Doing::Stalls);
            self.ask(t + reclaimed, Event::Reclaimed(id, t));
        }
        match fault {
            Fault::Done(cost) => {
                self.outcome.trace.note(space, page);
                self.threads[id].at += 1;
                self.outcome.touches += 1;
                Some(t + cost)
            }
            Fault::Wait { until_ns, cost_ns } => {
                self.threads[id].waits_for = "for a page or for room";
                self.block(cpu, id, t + cost_ns, until_ns);
                None
            }
            Fault::NoMemory(cost) => {
                self.kill(id, t + cost);
                self.block(cpu, id, t + cost, t + cost);
                None
            }
        }
    }

    /// Kills the process that has the most memory, of those that share a memcg with a thread, and frees
    /// its memory.
    fn kill(&mut self, id: usize, t: u64) {
        let memcg = self.mem.memcg_of(self.threads[id].home);
        let homes = self.threads.iter().filter(|t| !t.ended).map(|t| t.home);
        let near = homes.filter(|&home| self.mem.memcg_of(home) == memcg);
        // Of equals the first.
        let Some(home) = near.min_by_key(|&h| (std::cmp::Reverse(self.mem.holds(h)), h)) else {
            return;
        };
        self.outcome.kills += 1;
        for i in 0..self.threads.len() {
            if self.threads[i].home == home && !self.threads[i].ended {
                self.end_thread(i, self.now);
            }
        }
        let pages = self.mem.pages_of(home);
        self.mem.free(t, home, 0, pages);
    }

    fn end_thread(&mut self, id: usize, t: u64) {
        self.does(id, Doing::Nothing);
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

    /// Steps other than touches and computing.
    fn rare(&mut self, cpu: usize, id: usize, t: u64, step: Step) -> Option<u64> {
        self.now = t;
        match step {
            Step::Sleep(ns) => {
                self.threads[id].waits_for = "asleep";
                self.block(cpu, id, t, t + ns);
                self.threads[id].op_start_ns = t + ns;
                None
            }
            // Only those in the background come late.
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
                let group = usize::from(group);
                self.threads[id].waits_for = "at a barrier";
                self.does(id, Doing::Nothing);
                if self.barriers.len() <= group {
                    self.barriers.resize(group + 1, (0, Vec::new()));
                }
                self.barriers[group].1.push(id);
                self.release(cpu, t);
                if self.barriers[group].1.len() >= usize::from(parties) {
                    for thread in std::mem::take(&mut self.barriers[group].1) {
                        self.threads[thread].op_start_ns = t;
                        self.ask(t, Event::Wake(thread));
                    }
                }
                None
            }
            Step::Free { space, page, pages } => {
                let (page, pages) = (u64::from(page), u64::from(pages));
                Some(t + self.mem.free(t, usize::from(space), page, pages))
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
                if write || done == t {
                    // Written behind: nobody waits for it.
                    return Some(t + self.mem.costs.submit_ns);
                }
                self.threads[id].waits_for = "for a transfer";
                self.block(cpu, id, t + self.mem.costs.submit_ns, done);
                None
            }
            Step::Ahead { page, space, pages } => {
                let stream = Stream::request(usize::from(space), u64::from(page), pages);
                let streams = &mut self.threads[id].streams;
                streams.rotate_right(1);
                streams[0] = stream;
                Some(t)
            }
            Step::Touch { .. } | Step::Cpu(_) | Step::Done(_) => Some(t),
        }
    }

    /// Measuring begins when the last measured thread that lives has come to the start.
    fn begin_if_all_here(&mut self, t: u64) {
        let here = self.starting.iter().filter(|&&id| self.threads[id].measured).count();
        if self.begun_ns.is_some() || here + self.ended < self.measured {
            return;
        }
        self.begun_ns = Some(t);
        self.before = self.snapshot();
        self.outcome.ops = 0;
        self.outcome.touches = 0;
        for thread in std::mem::take(&mut self.starting) {
            self.threads[thread].op_start_ns = t;
            self.ask(t, Event::Wake(thread));
        }
        if self.sample_ns > 0 {
            let lengths = (0..self.mem.list.len()).map(|space| self.mem.pages_of(space));
            self.outcome.trace.begin();
            self.mem.out.heat = Some(Box::new(super::heat::Heat::new(lengths)));
            self.ask(t, Event::Sample);
        }
        self.begin_commands(t);
        if self.limit_ns > 0 {
            self.ask(t + self.limit_ns, Event::Stop);
        }
    }

    /// Has the flusher look after `wait`, and not when it was going to.
    fn flush_soon(&mut self, wait: u64) {
        self.mem.flusher.awake = true;
        self.flush_at = self.now + wait;
        self.flush_turn += 1;
        self.ask(self.flush_at, Event::Flusher(self.flush_turn));
    }

    fn flush(&mut self) {
        self.mem.flush(self.now, None);
        self.mem.flusher.awake = false;
        if self.mem.flusher_needed() {
            let pause = self.mem.timer(FLUSH_PAUSE_NS);
            self.flush_soon(pause.max(self.mem.flusher.busy_ns(self.now)));
        }
    }

    fn snapshot(&self) -> Outcome {
        let counters = ebb_core::observe::vmstat::Event::ALL;
        let (moved, requests) =
            self.mem.out.swap.as_ref().map_or(([0; 2], [0; 2]), |d| (d.moved, d.requests));
        Outcome {
            counters: counters.iter().map(|&e| (e.name(), self.mem.stat.get(e))).collect(),
            spent: self.mem.spent,
            kswapd: self.kswapd_stats(),
            moved: [moved, self.mem.disk.moved],
            requests: [requests, self.mem.disk.requests],
            ..Outcome::default()
        }
    }

    fn sample(&mut self) {
        use ebb_core::folio::LruType;
        let Some(begun) = self.begun_ns else { return };
        let spent = self.mem.spent;
        let count = |e| self.mem.stat.get(e);
        let refault = [
            ebb_core::observe::vmstat::Event::WorkingsetRefaultAnon,
            ebb_core::observe::vmstat::Event::WorkingsetRefaultFile,
        ];
        let g = self.mem.memcgs[0].lruvec.generations();
        let first = g.min_seq(LruType::Anon).min(g.min_seq(LruType::File));
        let generations = (first..=g.max_seq()).map(|seq| {
            let age = (self.now / 1_000_000).saturating_sub(g.born_ms(seq));
            (seq, age, g.pages(seq, LruType::Anon), g.pages(seq, LruType::File))
        });
        let sample = Sample {
            time_ns: self.now - begun,
            ops: self.outcome.ops,
            refaults: refault.map(count),
            reclaim_ns: [spent.direct_ns, spent.kswapd_ns],
            free: self.mem.free_pages(),
            tiers: std::array::from_fn(|tier| g.tiers().refaults(LruType::File, tier)),
            generations: generations.collect(),
            heat: self.mem.out.heat.as_mut().map(|h| h.take()).unwrap_or_default(),
        };
        self.outcome.samples.push(sample);
        if self.outcome.samples.len() >= SAMPLES_MAX {
            self.thin_out();
        }
        self.ask(self.now + self.sample_ns, Event::Sample);
    }

    /// Halves the number of looks, and looks half as often from now on.
    fn thin_out(&mut self) {
        let samples = std::mem::take(&mut self.outcome.samples);
        let mut pairs = samples.into_iter();
        while let Some(first) = pairs.next() {
            let Some(mut second) = pairs.next() else {
                self.outcome.samples.push(first);
                break;
            };
            for (sum, row) in second.heat.iter_mut().zip(&first.heat) {
                sum.iter_mut().zip(row).for_each(|(s, n)| *s += n);
            }
            self.outcome.samples.push(second);
        }
        self.sample_ns *= 2;
    }

    fn close(&mut self, now: u64) -> Outcome {
        let after = self.snapshot();
        let before = std::mem::take(&mut self.before);
        let mut out = std::mem::take(&mut self.outcome);
        out.elapsed_ns = now - self.begun_ns.unwrap_or(0);
        out.pressure = self.pressure.read(now, &self.names);
        if out.full.0 == 0 {
            out.full = (out.touches, out.elapsed_ns);
        }
        let was = |name| before.counters.iter().find(|(n, _)| *n == name).map_or(0, |c| c.1);
        out.counters = after.counters.iter().map(|&(n, v)| (n, v - was(n))).collect();
        out.spent = after.spent.since(&before.spent);
        out.kswapd = after.kswapd.since(&before.kswapd);
        for (i, row) in after.moved.iter().enumerate() {
            out.moved[i] = [row[0] - before.moved[i][0], row[1] - before.moved[i][1]];
        }
        for (i, row) in after.requests.iter().enumerate() {
            let was = before.requests[i];
            out.requests[i] = [row[0] - was[0], row[1] - was[1]];
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use ebb_core::frame::{Config, ZoneKind, ZoneSpec};
    use ebb_core::tunables::Tunables;

    use super::super::{Costs, Device, DeviceSpec, Preset, outflow::Outflow};
    use super::*;

    /// Does what it is told, then ends.
    struct Told(Vec<Vec<Step>>);

    impl Program for Told {
        fn fill(&mut self, steps: &mut Vec<Step>) {
            steps.extend(self.0.pop().unwrap_or_default());
        }
    }

    /// Sleeps again and again.
    struct Sleeper;

    impl Program for Sleeper {
        fn fill(&mut self, steps: &mut Vec<Step>) {
            steps.push(Step::Sleep(1_000_000));
        }
    }

    fn machine() -> Machine {
        let zone = ZoneSpec::new(ZoneKind::Normal, 0..4096);
        let frames = Config::node(&[ZoneKind::Normal], vec![zone], 2).faithful().build().unwrap();
        let costs = Costs::default();
        let out = Outflow::new(frames, 4096, None, &costs);
        let disk = Device::new(&DeviceSpec::preset(Preset::Nvme));
        let mut mem = Mem::new(out, disk, Tunables::default(), costs, 1);
        mem.add_memcg(1 << 20);
        mem.add_space(0, &[]);
        Machine::new(mem, 2)
    }

    /// Works, and tells when each operation began.
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
        // Five times 14 ms on two CPUs; an operation that began after it ended would be endless.
        assert!((35_000_000..37_000_000).contains(&now), "{now}");
        let longest = outcome.latency[0].quantile(1.0);
        assert!((7_000..10_000_000).contains(&longest), "{longest}");
    }

    /// Loads for so long, then works for a while.
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
        // Two in the background are first at the start, one is last; those measured come between.
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
        m.mem.haste = 512;
        assert_eq!(m.mem.timer(100_000_000), 195_312);
        // No shorter than a device takes, and never longer than they were.
        assert_eq!((m.mem.timer(1_000_000), m.mem.timer(50_000)), (100_000, 50_000));
    }

    #[test]
    fn a_run_that_stands_still_ends_and_says_who_waits() {
        let wait = || Told(vec![vec![Step::Barrier { group: 0, parties: 3 }]]);
        let mut alone = machine();
        alone.add_thread(Box::new(wait()), 0, true);
        let error = alone.run().unwrap_err();
        assert!(error.starts_with("nothing will wake anybody: threads: 1 at a barrier"), "{error}");
        // Somebody else who goes on for ever does not hide it.
        let mut both = machine();
        both.add_thread(Box::new(wait()), 0, true);
        both.add_thread(Box::new(wait()), 0, true);
        both.add_thread(Box::new(Sleeper), 0, false);
        let error = both.run().unwrap_err();
        assert!(error.starts_with("stands still for 600.0"), "{error}");
        assert!(error.contains("1 asleep, 2 at a barrier; 4"), "{error}");
    }
}
