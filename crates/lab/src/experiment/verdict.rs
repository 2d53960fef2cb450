//! How a measured effect compares with a published one.

use super::stats::Estimate;
use crate::scenario::Published;

/// Changes below this many percent are noise, measured or not: the published series show that the
/// differences between equal kernels reach it, and a simulator's seeds vary less than machines do.
pub const NOISE_PCT: f64 = 1.0;

/// A judgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The same direction, significant, within a factor of two; or neither is significant.
    Reproduced,
    /// The same direction and significant, but not of the same size.
    Direction,
    /// Neither.
    Not,
}

impl Verdict {
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reproduced => "reproduced",
            Self::Direction => "direction",
            Self::Not => "not",
        }
    }
}

/// Whether a measured change counts.
#[must_use]
pub fn significant(effect: &Estimate) -> bool {
    effect.excludes_zero() && effect.mean.abs() >= NOISE_PCT
}

/// Judges.
#[must_use]
pub fn judge(effect: &Estimate, published: &Published) -> Verdict {
    let wanted = published.change();
    // A published change that is itself no more than noise is reproduced by an honest "about so".
    let measured = if published.significant && wanted.abs() < 2.0 * NOISE_PCT {
        effect.excludes_zero()
    } else {
        significant(effect)
    };
    match (measured, published.significant) {
        (false, false) => Verdict::Reproduced,
        (true, true) if effect.mean * wanted > 0.0 => {
            let ratio = effect.mean / wanted;
            if (0.5..=2.0).contains(&ratio) { Verdict::Reproduced } else { Verdict::Direction }
        }
        _ => Verdict::Not,
    }
}

/// Why it was judged so, in a few words.
#[must_use]
pub fn reason(effect: &Estimate, published: &Published) -> String {
    let found = significant(effect);
    let wanted = published.change();
    match judge(effect, published) {
        Verdict::Reproduced if !published.significant => {
            "no significant difference in either".into()
        }
        Verdict::Reproduced => "same direction, same order".into(),
        Verdict::Direction if wanted.abs() > effect.mean.abs() => {
            "same direction, less than half".into()
        }
        Verdict::Direction => "same direction, more than twice".into(),
        Verdict::Not if !found => "no significant difference here".into(),
        Verdict::Not if !published.significant => "significant here, not there".into(),
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
}
