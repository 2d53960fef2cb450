//! Draws a run (`ebb stat PID --watch --svg FILE`): where its pages are over time and how long its
//! threads wait.
//!
//! This module owns the samples and the drawing, and its caller adds the samples. Colours follow
//! the system setting of the reader, light or dark.

use ebb_control::{MemoryPressure, Metrics};
use ebb_sys::words::plain;
use std::fmt::Write as _;

const WIDTH: f64 = 760.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 12.0;
/// Top and height of each of the two parts.
const MEMORY: (f64, f64) = (34.0, 200.0);
const WAITING: (f64, f64) = (272.0, 60.0);
const HEIGHT: f64 = 362.0;
/// Number of samples above which samples are thinned out. One for each pixel is enough.
const SAMPLES_MAX: usize = 1_000;
const MIB: f64 = 1_048_576.0;

/// Resident pages, compressed pages and pages in files, in the order of the areas from below.
const PLACES: [(&str, &str); 3] =
    [("resident", "in memory"), ("compressed", "compressed in memory"), ("file", "in files")];

/// State of a run at one moment. Sizes are the sizes of the uncompressed pages, in MiB.
#[derive(Clone, Copy, Default, PartialEq, Debug)]
pub struct Sample {
    pub seconds: f64,
    pub places: [f64; 3],
    pub limit: f64,
    /// Total time, in microseconds, in which at least one thread waited for memory.
    pub waited_us: f64,
}

impl Sample {
    /// Takes a sample from the figures of a run.
    pub fn of(seconds: f64, metrics: &Metrics, pressure: &MemoryPressure) -> Self {
        let mib = |name| metrics.bytes(name) as f64 / MIB;
        Self {
            seconds,
            places: ["nr_anon_pages", "ebb_ram_pages", "ebb_file_pages"].map(mib),
            limit: mib("ebb_nr_limit"),
            waited_us: pressure.some.total_us as f64,
        }
    }
}

/// The samples of a run.
#[derive(Default)]
pub struct Picture {
    samples: Vec<Sample>,
    /// Of this many samples one is kept.
    step: usize,
    seen: usize,
}

impl Picture {
    /// Adds a sample. Drops every other sample when there are too many.
    pub fn add(&mut self, sample: Sample) {
        self.step = self.step.max(1);
        if self.seen.is_multiple_of(self.step) {
            self.samples.push(sample);
        }
        self.seen += 1;
        if self.samples.len() > SAMPLES_MAX {
            let mut at = 0;
            self.samples.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            self.step *= 2;
        }
    }

    /// Returns the picture as SVG.
    pub fn svg(&self, title: &str) -> String {
        let end = self.samples.last().map_or(1.0, |last| last.seconds.max(0.1));
        let most = |sample: &Sample| sample.places.iter().sum::<f64>().max(sample.limit);
        let (step, top) = round(self.samples.iter().map(most).fold(1.0, f64::max), 4.0);
        let x = |seconds: f64| LEFT + (WIDTH - LEFT - RIGHT) * seconds / end;
        let y = |mib: f64| MEMORY.0 + MEMORY.1 * (1.0 - mib / top);
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{title}\" font-family=\"system-ui,sans-serif\" font-size=\"12\">\n<style>{STYLE}</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>\n\
             <text x=\"{LEFT}\" y=\"20\" font-size=\"14\">{title}</text>\n",
            title = escape(title)
        );
        let mut mib = 0.0;
        while mib <= top {
            let at = y(mib);
            let _ = writeln!(
                text,
                "<path class=\"rule\" d=\"M{LEFT} {at:.1}H{:.1}\"/>\
                 <text class=\"soft\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{mib:.0} MiB</text>",
                WIDTH - RIGHT,
                LEFT - 6.0,
                at + 4.0
            );
            mib += step;
        }
        let mut below = vec![0.0; self.samples.len()];
        for (place, (class, _)) in PLACES.iter().enumerate() {
            let above: Vec<f64> = self
                .samples
                .iter()
                .zip(&below)
                .map(|(sample, low)| low + sample.places[place])
                .collect();
            let there = self.samples.iter().any(|sample| sample.places[place] > 0.0);
            if there {
                let points = |heights: &[f64]| -> Vec<String> {
                    let all = self.samples.iter().zip(heights);
                    all.map(|(sample, mib)| format!("{:.1} {:.1}", x(sample.seconds), y(*mib)))
                        .collect()
                };
                let mut back = points(&below);
                back.reverse();
                let outline = [points(&above), back].concat().join("L");
                let _ = writeln!(text, "<path class=\"{class}\" d=\"M{outline}Z\"/>");
            }
            below = above;
        }
        let limit: Vec<String> = self
            .samples
            .iter()
            .map(|sample| format!("{:.1} {:.1}", x(sample.seconds), y(sample.limit)))
            .collect();
        let _ = writeln!(text, "<path class=\"limit\" d=\"M{}\"/>", limit.join("L"));
        self.waiting(&mut text, x);
        let (every, _) = round(end, 8.0);
        let mut seconds = 0.0;
        while seconds <= end {
            let _ = writeln!(
                text,
                "<text class=\"soft\" x=\"{:.1}\" y=\"{}\" text-anchor=\"middle\">{seconds} s</text>",
                x(seconds),
                HEIGHT - 12.0
            );
            seconds += every;
        }
        legend(&mut text);
        text + "</svg>\n"
    }

    /// Draws the share of time between two samples in which at least one thread waited.
    fn waiting(&self, text: &mut String, x: impl Fn(f64) -> f64) {
        let (top, height) = WAITING;
        let bottom = top + height;
        let _ = writeln!(
            text,
            "<text x=\"{LEFT}\" y=\"{}\">some thread waits for a page, in % of the time</text>\
             <path class=\"rule\" d=\"M{LEFT} {top}H{right}M{LEFT} {bottom}H{right}\"/>\
             <text class=\"soft\" x=\"{edge}\" y=\"{}\" text-anchor=\"end\">100 %</text>\
             <text class=\"soft\" x=\"{edge}\" y=\"{bottom}\" text-anchor=\"end\">0 %</text>",
            top - 8.0,
            top + 8.0,
            right = WIDTH - RIGHT,
            edge = LEFT - 6.0,
        );
        let mut outline = format!("M{LEFT} {bottom}");
        for pair in self.samples.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let time = (to.seconds - from.seconds).max(1e-6);
            let share = ((to.waited_us - from.waited_us) / 1e6 / time).clamp(0.0, 1.0);
            let at = bottom - height * share;
            let _ = write!(outline, "L{:.1} {at:.1}H{:.1}", x(from.seconds), x(to.seconds));
        }
        let _ = writeln!(text, "<path class=\"waits\" d=\"{outline}V{bottom}Z\"/>");
    }
}

/// Returns a round step such that `steps` of them reach `high`, and the end of the last step.
fn round(high: f64, steps: f64) -> (f64, f64) {
    let raw = high / steps;
    let power = 10f64.powf(raw.log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].into_iter().map(|factor| factor * power);
    let step = round.into_iter().find(|&step| step >= raw).unwrap_or(power * 10.0);
    (step, (high / step).ceil() * step)
}

fn legend(text: &mut String) {
    let mut at = WIDTH - RIGHT;
    let names = PLACES.iter().rev().copied().chain([("limit", "limit")]);
    for (class, name) in names {
        // Characters of this size are seven units wide at most, on average.
        at -= name.len() as f64 * 7.0 + 28.0;
        let mark =
            if class == "limit" { format!("M{at} 16h12") } else { format!("M{at} 11h12v10h-12Z") };
        let _ = writeln!(
            text,
            "<path class=\"{class}\" d=\"{mark}\"/><text x=\"{:.1}\" y=\"20\">{name}</text>",
            at + 16.0
        );
    }
}

/// Escapes text for the picture. XML permits no control characters at all.
fn escape(text: &str) -> String {
    plain(text).replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;")
}

const STYLE: &str = "text{fill:#1d232b}.soft{fill:#5d6773}.paper{fill:#fff}.rule{stroke:#dde2e8;fill:none}\
.resident{fill:#1769b5}.compressed{fill:#6fb1e8}.file{fill:#d9a441}.waits{fill:#c2265b}\
.limit{stroke:#1d232b;stroke-width:1.5;stroke-dasharray:5 3;fill:none}\
@media(prefers-color-scheme:dark){text{fill:#e6e9ee}.soft{fill:#9aa4b0}.paper{fill:#14181d}.rule{stroke:#2c333c}\
.resident{fill:#4a9be8}.compressed{fill:#24598c}.file{fill:#a87a25}.waits{fill:#ff6b98}.limit{stroke:#e6e9ee}}";

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_control::{Metric, Pressure, Unit};

    #[test]
    fn a_sample_is_read_from_the_figures_of_the_pager() {
        let levels = [("nr_anon_pages", 512), ("ebb_nr_limit", 1024), ("ebb_ram_pages", 256)];
        let metrics = Metrics(levels.map(|(name, n)| Metric::gauge(name, n, Unit::Pages)).into());
        let some = Pressure { total_us: 1500, ..Pressure::default() };
        let pressure = MemoryPressure { some, ..MemoryPressure::default() };
        let sample =
            Sample { seconds: 2.0, places: [2.0, 1.0, 0.0], limit: 4.0, waited_us: 1500.0 };
        assert_eq!(Sample::of(2.0, &metrics, &pressure), sample);
    }

    #[test]
    fn a_long_run_is_thinned_out() {
        let mut picture = Picture::default();
        for n in 0..10_000 {
            picture.add(Sample { seconds: f64::from(n), ..Sample::default() });
        }
        assert!((SAMPLES_MAX / 2..=SAMPLES_MAX).contains(&picture.samples.len()));
        let gaps = picture.samples.windows(2).map(|pair| pair[1].seconds - pair[0].seconds);
        assert!(gaps.clone().all(|gap| (gap - gaps.clone().next().unwrap_or(0.0)).abs() < 1e-9));
    }

    #[test]
    fn the_picture_shows_the_samples_of_the_run() {
        let mut picture = Picture::default();
        for n in 0..3 {
            let [n, up] = [f64::from(n), f64::from(n) * 30.0];
            let places = [32.0, up, 0.0];
            picture.add(Sample { seconds: n, places, limit: 32.0, waited_us: n * 500_000.0 });
        }
        let svg = picture.svg("a < b\u{1}");
        assert!(svg.contains("a &lt; b <") && svg.ends_with("</svg>\n"));
        // The axis for 92 MiB ends at 100 MiB. Threads wait half of the time.
        assert!(svg.contains(">100 MiB<") && svg.contains(">2 s<"), "{svg}");
        assert!(svg.contains("M64 332L64.0 302.0H406.0L406.0 302.0H748.0V332Z"), "{svg}");
        assert!(svg.contains("class=\"compressed\" d=\"M64.0 170.0L406.0"), "{svg}");
        assert!(!svg.contains("class=\"file\" d=\"M64.0"), "nothing was there");
    }
}
