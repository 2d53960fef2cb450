//! Fault injection: makes the store fail the way devices do, for tests of the code above it.
//!
//! A plan is a list of rules separated by commas, each `KIND@WHEN`, and perhaps `seed=N`:
//!
//! | kind | what happens |
//! |---|---|
//! | `read-error` | a read fails with EIO |
//! | `write-error` | a write fails with EIO |
//! | `short-read`, `short-write` | a file transfer moves only part of its bytes |
//! | `flip` | one bit of a page that was read is wrong |
//! | `slow-read=TIME`, `slow-write=TIME` | a transfer takes TIME longer (`50ms`, `2s`, `300us`) |
//! | `full` | a write finds its tier full (ENOSPC) |
//!
//! WHEN is a probability (`0.01`), every N-th time (`n100`), the N-th time only (`once100`), or the
//! N-th time and all later ones (`from100`). Each rule counts for itself. Example:
//! `read-error@0.01,flip@n1000,slow-read=50ms@0.01,full@from2000,seed=7`.
//!
//! Equal plans, seeds and orders of operations give equal faults. Without a plan the store pays one
//! branch for each operation.

use ebb_mm::random::mix;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// A kind of fault.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fault {
    ReadError,
    WriteError,
    ShortRead,
    ShortWrite,
    Flip,
    SlowRead,
    SlowWrite,
    Full,
}

const KINDS: [(&str, Fault); 8] = [
    ("read-error", Fault::ReadError),
    ("write-error", Fault::WriteError),
    ("short-read", Fault::ShortRead),
    ("short-write", Fault::ShortWrite),
    ("flip", Fault::Flip),
    ("slow-read", Fault::SlowRead),
    ("slow-write", Fault::SlowWrite),
    ("full", Fault::Full),
];

#[derive(Clone, Copy, PartialEq, Debug)]
enum When {
    Probability(f64),
    Every(u64),
    Once(u64),
    From(u64),
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct Rule {
    fault: Fault,
    when: When,
    time: Duration,
}

/// A parsed list of faults to inject.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Plan {
    rules: Vec<Rule>,
    seed: u64,
}

/// Mistake in the text of a plan. The first field is the part with the mistake.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// The seed is no number.
    #[error("\"{0}\": the seed is a whole number, as in seed=7")]
    Seed(String),
    /// The part has no `@`.
    #[error("\"{0}\": write KIND@WHEN, as in read-error@0.01")]
    NoWhen(String),
    /// There is no such kind of fault.
    #[error("\"{0}\": no such fault; there are {known}", known = KINDS.map(|(known, _)| known).join(", "))]
    NoFault(String),
    /// The time of a slow transfer is no time.
    #[error("\"{0}\": \"{1}\" is no time; write 300us, 50ms or 2s")]
    NoTime(String, String),
    /// A slow transfer has no time.
    #[error("\"{0}\": write {1}=50ms@WHEN")]
    TimeMissing(String, String),
    /// A fault without a time has one.
    #[error("\"{0}\": {1} takes no value; write {1}@WHEN")]
    Value(String, String),
    /// The text after the `@` says nothing valid.
    #[error(
        "\"{0}\": \"{1}\" is no WHEN; write a probability (0.01), n100 (every 100th), once100 or \
         from100"
    )]
    When(String, String),
}

impl Plan {
    /// Parses a plan; see the module's description for the grammar.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let mut plan = Self::default();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            if let Some(seed) = part.strip_prefix("seed=") {
                plan.seed = seed.parse().map_err(|_| PlanError::Seed(part.into()))?;
            } else {
                plan.rules.push(parse_rule(part)?);
            }
        }
        Ok(plan)
    }
}

fn parse_rule(part: &str) -> Result<Rule, PlanError> {
    let Some((kind, when)) = part.split_once('@') else {
        return Err(PlanError::NoWhen(part.into()));
    };
    let (name, time) = match kind.split_once('=') {
        Some((name, time)) => (name, Some(time)),
        None => (kind, None),
    };
    let Some(&(_, fault)) = KINDS.iter().find(|(known, _)| *known == name) else {
        return Err(PlanError::NoFault(part.into()));
    };
    let slow = matches!(fault, Fault::SlowRead | Fault::SlowWrite);
    let time = match (slow, time) {
        (true, Some(time)) => {
            parse_time(time).ok_or_else(|| PlanError::NoTime(part.into(), time.into()))?
        }
        (true, None) => return Err(PlanError::TimeMissing(part.into(), name.into())),
        (false, Some(_)) => return Err(PlanError::Value(part.into(), name.into())),
        (false, None) => Duration::ZERO,
    };
    let when = parse_when(when).ok_or_else(|| PlanError::When(part.into(), when.into()))?;
    Ok(Rule { fault, when, time })
}

fn parse_when(text: &str) -> Option<When> {
    let count = |text: &str| text.parse::<u64>().ok().filter(|n| *n > 0);
    if let Some(text) = text.strip_prefix("once") {
        count(text).map(When::Once)
    } else if let Some(text) = text.strip_prefix("from") {
        count(text).map(When::From)
    } else if let Some(text) = text.strip_prefix('n') {
        count(text).map(When::Every)
    } else {
        let probability = text.parse::<f64>().ok()?;
        (0.0..=1.0).contains(&probability).then_some(When::Probability(probability))
    }
}

fn parse_time(text: &str) -> Option<Duration> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number = number.parse::<u64>().ok()?;
    match unit {
        "us" => Some(Duration::from_micros(number)),
        "ms" => Some(Duration::from_millis(number)),
        "s" => Some(Duration::from_secs(number)),
        _ => None,
    }
}

/// An active plan, or none.
#[derive(Debug, Default)]
pub(crate) struct Injector {
    active: Option<Box<Active>>,
}

#[derive(Debug)]
struct Active {
    rules: Vec<(Rule, AtomicU64)>,
    seed: u64,
}

impl Injector {
    pub(crate) fn new(plan: Option<&Plan>) -> Self {
        let active = plan.filter(|plan| !plan.rules.is_empty()).map(|plan| {
            let rules = plan.rules.iter().map(|rule| (*rule, AtomicU64::new(0))).collect();
            Box::new(Active { rules, seed: plan.seed })
        });
        Self { active }
    }

    /// Returns whether there is a plan.
    pub(crate) fn is_active(&self) -> bool {
        self.active.is_some()
    }

    /// Returns whether `fault` strikes now. The duration is the delay of a slow transfer.
    #[inline]
    fn strikes(&self, fault: Fault) -> Option<Duration> {
        self.active.as_ref().and_then(|active| active.strikes(fault))
    }

    /// Fails a read if the plan says so.
    #[inline]
    pub(crate) fn read(&self) -> io::Result<()> {
        match self.strikes(Fault::ReadError) {
            None => Ok(()),
            Some(_) => Err(rustix::io::Errno::IO.into()),
        }
    }

    /// Fails a write if the plan says so.
    #[inline]
    pub(crate) fn write(&self) -> io::Result<()> {
        if self.strikes(Fault::Full).is_some() {
            return Err(rustix::io::Errno::NOSPC.into());
        }
        match self.strikes(Fault::WriteError) {
            None => Ok(()),
            Some(_) => Err(rustix::io::Errno::IO.into()),
        }
    }

    /// Returns how many of `length` bytes a transfer may move: all, or fewer but at least one
    /// block.
    #[inline]
    pub(crate) fn shorten(&self, read: bool, length: usize) -> usize {
        let fault = if read { Fault::ShortRead } else { Fault::ShortWrite };
        match self.strikes(fault) {
            None => length,
            Some(_) => (length / 2).next_multiple_of(512).min(length),
        }
    }

    /// Returns the delay of a transfer, if any.
    #[inline]
    pub(crate) fn delay(&self, read: bool) -> Option<Duration> {
        self.strikes(if read { Fault::SlowRead } else { Fault::SlowWrite })
    }

    /// Damages the bytes read if the plan says so.
    #[inline]
    pub(crate) fn flip(&self, bytes: &mut [u8]) {
        if let Some(active) = &self.active
            && active.strikes(Fault::Flip).is_some()
        {
            let random = mix(active.seed
                ^ active.rules.iter().fold(0, |sum, (_, count)| {
                    sum + count.load(Ordering::Relaxed) // Any value is as random as any other.
                }));
            bytes[random as usize % bytes.len()] ^= 1 << (random >> 61);
        }
    }
}

impl Active {
    fn strikes(&self, fault: Fault) -> Option<Duration> {
        let mut time = None;
        for (index, (rule, count)) in self.rules.iter().enumerate() {
            if rule.fault != fault {
                continue;
            }
            // Relaxed, because only the count itself matters.
            let count = count.fetch_add(1, Ordering::Relaxed) + 1;
            let strikes = match rule.when {
                When::Probability(probability) => {
                    let random = mix(self.seed ^ mix(count) ^ ((index as u64) << 56));
                    ((random >> 11) as f64) < probability * (1u64 << 53) as f64
                }
                When::Every(n) => count % n == 0,
                When::Once(n) => count == n,
                When::From(n) => count >= n,
            };
            if strikes {
                time = Some(time.unwrap_or(Duration::ZERO) + rule.time);
            }
        }
        time
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn injector(text: &str) -> Injector {
        Injector::new(Some(&Plan::parse(text).expect("plan")))
    }

    #[test]
    fn rules_strike_when_they_say() {
        let strikes = |when: &str| {
            let injector = injector(&format!("read-error@{when}"));
            (1..=9).filter(|_| injector.read().is_err()).count()
        };
        assert_eq!(strikes("n3"), 3);
        assert_eq!(strikes("once4"), 1);
        assert_eq!(strikes("from4"), 6);
        assert_eq!(strikes("1"), 9);
        assert_eq!(strikes("0"), 0);
    }

    #[test]
    fn probabilities_hold_and_the_seed_decides() {
        let outcome = |seed: u64| {
            let injector = injector(&format!("write-error@0.25,seed={seed}"));
            (0..4000).map(|_| injector.write().is_err()).collect::<Vec<_>>()
        };
        let count = outcome(1).iter().filter(|strikes| **strikes).count();
        assert!((850..1150).contains(&count), "{count} of 4000");
        assert_eq!(outcome(1), outcome(1));
        assert_ne!(outcome(1), outcome(2));
    }

    #[test]
    fn each_kind_has_its_effect() {
        let every = injector("full@n1,short-read@n1,slow-write=3ms@n1,flip@n1");
        assert!(every.read().is_ok());
        let error = every.write().expect_err("full");
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOSPC.raw_os_error()));
        assert_eq!(every.shorten(true, 4096), 2048);
        assert_eq!(every.shorten(false, 4096), 4096);
        assert_eq!(every.delay(false), Some(Duration::from_millis(3)));
        assert_eq!(every.delay(true), None);
        let mut bytes = [0; 64];
        every.flip(&mut bytes);
        assert_eq!(bytes.iter().map(|byte| byte.count_ones()).sum::<u32>(), 1);
    }

    #[test]
    fn bad_plans_say_what_to_type() {
        for (text, message) in [
            ("read-error", "write KIND@WHEN"),
            ("read-errors@1", "there are read-error, write-error"),
            ("read-error@2", "\"2\" is no WHEN"),
            ("read-error@n0", "\"n0\" is no WHEN"),
            ("read-error@nan", "is no WHEN"),
            ("slow-read@1", "write slow-read=50ms@WHEN"),
            ("slow-read=5@1", "\"5\" is no time"),
            ("flip=3@1", "takes no value"),
            ("seed=x", "whole number"),
        ] {
            let error = Plan::parse(text).expect_err(text);
            assert!(error.to_string().contains(message), "{text}: {error}");
        }
        assert_eq!(Plan::parse("").expect("empty"), Plan::default());
    }
}
