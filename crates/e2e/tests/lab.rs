//! Tests the laboratory on several machines, as docs/lab.md describes. `./test measure lab`
//! compares the predictions of its `live` machine with a run.

use std::fs;

use ebb_e2e::same::need;
use tempfile::TempDir;

/// Shows that the commands of docs/lab.md for many machines work, here on one machine and for a
/// fast experiment.
#[test]
fn four_shards_under_gnu_parallel_are_one_run() {
    need("/usr/bin/parallel");
    let lab = Shards::new();
    let asked = "lab run small.toml --seeds 4";
    let whole = lab.shell(&format!("ebb {asked}")).expect("one run");
    let text = include_str!("../../../docs/lab.md");
    let small = text.replace("lab run --all", asked).replace("/8", "/4").replace("1..8", "1..4");
    let blocks: Vec<&str> = small.split("```").skip(1).step_by(2).collect();
    let block = |start: &str| {
        let block = blocks.iter().find_map(|block| block.strip_prefix(start));
        block.unwrap_or_else(|| panic!("no block {start:?}")).to_owned()
    };

    let parallel = block("bash\nparallel").replace("box1,box2,:", ":");
    assert_eq!(lab.shell(&format!("parallel{parallel}")), Ok(whole.clone()), "GNU parallel");

    let slurm = block("bash\n#!/bin/bash");
    let array = format!("for SLURM_ARRAY_TASK_ID in 1 2 3 4; do SLURM_CPUS_PER_TASK=2{slurm}done");
    lab.shell(&array).expect("the array");
    assert_eq!(lab.shell("ebb lab merge part-*.json"), Ok(whole.clone()), "Slurm");

    lab.shell("rm part-3.json").expect("it is there");
    let lost = lab.shell("ebb lab merge part-*.json").expect_err("one is missing");
    let (_, again) = lost.split_once("missing: shard 3/4; to run it: ").expect(&lost);
    lab.shell(&format!("{} > part-3.json", again.trim())).expect("the lost one");
    assert_eq!(lab.shell("ebb lab merge part-*.json"), Ok(whole.clone()), "a lost one");

    let pod = block("yaml\n").replace("/parts/", "pod-");
    let (_, args) = pod.split_once("args:\n            - ").expect("what it runs");
    let args = args.lines().next().expect("a line");
    let index = format!(
        "export JOB_COMPLETION_INDEX; for JOB_COMPLETION_INDEX in 0 1 2 3; do sh -c '{args}'; done"
    );
    lab.shell(&index).expect("the pods");
    assert_eq!(lab.shell("ebb lab merge pod-part-*.json"), Ok(whole), "Kubernetes");
}

/// A folder to work in.
struct Shards(TempDir);

impl Shards {
    fn new() -> Self {
        let folder = TempDir::with_prefix("ebb-shards-").expect("a folder");
        let scenario = ebb_e2e::build::root().join("crates/lab/tests/small.toml");
        fs::copy(scenario, folder.path().join("small.toml")).expect("copied");
        Self(folder)
    }

    /// Returns the output of a script, or its errors if it fails.
    fn shell(&self, script: &str) -> Result<String, String> {
        let ebb = ebb_e2e::build::ebb().parent().expect("its folder");
        let mut shell = std::process::Command::new("bash");
        shell.args(["-ec", script]).current_dir(&self.0);
        shell.env("PATH", format!("{}:/usr/bin:/bin", ebb.display()));
        let output = shell.output().expect("a shell");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
    }
}
