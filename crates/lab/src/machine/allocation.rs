//! An allocation benchmark in virtual time: CPUs that take blocks in batches and give them back.
//!
//! The allocator is the engine's, with the kernel's mechanisms; which CPU is served when follows from
//! the time each step takes. A refill of a per-CPU set is one hold of the zone lock; what is checked
//! and counted under it makes everybody else wait.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use ebb_core::frame::{
    Checks, CmaCount, Config, Gfp, Meter, NoHost, Order, Request, ZoneKind, ZoneSpec,
};
use ebb_core::types::Pfn;
use serde::Deserialize;

use super::histogram::Histogram;
use crate::trace::synth::Random;

/// When frames are checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// While the zone lock is held.
    UnderLock,
    /// After it was dropped.
    AfterLock,
    /// Never.
    Off,
}

/// How free CMA frames are counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cma {
    /// One by one under the lock.
    PerPage,
    /// In one sum under the lock.
    InLock,
    /// In one sum after the lock was dropped.
    AfterUnlock,
}

/// Parameters and costs of the benchmark.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Allocation {
    /// CPUs that work.
    pub cores: usize,
    /// 0, or 9 for 2 MiB.
    pub order: u8,
    /// Blocks each takes before it gives them back.
    pub batch: usize,
    /// Rounds.
    #[serde(default = "rounds")]
    pub rounds: usize,
    /// When frames are checked.
    pub check: Check,
    /// How CMA frames are counted.
    pub cma: Cma,
    /// Getting a block from a set that has one.
    pub pop_ns: f64,
    /// Taking one block from the free lists, under the lock.
    pub block_ns: f64,
    /// Checking one frame.
    pub check_ns: f64,
    /// Looking at one block's type and counting it.
    pub count_ns: f64,
    /// Taking the lock over from another CPU that held it.
    pub handover_ns: f64,
}

fn rounds() -> usize {
    3
}

impl Allocation {
    /// Says what of it makes no sense on a machine of `cpus`.
    ///
    /// # Errors
    /// More cores than CPUs, or none; nothing to take.
    pub(crate) fn check(&self, cpus: usize) -> Result<(), String> {
        if self.cores == 0 || self.cores > cpus {
            return Err(format!("cores = {}: expected 1 to {cpus}, machine.cpus", self.cores));
        }
        if self.batch == 0 {
            return Err("batch = 0: expected 1 block or more".into());
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

struct Core {
    now: f64,
    held: Vec<Pfn>,
    left: usize,
}

/// Runs it on a machine of `cpus`, of which some may rest: the more there are, the less a set holds. Returns the times
/// to get a block in nanoseconds, and their sum.
///
/// # Errors
/// The allocator ran dry or does not balance.
pub fn run(a: &Allocation, cpus: usize, seed: u64) -> Result<(Histogram, f64), String> {
    let blocks = cpus * (a.batch + 64);
    let frames = (blocks << a.order).next_multiple_of(1 << 10).max(1 << 16) as u32 * 2;
    let mut zone = ZoneSpec::new(ZoneKind::Normal, 0..frames);
    zone.cma.push(0..(frames / 16).next_multiple_of(1 << 10));
    let holds = Arc::new(Holds::default());
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
    config.meter = Some(Arc::clone(&holds) as Arc<dyn Meter>);
    let frames = config.build().map_err(|e| e.to_string())?;
    let order = Order::new(a.order).ok_or("order: expected 0 to 10")?;
    let request = Request::new(Gfp::HIGHUSER_MOVABLE.without(Gfp::DIRECT), order);
    let mut random = Random(seed);
    let mut times = Histogram::default();
    let (mut lock_free, mut lock_owner, mut sum) = (0.0_f64, usize::MAX, 0.0);
    for round in 0..a.rounds {
        let mut cores: Vec<Core> = (0..a.cores)
            .map(|_| Core { now: f64::from(random.below(1000)), held: Vec::new(), left: a.batch })
            .collect();
        lock_free = f64::min(lock_free, 0.0);
        // The CPU that is furthest behind is next; of equals the lowest. Times are positive: they sort as their bits do.
        let mut next: BinaryHeap<Reverse<(u64, usize)>> =
            (0..a.cores).map(|cpu| Reverse((cores[cpu].now.to_bits(), cpu))).collect();
        while let Some(Reverse((_, cpu))) = next.pop() {
            let begun = cores[cpu].now;
            let (before, sets) = (holds.0.load(Relaxed), frames.pages_in_sets(0));
            let Some(pfn) = frames.alloc_on(cpu, &request, &NoHost) else {
                return Err("the allocator ran dry".into());
            };
            // A few percent of noise, as of caches and interrupts.
            let noise = 0.95 + f64::from(random.below(1000)) / 10_000.0;
            let mut now = begun + a.pop_ns * noise;
            if holds.0.load(Relaxed) > before {
                let got = frames.pages_in_sets(0) + (1 << a.order) - sets;
                now = refill(a, now, (cpu, got as f64), noise, (&mut lock_free, &mut lock_owner));
            }
            let core = &mut cores[cpu];
            core.held.push(pfn);
            core.left -= 1;
            core.now = now;
            if core.left > 0 {
                next.push(Reverse((now.to_bits(), cpu)));
            }
            if round > 0 {
                times.add((now - begun) as u64);
                sum += now - begun;
            }
        }
        for (cpu, core) in cores.iter_mut().enumerate() {
            for pfn in core.held.drain(..) {
                frames.free_on(cpu, pfn, order).map_err(|e| format!("{e:?}"))?;
            }
        }
    }
    frames.drain_all();
    frames.check()?;
    Ok((times, sum))
}

/// One hold of the zone lock, and what is done after it. Returns when the CPU goes on.
fn refill(
    a: &Allocation,
    now: f64,
    (cpu, pages): (usize, f64),
    noise: f64,
    (free, owner): (&mut f64, &mut usize),
) -> f64 {
    let blocks = pages / f64::from(1u32 << a.order);
    let waited = *free > now;
    let start = now.max(*free) + if waited && *owner != cpu { a.handover_ns } else { 0.0 };
    let checks = pages * a.check_ns;
    let counts = blocks * a.count_ns;
    let mut hold = blocks * a.block_ns * noise;
    let mut after = 0.0;
    match a.check {
        Check::UnderLock => hold += checks,
        Check::AfterLock => after += checks,
        Check::Off => {}
    }
    match a.cma {
        Cma::PerPage => hold += counts,
        // Looking at the type stays; the sum is one addition.
        Cma::InLock => hold += counts / 2.0 + a.count_ns,
        Cma::AfterUnlock => after += counts,
    }
    (*free, *owner) = (start + hold, cpu);
    start + hold + after
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
            check_ns: 5.0,
            count_ns: 0.0,
            handover_ns: 100.0,
        }
    }

    #[test]
    fn one_core_of_many_has_the_small_set_of_one_of_many() {
        let mean = |cpus| {
            let (times, sum) = run(&spec(), cpus, 1).unwrap();
            sum / times.count() as f64
        };
        // Alone it would find all that it gave back in its own set, and never refill it.
        assert!((113.0..119.0).contains(&mean(24)), "{}", mean(24));
        assert!(mean(1) < 100.0, "{}", mean(1));
    }

    #[test]
    fn more_cores_than_the_machine_has_and_none_to_take_are_refused() {
        let told = Allocation { cores: 3, ..spec() }.check(2).unwrap_err();
        assert_eq!(told, "cores = 3: expected 1 to 2, machine.cpus");
        let told = Allocation { batch: 0, ..spec() }.check(2).unwrap_err();
        assert_eq!(told, "batch = 0: expected 1 block or more");
    }
}
