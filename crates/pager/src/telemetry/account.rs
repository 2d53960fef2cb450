//! Shows how the time of faults is spent, for `ebb stat --faults` and the report.
//!
//! The fault threads count their stages for every fault ([`crate::telemetry::stages`]). The time
//! before and after that is estimated ([`crate::telemetry::unseen`],
//! [`crate::telemetry::own_cost`]). The estimated mean is added to each fault.

use crate::mm::Mm;
use crate::telemetry::own_cost::{self, FaultCpu};
use crate::telemetry::stages::{Kind, Ledger, Served, Stage, Times};
use crate::telemetry::unseen::{Samples, Unseen};
use ebb_control::{Faults, Row, Stages, Took};
use ebb_sys::ticks::Began;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Counts of faults, kept while faults are served.
#[derive(Debug)]
pub struct Account {
    ledgers: Mutex<Vec<Arc<Ledger>>>,
    unseen: Unseen,
    began: Began,
    /// Mean time of the kernel in the thread, for faults served on the thread's own CPU and on
    /// another.
    in_thread_ns: [OnceLock<u64>; 2],
}

impl Default for Account {
    fn default() -> Self {
        Self {
            ledgers: Mutex::default(),
            unseen: Unseen::default(),
            began: Began::now(),
            in_thread_ns: Default::default(),
        }
    }
}

fn took(times: &Times, unit_ns: f64) -> Took {
    let ns = |units: f64| (units * unit_ns).round() as u64;
    let quantile = |permille| ns(times.quantile(permille) as f64);
    Took { mean_ns: ns(times.mean()), p50_ns: quantile(500), p99_ns: quantile(990) }
}

fn later(took: Took, ns: u64) -> Took {
    let Took { mean_ns, p50_ns, p99_ns } = took;
    Took { mean_ns: mean_ns + ns, p50_ns: p50_ns + ns, p99_ns: p99_ns + ns }
}

impl Account {
    /// Creates a ledger for a fault thread.
    pub fn begin(&self) -> Arc<Ledger> {
        let ledger = Arc::<Ledger>::default();
        self.ledgers().push(ledger.clone());
        ledger
    }

    fn ledgers(&self) -> std::sync::MutexGuard<'_, Vec<Arc<Ledger>>> {
        self.ledgers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn times(&self, kind: Kind, stage: Stage) -> Times {
        let mut times = Times::default();
        self.ledgers().iter().for_each(|ledger| ledger.add_to(kind, stage, &mut times));
        times
    }

    /// Takes a sample of a fault now and then. The caller wakes the fault's thread next.
    pub fn look(&self, mm: &Mm, served: &Served, woken: u64) {
        if self.unseen.count_served(served, woken) {
            self.unseen.turn(mm.owner.pid(), served, self.began.ns_per_tick());
        }
    }

    /// Returns how many threads have waited, and their total time in nanoseconds. The time in the
    /// thread itself is left out, because it takes longer to measure.
    #[must_use]
    pub fn waited(&self) -> (u64, u64) {
        let (mut count, mut ticks) = (0, 0);
        for ledger in self.ledgers().iter() {
            for kind in Kind::ALL {
                let (faults, took) = ledger.served(kind);
                count += faults;
                ticks += took;
            }
        }
        let samples = self.unseen.samples();
        (count, self.ns(ticks) + count * (samples.before_ns() + samples.after_ns()))
    }

    /// Returns the number of faults of each kind.
    #[must_use]
    pub fn counted(&self) -> [u64; Kind::COUNT] {
        let ledgers = self.ledgers();
        Kind::ALL.map(|kind| ledgers.iter().map(|ledger| ledger.served(kind).0).sum())
    }

    /// Converts ticks to nanoseconds.
    #[must_use]
    pub fn ns(&self, ticks: u64) -> u64 {
        (ticks as f64 * self.began.ns_per_tick()) as u64
    }

    /// Returns the estimated time that threads waited for `messages` that need no answer, in
    /// nanoseconds.
    #[must_use]
    pub fn unanswered_ns(&self, messages: u64) -> u64 {
        let samples = self.unseen.samples();
        messages * (samples.before_ns() + samples.after_ns())
    }

    /// Returns the mean time of the kernel in the thread; 0 where it cannot be measured.
    fn in_thread_ns(&self, samples: &Samples) -> u64 {
        let measured = |place| {
            let measure = || own_cost::measure(place).map_or(0, |cost| cost.as_nanos() as u64);
            *self.in_thread_ns[place as usize].get_or_init(measure)
        };
        let beside = samples.beside_permille().unwrap_or(0);
        let (here, there) = (measured(FaultCpu::Beside), measured(FaultCpu::Elsewhere));
        (here * beside + there * (1000 - beside)) / 1000
    }

    /// Returns all figures. The first call takes some milliseconds.
    #[must_use]
    pub fn faults(&self) -> Faults {
        let samples = self.unseen.samples();
        let in_thread_ns = if self.waited().0 > 0 { self.in_thread_ns(&samples) } else { 0 };
        let unit_ns = self.began.ns_per_tick();
        let parts = |kind| Parts {
            lock: self.times(kind, Stage::Lock),
            look_up: self.times(kind, Stage::LookUp),
            content: self.times(kind, Stage::Content),
            place: self.times(kind, Stage::Place),
            wake: self.times(kind, Stage::Wake),
            served: self.times(kind, Stage::Served),
        };
        figures(Kind::ALL.map(parts), &samples, unit_ns, in_thread_ns)
    }
}

/// Durations of the stages of one kind, in ticks.
#[derive(Clone, Debug, Default)]
struct Parts {
    lock: Times,
    look_up: Times,
    content: Times,
    place: Times,
    wake: Times,
    served: Times,
}

/// Makes the figures from the stages of each kind. Ticks take `unit_ns`.
fn figures(
    parts: [Parts; Kind::COUNT],
    samples: &Samples,
    unit_ns: f64,
    in_thread_ns: u64,
) -> Faults {
    let mut kinds = Vec::new();
    let (mut count, mut served, mut all) = (0, 0.0, Times::default());
    let one = |times, mean_ns| Took { mean_ns, ..took(times, 1.0) };
    let unread = one(&samples.before, samples.before_ns());
    let waking = one(&samples.after, samples.after_ns());
    let (driven_off_ns, between_ns) = samples.driven_off_ns(in_thread_ns);
    let mean_ns = in_thread_ns + driven_off_ns;
    let within = Took { mean_ns, p50_ns: in_thread_ns, p99_ns: in_thread_ns };
    let beyond = unread.mean_ns + waking.mean_ns + within.mean_ns;
    for (kind, parts) in Kind::ALL.into_iter().zip(&parts) {
        let faults = parts.served.count;
        if faults == 0 {
            continue;
        }
        let seen = |times| took(times, unit_ns);

        let stages = Stages {
            fault_to_read: unread,
            lock: seen(&parts.lock),
            look_up: seen(&parts.look_up),
            content: seen(&parts.content),
            place: seen(&parts.place),
            wake: seen(&parts.wake),
            wake_to_run: waking,
            in_thread: within,
            all: later(seen(&parts.served), beyond),
        };
        kinds.push(Row { kind, count: faults, stages });
        count += faults;
        served += parts.served.total as f64 * unit_ns;
        all.add(&parts.served);
    }
    let whole = took(&all, unit_ns);
    Faults {
        count,
        waited_ns: served as u64 + count * beyond,
        served_ns: served as u64,
        fault_to_read_ns: unread.mean_ns,
        wake_to_run_ns: waking.mean_ns,
        in_thread_ns,
        driven_off_ns,
        kept_off_ns: count * between_ns,
        all: if count == 0 { whole } else { later(whole, beyond) },
        faults_followed: samples.faults,
        windows_unclear: samples.unclear,
        on_own_cpu_permille: samples.beside_permille(),
        kinds,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(ticks: u64, count: u64) -> Times {
        let mut times = Times::default();
        times.record(ticks, count);
        times
    }

    fn example() -> Faults {
        let mut parts: [Parts; Kind::COUNT] = Default::default();
        let reactivate = &mut parts[Kind::Reactivate as usize];
        reactivate.lock = times(50, 10);
        reactivate.served = times(4_000, 10);
        reactivate.content = times(1_000, 10);
        parts[Kind::File as usize].served = times(100_000, 30);
        figures(parts, &Samples::default(), 0.5, 1_500)
    }

    #[test]
    fn the_served_and_the_unseen_time_of_faults_add_up() {
        let faults = example();
        assert_eq!((faults.count, faults.served_ns), (40, 10 * 2_000 + 30 * 50_000));
        assert_eq!(faults.waited_ns, faults.served_ns + 40 * 1_500);
        let whole: u64 = (faults.kinds.iter()).map(|row| row.count * row.stages.all.mean_ns).sum();
        assert_eq!(whole, faults.waited_ns);
        assert_eq!(faults.kinds.len(), 2, "no rows of kinds that there were none of");
        assert_eq!(figures(Default::default(), &Samples::default(), 0.5, 0).waited_ns, 0);
    }
}
