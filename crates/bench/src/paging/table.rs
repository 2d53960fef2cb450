//! Formats the table of one load.

use super::rounds::Row;
use super::runs::Environment;
use crate::stats::{Noise, Summary, pairs, verdict};

/// The heads of the columns.
pub const HEAD: &str = "\
| load | threads | configuration | accesses/s [quartiles] | to kernel | round by round | CPU us/access | misses/access | ebb MiB |
|---|---|---|---|---|---|---|---|---|";

/// Returns a line for each row, and one about the noise.
pub fn render(load: &str, threads: usize, rows: &[Row]) -> String {
    let rates = |row: &Row| row.column(|sample| sample.rate);
    let kernel = rows.iter().find(|row| matches!(row.place, Environment::Kernel { .. }));
    let plain = rows.iter().find(|row| matches!(row.place, Environment::Plain));
    let noise = plain.and_then(|plain| Noise::of(&rates(plain)));
    let mut lines = Vec::new();
    for row in rows {
        let to_kernel = kernel.filter(|kernel| !std::ptr::eq(*kernel, row));
        let ratio = to_kernel.map(|kernel| {
            verdict(row.median(|sample| sample.rate) / kernel.median(|sample| sample.rate), noise)
        });
        let pairs = to_kernel.and_then(|kernel| pairs(&rates(row), &rates(kernel)));
        let ebb = matches!(row.place, Environment::Ebb { .. });
        let misses = row.median(|sample| sample.misses);
        let memory = (row.median(|sample| sample.own_mib), row.median(|sample| sample.shared_mib));
        lines.push(format!(
            "| {load} | {threads} | {} | {} | {} | {} | {:.2} | {} | {} |",
            row.name,
            Summary::of(&rates(row)).map_or("-".into(), |all| all.show(0)),
            ratio.unwrap_or("-".into()),
            pairs.map_or("-".into(), |pairs| pairs.show(2)),
            row.median(|sample| sample.cpu_us),
            if matches!(row.place, Environment::Plain) {
                "-".into()
            } else {
                format!("{misses:.4}")
            },
            if ebb { format!("{:.1} + {:.1} shared", memory.0, memory.1) } else { "-".into() },
        ));
    }
    lines.push(format!("| {load} | {threads} | *noise* | {} | | | | | |", told(noise)));
    lines.join("\n")
}

/// Formats the noise as a factor.
pub fn told(noise: Option<Noise>) -> String {
    noise.map_or("not known from one round".into(), |noise| format!("x {:.2}", noise.factor()))
}

#[cfg(test)]
mod tests {
    use super::super::rounds::Sample;
    use super::*;

    fn row(name: &str, place: Environment, rates: &[f64]) -> Row {
        let sample =
            |&rate| Sample { rate, cpu_us: 2.0, misses: 0.1, own_mib: 20.0, shared_mib: 0.1 };
        Row { name: name.into(), place, samples: rates.iter().map(sample).collect() }
    }

    #[test]
    fn the_table_of_rates_has_their_quartiles_and_the_noise() {
        let ebb =
            row("ebb", Environment::Ebb { limit_bytes: 1, more: vec![] }, &[80.0, 90.0, 100.0]);
        let plain = row("plain", Environment::Plain, &[1000.0, 1100.0, 1050.0]);
        let text = "| zipf | 1 | ebb | 90 [85, 95] | - | - | 2.00 | 0.1000 | 20.0 + 0.1 shared |\n\
                    | zipf | 1 | plain | 1050 [1025, 1075] | - | - | 2.00 | - | - |\n\
                    | zipf | 1 | *noise* | x 1.10 | | | | | |";
        assert_eq!(render("zipf", 1, &[ebb, plain]), text);
    }
}
