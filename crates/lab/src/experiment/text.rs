//! Formats results as text: tables as kernel developers know them, and all published results on a
//! page.

use std::fmt::Write;

use super::rule::{Class, Vote, reason};
use super::runner::{Case, Results};
use super::score::{Score, judged};
use super::stats::Estimate;
use super::verdict::{published_text, significant};

/// Returns the report: the score if a published result is judged, a table for each case, then the
/// summary.
#[must_use]
pub fn report(results: &[Results], tables: bool) -> String {
    let mut text = String::new();
    let judged = results.iter().any(|r| r.cases.iter().any(|c| c.published.is_some()));
    if judged {
        text = Score::of(results).text() + "\n";
    }
    for r in results.iter().filter(|_| tables) {
        let _ = writeln!(text, "{}: {}", r.scenario.name, r.scenario.title);
        for case in &r.cases {
            table(&mut text, r, case);
        }
        text.push('\n');
    }
    if judged {
        summary(&mut text, results);
    }
    text
}

/// Formats a number in about five digits.
fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 1e6 => crate::report::thousands(value as u64),
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 1.0 => format!("{value:.2}"),
        0.0 => "0".into(),
        _ => format!("{value:.4}"),
    }
}

fn table(text: &mut String, r: &Results, case: &Case) {
    let mut metrics = vec![case.metric.as_str()];
    metrics.extend(r.scenario.measure.also.iter().map(String::as_str));
    let _ = writeln!(text, "\n  {} ({} seeds)", case.name, r.seeds);
    let _ = write!(text, "  {:<22}", "");
    for (i, arm) in case.arms.iter().enumerate() {
        let _ = write!(text, " {:>22}", arm.name);
        if i > 0 {
            let _ = write!(text, " {:>22}", "change");
        }
    }
    text.push('\n');
    for (m, metric) in metrics.iter().enumerate() {
        let _ = write!(text, "  {metric:<22}");
        let base = case.arms[0].of(metric);
        for (i, arm) in case.arms.iter().enumerate() {
            let values = arm.of(metric);
            let e = Estimate::of(values);
            let cell = if values.is_empty() {
                "-".into()
            } else {
                format!("{} ± {}", short(e.mean), short(e.ci95))
            };
            let _ = write!(text, " {cell:>22}");
            if i > 0 {
                let word = (m == 0).then(|| word(base, values, case.higher_is_better));
                let _ = write!(text, " {:>22}", change(base, values, word));
            }
        }
        text.push('\n');
    }
}

fn word(a: &[f64], b: &[f64], higher: bool) -> &'static str {
    let e = Estimate::of_change(a, b);
    match (significant(&e), (e.mean > 0.0) == higher) {
        (false, _) => "=",
        (true, true) => "better",
        (true, false) => "worse",
    }
}

fn change(a: &[f64], b: &[f64], word: Option<&str>) -> String {
    let base = Estimate::of(a).mean;
    if a.is_empty() || b.is_empty() || base == 0.0 {
        return String::new();
    }
    let e = Estimate::of_change(a, b);
    let text = if e.mean.abs() >= 1000.0 {
        format!("x {}", short(e.mean / 100.0 + 1.0))
    } else {
        format!("{:+.2} ± {:.2} %", e.mean, e.ci95)
    };
    match word {
        Some(word) => format!("{text} {word}"),
        None => text,
    }
}

/// Writes all published results beside the lab's, in columns as wide as their contents.
fn summary(text: &mut String, results: &[Results]) {
    let head = ["published result", "metric", "published", "here", "verdict", "why"];
    let mut rows = vec![head.map(String::from)];
    let judged = judged(results);
    for r in results {
        for (_, c, vote) in judged.iter().filter(|(of, ..)| std::ptr::eq(*of, r)) {
            let (Some(p), Some(class)) = (&c.published, c.class) else { continue };
            let here = format!("{:+.2} ± {:.2} %", c.effect.mean, c.effect.ci95);
            let (name, metric) = (c.name.clone(), c.metric.clone());
            rows.push([name, metric, published_text(p), here, class.name().into(), why(c, vote)]);
        }
        for m in &r.scenario.missing {
            let name = format!("{}/{}", r.scenario.name, m.name);
            let none = String::new;
            rows.push([name, none(), none(), none(), "not run".into(), m.why.clone()]);
        }
    }
    let width = |i: usize| rows.iter().map(|row| row[i].chars().count()).max().unwrap_or(0);
    let [a, b, c, d, e] = std::array::from_fn(width);
    for [name, metric, published, here, verdict, why] in &rows {
        let line =
            format!("{name:<a$} {metric:<b$} {published:>c$}  {here:>d$}  {verdict:<e$} {why}");
        let _ = writeln!(text, "{}", line.trim_end());
    }
    if rows.iter().any(|row| row[2].ends_with("(ns)")) {
        let _ = writeln!(text, "(ns: the publication itself finds it not significant)");
    }
}

/// Returns why a case was judged so, whether it votes, and whether the verdict holds at other
/// sizes.
#[must_use]
pub fn why(case: &Case, vote: &Vote) -> String {
    let (Some(published), Some(class)) = (&case.published, case.class) else {
        return String::new();
    };
    let mut text = reason(&case.effect, published, class);
    match vote {
        Vote::Counts => {}
        Vote::With(other) => {
            let _ = write!(text, "; votes with {other}");
        }
        Vote::Calibration => text += "; no vote: it set a parameter",
        Vote::NoFigure => text += "; no vote: no figure is published",
    }
    for at in case.sizes.iter().filter(|at| at.class != case.class) {
        let (size, class) = (at.size, at.class.map_or("-", Class::name));
        let _ = write!(
            text,
            "; at {size} times the size {class} ({:+.1} ± {:.1} %)",
            at.effect.mean, at.effect.ci95
        );
    }
    text
}
