//! Results for people: the table that kernel developers know, and all published results on a page.

use std::fmt::Write;

use super::runner::{Case, Results};
use super::stats::Estimate;
use super::verdict::{published_text, reason, significant};

/// Everything: a table for each case, then the summary.
#[must_use]
pub fn report(results: &[Results], tables: bool) -> String {
    let mut text = String::new();
    for r in results.iter().filter(|_| tables) {
        let _ = writeln!(text, "{}: {}", r.scenario.name, r.scenario.title);
        for case in &r.cases {
            table(&mut text, r, case);
        }
        text.push('\n');
    }
    if results.iter().any(|r| r.cases.iter().any(|c| c.published.is_some())) {
        summary(&mut text, results);
    }
    text
}

/// A number in five digits or so.
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

/// All published results beside Ebb's, in columns as wide as what is in them.
fn summary(text: &mut String, results: &[Results]) {
    let head = ["published result", "metric", "published", "here", "verdict", "why"];
    let mut rows = vec![head.map(String::from)];
    let mut counts = [0; 3];
    for r in results {
        for c in &r.cases {
            let (Some(p), Some(v)) = (&c.published, c.verdict) else { continue };
            counts[v as usize] += 1;
            let here = format!("{:+.2} ± {:.2} %", c.effect.mean, c.effect.ci95);
            let (name, metric) = (c.name.clone(), c.metric.clone());
            let why = reason(&c.effect, p);
            rows.push([name, metric, published_text(p), here, v.name().into(), why]);
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
    let all: usize = counts.iter().sum();
    let _ = writeln!(
        text,
        "{} of {all} reproduced, {} in direction only, {} not",
        counts[0], counts[1], counts[2]
    );
    if rows.iter().any(|row| row[2].ends_with("(ns)")) {
        let _ = writeln!(text, "(ns: the publication itself finds it not significant)");
    }
}
