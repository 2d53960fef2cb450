//! Shows how the time of faults is spent, for `ebb stat --faults` and the report.
//!
//! The fault threads count their stages for every fault ([`crate::stages`]). The time before and
//! after that is estimated ([`crate::unseen`], [`crate::own_cost`]). The estimated mean is added to
//! each fault.

use crate::mm::Mm;
use crate::own_cost::{self, FaultCpu};
use crate::server::Pager;
use crate::stages::{Kind, Ledger, Served, Stage, Times};
use crate::unseen::{Samples, Unseen};
use ebb_sys::ticks::Began;
use serde::Serialize;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Stages in the order of time, and the whole: JSON key and column text. A star marks an estimate.
const NAMES: [(&str, &str); 9] = [
    ("fault_to_read", "fault->read *"),
    ("lock", "  of it lock"),
    ("look_up", "look-up"),
    ("content", "content"),
    ("place", "place"),
    ("wake", "wake"),
    ("wake_to_run", "->runs *"),
    ("in_thread", "in thread *"),
    ("all", "all *"),
];

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

/// Durations of a stage, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Took {
    pub mean_ns: u64,
    pub p50_ns: u64,
    pub p99_ns: u64,
}

impl Took {
    fn of(times: &Times, unit_ns: f64) -> Self {
        let ns = |units: f64| (units * unit_ns).round() as u64;
        let quantile = |permille| ns(times.quantile(permille) as f64);
        Self { mean_ns: ns(times.mean()), p50_ns: quantile(500), p99_ns: quantile(990) }
    }

    fn later(self, ns: u64) -> Self {
        let Self { mean_ns, p50_ns, p99_ns } = self;
        Self { mean_ns: mean_ns + ns, p50_ns: p50_ns + ns, p99_ns: p99_ns + ns }
    }
}

/// Figures of one kind of fault.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub kind: &'static str,
    #[serde(skip)]
    name: &'static str,
    pub count: u64,
    /// Durations of the stages, in the order of [`NAMES`].
    #[serde(serialize_with = "by_name")]
    pub stages: [Took; NAMES.len()],
}

fn by_name<S: serde::Serializer>(
    stages: &[Took; NAMES.len()],
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_map(NAMES.iter().map(|(key, _)| key).zip(stages))
}

/// Figures of all faults.
#[derive(Clone, Debug, Serialize)]
pub struct Faults {
    pub count: u64,
    /// Time from fault to running again, summed over all faults: an estimate.
    pub waited_ns: u64,
    /// Part of it that the fault threads see, from reading to waking.
    pub served_ns: u64,
    /// Mean of all faults before the reading. Next, the means after waking and in the thread
    /// itself.
    pub fault_to_read_ns: u64,
    pub wake_to_run_ns: u64,
    pub in_thread_ns: u64,
    /// Mean time for which a woken thread is kept from running on its CPU.
    pub driven_off_ns: u64,
    /// Time for which faulting threads were kept off their CPU between faults, summed: an estimate.
    pub kept_off_ns: u64,
    /// Durations of all faults from fault to running again.
    pub all: Took,
    /// Number of faults on which the estimate rests. Next, the number of sample windows without a
    /// result.
    pub faults_followed: u64,
    pub windows_unclear: u64,
    /// Share of faults served on the CPU of the program's thread, in permille.
    pub on_own_cpu_permille: Option<u64>,
    pub kinds: Vec<Row>,
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
            self.unseen.turn(mm.pid(), served, self.began.ns_per_tick());
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
        Faults::of(Kind::ALL.map(parts), &samples, unit_ns, in_thread_ns)
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

impl Faults {
    fn of(parts: [Parts; Kind::COUNT], samples: &Samples, unit_ns: f64, in_thread_ns: u64) -> Self {
        let mut kinds = Vec::new();
        let (mut count, mut served, mut all) = (0, 0.0, Times::default());
        let one = |times, mean_ns| Took { mean_ns, ..Took::of(times, 1.0) };
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
            let seen = |times| Took::of(times, unit_ns);
            let whole = seen(&parts.served).later(beyond);
            let stages = [
                unread,
                seen(&parts.lock),
                seen(&parts.look_up),
                seen(&parts.content),
                seen(&parts.place),
                seen(&parts.wake),
                waking,
                within,
                whole,
            ];
            kinds.push(Row { kind: kind.key(), name: kind.name(), count: faults, stages });
            count += faults;
            served += parts.served.total as f64 * unit_ns;
            all.add(&parts.served);
        }
        let whole = Took::of(&all, unit_ns);
        Self {
            count,
            waited_ns: served as u64 + count * beyond,
            served_ns: served as u64,
            fault_to_read_ns: unread.mean_ns,
            wake_to_run_ns: waking.mean_ns,
            in_thread_ns,
            driven_off_ns,
            kept_off_ns: count * between_ns,
            all: if count == 0 { whole } else { whole.later(beyond) },
            faults_followed: samples.faults,
            windows_unclear: samples.unclear,
            on_own_cpu_permille: samples.beside_permille(),
            kinds,
        }
    }

    /// Returns the table for the user.
    #[must_use]
    pub fn text(&self) -> String {
        let mut out = String::new();
        let us = |ns: u64| ns as f64 / 1e3;
        let mut line = |text: std::fmt::Arguments<'_>| {
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{text}");
        };
        line(format_args!(
            "{:<14} {:<13} {:>10} {:>9} {:>9} {:>9}",
            "kind", "stage", "faults", "mean us", "p50 us", "p99 us"
        ));
        for row in &self.kinds {
            for ((_, stage), took) in NAMES.iter().zip(&row.stages) {
                let [mean, p50, p99] = [took.mean_ns, took.p50_ns, took.p99_ns].map(us);
                line(format_args!(
                    "{:<14} {stage:<13} {:>10} {mean:>9.2} {p50:>9.2} {p99:>9.2}",
                    row.name, row.count
                ));
            }
        }
        line(format_args!(
            "{} faults; threads waited {:.3} s, {:.3} s of it between reading and waking; {}",
            self.count,
            self.waited_ns as f64 / 1e9,
            self.served_ns as f64 / 1e9,
            self.own_cpu()
        ));
        line(format_args!(
            "* estimated from {} faults; {} sample windows gave no result",
            self.faults_followed, self.windows_unclear
        ));
        out
    }

    /// Returns the share of faults served on the program's own CPU, in words.
    #[must_use]
    pub fn own_cpu(&self) -> String {
        self.on_own_cpu_permille.map_or_else(
            || "no sample of the CPUs".to_owned(),
            |share| format!("{:.0} % served on the program's own CPU", share as f64 / 10.0),
        )
    }

    /// Returns the figures as JSON.
    #[must_use]
    pub fn json(&self) -> String {
        // There are only numbers and fixed names, so this cannot fail.
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }
}

impl Pager {
    /// Returns [`Account::waited`], or zeros where time is simulated.
    pub fn waited(&self) -> (u64, u64) {
        if self.clock.is_simulated() { (0, 0) } else { self.account.waited() }
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
        Faults::of(parts, &Samples::default(), 0.5, 1_500)
    }

    #[test]
    fn the_served_and_the_unseen_time_of_faults_add_up() {
        let faults = example();
        assert_eq!((faults.count, faults.served_ns), (40, 10 * 2_000 + 30 * 50_000));
        assert_eq!(faults.waited_ns, faults.served_ns + 40 * 1_500);
        let whole: u64 =
            (faults.kinds.iter()).map(|row| row.count * row.stages[NAMES.len() - 1].mean_ns).sum();
        assert_eq!(whole, faults.waited_ns);
        assert_eq!(faults.kinds.len(), 2, "no rows of kinds that there were none of");
        assert_eq!(Faults::of(Default::default(), &Samples::default(), 0.5, 0).waited_ns, 0);
    }

    #[test]
    fn the_table_has_a_line_for_each_stage() {
        let text = example().text();
        assert_eq!(text.lines().count(), 1 + 2 * NAMES.len() + 2, "{text}");
        assert!(text.contains("standby        content               10      0.50"), "{text}");
        let json: serde_json::Value = serde_json::from_str(&example().json()).expect("JSON");
        assert_eq!(json["kinds"][0]["kind"], "standby");
        assert_eq!(json["kinds"][0]["stages"]["content"]["mean_ns"], 500);
        assert_eq!(json["kinds"][1]["stages"]["all"]["mean_ns"], 51_500);
        assert!(json["on_own_cpu_permille"].is_null());
    }
}
