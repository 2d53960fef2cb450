//! Rule by which a published result counts as reproduced. All of the rule is here, except for
//! [`NOISE_PCT`], which rule 1 has, too.
//!
//! A change of this file that can change a verdict needs a new [`RULE_VERSION`]. Reports print the
//! score by this rule and by the earlier one ([`verdict`](super::verdict), version 1).
//! docs/lab.md has the rule in short.
//!
//! **What is published.** A published change is an *effect* under three conditions. The publication
//! calls it significant, or says nothing about that. The change is at least [`NOISE_PCT`]. If the
//! comparison was published twice, both runs have it, in one direction. The size of an effect is
//! the published change, or the mean of two. Everything else is a *null*, known to a band of ±1 %.
//! Figures of the publication widen the band: the change, the change of the second run, the
//! interval, the stated `spread`.
//!
//! **Classes**, by the paired change measured here and its 95 % interval by Student:
//!
//! | class | an effect | a null |
//! |---|---|---|
//! | not exercised | the counters of what differs are zero in the arm that has it | the same |
//! | reproduced | zero is outside the interval, same direction, half to twice the size | - |
//! | direction | zero is outside, same direction, 1 % at least, another size | - |
//! | equivalent | - | the interval lies inside the band |
//! | inconclusive | zero and half the published size are inside | the interval crosses a border |
//! | not | all else | the interval lies outside the band |
//!
//! **Voting.** Each quantity of the lab has one vote. Rows of one scenario with equal arms and
//! metric share a quantity. So do rows with one `quantity` in the file, which is one number under
//! two names. Of the rows of a quantity, effects come before nulls, and the worst row votes. A
//! quantity with a row that set a parameter (`calibration = true`) has no vote. A published figure
//! of such a row, for whichever arm, set the lab's level. A row without a published figure
//! (`figure = false`) has no vote either. A row that was not exercised votes, and is not
//! reproduced.

use super::stats::Estimate;
use super::verdict::NOISE_PCT;
use crate::scenario::{Published, Run};

/// Version of this rule.
pub const RULE_VERSION: u32 = 2;

/// Class of a measured effect beside a published one, from the best to the worst.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Class {
    /// The publication has a null, and the measured interval lies inside its band.
    Equivalent,
    /// The publication has an effect. The measured one is significant, in the same direction, and
    /// within a factor of two.
    Reproduced,
    /// The publication has an effect. The measured one is significant and in the same direction,
    /// but of another size.
    Direction,
    /// The interval is too wide to decide.
    Inconclusive,
    /// The code in which the arms differ never ran.
    NotExercised,
    /// None of the other classes.
    Not,
}

impl Class {
    /// All classes, from the best to the worst.
    pub const ALL: [Self; 6] = [
        Self::Equivalent,
        Self::Reproduced,
        Self::Direction,
        Self::Inconclusive,
        Self::NotExercised,
        Self::Not,
    ];

    /// Returns the name of the class in reports.
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

/// Claim of a publication.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Claim {
    /// A change of so many percent.
    Effect(f64),
    /// No change, known to this band in percent.
    Null([f64; 2]),
}

/// Returns the claim of a publication.
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

/// Classifies a measured effect. `exercised`: whether the code in which the arms differ ran at all.
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
            // End of the interval on the published side, as a multiple of the published size.
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

/// Returns the reason for the class, in a few words.
#[must_use]
pub fn reason(effect: &Estimate, published: &Published, class: Class) -> String {
    match (claim(published), class) {
        (_, Class::NotExercised) => "the code that differs never ran here".into(),
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

/// Vote of a row.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Vote {
    /// The row votes.
    Counts,
    /// The row of this name votes for this row, too.
    With(String),
    /// A published figure of the row's quantity set a parameter.
    Calibration,
    /// The row has no published figure.
    NoFigure,
}

/// A row, as far as voting is concerned.
#[derive(Clone, Debug)]
pub struct Row<'a> {
    /// Name of the row.
    pub name: &'a str,
    /// Quantity that the lab measured; equal for rows that share a number.
    pub quantity: &'a str,
    /// Published result, with its marks.
    pub published: &'a Published,
    /// Class of the row.
    pub class: Class,
}

/// Returns the vote of each row. Of the rows of one quantity, an effect votes before a null. After
/// that the worst class votes, and of equals the first row.
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
