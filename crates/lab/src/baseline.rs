//! Compares replays with miss counts measured by other simulators.
//!
//! The baseline is a CSV file with the columns `trace`, `size_pages`, `policy` and `misses`, and an
//! optional `family`. The traces are the files `TRACE.csv.zst` of a folder.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, bail};

use crate::policy::{PolicyInfo, Settings};
use crate::replay::{Job, Outcome};

/// Policies: the baseline's name, Ebb's name, and the needed settings.
const NAMES: &[(&str, &str, &[&str])] = &[
    ("FIFO", "fifo", &[]),
    ("LRU", "lru", &[]),
    ("CLOCK", "clock", &[]),
    ("CLOCK-2bit", "clock", &["clock.bits=2"]),
    ("ARC", "arc", &[]),
    ("CAR", "car", &[]),
    ("LIRS", "lirs", &["lirs.phantoms=1"]),
    ("CLOCK-Pro", "clock-pro", &[]),
    ("2Q", "2q", &[]),
    ("S3-FIFO", "s3-fifo", &[]),
    ("SIEVE", "sieve", &[]),
    ("TinyLFU", "w-tinylfu", &[]),
    ("W-TinyLFU10", "w-tinylfu", &["w-tinylfu.window=0.1"]),
    ("LeCaR", "lecar", &[]),
    ("DClock-50", "dclock", &[]),
    ("DClock-99", "dclock", &["dclock.active=0.99"]),
    ("Belady", "belady", &[]),
];

/// One row of a baseline for which Ebb has the policy.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name of the trace.
    pub trace: String,
    /// Name of the policy in the baseline.
    pub label: &'static str,
    /// Number of misses in the baseline.
    pub misses: u64,
    /// Cache to run.
    pub job: Job,
}

/// A case with the outcome of its replay.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Case of the baseline.
    pub case: Case,
    /// Outcome of the replay.
    pub outcome: Outcome,
}

impl Compared {
    /// Returns the difference of the miss ratios, in points; positive if Ebb's is higher.
    #[must_use]
    pub fn points(&self) -> f64 {
        let difference = self.outcome.misses as f64 - self.case.misses as f64;
        difference * 100.0 / self.outcome.accesses.max(1) as f64
    }
}

/// One row of a baseline.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Row {
    /// Name of the trace.
    pub trace: String,
    /// Kind of trace, from the column `family` if there is one.
    pub family: String,
    /// Size of the cache in pages.
    pub memory_pages: u32,
    /// Name of the policy in the baseline.
    pub label: String,
    /// Number of misses in the baseline.
    pub misses: u64,
}

/// Reads the measured rows of a baseline.
pub fn rows(path: &Path) -> anyhow::Result<Vec<Row>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().unwrap_or_default().split(',').collect();
    let find = |name: &str| header.iter().position(|&column| column == name);
    let column = |name: &str| {
        find(name).with_context(|| {
            format!("{}: line 1: expected a header with a column {name}", path.display())
        })
    };
    let columns = [column("trace")?, column("size_pages")?, column("policy")?, column("misses")?];
    let family = find("family");
    let mut rows = Vec::new();
    for (i, line) in lines.enumerate() {
        let fields: Vec<&str> = line.split(',').collect();
        let field = |column: usize| fields.get(column).copied().unwrap_or_default();
        let [trace, pages, label, misses] = columns.map(field);
        if misses.is_empty() {
            continue;
        }
        let (Ok(memory_pages), Ok(misses)) = (pages.parse(), misses.parse()) else {
            bail!("{}: line {}: expected numbers as pages and misses", path.display(), i + 2);
        };
        rows.push(Row {
            trace: trace.to_owned(),
            family: family.map(field).unwrap_or_default().to_owned(),
            memory_pages,
            label: label.to_owned(),
            misses,
        });
    }
    Ok(rows)
}

/// Reads the comparable rows of a baseline, by trace.
pub fn read(path: &Path) -> anyhow::Result<BTreeMap<String, Vec<Case>>> {
    let mut cases: BTreeMap<String, Vec<Case>> = BTreeMap::new();
    for row in rows(path)? {
        let Some(&(label, name, set)) = NAMES.iter().find(|known| known.0 == row.label) else {
            continue;
        };
        let settings = Arc::new(Settings::parse(set)?);
        let policy = PolicyInfo::find(name)?;
        let job = Job { policy, memory_pages: row.memory_pages, settings };
        let case = Case { trace: row.trace.clone(), label, misses: row.misses, job };
        cases.entry(row.trace).or_default().push(case);
    }
    Ok(cases)
}

/// Deviations of one policy.
#[derive(Clone, Default, Debug)]
struct Deviation<'a> {
    cases: u64,
    exact: u64,
    over: u64,
    sum: f64,
    worst: Option<&'a Compared>,
}

/// Returns a table of deviations by policy, and whether all are within `tolerance` points.
#[must_use]
pub fn table(compared: &[Compared], tolerance: f64) -> (String, bool) {
    let mut by_policy: BTreeMap<&str, Deviation<'_>> = BTreeMap::new();
    for row in compared {
        let deviation = by_policy.entry(row.case.label).or_default();
        deviation.cases += 1;
        deviation.exact += u64::from(row.case.misses == row.outcome.misses);
        deviation.over += u64::from(row.points().abs() > tolerance);
        deviation.sum += row.points().abs();
        if deviation.worst.is_none_or(|worst| worst.points().abs() < row.points().abs()) {
            deviation.worst = Some(row);
        }
    }
    let mut text = format!(
        "{:<12} {:>6} {:>6} {:>12} {:>7}  worst\n",
        "policy", "cases", "exact", "mean points", "over"
    );
    for (label, deviation) in &by_policy {
        let worst = deviation.worst.filter(|worst| worst.points() != 0.0).map(|worst| {
            let Case { trace, job, .. } = &worst.case;
            format!("{:+.3} points: {trace}, {} pages", worst.points(), job.memory_pages)
        });
        let _ = writeln!(
            text,
            "{label:<12} {:>6} {:>6} {:>12.4} {:>7}  {}",
            deviation.cases,
            deviation.exact,
            deviation.sum / deviation.cases as f64,
            deviation.over,
            worst.unwrap_or_default(),
        );
    }
    (text, by_policy.values().all(|deviation| deviation.over == 0))
}

/// Returns the rows as CSV, with both miss counts.
#[must_use]
pub fn csv(compared: &[Compared]) -> String {
    let mut text = String::from("trace,size_pages,policy,accesses,misses_expected,misses,points\n");
    for row in compared {
        let Case { trace, label, misses, job } = &row.case;
        let (accesses, found) = (row.outcome.accesses, row.outcome.misses);
        let pages = job.memory_pages;
        let _ = writeln!(
            text,
            "{trace},{pages},{label},{accesses},{misses},{found},{:.5}",
            row.points()
        );
    }
    text
}
