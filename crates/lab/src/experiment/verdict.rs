//! Rule 1, the predecessor of [`rule`](super::rule): compares a measured effect with a published
//! one.
//!
//! It stays so that scores by it can be compared. A published null that is not found here counts as
//! reproduced, however wide the interval is. Each row has a vote, and the rule does not ask whether
//! the code ran.

use super::stats::Estimate;
use crate::scenario::{Published, Run};

/// Changes below this many percent are noise, published or measured. The published series show such
/// differences between equal kernels. A simulator's seeds vary less than machines do.
pub const NOISE_PCT: f64 = 1.0;

/// Judgement by rule 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// Equal direction, significant, within a factor of two; or neither is significant.
    Reproduced,
    /// Equal direction and significant, but of another size.
    Direction,
    /// None of the others.
    Not,
}

impl Verdict {
    /// Returns the name of the verdict in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Direction => "direction",
            Self::Not => "not",
        }
    }
}

/// Returns whether a measured change counts.
#[must_use]
pub fn significant(effect: &Estimate) -> bool {
    effect.excludes_zero() && effect.mean.abs() >= NOISE_PCT
}

/// Returns whether the published change counts. If the comparison was published twice, both runs
/// must have it: in one direction, and more than noise.
#[must_use]
pub fn published_counts(p: &Published) -> bool {
    let change = p.change();
    let twice = p.again.is_none_or(|run| {
        let again = run.change();
        again * change > 0.0 && again.abs().min(change.abs()) >= NOISE_PCT
    });
    p.significant && twice
}

/// Returns the published change as tables show it. If there are two, shows both, whether they count
/// or not. `ns` means that the publication itself finds it not significant.
#[must_use]
pub fn published_text(p: &Published) -> String {
    match p.again {
        Some(run) => format!("{:+.2}, {:+.2} %", p.change(), run.change()),
        None if p.significant => format!("{:+.2} %", p.change()),
        None if p.change().abs() >= NOISE_PCT => format!("{:+.2} % (ns)", p.change()),
        None => "none".into(),
    }
}

/// Returns the smaller of the published changes, by size.
fn smaller(p: &Published) -> f64 {
    let (one, two) = (p.change(), p.again.map_or(p.change(), Run::change));
    if one.abs() <= two.abs() { one } else { two }
}

/// Returns the smallest and the largest change that the publication may mean, by size. These are
/// the changes of its runs, the ends of its interval, and all that rounds to its printed figures.
fn sizes(p: &Published) -> (f64, f64) {
    let mut all = vec![p.change()];
    all.extend(p.again.map(Run::change));
    all.extend(p.interval.into_iter().flatten());
    let printed = p.baseline.zip(p.patched).map(|(baseline, patched)| Run { baseline, patched });
    for run in printed.into_iter().chain(p.again).filter(|_| p.rounded_to > 0.0) {
        let half = p.rounded_to / 2.0;
        let less = Run { baseline: run.baseline + half, patched: run.patched - half };
        let more = Run { baseline: run.baseline - half, patched: run.patched + half };
        all.extend([less.change(), more.change()]);
    }
    let forward = all.into_iter().filter(|c| c * p.change() > 0.0);
    forward.fold((p.change(), p.change()), |(small, large), c| {
        (
            if c.abs() < small.abs() { c } else { small },
            if c.abs() > large.abs() { c } else { large },
        )
    })
}

/// Returns whether a change has the direction and size of the published ones: from half of the
/// smallest to twice the largest.
fn same_size(effect: &Estimate, p: &Published) -> bool {
    let (smallest, largest) = sizes(p);
    effect.mean / smallest >= 0.5 && effect.mean / largest <= 2.0
}

/// Judges a measured effect by rule 1.
#[must_use]
pub fn judge(effect: &Estimate, published: &Published) -> Verdict {
    let smallest = smaller(published);
    let wanted = published_counts(published);
    // A published change of little more than noise is reproduced by any significant change.
    let measured = if wanted && smallest.abs() < 2.0 * NOISE_PCT {
        effect.excludes_zero()
    } else {
        significant(effect)
    };
    match (measured, wanted) {
        (false, false) => Verdict::Reproduced,
        (true, true) if same_size(effect, published) => Verdict::Reproduced,
        (true, true) if effect.mean * smallest > 0.0 => Verdict::Direction,
        // The publication shows this change, but says that its runs are too few to exclude chance.
        (true, false) if !published.significant && same_size(effect, published) => {
            Verdict::Reproduced
        }
        _ => Verdict::Not,
    }
}

/// Returns the reason for the verdict, in a few words.
#[must_use]
pub fn reason(effect: &Estimate, published: &Published) -> String {
    let found = significant(effect);
    let wanted = published_counts(published);
    match judge(effect, published) {
        Verdict::Reproduced if !wanted && published.significant => {
            "not in both of its runs, and not here".into()
        }
        Verdict::Reproduced if !wanted && found => "same order; not significant there".into(),
        Verdict::Reproduced if !wanted => "no significant difference in either".into(),
        Verdict::Reproduced => "same direction, same order".into(),
        Verdict::Direction if sizes(published).0.abs() > effect.mean.abs() => {
            "same direction, less than half".into()
        }
        Verdict::Direction => "same direction, more than twice".into(),
        Verdict::Not if !found => "no significant difference here".into(),
        Verdict::Not if !wanted => "significant here, not there".into(),
        Verdict::Not => "the other direction".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn published(effect: f64, significant: bool) -> Published {
        Published { effect: Some(effect), significant, ..Published::default() }
    }

    #[test]
    fn verdicts_follow_the_rule() {
        let e = |mean, ci95| Estimate { mean, ci95 };
        assert_eq!(judge(&e(10.0, 1.0), &published(15.0, true)), Verdict::Reproduced);
        assert_eq!(judge(&e(4.0, 1.0), &published(15.0, true)), Verdict::Direction);
        assert_eq!(judge(&e(40.0, 1.0), &published(15.0, true)), Verdict::Direction);
        assert_eq!(judge(&e(-10.0, 1.0), &published(15.0, true)), Verdict::Not);
        assert_eq!(judge(&e(10.0, 11.0), &published(15.0, true)), Verdict::Not);
        assert_eq!(judge(&e(0.3, 0.01), &published(0.2, false)), Verdict::Reproduced);
        assert_eq!(judge(&e(5.0, 0.1), &published(0.2, false)), Verdict::Not);
        assert_eq!(judge(&e(0.9, 0.1), &published(1.8, true)), Verdict::Reproduced);
    }

    #[test]
    fn a_published_change_is_known_to_its_interval_and_to_its_digits() {
        let e = |mean, ci95| Estimate { mean, ci95 };
        let sized = |p: &Published, mean| judge(&e(mean, 0.01), p);
        let within = Published { interval: Some([-7.9, -2.0]), ..published(-4.9, true) };
        assert_eq!(sized(&within, -15.7), Verdict::Reproduced);
        assert_eq!(sized(&within, -15.9), Verdict::Direction);
        assert_eq!(sized(&within, -1.1), Verdict::Reproduced);
        assert_eq!(sized(&within, 4.9), Verdict::Not);
        // 118 and 116 are -1.7 %, and -2.5 % if they were 118.49 and 115.51.
        let whole = |rounded_to| {
            let (baseline, patched) = (Some(118.0), Some(116.0));
            Published { baseline, patched, significant: true, rounded_to, ..Published::default() }
        };
        assert_eq!(sized(&whole(0.0), -4.5), Verdict::Direction);
        assert_eq!(sized(&whole(1.0), -4.5), Verdict::Reproduced);
        assert_eq!(sized(&whole(1.0), -5.2), Verdict::Direction);
        // An interval that includes no change still counts as a change in its direction.
        let wide = Published { interval: Some([-1.0, 30.0]), ..published(9.0, true) };
        assert_eq!(sized(&wide, 4.4), Verdict::Direction);
        assert_eq!(sized(&wide, 4.6), Verdict::Reproduced);
    }

    #[test]
    fn a_change_that_the_publication_cannot_tell_from_chance_may_be_there_or_not() {
        let e = |mean, ci95| Estimate { mean, ci95 };
        let trend = published(-2.7, false);
        for (mean, ci95, verdict) in [
            (-2.2, 0.3, Verdict::Reproduced),
            (-0.4, 0.01, Verdict::Reproduced),
            (-2.2, 2.5, Verdict::Reproduced),
            (-1.2, 0.3, Verdict::Not),
            (-6.0, 0.3, Verdict::Not),
            (2.2, 0.3, Verdict::Not),
        ] {
            assert_eq!(judge(&e(mean, ci95), &trend), verdict, "{mean} ± {ci95}");
        }
        assert_eq!(published_text(&trend), "-2.70 % (ns)");
        assert_eq!(published_text(&published(-0.7, false)), "none");
        assert_eq!(reason(&e(-2.2, 0.3), &trend), "same order; not significant there");
    }

    #[test]
    fn a_comparison_that_was_published_twice_counts_if_both_runs_have_it() {
        let e = |mean, ci95| Estimate { mean, ci95 };
        let twice = |first, again| Published {
            again: Some(Run { baseline: 100.0, patched: 100.0 + again }),
            ..published(first, true)
        };
        // From half of the smaller to twice the larger.
        for (mean, verdict) in [
            (-7.0, Verdict::Direction),
            (-8.0, Verdict::Reproduced),
            (-80.0, Verdict::Reproduced),
            (-90.0, Verdict::Direction),
            (8.0, Verdict::Not),
        ] {
            assert_eq!(judge(&e(mean, 0.1), &twice(-42.0, -15.0)), verdict, "{mean}");
            assert_eq!(judge(&e(mean, 0.1), &twice(-15.0, -42.0)), verdict, "{mean}");
        }
        // If the two changes have different directions, or one is noise, nothing is published.
        for (first, again) in [(4.6, -1.0), (-33.5, -0.9), (-0.5, -11.3)] {
            assert_eq!(judge(&e(0.1, 1.8), &twice(first, again)), Verdict::Reproduced);
            assert_eq!(judge(&e(-5.0, 1.8), &twice(first, again)), Verdict::Not);
        }
        assert_eq!(published_text(&twice(-42.0, -15.0)), "-42.00, -15.00 %");
        assert_eq!(
            reason(&e(0.1, 1.8), &twice(4.6, -1.0)),
            "not in both of its runs, and not here"
        );
    }
}
