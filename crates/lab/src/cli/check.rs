//! `ebb lab check-baseline`: compares replays with miss counts measured elsewhere.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

use super::{parse_policies, print, replay_named};
use crate::baseline;
use crate::replay::Job;

/// Arguments of `ebb lab check-baseline`.
#[derive(Debug, Args)]
pub struct CheckArgs {
    /// Folder with the traces, TRACE.csv.zst
    pub dir: PathBuf,
    /// Miss counts: CSV with the columns trace, size_pages, policy, misses
    #[arg(long, value_name = "FILE")]
    pub baseline: PathBuf,
    /// Only traces whose names contain this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
    /// Only these policies
    #[arg(long, short, value_name = "LIST", default_value = "all")]
    pub policy: String,
    /// Largest difference of miss ratios that passes, in percentage points
    #[arg(long, value_name = "POINTS", default_value_t = 0.5)]
    pub tolerance: f64,
    /// Also write every row to this CSV file
    #[arg(long, value_name = "FILE")]
    pub rows: Option<PathBuf>,
    /// Threads to use
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    pub jobs: usize,
}

/// Runs `ebb lab check-baseline`: replays the cases of the baseline, and compares.
pub fn run(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    let policies = parse_policies(&args.policy)?;
    let cases = baseline::read(&args.baseline)?;
    let mut compared = Vec::new();
    for (trace, mut cases) in cases.into_iter().filter(|(trace, _)| trace.contains(&args.only)) {
        cases.retain(|case| {
            let listed = policies.iter().any(|info| info.name == case.job.policy.name);
            listed && case.job.memory_pages >= case.job.policy.capacity_min
        });
        let jobs: Vec<Job> = cases.iter().map(|case| case.job.clone()).collect();
        let outcomes = replay_named(&args.dir, &trace, &jobs, args.jobs)?.unwrap_or_default();
        let pairs = cases.into_iter().zip(outcomes);
        compared.extend(pairs.map(|(case, outcome)| baseline::Compared { case, outcome }));
    }
    if compared.is_empty() {
        let (dir, baseline) = (args.dir.display(), args.baseline.display());
        bail!("{dir}: the folder has no trace of {baseline}; expected TRACE.csv.zst");
    }
    if let Some(path) = &args.rows {
        std::fs::write(path, baseline::csv(&compared))
            .with_context(|| path.display().to_string())?;
    }
    let (text, passes) = baseline::table(&compared, args.tolerance);
    print(&text)?;
    Ok(if passes { ExitCode::SUCCESS } else { ExitCode::from(1) })
}
