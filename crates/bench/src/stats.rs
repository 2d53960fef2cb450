//! Medians, quartiles and noise of repeated measurements.

use serde::Serialize;

/// Order statistics of one figure over the rounds. A value may be infinite, for a round that did
/// not succeed.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Summary {
    /// Smallest value.
    pub low: f64,
    /// First quartile.
    pub q1: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub q3: f64,
    /// Greatest value.
    pub high: f64,
}

impl Summary {
    /// Summarises values; `None` if there are none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let mut values = values.to_vec();
        values.sort_by(f64::total_cmp);
        let (&low, &high) = (values.first()?, values.last()?);
        let at = |share| quantile(&values, share);
        Some(Self { low, q1: at(0.25), median: at(0.5), q3: at(0.75), high })
    }

    /// Formats the median with its quartiles, as `2.31 [2.29, 2.40]`, or the median alone if all
    /// values are equal.
    #[must_use]
    pub fn show(&self, digits: usize) -> String {
        if self.low.total_cmp(&self.high).is_eq() {
            return format!("{:.digits$}", self.median);
        }
        format!("{:.digits$} [{:.digits$}, {:.digits$}]", self.median, self.q1, self.q3)
    }
}

/// Returns the median; not a number if there are no values.
#[must_use]
pub fn median(values: &[f64]) -> f64 {
    Summary::of(values).map_or(f64::NAN, |all| all.median)
}

/// Interpolates a quantile between two neighbours of sorted values.
fn quantile(sorted: &[f64], share: f64) -> f64 {
    let place = (sorted.len() - 1) as f64 * share;
    let below = place.floor() as usize;
    let part = place - place.floor();
    // A product with zero is avoided, because a value may be infinite.
    if part == 0.0 {
        sorted[below]
    } else {
        sorted[below] * (1.0 - part) + sorted[below + 1] * part
    }
}

/// Variation of the machine's speed between rounds: the time of the slowest plain round divided by
/// that of the fastest.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Noise(f64);

impl Noise {
    /// Computes the noise from the plain row's rounds; `None` for a single round, which has no
    /// spread.
    #[must_use]
    pub fn of(plain: &[f64]) -> Option<Self> {
        let all = Summary::of(plain).filter(|all| plain.len() > 1 && all.high.is_finite())?;
        Some(Self(all.high / all.low))
    }

    /// Returns the noise as a factor, 1 or more.
    #[must_use]
    pub fn factor(self) -> f64 {
        self.0
    }

    /// Returns whether a ratio is no further from 1 than the spread of equal rounds.
    #[must_use]
    pub fn hides(self, ratio: f64) -> bool {
        ratio.max(1.0 / ratio) <= self.0
    }

    /// Returns the geometric mean of several programs' noise.
    #[must_use]
    pub fn mean(all: &[Self]) -> Option<Self> {
        geometric_mean(&all.iter().map(|noise| noise.0).collect::<Vec<_>>()).map(Self)
    }
}

/// Formats a ratio: `~` if it lies within the noise, with a `?` at its end if the noise is unknown.
#[must_use]
pub fn verdict(ratio: f64, noise: Option<Noise>) -> String {
    match noise {
        Some(noise) if noise.hides(ratio) => "~".into(),
        Some(_) => format!("{ratio:.2}"),
        None => format!("{ratio:.2}?"),
    }
}

/// Returns the geometric mean of ratios.
#[must_use]
pub fn geometric_mean(ratios: &[f64]) -> Option<f64> {
    let sum: f64 = ratios.iter().map(|ratio| ratio.ln()).sum();
    (!ratios.is_empty()).then(|| (sum / ratios.len() as f64).exp())
}

/// Summarises the ratio of the two runs of each round, for rounds in which both runs ended.
#[must_use]
pub fn pairs(over: &[f64], under: &[f64]) -> Option<Summary> {
    let ratios = over.iter().zip(under).map(|(over, under)| over / under);
    Summary::of(&ratios.filter(|ratio| ratio.is_finite() && *ratio > 0.0).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quartiles_lie_between_the_rounds() {
        let five = Summary::of(&[5.0, 1.0, 4.0, 2.0, 3.0]).unwrap();
        assert_eq!(five, Summary { low: 1.0, q1: 2.0, median: 3.0, q3: 4.0, high: 5.0 });
        let four = Summary::of(&[4.0, 1.0, 2.0, 3.0]).unwrap();
        assert_eq!((four.q1, four.median, four.q3), (1.75, 2.5, 3.25));
        assert_eq!(five.show(1), "3.0 [2.0, 4.0]");
        assert_eq!(Summary::of(&[2.0]).unwrap().show(2), "2.00");
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_round_that_timed_out_counts_as_the_longest() {
        let most = Summary::of(&[f64::INFINITY, 2.0, 1.0, 3.0, f64::INFINITY]).unwrap();
        assert_eq!((most.median, most.q3), (3.0, f64::INFINITY));
        let two = Summary::of(&[f64::INFINITY, 2.0]).unwrap();
        assert_eq!((two.low, two.median), (2.0, f64::INFINITY));
    }

    #[test]
    fn nothing_is_concluded_within_the_noise() {
        let noise = Noise::of(&[2.0, 2.2, 2.1]);
        assert_eq!(verdict(1.09, noise), "~");
        assert_eq!(verdict(0.92, noise), "~");
        assert_eq!(verdict(1.12, noise), "1.12");
        assert_eq!(verdict(0.5, noise), "0.50");
        assert_eq!(verdict(0.5, Noise::of(&[2.0])), "0.50?");
        assert_eq!(Noise::of(&[2.0, f64::INFINITY]), None);
    }

    #[test]
    fn the_mean_of_ratios_is_geometric() {
        assert!((geometric_mean(&[0.5, 2.0, 8.0]).unwrap() - 2.0).abs() < 1e-9);
        assert_eq!(geometric_mean(&[]), None);
    }

    #[test]
    fn pairs_leave_out_rounds_that_did_not_end() {
        let ratios = pairs(&[2.0, f64::INFINITY, 6.0], &[1.0, 1.0, 2.0]).unwrap();
        assert_eq!((ratios.low, ratios.high), (2.0, 3.0));
        assert_eq!(pairs(&[f64::INFINITY], &[1.0]), None);
    }
}
