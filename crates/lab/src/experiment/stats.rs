//! Means and 95 % intervals by Student's distribution.

/// A mean and the half-width of its 95 % interval.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// Mean of the values.
    pub mean: f64,
    /// Half the width of the interval.
    pub ci95: f64,
}

/// 97.5 % quantiles of Student's distribution for 1 to 30 degrees of freedom.
const T: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// Returns the 97.5 % quantile of Student's distribution. Beyond the table uses the expansion about
/// the normal quantile (Abramowitz and Stegun 26.7.5), which is right to five digits there.
fn student(freedom: usize) -> f64 {
    if let Some(t) = T.get(freedom - 1) {
        return *t;
    }
    let (x, n) = (1.959_963_985, freedom as f64);
    let x2: f64 = x * x;
    let g1 = x * (x2 + 1.0) / 4.0;
    let g2 = x * (5.0 * x2 * x2 + 16.0 * x2 + 3.0) / 96.0;
    let g3 = x * (3.0 * x2.powi(3) + 19.0 * x2 * x2 + 17.0 * x2 - 15.0) / 384.0;
    x + g1 / n + g2 / n.powi(2) + g3 / n.powi(3)
}

impl Estimate {
    /// Estimates the mean of independent values.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        if values.is_empty() {
            return Self::default();
        }
        let mean = values.iter().sum::<f64>() / n;
        if values.len() < 2 {
            return Self { mean, ci95: 0.0 };
        }
        let squares: f64 = values.iter().map(|v| (v - mean).powi(2)).sum();
        let error = (squares / (n - 1.0) / n).sqrt();
        Self { mean, ci95: student(values.len() - 1) * error }
    }

    /// Estimates the change from `a` to `b`, pair by pair, in percent of the mean of `a`.
    #[must_use]
    pub fn of_change(a: &[f64], b: &[f64]) -> Self {
        let base = Self::of(a).mean;
        let percent = |(x, y): (&f64, &f64)| if base == 0.0 { 0.0 } else { (y - x) / base * 100.0 };
        let changes: Vec<f64> = a.iter().zip(b).map(percent).collect();
        Self::of(&changes)
    }

    /// Returns whether zero lies outside the interval.
    #[must_use]
    pub fn excludes_zero(&self) -> bool {
        self.mean.abs() > self.ci95
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_is_students() {
        let e = Estimate::of(&[1.0, 2.0, 3.0, 4.0, 5.0]);
        assert!((e.mean - 3.0).abs() < 1e-12);
        // t(4) = 2.776, standard error sqrt(2.5 / 5).
        assert!((e.ci95 - 2.776 * 0.5f64.sqrt()).abs() < 1e-9);
    }

    #[test]
    fn quantiles_go_on_beyond_the_table() {
        // By R's qt(0.975, n).
        for (n, t) in
            [(30, 2.042), (31, 2.0395), (39, 2.0227), (40, 2.0211), (99, 1.9842), (999, 1.9623)]
        {
            assert!((student(n) - t).abs() < 5e-4, "{n}: {}", student(n));
        }
        assert!(student(30) > student(31) && student(1_000_000) > 1.959_96);
    }

    #[test]
    fn pairs_cancel_what_they_share() {
        let a = [100.0, 200.0, 300.0];
        let b = [110.0, 210.0, 310.0];
        let e = Estimate::of_change(&a, &b);
        assert!((e.mean - 5.0).abs() < 1e-9 && e.ci95 < 1e-9 && e.excludes_zero());
        assert!(!Estimate::of_change(&a, &a).excludes_zero());
    }
}
