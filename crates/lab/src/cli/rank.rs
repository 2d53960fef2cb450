//! `ebb lab rank`: ranks a policy among the policies of a baseline.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::bail;
use clap::Args;

use super::{PolicyArgs, print, replay_named};
use crate::policy::PolicyInfo;
use crate::replay::Job;
use crate::{baseline, ranking};

/// Column of the ranked policy; no baseline has this name.
const OWN: &str = "Ebb";

/// Arguments of `ebb lab rank`.
#[derive(Debug, Args)]
#[command(after_help = "\
Replays every trace of the baseline that the folder has, at every size that has an optimum. Prints
geometric means of misses divided by the optimum's: for all cases, for each kind of trace, and for two
halves of each. Half \"searched\" has the first, third and so on of the baseline's traces in alphabetical
order: the search for Ebb's default used them. Half \"held out\" has the others. Policies that ran on
fewer cases follow, each compared on its own cases.

Examples:
  ebb lab rank traces --baseline policy-baseline.csv
  ebb lab rank traces --baseline policy-baseline.csv --set preset=k618
  ebb lab rank traces --baseline policy-baseline.csv --policy arc --only mem-")]
pub struct RankArgs {
    /// Folder with the traces, TRACE.csv.zst
    pub dir: PathBuf,
    /// Miss counts: CSV with the columns trace, size_pages, policy, misses, and optionally family;
    /// the policy Belady is the optimum
    #[arg(long, value_name = "FILE")]
    pub baseline: PathBuf,
    /// Policy to rank
    #[arg(long, short, value_name = "NAME", default_value = "gen")]
    pub policy: String,
    /// Settings of the policy
    #[command(flatten)]
    pub policies: PolicyArgs,
    /// Leave out caches with fewer pages
    #[arg(long, value_name = "PAGES", default_value_t = 256)]
    pub pages_min: u32,
    /// Only traces whose names contain this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
    /// Threads to use
    #[arg(long, short, value_name = "N", default_value_t = 1)]
    pub jobs: usize,
}

/// Runs `ebb lab rank`: replays the cases of the baseline, and ranks.
pub fn run(args: &RankArgs) -> anyhow::Result<ExitCode> {
    let policy = PolicyInfo::find(&args.policy)?;
    let settings = args.policies.settings()?;
    let rows = baseline::rows(&args.baseline)?;
    let mut left = ranking::cases(&rows, args.pages_min.max(policy.capacity_min));
    left.retain(|case| case.trace.contains(&args.only));
    let mut ranked = Vec::new();
    while let Some(trace) = left.first().map(|case| case.trace.clone()) {
        let (mut cases, others): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|case| case.trace == trace);
        left = others;
        let job = |memory_pages| Job { policy, memory_pages, settings: Arc::clone(&settings) };
        let jobs: Vec<Job> = cases.iter().map(|case| job(case.memory_pages)).collect();
        let Some(outcomes) = replay_named(&args.dir, &trace, &jobs, args.jobs)? else { continue };
        for (case, outcome) in cases.iter_mut().zip(outcomes) {
            case.misses.insert(OWN.to_owned(), outcome.misses);
        }
        ranked.append(&mut cases);
    }
    if ranked.is_empty() {
        bail!(
            "{}: the folder has no trace of {} with an optimum (policy Belady) at {} pages or more",
            args.dir.display(),
            args.baseline.display(),
            args.pages_min
        );
    }
    print(&ranking::table(&ranked, &ranking::searched(&rows), OWN))?;
    Ok(ExitCode::SUCCESS)
}
