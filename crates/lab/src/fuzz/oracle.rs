//! Named rules that no machine may break, checked on the outcome of a run.
//!
//! Each rule is conservative: a correct kernel never breaks it, whatever its load. A violation is a
//! bug, or shows that the rule needs a better statement. docs/fuzz.md has this table too.
//!
//! Invariants
//! * ORACLE-1: a rule uses only figures of virtual time and counts, so it gives one answer on every
//!   computer.

use crate::machine::{Outcome, Patience, Stuck};
use crate::scenario::{RunError, Scenario, run_with};

/// A machine under examination.
pub struct Seen<'a> {
    /// Scenario that ran.
    pub scenario: &'a Scenario,
    /// Outcome of the run.
    pub run: &'a Result<Outcome, RunError>,
}

/// A rule.
pub struct Oracle {
    /// Name of the rule.
    pub name: &'static str,
    /// Condition that breaks the rule, with its threshold.
    pub rule: &'static str,
    check: fn(&Seen<'_>) -> Option<String>,
}

impl std::fmt::Debug for Oracle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl Oracle {
    /// Returns a description of the violation; none if the rule holds.
    #[must_use]
    pub fn broken_by(&self, seen: &Seen<'_>) -> Option<String> {
        (self.check)(seen)
    }
}

/// Seed of every run. Machines differ by their scenarios.
pub const RUN_SEED: u64 = 0;

/// Limits of a run. It has failed if no measured thread makes progress for a minute of virtual
/// time, or at 4,000 events at one moment. A run ends after 8,000 events, or after ten minutes.
const PATIENCE: Patience =
    Patience { ns: MINUTE_NS, events: u64::MAX, at_once: 4_000, all: (8_000, 10 * MINUTE_NS) };
const MINUTE_NS: u64 = 60_000_000_000;

/// Longest time in ns from a wake-up of kswapd to its step. It only has to switch tasks, which
/// takes 1.5 us.
const WAKE_NS_MAX: u64 = 10_000_000;
/// Longest time in ns that a task may lack memory. The longest intended wait is two seconds
/// (`memory.high`).
const SHORT_NS_MAX: u64 = 10_000_000_000;
/// Number of kswapd steps in balance that breaks the rule. After a run that ended in balance kswapd
/// takes two steps before it naps.
const IDLE_MAX: u64 = 64;
/// The false-oom rule breaks if a task is killed while more than one page in so many is
/// reclaimable.
const SPARED_SHARE: u64 = 4;
/// Least number of reclaimable pages at a kill that breaks the false-oom rule.
const SPARED_PAGES: u64 = 256;
/// Pages by which a pass may take a memcg below its `min`, because the pass uses the charge at its
/// beginning.
const BELOW_PAGES: u64 = 128;
/// Pages taken although enough were free: the limit is the machine's frames divided by this.
const NEEDLESS_SHARE: u64 = 8;
/// Equal memcgs are compared after this measured time in ns, once one of them has done `TWIN_OPS`
/// operations. The rule breaks if one has done more than `TWIN_FACTOR` times as many as another.
const TWIN_NS: u64 = 200_000_000;
const TWIN_OPS: u64 = 400;
const TWIN_FACTOR: u64 = 20;
/// Refaults, as a multiple of the machine's frames, from which they are compared with those of
/// other presets.
const STORM_FRAMES: u64 = 2;
/// The rule breaks if the share of refaults is more than so many times that of each of two presets.
const STORM_FACTOR: f64 = 4.0;
/// Least measured time in ns before the rule looks at counter sums, and the divisor for the share
/// of time they may take.
const SUMS_NS: u64 = 10_000_000;
const SUMS_SHARE: u64 = 2;
/// One machine in so many runs twice.
const TWICE_EVERY: u64 = 16;

/// All rules, in the order in which they are checked.
pub const ORACLES: &[Oracle] = &[
    Oracle {
        name: "books",
        rule: "a law of conservation does not hold when the run has ended (frames, charges, slots, dirty pages, \
               links of the lists), or the engine panics",
        check: books,
    },
    Oracle {
        name: "livelock",
        rule: "no measured thread makes progress for 60 s of virtual time, or 4,000 events happen at one moment of it",
        check: |seen| seen.failed_with(|end| matches!(end, Stuck::Still(..))),
    },
    Oracle {
        name: "lost-wake-up",
        rule: "all threads wait and nothing is pending; or kswapd takes no step for 10 ms after it was woken",
        check: lost_wake_up,
    },
    Oracle {
        name: "starvation",
        rule: "a task has no memory for one page for 10 s of virtual time, and is not killed",
        check: starvation,
    },
    Oracle {
        name: "false-oom",
        rule: "the OOM killer ends a process while reclaim could take more than a quarter of the pages of the full \
               memcg (or of the machine), and 256 pages or more: file pages, and anonymous pages if swap has room; \
               pages below a memcg's min do not count",
        check: false_oom,
    },
    Oracle {
        name: "early-sleep",
        rule: "kswapd goes to sleep, to a nap or deep, while no zone of its node is in balance and it has not given up \
               (16 runs without progress)",
        check: early_sleep,
    },
    Oracle {
        name: "busy-kswapd",
        rule: "kswapd takes 64 steps in a row, each of which begins with a zone in balance and no boost to work off",
        check: busy_kswapd,
    },
    Oracle {
        name: "over-reclaim",
        rule: "a task's reclaim, or a pass of kswapd, frees more than its target and 256 pages for each list",
        check: over_reclaim,
    },
    Oracle {
        name: "needless-reclaim",
        rule: "reclaim from all memcgs takes more than an eighth of memory from nodes whose highest zone has more than \
               twice its high mark and 256 pages free",
        check: needless,
    },
    Oracle {
        name: "below-min",
        rule: "reclaim from all memcgs takes a memcg at the top more than 128 pages and a quarter of its min below its \
               min",
        check: below_min,
    },
    Oracle {
        name: "unfair",
        rule: "a copy of a memcg does 400 operations or more, and more than 20 times as many as another copy with the \
               same workload, in 0.2 s or more without a kill",
        check: unfair,
    },
    Oracle {
        name: "refault-storm",
        rule: "refaults are at least twice the pages of memory, and more than 4 times as large a share of all accesses \
               as on the same machine with the preset classic and with k618",
        check: refault_storm,
    },
    Oracle {
        name: "sum-storm",
        rule: "refaults add up the counters of memcgs for more than half of the measured time, which is 10 ms or more",
        check: sum_storm,
    },
    Oracle {
        name: "not-the-same",
        rule: "two runs of one machine differ (the fuzzer runs one machine in 16 twice)",
        check: not_the_same,
    },
];

/// No rule has the first name. The second is the nearest.
#[derive(Debug, thiserror::Error)]
#[error("there is no oracle {0:?}; did you mean {1:?}? docs/fuzz.md has them all")]
pub struct UnknownOracle(String, String);

/// Returns the rule of this name.
///
/// # Errors
/// Fails if there is none of this name.
pub fn find(name: &str) -> Result<&'static Oracle, UnknownOracle> {
    let names = ORACLES.iter().map(|o| o.name);
    ORACLES.iter().find(|o| o.name == name).ok_or_else(|| {
        let best = ebb_mm::nearest::nearest(name, names).unwrap_or_default();
        UnknownOracle(name.into(), best.into())
    })
}

/// Runs a machine.
///
/// # Errors
/// Returns the reason that stopped the run.
pub fn run(scenario: &Scenario) -> Result<Outcome, RunError> {
    run_with(scenario, RUN_SEED, 0, PATIENCE).map(|(_, outcome)| outcome)
}

impl Seen<'_> {
    fn outcome(&self) -> Option<&Outcome> {
        self.run.as_ref().ok()
    }

    fn failed_with(&self, end: fn(&Stuck) -> bool) -> Option<String> {
        match self.run {
            Err(error @ RunError::Stuck(stuck)) if end(stuck) => Some(error.to_string()),
            _ => None,
        }
    }
}

fn books(seen: &Seen<'_>) -> Option<String> {
    let error = seen.run.as_ref().err()?;
    // A run that is stuck violates no law. Other rules cover it, or all storage of Ebb is full.
    (!matches!(error, RunError::Stuck(_))).then(|| error.to_string())
}

fn lost_wake_up(seen: &Seen<'_>) -> Option<String> {
    let Some(outcome) = seen.outcome() else {
        return seen.failed_with(|end| matches!(end, Stuck::Asleep(_)));
    };
    let ns = outcome.signs.wake_ns;
    (ns > WAKE_NS_MAX)
        .then(|| format!("kswapd was woken and took no step for {} ms", ns / 1_000_000))
}

fn starvation(seen: &Seen<'_>) -> Option<String> {
    let ns = seen.outcome()?.signs.short_ns;
    (ns > SHORT_NS_MAX)
        .then(|| format!("a task had no memory for a page for {:.1} s", ns as f64 / 1e9))
}

fn false_oom(seen: &Seen<'_>) -> Option<String> {
    let outcome = seen.outcome()?;
    let (spared, kills) = (outcome.signs.spared, outcome.kills);
    let broken = spared.pages >= SPARED_PAGES && spared.pages * SPARED_SHARE > spared.of;
    broken.then(|| {
        format!("{kills} killed, one while {} of {} pages could go", spared.pages, spared.of)
    })
}

fn early_sleep(seen: &Seen<'_>) -> Option<String> {
    let early = seen.outcome()?.signs.early;
    (early > 0).then(|| format!("kswapd went to sleep {early} times with no zone in balance"))
}

fn busy_kswapd(seen: &Seen<'_>) -> Option<String> {
    let idle = seen.outcome()?.signs.idle;
    (idle >= IDLE_MAX).then(|| format!("kswapd took {idle} steps in a row with a node in balance"))
}

fn over_reclaim(seen: &Seen<'_>) -> Option<String> {
    let over = seen.outcome()?.signs.over;
    (over.pages > over.of)
        .then(|| format!("{} pages were freed at once; the rule permits {}", over.pages, over.of))
}

fn needless(seen: &Seen<'_>) -> Option<String> {
    let pages = seen.outcome()?.signs.needless;
    (pages * NEEDLESS_SHARE > u64::from(seen.scenario.machine.frames))
        .then(|| format!("{pages} pages were taken from zones with twice their high mark free"))
}

fn below_min(seen: &Seen<'_>) -> Option<String> {
    let below = seen.outcome()?.signs.below_min;
    (below.pages > BELOW_PAGES + below.of / 4)
        .then(|| format!("a memcg was taken {} pages below its min of {}", below.pages, below.of))
}

fn unfair(seen: &Seen<'_>) -> Option<String> {
    let long = |outcome: &&Outcome| outcome.kills == 0 && outcome.elapsed_ns >= TWIN_NS;
    let outcome = seen.outcome().filter(long)?;
    let mut at = 0;
    for memcg in &seen.scenario.memcg {
        let copies = memcg.copies as usize;
        let of = outcome.signs.shares.get(at..at + copies)?;
        at += copies;
        let (least, most) = (of.iter().min()?, of.iter().max()?);
        if *most >= TWIN_OPS && least * TWIN_FACTOR < *most {
            let what = format!("one has done {most} operations, another {least}");
            return Some(format!("copies of memcg {:?}: {what}", memcg.name));
        }
    }
    None
}

/// Returns the number of refaults, and their share of all accesses.
fn refaults(outcome: &Outcome) -> (u64, f64) {
    let of = |name: &str| outcome.counters.iter().find(|c| c.0 == name).map_or(0, |c| c.1);
    let all = of("workingset_refault_anon") + of("workingset_refault_file");
    (all, all as f64 / outcome.touches.max(1) as f64)
}

fn refault_storm(seen: &Seen<'_>) -> Option<String> {
    let (came_back, share) = refaults(seen.outcome()?);
    let scenario = seen.scenario;
    if came_back < STORM_FRAMES * u64::from(scenario.machine.frames) || scenario.machine.live.on {
        return None;
    }
    let mut told = format!("{came_back} pages came back, {:.1} % of all touches", 100.0 * share);
    for preset in ["preset=classic", "preset=k618"] {
        let mut other = scenario.clone();
        other.switches = vec![preset.into()];
        let (others, less) = refaults(run(&other).as_ref().ok()?);
        if share <= STORM_FACTOR * less {
            return None;
        }
        told += &format!("; {others}, {:.1} %, with {preset}", 100.0 * less);
    }
    Some(told)
}

fn sum_storm(seen: &Seen<'_>) -> Option<String> {
    let outcome = seen.outcome()?;
    let (sums, all) = (outcome.spent.flush_ns, outcome.elapsed_ns);
    (all >= SUMS_NS && sums > all / SUMS_SHARE).then(|| {
        let ms = |ns: u64| ns as f64 / 1e6;
        format!("counters were added up for {:.1} of {:.1} ms", ms(sums), ms(all))
    })
}

fn not_the_same(seen: &Seen<'_>) -> Option<String> {
    let first = seen.outcome()?;
    // The outcome selects the machines, so that a file is selected exactly if its seed is.
    if !first.touches.is_multiple_of(TWICE_EVERY) {
        return None;
    }
    let again = match run(seen.scenario) {
        Ok(again) => again,
        Err(error) => return Some(format!("the second time: {error}")),
    };
    let differs = first.counters.iter().zip(&again.counters).find(|(a, b)| a.1 != b.1);
    match differs {
        Some((a, b)) => Some(format!("{}: {} and {}", a.0, a.1, b.1)),
        None if first.elapsed_ns != again.elapsed_ns => {
            Some(format!("it took {} ns and {} ns", first.elapsed_ns, again.elapsed_ns))
        }
        None => None,
    }
}
