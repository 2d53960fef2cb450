//! An allocation benchmark in virtual time: CPUs that take blocks in batches and give them back.
//!
//! The allocator is the engine's, with the kernel's mechanisms. The time of each step decides which
//! CPU is served when. A refill of a per-CPU set is one hold of the zone lock, and so is a drain of
//! it. Checks and counts under the lock make all other CPUs wait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ebb_linux::frame::{
    BadFree, Checks, CmaCount, Config, Contradiction, Frames, Gfp, LayoutError, Meter, NoHost,
    Order, PcpRule, Request, ZoneKind, ZoneSpec,
};
use ebb_mm::types::Pfn;
use schemars::JsonSchema;
use serde::Deserialize;

use super::histogram::Histogram;
use crate::value::ValueError;
use ebb_mm::random::Random;

/// When frames are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// While the zone lock is held.
    UnderLock,
    /// After the zone lock was dropped.
    AfterLock,
    /// Never.
    Off,
}

/// How free CMA frames are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Cma {
    /// One by one under the zone lock.
    PerPage,
    /// In one sum under the zone lock.
    InLock,
    /// In one sum after the zone lock was dropped.
    AfterUnlock,
}

/// Parameters and costs of the benchmark.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Allocation {
    /// CPUs that allocate.
    pub cores: usize,
    /// Order of the blocks: 0, or 9 for 2 MiB.
    pub order: u8,
    /// Blocks that each CPU takes before it frees them.
    pub batch: usize,
    /// Rounds of taking and freeing; the first is not measured.
    #[serde(default = "rounds")]
    pub rounds: usize,
    /// When frames are checked.
    pub check: Check,
    /// How free CMA frames are counted.
    pub cma: Cma,
    /// Time to take a block from a per-CPU set that has one, in nanoseconds.
    pub pop_ns: f64,
    /// Time to take one block from the free lists under the zone lock, in nanoseconds.
    pub block_ns: f64,
    /// Time to free a block to a per-CPU set that has room, in nanoseconds.
    pub push_ns: f64,
    /// Time to return one block to the free lists under the zone lock, in nanoseconds.
    pub merge_ns: f64,
    /// Time to check one frame, in nanoseconds.
    pub check_ns: f64,
    /// Time to look up one block's type and count the block, in nanoseconds.
    pub count_ns: f64,
    /// Time to take the zone lock over from another CPU, in nanoseconds. It includes the data that
    /// the other CPU changed under the lock: lists, counters, records.
    pub handover_ns: f64,
    /// Memory bandwidth of all CPUs together, in GB/s. Checks after the lock read the frames'
    /// records on all CPUs at once.
    pub memory_gb_s: f64,
}

fn rounds() -> usize {
    3
}

impl Allocation {
    /// Checks the values for a machine of `cpus`.
    ///
    /// # Errors
    /// There are more cores than CPUs, or none. There is nothing to take, or to measure. Memory
    /// delivers nothing.
    pub(crate) fn check(&self, cpus: usize) -> Result<(), ValueError> {
        if self.cores == 0 || self.cores > cpus {
            return Err(ValueError::Cores(self.cores, cpus));
        }
        if self.batch == 0 {
            return Err(ValueError::Count("batch", 0, "1 block or more"));
        }
        if self.rounds < 2 {
            let range = "2 or more, the first is not measured";
            return Err(ValueError::Count("rounds", self.rounds as u64, range));
        }
        if self.memory_gb_s <= 0.0 {
            return Err(ValueError::Number("memory_gb_s", self.memory_gb_s, "more than 0"));
        }
        Ok(())
    }
}

#[derive(Debug, Default)]
struct Holds(AtomicU64);

impl Meter for Holds {
    fn locked(&self) {
        // Relaxed: one thread drives everything.
        self.0.fetch_add(1, Relaxed);
    }
    fn unlocked(&self) {}
}

/// Bytes of a frame's record (`struct page`).
const RECORD_BYTES: f64 = 64.0;

/// Resources for which the CPUs wait.
struct Shared {
    lock: Lock,
    /// Time at which memory has delivered all that was asked for, in nanoseconds.
    delivered: f64,
}

impl Shared {
    fn new() -> Self {
        Self { lock: Lock { free: 0.0, owner: usize::MAX }, delivered: 0.0 }
    }

    /// Lets a CPU that comes at `now` read the records of so many frames from memory. Returns when
    /// it has done so.
    fn look(&mut self, a: &Allocation, now: f64, frames: f64) -> f64 {
        self.delivered = now.max(self.delivered) + frames * RECORD_BYTES / a.memory_gb_s;
        self.delivered.max(now + frames * a.check_ns)
    }
}

/// The zone lock: the time at which it is free, and its last owner.
struct Lock {
    free: f64,
    owner: usize,
}

impl Lock {
    /// Lets the CPU that comes at `now` hold the lock for `hold` ns. Returns when the CPU has
    /// dropped it.
    fn hold(&mut self, a: &Allocation, now: f64, cpu: usize, hold: f64) -> f64 {
        let taken_over = self.owner != cpu && self.owner != usize::MAX;
        let start = now.max(self.free) + if taken_over { a.handover_ns } else { 0.0 };
        (self.free, self.owner) = (start + hold, cpu);
        start + hold
    }
}

/// Times of one kind of step in nanoseconds.
#[derive(Debug, Default)]
pub struct Times {
    /// Histogram of the time that each step took.
    pub each: Histogram,
    /// Sum of the times.
    pub sum: f64,
}

impl Times {
    /// Returns the mean in nanoseconds.
    #[must_use]
    pub fn mean(&self) -> f64 {
        self.sum / self.each.count().max(1) as f64
    }

    fn add(&mut self, steps: Vec<f64>) {
        for took in steps {
            self.each.add(took as u64);
            self.sum += took;
        }
    }
}

/// Measurements of one run without its first round.
#[derive(Debug, Default)]
pub struct Measured {
    /// Times to get a block.
    pub take: Times,
    /// Times to give a block back.
    pub give: Times,
    /// Number of sets filled, each with the lock held.
    pub refills: u64,
    /// Number of sets emptied, each with the lock held.
    pub drains: u64,
}

/// Why the benchmark failed.
#[derive(Debug, thiserror::Error)]
pub enum AllocationError {
    /// No frame was free.
    #[error("the allocator ran dry")]
    RanDry,
    /// There is no such order.
    #[error("order: expected 0 to 10")]
    Order,
    /// The allocator refused a block.
    #[error("{0:?}")]
    BadFree(BadFree),
    /// There is no such machine.
    #[error(transparent)]
    Layout(#[from] LayoutError),
    /// The allocator does not balance.
    #[error(transparent)]
    Frames(#[from] Contradiction),
}

/// Runs the benchmark on a machine of `cpus`, of which some may be idle. With more CPUs a per-CPU
/// set has fewer frames.
///
/// # Errors
/// The allocator ran dry or does not balance.
pub fn run(a: &Allocation, cpus: usize, seed: u64) -> Result<Measured, AllocationError> {
    let holds = Arc::new(Holds::default());
    let frames = build(a, cpus, &holds)?;
    let order = Order::new(a.order).ok_or(AllocationError::Order)?;
    let request = Request::new(Gfp::HIGHUSER_MOVABLE.without(Gfp::DIRECT), order);
    let block = 1u64 << a.order;
    let mut random = Random(seed);
    let mut measured = Measured::default();
    let mut held: Vec<Vec<Pfn>> = vec![Vec::new(); a.cores];
    for round in 0..a.rounds {
        let (mut refills, mut drains) = (0, 0);
        let taken = phase(a, &mut random, |cpu, now, noise, shared| {
            let (before, sets) = (holds.0.load(Relaxed), frames.pages_in_set(cpu, 0));
            let pfn = frames.alloc_on(cpu, &request, &NoHost).ok_or(AllocationError::RanDry)?;
            held[cpu].push(pfn);
            let mut now = now + a.pop_ns * noise;
            if holds.0.load(Relaxed) > before {
                let got = frames.pages_in_set(cpu, 0) + block - sets;
                now = refill(a, now, (cpu, got as f64), noise, shared);
                refills += 1;
            }
            Ok(now)
        })?;
        // The first block taken goes first, as in the published benchmarks.
        held.iter_mut().for_each(|of| of.reverse());
        let given = phase(a, &mut random, |cpu, now, noise, shared| {
            let sets = frames.pages_in_set(cpu, 0);
            let pfn = held[cpu].pop().expect("as many are given as were taken");
            frames.free_on(cpu, pfn, order).map_err(AllocationError::BadFree)?;
            let drained = (sets + block).saturating_sub(frames.pages_in_set(cpu, 0)) / block;
            let now = now + a.push_ns * noise;
            let lock = &mut shared.lock;
            drains += u64::from(drained > 0);
            Ok(if drained > 0 { drain(a, now, (cpu, drained as f64), noise, lock) } else { now })
        })?;
        if round > 0 {
            measured.take.add(taken);
            measured.give.add(given);
            measured.refills += refills;
            measured.drains += drains;
        }
    }
    frames.drain_all();
    frames.check()?;
    Ok(measured)
}

/// Sets of single frames as Linux 6.2 has them, with refills of 63, because the publications are
/// about it. (Since 6.7 refills grow as a CPU goes on taking.) There a set may have 800 or so of
/// the 32768 frames that each CPU takes. Here it may have as small a share.
const PCP_6_2: PcpRule = PcpRule::Fixed { high: 252, batch: 63, huge_high: 2, huge_batch: 2 };

/// Builds a node for the benchmark.
fn build(a: &Allocation, cpus: usize, holds: &Arc<Holds>) -> Result<Frames, LayoutError> {
    let blocks = cpus * (a.batch + 64);
    let frames = (blocks << a.order).next_multiple_of(1 << 10).max(1 << 16) as u32 * 2;
    let mut zone = ZoneSpec::new(ZoneKind::Normal, 0..frames);
    zone.cma.push(0..(frames / 16).next_multiple_of(1 << 10));
    let mut config = Config::node(&[ZoneKind::Normal], vec![zone], cpus).faithful();
    config.checks = match a.check {
        Check::UnderLock => Checks::UnderLock,
        Check::AfterLock => Checks::AfterLock,
        Check::Off => Checks::Off,
    };
    config.cma_count = match a.cma {
        Cma::PerPage => CmaCount::PerPage,
        Cma::InLock => CmaCount::InLock,
        Cma::AfterUnlock => CmaCount::AfterUnlock,
    };
    if a.order == 0 {
        config.pcp = Some(PCP_6_2);
    }
    config.meter = Some(Arc::clone(holds) as Arc<dyn Meter>);
    config.build()
}

/// Lets all cores do a batch of steps from about one moment on. `step` takes the CPU, its time,
/// some noise and the shared resources. It returns when the CPU has done the step. Returns how long
/// each step took.
fn phase(
    a: &Allocation,
    random: &mut Random,
    mut step: impl FnMut(usize, f64, f64, &mut Shared) -> Result<f64, AllocationError>,
) -> Result<Vec<f64>, AllocationError> {
    let mut shared = Shared::new();
    let mut left = vec![a.batch; a.cores];
    let mut took = Vec::with_capacity(a.cores * a.batch);
    // The CPU that is furthest behind is next, of equals the lowest. Times are positive, so they
    // sort as their bits do.
    let mut next: BinaryHeap<Reverse<(u64, usize)>> =
        (0..a.cores).map(|cpu| Reverse((f64::from(random.below(1000)).to_bits(), cpu))).collect();
    while let Some(Reverse((bits, cpu))) = next.pop() {
        let begun = f64::from_bits(bits);
        // A few percent of noise, as from caches and interrupts.
        let noise = 0.95 + f64::from(random.below(1000)) / 10_000.0;
        let now = step(cpu, begun, noise, &mut shared)?;
        took.push(now - begun);
        left[cpu] -= 1;
        if left[cpu] > 0 {
            next.push(Reverse((now.to_bits(), cpu)));
        }
    }
    Ok(took)
}

/// Holds the zone lock once to fill a set, and does the work after it. Returns when the CPU goes
/// on.
fn refill(
    a: &Allocation,
    now: f64,
    (cpu, pages): (usize, f64),
    noise: f64,
    shared: &mut Shared,
) -> f64 {
    let blocks = pages / f64::from(1u32 << a.order);
    let counts = blocks * a.count_ns;
    let mut hold = blocks * a.block_ns * noise;
    let mut after = 0.0;
    if a.check == Check::UnderLock {
        // The frames are checked one at a time, so memory is no bound.
        hold += pages * a.check_ns;
    }
    // Looking at the type of each block stays. The sum is one addition.
    let summed = counts / 2.0 + a.count_ns;
    match a.cma {
        Cma::PerPage => hold += counts,
        Cma::InLock => hold += summed,
        Cma::AfterUnlock => after += summed,
    }
    let now = shared.lock.hold(a, now, cpu, hold) + after;
    if a.check == Check::AfterLock { shared.look(a, now, pages) } else { now }
}

/// Holds the zone lock once to empty a set of so many blocks. The first frame of each block is
/// checked, under the lock.
fn drain(
    a: &Allocation,
    now: f64,
    (cpu, blocks): (usize, f64),
    noise: f64,
    lock: &mut Lock,
) -> f64 {
    let check = if a.check == Check::Off { 0.0 } else { a.check_ns };
    lock.hold(a, now, cpu, blocks * (a.merge_ns * noise + check))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec() -> Allocation {
        Allocation {
            cores: 1,
            order: 0,
            batch: 2048,
            rounds: 3,
            check: Check::Off,
            cma: Cma::AfterUnlock,
            pop_ns: 77.0,
            block_ns: 41.0,
            push_ns: 58.0,
            merge_ns: 58.0,
            check_ns: 5.0,
            count_ns: 0.0,
            handover_ns: 100.0,
            memory_gb_s: 90.0,
        }
    }

    #[test]
    fn a_set_keeps_little_of_what_a_core_gave_back() {
        // If all frames stayed in the set, the lock would never be taken: 77 ns. Some 200 of 2048
        // stay.
        for cpus in [1, 24] {
            let mean = run(&spec(), cpus, 1).unwrap().take.mean();
            assert!((112.0..119.0).contains(&mean), "{cpus} CPUs: {mean}");
        }
    }

    #[test]
    fn a_lock_taken_over_costs_as_much_if_nobody_waits_for_it() {
        let mean = |cores, handover_ns| {
            run(&Allocation { cores, handover_ns, ..spec() }, 24, 1).unwrap().take.mean()
        };
        assert_eq!(mean(1, 0.0), mean(1, 1008.0), "alone it is never taken over");
        // Refills are of 63 frames, and two cores are too few for a queue: 16 ns a frame.
        let more = mean(2, 1008.0) - mean(2, 0.0);
        assert!((11.0..19.0).contains(&more), "{more}");
    }

    #[test]
    fn of_a_block_given_back_one_frame_is_checked_with_the_lock_held() {
        let mean = |check, order, cores| {
            let batch = if order == 9 { 128 } else { 2048 };
            run(&Allocation { check, order, cores, batch, ..spec() }, 24, 1).unwrap().give.mean()
        };
        for order in [0, 9] {
            let none = mean(Check::Off, order, 1);
            let checked = mean(Check::AfterLock, order, 1);
            assert!((2.0..=5.1).contains(&(checked - none)), "{order}: {none} {checked}");
        }
        // The lock is the bound, so each core waits for the checks of all.
        let more = mean(Check::UnderLock, 0, 24) - mean(Check::Off, 0, 24);
        assert!((100.0..140.0).contains(&more), "{more}");
    }

    /// 512 records of 64 bytes a block are 364 ns of memory at 90 GB/s, on any core.
    #[test]
    fn checks_after_the_lock_are_bound_by_what_memory_delivers() {
        let mean = |memory_gb_s, cores| {
            let a = Allocation { order: 9, batch: 128, memory_gb_s, cores, ..spec() };
            run(&Allocation { check: Check::AfterLock, ..a }, 24, 1).unwrap().take.mean()
        };
        assert_eq!(mean(90.0, 1), mean(1e6, 1), "one core does not ask for so much");
        let bound = mean(90.0, 24) / (24.0 * 364.0);
        // Each core takes its first blocks before all wait.
        assert!((0.9..1.0).contains(&bound), "{bound}");
        assert!(mean(1e6, 24) < mean(90.0, 24) * 0.9);
    }

    #[test]
    fn more_cores_than_the_machine_has_and_nothing_to_measure_are_refused() {
        let told = Allocation { cores: 3, ..spec() }.check(2).unwrap_err();
        assert_eq!(told.to_string(), "cores = 3: expected 1 to 2, machine.cpus");
        let told = Allocation { batch: 0, ..spec() }.check(2).unwrap_err();
        assert_eq!(told.to_string(), "batch = 0: expected 1 block or more");
        let told = Allocation { rounds: 1, ..spec() }.check(2).unwrap_err();
        assert_eq!(told.to_string(), "rounds = 1: expected 2 or more, the first is not measured");
        let told = Allocation { memory_gb_s: 0.0, ..spec() }.check(2).unwrap_err();
        assert_eq!(told.to_string(), "memory_gb_s = 0: expected more than 0");
    }
}
