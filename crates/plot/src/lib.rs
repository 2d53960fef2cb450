//! Line charts as SVG, and the self-contained HTML page that contains them.
//!
//! Colours come from CSS variables, so that the page is light or dark as the reader's system is.
//! Each chart is drawn wide and narrow, and the page shows the version that fits.
#![forbid(unsafe_code)]

use std::fmt::Write;

/// One line of a chart.
#[derive(Clone, Debug)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// Points from left to right: x, y, and half of an interval around y.
    pub points: Vec<(f64, f64, Option<f64>)>,
    /// Whether the line is a bound and not a contender; drawn dashed in the colour of the text.
    pub is_bound: bool,
}

/// A chart of several lines over a logarithmic x axis.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Label of the x axis.
    pub x_label: String,
    /// Label of the y axis.
    pub y_label: String,
    /// Lines of the chart.
    pub series: Vec<Series>,
}

/// Colours for light and dark; further lines repeat them dashed.
const COLOURS: [(&str, &str); 10] = [
    ("#1769b5", "#6cb6ff"),
    ("#cf5a00", "#ff9e4f"),
    ("#22803a", "#5fd07a"),
    ("#c2265b", "#ff6b98"),
    ("#7446b8", "#b794ff"),
    ("#87660f", "#d9b84a"),
    ("#0b7f82", "#4fd6d6"),
    ("#d0338f", "#ff86cf"),
    ("#59606a", "#b0b7c0"),
    ("#3344cc", "#8c9bff"),
];
/// Ratio of largest to smallest y from which the y axis is logarithmic.
const LOG_RANGE: f64 = 30.0;

/// Size of a drawing.
#[derive(Clone, Copy, Debug)]
struct Frame {
    class: &'static str,
    width: f64,
    height: f64,
}

const WIDE: Frame = Frame { class: "wide", width: 960.0, height: 480.0 };
const NARROW: Frame = Frame { class: "narrow", width: 400.0, height: 400.0 };
const LEFT: f64 = 62.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 12.0;
const BOTTOM: f64 = 48.0;

/// Scale from values to positions.
#[derive(Clone, Debug)]
struct Axis {
    low: f64,
    high: f64,
    log: bool,
    ticks: Vec<f64>,
}

impl Axis {
    /// Returns a logarithmic axis with ticks at 1, 2 and 5 times powers of ten.
    fn log(low: f64, high: f64) -> Self {
        let mut ticks = Vec::new();
        let mut power = 10f64.powf(low.log10().floor());
        while power <= high {
            ticks.extend([power, 2.0 * power, 5.0 * power]);
            power *= 10.0;
        }
        ticks.retain(|&tick| tick >= low * 0.999 && tick <= high * 1.001);
        while ticks.len() > 8 {
            let first = ticks[0].log10().ceil();
            let tens: Vec<f64> = ticks
                .iter()
                .copied()
                .filter(|tick| (tick.log10() - tick.log10().round()).abs() < 1e-9)
                .collect();
            if tens.len() >= 2 && tens.len() < ticks.len() {
                ticks = tens;
            } else {
                let keep = |tick: &f64| (tick.log10() - first).round() as i64 % 2 == 0;
                ticks.retain(keep);
            }
        }
        Self { low, high, log: true, ticks }
    }

    /// Returns a linear axis from 0 with four to eight round ticks.
    fn linear(high: f64) -> Self {
        let raw = high / 5.0;
        let power = 10f64.powf(raw.log10().floor());
        let step = [1.0, 2.0, 2.5, 5.0, 10.0]
            .into_iter()
            .map(|factor| factor * power)
            .find(|&step| step >= raw)
            .unwrap_or(power * 10.0);
        let count = (high / step).ceil() as u32;
        let ticks = (0..=count).map(|i| f64::from(i) * step).collect();
        Self { low: 0.0, high: f64::from(count) * step, log: false, ticks }
    }

    /// Returns the position of a value, 0 at the low end and 1 at the high end.
    fn place(&self, value: f64) -> f64 {
        let share = if self.log {
            (value / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }
}

impl Chart {
    fn x_axis(&self) -> Axis {
        let values = || self.series.iter().flat_map(|s| s.points.iter().map(|point| point.0));
        let low = values().fold(f64::INFINITY, f64::min).max(1e-300);
        let high = values().fold(low, f64::max);
        Axis::log(low, if high > low { high } else { low * 2.0 })
    }

    fn y_axis(&self) -> Axis {
        let values = || {
            let points = self.series.iter().flat_map(|s| s.points.iter().map(|point| point.1));
            points.filter(|&value| value > 0.0)
        };
        let high = values().fold(0.0, f64::max);
        let low = values().fold(high, f64::min);
        if high <= 0.0 {
            Axis::linear(1.0)
        } else if high / low > LOG_RANGE {
            Axis::log(low * 0.9, high * 1.1)
        } else {
            Axis::linear(high)
        }
    }

    /// Returns the chart as SVG, drawn for wide and for narrow screens, with one legend.
    #[must_use]
    pub fn svg(&self) -> String {
        format!("{}{}{}", self.drawing(WIDE), self.drawing(NARROW), self.legend())
    }

    fn drawing(&self, frame: Frame) -> String {
        let (x, y) = (self.x_axis(), self.y_axis());
        let right = frame.width - RIGHT;
        let bottom = frame.height - BOTTOM;
        let to_x = |value: f64| LEFT + x.place(value) * (right - LEFT);
        let to_y = |value: f64| bottom - y.place(value) * (bottom - TOP);
        let mut svg = format!(
            "<svg class=\"{}\" viewBox=\"0 0 {} {}\" role=\"img\" aria-label=\"{} by {}\">\n",
            frame.class,
            frame.width,
            frame.height,
            escape(&self.y_label),
            escape(&self.x_label),
        );
        for &tick in &y.ticks {
            let (at, text) = (to_y(tick), percent(tick));
            let _ = writeln!(
                svg,
                "<path class=\"grid\" d=\"M{LEFT} {at:.1}H{right}\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{text}</text>",
                LEFT - 8.0,
                at + 4.5,
            );
        }
        let crowded = frame.width < 500.0 && x.ticks.len() > 5;
        for (i, &tick) in x.ticks.iter().enumerate() {
            let at = to_x(tick);
            let _ = write!(svg, "<path class=\"grid\" d=\"M{at:.1} {TOP}V{bottom}\"/>");
            if !crowded || i % 2 == 0 {
                let (below, text) = (bottom + 18.0, short(tick));
                let _ = writeln!(
                    svg,
                    "<text x=\"{at:.1}\" y=\"{below}\" text-anchor=\"middle\">{text}</text>"
                );
            }
        }
        let (centre, low) = ((LEFT + right) / 2.0, frame.height - 8.0);
        let scale = if y.log { ", logarithmic" } else { "" };
        let _ = writeln!(
            svg,
            "<text class=\"label\" x=\"{centre}\" y=\"{low}\" text-anchor=\"middle\">{}</text>\
             <text class=\"label\" transform=\"translate(14 {}) rotate(-90)\" \
             text-anchor=\"middle\">{}{scale}</text>",
            escape(&self.x_label),
            (TOP + bottom) / 2.0,
            escape(&self.y_label),
        );
        for (i, series) in self.series.iter().enumerate() {
            svg.push_str(&line(i, series, &to_x, &to_y));
        }
        svg.push_str("</svg>\n");
        svg
    }

    fn legend(&self) -> String {
        let mut html = String::from("<ul class=\"legend\">\n");
        for (i, series) in self.series.iter().enumerate() {
            let _ = writeln!(
                html,
                "<li><svg viewBox=\"0 0 28 10\" width=\"28\" height=\"10\" aria-hidden=\"true\">\
                 <path class=\"line {}\" d=\"M1 5H27\"/></svg> {}</li>",
                style(i, series),
                escape(&series.name),
            );
        }
        html.push_str("</ul>\n");
        html
    }
}

/// Returns the CSS classes of a line.
fn style(index: usize, series: &Series) -> String {
    if series.is_bound {
        "bound".to_owned()
    } else {
        let dash = ["", " dash", " dots"][(index / COLOURS.len()).min(2)];
        format!("c{}{dash}", index % COLOURS.len())
    }
}

fn line(
    index: usize,
    series: &Series,
    to_x: &impl Fn(f64) -> f64,
    to_y: &impl Fn(f64) -> f64,
) -> String {
    let style = style(index, series);
    let mut svg = format!("<g class=\"series {style}\">");
    let finite = |error: &f64| error.is_finite();
    if series.points.iter().any(|point| point.2.as_ref().is_some_and(finite)) {
        let edge = |sign: f64| {
            move |&(x, y, error): &(f64, f64, Option<f64>)| {
                let error = error.filter(finite).unwrap_or(0.0);
                format!("{:.1} {:.1}", to_x(x), to_y((y + sign * error).max(0.0)))
            }
        };
        let up: Vec<String> = series.points.iter().map(edge(1.0)).collect();
        let down: Vec<String> = series.points.iter().rev().map(edge(-1.0)).collect();
        let _ = write!(svg, "<path class=\"band\" d=\"M{}L{}Z\"/>", up.join("L"), down.join("L"));
    }
    let places: Vec<String> =
        series.points.iter().map(|&(x, y, _)| format!("{:.1} {:.1}", to_x(x), to_y(y))).collect();
    let _ = write!(svg, "<path class=\"line {style}\" d=\"M{}\"/>", places.join("L"));
    for &(x, y, _) in &series.points {
        let _ = write!(
            svg,
            "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\"><title>{} at {}: {}</title></circle>",
            to_x(x),
            to_y(y),
            escape(&series.name),
            short(x),
            percent(y),
        );
    }
    svg.push_str("</g>\n");
    svg
}

/// Formats a ratio in percent, with three digits.
#[must_use]
pub fn percent(ratio: f64) -> String {
    let value = ratio * 100.0;
    let decimals =
        if value == 0.0 { 0 } else { (2.0 - value.log10().floor()).clamp(0.0, 6.0) as usize };
    let text = format!("{value:.decimals$}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{text} %")
}

/// Formats a count with k, M or G.
fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        value if value >= 1e9 => (value / 1e9, "G"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e4 => (value / 1e3, "k"),
        value => (value, ""),
    };
    let text = format!("{scaled:.1}");
    format!("{}{unit}", text.strip_suffix(".0").unwrap_or(&text))
}

/// Escapes text for HTML.
#[must_use]
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// Returns a whole page that refers to nothing outside itself.
#[must_use]
pub fn page(title: &str, body: &str) -> String {
    let colours = |pick: fn(&(&'static str, &'static str)) -> &'static str| {
        COLOURS.iter().enumerate().fold(String::new(), |mut css, (i, colour)| {
            let _ = write!(css, "--c{i}:{};", pick(colour));
            css
        })
    };
    let classes = (0..COLOURS.len()).fold(String::new(), |mut css, i| {
        let _ = writeln!(css, ".c{i}{{color:var(--c{i})}}");
        css
    });
    let (light, dark) = (colours(|colour| colour.0), colours(|colour| colour.1));
    let title = escape(title);
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n\
         :root{{--ink:#1b1f24;--soft:#57606a;--rule:#e3e6ea;--paper:#fff;{light}}}\n\
         @media (prefers-color-scheme:dark){{:root{{--ink:#e6e9ee;--soft:#9aa4b0;--rule:#2c333c;\
         --paper:#14181d;{dark}}}}}\n{STYLE}{classes}</style>\n</head>\n<body>\n<main>\n\
         <h1>{title}</h1>\n{body}</main>\n</body>\n</html>\n"
    )
}

const STYLE: &str = "\
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.5 system-ui,sans-serif}
main{max-width:60rem;margin:0 auto;padding:1rem}
h1{font-size:1.3rem;overflow-wrap:anywhere}
p{color:var(--soft)}
svg.wide,svg.narrow{width:100%;height:auto}
svg.narrow{display:none}
@media (max-width:40rem){svg.wide{display:none}svg.narrow{display:block}}
svg text{fill:var(--soft);font-size:13px}
.grid{stroke:var(--rule);fill:none}
.line{stroke:currentColor;fill:none;stroke-width:2;stroke-linejoin:round}
.band{fill:currentColor;opacity:.15;stroke:none}
circle{fill:currentColor}
.series:hover .line{stroke-width:4}
.bound{color:var(--ink)}
.bound .line,.bound.line{stroke-dasharray:7 4}
.dash .line,.dash.line{stroke-dasharray:10 4}
.dots .line,.dots.line{stroke-dasharray:2 4}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;list-style:none;padding:0}
.table{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}
th,td{padding:.2rem .6rem;text-align:right;border-bottom:1px solid var(--rule);white-space:nowrap}
.verdicts td:first-child{white-space:normal}
.verdicts td:nth-child(2),.verdicts th:nth-child(2),.verdicts td:last-child,.verdicts th:last-child{text-align:left}
th{color:var(--soft);font-weight:600}
td.best{font-weight:700}
";

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(ys: &[f64]) -> Chart {
        let points = ys.iter().zip([10.0, 100.0, 1000.0]).map(|(&y, x)| (x, y, Some(0.01)));
        let series = |name: &str, is_bound| Series {
            name: name.to_owned(),
            points: points.clone().collect(),
            is_bound,
        };
        Chart {
            x_label: "memory".into(),
            y_label: "misses".into(),
            series: vec![series("a<b", false), series("best", true)],
        }
    }

    #[test]
    fn pages_hold_everything_and_escape_names() {
        let html = page("x & y", &chart(&[0.9, 0.5, 0.2]).svg());
        for part in ["<svg class=\"wide\"", "<svg class=\"narrow\"", "a&lt;b", "x &amp; y"] {
            assert!(html.contains(part), "{part} is missing");
        }
        for outside in ["http", "src=", "<script", "url(", "a<b"] {
            assert!(!html.contains(outside), "{outside} is in the page");
        }
    }

    #[test]
    fn wide_ranges_get_a_logarithmic_axis_and_all_values_a_place() {
        assert!(!chart(&[0.9, 0.5, 0.2]).y_axis().log);
        assert!(chart(&[0.9, 0.05, 0.001]).y_axis().log);
        for ys in [[0.0, 0.0, 0.0], [1.0, 0.0, 1e-9], [0.5, 0.5, 0.5]] {
            let svg = chart(&ys).svg();
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(Axis::linear(0.83).ticks, [0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]);
        assert_eq!(Axis::log(150.0, 12_000.0).ticks, [200.0, 500.0, 1e3, 2e3, 5e3, 1e4]);
        assert!(Axis::log(1.0, 1e9).ticks.len() <= 10);
    }

    #[test]
    fn numbers_are_short() {
        let texts = [0.0, 0.5, 0.0123, 0.00045].map(percent);
        assert_eq!(texts, ["0 %", "50 %", "1.23 %", "0.045 %"]);
        assert_eq!([999.0, 65_536.0, 2e6].map(short), ["999", "65.5k", "2M"]);
    }
}
