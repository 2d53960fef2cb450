//! The rule by which a published result counts as reproduced. All of it is here.
//!
//! A change of this file that can change a verdict is a change of [`RULE_VERSION`]; reports print the score by this rule
//! and by the one before ([`verdict`](super::verdict), version 1). docs/lab-rule.md says the same in prose.
//!
//! **What is published.** An *effect*: the publication does not call it not significant, it is [`NOISE_PCT`] at least,
//! and where the comparison was published twice both runs have it, in one direction. Its size is the published
//! change, and the mean of the two where there are two. Everything else is a *null*, which is known to a band: ±1 %, widened to
//! what the publication itself shows as its spread (a change that it calls not significant, both of two runs, its
//! interval, its stated `spread`).
//!
//! **What it comes to here**, of the paired change and its 95 % interval by Student:
//!
//! | class | an effect | a null |
//! |---|---|---|
//! | not exercised | the counters of what differs are zero in the arm that has it | the same |
//! | reproduced | zero is outside the interval, same direction, half to twice the size | - |
//! | direction | zero is outside, same direction, 1 % at least, another size | - |
//! | equivalent | - | the interval lies inside the band |
//! | inconclusive | zero and half of the published size are both inside | the interval lies on a border of the band |
//! | not | all else | the interval lies outside the band |
//!
//! **What votes.** One vote for each quantity of the lab: rows of one scenario with the same arms and the same metric, or
//! with the same `quantity` in the file (one number by definition, under two names), have one together, and it is the worst of
//! theirs. No vote has a quantity with a row that set a parameter (`calibration = true`: a figure of it, of whichever arm, was used to
//! bring the lab's level to the published one), nor one that has no published figure (`figure = false`). What was not exercised
//! votes, and is not reproduced.

use super::stats::Estimate;
use super::verdict::NOISE_PCT;
use crate::scenario::{Published, Run};

/// The version of this rule.
pub const RULE_VERSION: u32 = 2;

/// What a measured effect comes to beside a published one. From the best to the worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// A published null, and here the interval lies inside its band.
    Equivalent,
    /// A published effect: same direction, significant, within a factor of two.
    Reproduced,
    /// A published effect: same direction and significant, of another size.
    Direction,
    /// The interval is too wide to say.
    Inconclusive,
    /// What differs between the arms never ran.
    NotExercised,
    /// None of these.
    Not,
}

impl Class {
    /// All of them, from the best to the worst.
    pub const ALL: [Self; 6] = [
        Self::Equivalent,
        Self::Reproduced,
        Self::Direction,
        Self::Inconclusive,
        Self::NotExercised,
        Self::Not,
    ];

    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Equivalent => "equivalent",
            Self::Reproduced => "reproduced",
            Self::Direction => "direction",
            Self::Inconclusive => "inconclusive",
            Self::NotExercised => "not exercised",
            Self::Not => "not",
        }
    }
}

/// What is published.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Claim {
    /// A change of so many percent.
    Effect(f64),
    /// None, known to this band in percent.
    Null([f64; 2]),
}

/// What a publication claims.
#[must_use]
pub fn claim(p: &Published) -> Claim {
    let change = p.change();
    let again = p.again.map(Run::change);
    let together = again.is_none_or(|a| a * change > 0.0 && a.abs() >= NOISE_PCT);
    if p.significant && together && change.abs() >= NOISE_PCT {
        return Claim::Effect(again.map_or(change, |a| f64::midpoint(change, a)));
    }
    let spread = p.spread.map(|s| [-s, s]);
    let shown = [Some(change), again].into_iter().flatten();
    let shown = shown.chain(p.interval.into_iter().flatten()).chain(spread.into_iter().flatten());
    Claim::Null(shown.fold([-NOISE_PCT, NOISE_PCT], |[low, high], c| [low.min(c), high.max(c)]))
}

/// Judges. `exercised`: whether what differs between the arms ran at all.
#[must_use]
pub fn classify(effect: &Estimate, published: &Published, exercised: bool) -> Class {
    if !exercised {
        return Class::NotExercised;
    }
    let (low, high) = (effect.mean - effect.ci95, effect.mean + effect.ci95);
    match claim(published) {
        Claim::Null([from, to]) if from <= low && high <= to => Class::Equivalent,
        Claim::Null([from, to]) if high < from || to < low => Class::Not,
        Claim::Null(_) => Class::Inconclusive,
        Claim::Effect(size) => {
            let part = effect.mean / size;
            // The end of the interval on the published side, in parts of the published size.
            let reach = (low / size).max(high / size);
            match effect.excludes_zero() {
                true if (0.5..=2.0).contains(&part) => Class::Reproduced,
                true if part > 0.0 && effect.mean.abs() >= NOISE_PCT => Class::Direction,
                false if reach >= 0.5 => Class::Inconclusive,
                _ => Class::Not,
            }
        }
    }
}

/// Why it was judged so, in a few words.
#[must_use]
pub fn reason(effect: &Estimate, published: &Published, class: Class) -> String {
    match (claim(published), class) {
        (_, Class::NotExercised) => "what differs never ran here".into(),
        (Claim::Effect(_), Class::Reproduced) => "same direction, within a factor of two".into(),
        (Claim::Effect(size), Class::Direction) if (effect.mean / size) < 0.5 => {
            "same direction, less than half".into()
        }
        (Claim::Effect(_), Class::Direction) => "same direction, more than twice".into(),
        (Claim::Effect(_), Class::Inconclusive) => "from nothing to what is published".into(),
        (Claim::Effect(size), _) if effect.excludes_zero() && effect.mean * size < 0.0 => {
            "the other direction".into()
        }
        (Claim::Effect(_), _) => "no effect here".into(),
        (Claim::Null([from, to]), Class::Equivalent) => {
            format!("inside {from:+.1} to {to:+.1} %")
        }
        (Claim::Null([from, to]), Class::Inconclusive) => {
            format!("not all inside {from:+.1} to {to:+.1} %")
        }
        (Claim::Null([from, to]), _) => format!("outside {from:+.1} to {to:+.1} %"),
    }
}

/// Whether a row's quantity votes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Vote {
    /// It does, by this row.
    Counts,
    /// By another row: the one of this name.
    With(String),
    /// A figure of it set a parameter.
    Calibration,
    /// No figure is published.
    NoFigure,
}

/// A row, as far as voting is concerned.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Its name.
    pub name: &'a str,
    /// What the lab measured: equal for rows that share a number.
    pub quantity: &'a str,
    /// What is published, with its marks.
    pub published: &'a Published,
    /// How it was judged.
    pub class: Class,
}

/// Each row's vote. Of rows with one quantity the worst votes, and of equals the first; effects before nulls.
#[must_use]
pub fn votes(rows: &[Row]) -> Vec<Vote> {
    let is_null = |r: &Row| matches!(claim(r.published), Claim::Null(_));
    rows.iter()
        .enumerate()
        .map(|(i, row)| {
            let all = || rows.iter().enumerate().filter(|(_, r)| r.quantity == row.quantity);
            if all().any(|(_, r)| r.published.calibration) {
                return Vote::Calibration;
            }
            if !row.published.figure {
                return Vote::NoFigure;
            }
            let voting = all().filter(|(_, r)| r.published.figure);
            let rank = |&(n, r): &(usize, &Row)| (is_null(r), std::cmp::Reverse(r.class), n);
            match voting.min_by_key(rank) {
                Some((n, other)) if n != i => Vote::With(other.name.to_owned()),
                _ => Vote::Counts,
            }
        })
        .collect()
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
