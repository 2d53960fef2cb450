//! Formats results as one HTML page: the summary, and for each case a table and pictures of its
//! first runs.
//!
//! The page refers to nothing outside itself; colours follow the reader's system.

use std::fmt::Write;

use ebb_plot::{Chart, Series, escape, page};

use super::rule::Class;
use super::runner::{Arm, Case, Results};
use super::score::{Score, judged};
use super::stats::Estimate;
use super::text::why;
use super::verdict::published_text;
use crate::machine::Sample;
use crate::machine::heat::COLUMNS;
use crate::mrc::Curve;

const WIDTH: f64 = 960.0;
const NARROW: f64 = 400.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 70.0;
const BOTTOM: f64 = 28.0;

const STYLE: &str = "<style>figure{margin:1rem 0}figcaption{color:var(--soft)}\
.chart{width:100%;height:auto}.heat{stroke:none}\
.map{width:100%;height:12rem}h2{font-size:1.1rem;margin-top:2rem}\
.grid2{display:grid;grid-template-columns:repeat(auto-fit,minmax(18rem,1fr));gap:0 1rem}\
td:first-child,th:first-child{text-align:left}</style>\n";

/// Returns the page.
#[must_use]
pub fn document(results: &[Results]) -> String {
    let mut body = String::from(STYLE);
    summary(&mut body, results);
    for r in results {
        for case in &r.cases {
            let _ = writeln!(
                body,
                "<h2>{}</h2>\n<p>{}</p>",
                escape(&case.name),
                escape(&r.scenario.title)
            );
            table(&mut body, r, case);
            pictures(&mut body, case);
            curves(&mut body, case);
        }
    }
    let title = match results {
        [only] => format!("Ebb lab: {}", only.scenario.name),
        _ => "Ebb lab: published results and Ebb's".to_owned(),
    };
    page(&title, &body)
}

/// Writes the summary. Verdicts come first, so that a phone shows them; names break between their
/// parts.
fn summary(body: &mut String, results: &[Results]) {
    let judged = judged(results);
    if !judged.is_empty() {
        let score = escape(&Score::of(results).text());
        let _ = writeln!(body, "<div class=\"table\"><pre class=\"score\">{score}</pre></div>");
    }
    body.push_str("<div class=\"table\"><table class=\"verdicts\">\n<tr><th>published result</th><th>verdict</th>");
    body.push_str("<th>published</th><th>here</th><th>metric</th><th>why</th></tr>\n");
    for case in results.iter().flat_map(|r| &r.cases) {
        let here = format!("{:+.2} ± {:.2} %", case.effect.mean, case.effect.ci95);
        let vote = judged.iter().find(|(_, c, _)| std::ptr::eq(*c, case));
        let why = vote.map(|(.., vote)| why(case, vote)).unwrap_or_default();
        let published = case.published.as_ref().map_or("-".into(), published_text);
        let verdict = case.class.map_or("-", Class::name);
        let name = escape(&case.name).replace('/', "/<wbr>").replace('-', "-<wbr>");
        let _ = writeln!(
            body,
            "<tr><td>{name}</td><td>{verdict}</td><td>{published}</td><td>{here}</td><td>{}</td>\
             <td>{}</td></tr>",
            escape(&case.metric),
            escape(&why)
        );
    }
    body.push_str("</table></div>\n");
}

fn table(body: &mut String, r: &Results, case: &Case) {
    body.push_str("<div class=\"table\"><table>\n<tr><th>metric</th>");
    for arm in &case.arms {
        let _ = write!(body, "<th>{}</th>", escape(&arm.name));
    }
    body.push_str("</tr>\n");
    let also = r.scenario.measure.also.iter();
    for metric in std::iter::once(&case.metric).chain(also) {
        let _ = write!(body, "<tr><td>{}</td>", escape(metric));
        for (i, arm) in case.arms.iter().enumerate() {
            let e = Estimate::of(arm.of(metric));
            let change = Estimate::of_change(case.arms[0].of(metric), arm.of(metric));
            let change = match i {
                0 => String::new(),
                _ => format!(" ({:+.1} %)", change.mean),
            };
            let _ = write!(body, "<td>{:.4} ± {:.4}{change}</td>", e.mean, e.ci95);
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</table></div>\n");
}

/// Lines over time: name and points (seconds, value).
type Lines = Vec<(String, Vec<(f64, f64)>)>;

fn over_time(samples: &[Sample], value: impl Fn(&Sample, &Sample, f64) -> f64) -> Vec<(f64, f64)> {
    let pairs = samples.windows(2);
    let point = |w: &[Sample]| {
        let seconds = (w[1].time_ns - w[0].time_ns).max(1) as f64 / 1e9;
        (w[1].time_ns as f64 / 1e9, value(&w[0], &w[1], seconds))
    };
    pairs.map(point).collect()
}

fn pictures(body: &mut String, case: &Case) {
    if case.arms.iter().all(|a| a.samples.len() < 3) {
        return;
    }
    let each = |value: &dyn Fn(&Sample, &Sample, f64) -> f64| -> Lines {
        let line = |a: &Arm| (a.name.clone(), over_time(&a.samples, value));
        case.arms.iter().map(line).collect()
    };
    let ops = each(&|a, b, s| (b.ops - a.ops) as f64 / s);
    if ops.iter().any(|(_, p)| p.iter().any(|p| p.1 > 0.0)) {
        chart(body, "operations a second, first seed", &ops);
    }
    let back =
        |i: usize| move |a: &Sample, b: &Sample, s: f64| (b.refaults[i] - a.refaults[i]) as f64 / s;
    chart(body, "anonymous refaults a second", &each(&back(0)));
    chart(body, "file refaults a second", &each(&back(1)));
    let busy = |i: usize| {
        move |a: &Sample, b: &Sample, s: f64| (b.reclaim_ns[i] - a.reclaim_ns[i]) as f64 / 1e9 / s
    };
    chart(body, "tasks reclaiming, processors", &each(&busy(0)));
    chart(body, "kswapd reclaiming, processors", &each(&busy(1)));
    for arm in &case.arms {
        generations(body, arm);
        heat(body, arm);
    }
}

/// Draws miss ratios of textbook policies for the accesses of the baseline's first run.
fn curves(body: &mut String, case: &Case) {
    if case.curves.is_empty() {
        return;
    }
    let series = |curve: &Curve| Series {
        name: curve.policy.to_owned(),
        points: curve
            .points
            .iter()
            .map(|p| (f64::from(p.memory_pages), p.miss_ratio, p.error))
            .collect(),
        is_bound: curve.policy == "belady",
    };
    let chart = Chart {
        x_label: "memory in pages, logarithmic".to_owned(),
        y_label: "miss ratio".to_owned(),
        series: case.curves.iter().map(series).collect(),
    };
    let _ = writeln!(
        body,
        "<figure><figcaption>miss ratio by memory size, for the accesses of the first run: textbook \
         policies on samples of its pages</figcaption>\n{}</figure>",
        chart.svg()
    );
}

fn generations(body: &mut String, arm: &Arm) {
    let total = |s: &Sample| s.generations.iter().map(|g| g.2 + g.3).sum::<u64>();
    if arm.samples.iter().all(|s| total(s) == 0) {
        return;
    }
    let names = ["youngest", "second", "third", "oldest"];
    let line = |(i, name): (usize, &&str)| {
        let point = |s: &Sample| {
            let pages = s.generations.iter().rev().nth(i).map_or(0, |g| g.2 + g.3);
            (s.time_ns as f64 / 1e9, pages as f64)
        };
        ((*name).to_owned(), arm.samples.iter().map(point).collect())
    };
    let lines: Lines = names.iter().enumerate().map(line).collect();
    chart(body, &format!("{}: pages by generation", arm.name), &lines);
    let line = |(i, name): (usize, &&str)| {
        let point = |s: &Sample| {
            let age = s.generations.iter().rev().nth(i).map_or(0, |g| g.1);
            (s.time_ns as f64 / 1e9, age as f64)
        };
        ((*name).to_owned(), arm.samples.iter().map(point).collect())
    };
    let ages: Lines = names.iter().enumerate().map(line).collect();
    chart(body, &format!("{}: age of each generation, ms", arm.name), &ages);
    let line = |tier: usize| {
        let point = |s: &Sample| (s.time_ns as f64 / 1e9, s.tiers[tier] as f64);
        (format!("tier {tier}"), arm.samples.iter().map(point).collect())
    };
    let tiers: Lines = (0..4).map(line).collect();
    chart(body, &format!("{}: file refaults by tier", arm.name), &tiers);
}

fn short(v: f64) -> String {
    match v {
        v if v >= 1e6 => format!("{:.1}M", v / 1e6),
        v if v >= 1e3 => format!("{:.0}k", v / 1e3),
        v if v >= 10.0 || v == 0.0 => format!("{v:.0}"),
        v => format!("{v:.2}"),
    }
}

fn chart(body: &mut String, caption: &str, lines: &Lines) {
    let _ = writeln!(body, "<figure><figcaption>{}</figcaption>", escape(caption));
    // Draws a wide and a narrow version, so that letters have one size on both screens.
    for (class, width) in [("wide", WIDTH), ("narrow", NARROW)] {
        drawing(body, caption, lines, class, width);
    }
    body.push_str("<ul class=\"legend\">");
    for (i, (name, _)) in lines.iter().enumerate() {
        let _ = write!(
            body,
            "<li><svg width=\"28\" height=\"10\" aria-hidden=\"true\"><path class=\"line c{}\" \
             d=\"M1 5H27\"/></svg> {}</li>",
            i % 10,
            escape(name)
        );
    }
    body.push_str("</ul></figure>\n");
}

fn drawing(body: &mut String, caption: &str, lines: &Lines, class: &str, width: f64) {
    let points = || lines.iter().flat_map(|(_, p)| p);
    let right = points().map(|p| p.0).fold(0.0, f64::max).max(1e-9);
    let top = points().map(|p| p.1).fold(0.0, f64::max).max(1e-9);
    let x = |v: f64| LEFT + v / right * (width - LEFT - 10.0);
    let y = |v: f64| 8.0 + (1.0 - v / top) * (HEIGHT - BOTTOM - 8.0);
    let _ = writeln!(
        body,
        "<svg class=\"chart {class}\" viewBox=\"0 0 {width} {HEIGHT}\" role=\"img\" \
         aria-label=\"{}\">",
        escape(caption)
    );
    for share in [0.0, 0.5, 1.0] {
        let (v, at) = (top * share, y(top * share));
        let label = if top < 1e-6 && share > 0.0 { String::new() } else { short(v) };
        let _ = write!(
            body,
            "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{width}\"/><text x=\"{}\" y=\"{:.1}\" \
             text-anchor=\"end\">{label}</text>",
            LEFT - 6.0,
            at + 4.0,
        );
    }
    let _ = writeln!(
        body,
        "<text x=\"{width}\" y=\"{}\" text-anchor=\"end\">{right:.3} s</text>",
        HEIGHT - 6.0
    );
    for (i, (name, points)) in lines.iter().enumerate() {
        let d: Vec<String> =
            points.iter().map(|p| format!("{:.1} {:.1}", x(p.0), y(p.1))).collect();
        let _ = writeln!(
            body,
            "<g class=\"series c{}\"><title>{}</title><path class=\"line c{0}\" d=\"M{}\"/></g>",
            i % 10,
            escape(name),
            d.join("L")
        );
    }
    body.push_str("</svg>\n");
}

/// Draws pages brought in and taken out: addresses from top to bottom, time from left to right.
fn heat(body: &mut String, arm: &Arm) {
    for (way, what) in ["brought in", "taken out"].iter().enumerate() {
        let rows: Vec<&Vec<u32>> = arm.samples.iter().skip(1).map(|s| &s.heat[way]).collect();
        let top = rows.iter().flat_map(|r| r.iter()).copied().max().unwrap_or(0);
        if top == 0 {
            continue;
        }
        let width = (WIDTH - LEFT) / rows.len() as f64;
        let height = (HEIGHT - 4.0) / COLUMNS as f64;
        let _ = writeln!(
            body,
            "<figure><figcaption>{}: pages {what}, by address (down) and time (right); darkest: \
             {top} pages</figcaption>\n<svg class=\"map c{way}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
             preserveAspectRatio=\"none\" role=\"img\">",
            escape(&arm.name)
        );
        for (t, row) in rows.iter().enumerate() {
            for (column, &n) in row.iter().enumerate().filter(|(_, n)| **n > 0) {
                let shade = (f64::from(n) / f64::from(top)).sqrt();
                let _ = write!(
                    body,
                    "<rect class=\"heat\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" \
                     fill=\"currentColor\" fill-opacity=\"{shade:.2}\"/>",
                    LEFT + t as f64 * width,
                    column as f64 * height,
                    width + 0.2,
                    height
                );
            }
        }
        body.push_str("</svg></figure>\n");
    }
}
