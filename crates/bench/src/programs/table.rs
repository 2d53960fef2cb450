//! Formats tables: one for each program and share, and the means over all programs.

use super::rounds::{Measured, Peer, Row};
use super::runs::{End, Environment};
use crate::stats::{Noise, Summary, geometric_mean, pairs, verdict};

const MIB: f64 = (1 << 20) as f64;

/// Speed of Ebb relative to a peer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Speed {
    /// Ratio of the peer's time to Ebb's.
    Known(f64),
    /// Upper bound, because Ebb took longer than the timeout.
    Less(f64),
    /// Lower bound, because the peer took longer than the timeout.
    More(f64),
}

impl Speed {
    fn bound(self) -> f64 {
        match self {
            Self::Known(ratio) | Self::Less(ratio) | Self::More(ratio) => ratio,
        }
    }

    fn show(self, noise: Option<Noise>) -> String {
        match self {
            Self::Known(ratio) => verdict(ratio, noise),
            Self::Less(ratio) => format!("< {ratio:.2}"),
            Self::More(ratio) => format!("> {ratio:.2}"),
        }
    }
}

fn median(row: &Row) -> f64 {
    row.summary().map_or(f64::INFINITY, |walls| walls.median)
}

/// Returns whether most of the failed runs of a row took too long.
fn is_late(row: &Row) -> bool {
    let of = |wanted: fn(&End) -> bool| row.samples.iter().filter(|s| wanted(&s.end)).count();
    of(|end| *end == End::TimedOut) * 2 > of(|end| *end != End::Done)
}

/// Returns the speed; `None` if Ebb or the peer was killed or failed.
fn speed(ebb: &Row, peer: &Row, timeout_s: f64) -> Option<Speed> {
    let (ours, theirs) = (median(ebb), median(peer));
    match (ours.is_finite(), theirs.is_finite()) {
        (true, true) => Some(Speed::Known(theirs / ours)),
        (false, true) if is_late(ebb) => Some(Speed::Less(theirs / timeout_s)),
        (true, false) if is_late(peer) => Some(Speed::More(timeout_s / ours)),
        _ => None,
    }
}

/// The rows of one share of a program.
struct Share<'a> {
    plain: &'a Row,
    ebb: &'a Row,
    peers: Vec<&'a Row>,
    noise: Option<Noise>,
}

impl<'a> Share<'a> {
    fn of(measured: &'a Measured, share: u32) -> Option<Self> {
        let (plain, rest) = measured.rows.split_first()?;
        let mut rows = rest.iter().filter(|row| row.share == Some(share));
        let ebb = rows.next().filter(|row| matches!(row.place, Environment::Ebb { .. }))?;
        Some(Self { plain, ebb, peers: rows.collect(), noise: Noise::of(&plain.walls()) })
    }

    /// Returns the row of the peer's best `page-cluster`.
    fn best(&self, peer: Peer) -> Option<&'a Row> {
        let rows = self.peers.iter().copied().filter(|row| row.peer() == Some(peer));
        rows.min_by(|a, b| median(a).total_cmp(&median(b)))
    }
}

/// Returns the table of one program at one share.
pub fn render(measured: &Measured, share: u32, timeout_s: f64) -> Option<String> {
    let rows = Share::of(measured, share)?;
    let Environment::Ebb { limit_bytes } = rows.ebb.place else { return None };
    let mut lines = vec![
        format!(
            "### {}: {:.1} MiB of {:.1} ({share} %); noise {}\n",
            measured.program,
            limit_bytes as f64 / MIB,
            measured.peak_bytes as f64 / MIB,
            rows.noise.map_or("not known".into(), |noise| format!("x {:.2}", noise.factor())),
        ),
        "| | wall s [quartiles] | Ebb's speed to it | round by round | CPU s |".into(),
        "|---|---|---|---|---|".into(),
    ];
    for row in [rows.plain, rows.ebb].into_iter().chain(rows.peers.iter().copied()) {
        let other = !std::ptr::eq(row, rows.ebb);
        let ratio = other.then(|| speed(rows.ebb, row, timeout_s)).flatten();
        let pairs = other.then(|| pairs(&row.walls(), &rows.ebb.walls())).flatten();
        let cpu = row.samples.iter().map(|sample| sample.cpu_s).collect::<Vec<_>>();
        let best = row.peer().and_then(|peer| rows.best(peer));
        lines.push(format!(
            "| {}{} | {} | {} | {} | {} |",
            name(row),
            if best.is_some_and(|best| std::ptr::eq(best, row)) { " (best)" } else { "" },
            walls(row, timeout_s),
            ratio.map_or("-".into(), |ratio| ratio.show(rows.noise)),
            pairs.map_or("-".into(), |pairs| pairs.show(2)),
            Summary::of(&cpu).map_or("-".into(), |cpu| format!("{:.1}", cpu.median)),
        ));
    }
    Some(lines.join("\n") + "\n")
}

fn name(row: &Row) -> String {
    match row.place {
        Environment::Plain => "plain".into(),
        Environment::Ebb { .. } => "ebb".into(),
        Environment::SwapFile { page_cluster, .. } => {
            format!("swap file, page-cluster {page_cluster}")
        }
        Environment::Zram { limit_bytes, memory_bytes, page_cluster } => format!(
            "zram, {:.0} + {:.0} MiB, page-cluster {page_cluster}",
            limit_bytes as f64 / MIB,
            memory_bytes.unwrap_or(0) as f64 / MIB
        ),
    }
}

/// Returns the median wall time with quartiles, and how the failed runs ended.
fn walls(row: &Row, timeout_s: f64) -> String {
    let count = |wanted: fn(&End) -> bool| row.samples.iter().filter(|s| wanted(&s.end)).count();
    let ends = [
        (count(|end| *end == End::Killed), "killed".to_owned()),
        (count(|end| *end == End::TimedOut), format!("> {timeout_s:.0} s")),
        (count(|end| matches!(end, End::Failed(_))), "FAILED".to_owned()),
        (count(|end| *end == End::Different), "WRONG OUTPUT".to_owned()),
    ];
    let all = row.summary().filter(|all| all.median.is_finite());
    let mut shown: Vec<String> = all.iter().map(|all| all.show(2)).collect();
    let bad = ends.iter().filter(|(count, _)| *count > 0);
    shown.extend(bad.map(|(count, what)| format!("{what} ({count} of {})", row.samples.len())));
    shown.join(", ")
}

/// Returns the means at one share, a line for each peer.
pub fn means(all: &[Measured], share: u32, peers: &[Peer], timeout_s: f64) -> String {
    peers.iter().map(|&peer| mean(all, share, peer, timeout_s)).collect::<Vec<_>>().join("\n")
}

/// The head of the table whose lines [`means`] returns.
pub const MEANS_HEAD: &str = "\
| at | Ebb's speed to | programs | geometric mean | least | most | left out |
|---|---|---|---|---|---|---|";

fn mean(all: &[Measured], share: u32, peer: Peer, timeout_s: f64) -> String {
    let mut known: Vec<(&str, Speed, Option<Noise>)> = Vec::new();
    let mut left_out = Vec::new();
    for measured in all {
        let Some(rows) = Share::of(measured, share) else { continue };
        match rows.best(peer).map(|best| (best, speed(rows.ebb, best, timeout_s))) {
            Some((_, Some(speed))) => known.push((measured.program, speed, rows.noise)),
            Some((best, None)) => {
                let culprit = if median(rows.ebb).is_finite() { best } else { rows.ebb };
                let why = format!("{} {}", name(culprit), walls(culprit, timeout_s));
                left_out.push(format!("{}: {why}", measured.program));
            }
            None => {}
        }
    }
    let ratios: Vec<f64> = known.iter().map(|(_, speed, _)| speed.bound()).collect();
    let noise: Vec<Noise> = known.iter().filter_map(|(_, _, noise)| *noise).collect();
    let noise = Noise::mean(&noise).filter(|_| noise.len() == known.len());
    let open = known.iter().any(|(_, speed, _)| !matches!(speed, Speed::Known(_)));
    let order = |a: &&(&str, Speed, _), b: &&(&str, Speed, _)| a.1.bound().total_cmp(&b.1.bound());
    let one = |found: Option<&(&str, Speed, Option<Noise>)>| {
        found.map_or("-".into(), |(name, speed, noise)| format!("{} {name}", speed.show(*noise)))
    };
    format!(
        "| {share} % | {} | {} | {}{} | {} | {} | {} |",
        peer.name(),
        known.len(),
        geometric_mean(&ratios).map_or("-".into(), |mean| verdict(mean, noise)),
        if open { " (with bounds)" } else { "" },
        one(known.iter().min_by(order)),
        one(known.iter().max_by(order)),
        if left_out.is_empty() { "-".into() } else { left_out.join("; ") },
    )
}

#[cfg(test)]
mod tests {
    use super::super::runs::Sample;
    use super::*;
    use crate::kernel::Compressed;

    fn row(place: Environment, share: Option<u32>, walls: &[f64]) -> Row {
        let sample = |&wall_s: &f64| Sample {
            end: match wall_s {
                wall if wall.is_nan() => End::Killed,
                wall if wall.is_infinite() => End::TimedOut,
                _ => End::Done,
            },
            wall_s,
            cpu_s: 1.5,
            checksum: 0,
            peak_bytes: None,
            report: None,
            compressed: Compressed::default(),
        };
        Row { place, share, samples: walls.iter().map(sample).collect() }
    }

    fn measured(ebb: &[f64], file: [&[f64]; 2], zram: &[f64]) -> Measured {
        let limit_bytes = 50 << 20;
        let memory_bytes = Some(20 << 20);
        let [zero, three] = file;
        let swap = |page_cluster| Environment::SwapFile { limit_bytes, page_cluster };
        let compressed = Environment::Zram { limit_bytes: 30 << 20, memory_bytes, page_cluster: 0 };
        Measured {
            program: "perl-hash",
            peak_bytes: 100 << 20,
            rows: vec![
                row(Environment::Plain, None, &[1.0, 1.1, 1.05]),
                row(Environment::Ebb { limit_bytes }, Some(50), ebb),
                row(swap(0), Some(50), zero),
                row(swap(3), Some(50), three),
                row(compressed, Some(50), zram),
            ],
        }
    }

    #[test]
    fn the_table_shows_a_program_at_one_share() {
        let killed = [f64::NAN; 3];
        let file: [&[f64]; 2] = [&[4.2, 4.0, 4.1], &[2.0, 2.1, 2.05]];
        let text = "\
### perl-hash: 50.0 MiB of 100.0 (50 %); noise x 1.10

| | wall s [quartiles] | Ebb's speed to it | round by round | CPU s |
|---|---|---|---|---|
| plain | 1.05 [1.02, 1.08] | 0.50 | 0.50 | 1.5 |
| ebb | 2.10 [2.05, 2.15] | - | - | 1.5 |
| swap file, page-cluster 0 | 4.10 [4.05, 4.15] | 1.95 | 1.95 [1.89, 2.03] | 1.5 |
| swap file, page-cluster 3 (best) | 2.05 [2.02, 2.08] | ~ | 0.98 [0.97, 0.99] | 1.5 |
| zram, 30 + 20 MiB, page-cluster 0 (best) | killed (3 of 3) | - | - | 1.5 |
";
        let measured = measured(&[2.0, 2.2, 2.1], file, &killed);
        assert_eq!(render(&measured, 50, 300.0).unwrap(), text);
        assert_eq!(render(&measured, 25, 300.0), None);
    }

    #[test]
    fn means_name_bounds_and_programs_that_are_left_out() {
        let late = [f64::INFINITY; 3];
        let killed = [f64::NAN; 3];
        let one = measured(&[2.0, 2.0, 2.0], [&[8.0, 8.0, 8.0], &[9.0, 9.0, 9.0]], &killed);
        let two = measured(&[3.0, 3.0, 3.0], [&late, &late], &[6.0, 6.0, 6.0]);
        let text = "\
| 50 % | swap file | 2 | 20.00 (with bounds) | 4.00 perl-hash | > 100.00 perl-hash | - |
| 50 % | zram | 1 | 2.00 | 2.00 perl-hash | 2.00 perl-hash | perl-hash: zram, 30 + 20 MiB, page-cluster 0 killed (3 of 3) |";
        assert_eq!(means(&[one, two], 50, &[Peer::SwapFile, Peer::Zram], 300.0), text);
        let ebb_late = measured(&late, [&[30.0; 3], &[60.0; 3]], &killed);
        assert_eq!(
            means(&[ebb_late], 50, &[Peer::SwapFile], 300.0),
            "| 50 % | swap file | 1 | 0.10 (with bounds) | < 0.10 perl-hash | < 0.10 perl-hash | - |"
        );
    }
}
