//! `ebb lab new`: writes a scenario with a comment on each line, for the user to change.

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};

use super::print;
use crate::scenario::{self, Scenario};
use crate::trace::{Format, Kind, Lack, Reader};

/// Arguments of `ebb lab new`.
#[derive(Debug, Args)]
pub struct NewArgs {
    /// File to write, with a name that ends in .toml
    #[arg(required_unless_present_any = ["reference", "schema"])]
    pub file: Option<PathBuf>,
    /// Print all keys that a scenario may have, as a page in Markdown
    #[arg(long, conflicts_with_all = ["file", "trace", "schema"])]
    pub reference: bool,
    /// Print a JSON schema with which editors complete and check scenarios
    #[arg(long, conflicts_with_all = ["file", "trace"])]
    pub schema: bool,
    /// Write a scenario that plays this trace in half of the memory that it uses, instead of a
    /// key-value store
    #[arg(long, value_name = "TRACE")]
    pub trace: Option<PathBuf>,
    /// Format of the trace, if it cannot be detected
    #[arg(long, value_enum, requires = "trace")]
    pub input_format: Option<Format>,
}

/// Number of frames of the smallest machine.
const FRAMES_MIN: u64 = 4096;
/// Number of frames of the largest machine.
const FRAMES_MAX: u64 = 1 << 24;

/// Values that go into the new file.
struct Known {
    /// The `[workload.trace]` table, or that of another generator.
    workload: String,
    frames: u64,
    /// Limit of the memcg as a share of the frames.
    limit: f64,
    metrics: &'static str,
}

/// Runs `ebb lab new`.
pub fn run(args: &NewArgs) -> anyhow::Result<ExitCode> {
    let Some(path) = &args.file else {
        print(&if args.schema { scenario::schema() } else { scenario::reference() })?;
        return Ok(ExitCode::SUCCESS);
    };
    let name = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    let plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
    if path.extension().is_none_or(|end| end != "toml") || !name.chars().all(plain) {
        let path = path.display();
        bail!(
            "{path}: expected a name of letters, digits, - and _ that ends in .toml, such as mine.toml"
        );
    }
    let known = match &args.trace {
        Some(path) => of_trace(path, args.input_format)?,
        None => of_store(),
    };
    let text = text(name, &known);
    let shown = path.display().to_string();
    // Check that the written scenario can run.
    Scenario::parse(&shown, &text)?;
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .open(path)
        .with_context(|| format!("{shown} (nothing was written)"))?;
    file.write_all(text.as_bytes()).with_context(|| shown.clone())?;
    print(&format!("{shown} is written; to run it: ebb lab run {shown}\n"))?;
    Ok(ExitCode::SUCCESS)
}

fn of_store() -> Known {
    let workload = "\
[workload.key-value]
threads = 8             # servers; each has a part of the keys
data = 1.25             # values, as a multiple of the memcg's limit
item_bytes = 1024       # bytes of a value
pattern = \"zipfian\"     # distribution of the keys: also latest, uniform, exponential, gaussian, sequential
writes = 0.1            # share of the operations that change a value
op_ns = 2000            # processor time of an operation
warm = 2.0              # operations before measuring begins, as a multiple of the pages of values
ops = 4.0               # operations measured, likewise
"
    .to_owned();
    let metrics = "\
metric = \"ops_per_s\"    # the metric that decides; the JSON report (--format json) has all names
higher_is_better = true
also = [\"read_p99_us\", \"refaults\", \"direct_s\", \"kswapd_s\"]
";
    Known { workload, frames: 32_768, limit: 0.5, metrics }
}

fn of_trace(path: &Path, format: Option<Format>) -> anyhow::Result<Known> {
    let name =
        path.to_str().with_context(|| format!("{}: the path is not UTF-8", path.display()))?;
    let mut reader = Reader::open(path, format)?;
    let (mut pages, mut accesses, mut files) = (BTreeSet::new(), 0u64, false);
    let (mut records, mut time) = (Vec::new(), 0u64);
    while reader.read(&mut records)? {
        accesses += records.len() as u64;
        for record in &records {
            pages.insert(record.page);
            files |= matches!(record.kind, Kind::Mapped | Kind::Buffered);
            time = time.saturating_add(record.dt);
        }
    }
    let pages = pages.len() as u64;
    let lacks = reader.lacks();
    let form = format.and_then(|f| Some(f.to_possible_value()?.get_name().to_owned()));
    let form = form.map(|form| format!("input_format = {form:?}\n")).unwrap_or_default();
    let accept = match lacks {
        None => String::new(),
        Some(Lack::Accesses) => "accept_regions = true   # one access to each page of an accessed region in each interval: the result is no\n                        \
                 # prediction for the program\n"
            .to_owned(),
        Some(Lack::Touches) => "accept_faults = true    # page faults only, without accesses to resident pages: the result is no\n                        \
                 # prediction for the program\n"
            .to_owned(),
    };
    let unit = if lacks.is_some() { 1000 } else { 1 };
    let workload = format!(
        "\
# {accesses} accesses to {pages} pages ({:.1} MiB){} in {time} units of time.
[workload.trace]
file = {name:?}
{form}unit_ns = {unit:<15} # nanoseconds in a unit of the trace's time; 0: times do not count
waits = false           # the process computes between two accesses; true: it sleeps
warm = 0.0              # share of the accesses before measuring begins
rounds = 1              # number of times that the accesses are played
processes = 1           # processes that play the trace, each with its own memory
{accept}",
        pages as f64 / 256.0,
        if files { ", of files as well," } else { "" },
    );
    // Limit of half of the trace's pages, on a machine that has no other shortage of memory.
    let frames = (pages * 2).next_multiple_of(1024).clamp(FRAMES_MIN, FRAMES_MAX);
    let metrics = "\
metric = \"elapsed_s\"    # the metric that decides; the JSON report (--format json) has all names
higher_is_better = false
also = [\"refaults\", \"read_p99_us\", \"direct_s\", \"kswapd_s\"]
";
    Ok(Known { workload, frames, limit: pages as f64 / 2.0 / frames as f64, metrics })
}

fn text(name: &str, known: &Known) -> String {
    let Known { workload, frames, limit, metrics } = known;
    format!(
        "\
# A scenario of `ebb lab`. To run it: ebb lab run {name}.toml
# All keys: ebb lab new --reference. Any can be changed for a run: --set machine.frames=65536 --set workload.NAME=VALUE --set gen.walk=off
name = {name:?}
title = \"one line about the scenario\"
source = \"none\"         # publication of the result to compare with

[machine]
frames = {frames:<14} # of 4 KiB
cpus = 4
swap = {{ kind = \"nvme\" }} # device for anonymous pages: also zram, ramdisk, flash, ssd, disk; read_us and write_us change its times
disk = {{ kind = \"nvme\" }} # device of the files

[[memcg]]
name = \"limited\"
limit = {limit:<15.6} # memory.max, as a share of the frames

[[workload]]
name = {name:?}
memcg = \"limited\"
{workload}
[measure]
{metrics}seeds = 5               # runs of each side, on the same random numbers

# Arms: the lab compares the others with the first. Switches and presets: ebb lab policies.
[[arm]]
name = \"classic\"
set = [\"preset=classic\"]
[[arm]]
name = \"mglru\"
set = [\"preset=k612\"]
[[arm]]
name = \"ebb\"
set = [\"preset=ebb\"]

# Variants of the comparison. A published result: published = {{ baseline = 1000, patched = 1100 }}
[[case]]
name = \"as it is\"
[[case]]
name = \"in three quarters of that\"
set = [\"memcg.limited.limit={:.6}\"]
",
        limit * 0.75
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::run_once;

    #[test]
    fn a_written_scenario_runs() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("mine.toml");
        let args = |trace| NewArgs {
            file: Some(file.clone()),
            trace,
            input_format: None,
            reference: false,
            schema: false,
        };
        run(&args(None)).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        let scenario = Scenario::parse("mine.toml", &text).unwrap();
        let metrics = run_once(&scenario, 1, 0).unwrap().0;
        assert!(metrics["refaults"] > 100.0 && metrics["ops"] > 1000.0, "{metrics:?}");

        let again = format!("{:#}", run(&args(None)).unwrap_err());
        assert!(again.contains("mine.toml (nothing was written): File exists"), "{again}");
        assert_eq!(std::fs::read_to_string(&file).unwrap(), text);

        let trace = folder.path().join("t.csv");
        let lines: String = (0..40_000).map(|i| format!("3,{},w\n", i * 7 % 4000)).collect();
        std::fs::write(&trace, format!("dt,fault,op\n{lines}")).unwrap();
        std::fs::remove_file(&file).unwrap();
        run(&args(Some(trace))).unwrap();
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(
            text.contains("# 40000 accesses to 4000 pages (15.6 MiB) in 120000 units of time."),
            "{text}"
        );
        assert!(text.contains("accept_faults = true") && text.contains("unit_ns = 1000"), "{text}");
        let scenario = Scenario::parse("mine.toml", &text).unwrap();
        assert!(run_once(&scenario, 1, 0).unwrap().0["refaults"] > 10_000.0);

        let wrong = NewArgs { file: Some("mine".into()), ..args(None) };
        assert!(
            run(&wrong).unwrap_err().to_string().contains("that ends in .toml, such as mine.toml")
        );
    }
}
