//! Tests the reuse curve of pages, and the limit that `ebb fit` finds.

use ebb_e2e::build;
use ebb_e2e::launch::{Launch, need_paging, send};
use ebb_testing::{eventually, eventually_some};
use rustix::process::Signal;
use std::process::Command;

fn ebb(words: &[&str]) -> std::process::Output {
    need_paging();
    Command::new(build::ebb()).args(words).output().expect("ebb runs")
}

/// Shows that a sample of all pages gives a curve. `./test measure fit` measures its values.
#[test]
fn a_sample_of_all_pages_makes_a_curve() {
    let launch = Launch::program("reuse", "run 64 16 200000").limit(1 << 30);
    let outcome = launch.options("--sample --report json").run();
    outcome.expect_line("run: ok");
    let report = outcome.stderr.lines().find(|line| line.starts_with('{')).expect("a report");
    let report: serde_json::Value = serde_json::from_str(report).expect("JSON");
    let reuse = &report["reuse"];
    assert!(reuse["one_in"].as_u64() > Some(0) && reuse["grain_bytes"].is_u64(), "{reuse}");
    let curve = reuse["curve"].as_array().expect("a curve");
    // Less memory never misses less often, except for the rounding of both values.
    for pair in curve.windows(2) {
        let of = |point: usize, name: &str| pair[point][name].as_u64().expect("a number");
        assert!(of(0, "bytes") < of(1, "bytes"), "{reuse}");
        assert!(of(0, "misses") + 1 >= of(1, "misses"), "{reuse}");
    }
}

/// Shows that the reported limit has been run and keeps the slowdown. Its size depends on the host,
/// and a measurement checks it.
#[test]
fn the_limit_that_is_found_was_run_and_keeps_the_slowdown() {
    let folder = tempfile::tempdir().expect("a folder");
    let page = folder.path().join("fit.html");
    let program = build::program("reuse");
    let mut words = vec!["fit", "--slowdown", "1000%", "--runs", "2", "--format", "json"];
    words.extend(["--html", page.to_str().expect("a name"), "--"]);
    words.extend([program.to_str().expect("a name"), "run", "64", "16", "20000"]);
    let output = ebb(&words);
    let said = String::from_utf8_lossy(&output.stderr);
    let fit: serde_json::Value = serde_json::from_slice(&output.stdout).expect(&said);
    let runs = fit["runs"].as_array().expect("runs");
    let keeps = |run: &&serde_json::Value| run["slowdown_percent"].as_f64() <= Some(1000.0);
    let size = |run: &serde_json::Value| run["memory_max_bytes"].as_u64().expect("a size");
    let best = runs.iter().filter(keeps).map(size).min();
    assert_eq!(fit["memory_max_bytes"].as_u64(), best, "{fit}");
    assert_eq!(output.status.code(), Some(i32::from(best.is_none())), "{said}");
    let proof = runs.iter().find(|run| Some(size(run)) == best);
    let found = proof.map_or(&serde_json::Value::Null, |run| &run["slowdown_percent"]);
    assert_eq!(&fit["slowdown_percent"], found, "{fit}");
    assert!((1..=2).contains(&runs.len()) && fit["peak_bytes"].is_u64(), "{fit}");
    let page = std::fs::read_to_string(page).expect("a page");
    assert!(page.contains("<svg") && page.contains("measured"), "{page}");
}

#[test]
fn a_fit_that_cannot_run_says_why() {
    for (words, why) in [
        (&["fit"][..], "no program; write: ebb fit -- PROGRAM"),
        (
            &["fit", "--slowdown", "5", "--", "true"],
            "--slowdown 5: write a share of the time, as 5%",
        ),
        (&["fit", "--swap", "tape", "--", "true"], "--swap: "),
        (&["fit", "--", "/no/such/program"], "/no/such/program"),
        (&["fit", "--input", "/no/such/file", "--", "true"], "--input /no/such/file: "),
        (&["fit", "--", "sh", "-c", "echo is broken >&2; exit 3"], "ended with status 3"),
    ] {
        let output = ebb(words);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(125), "{words:?}: {said}");
        assert!(said.contains(why), "{words:?}: {said}");
        assert!(output.stdout.is_empty(), "{words:?}");
    }
    let output = ebb(&["fit", "--", "sh", "-c", "echo is broken >&2; exit 3"]);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("\n  is broken"),
        "what it said is shown"
    );
}

/// Shows that a signal ends the search and the run, and removes the folder. The folder's name must
/// not be one that another user can create before.
#[test]
fn a_signal_ends_the_search_and_leaves_nothing() {
    need_paging();
    let folder = tempfile::tempdir().expect("a folder");
    let other = tempfile::tempdir().expect("a folder");
    let mark = other.path().join("mark");
    std::fs::write(&mark, "").expect("a file");
    let mut child = Command::new(build::ebb())
        .args(["fit", "--", "tail", "-f"])
        .arg(&mark)
        .env("TMPDIR", folder.path())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("ebb runs");
    let words = format!("tail\0-f\0{}\0", mark.display()).into_bytes();
    let is_it = |path: &std::path::PathBuf| {
        std::fs::read(path.join("cmdline")).is_ok_and(|found| found == words)
    };
    let program = || {
        let all = std::fs::read_dir("/proc").expect("processes").flatten();
        all.map(|process| process.path()).find(is_it)
    };
    let path = eventually_some("its program", program);
    let names: Vec<_> = std::fs::read_dir(folder.path()).expect("names").flatten().collect();
    assert_eq!(names.len(), 1);
    let name = names[0].file_name().into_string().expect("a name");
    assert!(name.starts_with("ebb-fit-") && name.len() == "ebb-fit-".len() + 16, "{name}");
    let status = std::fs::read_to_string(path.join("status")).expect("it runs");
    let blocked = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).expect("a mask");
    let blocked = u64::from_str_radix(blocked.trim(), 16).expect("a mask");
    assert_eq!(blocked & 1 << 14, 0, "the signal is blocked in the program: {status}");
    send(child.id() as i32, Signal::TERM);
    let status = eventually_some("its end", || child.try_wait().expect("a child"));
    assert_eq!(status.code(), Some(128 + 15));
    eventually("the end of its program", || program().is_none());
    assert_eq!(std::fs::read_dir(folder.path()).expect("names").count(), 0, "its folder stays");
}
