//! `ebb ps` lists this user's runs, one on each line.

use crate::folder;
use crate::stat::{ask, say};
use ebb_control::{MemoryPressure, Metrics, Patience, Request};
use ebb_sys::words::plain;
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "\
PID is the process `ebb run`, or with --exec the program; `ebb stat`, `set` and `lru-gen` take it. USED is the memory
that counts in the limit, compressed memory included. COMPRESSED and FILE are the pages stored there, at their full
size. SOME is the share of the last ten seconds in which at least one thread waited for memory.

Examples:
  ebb ps
  ebb ps --format json | jq '.[] | select(.pressure_some_percent > 10) | .pid'")]
pub struct Arguments {
    /// Form of the list
    #[arg(long, value_enum, default_value = "text")]
    format: Format,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    Text,
    Json,
}

/// Figures of one run.
#[derive(Debug, PartialEq, serde::Serialize)]
pub struct Run {
    pub pid: u32,
    pub memory_max_bytes: u64,
    pub used_bytes: u64,
    pub compressed_pages: u64,
    pub file_pages: u64,
    pub pressure_some_percent: f64,
    pub command: String,
}

impl Run {
    fn of(pid: u32, metrics: &Metrics, pressure: &MemoryPressure, command: String) -> Self {
        let pages = |name| metrics.value(name).unwrap_or(0);
        Self {
            pid,
            memory_max_bytes: metrics.bytes("ebb_nr_limit"),
            used_bytes: metrics.bytes("nr_anon_pages"),
            compressed_pages: pages("ebb_ram_pages"),
            file_pages: pages("ebb_file_pages"),
            pressure_some_percent: pressure.some.average[0] as f64 / 100.0,
            command,
        }
    }

    /// Asks a run for its figures. `None` if it has ended meanwhile.
    pub fn ask(pid: u32) -> Option<Self> {
        let metrics = ask(pid, &Request::Metrics, Patience::Answer).ok()?;
        let pressure = ask(pid, &Request::Pressure, Patience::Answer).ok()?;
        Some(Self::of(pid, &metrics, &pressure, command_of(pid)?))
    }
}

/// Returns the program and its arguments, as given to the run; `None` if the run has ended.
pub fn command_of(run: u32) -> Option<String> {
    ask(run, &Request::Command, Patience::Answer).ok()
}

fn mib(bytes: u64) -> String {
    format!("{:.1}M", bytes as f64 / (1 << 20) as f64)
}

fn table(runs: &[Run]) -> String {
    let head = ["PID", "MAX", "USED", "COMPRESSED", "FILE", "SOME"].map(str::to_owned);
    let rows = runs.iter().map(|run| {
        let pages = |pages: u64| mib(pages * 4096);
        let some = format!("{:.1}%", run.pressure_some_percent);
        let [max, used] = [run.memory_max_bytes, run.used_bytes].map(mib);
        [run.pid.to_string(), max, used, pages(run.compressed_pages), pages(run.file_pages), some]
    });
    let rows: Vec<[String; 6]> = [head].into_iter().chain(rows).collect();
    let widths: Vec<usize> = (0..6)
        .map(|column| rows.iter().map(|row| row[column].len()).max().unwrap_or_default())
        .collect();
    let commands = ["COMMAND"].into_iter().chain(runs.iter().map(|run| run.command.as_str()));
    let mut text = String::new();
    for (row, command) in rows.iter().zip(commands) {
        for (cell, width) in row.iter().zip(&widths) {
            text += &format!("{cell:>width$}  ");
        }
        // Control characters are replaced, so that each run takes one line and a terminal obeys no
        // sequence.
        text += &plain(command);
        text.push('\n');
    }
    text
}

/// Returns all runs of this user, in the order of their numbers.
pub fn runs() -> Vec<Run> {
    let mut runs: Vec<Run> = folder::runs().into_iter().filter_map(Run::ask).collect();
    runs.sort_by_key(|run| run.pid);
    runs
}

/// Prints the list of runs.
pub fn ps(arguments: &Arguments) -> ExitCode {
    let runs = runs();
    say(&match arguments.format {
        Format::Text => table(&runs),
        Format::Json => serde_json::to_string_pretty(&runs).expect("numbers and strings") + "\n",
    });
    ExitCode::SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebb_control::{Metric, Pressure, Unit};

    #[test]
    fn a_run_is_one_line_even_if_figures_are_missing() {
        let levels = [("nr_anon_pages", 256), ("ebb_nr_limit", 65536), ("ebb_file_pages", 512)];
        let metrics = Metrics(levels.map(|(name, n)| Metric::gauge(name, n, Unit::Pages)).into());
        let some = Pressure { average: [452, 81, 0], total_us: 1 };
        let pressure = MemoryPressure { some, ..MemoryPressure::default() };
        let run = Run::of(42, &metrics, &pressure, "sleep 5".into());
        assert_eq!(run.pressure_some_percent, 4.52);
        let none = (&Metrics::default(), &MemoryPressure::default());
        let runs = [run, Run::of(4711, none.0, none.1, "x\n\x1b".into())];
        assert_eq!(
            table(&runs),
            " PID     MAX  USED  COMPRESSED  FILE  SOME  COMMAND\n\
             \x20 42  256.0M  1.0M        0.0M  2.0M  4.5%  sleep 5\n\
             4711    0.0M  0.0M        0.0M  0.0M  0.0%  x  \n"
        );
    }
}
